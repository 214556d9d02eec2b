//! Detects that this process was stopped: a tick is then late.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::{Ticker, Ticks};

/// See the module's documentation.
pub(super) struct Pulse {
    dead_time: Duration,
    ticker: Ticker,
    /// By when the next tick is due.
    due: Instant,
}

impl Pulse {
    pub(super) fn new(ticks: &Ticks) -> Self {
        let ticker = ticks.subscribe();
        Self { dead_time: ticks.dead_time(), due: ticker.due(), ticker }
    }

    /// Waits for the next tick. Returns how long this process was stopped, if that was a dead time or longer. Cancel-safe.
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

    /// Waits until this process has not run for the dead time or longer. Returns for how long. Cancel-safe.
    pub(super) async fn stopped(&mut self) -> Duration {
        loop {
            if let Some(time) = self.beat().await {
                return time;
            }
        }
    }

    /// Returns by how much the tick is late, if that is the dead time or longer.
    fn stop(&self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.due);
        (late >= self.dead_time).then_some(late)
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
    async fn only_a_stop_of_a_dead_time_is_noticed() {
        let test = async {
            let (heartbeat, dead_time, long) =
                (Duration::from_millis(20), Duration::from_secs(30), Duration::from_secs(60));
            let ticks = Ticks::start(AgentId::ROOT, Liveness { heartbeat, dead_time }, &Panics::new("test").tasks());
            let mut pulse = Pulse::new(&ticks);
            assert_eq!(pulse.stop(pulse.due + dead_time * 9 / 10), None);
            assert_eq!(pulse.stop(pulse.due + dead_time), Some(dead_time));
            assert_eq!(timeout(long, pulse.beat()).await, Ok(None), "a tick in time");
            pulse.due -= dead_time + heartbeat;
            let stop = timeout(long, pulse.stopped()).await.expect("it is noticed");
            assert!(stop >= dead_time, "{stop:?}");
            assert_eq!(timeout(long, pulse.beat()).await, Ok(None), "it is noticed once");
        };
        LocalSet::new().run_until(test).await;
    }
}
