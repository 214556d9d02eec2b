//! Hashes of keys, the same on every machine: they travel inside epochs.
//!
//! [`hash`] takes eight bytes at a time by multiplication and shift and ends with MurmurHash3's 64-bit finalizer. It is
//! fast for the short keys of PMI. It does not defend against keys chosen to collide: a rank that puts such keys only
//! slows down its own job.

use std::hash::{BuildHasherDefault, Hasher};

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes a key.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    let mut state = (key.len() as u64).wrapping_mul(MULTIPLIER);
    let mut rest = key;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        state = mix(state, u64::from_le_bytes(*word));
        rest = behind;
    }
    let tail = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    finish(mix(state, tail))
}

/// Hashes many bytes, several times as fast as [`hash`]: the four words of a block are independent of each other. Any change of
/// a single word changes the hash.
pub fn hash_long(bytes: &[u8]) -> u64 {
    let mut lanes = [1, 2, 3, 4].map(|lane: u64| lane.wrapping_mul(MULTIPLIER));
    let blocks = bytes.chunks_exact(8 * lanes.len());
    let tail = hash(blocks.remainder());
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            *lane = mix(*lane, word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        }
    }
    finish(lanes.into_iter().fold(mix(bytes.len() as u64, tail), mix))
}

fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(MULTIPLIER);
    product ^ (product >> 32)
}

fn finish(mut state: u64) -> u64 {
    state ^= state >> 33;
    state = state.wrapping_mul(0xff51_afd7_ed55_8ccd);
    state ^= state >> 33;
    state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    state ^ (state >> 33)
}

/// Hashes the keys of tables with [`hash`].
pub type KeyBuildHasher = BuildHasherDefault<KeyHasher>;

/// Hashes byte slices, and types that hash as their key does, with [`hash`].
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= hash(bytes);
    }

    /// Ignores a slice's length, which [`hash`] already takes into account.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Builds [`ClusteredHasher`]s.
pub(super) type ClusteredBuildHasher = BuildHasherDefault<ClusteredHasher>;

/// Hashes keys that differ only in their last byte to neighbouring slots of a hashbrown table.
///
/// The keys of neighbouring ranks mostly differ only there, and ranks look them up in the order of ranks: the next slots
/// are then in the cache line just read. hashbrown takes a slot's position from the low bits of a hash and the tag that
/// tells slots apart from the high 7 bits, so the last byte goes into both.
#[derive(Default)]
pub(super) struct ClusteredHasher(u64);

impl Hasher for ClusteredHasher {
    #[inline]
    fn write(&mut self, key: &[u8]) {
        self.0 = match key {
            [group @ .., last] => {
                let last = u64::from(*last);
                hash(group).wrapping_add(last) ^ (last << 57)
            }
            [] => 0,
        };
    }

    /// Ignores a slice's length, which [`hash`] already takes into account.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns two keys with the same [`hash`].
#[cfg(test)]
pub(crate) fn colliding_keys() -> [[u8; 16]; 2] {
    let start = 16_u64.wrapping_mul(MULTIPLIER);
    [1_u64, 2].map(|first| {
        // Brings the state to the same value whatever the first word was.
        let second = mix(start, first) ^ 7;
        let mut key = [0; 16];
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&second.to_le_bytes());
        key
    })
}

/// Returns two keys that a [`ClusteredHasher`] hashes to the same value.
#[cfg(test)]
pub(super) fn clustered_colliding_keys() -> [Vec<u8>; 2] {
    colliding_keys().map(|group| [&group[..], b"x"].concat())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn hashes_never_change() {
        // Golden values: agents of one session may be different builds of one version.
        assert_eq!(hash(b""), 0);
        assert_eq!(hash(b"-bcast-1-0"), 0x50bf_8eeb_6dcd_bcc9);
        assert_eq!(hash(b"PARENT_ROOT_PORT_NAME"), 0x53a5_6806_7aea_babc);
    }

    #[test]
    fn each_byte_of_long_data_counts() {
        let bytes: Vec<u8> = (0..200).map(|at| at as u8).collect();
        let mut seen = BTreeSet::from([hash_long(&bytes)]);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(seen.insert(hash_long(&other)), "byte {at}");
            assert!(seen.insert(hash_long(&bytes[..at])), "{at} bytes");
        }
        let exchanged = [&bytes[32..64], &bytes[..32], &bytes[64..]].concat();
        assert!(seen.insert(hash_long(&exchanged)));
        // A golden value, as above.
        assert_eq!(hash_long(&bytes[..70]), 0x8bf0_266b_bd46_ded7);
    }

    #[test]
    fn keys_of_mpi_libraries_spread_over_slots_and_tags() {
        let keys = (0..20_000).map(|rank| format!("-allgather-shm-1-{rank}"));
        let hashes: BTreeSet<u64> = keys.map(|key| hash(key.as_bytes())).collect();
        assert_eq!(hashes.len(), 20_000);
        // The low bits choose the slot and the high bits tell keys in it apart, so both must vary.
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash % 32_768).collect();
        let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 32).collect();
        assert!(low.len() > 14_000, "{} of 32768 slots", low.len());
        assert!(high.len() > 19_990, "{} of 20000 tags", high.len());
    }

    #[test]
    fn trailing_zeros_change_the_hash() {
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_ne!(hash(b"\0"), hash(b"\0\0"));
        assert_ne!(hash(b"12345678"), hash(b"12345678\0"));
    }

    #[test]
    fn colliding_keys_collide() {
        let [one, other] = colliding_keys();
        assert_eq!(hash(&one), hash(&other));
        let [one, other] = clustered_colliding_keys().map(|key| ClusteredBuildHasher::default().hash_one(&key[..]));
        assert_eq!(one, other);
    }

    #[test]
    fn clustered_hashes_of_neighbouring_ranks_differ_in_slot_and_tag() {
        let clustered = |key: &str| ClusteredBuildHasher::default().hash_one(key.as_bytes());
        let hashes = [0, 1, 2, 3].map(|rank| clustered(&format!("-allgather-shm-1-12{rank}")));
        for pair in hashes.windows(2) {
            assert_eq!((pair[0] + 1) & 0xffff, pair[1] & 0xffff, "the next slot");
            assert_ne!(pair[0] >> 57, pair[1] >> 57, "another tag");
        }
    }
}
