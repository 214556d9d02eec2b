//! Records: the units of a link.
//!
//! On the wire a record is its length (u16, big-endian) and that many bytes of a Noise transport message; on a stream that no
//! other user can read or write, of plaintext. The first byte of the plaintext gives its kind: a piece of a lane, a grant
//! of window, or a heartbeat.

use std::sync::Arc;

use snow::StatelessTransportState;
use thiserror::Error;

use super::lane::{LENGTH_BYTES, Lane};
use crate::core::limits::RECORD_BYTES_MAX;

/// The length of a key of ChaCha20-Poly1305.
const KEY_BYTES: usize = 32;
/// The bytes of a record's length.
const LENGTH_PREFIX_BYTES: usize = 2;
/// The bytes that encryption adds.
const TAG_BYTES: usize = 16;
/// The longest ciphertext that is accepted. Noise's own bound is 65,535.
const CIPHERTEXT_BYTES_MAX: usize = RECORD_BYTES_MAX + 1 + TAG_BYTES;
/// The bytes of a record besides its piece: the length, the lane, the tag.
const OVERHEAD_BYTES: usize = LENGTH_PREFIX_BYTES + 1 + TAG_BYTES;
const GRANT: u8 = 0x10;
const ALIVE: u8 = 0x11;

/// The reason why a record is refused. The link must be closed: later records cannot be opened either.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// The length exceeds the bound.
    #[error("a record of {0} bytes, longer than any that ScELA sends")]
    TooLong(usize),
    /// The record was not sealed by the peer of the handshake, or was altered, truncated or reordered.
    #[error("a record that does not open: it was damaged, or is not from the peer that said hello")]
    Sealed,
    /// The record opens, but its kind is unknown.
    #[error("a record of unknown kind {0:#04x}")]
    Kind(u8),
    /// The record opens, but its content has the wrong length.
    #[error("a record with content of the wrong length")]
    Short,
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The next bytes of a lane.
    Piece(Lane, &'a [u8]),
    /// The receiver of a lane grants this many more bytes.
    Grant(Lane, u32),
    /// A heartbeat.
    Alive,
}

impl<'a> Content<'a> {
    /// Reads the plaintext of a record.
    pub fn read(plain: &'a [u8]) -> Result<Self, RecordError> {
        match plain.split_first() {
            Some((&GRANT, &[lane, a, b, c, d])) => {
                let lane = Lane::from_number(lane).ok_or(RecordError::Kind(lane))?;
                Ok(Self::Grant(lane, u32::from_le_bytes([a, b, c, d])))
            }
            Some((&ALIVE, &[])) => Ok(Self::Alive),
            Some((&GRANT | &ALIVE, _)) | None => Err(RecordError::Short),
            Some((&kind, piece)) => Ok(Self::Piece(Lane::from_number(kind).ok_or(RecordError::Kind(kind))?, piece)),
        }
    }

    /// Appends the plaintext of a record.
    pub fn write(&self, plain: &mut Vec<u8>) {
        match self {
            Content::Piece(lane, bytes) => {
                plain.push(*lane as u8);
                plain.extend_from_slice(bytes);
            }
            Content::Grant(lane, bytes) => {
                plain.extend_from_slice(&[GRANT, *lane as u8]);
                plain.extend_from_slice(&bytes.to_le_bytes());
            }
            Content::Alive => plain.push(ALIVE),
        }
    }
}

/// Returns how many bytes a message of `message` bytes takes on a link that carries no other message meanwhile.
pub fn bytes_on_link(message: usize) -> usize {
    let bytes = LENGTH_BYTES + message;
    bytes + bytes.div_ceil(RECORD_BYTES_MAX) * OVERHEAD_BYTES
}

/// The keys of both directions of a link. They are overwritten when the link closes.
#[derive(Debug)]
pub(super) struct Transport(StatelessTransportState);

impl Transport {
    pub(super) fn new(state: StatelessTransportState) -> Arc<Self> {
        Arc::new(Self(state))
    }

    fn wipe(&mut self) {
        // snow stores a key in the place of the one before.
        self.0.rekey_manually(Some(&[0; KEY_BYTES]), Some(&[0; KEY_BYTES]));
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Seals the records of one direction of a link. Records must be sent in the order in which they were sealed.
#[derive(Debug)]
pub struct Sealer {
    /// `None`: records are not encrypted.
    transport: Option<Arc<Transport>>,
    nonce: u64,
    plain: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(transport: Arc<Transport>) -> Self {
        Self { transport: Some(transport), nonce: 0, plain: Vec::with_capacity(256) }
    }

    /// Does not encrypt records.
    pub(super) fn unencrypted() -> Self {
        Self { transport: None, nonce: 0, plain: Vec::new() }
    }

    /// Appends a record with `content` to `out`. A piece must not exceed [`RECORD_BYTES_MAX`].
    pub fn seal(&mut self, content: &Content<'_>, out: &mut Vec<u8>) {
        self.seal_written(out, |plain| content.write(plain));
    }

    /// Appends a record to `out` with a piece of `lane` that `write` appends, at most [`RECORD_BYTES_MAX`] bytes.
    pub fn seal_piece(&mut self, lane: Lane, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        self.seal_written(out, |plain| {
            plain.push(lane as u8);
            write(plain);
        });
    }

    fn seal_written(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_PREFIX_BYTES]);
        let content = start + LENGTH_PREFIX_BYTES;
        match &self.transport {
            None => write(out),
            Some(transport) => {
                self.plain.clear();
                write(&mut self.plain);
                out.resize(content + self.plain.len() + TAG_BYTES, 0);
                let written = transport.0.write_message(self.nonce, &self.plain, &mut out[content..]);
                debug_assert!(written.is_ok(), "sealing fails only if a record exceeds Noise's own bound");
                self.nonce += 1;
            }
        }
        let length = out.len() - content;
        debug_assert!(length <= CIPHERTEXT_BYTES_MAX);
        out[start..content].copy_from_slice(&(length as u16).to_be_bytes());
    }
}

/// Opens records, in the order in which they were sealed.
#[derive(Debug)]
pub struct Opener {
    /// `None`: records are not encrypted.
    transport: Option<Arc<Transport>>,
    nonce: u64,
    plain: Vec<u8>,
}

impl Opener {
    pub(super) fn new(transport: Arc<Transport>) -> Self {
        Self { transport: Some(transport), nonce: 0, plain: vec![0; 256] }
    }

    /// Expects records that are not encrypted.
    pub(super) fn unencrypted() -> Self {
        Self { transport: None, nonce: 0, plain: Vec::new() }
    }

    /// Opens the record at the start of `bytes`. Returns its content and its length on the wire; `None` if more bytes
    /// are needed.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Option<(Content<'a>, usize)>, RecordError> {
        let Some(length) = bytes.first_chunk::<2>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*length));
        if length > CIPHERTEXT_BYTES_MAX {
            return Err(RecordError::TooLong(length));
        }
        let Some(sealed) = bytes.get(LENGTH_PREFIX_BYTES..LENGTH_PREFIX_BYTES + length) else { return Ok(None) };
        let Some(transport) = &self.transport else {
            return Ok(Some((Content::read(sealed)?, LENGTH_PREFIX_BYTES + length)));
        };
        if self.plain.len() < length {
            self.plain.resize(length, 0);
        }
        let plain = transport.0.read_message(self.nonce, sealed, &mut self.plain).map_err(|_| RecordError::Sealed)?;
        self.nonce += 1;
        let content = Content::read(&self.plain[..plain])?;
        Ok(Some((content, LENGTH_PREFIX_BYTES + length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transports() -> [Transport; 2] {
        let builder = || snow::Builder::new("Noise_NN_25519_ChaChaPoly_BLAKE2s".parse().unwrap());
        let (mut child, mut parent) = (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
        let (mut sent, mut read) = ([0; 256], [0; 256]);
        let length = child.write_message(&[], &mut sent).unwrap();
        parent.read_message(&sent[..length], &mut read).unwrap();
        let length = parent.write_message(&[], &mut sent).unwrap();
        child.read_message(&sent[..length], &mut read).unwrap();
        [child, parent].map(|end| Transport(end.into_stateless_transport_mode().unwrap()))
    }

    #[test]
    fn records_are_read_as_they_were_written_with_and_without_encryption() {
        let [child, parent] = transports().map(Arc::new);
        let sealed = (Sealer::new(child), Opener::new(parent));
        for (is_sealed, (mut sealer, mut opener)) in
            [(true, sealed), (false, (Sealer::unencrypted(), Opener::unencrypted()))]
        {
            let mut out = Vec::new();
            sealer.seal(&Content::Alive, &mut out);
            sealer.seal_piece(Lane::Stdout, &mut out, |plain| plain.extend_from_slice(&[7; RECORD_BYTES_MAX]));
            sealer.seal(&Content::Grant(Lane::Stdin, 9), &mut out);
            assert_eq!(out.windows(9).any(|bytes| bytes == [7; 9]), !is_sealed);
            let mut left = &out[..];
            for expected in
                [Content::Alive, Content::Piece(Lane::Stdout, &[7; RECORD_BYTES_MAX]), Content::Grant(Lane::Stdin, 9)]
            {
                for short in 0..left.len().min(3) {
                    assert_eq!(opener.open(&left[..short]), Ok(None));
                }
                let (content, length) = opener.open(left).unwrap().unwrap();
                assert_eq!(content, expected);
                left = &left[length..];
            }
            assert_eq!(left, []);
        }
    }

    #[test]
    fn records_that_are_not_encrypted_have_bounds_and_kinds() {
        let mut opener = Opener::unencrypted();
        assert_eq!(opener.open(&[0xff, 0xff]), Err(RecordError::TooLong(0xffff)));
        assert_eq!(opener.open(&[0, 0]), Err(RecordError::Short));
        assert_eq!(opener.open(&[0, 1, 99]), Err(RecordError::Kind(99)));
    }

    #[test]
    fn no_record_opens_after_the_keys_were_wiped() {
        let ([mut child, parent], mut sent, mut read) = (transports(), [0; 256], [0; 256]);
        let length = child.0.write_message(0, b"before", &mut sent).unwrap();
        assert_eq!(parent.0.read_message(0, &sent[..length], &mut read), Ok(6));
        let from_parent = parent.0.write_message(0, b"before", &mut read).unwrap();
        child.wipe();
        assert!(child.0.read_message(0, &read[..from_parent], &mut [0; 256]).is_err());
        let length = child.0.write_message(0, b"after", &mut sent).unwrap();
        assert!(parent.0.read_message(0, &sent[..length], &mut read).is_err());
    }
}
