//! Restricts how much output is read while ranks wait in PMI.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

    /// Counts bytes that were read, of a read of at most `bytes_max`.
    pub(super) fn on_read(&mut self, bytes: usize) {
        if self.pmi_waits.is_urgent() {
            self.left = self.left.saturating_sub(bytes);
        }
    }
}
