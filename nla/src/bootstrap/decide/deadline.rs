//! The time by which all agents are to be there, and what of it is whose.

use std::time::Duration;

use tokio::time::Instant;

use super::super::protocol::{Below, BootOrder};

/// For who has no deadline: longer than anything takes.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// What a report from below may take on its way up one level, at most.
const REPORT_TIME_MAX: Duration = Duration::from_secs(1);
/// Where there is little time, it is this part of what is left.
const REPORT_PART: u32 = 16;

/// See the module.
#[derive(Copy, Clone, Debug)]
pub(in crate::bootstrap) struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub(in crate::bootstrap) fn after(patience: Duration) -> Self {
        Self(Instant::now() + patience.min(FOREVER))
    }

    /// Whether nothing is left.
    pub(in crate::bootstrap) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Whether something is left after so long a wait.
    pub(in crate::bootstrap) fn allows(&self, wait: Duration) -> bool {
        self.left() > wait
    }

    /// How long a session may take to come to its agent's first words. If agents are to be started from there, it is
    /// half of what is left: should it fail, they are started from here in the other half. What comes of
    /// it has to be told in time.
    pub(in crate::bootstrap) fn patience(&self, starts_others: bool) -> Duration {
        if starts_others { self.left() / 2 } else { for_reports(self.left()) }
    }

    /// The order, in which those who start others are given what is left now.
    pub(in crate::bootstrap) fn passed_on(&self, order: &BootOrder) -> BootOrder {
        let below = order.below.clone().map(|below| Below { patience: for_reports(self.left()), ..below });
        BootOrder { below, ..order.clone() }
    }

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// What is left of a time, if what happens in it is to be told one level up.
fn for_reports(left: Duration) -> Duration {
    left - (left / REPORT_PART).min(REPORT_TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_level_ends_before_the_one_above() {
        let s = Duration::from_secs;
        let deadline = Deadline::after(s(32));
        assert_eq!((deadline.patience(false), deadline.patience(true)), (s(31), s(16)));
        let below = Deadline::after(for_reports(s(32)));
        assert_eq!(below.patience(false), s(30));
        assert!(deadline.allows(s(31)) && !deadline.allows(s(32)) && !deadline.is_over());
        tokio::time::advance(s(24)).await;
        assert_eq!((deadline.patience(false), deadline.patience(true)), (Duration::from_millis(7500), s(4)));
        tokio::time::advance(s(9)).await;
        assert!(deadline.is_over() && !deadline.allows(Duration::ZERO));
        assert_eq!(deadline.patience(false), Duration::ZERO);
    }

    #[tokio::test]
    async fn who_has_no_deadline_has_time() {
        assert!(Deadline::after(Duration::MAX).allows(Duration::from_secs(1 << 29)));
    }
}
