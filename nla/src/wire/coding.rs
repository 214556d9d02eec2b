//! Messages as bytes: rmp-serde, with the sender's and the receiver's bounds checked.

use std::io;

use bytes::Bytes;
use pmi::Epoch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::decoder::{DecodeError, Decoder};
use crate::core::{Down, NamespaceId, ReleaseContent, Up, Update};

/// Why bytes are not a message.
#[derive(Debug, Error)]
pub enum CodingError {
    /// A peer sent what this version cannot read.
    #[error("a message of {bytes} bytes that cannot be read: {source}")]
    Unreadable {
        /// Its length.
        bytes: usize,
        /// What the decoder says.
        source: DecodeError,
    },
    /// The entries that it carries are none.
    #[error("entries that cannot be read: {0}")]
    Epoch(#[from] pmi::EpochError),
    /// The entries that it speaks of are not where it says.
    #[error("entries at {0} of the launcher's log, where there are none")]
    Nowhere(u64),
    /// There is more after the message's end.
    #[error("a message with {0} bytes too many")]
    TooLong(usize),
}

/// Encodes `message`. All of the project's messages can be encoded.
pub fn encode<M: Serialize + ?Sized>(message: &M) -> Vec<u8> {
    write(message, Sink::Bytes(Vec::new())).into_bytes()
}

/// Prefixes `bytes` with their length, a little-endian u32, to a frame.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Returns the length of what [`encode`] returns for `message`, without the memory for it.
pub fn encoded_bytes<M: Serialize>(message: &M) -> usize {
    match write(message, Sink::Length(0)) {
        Sink::Length(length) => length,
        Sink::Bytes(bytes) => bytes.len(),
    }
}

fn write<M: Serialize + ?Sized>(message: &M, mut sink: Sink) -> Sink {
    rmp_serde::encode::write(&mut sink, message).expect("messages are plain data, which rmp-serde can always encode");
    sink
}

/// Takes the bytes of an encoded message, or counts them. One type does both, so that the code that encodes a type
/// of message is compiled once.
enum Sink {
    Bytes(Vec<u8>),
    Length(usize),
}

impl Sink {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Length(_) => Vec::new(),
        }
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Bytes(all) => all.extend_from_slice(bytes),
            Self::Length(length) => *length += bytes.len(),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads one message that fills `bytes` wholly. Never panics, and takes no more memory than some
/// small multiple of `bytes`.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, CodingError> {
    let mut decoder = Decoder::new(bytes);
    let message =
        M::deserialize(&mut decoder).map_err(|source| CodingError::Unreadable { bytes: bytes.len(), source })?;
    match decoder.rest().len() {
        0 => Ok(message),
        more => Err(CodingError::TooLong(more)),
    }
}

/// Messages that other crates encode and decode: by this trait, that code is compiled once, in this crate. [`encode`]
/// and [`decode`] are compiled again in each crate that calls them.
pub trait Message: Sized {
    /// See [`encode`].
    fn encode(&self) -> Vec<u8>;

    /// See [`encoded_bytes`].
    fn encoded_bytes(&self) -> usize;

    /// See [`decode`].
    fn decode(bytes: &[u8]) -> Result<Self, CodingError>;
}

macro_rules! messages {
    ($($message:ty),*) => {$(
        impl Message for $message {
            fn encode(&self) -> Vec<u8> {
                encode(self)
            }

            fn encoded_bytes(&self) -> usize {
                encoded_bytes(self)
            }

            fn decode(bytes: &[u8]) -> Result<Self, CodingError> {
                decode(bytes)
            }
        }
    )*};
}

messages!(Up, Down);

/// [`decode`] for what comes down. An epoch, which may be large, is checked but not copied: it stays
/// a part of `bytes`, or of the launcher's log, of which `in_log` gives the bytes at an offset.
pub fn decode_down(bytes: &Bytes, in_log: impl FnOnce(u64, u64) -> Option<Bytes>) -> Result<Down, CodingError> {
    if let Ok(InLog::ReleaseInLog { namespace, number, offset, length }) = InLog::deserialize(&mut Decoder::new(bytes))
    {
        let epoch = Epoch::from_bytes(in_log(offset, length).ok_or(CodingError::Nowhere(offset))?)?;
        return Ok(Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) });
    }
    match BorrowedRelease::deserialize(&mut Decoder::new(bytes)) {
        // The epoch is the message's last part: nothing is behind it.
        Ok(BorrowedRelease::Release {
            namespace,
            number,
            content: BorrowedContent::Update(BorrowedUpdate::Epoch(epoch)),
        }) if epoch.as_ptr_range().end == bytes.as_ptr_range().end => {
            let epoch = Epoch::from_bytes(bytes.slice_ref(epoch))?;
            Ok(Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) })
        }
        // Any other message, or none.
        _ => decode(bytes),
    }
}

/// [`Down::Release`] of an epoch, as it is written.
#[derive(Deserialize)]
enum BorrowedRelease<'a> {
    Release {
        namespace: NamespaceId,
        number: u32,
        #[serde(borrow)]
        content: BorrowedContent<'a>,
    },
}

#[derive(Deserialize)]
enum BorrowedContent<'a> {
    #[serde(borrow, rename = "News")]
    Update(BorrowedUpdate<'a>),
}

#[derive(Deserialize)]
enum BorrowedUpdate<'a> {
    Epoch(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// [`Down::Release`] of an epoch that lies in the launcher's log, for agents that can read it there.
#[derive(Serialize, Deserialize)]
enum InLog {
    ReleaseInLog { namespace: NamespaceId, number: u32, offset: u64, length: u64 },
}

/// Shorter epochs are sent as they are, wherever the agents are.
const EPOCH_IN_LOG_BYTES_MIN: usize = 16 * 1024;

/// What a release takes at most beside its news: an epoch is not moved about while it is written.
const RELEASE_BYTES: usize = 64;

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

    /// The bytes of `message`. Where the children can read the launcher's log, `in_log` gives the offset
    /// of these bytes in it: only that is sent of a long epoch.
    pub fn encode(&mut self, message: &Down, in_log: impl FnOnce(&Bytes) -> Option<u64>) -> Bytes {
        let Down::Release { namespace, number, content: ReleaseContent::Update(news) } = message else {
            return encode(message).into();
        };
        match &self.release {
            Some((last, fence, bytes)) if (last, fence) == (namespace, number) => bytes.clone(),
            _ => {
                let long = match news {
                    Update::Epoch(epoch) if epoch.bytes().len() >= EPOCH_IN_LOG_BYTES_MIN => Some(epoch.bytes()),
                    Update::Epoch(_) | Update::Overwritten(_) => None,
                };
                if let Some((epoch, offset)) = long.and_then(|epoch| Some((epoch, in_log(epoch)?))) {
                    let (namespace, number, length) = (*namespace, *number, epoch.len() as u64);
                    let bytes = Bytes::from(encode(&InLog::ReleaseInLog { namespace, number, offset, length }));
                    self.release = Some((namespace, number, bytes.clone()));
                    return bytes;
                }
                let news = match news {
                    Update::Epoch(epoch) => epoch.bytes(),
                    Update::Overwritten(keys) => keys.bytes(),
                };
                let room = Vec::with_capacity(news.len() + RELEASE_BYTES);
                let bytes = Bytes::from(write(message, Sink::Bytes(room)).into_bytes());
                self.release = Some((*namespace, *number, bytes.clone()));
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::core::{RingPosition, Up};
    use pmi::{Entry, LookUpResult};
    use serde_bytes::ByteBuf;

    #[test]
    fn what_is_encoded_can_be_read_and_nothing_else() {
        let message = Up::Waiting { namespace: NamespaceId(3), number: 9 };
        let bytes = encode(&message);
        assert_eq!(encoded_bytes(&message), bytes.len());
        assert_eq!(decode::<Up>(&bytes).unwrap(), message);
        assert!(matches!(decode::<Up>(&[bytes.clone(), vec![0]].concat()), Err(CodingError::TooLong(1))));
        assert!(matches!(decode::<Up>(&bytes[..bytes.len() - 1]), Err(CodingError::Unreadable { .. })));
        assert!(decode::<Down>(&[]).is_err());
    }

    #[test]
    fn children_get_the_same_epoch_and_seats_of_their_own() {
        let release = |content| Down::Release { namespace: NamespaceId(0), number: 3, content };
        let mut encoder = DownEncoder::default();
        let entries = Epoch::from_entries([(&b"key"[..], &b"value"[..])]);
        let epoch = release(ReleaseContent::Update(Update::Epoch(entries)));
        let bytes = encoder.encode(&epoch, |_| None);
        assert_eq!(bytes.as_ptr(), encoder.encode(&epoch, |_| None).as_ptr(), "encoded once");
        for position in [0, 4] {
            let seat = RingPosition { position, from_left: vec![0xff], from_right: Vec::new() };
            let ring = release(ReleaseContent::Ring(seat));
            assert_eq!(decode::<Down>(&encoder.encode(&ring, |_| None)).unwrap(), ring);
        }
    }

    #[test]
    fn a_finding_travels_as_its_key_and_its_value() {
        let namespace = NamespaceId(3);
        for (key, value) in [("key", Some("value")), ("key", Some("")), ("key", None)] {
            let bytes = |text: &str| ByteBuf::from(text);
            let result = match value {
                Some(value) => LookUpResult::Entry(Entry::new(key.as_bytes(), value.as_bytes())),
                None => LookUpResult::Absent(key.to_owned().into()),
            };
            let down = Down::Got { namespace, result: result.clone() };
            let fields = HashMap::from([("Got", (namespace, bytes(key), value.map(bytes)))]);
            assert_eq!(encode(&down), encode(&fields));
            assert_eq!(decode_down(&encode(&down).into(), |_, _| None).unwrap(), down);
            let up = Up::Got { namespace, number: 300, result };
            let fields = HashMap::from([("Got", (namespace, 300, bytes(key), value.map(bytes)))]);
            assert_eq!(encode(&up), encode(&fields));
            assert_eq!(decode::<Up>(&encode(&up)).unwrap(), up);
        }
        // A key that no rank could put, and that no entry has room for.
        let long = "k".repeat(pmi::limits::KEY_BYTES_MAX + 1);
        let fields = HashMap::from([("Got", (namespace, ByteBuf::from(long), Some(ByteBuf::new())))]);
        assert!(decode_down(&encode(&fields).into(), |_, _| None).is_err());
    }

    #[test]
    fn an_epoch_is_read_without_a_copy() {
        let epoch = Epoch::from_entries([(&b"key"[..], &[7; 1000][..])]);
        let content = ReleaseContent::Update(Update::Epoch(epoch));
        let release = Down::Release { namespace: NamespaceId(3), number: 9, content };
        let bytes = Bytes::from(encode(&release));
        let read = decode_down(&bytes, |_, _| None).unwrap();
        assert_eq!(read, release);
        let Down::Release { content: ReleaseContent::Update(Update::Epoch(read)), .. } = read else {
            panic!("a release")
        };
        assert!(bytes.as_ptr_range().contains(&read.bytes().as_ptr()), "copied");
        let whole = [&bytes[..], &[0]].concat();
        assert!(matches!(decode_down(&whole.into(), |_, _| None), Err(CodingError::TooLong(1))));
        assert!(decode_down(&bytes.slice(..500), |_, _| None).is_err());
        assert_eq!(decode_down(&encode(&Down::Leave).into(), |_, _| None).unwrap(), Down::Leave);
        let seat = RingPosition { position: 1, from_left: vec![1], from_right: vec![2] };
        let ring = Down::Release { namespace: NamespaceId(3), number: 9, content: ReleaseContent::Ring(seat) };
        assert_eq!(decode_down(&encode(&ring).into(), |_, _| None).unwrap(), ring);
    }

    #[test]
    fn of_a_long_epoch_in_the_log_only_its_place_is_sent() {
        let (namespace, number) = (NamespaceId(3), 9);
        let release = |value: usize| {
            let epoch = Epoch::from_entries([(&b"key"[..], &vec![7; value][..])]);
            (epoch.clone(), Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) })
        };
        let (epoch, long) = release(EPOCH_IN_LOG_BYTES_MIN);
        let mut encoder = DownEncoder::default();
        let bytes = encoder.encode(&long, |_| Some(4711));
        assert!(bytes.len() < RELEASE_BYTES);
        assert_eq!(encoder.encode(&long, |_| panic!("placed once")), bytes);
        let in_log = |offset, length| {
            assert_eq!((offset, length), (4711, epoch.bytes().len() as u64));
            Some(epoch.bytes().clone())
        };
        assert_eq!(decode_down(&bytes, in_log).unwrap(), long);
        assert!(matches!(decode_down(&bytes, |_, _| None), Err(CodingError::Nowhere(4711))));
        assert!(matches!(decode_down(&bytes, |_, _| Some(Bytes::from_static(b"no"))), Err(CodingError::Epoch(_))));
        // Where there is no log, and where it does not pay.
        encoder.forget();
        assert_eq!(decode_down(&encoder.encode(&long, |_| None), |_, _| None).unwrap(), long);
        let (_, short) = release(100);
        encoder.forget();
        assert_eq!(decode_down(&encoder.encode(&short, |_| Some(0)), |_, _| None).unwrap(), short);
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
