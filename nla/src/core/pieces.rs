//! Long epochs travel in pieces, so that an agent forwards the first bytes before the last ones have arrived.
//!
//! The root names an epoch by its length and hash ([`Blob`]) and sends it as consecutive [`Piece`]s of equal length; only
//! the last one may be shorter. An agent forwards each piece to its children as soon as it arrives, and collects the bytes
//! ([`Incoming`]). The release of the fence follows in the same lane, so it never overtakes its epoch. It names the blob,
//! and an agent publishes the epoch only if all bytes are there and have the announced hash.
//!
//! A piece may travel packed, in LZ4's block format, if that is shorter. The root packs each piece once, on its own; agents
//! forward the packed bytes as they are and unpack a copy.
//!
//! The hash is [`pmi::board::hash_long`] of each piece, folded in order. Every record of a link is authenticated, so the hash need not
//! resist forgery. It detects what no single link can: a piece that was lost, doubled or exchanged on its way through
//! several agents, above all when an agent has taken the place of a lost one in the middle of an epoch.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use bytes::Bytes;
use pmi::{Epoch, EpochError};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::ids::NamespaceId;
use super::limits::BOARD_BYTES_MAX;
use super::message::{Down, ReleaseContent, Update};

/// The length of a piece, in bytes. `None`: nothing is cut.
pub type PieceBytes = Option<NonZeroU32>;

/// Names bytes that travel in pieces.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Blob {
    /// Their number.
    pub bytes: u64,
    /// Their hash.
    pub hash: u64,
}

impl Blob {
    /// Names `bytes`, which will be cut into pieces of `piece_bytes`.
    pub fn of(bytes: &[u8], piece_bytes: NonZeroU32) -> Self {
        let mut hash = BlobHash::default();
        bytes.chunks(piece_bytes.get() as usize).for_each(|piece| hash.add(piece));
        Self { bytes: bytes.len() as u64, hash: hash.0 }
    }

    /// Returns the place of the piece that begins at `offset`.
    fn piece_at(self, offset: u64, piece_bytes: NonZeroU32) -> Range<u64> {
        offset..self.bytes.min(offset.saturating_add(piece_bytes.get().into()))
    }
}

/// The hash of the pieces so far.
#[derive(Copy, Clone, Default, Debug)]
struct BlobHash(u64);

impl BlobHash {
    fn add(&mut self, piece: &[u8]) {
        // Odd, so that the order of the pieces counts.
        self.0 = self.0.rotate_left(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ pmi::board::hash_long(piece);
    }
}

/// Consecutive bytes of a blob.
#[derive(Clone)]
pub struct Piece {
    /// The blob.
    pub blob: Blob,
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes, unpacked.
    length: u32,
    /// The packed bytes, if the piece travels packed.
    packed: Option<Bytes>,
    /// The piece's bytes; or, where the sender's memory is the receiver's, those of the whole blob; or none, if the piece has
    /// arrived packed.
    memory: Bytes,
}

impl Piece {
    /// Makes a piece of bytes that have arrived alone.
    pub fn alone(blob: Blob, offset: u64, bytes: Bytes) -> Self {
        // A longer one is refused on arrival, because its length contradicts its memory.
        Self { blob, offset, length: bytes.len() as u32, packed: None, memory: bytes }
    }

    /// Makes a piece of `length` bytes that have arrived packed.
    pub fn packed(blob: Blob, offset: u64, length: u32, packed: Bytes) -> Self {
        Self { blob, offset, length, packed: Some(packed), memory: Bytes::new() }
    }

    /// Packs the piece, if that is worth it.
    fn pack(mut self) -> Self {
        self.packed = pack(self.plain()).map(Bytes::from);
        self
    }

    /// Returns the number of its bytes, unpacked.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Whether the piece travels packed.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Returns the bytes as they travel.
    pub fn bytes(&self) -> &[u8] {
        self.packed.as_deref().unwrap_or(self.plain())
    }

    /// Returns the same piece with other bytes as they travel, for tests of damage.
    #[must_use]
    pub fn with_bytes(&self, bytes: Bytes) -> Self {
        match self.packed {
            Some(_) => Self::packed(self.blob, self.offset, self.length, bytes),
            None => Self::alone(self.blob, self.offset, bytes),
        }
    }

    /// Returns the bytes unpacked; none, if the piece has arrived packed.
    fn plain(&self) -> &[u8] {
        match self.whole() {
            Some(whole) => &whole[self.offset as usize..self.offset as usize + self.length as usize],
            None => &self.memory,
        }
    }

    /// Returns the memory of the whole blob, if the piece is a view of it.
    fn whole(&self) -> Option<&Bytes> {
        (self.memory.len() as u64 == self.blob.bytes && self.memory.len() != self.length as usize)
            .then_some(&self.memory)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length.into())
    }
}

/// Pieces are equal if they have the same bytes of the same blob, in any memory.
impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        (self.blob, self.offset, self.length, self.bytes()) == (other.blob, other.offset, other.length, other.bytes())
    }
}

/// Omits the bytes, which would flood the log.
impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({}..{} of {:?})", self.offset, self.end(), self.blob)
    }
}

/// A piece as it travels.
#[derive(Serialize, Deserialize)]
pub(crate) struct BorrowedPiece<'a> {
    pub(crate) blob: Blob,
    pub(crate) offset: u64,
    /// The length of packed bytes, unpacked; 0 if the bytes are not packed.
    pub(crate) unpacked: u32,
    #[serde(borrow, with = "serde_bytes")]
    pub(crate) bytes: &'a [u8],
}

impl BorrowedPiece<'_> {
    /// Returns the piece with these `bytes`, which must own their memory. `None` if a piece cannot be so long.
    pub(crate) fn with(&self, bytes: Bytes) -> Option<Piece> {
        let Self { blob, offset, unpacked, .. } = *self;
        match unpacked {
            0 => ((bytes.len() as u64) < blob.bytes).then(|| Piece::alone(blob, offset, bytes)),
            _ => (u64::from(unpacked) < blob.bytes && bytes.len() < unpacked as usize)
                .then(|| Piece::packed(blob, offset, unpacked, bytes)),
        }
    }
}

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let unpacked = if self.is_packed() { self.length } else { 0 };
        BorrowedPiece { blob: self.blob, offset: self.offset, unpacked, bytes: self.bytes() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Piece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let piece = BorrowedPiece::deserialize(deserializer)?;
        let bytes = Bytes::copy_from_slice(piece.bytes);
        piece.with(bytes).ok_or_else(|| D::Error::invalid_length(piece.bytes.len(), &"a piece"))
    }
}

/// Why a piece, or a release that names a blob, is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PieceError {
    /// The session's plan has no length of pieces.
    #[error("it arrived in pieces, which this session does not use")]
    Unexpected,
    /// The blob exceeds the bound.
    #[error("{0} bytes are announced, more than a fence can have")]
    TooLong(u64),
    /// There is no memory for the blob.
    #[error("there is no memory for {0} bytes")]
    NoMemory(u64),
    /// The pieces of two blobs are mixed.
    #[error("pieces of different epochs arrived for one fence")]
    Mixed,
    /// The piece does not continue those that have arrived, or has a wrong length.
    #[error("a piece of {bytes} bytes arrived at byte {offset}, where byte {next} was next")]
    Misplaced {
        /// The piece's offset.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The offset that was due.
        next: u64,
    },
    /// The packed bytes cannot be unpacked to the piece's length.
    #[error("the packed piece at byte {0} was damaged on its way")]
    Packed(u64),
    /// The release came before the last piece.
    #[error("only {received} of its {bytes} bytes arrived before the release")]
    Incomplete {
        /// The bytes that have arrived.
        received: u64,
        /// The length of the blob.
        bytes: u64,
    },
    /// The bytes have another hash.
    #[error("its {bytes} bytes were damaged on their way: their hash is {got:016x} instead of {expected:016x}")]
    Damaged {
        /// The number of bytes.
        bytes: u64,
        /// Their hash.
        got: u64,
        /// The announced hash.
        expected: u64,
    },
    /// The bytes are not an epoch.
    #[error("{0}")]
    Epoch(#[from] EpochError),
}

/// The effect of a piece.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Its bytes were new: the piece is forwarded.
    New,
    /// Its bytes had arrived before.
    Known,
}

/// The bytes of one blob that have arrived.
#[derive(Debug)]
pub struct Incoming {
    blob: Blob,
    received: u64,
    memory: Memory,
}

enum Memory {
    /// The sender's: all bytes are there, and none was copied.
    Sender(Bytes),
    /// Copied from the pieces.
    Copy(Vec<u8>, BlobHash),
}

/// Shows no bytes.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender(_) => "Sender(..)",
            Self::Copy(..) => "Copy(..)",
        })
    }
}

impl Incoming {
    /// Prepares for the blob of its first piece. Reserves address space for the announced length, which is bounded; memory
    /// is used as bytes arrive.
    pub fn begin(piece: &Piece) -> Result<Self, PieceError> {
        let blob = piece.blob;
        if blob.bytes > BOARD_BYTES_MAX as u64 {
            return Err(PieceError::TooLong(blob.bytes));
        }
        let memory = match piece.whole() {
            Some(whole) => Memory::Sender(whole.clone()),
            None => {
                let mut copy = Vec::new();
                copy.try_reserve_exact(blob.bytes as usize).map_err(|_| PieceError::NoMemory(blob.bytes))?;
                Memory::Copy(copy, BlobHash::default())
            }
        };
        Ok(Self { blob, received: 0, memory })
    }

    /// Returns how many bytes have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Adds the next piece.
    pub fn push(&mut self, piece: &Piece, piece_bytes: NonZeroU32) -> Result<Taken, PieceError> {
        if piece.blob != self.blob {
            return Err(PieceError::Mixed);
        }
        if piece.end() <= self.received && piece.length > 0 {
            return Ok(Taken::Known);
        }
        let due = self.blob.piece_at(self.received, piece_bytes);
        if (piece.offset..piece.end()) != due || due.is_empty() {
            let (offset, bytes) = (piece.offset, piece.length.into());
            return Err(PieceError::Misplaced { offset, bytes, next: self.received });
        }
        if let Memory::Copy(copy, hash) = &mut self.memory {
            let from = copy.len();
            match &piece.packed {
                None => copy.extend_from_slice(piece.plain()),
                // Its length is that of the place, so the memory was reserved.
                Some(packed) => unpack(packed, piece.length as usize, copy).ok_or(PieceError::Packed(piece.offset))?,
            }
            hash.add(&copy[from..]);
        }
        self.received = piece.end();
        Ok(Taken::New)
    }

    /// Returns the pieces that have arrived from byte `from` on, for an agent that lacks them.
    pub fn pieces_from(&self, from: u64, piece_bytes: NonZeroU32) -> Vec<Piece> {
        match &self.memory {
            Memory::Sender(whole) => views(self.blob, whole, from..self.received, piece_bytes).collect(),
            Memory::Copy(copy, _) => places(self.blob, from..self.received, piece_bytes)
                .filter_map(|place| {
                    let bytes = copy.get(place.start as usize..place.end as usize)?;
                    Some(Piece::alone(self.blob, place.start, Bytes::copy_from_slice(bytes)))
                })
                .collect(),
        }
    }

    /// Returns the epoch, if it is the `blob` that a release names, whole and undamaged.
    pub fn finish(self, blob: Blob) -> Result<Epoch, PieceError> {
        let Blob { bytes, hash: expected } = blob;
        if blob != self.blob {
            return Err(PieceError::Mixed);
        }
        if self.received != bytes {
            return Err(PieceError::Incomplete { received: self.received, bytes });
        }
        let epoch = match self.memory {
            Memory::Sender(whole) => whole,
            Memory::Copy(copy, BlobHash(hash)) if hash == expected => copy.into(),
            Memory::Copy(_, BlobHash(got)) => return Err(PieceError::Damaged { bytes, got, expected }),
        };
        Ok(Epoch::from_hashed(epoch)?)
    }
}

/// Returns `bytes` in LZ4's block format, if that is shorter by an eighth. Less would not be worth the time to unpack it.
pub fn pack(bytes: &[u8]) -> Option<Vec<u8>> {
    let packed = lz4_flex::block::compress(bytes);
    (packed.len() <= bytes.len() / 8 * 7).then_some(packed)
}

/// Appends what `packed` holds to `all`, if that is exactly `length` bytes. Otherwise returns `None`, and `all` stays as it is.
pub fn unpack(packed: &[u8], length: usize, all: &mut Vec<u8>) -> Option<()> {
    let from = all.len();
    all.resize(from + length, 0);
    match lz4_flex::block::decompress_into(packed, &mut all[from..]) {
        Ok(unpacked) if unpacked == length => Some(()),
        _ => {
            all.truncate(from);
            None
        }
    }
}

/// Returns the places of the pieces of `blob` within `range`, which begins where a piece does.
fn places(blob: Blob, range: Range<u64>, piece_bytes: NonZeroU32) -> impl Iterator<Item = Range<u64>> {
    let starts = (range.start..range.end).step_by(piece_bytes.get() as usize);
    starts.map(move |start| blob.piece_at(start, piece_bytes))
}

/// Returns the pieces within `range` as views of the `whole` blob.
fn views(blob: Blob, whole: &Bytes, range: Range<u64>, piece_bytes: NonZeroU32) -> impl Iterator<Item = Piece> {
    places(blob, range, piece_bytes).map(move |place| Piece {
        blob,
        offset: place.start,
        length: (place.end - place.start) as u32,
        packed: None,
        memory: whole.clone(),
    })
}

/// Returns the messages that release fence `number` at a child that has `received` bytes of the epoch: its other pieces, if
/// the epoch is longer than one, then the release. If it `packs`, pieces are packed where that makes them shorter.
pub(super) fn release_messages(
    (namespace, number): (NamespaceId, u32),
    content: &ReleaseContent,
    received: u64,
    (piece_bytes, packs): (PieceBytes, bool),
) -> Vec<Down> {
    let release = |content| Down::Release { namespace, number, content };
    let (epoch, named): (_, fn(Update) -> ReleaseContent) = match content {
        ReleaseContent::Update(Update::Epoch(epoch)) => (epoch, ReleaseContent::Update),
        ReleaseContent::Failed(Update::Epoch(epoch)) => (epoch, ReleaseContent::Failed),
        content => return vec![release(content.clone())],
    };
    let bytes = epoch.bytes();
    let Some(piece_bytes) = piece_bytes.filter(|piece| bytes.len() > piece.get() as usize) else {
        return vec![release(content.clone())];
    };
    let blob = Blob::of(bytes, piece_bytes);
    let pieces = views(blob, bytes, received..blob.bytes, piece_bytes);
    let pieces = pieces.map(|piece| if packs { piece.pack() } else { piece });
    let pieces = pieces.map(|piece| Down::Piece { namespace, number, piece });
    pieces.chain([release(named(Update::Pieces(blob)))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    const PIECE: NonZeroU32 = NonZeroU32::new(100).unwrap();
    const FENCE: (NamespaceId, u32) = (NamespaceId::FIRST, 3);

    fn epoch() -> Epoch {
        let values: Vec<_> = (0..30_u8).map(|number| (vec![b'k', number], vec![number; 20])).collect();
        Epoch::from_entries(values.iter().map(|(key, value)| (&key[..], &value[..])))
    }

    /// The pieces of [`epoch`], as they arrive over a link if they are `sent`, and its name.
    fn pieces(sent: bool) -> (Vec<Piece>, Blob) {
        pieces_of(sent, false)
    }

    fn pieces_of(sent: bool, packs: bool) -> (Vec<Piece>, Blob) {
        let content = ReleaseContent::Update(Update::Epoch(epoch()));
        let mut messages = release_messages(FENCE, &content, 0, (Some(PIECE), packs));
        let Some(Down::Release { content: ReleaseContent::Update(Update::Pieces(blob)), .. }) = messages.pop() else {
            panic!("the release is the last message")
        };
        let piece = |message: Down| match if sent { decode(&encode(&message)).unwrap() } else { message } {
            Down::Piece { piece, .. } => piece,
            other => panic!("{other:?}"),
        };
        (messages.into_iter().map(piece).collect(), blob)
    }

    fn incoming(pieces: &[Piece]) -> Incoming {
        let mut incoming = Incoming::begin(&pieces[0]).unwrap();
        for piece in pieces {
            assert_eq!(incoming.push(piece, PIECE), Ok(Taken::New));
        }
        incoming
    }

    #[test]
    fn an_epoch_in_pieces_is_the_same_epoch() {
        for sent in [false, true] {
            let (pieces, blob) = pieces(sent);
            assert_eq!(pieces.len(), epoch().bytes().len().div_ceil(100));
            assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.bytes().len() == 100));
            assert_eq!(incoming(&pieces).finish(blob).unwrap(), epoch());
        }
    }

    #[test]
    fn packed_pieces_make_the_same_epoch_and_are_forwarded_as_they_are() {
        let (plain, blob) = pieces(true);
        for sent in [false, true] {
            let (packed, same) = pieces_of(sent, true);
            assert_eq!((packed.len(), same), (plain.len(), blob));
            // Those with only random bytes of the index stay as they are.
            assert!(packed.iter().any(Piece::is_packed));
            for (packed, plain) in packed.iter().zip(&plain) {
                assert_eq!((packed.offset, packed.length()), (plain.offset, plain.length()));
                assert_eq!(packed.is_packed(), packed.bytes().len() < plain.bytes().len());
                let again: Piece = decode(&encode(packed)).unwrap();
                assert_eq!(&again, packed);
            }
            assert_eq!(incoming(&packed).finish(blob).unwrap(), epoch());
            // A child that has joined later gets what it lacks from memory, unpacked.
            let mut below = incoming(&packed[..2]);
            for piece in incoming(&packed).pieces_from(200, PIECE) {
                assert_eq!(below.push(&piece, PIECE), Ok(Taken::New));
            }
            assert_eq!(below.finish(blob).unwrap(), epoch());
        }
    }

    #[test]
    fn packed_bytes_that_are_not_a_piece_are_refused() {
        let (packed, blob) = pieces_of(true, true);
        let at = (1..packed.len()).find(|at| packed[*at].is_packed()).unwrap();
        let piece = &packed[at];
        let mut before = incoming(&packed[..at]);
        let zeros = |length: usize| Bytes::from(lz4_flex::block::compress(&vec![0; length]));
        for bytes in [Bytes::new(), piece.packed.as_ref().unwrap().slice(1..), zeros(99), zeros(101), zeros(1 << 24)] {
            assert_eq!(before.push(&piece.with_bytes(bytes), PIECE), Err(PieceError::Packed(piece.offset)));
            assert_eq!(before.received(), piece.offset, "nothing has changed");
        }
        // Of the right length, but other bytes: the hash shows it.
        assert_eq!(before.push(&piece.with_bytes(zeros(100)), PIECE), Ok(Taken::New));
        packed[at + 1..].iter().for_each(|piece| assert_eq!(before.push(piece, PIECE), Ok(Taken::New)));
        assert!(matches!(before.finish(blob), Err(PieceError::Damaged { .. })));
        // A length that differs from that of the place is refused, whatever the bytes are.
        let long = Piece::packed(blob, piece.offset, 101, piece.packed.clone().unwrap());
        let misplaced = PieceError::Misplaced { offset: piece.offset, bytes: 101, next: piece.offset };
        assert_eq!(incoming(&packed[..at]).push(&long, PIECE), Err(misplaced));
    }

    #[test]
    fn a_short_epoch_and_other_content_are_not_cut() {
        let short = ReleaseContent::Update(Update::Epoch(Epoch::from_entries([(&b"k"[..], &b"v"[..])])));
        let long = ReleaseContent::Failed(Update::Epoch(epoch()));
        for (content, piece_bytes) in [(&short, Some(PIECE)), (&long, None), (&ReleaseContent::failed(), Some(PIECE))] {
            let messages = release_messages(FENCE, content, 0, (piece_bytes, true));
            let (namespace, number) = FENCE;
            assert_eq!(messages, [Down::Release { namespace, number, content: content.clone() }]);
        }
        let messages = release_messages(FENCE, &long, 0, (Some(PIECE), true));
        assert!(matches!(
            messages.last(),
            Some(Down::Release { content: ReleaseContent::Failed(Update::Pieces(_)), .. })
        ));
    }

    #[test]
    fn a_child_that_has_some_pieces_is_sent_the_others() {
        for sent in [false, true] {
            let (pieces, blob) = pieces(sent);
            let above = incoming(&pieces[..5]);
            let mut below = incoming(&pieces[..2]);
            for piece in above.pieces_from(below.received(), PIECE) {
                assert_eq!(below.push(&piece, PIECE), Ok(Taken::New));
            }
            assert_eq!(below.received(), 500);
            assert_eq!(below.push(&pieces[4], PIECE), Ok(Taken::Known));
            for piece in &pieces[5..] {
                below.push(piece, PIECE).unwrap();
            }
            assert_eq!(below.finish(blob).unwrap(), epoch());
            let content = ReleaseContent::Update(Update::Epoch(epoch()));
            let messages = release_messages(FENCE, &content, 500, (Some(PIECE), false));
            assert_eq!(messages.len(), pieces.len() - 5 + 1);
        }
    }

    #[test]
    fn a_piece_that_does_not_continue_the_others_is_refused() {
        let (pieces, blob) = pieces(true);
        let mut some = incoming(&pieces[..2]);
        assert_eq!(some.push(&pieces[3], PIECE), Err(PieceError::Misplaced { offset: 300, bytes: 100, next: 200 }));
        let short = Piece::alone(blob, 200, Bytes::from_static(b"short"));
        assert_eq!(some.push(&short, PIECE), Err(PieceError::Misplaced { offset: 200, bytes: 5, next: 200 }));
        let empty = Piece::alone(blob, 100, Bytes::new());
        assert!(some.push(&empty, PIECE).is_err());
        let other = Piece { blob: Blob { hash: 7, ..blob }, ..pieces[2].clone() };
        assert_eq!(some.push(&other, PIECE), Err(PieceError::Mixed));
        assert_eq!(some.received(), 200, "nothing has changed");
        assert_eq!(some.finish(blob), Err(PieceError::Incomplete { received: 200, bytes: blob.bytes }));
        let end = Piece::alone(blob, blob.bytes, Bytes::from_static(b"more"));
        assert!(incoming(&pieces).push(&end, PIECE).is_err());
        assert_eq!(incoming(&pieces).finish(Blob { hash: 7, ..blob }), Err(PieceError::Mixed));
    }

    #[test]
    fn damaged_and_exchanged_pieces_are_noticed() {
        let (pieces, blob) = pieces(true);
        for (at, bit) in [(0, 0), (7, 13), (99, 7)] {
            let mut damaged = pieces.clone();
            let mut bytes = damaged[3].bytes().to_vec();
            bytes[at] ^= 1 << (bit % 8);
            damaged[3] = Piece::alone(blob, 300, bytes.into());
            assert!(matches!(incoming(&damaged).finish(blob), Err(PieceError::Damaged { .. })));
        }
        let mut exchanged = pieces.clone();
        exchanged[3] = Piece::alone(blob, 300, pieces[4].memory.clone());
        exchanged[4] = Piece::alone(blob, 400, pieces[3].memory.clone());
        assert!(matches!(incoming(&exchanged).finish(blob), Err(PieceError::Damaged { .. })));
    }

    #[test]
    fn a_blob_has_at_most_the_bytes_of_a_message() {
        let begin = |bytes| Incoming::begin(&Piece::alone(Blob { bytes, hash: 0 }, 0, Bytes::from_static(b"x")));
        let max = BOARD_BYTES_MAX as u64;
        assert!(begin(max).is_ok());
        assert_eq!(begin(max + 1).unwrap_err(), PieceError::TooLong(max + 1));
    }

    #[test]
    fn a_piece_as_long_as_its_blob_is_not_decoded() {
        let message = |bytes: &'static [u8]| {
            let piece = Piece::alone(Blob { bytes: 4, hash: 0 }, 0, Bytes::from_static(bytes));
            encode(&Down::Piece { namespace: NamespaceId::FIRST, number: 0, piece })
        };
        assert!(decode::<Down>(&message(b"abc")).is_ok());
        assert!(decode::<Down>(&message(b"abcd")).is_err());
        assert!(decode::<Down>(&message(b"abcde")).is_err());
        let packed = |length, bytes: &'static [u8]| {
            let piece = Piece::packed(Blob { bytes: 9, hash: 0 }, 0, length, Bytes::from_static(bytes));
            encode(&Down::Piece { namespace: NamespaceId::FIRST, number: 0, piece })
        };
        assert!(decode::<Down>(&packed(8, b"abcdefg")).is_ok());
        assert!(decode::<Down>(&packed(9, b"abcdefg")).is_err(), "as long as the blob");
        assert!(decode::<Down>(&packed(7, b"abcdefg")).is_err(), "not shorter than unpacked");
    }
}
