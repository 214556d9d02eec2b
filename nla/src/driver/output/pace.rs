//! Restricts how much output is read while ranks wait in PMI.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::stream::READ_BYTES;

/// Bytes that are read between two pauses while ranks wait in PMI.
const BUDGET_BYTES: usize = 64 * 1024;
/// The pause before the next budget: output gets at least 8 MB/s per agent.
const BUDGET_PAUSE: Duration = Duration::from_millis(8);
/// How long one wait in PMI restricts output to the budget: output does not cause longer waits.
const URGENT_TIME: Duration = Duration::from_millis(50);
/// How long output stays restricted after the last wait has ended: the next fence may follow soon.
const URGENT_AFTER_TIME: Duration = Duration::from_millis(5);

/// The period in which waits in PMI restrict output.
pub(super) struct PmiWaits {
    clock: Instant,
    waits: AtomicBool,
    /// Microseconds after `clock`.
    until_us: AtomicU64,
}

impl PmiWaits {
    pub(super) fn new() -> Self {
        Self { clock: Instant::now(), waits: AtomicBool::new(false), until_us: AtomicU64::new(0) }
    }

    pub(super) fn set(&self, waits: bool) {
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            let time = if waits { URGENT_TIME } else { URGENT_AFTER_TIME };
            let until = self.clock.elapsed() + time;
            self.until_us.store(until.as_micros() as u64, Ordering::Relaxed);
        }
    }

    fn is_urgent(&self) -> bool {
        self.clock.elapsed() < Duration::from_micros(self.until_us.load(Ordering::Relaxed))
    }
}

/// The read budget of an agent's output.
pub(super) struct Pace {
    pmi_waits: Arc<PmiWaits>,
    /// The remaining bytes of the budget.
    left: usize,
    next_budget: Instant,
}

impl Pace {
    pub(super) fn new(pmi_waits: Arc<PmiWaits>) -> Self {
        Self { pmi_waits, left: BUDGET_BYTES, next_budget: Instant::now() }
    }

    /// Returns `None` if the next read may take place now, or else when to ask again.
    pub(super) fn next_read(&mut self) -> Option<Instant> {
        if self.left > 0 || !self.pmi_waits.is_urgent() {
            return None;
        }
        let now = Instant::now();
        if now < self.next_budget {
            return Some(self.next_budget);
        }
        self.left = BUDGET_BYTES;
        self.next_budget = now + BUDGET_PAUSE;
        None
    }

    /// Counts a read. A short one counts as a long one: each wakes a writer.
    pub(super) fn on_read(&mut self) {
        if self.pmi_waits.is_urgent() {
            self.left = self.left.saturating_sub(READ_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_uses_up_the_budget_while_ranks_wait() {
        let waits = Arc::new(PmiWaits::new());
        let mut pace = Pace::new(Arc::clone(&waits));
        for _ in 0..3 {
            assert_eq!(pace.next_read(), None);
            pace.on_read();
        }
        waits.until_us.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(pace.next_read(), None);
        pace.on_read();
        // The first budget may follow at once.
        assert_eq!(pace.next_read(), None);
        pace.on_read();
        // However slow this machine is.
        pace.next_budget += Duration::from_secs(60);
        assert_eq!(pace.next_read(), Some(pace.next_budget), "a pause follows");
        waits.until_us.store(0, Ordering::Relaxed);
        assert_eq!(pace.next_read(), None, "no rank waits");
    }
}
