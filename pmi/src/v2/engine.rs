//! [`Engine`]: what each frame of a rank does, and what each answer becomes.
//!
//! The rules are told in [`crate::conversation`]. What PMI-2 adds: a fence waits for all ranks, as
//! in Slurm (Hydra replies at once and withholds gets instead; MPICH is content with either, and
//! gets a key that nobody puts behind each fence to be sure). A fence before `fullinit` breaks the
//! conversation, and so does a frame that does not say what it wants. `abort` ends the namespace
//! also where `isworld` is `FALSE`: the rank is gone either way.

use std::borrow::Cow;

use bytes::Bytes;

use super::command::{Command, ParseError};
use super::pairs::Pairs;
use super::reply::Reply;
use crate::board::check_put;
use crate::limits::{
    ATTRIBUTE_BYTES_MAX, ECHO_BYTES_MAX, JOB_BYTES_MAX, PENDING_BYTES_MAX, PORT_BYTES_MAX, SERVICE_BYTES_MAX,
};
use crate::rank_state::{PendingFull, Phase, RankState, readable};
use crate::{Answer, Board, LookUp, NameError, Request, SpawnRequest, SpawnedJob};

/// PMI-2's part of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    awaited: Option<Awaited>,
    /// The `thrid` of the request that is handled or answered.
    thread: Option<Vec<u8>>,
}

/// The answer that is owed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Awaited {
    Released,
    Got {
        /// The reply if nobody has put the key.
        otherwise: Vec<u8>,
    },
    Published,
    Found,
    Unpublished,
    Spawned {
        /// How many codes are due.
        ranks: u64,
    },
    Ring,
    NodePut,
    NodeGot,
    Elsewhere,
    Connected,
    Segment,
}

impl Engine {
    /// Whether an answer is owed, and no frame may be handled before it came.
    pub(crate) fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Handles the payload of a frame.
    pub(crate) fn handle(
        &mut self,
        payload: &[u8],
        state: &mut RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        let pairs = Pairs::of(payload);
        let thread = pairs.get(b"thrid").filter(|thread| !thread.is_empty() && thread.len() <= ECHO_BYTES_MAX);
        self.thread = thread.map(Cow::into_owned);
        match Command::parse(pairs) {
            Ok(command) => self.on_command(command, state, board, out),
            Err(ParseError::Field { command, field }) => self.refuse(command, &format!("{field}_missing"), out),
            Err(ParseError::Spawn(_)) if !state.is_active() => self.refuse("spawn", NOT_JOINED, out),
            Err(ParseError::Spawn(error)) => self.refuse("spawn", &error.to_string(), out),
            Err(error @ ParseError::NoCommand) => Some(state.break_off(error.to_string())),
        }
    }

    fn on_command(
        &mut self,
        command: Command<'_>,
        state: &mut RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        match command {
            Command::Get { job, key, .. } => self.on_get(&job, &key, state, board, out),
            Command::Put { key, value } => self.on_put(&key, &value, state, out),
            Command::Fence => self.on_fence(state),
            Command::FullInit { .. } => self.on_full_init(state, out),
            Command::Finalize => self.on_finalize(state, out),
            Command::Abort { code, message } => {
                Some(Request::Abort { code: code.unwrap_or(1), message: readable(&message) })
            }
            Command::JobId => self.reply(Reply::JobId(&state.attributes.kvsname), out),
            Command::JobAttribute { key } => {
                self.reply(Reply::JobAttribute(state.attributes.attribute(&key).as_deref()), out)
            }
            Command::NodePut { key, value } => self.on_node_put(&key, &value, state, out),
            Command::NodeGet { key, wait } => self.on_node_get(&key, wait, state, out),
            Command::Spawn(order) => self.on_spawn(order, state, out),
            Command::Publish { service, port } => self.on_publish(&service, &port, state, out),
            Command::Lookup { service } => {
                let request = Request::Lookup { service: service.to_vec() };
                self.ask_about("name-lookup", &service, (Awaited::Found, request), state, out)
            }
            Command::Unpublish { service } => {
                let request = Request::Unpublish { service: service.to_vec() };
                self.ask_about("name-unpublish", &service, (Awaited::Unpublished, request), state, out)
            }
            Command::Connect { job } => self.on_connect(&job, state, out),
            // Nothing was set up, so there is nothing to take down.
            Command::Disconnect { .. } if state.is_active() => self.reply(Reply::Disconnected, out),
            Command::Disconnect { .. } => self.refuse("job-disconnect", NOT_JOINED, out),
            Command::Ring { left, right } => self.on_ring(&left, &right, state, out),
            Command::Segment => self.ask(Awaited::Segment, Request::Segment),
            Command::FenceInSegment { puts_bytes } if puts_bytes > PENDING_BYTES_MAX => {
                Some(state.break_off(format!("put more than {PENDING_BYTES_MAX} bytes at once")))
            }
            Command::FenceInSegment { puts_bytes } => {
                state.puts_bytes = Some(puts_bytes);
                None
            }
            Command::Unknown { name } => self.reply(Reply::Unsupported(&name), out),
        }
    }

    fn on_full_init(&self, state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
        let attributes = &state.attributes;
        let (rank, appnum) = (state.rank.0, state.appnum);
        let spawner = attributes.spawner.as_deref();
        self.reply(Reply::FullInit { rank, size: attributes.size, appnum, spawner }, out);
        state.join()
    }

    fn on_finalize(&self, state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
        match state.phase {
            Phase::Active => {
                state.phase = Phase::Finalized;
                self.reply(Reply::Finalized, out);
                Some(Request::Finalized)
            }
            Phase::Finalized => self.reply(Reply::Finalized, out),
            Phase::New | Phase::Broken => self.refuse("finalize", NOT_JOINED, out),
        }
    }

    fn on_put(&self, key: &[u8], value: &[u8], state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
        if !state.is_active() {
            return self.refuse("kvs-put", NOT_JOINED, out);
        }
        match check_put(key, value) {
            Err(refusal) => self.refuse("kvs-put", &refusal.to_string(), out),
            Ok(()) => match state.put(key, value) {
                Ok(request) => {
                    self.reply(Reply::Put, out);
                    request
                }
                Err(PendingFull) => self.refuse("kvs-put", "too_many_bytes_put_between_fences", out),
            },
        }
    }

    fn on_fence(&mut self, state: &mut RankState) -> Option<Request> {
        if !state.is_active() {
            return Some(state.break_off(String::from("entered a fence without having initialised")));
        }
        let fence = state.fence();
        self.ask(Awaited::Released, fence)
    }

    fn on_get(
        &mut self,
        job: &[u8],
        key: &[u8],
        state: &RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        if !state.is_active() {
            self.refuse("kvs-get", NOT_JOINED, out)
        } else if key.is_empty() {
            self.refuse("kvs-get", "key_empty", out)
        } else if job.is_empty() || job == state.attributes.kvsname.as_bytes() {
            self.on_own_get(key, state, board, out)
        } else if job.len() > JOB_BYTES_MAX {
            self.refuse("kvs-get", "jobid_too_long", out)
        } else if check_put(key, b"").is_err() {
            // Nobody can have put it.
            self.reply(Reply::Got(None), out)
        } else {
            self.ask(Awaited::Elsewhere, Request::GetFromJob { job: job.to_vec(), key: key.to_vec() })
        }
    }

    /// A get from the rank's own namespace.
    fn on_own_get(&mut self, key: &[u8], state: &RankState, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        match state.look_up(key, board) {
            LookUp::Found(value) => self.reply(Reply::Got(Some(&value)), out),
            LookUp::Absent => self.reply(Reply::Got(None), out),
            LookUp::Unknown => {
                let mut otherwise = Vec::new();
                self.reply(Reply::Got(state.default_value(key).as_deref()), &mut otherwise);
                self.ask(Awaited::Got { otherwise }, Request::Get { key: Bytes::copy_from_slice(key) })
            }
        }
    }

    fn on_node_put(&mut self, key: &[u8], value: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let command = "info-putnodeattr";
        if !state.is_active() {
            return self.refuse(command, NOT_JOINED, out);
        }
        match check_put(key, b"") {
            Err(refusal) => self.refuse(command, &refusal.to_string(), out),
            Ok(()) if value.len() > ATTRIBUTE_BYTES_MAX => self.refuse(command, "value_too_long", out),
            Ok(()) => self.ask(Awaited::NodePut, Request::NodePut { key: key.to_vec(), value: value.to_vec() }),
        }
    }

    fn on_node_get(&mut self, key: &[u8], wait: bool, state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let command = "info-getnodeattr";
        if !state.is_active() {
            return self.refuse(command, NOT_JOINED, out);
        }
        match check_put(key, b"") {
            Ok(()) => self.ask(Awaited::NodeGot, Request::NodeGet { key: key.to_vec(), wait }),
            // Nobody can put it, so that nobody need wait for it.
            Err(refusal) if wait => self.refuse(command, &refusal.to_string(), out),
            Err(_) => self.reply(Reply::NodeGot(None), out),
        }
    }

    fn on_spawn(&mut self, order: SpawnRequest, state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        if !state.is_active() {
            return self.refuse("spawn", NOT_JOINED, out);
        }
        self.ask(Awaited::Spawned { ranks: order.ranks() }, Request::Spawn(order))
    }

    fn on_publish(&mut self, service: &[u8], port: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let command = "name-publish";
        if state.is_active() && port.is_empty() {
            return self.refuse(command, "port_empty", out);
        }
        if state.is_active() && port.len() > PORT_BYTES_MAX {
            return self.refuse(command, "port_too_long", out);
        }
        let request = Request::Publish { service: service.to_vec(), port: port.to_vec() };
        self.ask_about(command, service, (Awaited::Published, request), state, out)
    }

    /// Asks the agent about a published name.
    fn ask_about(
        &mut self,
        command: &'static str,
        service: &[u8],
        (awaited, request): (Awaited, Request),
        state: &RankState,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        if !state.is_active() {
            self.refuse(command, NOT_JOINED, out)
        } else if service.is_empty() {
            self.refuse(command, "name_empty", out)
        } else if service.len() > SERVICE_BYTES_MAX {
            self.refuse(command, "name_too_long", out)
        } else {
            self.ask(awaited, request)
        }
    }

    fn on_connect(&mut self, job: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        if !state.is_active() {
            self.refuse("job-connect", NOT_JOINED, out)
        } else if job.is_empty() {
            self.refuse("job-connect", "jobid_empty", out)
        } else if job.len() > JOB_BYTES_MAX {
            self.refuse("job-connect", "jobid_too_long", out)
        } else {
            self.ask(Awaited::Connected, Request::Connect { job: job.to_vec() })
        }
    }

    fn on_ring(&mut self, left: &[u8], right: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        if !state.is_active() {
            self.refuse("ring", NOT_JOINED, out)
        } else if left.len() > ATTRIBUTE_BYTES_MAX || right.len() > ATTRIBUTE_BYTES_MAX {
            self.refuse("ring", "value_too_long", out)
        } else {
            self.ask(Awaited::Ring, Request::Ring { to_left: left.to_vec(), to_right: right.to_vec() })
        }
    }

    /// Replies with an answer, if it is the one that is owed.
    pub(crate) fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        let Some(awaited) = self.awaited.take() else { return };
        match (awaited, answer) {
            (Awaited::Released, Answer::Released) => self.reply(Reply::Fenced, out),
            (Awaited::Got { .. }, Answer::Got(Some(value))) => self.reply(Reply::Got(Some(&value)), out),
            (Awaited::Got { otherwise }, Answer::Got(None)) => {
                out.extend_from_slice(&otherwise);
                None
            }
            (Awaited::Elsewhere, Answer::GotFromJob(value)) => self.reply(Reply::Got(value.as_deref()), out),
            (Awaited::NodePut, Answer::NodePut(true)) => self.reply(Reply::NodePut, out),
            (Awaited::NodePut, Answer::NodePut(false)) => self.refuse("info-putnodeattr", "too_many_attributes", out),
            (Awaited::NodeGot, Answer::NodeGot(value)) => self.reply(Reply::NodeGot(value.as_deref()), out),
            (Awaited::Published, Answer::Published(Ok(()))) => self.reply(Reply::Published, out),
            (Awaited::Published, Answer::Published(Err(error))) => self.refuse("name-publish", &error.to_string(), out),
            (Awaited::Found, Answer::Found(Ok(port))) => self.reply(Reply::Port(&port), out),
            (Awaited::Found, Answer::Found(Err(NameError::Unknown))) => self.reply(Reply::NoPort, out),
            (Awaited::Found, Answer::Found(Err(error))) => self.refuse("name-lookup", &error.to_string(), out),
            (Awaited::Unpublished, Answer::Unpublished(Ok(()))) => self.reply(Reply::Unpublished, out),
            (Awaited::Unpublished, Answer::Unpublished(Err(error))) => {
                self.refuse("name-unpublish", &error.to_string(), out)
            }
            (Awaited::Spawned { ranks }, Answer::Spawned(result)) => self.on_spawned(ranks, &result, out),
            (Awaited::Ring, Answer::Ring { position, from_left, from_right }) => {
                self.reply(Reply::Ring { position, from_left: &from_left, from_right: &from_right }, out)
            }
            (Awaited::Connected, Answer::Connected(true)) => self.reply(Reply::Connected, out),
            (Awaited::Connected, Answer::Connected(false)) => self.refuse("job-connect", "no_such_job", out),
            (Awaited::Segment, Answer::Segment(true)) => self.reply(Reply::Segment, out),
            (Awaited::Segment, Answer::Segment(false)) => self.refuse("scela-segment", "no_segment_here", out),
            // Not the one: it is still owed.
            (awaited, Answer::Released | Answer::Got(_) | Answer::Published(_) | Answer::Found(_))
            | (awaited, Answer::Unpublished(_) | Answer::Spawned(_) | Answer::Segment(_))
            | (awaited, Answer::Ring { .. } | Answer::NodePut(_) | Answer::NodeGot(_))
            | (awaited, Answer::GotFromJob(_) | Answer::Connected(_)) => {
                self.awaited = Some(awaited);
                None
            }
        };
    }

    fn on_spawned(&self, ranks: u64, result: &Result<SpawnedJob, String>, out: &mut Vec<u8>) -> Option<Request> {
        match result {
            Err(why) => self.refuse("spawn", why, out),
            Ok(SpawnedJob { job, codes }) if codes.len() as u64 == ranks || codes.iter().all(|&code| code == 0) => {
                self.reply(Reply::Spawned { job, codes }, out)
            }
            Ok(_) => self.refuse("spawn", "some_processes_were_not_started", out),
        }
    }

    /// Asks the agent; the rank is replied to when the answer comes.
    fn ask(&mut self, awaited: Awaited, request: Request) -> Option<Request> {
        self.awaited = Some(awaited);
        Some(request)
    }

    /// Replies, and that is all.
    fn reply(&self, reply: Reply<'_>, out: &mut Vec<u8>) -> Option<Request> {
        reply.write(self.thread.as_deref(), out);
        None
    }

    /// Refuses a request, and that is all.
    fn refuse(&self, command: &'static str, why: &str, out: &mut Vec<u8>) -> Option<Request> {
        self.reply(Reply::Refused(command, why), out)
    }
}

const NOT_JOINED: &str = "not_initialized";
