//! Ends all ranks of the subtree before a restart: TERM, the grace, KILL, then the processes that outlived their ranks,
//! then the report.

use std::time::Duration;

use super::{Action, Agent, Phase, SIGKILL, Turn};
use crate::core::ids::{AgentId, Time};
use crate::core::message::{Down, Up};
use crate::core::parent::Parent;

/// An order to end all ranks that is carried out.
#[derive(Debug)]
pub(super) struct Clearing {
    /// When the remaining ranks get SIGKILL; `None` once it was sent.
    kill_at: Option<Time>,
    /// The order, for children that join again meanwhile.
    signal: i32,
    grace: Duration,
    /// The children that have not answered, orphaned ones among them.
    awaited: Vec<AgentId>,
    own: Own,
    leftovers: u64,
}

/// How far this agent's own processes are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Own {
    /// Ranks are ending.
    Ranks,
    /// The driver kills the processes that outlived them.
    Leftovers,
    /// None is left.
    Cleared,
}

impl Clearing {
    /// The signal that ranks get now.
    pub(super) fn signal(&self) -> i32 {
        if self.kill_at.is_some() { self.signal } else { SIGKILL }
    }

    /// When the next step is due if nothing happens.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.kill_at
    }

    /// The order for `child`, which has joined again; `None` if it has answered.
    pub(super) fn order_for(&self, child: AgentId) -> Option<Down> {
        self.awaited.contains(&child).then_some(Down::Clear { signal: self.signal, grace: self.grace })
    }

    /// Waits for `heirs` in place of a lost child, unless it had answered for them.
    pub(super) fn await_heirs(&mut self, child: AgentId, heirs: &[AgentId]) {
        if let Some(at) = self.awaited.iter().position(|awaited| *awaited == child) {
            self.awaited.splice(at..=at, heirs.iter().copied());
        }
    }
}

impl Agent {
    /// The launcher ends all ranks; they will start again.
    pub(super) fn on_clear(&mut self, signal: i32, grace: Duration, turn: &mut Turn<'_>) {
        if !self.is_serving() || self.clearing.is_some() {
            return;
        }
        self.clear_children(&Down::Clear { signal, grace }, turn);
        // The ends of the ranks are no failures from now on.
        self.namespaces.iter_mut().for_each(|(_, ns)| ns.undone = true);
        turn.push(Action::CancelStarts);
        self.end_all(signal, turn);
        let awaited = self.children.not_ended().collect();
        let kill_at = (signal != SIGKILL).then(|| turn.now + grace);
        self.clearing = Some(Clearing { kill_at, signal, grace, awaited, own: Own::Ranks, leftovers: 0 });
    }

    /// The driver has killed the processes that outlived the ranks.
    pub(super) fn on_own_cleared(&mut self, leftovers: u64) {
        if let Some(clearing) = &mut self.clearing {
            clearing.own = Own::Cleared;
            clearing.leftovers = clearing.leftovers.saturating_add(leftovers);
        }
    }

    /// A child has no rank left.
    pub(super) fn on_child_cleared(&mut self, child: AgentId, leftovers: u64) {
        if let Some(clearing) = &mut self.clearing {
            clearing.awaited.retain(|awaited| *awaited != child);
            clearing.leftovers = clearing.leftovers.saturating_add(leftovers);
        }
    }

    /// Takes the steps of the order that are due.
    pub(super) fn continue_clearing(&mut self, turn: &mut Turn<'_>) {
        let Some(clearing) = &mut self.clearing else { return };
        if self.phase != Phase::Serving {
            // The end of the session replaces it.
            self.clearing = None;
            return;
        }
        let is_late = clearing.kill_at.is_some_and(|at| turn.now >= at);
        if is_late {
            clearing.kill_at = None;
        }
        let has_ended = self.namespaces.values().all(|ns| ns.live == 0);
        if clearing.own == Own::Ranks && has_ended {
            clearing.own = Own::Leftovers;
            turn.push(Action::Clear);
        }
        if clearing.own == Own::Cleared && clearing.awaited.is_empty() {
            let leftovers = clearing.leftovers;
            self.clearing = None;
            self.forget_all();
            // The bound on single reports counts anew, or the next failure would only be counted.
            self.failures.clear();
            self.failures_more = 0;
            turn.push(Action::ToParent(Up::Cleared { leftovers }));
        } else if is_late {
            self.signal_all(SIGKILL, turn);
        }
    }
}
