//! The launcher's own stream, to which an agent on its machine writes the output of ranks.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};

use super::{PIPE_BYTES, STREAM_HEADER_BYTES};
use crate::sys::{self, EpollSet};

/// How long the reader of a pipe may read nothing while the agent has more to write. After that the launcher writes: it tells the
/// user that output is not read, and drops it at the end of the job.
const READER_TIME: Duration = Duration::from_millis(100);

/// A file, or a pipe that no other agent writes to.
pub(super) struct Direct {
    stream: File,
    /// Set until a pipe at standard output has been full.
    may_widen: bool,
    /// The messages that the pipe has no room for, in order. Bytes that are written already are cut from the first one.
    waiting: VecDeque<BytesMut>,
    /// When the launcher has to write, unless the reader reads before. Set while messages wait.
    deadline: Option<Instant>,
}

/// The result of a write.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// All are written.
    Written,
    /// The pipe is full. Call [`Direct::write_waiting`] when it has room, and at this time.
    Full(Instant),
    /// The agent cannot write them.
    Failed,
}

impl Direct {
    /// A pipe is opened again and added to `set`, which reports with `key` that it has room.
    ///
    /// # Errors
    ///
    /// The pipe cannot be opened, for example because it belongs to another user.
    pub(super) fn new(stream: File, is_stdout: bool, set: &EpollSet, key: usize) -> io::Result<Self> {
        let is_pipe = sys::is_pipe(stream.as_fd());
        let stream = if is_pipe { sys::open_pipe_again(&stream)? } else { stream };
        if is_pipe {
            set.add_writer(&stream, key)?;
        }
        Ok(Self { stream, may_widen: is_pipe && is_stdout, waiting: VecDeque::new(), deadline: None })
    }

    /// Writes a message after those that wait.
    pub(super) fn write(&mut self, message: BytesMut) -> Progress {
        self.waiting.push_back(message);
        match self.deadline {
            Some(deadline) => Progress::Full(deadline),
            None => self.write_waiting(),
        }
    }

    /// Writes the messages that wait, as far as the pipe has room.
    pub(super) fn write_waiting(&mut self) -> Progress {
        while let Some(message) = self.waiting.front_mut() {
            let bytes = &message[STREAM_HEADER_BYTES..];
            match self.stream.write(bytes) {
                Ok(count) if count == bytes.len() => {
                    self.waiting.pop_front();
                    self.deadline = None;
                }
                Ok(count @ 1..) => {
                    drop_written(message, count);
                    self.deadline = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if std::mem::take(&mut self.may_widen) {
                        sys::widen_pipe(self.stream.as_fd(), PIPE_BYTES);
                        continue;
                    }
                    let now = Instant::now();
                    let deadline = *self.deadline.get_or_insert(now + READER_TIME);
                    return if now < deadline { Progress::Full(deadline) } else { Progress::Failed };
                }
                _ => return Progress::Failed,
            }
        }
        Progress::Written
    }

    /// Closes the stream. Returns the messages that are not written.
    pub(super) fn into_waiting(self) -> VecDeque<BytesMut> {
        self.waiting
    }
}

/// Removes the first bytes of a message's data.
fn drop_written(message: &mut BytesMut, written: usize) {
    message.copy_within(..STREAM_HEADER_BYTES, written);
    message.advance(written);
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;

    use pmi::Rank;

    use super::super::split_stream_message;
    use super::*;
    use crate::core::NamespaceId;

    const KEY: usize = 7;

    fn message(text: &[u8]) -> BytesMut {
        BytesMut::from(&[&b"\x00\x00\x00\x00\x05\x00\x00\x00"[..], text].concat()[..])
    }

    fn text(message: BytesMut) -> Vec<u8> {
        let (namespace, rank, data) = split_stream_message(message.freeze()).expect("it has a header");
        assert_eq!((namespace, rank), (NamespaceId(0), Rank(5)));
        data.to_vec()
    }

    /// A pipe at standard output, with its reader.
    fn pipe(set: &EpollSet) -> (Direct, PipeReader) {
        let (reader, writer) = io::pipe().expect("a pipe");
        let direct = Direct::new(OwnedFd::from(writer).into(), true, set, KEY).expect("it can be opened again");
        (direct, reader)
    }

    /// Writes messages of one letter each until the pipe is full. Returns all that was written.
    fn fill(direct: &mut Direct) -> Vec<u8> {
        let mut all = Vec::new();
        for letter in (b'a'..=b'z').cycle() {
            let piece = [letter; 50_000];
            all.extend_from_slice(&piece);
            if direct.write(message(&piece)) != Progress::Written {
                break;
            }
        }
        all
    }

    #[test]
    fn messages_wait_in_order_for_room_in_a_full_pipe() {
        let set = EpollSet::new().expect("descriptors are left");
        let (mut direct, mut reader) = pipe(&set);
        let mut all = fill(&mut direct);
        assert!(all.len() > PIPE_BYTES as usize, "a full pipe has been widened");
        assert!(matches!(direct.write(message(b"last\n")), Progress::Full(_)));
        all.extend_from_slice(b"last\n");
        let mut read = vec![0; all.len() / 2];
        reader.read_exact(&mut read).expect("the pipe is full");
        let mut ready = Vec::new();
        while ready.is_empty() {
            set.wait(Some(Duration::from_secs(20)), &mut ready).expect("epoll works");
        }
        assert_eq!(ready[0], (KEY, false));
        assert_eq!(direct.write_waiting(), Progress::Written);
        drop(direct);
        reader.read_to_end(&mut read).expect("it can be read");
        assert!(read == all);
    }

    #[test]
    fn a_reader_that_reads_nothing_for_a_while_is_left_to_the_launcher() {
        let set = EpollSet::new().expect("descriptors are left");
        let (mut direct, mut reader) = pipe(&set);
        let all = fill(&mut direct);
        let Progress::Full(deadline) = direct.write_waiting() else { panic!("the pipe has no room") };
        assert_eq!(direct.write_waiting(), Progress::Full(deadline), "it is not put off");
        direct.deadline = Some(Instant::now());
        assert_eq!(direct.write_waiting(), Progress::Failed);
        let rest = direct.into_waiting().into_iter().flat_map(text).collect::<Vec<_>>();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("it can be read");
        assert!([read, rest].concat() == all);
    }

    #[test]
    fn a_reader_that_reads_a_little_gets_more_time() {
        let set = EpollSet::new().expect("descriptors are left");
        let (mut direct, mut reader) = pipe(&set);
        fill(&mut direct);
        direct.deadline = Some(Instant::now());
        reader.read_exact(&mut [0; 8192]).expect("the pipe is full");
        assert!(matches!(direct.write_waiting(), Progress::Full(deadline) if deadline > Instant::now()));
    }

    #[test]
    fn a_message_to_a_closed_pipe_is_left_to_the_launcher() {
        let set = EpollSet::new().expect("descriptors are left");
        let (mut direct, reader) = pipe(&set);
        drop(reader);
        assert_eq!(direct.write(message(b"text")), Progress::Failed);
        assert_eq!(direct.into_waiting().into_iter().map(text).collect::<Vec<_>>(), [b"text"]);
    }

    #[test]
    fn the_rest_of_a_message_keeps_its_header() {
        for (written, rest) in [(0, &b"text"[..]), (3, b"t")] {
            let mut message = message(b"text");
            drop_written(&mut message, written);
            assert_eq!(text(message), rest);
        }
    }
}
