//! [`LruEntries`]: the least recently used entries of a board are evicted first.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::entry::{Entry, EntryByKey};
use super::hash::ClusteredBuildHasher;

/// A cache of at most a fixed number of entries, one per key, which evicts the least recently used one.
///
/// Memory grows with the entries that are cached, not with the bound.
#[derive(Debug)]
pub struct LruEntries {
    entries: LruCache<EntryByKey, (), ClusteredBuildHasher>,
    /// The length of all keys and values together.
    bytes: usize,
}

impl LruEntries {
    /// An empty cache for up to `entries_max` entries; 0 is taken as 1.
    pub fn new(entries_max: u32) -> Self {
        // `with_hasher` would allocate a table for the bound, which may be far more than is ever cached.
        let mut entries = LruCache::unbounded_with_hasher(ClusteredBuildHasher::default());
        entries.resize(NonZeroUsize::new(entries_max as usize).unwrap_or(NonZeroUsize::MIN));
        Self { entries, bytes: 0 }
    }

    /// Returns the entry of a key and marks it as the most recently used one.
    pub fn get(&mut self, key: &[u8]) -> Option<&Entry> {
        self.entries.get_key_value(key).map(|(EntryByKey(entry), ())| entry)
    }

    /// Caches an entry as the most recently used one, in place of an older one of the same key.
    ///
    /// Returns the entry of another key that was evicted to make room.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        self.bytes += entry.bytes_len();
        let (returned, ()) = self.entries.push(EntryByKey(entry), ())?;
        // `push` never replaces a key. If this one was cached, it returns the new entry, else the evicted one.
        let is_cached = self.entries.peek_mru().is_some_and(|(newest, ())| *newest == returned);
        if is_cached {
            self.remove(returned.0.key());
            self.entries.push(returned, ());
            return None;
        }
        self.bytes -= returned.0.bytes_len();
        Some(returned.0)
    }

    /// Removes the entry of a key.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some((EntryByKey(entry), ())) = self.entries.pop_entry(key) {
            self.bytes -= entry.bytes_len();
        }
    }

    /// Returns the number of cached entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry is cached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of entries from which on one is evicted for each new one.
    pub fn entries_max(&self) -> usize {
        self.entries.cap().get()
    }

    /// Returns the length of all cached keys and values together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry::new(key.as_bytes(), value.as_bytes())
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let mut lru = LruEntries::new(2);
        assert_eq!((lru.insert(entry("a", "1")), lru.insert(entry("b", "1"))), (None, None));
        assert_eq!(lru.get(b"a"), Some(&entry("a", "1")));
        assert_eq!(lru.insert(entry("c", "long")), Some(entry("b", "1")));
        assert_eq!(lru.get(b"b"), None);
        assert_eq!(lru.insert(entry("a", "2")), None, "it replaces the older value");
        assert_eq!(lru.get(b"a"), Some(&entry("a", "2")));
        assert_eq!((lru.len(), lru.bytes()), (2, 7));
        assert_eq!(lru.insert(entry("d", "")), Some(entry("c", "long")));
        lru.remove(b"a");
        lru.remove(b"none");
        assert_eq!(lru.get(b"a"), None);
        assert_eq!((lru.len(), lru.bytes()), (1, 1));
        assert_eq!(LruEntries::new(0).entries_max(), 1);
    }

    #[test]
    fn a_large_bound_allocates_nothing_in_advance() {
        // A table for the bound would take 64 GiB.
        let mut lru = LruEntries::new(u32::MAX);
        assert_eq!(lru.insert(entry("a", "1")), None);
        assert_eq!((lru.len(), lru.entries_max()), (1, u32::MAX as usize));
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            /// Each step is an operation, a key and the length of a value.
            #[test]
            fn behaves_like_a_list_in_order_of_use(entries_max in 1_usize..8, steps in vec((0..4, 0_u8..12, 0_usize..4), 0..80)) {
                let mut lru = LruEntries::new(entries_max as u32);
                let mut list: Vec<Entry> = Vec::new();
                for (operation, key, bytes) in steps {
                    let entry = Entry::new(&[key], &vec![key; bytes]);
                    let known = list.iter().position(|known| known.key() == [key]).map(|at| list.remove(at));
                    match operation {
                        0 => lru.remove(&[key]),
                        1 => {
                            prop_assert_eq!(lru.get(&[key]), known.as_ref());
                            list.extend(known);
                        }
                        _ => {
                            let evicted = (list.len() == entries_max).then(|| list.remove(0));
                            prop_assert_eq!(lru.insert(entry.clone()), evicted);
                            list.push(entry);
                        }
                    }
                    prop_assert_eq!(lru.len(), list.len());
                    prop_assert_eq!(lru.bytes(), list.iter().map(Entry::bytes_len).sum::<usize>());
                }
                // Entries are evicted in the order of their last use.
                for (number, oldest) in list.iter().enumerate() {
                    let room = entries_max - list.len();
                    if number == 0 {
                        (0..room).for_each(|new| assert_eq!(lru.insert(Entry::new(&[100, new as u8], b"")), None));
                    }
                    let new = Entry::new(&[200, number as u8], b"");
                    prop_assert_eq!(lru.insert(new), Some(oldest.clone()));
                }
            }
        }
    }
}
