//! Times that the timers of a process share, so that one wake-up serves them all: each wake-up takes time from a rank.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

/// Returns the last multiple of `period` up to `at`, counted from the first call in this process.
pub(crate) fn shared_tick(at: Instant, period: Duration) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = at.saturating_duration_since(*FIRST.get_or_init(Instant::now));
    let past_tick = since.as_nanos() % period.as_nanos().max(1);
    at - Duration::from_nanos(u64::try_from(past_tick).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_with_one_period_share_their_ticks() {
        let (now, period) = (Instant::now(), Duration::from_millis(700));
        let first = shared_tick(now + 3 * period, period);
        for later in [0, 1, 350, 699].map(Duration::from_millis) {
            let tick = shared_tick(first + later, period);
            assert_eq!(tick, first, "{later:?}");
        }
        assert_eq!(shared_tick(first + period, period), first + period);
        assert_eq!(shared_tick(now, Duration::ZERO), now);
    }
}
