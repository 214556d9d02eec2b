//! From a failure, a signal or the last exit to the end of the session.

use std::time::Duration;

use pmi::Ranks;

use super::{Notice, Phase, Root, RootAction, SIGKILL, SIGTERM};
use crate::core::cause::{Cause, Failure, Outcome, elect};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::{END_MARGIN, FAILURES_SINGLE_MAX, GATHER_WINDOW};
use crate::core::message::{Down, Reply};
use crate::core::timing::Timing;

impl Root {
    pub(super) fn on_failure(&mut self, now: Time, failure: Failure, actions: &mut Vec<RootAction>) {
        if let Cause::NotStarted { why } = &failure.cause
            && let Some(ns) = self.namespaces.get_mut(&failure.namespace)
            && ns.plan.spawner.is_some()
        {
            // A spawn that fails concerns only who asked for it.
            if !std::mem::replace(&mut ns.undone, true) {
                let why = why.clone();
                let requester = ns.requester.take();
                let namespace = failure.namespace;
                for child in ns.children.keys() {
                    actions.push(RootAction::ToChild(*child, Down::Undo { namespace }));
                }
                if let Some(requester) = requester {
                    self.reply(requester, Reply::Spawned(Err(why)), actions);
                }
            }
            return;
        }
        if self.namespaces.get(&failure.namespace).is_some_and(|ns| ns.undone) {
            return;
        }
        actions.push(RootAction::Notice(Notice::Failure(failure.clone())));
        if self.failures.len() < FAILURES_SINGLE_MAX as usize {
            self.failures.push(failure);
        } else {
            self.failures_more = self.failures_more.saturating_add(1);
        }
        if matches!(self.phase, Phase::Joining { .. } | Phase::Running) {
            self.phase = Phase::Gathering { until: now + GATHER_WINDOW };
        }
    }

    pub(super) fn on_child_lost(&mut self, now: Time, child: AgentId, why: String, actions: &mut Vec<RootAction>) {
        let Some(state) = self.children.get_mut(&child) else { return };
        state.gone = true;
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        let failure = Failure {
            at: now,
            agent: child,
            namespace: NamespaceId::FIRST,
            ranks: Ranks::new(),
            cause: Cause::Lost { why },
        };
        self.on_failure(now, failure, actions);
    }

    /// Nothing is left of a child's subtree.
    pub(super) fn on_ended(
        &mut self,
        now: Time,
        from: AgentId,
        leftovers: u64,
        timing: &Timing,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(below) = self.tree.toward(from) else { return };
        let Some(child) = self.children.get_mut(&from) else { return };
        if child.gone {
            // It was content up before.
            return;
        }
        if child.ended || !timing.is_of(below) {
            return self.cut_off(now, from, "its last word makes no sense".to_owned(), actions);
        }
        child.ended = true;
        self.leftovers = self.leftovers.saturating_add(leftovers);
        self.timing.merge(timing);
    }

    pub(super) fn on_interrupt(&mut self, now: Time, signal: i32, actions: &mut Vec<RootAction>) {
        if let Phase::Flushing { .. } = self.phase {
            // Only output is left, and the user does not want it.
            self.over(Outcome::Interrupted { signal }, actions);
            return;
        }
        if let Phase::Ending { until, interrupted, .. } = &mut self.phase {
            // LookUpStep twice, or asked while the end is under way already: no more patience.
            if *interrupted {
                *until = now + END_MARGIN;
                self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, actions);
            }
            if let Phase::Ending { interrupted, .. } = &mut self.phase {
                *interrupted = true;
            }
            return;
        }
        // Before the launch, agents that failed may just have heard the same Ctrl-C.
        let outcome = if self.failures.is_empty() || self.first.is_some() {
            Outcome::Interrupted { signal }
        } else {
            self.elected()
        };
        self.end(now, outcome, signal, actions);
        if let Phase::Ending { interrupted, .. } = &mut self.phase {
            *interrupted = true;
        }
    }

    pub(super) fn end(&mut self, now: Time, outcome: Outcome, signal: i32, actions: &mut Vec<RootAction>) {
        if self.is_ending() {
            return;
        }
        let joining = self.first.is_some();
        let grace = self.session.kill_grace;
        if outcome != Outcome::Success {
            actions.push(RootAction::Notice(Notice::Ending(signal, grace)));
        }
        if joining {
            // No rank was started: whoever has joined leaves when its link closes.
            self.over(outcome, actions);
            return;
        }
        self.to_children(&Down::End { signal, grace }, actions);
        self.phase = Phase::Ending { outcome, until: now + grace + END_MARGIN, interrupted: false };
    }

    /// Nobody has what the ranks wrote: the session ends, and if it is ending well, it is not well.
    pub(super) fn lose_output(&mut self, now: Time, lost: Outcome, actions: &mut Vec<RootAction>) {
        match &mut self.phase {
            Phase::Ending { outcome, .. } | Phase::Flushing { outcome } if *outcome == Outcome::Success => {
                *outcome = lost
            }
            _ => self.end(now, lost, SIGTERM, actions),
        }
    }

    pub(super) fn over(&mut self, outcome: Outcome, actions: &mut Vec<RootAction>) {
        self.to_children(&Down::Leave, actions);
        if self.leftovers > 0 {
            actions.push(RootAction::Notice(Notice::Leftovers(self.leftovers)));
        }
        self.phase = Phase::Over;
        actions.push(RootAction::Over(outcome));
    }

    pub(super) fn elected(&self) -> Outcome {
        match elect(&self.failures) {
            Some(first) => {
                Outcome::Failed { first: first.clone(), others: self.failures.len() as u64 - 1 + self.failures_more }
            }
            None => Outcome::Success,
        }
    }
}
