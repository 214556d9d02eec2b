//! Lines of bounded length, with their numbers.

use std::io::{BufRead, Read};

use super::{MatrixError, Reason};
use crate::limits::MATRIX_LINE_BYTES_MAX;

/// The lines of a file, one at a time.
pub(super) struct Lines<R> {
    reader: R,
    bytes: Vec<u8>,
    number: u64,
    is_again: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, bytes: Vec::new(), number: 0, is_again: false }
    }

    /// Returns the next line without its end; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<&str>, MatrixError> {
        if !std::mem::take(&mut self.is_again) {
            self.bytes.clear();
            let limit = MATRIX_LINE_BYTES_MAX as u64 + 1;
            if Read::take(&mut self.reader, limit).read_until(b'\n', &mut self.bytes)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.bytes.last() == Some(&b'\n') {
                self.bytes.pop();
                if self.bytes.last() == Some(&b'\r') {
                    self.bytes.pop();
                }
            }
            if self.bytes.len() > MATRIX_LINE_BYTES_MAX {
                return Err(self.error(Reason::Long));
            }
        }
        let number = self.number;
        let text = std::str::from_utf8(&self.bytes);
        text.map(Some).map_err(|_| MatrixError::Line { line: number, reason: Reason::Text })
    }

    /// Makes the line that was read last the next one.
    pub(super) fn again(&mut self) {
        self.is_again = true;
    }

    /// Returns the number of the line that was read last, counted from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the refusal of the line that was read last.
    pub(super) fn error(&self, reason: Reason) -> MatrixError {
        MatrixError::Line { line: self.number, reason }
    }
}

/// Parses a line of exactly `N` whole numbers.
pub(super) fn fields<const N: usize>(line: &str) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    let mut words = line.split_ascii_whitespace();
    for number in &mut numbers {
        *number = whole(words.next()?)?;
    }
    words.next().is_none().then_some(numbers)
}

/// Parses digits. A sign is no digit.
pub(super) fn whole(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}
