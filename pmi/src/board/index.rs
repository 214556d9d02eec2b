//! [`Index`]: finds the entry of a key in a list.

/// An open-addressed table of positions in a list that its owner keeps, with linear probing.
///
/// A slot is eight bytes, the tag (the hash's low half) and the position plus one (0: free), and the
/// tag's low bits are the first slot of a probe. So to find that a key is not there seldom looks at the
/// list, and to grow never does.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: Vec<(u32, u32)>,
    taken: usize,
}

impl Index {
    /// A table with room for `entries` entries.
    pub(super) fn for_entries(entries: usize) -> Self {
        Self { slots: vec![(0, 0); slots_for(entries)], taken: 0 }
    }

    /// The position of the entry with this hash for which `is_same` holds.
    pub(super) fn find(&self, hash: u64, is_same: impl Fn(usize) -> bool) -> Option<usize> {
        let slot = self.slot(tag_of(hash), is_same).ok()?;
        Some(self.slots[slot].1 as usize - 1)
    }

    /// [`Index::find`], or `None` after noting the key at position `new`.
    pub(super) fn find_or_insert(&mut self, hash: u64, is_same: impl Fn(usize) -> bool, new: usize) -> Option<usize> {
        if slots_for(self.taken + 1) > self.slots.len() {
            self.grow();
        }
        match self.slot(tag_of(hash), is_same) {
            Ok(slot) => Some(self.slots[slot].1 as usize - 1),
            Err(free) => {
                // Fewer than 2^32: each entry takes more than one of an epoch's 4 GiB.
                self.slots[free] = (tag_of(hash), new as u32 + 1);
                self.taken += 1;
                None
            }
        }
    }

    /// Takes out the entry with this hash for which `is_same` holds: its position.
    pub(super) fn remove(&mut self, hash: u64, is_same: impl Fn(usize) -> bool) -> Option<usize> {
        let mut free = self.slot(tag_of(hash), is_same).ok()?;
        let position = self.slots[free].1 as usize - 1;
        let mask = self.slots.len() - 1;
        let mut slot = free;
        loop {
            slot = (slot + 1) & mask;
            let (tag, taken) = self.slots[slot];
            if taken == 0 {
                break;
            }
            // It moves up where its own probe passes the freed slot.
            let probed = slot.wrapping_sub(self.first(tag)) & mask;
            if probed >= slot.wrapping_sub(free) & mask {
                self.slots[free] = self.slots[slot];
                free = slot;
            }
        }
        self.slots[free] = (0, 0);
        self.taken -= 1;
        Some(position)
    }

    /// The entry with this hash at position `from` lies at position `to` now.
    pub(super) fn on_moved(&mut self, hash: u64, from: usize, to: usize) {
        if let Ok(slot) = self.slot(tag_of(hash), |position| position == from) {
            self.slots[slot].1 = to as u32 + 1;
        }
    }

    /// The slot of the entry with this tag for which `is_same` holds, or the free one where it would be.
    /// No slots at all have no free one.
    fn slot(&self, tag: u32, is_same: impl Fn(usize) -> bool) -> Result<usize, usize> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut slot = self.first(tag);
        loop {
            match self.slots.get(slot) {
                None | Some((_, 0)) => return Err(slot),
                Some((found, position)) if *found == tag && is_same(*position as usize - 1) => return Ok(slot),
                Some(_) => slot = (slot + 1) & mask,
            }
        }
    }

    fn first(&self, tag: u32) -> usize {
        // The number of slots is a power of two.
        tag as usize & self.slots.len().wrapping_sub(1)
    }

    fn grow(&mut self) {
        let slots = vec![(0, 0); slots_for(self.taken + 1)];
        for (tag, position) in std::mem::replace(&mut self.slots, slots) {
            if position != 0
                && let Err(free) = self.slot(tag, |_| false)
            {
                self.slots[free] = (tag, position);
            }
        }
    }
}

/// At least 3/2 of the entries, so that there is always a free one to end a probe at.
fn slots_for(entries: usize) -> usize {
    (entries + entries / 2 + 1).next_power_of_two()
}

fn tag_of(hash: u64) -> u32 {
    hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_one_takes_no_memory_and_finds_nothing() {
        let mut index = Index::default();
        assert_eq!(index.find(7, |_| true), None);
        assert_eq!(index.remove(7, |_| true), None);
        index.on_moved(7, 0, 1);
        assert_eq!(index.slots.capacity(), 0);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            /// Steps are keys to be inserted, or where they are there to be removed. Few tags, so that
            /// probes are long, and round the table's end.
            #[test]
            fn behaves_as_a_list_that_is_searched(keys in vec(0_u64..40, 0..200)) {
                let hash = |key: u64| (((key % 3) << 29) | (key % 8)).wrapping_sub(4);
                let (mut index, mut list) = (Index::default(), Vec::new());
                for key in keys {
                    let at = list.iter().position(|known| *known == key);
                    prop_assert_eq!(index.find(hash(key), |at| list[at] == key), at);
                    if let Some(at) = at {
                        prop_assert_eq!(index.find_or_insert(hash(key), |at| list[at] == key, list.len()), Some(at));
                        prop_assert_eq!(index.remove(hash(key), |at| list[at] == key), Some(at));
                        list.swap_remove(at);
                        if let Some(moved) = list.get(at) {
                            index.on_moved(hash(*moved), list.len(), at);
                        }
                    } else {
                        prop_assert_eq!(index.find_or_insert(hash(key), |at| list[at] == key, list.len()), None);
                        list.push(key);
                    }
                    for (at, key) in list.iter().enumerate() {
                        prop_assert_eq!(index.find(hash(*key), |at| list[at] == *key), Some(at));
                    }
                }
            }
        }
    }
}
