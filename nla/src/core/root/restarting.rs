//! All ranks start again after a failure: the old ones are ended everywhere, then a new namespace starts.

use super::{Notice, Phase, Root, RootAction, SIGTERM, Turn};
use crate::core::cause::Outcome;
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::limits::END_MARGIN;
use crate::core::message::Down;
use crate::core::parent::Parent;
use crate::core::plan::NamespacePlan;

/// The variable that tells a rank how often the job has started again.
const INCARNATION: &[u8] = b"SCELA_INCARNATION";

/// The starts of the job.
#[derive(Debug)]
pub(super) struct Restarts {
    /// The plan of the first start.
    origin: NamespacePlan,
    /// How often all ranks have started again.
    done: u32,
    max: u32,
}

impl Restarts {
    /// Returns the starts of a job with this plan, and the plan of the first one. Each start is numbered if the job may
    /// start again.
    pub(super) fn begin(origin: NamespacePlan, policy: FailurePolicy, max: u32) -> (Self, NamespacePlan) {
        let mut restarts = Self { origin, done: 0, max };
        if policy == FailurePolicy::Restart {
            restarts.number();
        }
        let first = restarts.origin.clone();
        (restarts, first)
    }

    /// Writes the number of the start into the ranks' environment.
    fn number(&mut self) {
        for command in &mut self.origin.commands {
            command.set.retain(|(name, _)| name != INCARNATION);
            command.set.push((INCARNATION.to_vec(), self.done.to_string().into_bytes()));
        }
    }

    /// The plan of the next start, as namespace `id`.
    fn next(&mut self, id: NamespaceId) -> NamespacePlan {
        self.done += 1;
        self.number();
        let mut plan = self.origin.clone();
        plan.id = id;
        let base = plan.kvsname.rsplit_once('_').map_or(plan.kvsname.as_str(), |(base, _)| base);
        plan.kvsname = format!("{base}_{}", id.0);
        // The first ranks have read it.
        plan.stdin = pmi::Ranks::new();
        plan
    }
}

impl Root {
    /// Ends all ranks to start them again, if the policy says so for the `outcome` of the failures. Returns false if not.
    pub(super) fn begin_restart(&mut self, outcome: &Outcome, turn: &mut Turn<'_>) -> bool {
        let Outcome::Failed { first, others } = outcome else { return false };
        let is_allowed = self.failures.iter().all(|failure| self.session.on_failure.restarts(&failure.cause));
        let Some(next) = self.next_namespace() else { return false };
        if !is_allowed || self.first.is_some() || self.restarts.done >= self.restarts.max {
            return false;
        }
        let (number, of) = (self.restarts.done + 1, self.restarts.max);
        let notice = Notice::Restarting { first: first.clone(), others: *others, number, of };
        turn.push(RootAction::Notice(notice));
        let grace = self.session.kill_grace;
        self.to_children(&Down::Clear { signal: SIGTERM, grace }, turn);
        let awaited = self.children.reachable().collect();
        let until = turn.now + grace + END_MARGIN;
        self.enter(Phase::Restarting { until, awaited, next }, "a failure is followed by a restart");
        true
    }

    /// A child has no rank left. After the last one, all ranks start again.
    pub(super) fn on_child_cleared(&mut self, child: AgentId, leftovers: u64, turn: &mut Turn<'_>) {
        self.leftovers = self.leftovers.saturating_add(leftovers);
        let Phase::Restarting { until, awaited, next } = &self.phase else { return };
        let (until, next) = (*until, *next);
        let awaited: Vec<_> = awaited.iter().copied().filter(|awaited| *awaited != child).collect();
        if !awaited.is_empty() {
            self.enter(Phase::Restarting { until, awaited, next }, "a child has no rank left");
            return;
        }
        self.enter(Phase::Running, "no rank is left, and the job starts again");
        self.namespaces.clear();
        self.ended.clear();
        self.names.clear();
        self.failures.clear();
        self.failures_more = 0;
        self.job = next;
        let plan = self.restarts.next(next);
        self.launch(plan, None, turn);
    }
}
