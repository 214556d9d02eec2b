//! [`LineBuffer`]: turns what was read, in pieces of any size, into lines.
//!
//! A stream socket may hand over half a line or ten; servers that took one read for one request
//! (Slurm's PMI plug-in, MVAPICH2's mpispawn) broke on both. Each byte is searched once and moved
//! at most once on average, and a buffer that ran empty gives large memory back.

use std::io::BufRead;

use thiserror::Error;

/// Capacity kept by an empty buffer: an agent serves a thousand ranks, mostly idle.
const KEEP_BYTES_MAX: usize = 16 * 1024;

/// A line was longer than the buffer's limit. The buffer stays in this state.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("sent a line longer than {limit} bytes")]
pub struct LineTooLong {
    /// The limit, in bytes without the newline.
    pub limit: usize,
}

/// Assembles `\n`-terminated lines. Bytes are bytes: no encoding is assumed, `\r` is not special.
#[derive(Clone, Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the first line that was not yet handed out begins.
    start: usize,
    /// Up to where no newline was found, at least `start`.
    searched: usize,
    limit: usize,
}

impl LineBuffer {
    /// An empty buffer for lines of up to `limit` bytes, newline not counted.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    /// Appends what was read.
    ///
    /// Not bounded here: the caller takes lines out between reads.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        // Move the rest to the front only when at least as much was consumed: O(1) per byte.
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

    /// The next complete line without its newline, or `None` until more bytes were appended.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        let start = self.start;
        let mut rest = &self.bytes[self.searched..];
        // Reading from a slice cannot fail; std has no other public memchr.
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

    /// All that waits to be handed out, to be looked at.
    pub fn peek(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The next `count` bytes, whatever they are, or `None` until that many are there.
    ///
    /// For what follows a line that says how long it is.
    pub fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.start.checked_add(count).filter(|&end| end <= self.bytes.len())?;
        let start = std::mem::replace(&mut self.start, end);
        self.searched = self.searched.max(end);
        Some(&self.bytes[start..end])
    }

    /// How many bytes wait to be handed out, complete lines or not.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing waits to be handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything buffered and gives the memory back.
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
    fn lines_come_out_of_any_pieces() {
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
    fn a_line_of_the_limit_passes_and_one_byte_more_does_not() {
        let too_long = Err(LineTooLong { limit: 4 });
        let mut buffer = LineBuffer::new(4);
        buffer.extend_from_slice(b"abcd");
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.extend_from_slice(b"\nabcde");
        assert_eq!(buffer.next_line(), Ok(Some(&b"abcd"[..])));
        assert_eq!(buffer.next_line(), too_long, "before its newline came");
        buffer.extend_from_slice(b"\nx\n");
        assert_eq!(buffer.next_line(), too_long, "and ever after");
        let mut buffer = LineBuffer::new(4);
        buffer.extend_from_slice(b"abcde\n");
        assert_eq!(buffer.next_line(), too_long, "with its newline");
        buffer.clear();
        buffer.extend_from_slice(b"ok\n");
        assert_eq!(buffer.next_line(), Ok(Some(&b"ok"[..])));
    }

    #[test]
    fn counted_bytes_come_out_between_lines() {
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
    fn memory_is_given_back_and_not_piled_up() {
        let mut buffer = LineBuffer::new(1 << 20);
        buffer.extend_from_slice(&[b'x'; 1 << 20]);
        buffer.extend_from_slice(b"\n");
        assert_eq!(lines(&mut buffer).len(), 1);
        assert!(buffer.bytes.capacity() <= KEEP_BYTES_MAX);
        // Never empty, but never more than the rest and what was consumed since.
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
            fn splits_do_not_matter(
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
