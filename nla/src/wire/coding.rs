//! Encodes and decodes messages with rmp-serde's format.

use std::io::{self, Read};

use bytes::Bytes;
use pmi::Epoch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use super::decoder::{DecodeError, Decoder};
use crate::core::{BorrowedPiece, Down, NamespaceId, ReleaseContent, Up, Update};

/// The reason why bytes could not be decoded.
#[derive(Debug, Error)]
pub enum CodingError {
    /// The bytes are not a message of this version.
    #[error("a message of {bytes} bytes that cannot be decoded: {source}")]
    Unreadable {
        /// The length of the message.
        bytes: usize,
        /// The decoder's error.
        source: DecodeError,
    },
    /// The entries in the message are invalid.
    #[error("a message with invalid entries: {0}")]
    Epoch(#[from] pmi::EpochError),
    /// The launcher's log has no entries at the given offset.
    #[error("a message that refers to offset {0} of the launcher's log, where there are no entries")]
    NotInLog(u64),
    /// Bytes follow the end of the message.
    #[error("a message that is followed by {0} more bytes")]
    TooLong(usize),
}

/// Encodes a message.
pub fn encode<M: Serialize + ?Sized>(message: &M) -> Vec<u8> {
    write(message, Sink::Bytes(Vec::new())).into_bytes()
}

/// Makes a frame: `bytes` after their length, a little-endian u32.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Encodes a message that contains a secret, as a frame. The memory is allocated once, so it leaves no copies behind,
/// and is wiped when it is dropped.
pub fn secret_frame<M: Serialize>(message: &M) -> Zeroizing<Vec<u8>> {
    let length = encoded_bytes(message);
    let mut frame = Vec::with_capacity(4 + length);
    frame.extend_from_slice(&(length as u32).to_le_bytes());
    Zeroizing::new(write(message, Sink::Bytes(frame)).into_bytes())
}

/// Reads a message of at most `bytes_max` bytes that [`secret_frame`] has encoded. Leaves no copies of its bytes behind. Fails with
/// the words `too_long` if the frame is longer.
pub fn read_secret_frame<M: DeserializeOwned>(
    input: &mut impl Read,
    bytes_max: usize,
    too_long: &'static str,
) -> io::Result<M> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(io::Error::other(too_long));
    }
    // With this capacity it never grows, which would leave a copy of the secret behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length));
    input.take(length as u64).read_to_end(&mut bytes)?;
    decode(&bytes).map_err(io::Error::other)
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

/// Decodes the one message that `bytes` consists of. Never panics. Allocates at most a small multiple of the length
/// of `bytes`.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, CodingError> {
    let mut decoder = Decoder::new(bytes);
    let message =
        M::deserialize(&mut decoder).map_err(|source| CodingError::Unreadable { bytes: bytes.len(), source })?;
    match decoder.rest().len() {
        0 => Ok(message),
        more => Err(CodingError::TooLong(more)),
    }
}

/// A message that other crates encode and decode. Through this trait the code is compiled once, in this crate.
/// [`encode`] and [`decode`] are compiled again in each crate that calls them.
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

/// Decodes a message from the parent, as [`decode`] does. A possibly large epoch is checked but not copied: it
/// remains a slice of `bytes`, or of the launcher's log. `in_log` returns the bytes of the log at an offset and of a
/// length.
pub fn decode_down(bytes: &Bytes, in_log: impl FnOnce(u64, u64) -> Option<Bytes>) -> Result<Down, CodingError> {
    if let Ok(InLog::ReleaseInLog { namespace, number, offset, length }) = InLog::deserialize(&mut Decoder::new(bytes))
    {
        let epoch = Epoch::from_bytes(in_log(offset, length).ok_or(CodingError::NotInLog(offset))?)?;
        return Ok(Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) });
    }
    match BorrowedDown::deserialize(&mut Decoder::new(bytes)) {
        // The bytes must be the last part of the message.
        Ok(BorrowedDown::Piece { namespace, number, piece })
            if piece.bytes.as_ptr_range().end == bytes.as_ptr_range().end =>
        {
            match piece.with(bytes.slice_ref(piece.bytes)) {
                Some(piece) => Ok(Down::Piece { namespace, number, piece }),
                None => decode(bytes),
            }
        }
        Ok(BorrowedDown::Release {
            namespace,
            number,
            content: BorrowedContent::Update(BorrowedUpdate::Epoch(epoch)),
        }) if epoch.as_ptr_range().end == bytes.as_ptr_range().end => {
            let epoch = Epoch::from_bytes(bytes.slice_ref(epoch))?;
            Ok(Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) })
        }
        // Any other message, or invalid bytes.
        _ => decode(bytes),
    }
}

/// [`Down::Release`] of an epoch, or [`Down::Piece`] of one, with the bytes borrowed from the message.
#[derive(Deserialize)]
enum BorrowedDown<'a> {
    Piece {
        namespace: NamespaceId,
        number: u32,
        #[serde(borrow)]
        piece: BorrowedPiece<'a>,
    },
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

/// [`Down::Release`] of an epoch in the launcher's log, for agents that can read the log.
#[derive(Serialize, Deserialize)]
enum InLog {
    ReleaseInLog { namespace: NamespaceId, number: u32, offset: u64, length: u64 },
}

/// The shortest epoch that is sent as a reference to the log, in bytes.
const EPOCH_IN_LOG_BYTES_MIN: usize = 16 * 1024;

/// The bound on the bytes of a release besides its update. With this room the buffer never grows while an epoch is
/// encoded.
const RELEASE_BYTES: usize = 64;

/// Encodes messages to children. The release of a fence and the pieces of an epoch, which can be large, are the same for all
/// children: each is encoded once, if the children are sent it one after another. The release of a ring differs for each
/// child.
#[derive(Default)]
pub struct DownEncoder {
    last: Option<(Shared, Bytes)>,
}

/// A message that is the same for all children.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Shared {
    Release(NamespaceId, u32),
    /// The piece at this offset.
    Piece(NamespaceId, u32, u64),
}

impl DownEncoder {
    /// Drops the last encoded message. Call it when all children have been sent that message.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Encodes `message`. If the children can read the launcher's log, `in_log` returns the offset of the given bytes
    /// in it; a long epoch is then sent as this offset.
    pub fn encode(&mut self, message: &Down, in_log: impl FnOnce(&Bytes) -> Option<u64>) -> Bytes {
        let shared = match message {
            Down::Release { namespace, number, content: ReleaseContent::Update(_) } => {
                Shared::Release(*namespace, *number)
            }
            Down::Piece { namespace, number, piece } => Shared::Piece(*namespace, *number, piece.offset),
            _ => return encode(message).into(),
        };
        if let Some((last, bytes)) = &self.last
            && *last == shared
        {
            return bytes.clone();
        }
        let in_log = match message {
            Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) }
                if epoch.bytes().len() >= EPOCH_IN_LOG_BYTES_MIN =>
            {
                let (namespace, number, length) = (*namespace, *number, epoch.bytes().len() as u64);
                in_log(epoch.bytes()).map(|offset| InLog::ReleaseInLog { namespace, number, offset, length })
            }
            _ => None,
        };
        let bytes = match in_log {
            Some(in_log) => encode(&in_log),
            None => {
                let room = Vec::with_capacity(content_bytes(message) + RELEASE_BYTES);
                write(message, Sink::Bytes(room)).into_bytes()
            }
        };
        let bytes = Bytes::from(bytes);
        self.last = Some((shared, bytes.clone()));
        bytes
    }
}

/// Returns the length of the entries, keys or bytes in a message that is the same for all children.
fn content_bytes(message: &Down) -> usize {
    match message {
        Down::Piece { piece, .. } => piece.bytes().len(),
        Down::Release { content: ReleaseContent::Update(Update::Epoch(epoch)), .. } => epoch.bytes().len(),
        Down::Release { content: ReleaseContent::Update(Update::Overwritten(keys)), .. } => keys.bytes().len(),
        _ => 0,
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
    fn only_complete_messages_are_decoded() {
        let message = Up::Waiting { namespace: NamespaceId(3), number: 9 };
        let bytes = encode(&message);
        assert_eq!(encoded_bytes(&message), bytes.len());
        assert_eq!(decode::<Up>(&bytes).unwrap(), message);
        assert!(matches!(decode::<Up>(&[bytes.clone(), vec![0]].concat()), Err(CodingError::TooLong(1))));
        assert!(matches!(decode::<Up>(&bytes[..bytes.len() - 1]), Err(CodingError::Unreadable { .. })));
        assert!(decode::<Down>(&[]).is_err());
    }

    #[test]
    fn a_fence_release_is_encoded_once_and_a_ring_release_per_child() {
        let release = |content| Down::Release { namespace: NamespaceId(0), number: 3, content };
        let mut encoder = DownEncoder::default();
        let entries = Epoch::from_entries([(&b"key"[..], &b"value"[..])]);
        let epoch = release(ReleaseContent::Update(Update::Epoch(entries)));
        let bytes = encoder.encode(&epoch, |_| None);
        assert_eq!(bytes.as_ptr(), encoder.encode(&epoch, |_| None).as_ptr(), "encoded once");
        for position in [0, 4] {
            let neighbours = RingPosition { position, from_left: vec![0xff], from_right: Vec::new() };
            let ring = release(ReleaseContent::Ring(neighbours));
            assert_eq!(decode::<Down>(&encoder.encode(&ring, |_| None)).unwrap(), ring);
        }
    }

    #[test]
    fn a_look_up_result_is_encoded_as_key_and_value() {
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
        // A key longer than the bound is refused.
        let long = "k".repeat(pmi::limits::KEY_BYTES_MAX + 1);
        let fields = HashMap::from([("Got", (namespace, ByteBuf::from(long), Some(ByteBuf::new())))]);
        assert!(decode_down(&encode(&fields).into(), |_, _| None).is_err());
    }

    #[test]
    fn an_epoch_is_decoded_without_a_copy() {
        let epoch = Epoch::from_entries([(&b"key"[..], &[7; 1000][..])]);
        let content = ReleaseContent::Update(Update::Epoch(epoch));
        let release = Down::Release { namespace: NamespaceId(3), number: 9, content };
        let bytes = Bytes::from(encode(&release));
        let read = decode_down(&bytes, |_, _| None).unwrap();
        assert_eq!(read, release);
        let Down::Release { content: ReleaseContent::Update(Update::Epoch(read)), .. } = read else {
            panic!("a release was encoded")
        };
        assert!(bytes.as_ptr_range().contains(&read.bytes().as_ptr()), "the epoch was copied");
        let whole = [&bytes[..], &[0]].concat();
        assert!(matches!(decode_down(&whole.into(), |_, _| None), Err(CodingError::TooLong(1))));
        assert!(decode_down(&bytes.slice(..500), |_, _| None).is_err());
        assert_eq!(decode_down(&encode(&Down::Leave).into(), |_, _| None).unwrap(), Down::Leave);
        let neighbours = RingPosition { position: 1, from_left: vec![1], from_right: vec![2] };
        let ring = Down::Release { namespace: NamespaceId(3), number: 9, content: ReleaseContent::Ring(neighbours) };
        assert_eq!(decode_down(&encode(&ring).into(), |_, _| None).unwrap(), ring);
    }

    #[test]
    fn a_long_epoch_in_the_log_is_sent_as_its_offset() {
        let (namespace, number) = (NamespaceId(3), 9);
        let release = |value: usize| {
            let epoch = Epoch::from_entries([(&b"key"[..], &vec![7; value][..])]);
            (epoch.clone(), Down::Release { namespace, number, content: ReleaseContent::Update(Update::Epoch(epoch)) })
        };
        let (epoch, long) = release(EPOCH_IN_LOG_BYTES_MIN);
        let mut encoder = DownEncoder::default();
        let bytes = encoder.encode(&long, |_| Some(4711));
        assert!(bytes.len() < RELEASE_BYTES);
        assert_eq!(encoder.encode(&long, |_| panic!("the log is asked once")), bytes);
        let in_log = |offset, length| {
            assert_eq!((offset, length), (4711, epoch.bytes().len() as u64));
            Some(epoch.bytes().clone())
        };
        assert_eq!(decode_down(&bytes, in_log).unwrap(), long);
        assert!(matches!(decode_down(&bytes, |_, _| None), Err(CodingError::NotInLog(4711))));
        assert!(matches!(decode_down(&bytes, |_, _| Some(Bytes::from_static(b"no"))), Err(CodingError::Epoch(_))));
        // Without a log, and for a short epoch, the entries themselves are sent.
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
            fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
                let _ = decode::<Up>(&bytes);
                let _ = decode::<Down>(&bytes);
            }

            #[test]
            fn damaged_messages_never_panic(at in 0usize..20, value in any::<u8>()) {
                let mut bytes = encode(&Up::Exited { namespace: NamespaceId(1), fences: 2, unfinished: false, ranks: "0-5,9".parse().unwrap() });
                let at = at % bytes.len();
                bytes[at] = value;
                let _ = decode::<Up>(&bytes);
            }
        }
    }
}
