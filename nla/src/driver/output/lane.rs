//! One lane of an agent's output: the pipes that are to be read, and where their bytes go.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::direct::{Direct, Progress};
use super::room::Room;
use super::stream::{READ_BYTES, Stream};
use crate::driver::uplink::Uplink;
use crate::wire::Lane;

/// The bounds of the pause between two rounds through the busy pipes. No user notices the longest one.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// A round that found so many bytes in one pipe is followed by the next without a pause: the rank may wait for it.
const BYTES_OF_FULL: usize = READ_BYTES / 2;

/// Why a lane cannot go on now.
pub(super) enum Blocked {
    /// Ranks wait in PMI, or the reader of a pipe does not read; ask again at this time.
    Until(Instant),
    /// The link has not yet written enough; the waker reports that it has.
    NoRoom,
}

/// The reading of one lane.
pub(super) struct LaneState {
    lane: Lane,
    /// The launcher's own stream, to which the thread writes the output itself. `None` if the launcher writes it.
    direct: Option<Direct>,
    pub(super) room: Room,
    /// Pipes to be read now.
    pub(super) queue: VecDeque<usize>,
    /// Busy pipes, which wait for the next round.
    polled: Vec<usize>,
    /// A round through the busy pipes is running.
    in_round: bool,
    /// When the next round begins.
    next_round: Instant,
    /// The pause before it.
    pause: Duration,
    /// The most bytes that this round has found in one pipe.
    most: usize,
}

impl LaneState {
    pub(super) fn new(lane: Lane, direct: Option<Direct>, room: Room) -> Self {
        Self {
            lane,
            direct,
            room,
            queue: VecDeque::new(),
            polled: Vec::new(),
            in_round: false,
            next_round: Instant::now(),
            pause: Duration::ZERO,
            most: 0,
        }
    }

    /// Queues a pipe to be read, unless it is queued.
    pub(super) fn enqueue(&mut self, key: usize, stream: &mut Stream) {
        if !std::mem::replace(&mut stream.is_queued, true) {
            self.queue.push_back(key);
        }
    }

    /// Takes a pipe that has left the epoll set into the rounds.
    pub(super) fn begin_polling(&mut self, key: usize) {
        if self.polled.is_empty() && !self.in_round {
            self.next_round = Instant::now() + PAUSE_MIN;
        }
        self.polled.push(key);
    }

    /// Takes a pipe that this round has read into the next one.
    pub(super) fn poll_again(&mut self, key: usize) {
        self.polled.push(key);
    }

    /// Forgets the busy pipes, each of which the caller has queued.
    pub(super) fn end_polling(&mut self) {
        self.polled.clear();
    }

    /// Begins a round if it is time. Returns the pipes that are to be queued.
    pub(super) fn begin_round(&mut self, now: Instant) -> Vec<usize> {
        if self.polled.is_empty() || self.in_round || now < self.next_round {
            return Vec::new();
        }
        self.in_round = true;
        std::mem::take(&mut self.polled)
    }

    /// Notes how many bytes were found in a pipe.
    pub(super) fn note_read(&mut self, count: usize) {
        self.most = self.most.max(count);
    }

    /// Ends a round. The next one follows at once while pipes fill up; otherwise the pauses grow. Returns when it begins, if any pipe
    /// is polled.
    pub(super) fn end_round(&mut self) -> Option<Instant> {
        if std::mem::replace(&mut self.in_round, false) {
            let is_full = std::mem::take(&mut self.most) >= BYTES_OF_FULL;
            self.pause = if is_full { Duration::ZERO } else { (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX) };
            self.next_round = Instant::now() + self.pause;
        }
        (!self.polled.is_empty()).then_some(self.next_round)
    }

    /// Writes what waits for the reader of the lane's stream, as far as that has room. Returns whether messages were queued.
    pub(super) fn write_waiting(&mut self, parent: &Uplink) -> Result<bool, Blocked> {
        match self.direct.as_mut().map_or(Progress::Written, Direct::write_waiting) {
            Progress::Written => Ok(false),
            Progress::Full(deadline) => Err(Blocked::Until(deadline)),
            Progress::Failed => {
                self.hand_over(parent);
                Ok(true)
            }
        }
    }

    /// Writes a message to the lane's stream, or queues it for the parent. Returns whether messages were queued.
    pub(super) fn send(&mut self, parent: &Uplink, message: BytesMut) -> bool {
        match &mut self.direct {
            Some(direct) => {
                let has_failed = direct.write(message) == Progress::Failed;
                if has_failed {
                    self.hand_over(parent);
                }
                has_failed
            }
            None => {
                self.queue(parent, message);
                true
            }
        }
    }

    /// Queues for the parent what the lane's stream has not taken. The launcher writes it, and all that follows, to the same stream,
    /// and reports if that fails.
    pub(super) fn hand_over(&mut self, parent: &Uplink) {
        if let Some(direct) = self.direct.take() {
            direct.into_waiting().into_iter().for_each(|message| self.queue(parent, message));
        }
    }

    fn queue(&self, parent: &Uplink, message: BytesMut) {
        let receipt = self.room.take(message.len());
        parent.queue(self.lane, message.freeze(), receipt);
    }
}
