//! [`Conversation`]: the server's side of PMI for one rank, PMI-1 or PMI-2.
//!
//! A conversation turns received bytes into replies, and into a [`Request`] wherever only the agent can serve the rank.
//! It owns no descriptor and never waits: a request that has to wait is answered later. The version that the rank speaks
//! follows from its first line, and again from each later `init`.
//!
//! # Visibility
//!
//! A rank sees its own puts immediately, and those of another rank after the next fence in which both took part. This does
//! not depend on the tree's shape, the cache policy or the other rank's node. A get looks at the rank's own puts since
//! the last fence, then at the node's board, then at the preputs of the spawning rank. `universeSize` has a value even if
//! no rank has put it. Keys that begin with `PMI_` cannot be put: `PMI_process_mapping` and
//! [`MEMORY_ALLOC_KINDS`](crate::MEMORY_ALLOC_KINDS) are among the [`JobAttributes`]. A get never waits for a put: MPICH probes for keys that no rank puts, and caches nothing
//! that could outlive its epoch.
//!
//! A fence of a group shows its ranks what they have put since the last fence of all ranks; the next one of those shows it to
//! all. A rank may be in fences of several groups, and in one of all ranks, and make other requests meanwhile: its threads
//! do. What a thread puts while another one is in a fence of all ranks may be hidden again when that fence ends, until the
//! next one.
//!
//! A rank that has [started again](Conversation::of_restarted) passes fences that the others have completed
//! ([`Answer::Passed`]). It sees its own puts until it has left a fence together with the others.
//!
//! If the node has [only a part](Board::partial) of the board, the conversation asks the agent for keys that this part
//! does not know ([`Request::Get`]), and the rank waits for the answer. It then gets the same reply as from a whole board;
//! only listing entries by number is refused. If puts are passed on [at once](JobAttributes::puts_at_once), each put
//! becomes a [`Request::Put`] when the rank makes it. The rank still sees its own puts since its last fence.
//!
//! # Order of calls
//!
//! Put, get, names and spawn are refused before `init` (`fullinit` in PMI-2) and after `finalize`. A fence at those times
//! breaks the conversation: legacy clients of PMI-1 ignore its `rc` and would continue as if all ranks had arrived.
//! `abort` and queries of the job's attributes are accepted at any time.
//!
//! # The segment
//!
//! Our own libpmi sends two more requests, but only to an agent that announces them in its environment
//! ([`crate::segment`]). One requests the descriptor of the board. The other arrives at a fence with all puts, and has no
//! reply: the segment shows the release.

use std::sync::Arc;

use crate::engine::{self, Awaited, Violation};
use crate::limits::{BACKLOG_BYTES_MAX, LINE_BYTES_MAX};
use crate::rank_state::{JobAttributes, Phase, RankState, Version};
use crate::wire::{LineBuffer, frame};
use crate::{Answer, Board, Rank, Request, v1, v2};

/// One rank's conversation: its receive buffer, its puts since the last fence, and a spawn of which some lines arrived.
///
/// The host passes what it read to [`receive`](Self::receive), then calls [`advance`](Self::advance) until that returns
/// `None`. It may send `out` in between. If the rank [waits](Self::is_waiting) after a returned [`Request`], nothing more is
/// handled until [`answer`](Self::answer), after which the host advances again for bytes that arrived meanwhile. The host
/// should not read meanwhile. A [`Request::Fence`] or [`Request::GroupFence`] after which the rank does not wait is answered
/// at any time, beside other requests. Replies are at most about ninety times as long as the received
/// bytes (a short get of a long value in PMI-2 that consists of `;`), so the size of a read limits `out`.
#[derive(Clone, Debug)]
pub struct Conversation {
    received: LineBuffer,
    state: RankState,
    lines: v1::Lines,
    frames: v2::Frames,
    /// More than [`BACKLOG_BYTES_MAX`] were received and not handled.
    is_flooded: bool,
}

impl Conversation {
    /// A conversation before the first byte.
    ///
    /// `appnum` is the number of the rank's command in the launch or spawn, from 0.
    pub fn new(attributes: Arc<JobAttributes>, rank: Rank, appnum: i32) -> Self {
        Self {
            received: LineBuffer::new(LINE_BYTES_MAX),
            state: RankState::new(attributes, rank, appnum),
            lines: v1::Lines::default(),
            frames: v2::Frames::default(),
            is_flooded: false,
        }
    }

    /// A conversation before the first byte, of a rank that has started again while the others go on. It has no segment.
    pub fn of_restarted(attributes: Arc<JobAttributes>, rank: Rank, appnum: i32) -> Self {
        let mut conversation = Self::new(attributes, rank, appnum);
        conversation.state.catches_up = true;
        conversation
    }

    /// Appends bytes that were read: any part of a line or frame, or several of them.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.state.phase() == Phase::Broken || self.is_flooded {
            return;
        }
        let room = BACKLOG_BYTES_MAX + self.state.puts_bytes.unwrap_or(0);
        if self.received.len() + bytes.len() > room {
            self.is_flooded = true;
            self.received.clear();
            return;
        }
        self.received.extend_from_slice(bytes);
    }

    /// Handles received bytes and appends replies to `out`, until a request needs the agent, which is returned.
    ///
    /// Returns `None` when no whole line or frame is left, or while the rank waits for an answer. After
    /// [`Request::Broken`] nothing is handled any more.
    pub fn advance(&mut self, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        loop {
            if self.is_waiting() || self.state.phase() == Phase::Broken {
                return None;
            }
            if self.is_flooded {
                return Some(self.break_off(Violation::Flood));
            }
            match self.step(board, out) {
                Ok(Step::Incomplete) => return None,
                Ok(Step::Handled(None)) => {}
                Ok(Step::Handled(Some(request))) => return Some(request),
                Err(violation) => return Some(self.break_off(violation)),
            }
        }
    }

    /// Handles one line, frame or batch of puts, if a whole one was received.
    fn step(&mut self, board: &Board, out: &mut Vec<u8>) -> Result<Step, Violation> {
        let Self { received, state, lines, frames, .. } = self;
        if let Some(puts_bytes) = state.puts_bytes {
            let Some(bytes) = received.take(puts_bytes) else { return Ok(Step::Incomplete) };
            state.puts_bytes = None;
            return Ok(Step::Handled(Some(state.fence_in_segment(bytes)?)));
        }
        // A library that is initialised again begins with a line, whatever it spoke before.
        if state.version == Version::One || frame::is_line(received.peek()) {
            let Some(line) = received.next_line()? else { return Ok(Step::Incomplete) };
            return Ok(Step::Handled(lines.handle(line, state, board, out)?));
        }
        let Some(length) = frame::length(received.peek())? else { return Ok(Step::Incomplete) };
        let Some(bytes) = received.take(frame::HEADER_BYTES + length) else { return Ok(Step::Incomplete) };
        Ok(Step::Handled(frames.handle(&bytes[frame::HEADER_BYTES..], state, board, out)?))
    }

    /// Answers the request that the rank waits for and appends the reply to `out`.
    ///
    /// Drops an answer to anything else: it is late, for example for an earlier program of this rank.
    pub fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        if engine::answer_beside(&self.lines, &mut self.state, &answer, out) {
            return;
        }
        let Some((version, awaited)) = self.state.awaited.take() else { return };
        if let (Awaited::Released, Answer::Released) = (&awaited, &answer) {
            self.state.catch_up();
        }
        let awaited = match version {
            Version::One => engine::answer(&self.lines, awaited, answer, out),
            Version::Two => engine::answer(&self.frames, awaited, answer, out),
        };
        self.state.awaited = awaited.map(|awaited| (version, awaited));
    }

    /// Whether the rank waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.state.awaited.is_some()
    }

    /// Whether the rank has joined and has neither finalised since nor broken the protocol.
    pub fn is_active(&self) -> bool {
        self.state.is_active()
    }

    /// Returns the rank whose conversation this is.
    pub fn rank(&self) -> Rank {
        self.state.rank
    }

    fn break_off(&mut self, violation: Violation) -> Request {
        self.received.clear();
        self.lines = v1::Lines::default();
        self.state.break_off(violation)
    }
}

/// The outcome of looking for something to handle.
enum Step {
    /// Nothing whole was received yet.
    Incomplete,
    /// One line, frame or batch of puts was handled.
    Handled(Option<Request>),
}

#[cfg(test)]
mod tests;
