//! [`LruEntries`]: the entries of a board that were used last.

use super::entry::Entry;
use super::hash::hash_clustered;
use super::index::Index;

/// No place: there is none older, or newer.
const NONE: u32 = u32::MAX;

/// At most so many entries, of each key one: the least recently used one makes room.
///
/// Entries lie in a list in which the newest takes the oldest one's place. Those that came one after
/// another are neighbours: who fills it beyond its bound walks through memory, and allocates none.
#[derive(Debug)]
pub struct LruEntries {
    nodes: Vec<Node>,
    index: Index,
    newest: u32,
    oldest: u32,
    entries_max: usize,
    /// Of all entries together.
    bytes: usize,
}

#[derive(Debug)]
struct Node {
    entry: Entry,
    newer: u32,
    older: u32,
}

impl LruEntries {
    /// None yet, and never more than `entries_max`, which is at least 1. Makes no room for them before
    /// they come.
    pub fn new(entries_max: u32) -> Self {
        let entries_max = entries_max.clamp(1, NONE - 1) as usize;
        Self { nodes: Vec::new(), index: Index::default(), newest: NONE, oldest: NONE, entries_max, bytes: 0 }
    }

    /// The entry of a key, which is the newest from now on.
    pub fn get(&mut self, key: &[u8]) -> Option<&Entry> {
        let at = self.index.find(hash_clustered(key), |at| self.nodes[at].entry.key() == key)?;
        if self.newest as usize != at {
            self.unlink(at);
            self.link(at);
        }
        Some(&self.nodes[at].entry)
    }

    /// Keeps an entry as the newest, in place of an older one of its key. What had to make room for it,
    /// if something had to.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        self.bytes += entry.bytes_len();
        if self.get(entry.key()).is_some() {
            let before = std::mem::replace(&mut self.nodes[self.newest as usize].entry, entry);
            self.bytes -= before.bytes_len();
            return None;
        }
        let hash = hash_clustered(entry.key());
        if self.nodes.len() < self.entries_max {
            let at = self.nodes.len();
            self.index.find_or_insert(hash, |_| false, at);
            self.nodes.push(Node { entry, newer: NONE, older: NONE });
            self.link(at);
            return None;
        }
        let at = self.oldest as usize;
        self.index.remove(hash_clustered(self.nodes[at].entry.key()), |known| known == at);
        self.index.find_or_insert(hash, |_| false, at);
        self.unlink(at);
        self.link(at);
        let oldest = std::mem::replace(&mut self.nodes[at].entry, entry);
        self.bytes -= oldest.bytes_len();
        Some(oldest)
    }

    /// Lets go of the entry of a key.
    pub fn remove(&mut self, key: &[u8]) {
        let Self { nodes, index, .. } = self;
        let Some(at) = index.remove(hash_clustered(key), |at| nodes[at].entry.key() == key) else { return };
        self.unlink(at);
        self.bytes -= self.nodes.swap_remove(at).entry.bytes_len();
        if let Some(Node { entry, newer, older }) = self.nodes.get(at) {
            let (newer, older) = (*newer, *older);
            self.index.on_moved(hash_clustered(entry.key()), self.nodes.len(), at);
            *self.older_of(newer) = at as u32;
            *self.newer_of(older) = at as u32;
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many there can be.
    pub fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// How long the keys and values of all entries are together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a node that is in no order before the newest one.
    fn link(&mut self, at: usize) {
        let before = std::mem::replace(&mut self.newest, at as u32);
        *self.newer_of(before) = at as u32;
        (self.nodes[at].newer, self.nodes[at].older) = (NONE, before);
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.nodes[at].newer, self.nodes[at].older);
        *self.older_of(newer) = older;
        *self.newer_of(older) = newer;
    }

    /// What says which one is older than this; than none, the newest.
    fn older_of(&mut self, at: u32) -> &mut u32 {
        match self.nodes.get_mut(at as usize) {
            Some(node) => &mut node.older,
            None => &mut self.newest,
        }
    }

    /// What says which one is newer than this; than none, the oldest.
    fn newer_of(&mut self, at: u32) -> &mut u32 {
        match self.nodes.get_mut(at as usize) {
            Some(node) => &mut node.newer,
            None => &mut self.oldest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry::new(key.as_bytes(), value.as_bytes())
    }

    #[test]
    fn the_least_recently_used_one_makes_room() {
        let mut lru = LruEntries::new(2);
        assert_eq!((lru.insert(entry("a", "1")), lru.insert(entry("b", "1"))), (None, None));
        assert_eq!(lru.get(b"a"), Some(&entry("a", "1")));
        assert_eq!(lru.insert(entry("c", "long")), Some(entry("b", "1")));
        assert_eq!(lru.get(b"b"), None);
        assert_eq!(lru.insert(entry("a", "2")), None, "in place of the older one");
        assert_eq!((lru.len(), lru.bytes()), (2, 7));
        assert_eq!(lru.insert(entry("d", "")), Some(entry("c", "long")));
        lru.remove(b"a");
        lru.remove(b"none");
        assert_eq!(lru.get(b"a"), None);
        assert_eq!((lru.len(), lru.bytes()), (1, 1));
        assert_eq!(LruEntries::new(0).entries_max(), 1);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            /// Of each three numbers one is what to do, one the key, one the value's length.
            #[test]
            fn behaves_as_a_list_in_order_of_use(entries_max in 1_usize..8, steps in vec((0..4, 0_u8..12, 0_usize..4), 0..80)) {
                let mut lru = LruEntries::new(entries_max as u32);
                let mut list: Vec<Entry> = Vec::new();
                for (what, key, bytes) in steps {
                    let entry = Entry::new(&[key], &vec![key; bytes]);
                    let known = list.iter().position(|known| known.key() == [key]).map(|at| list.remove(at));
                    match what {
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
                // In order of use they leave.
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
