//! The pace of staged files over a link: they leave room for other messages where the network is slow.
//!
//! A connection that sends as fast as it can fills the queue in front of the slowest part of its way. Messages of all other
//! connections, such as another job's fences, wait behind these bytes: at 200 Mbit/s, four connections delay each of them by 2 ms
//! per link. A connection that sends a little slower than it could leaves this queue empty. So each link measures, for a
//! short time in each second, the rate that it reaches without a limit, and the root then stays below it. All links of a node are
//! measured at the same time: each finds its share of what they have in common.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litemap::LiteMap;
use nix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::stream::WriteHalf;
use crate::core::AgentId;
use crate::sys::{Delivery, delivery, limit_rate};

/// The time from the start of one measurement to the next one.
const PERIOD: Duration = Duration::from_secs(1);
/// A measurement takes at least this time,
const MEASURED_TIME: Duration = Duration::from_millis(50);
/// and until this many bytes have reached the peer: a burst says nothing.
const MEASURED_BYTES: u64 = 128 << 10;
/// From this rate on, in bytes per second, nobody waits long behind staged bytes: there is no limit.
const FAST_RATE: u64 = 125_000_000;
/// A measurement in which there was nothing to send, or the peer took nothing, for this time says nothing. It begins again.
const PAUSE: Duration = Duration::from_millis(100);
/// No limit is lower, in bytes per second, so that none delays urgent messages for long.
const LIMIT_MIN: u64 = 1_000_000;
/// Where a round trip takes at least this time, queues matter little, and measurements would have to take longer.
const FAR: Duration = Duration::from_millis(5);
/// If packets of a connection wait at least this time on their way, a queue has formed in front of its slowest part.
const QUEUE: Duration = Duration::from_millis(1);
/// The best rate of this time counts: a busy processor makes single measurements too low.
const KEPT: Duration = Duration::from_secs(3);
/// Staging is over when there was nothing staged to send for this time.
const OVER: Duration = Duration::from_millis(200);

/// Writes to a link's stream, at the pace of its network.
pub(super) struct Pacer {
    here: AgentId,
    peer: AgentId,
    rates: Arc<Mutex<Rates>>,
    /// Whether a network is between the ends of the connection. `None` before the first staged bytes.
    has_network: Option<bool>,
    /// The time at which the last staged bytes were written.
    staged: Duration,
    pace: Pace,
}

impl Pacer {
    /// The pace of the link from the agent `here`, or the root, to this peer. All links of a process share their `rates`.
    pub(super) fn new(here: AgentId, peer: AgentId, rates: Arc<Mutex<Rates>>) -> Self {
        Self { here, peer, rates, has_network: None, staged: Duration::ZERO, pace: Pace::default() }
    }

    /// Writes all bytes. `staged` says that bytes of staged files are among them: only these may be slowed down.
    pub(super) async fn write(&mut self, stream: &mut WriteHalf, bytes: &[u8], staged: bool) -> io::Result<()> {
        // A Unix socket leads to this machine. A pipe belongs to a remote shell, which has the connection.
        if let Either::Left(half) = stream {
            self.keep_pace(half.as_ref(), now(), staged);
        }
        stream.write_all(bytes).await?;
        if staged {
            self.staged = now();
        }
        Ok(())
    }

    /// Limits the connection's rate, or removes the limit, if it is time to. A failure costs speed, not correctness.
    fn keep_pace(&mut self, connection: &TcpStream, now: Duration, staged: bool) {
        if !staged {
            if now > self.staged + OVER && self.pace.end() {
                let _ = limit_rate(connection, None);
            }
            return;
        }
        if now > self.staged + PAUSE {
            self.pace.repeat();
        }
        if *self.has_network.get_or_insert_with(|| has_network(connection))
            && self.pace.is_due(now)
            && let Ok(delivery) = delivery(connection)
            && let Some(found) = self.pace.advance(now, delivery)
        {
            let limit = found.and_then(|found| self.limit(now, found));
            let _ = limit_rate(connection, limit);
        }
    }

    /// Returns the limit that follows from a measurement. The root, which has the files, stays below the rate that its links can
    /// carry. Agents pass on what arrives at that pace: to stay below it again would slow the tree down at each level. Their
    /// limit spreads the large pieces in which it arrives. `None` for no limit: a root that has not filled a link has no more to send.
    fn limit(&self, now: Duration, Found { rate, is_full }: Found) -> Option<u64> {
        let share = self.rates.lock().unwrap_or_else(PoisonError::into_inner).share(self.peer, now, rate);
        let limit = match (self.here == AgentId::ROOT, is_full) {
            (true, true) => share / 4 * 3,
            (true, false) => return None,
            (false, _) => share * 2,
        };
        Some(limit.max(LIMIT_MIN))
    }
}

/// The rates that the links of a process have reached lately, in bytes per second. Usually the network of their node is the slowest
/// part of their ways. They divide it unequally while it is measured, and equally in the long run.
#[derive(Default, Debug)]
pub(super) struct Rates {
    /// The last rate of each link, with its time.
    last: LiteMap<AgentId, (Duration, u64)>,
    /// The means of the last rates in [`KEPT`], with their times.
    means: Vec<(Duration, u64)>,
}

impl Rates {
    /// Notes the rate of the link to this peer. Returns the rate that is its share: the best mean of [`KEPT`], or its own rate if
    /// something else slows this link down.
    fn share(&mut self, peer: AgentId, now: Duration, rate: u64) -> u64 {
        let links = self.last.len();
        self.last.retain(|_, (at, _)| now < *at + 2 * PERIOD);
        self.last.insert(peer, (now, rate));
        if self.last.len() != links {
            // Shares among more or fewer links are others.
            self.means.clear();
        }
        let mean = self.last.values().map(|(_, rate)| rate).sum::<u64>() / self.last.len() as u64;
        self.means.retain(|(at, _)| now < *at + KEPT);
        self.means.push((now, mean));
        let best = self.means.iter().map(|(_, mean)| *mean).max();
        if rate < mean / 2 { rate } else { best.unwrap_or(mean) }
    }
}

/// The time of a clock that is the same for all processes of a node.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Returns whether a network is between the ends of a connection: the peer is not on this machine.
fn has_network(connection: &TcpStream) -> bool {
    match (connection.local_addr(), connection.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() != peer.ip(),
        (Err(_), _) | (_, Err(_)) => true,
    }
}

/// A measurement.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Found {
    /// Bytes per second.
    rate: u64,
    /// A queue has formed in the network: it cannot carry more.
    is_full: bool,
}

/// Decides when a connection's rate is measured. Times are those of [`now`].
#[derive(Default)]
enum Pace {
    #[default]
    Free,
    /// Measures the rate, without a limit.
    Measuring { began: Duration, acknowledged: u64 },
    /// The last measurement holds until the next one begins.
    Measured { until: Duration },
}

impl Pace {
    /// Returns whether [`Self::advance`] has something to decide. It then needs the state of the delivery, a system call.
    fn is_due(&self, now: Duration) -> bool {
        match self {
            Self::Free => true,
            Self::Measuring { began, .. } => now >= *began + MEASURED_TIME,
            Self::Measured { until } => now >= *until,
        }
    }

    /// Begins or ends a measurement. Returns what the connection's limit follows from: `Some(None)` removes the limit, `None`
    /// leaves it as it is.
    fn advance(&mut self, now: Duration, delivery: Delivery) -> Option<Option<Found>> {
        let Delivery { acknowledged, round_trip_min, waiting } = delivery;
        let Self::Measuring { began, acknowledged: before } = *self else {
            *self = Self::Measuring { began: now, acknowledged };
            return Some(None);
        };
        let (time, bytes) = (now.saturating_sub(began), acknowledged.saturating_sub(before));
        if bytes < MEASURED_BYTES {
            return None;
        }
        let is_full = waiting >= QUEUE;
        *self = Self::Measured { until: next_period(now) };
        let rate = (bytes as f64 / time.as_secs_f64().max(1e-3)) as u64;
        Some((rate < FAST_RATE && round_trip_min < FAR).then_some(Found { rate, is_full }))
    }

    /// Begins a measurement again, if one has begun.
    fn repeat(&mut self) {
        if let Self::Measuring { .. } = self {
            *self = Self::Free;
        }
    }

    /// Ends the pace, since other messages follow. Returns whether there was one.
    fn end(&mut self) -> bool {
        !matches!(std::mem::take(self), Self::Free)
    }
}

/// Returns the end of the period in which `now` is, the same on all links of a node. A rest that is too short for a
/// measurement is skipped.
fn next_period(now: Duration) -> Duration {
    let periods = (now + MEASURED_TIME * 2).as_nanos() / PERIOD.as_nanos() + 1;
    PERIOD * u32::try_from(periods).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The delivery of so many bytes, with a queue on their way.
    fn after(acknowledged: u64) -> Delivery {
        Delivery { acknowledged, round_trip_min: MS, waiting: 9 * MS }
    }

    /// Measures from `now` on for 100 ms.
    fn measured(pace: &mut Pace, now: Duration, bytes: u64) -> Option<Option<Found>> {
        assert!(pace.is_due(now));
        assert_eq!(pace.advance(now, after(1000)), Some(None), "it is measured without a limit");
        assert!(!pace.is_due(now + 49 * MS));
        assert!(pace.is_due(now + 100 * MS));
        pace.advance(now + 100 * MS, after(1000 + bytes))
    }

    fn full(rate: u64) -> Option<Option<Found>> {
        Some(Some(Found { rate, is_full: true }))
    }

    #[test]
    fn a_connection_is_measured_once_in_a_period() {
        let mut pace = Pace::default();
        assert_eq!(measured(&mut pace, 5200 * MS, 1_000_000), full(10_000_000));
        assert!(!pace.is_due(5999 * MS));
        // The next measurement begins from what is acknowledged now.
        assert_eq!(measured(&mut pace, 6000 * MS, 2_000_000), full(20_000_000));
    }

    #[test]
    fn a_measurement_with_a_pause_is_repeated() {
        let mut pace = Pace::default();
        assert_eq!(pace.advance(5200 * MS, after(0)), Some(None));
        pace.repeat();
        assert_eq!(pace.advance(9200 * MS, after(300_000)), Some(None));
        let without_queue = Delivery { waiting: Duration::ZERO, ..after(1_300_000) };
        assert_eq!(pace.advance(9300 * MS, without_queue), Some(Some(Found { rate: 10_000_000, is_full: false })));
        pace.repeat();
        assert!(!pace.is_due(9301 * MS), "a measurement that has ended holds");
    }

    #[test]
    fn a_far_peer_has_no_limit() {
        let mut pace = Pace::default();
        pace.advance(5200 * MS, after(0));
        let far = Delivery { round_trip_min: 5 * MS, ..after(1_000_000) };
        assert_eq!(pace.advance(5300 * MS, far), Some(None));
    }

    #[test]
    fn a_fast_connection_has_no_limit() {
        assert_eq!(measured(&mut Pace::default(), 5200 * MS, 12_500_000), Some(None));
    }

    #[test]
    fn a_few_bytes_are_no_measurement() {
        let mut pace = Pace::default();
        assert_eq!(measured(&mut pace, 5200 * MS, 100_000), None);
        assert_eq!(pace.advance(5400 * MS, after(1000 + 200_000)), full(1_000_000));
    }

    #[test]
    fn only_the_root_slows_staged_files_down() {
        let limit = |here, rate, is_full| {
            let pacer = Pacer::new(here, AgentId(3), Arc::default());
            pacer.limit(5300 * MS, Found { rate, is_full })
        };
        assert_eq!(limit(AgentId::ROOT, 8_000_000, true), Some(6_000_000));
        assert_eq!(limit(AgentId::ROOT, 8_000_000, false), None, "the network may be faster");
        assert_eq!(limit(AgentId(1), 8_000_000, true), Some(16_000_000));
        assert_eq!([limit(AgentId::ROOT, 8_000, true), limit(AgentId(1), 8_000, false)], [Some(LIMIT_MIN); 2]);
    }

    #[test]
    fn links_share_what_they_have_in_common() {
        let mut rates = Rates::default();
        assert_eq!(rates.share(AgentId(1), 5300 * MS, 4_000), 4_000);
        assert_eq!(rates.share(AgentId(2), 5310 * MS, 8_000), 6_000);
        assert_eq!(rates.share(AgentId(1), 6300 * MS, 6_000), 7_000, "its last rate counts");
        assert_eq!(rates.share(AgentId(3), 6310 * MS, 1_000), 1_000, "its own way is slow");
        assert_eq!(rates.share(AgentId(1), 8320 * MS, 6_000), 6_000, "the other links have long ended");
        assert_eq!(rates.share(AgentId(1), 9300 * MS, 5_000), 6_000, "the best of some seconds");
        assert_eq!(rates.share(AgentId(1), 11_330 * MS, 5_000), 5_000);
    }

    #[test]
    fn all_links_are_measured_at_the_same_time() {
        let until = |at| next_period(at * MS);
        assert_eq!([until(5000), until(5300), until(5899)], [6000 * MS; 3]);
        assert_eq!([until(5950), until(6000)], [7000 * MS; 2], "a rest of a period is no period");
    }

    #[test]
    fn other_messages_end_the_limit() {
        let mut pace = Pace::default();
        assert!(!pace.end());
        measured(&mut pace, 5200 * MS, 1_000_000);
        assert!(pace.end());
        assert!(!pace.end());
    }

    #[tokio::test]
    async fn paced_bytes_arrive_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        assert!(!has_network(&near));
        // As if a network were between them.
        let mut pacer = Pacer { has_network: Some(true), ..Pacer::new(AgentId::ROOT, AgentId(3), Arc::default()) };
        let (_read, half) = near.into_split();
        let mut stream = Either::Left(half);
        let content: Vec<u8> = (0..5_000_000_u32).map(|index| (index % 251) as u8).collect();
        let reading = async {
            let mut read = vec![0; content.len()];
            far.read_exact(&mut read).await.unwrap();
            read
        };
        let writing = async {
            for piece in content.chunks(64 << 10) {
                pacer.write(&mut stream, piece, true).await.unwrap();
            }
            assert!(!matches!(pacer.pace, Pace::Free));
            pacer.staged += 3600 * 1000 * MS;
            pacer.write(&mut stream, b"", false).await.unwrap();
            assert!(!matches!(pacer.pace, Pace::Free), "more may follow");
            pacer.staged = Duration::ZERO;
            pacer.write(&mut stream, b"", false).await.unwrap();
            assert!(matches!(pacer.pace, Pace::Free));
        };
        let (read, ()) = tokio::join!(reading, writing);
        assert!(read == content);
    }
}
