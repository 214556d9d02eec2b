//! Lanes: independent streams of messages that share a link.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::core::limits::{BOARD_BYTES_MAX, CONTROL_BYTES_MAX, STREAM_BYTES_MAX};

/// The lanes, the most urgent first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Lane {
    /// Launches, signals, exits, failures: short and urgent messages.
    Control = 0,
    /// Fences and their entries.
    Board = 1,
    /// Standard input, from the root.
    Stdin = 2,
    /// Standard error, to the root.
    Stderr = 3,
    /// Standard output, to the root.
    Stdout = 4,
    /// Files that every node gets before ranks start, from the root.
    Stage = 5,
    /// Communication profiles of ranks, to the root.
    Profile = 6,
}

impl Lane {
    /// All lanes, the most urgent first.
    pub const ALL: [Self; 7] =
        [Self::Control, Self::Board, Self::Stdin, Self::Stderr, Self::Stdout, Self::Stage, Self::Profile];

    /// Returns the lane with this number on the wire.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the lane's index, below `Lane::ALL.len()`.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns whether the sender may send only as many bytes as the receiver has granted.
    pub fn has_window(self) -> bool {
        matches!(self, Self::Stdin | Self::Stderr | Self::Stdout | Self::Stage | Self::Profile)
    }

    /// Returns the length of the longest message in this lane, in bytes.
    pub fn message_bytes_max(self) -> usize {
        match self {
            Self::Control => CONTROL_BYTES_MAX,
            Self::Board => BOARD_BYTES_MAX,
            Self::Stdin | Self::Stderr | Self::Stdout | Self::Stage | Self::Profile => STREAM_BYTES_MAX,
        }
    }
}

/// A message exceeds the bound of its lane.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a message of {bytes} bytes in a lane that carries at most {max}")]
pub struct TooLong {
    bytes: usize,
    max: usize,
}

/// The length of the prefix that holds a message's length, in bytes.
pub(super) const LENGTH_BYTES: usize = 4;

/// The most memory that is reserved for the rest of an announced message: more than a piece of an epoch.
const RESERVED_BYTES_MAX: usize = 320 * 1024;

/// Reassembles the messages of one lane from the pieces in records.
#[derive(Debug)]
pub struct Assembler {
    lane: Lane,
    buffer: BytesMut,
}

impl Assembler {
    /// Creates an empty assembler for `lane`.
    pub fn new(lane: Lane) -> Self {
        Self { lane, buffer: BytesMut::new() }
    }

    /// Adds a piece from a record. Allocates memory for bytes that have arrived, and for at most `RESERVED_BYTES_MAX` more
    /// of those that were announced.
    pub fn push(&mut self, piece: &[u8]) {
        if self.buffer.is_empty()
            && let Some(length) = piece.first_chunk::<LENGTH_BYTES>()
        {
            // At once for the piece and the rest of its first message.
            let bytes = (u32::from_le_bytes(*length) as usize).min(self.lane.message_bytes_max());
            self.buffer.reserve((LENGTH_BYTES + bytes).min(RESERVED_BYTES_MAX).max(piece.len()));
        }
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next complete message, if there is one.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, TooLong> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        let max = self.lane.message_bytes_max();
        if bytes > max {
            return Err(TooLong { bytes, max });
        }
        let missing = (LENGTH_BYTES + bytes).saturating_sub(self.buffer.len());
        if missing > 0 {
            // Once for a message, instead of by doubling.
            self.buffer.reserve(missing.min(RESERVED_BYTES_MAX));
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        Ok(Some(self.buffer.split_to(bytes).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::framed;
    use super::*;

    #[test]
    fn messages_survive_any_split() {
        let stream: Vec<u8> =
            [&b"one"[..], b"", b"three", &[7; 300]].iter().flat_map(|message| framed(message)).collect();
        for step in 1..stream.len() {
            let mut assembler = Assembler::new(Lane::Control);
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                assembler.push(piece);
                while let Some(message) = assembler.next_message().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, [&b"one"[..], b"", b"three", &[7; 300]]);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_length_alone() {
        for lane in Lane::ALL {
            let announced = |bytes: usize| {
                let mut assembler = Assembler::new(lane);
                assembler.push(&(bytes as u32).to_le_bytes());
                assembler.next_message()
            };
            let max = lane.message_bytes_max();
            assert_eq!(announced(max), Ok(None));
            assert_eq!(announced(max + 1), Err(TooLong { bytes: max + 1, max }));
        }
        assert_eq!(Lane::Stdout.message_bytes_max(), STREAM_BYTES_MAX);
    }

    #[test]
    fn lanes_have_their_numbers_on_the_wire() {
        for lane in Lane::ALL {
            assert_eq!(Lane::from_number(lane as u8), Some(lane));
        }
        assert_eq!(Lane::from_number(7), None);
    }
}
