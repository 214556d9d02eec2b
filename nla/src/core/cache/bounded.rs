//! HCMAB-LRU: the release of a fence brings all its entries to every agent, which stores a bounded number of them.
//!
//! No entry is lost: the agent whose rank put an entry stores it for good, and each ancestor's index says which child
//! that agent is below. So a key that is not in the root's index was put by no rank. The newest epoch decides: a cache
//! drops another value of a key that the epoch contains.
//!
//! The index maps an 8-byte hash of the key to a child. For keys with the same hash, and for keys that moved from one
//! child to another, it has several children; they are asked in turn, the newest first, and a child that does not have
//! the entry any more answers so.

use std::collections::{HashMap, hash_map};

use pmi::board::{KeyBuildHasher, LruEntries, key_hash};
use pmi::{Board, CacheLookUp, Entry, Epoch, LookUpResult, NodeCache, Puts, Rank, Ranks};

use super::{Cache, CacheLocation, CachePeaks, Source};
use crate::core::ids::AgentId;
use crate::core::message::Update;

/// Stores at most a given number of other agents' entries.
#[derive(Debug)]
pub(super) struct Bounded {
    location: CacheLocation,
    /// Entries of other agents' ranks, in the order of their use.
    cached: LruEntries,
    /// Entries that this agent's ranks have put and no other rank has overwritten, and keys that are known to be
    /// absent.
    own: NodeCache,
    index: Index,
    /// The subtree's winning put for each key of the open fence.
    gathered: HashMap<Box<[u8]>, Gathered, KeyBuildHasher>,
    peaks: CachePeaks,
}

/// The winning put for a key within the subtree.
#[derive(Debug)]
struct Gathered {
    rank: Rank,
    entry: Entry,
}

impl Bounded {
    pub(super) fn new(entries: u32, location: CacheLocation) -> Self {
        Self {
            location,
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

    fn store(&mut self, entry: Entry) {
        self.peaks.evictions += u64::from(self.cached.insert(entry).is_some());
    }
}

impl Cache for Bounded {
    /// Every get changes the order of use, so all of them go through this cache.
    fn board(&self) -> Board {
        Board::partial(None)
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
        // Entries put by this agent's ranks are reinserted below.
        self.own.remove(epoch.iter().map(|(key, _)| key));
        let mut gathered = std::mem::take(&mut self.gathered);
        // Entries before this one would be evicted by those behind them.
        let first_stored = epoch.len().saturating_sub(self.cached.entries_max());
        for (at, (key, value)) in epoch.iter().enumerate() {
            self.cached.remove(key);
            // If a rank elsewhere won with the same value, the subtree's entry serves as well.
            let from_subtree = gathered.remove(key).filter(|put| put.entry.value() == value);
            match from_subtree.map(|put| self.location.child_of(put.rank)) {
                // A copy, here and below: a slice would keep the whole epoch in memory.
                Some(None) => {
                    self.own.insert(Entry::new(key, value));
                    continue;
                }
                Some(Some(child)) => self.index.insert(key, child),
                None => {}
            }
            if at >= first_stored {
                self.store(Entry::new(key, value));
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
            None if self.location.is_root => Source::Absent,
            None => Source::Parent,
        }
    }

    fn learn(&mut self, result: &LookUpResult) {
        match result {
            LookUpResult::Entry(entry) => {
                self.store(entry.clone());
                self.peaks.note(self.cached.len(), self.cached.bytes());
            }
            LookUpResult::Absent(key) => self.own.insert_absent(key),
        }
    }

    fn replace_child(&mut self, lost: AgentId, heirs: &[AgentId], children: &[(AgentId, Ranks)]) {
        self.location = self.location.with(children);
        self.index.replace(lost, heirs);
    }

    fn retract(&mut self, _: &Ranks, gathered: &[&Puts]) {
        self.gathered.clear();
        gathered.iter().for_each(|puts| self.note_gathered((*puts).clone()));
    }

    fn relocate(&mut self, children: &[(AgentId, Ranks)]) {
        self.location = self.location.with(children);
    }

    fn peaks(&self) -> CachePeaks {
        self.peaks
    }
}

/// The child below which each key was put.
#[derive(Debug, Default)]
struct Index {
    newest: HashMap<u64, AgentId, KeyBuildHasher>,
    /// Further children for the same hash, the newest first.
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

    /// The child to ask after `tried` children did not have the entry.
    fn child(&self, key: &[u8], tried: usize) -> Option<AgentId> {
        let hash = key_hash(key);
        match tried.checked_sub(1) {
            None => self.newest.get(&hash).copied(),
            Some(older) => self.older.get(&hash)?.get(older).copied(),
        }
    }

    /// Asks all of `heirs` in place of the child `lost`: which of them has an entry is not known.
    fn replace(&mut self, lost: AgentId, heirs: &[AgentId]) {
        let mut newest = std::mem::take(&mut self.newest);
        newest.retain(|hash, child| {
            let older = self.older.remove(hash).unwrap_or_default();
            let all = std::iter::once(*child).chain(older);
            let mut heirs_for = |known| if known == lost { heirs.to_vec() } else { vec![known] };
            let mut all = all.flat_map(&mut heirs_for);
            let Some(first) = all.next() else { return false };
            *child = first;
            let mut rest: Vec<AgentId> = Vec::new();
            all.for_each(|heir| {
                if heir != first && !rest.contains(&heir) {
                    rest.push(heir)
                }
            });
            if !rest.is_empty() {
                self.older.insert(*hash, rest);
            }
            true
        });
        self.newest = newest;
    }

    fn len(&self) -> usize {
        self.newest.len()
    }
}
