//! [`NodeCache`]: the part of a board that an agent stores under a policy that does not replicate it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;

use super::entry::{Entry, EntryByKey};
use super::hash::{ClusteredBuildHasher, KeyBuildHasher};
use crate::limits::ABSENT_KEYS_MAX;

/// The number of shards of each map: the fewest that `DashMap` allows.
///
/// An agent's core and the tasks that serve its ranks share one thread, so no lock is ever contended.
const SHARDS: usize = 2;

/// Some entries of a board, and some keys that are known to be absent from it.
///
/// The agent's core writes it and the tasks that serve ranks read it, both through a shared reference. The core decides
/// which entries are stored and for how long: this cache does not limit their number.
///
/// Nothing here iterates over a map: what an agent decides must not depend on the order of a hash table.
pub struct NodeCache {
    entries: DashMap<EntryByKey, (), ClusteredBuildHasher>,
    /// At most [`ABSENT_KEYS_MAX`] keys, none of which has an entry.
    absent: DashMap<Box<[u8]>, (), KeyBuildHasher>,
    /// The length of all keys and values of `entries` together.
    bytes: AtomicUsize,
}

/// The outcome of looking up a key in a [`NodeCache`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheLookUp {
    /// The entry of the key.
    Entry(Entry),
    /// No rank has put the key.
    Absent,
    /// The cache does not know.
    Unknown,
}

impl NodeCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self {
            entries: DashMap::with_hasher_and_shard_amount(ClusteredBuildHasher::default(), SHARDS),
            absent: DashMap::with_hasher_and_shard_amount(KeyBuildHasher::default(), SHARDS),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Looks up a key.
    pub fn get(&self, key: &[u8]) -> CacheLookUp {
        match self.entries.get(key) {
            Some(found) => CacheLookUp::Entry(found.key().0.clone()),
            None if self.absent.contains_key(key) => CacheLookUp::Absent,
            None => CacheLookUp::Unknown,
        }
    }

    /// Stores an entry, in place of an older one of the same key.
    ///
    /// The entry shares its memory: pass [`Entry::copied`] if the batch or epoch that it lies in should be freed.
    pub fn insert(&self, entry: Entry) {
        if !self.absent.is_empty() {
            self.absent.remove(entry.key());
        }
        self.bytes.fetch_add(entry.bytes_len(), Ordering::Relaxed);
        match self.entries.entry(EntryByKey(entry)) {
            Slot::Vacant(slot) => drop(slot.insert(())),
            // `DashMap::insert` would keep the key that is there, and with it the older value.
            Slot::Occupied(slot) => self.on_removed(&slot.replace_entry(()).0.0),
        }
    }

    /// Stores that no rank has put a key. Ignored once [`ABSENT_KEYS_MAX`] keys are stored.
    ///
    /// Also ignored for a key with an entry: entries are never removed from a board, so the absence is outdated.
    pub fn insert_absent(&self, key: &[u8]) {
        if self.absent.len() < ABSENT_KEYS_MAX && !self.entries.contains_key(key) {
            self.absent.insert(key.into(), ());
        }
    }

    /// Removes the entries and the absences of `keys`. The iterator must not access this cache.
    pub fn remove<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        if self.entries.is_empty() && self.absent.is_empty() {
            return;
        }
        for key in keys {
            self.absent.remove(key);
            if let Some((EntryByKey(entry), ())) = self.entries.remove(key) {
                self.on_removed(&entry);
            }
        }
    }

    /// Removes all absences: the ranks may have put those keys since.
    pub fn clear_absent(&self) {
        self.absent.clear();
    }

    /// Returns the number of stored entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the length of the keys and values of all entries together.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn on_removed(&self, entry: &Entry) {
        self.bytes.fetch_sub(entry.bytes_len(), Ordering::Relaxed);
    }
}

impl Default for NodeCache {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, bytes, absent) = (self.len(), self.bytes(), self.absent.len());
        write!(f, "NodeCache({entries} entries, {bytes} bytes, {absent} absent keys)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::hash::clustered_colliding_keys;
    use crate::board::{Epoch, Puts};

    #[track_caller]
    fn check(cache: &NodeCache, key: &str, value: &str) {
        assert_eq!(cache.get(key.as_bytes()), CacheLookUp::Entry(entry(key, value)));
    }

    fn entry(key: &str, value: &str) -> Entry {
        Entry::new(key.as_bytes(), value.as_bytes())
    }

    #[test]
    fn an_inserted_entry_is_found_until_it_is_removed() {
        let cache = NodeCache::new();
        assert_eq!(cache.get(b"a"), CacheLookUp::Unknown);
        assert!(cache.is_empty());
        cache.insert(entry("a", "1"));
        cache.insert(entry("b", ""));
        check(&cache, "a", "1");
        check(&cache, "b", "");
        assert_eq!((cache.len(), cache.bytes()), (2, 3));
        cache.insert(entry("a", "longer"));
        check(&cache, "a", "longer");
        assert_eq!((cache.len(), cache.bytes()), (2, 8));
        cache.remove([&b"a"[..], b"c"].into_iter());
        assert_eq!(cache.get(b"a"), CacheLookUp::Unknown);
        assert_eq!((cache.len(), cache.bytes()), (1, 1));
        assert!(!cache.is_empty());
        assert_eq!(format!("{cache:?}"), "NodeCache(1 entries, 1 bytes, 0 absent keys)");
    }

    #[test]
    fn an_entry_replaces_an_absence() {
        let cache = NodeCache::new();
        cache.insert_absent(b"a");
        cache.insert_absent(b"b");
        cache.insert_absent(b"c");
        assert_eq!(cache.get(b"a"), CacheLookUp::Absent);
        assert_eq!((cache.len(), cache.bytes()), (0, 0), "only entries count");
        cache.insert(entry("a", "1"));
        check(&cache, "a", "1");
        cache.insert_absent(b"a");
        check(&cache, "a", "1");
        assert_eq!(format!("{cache:?}"), "NodeCache(1 entries, 2 bytes, 2 absent keys)", "no key counts twice");
        cache.remove([&b"a"[..], b"b"].into_iter());
        assert_eq!(cache.get(b"a"), CacheLookUp::Unknown, "the entry had replaced the absence");
        assert_eq!(cache.get(b"b"), CacheLookUp::Unknown);
        assert_eq!(cache.get(b"c"), CacheLookUp::Absent);
        cache.insert(entry("d", "1"));
        cache.clear_absent();
        assert_eq!(cache.get(b"c"), CacheLookUp::Unknown);
        check(&cache, "d", "1");
    }

    #[test]
    fn absences_beyond_the_bound_are_ignored() {
        let cache = NodeCache::new();
        for number in 0..=ABSENT_KEYS_MAX {
            cache.insert_absent(&number.to_le_bytes());
        }
        assert_eq!(cache.get(&(ABSENT_KEYS_MAX - 1).to_le_bytes()), CacheLookUp::Absent);
        assert_eq!(cache.get(&ABSENT_KEYS_MAX.to_le_bytes()), CacheLookUp::Unknown);
        cache.remove([&0_usize.to_le_bytes()[..]].into_iter());
        cache.insert_absent(&ABSENT_KEYS_MAX.to_le_bytes());
        assert_eq!(cache.get(&ABSENT_KEYS_MAX.to_le_bytes()), CacheLookUp::Absent);
    }

    #[test]
    fn entries_share_the_memory_of_their_batch_or_epoch() {
        let mut puts = Puts::new();
        puts.push(crate::Rank(1), b"a", b"1");
        let epoch = Epoch::merge(&puts).unwrap();
        let cache = NodeCache::new();
        epoch.entries().for_each(|entry| cache.insert(entry));
        let CacheLookUp::Entry(found) = cache.get(b"a") else { panic!() };
        assert_eq!(found.value().as_ptr(), epoch.get(b"a").unwrap().as_ptr());
        puts.into_entries().for_each(|(_, entry)| cache.insert(entry));
        let CacheLookUp::Entry(found) = cache.get(b"a") else { panic!() };
        assert_ne!(found.value().as_ptr(), epoch.get(b"a").unwrap().as_ptr(), "the newer entry must replace the older");
        assert_eq!(cache.bytes(), 2);
    }

    #[test]
    fn keys_with_the_same_hash_are_distinct() {
        let [one, other] = clustered_colliding_keys();
        let cache = NodeCache::new();
        cache.insert(Entry::new(&one, b"1"));
        assert_eq!(cache.get(&other), CacheLookUp::Unknown);
        cache.insert(Entry::new(&other, b"2"));
        assert_eq!(cache.get(&one), CacheLookUp::Entry(Entry::new(&one, b"1")));
        assert_eq!(cache.get(&other), CacheLookUp::Entry(Entry::new(&other, b"2")));
    }

    #[test]
    fn readers_and_the_writer_share_a_cache() {
        fn shared<T: Send + Sync>() {}
        shared::<NodeCache>();
        let cache = NodeCache::new();
        cache.insert(entry("a", "1"));
        // A reader holds no lock once it has its entry.
        let CacheLookUp::Entry(found) = cache.get(b"a") else { panic!() };
        cache.insert(entry("a", "2"));
        assert_eq!(found, entry("a", "1"));
        check(&cache, "a", "2");
    }

    mod properties {
        use std::collections::BTreeMap;

        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        #[derive(Clone, Debug)]
        enum Step {
            Insert(Vec<u8>, Vec<u8>),
            InsertAbsent(Vec<u8>),
            Remove(Vec<Vec<u8>>),
            ClearAbsent,
        }

        fn steps() -> impl Strategy<Value = Vec<Step>> {
            let key = || vec(0_u8..3, 0..3);
            let step = prop_oneof![
                4 => (key(), vec(any::<u8>(), 0..9)).prop_map(|(key, value)| Step::Insert(key, value)),
                2 => key().prop_map(Step::InsertAbsent),
                2 => vec(key(), 0..4).prop_map(Step::Remove),
                1 => Just(Step::ClearAbsent),
            ];
            vec(step, 0..60)
        }

        proptest! {
            #[test]
            fn behaves_like_a_map(steps in steps()) {
                let cache = NodeCache::new();
                let mut map: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
                for step in steps {
                    match step {
                        Step::Insert(key, value) => {
                            cache.insert(Entry::new(&key, &value));
                            map.insert(key, Some(value));
                        }
                        Step::InsertAbsent(key) => {
                            cache.insert_absent(&key);
                            map.entry(key).or_insert(None);
                        }
                        Step::Remove(keys) => {
                            cache.remove(keys.iter().map(Vec::as_slice));
                            keys.iter().for_each(|key| drop(map.remove(key)));
                        }
                        Step::ClearAbsent => {
                            cache.clear_absent();
                            map.retain(|_, value| value.is_some());
                        }
                    }
                    for (key, value) in &map {
                        let known = value.as_ref().map_or(CacheLookUp::Absent, |value| CacheLookUp::Entry(Entry::new(key, value)));
                        prop_assert_eq!(cache.get(key), known);
                    }
                    let values = || map.iter().filter_map(|(key, value)| Some(key.len() + value.as_ref()?.len()));
                    prop_assert_eq!(cache.len(), values().count());
                    prop_assert_eq!(cache.bytes(), values().sum::<usize>());
                    prop_assert_eq!(cache.get(b"\x03"), CacheLookUp::Unknown);
                }
            }
        }
    }
}
