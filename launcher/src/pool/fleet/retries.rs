//! Decides when lost nodes are tried again, and which of them by one session. A value without clocks and processes.
//!
//! A session starts whole or not at all, so one dead host fails the session of many. All lost nodes that are due are tried by one
//! session. When it fails, its nodes are tried by sessions of half as many, down to a session for each. A node that has failed alone
//! is tried again after a pause, which doubles. At most [`SESSIONS_MAX`] sessions try nodes at a time, whatever number of
//! nodes is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::pool::nodes::NodeNumber;

/// The pauses before a lost node is tried again: the first, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The sessions that try nodes at a time: a host that does not answer must not delay all others until it times out.
const SESSIONS_MAX: usize = 4;

/// A time since the pool began.
type Time = Duration;
/// The number of a try.
type Try = u64;

/// A lost node.
#[derive(Debug, PartialEq, Eq)]
struct Lost {
    /// The pause after the next failure.
    pause: Duration,
    /// The most nodes in a session that tries it.
    together: usize,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// It is tried again at this time.
    Waits(Time),
    /// A session tries it, with so many nodes.
    Tried(Try, usize),
    /// Its keeper has connected, and has not reported.
    Connected,
}

/// The nodes that are lost, and the sessions that try them.
#[derive(Debug, Default)]
pub(super) struct Retries {
    lost: BTreeMap<NodeNumber, Lost>,
    next_try: Try,
}

impl Retries {
    /// Notes that a node was lost, or that the session that has tried it has failed.
    pub(super) fn lost(&mut self, now: Time, node: NodeNumber) {
        let fresh = || Lost { pause: PAUSE, together: usize::MAX, state: State::Connected };
        let lost = self.lost.entry(node).or_insert_with(fresh);
        let pause = match lost.state {
            State::Waits(_) => return,
            // Another node may be the reason.
            State::Tried(_, together @ 2..) => {
                lost.together = together.div_ceil(2);
                PAUSE
            }
            State::Tried(..) | State::Connected => {
                let pause = lost.pause;
                lost.pause = (pause * 2).min(PAUSE_MAX);
                pause
            }
        };
        lost.state = State::Waits(now + pause);
    }

    /// Notes that the keeper of a node has connected: the session waits for it no more.
    pub(super) fn connected(&mut self, node: NodeNumber) {
        if let Some(lost) = self.lost.get_mut(&node) {
            (lost.state, lost.together) = (State::Connected, 1);
        }
    }

    /// Forgets a node: it is up, or no node of the pool any more.
    pub(super) fn forget(&mut self, node: NodeNumber) {
        self.lost.remove(&node);
    }

    /// Lets a node be tried at once, if it is lost and not being tried.
    pub(super) fn hurry(&mut self, now: Time, node: NodeNumber) {
        if let Some(lost @ Lost { state: State::Waits(_), .. }) = self.lost.get_mut(&node) {
            *lost = Lost { pause: PAUSE, together: usize::MAX, state: State::Waits(now) };
        }
    }

    /// Returns nodes that one more session is to try now, which counts as begun. Those that have failed least come first.
    pub(super) fn next(&mut self, now: Time) -> Option<Vec<NodeNumber>> {
        if self.sessions() >= SESSIONS_MAX {
            return None;
        }
        let is_due = |lost: &Lost| matches!(lost.state, State::Waits(due) if due <= now);
        let due = || self.lost.iter().filter(|(_, lost)| is_due(lost));
        let together = due().map(|(_, lost)| lost.together).max()?;
        let mut nodes: Vec<(Duration, NodeNumber)> =
            due().filter(|(_, lost)| lost.together == together).map(|(node, lost)| (lost.pause, *node)).collect();
        nodes.sort_unstable();
        nodes.truncate(together);
        self.next_try += 1;
        let (number, count) = (self.next_try, nodes.len());
        let nodes: Vec<NodeNumber> = nodes.into_iter().map(|(_, node)| node).collect();
        for node in &nodes {
            self.lost.entry(*node).and_modify(|lost| lost.state = State::Tried(number, count));
        }
        Some(nodes)
    }

    /// Returns when the next retry is due.
    pub(super) fn wake(&self) -> Option<Time> {
        let due = |lost: &Lost| if let State::Waits(due) = lost.state { Some(due) } else { None };
        if self.sessions() >= SESSIONS_MAX { None } else { self.lost.values().filter_map(due).min() }
    }

    /// Returns the number of sessions that try nodes.
    fn sessions(&self) -> usize {
        let number = |lost: &Lost| if let State::Tried(number, _) = lost.state { Some(number) } else { None };
        self.lost.values().filter_map(number).collect::<BTreeSet<_>>().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    /// Nodes that are lost at the beginning.
    fn lost(nodes: impl IntoIterator<Item = NodeNumber>) -> Retries {
        let mut retries = Retries::default();
        nodes.into_iter().for_each(|node| retries.lost(at(0), node));
        retries
    }

    #[test]
    fn a_node_is_tried_after_pauses_that_double_until_it_is_up() {
        let mut retries = lost([7]);
        assert_eq!((retries.next(at(0)), retries.wake()), (None, Some(at(1))));
        let (mut now, mut pauses) = (at(0), Vec::new());
        for _ in 0..8 {
            let due = retries.wake().unwrap();
            pauses.push((due - now).as_secs());
            assert_eq!(retries.next(due), Some(vec![7]));
            assert_eq!((retries.next(due), retries.wake()), (None, None), "it is being tried");
            now = due;
            retries.lost(now, 7);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        retries.forget(7);
        retries.lost(now, 7);
        assert_eq!(retries.wake(), Some(now + at(1)));
    }

    #[test]
    fn all_nodes_that_are_due_share_a_session() {
        let mut retries = lost(0..100);
        retries.lost(at(1), 200);
        assert_eq!(retries.next(at(1)), Some((0..100).collect()));
        assert_eq!(retries.next(at(1)), None);
        assert_eq!(retries.next(at(2)), Some(vec![200]));
    }

    #[test]
    fn one_dead_host_keeps_no_others_down() {
        let (mut retries, mut now, mut sessions) = (lost(0..32), at(0), 0);
        let mut up = BTreeSet::new();
        while up.len() < 31 {
            now = retries.wake().expect("nodes wait").max(now);
            while let Some(nodes) = retries.next(now) {
                sessions += 1;
                let is_dead = nodes.contains(&9);
                for node in nodes {
                    if is_dead {
                        retries.lost(now, node);
                    } else {
                        retries.connected(node);
                        retries.forget(node);
                        up.insert(node);
                    }
                }
            }
        }
        assert!(!up.contains(&9));
        // The one of all, and two of each half that has the dead host.
        assert!(sessions <= 11 && now <= at(6), "{sessions} sessions, {now:?}");
    }

    #[test]
    fn few_sessions_try_many_nodes_that_fail_alone() {
        let mut retries = lost(0..64);
        let (mut now, mut begun) = (at(0), 0);
        // All fail at the end of their time.
        for _ in 0..200 {
            now = retries.wake().unwrap().max(now);
            let mut tried = Vec::new();
            while let Some(nodes) = retries.next(now) {
                tried.push(nodes);
            }
            assert!(tried.len() <= SESSIONS_MAX);
            begun += tried.len();
            now += at(30);
            tried.into_iter().flatten().for_each(|node| retries.lost(now, node));
        }
        assert!(begun > 200);
        // A node that is lost now does not wait behind those that have failed.
        retries.lost(now, 100);
        assert_eq!(retries.next(now + at(60)), Some(vec![100]));
    }

    #[test]
    fn a_user_who_is_impatient_is_heard() {
        let mut retries = lost([1, 2]);
        for now in [1, 2, 3] {
            while retries.next(at(now)).is_some() {}
            retries.lost(at(now), 1);
            retries.lost(at(now), 2);
        }
        retries.hurry(at(4), 1);
        retries.hurry(at(4), 2);
        retries.hurry(at(4), 3);
        assert_eq!(retries.next(at(4)), Some(vec![1, 2]));
        retries.hurry(at(4), 1);
        assert_eq!(retries.next(at(4)), None, "it is being tried");
    }

    #[test]
    fn a_keeper_that_connects_and_is_lost_counts_as_a_failure_of_its_own() {
        let mut retries = lost([1, 2]);
        assert_eq!(retries.next(at(1)), Some(vec![1, 2]));
        retries.connected(1);
        retries.lost(at(1), 1);
        assert_eq!(retries.wake(), Some(at(3)));
        assert_eq!(retries.next(at(3)), Some(vec![1]));
    }
}
