//! A rank's pipe: how it is waited for, and how its bytes are cut into messages of whole lines.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use pmi::Rank;

use super::quote::Tail;
use super::{PIPE_BYTES, STREAM_HEADER_BYTES};
use crate::core::NamespaceId;
use crate::core::limits::{PARTIAL_LINE_BYTES_MAX, PARTIAL_LINES_BYTES_MAX, STREAM_BYTES_MAX};
use crate::sys;

/// Bytes read from a pipe at a time.
pub(super) const READ_BYTES: usize = 64 * 1024;
/// Bytes of the buffer from which messages are cut.
const BUFFER_BYTES: usize = 4 * READ_BYTES;
/// The number of close reports in succession after which a pipe is busy.
const REPORTS_OF_BUSY: u8 = 4;
/// A report is close to the one before if it comes within this time,
const BUSY_TIME: Duration = Duration::from_millis(2);
/// or if it brings at least this many bytes.
const BUSY_BYTES: usize = 8 * 1024;
/// The number of empty reads in succession after which a busy pipe is quiet again.
const READS_OF_QUIET: u8 = 4;

/// The reader of a pipe learns of its bytes in one of two ways.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// The epoll set reports it. `busy` counts close reports in succession.
    Reported { busy: u8 },
    /// The reader polls it. `idle` counts empty reads in succession.
    Polled { idle: u8 },
}

impl Watch {
    pub(super) const REPORTED: Self = Self::Reported { busy: 0 };
    pub(super) const POLLED: Self = Self::Polled { idle: 0 };
}

/// A rank's pipe.
pub(super) struct Stream {
    pub(super) pipe: OwnedFd,
    pub(super) namespace: NamespaceId,
    pub(super) rank: Rank,
    /// The number of its lane.
    pub(super) lane: usize,
    pub(super) watch: Watch,
    /// It waits in the queue of pipes to be read.
    pub(super) is_queued: bool,
    /// It was given more room, or cannot get more.
    is_widened: bool,
    /// No process has the other end open: the pipe is read until it is empty.
    pub(super) has_no_writer: bool,
    /// When bytes were found last.
    pub(super) last_read: Instant,
    /// Bytes of the pipe that are still to be read before its last line is sent, or before it is given up. Set when the
    /// rank exited, and again when no process was left: a process that outlived the rank may write for ever.
    pub(super) left: Option<usize>,
    /// It is the rank's standard error.
    pub(super) is_stderr: bool,
    /// Its last bytes, if they may be quoted.
    pub(super) tail: Option<Tail>,
    /// The beginning of a line without its newline.
    held: Vec<u8>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Found {
    /// So many bytes, and perhaps lines to be sent.
    Bytes(usize, Option<BytesMut>),
    Nothing,
    /// The end of the pipe.
    End,
}

impl Stream {
    pub(super) fn new(namespace: NamespaceId, rank: Rank, lane: usize, pipe: OwnedFd, is_stderr: bool) -> Self {
        Self {
            pipe,
            namespace,
            rank,
            lane,
            watch: Watch::REPORTED,
            is_queued: false,
            is_widened: false,
            has_no_writer: false,
            last_read: Instant::now(),
            left: None,
            is_stderr,
            tail: is_stderr.then(Tail::default),
            held: Vec::new(),
        }
    }

    /// Returns the number of bytes in the pipe.
    pub(super) fn unread(&self) -> usize {
        sys::unread_bytes(self.pipe.as_fd()).unwrap_or(0)
    }

    /// Gives the pipe more room, if a read that found `count` bytes found it full. Returns whether it tried to, which it does once.
    pub(super) fn widen(&mut self, count: usize) -> bool {
        let may_widen = count == READ_BYTES && !self.is_widened;
        if may_widen {
            self.is_widened = true;
            sys::widen_pipe(self.pipe.as_fd(), PIPE_BYTES);
        }
        may_widen
    }

    /// Returns the length of the incomplete line.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Reads once, at most [`READ_BYTES`]. Cuts a message of whole lines from `buffer`, which is empty before and after,
    /// and stores the rest. `others` is the number of bytes that other streams store.
    pub(super) fn read(&mut self, buffer: &mut BytesMut, others: usize) -> Found {
        let start = self.begin_message(buffer, READ_BYTES);
        let bytes_max = READ_BYTES.min(STREAM_BYTES_MAX - start);
        let count = match sys::read_more(self.pipe.as_fd(), buffer, bytes_max) {
            Ok(count) => count,
            Err(error) if [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::Interrupted].contains(&error.kind()) => {
                buffer.clear();
                if let Watch::Polled { idle } = &mut self.watch {
                    *idle = idle.saturating_add(1);
                }
                return Found::Nothing;
            }
            Err(_) => 0,
        };
        if count == 0 {
            buffer.clear();
            return Found::End;
        }
        self.note_read(count);
        if let Some(tail) = &mut self.tail {
            tail.push(&buffer[start..]);
        }
        let whole = whole_lines(&buffer[STREAM_HEADER_BYTES..], self.held.len(), others);
        let message = if whole > 0 {
            self.held = buffer[STREAM_HEADER_BYTES + whole..].to_vec();
            let message = buffer.split_to(STREAM_HEADER_BYTES + whole);
            Some(message)
        } else {
            self.held.extend_from_slice(&buffer[start..]);
            None
        };
        buffer.clear();
        Found::Bytes(count, message)
    }

    /// Cuts a message of the incomplete line, if there is one.
    pub(super) fn take_held(&mut self, buffer: &mut BytesMut) -> Option<BytesMut> {
        (!self.held.is_empty()).then(|| {
            self.begin_message(buffer, 0);
            self.held = Vec::new();
            buffer.split()
        })
    }

    /// Returns whether the pipe should be polled, since it is reported too often.
    pub(super) fn is_busy(&self) -> bool {
        self.watch == Watch::Reported { busy: REPORTS_OF_BUSY }
    }

    /// Returns whether the pipe need not be polled any longer.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.watch, Watch::Polled { idle: READS_OF_QUIET.. })
    }

    fn note_read(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.last_read, Instant::now());
        self.left = self.left.map(|left| left.saturating_sub(count));
        match &mut self.watch {
            Watch::Reported { busy } if count >= BUSY_BYTES || self.last_read - before < BUSY_TIME => {
                *busy = (*busy + 1).min(REPORTS_OF_BUSY);
            }
            Watch::Reported { busy } => *busy = 0,
            Watch::Polled { idle } => *idle = 0,
        }
    }

    /// Begins a message in the empty buffer with the incomplete line, and makes room for `more` bytes. Returns the
    /// message's length so far.
    fn begin_message(&self, buffer: &mut BytesMut, more: usize) -> usize {
        let start = STREAM_HEADER_BYTES + self.held.len();
        if buffer.capacity() < start + more && !buffer.try_reclaim(start + more) {
            // The messages that were cut from the old one keep it.
            *buffer = BytesMut::with_capacity(BUFFER_BYTES.max(start + more));
        }
        buffer.put_u32_le(self.namespace.0);
        buffer.put_u32_le(self.rank.0);
        buffer.put_slice(&self.held);
        start
    }
}

/// Returns how many of the bytes of a stream are to be sent: whole lines, or all if they are too many to be stored. The
/// first `held` bytes have no newline. Other streams store `others` bytes.
fn whole_lines(bytes: &[u8], held: usize, others: usize) -> usize {
    match memchr::memrchr(b'\n', &bytes[held..]) {
        Some(at) => held + at + 1,
        None if bytes.len() >= PARTIAL_LINE_BYTES_MAX || others + bytes.len() > PARTIAL_LINES_BYTES_MAX => bytes.len(),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Write};

    use super::*;

    /// A stream and the end of its pipe that the rank writes to.
    fn stream(rank: u32) -> (Stream, PipeWriter) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        sys::set_nonblocking(reader.as_fd()).expect("a pipe can be nonblocking");
        (Stream::new(NamespaceId(0), Rank(rank), 0, reader.into(), false), writer)
    }

    /// Writes to a stream's pipe and reads all of it. Returns the lengths of the messages' data.
    fn pass((stream, writer): &mut (Stream, PipeWriter), bytes: &[u8], others: usize) -> Vec<usize> {
        let mut buffer = BytesMut::new();
        let mut sent = Vec::new();
        for piece in bytes.chunks(READ_BYTES) {
            writer.write_all(piece).expect("the pipe has room");
            while let Found::Bytes(_, message) = stream.read(&mut buffer, others) {
                sent.extend(message.map(|message| message.len() - STREAM_HEADER_BYTES));
            }
        }
        sent
    }

    #[test]
    fn lines_without_an_end_have_a_bound_each_and_together() {
        let mut one = stream(0);
        assert_eq!(pass(&mut one, &[b'x'; PARTIAL_LINE_BYTES_MAX - 1], 0), []);
        assert_eq!(pass(&mut one, b"y", 0), [PARTIAL_LINE_BYTES_MAX]);

        let longest = STREAM_BYTES_MAX - STREAM_HEADER_BYTES;
        assert_eq!(pass(&mut one, &[b'x'; PARTIAL_LINE_BYTES_MAX - 1], 0), []);
        assert_eq!(pass(&mut one, &[b'x'; READ_BYTES], 0), [longest]);
        assert_eq!(pass(&mut one, b"\n", 0), [PARTIAL_LINE_BYTES_MAX + READ_BYTES - longest]);

        let others = PARTIAL_LINES_BYTES_MAX - 1;
        assert_eq!(pass(&mut one, b"1", others), [], "all lines together are as long as the bound");
        assert_eq!(pass(&mut one, b"2", others), [2], "beyond it the line that grew is sent");
        assert_eq!(pass(&mut one, b"3", 0), []);
        assert_eq!(pass(&mut one, b"4\n5", 0), [3]);
        assert_eq!(one.0.held(), 1);
    }

    #[test]
    fn messages_begin_with_the_rank_and_continue_the_line() {
        let (mut stream, mut writer) = stream(3);
        let mut buffer = BytesMut::new();
        writer.write_all(b"a\nb").expect("the pipe has room");
        let Found::Bytes(3, Some(first)) = stream.read(&mut buffer, 0) else { panic!("a line was written") };
        assert_eq!(&first[..], b"\0\0\0\0\x03\0\0\0a\n");
        writer.write_all(b"c\n").expect("the pipe has room");
        let Found::Bytes(2, Some(second)) = stream.read(&mut buffer, 0) else { panic!("a line was written") };
        assert_eq!(&second[STREAM_HEADER_BYTES..], b"bc\n");
        assert!(stream.take_held(&mut buffer).is_none());
        writer.write_all(b"d").expect("the pipe has room");
        assert!(matches!(stream.read(&mut buffer, 0), Found::Bytes(1, None)));
        drop(writer);
        assert!(matches!(stream.read(&mut buffer, 0), Found::End));
        assert_eq!(&stream.take_held(&mut buffer).expect("a line is held")[STREAM_HEADER_BYTES..], b"d");
    }

    #[test]
    fn a_pipe_that_is_reported_often_is_busy_until_it_is_empty_for_a_while() {
        let (mut stream, mut writer) = stream(0);
        let mut buffer = BytesMut::new();
        // As many reports as it takes, however slow this machine is: one of them after a pause begins the count anew.
        while !stream.is_busy() {
            writer.write_all(b"x\n").expect("the pipe has room");
            assert!(matches!(stream.read(&mut buffer, 0), Found::Bytes(2, Some(_))));
        }
        stream.watch = Watch::POLLED;
        for _ in 0..READS_OF_QUIET {
            assert!(!stream.is_quiet());
            assert!(matches!(stream.read(&mut buffer, 0), Found::Nothing));
        }
        assert!(stream.is_quiet());
    }
}
