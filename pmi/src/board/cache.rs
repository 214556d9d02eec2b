//! [`Board`]: a node's cache of all that was released.
//!
//! A job may have thousands of small epochs, so neighbours of similar size are merged: behind every
//! run there are three that are together no larger. A look-up asks O(log bytes) runs, a byte is
//! copied O(log bytes) times over its life, and the few large epochs of an MPI start-up are kept
//! exactly as they came.

use super::epoch::Epoch;
use super::hash::hash;

/// So many neighbouring runs are merged into one, when the oldest is no larger than the others
/// together.
const RUNS_MERGED: usize = 4;

/// Runs are not merged beyond this size: an epoch's offsets are 32 bits.
const MERGED_BYTES_MAX: usize = 1 << 30;

/// A node's bulletin board: the epochs released so far; the newest entry of a key wins.
///
/// Cloning is cheap: entries are shared.
#[derive(Clone, Default, Debug)]
pub struct Board {
    /// Non-empty, the oldest first.
    runs: Vec<Epoch>,
}

impl Board {
    /// An empty board.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an epoch; its entries replace older ones of the same keys.
    pub fn publish(&mut self, epoch: Epoch) {
        self.publish_at(epoch, |epoch| epoch);
    }

    /// [`Board::publish`] for a board that lies in a particular place: `place` moves there what is
    /// new, be it this epoch or one that it and its neighbours were merged into.
    pub fn publish_at(&mut self, epoch: Epoch, place: impl FnOnce(Epoch) -> Epoch) {
        if epoch.is_empty() {
            return;
        }
        self.runs.push(epoch);
        self.merge();
        // Whatever was merged, only the last run is new.
        if let Some(newest) = self.runs.last_mut() {
            *newest = place(std::mem::take(newest));
        }
    }

    /// Moves all that is held to a particular place.
    pub fn move_to(&mut self, mut place: impl FnMut(Epoch) -> Epoch) {
        for run in &mut self.runs {
            *run = place(std::mem::take(run));
        }
    }

    /// What is looked up in, the oldest first.
    pub fn runs(&self) -> &[Epoch] {
        &self.runs
    }

    fn merge(&mut self) {
        while let Some(at) = self.runs.len().checked_sub(RUNS_MERGED) {
            let oldest = self.runs[at].bytes().len();
            let newer: usize = self.runs[at + 1..].iter().map(|run| run.bytes().len()).sum();
            if oldest > newer || oldest + newer > MERGED_BYTES_MAX {
                break;
            }
            let merged = Epoch::from_entries(self.runs[at..].iter().flat_map(Epoch::iter));
            self.runs.truncate(at);
            self.runs.push(merged);
        }
    }

    /// The newest value of a key. Does not allocate.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let hash = hash(key);
        self.runs.iter().rev().find_map(|run| run.get_hashed(hash, key))
    }

    /// How many entries are held; keys put in several epochs may count more than once.
    pub fn len(&self) -> usize {
        self.runs.iter().map(Epoch::len).sum()
    }

    /// Whether nothing was published yet.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many bytes the entries and their indexes take.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes().len()).sum()
    }

    /// The `index`th entry, with its key's newest value; `None` from [`Board::len`] on.
    ///
    /// The order is stable while no epoch is published. Walks the entries: only PMI-1's
    /// `getbyidx`, which no library of this decade sends, asks.
    pub fn nth(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let mut index = index;
        for run in &self.runs {
            if index < run.len() {
                let (key, value) = run.iter().nth(index)?;
                return Some((key, self.get(key).unwrap_or(value)));
            }
            index -= run.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(entries: &[(&str, &str)]) -> Epoch {
        Epoch::from_entries(entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn the_newest_value_wins_and_empty_epochs_cost_nothing() {
        let mut board = Board::new();
        assert!(board.is_empty());
        assert_eq!(board.get(b"a"), None);
        board.publish(epoch(&[("a", "1"), ("b", "1")]));
        board.publish(Epoch::default());
        board.publish(epoch(&[("a", "2")]));
        assert_eq!(board.runs.len(), 2);
        assert_eq!(board.get(b"a"), Some(&b"2"[..]));
        assert_eq!(board.get(b"b"), Some(&b"1"[..]));
        assert_eq!(board.get(b"c"), None);
        assert_eq!(board.len(), 3);
    }

    #[test]
    fn a_few_epochs_are_kept_as_they_came() {
        let mut board = Board::new();
        let epochs = [epoch(&[("a", "1")]), epoch(&[("b", "1")]), epoch(&[("c", "1")])];
        epochs.iter().for_each(|epoch| board.publish(epoch.clone()));
        assert_eq!(board.runs, epochs);
        assert_eq!(board.bytes(), epochs.iter().map(|epoch| epoch.bytes().len()).sum());
    }

    #[test]
    fn thousands_of_small_epochs_are_few_runs_and_little_copying() {
        let mut board = Board::new();
        board.publish(Epoch::from_entries([(&b"large"[..], vec![b'x'; 1_000_000].as_slice())]));
        for number in 0..5_000 {
            let (key, value) = (format!("key-{number}"), format!("{number}"));
            board.publish(epoch(&[(&key, &value), ("same", &value)]));
            assert!(board.runs.len() <= 16, "{} runs after {number}", board.runs.len());
        }
        for number in 0..5_000 {
            let (key, value) = (format!("key-{number}"), format!("{number}"));
            assert_eq!(board.get(key.as_bytes()), Some(value.as_bytes()));
        }
        assert_eq!(board.get(b"same"), Some(&b"4999"[..]));
        assert_eq!(board.runs[0].len(), 1, "the large one was never copied");
        assert!(board.len() <= 5_001 + board.runs.len());
    }

    #[test]
    fn entries_are_numbered_up_to_the_length() {
        let mut board = Board::new();
        board.publish(epoch(&[("a", "1"), ("b", "1")]));
        board.publish(epoch(&[("a", "2")]));
        let all: Vec<_> = (0..board.len()).map(|index| board.nth(index).unwrap()).collect();
        // A key put twice may come twice, but always with its newest value.
        assert_eq!(all, [(&b"a"[..], &b"2"[..]), (b"b", b"1"), (b"a", b"2")]);
        assert_eq!(board.nth(board.len()), None);
    }

    mod properties {
        use std::collections::BTreeMap;

        use proptest::collection::{btree_map, vec};
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn behaves_as_a_map(
                epochs in vec(btree_map(vec(0_u8..4, 1..4), vec(any::<u8>(), 0..200), 0..12), 0..40)
            ) {
                let (mut board, mut map) = (Board::new(), BTreeMap::new());
                for entries in epochs {
                    let pairs = entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
                    board.publish(Epoch::from_entries(pairs));
                    map.extend(entries);
                }
                for (key, value) in &map {
                    prop_assert_eq!(board.get(key), Some(value.as_slice()));
                }
                prop_assert_eq!(board.get(b"absent"), None);
                prop_assert!(board.len() >= map.len());
                for index in 0..board.len() {
                    let (key, value) = board.nth(index).unwrap();
                    prop_assert_eq!(map.get(key).map(Vec::as_slice), Some(value));
                }
            }
        }
    }
}
