//! Decides how fast staged files are sent: they leave room for other messages where the network is slow.
//!
//! A connection that sends as fast as it can fills the queue in front of the slowest part of its way. Messages of all other
//! connections, such as another job's fences, wait behind these bytes. A connection that sends a little slower than it could
//! leaves this queue empty. So about once per second, all links of a process send without a limit for a short time. This measures what
//! the network carries. Until the next measurement, the root stays below it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use litemap::LiteMap;

use crate::core::AgentId;
use crate::sys::Delivery;

/// The time from the end of one measurement to the start of the next one.
const PERIOD: Duration = Duration::from_secs(1);
/// A measurement takes at least this time,
const MEASURED_TIME: Duration = Duration::from_millis(50);
/// and until this many bytes have reached the peers, so that one burst is not measured.
const MEASURED_BYTES: u64 = 256 << 10;
/// A measurement is repeated if no link was busy for this part of its time.
const SENDING_MIN: f64 = 0.8;
/// There is no limit if all links together reach this rate, in bytes per second: other messages do not wait long.
const FAST_RATE: u64 = 500_000_000;
/// No limit is lower, in bytes per second, so that none delays urgent messages for long.
const LIMIT_MIN: u64 = 1_000_000;
/// A peer is far if a round trip takes at least this time. Its messages wait for the way more than in queues, and it would take
/// longer to measure.
const FAR: Duration = Duration::from_millis(5);
/// If packets of a connection wait at least this time on their way, a queue has formed in front of its slowest part.
const QUEUE: Duration = Duration::from_millis(1);
/// The limits follow from the median of this many measurements. A busy processor makes some too low. Packets that were queued
/// before a measurement make some too high.
const KEPT: usize = 3;

/// The next step of all links.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// They go on as before.
    GoOn,
    /// They send without a limit: a measurement begins.
    Measure,
    /// They send at most at these rates: a measurement has ended.
    Limit(Limits),
}

/// The limits of the links in bytes per second. `None` for no limit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Limits {
    /// The limits of links that have one of their own.
    each: LiteMap<AgentId, Option<u64>>,
    /// The limit of all others.
    others: Option<u64>,
}

impl Limits {
    /// Returns the limit of a link.
    pub(super) fn of(&self, link: AgentId) -> Option<u64> {
        self.each.get(&link).copied().unwrap_or(self.others)
    }
}

/// Decides when the links of a process are measured, and their limits.
#[derive(Default, Debug)]
pub(super) struct Pace {
    phase: Phase,
    /// The last measurements, at most [`KEPT`].
    kept: VecDeque<Carried>,
    /// The links when the last measurement began.
    before: Deliveries,
}

/// The result of a measurement, of all links together.
#[derive(Copy, Clone, Debug)]
struct Carried {
    /// Bytes per second.
    rate: u64,
    /// A queue has formed in the network: it cannot carry more.
    is_full: bool,
}

/// The deliveries of the links that send staged files.
pub(super) type Deliveries = LiteMap<AgentId, Delivery>;

#[derive(Default, Debug)]
enum Phase {
    #[default]
    Free,
    Measuring {
        began: Instant,
        links: Deliveries,
    },
    /// The limits hold until the next measurement.
    Limited {
        until: Instant,
    },
}

impl Pace {
    /// Returns whether [`Self::advance`] has something to decide. It then needs the state of all deliveries, a system call for each.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Free => true,
            Phase::Measuring { began, .. } => now >= *began + MEASURED_TIME,
            Phase::Limited { until } => now >= *until,
        }
    }

    /// Begins or ends a measurement of these links. `is_root` says that the process is the root.
    pub(super) fn advance(&mut self, now: Instant, is_root: bool, deliveries: &Deliveries) -> Step {
        let Phase::Measuring { began, links } = &self.phase else { return self.measure(now, deliveries) };
        let time = now.saturating_duration_since(*began).max(Duration::from_millis(1));
        let mut moved = moved(&self.before, links, deliveries);
        let sending = moved.iter().filter(|moved| moved.is_near()).map(|moved| moved.sending).max();
        moved.retain(|moved| moved.lately > 0);
        if moved.is_empty() {
            return self.measure(now, deliveries);
        }
        let measured = moved.iter().map(|moved| moved.bytes).sum::<u64>();
        if measured < MEASURED_BYTES {
            return Step::GoOn;
        }
        if sending.unwrap_or_default() < time.mul_f64(SENDING_MIN) {
            return self.measure(now, deliveries);
        }
        let is_full = moved.iter().any(|moved| moved.is_near() && moved.delivery.waiting >= QUEUE);
        self.before.clone_from(links);
        self.phase = Phase::Limited { until: now + PERIOD };
        let carried = self.keep(Carried { rate: (measured as f64 / time.as_secs_f64()) as u64, is_full });
        if carried.rate >= FAST_RATE {
            return Step::Limit(Limits::default());
        }
        let lately = moved.iter().map(|moved| moved.lately).sum::<u64>() as f64;
        // Nodes may hold parts of the files, so one link may need more than the others. Each gets at least an equal share, because
        // its need may grow.
        let equal = 1.0 / moved.len() as f64;
        let limit = |part: f64| limit(is_root, (carried.rate as f64 * part) as u64, carried.is_full);
        let each = moved
            .iter()
            .map(|moved| (moved.link, limit((moved.lately as f64 / lately).max(equal)).filter(|_| moved.is_near())));
        Step::Limit(Limits { each: each.collect(), others: limit(equal) })
    }

    fn measure(&mut self, now: Instant, deliveries: &Deliveries) -> Step {
        self.phase = Phase::Measuring { began: now, links: deliveries.clone() };
        Step::Measure
    }

    /// Keeps a measurement. Returns the median of the rates of the last ones, and whether the network was full in at least half of them.
    fn keep(&mut self, carried: Carried) -> Carried {
        self.kept.truncate(KEPT - 1);
        self.kept.push_front(carried);
        let mut rates: Vec<u64> = self.kept.iter().map(|carried| carried.rate).collect();
        rates.sort_unstable();
        let full = self.kept.iter().filter(|carried| carried.is_full).count();
        Carried { rate: rates[rates.len() / 2], is_full: 2 * full >= self.kept.len() }
    }
}

/// The bytes that a link has moved.
struct Moved<'a> {
    link: AgentId,
    delivery: &'a Delivery,
    /// The bytes that have reached the peer in this measurement,
    bytes: u64,
    /// and since the measurement before it began.
    lately: u64,
    /// The time in this measurement in which it had bytes to send.
    sending: Duration,
}

impl Moved<'_> {
    /// Returns whether queues on the way to the peer matter.
    fn is_near(&self) -> bool {
        self.delivery.round_trip_min < FAR
    }
}

/// Returns what links have moved since a measurement of them began. `before` has the links when the measurement before it began.
fn moved<'a>(before: &Deliveries, links: &Deliveries, deliveries: &'a Deliveries) -> Vec<Moved<'a>> {
    // Needs of different lengths of time cannot be compared. A link that was replaced has begun anew.
    let knows_all = links
        .iter()
        .all(|(link, at_begin)| before.get(link).is_some_and(|before| before.acknowledged <= at_begin.acknowledged));
    let lately = if knows_all { before } else { links };
    let moved = links.iter().filter_map(|(link, at_begin)| {
        let delivery = deliveries.get(link)?;
        let since = |then: &Delivery| delivery.acknowledged.saturating_sub(then.acknowledged);
        Some(Moved {
            link: *link,
            delivery,
            bytes: since(at_begin),
            lately: since(lately.get(link)?),
            sending: delivery.sending.saturating_sub(at_begin.sending),
        })
    });
    moved.collect()
}

/// Returns the limit of a link whose share of what the network carries is `rate`. The root's limit is below its share. A root that
/// has not filled the network has no more to send, and gets no limit. An agent's limit is above its share: otherwise each level
/// would slow the tree down. It only spreads the bytes.
fn limit(is_root: bool, rate: u64, is_full: bool) -> Option<u64> {
    let limit = match (is_root, is_full) {
        (true, true) => rate / 5 * 4,
        (true, false) => return None,
        (false, _) => rate * 2,
    };
    Some(limit.max(LIMIT_MIN))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A time of the tests' clock.
    fn at(time: Duration) -> Instant {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        *START + time
    }

    /// The delivery of so many bytes at 1 MB/s or more without a pause, with a queue on their way.
    fn after(acknowledged: u64) -> Delivery {
        let sending = Duration::from_micros(acknowledged);
        Delivery { acknowledged, round_trip_min: MS, waiting: 9 * MS, sending, segment_bytes: 1448 }
    }

    fn deliveries(of: &[(u32, Delivery)]) -> Deliveries {
        of.iter().map(|(link, delivery)| (AgentId(*link), *delivery)).collect()
    }

    /// Measures the root's links for 100 ms, in which they have sent so many bytes. Returns the limits of links 1 to 3.
    fn measured(pace: &mut Pace, now: Instant, bytes: &[(u32, u64)]) -> [Option<u64>; 3] {
        assert!(pace.is_due(now));
        let before: Vec<_> = bytes.iter().map(|(link, _)| (*link, after(1000))).collect();
        assert_eq!(pace.advance(now, true, &deliveries(&before)), Step::Measure);
        assert!(!pace.is_due(now + 49 * MS));
        assert!(pace.is_due(now + 100 * MS));
        let later: Vec<_> = bytes.iter().map(|(link, bytes)| (*link, after(1000 + bytes))).collect();
        limits(pace.advance(now + 100 * MS, true, &deliveries(&later)))
    }

    fn limits(step: Step) -> [Option<u64>; 3] {
        let Step::Limit(limits) = step else { panic!("{step:?}") };
        [1, 2, 3].map(|link| limits.of(AgentId(link)))
    }

    /// The start of one measurement in each period.
    fn times() -> impl Iterator<Item = Instant> {
        (0..).map(|period| at(5200 * MS + period * 1200 * MS))
    }

    #[test]
    fn links_are_measured_once_in_a_period() {
        let mut pace = Pace::default();
        assert_eq!(measured(&mut pace, at(5200 * MS), &[(1, 1_000_000)])[0], Some(8_000_000));
        assert!(!pace.is_due(at(6299 * MS)));
        // The next measurement begins from what is acknowledged then.
        assert_eq!(measured(&mut pace, at(6300 * MS), &[(1, 2_000_000)])[0], Some(16_000_000));
    }

    #[test]
    fn links_share_what_they_have_in_common() {
        let limits = measured(&mut Pace::default(), at(5200 * MS), &[(1, 500_000), (2, 500_000)]);
        assert_eq!(limits, [Some(4_000_000); 3], "also one that sends later");
    }

    #[test]
    fn a_link_that_needs_more_than_the_others_gets_more() {
        let mut pace = Pace::default();
        let bytes = [(1, 800_000), (2, 100_000), (3, 100_000)];
        let [needs_more, one, other] = measured(&mut pace, at(5200 * MS), &bytes);
        assert_eq!([needs_more, one], [Some(6_400_000), other]);
        assert_eq!(one, Some(2_666_664), "it may need more from now on");
    }

    #[test]
    fn what_a_link_needs_shows_between_two_measurements() {
        let mut pace = Pace::default();
        let moment = |time, bytes: [u64; 2]| (at(time), deliveries(&[(1, after(bytes[0])), (2, after(bytes[1]))]));
        // In short measurements, the network favours one or the other. Both need the same.
        let moments = [
            moment(5200 * MS, [0, 0]),
            moment(5300 * MS, [800_000, 200_000]),
            moment(6300 * MS, [3_000_000, 3_000_000]),
            moment(6400 * MS, [3_200_000, 3_800_000]),
            moment(7400 * MS, [6_000_000, 6_000_000]),
            moment(7500 * MS, [6_800_000, 6_200_000]),
        ];
        let steps: Vec<_> = moments.iter().map(|(now, deliveries)| pace.advance(*now, true, deliveries)).collect();
        let Step::Limit(last) = &steps[5] else { panic!("{steps:?}") };
        let limits = [1, 2].map(|link| last.of(AgentId(link)).unwrap());
        assert!(limits.iter().all(|limit| (4_000_000..4_400_000).contains(limit)), "{limits:?}");
    }

    #[test]
    fn the_median_of_three_measurements_counts() {
        let mut pace = Pace::default();
        let totals = [1_000_000, 5_000_000, 900_000, 1_100_000, 1_200_000];
        let found = times().zip(totals).map(|(now, bytes)| measured(&mut pace, now, &[(1, bytes)])[0].unwrap());
        assert_eq!(found.collect::<Vec<_>>(), [8_000_000, 40_000_000, 8_000_000, 8_800_000, 8_800_000]);
    }

    #[test]
    fn equal_links_share_what_the_network_carries() {
        let mut pace = Pace::default();
        let rounds: [&[_]; 4] =
            [&[(1, 500_000), (2, 500_000)], &[(1, 1_000_000)], &[(1, 1_000_000)], &[(1, 500_000), (2, 500_000)]];
        let limits = times().zip(rounds).map(|(now, bytes)| measured(&mut pace, now, bytes)[0].unwrap());
        assert_eq!(limits.collect::<Vec<_>>(), [4_000_000, 8_000_000, 8_000_000, 4_000_000]);
    }

    #[test]
    fn a_link_that_was_replaced_begins_anew() {
        let mut pace = Pace::default();
        measured(&mut pace, at(5200 * MS), &[(1, 9_000_000), (2, 9_000_000)]);
        pace.advance(at(6300 * MS), true, &deliveries(&[(1, after(9_500_000)), (2, after(0))]));
        let later = deliveries(&[(1, after(10_000_000)), (2, after(500_000))]);
        let [one, two, _] = limits(pace.advance(at(6400 * MS), true, &later));
        assert_eq!(one, two);
    }

    #[test]
    fn a_link_that_joins_meanwhile_gets_an_equal_share() {
        let mut pace = Pace::default();
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, after(0)), (2, after(0))]));
        let later = [(1, after(800_000)), (2, after(200_000)), (3, after(1_000_000))];
        assert_eq!(limits(pace.advance(at(5300 * MS), true, &deliveries(&later)))[2], Some(4_000_000));
    }

    #[test]
    fn a_link_without_bytes_takes_no_share() {
        let limits = measured(&mut Pace::default(), at(5200 * MS), &[(1, 1_000_000), (2, 0)]);
        assert_eq!(limits[0], Some(8_000_000));
    }

    #[test]
    fn a_measurement_begins_again_if_its_links_have_left() {
        let mut pace = Pace::default();
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, after(0)), (2, after(0))]));
        assert_eq!(pace.advance(at(9200 * MS), true, &deliveries(&[(3, after(500_000))])), Step::Measure);
        assert_eq!(
            limits(pace.advance(at(9300 * MS), true, &deliveries(&[(3, after(1_500_000))])))[0],
            Some(8_000_000)
        );
    }

    #[test]
    fn a_measurement_begins_again_if_all_links_paused() {
        let mut pace = Pace::default();
        let sent = |acknowledged, sending: u32| Delivery { sending: sending * MS, ..after(acknowledged) };
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, sent(0, 0)), (2, sent(0, 0))]));
        let paused = deliveries(&[(1, sent(500_000, 79)), (2, sent(500_000, 79))]);
        assert_eq!(pace.advance(at(5300 * MS), true, &paused), Step::Measure);
        let one_paused = deliveries(&[(1, sent(1_000_000, 159)), (2, sent(1_000_000, 100))]);
        assert_eq!(limits(pace.advance(at(5400 * MS), true, &one_paused))[0], Some(4_000_000));
    }

    #[test]
    fn a_far_peer_has_no_limit() {
        let mut pace = Pace::default();
        let far = |bytes| Delivery { round_trip_min: FAR, ..after(bytes) };
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, far(0)), (2, after(0))]));
        let step = pace.advance(at(5300 * MS), true, &deliveries(&[(1, far(1_000_000)), (2, after(1_000_000))]));
        assert_eq!(limits(step), [None, Some(8_000_000), Some(8_000_000)]);
    }

    #[test]
    fn a_queue_of_a_far_peer_says_nothing_about_the_others() {
        let mut pace = Pace::default();
        let far = |bytes| Delivery { round_trip_min: FAR, ..after(bytes) };
        let near = |bytes| Delivery { waiting: Duration::ZERO, ..after(bytes) };
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, far(0)), (2, near(0))]));
        let step = pace.advance(at(5300 * MS), true, &deliveries(&[(1, far(1_000_000)), (2, near(1_000_000))]));
        assert_eq!(limits(step), [None; 3]);
        pace.advance(at(6400 * MS), true, &deliveries(&[(1, far(1_000_000)), (2, near(1_000_000))]));
        let near_paused = Delivery { sending: 1000 * MS, ..near(2_000_000) };
        let step = pace.advance(at(6500 * MS), true, &deliveries(&[(1, far(2_000_000)), (2, near_paused)]));
        assert_eq!(step, Step::Measure);
    }

    #[test]
    fn a_fast_network_has_no_limit() {
        let (mut pace, fast) = (Pace::default(), [(1, 20_000_000), (2, 30_000_000)]);
        let mut times = times();
        assert_eq!(measured(&mut pace, times.next().unwrap(), &fast), [None; 3]);
        assert_eq!(measured(&mut pace, times.next().unwrap(), &fast), [None; 3]);
        let slow_once = [(1, 1_000_000), (2, 1_000_000)];
        assert_eq!(
            measured(&mut pace, times.next().unwrap(), &slow_once),
            [None; 3],
            "one measurement decides nothing"
        );
    }

    #[test]
    fn one_measurement_without_a_queue_does_not_end_the_limits() {
        let mut pace = Pace::default();
        let mut times = times();
        measured(&mut pace, times.next().unwrap(), &[(1, 1_000_000)]);
        measured(&mut pace, times.next().unwrap(), &[(1, 1_000_000)]);
        let mut without_queue = || {
            let now = times.next().unwrap();
            pace.advance(now, true, &deliveries(&[(1, after(0))]));
            let later = Delivery { waiting: Duration::ZERO, ..after(1_000_000) };
            limits(pace.advance(now + 100 * MS, true, &deliveries(&[(1, later)])))[0]
        };
        assert_eq!([without_queue(), without_queue()], [Some(8_000_000), None]);
    }

    #[test]
    fn a_few_bytes_are_no_measurement() {
        let mut pace = Pace::default();
        pace.advance(at(5200 * MS), true, &deliveries(&[(1, after(0))]));
        assert_eq!(pace.advance(at(5300 * MS), true, &deliveries(&[(1, after(200_000))])), Step::GoOn);
        let step = pace.advance(at(5400 * MS), true, &deliveries(&[(1, after(400_000))]));
        assert_eq!(limits(step)[0], Some(1_600_000));
    }

    #[test]
    fn only_the_root_leaves_room() {
        assert_eq!(limit(true, 8_000_000, true), Some(6_400_000));
        assert_eq!(limit(true, 8_000_000, false), None, "the network may be faster");
        assert_eq!(limit(false, 8_000_000, true), Some(16_000_000));
        assert_eq!([limit(true, 8_000, true), limit(false, 8_000, false)], [Some(LIMIT_MIN); 2]);
    }
}
