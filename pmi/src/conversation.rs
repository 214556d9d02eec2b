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
    lines: v1::Engine,
    frames: v2::Engine,
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
            lines: v1::Engine::default(),
            frames: v2::Engine::default(),
            is_flooded: false,
        }
    }

    /// Appends what was read: any part of a line, or several.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.state.phase == Phase::Broken || self.is_flooded {
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
            if self.is_waiting() || self.state.phase == Phase::Broken {
                return None;
            }
            if self.is_flooded {
                let why = format!("sent more than {BACKLOG_BYTES_MAX} bytes without waiting for replies");
                return Some(self.break_off(why));
            }
            let step = match (self.state.puts_bytes, self.state.version) {
                (Some(bytes), _) => self.take_puts(bytes),
                // A library that is initialised again begins with a line, whatever it spoke before.
                (None, Version::Two) if !frame::is_line(self.received.peek()) => self.take_frame(board, out),
                (None, _) => self.take_line(board, out),
            };
            match step {
                Step::Incomplete => return None,
                Step::Handled(None) => {}
                Step::Handled(Some(request)) => {
                    if matches!(request, Request::Broken { .. }) {
                        self.received.clear();
                    }
                    return Some(request);
                }
                Step::Wrong(why) => return Some(self.break_off(why)),
            }
        }
    }

    fn take_line(&mut self, board: &Board, out: &mut Vec<u8>) -> Step {
        match self.received.next_line() {
            Ok(None) => Step::Incomplete,
            Ok(Some(line)) => Step::Handled(self.lines.handle(line, &mut self.state, board, out)),
            Err(too_long) => Step::Wrong(too_long.to_string()),
        }
    }

    fn take_frame(&mut self, board: &Board, out: &mut Vec<u8>) -> Step {
        let length = match frame::length(self.received.peek()) {
            Ok(None) => return Step::Incomplete,
            Ok(Some(length)) => length,
            Err(error) => return Step::Wrong(error.to_string()),
        };
        match self.received.take(frame::HEADER_BYTES + length) {
            None => Step::Incomplete,
            Some(bytes) => {
                let payload = &bytes[frame::HEADER_BYTES..];
                Step::Handled(self.frames.handle(payload, &mut self.state, board, out))
            }
        }
    }

    fn take_puts(&mut self, bytes: usize) -> Step {
        match self.received.take(bytes) {
            None => Step::Incomplete,
            Some(bytes) => {
                self.state.puts_bytes = None;
                Step::Handled(Some(self.state.fence_in_segment(bytes)))
            }
        }
    }

    /// Answers the request that is waited for; the reply is appended to `out`.
    ///
    /// An answer to anything else comes too late (for an earlier program of this rank, say) and is
    /// dropped.
    pub fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        if self.lines.is_waiting() {
            self.lines.answer(answer, out);
        } else {
            self.frames.answer(answer, out);
        }
    }

    /// Whether an answer is owed.
    pub fn is_waiting(&self) -> bool {
        self.lines.is_waiting() || self.frames.is_waiting()
    }

    /// Whether the rank has joined and neither finalised since nor broken the protocol.
    pub fn is_active(&self) -> bool {
        self.state.is_active()
    }

    /// Whose conversation this is.
    pub fn rank(&self) -> Rank {
        self.state.rank
    }

    fn break_off(&mut self, why: String) -> Request {
        self.received.clear();
        self.state.break_off(why)
    }
}

/// What came of looking at what was received.
enum Step {
    /// There is nothing whole yet.
    Incomplete,
    /// Something was handled.
    Handled(Option<Request>),
    /// It is nothing that can be handled.
    Wrong(String),
}

#[cfg(test)]
mod tests;
