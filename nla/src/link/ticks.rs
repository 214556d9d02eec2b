//! The times of regular work: heartbeats, and the checks that peers are alive. A process does all of it at one tick, since each
//! wake-up takes time from a rank.
//!
//! An agent ticks when its parent's heartbeat arrives, which wakes it anyway. Its timer expires only if that is late. So a
//! heartbeat of the launcher runs through the whole tree, and an agent wakes once per heartbeat. If the parent is stopped, the
//! agent ticks by its timer alone.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::Span;

use super::lanes::Liveness;
use crate::core::AgentId;
use crate::sys::Timer;
use crate::tasks::Tasks;

/// The least number of ticks in a dead time.
const PER_DEAD_TIME_MIN: u32 = 3;
/// The least time between two ticks of the timer.
const PERIOD_MIN: Duration = Duration::from_millis(1);

/// Makes the ticks of this process.
#[derive(Clone)]
pub struct Ticks(Rc<Shared>);

struct Shared {
    here: AgentId,
    liveness: Liveness,
    per_dead_time: u32,
    /// The longest time between two ticks, unless this process runs late.
    period_max: Duration,
    /// `None` if the kernel gives no descriptor. The runtime's timers then wake the process, more often than needed.
    timer: Option<Timer>,
    last: watch::Sender<Instant>,
}

impl Ticks {
    /// Starts the ticks of the agent `here`, or of the root. They are a heartbeat apart, and there are at least three in a dead
    /// time. An agent's timer is an eighth slower: its parent's heartbeat comes first. Call it inside a `LocalSet`.
    pub fn start(here: AgentId, liveness: Liveness, tasks: &Tasks) -> Self {
        let Liveness { heartbeat, dead_time, .. } = liveness;
        let period = heartbeat.min(dead_time / PER_DEAD_TIME_MIN).max(PERIOD_MIN);
        let per_dead_time = (dead_time.as_secs_f64() / period.as_secs_f64()).round() as u32;
        let slack = if here == AgentId::ROOT { Duration::ZERO } else { period / 8 };
        let ticks = Self(Rc::new(Shared {
            here,
            liveness,
            per_dead_time: per_dead_time.max(PER_DEAD_TIME_MIN),
            period_max: period + slack,
            timer: Timer::new().ok(),
            last: watch::Sender::new(Instant::now()),
        }));
        ticks.set_timer();
        let clone = ticks.clone();
        tasks.spawn("ticks", Span::none(), async move {
            loop {
                clone.expired().await;
                clone.tick();
            }
        });
        ticks
    }

    fn set_timer(&self) {
        if let Some(timer) = &self.0.timer {
            // It fails only for times that a timer cannot have.
            let _ = timer.set(self.0.period_max);
        }
    }

    async fn expired(&self) {
        let expired = match &self.0.timer {
            Some(timer) => timer.expired().await.is_ok(),
            None => false,
        };
        if !expired {
            sleep(self.0.period_max).await;
        }
    }

    fn tick(&self) {
        self.set_timer();
        self.0.last.send_replace(Instant::now());
    }

    /// Notes a heartbeat of a peer. A heartbeat from an ancestor, which has a lower number, triggers a tick, unless the last tick
    /// was less than two thirds of a period ago.
    pub fn on_heartbeat(&self, peer: AgentId) {
        let spacing = self.0.period_max * 2 / 3;
        if peer < self.0.here && self.0.last.borrow().elapsed() >= spacing {
            self.tick();
        }
    }

    /// Returns the agent whose ticks they are, or the root.
    pub(super) fn here(&self) -> AgentId {
        self.0.here
    }

    /// Returns after how much silence a peer is lost.
    pub fn liveness(&self) -> Liveness {
        self.0.liveness
    }

    /// Returns the longest time between two ticks.
    pub fn period_max(&self) -> Duration {
        self.0.period_max
    }

    /// Returns the number of ticks in a dead time.
    pub fn per_dead_time(&self) -> u32 {
        self.0.per_dead_time
    }

    /// Returns a receiver of all ticks from now on.
    pub fn subscribe(&self) -> Ticker {
        Ticker { last: self.0.last.subscribe(), period_max: self.0.period_max }
    }
}

/// Receives ticks.
pub struct Ticker {
    last: watch::Receiver<Instant>,
    period_max: Duration,
}

impl Ticker {
    /// Waits for the next tick. Several that have passed are one. Cancel-safe.
    pub async fn tick(&mut self) {
        if self.last.changed().await.is_err() {
            // Its process is about to exit.
            std::future::pending::<()>().await;
        }
    }

    /// Returns by when the next tick is due.
    pub fn due(&self) -> Instant {
        *self.last.borrow() + self.period_max
    }

    /// Returns the longest time between two ticks.
    pub fn period_max(&self) -> Duration {
        self.period_max
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;
    use crate::tasks::Panics;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Liveness =
        Liveness { heartbeat: Duration::from_millis(40), dead_time: Duration::from_millis(200), stop_time: LONG };

    #[tokio::test]
    async fn all_receivers_get_the_ticks_of_the_timer() {
        let test = async {
            let (ticks, began) = (Ticks::start(AgentId::ROOT, SHORT, &Panics::new("test").tasks()), Instant::now());
            let mut tickers = [ticks.subscribe(), ticks.subscribe()];
            for _ in 0..3 {
                for ticker in &mut tickers {
                    timeout(LONG, ticker.tick()).await.expect("a tick");
                }
            }
            assert!(began.elapsed() >= 3 * SHORT.heartbeat);
            assert_eq!(ticks.per_dead_time(), 5);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_heartbeat_of_the_parent_is_a_tick() {
        let test = async {
            let slow = Liveness { heartbeat: LONG, dead_time: 2 * LONG, stop_time: 2 * LONG };
            let ticks = Ticks::start(AgentId(2), slow, &Panics::new("test").tasks());
            assert_eq!(ticks.per_dead_time(), 3, "the heartbeat is too rare");
            let mut ticker = ticks.subscribe();
            assert_eq!(ticker.period_max(), 2 * LONG / 3 * 9 / 8);
            let mut has_ticked = async || timeout(SHORT.heartbeat, ticker.tick()).await.is_ok();
            ticks.on_heartbeat(AgentId(1));
            assert!(!has_ticked().await, "the last tick was shortly before");
            ticks.0.last.send_modify(|last| *last -= LONG / 2);
            assert!(has_ticked().await, "that was the change here");
            ticks.on_heartbeat(AgentId(3));
            assert!(!has_ticked().await, "it is below");
            ticks.on_heartbeat(AgentId(1));
            assert!(has_ticked().await);
            assert!(ticks.subscribe().due() > Instant::now() + LONG / 2, "the timer is set again");
        };
        LocalSet::new().run_until(test).await;
    }
}
