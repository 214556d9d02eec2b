//! How many sessions may be on their way at a time.

use crate::core::Time;

/// How many at the beginning.
const FIRST: u32 = 16;
/// More of them at a time only compete for one processor.
const MOST: u32 = 128;
/// A session that takes so many times the quickest one says that there are too many.
const SLOW: u32 = 8;

/// A window of sessions: it grows by one for each that succeeds quickly, and halves when one is refused
/// or is slow; at most once for all that were on their way then. From then on it grows by one for as many as
/// fit into it, as TCP's does, so that it stays near what is allowed. With a fixed size it stays as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) struct Window {
    limit: u32,
    is_fixed: bool,
    under_way: u32,
    quickest: Option<Time>,
    /// It was halved once.
    is_careful: bool,
    /// Quick ones since it grew last, once it is careful.
    quick: u32,
    /// Endings that still belong to what was on its way when the window was halved.
    old: u32,
}

impl Window {
    /// Of this size for good; of a size that adapts itself where none is given.
    pub(in crate::bootstrap) fn new(fixed: Option<u32>) -> Self {
        Self {
            limit: fixed.unwrap_or(FIRST).max(1),
            is_fixed: fixed.is_some(),
            under_way: 0,
            quickest: None,
            is_careful: false,
            quick: 0,
            old: 0,
        }
    }

    /// Whether one more may be opened; if so, it counts as opened.
    pub(in crate::bootstrap) fn open(&mut self) -> bool {
        let may = self.under_way < self.limit;
        self.under_way += u32::from(may);
        may
    }

    /// One has come to its agent's first words after so long.
    pub(in crate::bootstrap) fn on_success(&mut self, took: Time) {
        let is_old = self.end();
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        if took > quickest * SLOW {
            self.shrink(is_old);
        } else if !is_old && !self.is_fixed {
            self.quick += 1;
            if !self.is_careful || self.quick >= self.limit {
                self.limit = (self.limit + 1).min(MOST);
                self.quick = 0;
            }
        }
    }

    /// One has failed; `refused` says that there may be too many.
    pub(in crate::bootstrap) fn on_failure(&mut self, refused: bool) {
        let is_old = self.end();
        if refused {
            self.shrink(is_old);
        }
    }

    /// How many may be on their way.
    pub(in crate::bootstrap) fn limit(&self) -> u32 {
        self.limit
    }

    /// How many are.
    pub(in crate::bootstrap) fn under_way(&self) -> u32 {
        self.under_way
    }

    fn end(&mut self) -> bool {
        debug_assert!(self.under_way > 0, "nothing ends that was not opened");
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

    fn opened(window: &mut Window) -> u32 {
        std::iter::from_fn(|| window.open().then_some(())).count() as u32
    }

    #[test]
    fn grows_while_all_is_well() {
        let mut window = Window::new(None);
        assert_eq!(opened(&mut window), FIRST);
        (0..FIRST).for_each(|_| window.on_success(QUICK));
        assert_eq!(opened(&mut window), 2 * FIRST);
        (0..1000).for_each(|_| {
            window.on_success(QUICK);
            window.open();
        });
        assert_eq!(window.limit(), MOST);
    }

    #[test]
    fn halves_once_for_those_that_were_refused_together() {
        let mut window = Window::new(None);
        opened(&mut window);
        (0..FIRST).for_each(|_| window.on_failure(true));
        assert_eq!((window.limit(), window.under_way()), (FIRST / 2, 0));
        for _ in 0..10 {
            opened(&mut window);
            (0..window.under_way()).for_each(|_| window.on_failure(true));
        }
        assert_eq!(window.limit(), 1, "one is always tried");
    }

    /// Of hosts behind a limit of six few are refused, and all come.
    #[test]
    fn stays_near_what_is_allowed() {
        const ALLOWED: u32 = 6;
        let (mut window, mut come, mut refused, mut turns) = (Window::new(None), 0, 0, 0);
        while come < 100 {
            opened(&mut window);
            let under_way = window.under_way();
            let (well, badly) = (under_way.min(ALLOWED), under_way.saturating_sub(ALLOWED));
            (0..badly).for_each(|_| window.on_failure(true));
            (0..well).for_each(|_| window.on_success(QUICK));
            (come, refused, turns) = (come + well, refused + badly, turns + 1);
        }
        assert!(refused < 20 && turns < 40, "{refused} refused in {turns} turns");
    }

    #[test]
    fn slow_ones_make_it_smaller_and_other_failures_do_not() {
        let mut window = Window::new(None);
        opened(&mut window);
        window.on_success(QUICK);
        window.on_failure(false);
        assert_eq!(window.limit(), FIRST + 1);
        window.on_success(QUICK * (SLOW + 1));
        assert_eq!(window.limit(), FIRST.div_ceil(2));
    }

    #[test]
    fn a_fixed_one_stays() {
        let mut window = Window::new(Some(3));
        assert_eq!(opened(&mut window), 3);
        window.on_success(QUICK);
        window.on_failure(true);
        window.on_success(QUICK * 100);
        assert_eq!(opened(&mut window), 3);
        assert_eq!(Window::new(Some(0)).limit(), 1);
    }
}
