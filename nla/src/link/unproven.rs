//! Chooses which unauthenticated connection is closed to make room for a new one.
//!
//! Any process that reaches a port may connect to it, so such connections cost little and are closed early: the oldest
//! one makes room for the newest. An agent says hello as soon as it is connected, and tries again if it was closed.
//!
//! The listeners of links and the PMI port use the same bounds.

use std::collections::VecDeque;
use std::net::IpAddr;

use litemap::LiteMap;

use crate::core::Time;
use crate::core::limits::{REFUSALS_LOGGED_MAX, UNAUTHENTICATED_PER_SOURCE_MAX, unauthenticated_max};
use crate::sys;

/// The origin of a connection. Each has a bound of its own.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Source {
    /// An address.
    Address(IpAddr),
    /// A process of this user on this machine, at a Unix socket.
    ThisUser,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

/// The connections of a listener that have not proved that they know the key.
pub(crate) struct Unproven {
    /// The bound on their number.
    pub(crate) max: usize,
    /// Their numbers and sources, in the order of their arrival.
    connections: VecDeque<(u64, Source)>,
    /// How many are from each source.
    by_source: LiteMap<Source, usize>,
    next: u64,
}

impl Unproven {
    /// Makes one whose bound is that of this process ([`unauthenticated_max`]).
    pub(crate) fn of_this_process() -> Self {
        Self::new(unauthenticated_max(sys::open_files_limit()))
    }

    fn new(max: usize) -> Self {
        Self { max, connections: VecDeque::new(), by_source: LiteMap::new(), next: 0 }
    }

    /// Adds a connection while `expected` agents have not joined. Returns its number, and that of the connection that
    /// is closed for it.
    ///
    /// All agents may have one address and connect at the same moment, so no bound is below `expected`.
    pub(crate) fn add(&mut self, source: impl Into<Source>, expected: usize) -> (u64, Option<u64>) {
        let source = source.into();
        let of_source = self.by_source.get(&source).copied().unwrap_or_default();
        let closed = if of_source >= UNAUTHENTICATED_PER_SOURCE_MAX.min(self.max).max(expected) {
            let of_source = self.connections.iter().find(|(_, other)| *other == source);
            of_source.map(|(number, _)| *number).filter(|number| self.remove(*number))
        } else if self.connections.len() >= self.max.max(expected) {
            self.remove_oldest()
        } else {
            None
        };
        let number = self.next;
        self.next += 1;
        self.connections.push_back((number, source));
        *self.by_source.entry(source).or_default() += 1;
        (number, closed)
    }

    /// Removes a connection that has proved that it knows the key, or has ended. Returns whether it was unproven.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        let Ok(at) = self.connections.binary_search_by_key(&number, |(number, _)| *number) else { return false };
        if let Some((_, source)) = self.connections.remove(at)
            && let Some(count) = self.by_source.get_mut(&source)
        {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
        true
    }

    /// Removes the oldest connection, and returns its number.
    pub(crate) fn remove_oldest(&mut self) -> Option<u64> {
        let (number, _) = *self.connections.front()?;
        self.remove(number).then_some(number)
    }
}

/// Bounds how a listener logs refusals: at most one as a warning, and others at a bounded rate.
#[derive(Default)]
pub(crate) struct RefusalLog {
    has_warned: bool,
    /// The second that the counts are for.
    second: u64,
    logged: u32,
    /// Refusals that were not logged.
    omitted: u64,
}

impl RefusalLog {
    /// Counts a refusal. Returns whether to log it, and with it how many were omitted before.
    pub(crate) fn note(&mut self, now: Time) -> Option<u64> {
        if self.second != now.as_secs() {
            (self.second, self.logged) = (now.as_secs(), 0);
        }
        if self.logged == REFUSALS_LOGGED_MAX {
            self.omitted += 1;
            return None;
        }
        self.logged += 1;
        Some(self.take_omitted())
    }

    /// Returns whether a refusal is a warning: only the first is, because strangers control how many follow.
    pub(crate) fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.has_warned, true)
    }

    /// Returns how many refusals were omitted since the last one that was logged.
    pub(crate) fn take_omitted(&mut self) -> u64 {
        std::mem::take(&mut self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::limits::UNAUTHENTICATED_MAX;

    fn source(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn the_oldest_connection_makes_room_for_the_newest() {
        let mut unproven = Unproven::new(UNAUTHENTICATED_MAX);
        for number in 0..UNAUTHENTICATED_MAX as u64 {
            assert_eq!(unproven.add(source((number % 100) as u8), 4), (number, None));
        }
        assert!(unproven.remove(0) && !unproven.remove(0));
        let next = UNAUTHENTICATED_MAX as u64;
        assert_eq!(unproven.add(source(200), 4), (next, None), "one had ended");
        assert_eq!(unproven.add(source(200), 4), (next + 1, Some(1)));
        assert_eq!(unproven.add(source(200), 4), (next + 2, Some(2)));
    }

    #[test]
    fn strangers_leave_room_for_ranks_where_few_files_may_be_open() {
        assert_eq!([0, 64, 511, 512, 4096, u64::MAX].map(unauthenticated_max), [16, 16, 31, 32, 256, 256]);
        for expected in [0, 4] {
            let mut unproven = Unproven::new(16);
            assert!((0..16).all(|number| unproven.add(source(number), expected).1.is_none()));
            assert_eq!(unproven.add(source(99), expected).1, Some(0));
        }
        let mut unproven = Unproven::new(16);
        assert!((0..20).all(|_| unproven.add(source(1), 20).1.is_none()), "as many agents are expected");
    }

    #[test]
    fn a_source_with_many_connections_closes_its_own() {
        let mut unproven = Unproven::new(UNAUTHENTICATED_MAX);
        let (agent, _) = unproven.add(source(1), 4);
        let own = UNAUTHENTICATED_PER_SOURCE_MAX as u64;
        for number in 1..=own {
            assert_eq!(unproven.add(source(2), 4), (number, None));
        }
        for number in 1..=1000 {
            assert_eq!(unproven.add(source(2), 4).1, Some(number));
        }
        assert!(unproven.remove(agent), "it was never closed");
    }

    #[test]
    fn expected_agents_close_none_of_their_own() {
        let mut unproven = Unproven::new(UNAUTHENTICATED_MAX);
        let expected = 3 * UNAUTHENTICATED_MAX;
        assert!((0..expected).all(|_| unproven.add(source(1), expected).1.is_none()));
        assert_eq!(unproven.add(source(1), expected).1, Some(0));
    }

    #[test]
    fn refusals_are_logged_at_a_bounded_rate_and_counted() {
        let mut log = RefusalLog::default();
        let at = |ms| Duration::from_millis(ms);
        let logged = (0..1000).filter(|ms| log.note(at(5000 + ms)).is_some()).count();
        assert_eq!(logged, REFUSALS_LOGGED_MAX as usize);
        assert_eq!(log.note(at(6000)), Some(1000 - u64::from(REFUSALS_LOGGED_MAX)));
        assert_eq!(log.note(at(6001)), Some(0));
        assert_eq!(log.take_omitted(), 0);
    }

    #[test]
    fn only_the_first_refusal_is_a_warning() {
        let mut log = RefusalLog::default();
        let warnings = (0..100).filter(|second| log.note(Duration::from_secs(*second)).is_some() && log.warns());
        assert_eq!(warnings.collect::<Vec<_>>(), [0]);
    }
}
