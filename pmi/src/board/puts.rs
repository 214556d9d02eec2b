//! [`Puts`]: a batch of puts that goes up the tree.
//!
//! A batch is append-only bytes, so that an agent joins its children's batches by copying: per put
//! `[rank u32][key length u16][value length u32][key][value]`, little endian. Decoding a message does not check them.
//! Readers ([`Puts::iter`], [`Puts::validate`], `Epoch::merge`) return an error with the offset of invalid bytes.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::entry::Entry;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Rank, Ranks};

const HEADER_BYTES: usize = 4 + 2 + 4;

/// A batch of puts. The puts of one rank are in the order in which it made them.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Puts(#[serde(with = "serde_bytes")] Vec<u8>);

/// One put, borrowed from its batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Put<'a> {
    /// The rank that put it.
    pub rank: Rank,
    /// The key.
    pub key: &'a [u8],
    /// The value; may be empty.
    pub value: &'a [u8],
}

/// Why a batch cannot be read or merged.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum PutsError {
    /// The bytes end inside the put that begins at this offset.
    #[error("batch of puts ends inside the put at byte {0}")]
    Truncated(usize),
    /// The winners do not fit one epoch, whose offsets are 32 bits.
    #[error("entries of one epoch exceed 4 GiB")]
    TooLarge,
}

/// Why a batch that a rank has encoded is refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum EncodedPutsError {
    /// The batch cannot be read.
    #[error(transparent)]
    Unreadable(#[from] PutsError),
    /// A put is on behalf of another rank.
    #[error("a put on behalf of rank {0}")]
    ForeignRank(Rank),
    /// A put is refused.
    #[error(transparent)]
    Refused(#[from] PutRefusal),
}

/// Why a put is refused, in both protocol versions and in the segment.
///
/// The text contains no blank: PMI-1 sends it as `msg=`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum PutRefusal {
    /// The key is empty.
    #[error("key_empty")]
    KeyEmpty,
    /// The key is longer than [`KEY_BYTES_MAX`].
    #[error("key_longer_than_{KEY_BYTES_MAX}_bytes")]
    KeyTooLong,
    /// The key begins with `PMI_`, which is reserved for the agent's own attributes.
    #[error("key_reserved")]
    KeyReserved,
    /// The value is longer than [`VALUE_BYTES_MAX`].
    #[error("value_longer_than_{VALUE_BYTES_MAX}_bytes")]
    ValueTooLong,
}

/// Checks the key and the value of a put, for both protocol versions and the segment.
pub fn check_put(key: &[u8], value: &[u8]) -> Result<(), PutRefusal> {
    if key.is_empty() {
        Err(PutRefusal::KeyEmpty)
    } else if key.len() > KEY_BYTES_MAX {
        Err(PutRefusal::KeyTooLong)
    } else if key.starts_with(b"PMI_") {
        Err(PutRefusal::KeyReserved)
    } else if value.len() > VALUE_BYTES_MAX {
        Err(PutRefusal::ValueTooLong)
    } else {
        Ok(())
    }
}

impl Puts {
    /// An empty batch.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Checks a batch that a rank has encoded itself: it may contain only valid puts of this rank.
    pub fn from_rank(rank: Rank, bytes: &[u8]) -> Result<Self, EncodedPutsError> {
        let puts = Self(bytes.to_vec());
        for put in puts.iter() {
            let put = put?;
            if put.rank != rank {
                return Err(EncodedPutsError::ForeignRank(put.rank));
            }
            check_put(put.key, put.value)?;
        }
        Ok(puts)
    }

    /// Checks the form of batches that ranks have encoded, one after the other.
    pub fn from_peers(bytes: &[u8]) -> Result<Self, PutsError> {
        let puts = Self(bytes.to_vec());
        puts.validate()?;
        Ok(puts)
    }

    /// Returns the encoded batch.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends one put.
    ///
    /// # Panics
    ///
    /// If `key` is longer than 65,535 bytes or `value` longer than 4 GiB. Callers check puts with [`check_put`], which has
    /// far lower bounds, so this is a bug of ours.
    pub fn push(&mut self, rank: Rank, key: &[u8], value: &[u8]) {
        let key_bytes = u16::try_from(key.len()).expect("callers bound keys");
        let value_bytes = u32::try_from(value.len()).expect("callers bound values");
        self.0.reserve(Self::cost(key, value));
        self.0.extend_from_slice(&rank.0.to_le_bytes());
        self.0.extend_from_slice(&key_bytes.to_le_bytes());
        self.0.extend_from_slice(&value_bytes.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    /// Appends another batch.
    pub fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Returns the puts from byte `offset` on, where a put begins.
    pub(crate) fn after(&self, offset: usize) -> Self {
        Self(self.0.get(offset..).unwrap_or_default().to_vec())
    }

    /// Returns the batch without the puts of these ranks.
    #[must_use]
    pub fn without(&self, ranks: &Ranks) -> Self {
        let mut kept = Self::new();
        for put in self.iter().map_while(Result::ok).filter(|put| !ranks.contains(put.rank)) {
            kept.push(put.rank, put.key, put.value);
        }
        kept
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the length of the encoded batch.
    pub fn bytes_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the puts in order, up to the first error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Put<'_>, PutsError>> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset >= self.0.len() {
                return None;
            }
            let put = self.put_at(offset).ok_or(PutsError::Truncated(offset));
            offset = put.map_or(self.0.len(), |(_, next)| next);
            Some(put.map(|(put, _)| put))
        })
    }

    /// Returns the puts in order, up to the first invalid one, as entries that share the batch's memory and keep all of it
    /// alive.
    pub fn into_entries(self) -> impl Iterator<Item = (Rank, Entry)> {
        let bytes = Bytes::from(self.0);
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (Put { rank, key, .. }, next) = put_at(&bytes, offset)?;
            // The length was read from 16 bits.
            let entry = Entry::within(bytes.slice(offset + HEADER_BYTES..next), key.len() as u16);
            offset = next;
            Some((rank, entry))
        })
    }

    /// Checks the whole batch and returns the number of its puts.
    pub fn validate(&self) -> Result<usize, PutsError> {
        self.iter().try_fold(0, |count, put| put.map(|_| count + 1))
    }

    /// Returns the value of the last put of `key`, by any rank. Reads the whole batch.
    pub fn last_value_of(&self, key: &[u8]) -> Option<&[u8]> {
        let puts = self.iter().map_while(Result::ok);
        puts.filter(|put| put.key == key).last().map(|put| put.value)
    }

    /// Returns the number of bytes that a put takes in a batch.
    pub fn cost(key: &[u8], value: &[u8]) -> usize {
        HEADER_BYTES + key.len() + value.len()
    }

    /// Returns the put at byte `offset` and the offset of the next one. `None` if the bytes end inside the put.
    pub(crate) fn put_at(&self, offset: usize) -> Option<(Put<'_>, usize)> {
        put_at(&self.0, offset)
    }
}

/// See [`Puts::put_at`].
fn put_at(bytes: &[u8], offset: usize) -> Option<(Put<'_>, usize)> {
    let (rank, rest) = bytes.get(offset..)?.split_first_chunk::<4>()?;
    let (key_bytes, rest) = rest.split_first_chunk::<2>()?;
    let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*key_bytes).into())?;
    let value_bytes = usize::try_from(u32::from_le_bytes(*value_bytes)).ok()?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    let put = Put { rank: Rank(u32::from_le_bytes(*rank)), key, value };
    Some((put, bytes.len() - rest.len()))
}

impl fmt::Debug for Puts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Puts({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn puts(list: &[(u32, &str, &str)]) -> Puts {
        let mut puts = Puts::new();
        for (rank, key, value) in list {
            puts.push(Rank(*rank), key.as_bytes(), value.as_bytes());
        }
        puts
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let bytes = rmp_serde::to_vec(&puts(&[(258, "k", "vw")])).unwrap();
        assert_eq!(bytes[2..], *b"\x02\x01\0\0\x01\0\x02\0\0\0kvw");
        assert_eq!(rmp_serde::from_slice::<Puts>(&bytes).unwrap(), puts(&[(258, "k", "vw")]));
    }

    #[test]
    fn appending_keeps_the_order() {
        let mut all = puts(&[(1, "a", "1")]);
        all.append(&puts(&[(0, "a", "2"), (0, "b", "")]));
        assert_eq!(all, puts(&[(1, "a", "1"), (0, "a", "2"), (0, "b", "")]));
        assert_eq!(all.validate(), Ok(3));
        assert_eq!(all.last_value_of(b"a"), Some(&b"2"[..]));
        assert_eq!(all.last_value_of(b"b"), Some(&b""[..]));
        assert_eq!(all.last_value_of(b"c"), None);
        assert!(!all.is_empty());
    }

    #[test]
    fn the_error_of_a_cut_batch_has_its_offset() {
        let whole = puts(&[(1, "a", "1"), (2, "b", "2")]);
        let cut = Puts(whole.0[..whole.0.len() - 1].to_vec());
        assert_eq!(cut.validate(), Err(PutsError::Truncated(12)));
        assert_eq!(cut.iter().count(), 2);
        assert_eq!(cut.last_value_of(b"a"), Some(&b"1"[..]));
        assert_eq!(PutsError::Truncated(12).to_string(), "batch of puts ends inside the put at byte 12");
    }

    #[test]
    fn entries_share_the_memory_of_the_batch() {
        let batch = puts(&[(1, "a", "1"), (2, "", ""), (1, "a", "22")]);
        let memory = batch.bytes().as_ptr_range();
        let entries: Vec<_> = batch.into_entries().collect();
        for (_, entry) in &entries {
            assert!(memory.start < entry.key().as_ptr() && entry.key().as_ptr() < memory.end);
        }
        let expected = [(1, "a", "1"), (2, "", ""), (1, "a", "22")];
        let expected = expected.map(|(rank, key, value)| (Rank(rank), Entry::new(key.as_bytes(), value.as_bytes())));
        assert_eq!(entries, expected);
    }

    #[test]
    fn puts_one_byte_beyond_a_bound_are_refused() {
        let check = |key: usize, value: usize| check_put(&vec![b'k'; key], &vec![b' '; value]);
        assert_eq!(check(KEY_BYTES_MAX, VALUE_BYTES_MAX), Ok(()));
        assert_eq!(check(1, 0), Ok(()));
        assert_eq!(check(0, 0), Err(PutRefusal::KeyEmpty));
        assert_eq!(check(KEY_BYTES_MAX + 1, 0), Err(PutRefusal::KeyTooLong));
        assert_eq!(check(1, VALUE_BYTES_MAX + 1), Err(PutRefusal::ValueTooLong));
        assert_eq!(check_put(b"PMI_x", b""), Err(PutRefusal::KeyReserved));
        assert_eq!(check_put(b"pmi_x", b""), Ok(()));
        assert_eq!(check_put(b"a b", b""), Ok(()));
    }

    #[test]
    fn an_encoded_batch_may_contain_only_valid_puts_of_its_rank() {
        let own = puts(&[(1, "a", "1"), (1, "b", "")]);
        assert_eq!(Puts::from_rank(Rank(1), own.bytes()), Ok(own.clone()));
        assert_eq!(Puts::from_rank(Rank(2), own.bytes()), Err(EncodedPutsError::ForeignRank(Rank(1))));
        assert_eq!(Puts::from_rank(Rank(1), &own.bytes()[..13]), Err(PutsError::Truncated(12).into()));
        let reserved = puts(&[(1, "PMI_x", "")]);
        assert_eq!(Puts::from_rank(Rank(1), reserved.bytes()), Err(PutRefusal::KeyReserved.into()));
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn pushed_puts_are_read(
                list in vec((any::<u32>(), vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..9)), 0..9)
            ) {
                let mut puts = Puts::new();
                for (rank, key, value) in &list {
                    puts.push(Rank(*rank), key, value);
                }
                let read: Vec<_> = puts.iter().map(Result::unwrap).collect();
                let expected: Vec<_> = list
                    .iter()
                    .map(|(rank, key, value)| Put { rank: Rank(*rank), key, value })
                    .collect();
                prop_assert_eq!(read, expected);
                let entries: Vec<_> = puts.clone().into_entries().collect();
                let expected: Vec<_> =
                    list.iter().map(|(rank, key, value)| (Rank(*rank), Entry::new(key, value))).collect();
                prop_assert_eq!(entries, expected);
            }

            #[test]
            fn no_bytes_panic(bytes in vec(prop_oneof![0_u8..4, any::<u8>()], 0..60)) {
                let puts = Puts(bytes);
                prop_assert_eq!(puts.validate().is_ok(), puts.iter().all(|put| put.is_ok()));
                let readable = puts.iter().filter(Result::is_ok).count();
                prop_assert_eq!(puts.clone().into_entries().count(), readable);
                let merged = crate::board::Epoch::merge(&puts);
                prop_assert_eq!(merged.is_ok(), puts.validate().is_ok());
            }
        }
    }
}
