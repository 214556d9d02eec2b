//! The session's clock, as this process knows it.

use std::time::{Duration, Instant};

use crate::core::Time;

/// Time since the session began. Agents take their offset from their parent's welcome, so their
/// clocks agree with the root's to within the latency of the links between.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    began: Instant,
    offset: Duration,
}

impl Clock {
    /// The session begins now.
    pub fn start() -> Self {
        Self { began: Instant::now(), offset: Duration::ZERO }
    }

    /// The session's time is `now`.
    pub fn joined(now: Time) -> Self {
        Self { began: Instant::now(), offset: now }
    }

    /// The session's time.
    pub fn now(&self) -> Time {
        self.began.elapsed() + self.offset
    }

    /// When, by the runtime's clock, the session's time will be `at`.
    pub fn instant(&self, at: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.began + at.saturating_sub(self.offset))
    }
}
