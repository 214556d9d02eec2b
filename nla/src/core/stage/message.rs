//! The messages of the lane Stage. They are cut by hand: most have 64 KiB of a file, which no codec needs to copy.
//!
//! An empty message ends the lane's stream in either direction.

use pmi::Rank;

use super::chunk::{DIGEST_BYTES, Digest};
use crate::core::ids::AgentId;
use crate::core::limits::{COLLECTED_NAME_BYTES_MAX, STREAM_BYTES_MAX};

/// The hashes in one message.
pub const DIGESTS_PER_MESSAGE: usize = 2048;

/// The bytes in front of those of a chunk, or of a collected file.
pub(super) const HEADER_BYTES: usize = 5;
/// The bytes of a file in one message.
pub const BLOCK_BYTES: usize = 64 * 1024;

const HASHES: u8 = 0;
const PART: u8 = 1;
const NEEDS: u8 = 2;
const FILE: u8 = 3;
const DATA: u8 = 4;
const COMPLETE: u8 = 5;
const FAILED: u8 = 6;
const IN_MEMORY: u8 = 7;
const LEFT: u8 = 8;

/// A message to the children.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StageDown<'a> {
    /// The next hashes of the chunks, in their order, for the caches of nodes.
    Hashes(&'a [u8]),
    /// The next bytes of this chunk, and after its last byte its SHA-256.
    Part(usize, &'a [u8]),
}

impl<'a> StageDown<'a> {
    /// Reads a message. `None` if it is none.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let (kind, rest) = message.split_first()?;
        match *kind {
            HASHES if rest.len().is_multiple_of(DIGEST_BYTES) => Some(Self::Hashes(rest)),
            PART => {
                let (chunk, bytes) = number(rest)?;
                Some(Self::Part(chunk as usize, bytes))
            }
            _ => None,
        }
    }
}

/// Returns a message with hashes.
pub fn hashes_message(digests: &[Digest]) -> Vec<u8> {
    [&[HASHES][..], digests.as_flattened()].concat()
}

/// Returns the beginning of a message with bytes of a chunk.
pub fn part_header(chunk: usize) -> [u8; HEADER_BYTES] {
    header(PART, chunk as u32)
}

fn header(kind: u8, number: u32) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, a, b, c, d]
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// A message to the parent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StageUp<'a> {
    /// The chunks that the subtree lacks, as a [`ChunkSet`](super::ChunkSet).
    Needs(&'a [u8]),
    /// The files that this agent has collected.
    Collected(AgentId, Collected<'a>),
    /// The staged files of this agent are in memory.
    InMemory(AgentId, InMemory<'a>),
    /// Staged files of this agent could not be removed: which, and why.
    Left(AgentId, &'a [u8]),
}

/// A place of staged files that is in memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct InMemory<'a> {
    /// No other place can have the files.
    pub is_last: bool,
    /// The path of its directory.
    pub place: &'a [u8],
}

/// A part of what an agent has collected: one file after the other.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Collected<'a> {
    /// A file begins.
    File(CollectedFile<'a>),
    /// Its next bytes.
    Data(&'a [u8]),
    /// It is complete.
    Complete,
    /// It could not be read to its end, or if no file is open, something could not be collected: the reason.
    Failed(&'a [u8]),
}

/// The beginning of a collected file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CollectedFile<'a> {
    /// The rank that has it.
    pub rank: Rank,
    /// The index of its pattern.
    pub pattern: u32,
    /// Whether its owner may execute it.
    pub is_executable: bool,
    /// Its name, relative to the rank's directory.
    pub name: &'a [u8],
}

impl<'a> StageUp<'a> {
    /// Reads a message. `None` if it is none, or a name leads out of its directory.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let (kind, rest) = message.split_first()?;
        if *kind == NEEDS {
            return Some(Self::Needs(rest));
        }
        let (agent, rest) = number(rest)?;
        if *kind == IN_MEMORY {
            let (last, place) = rest.split_first()?;
            let memory = InMemory { is_last: *last == 1, place };
            return Some(memory).filter(|_| *last <= 1).map(|memory| Self::InMemory(AgentId(agent), memory));
        }
        if *kind == LEFT {
            return Some(Self::Left(AgentId(agent), rest));
        }
        let collected = match *kind {
            FILE => {
                let (rank, rest) = number(rest)?;
                let (pattern, rest) = number(rest)?;
                let (executable, name) = rest.split_first()?;
                let file = CollectedFile { rank: Rank(rank), pattern, is_executable: *executable == 1, name };
                Collected::File(Some(file).filter(|file| *executable <= 1 && is_relative(file.name))?)
            }
            DATA => Collected::Data(rest),
            COMPLETE if rest.is_empty() => Collected::Complete,
            FAILED => Collected::Failed(rest),
            _ => return None,
        };
        Some(Self::Collected(AgentId(agent), collected))
    }

    /// Returns the message.
    pub fn message(self) -> Vec<u8> {
        let mut message = Vec::new();
        match self {
            Self::Needs(set) => {
                message.push(NEEDS);
                message.extend_from_slice(set);
            }
            Self::InMemory(agent, InMemory { is_last, place }) => {
                message.extend(header(IN_MEMORY, agent.0));
                message.push(u8::from(is_last));
                message.extend_from_slice(place);
            }
            Self::Left(agent, text) => {
                message.extend(header(LEFT, agent.0));
                message.extend_from_slice(text);
            }
            Self::Collected(agent, collected) => {
                let kind = match collected {
                    Collected::File(_) => FILE,
                    Collected::Data(_) => DATA,
                    Collected::Complete => COMPLETE,
                    Collected::Failed(_) => FAILED,
                };
                message.extend(header(kind, agent.0));
                match collected {
                    Collected::File(CollectedFile { rank, pattern, is_executable, name }) => {
                        message.extend(rank.0.to_le_bytes());
                        message.extend(pattern.to_le_bytes());
                        message.push(u8::from(is_executable));
                        message.extend_from_slice(name);
                    }
                    Collected::Data(bytes) | Collected::Failed(bytes) => message.extend_from_slice(bytes),
                    Collected::Complete => {}
                }
            }
        }
        debug_assert!(message.len() <= STREAM_BYTES_MAX);
        message
    }
}

/// Whether a name is a relative path that only descends.
pub fn is_relative(name: &[u8]) -> bool {
    name.len() <= COLLECTED_NAME_BYTES_MAX && name.split(|byte| *byte == b'/').all(super::is_component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let digests = [[1; DIGEST_BYTES], [2; DIGEST_BYTES]];
        let hashes = hashes_message(&digests);
        assert_eq!(StageDown::parse(&hashes), Some(StageDown::Hashes(digests.as_flattened())));
        let part = [&part_header(70_000)[..], b"bytes"].concat();
        assert_eq!(StageDown::parse(&part), Some(StageDown::Part(70_000, b"bytes")));
        for bad in [&hashes[..40], &part[..4], b"", b"\x09"] {
            assert_eq!(StageDown::parse(bad), None);
        }
        let file = CollectedFile { rank: Rank(7), pattern: 1, is_executable: true, name: b"out/a" };
        for collected in
            [Collected::File(file), Collected::Data(b"x"), Collected::Complete, Collected::Failed(b"no room")]
        {
            let up = StageUp::Collected(AgentId(3), collected);
            let message = up.message();
            assert_eq!(StageUp::parse(&message), Some(up));
            assert!(StageUp::parse(&message[..4]).is_none());
        }
        for is_last in [false, true] {
            let up = StageUp::InMemory(AgentId(3), InMemory { is_last, place: b"/dev/shm" });
            let message = up.message();
            assert_eq!(StageUp::parse(&message), Some(up));
            assert!(StageUp::parse(&message[..HEADER_BYTES]).is_none());
        }
        let left = StageUp::Left(AgentId(3), b"/tmp/a: Device or resource busy");
        assert_eq!(StageUp::parse(&left.message()), Some(left));
        assert_eq!(StageUp::parse(&StageUp::Needs(b"\x03").message()), Some(StageUp::Needs(b"\x03")));
        assert_eq!(
            StageUp::parse(&[&StageUp::Collected(AgentId(3), Collected::Complete).message()[..], b"x"].concat()),
            None
        );
    }

    #[test]
    fn the_largest_messages_fit_into_the_lane() {
        const { assert!(HEADER_BYTES + BLOCK_BYTES + DIGEST_BYTES <= STREAM_BYTES_MAX) };
        const { assert!(DIGESTS_PER_MESSAGE * DIGEST_BYTES < STREAM_BYTES_MAX) };
        const { assert!(crate::core::limits::STAGED_CHUNKS_MAX / 8 < STREAM_BYTES_MAX) };
    }

    #[test]
    fn no_collected_name_leads_out() {
        let long = "n".repeat(256);
        let deep = vec!["n"; COLLECTED_NAME_BYTES_MAX / 2 + 1].join("/");
        for (name, expected) in [
            ("a", true),
            ("a/b", true),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            ("../a", false),
            ("a/../b", false),
            ("./a", false),
            ("a\0", false),
            (&long, false),
            (&deep, false),
        ] {
            assert_eq!(is_relative(name.as_bytes()), expected, "{name:?}");
            let file = CollectedFile { rank: Rank(0), pattern: 0, is_executable: false, name: name.as_bytes() };
            let message = StageUp::Collected(AgentId(1), Collected::File(file)).message();
            assert_eq!(StageUp::parse(&message).is_some(), expected, "{name:?}");
        }
    }
}
