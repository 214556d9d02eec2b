//! Messages as bytes: rmp-serde, with the sender's and the receiver's bounds checked.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::core::{Down, Given, NamespaceId};

/// Why bytes are not a message.
#[derive(Debug, Error)]
pub enum CodingError {
    /// A peer sent what this version cannot read.
    #[error("a message of {bytes} bytes that cannot be read: {source}")]
    Unreadable {
        /// Its length.
        bytes: usize,
        /// What the decoder says.
        source: rmp_serde::decode::Error,
    },
    /// There is more after the message's end.
    #[error("a message with {0} bytes too many")]
    TooLong(usize),
}

/// The bytes of `message`. All of the project's messages can be encoded.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    rmp_serde::to_vec(message).expect("messages are plain data, which rmp-serde can always encode")
}

/// Reads one message that fills `bytes` wholly. Never panics, and takes no more memory than some
/// small multiple of `bytes`.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, CodingError> {
    let mut rest = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    decoder.set_max_depth(32);
    let message = serde::Deserialize::deserialize(&mut decoder)
        .map_err(|source| CodingError::Unreadable { bytes: bytes.len(), source })?;
    match rest.len() {
        0 => Ok(message),
        more => Err(CodingError::TooLong(more)),
    }
}

/// Encodes messages for children. The release of a fence goes to all of them with the same entries,
/// maybe a great many: it is encoded once. That of a ring is another one for each child.
#[derive(Default)]
pub struct DownEncoder {
    release: Option<(NamespaceId, u32, Bytes)>,
}

impl DownEncoder {
    /// Lets go of what was encoded last; to be called when all children have been sent it.
    pub fn forget(&mut self) {
        self.release = None;
    }

    /// The bytes of `message`.
    pub fn encode(&mut self, message: &Down) -> Bytes {
        let Down::Release { namespace, number, given: Given::Epoch(_) } = message else {
            return encode(message).into();
        };
        match &self.release {
            Some((last, fence, bytes)) if (last, fence) == (namespace, number) => bytes.clone(),
            _ => {
                let bytes = Bytes::from(encode(message));
                self.release = Some((*namespace, *number, bytes.clone()));
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Seat, Up};

    #[test]
    fn what_is_encoded_can_be_read_and_nothing_else() {
        let message = Up::Waiting { namespace: NamespaceId(3), number: 9 };
        let bytes = encode(&message);
        assert_eq!(decode::<Up>(&bytes).unwrap(), message);
        assert!(matches!(decode::<Up>(&[bytes.clone(), vec![0]].concat()), Err(CodingError::TooLong(1))));
        assert!(matches!(decode::<Up>(&bytes[..bytes.len() - 1]), Err(CodingError::Unreadable { .. })));
        assert!(decode::<Down>(&[]).is_err());
    }

    #[test]
    fn children_get_the_same_epoch_and_seats_of_their_own() {
        let release = |given| Down::Release { namespace: NamespaceId(0), number: 3, given };
        let mut encoder = DownEncoder::default();
        let epoch = release(Given::Epoch(Bytes::from_static(b"entries")));
        let bytes = encoder.encode(&epoch);
        assert_eq!(bytes.as_ptr(), encoder.encode(&epoch).as_ptr(), "encoded once");
        for position in [0, 4] {
            let seat = Seat { position, from_left: vec![0xff], from_right: Vec::new() };
            let ring = release(Given::Ring(seat));
            assert_eq!(decode::<Down>(&encoder.encode(&ring)).unwrap(), ring);
        }
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn no_bytes_bring_the_decoder_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
                let _ = decode::<Up>(&bytes);
                let _ = decode::<Down>(&bytes);
            }

            #[test]
            fn nor_do_damaged_messages(at in 0usize..20, value in any::<u8>()) {
                let mut bytes = encode(&Up::Exited { namespace: NamespaceId(1), fences: 2, unfinished: false, ranks: "0-5,9".parse().unwrap() });
                let at = at % bytes.len();
                bytes[at] = value;
                let _ = decode::<Up>(&bytes);
            }
        }
    }
}
