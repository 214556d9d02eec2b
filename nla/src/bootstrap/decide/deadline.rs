//! The deadline by which all agents must have reported, and the part of the remaining time that each start may take.
//!
//! Until hosts have had their time to be there ([`StartTimes::hosts`]), a host that cannot be reached is tried again. All agents have
//! the whole [`StartTimes::start`] after that.
//!
//! An agent that starts others must hear of their failures before its own starter gives up. So each remote shell, and
//! each agent that starts others, is given a part of the remaining time.

use std::time::Duration;

use crate::bootstrap::protocol::{Below, BootOrder, StartTimes};
use crate::core::Time;

/// The timeout of a launch without a deadline: longer than any launch takes, and short enough to be added to a time.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// The most time reserved for a report to travel up one level.
const REPORT_TIME_MAX: Duration = Duration::from_secs(1);
/// A report gets this part of the remaining time if that is less than [`REPORT_TIME_MAX`].
const REPORT_PART: u32 = 16;

/// The times by which all hosts of a starter must be reachable, and all agents must have reported.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) struct Deadline {
    hosts: Time,
    agents: Time,
    /// The most time that one start has.
    start_max: Duration,
}

impl Deadline {
    pub(in crate::bootstrap) fn after(now: Time, StartTimes { hosts, start }: StartTimes) -> Self {
        let hosts = now + hosts.min(FOREVER);
        Self { hosts, agents: hosts + start.min(FOREVER), start_max: start }
    }

    pub(in crate::bootstrap) fn has_passed(&self, now: Time) -> bool {
        self.left(now).is_zero()
    }

    /// Returns whether time remains after a wait.
    pub(in crate::bootstrap) fn allows(&self, now: Time, wait: Duration) -> bool {
        self.left(now) > wait
    }

    /// Returns after how long a host that cannot be reached is tried again: after `wait`, and for the last time when all hosts must
    /// be there. `None` from then on.
    pub(in crate::bootstrap) fn wait_for_host(&self, now: Time, wait: Duration) -> Option<Duration> {
        let left = self.hosts.saturating_sub(now);
        (!left.is_zero()).then(|| wait.min(left))
    }

    /// Returns how long a start may take until its agent's first report. An agent that starts others gets half of the
    /// remaining time: should it fail, its targets are started from here in the other half.
    pub(in crate::bootstrap) fn timeout(&self, now: Time, starts_others: bool) -> Duration {
        let left = self.left(now).min(self.start_max);
        if starts_others { left / 2 } else { without_report(left) }
    }

    /// Returns the order with the time that is left now for the targets below its agent.
    pub(in crate::bootstrap) fn passed_on(&self, now: Time, order: &BootOrder) -> BootOrder {
        let hosts = self.hosts.saturating_sub(now);
        let times = StartTimes { hosts, start: without_report(self.left(now).saturating_sub(hosts)) };
        let below = order.below.clone().map(|below| Below { times, ..below });
        BootOrder { below, ..order.clone() }
    }

    fn left(&self, now: Time) -> Duration {
        self.agents.saturating_sub(now)
    }
}

/// Returns the part of `left` that remains if the result is then reported up one level.
fn without_report(left: Duration) -> Duration {
    left - (left / REPORT_PART).min(REPORT_TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::protocol::tests::order_with_targets_below;

    fn start(start: Duration) -> StartTimes {
        StartTimes { hosts: Duration::ZERO, start }
    }

    #[test]
    fn each_level_ends_before_the_one_above() {
        let s = Duration::from_secs;
        let deadline = Deadline::after(s(5), start(s(32)));
        assert_eq!((deadline.timeout(s(5), false), deadline.timeout(s(5), true)), (s(31), s(16)));
        let below = Deadline::after(s(5), start(without_report(s(32))));
        assert_eq!(below.timeout(s(5), false), s(30));
        assert!(deadline.allows(s(5), s(31)) && !deadline.allows(s(5), s(32)) && !deadline.has_passed(s(5)));
        let later = s(29);
        assert_eq!(deadline.timeout(later, false), Duration::from_millis(7500), "a sixteenth of 8 s is for the report");
        assert_eq!(deadline.timeout(later, true), s(4));
        let after = s(38);
        assert!(deadline.has_passed(after) && !deadline.allows(after, Duration::ZERO));
        assert_eq!(deadline.timeout(after, false), Duration::ZERO);
    }

    #[test]
    fn a_launch_without_a_deadline_has_time() {
        assert!(
            Deadline::after(Duration::ZERO, start(Duration::MAX)).allows(Duration::ZERO, Duration::from_secs(1 << 29))
        );
    }

    #[test]
    fn a_host_that_is_late_has_the_whole_time_for_its_start() {
        let s = Duration::from_secs;
        let deadline = Deadline::after(s(5), StartTimes { hosts: s(60), start: s(32) });
        assert_eq!([s(59), s(61)].map(|wait| deadline.wait_for_host(s(5), wait)), [Some(s(59)), Some(s(60))]);
        assert_eq!(deadline.wait_for_host(s(65), s(1)), None, "the last try was now");
        assert_eq!(deadline.timeout(s(5), false), s(31), "a host that does not answer is not waited for");
        assert_eq!((deadline.timeout(s(65), false), deadline.timeout(s(75), false)), (s(31), s(21)));
        let times = |now| deadline.passed_on(now, &order_with_targets_below()).below.map(|below| below.times);
        assert_eq!(times(s(15)), Some(StartTimes { hosts: s(50), start: s(31) }));
        assert_eq!(times(s(75)), Some(StartTimes { hosts: Duration::ZERO, start: s(21) }));
    }
}
