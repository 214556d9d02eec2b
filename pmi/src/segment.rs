//! The segment: the layout of a namespace's board in memory that an agent shares with its ranks.
//!
//! One agent writes, its ranks read. The segment is a header and, after it, a **log** that only grows: published bytes
//! never change. All numbers are little endian:
//!
//! ```text
//! byte 0     magic u32                 never changes
//! byte 64    released u32              the number of released fences; the futex that ranks wait on
//! byte 68    failed u32                the value that `released` got with the last fence that failed; 0: none has
//! byte 128   published u64             the published part of the log and its directory
//! byte 4096  log: epochs and directories, each at a multiple of 64 bytes
//!
//! published  bits 0..32: the log's end, bits 32..63: the directory's offset, in units of 64 bytes;
//!            bit 63: closed
//! directory  runs u32 | magic u32 | runs × [ offset u64 | length u64 ]
//! ```
//!
//! The directory lists the epochs that make up the board, the newest first, by their offsets in the log. It lies right
//! before the newest epoch if there is room, so that reading both is one page fault. The agent writes the log and its
//! directory before it stores `published` with release semantics, so a reader that loads `published` with acquire
//! semantics sees an immutable log with its directory. Readers map the segment read-only and have nothing to write, so
//! none can disturb another reader or the writer.
//!
//! The agent increments `released` with release semantics after it has published what a fence made visible, then wakes
//! it as a shared futex. A rank reads the word before it sends its arrival and waits for it to change: neither this fence
//! nor the next one can be released without the rank. If a fence fails, the agent stores `failed` before it increments
//! `released`, and the ranks that waited compare the two words.
//!
//! `closed` means that the log could not grow: the board has more than the log, so ranks ask over the wire. The word
//! `released` is still incremented.

use std::collections::HashSet;

use crate::board::{Table, key_hash};

/// The environment variable by which an agent announces segments to a rank: its value is an [`announcement`].
pub const VARIABLE: &str = "SCELA_SEGMENT";

/// The version of the segment and of the two requests for it.
const PROTOCOL: u32 = 2;

/// Returns the value of [`VARIABLE`] for the rank whose PMI socket has this inode number (`st_ino`).
///
/// Other servers do not know the requests, and Hydra kills a job that sends an unknown one. The value names the socket
/// because a launcher that a rank starts may pass the variable on to its own ranks.
pub fn announcement(socket_inode: u64) -> String {
    format!("{PROTOCOL}:{socket_inode}")
}

/// Whether `value` of [`VARIABLE`] announces segments of this version for the socket with this inode number.
pub fn is_announced(value: &[u8], socket_inode: u64) -> bool {
    value == announcement(socket_inode).as_bytes()
}

/// The first bytes of every segment.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SSG1");

/// The offset of `released`.
pub const RELEASED_AT: usize = 64;

/// The offset of `failed`, in the cache line of `released`.
pub const FAILED_AT: usize = 68;

/// The offset of `published`.
pub const PUBLISHED_AT: usize = 128;

/// The offset of the log: the header, whose words change, has a page of its own.
pub const LOG_AT: usize = 4096;

/// The alignment of epochs and directories in the log.
pub const ALIGNMENT: usize = 64;

const CLOSED: u64 = 1 << 63;
const DIRECTORY_MAGIC: u32 = u32::from_le_bytes(*b"SDR1");
const RUN_BYTES: usize = 16;
const HEADER_BYTES: usize = 8;

/// The value of `published`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Published(u64);

impl Published {
    /// The value for a log of this length whose directory begins at this offset, a multiple of [`ALIGNMENT`]. `None` beyond
    /// the word's range of 128 GiB.
    ///
    /// Both numbers only grow, and so does the word.
    pub fn new(log_bytes: usize, directory_at: usize) -> Option<Self> {
        let end = u32::try_from(log_bytes.div_ceil(ALIGNMENT)).ok()?;
        let place = u32::try_from(directory_at / ALIGNMENT).ok().filter(|place| *place < 1 << 31)?;
        Some(Self(u64::from(place) << 32 | u64::from(end)))
    }

    /// The value when nothing is published.
    pub const NOTHING: Self = Self(0);

    /// Returns the value that also says that the log is closed.
    #[must_use]
    pub fn closed(self) -> Self {
        Self(self.0 | CLOSED)
    }

    /// Interprets a word of the segment.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the word for the segment.
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// Returns the number of the log's bytes that may be read. Up to 63 of them are padding at the end.
    pub fn log_bytes(self) -> usize {
        self.0 as u32 as usize * ALIGNMENT
    }

    /// Returns the directory's offset in the log.
    pub fn directory_at(self) -> usize {
        ((self.0 & !CLOSED) >> 32) as usize * ALIGNMENT
    }

    /// Whether the board has more than the log.
    pub fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }
}

/// The room for a directory before an epoch: enough unless the epochs have very many different sizes.
pub const DIRECTORY_ROOM: usize = 1024;

/// Encodes a directory. `runs` are the offsets and lengths of epochs in the log, the newest first.
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

/// The published part of a log, for look-ups. Cheap to create: create one for each look-up.
#[derive(Copy, Clone)]
pub struct View<'a> {
    log: &'a [u8],
    /// The directory's runs.
    runs: &'a [u8],
}

impl<'a> View<'a> {
    /// A view of the published part of a log; `None` if there is no directory at this offset.
    ///
    /// For arbitrary bytes, no look-up reads beyond them or runs forever.
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

    /// Returns the newest value of a key.
    #[inline]
    pub fn get(self, key: &[u8]) -> Option<&'a [u8]> {
        let hash = key_hash(key);
        self.tables().find_map(|table| table.get(hash, key))
    }

    /// Returns each key once with its newest value, in the order of the epochs, the newest first.
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
            Table::new(self.log.get(offset..offset.checked_add(length)?)?)
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

    /// Returns a log with a directory after each epoch, and the offset of the last directory.
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
    fn an_unpublished_log_has_no_view_and_an_empty_directory_no_entries() {
        assert!(View::new(b"", 0).is_none());
        let empty = directory([]);
        assert_eq!(View::new(&empty, 0).unwrap().get(b"a"), None);
        assert!(View::new(&empty, 1).is_none());
        // An empty epoch has no bytes.
        let (nothing, at) = log(&[Epoch::default()]);
        assert_eq!(View::new(&nothing, at).unwrap().iter().count(), 0);
    }

    #[test]
    fn an_announcement_applies_to_one_socket() {
        assert!(is_announced(b"2:4711", 4711));
        for other in ["2:471", "1:4711", "2", "", "2:4711 "] {
            assert!(!is_announced(other.as_bytes(), 4711), "{other}");
        }
    }

    #[test]
    fn the_word_contains_length_directory_and_closed() {
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
            fn a_damaged_log_neither_panics_nor_runs_forever(
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
