//! [`Frames`]: PMI-2's commands and replies in terms of [`crate::engine`].
//!
//! PMI-2 adds these rules to those of [`crate::conversation`]. A fence waits for all ranks, as in Slurm. (Hydra replies
//! at once and withholds gets instead. MPICH is content with either, and to be sure gets a key that no rank puts after
//! each fence.) A fence before `fullinit` breaks the conversation, and so does a frame without a command. `abort` ends
//! the namespace also where `isworld` is `FALSE`: the rank is lost either way.

use std::borrow::Cow;

use super::command::{Command, ParseError};
use super::pairs::Pairs;
use super::reply;
use crate::board::{DEAD_PROCESSES, check_put};
use crate::engine::{Awaited, Dialect, Operation, Outcome, Refusal, Reply, Turn, Violation};
use crate::limits::{ATTRIBUTE_BYTES_MAX, ECHO_BYTES_MAX, JOB_BYTES_MAX};
use crate::rank_state::{RankState, TOPOLOGY_FILE, Version, readable};
use crate::{Board, NameError, Request, RootRequest};

/// PMI-2's part of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    /// The `thrid` of the request that is being handled or answered.
    thread: Option<Vec<u8>>,
}

impl Frames {
    /// Handles the payload of a frame.
    pub(crate) fn handle(
        &mut self,
        payload: &[u8],
        state: &mut RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let pairs = Pairs::of(payload);
        let thread = pairs.get(b"thrid").filter(|thread| !thread.is_empty() && thread.len() <= ECHO_BYTES_MAX);
        self.thread = thread.map(Cow::into_owned);
        let mut turn = Turn { dialect: self, state, board, out };
        match Command::parse(pairs) {
            Ok(command) => turn.on_command(command),
            Err(ParseError::Field { command, field }) => {
                Ok(turn.write(reply::Reply::Refused(command, &format!("{field}_missing"))))
            }
            Err(ParseError::Spawn(error)) => Ok(turn.spawn(Err(error))),
            Err(ParseError::NoCommand) => Err(Violation::FrameWithoutCommand),
        }
    }
}

impl Dialect for Frames {
    const VERSION: Version = Version::Two;

    fn write(&self, reply: Reply<'_>, out: &mut Vec<u8>) {
        use reply::Reply as To;
        let reply = match reply {
            Reply::Got { value, .. } => To::Got(value),
            Reply::Put => To::Put,
            Reply::Fenced => To::Fenced,
            // PMI-2 has no command that leads to it.
            Reply::FencedBeside { .. } => return,
            Reply::Finalized => To::Finalized,
            Reply::Published => To::Published,
            Reply::Port(port) => To::Port(port),
            Reply::Unpublished => To::Unpublished,
            Reply::Spawned(job) => To::Spawned { job: &job.job, codes: &job.codes },
            Reply::Segment => To::Segment,
            Reply::NodePut => To::NodePut,
            Reply::NodeGot(value) => To::NodeGot(value),
            Reply::JobAttribute(value) => To::JobAttribute(value),
            Reply::Connected => To::Connected,
            Reply::Ring { position, from_left, from_right } => To::Ring { position, from_left, from_right },
            Reply::Refused(Operation::Lookup, Refusal::Name(NameError::Unknown)) => To::NoPort,
            Reply::Refused(operation, refusal) => {
                let refused = &refusal.to_string();
                return To::Refused(command_name(operation), refused).write(self.thread.as_deref(), out);
            }
        };
        reply.write(self.thread.as_deref(), out);
    }
}

impl Turn<'_, Frames> {
    /// Writes a reply that only PMI-2 has.
    fn write(&mut self, reply: reply::Reply<'_>) -> Option<Request> {
        reply.write(self.dialect.thread.as_deref(), self.out);
        None
    }

    fn on_command(&mut self, command: Command<'_>) -> Outcome {
        Ok(match command {
            Command::Get { job, key, .. } => self.on_get(&job, &key),
            Command::Put { key, value } => self.put(&key, &value),
            Command::Fence => return self.fence(Violation::FenceBeforeInit),
            Command::FullInit { .. } => self.on_full_init(),
            Command::Finalize => self.finalize(),
            Command::Abort { code, message } => {
                Some(Request::Abort { code: code.unwrap_or(1), message: readable(&message) })
            }
            Command::JobId => {
                reply::Reply::JobId(&self.state.attributes.kvsname).write(self.dialect.thread.as_deref(), self.out);
                None
            }
            Command::JobAttribute { key } if key == TOPOLOGY_FILE => {
                self.ask(Awaited::JobAttribute, Request::TopologyFile)
            }
            Command::JobAttribute { key } => {
                let attributes = &self.state.attributes;
                let dead = if key == DEAD_PROCESSES { self.board.dead() } else { None };
                let dead = dead.map(|ranks| ranks.as_bytes().to_vec());
                // MVAPICH2 2.3 ends the job if this is not found, and takes a negative one as unknown, as MPICH does.
                let universe = (*key == *b"universeSize").then(|| attributes.universe_size.to_string().into_bytes());
                let value = dead.or(universe).or_else(|| attributes.attribute(&key));
                self.reply(Reply::JobAttribute(value.as_deref()))
            }
            Command::NodePut { key, value } => self.on_node_put(&key, &value),
            Command::NodeGet { key, wait } => self.on_node_get(&key, wait),
            Command::Spawn(spawn) => self.spawn(Ok(spawn)),
            Command::Publish { service, port } => self.publish(&service, &port),
            Command::Lookup { service } => self.lookup(&service),
            Command::Unpublish { service } => self.unpublish(&service),
            Command::Connect { job } => self.on_connect(&job),
            // Connecting sets nothing up, so disconnecting takes nothing down.
            Command::Disconnect { .. } if self.check_active(Operation::Disconnect) => {
                self.write(reply::Reply::Disconnected)
            }
            Command::Disconnect { .. } => None,
            Command::Ring { left, right } => self.on_ring(&left, &right),
            Command::Segment => self.ask(Awaited::Segment, Request::Segment),
            Command::FenceInSegment { puts_bytes } => return self.fence_in_segment(puts_bytes),
            Command::Unknown { name } => self.write(reply::Reply::Unsupported(&name)),
        })
    }

    fn on_full_init(&mut self) -> Option<Request> {
        let RankState { attributes, rank, appnum, .. } = &*self.state;
        let spawner = attributes.spawner.as_deref();
        let reply = reply::Reply::FullInit { rank: rank.0, size: attributes.size, appnum: *appnum, spawner };
        reply.write(self.dialect.thread.as_deref(), self.out);
        self.state.join()
    }

    fn on_get(&mut self, job: &[u8], key: &[u8]) -> Option<Request> {
        let is_own = job.is_empty() || job == self.state.attributes.kvsname.as_bytes();
        if is_own || key.is_empty() {
            self.get(key)
        } else if !self.check_active(Operation::Get) {
            None
        } else if job.len() > JOB_BYTES_MAX {
            self.refuse(Operation::Get, Refusal::JobTooLong)
        } else if check_put(key, b"").is_err() {
            // No rank can have put it.
            self.reply(Reply::Got { key, value: None })
        } else {
            let (job, key) = (job.to_vec(), key.to_vec());
            self.ask_root(Awaited::GotFromJob { key: key.clone() }, RootRequest::GetFromJob { job, key })
        }
    }

    fn on_node_put(&mut self, key: &[u8], value: &[u8]) -> Option<Request> {
        if !self.check_active(Operation::NodePut) {
            return None;
        }
        match check_put(key, b"") {
            Err(refusal) => self.refuse(Operation::NodePut, Refusal::Put(refusal)),
            Ok(()) if value.len() > ATTRIBUTE_BYTES_MAX => self.refuse(Operation::NodePut, Refusal::ValueTooLong),
            Ok(()) => self.ask(Awaited::NodePut, Request::NodePut { key: key.to_vec(), value: value.to_vec() }),
        }
    }

    fn on_node_get(&mut self, key: &[u8], wait: bool) -> Option<Request> {
        if !self.check_active(Operation::NodeGet) {
            return None;
        }
        match check_put(key, b"") {
            Ok(()) => self.ask(Awaited::NodeGot, Request::NodeGet { key: key.to_vec(), wait }),
            // No rank can put it, so waiting for it would never end.
            Err(refusal) if wait => self.refuse(Operation::NodeGet, Refusal::Put(refusal)),
            Err(_) => self.reply(Reply::NodeGot(None)),
        }
    }

    fn on_connect(&mut self, job: &[u8]) -> Option<Request> {
        let operation = Operation::Connect;
        if !self.check_active(operation) {
            return None;
        }
        match job.len() {
            0 => self.refuse(operation, Refusal::JobEmpty),
            1..=JOB_BYTES_MAX => self.ask_root(Awaited::Connected, RootRequest::Connect { job: job.to_vec() }),
            _ => self.refuse(operation, Refusal::JobTooLong),
        }
    }

    fn on_ring(&mut self, left: &[u8], right: &[u8]) -> Option<Request> {
        if !self.check_active(Operation::Ring) {
            None
        } else if left.len() > ATTRIBUTE_BYTES_MAX || right.len() > ATTRIBUTE_BYTES_MAX {
            self.refuse(Operation::Ring, Refusal::ValueTooLong)
        } else {
            self.ask(Awaited::Ring, Request::Ring { to_left: left.to_vec(), to_right: right.to_vec() })
        }
    }
}

/// Returns the name of a request's command.
fn command_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Put => "kvs-put",
        Operation::Get => "kvs-get",
        Operation::Finalize => "finalize",
        Operation::Publish => "name-publish",
        Operation::Lookup => "name-lookup",
        Operation::Unpublish => "name-unpublish",
        Operation::Spawn => "spawn",
        Operation::Segment => "scela-segment",
        Operation::NodePut => "info-putnodeattr",
        Operation::NodeGet => "info-getnodeattr",
        Operation::Connect => "job-connect",
        Operation::Disconnect => "job-disconnect",
        Operation::Ring => "ring",
        Operation::Fence => "kvs-fence",
    }
}
