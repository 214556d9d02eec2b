//! [`Epoch`]: the entries that one fence made visible, as one immutable, indexed blob.
//!
//! The root encodes and indexes it once. The same bytes are sent down, serve look-ups and may later lie in shared memory.
//! All numbers are little endian, and all offsets are relative to the blob's start. An empty epoch has no bytes; any other
//! has this layout:
//!
//! ```text
//! magic u32 | entries u32 | slots u32 | bytes of entries u32
//! slots × [ tag u32 | offset u32 ]       offset 0: free
//! entries × [ key length u16 | value length u32 | key | value ]
//! ```
//!
//! The slots are an open-addressed hash table with linear probing. Their number is a power of two and at least 3/2 of the
//! number of entries, so that a free slot ends each probe. The low bits of a key's hash select its first slot; the high 32
//! bits are the tag.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use super::entry::Entry;
use super::hash::hash;
use super::index::{Index, slots_for};
use super::puts::{Put, Puts, PutsError};
use super::regions::by_region;
use crate::Rank;

/// The letters SEP and the format's version.
const MAGIC: u32 = u32::from_le_bytes(*b"SEP1");
const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 8;
const ENTRY_HEADER_BYTES: usize = 2 + 4;

/// The entries of one epoch: each key once. Cheap to clone.
///
/// Every value of this type has been checked: look-ups do not read beyond the bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Epoch {
    bytes: Bytes,
    entries: u32,
    slots: u32,
}

/// Why bytes are not an epoch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum EpochError {
    /// The bytes do not begin like an epoch of this version.
    #[error("bytes are not an epoch of this version")]
    Magic,
    /// The length differs from the header's.
    #[error("epoch's length contradicts its header")]
    Length,
    /// The table has a wrong size, no free slot, or a number of entries that differs from the header's.
    #[error("epoch's table contradicts its header")]
    Table,
    /// The entry at this offset is missing or ends beyond the bytes.
    #[error("epoch has no entry at byte {0}")]
    Entry(usize),
}

impl Epoch {
    /// Merges puts into one winner per key: the put of the highest rank, and the last one of several by that rank.
    ///
    /// The resulting bytes do not depend on the order in which batches were appended, as long as each rank's own puts kept
    /// their order.
    pub fn merge(puts: &Puts) -> Result<Self, PutsError> {
        let count = puts.validate()?;
        let mut all: Vec<Winner> = Vec::with_capacity(count);
        let mut hashes = Vec::with_capacity(count);
        let mut offset = 0;
        while let Some((Put { rank, key, .. }, next)) = puts.put_at(offset) {
            let hash = hash(key);
            hashes.push((hash, all.len() as u32));
            all.push(Winner { rank, offset, hash, is_beaten: false });
            offset = next;
        }
        let mut index = Index::for_entries(count);
        // The best put of each key so far.
        let mut best: Vec<u32> = Vec::with_capacity(count);
        for (hash, new) in by_region(hashes, slots_for(count)) {
            let key = |put: u32| puts.put_at(all[put as usize].offset).map(|(put, _)| put.key);
            match index.find_or_insert(hash, |at| key(best[at]) == key(new), best.len()) {
                None => best.push(new),
                Some(at) => {
                    let other = std::mem::replace(&mut best[at], new);
                    let loser = if all[other as usize].rank <= all[new as usize].rank { other } else { new };
                    if loser == new {
                        best[at] = other;
                    }
                    all[loser as usize].is_beaten = true;
                }
            }
        }
        drop((index, best));
        let mut winners = all;
        winners.retain(|winner| !winner.is_beaten);
        // A rank's own puts are in order wherever they lie. Batches are runs of ascending ranks, which the stable sort
        // joins in about linear time.
        winners.sort_by_key(|winner| (winner.rank, winner.offset));
        let entries = winners.iter().filter_map(|winner| {
            let (Put { key, value, .. }, _) = puts.put_at(winner.offset)?;
            Some(HashedEntry { hash: winner.hash, key, value })
        });
        Self::encode(entries).ok_or(PutsError::TooLarge)
    }

    /// Encodes entries that no rank put, such as preputs. The last one of several with the same key wins.
    ///
    /// Entries that exceed the format (a key beyond 65,535 bytes, 4 GiB in all) are left out; callers have far lower
    /// bounds.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let all: Vec<(&[u8], &[u8])> = entries.into_iter().collect();
        let mut index = Index::for_entries(all.len());
        let mut kept: Vec<HashedEntry<'a>> = Vec::with_capacity(all.len());
        let mut bytes_left = u32::MAX as usize - HEADER_BYTES - 2 * SLOT_BYTES;
        for (key, value) in all {
            let entry = HashedEntry { hash: hash(key), key, value };
            // In the worst case there are three slots per entry, and two more.
            let cost = entry.bytes_len() + 3 * SLOT_BYTES;
            if key.len() > usize::from(u16::MAX) || cost > bytes_left {
                continue;
            }
            bytes_left -= cost;
            let same = |at: usize| kept[at].key == key;
            match index.find_or_insert(entry.hash, same, kept.len()) {
                None => kept.push(entry),
                Some(at) => kept[at] = entry,
            }
        }
        Self::encode(kept.iter().copied()).expect("entries were kept within 4 GiB")
    }

    /// Takes bytes whose hash shows that they are what an encoder has produced elsewhere: checks only the header.
    ///
    /// Whatever the bytes are, no look-up reads beyond them or runs forever.
    pub fn from_hashed(bytes: Bytes) -> Result<Self, EpochError> {
        let Some((entries, slots)) = Self::header(&bytes)? else { return Ok(Self::default()) };
        Ok(Self { bytes, entries, slots })
    }

    /// Checks all bytes of an encoded epoch from a peer.
    ///
    /// An accepted epoch behaves like one that was encoded here: each entry is found under its key, and no look-up reads
    /// beyond the bytes or runs forever.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, EpochError> {
        let Some((entries, slots)) = Self::header(&bytes)? else { return Ok(Self::default()) };
        let epoch = Self { bytes, entries, slots };
        let taken = (0..slots).filter(|&slot| epoch.table().slot(slot).1 != 0).count();
        if taken != entries as usize {
            return Err(EpochError::Table);
        }
        // Every entry has a slot of its own and there are as many taken slots as entries, so no slot points elsewhere.
        let mut offset = epoch.first_entry();
        for _ in 0..entries {
            let (key, _, next) = epoch.table().entry_at(offset).ok_or(EpochError::Entry(offset))?;
            let hash = hash(key);
            if epoch.table().probe(hash).all(|slot| slot != (tag_of(hash), offset as u32)) {
                return Err(EpochError::Table);
            }
            offset = next;
        }
        if offset == epoch.bytes.len() { Ok(epoch) } else { Err(EpochError::Length) }
    }

    /// Checks the header, and returns the numbers of entries and slots; `None` for an empty epoch.
    fn header(bytes: &[u8]) -> Result<Option<(u32, u32)>, EpochError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let word = |at: usize| read_u32(bytes, at).ok_or(EpochError::Length);
        if word(0)? != MAGIC {
            return Err(EpochError::Magic);
        }
        let (entries, slots, entries_bytes) = (word(4)?, word(8)?, word(12)?);
        let table_bytes = u64::from(slots) * SLOT_BYTES as u64;
        let length = HEADER_BYTES as u64 + table_bytes + u64::from(entries_bytes);
        if bytes.len() as u64 != length || length > u64::from(u32::MAX) {
            return Err(EpochError::Length);
        }
        if entries == 0 || !slots.is_power_of_two() || slots <= entries {
            return Err(EpochError::Table);
        }
        Ok(Some((entries, slots)))
    }

    /// Returns the same epoch in other memory, to which `relocate` copies the bytes unchanged. If it does not, the epoch stays
    /// where it is.
    #[must_use]
    pub fn relocated(self, relocate: impl FnOnce(&Bytes) -> Option<Bytes>) -> Self {
        match relocate(&self.bytes) {
            Some(bytes) if bytes.len() == self.bytes.len() => Self { bytes, ..self },
            _ => self,
        }
    }

    /// Returns the encoded epoch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the value of a key. Does not allocate.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.get_hashed(hash(key), key)
    }

    /// [`Epoch::get`] for a key that is already hashed.
    pub(super) fn get_hashed(&self, hash: u64, key: &[u8]) -> Option<&[u8]> {
        self.table().get(hash, key)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries as usize
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns keys and values in the order of the ranks that put them, or as given to [`Epoch::from_entries`].
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.table().iter().take(self.len())
    }

    /// Returns the entries in the same order; they share the epoch's memory and keep all of it alive.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut offset = self.first_entry();
        (0..self.entries).map_while(move |_| {
            let (key, _, next) = self.table().entry_at(offset)?;
            // The length was read from 16 bits.
            let entry = Entry::within(self.bytes.slice(offset + ENTRY_HEADER_BYTES..next), key.len() as u16);
            offset = next;
            Some(entry)
        })
    }

    /// Encodes entries with distinct keys. `None` if they exceed 4 GiB.
    fn encode<'a>(entries: impl Iterator<Item = HashedEntry<'a>> + Clone) -> Option<Self> {
        let (count, entries_bytes) =
            entries.clone().fold((0_usize, 0_usize), |(count, bytes), entry| (count + 1, bytes + entry.bytes_len()));
        if count == 0 {
            return Some(Self::default());
        }
        let slots = slots_for(count);
        let length = HEADER_BYTES + slots * SLOT_BYTES + entries_bytes;
        u32::try_from(length).ok()?;
        let count = u32::try_from(count).ok()?;
        let mut bytes = Vec::with_capacity(length);
        for word in [MAGIC, count, slots as u32, entries_bytes as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.resize(HEADER_BYTES + slots * SLOT_BYTES, 0);
        let mut places = Vec::with_capacity(count as usize);
        for HashedEntry { hash, key, value } in entries {
            places.push((hash, bytes.len() as u32));
            bytes.extend_from_slice(&u16::try_from(key.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        for (hash, offset) in by_region(places, slots) {
            let mut slot = hash as usize & (slots - 1);
            while read_u32(&bytes, HEADER_BYTES + slot * SLOT_BYTES + 4) != Some(0) {
                slot = (slot + 1) & (slots - 1);
            }
            let at = HEADER_BYTES + slot * SLOT_BYTES;
            bytes[at..at + 4].copy_from_slice(&tag_of(hash).to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&offset.to_le_bytes());
        }
        Some(Self { bytes: bytes.into(), entries: count, slots: slots as u32 })
    }

    fn table(&self) -> Table<'_> {
        Table { bytes: &self.bytes, slots: self.slots }
    }

    fn first_entry(&self) -> usize {
        HEADER_BYTES + self.slots as usize * SLOT_BYTES
    }
}

/// An epoch's bytes in any memory, for look-ups.
#[derive(Copy, Clone)]
pub(crate) struct Table<'a> {
    bytes: &'a [u8],
    /// A power of two, or 0.
    slots: u32,
}

impl<'a> Table<'a> {
    /// A table of bytes that [`Epoch::from_bytes`] has accepted elsewhere: checks only the header. Whatever the bytes are, no
    /// look-up reads beyond them or runs forever.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let slots = read_u32(bytes, 8)?;
        (read_u32(bytes, 0)? == MAGIC && slots.is_power_of_two()).then_some(Self { bytes, slots })
    }

    /// Returns the value of a key.
    #[inline]
    pub(crate) fn get(self, hash: u64, key: &[u8]) -> Option<&'a [u8]> {
        self.probe(hash).find_map(|(tag, offset)| {
            if tag != tag_of(hash) {
                return None;
            }
            let (found, value, _) = self.entry_at(offset as usize)?;
            (found == key).then_some(value)
        })
    }

    /// Returns all entries in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let entries = read_u32(self.bytes, 4).unwrap_or(0);
        let mut offset = HEADER_BYTES + self.slots as usize * SLOT_BYTES;
        (0..entries).map_while(move |_| {
            let (key, value, next) = self.entry_at(offset)?;
            offset = next;
            Some((key, value))
        })
    }

    /// Returns the taken slots (tag, offset) from a hash's first slot up to a free one.
    #[inline]
    fn probe(self, hash: u64) -> impl Iterator<Item = (u32, u32)> {
        let mask = self.slots.wrapping_sub(1);
        let mut slot = hash as u32 & mask;
        // An empty epoch has no slots.
        (0..self.slots).map_while(move |_| {
            let taken = self.slot(slot);
            slot = slot.wrapping_add(1) & mask;
            (taken.1 != 0).then_some(taken)
        })
    }

    #[inline]
    fn slot(self, slot: u32) -> (u32, u32) {
        let at = HEADER_BYTES + slot as usize * SLOT_BYTES;
        let word = |at| read_u32(self.bytes, at).unwrap_or(0);
        (word(at), word(at + 4))
    }

    /// Returns key and value of the entry at `offset`, and the offset of the next one.
    #[inline]
    fn entry_at(self, offset: usize) -> Option<(&'a [u8], &'a [u8], usize)> {
        let (key_bytes, rest) = self.bytes.get(offset..)?.split_first_chunk::<2>()?;
        let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*key_bytes).into())?;
        let value_bytes = usize::try_from(u32::from_le_bytes(*value_bytes)).ok()?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        Some((key, value, self.bytes.len() - rest.len()))
    }
}

/// A put that may win its key.
#[derive(Copy, Clone)]
struct Winner {
    rank: Rank,
    offset: usize,
    hash: u64,
    is_beaten: bool,
}

#[derive(Copy, Clone)]
struct HashedEntry<'a> {
    hash: u64,
    key: &'a [u8],
    value: &'a [u8],
}

impl HashedEntry<'_> {
    fn bytes_len(&self) -> usize {
        ENTRY_HEADER_BYTES + self.key.len() + self.value.len()
    }
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({} entries, {} bytes)", self.entries, self.bytes.len())
    }
}

impl Serialize for Epoch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de> Deserialize<'de> for Epoch {
    /// Checks as [`Epoch::from_bytes`] does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_bytes(Bytes::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
