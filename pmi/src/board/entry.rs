//! [`Entry`]: a key and its value in one piece of memory, which it may share with other entries.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

/// One key with its value. Cheap to clone.
///
/// Key and value are adjacent, as in a batch of puts and in an epoch. An entry of either
/// ([`Puts::into_entries`](super::Puts::into_entries), [`Epoch::entries`](super::Epoch::entries)) shares its memory and
/// keeps all of it alive.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key, followed by the value.
    bytes: Bytes,
    key_bytes: u16,
}

impl Entry {
    /// An entry in memory of its own.
    ///
    /// # Panics
    ///
    /// If `key` is longer than 65,535 bytes; see [`Puts::push`](super::Puts::push).
    pub fn new(key: &[u8], value: &[u8]) -> Self {
        let key_bytes = u16::try_from(key.len()).expect("callers bound keys");
        Self { bytes: [key, value].concat().into(), key_bytes }
    }

    /// An entry in existing memory: `bytes` are the key, of this length, followed by the value.
    pub(super) fn within(bytes: Bytes, key_bytes: u16) -> Self {
        debug_assert!(usize::from(key_bytes) <= bytes.len(), "the key lies inside");
        Self { bytes, key_bytes }
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.key_bytes)]
    }

    /// Returns the value, which may be empty.
    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.bytes[usize::from(self.key_bytes)..]
    }

    /// Returns the value as a slice of the entry's memory, which it keeps alive.
    pub fn value_bytes(&self) -> Bytes {
        self.bytes.slice(usize::from(self.key_bytes)..)
    }

    /// Returns the length of key and value together.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns a copy in memory of its own, which keeps no batch or epoch alive.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self { bytes: Bytes::copy_from_slice(&self.bytes), key_bytes: self.key_bytes }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} bytes of key, {} of value)", self.key().len(), self.value().len())
    }
}

/// An entry in a table by key: equal keys make equal entries, whatever their values.
#[derive(Debug)]
pub(super) struct EntryByKey(pub(super) Entry);

impl PartialEq for EntryByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for EntryByKey {}

impl Hash for EntryByKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.key().hash(hasher);
    }
}

impl Borrow<[u8]> for EntryByKey {
    fn borrow(&self) -> &[u8] {
        self.0.key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_key_and_a_value() {
        for (key, value) in [("key", "value"), ("k", ""), ("", "v"), ("", "")] {
            let entry = Entry::new(key.as_bytes(), value.as_bytes());
            assert_eq!((entry.key(), entry.value()), (key.as_bytes(), value.as_bytes()));
            assert_eq!(entry.value_bytes(), value);
            assert_eq!(entry.bytes_len(), key.len() + value.len());
        }
        assert_ne!(Entry::new(b"ab", b"c"), Entry::new(b"a", b"bc"), "the key's length is part of the entry");
    }

    #[test]
    fn an_entry_shares_its_memory_until_it_is_copied() {
        let memory = Bytes::from_static(b"before key value behind");
        let entry = Entry::within(memory.slice(7..16), 3);
        assert_eq!((entry.key(), entry.value()), (&b"key"[..], &b" value"[..]));
        assert_eq!(entry.value_bytes().as_ptr(), memory[10..].as_ptr());
        let copied = entry.copied();
        assert_eq!(copied, entry);
        assert_eq!(copied.value_bytes().as_ptr(), copied.value().as_ptr());
        assert_ne!(copied.key().as_ptr(), entry.key().as_ptr());
    }

    #[test]
    fn an_entry_is_small_and_debug_prints_only_lengths() {
        assert!(size_of::<Entry>() <= 40);
        assert_eq!(format!("{:?}", Entry::new(b"secret", b"s")), "Entry(6 bytes of key, 1 of value)");
    }
}
