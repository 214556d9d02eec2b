//! Writes the ranks' output: to the launcher's standard output and error, or to files.
//!
//! Agents send whole lines wherever the output has any. They are written in order of arrival, and then their receipts are
//! dropped, which lets the agents send more. The session's thread writes what need not wait for a reader. Each stream
//! that must wait has a thread for the rest, so that a slow reader of one delays neither the other nor the session.

mod files;

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use memchr::memchr;
use nix::errno::Errno;
use nla::core::NamespaceId;
use nla::driver::{PIPE_BYTES, split_stream_message};
use nla::link::Receipt;
use nla::sys;
use nla::tasks::Tasks;
use pmi::Rank;
use tokio::sync::mpsc::UnboundedSender;

use self::files::{Files, lock};
use crate::colour;
use crate::plan::pattern::{self, PlaceholderValues};
use crate::run::rank_locations::RankLocations;
use crate::run::stderr;

/// How long a text of scela-run itself waits for earlier reports, which may have another reader.
const REPORTS_TIME: Duration = Duration::from_secs(1);
/// Bytes gathered for one write, if that much has arrived.
const GATHER_BYTES: usize = 64 * 1024;

/// The minimum length of a piece of output that may have to wait for a reader. A write to a pipe returns only when all its
/// bytes are in the pipe: shorter writes show that a slow reader reads.
const PIECE_BYTES: usize = 4096;

/// One of the two output streams.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A report of a thread to the session.
#[derive(Debug)]
pub(crate) enum OutputEvent {
    /// Everything sent before [`Writer::end`] has been written.
    Done,
    /// The stream cannot be written any more. The reason is `None` for EPIPE: its reader has closed it.
    Closed(Stream, Option<String>),
    /// A file of output cannot be written, or the input cannot be read, with the text for the user.
    Failed(String),
    /// The text is for the user, and nothing has failed.
    Noted(String),
}

/// The format and destination of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    /// Write the rank before each line.
    pub(crate) labels: bool,
    /// Begin a new line when another rank has left a line unfinished.
    pub(crate) fresh_lines: bool,
    /// The pattern of file names, if the stream goes to files.
    pub(crate) pattern: Option<OsString>,
    /// The hosts of ranks, for patterns.
    pub(crate) locations: Arc<RankLocations>,
    /// The session's label, for patterns.
    pub(crate) session: String,
}

/// How far a thread is.
#[derive(Debug, Default)]
struct Flow {
    /// Bytes of messages that were queued.
    queued: AtomicU64,
    /// The part of them that was written or discarded.
    done: AtomicU64,
    /// Bytes that were written, labels included, and how many of them belong to messages that are `done`.
    written: AtomicU64,
    written_done: AtomicU64,
}

/// An order to a thread.
enum Order {
    Write(Bytes, Receipt),
    /// The first order may be the rest of a message that has been laid out.
    Rest(Receipt),
    End,
}

/// The sending side of a stream. The session's thread writes what need not wait for the reader, which takes less time than to
/// wake another thread for each message. The stream's thread starts when output has to wait for the first time, and
/// writes until nothing waits. Many small jobs print little or nothing.
#[derive(Clone)]
pub(crate) struct Writer {
    orders: Sender<Order>,
    flow: Arc<Flow>,
    stream: Stream,
    /// Locked by the thread while it writes.
    page: Arc<Mutex<Page>>,
    thread: Rc<RefCell<Thread>>,
    events: UnboundedSender<OutputEvent>,
    tasks: Tasks,
}

/// The thread of a stream.
enum Thread {
    Waiting(Receiver<Order>),
    Running,
    Failed,
}

impl Writer {
    /// Prepares the threads of standard output and standard error.
    pub(crate) fn both(
        style: impl Fn(Stream) -> Style,
        events: &UnboundedSender<OutputEvent>,
        tasks: &Tasks,
    ) -> (Self, Self) {
        let files = Arc::<Files>::default();
        let writer = |stream| Self::new(stream, style(stream), &files, events.clone(), tasks);
        (writer(Stream::Out), writer(Stream::Err))
    }

    fn new(
        stream: Stream,
        style: Style,
        files: &Arc<Files>,
        events: UnboundedSender<OutputEvent>,
        tasks: &Tasks,
    ) -> Self {
        // Bounded by the windows of the links that fill it.
        let (orders, incoming) = channel();
        let flow = Arc::new(Flow::default());
        let page = Page {
            stream,
            style,
            events: events.clone(),
            open: None,
            files: Arc::clone(files),
            closed: false,
            gathered: Vec::new(),
            taken: 0,
            flow: Arc::clone(&flow),
        };
        let (page, thread) = (Arc::new(Mutex::new(page)), Rc::new(RefCell::new(Thread::Waiting(incoming))));
        Self { orders, flow, stream, page, thread, events, tasks: tasks.clone() }
    }

    /// Starts the thread, unless it runs.
    fn start(&self) {
        let mut thread = self.thread.borrow_mut();
        let incoming = match std::mem::replace(&mut *thread, Thread::Running) {
            Thread::Waiting(incoming) => incoming,
            started => return *thread = started,
        };
        let name = match self.stream {
            Stream::Out => {
                sys::widen_pipe(io::stdout().as_fd(), PIPE_BYTES);
                "stdout"
            }
            Stream::Err => "stderr",
        };
        let (page, events) = (Arc::clone(&self.page), self.events.clone());
        let started = self.tasks.spawn_thread(name, move || {
            run(&page, &incoming);
            let _ = events.send(OutputEvent::Done);
        });
        if let Err(error) = started {
            *thread = Thread::Failed;
            let why = format!("no thread can be started: {error}");
            let _ = self.events.send(OutputEvent::Closed(self.stream, Some(why)));
        }
    }

    /// Writes an output message, or queues it to be written; its receipt is dropped when that is done.
    pub(crate) fn write(&self, message: Bytes, receipt: Receipt) {
        let length = message.len() as u64;
        // Otherwise the thread has more to write first, or the message is dropped.
        let may_write = !self.is_pending() && !matches!(*self.thread.borrow(), Thread::Failed);
        self.flow.queued.fetch_add(length, Ordering::Relaxed);
        let order = match self.page.try_lock() {
            Ok(mut page) if may_write && page.may_write_now() => {
                if page.write_now(message) {
                    return;
                }
                Order::Rest(receipt)
            }
            _ => Order::Write(message, receipt),
        };
        self.start();
        // The thread exits only after `end`, and nothing is sent after that. Without a thread the message is dropped.
        if self.orders.send(order).is_err() {
            self.flow.done.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// Returns whether messages were queued that have not been written to their ends.
    pub(crate) fn is_pending(&self) -> bool {
        self.flow.queued.load(Ordering::Relaxed) > self.flow.done.load(Ordering::Relaxed)
    }

    /// Returns how many bytes of these messages have not been written, or fewer if lines get labels.
    pub(crate) fn unwritten(&self) -> u64 {
        let [queued, done, written, written_done] =
            [&self.flow.queued, &self.flow.done, &self.flow.written, &self.flow.written_done]
                .map(|count| count.load(Ordering::Relaxed));
        queued.saturating_sub(done).saturating_sub(written.saturating_sub(written_done))
    }

    /// Returns a number that grows whenever the thread has written something.
    pub(crate) fn progress(&self) -> u64 {
        self.flow.done.load(Ordering::Relaxed).wrapping_add(self.flow.written.load(Ordering::Relaxed))
    }

    /// Ends the stream: [`OutputEvent::Done`] follows when everything is written.
    pub(crate) fn end(&self) {
        match &*self.thread.borrow() {
            Thread::Running => drop(self.orders.send(Order::End)),
            Thread::Waiting(_) | Thread::Failed => drop(self.events.send(OutputEvent::Done)),
        }
    }
}

/// The state of a stream that is being written.
struct Page {
    stream: Stream,
    style: Style,
    events: UnboundedSender<OutputEvent>,
    /// The rank that wrote last, if its line has no newline yet.
    open: Option<(NamespaceId, Rank)>,
    files: Arc<Files>,
    closed: bool,
    gathered: Vec<u8>,
    /// Bytes of the messages that were taken since the last write.
    taken: u64,
    flow: Arc<Flow>,
}

/// Writes what is ordered, until the order to end.
fn run(page: &Mutex<Page>, incoming: &Receiver<Order>) {
    let mut receipts = Vec::new();
    while let Ok(first) = incoming.recv() {
        let mut page = lock(page);
        // All orders that have arrived share one write.
        let more = std::iter::from_fn(|| incoming.try_recv().ok());
        let mut ended = false;
        for order in std::iter::once(first).chain(more) {
            match order {
                Order::Write(message, receipt) => {
                    let plain = page.take(message);
                    receipts.push(receipt);
                    if plain.len() >= GATHER_BYTES / 2 {
                        // A copy would take longer than a write of its own.
                        page.write_gathered();
                        page.write_bytes(&plain);
                        page.note_done();
                        receipts.clear();
                    } else {
                        page.gathered.extend_from_slice(&plain);
                    }
                }
                Order::Rest(receipt) => receipts.push(receipt),
                Order::End => ended = true,
            }
            if page.gathered.len() >= GATHER_BYTES {
                page.write();
                receipts.clear();
            }
        }
        page.write();
        receipts.clear();
        if ended {
            return;
        }
    }
}

impl Page {
    /// Takes a message. Returns its data if nothing is added to it; otherwise gathers it, or writes it to its file.
    fn take(&mut self, message: Bytes) -> Bytes {
        self.taken += message.len() as u64;
        let Some((namespace, rank, data)) = split_stream_message(message) else { return Bytes::new() };
        let namespace = self.style.locations.known(namespace);
        if let Some(pattern) = &self.style.pattern {
            let host = self.style.locations.of_rank(namespace, rank);
            let values = PlaceholderValues { namespace, rank, host, session: &self.style.session };
            let path = pattern::fill(pattern, &values);
            // A reader of a FIFO may be slow. Only this file waits for it.
            let file = self.files.find(&path);
            let mut file = lock(&file);
            let mut lines = Vec::new();
            let labels = self.style.labels;
            file.open_line = lay_out(&data, (namespace, rank), file.open_line, labels, labels, &mut lines);
            if let Err(error) = self.files.append(&mut file, &lines)
                && !std::mem::replace(&mut file.has_failed, true)
            {
                let text = format!("'{}' cannot be written: {error}", path.display());
                let _ = self.events.send(OutputEvent::Failed(text));
            }
        } else if self.style.labels || self.style.fresh_lines {
            let Style { labels, fresh_lines, .. } = self.style;
            self.open = lay_out(&data, (namespace, rank), self.open, labels, fresh_lines, &mut self.gathered);
        } else {
            return data;
        }
        Bytes::new()
    }

    /// Returns whether nothing has to be written before the next message.
    fn may_write_now(&self) -> bool {
        let is_first = match self.stream {
            Stream::Out => stderr::is_cleared(),
            Stream::Err => stderr::wait_written(Duration::ZERO),
        };
        is_first
            && !self.closed
            && self.style.pattern.is_none()
            && !(self.stream == Stream::Out && sys::stdout_was_closed())
    }

    /// Writes as much of a message as can be written without waiting. Returns whether that was all; [`Page::write`] writes the
    /// rest, and reports errors.
    fn write_now(&mut self, message: Bytes) -> bool {
        let plain = self.take(message);
        let written = self.write_ready(&self.gathered);
        self.gathered.drain(..written);
        let written = self.write_ready(&plain);
        self.gathered.extend_from_slice(&plain[written..]);
        let is_all = self.gathered.is_empty();
        if is_all {
            self.note_done();
        }
        is_all
    }

    /// Writes bytes as long as that need not wait. Returns their number.
    fn write_ready(&self, bytes: &[u8]) -> usize {
        let mut left = bytes;
        while !left.is_empty() {
            let written = match self.stream {
                Stream::Out => sys::write_ready(io::stdout().as_fd(), left),
                Stream::Err => sys::write_ready(io::stderr().as_fd(), left),
            };
            let Ok(count @ 1..) = written else { break };
            self.flow.written.fetch_add(count as u64, Ordering::Relaxed);
            left = &left[count..];
        }
        bytes.len() - left.len()
    }

    /// Writes what was gathered, and counts it as done.
    fn write(&mut self) {
        self.write_gathered();
        self.note_done();
    }

    fn write_gathered(&mut self) {
        let mut gathered = std::mem::take(&mut self.gathered);
        self.write_bytes(&gathered);
        gathered.clear();
        self.gathered = gathered;
    }

    /// Writes these bytes, unless the stream is closed.
    fn write_bytes(&mut self, bytes: &[u8]) {
        if self.closed || bytes.is_empty() {
            return;
        }
        let result = match self.stream {
            Stream::Out => {
                stderr::wait_cleared();
                write_stdout(bytes, &self.flow.written)
            }
            Stream::Err => {
                // Reports that were queued before come first. They have the same reader.
                stderr::wait_written(Duration::MAX);
                write_pieces(&io::stderr(), bytes, &self.flow.written)
            }
        };
        if let Err(error) = result {
            self.closed = true;
            let why = (error.kind() != io::ErrorKind::BrokenPipe).then(|| error.to_string());
            let _ = self.events.send(OutputEvent::Closed(self.stream, why));
        }
    }

    /// Counts the messages that were taken since the last write as done.
    fn note_done(&mut self) {
        self.flow.done.fetch_add(std::mem::take(&mut self.taken), Ordering::Relaxed);
        self.flow.written_done.store(self.flow.written.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Writes a text of scela-run itself to standard output, coloured on a terminal. A reader that has closed the pipe, such
/// as `head`, is not an error.
pub fn print(text: &str) -> io::Result<()> {
    // On a terminal, earlier reports come first.
    stderr::wait_written(REPORTS_TIME);
    match write_stdout(colour::for_stream(&io::stdout(), text).as_bytes(), &AtomicU64::default()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn write_stdout(bytes: &[u8], written: &AtomicU64) -> io::Result<()> {
    // Rust's runtime has opened /dev/null in place of a closed standard output.
    if sys::stdout_was_closed() { Err(Errno::EBADF.into()) } else { write_pieces(&io::stdout(), bytes, written) }
}

/// Writes at once what needs no reader, and the rest in pieces of whole lines. Adds each length to `written`.
fn write_pieces(target: &impl AsFd, mut bytes: &[u8], written: &AtomicU64) -> io::Result<()> {
    let mut note = |length: usize| {
        written.fetch_add(length as u64, Ordering::Relaxed);
        bytes = &bytes[length..];
        bytes
    };
    let mut left = note(0);
    if left.len() > 2 * PIECE_BYTES && sys::needs_no_reader(target.as_fd()) {
        write_all(target, left)?;
        left = note(left.len());
    }
    while !left.is_empty() {
        if left.len() > 2 * PIECE_BYTES {
            // Fails if no byte can be written now, and for files of which the kernel cannot tell.
            left = note(sys::write_ready(target.as_fd(), left).unwrap_or(0));
        }
        // This also ends the line.
        let piece = &left[..piece_length(left)];
        write_all(target, piece)?;
        left = note(piece.len());
    }
    Ok(())
}

/// Returns the length of the shortest part of whole lines that has [`PIECE_BYTES`], or of all bytes. Cuts a line that
/// would make the piece longer than two [`PIECE_BYTES`].
fn piece_length(bytes: &[u8]) -> usize {
    let Some(rest) = bytes.get(PIECE_BYTES - 1..).filter(|rest| !rest.is_empty()) else { return bytes.len() };
    let rest = &rest[..rest.len().min(PIECE_BYTES)];
    memchr(b'\n', rest).map_or(PIECE_BYTES, |newline| PIECE_BYTES + newline)
}

/// Writes all bytes without the standard library's buffer, which would hold back an unfinished line. Waits if the
/// descriptor is nonblocking, as a process that shares it may have made it.
pub(crate) fn write_all(target: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    while !bytes.is_empty() {
        match nix::unistd::write(target, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let mut wait = [PollFd::new(target.as_fd(), PollFlags::POLLOUT)];
                poll(&mut wait, PollTimeout::NONE)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Appends the formatted `data` of rank `key` to `out`; `open` is the rank whose line is unfinished so far. Returns the
/// rank whose line is unfinished afterwards.
fn lay_out(
    data: &[u8],
    key: (NamespaceId, Rank),
    open: Option<(NamespaceId, Rank)>,
    labels: bool,
    fresh_lines: bool,
    out: &mut Vec<u8>,
) -> Option<(NamespaceId, Rank)> {
    if data.is_empty() {
        return open;
    }
    if fresh_lines && open.is_some_and(|open| open != key) {
        out.push(b'\n');
    }
    if labels {
        let (namespace, rank) = key;
        let label =
            if namespace == NamespaceId::FIRST { format!("[{rank}] ") } else { format!("[{namespace}:{rank}] ") };
        let mut continued = open == Some(key);
        let mut rest = data;
        while !rest.is_empty() {
            if !std::mem::replace(&mut continued, false) {
                out.extend_from_slice(label.as_bytes());
            }
            let line;
            (line, rest) = rest.split_at(memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1));
            out.extend_from_slice(line);
        }
    } else {
        out.extend_from_slice(data);
    }
    (data.last() != Some(&b'\n')).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(chunks: &[(u32, &str)], labels: bool, fresh_lines: bool) -> String {
        let mut out = Vec::new();
        let mut open = None;
        for (rank, data) in chunks {
            open = lay_out(data.as_bytes(), (NamespaceId::FIRST, Rank(*rank)), open, labels, fresh_lines, &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bytes_pass_unchanged_by_default() {
        assert_eq!(page(&[(0, "a"), (1, "b\n"), (0, "c\n\n")], false, false), "ab\nc\n\n");
    }

    #[test]
    fn on_a_terminal_a_line_starts_fresh() {
        assert_eq!(page(&[(0, "name? "), (1, "hello\n"), (1, "x"), (1, "y\n")], false, true), "name? \nhello\nxy\n");
    }

    #[test]
    fn each_line_gets_its_label_once() {
        assert_eq!(page(&[(0, "a\nb"), (0, "c\n"), (3, "d\n")], true, true), "[0] a\n[0] bc\n[3] d\n");
        assert_eq!(page(&[(0, "a"), (3, "d\n"), (0, "e\n")], true, true), "[0] a\n[3] d\n[0] e\n");
    }

    #[test]
    fn pieces_have_whole_lines() {
        let lines = |lengths: &[usize]| -> Vec<u8> {
            lengths.iter().flat_map(|length| std::iter::repeat_n(b'x', length - 1).chain([b'\n'])).collect()
        };
        assert_eq!(piece_length(&lines(&[10, 20])), 30);
        assert_eq!(piece_length(&lines(&[10, PIECE_BYTES - 10, 20])), PIECE_BYTES);
        assert_eq!(piece_length(&lines(&[10, PIECE_BYTES - 9, 20])), PIECE_BYTES + 1);
        assert_eq!(piece_length(&lines(&[100, 2 * PIECE_BYTES - 101, 5])), 2 * PIECE_BYTES - 1);
        assert_eq!(piece_length(&lines(&[100, 2 * PIECE_BYTES - 100, 5])), PIECE_BYTES, "a long line is cut");
        assert_eq!(piece_length(&[b'x'; PIECE_BYTES]), PIECE_BYTES);
        assert_eq!(piece_length(&[b'x'; PIECE_BYTES - 1]), PIECE_BYTES - 1, "a line without its end");
    }
}
