//! Ranks that start again while the others go on: they catch up with the fences that the others have completed.
//!
//! A restarted rank enters all its fences again, from the first one. Fences that its peers have left return at once,
//! and the rank sees the current board. Its puts are held back until the first fence that it enters together with the
//! others, because the entries of a released fence cannot change. They are part of its contribution to that fence. Until
//! then, only the rank itself sees them: its conversation keeps them while fences are answered by [`Answer::Passed`].

use pmi::{Answer, Puts, Rank};

use super::{Action, Agent, Turn};
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::limits::HELD_BYTES_MAX;
use crate::core::message::{Contribution, Down};
use crate::core::parent::Parent;

/// A rank that has started again and has entered no fence together with the others.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    /// The number of the rank's next fence.
    next: u32,
    /// The rank's puts so far.
    held: Puts,
}

/// The way in which a rank that catches up takes part in a fence.
#[derive(Debug, PartialEq)]
pub(super) enum CatchUpStep {
    /// It is over for the others: the rank leaves it at once.
    Pass,
    /// The rank had entered it before it failed: the rank waits, and contributes nothing.
    Wait,
    /// The rank enters it with the others. It contributes these puts.
    Enter(Puts),
}

impl CatchUp {
    /// Holds back puts. Returns false if they are too many.
    pub(super) fn hold(&mut self, puts: &Puts) -> bool {
        self.held.append(puts);
        self.held.bytes_len() <= HELD_BYTES_MAX
    }

    /// The rank makes its next fence. The fence `open` is open; `has_entered` says whether the rank counts as arrived there.
    pub(super) fn step(&mut self, open: u32, has_entered: bool) -> CatchUpStep {
        if self.next == open && !has_entered {
            return CatchUpStep::Enter(std::mem::take(&mut self.held));
        }
        self.next += 1;
        if self.next <= open { CatchUpStep::Pass } else { CatchUpStep::Wait }
    }
}

impl Agent {
    /// The launcher starts a rank again. It starts once its process has ended.
    pub(super) fn on_revive(
        &mut self,
        agent: AgentId,
        namespace: NamespaceId,
        rank: Rank,
        incarnation: u32,
        turn: &mut Turn<'_>,
    ) {
        // The bound on single reports counts only failures that are not mended, or later ones would only be counted.
        self.failures.retain(|failure| failure.namespace != namespace || failure.ranks.first() != Some(rank));
        if agent != self.id() {
            return self.route_order(agent, Down::Revive { agent, namespace, rank, incarnation }, turn);
        }
        if self.is_serving()
            && let Some(ns) = self.namespaces.get_mut(&namespace).filter(|ns| !ns.undone)
            && ns.revive(rank, incarnation)
        {
            turn.push(Action::Restart(namespace, rank, incarnation));
        }
    }

    /// A rank that catches up has put something ahead of its fence, or with it.
    pub(super) fn hold_puts(&mut self, namespace: NamespaceId, rank: Rank, puts: &Puts, turn: &mut Turn<'_>) {
        let Some(catch_up) = self.namespaces.get_mut(&namespace).and_then(|ns| ns.catch_up(rank)) else { return };
        if !catch_up.hold(puts) {
            let why =
                format!("it has put more than {HELD_BYTES_MAX} bytes before it has caught up with the other ranks");
            self.kill_broken(namespace, rank, why, turn);
        }
    }

    /// A rank that may catch up arrives at a fence. Returns the contribution with which it enters the open fence, or `None`
    /// if it does not enter it.
    pub(super) fn catch_up_at_fence(
        &mut self,
        namespace: NamespaceId,
        rank: Rank,
        contribution: Contribution,
        turn: &mut Turn<'_>,
    ) -> Option<Contribution> {
        if self.namespaces.get_mut(&namespace)?.catch_up(rank).is_none() {
            return Some(contribution);
        }
        let Contribution::Puts(puts) = contribution else {
            let why = "a rank that has started again cannot exchange values in a ring".to_owned();
            self.kill_broken(namespace, rank, why, turn);
            return None;
        };
        self.hold_puts(namespace, rank, &puts, turn);
        let at_once = self.cache.puts_at_once();
        match self.namespaces.get_mut(&namespace)?.step_of_catch_up(rank)? {
            CatchUpStep::Pass => {
                turn.push(Action::Answer(namespace, rank, Answer::Passed));
                None
            }
            CatchUpStep::Wait => None,
            CatchUpStep::Enter(held) if at_once => {
                if !held.is_empty() {
                    self.on_own_put(namespace, rank, held, turn);
                }
                Some(Contribution::Puts(Puts::new()))
            }
            CatchUpStep::Enter(held) => Some(Contribution::Puts(held)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn puts(bytes: usize) -> Puts {
        let mut puts = Puts::new();
        puts.push(Rank(1), b"key", &vec![b'v'; bytes]);
        puts
    }

    #[test]
    fn fences_of_the_past_return_at_once_and_the_open_one_is_entered() {
        let mut rank = CatchUp::default();
        assert!(rank.hold(&puts(1)));
        assert_eq!([rank.step(2, false), rank.step(2, false)], [CatchUpStep::Pass, CatchUpStep::Pass]);
        assert_eq!(rank.step(2, false), CatchUpStep::Enter(puts(1)));
    }

    #[test]
    fn a_fence_that_the_rank_had_entered_before_is_not_entered_twice() {
        let mut rank = CatchUp::default();
        assert!(rank.hold(&puts(1)));
        assert_eq!([rank.step(1, true), rank.step(1, true)], [CatchUpStep::Pass, CatchUpStep::Wait]);
        // It was released meanwhile.
        assert_eq!(rank.step(2, false), CatchUpStep::Enter(puts(1)), "the puts become visible there");
    }

    #[test]
    fn the_open_fence_may_be_released_before_the_rank_gets_there() {
        let mut rank = CatchUp::default();
        assert_eq!(rank.step(1, true), CatchUpStep::Pass);
        assert_eq!(rank.step(2, false), CatchUpStep::Pass, "its former process had entered it");
        assert_eq!(rank.step(2, false), CatchUpStep::Enter(Puts::new()));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let cost = puts(0).bytes_len();
        assert!(CatchUp::default().hold(&puts(HELD_BYTES_MAX - cost)));
        assert!(!CatchUp::default().hold(&puts(HELD_BYTES_MAX - cost + 1)));
    }
}
