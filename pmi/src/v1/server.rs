//! [`Conversation`]: the server's side of PMI-1 for one rank.
//!
//! Bytes in, bytes out, and now and then a [`Request`] that only the agent can serve. It owns no
//! descriptor and never waits: what must wait is a request whose answer comes later.
//!
//! # What is visible when
//!
//! A rank sees its own puts at once, and those of others from the fence on that both took part in:
//! the same answer whatever the tree's shape, the cache policy and the place of the other rank. Own
//! puts since the last fence go first, then the node's board, then what a parent put for its
//! children; then, if nobody put it, `universeSize`. Keys that begin `PMI_` are never put:
//! `PMI_process_mapping` comes from the [`Facts`], all others do not exist. A get never waits:
//! MPICH probes for keys that nobody puts, and caches nothing that could outlive its epoch.
//!
//! # Turns
//!
//! Put, get, names and spawn are refused before `init` and after `finalize`. A `barrier_in` there
//! breaks the conversation: legacy clients ignore its `rc`, and would go on as if all had arrived.
//! `abort` is taken at any time. Facts about the job are told at any time.

use std::sync::Arc;

use thiserror::Error;

use super::command::{Command, ParseError};
use super::engine::{Engine, Phase};
use super::reply::Reply;
use crate::limits::{BACKLOG_BYTES_MAX, LINE_BYTES_MAX};
use crate::wire::LineBuffer;
use crate::{Answer, Board, Epoch, Rank, Request};

/// What is the same for all ranks of a namespace on this agent.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// The namespace's name on the wire: without blanks, at most 32 bytes (Charm++ cuts its lines
    /// when name and key are longer than 68 together), different from that of any job that this one
    /// may connect to.
    pub kvsname: String,
    /// How many ranks the namespace has.
    pub size: u32,
    /// What `MPI_UNIVERSE_SIZE` shall be; negative hides the attribute.
    pub universe_size: i32,
    /// `PMI_process_mapping` ([`Mapping::wire_value`](crate::Mapping::wire_value)); `None` makes
    /// MPI libraries compare host names instead.
    pub mapping: Option<String>,
    /// What the parent put for its children; empty in a namespace that was not spawned.
    pub preputs: Epoch,
    /// Whether the namespace was spawned. Clients read it from their environment, not here.
    pub spawned: bool,
}

/// One rank's conversation: its line buffer, its puts since the last fence, and a spawn that has
/// arrived in part.
///
/// The host calls [`receive`](Self::receive) with what it read and then
/// [`advance`](Self::advance) until that returns `None`, sending `out` in between as it likes. When
/// the returned request [wants an answer](Request::wants_answer), nothing more is handled until
/// [`answer`](Self::answer); the host then advances again, for what came in meanwhile. It does well
/// to read nothing while [`is_waiting`](Self::is_waiting). Replies take some forty times the bytes
/// received at worst, so that the size of a read bounds `out`.
#[derive(Clone, Debug)]
pub struct Conversation {
    lines: LineBuffer,
    engine: Engine,
    /// The host let more than [`BACKLOG_BYTES_MAX`] pile up.
    is_flooded: bool,
}

impl Conversation {
    /// A conversation that begins: nothing was received yet.
    ///
    /// `appnum` is the number of the rank's command in the launch or spawn, from 0.
    pub fn new(facts: Arc<Facts>, rank: Rank, appnum: i32) -> Self {
        let engine = Engine::new(facts, rank, appnum);
        Self { lines: LineBuffer::new(LINE_BYTES_MAX), engine, is_flooded: false }
    }

    /// Appends what was read: any part of a line, or several.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.engine.phase == Phase::Broken || self.is_flooded {
            return;
        }
        if self.lines.len() + bytes.len() > BACKLOG_BYTES_MAX {
            self.is_flooded = true;
            self.lines.clear();
            return;
        }
        self.lines.extend_from_slice(bytes);
    }

    /// Handles buffered lines until one needs the agent, which is returned, or none is left or an
    /// answer is owed. Replies are appended to `out`.
    ///
    /// After [`Request::Broken`] nothing is ever handled again.
    pub fn advance(&mut self, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        loop {
            if self.engine.is_waiting() || self.engine.phase == Phase::Broken {
                return None;
            }
            if self.is_flooded {
                let why = format!("sent more than {BACKLOG_BYTES_MAX} bytes without waiting for replies");
                return Some(self.break_off(why));
            }
            let line = match self.lines.next_line() {
                Ok(line) => line?,
                Err(too_long) => return Some(self.break_off(too_long.to_string())),
            };
            if let Some(request) = self.engine.handle(line, board, out) {
                if matches!(request, Request::Broken { .. }) {
                    self.lines.clear();
                }
                return Some(request);
            }
        }
    }

    /// Answers the request that is waited for; the reply is appended to `out`.
    ///
    /// An answer to anything else comes too late (for an earlier program of this rank, say) and is
    /// dropped.
    pub fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        self.engine.answer(answer, out);
    }

    /// Whether an answer is owed.
    pub fn is_waiting(&self) -> bool {
        self.engine.is_waiting()
    }

    /// Whether the rank has joined and neither finalised since nor broken the protocol.
    pub fn is_active(&self) -> bool {
        self.engine.phase == Phase::Active
    }

    /// Whose conversation this is.
    pub fn rank(&self) -> Rank {
        self.engine.rank
    }

    fn break_off(&mut self, why: String) -> Request {
        self.lines.clear();
        self.engine.break_off(why)
    }
}

/// A line is not the `initack` that opens a conversation on a port.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum InitackError {
    /// It is no request at all, or an `initack` without a rank.
    #[error("failed to read the first line on the PMI port: peer {0}")]
    Parse(#[from] ParseError),
    /// It is another request.
    #[error("first line on the PMI port is not initack")]
    OtherCommand,
}

/// Reads the first line on a connection to a port (`PMI_PORT`), which says which rank speaks.
///
/// Nothing proves it: the caller checks that the rank exists and who owns the other end. A rank
/// that has finalised may come again on a new connection, with a new [`Conversation`].
pub fn parse_initack(line: &[u8]) -> Result<Rank, InitackError> {
    match Command::parse(line)? {
        Command::Initack { rank } => Ok(Rank(rank)),
        _ => Err(InitackError::OtherCommand),
    }
}

/// The four lines that answer an `initack`, in the order in which clients read them.
pub fn initack_reply(facts: &Facts, rank: Rank) -> Vec<u8> {
    let mut out = Vec::new();
    Reply::Initack { size: facts.size, rank: rank.0 }.write(&mut out);
    out
}

#[cfg(test)]
mod tests;
