//! What ranks write: read from their pipes, cut into whole lines, sent up.
//!
//! All of an agent's pipes are read by one thread of their own, with a lower priority than the one
//! that serves PMI: a flood of output costs the job's fences nothing but the processor time that is
//! left over. A pipe is read only when the stream lane to the parent has room, so what cannot be
//! passed on stays in the pipe and stops who writes it. And while ranks wait in PMI, for a fence
//! above all, output is read in small helpings with pauses between them: each read wakes a writer
//! that would compete with the ranks on their way to the fence.

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
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::core::NamespaceId;
use crate::core::limits::{
    DRAIN_TIME, PARTIAL_LINE_BYTES_MAX, PARTIAL_LINE_DELAY, PARTIAL_LINES_BYTES_MAX, STREAM_WINDOW_BYTES,
};
use crate::link::{Link, Receipt};
use crate::sys;
use crate::wire::Lane;

/// Bytes in front of the data of a stream message: the namespace and the rank, little-endian.
pub const STREAM_HEADER_BYTES: usize = 8;
/// Bytes read from a pipe at a time.
const READ_BYTES: usize = 32 * 1024;
/// Bytes that are read between two pauses while ranks wait in PMI.
const HELPING_BYTES: usize = 32 * 1024;
/// The pause: with the helping, it bounds what output gets at worst, 8 MB/s per agent.
const HELPING_PAUSE: Duration = Duration::from_millis(4);
/// Who has waited in PMI for so long is not delayed by output; then it flows freely again.
const STEP_BACK_TIME: Duration = Duration::from_millis(50);
/// When nobody waits any more, the next fence may be close: output steps back for so long still.
const AFTER_TIME: Duration = Duration::from_millis(5);

/// The namespace, rank and data of an upward stream message; `None` if it is shorter than its
/// header.
pub fn split_stream_message(mut message: Bytes) -> Option<(NamespaceId, Rank, Bytes)> {
    use bytes::Buf;
    (message.len() >= STREAM_HEADER_BYTES).then(|| {
        let namespace = NamespaceId(message.get_u32_le());
        let rank = Rank(message.get_u32_le());
        (namespace, rank, message)
    })
}

enum Command {
    /// Read this pipe.
    Follow { namespace: NamespaceId, rank: Rank, lane: Lane, pipe: OwnedFd },
    /// The rank has ended: what it left without a newline is shown now.
    Ended { namespace: NamespaceId, rank: Rank },
    /// All processes are gone: read to the end, then say how many pipes had none.
    Finish { done: oneshot::Sender<usize> },
}

/// The thread that reads the ranks' output.
pub(super) struct OutputPump {
    commands: mpsc::UnboundedSender<Vec<Command>>,
    /// Said, but not yet passed on: waking the thread for each of a thousand ranks costs more than
    /// what it then does.
    unsent: RefCell<Vec<Command>>,
    pmi_waits: Arc<PmiWaits>,
}

/// Until when output has to step back for PMI, in microseconds after the clock began.
struct PmiWaits {
    clock: Instant,
    waits: AtomicBool,
    until_us: AtomicU64,
}

impl PmiWaits {
    fn new() -> Self {
        Self { clock: Instant::now(), waits: AtomicBool::new(false), until_us: AtomicU64::new(0) }
    }

    fn set(&self, waits: bool) {
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            let time = if waits { STEP_BACK_TIME } else { AFTER_TIME };
            let until = self.clock.elapsed() + time;
            self.until_us.store(until.as_micros() as u64, Ordering::Relaxed);
        }
    }

    fn is_urgent(&self) -> bool {
        self.clock.elapsed() < Duration::from_micros(self.until_us.load(Ordering::Relaxed))
    }
}

impl OutputPump {
    /// Starts it. Lines without their newline are held back, or shown after a short quiet.
    pub(super) fn start(parent: Link, hold_lines: bool) -> io::Result<Self> {
        // Bounded by the number of ranks: two pipes and one end for each.
        let (commands, incoming) = mpsc::unbounded_channel();
        let pmi_waits = Arc::new(PmiWaits::new());
        let waits = Arc::clone(&pmi_waits);
        std::thread::Builder::new().name("output".to_owned()).stack_size(256 * 1024).spawn(move || {
            sys::set_thread_nice(5);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, run(incoming, parent, hold_lines, waits)),
                Err(error) => tracing::error!(%error, "no output can be read"),
            }
        })?;
        Ok(Self { commands, unsent: RefCell::default(), pmi_waits })
    }

    /// Whether ranks wait for answers: then output steps back.
    pub(super) fn set_pmi_waits(&self, waits: bool) {
        self.pmi_waits.set(waits);
    }

    /// Reads `pipe`, the rank's standard output or error, from now on.
    pub(super) fn follow(&self, namespace: NamespaceId, rank: Rank, lane: Lane, pipe: OwnedFd) {
        self.unsent.borrow_mut().push(Command::Follow { namespace, rank, lane, pipe });
    }

    /// The rank's process has ended.
    pub(super) fn on_ended(&self, namespace: NamespaceId, rank: Rank) {
        self.unsent.borrow_mut().push(Command::Ended { namespace, rank });
    }

    /// Passes on what was said since the last time. To be called when the caller has nothing more to
    /// say for now.
    pub(super) fn flush(&self) {
        let unsent = self.unsent.take();
        if !unsent.is_empty() {
            // The thread ends only after `finish`.
            let _ = self.commands.send(unsent);
        }
    }

    /// No process is left: resolves when all that was written is on its way; says how many pipes
    /// somebody out of reach still holds open.
    pub(super) fn finish(&self) -> oneshot::Receiver<usize> {
        let (done, result) = oneshot::channel();
        self.unsent.borrow_mut().push(Command::Finish { done });
        self.flush();
        result
    }
}

/// What the tasks of the thread share.
struct Shared {
    parent: Link,
    hold_lines: bool,
    /// Bytes of held-back lines.
    held: Cell<usize>,
    /// Room on the way to the parent, by lane.
    room: HashMap<Lane, Arc<Semaphore>>,
    scratch: RefCell<Vec<u8>>,
    open: Cell<usize>,
    /// Pipes given up because somebody out of reach holds them open.
    leaked: Cell<usize>,
    changed: Notify,
    /// No process is left to write.
    finishing: CancellationToken,
    pmi_waits: Arc<PmiWaits>,
    /// What is left of the helping.
    helping: Cell<usize>,
    next_helping: Cell<Instant>,
}

impl Shared {
    /// Waits while it is PMI's turn.
    async fn turn(&self) {
        while self.pmi_waits.is_urgent() {
            let left = self.helping.get();
            if left > 0 {
                self.helping.set(left.saturating_sub(READ_BYTES));
                return;
            }
            let next = self.next_helping.get();
            tokio::time::sleep_until(next).await;
            // Many wake at this time; the first serves out, the others find what is left.
            if self.next_helping.get() == next {
                self.helping.set(HELPING_BYTES);
                self.next_helping.set(Instant::now() + HELPING_PAUSE);
            }
        }
    }
}

async fn run(
    mut incoming: mpsc::UnboundedReceiver<Vec<Command>>,
    parent: Link,
    hold_lines: bool,
    pmi_waits: Arc<PmiWaits>,
) {
    let room =
        [Lane::Stdout, Lane::Stderr].map(|lane| (lane, Arc::new(Semaphore::new(STREAM_WINDOW_BYTES as usize)))).into();
    let shared = Rc::new(Shared {
        parent,
        hold_lines,
        held: Cell::new(0),
        room,
        scratch: RefCell::new(vec![0; READ_BYTES]),
        open: Cell::new(0),
        leaked: Cell::new(0),
        changed: Notify::new(),
        finishing: CancellationToken::new(),
        pmi_waits,
        helping: Cell::new(HELPING_BYTES),
        next_helping: Cell::new(Instant::now()),
    });
    let mut ends: HashMap<(NamespaceId, Rank), CancellationToken> = HashMap::new();
    while let Some(commands) = incoming.recv().await {
        for command in commands {
            match command {
                Command::Follow { namespace, rank, lane, pipe } => {
                    let ended = ends.entry((namespace, rank)).or_default().clone();
                    match Receiver::from_owned_fd_unchecked(pipe) {
                        Ok(pipe) => {
                            shared.open.set(shared.open.get() + 1);
                            let stream =
                                Stream { shared: Rc::clone(&shared), namespace, rank, lane, held: BytesMut::new() };
                            tokio::task::spawn_local(stream.run(pipe, ended));
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
                    // Without a deadline: what was written waits for its reader, however slow.
                    while shared.open.get() > 0 {
                        shared.changed.notified().await;
                    }
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
    /// The beginning of a line whose end has not been seen.
    held: BytesMut,
}

impl Stream {
    async fn run(mut self, pipe: Receiver, ended: CancellationToken) {
        // The rank has ended, but what it left may be in the pipe still.
        let (mut has_ended, mut last_words) = (false, false);
        loop {
            if last_words && sys::unread_bytes(pipe.as_fd()).is_ok_and(|bytes| bytes == 0) {
                last_words = false;
                self.send_held().await;
            }
            if self.shared.finishing.is_cancelled() {
                // Nobody is left to write, so what is not there will not come.
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
                    (has_ended, last_words) = (true, true);
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
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        self.send_held().await;
    }

    /// Waits until what is read next can be passed on.
    async fn room(&self) -> Option<Receipt> {
        let permit = Arc::clone(self.shared.room.get(&self.lane)?).acquire_many_owned(READ_BYTES as u32).await.ok()?;
        Some(Receipt::holding(permit))
    }

    /// Reads once and sends the whole lines.
    fn read(&mut self, pipe: &Receiver, receipt: Receipt) -> io::Result<usize> {
        let shared = Rc::clone(&self.shared);
        let mut scratch = shared.scratch.borrow_mut();
        let count = pipe.try_read(&mut scratch)?;
        let fresh = &scratch[..count];
        let whole = fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole > 0 {
            let mut message = self.message(self.held.len() + whole);
            message.put_slice(&self.held);
            message.put_slice(&fresh[..whole]);
            self.clear_held();
            self.shared.parent.send(self.lane, message.freeze(), receipt);
            self.hold(&fresh[whole..]);
        } else {
            self.hold(fresh);
            let crowded = self.shared.held.get() > PARTIAL_LINES_BYTES_MAX;
            if self.held.len() >= PARTIAL_LINE_BYTES_MAX || crowded {
                let message = self.take_held();
                self.shared.parent.send(self.lane, message, receipt);
            }
        }
        Ok(count)
    }

    async fn send_held(&mut self) {
        if !self.held.is_empty()
            && let Some(receipt) = self.room().await
        {
            let message = self.take_held();
            self.shared.parent.send(self.lane, message, receipt);
        }
    }

    fn message(&self, capacity: usize) -> BytesMut {
        let mut message = BytesMut::with_capacity(STREAM_HEADER_BYTES + capacity);
        message.put_u32_le(self.namespace.0);
        message.put_u32_le(self.rank.0);
        message
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        self.shared.held.set(self.shared.held.get() + bytes.len());
    }

    fn take_held(&mut self) -> Bytes {
        let mut message = self.message(self.held.len());
        message.put_slice(&self.held);
        self.clear_held();
        message.freeze()
    }

    fn clear_held(&mut self) {
        self.shared.held.set(self.shared.held.get() - self.held.len());
        // The memory goes back: thousands of ranks hold a line now and then.
        self.held = BytesMut::new();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.clear_held();
        self.shared.open.set(self.shared.open.get() - 1);
        self.shared.changed.notify_one();
    }
}
