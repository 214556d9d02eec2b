//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const GLANCE: Duration = Duration::from_millis(3);

/// How long something that should happen at once may take on a machine that is busy with
/// something else.
pub fn patience() -> Duration {
    Duration::from_secs(30)
}

/// Waits until `condition` yields something, for at most [`patience`]. `None` when it never did.
pub fn eventually<T>(condition: impl FnMut() -> Option<T>) -> Option<T> {
    before(Instant::now() + patience(), condition)
}

/// The same, until `deadline`.
pub(crate) fn before<T>(deadline: Instant, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(GLANCE);
    }
}
