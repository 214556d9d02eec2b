//! Detects that this process was stopped: a timer that expires regularly is then late.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// See the module's documentation.
pub(super) struct Pulse {
    dead_time: Duration,
    last: Instant,
}

impl Pulse {
    pub(super) fn new(dead_time: Duration) -> Self {
        Self { dead_time, last: Instant::now() }
    }

    /// Waits until this process has not run for the dead time or longer. Returns for how long. Cancel-safe.
    pub(super) async fn stopped(&mut self) -> Duration {
        loop {
            sleep_until(self.next()).await;
            if let Some(time) = self.beat(Instant::now()) {
                return time;
            }
        }
    }

    /// When the next beat is due.
    fn next(&self) -> Instant {
        self.last + self.dead_time / 4
    }

    /// Notes a beat. Returns by how much it is late, if that is the dead time or longer.
    pub(super) fn beat(&mut self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.next());
        self.last = now;
        (late >= self.dead_time).then_some(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stop_of_a_dead_time_is_noticed() {
        const DEAD_TIME: Duration = Duration::from_secs(4);
        let mut pulse = Pulse::new(DEAD_TIME);
        for (late, is_stop) in
            [(DEAD_TIME * 9 / 10, false); 3].into_iter().chain([(DEAD_TIME, true), (DEAD_TIME, true)])
        {
            let now = pulse.next() + late;
            assert_eq!(pulse.beat(now), is_stop.then_some(late));
        }
    }
}
