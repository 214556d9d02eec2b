//! HCMAB-LRU: everybody is told everything at the fence, and keeps so much of it.
//!
//! Nothing is lost: the agent of the rank that put an entry keeps it for good, and each place above
//! knows below which child that is. So a key that is not in the root's index was put by nobody. What an
//! epoch says last of a key is what counts: who kept another value of it drops that.
//!
//! The index has 8 bytes of hash for a key. Keys that share them, and keys that moved from one child
//! to another, have several children to be asked, the newest first; who does not have it any more says
//! so.

use std::collections::{HashMap, hash_map};

use pmi::board::{KeyBuildHasher, LruEntries, key_hash};
use pmi::{Board, CacheLookUp, Entry, Epoch, LookUpResult, NodeCache, Puts, Rank};

use super::{Cache, CachePeaks, Place, Source};
use crate::core::fence::FenceError;
use crate::core::ids::AgentId;
use crate::core::message::Update;

/// See the module.
#[derive(Debug)]
pub(super) struct Bounded {
    place: Place,
    /// Entries of other places' ranks, in order of use.
    cached: LruEntries,
    /// What own ranks have put and nobody has overwritten; and what is known to be nowhere.
    own: NodeCache,
    index: Index,
    /// The subtree's winners of the open fence, by their keys.
    gathered: HashMap<Box<[u8]>, Gathered, KeyBuildHasher>,
    peaks: CachePeaks,
}

/// A put of the open fence that is the subtree's best for its key.
#[derive(Debug)]
struct Gathered {
    rank: Rank,
    entry: Entry,
}

impl Bounded {
    pub(super) fn new(entries: u32, place: Place) -> Self {
        Self {
            place,
            cached: LruEntries::new(entries),
            own: NodeCache::default(),
            index: Index::default(),
            gathered: HashMap::default(),
            peaks: CachePeaks::default(),
        }
    }

    fn note_gathered(&mut self, puts: Puts) {
        for (rank, entry) in puts.into_entries() {
            match self.gathered.entry(entry.key().into()) {
                hash_map::Entry::Vacant(free) => drop(free.insert(Gathered { rank, entry })),
                hash_map::Entry::Occupied(mut best) if best.get().rank <= rank => {
                    best.insert(Gathered { rank, entry });
                }
                hash_map::Entry::Occupied(_) => {}
            }
        }
    }

    fn keep(&mut self, entry: Entry) {
        self.peaks.evictions += u64::from(self.cached.insert(entry).is_some());
    }
}

impl Cache for Bounded {
    /// GetCounts touch the order of use, so all come here.
    fn board(&self) -> Board {
        Board::partial(None)
    }

    /// As for HCMAB: nobody sends any.
    fn pass(&mut self, _: &Puts) -> Result<(), FenceError> {
        Err(FenceError::EarlyPut)
    }

    fn gather(&mut self, puts: &Puts) {
        self.note_gathered(puts.clone());
    }

    fn close(&mut self, puts: Puts) -> (Update, usize) {
        let epoch = Epoch::merge(&puts).unwrap_or_default();
        self.note_gathered(puts);
        let entries = epoch.len();
        (Update::Epoch(epoch), entries)
    }

    fn release(&mut self, update: Update) -> Option<Epoch> {
        let Update::Epoch(epoch) = update else { return None };
        self.own.clear_absent();
        // What own ranks have put of it is learnt again.
        self.own.remove(epoch.iter().map(|(key, _)| key));
        let mut gathered = std::mem::take(&mut self.gathered);
        // Those before would have to make room for those behind.
        let passing = epoch.len().saturating_sub(self.cached.entries_max());
        for (place, (key, value)) in epoch.iter().enumerate() {
            self.cached.remove(key);
            // Where another rank's value of the same bytes won, this one is as good.
            let ours = gathered.remove(key).filter(|ours| ours.entry.value() == value);
            match ours.map(|ours| self.place.child_of(ours.rank)) {
                // A copy, here and below: a slice would keep the whole epoch in memory.
                Some(None) => {
                    self.own.insert(Entry::new(key, value));
                    continue;
                }
                Some(Some(child)) => self.index.insert(key, child),
                None => {}
            }
            if place >= passing {
                self.keep(Entry::new(key, value));
            } else {
                self.peaks.evictions += 1;
            }
        }
        self.peaks.note(self.cached.len(), self.cached.bytes());
        self.peaks.own_entries = self.peaks.own_entries.max(self.own.len() as u64);
        self.peaks.own_bytes = self.peaks.own_bytes.max(self.own.bytes() as u64);
        self.peaks.index_entries = self.peaks.index_entries.max(self.index.len() as u64);
        None
    }

    fn look_up(&mut self, key: &[u8], tried: usize) -> Source {
        match self.own.get(key) {
            CacheLookUp::Entry(entry) => return Source::Stored(entry),
            CacheLookUp::Absent => return Source::Absent,
            CacheLookUp::Unknown => {}
        }
        if let Some(entry) = self.cached.get(key) {
            return Source::Stored(entry.clone());
        }
        match self.index.child(key, tried) {
            Some(child) => Source::Child(child),
            None if self.place.is_root => Source::Absent,
            None => Source::Parent,
        }
    }

    fn learn(&mut self, result: &LookUpResult) {
        match result {
            LookUpResult::Entry(entry) => {
                self.keep(entry.clone());
                self.peaks.note(self.cached.len(), self.cached.bytes());
            }
            LookUpResult::Absent(key) => self.own.insert_absent(key),
        }
    }

    fn peaks(&self) -> CachePeaks {
        self.peaks
    }
}

/// Below which child a key was put.
#[derive(Debug, Default)]
struct Index {
    newest: HashMap<u64, AgentId, KeyBuildHasher>,
    /// Where there is more than one: the others, the newest first.
    older: HashMap<u64, Vec<AgentId>, KeyBuildHasher>,
}

impl Index {
    fn insert(&mut self, key: &[u8], child: AgentId) {
        let hash = key_hash(key);
        let Some(before) = self.newest.insert(hash, child).filter(|before| *before != child) else { return };
        let older = self.older.entry(hash).or_default();
        older.retain(|known| *known != child && *known != before);
        older.insert(0, before);
    }

    /// The child to ask after `tried` others.
    fn child(&self, key: &[u8], tried: usize) -> Option<AgentId> {
        let hash = key_hash(key);
        match tried.checked_sub(1) {
            None => self.newest.get(&hash).copied(),
            Some(older) => self.older.get(&hash)?.get(older).copied(),
        }
    }

    fn len(&self) -> usize {
        self.newest.len()
    }
}
