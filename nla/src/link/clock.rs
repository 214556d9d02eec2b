//! The session's clock in this process.

use std::time::{Duration, Instant};

use crate::core::Time;

/// The time since the session began. An agent takes its offset from its parent's welcome, so its clock agrees with the
/// root's to within the latency of the links between them. An agent that has inherited its link has inherited the clock, too.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    began: Instant,
    offset: Duration,
}

impl Clock {
    /// Starts a clock: the session begins now.
    pub fn start() -> Self {
        Self { began: Instant::now(), offset: Duration::ZERO }
    }

    /// Creates a clock that shows `now`.
    pub fn joined(now: Time) -> Self {
        Self { began: Instant::now(), offset: now }
    }

    /// Returns the clock of a session that begins when this one shows `at`.
    pub fn begun_at(self, at: Time) -> Self {
        Self { began: self.began + at.saturating_sub(self.offset), offset: Duration::ZERO }
    }

    /// Returns the session's time.
    pub fn now(&self) -> Time {
        self.began.elapsed() + self.offset
    }

    /// Returns the instant of tokio's clock at which the session's time is `at`.
    pub fn instant(&self, at: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.began + at.saturating_sub(self.offset))
    }
}
