//! The session's key, in the one place where a process stores it.
//!
//! Clones share the page. Encoded messages that contain the key are made by [`secret_frame`](crate::wire::secret_frame),
//! which wipes them; decoding writes the key into its page. The handshake's own copies are wiped by
//! [`crate::wire`].

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sys::{SECRET_BYTES, SecretPage};

/// The secret key of a session: 256 random bits. Never put it into argv, the environment, a log or a readable file.
#[derive(Clone)]
pub struct SessionKey(Arc<SecretPage>);

impl SessionKey {
    /// Reads a key from a source of random bytes, straight into its page.
    pub fn read_from(source: &mut impl Read) -> io::Result<Self> {
        Ok(Self(Arc::new(SecretPage::new(|bytes| source.read_exact(bytes))?)))
    }

    /// Returns the key for a handshake.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        self.0.bytes()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for SessionKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SessionKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntoPage;

        impl<'de> Visitor<'de> for IntoPage {
            type Value = SessionKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a key of {SECRET_BYTES} bytes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<SessionKey, A::Error> {
                let mut result = Ok(());
                let page = SecretPage::new(|bytes| {
                    for (at, byte) in bytes.iter_mut().enumerate() {
                        match items.next_element() {
                            Ok(Some(item)) => *byte = item,
                            Ok(None) => result = Err(A::Error::invalid_length(at, &self)),
                            Err(error) => result = Err(error),
                        }
                        if result.is_err() {
                            break;
                        }
                    }
                    io::Result::Ok(())
                });
                result?;
                page.map(|page| SessionKey(Arc::new(page))).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_tuple(SECRET_BYTES, IntoPage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode, secret_frame};

    #[test]
    fn a_key_is_encoded_like_an_array_and_decoded() {
        let bytes: [u8; SECRET_BYTES] = std::array::from_fn(|at| (at * 9) as u8);
        let key = SessionKey::read_from(&mut &bytes[..]).expect("a page");
        assert_eq!(encode(&key), encode(&bytes));
        assert_eq!(decode::<SessionKey>(&encode(&bytes)).expect("a key").bytes(), &bytes);
        let frame = secret_frame(&key);
        assert_eq!(frame[4..], encode(&bytes));
        assert_eq!(frame.len(), frame.capacity(), "a frame that grows leaves a copy behind");
        assert!(decode::<SessionKey>(&encode(&[1u8; SECRET_BYTES - 1])).is_err());
        assert!(decode::<SessionKey>(&encode(&[300u16; SECRET_BYTES])).is_err());
        assert!(SessionKey::read_from(&mut &bytes[1..]).is_err());
    }

    #[test]
    fn a_session_key_is_not_shown() {
        let key = SessionKey::read_from(&mut &[7; SECRET_BYTES][..]).expect("a page");
        assert_eq!(format!("{key:?}"), "Secret(..)");
    }
}
