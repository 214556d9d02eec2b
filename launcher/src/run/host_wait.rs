//! Decides when to report that a launch waits for unreachable hosts: after 3 s, then at growing intervals.

use std::time::{Duration, Instant};

/// The delay of the first note. A host that becomes reachable within this time is not mentioned.
const FIRST: Duration = Duration::from_secs(3);
/// The longest time between two notes. It doubles from the first on.
const INTERVAL_MAX: Duration = Duration::from_secs(120);

/// The wait of one launch for hosts that cannot be reached yet.
#[derive(Default, Debug)]
pub(crate) struct HostWait(Option<Waiting>);

#[derive(Debug)]
struct Waiting {
    since: Instant,
    next: Instant,
    interval: Duration,
}

/// A note for the user.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WaitNote {
    /// The launch waits, for this time by now.
    Waits { time: Duration },
    /// The hosts of the last note became reachable, or their time is over.
    AllReached,
}

impl HostWait {
    /// Returns the note that is due. `has_all` says that no host is waited for. To be called several times a second.
    pub(crate) fn on_progress(&mut self, now: Instant, has_all: bool) -> Option<WaitNote> {
        if has_all {
            return self.0.take().filter(|waiting| waiting.interval > FIRST).map(|_| WaitNote::AllReached);
        }
        let waiting = self.0.get_or_insert(Waiting { since: now, next: now + FIRST, interval: FIRST });
        if now < waiting.next {
            return None;
        }
        waiting.interval = (waiting.interval * 2).min(INTERVAL_MAX);
        waiting.next = now + waiting.interval;
        Some(WaitNote::Waits { time: now - waiting.since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_become_rare_and_the_end_of_a_wait_without_notes_has_none() {
        let s = Duration::from_secs;
        let begun = Instant::now();
        let mut wait = HostWait::default();
        let noted: Vec<u64> = (0..600)
            .filter_map(|second| match wait.on_progress(begun + s(second), false) {
                Some(WaitNote::Waits { time }) => Some(time.as_secs()),
                other => other.map(|_| panic!("{other:?}")),
            })
            .collect();
        assert_eq!(noted, [3, 9, 21, 45, 93, 189, 309, 429, 549]);
        assert_eq!(wait.on_progress(begun + s(600), true), Some(WaitNote::AllReached));
        assert_eq!(wait.on_progress(begun + s(601), true), None);
        assert_eq!(wait.on_progress(begun + s(610), false), None, "the next wait");
        assert_eq!(wait.on_progress(begun + s(612), true), None);
    }
}
