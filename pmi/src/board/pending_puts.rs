//! [`PendingPuts`]: the puts of a rank since its last fence.

use std::collections::BTreeMap;

use super::hash::hash as key_hash;
use super::puts::{Put, Puts};
use crate::Rank;
use crate::limits::PENDING_BYTES_MAX;

/// Up to this many bytes of puts, reading all of them is faster than creating an index.
const SCANNED_BYTES_MAX: usize = 4096;

/// A rank's puts since its last fence, up to [`PENDING_BYTES_MAX`], with an index for a rank that puts and gets many keys
/// of its own.
///
/// Most ranks put one or two business cards, a thousand ranks at a time. Touching new memory costs more than everything
/// else here, so there is no index for few puts.
#[derive(Clone, Debug, Default)]
pub struct PendingPuts {
    puts: Puts,
    /// The offset of the last put whose key has this hash. Two keys with the same hash are told apart by reading all puts.
    /// Empty while there are few puts.
    by_hash: BTreeMap<u64, usize>,
    /// How many bytes of puts were [passed on](Self::pass_on).
    passed_on: usize,
}

impl PendingPuts {
    /// Stores a put. Returns `false` without storing it if there is no room.
    #[must_use]
    pub fn push(&mut self, rank: Rank, key: &[u8], value: &[u8]) -> bool {
        if self.puts.bytes_len() + Puts::cost(key, value) > PENDING_BYTES_MAX {
            return false;
        }
        let offset = self.puts.bytes_len();
        self.puts.push(rank, key, value);
        if !self.by_hash.is_empty() {
            self.by_hash.insert(key_hash(key), offset);
        } else if self.puts.bytes_len() > SCANNED_BYTES_MAX {
            self.index();
        }
        true
    }

    fn index(&mut self) {
        let mut offset = 0;
        while let Some((Put { key, .. }, next)) = self.puts.put_at(offset) {
            self.by_hash.insert(key_hash(key), offset);
            offset = next;
        }
    }

    /// Returns the encoded puts.
    pub fn bytes(&self) -> &[u8] {
        self.puts.bytes()
    }

    /// Returns the last value that was put for a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        if self.by_hash.is_empty() {
            return self.puts.last_value_of(key);
        }
        let offset = *self.by_hash.get(&key_hash(key))?;
        match self.puts.put_at(offset) {
            Some((put, _)) if put.key == key => Some(put.value),
            _ => self.puts.last_value_of(key),
        }
    }

    /// Whether there are no puts.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }

    /// Returns the puts since the last call, and keeps them.
    pub fn pass_on(&mut self) -> Puts {
        let new = self.puts.after(self.passed_on);
        self.passed_on = self.puts.bytes_len();
        new
    }

    /// Removes and returns all puts.
    pub fn take(&mut self) -> Puts {
        // Ranks seldom put as much again, so free the memory too.
        std::mem::take(self).puts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::colliding_keys;

    #[test]
    fn keys_with_the_same_hash_are_distinct() {
        let [one, other] = colliding_keys();
        assert_eq!(key_hash(&one), key_hash(&other));
        let mut pending = PendingPuts::default();
        assert!(pending.push(Rank(0), b"large", &[b'x'; SCANNED_BYTES_MAX]));
        assert!(pending.push(Rank(0), &one, b"1"));
        assert_eq!(pending.get(&other), None);
        assert!(pending.push(Rank(0), &other, b"2"));
        assert_eq!(pending.get(&one), Some(&b"1"[..]));
        assert_eq!(pending.get(&other), Some(&b"2"[..]));
    }

    #[test]
    fn the_last_value_is_found_with_and_without_an_index() {
        let mut pending = PendingPuts::default();
        for number in 0..500_u32 {
            let (key, value) = (format!("key-{}", number % 250), number.to_string());
            assert!(pending.push(Rank(0), key.as_bytes(), value.as_bytes()));
            assert_eq!(pending.get(key.as_bytes()), Some(value.as_bytes()), "of {number}");
            assert_eq!(pending.get(b"key-0"), Some(if number < 250 { &b"0"[..] } else { b"250" }), "of {number}");
            assert_eq!(pending.get(b"absent"), None);
        }
        assert!(!pending.by_hash.is_empty());
    }

    #[test]
    fn puts_that_are_passed_on_stay() {
        let mut pending = PendingPuts::default();
        for key in [&b"1"[..], b"2"] {
            assert!(pending.push(Rank(0), key, key));
            let passed_on = pending.pass_on();
            assert_eq!((passed_on.validate(), passed_on.last_value_of(key)), (Ok(1), Some(key)));
            assert!(pending.pass_on().is_empty());
        }
        assert_eq!(pending.get(b"1"), Some(&b"1"[..]));
        assert_eq!(pending.take().validate(), Ok(2));
        assert!(pending.pass_on().is_empty());
    }

    #[test]
    fn taking_removes_all_puts() {
        let mut pending = PendingPuts::default();
        assert!(pending.push(Rank(0), b"k", b"v"));
        assert_eq!(pending.take().validate(), Ok(1));
        assert_eq!(pending.get(b"k"), None);
        assert!(pending.take().is_empty());
    }
}
