//! [`Keys`]: a list of keys without their values.
//!
//! Encoded as `[length u16][key]` per key, little endian.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

const HEADER_BYTES: usize = 2;

/// A list of keys in the order in which they were given. Cheap to clone.
///
/// Every value of this type has been checked: [`Keys::iter`] returns [`Keys::len`] keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Bytes,
    len: usize,
}

/// Why bytes are not a list of keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum KeysError {
    /// The bytes end inside the key that begins at this offset.
    #[error("list of keys ends inside the key at byte {0}")]
    Truncated(usize),
}

impl Keys {
    /// Checks all bytes of an encoded list from a peer.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, KeysError> {
        let (mut offset, mut len) = (0, 0);
        while offset < bytes.len() {
            (_, offset) = key_at(&bytes, offset).ok_or(KeysError::Truncated(offset))?;
            len += 1;
        }
        Ok(Self { bytes, len })
    }

    /// Returns the encoded list.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the keys in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (key, next) = key_at(&self.bytes, offset)?;
            offset = next;
            Some(key)
        })
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Returns the key at byte `offset` and the offset of the next one. `None` if the bytes end inside the key.
fn key_at(bytes: &[u8], offset: usize) -> Option<(&[u8], usize)> {
    let (key_bytes, rest) = bytes.get(offset..)?.split_first_chunk::<HEADER_BYTES>()?;
    let key = rest.get(..u16::from_le_bytes(*key_bytes).into())?;
    Some((key, offset + HEADER_BYTES + key.len()))
}

impl<K: AsRef<[u8]>> FromIterator<K> for Keys {
    /// # Panics
    ///
    /// If a key is longer than 65,535 bytes; see [`Puts::push`](super::Puts::push).
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let (mut bytes, mut len) = (Vec::new(), 0);
        for key in keys {
            let key = key.as_ref();
            let key_bytes = u16::try_from(key.len()).expect("callers bound keys");
            bytes.extend_from_slice(&key_bytes.to_le_bytes());
            bytes.extend_from_slice(key);
            len += 1;
        }
        Self { bytes: bytes.into(), len }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} keys, {} bytes)", self.len, self.bytes.len())
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de> Deserialize<'de> for Keys {
    /// Checks as [`Keys::from_bytes`] does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_bytes(Bytes::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_as_documented() {
        let keys = Keys::from_iter(["key", "", "k"]);
        assert_eq!(&keys.bytes()[..], b"\x03\0key\0\0\x01\0k");
        assert_eq!(keys.len(), 3);
        let travelled = rmp_serde::to_vec(&keys).unwrap();
        assert_eq!(travelled[2..], keys.bytes()[..]);
        assert_eq!(rmp_serde::from_slice::<Keys>(&travelled).unwrap(), keys);
        assert_eq!(format!("{keys:?}"), "Keys(3 keys, 10 bytes)");
    }

    #[test]
    fn an_empty_list_has_no_bytes_and_an_empty_key_is_a_key() {
        let none = Keys::default();
        assert!(none.is_empty() && none.bytes().is_empty());
        assert_eq!(Keys::from_bytes(Bytes::new()), Ok(none));
        let one = Keys::from_iter([b""]);
        assert!(!one.is_empty());
        assert_eq!(one.iter().collect::<Vec<_>>(), [b""]);
    }

    #[test]
    fn the_error_of_a_cut_list_has_its_offset() {
        let whole = Keys::from_iter(["a", "bc"]);
        for cut in [4, 6] {
            let bytes = whole.bytes().slice(..cut);
            assert_eq!(Keys::from_bytes(bytes), Err(KeysError::Truncated(3)));
        }
        assert_eq!(KeysError::Truncated(3).to_string(), "list of keys ends inside the key at byte 3");
        let travelled = rmp_serde::to_vec(serde_bytes::Bytes::new(b"\x02\0k")).unwrap();
        assert!(rmp_serde::from_slice::<Keys>(&travelled).is_err());
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn an_encoded_list_is_read(list in vec(vec(any::<u8>(), 0..300), 0..9)) {
                let keys = Keys::from_iter(&list);
                prop_assert_eq!(keys.iter().collect::<Vec<_>>(), list.iter().map(Vec::as_slice).collect::<Vec<_>>());
                prop_assert_eq!(keys.len(), list.len());
                prop_assert_eq!(Keys::from_bytes(keys.bytes().clone()), Ok(keys));
            }

            #[test]
            fn no_bytes_panic(bytes in vec(prop_oneof![0_u8..4, any::<u8>()], 0..60)) {
                if let Ok(keys) = Keys::from_bytes(bytes.clone().into()) {
                    prop_assert_eq!(keys.iter().count(), keys.len());
                    let again = Keys::from_iter(keys.iter());
                    prop_assert_eq!(again.bytes(), &bytes);
                }
            }
        }
    }
}
