//! [`NodeCache`]: what an agent keeps of a board that it does not hold whole.

use std::collections::HashSet;
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::entry::Entry;
use super::hash::{KeyBuildHasher, hash_clustered};
use super::index::Index;
use crate::limits::ABSENT_KEYS_MAX;

/// Some entries of a board, and some keys that are known not to be on it.
///
/// One party fills it and others read it, by a shared reference. What it may hold, and for how
/// long, is decided by who fills it; it does not bound its entries itself. An entry takes a place in a
/// list and a slot of an index, and no memory besides its own.
#[derive(Default)]
pub struct NodeCache(RwLock<Held>);

#[derive(Default)]
struct Held {
    /// In no order; of each key one.
    entries: Vec<Entry>,
    index: Index,
    /// At most [`ABSENT_KEYS_MAX`], and none of the entries' keys.
    absent: HashSet<Box<[u8]>, KeyBuildHasher>,
    /// Of all entries together.
    bytes: usize,
}

/// What a [`NodeCache`] knows of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheLookUp {
    /// Its entry.
    Entry(Entry),
    /// That nobody has put it.
    Absent,
    /// Nothing.
    Unknown,
}

impl NodeCache {
    /// One that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is known of a key.
    pub fn get(&self, key: &[u8]) -> CacheLookUp {
        let held = self.read();
        match held.entry(key) {
            Some(entry) => CacheLookUp::Entry(entry.clone()),
            None if held.absent.contains(key) => CacheLookUp::Absent,
            None => CacheLookUp::Unknown,
        }
    }

    /// Keeps an entry, in place of an older one of its key. The memory is shared:
    /// [`Entry::copied`] first if what it lies in is not to be kept.
    pub fn insert(&self, entry: Entry) {
        let mut held = self.write();
        if !held.absent.is_empty() {
            held.absent.remove(entry.key());
        }
        held.insert(entry);
    }

    /// Keeps that nobody has put a key, while there is room: beyond [`ABSENT_KEYS_MAX`] nothing is
    /// learnt. An entry of that key stays: nothing leaves a board, so that this is older news.
    pub fn insert_absent(&self, key: &[u8]) {
        let mut held = self.write();
        if held.absent.len() < ABSENT_KEYS_MAX && held.entry(key).is_none() {
            held.absent.insert(key.into());
        }
    }

    /// Knows nothing of these keys any more. `keys` must not look into this cache.
    pub fn remove<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let mut held = self.write();
        if held.entries.is_empty() && held.absent.is_empty() {
            return;
        }
        for key in keys {
            held.absent.remove(key);
            held.remove(key);
        }
    }

    /// Does not know of any key any more that it is absent: somebody may have put it.
    pub fn clear_absent(&self) {
        self.write().absent.clear();
    }

    /// How many entries are held.
    pub fn len(&self) -> usize {
        self.read().entries.len()
    }

    /// Whether no entry is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long the keys and values of all entries are together.
    pub fn bytes(&self) -> usize {
        self.read().bytes
    }

    // Nothing panics in the middle of a change, so that a poisoned lock would guard whole contents.

    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn entry(&self, key: &[u8]) -> Option<&Entry> {
        let position = self.index.find(hash_clustered(key), |at| self.entries[at].key() == key)?;
        Some(&self.entries[position])
    }

    fn insert(&mut self, entry: Entry) {
        let Self { entries, index, bytes, .. } = self;
        *bytes += entry.bytes_len();
        let is_same = |at: usize| entries[at].key() == entry.key();
        match index.find_or_insert(hash_clustered(entry.key()), is_same, entries.len()) {
            Some(older) => *bytes -= std::mem::replace(&mut entries[older], entry).bytes_len(),
            None => entries.push(entry),
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let Self { entries, index, bytes, .. } = self;
        let Some(position) = index.remove(hash_clustered(key), |at| entries[at].key() == key) else { return };
        *bytes -= entries.swap_remove(position).bytes_len();
        if let Some(moved) = entries.get(position) {
            index.on_moved(hash_clustered(moved.key()), entries.len(), position);
        }
    }
}

impl fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.read();
        let (entries, absent) = (held.entries.len(), held.absent.len());
        write!(f, "NodeCache({entries} entries, {} bytes, {absent} absent keys)", held.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Epoch, Puts, colliding_keys};

    #[track_caller]
    fn check(cache: &NodeCache, key: &str, value: &str) {
        assert_eq!(cache.get(key.as_bytes()), CacheLookUp::Entry(entry(key, value)));
    }

    fn entry(key: &str, value: &str) -> Entry {
        Entry::new(key.as_bytes(), value.as_bytes())
    }

    #[test]
    fn what_was_learnt_is_known_until_it_is_forgotten() {
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
    fn an_absence_is_over_when_there_is_a_value() {
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
        assert_eq!(format!("{cache:?}"), "NodeCache(1 entries, 2 bytes, 2 absent keys)", "nothing counts twice");
        cache.remove([&b"a"[..], b"b"].into_iter());
        assert_eq!(cache.get(b"a"), CacheLookUp::Unknown, "the absence had gone");
        assert_eq!(cache.get(b"b"), CacheLookUp::Unknown);
        assert_eq!(cache.get(b"c"), CacheLookUp::Absent);
        cache.insert(entry("d", "1"));
        cache.clear_absent();
        assert_eq!(cache.get(b"c"), CacheLookUp::Unknown);
        check(&cache, "d", "1");
    }

    #[test]
    fn so_many_absences_are_learnt_and_no_more() {
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
    fn entries_of_batches_and_epochs_share_their_memory() {
        let mut puts = Puts::new();
        puts.push(crate::Rank(1), b"a", b"1");
        let epoch = Epoch::merge(&puts).unwrap();
        let cache = NodeCache::new();
        epoch.entries().for_each(|entry| cache.insert(entry));
        let CacheLookUp::Entry(found) = cache.get(b"a") else { panic!() };
        assert_eq!(found.value().as_ptr(), epoch.get(b"a").unwrap().as_ptr());
        puts.into_entries().for_each(|(_, entry)| cache.insert(entry));
        let CacheLookUp::Entry(found) = cache.get(b"a") else { panic!() };
        assert_ne!(found.value().as_ptr(), epoch.get(b"a").unwrap().as_ptr(), "the newer entry was kept");
        assert_eq!(cache.bytes(), 2);
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let [one, other] = colliding_keys();
        let cache = NodeCache::new();
        cache.insert(Entry::new(&one, b"1"));
        assert_eq!(cache.get(&other), CacheLookUp::Unknown);
        cache.insert(Entry::new(&other, b"2"));
        assert_eq!(cache.get(&one), CacheLookUp::Entry(Entry::new(&one, b"1")));
        assert_eq!(cache.get(&other), CacheLookUp::Entry(Entry::new(&other, b"2")));
    }

    #[test]
    fn is_lean_and_can_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<NodeCache>();
        // Reading does not keep others from reading.
        let cache = NodeCache::new();
        let (one, other) = (cache.read(), cache.read());
        assert_eq!(one.bytes, other.bytes);
    }

    mod properties {
        use std::collections::BTreeMap;

        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        #[derive(Clone, Debug)]
        enum Step {
            Learn(Vec<u8>, Vec<u8>),
            LearnAbsent(Vec<u8>),
            Forget(Vec<Vec<u8>>),
            ForgetAbsences,
        }

        fn steps() -> impl Strategy<Value = Vec<Step>> {
            let key = || vec(0_u8..3, 0..3);
            let step = prop_oneof![
                4 => (key(), vec(any::<u8>(), 0..9)).prop_map(|(key, value)| Step::Learn(key, value)),
                2 => key().prop_map(Step::LearnAbsent),
                2 => vec(key(), 0..4).prop_map(Step::Forget),
                1 => Just(Step::ForgetAbsences),
            ];
            vec(step, 0..60)
        }

        proptest! {
            #[test]
            fn behaves_as_a_map(steps in steps()) {
                let cache = NodeCache::new();
                let mut map: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
                for step in steps {
                    match step {
                        Step::Learn(key, value) => {
                            cache.insert(Entry::new(&key, &value));
                            map.insert(key, Some(value));
                        }
                        Step::LearnAbsent(key) => {
                            cache.insert_absent(&key);
                            map.entry(key).or_insert(None);
                        }
                        Step::Forget(keys) => {
                            cache.remove(keys.iter().map(Vec::as_slice));
                            keys.iter().for_each(|key| drop(map.remove(key)));
                        }
                        Step::ForgetAbsences => {
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
