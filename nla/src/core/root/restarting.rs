//! All ranks start again after a failure: the old ones are ended everywhere, then a new namespace starts.

use std::time::Duration;

use litemap::LiteMap;
use pmi::Ranks;

use super::moving::Homeless;
use super::{Meetings, Notice, Phase, Posts, Root, RootAction, SIGTERM, Turn};
use crate::core::cause::{Failure, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::END_MARGIN;
use crate::core::message::Down;
use crate::core::parent::Parent;
use crate::core::placement::{owners, without_lost};
use crate::core::plan::{NamespacePlan, find};

/// The environment variable that tells a rank the number of its start: how often the job has started again or, if ranks
/// start again one by one, how often ranks of the session have.
pub const INCARNATION: &str = "SCELA_INCARNATION";

/// The starts of the job.
#[derive(Debug)]
pub(super) struct Restarts {
    /// The plan of the last start.
    origin: NamespacePlan,
    /// How often all ranks, or single ones, have started again.
    pub(super) done: u32,
    pub(super) max: u32,
    /// Lost agents that may still run their ranks, and until when.
    ending: LiteMap<AgentId, Time>,
    /// Ranks that start again, alone, on other agents than before.
    pub(super) homeless: Vec<Homeless>,
    /// The losses of their agents.
    pub(super) losses: Vec<Failure>,
}

impl Restarts {
    /// Returns the starts of a job with this plan, and the plan of the first one. Each start is numbered if the job may
    /// start again.
    pub(super) fn begin(origin: NamespacePlan, policy: FailurePolicy, max: u32) -> (Self, NamespacePlan) {
        let (homeless, losses) = (Vec::new(), Vec::new());
        let mut restarts = Self { origin, done: 0, max, ending: LiteMap::new(), homeless, losses };
        if policy.starts_again() {
            restarts.number();
        }
        let first = restarts.origin.clone();
        (restarts, first)
    }

    /// Writes the number of the start into the ranks' environment.
    fn number(&mut self) {
        for command in &mut self.origin.commands {
            command.set.retain(|(name, _)| name != INCARNATION.as_bytes());
            command.set.push((INCARNATION.as_bytes().to_vec(), self.done.to_string().into_bytes()));
        }
    }

    /// Notes that an agent was lost. By `until` it has ended its ranks, even if it cannot be reached.
    pub(super) fn on_loss(&mut self, agent: AgentId, until: Time) {
        self.ending.insert(agent, until);
    }

    /// All processes of an agent have ended: its ranks can start again elsewhere.
    pub(super) fn on_agent_ended(&mut self, agent: AgentId, now: Time) {
        self.ending.remove(&agent);
        for homeless in self.homeless.iter_mut().filter(|homeless| homeless.agent == agent) {
            homeless.until = homeless.until.min(now);
        }
    }

    /// All ranks do not start again before this time: those of a lost agent may still run.
    pub(super) fn not_before(&self) -> Time {
        self.ending.values().copied().max().unwrap_or(Time::ZERO)
    }

    /// The lost agents that may run their ranks after this time.
    pub(super) fn ending_after(&self, now: Time) -> impl Iterator<Item = AgentId> {
        self.ending.iter().filter(move |(_, until)| **until > now).map(|(agent, _)| *agent)
    }

    /// Notes that ranks of the job have moved.
    pub(super) fn move_to(&mut self, from: AgentId, to: AgentId, ranks: &Ranks) {
        self.origin.move_out(from, ranks);
        self.origin.move_in(to, ranks);
    }

    /// The plan of the next start, as namespace `id`, with this placement.
    fn next(
        &mut self,
        id: NamespaceId,
        placement: Vec<(AgentId, Ranks)>,
        nodes: &LiteMap<AgentId, u32>,
    ) -> NamespacePlan {
        self.done += 1;
        self.number();
        self.origin.owners = owners(&placement, nodes);
        self.origin.placement = placement;
        let mut plan = self.origin.clone();
        plan.id = id;
        let base = plan.kvsname.rsplit_once('_').map_or(plan.kvsname.as_str(), |(base, _)| base);
        plan.kvsname = format!("{base}_{}", id.0);
        // The first ranks have read it.
        plan.stdin = Ranks::new();
        plan
    }
}

impl Root {
    /// Ends all ranks to start them again, if the policy says so for the `outcome` of the failures. Returns false if not.
    pub(super) fn begin_restart(&mut self, outcome: &Outcome, turn: &mut Turn<'_>) -> bool {
        let Outcome::Failed { first, others } = outcome else { return false };
        let restarts = |failure: &Failure| self.session.on_failure.restarts(&failure.cause, self.session.has_ports);
        let is_allowed = self.failures.iter().all(restarts);
        let Some(next) = self.next_namespace() else { return false };
        if !is_allowed || self.first.is_some() {
            return false;
        }
        if self.restarts.done >= self.restarts.max {
            turn.push(RootAction::Notice(Notice::NoRestartLeft(self.restarts.max)));
            return false;
        }
        if self.next_placement().is_none() {
            turn.push(RootAction::Notice(Notice::NoSpare));
            return false;
        }
        let (number, of) = (self.restarts.done + 1, self.restarts.max);
        let wait = self.restarts.not_before().saturating_sub(turn.now);
        let notice = Notice::Restarting { first: first.clone(), others: *others, number, of, wait };
        turn.push(RootAction::Notice(notice));
        let order = self.order_to_clear();
        self.clear_children(&order, turn);
        let awaited = self.children.not_ended().collect();
        let until = turn.now.max(self.restarts.not_before()) + self.session.kill_grace + END_MARGIN;
        self.enter(Phase::Restarting { until, awaited, next }, "a failure is followed by a restart");
        true
    }

    /// Starts the rank of a failure again, or those of a lost agent, if the policy says so. Returns false if not.
    pub(super) fn revive(&mut self, failure: &Failure, turn: &mut Turn<'_>) -> bool {
        if self.on_movable_loss(failure, turn) {
            return true;
        }
        let Some(rank) = failure.ranks.first().filter(|_| failure.ranks.len() == 1) else { return false };
        if !self.session.on_failure.revives(&failure.cause) || !matches!(self.phase, Phase::Running) {
            return false;
        }
        if self.restarts.done >= self.restarts.max {
            turn.push(RootAction::Notice(Notice::NoRestartLeft(self.restarts.max)));
            return false;
        }
        self.restarts.done += 1;
        let (number, of) = (self.restarts.done, self.restarts.max);
        turn.push(RootAction::Notice(Notice::Reviving { failure: failure.clone(), number, of, wait: Duration::ZERO }));
        let (agent, namespace) = (failure.agent, failure.namespace);
        self.route_order(agent, Down::Revive { agent, namespace, rank, incarnation: number }, turn);
        true
    }

    /// The order to end all ranks before they start again.
    pub(super) fn order_to_clear(&self) -> Down {
        Down::Clear { signal: SIGTERM, grace: self.session.kill_grace }
    }

    /// A child has no rank left.
    pub(super) fn on_child_cleared(&mut self, child: AgentId, leftovers: u64) {
        self.leftovers = self.leftovers.saturating_add(leftovers);
        if let Phase::Restarting { awaited, .. } = &mut self.phase {
            awaited.retain(|awaited| *awaited != child);
        }
    }

    /// Starts all ranks again once no rank is left.
    pub(super) fn continue_restart(&mut self, turn: &mut Turn<'_>) {
        let Phase::Restarting { awaited, next, .. } = &self.phase else { return };
        let (has_rank, next) = (!awaited.is_empty(), *next);
        let Some(placement) = self.next_placement() else {
            turn.push(RootAction::Notice(Notice::NoSpare));
            return self.end(self.elected(), SIGTERM, "no agent can take over the ranks of a lost one", turn);
        };
        // A lost agent may still run its ranks until then.
        if has_rank || turn.now < self.restarts.not_before() {
            return;
        }
        self.enter(Phase::Running, "no rank is left, and the job starts again");
        for namespace in self.namespace_ids() {
            self.forget(namespace);
        }
        self.ended.clear();
        self.names.clear();
        self.posts = Posts::default();
        self.meetings = Meetings::default();
        self.failures.clear();
        self.failures_more = 0;
        self.job = next;
        turn.push(RootAction::Notice(Notice::Restarted(next)));
        if placement != self.restarts.origin.placement {
            turn.push(RootAction::Notice(Notice::Moved(placement.clone())));
        }
        let plan = self.restarts.next(next, placement, &self.nodes);
        self.launch(plan, None, turn);
    }

    /// The agents on which the ranks start again; `None` if no agent can take over the ranks of a lost one.
    fn next_placement(&self) -> Option<Vec<(AgentId, Ranks)>> {
        without_lost(&self.restarts.origin.placement, &self.nodes, &self.lost)
    }

    /// Whether this agent has no ranks of the job, and is kept for a restart.
    pub(super) fn is_spare(&self, agent: AgentId) -> bool {
        self.session.on_failure.starts_again() && find(&self.restarts.origin.placement, agent).is_none()
    }

    /// The nodes of the agents that may start ranks of spawned jobs: neither lost ones nor spares.
    pub(super) fn nodes_for_spawns(&self) -> LiteMap<AgentId, u32> {
        let may_start = |agent: &AgentId| !self.lost.contains(agent) && !self.is_spare(*agent);
        self.nodes.iter().filter(|(agent, _)| may_start(agent)).map(|(agent, node)| (*agent, *node)).collect()
    }
}
