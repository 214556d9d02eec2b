//! HCS and HCMA: each place stores the entries that pass it, and asks its parent for the others.
//!
//! Puts pass on their way up, one by one or merged, and wait here for the release of their fence; later, answers pass
//! on their way down. All puts pass the root, so the root has every entry. A release names the keys of which a cache
//! may have another value: those that were on the board before, and those that several ranks put. Every cache drops
//! them, also from the puts that have just passed, and looks them up again when a rank needs them. So no get returns a
//! stale value.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pmi::{Board, CacheLookUp, Epoch, Keys, LookUpResult, NodeCache, Puts, Rank, Ranks};

use super::{Cache, CachePeaks, Source};
use crate::core::fence::{FenceError, is_too_much};
use crate::core::message::Update;

/// Stores all entries that pass.
#[derive(Debug)]
pub(super) struct OnDemand {
    is_root: bool,
    known: Arc<NodeCache>,
    /// Puts that have passed since the last release; they are not visible yet.
    passed: Puts,
    peaks: CachePeaks,
}

impl OnDemand {
    pub(super) fn new(is_root: bool) -> Self {
        Self { is_root, known: Arc::default(), passed: Puts::new(), peaks: CachePeaks::default() }
    }
}

impl Cache for OnDemand {
    fn board(&self) -> Board {
        Board::partial(Some(Arc::clone(&self.known)))
    }

    fn pass(&mut self, puts: &Puts) -> Result<(), FenceError> {
        if is_too_much(self.passed.bytes_len(), puts) {
            return Err(FenceError::TooLarge);
        }
        self.passed.append(puts);
        Ok(())
    }

    fn gather(&mut self, puts: &Puts) {
        self.passed.append(puts);
    }

    fn close(&mut self, puts: Puts) -> (Update, usize) {
        self.passed.append(&puts);
        let mut owners: HashMap<&[u8], Rank> = HashMap::new();
        let mut overwritten = HashSet::new();
        for put in self.passed.iter().map_while(Result::ok) {
            let owner = *owners.entry(put.key).or_insert(put.rank);
            if owner != put.rank || matches!(self.known.get(put.key), CacheLookUp::Entry(_)) {
                overwritten.insert(put.key);
            }
        }
        // A hash set's order differs from run to run.
        let mut overwritten: Vec<_> = overwritten.into_iter().collect();
        overwritten.sort_unstable();
        (Update::Overwritten(overwritten.into_iter().collect()), owners.len())
    }

    fn release(&mut self, update: Update) -> Option<Epoch> {
        let overwritten = match update {
            Update::Overwritten(keys) => keys,
            Update::Epoch(_) | Update::Pieces(_) => Keys::default(),
        };
        self.peaks.note(self.known.len(), self.known.bytes());
        self.known.clear_absent();
        let passed = std::mem::take(&mut self.passed);
        if self.is_root {
            // All puts pass the root: it knows each key's winner.
            let winners = Epoch::merge(&passed).unwrap_or_default();
            winners.entries().for_each(|entry| self.known.insert(entry));
        } else {
            self.known.remove(overwritten.iter());
            let overwritten: HashSet<&[u8]> = overwritten.iter().collect();
            // Several puts of one rank under one key are in order: the last one stays.
            let passed = passed.into_entries().map(|(_, entry)| entry);
            passed.filter(|entry| !overwritten.contains(entry.key())).for_each(|entry| self.known.insert(entry));
        }
        self.peaks.note(self.known.len(), self.known.bytes());
        None
    }

    fn look_up(&mut self, key: &[u8], _: usize) -> Source {
        match self.known.get(key) {
            CacheLookUp::Entry(entry) => Source::Stored(entry),
            CacheLookUp::Absent => Source::Absent,
            CacheLookUp::Unknown if self.is_root => Source::Absent,
            CacheLookUp::Unknown => Source::Parent,
        }
    }

    fn learn(&mut self, result: &LookUpResult) {
        match result {
            LookUpResult::Entry(entry) => self.known.insert(entry.clone()),
            LookUpResult::Absent(key) => self.known.insert_absent(key),
        }
    }

    fn retract(&mut self, ranks: &Ranks, _: &[&Puts]) {
        self.passed = self.passed.without(ranks);
    }

    fn peaks(&self) -> CachePeaks {
        // Between two releases the cache only grows: its peak is now, or was before the last release.
        let mut peaks = self.peaks;
        peaks.note(self.known.len(), self.known.bytes());
        peaks
    }
}
