//! The page that the bench shares with the ranks; `programs/page.h` is the ranks' side.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mark::Mark;

/// The page of one run: created before it, read after it, removed on drop.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    file: File,
    np: usize,
    samples: usize,
}

/// The parameters that ranks read from the page.
#[derive(Clone, Debug)]
pub struct Header {
    /// The number of ranks.
    pub np: u32,
    /// The soft limit of open files that each rank should have.
    pub nofile: u64,
    /// The number of fences to measure; 0 for none.
    pub fences: u32,
    /// The sizes of values in bytes.
    pub value_bytes: RangeInclusive<u32>,
    /// The number of entries that each rank puts.
    pub keys: u32,
    /// The number of gets to measure of each kind.
    pub gets: u32,
    /// The number of words for samples.
    pub samples: usize,
    /// The time after which a rank exits by itself.
    pub deadline: Duration,
}

/// The marks that the ranks have written.
#[derive(Debug, Default)]
pub struct Reading {
    /// The time from the earliest start to the latest end, if the program measures it.
    pub inside: Option<Duration>,
    /// When the last rank was about to send its first PMI message, by CLOCK_MONOTONIC; zero if no rank speaks PMI.
    pub last_contact: Duration,
    /// The number of bytes written to stdout in flood mode.
    pub bytes: u64,
    /// The mark of each rank.
    pub marks: Vec<Mark>,
    /// Further measurements, whose meaning depends on the program.
    pub samples: Vec<u64>,
}

impl Page {
    /// Creates the page as a file that only this user can read.
    ///
    /// # Errors
    /// If the file cannot be created, for example because shared memory is full.
    pub fn create(path: PathBuf, header: Header) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let page = Self { path, file, np: header.np as usize, samples: header.samples };
        let mut words = [0; WORDS];
        words[NP] = u64::from(header.np);
        words[NOFILE] = header.nofile;
        words[FENCES] = u64::from(header.fences);
        words[SECONDS] = header.deadline.as_secs();
        words[SAMPLES] = page.samples_offset();
        words[START_NS] = u64::MAX;
        words[VALUE_MIN] = u64::from(*header.value_bytes.start());
        words[VALUE_MAX] = u64::from(*header.value_bytes.end());
        words[KEYS] = u64::from(header.keys);
        words[GETS] = u64::from(header.gets);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        page.file.write_all_at(&bytes, 0)?;
        page.file.set_len(page.samples_offset() + (page.samples * WORD_BYTES) as u64)?;
        Ok(page)
    }

    /// Returns the path for the ranks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells sleeping ranks to continue.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn release_ranks(&self) -> io::Result<()> {
        self.file.write_all_at(&1_u64.to_ne_bytes(), (GO * WORD_BYTES) as u64)
    }

    /// Returns how many ranks have written their marks so far.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn marked(&self) -> io::Result<usize> {
        Ok(self.marks()?.iter().filter(|mark| mark.is_here()).count())
    }

    /// Reads everything that the ranks have written.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self) -> io::Result<Reading> {
        let words = words_of(&self.bytes(0, WORDS * WORD_BYTES)?);
        Ok(Reading {
            inside: words[END_NS].checked_sub(words[START_NS]).map(Duration::from_nanos),
            last_contact: Duration::from_nanos(words[CONTACT_NS]),
            bytes: words[BYTES],
            marks: self.marks()?,
            samples: words_of(&self.bytes(self.samples_offset(), self.samples * WORD_BYTES)?),
        })
    }

    fn marks(&self) -> io::Result<Vec<Mark>> {
        Ok(self.bytes(MARKS_OFFSET, self.np)?.into_iter().map(Mark::from_byte).collect())
    }

    fn samples_offset(&self) -> u64 {
        (MARKS_OFFSET + self.np as u64).next_multiple_of(WORD_BYTES as u64)
    }

    fn bytes(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // The scratch directory is removed at the end; this limits the use of shared memory until then.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(WORD_BYTES).map(|word| u64::from_ne_bytes(word.try_into().expect("chunks are words"))).collect()
}

const WORD_BYTES: usize = 8;
const WORDS: usize = 16;
const MARKS_OFFSET: u64 = (WORDS * WORD_BYTES) as u64;

// The words of the header, in the order of `struct page`.
const NP: usize = 0;
const NOFILE: usize = 1;
const FENCES: usize = 2;
const SECONDS: usize = 3;
const SAMPLES: usize = 4;
const GO: usize = 5;
const START_NS: usize = 6;
const END_NS: usize = 7;
const BYTES: usize = 8;
const VALUE_MIN: usize = 9;
const VALUE_MAX: usize = 10;
const KEYS: usize = 11;
const GETS: usize = 12;
// The words 13 and 14 are counters and futexes of 32 bits, which only ranks and servers use.
const CONTACT_NS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(np: u32, samples: usize) -> Header {
        let deadline = Duration::from_secs(60);
        Header { np, nofile: 1024, fences: 0, value_bytes: 64..=64, keys: 1, gets: 0, samples, deadline }
    }

    #[test]
    fn a_new_page_has_no_marks_and_no_time() {
        let scratch = tempfile::tempdir().unwrap();
        let page = Page::create(scratch.path().join("page"), header(5, 30)).unwrap();
        let reading = page.read().unwrap();
        assert_eq!(page.marked().unwrap(), 0);
        assert_eq!((reading.inside, reading.last_contact), (None, Duration::ZERO));
        assert_eq!(reading.marks.len(), 5);
        assert_eq!(reading.samples, [0; 30]);
    }

    #[test]
    fn dropping_the_page_removes_the_file() {
        let scratch = tempfile::tempdir().unwrap();
        let page = Page::create(scratch.path().join("page"), header(1, 0)).unwrap();
        let path = page.path().to_owned();
        assert!(path.exists());
        drop(page);
        assert!(!path.exists());
    }
}
