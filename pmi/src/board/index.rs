//! [`Index`]: finds the entry of a key while an epoch is being built.

/// An open-addressed table of positions in a list that its owner keeps.
///
/// Sized once for the most entries there can be; grows never.
pub(super) struct Index {
    /// Tag (the hash's high half) and position plus one; 0: free.
    slots: Vec<(u32, u32)>,
}

impl Index {
    /// A table for up to `entries` entries.
    pub(super) fn for_entries(entries: usize) -> Self {
        Self { slots: vec![(0, 0); (entries + entries / 2 + 1).next_power_of_two()] }
    }

    /// The position of the entry with this hash for which `is_same` holds, or `None` after noting
    /// the key at position `new`.
    pub(super) fn find_or_insert(&mut self, hash: u64, is_same: impl Fn(usize) -> bool, new: usize) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let tag = (hash >> 32) as u32;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                (_, 0) => {
                    // Fewer than 2^32: each entry takes more than one of an epoch's 4 GiB.
                    self.slots[slot] = (tag, new as u32 + 1);
                    return None;
                }
                (found, position) if found == tag && is_same(position as usize - 1) => {
                    return Some(position as usize - 1);
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}
