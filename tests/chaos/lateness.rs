//! How busy the machine is: by how much this process is late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Measures by how much threads of this machine are late, as the guardian does: a wait that takes longer than asked.
pub(crate) struct Lateness(Arc<AtomicU64>);

impl Lateness {
    pub(crate) fn start() -> Self {
        const TICK: Duration = Duration::from_millis(50);
        let micros = Arc::new(AtomicU64::new(0));
        let sum = Arc::downgrade(&micros);
        thread::spawn(move || {
            let begun = || Instant::now();
            let mut last = begun();
            while let Some(sum) = sum.upgrade() {
                thread::park_timeout(TICK);
                let late = last.elapsed().saturating_sub(TICK);
                sum.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
                last = Instant::now();
            }
        });
        Self(micros)
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
