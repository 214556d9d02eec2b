//! How many agents may be starting at the same time.

use crate::core::Time;

/// The first value of an adaptive limit.
const LIMIT_FIRST: u32 = 16;
/// The largest adaptive limit: more starts at the same time only compete for one processor.
const LIMIT_MAX: u32 = 128;
/// A start that takes this many times as long as the quickest one shows that too many are under way.
const SLOW: u32 = 8;

/// Limits how many starts are under way. An adaptive limit grows by one for each quick start, and halves when a start
/// is refused or slow, at most once for all that were under way then. From then on it grows by one after as many quick
/// starts as it allows at a time, as TCP's congestion window does, so that it stays near what the hosts allow.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::bootstrap) struct StartLimit {
    limit: u32,
    is_fixed: bool,
    under_way: u32,
    quickest: Option<Time>,
    /// The limit was halved at least once.
    is_careful: bool,
    /// Quick starts since the limit grew last, counted once it is careful.
    quick: u32,
    /// Starts that were under way when the limit was halved and have not ended.
    old: u32,
}

impl StartLimit {
    /// Creates a limit that stays `fixed`, or an adaptive one.
    pub(in crate::bootstrap) fn new(fixed: Option<u32>) -> Self {
        Self { limit: fixed.unwrap_or(LIMIT_FIRST).max(1), is_fixed: fixed.is_some(), ..Self::default() }
    }

    /// Returns whether one more start may begin, and counts it.
    pub(in crate::bootstrap) fn open(&mut self) -> bool {
        let may = self.under_way < self.limit;
        self.under_way += u32::from(may);
        may
    }

    /// Notes that an agent answered `took` after its start.
    pub(in crate::bootstrap) fn on_success(&mut self, took: Time) {
        let is_old = self.end();
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        if took > quickest * SLOW {
            self.shrink(is_old);
        } else if !is_old && !self.is_fixed {
            self.quick += 1;
            if !self.is_careful || self.quick >= self.limit {
                self.limit = (self.limit + 1).min(LIMIT_MAX);
                self.quick = 0;
            }
        }
    }

    /// Notes that a start failed. `refused` means that too many starts may be the reason.
    pub(in crate::bootstrap) fn on_failure(&mut self, refused: bool) {
        let is_old = self.end();
        if refused {
            self.shrink(is_old);
        }
    }

    /// Returns how many starts may be under way.
    pub(in crate::bootstrap) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns how many starts are under way.
    pub(in crate::bootstrap) fn under_way(&self) -> u32 {
        self.under_way
    }

    fn end(&mut self) -> bool {
        debug_assert!(self.under_way > 0, "each end belongs to a start");
        self.under_way = self.under_way.saturating_sub(1);
        let is_old = self.old > 0;
        self.old = self.old.saturating_sub(1);
        is_old
    }

    fn shrink(&mut self, is_old: bool) {
        if !is_old && !self.is_fixed {
            self.limit = (self.limit / 2).max(1);
            (self.is_careful, self.quick) = (true, 0);
            self.old = self.under_way;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const QUICK: Duration = Duration::from_millis(100);

    fn opened(starts: &mut StartLimit) -> u32 {
        std::iter::from_fn(|| starts.open().then_some(())).count() as u32
    }

    #[test]
    fn the_limit_grows_while_starts_are_quick() {
        let mut starts = StartLimit::new(None);
        assert_eq!(opened(&mut starts), LIMIT_FIRST);
        (0..LIMIT_FIRST).for_each(|_| starts.on_success(QUICK));
        assert_eq!(opened(&mut starts), 2 * LIMIT_FIRST);
        (0..1000).for_each(|_| {
            starts.on_success(QUICK);
            starts.open();
        });
        assert_eq!(starts.limit(), LIMIT_MAX);
    }

    #[test]
    fn the_limit_halves_once_for_starts_refused_together() {
        let mut starts = StartLimit::new(None);
        opened(&mut starts);
        (0..LIMIT_FIRST).for_each(|_| starts.on_failure(true));
        assert_eq!((starts.limit(), starts.under_way()), (LIMIT_FIRST / 2, 0));
        for _ in 0..10 {
            opened(&mut starts);
            (0..starts.under_way()).for_each(|_| starts.on_failure(true));
        }
        assert_eq!(starts.limit(), 1, "one start is always allowed");
    }

    /// A limit of six unauthenticated connections refuses few of 100 starts.
    #[test]
    fn the_limit_stays_near_what_the_hosts_allow() {
        const ALLOWED: u32 = 6;
        let (mut starts, mut started, mut refused, mut turns) = (StartLimit::new(None), 0, 0, 0);
        while started < 100 {
            opened(&mut starts);
            let under_way = starts.under_way();
            let (well, badly) = (under_way.min(ALLOWED), under_way.saturating_sub(ALLOWED));
            (0..badly).for_each(|_| starts.on_failure(true));
            (0..well).for_each(|_| starts.on_success(QUICK));
            (started, refused, turns) = (started + well, refused + badly, turns + 1);
        }
        assert!(refused < 20 && turns < 40, "{refused} refused in {turns} turns");
    }

    #[test]
    fn slow_starts_halve_the_limit_and_other_failures_do_not() {
        let mut starts = StartLimit::new(None);
        opened(&mut starts);
        starts.on_success(QUICK);
        starts.on_failure(false);
        assert_eq!(starts.limit(), LIMIT_FIRST + 1);
        starts.on_success(QUICK * (SLOW + 1));
        assert_eq!(starts.limit(), LIMIT_FIRST.div_ceil(2));
    }

    #[test]
    fn a_start_that_takes_exactly_the_slow_time_is_not_slow() {
        let mut starts = StartLimit::new(None);
        opened(&mut starts);
        starts.on_success(QUICK);
        starts.on_success(QUICK * SLOW);
        assert_eq!(starts.limit(), LIMIT_FIRST + 2);
    }

    #[test]
    fn a_fixed_limit_never_changes() {
        let mut starts = StartLimit::new(Some(3));
        assert_eq!(opened(&mut starts), 3);
        starts.on_success(QUICK);
        starts.on_failure(true);
        starts.on_success(QUICK * 100);
        assert_eq!(opened(&mut starts), 3);
        assert_eq!(StartLimit::new(Some(0)).limit(), 1);
    }
}
