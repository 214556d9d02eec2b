//! A set of processors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::core::limits::CPUS_MAX;

/// A set of processors, or of memory nodes, by the numbers that the kernel gives them: below [`CPUS_MAX`]. Displayed, and
/// parsed, as the kernel writes it: `0,2-3`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct CpuSet(Vec<u64>);

/// Why a text is no set of processors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CpuSetError {
    /// A part of it is neither a number nor two numbers with `-` between them, the first not greater.
    #[error("'{0}' is neither a number nor a range such as 0-3")]
    NoRange(String),
    /// A number is too large.
    #[error("{0} is too large: numbers end at {max}", max = CPUS_MAX - 1)]
    TooLarge(String),
}

const BITS: u32 = u64::BITS;

impl CpuSet {
    /// Returns the empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a processor. Ignores numbers from [`CPUS_MAX`] on.
    pub fn insert(&mut self, cpu: u32) {
        if cpu >= CPUS_MAX {
            return;
        }
        let word = (cpu / BITS) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (cpu % BITS);
    }

    /// Whether the processor is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get((cpu / BITS) as usize).is_some_and(|word| word >> (cpu % BITS) & 1 == 1)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of processors.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The lowest number.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = (0u32..).zip(&self.0);
        words.flat_map(|(at, word)| (0..BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * BITS + bit))
    }

    /// The set as the kernel's system calls take it: processor 0 is the lowest bit of the first word. The last word is not
    /// zero.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// The ranges of adjacent numbers, both ends included, in ascending order.
    pub fn ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        ranges
    }

    /// The processors of either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let length = self.0.len().max(other.0.len());
        let word = |set: &Self, at| set.0.get(at).copied().unwrap_or_default();
        Self((0..length).map(|at| word(self, at) | word(other, at)).collect())
    }

    /// The processors of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(self.0.iter().zip(&other.0).map(|(one, other)| one & other).collect())
    }

    /// The processors of this set that the other has not.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let removed = other.0.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.0.iter().zip(removed).map(|(word, removed)| word & !removed).collect())
    }

    /// Whether the sets have no processor in common.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one & other == 0)
    }

    /// Whether the other set has all processors of this one.
    pub fn is_within(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The set as a hexadecimal number, processor 0 its lowest bit: `0x1f`.
    pub fn mask(&self) -> String {
        let mut words = self.0.iter().rev();
        let first = words.next().copied().unwrap_or_default();
        words.fold(format!("0x{first:x}"), |text, word| format!("{text}{word:016x}"))
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        let length = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(length);
        Self(words)
    }

    /// Parses ranges with `separator` between them. An empty text is the empty set.
    ///
    /// # Errors
    ///
    /// Names the first part that is no range, or the first number that is too large.
    pub fn parse(text: &str, separator: char) -> Result<Self, CpuSetError> {
        let mut set = Self::new();
        for part in text.split(separator).filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, part)?, number(last, part)?);
            if first > last {
                return Err(CpuSetError::NoRange(part.to_owned()));
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

fn number(text: &str, part: &str) -> Result<u32, CpuSetError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CpuSetError::NoRange(part.to_owned()));
    }
    text.parse().ok().filter(|number| *number < CPUS_MAX).ok_or_else(|| CpuSetError::TooLarge(text.to_owned()))
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        Self::parse(text, ',')
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl TryFrom<Vec<u64>> for CpuSet {
    type Error = &'static str;

    fn try_from(words: Vec<u64>) -> Result<Self, Self::Error> {
        if words.len() > (CPUS_MAX / BITS) as usize {
            return Err("a set of processors has too many words");
        }
        Ok(Self::trimmed(words))
    }
}

impl From<CpuSet> for Vec<u64> {
    fn from(set: CpuSet) -> Self {
        set.0
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges().into_iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{decode, encode};

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn a_set_is_written_as_the_kernel_writes_it() {
        for text in ["", "0", "0,2-3", "63-64", "0-191", "5,16383"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set("3,1-2,2").to_string(), "1-3");
        assert_eq!(CpuSet::parse("0-1+8", '+').unwrap(), set("0-1,8"));
        assert_eq!([set("").mask(), set("0,4").mask(), set("3,64").mask()], ["0x0", "0x11", "0x10000000000000008"]);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [",", "0,", "a", "1-", "-1", "2-1", "1--2", "0 ", "+1", "0-1-2"] {
            assert!(matches!(text.parse::<CpuSet>(), Err(CpuSetError::NoRange(_))), "{text}");
        }
        let max = CPUS_MAX.to_string();
        for text in [max.as_str(), "0-99999999999999999999", "4294967296"] {
            assert!(matches!(text.parse::<CpuSet>(), Err(CpuSetError::TooLarge(_))), "{text}");
        }
        assert_eq!(set(&(CPUS_MAX - 1).to_string()).len(), 1);
    }

    #[test]
    fn a_set_of_a_peer_is_bounded() {
        let words = (CPUS_MAX / BITS) as usize;
        assert!(decode::<CpuSet>(&encode(&vec![1u64; words])).is_ok());
        assert!(decode::<CpuSet>(&encode(&vec![1u64; words + 1])).is_err());
        assert_eq!(decode::<CpuSet>(&encode(&vec![5u64, 0, 0])).unwrap(), set("0,2"), "in its only form");
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets(
            one in prop::collection::btree_set(0u32..300, 0..40),
            other in prop::collection::btree_set(0u32..300, 0..40),
        ) {
            let [a, b]: [CpuSet; 2] = [&one, &other].map(|set| set.iter().copied().collect());
            let of = |set: CpuSet| set.iter().collect::<Vec<_>>();
            prop_assert_eq!(of(a.union(&b)), one.union(&other).copied().collect::<Vec<_>>());
            prop_assert_eq!(of(a.intersection(&b)), one.intersection(&other).copied().collect::<Vec<_>>());
            prop_assert_eq!(of(a.difference(&b)), one.difference(&other).copied().collect::<Vec<_>>());
            prop_assert_eq!(a.is_disjoint(&b), one.is_disjoint(&other));
            prop_assert_eq!(a.is_within(&b), one.is_subset(&other));
            prop_assert_eq!(a.len() as usize, one.len());
            prop_assert_eq!(set(&a.to_string()), a.clone());
            prop_assert_eq!(decode::<CpuSet>(&encode(&a)).unwrap(), a);
        }
    }
}
