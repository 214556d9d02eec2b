//! Signals to ranks, and the end: TERM, the grace, KILL, the sweep, the last word.

use std::time::Duration;

use super::{Action, Agent, Phase, SIGCONT, SIGKILL, SIGSTOP};
use crate::core::ids::{AgentId, Time};
use crate::core::namespace::Stage;
use crate::core::timing::Timing;

impl Agent {
    pub(super) fn end(&mut self, now: Time, signal: i32, grace: Duration, actions: &mut Vec<Action>) {
        self.times.on_end(now);
        let kill_at = (signal != SIGKILL).then(|| now + grace);
        match self.phase {
            Phase::Serving => {
                actions.push(Action::CancelStarts);
                self.signal_all(signal, actions);
                self.phase = Phase::Ending { kill_at };
            }
            Phase::Ending { kill_at: Some(before) } => {
                if kill_at.is_none_or(|at| at < before) {
                    self.signal_all(signal, actions);
                    self.phase = Phase::Ending { kill_at };
                }
            }
            Phase::Ending { kill_at: None } | Phase::Sweeping | Phase::Swept | Phase::Over => {}
        }
    }

    /// Nothing is left of a child's subtree.
    pub(super) fn on_ended(
        &mut self,
        now: Time,
        from: AgentId,
        leftovers: u64,
        timing: &Timing,
        actions: &mut Vec<Action>,
    ) {
        let Some(below) = self.here.toward(from) else { return };
        let Some(child) = self.children.get_mut(&from) else { return };
        if child.gone {
            // It was content up before.
            return;
        }
        if child.ended || !timing.is_of(below) {
            return self.cut_off(now, from, "its last word makes no sense".to_owned(), actions);
        }
        (child.ended, child.leftovers) = (true, leftovers);
        self.times.on_told(timing);
    }

    pub(super) fn signal_all(&self, signal: i32, actions: &mut Vec<Action>) {
        for ns in self.namespaces.values() {
            let ranks = ns.at(Stage::Running);
            if ranks.is_empty() {
                continue;
            }
            actions.push(Action::Signal(ns.id, ranks.clone(), signal));
            if self.suspended && signal != SIGSTOP && signal != SIGCONT && signal != SIGKILL {
                // A stopped process acts on a signal only when it goes on.
                actions.push(Action::Signal(ns.id, ranks, SIGCONT));
            }
        }
    }
}
