//! The hash of keys, the same on every machine: its results travel inside epochs.
//!
//! Eight bytes at a time by multiplication and shift, ended by MurmurHash3's 64-bit finalizer.
//! Fast on the short keys of PMI and good enough for a table; it is no defence against somebody who
//! chooses keys that collide: such a rank slows down its own job.

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

/// A hash of a key for tables whose slots lie side by side: keys that differ in their last byte only,
/// as those of neighbouring ranks mostly do, are neighbours there. Who looks up one after another finds
/// the next ones in memory that it has just touched.
#[inline]
pub(super) fn hash_clustered(key: &[u8]) -> u64 {
    match key {
        [group @ .., last] => hash(group).wrapping_add(u64::from(*last)),
        [] => 0,
    }
}

/// [`hash`] for tables by key.
pub type KeyBuildHasher = BuildHasherDefault<KeyHasher>;

/// See [`KeyBuildHasher`]. For slices of bytes, and for what hashes as its key does.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= hash(bytes);
    }

    /// A slice's length, which is in its hash already.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Two keys with one hash, which takes some arithmetic.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn never_changes() {
        // Golden: agents of one session may be different builds of one version.
        assert_eq!(hash(b""), 0);
        assert_eq!(hash(b"-bcast-1-0"), 0x50bf_8eeb_6dcd_bcc9);
        assert_eq!(hash(b"PARENT_ROOT_PORT_NAME"), 0x53a5_6806_7aea_babc);
    }

    #[test]
    fn spreads_the_keys_of_mpi_libraries() {
        let keys = (0..20_000).map(|rank| format!("-allgather-shm-1-{rank}"));
        let hashes: BTreeSet<u64> = keys.map(|key| hash(key.as_bytes())).collect();
        assert_eq!(hashes.len(), 20_000);
        // Low bits choose the slot, high bits tell keys in it apart: both must vary.
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash % 32_768).collect();
        let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 32).collect();
        assert!(low.len() > 14_000, "{} of 32768 slots", low.len());
        assert!(high.len() > 19_990, "{} of 20000 tags", high.len());
    }

    #[test]
    fn tells_apart_keys_that_differ_by_trailing_zeros() {
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_ne!(hash(b"\0"), hash(b"\0\0"));
        assert_ne!(hash(b"12345678"), hash(b"12345678\0"));
    }
}
