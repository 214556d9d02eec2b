//! [`Index`]: finds the positions of keys in a list.

/// An open-addressed table of positions in a list that its owner keeps, with linear probing.
///
/// A slot takes eight bytes: the tag, which is the hash's low half, and the position plus one (0: free). The tag's low
/// bits select the first slot of a probe. So a look-up of a missing key seldom reads the list, and growing never does.
///
/// Merging an epoch with a `HashMap` instead takes 1.2 to 2.6 times as long (docs/design/009).
#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<(u32, u32)>,
    taken: usize,
}

impl Index {
    /// A table with room for `entries` entries.
    pub(super) fn for_entries(entries: usize) -> Self {
        Self { slots: vec![(0, 0); slots_for(entries)], taken: 0 }
    }

    /// Returns the position of the entry with this hash for which `is_same` holds, or inserts `new` as its position and
    /// returns `None`.
    pub(super) fn find_or_insert(&mut self, hash: u64, is_same: impl Fn(usize) -> bool, new: usize) -> Option<usize> {
        if slots_for(self.taken + 1) > self.slots.len() {
            self.grow();
        }
        match self.slot(tag_of(hash), is_same) {
            Ok(slot) => Some(self.slots[slot].1 as usize - 1),
            Err(free) => {
                // Positions are below 2^32: each entry takes more than one of an epoch's 4 GiB.
                self.slots[free] = (tag_of(hash), new as u32 + 1);
                self.taken += 1;
                None
            }
        }
    }

    /// Returns the slot of the entry with this tag for which `is_same` holds, or the free slot where it would be.
    fn slot(&self, tag: u32, is_same: impl Fn(usize) -> bool) -> Result<usize, usize> {
        // The number of slots is a power of two.
        let mask = self.slots.len() - 1;
        let mut slot = tag as usize & mask;
        loop {
            match self.slots[slot] {
                (_, 0) => return Err(slot),
                (found, position) if found == tag && is_same(position as usize - 1) => return Ok(slot),
                _ => slot = (slot + 1) & mask,
            }
        }
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

/// Returns the number of slots for `entries` entries: at least 3/2 of that, so that a free slot ends each probe.
pub(super) fn slots_for(entries: usize) -> usize {
    (entries + entries / 2 + 1).next_power_of_two()
}

fn tag_of(hash: u64) -> u32 {
    hash as u32
}

#[cfg(test)]
mod tests {
    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            /// Few tags make long probes, also around the table's end.
            #[test]
            fn behaves_like_a_linear_search(keys in vec(0_u64..40, 0..200), room in 0_usize..9) {
                let hash = |key: u64| (((key % 3) << 29) | (key % 8)).wrapping_sub(4);
                let (mut index, mut list) = (Index::for_entries(room), Vec::new());
                for key in keys {
                    let known = list.iter().position(|known| *known == key);
                    prop_assert_eq!(index.find_or_insert(hash(key), |at| list[at] == key, list.len()), known);
                    if known.is_none() {
                        list.push(key);
                    }
                    for (at, key) in list.iter().enumerate() {
                        prop_assert_eq!(index.find_or_insert(hash(*key), |at| list[at] == *key, list.len()), Some(at));
                    }
                }
            }
        }
    }
}
