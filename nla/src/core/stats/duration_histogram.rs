//! A histogram of durations in a bounded number of buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Each power of two of nanoseconds is divided into 2^4 buckets of the same width.
const CUT_BITS: u32 = 4;
/// The number of buckets for 64 bits of nanoseconds.
const BUCKETS: u16 = ((64 - CUT_BITS + 1) << CUT_BITS) as u16;

/// Counts durations. The shortest and the longest are exact, those between have an error of at most 1/32.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DurationHistogram {
    count: u64,
    min_ns: u64,
    max_ns: u64,
    /// The number of durations in each bucket that is not empty.
    buckets: BTreeMap<u16, u64>,
}

impl DurationHistogram {
    /// Adds one duration.
    pub fn note(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.min_ns = if self.count == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.count = self.count.saturating_add(1);
        let bucket = self.buckets.entry(bucket(ns)).or_default();
        *bucket = bucket.saturating_add(1);
    }

    /// Adds all durations of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        for (bucket, count) in &other.buckets {
            let sum = self.buckets.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest duration.
    pub fn min(&self) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_nanos(self.min_ns))
    }

    /// The longest duration.
    pub fn max(&self) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_nanos(self.max_ns))
    }

    /// The approximate median; of an even number of durations the lower of the two in the middle.
    pub fn median(&self) -> Option<Duration> {
        let middle = self.count.checked_sub(1)? / 2;
        let mut before = 0u64;
        let bucket = self.buckets.iter().find(|(_, count)| {
            before = before.saturating_add(**count);
            before > middle
        });
        let ns = bucket.map_or(self.max_ns, |(bucket, _)| middle_of(*bucket));
        Some(Duration::from_nanos(ns.max(self.min_ns).min(self.max_ns)))
    }

    /// Whether the numbers are consistent. Histograms from peers are checked with it.
    pub(in crate::core) fn is_consistent(&self) -> bool {
        let ends = |first: &u16, last: &u16| (*first, *last) == (bucket(self.min_ns), bucket(self.max_ns));
        let in_buckets = self.buckets.values().try_fold(0u64, |sum, count| sum.checked_add(*count));
        in_buckets == Some(self.count)
            && self.min_ns <= self.max_ns
            && self.buckets.values().all(|count| *count > 0)
            && match (self.buckets.first_key_value(), self.buckets.last_key_value()) {
                (Some((first, _)), Some((last, _))) => ends(first, last),
                _ => self.max_ns == 0,
            }
    }
}

/// The bucket of a number of nanoseconds. Each number below 2^5 has a bucket of its own.
fn bucket(ns: u64) -> u16 {
    let Some(shift) = ns.checked_ilog2().and_then(|power| power.checked_sub(CUT_BITS)) else {
        return ns as u16;
    };
    // The highest bit of the shifted number is set, so that the buckets of the next power follow without a gap.
    ((shift << CUT_BITS) as u16) + (ns >> shift) as u16
}

/// The number in the middle of a bucket.
fn middle_of(bucket: u16) -> u64 {
    let bucket = u64::from(bucket.min(BUCKETS - 1));
    let shift = (bucket >> CUT_BITS).saturating_sub(1);
    let low = (bucket - (shift << CUT_BITS)) << shift;
    low + (1 << shift >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all_ns: &[u64]) -> DurationHistogram {
        let mut times = DurationHistogram::default();
        all_ns.iter().for_each(|ns| times.note(Duration::from_nanos(*ns)));
        times
    }

    #[test]
    fn buckets_have_no_gaps() {
        assert_eq!((bucket(0), bucket(15), bucket(16), bucket(31), bucket(32)), (0, 15, 16, 31, 32));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let mut before = 0;
        for ns in 0..100_000 {
            assert!((before..=before + 1).contains(&bucket(ns)), "{ns}");
            before = bucket(ns);
        }
        for at in 0..BUCKETS {
            assert_eq!(bucket(middle_of(at)), at, "the middle of bucket {at} is in it");
        }
    }

    #[test]
    fn the_median_is_approximate_and_the_ends_are_exact() {
        let ns = |time: Option<Duration>| time.unwrap().as_nanos() as u64;
        let mut all: Vec<u64> = (0..1001).map(|at| 17 + at * at * 131).collect();
        let times = of(&all);
        all.sort_unstable();
        assert_eq!((times.count(), ns(times.min()), ns(times.max())), (1001, all[0], all[1000]));
        let (exact, found) = (all[500] as f64, ns(times.median()) as f64);
        assert!((exact - found).abs() <= exact / 32.0, "{found} for {exact}");
        for one in [0, 1, 15, 16, 12_345, u64::MAX] {
            assert_eq!(ns(of(&[one]).median()), one);
        }
        assert_eq!(ns(of(&[1, 2, 3, 4]).median()), 2);
        let nothing = DurationHistogram::default();
        assert_eq!((nothing.min(), nothing.median(), nothing.max()), (None, None, None));
    }

    #[test]
    fn merging_equals_counting_together() {
        let (left, right) = ([5, 900, 70_000], [3, 3, 1_000_000_000]);
        let mut merged = of(&left);
        merged.merge(&of(&right));
        assert_eq!(merged, of(&[left, right].concat()));
        merged.merge(&DurationHistogram::default());
        assert_eq!(merged.count(), 6);
        let mut nothing = DurationHistogram::default();
        nothing.merge(&merged);
        assert_eq!(nothing, merged);
    }

    #[test]
    fn inconsistent_numbers_are_noticed() {
        let good = of(&[5, 900, 70_000]);
        assert!(good.is_consistent() && DurationHistogram::default().is_consistent());
        let changes: [fn(&mut DurationHistogram); 7] = [
            |times| times.count = 2,
            |times| times.min_ns = 0,
            |times| times.max_ns = 1,
            |times| times.max_ns = u64::MAX,
            |times| times.buckets.extend([(u16::MAX, 1)]),
            |times| times.buckets.extend([(20, 0)]),
            |times| times.buckets.extend([(20, u64::MAX)]),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(!bad.is_consistent(), "change {at}");
        }
        let empty = DurationHistogram { max_ns: 1, ..DurationHistogram::default() };
        assert!(!empty.is_consistent());
    }

    #[test]
    fn counts_do_not_overflow() {
        let mut many =
            DurationHistogram { count: u64::MAX, buckets: [(0, u64::MAX)].into(), ..DurationHistogram::default() };
        assert!(many.is_consistent());
        many.merge(&many.clone());
        many.note(Duration::MAX);
        assert_eq!((many.count(), many.max()), (u64::MAX, Some(Duration::from_nanos(u64::MAX))));
        assert!(many.median().is_some());
    }

    #[test]
    fn the_middle_of_a_bucket_is_between_its_ends() {
        assert_eq!(middle_of(bucket(992)), 1008, "the bucket has the numbers from 992 to 1023");
        assert_eq!(middle_of(u16::MAX), middle_of(BUCKETS - 1));
    }
}
