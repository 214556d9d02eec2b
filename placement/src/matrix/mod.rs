//! Communication matrices: bytes and messages from rank to rank.
//!
//! A [`Matrix`] is sparse and does not change. A [`Collector`] gathers traffic in any order and makes one.
//!
//! # The file
//!
//! ```text
//! scela-comm 1 ranks 4 pairs 2
//! # collectives: bcast binomial
//! 0 1 4096 1
//! 1 0 8192 2
//! ```
//!
//! The first line names the format's version, the number of ranks, and the number of the lines with traffic, so that a
//! file that was cut is noticed. Lines with `#` are remarks for people. The others are FROM TO BYTES MESSAGES, sorted
//! when written and in any order when read; a pair that occurs twice counts twice, also in `pairs`.

mod foreign;
mod lines;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead, Write};

use thiserror::Error;

use crate::limits::{MATRIX_PAIRS_MAX, MATRIX_RANKS_MAX, MATRIX_REMARK_BYTES_MAX, MATRIX_REMARKS_MAX};

use self::lines::{Lines, fields};

/// The first word of a matrix file.
pub const MAGIC: &str = "scela-comm";

/// The version of the file format.
pub const FORMAT_VERSION: u64 = 1;

/// Bytes and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

impl Traffic {
    /// Adds other traffic. Sums stop at `u64::MAX`.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.messages = self.messages.saturating_add(other.messages);
    }

    /// Whether there is none.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// The traffic from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Their traffic. Not zero.
    pub traffic: Traffic,
}

/// The traffic from each rank to each other one. A rank's traffic with itself is part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matrix {
    ranks: u32,
    /// Sorted by sender, then by receiver; no pair occurs twice.
    pairs: Vec<Pair>,
    remarks: Vec<String>,
}

impl Matrix {
    /// Returns the number of ranks. Ranks count from 0.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns all pairs with traffic, sorted by sender, then by receiver.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the pairs of one sender, sorted by receiver.
    pub fn row(&self, from: u32) -> &[Pair] {
        let first = self.pairs.partition_point(|pair| pair.from < from);
        let end = first + self.pairs[first..].partition_point(|pair| pair.from == from);
        &self.pairs[first..end]
    }

    /// Returns the traffic of a pair.
    pub fn traffic(&self, from: u32, to: u32) -> Traffic {
        let found = self.pairs.binary_search_by_key(&(from, to), |pair| (pair.from, pair.to));
        found.map(|at| self.pairs[at].traffic).unwrap_or_default()
    }

    /// Returns the sum of all pairs.
    pub fn total(&self) -> Traffic {
        self.pairs.iter().fold(Traffic::default(), |mut sum, pair| {
            sum.add(pair.traffic);
            sum
        })
    }

    /// Returns the remarks of the file.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Adds a line for people, which the file contains after its first line. It is cut after
    /// [`MATRIX_REMARK_BYTES_MAX`] bytes, its control characters become blanks, and remarks beyond
    /// [`MATRIX_REMARKS_MAX`] are dropped.
    pub fn add_remark(&mut self, text: &str) {
        if self.remarks.len() >= MATRIX_REMARKS_MAX {
            return;
        }
        let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut end = line.len().min(MATRIX_REMARK_BYTES_MAX);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        self.remarks.push(line.trim().to_owned());
    }

    /// Writes the file. `writer` should be buffered.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        writeln!(writer, "{MAGIC} {FORMAT_VERSION} ranks {} pairs {}", self.ranks, self.pairs.len())?;
        for remark in &self.remarks {
            writeln!(writer, "# {remark}")?;
        }
        for Pair { from, to, traffic } in &self.pairs {
            writeln!(writer, "{from} {to} {} {}", traffic.bytes, traffic.messages)?;
        }
        writer.flush()
    }

    /// Reads a file in the format of [`write`](Self::write).
    pub fn read(reader: impl BufRead) -> Result<Self, MatrixError> {
        let mut lines = Lines::new(reader);
        let Some(first) = lines.next()? else { return Err(MatrixError::Empty) };
        let header = Header::parse(first).ok_or(Reason::Header);
        let header = header.and_then(Header::checked).map_err(|reason| lines.error(reason))?;
        Self::read_pairs(lines, header)
    }

    /// Reads a file in this format, in that of Open MPI's `pml_monitoring` or as a plain matrix
    /// ([`Collector::read_open_mpi`], [`Matrix::read_plain`]): its first line tells which.
    pub fn read_any(reader: impl BufRead) -> Result<Self, MatrixError> {
        let mut lines = Lines::new(reader);
        let Some(first) = lines.next()? else { return Err(MatrixError::Empty) };
        if let Some(header) = Header::parse(first) {
            let header = header.checked().map_err(|reason| lines.error(reason))?;
            return Self::read_pairs(lines, header);
        }
        if first.starts_with(MAGIC) {
            return Err(lines.error(Reason::Header));
        }
        let is_monitoring = foreign::is_monitoring(first);
        lines.again();
        if is_monitoring {
            let mut collector = Collector::default();
            foreign::read_monitoring(lines, &mut collector)?;
            return Ok(collector.finish());
        }
        foreign::read_plain(lines)
    }

    /// Reads a matrix without a header: N lines of N numbers of bytes, separated by blanks or commas, or lines of
    /// FROM TO BYTES, with MESSAGES or without. Lines with `#` or `%` are skipped. Three lines of three numbers, and four of
    /// four, are a full matrix if its diagonal is 0, and refused otherwise: they might be pairs.
    pub fn read_plain(reader: impl BufRead) -> Result<Self, MatrixError> {
        foreign::read_plain(Lines::new(reader))
    }

    fn read_pairs(mut lines: Lines<impl BufRead>, header: Header) -> Result<Self, MatrixError> {
        let mut collector = Collector::new(header.ranks).map_err(|reason| lines.error(reason))?;
        let mut remarks = Self::default();
        let mut found = 0u64;
        while let Some(line) = lines.next()? {
            if let Some(remark) = line.strip_prefix('#') {
                remarks.add_remark(remark);
                continue;
            }
            if line.trim().is_empty() {
                continue;
            }
            let added = match fields::<4>(line) {
                Some([from, to, bytes, messages]) => {
                    let rank = |rank: u64| u32::try_from(rank).ok().filter(|rank| *rank < header.ranks);
                    match (rank(from), rank(to)) {
                        (Some(from), Some(to)) => collector.add(from, to, Traffic { bytes, messages }),
                        (None, _) => Err(Reason::Rank { rank: from, ranks: header.ranks }),
                        (_, None) => Err(Reason::Rank { rank: to, ranks: header.ranks }),
                    }
                }
                None => Err(Reason::Pair),
            };
            found += 1;
            let added = if found > header.pairs { Err(Reason::Longer { pairs: header.pairs }) } else { added };
            added.map_err(|reason| lines.error(reason))?;
        }
        if found < header.pairs {
            return Err(lines.error(Reason::Cut { found, pairs: header.pairs }));
        }
        Ok(Self { remarks: remarks.remarks, ..collector.finish() })
    }
}

/// The first line of a file.
struct Header {
    version: u64,
    ranks: u32,
    pairs: u64,
}

impl Header {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_ascii_whitespace().take(7).collect();
        match words[..] {
            [MAGIC, version, "ranks", ranks, "pairs", pairs] => {
                Some(Self { version: version.parse().ok()?, ranks: ranks.parse().ok()?, pairs: pairs.parse().ok()? })
            }
            _ => None,
        }
    }

    fn checked(self) -> Result<Self, Reason> {
        if self.version == FORMAT_VERSION { Ok(self) } else { Err(Reason::Version(self.version)) }
    }
}

/// Gathers the traffic of pairs in any order. It never has more than twice the memory of the matrix.
#[derive(Debug, Clone, Default)]
pub struct Collector {
    ranks: u32,
    /// The first `sorted` are sorted, and no pair occurs twice in them.
    pairs: Vec<Pair>,
    sorted: usize,
}

impl Collector {
    /// Starts with no traffic between `ranks` ranks: at most [`MATRIX_RANKS_MAX`].
    pub fn new(ranks: u32) -> Result<Self, Reason> {
        if ranks > MATRIX_RANKS_MAX {
            return Err(Reason::ManyRanks);
        }
        Ok(Self { ranks, ..Self::default() })
    }

    /// Adds the traffic of a pair. A rank beyond the number of ranks raises that number. No traffic is not added.
    pub fn add(&mut self, from: u32, to: u32, traffic: Traffic) -> Result<(), Reason> {
        let most = from.max(to);
        if most >= MATRIX_RANKS_MAX {
            return Err(Reason::ManyRanks);
        }
        self.ranks = self.ranks.max(most + 1);
        if traffic.is_zero() {
            return Ok(());
        }
        // Profiles arrive sorted: then nothing is ever sorted again.
        if let Some(last) = self.pairs.last_mut().filter(|last| (last.from, last.to) == (from, to)) {
            last.traffic.add(traffic);
            return Ok(());
        }
        let is_in_order =
            self.sorted == self.pairs.len() && self.pairs.last().is_none_or(|last| (last.from, last.to) < (from, to));
        self.pairs.push(Pair { from, to, traffic });
        if is_in_order {
            self.sorted = self.pairs.len();
        } else if self.pairs.len() >= 2 * self.sorted.max(1 << 12) {
            self.sort();
        }
        if self.pairs.len() > MATRIX_PAIRS_MAX {
            self.sort();
            if self.pairs.len() > MATRIX_PAIRS_MAX {
                return Err(Reason::ManyPairs);
            }
        }
        Ok(())
    }

    /// Adds all traffic of a matrix, whose rank 0 is `first` here.
    pub fn merge(&mut self, matrix: &Matrix, first: u32) -> Result<(), Reason> {
        let at = |rank: u32| first.checked_add(rank).ok_or(Reason::ManyRanks);
        if matrix.ranks > 0 {
            let last = at(matrix.ranks - 1)?;
            self.add(last, last, Traffic::default())?;
        }
        matrix.pairs.iter().try_for_each(|pair| self.add(at(pair.from)?, at(pair.to)?, pair.traffic))
    }

    /// Reads a file F.RANK.prof of Open MPI's `pml_monitoring`: lines `E FROM TO BYTES bytes MESSAGES msgs sent`, and
    /// `I`, `S` and `R` in place of `E` for messages inside the library, one-sided writes and one-sided reads. The files
    /// of all ranks make the matrix, in any order. Sections that count collectives again are skipped.
    pub fn read_open_mpi(&mut self, reader: impl BufRead) -> Result<(), MatrixError> {
        foreign::read_monitoring(Lines::new(reader), self)
    }

    /// Makes the matrix.
    pub fn finish(mut self) -> Matrix {
        self.sort();
        Matrix { ranks: self.ranks, pairs: self.pairs, remarks: Vec::new() }
    }

    fn sort(&mut self) {
        if self.sorted < self.pairs.len() {
            // Stable: the standard library finds the sorted beginning and merges.
            self.pairs.sort_by_key(|pair| (pair.from, pair.to));
            self.pairs.dedup_by(|next, kept| {
                let is_same = (next.from, next.to) == (kept.from, kept.to);
                if is_same {
                    kept.traffic.add(next.traffic);
                }
                is_same
            });
        }
        self.sorted = self.pairs.len();
    }
}

/// A matrix file that cannot be read.
#[derive(Debug, Error)]
pub enum MatrixError {
    /// The reader failed.
    #[error("the communication matrix cannot be read")]
    Read(#[from] io::Error),
    /// There are no lines with numbers.
    #[error("the communication matrix is empty")]
    Empty,
    /// A line is wrong.
    #[error("line {line} of the communication matrix: {reason}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// The reason.
        reason: Reason,
    },
}

/// The reason why a matrix is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Reason {
    /// The first line is not the format's.
    #[error("the first line must be '{MAGIC} {FORMAT_VERSION} ranks N pairs N'")]
    Header,
    /// Another version of the format.
    #[error("the file has version {0} of the format, and this program reads version {FORMAT_VERSION}")]
    Version(u64),
    /// The file ends too early.
    #[error("the file ends after {found} of {pairs} pairs")]
    Cut {
        /// The pairs that it has.
        found: u64,
        /// The pairs that its first line announces.
        pairs: u64,
    },
    /// The file has more lines than announced.
    #[error("the file has more pairs than the {pairs} of its first line")]
    Longer {
        /// The pairs that its first line announces.
        pairs: u64,
    },
    /// A line is no pair.
    #[error("a line must be FROM TO BYTES MESSAGES, all whole numbers")]
    Pair,
    /// A line of Open MPI's is wrong.
    #[error("the line must be 'E FROM TO BYTES bytes MESSAGES msgs sent'")]
    Monitoring,
    /// A line of a plain matrix has no or other numbers.
    #[error("a plain matrix has whole numbers of bytes, separated by blanks or commas")]
    Number,
    /// The lines of a plain matrix differ.
    #[error("a line must have as many numbers as the first one: {expected}, not {found}")]
    Columns {
        /// The numbers of this line.
        found: usize,
        /// Those of the first.
        expected: usize,
    },
    /// A full matrix is not square.
    #[error("the matrix must be square, and is {rows} x {columns}")]
    Square {
        /// Its lines.
        rows: usize,
        /// Its numbers per line.
        columns: usize,
    },
    /// Three lines of three numbers, or four of four, that may be a full matrix or not.
    #[error(
        "{0} lines of {0} numbers are a full matrix only if its diagonal is 0; before lines FROM TO BYTES MESSAGES, write \
         '{MAGIC} {FORMAT_VERSION} ranks N pairs {0}'{more}",
        more = messages_too(.0)
    )]
    Ambiguous(usize),
    /// A rank beyond the announced number.
    #[error("rank {rank} is beyond the {ranks} ranks")]
    Rank {
        /// The rank.
        rank: u64,
        /// The number of ranks.
        ranks: u32,
    },
    /// Too many ranks.
    #[error("the matrix has more than {MATRIX_RANKS_MAX} ranks")]
    ManyRanks,
    /// Too many pairs.
    #[error("the matrix has more than {MATRIX_PAIRS_MAX} pairs with traffic")]
    ManyPairs,
    /// A line is too long.
    #[error("the line is longer than {} KiB", crate::limits::MATRIX_LINE_BYTES_MAX >> 10)]
    Long,
    /// A line is not text.
    #[error("the line is not text in UTF-8")]
    Text,
}

/// Returns the end of the advice on an ambiguous matrix: lines of three numbers lack those of messages.
fn messages_too(columns: &usize) -> &'static str {
    if *columns == 3 { ", and add a number of messages to each line" } else { "" }
}
