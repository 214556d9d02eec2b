//! The end of the way for what ranks write: the launcher's own standard output and error, or files.
//!
//! A thread for each stream, so that a slow reader of one does not hold up the other, nor the
//! session. What agents send are whole lines wherever there are any; a thread writes them as they
//! come and only then lets go of their receipt, which lets the agents send more.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use nix::errno::Errno;
use nla::core::NamespaceId;
use nla::driver::split_stream_message;
use nla::link::Receipt;
use nla::sys;
use pmi::Rank;
use tokio::sync::mpsc::UnboundedSender;

use crate::plan::pattern::{self, Values};
use crate::run::rank_locations::RankLocations;

/// Files kept open at a time; ranks beyond have theirs closed and opened again.
const FILES_OPEN_MAX: usize = 256;
/// Bytes gathered before they are written, where more is there at once.
const GATHER_BYTES: usize = 64 * 1024;

/// Which of the two.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What a thread tells the session.
#[derive(Debug)]
pub(crate) enum OutputEvent {
    /// All that was sent before [`Writer::end`] has been written.
    Done,
    /// Nobody takes what is written any more; why, unless the reader has just gone.
    Closed(Stream, Option<String>),
    /// A file could not be written; what it was to get is lost.
    FileFailed(String),
}

/// How a stream is written.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    /// Put the rank in front of each line.
    pub(crate) labels: bool,
    /// Another rank's line does not continue an unfinished one.
    pub(crate) fresh_lines: bool,
    /// Into files, by this pattern.
    pub(crate) pattern: Option<OsString>,
    /// For patterns.
    pub(crate) locations: Arc<RankLocations>,
    /// For patterns.
    pub(crate) session: String,
}

/// What goes into a thread.
enum Order {
    Write(Bytes, Receipt),
    End,
}

/// The way into a running thread.
#[derive(Clone)]
pub(crate) struct Writer {
    orders: Sender<Order>,
}

impl Writer {
    /// Starts the thread for `stream`.
    pub(crate) fn start(stream: Stream, style: Style, events: UnboundedSender<OutputEvent>) -> io::Result<Self> {
        // Bounded by the windows of the links that fill it.
        let (orders, incoming) = channel();
        let name = if stream == Stream::Out { "stdout" } else { "stderr" };
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut page = Page {
                stream,
                style,
                events,
                open: None,
                files: Files::default(),
                closed: false,
                gathered: Vec::new(),
            };
            page.run(&incoming);
            let _ = page.events.send(OutputEvent::Done);
        })?;
        Ok(Self { orders })
    }

    /// Writes an upward stream message, some time soon, and lets go of the receipt then.
    pub(crate) fn write(&self, message: Bytes, receipt: Receipt) {
        // The thread ends only after `end`, and nothing is sent after that.
        let _ = self.orders.send(Order::Write(message, receipt));
    }

    /// Nothing follows: [`OutputEvent::Done`] tells when all is written.
    pub(crate) fn end(&self) {
        let _ = self.orders.send(Order::End);
    }
}

/// What has been written so far, and how it goes on.
struct Page {
    stream: Stream,
    style: Style,
    events: UnboundedSender<OutputEvent>,
    /// Whose line has no end yet.
    open: Option<(NamespaceId, Rank)>,
    files: Files,
    closed: bool,
    gathered: Vec<u8>,
}

impl Page {
    fn run(&mut self, incoming: &Receiver<Order>) {
        let mut receipts = Vec::new();
        while let Ok(first) = incoming.recv() {
            // What is there already goes out in one write; nothing is waited for.
            let more = std::iter::from_fn(|| incoming.try_recv().ok());
            let mut ended = false;
            for order in std::iter::once(first).chain(more) {
                match order {
                    Order::Write(message, receipt) => {
                        self.take(message);
                        receipts.push(receipt);
                    }
                    Order::End => ended = true,
                }
                if self.gathered.len() >= GATHER_BYTES {
                    self.write();
                    receipts.clear();
                }
            }
            self.write();
            receipts.clear();
            if ended {
                return;
            }
        }
    }

    fn take(&mut self, message: Bytes) {
        let Some((namespace, rank, data)) = split_stream_message(message) else { return };
        if let Some(pattern) = &self.style.pattern {
            let host = self.style.locations.of_rank(namespace, rank);
            let values = Values { namespace, rank, host, session: &self.style.session };
            let path = pattern::fill(pattern, &values);
            let mut lines = Vec::new();
            let open = self.files.open_lines.get(&path).copied();
            let open = lay_out(&data, (namespace, rank), open, self.style.labels, self.style.labels, &mut lines);
            match open {
                Some(key) => drop(self.files.open_lines.insert(path.clone(), key)),
                None => drop(self.files.open_lines.remove(&path)),
            }
            if let Err(error) = self.files.append(&path, &lines)
                && self.files.failed.insert(path.clone())
            {
                let text = format!("'{}' cannot be written: {error}", path.display());
                let _ = self.events.send(OutputEvent::FileFailed(text));
            }
        } else {
            let Style { labels, fresh_lines, .. } = self.style;
            self.open = lay_out(&data, (namespace, rank), self.open, labels, fresh_lines, &mut self.gathered);
        }
    }

    fn write(&mut self) {
        if !self.closed && !self.gathered.is_empty() {
            let result = match self.stream {
                // Rust's runtime has opened /dev/null in place of a closed standard output.
                Stream::Out if sys::stdout_was_closed() => Err(Errno::EBADF.into()),
                Stream::Out => write_all(&io::stdout(), &self.gathered),
                Stream::Err => write_all(&io::stderr(), &self.gathered),
            };
            if let Err(error) = result {
                self.closed = true;
                let why = (error.kind() != io::ErrorKind::BrokenPipe).then(|| error.to_string());
                let _ = self.events.send(OutputEvent::Closed(self.stream, why));
            }
        }
        self.gathered.clear();
    }
}

/// Past the standard library's own buffer, which would hold back an unfinished line; and patient
/// where somebody has made the descriptor nonblocking.
fn write_all(target: &impl std::os::fd::AsFd, mut bytes: &[u8]) -> io::Result<()> {
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

/// Appends `data` of `key` to `out` as it is to be read, after a page on which `open` has an
/// unfinished line. The result is who has one afterwards.
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
        let mut continued = open == Some(key);
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            if !std::mem::replace(&mut continued, false) {
                let (namespace, rank) = key;
                let label = if namespace == NamespaceId::FIRST {
                    format!("[{rank}] ")
                } else {
                    format!("[{namespace}:{rank}] ")
                };
                out.extend_from_slice(label.as_bytes());
            }
            out.extend_from_slice(line);
        }
    } else {
        out.extend_from_slice(data);
    }
    (data.last() != Some(&b'\n')).then_some(key)
}

#[derive(Default)]
struct Files {
    open: HashMap<PathBuf, File>,
    begun: HashSet<PathBuf>,
    failed: HashSet<PathBuf>,
    open_lines: HashMap<PathBuf, (NamespaceId, Rank)>,
}

impl Files {
    fn append(&mut self, path: &PathBuf, bytes: &[u8]) -> io::Result<()> {
        if !self.open.contains_key(path) {
            if self.open.len() >= FILES_OPEN_MAX {
                self.open.clear();
            }
            let fresh = self.begun.insert(path.clone());
            if fresh && let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let file = OpenOptions::new().create(true).write(true).append(!fresh).truncate(fresh).open(path)?;
            self.open.insert(path.clone(), file);
        }
        match self.open.get_mut(path) {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }
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
    fn files_beyond_the_bound_are_continued_not_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        for turn in 0..2 {
            for i in 0..FILES_OPEN_MAX + 3 {
                files.append(&dir.path().join(format!("out.{i}")), format!("{turn}\n").as_bytes()).unwrap();
            }
        }
        for i in [0, 1, FILES_OPEN_MAX + 2] {
            assert_eq!(fs::read_to_string(dir.path().join(format!("out.{i}"))).unwrap(), "0\n1\n");
        }
    }
}
