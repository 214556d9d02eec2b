//! Communication profiles: what ranks have sent to each other, in the form of libscela-trace.so. A rank appends its row to
//! a file of its agent; agents pass rows on unchanged; the root puts them together. `docs/profiling.md` describes the bytes.
//!
//! A row consists of pieces, and a message in the lane Profile of whole pieces. The rows of two ranks share no entry, so
//! merging them is to send one after the other, and no place but the root stores any.

use pmi::{Rank, Ranks};
use thiserror::Error;

use super::limits::PROFILE_PIECE_BYTES_MAX;

/// The length of the prefix that holds a piece's length, in bytes.
pub const PIECE_LENGTH_BYTES: usize = 4;

/// The reason why a piece is refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum ProfileError {
    /// It exceeds the bound.
    #[error("a piece of a profile has {0} bytes")]
    TooLong(usize),
    /// Its bytes are not those of a piece.
    #[error("a piece of a profile is damaged")]
    Damaged,
    /// It does not continue the row that is open, or its rank has a row already.
    #[error("a piece of a profile is out of order")]
    Order,
}

/// Bytes and messages.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ProfileTraffic {
    /// Bytes of data.
    pub bytes: u64,
    /// Messages, empty ones included.
    pub messages: u64,
}

/// The traffic from one rank to another one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ProfileEntry {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The traffic.
    pub traffic: ProfileTraffic,
}

/// A part of a rank's row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfilePiece {
    /// The rank.
    pub rank: Rank,
    /// The number of ranks in its job.
    pub size: u32,
    /// The number of entries in later pieces.
    pub left: u32,
    /// Messages to processes outside the job; the same in each piece of a row.
    pub outside: ProfileTraffic,
    /// Entries of which it is one of the ends.
    pub entries: Vec<ProfileEntry>,
}

/// Reads variable-length integers.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> Result<u64, ProfileError> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(ProfileError::Damaged)?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return Err(ProfileError::Damaged);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ProfileError::Damaged)
    }

    fn small(&mut self) -> Result<u32, ProfileError> {
        self.next()?.try_into().map_err(|_| ProfileError::Damaged)
    }

    fn traffic(&mut self) -> Result<ProfileTraffic, ProfileError> {
        Ok(ProfileTraffic { bytes: self.next()?, messages: self.next()? })
    }
}

impl ProfilePiece {
    /// Reads a piece, without its length.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProfileError> {
        check_length(bytes.len())?;
        let mut numbers = Numbers(bytes);
        let (rank, size, left) = (Rank(numbers.small()?), numbers.small()?, numbers.small()?);
        let (count, outside) = (numbers.small()?, numbers.traffic()?);
        // An entry has three bytes at least, so memory is bounded by the piece.
        if rank.0 >= size || count as usize > bytes.len() / 3 {
            return Err(ProfileError::Damaged);
        }
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let peer = numbers.next()?;
            let (other, fetched) = (u32::try_from(peer >> 1).map_err(|_| ProfileError::Damaged)?, peer & 1 == 1);
            if other >= size {
                return Err(ProfileError::Damaged);
            }
            let (from, to) = if fetched { (Rank(other), rank) } else { (rank, Rank(other)) };
            entries.push(ProfileEntry { from, to, traffic: numbers.traffic()? });
        }
        let is_whole = numbers.0.is_empty() && (count > 0 || left == 0);
        if is_whole { Ok(Self { rank, size, left, outside, entries }) } else { Err(ProfileError::Damaged) }
    }
}

/// Whether a piece may have this length.
pub fn check_length(bytes: usize) -> Result<(), ProfileError> {
    if bytes > PROFILE_PIECE_BYTES_MAX { Err(ProfileError::TooLong(bytes)) } else { Ok(()) }
}

/// Follows the pieces of one row after the other.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RowOrder {
    /// The rank whose row is open, and the entries that are missing.
    open: Option<(Rank, u32)>,
}

impl RowOrder {
    /// Takes the next piece. Returns whether it begins a row.
    pub fn take(&mut self, piece: &ProfilePiece) -> Result<bool, ProfileError> {
        let begins = match self.open {
            None => true,
            Some((rank, missing)) => {
                if rank != piece.rank || (missing as usize) != piece.entries.len() + piece.left as usize {
                    return Err(ProfileError::Order);
                }
                false
            }
        };
        self.open = (piece.left > 0).then_some((piece.rank, piece.left));
        Ok(begins)
    }

    /// Whether no row is open.
    pub fn is_between_rows(&self) -> bool {
        self.open.is_none()
    }
}

/// The progress of a rank's row.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Arrived {
    Nothing,
    /// This many entries are missing.
    Part(u32),
    Whole,
}

/// Puts the rows of a job together at the root.
#[derive(Debug)]
pub struct ProfileRows {
    ranks: Vec<Arrived>,
    outside: ProfileTraffic,
}

impl ProfileRows {
    /// No rows of a job of this size.
    pub fn new(size: u32) -> Self {
        Self { ranks: vec![Arrived::Nothing; size as usize], outside: ProfileTraffic::default() }
    }

    /// Takes a message of the lane Profile, and passes its entries to `add`. After an error, the rest of the message is ignored:
    /// the ranks whose rows are not whole are [missing](Self::missing).
    pub fn take(&mut self, mut message: &[u8], mut add: impl FnMut(ProfileEntry)) -> Result<(), ProfileError> {
        while !message.is_empty() {
            let (length, rest) = message.split_first_chunk().ok_or(ProfileError::Damaged)?;
            let length = u32::from_le_bytes(*length) as usize;
            let (piece, rest) = rest.split_at_checked(length).ok_or(ProfileError::Damaged)?;
            message = rest;
            self.take_piece(&ProfilePiece::decode(piece)?, &mut add)?;
        }
        Ok(())
    }

    fn take_piece(&mut self, piece: &ProfilePiece, add: &mut impl FnMut(ProfileEntry)) -> Result<(), ProfileError> {
        let size = self.ranks.len();
        let arrived = self.ranks.get_mut(piece.rank.0 as usize).ok_or(ProfileError::Damaged)?;
        let here = piece.entries.len() + piece.left as usize;
        let is_next = match *arrived {
            // One entry to each rank, and one from it.
            Arrived::Nothing => here <= 2 * size,
            Arrived::Part(missing) => here == missing as usize,
            Arrived::Whole => false,
        };
        if !is_next || piece.size as usize != size {
            return Err(ProfileError::Order);
        }
        *arrived = if piece.left > 0 { Arrived::Part(piece.left) } else { Arrived::Whole };
        piece.entries.iter().for_each(|entry| add(*entry));
        if piece.left == 0 {
            self.outside.bytes = self.outside.bytes.saturating_add(piece.outside.bytes);
            self.outside.messages = self.outside.messages.saturating_add(piece.outside.messages);
        }
        Ok(())
    }

    /// Returns the ranks whose rows have not arrived whole.
    pub fn missing(&self) -> Ranks {
        let ranks = self.ranks.iter().zip(0..).filter(|(arrived, _)| **arrived != Arrived::Whole);
        ranks.map(|(_, rank)| Rank(rank)).collect()
    }

    /// Returns the messages to processes outside the job.
    pub fn outside(&self) -> ProfileTraffic {
        self.outside
    }
}

#[cfg(test)]
mod tests;
