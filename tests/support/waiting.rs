//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Returns the timeout for an event that should happen at once, on a machine that is busy with other work.
pub fn event_timeout() -> Duration {
    Duration::from_secs(60)
}

/// Waits until `condition` returns a value, for at most [`event_timeout`]. Returns `None` if it never did.
pub fn eventually<T>(condition: impl FnMut() -> Option<T>) -> Option<T> {
    before(Instant::now() + event_timeout(), condition)
}

/// Waits like [`eventually`], until `deadline`.
pub fn before<T>(deadline: Instant, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
