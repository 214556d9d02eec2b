//! The last lines that a rank has written to standard error. The launcher quotes those of the rank that failed first.
//!
//! Each agent sends the lines of its own first failure, at the end of its output. The root elects the first cause by
//! an order that does not depend on the number of failures. So the rank that the root elects is the first one of its agent too.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pmi::Rank;

use crate::core::NamespaceId;
use crate::core::limits::{QUOTED_BYTES_MAX, QUOTED_LINES_MAX};

/// The number in place of the namespace in the header of a message that is a quote. No namespace has it.
const QUOTE: u32 = u32::MAX;
/// Bytes before the lines: the mark, the rank, the namespace, and whether the lines stand together.
const HEADER_BYTES: usize = 13;

/// The last bytes of a stream. It takes memory only once something was written.
#[derive(Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(QUOTED_BYTES_MAX)..];
        if self.0.len() + new.len() > 2 * QUOTED_BYTES_MAX {
            self.0.drain(..self.0.len() - (QUOTED_BYTES_MAX - new.len()).min(self.0.len()));
        }
        self.0.extend_from_slice(new);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last lines without the last newline.
    fn lines(&self) -> &[u8] {
        let bytes = self.0.strip_suffix(b"\n").unwrap_or(&self.0);
        let bytes = &bytes[bytes.len().saturating_sub(QUOTED_BYTES_MAX)..];
        let before = memchr::memrchr_iter(b'\n', bytes).nth(QUOTED_LINES_MAX - 1);
        before.map_or(bytes, |at| &bytes[at + 1..])
    }
}

/// The rank that wrote last, and the number of lines since another rank wrote.
#[derive(Default, Debug)]
pub struct LastWriter {
    rank: Option<(NamespaceId, Rank)>,
    lines: usize,
}

impl LastWriter {
    /// Notes what a rank has written. At most as many lines as a quote has are counted.
    pub fn note(&mut self, rank: (NamespaceId, Rank), written: &[u8]) {
        let lines = memchr::memrchr_iter(b'\n', written).take(QUOTED_LINES_MAX).count();
        let begun = usize::from(!written.ends_with(b"\n"));
        let before = if self.rank == Some(rank) { self.lines } else { 0 };
        *self = Self { rank: Some(rank), lines: (before + lines + begun).min(QUOTED_LINES_MAX) };
    }

    /// Returns whether the last `lines` lines are all from this rank.
    pub fn has_written(&self, rank: (NamespaceId, Rank), lines: usize) -> bool {
        self.rank == Some(rank) && self.lines >= lines
    }
}

/// The last lines of a rank, as an agent sends them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quote {
    /// The rank's namespace.
    pub namespace: NamespaceId,
    /// The rank.
    pub rank: Rank,
    /// No other rank of the agent has written to standard error after the first of the lines.
    pub is_together: bool,
    /// The lines, without the last newline.
    pub lines: Bytes,
}

impl Quote {
    /// Returns the last lines of a rank.
    pub(super) fn of((namespace, rank): (NamespaceId, Rank), tail: &Tail, last: &LastWriter) -> Self {
        let lines = tail.lines();
        let is_together = last.has_written((namespace, rank), line_count(lines));
        Self { namespace, rank, is_together, lines: Bytes::copy_from_slice(lines) }
    }

    /// Returns the message of the lane Stderr.
    pub(super) fn message(&self) -> Bytes {
        let mut message = BytesMut::with_capacity(HEADER_BYTES + self.lines.len());
        message.put_u32_le(QUOTE);
        message.put_u32_le(self.rank.0);
        message.put_u32_le(self.namespace.0);
        message.put_u8(self.is_together.into());
        message.put_slice(&self.lines);
        message.freeze()
    }

    /// Reads a message of the lane Stderr; `None` if it is output.
    pub fn parse(message: &Bytes) -> Option<Self> {
        let mut message = message.clone();
        if message.len() < HEADER_BYTES || message.get_u32_le() != QUOTE {
            return None;
        }
        let rank = Rank(message.get_u32_le());
        let namespace = NamespaceId(message.get_u32_le());
        let is_together = message.get_u8() != 0;
        message.truncate(QUOTED_BYTES_MAX);
        Some(Self { namespace, rank, is_together, lines: message })
    }

    /// Returns the number of lines.
    pub fn line_count(&self) -> usize {
        line_count(&self.lines)
    }
}

fn line_count(lines: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', lines).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: (NamespaceId, Rank) = (NamespaceId(2), Rank(5));

    fn tail(pieces: &[&[u8]]) -> Tail {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail
    }

    #[test]
    fn the_last_ten_lines_are_stored() {
        let all: Vec<u8> = (0..100).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
        let last: Vec<String> = (90..100).map(|line| format!("line {line}")).collect();
        for size in [1, 7, 1000] {
            let tail = tail(&all.chunks(size).collect::<Vec<_>>());
            assert_eq!(String::from_utf8_lossy(tail.lines()), last.join("\n"), "{size}");
        }
        assert_eq!(tail(&[b"a\n", b"b"]).lines(), b"a\nb");
        assert!(tail(&[]).is_empty());
    }

    #[test]
    fn the_bytes_of_a_tail_have_a_bound() {
        for size in [1, 100, QUOTED_BYTES_MAX - 1, QUOTED_BYTES_MAX, QUOTED_BYTES_MAX + 1, 100_000] {
            let mut tail = Tail::default();
            for _ in 0..100_000 / size {
                tail.push(&vec![b'x'; size]);
                assert!(tail.0.len() <= 2 * QUOTED_BYTES_MAX);
            }
            tail.push(b"y");
            assert_eq!((tail.lines().len(), tail.lines().last()), (QUOTED_BYTES_MAX, Some(&b'y')), "{size}");
        }
    }

    #[test]
    fn a_quote_is_read_as_it_was_sent() {
        let mut last = LastWriter::default();
        last.note(RANK, b"a\nb\n");
        let quote = Quote::of(RANK, &tail(&[b"a\nb\n"]), &last);
        assert!(quote.is_together && quote.line_count() == 2 && &quote.lines[..] == b"a\nb");
        assert_eq!(Quote::parse(&quote.message()), Some(quote.clone()));
        let long = Quote { lines: vec![b'x'; QUOTED_BYTES_MAX + 1].into(), ..quote };
        assert_eq!(Quote::parse(&long.message()).unwrap().lines.len(), QUOTED_BYTES_MAX);
        for output in [&b"\0\0\0\0\x05\0\0\0lines of a rank\n"[..], b"\xff\xff\xff\xff", b""] {
            assert_eq!(Quote::parse(&Bytes::copy_from_slice(output)), None);
        }
    }

    #[test]
    fn lines_of_another_rank_separate_those_of_a_rank() {
        let other = (NamespaceId(2), Rank(6));
        let mut last = LastWriter::default();
        assert!(!last.has_written(RANK, 1));
        last.note(RANK, b"a\nb\n");
        assert!(last.has_written(RANK, 2) && !last.has_written(RANK, 3) && !last.has_written(other, 1));
        last.note(other, b"c\n");
        last.note(RANK, b"d\n");
        assert!(last.has_written(RANK, 1) && !last.has_written(RANK, 2));
        last.note(RANK, b"not complete");
        assert!(last.has_written(RANK, 2));
        last.note(RANK, &b"\n".repeat(100));
        assert!(last.has_written(RANK, QUOTED_LINES_MAX));
    }
}
