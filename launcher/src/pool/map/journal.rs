//! The journal of a list: a row for each command that has ended, from which `--resume` knows the ones that have succeeded. A command
//! that has succeeded gets its row once its output was printed.
//!
//! It is a text with tabs, like the one of GNU parallel's `--joblog`. The command comes last, so it may contain tabs:
//!
//! ```text
//! Seq  Starttime       JobRuntime  Exitval  Attempts  Command
//! 3    1790000000.125  0.870       0        1         ./a.out 3
//! ```

use thiserror::Error;

use super::list::List;
use crate::refusal::shown;

/// The first line.
pub const HEADER: &[u8] = b"Seq\tStarttime\tJobRuntime\tExitval\tAttempts\tCommand\n";
/// The most bytes of a journal that is read.
pub const JOURNAL_BYTES_MAX: usize = 256 << 20;
/// The most characters of a command in an error.
const SHOWN_CHARS_MAX: usize = 60;

/// Why a journal cannot be continued. Displays as a fragment that follows the journal's name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JournalError {
    /// It is longer than [`JOURNAL_BYTES_MAX`].
    #[error("it has more than {} MiB", JOURNAL_BYTES_MAX >> 20)]
    TooLong,
    /// Its first line is not [`HEADER`].
    #[error("it is not a journal of 'scela pool map'")]
    NoJournal,
    /// This line is not a row.
    #[error("line {0} is not a row of a journal")]
    NoRow(usize),
    /// The list has another command under this number, or none.
    #[error("it has command {number} as '{was}', and the list has {}", is.as_ref().map_or("no such command".to_owned(), |is| format!("'{is}'")))]
    OtherCommand {
        /// The number.
        number: u32,
        /// The command of the journal.
        was: String,
        /// The command of the list.
        is: Option<String>,
    },
}

/// A row: a command that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row<'a> {
    /// Its number in the list, from 1 on.
    pub number: u32,
    /// When its last attempt has started, in milliseconds since 1970.
    pub start_ms: u64,
    /// How long that attempt took, in milliseconds.
    pub run_ms: u64,
    /// Its exit code.
    pub code: u8,
    /// How often it was run.
    pub attempts: u32,
    /// The command.
    pub command: &'a [u8],
}

impl<'a> Row<'a> {
    /// Returns the row as a line. `command` must have no newline.
    pub fn line(&self) -> Vec<u8> {
        let Self { number, start_ms, run_ms, code, attempts, command } = self;
        let numbers = format!("{number}\t{}\t{}\t{code}\t{attempts}\t", seconds(*start_ms), seconds(*run_ms));
        [numbers.as_bytes(), command, b"\n"].concat()
    }

    /// Parses a line without its newline.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b'\t');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let row = Self {
            number: text()?.parse().ok().filter(|number| *number > 0)?,
            start_ms: milliseconds(text()?)?,
            run_ms: milliseconds(text()?)?,
            code: text()?.parse().ok()?,
            attempts: text()?.parse().ok()?,
            command: &[],
        };
        Some(Self { command: fields.next()?, ..row })
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

fn milliseconds(seconds: &str) -> Option<u64> {
    let (whole, part) = seconds.split_once('.')?;
    let part = Some(part).filter(|part| part.len() == 3 && part.bytes().all(|digit| digit.is_ascii_digit()))?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part.parse().ok()?)
}

/// A journal that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Journal<'a> {
    /// The rows in their order. A command that was run again has several.
    pub rows: Vec<Row<'a>>,
    /// The bytes of whole lines. A map that was killed may have left a part of a line after them.
    pub whole_bytes: usize,
}

impl<'a> Journal<'a> {
    /// Parses a journal. An empty one is one without rows.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, JournalError> {
        if bytes.len() > JOURNAL_BYTES_MAX {
            return Err(JournalError::TooLong);
        }
        let whole_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        if whole_bytes == 0 {
            // A map that was killed while it wrote the header has left a part of it.
            let is_header = HEADER.starts_with(bytes);
            return if is_header { Ok(Self { rows: Vec::new(), whole_bytes }) } else { Err(JournalError::NoJournal) };
        }
        let rows = bytes[..whole_bytes].strip_prefix(HEADER).ok_or(JournalError::NoJournal)?;
        let lines = rows.split_inclusive(|byte| *byte == b'\n').enumerate();
        let rows = lines.map(|(at, line)| Row::parse(&line[..line.len() - 1]).ok_or(JournalError::NoRow(at + 2)));
        Ok(Self { rows: rows.collect::<Result<_, _>>()?, whole_bytes })
    }

    /// Returns which commands of the list have succeeded: those whose last rows have the code 0. Fails if the journal is one of another
    /// list.
    pub fn succeeded(&self, list: &List) -> Result<Vec<bool>, JournalError> {
        let mut succeeded = vec![false; list.len()];
        for row in &self.rows {
            let index = row.number as usize - 1;
            let is = list.command(index);
            if is != Some(row.command) {
                let text = |command: &[u8]| shown(&String::from_utf8_lossy(command), SHOWN_CHARS_MAX);
                return Err(JournalError::OtherCommand {
                    number: row.number,
                    was: text(row.command),
                    is: is.map(text),
                });
            }
            succeeded[index] = row.code == 0;
        }
        Ok(succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32, code: u8, command: &[u8]) -> Row<'_> {
        Row { number, start_ms: 1_790_000_000_125, run_ms: 70, code, attempts: 2, command }
    }

    fn journal(rows: &[Row<'_>]) -> Vec<u8> {
        let lines: Vec<Vec<u8>> = rows.iter().map(Row::line).collect();
        [HEADER, &lines.concat()].concat()
    }

    #[test]
    fn rows_are_lines_with_tabs() {
        let rows = [row(1, 0, b"a\tb \xff"), row(2, 137, b"c")];
        let text = journal(&rows);
        assert!(text.ends_with(b"\n2\t1790000000.125\t0.070\t137\t2\tc\n"), "{}", String::from_utf8_lossy(&text));
        assert_eq!(Journal::parse(&text), Ok(Journal { rows: rows.to_vec(), whole_bytes: text.len() }));
    }

    #[test]
    fn a_last_line_without_its_end_is_ignored() {
        let whole = journal(&[row(1, 0, b"a")]);
        for end in 0..HEADER.len() {
            assert_eq!(Journal::parse(&HEADER[..end]).unwrap().whole_bytes, 0);
        }
        let torn = [&whole[..], b"2\t1790000"].concat();
        let parsed = Journal::parse(&torn).unwrap();
        assert_eq!((parsed.rows.len(), parsed.whole_bytes), (1, whole.len()));
    }

    #[test]
    fn other_files_are_no_journals() {
        assert_eq!(Journal::parse(b"a"), Err(JournalError::NoJournal));
        assert_eq!(Journal::parse(b"a\nb\n"), Err(JournalError::NoJournal));
        for line in [
            "",
            "a",
            "0\t1.000\t1.000\t0\t1\ta",
            "1\t1\t1.000\t0\t1\ta",
            "1\t1.0\t1.000\t0\t1\ta",
            "1\t1.000\t1.+00\t0\t1\ta",
            "1\t1.000\t1.000\t256\t1\ta",
            "1\t1.000\t1.000\t0\t1",
            "1\t99999999999999999999.000\t1.000\t0\t1\ta",
        ] {
            let text = [HEADER, &row(1, 0, b"a").line(), line.as_bytes(), b"\n"].concat();
            assert_eq!(Journal::parse(&text), Err(JournalError::NoRow(3)), "{line:?}");
        }
    }

    #[test]
    fn the_last_row_of_a_command_counts() {
        let list = List::parse(b"a\nb\nc\n".to_vec()).unwrap();
        let text = journal(&[row(1, 1, b"a"), row(2, 0, b"b"), row(1, 0, b"a"), row(2, 252, b"b")]);
        assert_eq!(Journal::parse(&text).unwrap().succeeded(&list), Ok(vec![true, false, false]));
    }

    #[test]
    fn the_journal_of_another_list_is_refused() {
        let list = List::parse(b"a\nb\n".to_vec()).unwrap();
        let refused = |row: Row<'_>| {
            let text = journal(&[row]);
            Journal::parse(&text).unwrap().succeeded(&list).unwrap_err().to_string()
        };
        assert_eq!(refused(row(2, 0, b"c\x1b")), "it has command 2 as 'c?', and the list has 'b'");
        assert_eq!(refused(row(3, 0, b"c")), "it has command 3 as 'c', and the list has no such command");
    }
}
