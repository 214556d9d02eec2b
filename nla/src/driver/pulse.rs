//! Detects that this process did not run, because it was stopped or starved: a tick is then late.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::{Ticker, Ticks};

/// See the module's documentation.
pub(super) struct Pulse {
    ticker: Ticker,
    /// By when the next tick is due.
    due: Instant,
}

impl Pulse {
    pub(super) fn new(ticks: &Ticks) -> Self {
        let ticker = ticks.subscribe();
        Self { due: ticker.due(), ticker }
    }

    /// Waits for the next tick. Returns how long this process did not run, if that was longer than between two ticks.
    /// Cancel-safe.
    pub(super) async fn beat(&mut self) -> Option<Duration> {
        // The tick itself may be noticed after other events.
        if self.stop(Instant::now()).is_none() {
            self.ticker.tick().await;
        }
        let now = Instant::now();
        let stop = self.stop(now);
        self.due = self.ticker.due().max(now);
        stop
    }

    /// Waits until this process has not run for longer than between two ticks. Returns for how long. Cancel-safe.
    pub(super) async fn stopped(&mut self) -> Duration {
        loop {
            if let Some(time) = self.beat().await {
                return time;
            }
        }
    }

    /// Returns by how much the tick is late, if that is longer than between two.
    fn stop(&self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.due);
        (late > self.ticker.period_max()).then_some(late)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;
    use crate::core::AgentId;
    use crate::link::Liveness;
    use crate::tasks::Panics;

    #[tokio::test]
    async fn only_a_stop_that_is_longer_than_between_two_ticks_is_noticed() {
        let test = async {
            let (heartbeat, dead_time) = (Duration::from_secs(2), Duration::from_secs(30));
            let liveness = Liveness { heartbeat, dead_time, stop_time: dead_time };
            let ticks = Ticks::start(AgentId::ROOT, liveness, &Panics::new("test").tasks());
            let mut pulse = Pulse::new(&ticks);
            assert_eq!(pulse.stop(pulse.due + heartbeat), None);
            let late = heartbeat + Duration::from_millis(1);
            assert_eq!(pulse.stop(pulse.due + late), Some(late));
            assert_eq!(timeout(dead_time, pulse.beat()).await, Ok(None), "a tick in time");
            pulse.due -= 2 * late;
            let stop = timeout(dead_time, pulse.stopped()).await.expect("it is noticed");
            assert!(stop >= heartbeat, "{stop:?}");
            assert_eq!(timeout(dead_time, pulse.beat()).await, Ok(None), "it is noticed once");
        };
        LocalSet::new().run_until(test).await;
    }
}
