//! The segment: how a namespace's board lies in memory that an agent shares with its ranks.
//!
//! One agent writes, its ranks read. The segment is a header and, behind it, a **log** that only
//! grows: what is once published in it never changes. All numbers are little endian:
//!
//! ```text
//! byte 0     magic u32                 never changes
//! byte 64    released u32              how many fences were released; the futex that ranks wait on
//! byte 128   published u64             how much of the log is published, and where its directory is
//! byte 4096  log: epochs and directories, each at a multiple of 64 bytes
//!
//! published  bits 0..32: the log's end, bits 32..63: the directory's place, in units of 64 bytes;
//!            bit 63: closed
//! directory  runs u32 | magic u32 | runs × [ offset u64 | length u64 ]
//! ```
//!
//! The directory lists the epochs that count, the newest first, by their places in the log. It lies
//! right in front of the newest one where there is room, so that reading both is one page fault.
//! One word says all: who has read `published` with acquire semantics sees an immutable log with its
//! directory, since the agent wrote both before it stored the word with release semantics. No reader can disturb another or the writer: readers map the segment
//! read-only, and there is nothing for them to write.
//!
//! The released word is incremented after the publication of what the fence made visible, with
//! release semantics, and woken as a shared futex. Who waits for a release reads the word before it
//! sends its arrival, and waits for it to change: the fence cannot be released without it, nor the
//! next one.
//!
//! `closed` says that the log could not grow: the board has more than the log, and is asked over
//! the wire. Released words still count.

use std::collections::HashSet;

use crate::board::{Table, key_hash};

/// The environment variable by which an agent says to a rank that it has segments: an
/// [`announcement`].
pub const VARIABLE: &str = "SCELA_SEGMENT";

/// The version of the segment and of the two requests that belong to it.
const PROTOCOL: u32 = 1;

/// The value of [`VARIABLE`] for the rank whose PMI socket has this inode number (`st_ino`).
///
/// To any other server the requests would be unknown, and Hydra kills a job for that. So the value
/// names the socket: a launcher that a rank starts may pass the variable on to ranks of its own.
pub fn announcement(socket_inode: u64) -> String {
    format!("{PROTOCOL}:{socket_inode}")
}

/// Whether `value` of [`VARIABLE`] says that the server at the other end of the socket with this
/// inode number has segments of this version.
pub fn is_announced(value: &[u8], socket_inode: u64) -> bool {
    value == announcement(socket_inode).as_bytes()
}

/// The first bytes of every segment.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SSG1");

/// Where the word of releases lies.
pub const RELEASED_AT: usize = 64;

/// Where the word of publication lies.
pub const PUBLISHED_AT: usize = 128;

/// Where the log begins: a page, so that the words that change are in no page of the log.
pub const LOG_AT: usize = 4096;

/// What begins in the log does so at multiples of this.
pub const ALIGNMENT: usize = 64;

const CLOSED: u64 = 1 << 63;
const DIRECTORY_MAGIC: u32 = u32::from_le_bytes(*b"SDR1");
const RUN_BYTES: usize = 16;
const HEADER_BYTES: usize = 8;

/// The value of the word of publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Published(u64);

impl Published {
    /// So many bytes of the log, with a directory that begins at this one: a multiple of
    /// [`ALIGNMENT`]. `None` beyond what the word can say, 128 GiB.
    ///
    /// Both only grow, and with them the word.
    pub fn new(log_bytes: usize, directory_at: usize) -> Option<Self> {
        let end = u32::try_from(log_bytes.div_ceil(ALIGNMENT)).ok()?;
        let place = u32::try_from(directory_at / ALIGNMENT).ok().filter(|place| *place < 1 << 31)?;
        Some(Self(u64::from(place) << 32 | u64::from(end)))
    }

    /// Nothing.
    pub const NOTHING: Self = Self(0);

    /// The same, and no more to come.
    #[must_use]
    pub fn closed(self) -> Self {
        Self(self.0 | CLOSED)
    }

    /// As read from the segment.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// As to be written to the segment.
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// Bytes of the log that may be read; up to 63 behind its last one belong to nobody.
    pub fn log_bytes(self) -> usize {
        self.0 as u32 as usize * ALIGNMENT
    }

    /// Where in the log the directory begins.
    pub fn directory_at(self) -> usize {
        ((self.0 & !CLOSED) >> 32) as usize * ALIGNMENT
    }

    /// The board has more than the log.
    pub fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }
}

/// Room for a directory in front of an epoch: enough for all but boards of very many sizes.
pub const DIRECTORY_ROOM: usize = 1024;

/// A directory, to be written to the log.
///
/// `runs` are places in the log, offset and length, the newest epoch first.
pub fn directory(runs: impl IntoIterator<Item = (u64, u64)>) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    let mut count = 0_u32;
    for (offset, length) in runs {
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        count += 1;
    }
    bytes[..4].copy_from_slice(&count.to_le_bytes());
    bytes[4..HEADER_BYTES].copy_from_slice(&DIRECTORY_MAGIC.to_le_bytes());
    bytes
}

/// What is published, to be looked up in. Cheap to make: make one for each look-up.
#[derive(Copy, Clone)]
pub struct View<'a> {
    log: &'a [u8],
    /// The directory's runs.
    runs: &'a [u8],
}

impl<'a> View<'a> {
    /// Over the published part of a log; `None` if it has no directory where it should.
    ///
    /// Whatever the bytes are, no look-up leaves them or runs for ever.
    #[inline]
    pub fn new(log: &'a [u8], directory_at: usize) -> Option<Self> {
        let (count, rest) = log.get(directory_at..)?.split_first_chunk::<4>()?;
        let (magic, rest) = rest.split_first_chunk::<4>()?;
        if *magic != DIRECTORY_MAGIC.to_le_bytes() {
            return None;
        }
        let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(RUN_BYTES)?;
        Some(Self { log, runs: rest.get(..bytes)? })
    }

    /// The newest value of a key.
    #[inline]
    pub fn get(self, key: &[u8]) -> Option<&'a [u8]> {
        let hash = key_hash(key);
        self.tables().find_map(|table| table.get(hash, key))
    }

    /// Each key once, with its newest value. In the order of the epochs, the newest first.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut seen = HashSet::new();
        self.tables().flat_map(Table::iter).filter(move |(key, _)| seen.insert(*key))
    }

    #[inline]
    fn tables(self) -> impl Iterator<Item = Table<'a>> {
        self.runs.chunks_exact(RUN_BYTES).filter_map(move |run| {
            let (offset, length) = run.split_first_chunk::<8>()?;
            let offset = usize::try_from(u64::from_le_bytes(*offset)).ok()?;
            let length = usize::try_from(u64::from_le_bytes(*length.first_chunk()?)).ok()?;
            Table::over(self.log.get(offset..offset.checked_add(length)?)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    fn epoch(entries: &[(&str, &str)]) -> Epoch {
        Epoch::from_entries(entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())))
    }

    /// A log with a directory after each epoch, and where the last one begins.
    fn log(epochs: &[Epoch]) -> (Vec<u8>, usize) {
        let (mut log, mut runs, mut at) = (Vec::new(), Vec::new(), 0);
        for epoch in epochs {
            log.resize(log.len().next_multiple_of(ALIGNMENT), 0);
            runs.insert(0, (log.len() as u64, epoch.bytes().len() as u64));
            log.extend_from_slice(epoch.bytes());
            at = log.len().next_multiple_of(ALIGNMENT);
            log.resize(at, 0);
            log.extend_from_slice(&directory(runs.iter().copied()));
        }
        (log, at)
    }

    #[test]
    fn the_newest_epoch_wins() {
        let (log, at) = log(&[epoch(&[("a", "1"), ("b", "1")]), epoch(&[("a", "2"), ("c", "")])]);
        let view = View::new(&log, at).unwrap();
        assert_eq!(view.get(b"a"), Some(&b"2"[..]));
        assert_eq!(view.get(b"b"), Some(&b"1"[..]));
        assert_eq!(view.get(b"c"), Some(&b""[..]));
        assert_eq!(view.get(b"d"), None);
        let all: Vec<_> = view.iter().collect();
        assert_eq!(all, [(&b"a"[..], &b"2"[..]), (b"c", b""), (b"b", b"1")]);
    }

    #[test]
    fn nothing_published_is_no_view_and_no_runs_are_no_entries() {
        assert!(View::new(b"", 0).is_none());
        let empty = directory([]);
        assert_eq!(View::new(&empty, 0).unwrap().get(b"a"), None);
        assert!(View::new(&empty, 1).is_none());
        // An epoch of nothing has no bytes.
        let (nothing, at) = log(&[Epoch::default()]);
        assert_eq!(View::new(&nothing, at).unwrap().iter().count(), 0);
    }

    #[test]
    fn an_announcement_is_for_one_socket() {
        assert!(is_announced(b"1:4711", 4711));
        for other in ["1:471", "2:4711", "1", "", "1:4711 "] {
            assert!(!is_announced(other.as_bytes(), 4711), "{other}");
        }
    }

    #[test]
    fn the_word_tells_length_place_and_end() {
        let word = Published::new(4097, 128).unwrap();
        assert_eq!((word.log_bytes(), word.directory_at(), word.is_closed()), (4160, 128, false));
        let closed = Published::from_word(word.closed().to_word());
        assert_eq!((closed.log_bytes(), closed.directory_at(), closed.is_closed()), (4160, 128, true));
        let later = Published::new(5000, 4160).unwrap();
        assert!(later.to_word() > word.to_word() && later.to_word() < closed.to_word());
        let most = (u32::MAX as usize) * ALIGNMENT;
        assert_eq!(Published::new(most, most / 2).map(Published::log_bytes), Some(most));
        assert_eq!(Published::new(most + 1, 0), None);
        assert_eq!(Published::new(most, 1 << 37), None);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::*;

        proptest! {
            #[test]
            fn no_damage_panics_or_runs_for_ever(
                changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
                cut in any::<prop::sample::Index>(),
            ) {
                let (whole, at) = log(&[epoch(&[("a", "1"), ("b", "22")]), epoch(&[("a", "333"), ("c", "")])]);
                let mut damaged = whole.clone();
                prop_assert!(View::new(&whole, at).is_some());
                for (place, byte) in changes {
                    let place = place.index(damaged.len());
                    damaged[place] = byte;
                }
                for log in [&damaged[..], &damaged[..cut.index(damaged.len())]] {
                    if let Some(view) = View::new(log, at) {
                        view.get(b"a");
                        view.get(b"x");
                        view.iter().count();
                    }
                }
            }
        }
    }
}
