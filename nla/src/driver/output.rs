//! Reads the ranks' output from their pipes, cuts it into whole lines and sends it up.
//!
//! One thread per agent reads all pipes. Its priority is lower than that of the thread that serves PMI, so a flood of
//! output costs the job's fences only spare processor time. The thread reads a pipe only while the output lane to the
//! parent has room. Otherwise the bytes stay in the pipe, and a full pipe blocks the rank that writes. While ranks wait
//! in PMI, mostly in a fence, the thread reads a small budget at a time and pauses in between: each read wakes a
//! writer, which would compete for the processor with ranks that have not reached the fence yet.

mod direct;
mod lane;
mod pace;
mod quote;
mod reader;
mod room;
mod stream;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pmi::Rank;
use tokio::sync::oneshot;

use self::pace::{Pace, PmiWaits};
pub use self::quote::{LastWriter, Quote};
use self::reader::Reader;
use super::uplink::Uplink;
use crate::core::NamespaceId;
use crate::sys::{self, EpollSet, Waker};
use crate::tasks::Tasks;

/// Bytes before the data of an output message: the namespace and the rank, little-endian.
pub const STREAM_HEADER_BYTES: usize = 8;

/// The room that a pipe of a rank or at standard output gets when it is full for the first time. Its two ends then seldom wait for
/// each other.
pub const PIPE_BYTES: u32 = 256 * 1024;

/// Splits an upward output message into namespace, rank and data. Returns `None` if it is shorter than its header.
pub fn split_stream_message(mut message: Bytes) -> Option<(NamespaceId, Rank, Bytes)> {
    use bytes::Buf;
    (message.len() >= STREAM_HEADER_BYTES).then(|| {
        let namespace = NamespaceId(message.get_u32_le());
        let rank = Rank(message.get_u32_le());
        (namespace, rank, message)
    })
}

/// An order to the thread.
enum Command {
    /// Read these pipes, of standard output and error, from now on.
    Follow { namespace: NamespaceId, rank: Rank, pipes: [OwnedFd; 2] },
    /// The rank has exited: send its last lines even without a newline. If it has not failed, they will not be quoted.
    Ended { namespace: NamespaceId, rank: Rank, has_failed: bool },
    /// No process is left: read all pipes to their end, then send the last lines of this rank.
    Finish { quoted: Option<(NamespaceId, Rank)> },
    /// Read no more.
    Stop,
}

/// The commands that the thread has not taken. Bounded by the number of ranks.
struct Commands {
    queue: Mutex<Vec<Command>>,
    waker: Waker,
}

impl Commands {
    fn queue(&self) -> MutexGuard<'_, Vec<Command>> {
        // No holder of the lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.queue())
    }
}

/// The thread that reads the ranks' output.
pub(super) struct OutputPump {
    /// The thread's work, until it is started.
    work: Option<Box<dyn FnOnce() + Send>>,
    commands: Arc<Commands>,
    /// Commands that have not been sent to the thread. Waking it for each of a thousand ranks costs more than the
    /// commands.
    unsent: RefCell<Vec<Command>>,
    /// Yields the number of pipes that were left open, once all output was queued.
    finished: RefCell<Option<oneshot::Receiver<usize>>>,
    pmi_waits: Arc<PmiWaits>,
}

impl OutputPump {
    /// Prepares the thread. With `hold_lines`, a line waits for its newline; otherwise it is sent after
    /// [`PARTIAL_LINE_DELAY`](crate::core::limits::PARTIAL_LINE_DELAY). `streams` are those of the launcher
    /// to which the thread writes itself; without one, output goes to the parent.
    pub(super) fn new(parent: Uplink, hold_lines: bool, streams: [Option<File>; 2]) -> io::Result<Self> {
        let pmi_waits = Arc::new(PmiWaits::new());
        let pace = Pace::new(Arc::clone(&pmi_waits));
        // Created here, because the thread could not report a failure of it.
        let set = EpollSet::new()?;
        let commands = Arc::new(Commands { queue: Mutex::default(), waker: set.waker() });
        let orders = Arc::clone(&commands);
        let (done, finished) = oneshot::channel();
        let work = move || {
            sys::leave_exit_signals();
            sys::set_thread_nice(5);
            let reader = Reader::new(streams, set, pace, parent, hold_lines);
            if let Some(leaked) = reader.run(&orders) {
                let _ = done.send(leaked);
            }
        };
        let (work, unsent) = (Some(Box::new(work) as Box<_>), RefCell::default());
        Ok(Self { work, commands, unsent, finished: RefCell::new(Some(finished)), pmi_waits })
    }

    /// Starts the thread, unless it runs already. Call this before the first rank is started.
    pub(super) fn begin(&mut self, tasks: &Tasks) -> io::Result<()> {
        match self.work.take() {
            Some(work) => tasks.spawn_thread("output", work).map(drop),
            None => Ok(()),
        }
    }

    /// Sets whether ranks wait for answers, which restricts output to its budget.
    pub(super) fn set_pmi_waits(&self, waits: bool) {
        self.pmi_waits.set(waits);
    }

    /// Queues a rank's pipes of standard output and error to be read.
    pub(super) fn follow(&self, namespace: NamespaceId, rank: Rank, pipes: [OwnedFd; 2]) {
        self.unsent.borrow_mut().push(Command::Follow { namespace, rank, pipes });
    }

    /// Queues that the rank's process has exited.
    pub(super) fn on_ended(&self, namespace: NamespaceId, rank: Rank, has_failed: bool) {
        self.unsent.borrow_mut().push(Command::Ended { namespace, rank, has_failed });
    }

    /// Sends the queued commands to the thread. Call this when no more commands follow for now.
    pub(super) fn flush(&self) {
        let mut unsent = self.unsent.borrow_mut();
        if !unsent.is_empty() {
            self.commands.queue().append(&mut unsent);
            self.commands.waker.wake();
        }
    }

    /// Makes the thread read all pipes to their end; no process of the session is left. Once all output has been queued
    /// for the parent, the channel yields the number of pipes that processes out of reach still have open. Call this
    /// once. `quoted` is the rank whose last lines are sent, too.
    pub(super) fn finish(&self, quoted: Option<(NamespaceId, Rank)>) -> oneshot::Receiver<usize> {
        if self.work.is_some() {
            let (done, finished) = oneshot::channel();
            let _ = done.send(0);
            return finished;
        }
        self.unsent.borrow_mut().push(Command::Finish { quoted });
        self.flush();
        // A second call gets a channel that is closed.
        self.finished.take().unwrap_or_else(|| oneshot::channel().1)
    }
}

impl Drop for OutputPump {
    fn drop(&mut self) {
        self.unsent.borrow_mut().push(Command::Stop);
        self.flush();
    }
}
