//! Reads the ranks' output from their pipes, cuts it into whole lines and sends it up.
//!
//! One thread per agent reads all pipes. Its priority is lower than that of the thread that serves PMI, so a flood of
//! output costs the job's fences only spare processor time. The thread reads a pipe only while the output lane to the
//! parent has room. Otherwise the bytes stay in the pipe, and a full pipe blocks the rank that writes. While ranks wait
//! in PMI, mostly in a fence, the thread reads a small budget at a time and pauses in between: each read wakes a
//! writer, which would compete for the processor with ranks that have not reached the fence yet.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pmi::Rank;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::uplink::Uplink;
use crate::core::NamespaceId;
use crate::core::limits::{
    DRAIN_TIME, PARTIAL_LINE_BYTES_MAX, PARTIAL_LINE_DELAY, PARTIAL_LINES_BYTES_MAX, STREAM_WINDOW_BYTES,
};
use crate::link::Receipt;
use crate::sys;
use crate::tasks::Tasks;
use crate::wire::Lane;

/// Bytes before the data of an output message: the namespace and the rank, little-endian.
pub const STREAM_HEADER_BYTES: usize = 8;
/// Bytes read from a pipe at a time.
const READ_BYTES: usize = 64 * 1024;
/// Read budget: bytes that are read between two pauses while ranks wait in PMI.
const BUDGET_BYTES: usize = 64 * 1024;
/// The pause before the next budget: output gets at least 8 MB/s per agent.
const BUDGET_PAUSE: Duration = Duration::from_millis(8);
/// How long one wait in PMI restricts output to the budget: output does not cause longer waits.
const URGENT_TIME: Duration = Duration::from_millis(50);
/// How long output stays restricted after the last wait has ended: the next fence may follow soon.
const URGENT_AFTER_TIME: Duration = Duration::from_millis(5);

/// Splits an upward output message into namespace, rank and data. Returns `None` if it is shorter than its header.
pub fn split_stream_message(mut message: Bytes) -> Option<(NamespaceId, Rank, Bytes)> {
    use bytes::Buf;
    (message.len() >= STREAM_HEADER_BYTES).then(|| {
        let namespace = NamespaceId(message.get_u32_le());
        let rank = Rank(message.get_u32_le());
        (namespace, rank, message)
    })
}

enum Command {
    /// Read this pipe from now on.
    Follow { namespace: NamespaceId, rank: Rank, lane: Lane, pipe: OwnedFd },
    /// The rank has exited: send its last line even without a newline.
    Ended { namespace: NamespaceId, rank: Rank },
    /// No process is left: read all pipes to their end, then send the number of pipes that are still open.
    Finish { done: oneshot::Sender<usize> },
}

/// The thread that reads the ranks' output.
pub(super) struct OutputPump {
    commands: mpsc::UnboundedSender<Vec<Command>>,
    /// Commands that have not been sent to the thread. Waking it for each of a thousand ranks costs more than the
    /// commands.
    unsent: RefCell<Vec<Command>>,
    pmi_waits: Arc<PmiWaits>,
}

/// The period in which waits in PMI restrict output.
struct PmiWaits {
    clock: Instant,
    waits: AtomicBool,
    /// Microseconds after `clock`.
    until_us: AtomicU64,
}

impl PmiWaits {
    fn new() -> Self {
        Self { clock: Instant::now(), waits: AtomicBool::new(false), until_us: AtomicU64::new(0) }
    }

    fn set(&self, waits: bool) {
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            let time = if waits { URGENT_TIME } else { URGENT_AFTER_TIME };
            let until = self.clock.elapsed() + time;
            self.until_us.store(until.as_micros() as u64, Ordering::Relaxed);
        }
    }

    fn is_urgent(&self) -> bool {
        self.clock.elapsed() < Duration::from_micros(self.until_us.load(Ordering::Relaxed))
    }
}

/// The runtime of the thread. If a limit refuses the thread, this is dropped by a task of the agent's runtime. There the
/// drop of a runtime that waits for its threads would panic.
struct ThreadRuntime(Option<Runtime>);

impl ThreadRuntime {
    fn build() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Self(Some(runtime)))
    }

    fn block_on(&self, work: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            LocalSet::new().block_on(runtime, work);
        }
    }
}

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl OutputPump {
    /// Starts the thread. With `hold_lines`, a line waits for its newline; otherwise it is sent after
    /// [`PARTIAL_LINE_DELAY`].
    pub(super) fn start(parent: Uplink, hold_lines: bool, tasks: &Tasks) -> io::Result<Self> {
        // Bounded by the number of ranks: two pipes and one end for each.
        let (commands, incoming) = mpsc::unbounded_channel();
        let pmi_waits = Arc::new(PmiWaits::new());
        let waits = Arc::clone(&pmi_waits);
        let streams = tasks.group();
        // Built here, because the thread could not report a failure of it.
        let runtime = ThreadRuntime::build()?;
        tasks.spawn_thread("output", move || {
            sys::leave_exit_signals();
            sys::set_thread_nice(5);
            runtime.block_on(run(incoming, streams, parent, hold_lines, waits));
        })?;
        Ok(Self { commands, unsent: RefCell::default(), pmi_waits })
    }

    /// Sets whether ranks wait for answers, which restricts output to its budget.
    pub(super) fn set_pmi_waits(&self, waits: bool) {
        self.pmi_waits.set(waits);
    }

    /// Queues `pipe`, a rank's standard output or error, to be read.
    pub(super) fn follow(&self, namespace: NamespaceId, rank: Rank, lane: Lane, pipe: OwnedFd) {
        self.unsent.borrow_mut().push(Command::Follow { namespace, rank, lane, pipe });
    }

    /// Queues that the rank's process has exited.
    pub(super) fn on_ended(&self, namespace: NamespaceId, rank: Rank) {
        self.unsent.borrow_mut().push(Command::Ended { namespace, rank });
    }

    /// Sends the queued commands to the thread. Call this when no more commands follow for now.
    pub(super) fn flush(&self) {
        let unsent = self.unsent.take();
        if !unsent.is_empty() {
            // The thread exits only after `finish`.
            let _ = self.commands.send(unsent);
        }
    }

    /// Makes the thread read all pipes to their end; no process of the session is left. Once all output has been queued
    /// for the parent, the channel yields the number of pipes that processes out of reach still have open.
    pub(super) fn finish(&self) -> oneshot::Receiver<usize> {
        let (done, result) = oneshot::channel();
        self.unsent.borrow_mut().push(Command::Finish { done });
        self.flush();
        result
    }
}

/// State that the tasks of the thread share.
struct Shared {
    parent: Uplink,
    hold_lines: bool,
    /// Bytes of lines that wait for their newline.
    held: Cell<usize>,
    /// Bytes that may still be queued for the parent, by lane.
    room: HashMap<Lane, Arc<Semaphore>>,
    scratch: RefCell<Vec<u8>>,
    /// The number of pipes that were given up because processes out of reach have them open.
    leaked: Cell<usize>,
    /// Cancelled when no process is left that could write.
    finishing: CancellationToken,
    pmi_waits: Arc<PmiWaits>,
    /// The remaining bytes of the read budget.
    budget: Cell<usize>,
    next_budget: Cell<Instant>,
}

impl Shared {
    fn new(parent: Uplink, hold_lines: bool, pmi_waits: Arc<PmiWaits>) -> Self {
        let semaphore = |lane| (lane, Arc::new(Semaphore::new(STREAM_WINDOW_BYTES as usize)));
        Self {
            parent,
            hold_lines,
            held: Cell::new(0),
            room: [Lane::Stdout, Lane::Stderr].map(semaphore).into(),
            scratch: RefCell::new(vec![0; READ_BYTES]),
            leaked: Cell::new(0),
            finishing: CancellationToken::new(),
            pmi_waits,
            budget: Cell::new(BUDGET_BYTES),
            next_budget: Cell::new(Instant::now()),
        }
    }

    /// Waits for a share of the read budget while ranks wait in PMI.
    async fn turn(&self) {
        while self.pmi_waits.is_urgent() {
            let left = self.budget.get();
            if left > 0 {
                self.budget.set(left.saturating_sub(READ_BYTES));
                return;
            }
            let next = self.next_budget.get();
            tokio::time::sleep_until(next).await;
            // Many streams wake at this time. The first one renews the budget.
            if self.next_budget.get() == next {
                self.budget.set(BUDGET_BYTES);
                self.next_budget.set(Instant::now() + BUDGET_PAUSE);
            }
        }
    }
}

async fn run(
    mut incoming: mpsc::UnboundedReceiver<Vec<Command>>,
    streams: Tasks,
    parent: Uplink,
    hold_lines: bool,
    pmi_waits: Arc<PmiWaits>,
) {
    let shared = Rc::new(Shared::new(parent, hold_lines, pmi_waits));
    let mut ends: HashMap<(NamespaceId, Rank), CancellationToken> = HashMap::new();
    while let Some(commands) = incoming.recv().await {
        for command in commands {
            match command {
                Command::Follow { namespace, rank, lane, pipe } => {
                    let ended = ends.entry((namespace, rank)).or_default().clone();
                    match Receiver::from_owned_fd_unchecked(pipe) {
                        Ok(pipe) => {
                            let shared = Rc::clone(&shared);
                            let stream = Stream { shared, namespace, rank, lane, held: BytesMut::new() };
                            streams.spawn("output stream", Span::current(), stream.run(pipe, ended));
                        }
                        Err(error) => tracing::warn!(%rank, %error, "the output of a rank cannot be read"),
                    }
                }
                Command::Ended { namespace, rank } => {
                    if let Some(ended) = ends.remove(&(namespace, rank)) {
                        ended.cancel();
                    }
                }
                Command::Finish { done } => {
                    shared.finishing.cancel();
                    // No deadline: the reader of the output may be slow.
                    streams.ended().await;
                    let _ = done.send(shared.leaked.get());
                    return;
                }
            }
        }
    }
}

struct Stream {
    shared: Rc<Shared>,
    namespace: NamespaceId,
    rank: Rank,
    lane: Lane,
    /// The beginning of a line without its newline.
    held: BytesMut,
}

impl Stream {
    async fn run(mut self, pipe: Receiver, ended: CancellationToken) {
        let unread = || sys::unread_bytes(pipe.as_fd()).unwrap_or(0);
        let mut has_ended = false;
        // Bytes that the pipe contained when the rank had exited, and when no process was left: those are still read.
        // Both have a bound, because a process that outlived the rank may write for ever.
        let (mut last_bytes, mut final_bytes) = (None, None);
        loop {
            if last_bytes == Some(0) {
                last_bytes = None;
                self.send_held().await;
            }
            if self.shared.finishing.is_cancelled() {
                if *final_bytes.get_or_insert_with(unread) == 0 && unread() > 0 {
                    // A process out of reach still writes.
                    self.shared.leaked.set(self.shared.leaked.get() + 1);
                    break;
                }
                // No process is left that could write, so an empty pipe stays empty.
                match timeout(DRAIN_TIME, pipe.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => break,
                    Err(_) => {
                        self.shared.leaked.set(self.shared.leaked.get() + 1);
                        break;
                    }
                }
            } else {
                let shared = Rc::clone(&self.shared);
                tokio::select! {
                ready = pipe.readable() => if ready.is_err() { break },
                () = shared.finishing.cancelled() => continue,
                () = ended.cancelled(), if !has_ended => {
                    (has_ended, last_bytes) = (true, Some(unread()));
                    continue;
                }
                () = tokio::time::sleep(PARTIAL_LINE_DELAY), if !self.shared.hold_lines && !self.held.is_empty() => {
                    self.send_held().await;
                    continue;
                }
                }
            }
            self.shared.turn().await;
            let Some(receipt) = self.room().await else { break };
            match self.read(&pipe, receipt) {
                Ok(0) => break,
                Ok(count) => {
                    for left in [&mut last_bytes, &mut final_bytes].into_iter().flatten() {
                        *left = left.saturating_sub(count);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        self.send_held().await;
    }

    /// Waits until the output lane to the parent has room for the next read.
    async fn room(&self) -> Option<Receipt> {
        let permit = Arc::clone(self.shared.room.get(&self.lane)?).acquire_many_owned(READ_BYTES as u32).await.ok()?;
        Some(Receipt::holding(permit))
    }

    /// Reads once, sends the whole lines, and stores the rest. Returns the number of bytes read.
    fn read(&mut self, pipe: &Receiver, receipt: Receipt) -> io::Result<usize> {
        let shared = Rc::clone(&self.shared);
        let mut scratch = shared.scratch.borrow_mut();
        let count = pipe.try_read(&mut scratch)?;
        let fresh = &scratch[..count];
        let whole = fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole > 0 {
            self.send(&fresh[..whole], receipt);
            self.hold(&fresh[whole..]);
        } else {
            self.hold(fresh);
            let crowded = self.shared.held.get() > PARTIAL_LINES_BYTES_MAX;
            if self.held.len() >= PARTIAL_LINE_BYTES_MAX || crowded {
                self.send(&[], receipt);
            }
        }
        Ok(count)
    }

    async fn send_held(&mut self) {
        if !self.held.is_empty()
            && let Some(receipt) = self.room().await
        {
            self.send(&[], receipt);
        }
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        self.shared.held.set(self.shared.held.get() + bytes.len());
    }

    /// Sends the stored bytes and `more` as one message.
    fn send(&mut self, more: &[u8], receipt: Receipt) {
        let mut message = BytesMut::with_capacity(STREAM_HEADER_BYTES + self.held.len() + more.len());
        message.put_u32_le(self.namespace.0);
        message.put_u32_le(self.rank.0);
        message.put_slice(&self.held);
        message.put_slice(more);
        self.clear_held();
        self.shared.parent.send(self.lane, message.freeze(), receipt);
    }

    fn clear_held(&mut self) {
        self.shared.held.set(self.shared.held.get() - self.held.len());
        // Free the memory: thousands of ranks may store a partial line now and then.
        self.held = BytesMut::new();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.clear_held();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A stream of `shared` and the end of its pipe that a rank writes to.
    fn stream(shared: &Rc<Shared>, rank: u32) -> (Stream, Receiver, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (namespace, rank, lane) = (NamespaceId(0), Rank(rank), Lane::Stdout);
        let stream = Stream { shared: Rc::clone(shared), namespace, rank, lane, held: BytesMut::new() };
        (stream, Receiver::from_owned_fd(reader.into()).expect("a pipe"), writer)
    }

    /// Writes to a stream's pipe and reads it to its end. Returns the bytes of the messages that were sent.
    async fn pass((stream, pipe, writer): &mut (Stream, Receiver, std::io::PipeWriter), bytes: &[u8]) -> Vec<usize> {
        for piece in bytes.chunks(READ_BYTES) {
            writer.write_all(piece).expect("the pipe has room");
            let mut left = piece.len();
            while left > 0 {
                pipe.readable().await.expect("it is open");
                left -= stream.read(pipe, Receipt::default()).expect("it is readable");
            }
        }
        let sent = stream.shared.parent.take_waiting();
        sent.iter().map(|(_, message)| message.len() - STREAM_HEADER_BYTES).collect()
    }

    #[tokio::test]
    async fn lines_without_an_end_have_a_bound_each_and_together() {
        let shared = Rc::new(Shared::new(Uplink::without_link(), true, Arc::new(PmiWaits::new())));
        let mut one = stream(&shared, 0);
        assert_eq!(pass(&mut one, &[b'x'; PARTIAL_LINE_BYTES_MAX - 1]).await, []);
        assert_eq!(pass(&mut one, b"y").await, [PARTIAL_LINE_BYTES_MAX]);

        let mut other = stream(&shared, 1);
        let stored_elsewhere = PARTIAL_LINES_BYTES_MAX - 2;
        shared.held.set(stored_elsewhere);
        assert_eq!(pass(&mut one, b"1").await, []);
        assert_eq!(pass(&mut other, b"2").await, [], "all lines together are as long as the bound");
        assert_eq!(pass(&mut other, b"3").await, [2], "only the line that grew beyond it is sent");
        assert_eq!(pass(&mut one, b"4\n").await, [3]);
        assert_eq!(shared.held.get(), stored_elsewhere);
    }

    /// As when a limit on threads (RLIMIT_NPROC) refuses the thread.
    #[tokio::test]
    async fn the_runtime_of_a_thread_that_did_not_start_is_dropped_without_a_panic() {
        drop(ThreadRuntime::build().expect("a runtime"));
    }
}
