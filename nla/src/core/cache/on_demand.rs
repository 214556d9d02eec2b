//! HCS and HCMA: each place keeps what passes it, and asks above for the rest.
//!
//! Puts pass on their way up, one by one or merged, and wait here for the release of their fence; then
//! answers pass on their way down. The root, which all puts pass, has them all. A release names the
//! keys of which something else may lie in a cache: those that were on the board before, and those
//! that several ranks put. They are dropped everywhere, also from what has just passed, and asked for
//! again by who needs them. So nothing stale is ever found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pmi::{Board, CacheLookUp, Epoch, Keys, LookUpResult, NodeCache, Puts, Rank};

use super::{Cache, CachePeaks, Source};
use crate::core::fence::FenceError;
use crate::core::limits::FENCE_BYTES_MAX;
use crate::core::message::Update;

/// See the module.
#[derive(Debug)]
pub(super) struct OnDemand {
    is_root: bool,
    known: Arc<NodeCache>,
    /// The puts that have passed since the last release.
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
        if self.passed.bytes_len() + puts.bytes_len() > FENCE_BYTES_MAX {
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
        // In an order that is the same in every run.
        let mut overwritten: Vec<_> = overwritten.into_iter().collect();
        overwritten.sort_unstable();
        (Update::Overwritten(overwritten.into_iter().collect()), owners.len())
    }

    fn release(&mut self, news: Update) -> Option<Epoch> {
        let overwritten = match news {
            Update::Overwritten(keys) => keys,
            Update::Epoch(_) => Keys::default(),
        };
        self.peaks.note(self.known.len(), self.known.bytes());
        self.known.clear_absent();
        let passed = std::mem::take(&mut self.passed);
        if self.is_root {
            // All has passed here: the winners are known.
            let winners = Epoch::merge(&passed).unwrap_or_default();
            winners.entries().for_each(|entry| self.known.insert(entry));
        } else {
            self.known.remove(overwritten.iter());
            let overwritten: HashSet<&[u8]> = overwritten.iter().collect();
            // Of what one rank put under a key, its last put comes last.
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

    fn peaks(&self) -> CachePeaks {
        // It only grows from one release to the next.
        let mut peaks = self.peaks;
        peaks.note(self.known.len(), self.known.bytes());
        peaks
    }
}
