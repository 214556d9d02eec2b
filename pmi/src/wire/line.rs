//! [`LineBuffer`]: assembles lines from reads of any size.
//!
//! A read from a stream socket may return half a line or ten lines. Servers that took one read for one request (Slurm's
//! PMI plug-in, MVAPICH2's mpispawn) broke on both. Each byte is searched once and moved at most once on average. An empty
//! buffer frees large memory.

use std::io::BufRead;

use thiserror::Error;

/// The capacity that an empty buffer keeps: an agent serves a thousand ranks, most of them idle.
const KEEP_BYTES_MAX: usize = 16 * 1024;

/// A line exceeded the buffer's limit. The buffer keeps returning this error.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("sent a line longer than {limit} bytes")]
pub struct LineTooLong {
    /// The limit, in bytes without the newline.
    pub limit: usize,
}

/// Assembles `\n`-terminated lines. No encoding is assumed, and `\r` is not special.
#[derive(Clone, Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The start of the first line that was not returned yet.
    start: usize,
    /// The end of the bytes that were searched for a newline, at least `start`.
    searched: usize,
    limit: usize,
}

impl LineBuffer {
    /// An empty buffer for lines of up to `limit` bytes without the newline.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    /// Appends bytes that were read.
    ///
    /// Unbounded: the caller takes lines out between reads.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        // Move the rest to the front only if at least as much was consumed: O(1) per byte.
        if self.start > 0 && self.start >= self.bytes.len() - self.start {
            self.bytes.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        if self.bytes.is_empty() && self.bytes.capacity() > KEEP_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line without its newline, or `None` if there is none yet.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        let start = self.start;
        let mut rest = &self.bytes[self.searched..];
        // Reading from a slice cannot fail. std has no other public memchr.
        let skipped = rest.skip_until(b'\n').unwrap_or(0);
        let end = self.searched + skipped;
        let complete = skipped > 0 && self.bytes[end - 1] == b'\n';
        let line_bytes = end - start - usize::from(complete);
        if line_bytes > self.limit {
            return Err(LineTooLong { limit: self.limit });
        }
        self.searched = end;
        if !complete {
            self.release();
            return Ok(None);
        }
        self.start = end;
        Ok(Some(&self.bytes[start..end - 1]))
    }

    /// Returns all buffered bytes without removing them.
    pub fn peek(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Removes and returns the next `count` bytes, or `None` if fewer are buffered.
    ///
    /// For data whose length a line has announced.
    pub fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.start.checked_add(count).filter(|&end| end <= self.bytes.len())?;
        let start = std::mem::replace(&mut self.start, end);
        self.searched = self.searched.max(end);
        Some(&self.bytes[start..end])
    }

    /// Returns the number of buffered bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether no bytes are buffered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all buffered bytes and frees the memory.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    fn release(&mut self) {
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
            self.searched = 0;
            if self.bytes.capacity() > KEEP_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(buffer: &mut LineBuffer) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| buffer.next_line().unwrap().map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn lines_are_assembled_from_any_pieces() {
        let mut buffer = LineBuffer::new(8);
        buffer.extend_from_slice(b"ab");
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.extend_from_slice(b"c\n\nde\nf");
        assert_eq!(lines(&mut buffer), [&b"abc"[..], b"", b"de"]);
        assert_eq!(buffer.len(), 1);
        buffer.extend_from_slice(b"\n");
        assert_eq!(lines(&mut buffer), [b"f"]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_line_of_the_limit_is_returned_and_one_byte_more_is_refused() {
        let too_long = Err(LineTooLong { limit: 4 });
        let mut buffer = LineBuffer::new(4);
        buffer.extend_from_slice(b"abcd");
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.extend_from_slice(b"\nabcde");
        assert_eq!(buffer.next_line(), Ok(Some(&b"abcd"[..])));
        assert_eq!(buffer.next_line(), too_long, "before its newline arrives");
        buffer.extend_from_slice(b"\nx\n");
        assert_eq!(buffer.next_line(), too_long, "and from then on");
        let mut buffer = LineBuffer::new(4);
        buffer.extend_from_slice(b"abcde\n");
        assert_eq!(buffer.next_line(), too_long, "with its newline");
        buffer.clear();
        buffer.extend_from_slice(b"ok\n");
        assert_eq!(buffer.next_line(), Ok(Some(&b"ok"[..])));
    }

    #[test]
    fn counted_bytes_are_returned_between_lines() {
        let mut buffer = LineBuffer::new(8);
        buffer.extend_from_slice(b"a\n1\n2");
        assert_eq!(buffer.next_line(), Ok(Some(&b"a"[..])));
        assert_eq!(buffer.take(4), None);
        assert_eq!(buffer.peek(), b"1\n2");
        buffer.extend_from_slice(b"3b\n");
        assert_eq!(buffer.take(4), Some(&b"1\n23"[..]));
        assert_eq!(buffer.take(0), Some(&b""[..]));
        assert_eq!(buffer.take(usize::MAX), None);
        assert_eq!(buffer.next_line(), Ok(Some(&b"b"[..])));
        assert_eq!(buffer.next_line(), Ok(None));
        assert!(buffer.is_empty());
    }

    #[test]
    fn memory_is_freed_and_does_not_grow() {
        let mut buffer = LineBuffer::new(1 << 20);
        buffer.extend_from_slice(&[b'x'; 1 << 20]);
        buffer.extend_from_slice(b"\n");
        assert_eq!(lines(&mut buffer).len(), 1);
        assert!(buffer.bytes.capacity() <= KEEP_BYTES_MAX);
        // The buffer is never empty, but its capacity stays near the length of the rest.
        buffer.extend_from_slice(b"half");
        for _ in 0..10_000 {
            buffer.extend_from_slice(b" a line\nhalf");
            assert_eq!(lines(&mut buffer), [b"half a line"]);
        }
        assert!(buffer.bytes.capacity() < 256, "{} bytes", buffer.bytes.capacity());
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn lines_do_not_depend_on_how_bytes_are_split(
                bytes in vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
                cuts in vec(0_usize..200, 0..20),
            ) {
                let mut buffer = LineBuffer::new(200);
                let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
                cuts.extend([0, bytes.len()]);
                cuts.sort_unstable();
                let mut found = Vec::new();
                for cut in cuts.windows(2) {
                    buffer.extend_from_slice(&bytes[cut[0]..cut[1]]);
                    while let Some(line) = buffer.next_line().unwrap() {
                        found.push(line.to_vec());
                    }
                }
                let mut expected: Vec<Vec<u8>> =
                    bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
                let rest = expected.pop().unwrap();
                prop_assert_eq!(found, expected);
                prop_assert_eq!(buffer.len(), rest.len());
            }
        }
    }
}
