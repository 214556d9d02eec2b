//! [`Board`]: a node's board for look-ups: all released entries or a part of them.
//!
//! A job may have thousands of small epochs, so adjacent epochs of similar size are merged into runs: the three runs after
//! each run are together smaller than it. A look-up searches O(log bytes) runs, and each byte is copied O(log bytes)
//! times. The few large epochs of an MPI start-up are never merged.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use super::epoch::Epoch;
use super::hash::hash;
use super::node_cache::{CacheLookUp, NodeCache};
use crate::Ranks;

/// The number of adjacent runs that are merged into one if the oldest is no larger than the others together.
const RUNS_MERGED: usize = 4;

/// Runs are not merged beyond this size: an epoch's offsets are 32 bits.
const MERGED_BYTES_MAX: usize = 1 << 30;

/// The key under which MPICH looks for ranks that have died: a list of ranks and ranges such as `1,4-6`, empty if all live.
pub const DEAD_PROCESSES: &[u8] = b"PMI_dead_processes";

/// A node's bulletin board.
///
/// A **whole** board has all epochs released so far, of which the newest entry of a key wins. A **partial** board has some
/// entries; the agent looks up the others elsewhere. Cloning is cheap: entries are shared.
#[derive(Clone, Default, Debug)]
pub struct Board {
    /// Non-empty epochs, the oldest first. A partial board has none.
    runs: Vec<Epoch>,
    part: Part,
    /// The value of [`DEAD_PROCESSES`]; `None` where the death of a rank ends the job.
    dead: Option<String>,
    /// Counts look-ups through shared references.
    answered: Cell<u64>,
}

/// The part of the board that this node has.
#[derive(Clone, Default, Debug)]
enum Part {
    /// The whole board.
    #[default]
    Whole,
    /// The entries of this cache; none without one.
    Cached(Option<Arc<NodeCache>>),
}

/// The outcome of looking up a key on a [`Board`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookUp<'a> {
    /// The key's newest value.
    Found(Cow<'a, [u8]>),
    /// No rank has put it.
    Absent,
    /// This part of the board does not know: the agent has to look elsewhere.
    Unknown,
}

impl Board {
    /// An empty, whole board.
    pub fn new() -> Self {
        Self::default()
    }

    /// A board with the entries of `cache`, or without any. Nothing may be published to it.
    pub fn partial(cache: Option<Arc<NodeCache>>) -> Self {
        Self { part: Part::Cached(cache), ..Self::default() }
    }

    /// Whether this is a whole board, so that no rank has put a key that it lacks.
    pub fn is_whole(&self) -> bool {
        matches!(self.part, Part::Whole)
    }

    /// Adds an epoch, whose entries replace older ones of the same keys. Only for whole boards: partial ones have a cache.
    pub fn publish(&mut self, epoch: Epoch) {
        self.publish_with(epoch, |epoch| epoch);
    }

    /// Like [`Board::publish`], for a board in particular memory: `relocate` copies there the new run, which is this epoch or
    /// one that it was merged into.
    pub fn publish_with(&mut self, epoch: Epoch, relocate: impl FnOnce(Epoch) -> Epoch) {
        debug_assert!(self.is_whole(), "nothing is published to a partial board");
        if epoch.is_empty() || !self.is_whole() {
            return;
        }
        self.runs.push(epoch);
        self.merge();
        // Whether it was merged or not, only the last run is new.
        if let Some(newest) = self.runs.last_mut() {
            *newest = relocate(std::mem::take(newest));
        }
    }

    /// Sets the ranks that have died and are listed under [`DEAD_PROCESSES`].
    pub fn set_dead(&mut self, dead: &Ranks) {
        self.dead = Some(dead.to_string());
    }

    /// Returns the value of [`DEAD_PROCESSES`], or `None` before the first [`Board::set_dead`].
    pub fn dead(&self) -> Option<&str> {
        self.dead.as_deref()
    }

    /// Copies all runs to particular memory with `relocate`.
    pub fn relocate(&mut self, mut relocate: impl FnMut(Epoch) -> Epoch) {
        for run in &mut self.runs {
            *run = relocate(std::mem::take(run));
        }
    }

    /// Returns the runs, the oldest first.
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

    /// Looks up a key.
    pub fn look_up(&self, key: &[u8]) -> LookUp<'_> {
        let found = match &self.part {
            Part::Whole => self.get(key).map_or(LookUp::Absent, |value| LookUp::Found(value.into())),
            Part::Cached(cache) => match cache.as_ref().map_or(CacheLookUp::Unknown, |cache| cache.get(key)) {
                CacheLookUp::Entry(entry) => LookUp::Found(entry.value().to_vec().into()),
                CacheLookUp::Absent => LookUp::Absent,
                CacheLookUp::Unknown => LookUp::Unknown,
            },
        };
        if found != LookUp::Unknown {
            self.answered.set(self.answered.get() + 1);
        }
        found
    }

    /// Returns how many look-ups had another outcome than [`LookUp::Unknown`]. A clone starts with the count of its original
    /// and counts on its own.
    pub fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Returns the newest published value of a key, that is, on a whole board. Neither allocates nor counts as a look-up.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let hash = hash(key);
        self.runs.iter().rev().find_map(|run| run.get_hashed(hash, key))
    }

    /// Returns the number of entries. A key that was put in several epochs may count more than once.
    pub fn len(&self) -> usize {
        self.runs.iter().map(Epoch::len).sum()
    }

    /// Whether nothing was published.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of bytes that the entries and their indexes take.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes().len()).sum()
    }

    /// Returns the `index`th entry with its key's newest value, or `None` from [`Board::len`] on.
    ///
    /// The order is stable while no epoch is published. Iterates over the entries: only PMI-1's `getbyidx` needs this, which
    /// no library of this decade sends.
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

/// Boards are equal if they have equal runs, whatever was looked up, and partial boards if they share a cache.
impl PartialEq for Board {
    fn eq(&self, other: &Self) -> bool {
        let same_part = match (&self.part, &other.part) {
            (Part::Whole, Part::Whole) | (Part::Cached(None), Part::Cached(None)) => true,
            (Part::Cached(Some(cache)), Part::Cached(Some(other))) => Arc::ptr_eq(cache, other),
            _ => false,
        };
        same_part && self.runs == other.runs
    }
}

impl Eq for Board {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;

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
    fn a_few_epochs_are_not_merged() {
        let mut board = Board::new();
        let epochs = [epoch(&[("a", "1")]), epoch(&[("b", "1")]), epoch(&[("c", "1")])];
        epochs.iter().for_each(|epoch| board.publish(epoch.clone()));
        assert_eq!(board.runs, epochs);
        assert_eq!(board.bytes(), epochs.iter().map(|epoch| epoch.bytes().len()).sum());
    }

    #[test]
    fn thousands_of_small_epochs_become_few_runs() {
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
        assert_eq!(board.runs[0].len(), 1, "the large epoch must not be copied");
        assert!(board.len() <= 5_001 + board.runs.len());
    }

    fn found(value: &str) -> LookUp<'_> {
        LookUp::Found(value.as_bytes().into())
    }

    #[test]
    fn a_whole_board_knows_every_key() {
        let mut board = Board::new();
        assert!(board.is_whole());
        assert_eq!(board.look_up(b"a"), LookUp::Absent);
        board.publish(epoch(&[("a", "1"), ("b", "")]));
        assert_eq!(board.look_up(b"a"), found("1"));
        assert!(matches!(board.look_up(b"a"), LookUp::Found(Cow::Borrowed(_))), "the value must not be copied");
        assert_eq!(board.look_up(b"b"), found(""));
        assert_eq!(board.answered(), 4);
        board.get(b"a");
        assert_eq!(board.answered(), 4, "only look-ups count");
        let clone = board.clone();
        clone.look_up(b"a");
        assert_eq!((clone.answered(), board.answered()), (5, 4));
    }

    #[test]
    fn a_partial_board_knows_what_its_cache_has() {
        let cache = Arc::new(NodeCache::new());
        let board = Board::partial(Some(Arc::clone(&cache)));
        assert!(!board.is_whole());
        assert_eq!(board.look_up(b"a"), LookUp::Unknown);
        assert_eq!(board.answered(), 0);
        cache.insert(Entry::new(b"a", b"1"));
        cache.insert_absent(b"b");
        assert_eq!(board.look_up(b"a"), found("1"));
        assert_eq!(board.look_up(b"b"), LookUp::Absent);
        assert_eq!(board.look_up(b"c"), LookUp::Unknown);
        assert_eq!(board.answered(), 2);
        assert_eq!((board.get(b"a"), board.nth(0)), (None, None), "nothing is published to a partial board");
        let nothing = Board::partial(None);
        assert!(!nothing.is_whole());
        assert_eq!(nothing.look_up(b"a"), LookUp::Unknown);
        assert_eq!(nothing.answered(), 0);
    }

    #[test]
    fn boards_with_equal_entries_are_equal() {
        let published = |value| {
            let mut board = Board::new();
            board.publish(epoch(&[("a", value)]));
            board
        };
        let asked = published("1");
        asked.look_up(b"a");
        assert_eq!(asked, published("1"));
        assert_ne!(asked, published("2"));
        let caches = [Arc::new(NodeCache::new()), Arc::new(NodeCache::new())];
        let partial = |at: usize| Board::partial(Some(Arc::clone(&caches[at])));
        assert_eq!(partial(0), partial(0));
        assert_ne!(partial(0), partial(1));
        assert_ne!(partial(0), Board::partial(None));
        assert_eq!(Board::partial(None), Board::partial(None));
        assert_ne!(Board::partial(None), Board::new());
    }

    #[test]
    fn entries_are_numbered_from_0_to_the_length() {
        let mut board = Board::new();
        board.publish(epoch(&[("a", "1"), ("b", "1")]));
        board.publish(epoch(&[("a", "2")]));
        let all: Vec<_> = (0..board.len()).map(|index| board.nth(index).unwrap()).collect();
        // A key that was put twice may be listed twice, always with its newest value.
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
            fn behaves_like_a_map(
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
