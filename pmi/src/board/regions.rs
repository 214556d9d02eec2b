//! The order in which a large hash table is filled: region by region, so that a processor's cache has the region.
//!
//! Entries in the order of ranks visit the slots of a table at random. With a million entries each visit is a cache miss,
//! which took most of the time of merging an epoch.

/// The slots of a region: with eight bytes each they fit the second-level cache.
const REGION_SLOTS: usize = 1 << 14;

/// Sorts items with their hashes by the region of a table of `slots` slots, a power of two, in which the low bits of the hash
/// select a slot. The items of a region keep their order.
pub(super) fn by_region(items: Vec<(u64, u32)>, slots: usize) -> Vec<(u64, u32)> {
    let regions = slots / REGION_SLOTS;
    if regions < 2 {
        return items;
    }
    let region = |hash: u64| (hash as usize & (slots - 1)) / REGION_SLOTS;
    let mut next = vec![0_usize; regions + 1];
    for (hash, _) in &items {
        next[region(*hash) + 1] += 1;
    }
    for at in 0..regions {
        next[at + 1] += next[at];
    }
    let mut sorted = vec![(0, 0); items.len()];
    for (hash, item) in items {
        let next = &mut next[region(hash)];
        sorted[*next] = (hash, item);
        *next += 1;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_of_a_region_keep_their_order() {
        let slots = 4 * REGION_SLOTS;
        let hashes = (0..1000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let items: Vec<(u64, u32)> = hashes.zip(0..).collect();
        let region = |item: &(u64, u32)| (item.0 as usize & (slots - 1)) / REGION_SLOTS;
        let mut expected = items.clone();
        expected.sort_by_key(region);
        assert_eq!(by_region(items.clone(), slots), expected);
        assert_eq!(expected.iter().map(region).max(), Some(3));
        assert_eq!(by_region(items.clone(), 2048), items, "a small table is one region");
    }
}
