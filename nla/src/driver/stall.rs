//! The steps that an agent takes while the kernel does not complete the start of a rank.
//!
//! chdir and exec block as long as a file system does not answer. The agent reports that, and waits: the rank starts
//! when the file system answers. Once the starts are cancelled, the agent kills the child, and gives it up if it does
//! not end: SIGKILL does not end a process in uninterruptible sleep.

use std::time::{Duration, Instant};

/// The time after which the results of earlier starts are taken: usually several starts end before it.
const LOOK_AFTER: Duration = Duration::from_millis(10);
/// The time after which a start is reported as stalled. Each further report waits twice as long as the one before.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// The time that a start has before its child is killed, if the starts are cancelled.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// The time that a killed child has to end.
const END_TIME: Duration = Duration::from_secs(2);

/// The next step of an agent that waits for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallStep {
    /// Take the results of earlier starts, and reap ended ranks.
    Look,
    /// Report that the start has taken so long.
    Report(Duration),
    /// Kill the child.
    Kill,
    /// Count the rank as not started. Its child stays until the kernel ends it.
    GiveUp,
}

/// The start that an agent waits for.
#[derive(Debug)]
pub(super) struct Stall {
    since: Instant,
    has_looked: bool,
    report_after: Duration,
    kill_at: Option<Instant>,
    is_killed: bool,
    is_given_up: bool,
}

impl Stall {
    /// A start that began at `since`.
    pub(super) fn begin(since: Instant) -> Self {
        Self {
            since,
            has_looked: false,
            report_after: REPORT_AFTER,
            kill_at: None,
            is_killed: false,
            is_given_up: false,
        }
    }

    /// Notes that the starts were cancelled.
    pub(super) fn cancel(&mut self, now: Instant) {
        self.kill_at.get_or_insert(now.max(self.since + KILL_AFTER));
    }

    /// Returns whether [`StallStep::GiveUp`] was returned.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Returns the time of the next step; `None` after the last one.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let report = self.since + self.report_after;
        match self.kill_at {
            _ if self.is_given_up => None,
            _ if !self.has_looked => Some(self.since + LOOK_AFTER),
            None => Some(report),
            Some(kill) if !self.is_killed => Some(kill.min(report)),
            Some(kill) => Some(kill + END_TIME),
        }
    }

    /// Takes the step that is due.
    pub(super) fn step(&mut self, now: Instant) -> Option<StallStep> {
        match self.kill_at {
            _ if self.is_given_up => None,
            _ if !self.has_looked => {
                self.has_looked = now >= self.since + LOOK_AFTER;
                self.has_looked.then_some(StallStep::Look)
            }
            Some(kill) if self.is_killed && now >= kill + END_TIME => {
                self.is_given_up = true;
                Some(StallStep::GiveUp)
            }
            Some(kill) if !self.is_killed && now >= kill => {
                self.is_killed = true;
                Some(StallStep::Kill)
            }
            _ if !self.is_killed && now >= self.since + self.report_after => {
                self.report_after *= 2;
                Some(StallStep::Report(now - self.since))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Runs to the next step and returns its time since the begin.
    fn next(stall: &mut Stall, begin: Instant) -> Option<(Duration, StallStep)> {
        let at = stall.next_at()?;
        assert_eq!(stall.step(at - Duration::from_millis(1)), None, "too early");
        let step = stall.step(at);
        Some((at - begin, step?))
    }

    #[test]
    fn a_stalled_start_is_reported_less_and_less_often() {
        let begin = Instant::now();
        let mut stall = Stall::begin(begin);
        assert_eq!(next(&mut stall, begin), Some((LOOK_AFTER, StallStep::Look)));
        for after in [5, 10, 20, 40] {
            assert_eq!(next(&mut stall, begin), Some((s(after), StallStep::Report(s(after)))));
        }
    }

    #[test]
    fn a_cancelled_start_is_killed_and_given_up() {
        let begin = Instant::now();
        let mut stall = Stall::begin(begin);
        stall.cancel(begin);
        stall.cancel(begin + s(9));
        assert_eq!(next(&mut stall, begin), Some((LOOK_AFTER, StallStep::Look)));
        assert_eq!(next(&mut stall, begin), Some((s(1), StallStep::Kill)), "it may be about to succeed");
        assert!(!stall.is_given_up());
        assert_eq!(next(&mut stall, begin), Some((s(3), StallStep::GiveUp)));
        assert!(stall.is_given_up());
        assert_eq!((stall.next_at(), stall.step(begin + s(99))), (None, None));
        let mut stall = Stall::begin(begin);
        assert_eq!(stall.step(begin + s(7)), Some(StallStep::Look));
        assert_eq!(stall.step(begin + s(7)), Some(StallStep::Report(s(7))));
        stall.cancel(begin + s(8));
        assert_eq!(next(&mut stall, begin), Some((s(8), StallStep::Kill)), "it has had its time");
    }
}
