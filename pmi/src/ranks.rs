//! [`Ranks`]: a set of ranks as intervals.
//!
//! A million ranks that arrive at a fence are sent as one interval. They are never sent as a count, which cannot tell one
//! rank that arrived twice from two ranks.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Rank;
use crate::limits::RANKS_INTERVALS_MAX;

/// A set of ranks: sorted, disjoint, non-adjacent, non-empty half-open intervals.
///
/// Displays as `0-3,7`, also with `Debug`; the empty set displays as an empty string. `Rank(u32::MAX)` cannot be a member:
/// a namespace's size is a `u32`, so it has no such rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32)>")]
pub struct Ranks(Vec<(u32, u32)>);

/// Why text or bytes are not a set of ranks.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RanksError {
    /// An interval from a peer is empty, out of order, or adjacent to the one before it.
    #[error("interval {0}..{1} of a set of ranks is empty or out of order")]
    Disorder(u32, u32),
    /// There are more intervals than [`RANKS_INTERVALS_MAX`].
    #[error("set of ranks has more than {RANKS_INTERVALS_MAX} intervals")]
    TooMany,
    /// A part of the text is neither a rank nor `first-last`.
    #[error("{0:?} is neither a rank nor first-last")]
    Syntax(String),
}

impl Ranks {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of all ranks of `range`.
    pub fn range(range: Range<u32>) -> Self {
        if range.is_empty() { Self::new() } else { Self(vec![(range.start, range.end)]) }
    }

    /// Adds a rank and returns whether it is new. Never adds `Rank(u32::MAX)`.
    ///
    /// O(1) at or after the end of the last interval, else a binary search and a shift.
    pub fn insert(&mut self, rank: Rank) -> bool {
        let Some(end) = rank.0.checked_add(1) else { return false };
        let start = rank.0;
        // The first interval that ends at or after the rank: it contains the rank, is adjacent to it, or lies after it.
        let at = self.0.partition_point(|interval| interval.1 < start);
        match self.0.get(at).copied() {
            Some((first, last)) if first <= start && start < last => return false,
            Some((_, last)) if last == start => match self.0.get(at + 1) {
                Some(&(next_first, next_last)) if next_first == end => {
                    self.0[at].1 = next_last;
                    self.0.remove(at + 1);
                }
                _ => self.0[at].1 = end,
            },
            Some((first, _)) if first == end => self.0[at].0 = start,
            _ => self.0.insert(at, (start, end)),
        }
        true
    }

    /// Removes a rank and returns whether it was a member.
    pub fn remove(&mut self, rank: Rank) -> bool {
        let rank = rank.0;
        let at = self.0.partition_point(|interval| interval.1 <= rank);
        let Some(&(first, last)) = self.0.get(at) else { return false };
        if rank < first {
            return false;
        }
        let parts = [(first, rank), (rank + 1, last)];
        self.0.splice(at..=at, parts.into_iter().filter(|(start, end)| start < end));
        true
    }

    /// Whether the rank is a member. O(log intervals).
    pub fn contains(&self, rank: Rank) -> bool {
        let at = self.0.partition_point(|interval| interval.1 <= rank.0);
        self.0.get(at).is_some_and(|interval| interval.0 <= rank.0)
    }

    /// Adds all of `other`.
    pub fn union_with(&mut self, other: &Self) {
        let is_in_order = match (self.0.last(), other.0.first()) {
            (Some(last), Some(first)) => last.1 < first.0,
            (None, _) | (_, None) => true,
        };
        self.0.extend_from_slice(&other.0);
        if !is_in_order {
            // The stable sort joins the two ascending runs in linear time.
            self.0.sort();
            join_overlapping(&mut self.0);
        }
    }

    /// Returns the members that are also members of `other`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.difference(&self.difference(other))
    }

    /// Returns the members that are not members of `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        let mut removed = other.0.iter().peekable();
        for &(mut start, end) in &self.0 {
            while removed.next_if(|removed| removed.1 <= start).is_some() {}
            while let Some(&&(first, last)) = removed.peek().filter(|removed| removed.0 < end) {
                if start < first {
                    rest.push((start, first));
                }
                start = last;
                if last > end {
                    break;
                }
                removed.next();
            }
            if start < end {
                rest.push((start, end));
            }
        }
        Self(rest)
    }

    /// Whether no rank is a member of both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.0.as_slice(), other.0.as_slice());
        while let ([l, left_rest @ ..], [r, right_rest @ ..]) = (left, right) {
            if l.1 <= r.0 {
                left = left_rest;
            } else if r.1 <= l.0 {
                right = right_rest;
            } else {
                return false;
            }
        }
        true
    }

    /// Whether every state of `other` is a member.
    pub fn contains_all(&self, other: &Self) -> bool {
        let mut candidates = self.0.iter().peekable();
        other.0.iter().all(|&(start, end)| {
            while candidates.next_if(|candidate| candidate.1 < end).is_some() {}
            candidates.peek().is_some_and(|candidate| candidate.0 <= start)
        })
    }

    /// Returns the number of members.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|&(start, end)| u64::from(end - start)).sum()
    }

    /// Whether no rank is a member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> {
        self.0.iter().flat_map(|&(start, end)| (start..end).map(Rank))
    }

    /// Returns the half-open intervals in ascending order.
    pub fn intervals(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Returns the lowest member.
    pub fn first(&self) -> Option<Rank> {
        self.0.first().map(|interval| Rank(interval.0))
    }

    /// Returns the highest member.
    pub fn last(&self) -> Option<Rank> {
        self.0.last().map(|interval| Rank(interval.1 - 1))
    }
}

impl TryFrom<Vec<(u32, u32)>> for Ranks {
    type Error = RanksError;

    fn try_from(intervals: Vec<(u32, u32)>) -> Result<Self, RanksError> {
        if intervals.len() > RANKS_INTERVALS_MAX {
            return Err(RanksError::TooMany);
        }
        let mut free_from = None;
        for &(start, end) in &intervals {
            // Refuse adjacent intervals too, so that equal sets have equal intervals.
            if start >= end || free_from.is_some_and(|free| start <= free) {
                return Err(RanksError::Disorder(start, end));
            }
            free_from = Some(end);
        }
        Ok(Self(intervals))
    }
}

impl FromIterator<Rank> for Ranks {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut set = Self::new();
        set.extend(ranks);
        set
    }
}

impl Extend<Rank> for Ranks {
    fn extend<I: IntoIterator<Item = Rank>>(&mut self, ranks: I) {
        for rank in ranks {
            self.insert(rank);
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &(start, end)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{start}")?;
            if end - start > 1 {
                write!(f, "-{}", end - 1)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Ranks {
    type Err = RanksError;

    /// Parses parts in any order, which may overlap, without blanks.
    fn from_str(text: &str) -> Result<Self, RanksError> {
        let mut intervals = Vec::new();
        if text.is_empty() {
            return Ok(Self::new());
        }
        for part in text.split(',') {
            if intervals.len() == RANKS_INTERVALS_MAX {
                return Err(RanksError::TooMany);
            }
            intervals.push(interval(part).ok_or_else(|| RanksError::Syntax(part.to_owned()))?);
        }
        intervals.sort_unstable();
        join_overlapping(&mut intervals);
        Ok(Self(intervals))
    }
}

/// Joins sorted intervals that overlap or are adjacent.
fn join_overlapping(intervals: &mut Vec<(u32, u32)>) {
    intervals.dedup_by(|next, last| {
        let is_joined = next.0 <= last.1;
        if is_joined {
            last.1 = last.1.max(next.1);
        }
        is_joined
    });
}

/// Parses one part of a set's text as a half-open interval.
fn interval(part: &str) -> Option<(u32, u32)> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    // `u32::from_str` would also accept a sign.
    let number = |digits: &str| {
        let plain = digits.bytes().all(|digit| digit.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let (start, end) = (number(first)?, number(last)?.checked_add(1)?);
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(text: &str) -> Ranks {
        text.parse().unwrap()
    }

    #[test]
    fn inserting_joins_adjacent_intervals() {
        let mut set = Ranks::new();
        for (rank, shown) in [(5, "5"), (7, "5,7"), (3, "3,5,7"), (6, "3,5-7"), (4, "3-7"), (0, "0,3-7"), (8, "0,3-8")]
        {
            assert!(set.insert(Rank(rank)), "{rank} is new");
            assert!(!set.insert(Rank(rank)), "{rank} is a member");
            assert_eq!(set.to_string(), shown);
        }
        assert!(set.insert(Rank(2)));
        assert_eq!(set.to_string(), "0,2-8");
    }

    #[test]
    fn removing_splits_intervals() {
        let mut set = ranks("0-5");
        for (rank, shown) in [(0, "1-5"), (5, "1-4"), (3, "1-2,4"), (4, "1-2"), (1, "2"), (2, "")] {
            assert!(set.remove(Rank(rank)), "{rank} was a member");
            assert!(!set.remove(Rank(rank)), "{rank} was removed");
            assert_eq!(set.to_string(), shown);
        }
    }

    #[test]
    fn the_highest_number_cannot_be_a_member() {
        let mut set = Ranks::new();
        assert!(!set.insert(Rank(u32::MAX)));
        assert!(set.insert(Rank(u32::MAX - 1)));
        assert!(!set.contains(Rank(u32::MAX)));
        assert!(!set.remove(Rank(u32::MAX)));
        assert_eq!(set.last(), Some(Rank(u32::MAX - 1)));
        assert_eq!(Ranks::range(0..u32::MAX).len(), u64::from(u32::MAX));
    }

    #[test]
    fn text_may_be_unordered_but_not_malformed() {
        assert_eq!(ranks("7,0-3,2-5").to_string(), "0-5,7");
        assert_eq!(ranks(""), Ranks::new());
        for text in [",", "1,", "-1", "1-", "3-1", "+1", "1 ", "x", "4294967295", "0-4294967295", "1--2"] {
            let error = text.parse::<Ranks>().unwrap_err();
            assert!(matches!(error, RanksError::Syntax(_)), "{text:?}: {error}");
        }
        let error = "1,2-x".parse::<Ranks>().unwrap_err();
        assert_eq!(error.to_string(), "\"2-x\" is neither a rank nor first-last");
    }

    #[test]
    fn unordered_intervals_from_a_peer_are_refused() {
        for intervals in [vec![(1, 1)], vec![(2, 1)], vec![(0, 2), (2, 3)], vec![(0, 3), (2, 4)], vec![(5, 6), (0, 1)]]
        {
            let bytes = rmp_serde::to_vec(&intervals).unwrap();
            assert!(rmp_serde::from_slice::<Ranks>(&bytes).is_err(), "{intervals:?}");
        }
        let bytes = rmp_serde::to_vec(&vec![(0, 2), (3, 4)]).unwrap();
        assert_eq!(rmp_serde::from_slice::<Ranks>(&bytes).unwrap(), ranks("0-1,3"));
    }

    #[test]
    fn too_many_intervals_are_refused() {
        let mut intervals: Vec<(u32, u32)> = (0..RANKS_INTERVALS_MAX as u32).map(|n| (2 * n, 2 * n + 1)).collect();
        assert!(Ranks::try_from(intervals.clone()).is_ok());
        intervals.push((u32::MAX - 1, u32::MAX));
        assert_eq!(Ranks::try_from(intervals), Err(RanksError::TooMany));
    }

    mod properties {
        use std::collections::BTreeSet;

        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        fn sets() -> impl Strategy<Value = (BTreeSet<u32>, Ranks)> {
            vec(0_u32..40, 0..30).prop_map(|members| {
                let ranks = members.iter().copied().map(Rank).collect();
                (members.into_iter().collect(), ranks)
            })
        }

        fn members(set: &Ranks) -> BTreeSet<u32> {
            set.iter().map(|rank| rank.0).collect()
        }

        proptest! {
            #[test]
            fn behaves_like_a_btree_set((a, ranks_a) in sets(), (b, ranks_b) in sets(), rank in 0_u32..40) {
                prop_assert_eq!(&members(&ranks_a), &a);
                prop_assert_eq!(ranks_a.len(), a.len() as u64);
                prop_assert_eq!(ranks_a.first(), a.first().copied().map(Rank));
                prop_assert_eq!(ranks_a.last(), a.last().copied().map(Rank));
                prop_assert_eq!(ranks_a.contains(Rank(rank)), a.contains(&rank));
                prop_assert_eq!(ranks_a.contains_all(&ranks_b), a.is_superset(&b));
                prop_assert_eq!(ranks_a.is_disjoint(&ranks_b), a.is_disjoint(&b));
                let mut union = ranks_a.clone();
                union.union_with(&ranks_b);
                prop_assert_eq!(members(&union), &a | &b);
                prop_assert_eq!(members(&ranks_a.intersection(&ranks_b)), &a & &b);
                prop_assert_eq!(members(&ranks_a.difference(&ranks_b)), &a - &b);
                let (mut less, mut fewer) = (ranks_a.clone(), a.clone());
                prop_assert_eq!(less.remove(Rank(rank)), fewer.remove(&rank));
                prop_assert_eq!(members(&less), fewer);
                for set in [ranks_a.intersection(&ranks_b), ranks_a.difference(&ranks_b), ranks_a, union, less] {
                    // Our own sets are always normal, so a peer would accept them.
                    prop_assert_eq!(&Ranks::try_from(set.intervals().to_vec()), &Ok(set.clone()));
                    prop_assert_eq!(&set.to_string().parse::<Ranks>(), &Ok(set.clone()));
                    let bytes = rmp_serde::to_vec(&set).unwrap();
                    prop_assert_eq!(&rmp_serde::from_slice::<Ranks>(&bytes).unwrap(), &set);
                }
            }

            #[test]
            fn no_text_panics(text in "[0-9,\\-x]{0,20}") {
                let _ = text.parse::<Ranks>();
            }
        }
    }
}
