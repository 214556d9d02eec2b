//! [`Conversation`]: the server's side of PMI for one rank, PMI-1 or PMI-2.
//!
//! Bytes in, bytes out, and now and then a [`Request`] that only the agent can serve. It owns no
//! descriptor and never waits: what must wait is a request whose answer comes later. Which version
//! the rank speaks shows in its first line, and again in each later `init`.
//!
//! # What is visible when
//!
//! A rank sees its own puts at once, and those of others from the fence on that both took part in:
//! the same answer whatever the tree's shape, the cache policy and the place of the other rank. Own
//! puts since the last fence go first, then the node's board, then what a parent put for its
//! children; then, if nobody put it, `universeSize`. Keys that begin `PMI_` are never put:
//! `PMI_process_mapping` comes from the [`JobAttributes`], all others do not exist. A get never waits for
//! anybody to put: MPICH probes for keys that nobody puts, and caches nothing that could outlive its
//! epoch.
//!
//! Where the node holds [only a part](Board::partial) of the board, the agent is asked for what that
//! part does not tell ([`Request::Get`]), and the rank waits as long as that takes; it is replied to
//! as if the board were whole. Only the entries of such a board cannot be listed by number. Where
//! puts are handed on [at once](JobAttributes::puts_at_once), each becomes a [`Request::Put`] when the rank
//! makes it. It sees its own puts as ever; they are those that it put since its last fence.
//!
//! # Turns
//!
//! Put, get, names and spawn are refused before `init` (in PMI-2 `fullinit`) and after `finalize`. A
//! fence there breaks the conversation: legacy clients of PMI-1 ignore its `rc`, and would go on as
//! if all had arrived. `abort` is taken at any time. JobAttributes about the job are told at any time.
//!
//! # The segment
//!
//! Our own libpmi speaks the same protocols and two requests more, which it sends only to an agent
//! that announces them in its environment ([`crate::segment`]): one for the board's descriptor, one
//! that arrives at a fence and carries all puts. The latter has no reply: the release shows in the
//! segment.

use std::sync::Arc;

use crate::engine::{self, Violation};
use crate::limits::{BACKLOG_BYTES_MAX, LINE_BYTES_MAX};
use crate::rank_state::{JobAttributes, Phase, RankState, Version};
use crate::wire::{LineBuffer, frame};
use crate::{Answer, Board, Rank, Request, v1, v2};

/// One rank's conversation: its line buffer, its puts since the last fence, and a spawn that has
/// arrived in part.
///
/// The host calls [`receive`](Self::receive) with what it read and then
/// [`advance`](Self::advance) until that returns `None`, sending `out` in between as it likes. When
/// the returned request [wants an answer](Request::wants_answer), nothing more is handled until
/// [`answer`](Self::answer); the host then advances again, for what came in meanwhile. It does well
/// to read nothing while [`is_waiting`](Self::is_waiting). Replies take some ninety times the bytes
/// received at worst (a short get of a long value in PMI-2, all of it `;`), so that the size of a
/// read bounds `out`.
#[derive(Clone, Debug)]
pub struct Conversation {
    received: LineBuffer,
    state: RankState,
    lines: v1::Lines,
    frames: v2::Frames,
    /// The host let more than [`BACKLOG_BYTES_MAX`] pile up.
    is_flooded: bool,
}

impl Conversation {
    /// A conversation that begins: nothing was received yet.
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

    /// Appends what was read: any part of a line, or several.
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

    /// Handles what was received until something needs the agent, which is returned, or nothing
    /// whole is left or an answer is owed. Replies are appended to `out`.
    ///
    /// After [`Request::Broken`] nothing is ever handled again.
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

    /// Answers the request that is waited for; the reply is appended to `out`.
    ///
    /// An answer to anything else comes too late (for an earlier program of this rank, say) and is
    /// dropped.
    pub fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        let Some((version, awaited)) = self.state.awaited.take() else { return };
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

    /// Whether the rank has joined and neither finalised since nor broken the protocol.
    pub fn is_active(&self) -> bool {
        self.state.is_active()
    }

    /// Whose conversation this is.
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
