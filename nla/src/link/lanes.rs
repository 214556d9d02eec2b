//! The lanes of a link: one task reads records, another writes them.
//!
//! A sender puts messages into the queue of a lane and continues. The writer takes the most urgent lane that has
//! something to send; a lane with a window also needs window left. Queues of lanes with a window are bounded by the
//! windows and permits of their senders, those of the control and board lanes by [`LINK_QUEUE_BYTES_MAX`], beyond which
//! the peer counts as lost.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::handshake::Accepted;
use super::pacer::{PacedLinks, Pacer};
use super::silence::{Silence, Verdict};
use super::stream::{ReadHalf, Stream, Witness, WriteHalf, end};
use super::ticks::{Ticker, Ticks};
use crate::core::limits::{LINK_QUEUE_BYTES_MAX, RECORD_BYTES_MAX, STREAM_WINDOW_BYTES};
use crate::core::{AgentId, LossReason, Violation};
use crate::tasks::Tasks;
use crate::wire::{Assembler, Content, Established, Lane, Opener, Sealer};

const LANES: usize = Lane::ALL.len();
/// How many bytes the writer passes to the kernel at a time: the most that an urgent message waits for in this process.
const WRITE_BYTES: usize = 64 * 1024;
/// How many bytes the reader takes from the kernel at a time.
const RECEIVE_BYTES: usize = 4 * WRITE_BYTES;
/// The shortest wait before the silence of a peer is measured again.
const TICK_MIN: Duration = Duration::from_millis(1);
/// The least window that is granted to the sender in one record.
const GRANT_BYTES: u32 = STREAM_WINDOW_BYTES / 2;

/// When a link sends heartbeats, and when it is lost.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Liveness {
    /// An end that writes nothing sends a heartbeat once in this time. At most half of the dead time; [`Ticks`] sends three per
    /// dead time at least.
    pub heartbeat: Duration,
    /// The link is lost if nothing was received for this time, and the peer's machine does not answer either.
    pub dead_time: Duration,
    /// The link is lost if nothing was received for this time.
    pub stop_time: Duration,
}

/// An event of a link, for its owner.
#[derive(Debug)]
pub enum LinkEvent {
    /// A message of the control or board lane.
    Message(Bytes),
    /// Nothing was received for this time, and the peer's machine answers. Once a minute.
    Silent(Duration),
    /// The link is lost, for this reason. No event follows.
    Lost(LossReason),
}

/// Something to drop once the bytes that it belongs to were written: a window to grant again, a permit, a count.
#[derive(Default)]
pub struct Receipt(#[expect(dead_code, reason = "held for its drop")] Option<Box<dyn Any + Send + Sync>>);

impl Receipt {
    /// Keeps `what` until the bytes were written.
    pub fn holding(what: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(what)))
    }
}

/// Counts what all links of a process write, and holds their common pace.
#[derive(Clone, Default, Debug)]
pub struct Meter {
    written: Arc<Written>,
    paced: Arc<Mutex<PacedLinks>>,
}

#[derive(Default, Debug)]
struct Written {
    all: AtomicU64,
    streams: AtomicU64,
}

impl Meter {
    /// Returns the bytes passed to the kernel: whole records.
    pub fn link_bytes(&self) -> u64 {
        self.written.all.load(Ordering::Relaxed)
    }

    /// Returns the bytes of lanes with a window that these records carried, the length prefixes of messages included.
    pub fn stream_bytes(&self) -> u64 {
        self.written.streams.load(Ordering::Relaxed)
    }

    // Relaxed: no other memory access depends on these counts.

    fn note_written(&self, bytes: usize) {
        self.written.all.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn note_stream(&self, bytes: usize) {
        self.written.streams.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

struct Item {
    bytes: Bytes,
    receipt: Receipt,
}

#[derive(Default)]
struct Queues {
    lanes: [VecDeque<Item>; LANES],
    /// How many bytes of the first item were sent, its length prefix included.
    sent: [usize; LANES],
    window: [u32; LANES],
    grants: [u32; LANES],
    /// Received bytes whose window was not granted again; at most the window.
    ungranted: [u32; LANES],
    unwindowed_bytes: usize,
    overflow: bool,
    closing: bool,
}

impl Queues {
    /// Appends the next bytes of a lane to `piece`, at most `room`: framed messages, or parts of them. Moves the receipts of
    /// whole ones to `passed_on`. Returns the number of bytes.
    fn take_piece(&mut self, lane: Lane, room: usize, piece: &mut Vec<u8>, passed_on: &mut Vec<Receipt>) -> usize {
        let index = lane.index();
        let (mut left, sent) = (room, &mut self.sent[index]);
        while left > 0
            && let Some(item) = self.lanes[index].front()
        {
            let prefix = (item.bytes.len() as u32).to_le_bytes();
            let whole = prefix.len() + item.bytes.len();
            for (bytes, start) in [(&prefix[..], 0), (&item.bytes[..], prefix.len())] {
                let rest = sent.checked_sub(start).and_then(|from| bytes.get(from..)).unwrap_or_default();
                let take = &rest[..rest.len().min(left)];
                piece.extend_from_slice(take);
                *sent += take.len();
                left -= take.len();
            }
            if *sent < whole {
                break;
            }
            *sent = 0;
            if let Some(item) = self.lanes[index].pop_front() {
                if !lane.has_window() {
                    self.unwindowed_bytes -= item.bytes.len();
                }
                passed_on.push(item.receipt);
            }
        }
        room - left
    }
}

struct Shared {
    queues: Mutex<Queues>,
    work: Notify,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        // No holder of the lock panics while the queues are inconsistent.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts received bytes. Returns false if the peer had no window for them.
    fn take_in(&self, lane: Lane, bytes: usize) -> bool {
        let ungranted = &mut self.queues().ungranted[lane.index()];
        *ungranted = ungranted.saturating_add(bytes as u32);
        *ungranted <= STREAM_WINDOW_BYTES
    }
}

/// The sending side of a link. Clones send on the same link.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// Window of a lane, granted to the peer when this is dropped.
struct Grant {
    shared: Arc<Shared>,
    lane: Lane,
    bytes: u32,
}

impl Drop for Grant {
    fn drop(&mut self) {
        let due = {
            let pending = &mut self.shared.queues().grants[self.lane.index()];
            *pending = pending.saturating_add(self.bytes);
            *pending >= GRANT_BYTES
        };
        if due {
            self.shared.work.notify_one();
        }
    }
}

/// Receives the messages of lanes with a window, each with the receipt that grants its window again. An empty message
/// ends the lane.
pub type StreamSink = Box<dyn FnMut(Lane, Bytes, Receipt)>;

impl Link {
    /// Starts the tasks of a link in this thread's `LocalSet`. Its events go to `events` with the peer's number, the
    /// messages of lanes with a window to `streams`. It sends heartbeats at the ticks. It is lost as the
    /// ticks' times say, unless `suspended` is set. `meter` counts what is written.
    pub fn start(
        accepted: Accepted,
        events: mpsc::Sender<(AgentId, LinkEvent)>,
        streams: StreamSink,
        ticks: &Ticks,
        suspended: Rc<Cell<bool>>,
        meter: Meter,
        tasks: &Tasks,
    ) -> Self {
        let Accepted { peer, stream: Stream { read, write, unread, witness }, established } = accepted;
        let Established { sealer, opener } = established;
        let shared = Arc::new(Shared {
            queues: Mutex::new(Queues { window: [STREAM_WINDOW_BYTES; LANES], ..Queues::default() }),
            work: Notify::new(),
        });
        let heard = Rc::new(Cell::new(Instant::now()));
        let reader = Reader {
            shared: Arc::clone(&shared),
            opener,
            streams,
            events: events.clone(),
            peer,
            heard: Rc::clone(&heard),
            ticks: ticks.clone(),
        };
        let ticker = ticks.subscribe();
        let (here, passed_on) = (ticks.here(), Vec::new());
        let writer = Writer { shared: Arc::clone(&shared), here, peer, sealer, ticker, passed_on, meter };
        let (mut liveness, ticker) = (ticks.liveness(), ticks.subscribe());
        if peer == AgentId::ROOT && witness.is_stream() {
            // The launcher of this machine may be stopped for as long as its user likes: its end closes the stream.
            liveness.stop_time = Duration::MAX;
        }
        tasks.spawn("link", tracing::debug_span!("link", %peer), async move {
            // The first of them to end ends the link. Their order is random, so that none of them starves another.
            let told = |silent| events.send((peer, LinkEvent::Silent(silent)));
            let why = tokio::select! {
                why = reader.run(read, unread) => why,
                why = writer.run(write) => why,
                why = watch(&heard, &suspended, (liveness, witness), ticker, told) => why,
            };
            let _ = events.send((peer, LinkEvent::Lost(why))).await;
        });
        Self { shared }
    }

    /// Queues a message, and frames it. `receipt` is dropped once the message has been written.
    pub fn send(&self, lane: Lane, bytes: Bytes, receipt: Receipt) {
        self.queue(lane, bytes, receipt);
        self.flush();
    }

    /// Like [`Link::send`], but the message may wait for the next [`Link::flush`].
    pub fn queue(&self, lane: Lane, bytes: Bytes, receipt: Receipt) {
        debug_assert!(bytes.len() <= lane.message_bytes_max());
        let mut queues = self.shared.queues();
        if !lane.has_window() {
            queues.unwindowed_bytes += bytes.len();
            queues.overflow |= queues.unwindowed_bytes > LINK_QUEUE_BYTES_MAX;
        }
        queues.lanes[lane.index()].push_back(Item { bytes, receipt });
    }

    /// Wakes the task that writes queued messages.
    pub fn flush(&self) {
        self.shared.work.notify_one();
    }

    /// Writes out what is queued, then closes the stream.
    pub fn close(&self) {
        self.shared.queues().closing = true;
        self.shared.work.notify_one();
    }
}

struct Reader {
    shared: Arc<Shared>,
    opener: Opener,
    streams: StreamSink,
    events: mpsc::Sender<(AgentId, LinkEvent)>,
    peer: AgentId,
    heard: Rc<Cell<Instant>>,
    ticks: Ticks,
}

impl Reader {
    async fn run(mut self, mut stream: ReadHalf, mut buffer: BytesMut) -> LossReason {
        let mut assemblers = Lane::ALL.map(Assembler::new);
        let mut messages = Vec::new();
        loop {
            let mut used = 0;
            loop {
                match self.opener.open(&buffer[used..]) {
                    Ok(None) => break,
                    Ok(Some((content, length))) => {
                        used += length;
                        match content {
                            Content::Piece(lane, bytes) => {
                                if lane.has_window() && !self.shared.take_in(lane, bytes.len()) {
                                    return Violation::Window.into();
                                }
                                let assembler = &mut assemblers[lane.index()];
                                assembler.push(bytes);
                                loop {
                                    match assembler.next_message() {
                                        Ok(Some(message)) => messages.push((lane, message)),
                                        Ok(None) => break,
                                        Err(error) => return Violation::Framing(error.to_string()).into(),
                                    }
                                }
                            }
                            Content::Grant(lane, bytes) => {
                                let window = &mut self.shared.queues().window[lane.index()];
                                *window = window.saturating_add(bytes);
                                self.shared.work.notify_one();
                            }
                            Content::Alive => self.ticks.on_heartbeat(self.peer),
                        }
                    }
                    Err(error) => return Violation::Framing(error.to_string()).into(),
                }
                for (lane, message) in messages.drain(..) {
                    if lane.has_window() {
                        // Its length prefix of 4 bytes used window as well.
                        let grant = Grant { shared: Arc::clone(&self.shared), lane, bytes: message.len() as u32 + 4 };
                        (self.streams)(lane, message, Receipt::holding(grant));
                    } else if self.events.send((self.peer, LinkEvent::Message(message))).await.is_err() {
                        return LossReason::Leaving;
                    }
                }
            }
            bytes::Buf::advance(&mut buffer, used);
            buffer.reserve(RECEIVE_BYTES);
            match stream.read_buf(&mut buffer).await {
                Ok(0) if buffer.is_empty() => return LossReason::Closed,
                Ok(0) => return LossReason::Truncated,
                Ok(_) => self.heard.set(Instant::now()),
                Err(error) => return LossReason::ConnectionFailed(error.to_string()),
            }
        }
    }
}

/// Returns once the peer is lost by its silence; tells of a longer one. Any bytes count: the pieces of a long message are as good
/// as heartbeats, which wait behind at most [`WRITE_BYTES`] of them.
async fn watch<T: Future>(
    heard: &Cell<Instant>,
    suspended: &Cell<bool>,
    (liveness, witness): (Liveness, Witness),
    mut ticker: Ticker,
    tell: impl Fn(Duration) -> T,
) -> LossReason {
    let period = ticker.period_max();
    let mut silence = Silence::new(liveness, heard.get());
    loop {
        // The last wait ends with the silence, so that a loss is noticed at once.
        let deadline = silence.next().max(Instant::now() + TICK_MIN);
        let due = deadline.min(ticker.due());
        tokio::select! {
            () = ticker.tick() => {}
            () = sleep_until(deadline), if deadline < ticker.due() => {}
        }
        let now = Instant::now();
        silence.on_heard(heard.get());
        silence.on_waited(now, due, period);
        if suspended.get() {
            silence.on_heard(now);
        }
        if now.saturating_duration_since(heard.get()) < period {
            continue;
        }
        match silence.judge(now, witness.look()) {
            Verdict::Alive => {}
            Verdict::Told(silent) => drop(tell(silent).await),
            Verdict::Lost(why) => return why,
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    here: AgentId,
    peer: AgentId,
    sealer: Sealer,
    ticker: Ticker,
    passed_on: Vec<Receipt>,
    meter: Meter,
}

impl Writer {
    async fn run(mut self, mut stream: WriteHalf) -> LossReason {
        let mut out = Vec::new();
        let mut pacer = Pacer::new(self.here, self.peer, Arc::clone(&self.meter.paced));
        let mut wrote = Instant::now();
        loop {
            let Filled { overflow, closing, staged } = self.fill(&mut out);
            if overflow {
                return LossReason::NotReading;
            }
            if !out.is_empty() {
                if let Err(error) = pacer.write(&mut stream, &out, staged).await {
                    return LossReason::ConnectionFailed(error.to_string());
                }
                wrote = Instant::now();
                self.meter.note_written(out.len());
                // Not under the lock: dropping a receipt may lock the queues of this link or of another one.
                self.passed_on.clear();
                out.clear();
                out.shrink_to(2 * WRITE_BYTES);
                continue;
            }
            if closing {
                drop(pacer);
                // The reader continues until the peer has closed as well.
                end(stream);
                return std::future::pending().await;
            }
            tokio::select! {
                biased;
                () = self.shared.work.notified() => {}
                () = self.ticker.tick() => {
                    // The peer has just received something. It need not be woken again.
                    if wrote.elapsed() >= self.ticker.period_max() / 8 {
                        self.sealer.seal(&Content::Alive, &mut out);
                    }
                }
            }
        }
    }

    /// Seals what may be sent now, the most urgent lane first, up to about [`WRITE_BYTES`].
    fn fill(&mut self, out: &mut Vec<u8>) -> Filled {
        let mut staged = false;
        let mut queues = self.shared.queues();
        let queues = &mut *queues;
        for lane in Lane::ALL {
            let granted = &mut queues.grants[lane.index()];
            if *granted >= GRANT_BYTES {
                self.sealer.seal(&Content::Grant(lane, *granted), out);
                let ungranted = &mut queues.ungranted[lane.index()];
                *ungranted = ungranted.saturating_sub(std::mem::take(granted));
            }
        }
        while out.len() < WRITE_BYTES {
            let ready = |lane: &&Lane| {
                !queues.lanes[lane.index()].is_empty() && (!lane.has_window() || queues.window[lane.index()] > 0)
            };
            let Some(&lane) = Lane::ALL.iter().find(ready) else { break };
            let index = lane.index();
            let room =
                if lane.has_window() { RECORD_BYTES_MAX.min(queues.window[index] as usize) } else { RECORD_BYTES_MAX };
            let (sealer, passed_on) = (&mut self.sealer, &mut self.passed_on);
            let mut length = 0;
            sealer.seal_piece(lane, out, |piece| length = queues.take_piece(lane, room, piece, passed_on));
            if lane.has_window() {
                queues.window[index] -= length as u32;
                self.meter.note_stream(length);
            }
            staged |= lane == Lane::Stage;
        }
        let closing = queues.closing && Lane::ALL.iter().all(|lane| queues.lanes[lane.index()].is_empty());
        Filled { overflow: queues.overflow, closing, staged }
    }
}

/// The state of the queues after [`Writer::fill`].
struct Filled {
    /// They are over their bound.
    overflow: bool,
    /// The link is closing, with nothing left to send.
    closing: bool,
    /// Bytes of staged files are among those to be sent.
    staged: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        let queues = Mutex::new(Queues { window: [STREAM_WINDOW_BYTES; LANES], ..Queues::default() });
        Arc::new(Shared { queues, work: Notify::new() })
    }

    #[test]
    fn messages_that_wait_in_lanes_without_a_window_have_a_bound_in_bytes() {
        let shared = shared();
        let link = Link { shared: Arc::clone(&shared) };
        // All messages share these bytes.
        let bytes = Bytes::from(vec![0; 64 << 20]);
        for _ in 0..LINK_QUEUE_BYTES_MAX / bytes.len() {
            link.send(Lane::Board, bytes.clone(), Receipt::default());
        }
        link.send(Lane::Stdout, Bytes::from_static(b"has a window"), Receipt::default());
        assert!(!shared.queues().overflow);
        link.send(Lane::Control, Bytes::from_static(b"x"), Receipt::default());
        assert!(shared.queues().overflow);
    }

    #[test]
    fn a_peer_may_send_as_many_bytes_of_a_stream_as_its_window_has() {
        let shared = shared();
        assert!(shared.take_in(Lane::Stdout, STREAM_WINDOW_BYTES as usize - 1));
        assert!(shared.take_in(Lane::Stdout, 1));
        assert!(shared.take_in(Lane::Stderr, STREAM_WINDOW_BYTES as usize), "each lane has a window of its own");
        assert!(!shared.take_in(Lane::Stdout, 1));
    }
}
