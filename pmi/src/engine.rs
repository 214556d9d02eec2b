//! The decisions that both protocol versions share: what a rank's request does, and what each answer becomes.
//!
//! Each version parses its commands and writes replies in its own format ([`Dialect`]). [`crate::conversation`] has the
//! rules.

use bytes::Bytes;
use thiserror::Error;

use crate::board::{EncodedPutsError, PutRefusal, check_put};
use crate::limits::{BACKLOG_BYTES_MAX, PENDING_BYTES_MAX, PORT_BYTES_MAX, SERVICE_BYTES_MAX};
use crate::rank_state::{Phase, RankState, TOPOLOGY_FILE, Version};
use crate::spawn_fields::SpawnError;
use crate::wire::LineTooLong;
use crate::wire::frame::InvalidLength;
use crate::{Answer, Board, LookUp, NameError, Ranks, Request, RootRequest, SpawnRequest, SpawnedJob};

/// The format of a protocol version's replies.
pub(crate) trait Dialect {
    /// The version.
    const VERSION: Version;

    /// Appends a reply.
    fn write(&self, reply: Reply<'_>, out: &mut Vec<u8>);
}

/// A reply of either version.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Reply<'a> {
    /// The put is stored.
    Put,
    /// The value of a key, if a rank has put it.
    Got { key: &'a [u8], value: Option<&'a [u8]> },
    /// The fence is complete.
    Fenced,
    /// A fence is over in which the rank was beside other requests, with the `thrid` of its request. Only PMI-1 has this
    /// reply.
    FencedBeside { thread: Option<u32>, refusal: Option<Refusal<'a>> },
    /// The rank is finalised.
    Finalized,
    /// The name is published.
    Published,
    /// The port that is published under a name.
    Port(&'a [u8]),
    /// The name is no longer published.
    Unpublished,
    /// The children were started, all or some of them.
    Spawned(&'a SpawnedJob),
    /// The segment's descriptor comes with this reply.
    Segment,
    /// The node's attribute is stored. Only PMI-2 has this reply and those below.
    NodePut,
    /// The value of a node's attribute, if a rank has put it.
    NodeGot(Option<&'a [u8]>),
    /// The value of the job's attribute, if it has one.
    JobAttribute(Option<&'a [u8]>),
    /// A namespace of that name exists.
    Connected,
    /// The rank's position in the ring and its neighbours' values.
    Ring { position: u32, from_left: &'a [u8], from_right: &'a [u8] },
    /// The request is refused.
    Refused(Operation, Refusal<'a>),
}

/// The request that a refusal replies to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Put,
    Get,
    Finalize,
    Publish,
    Lookup,
    Unpublish,
    Spawn,
    Segment,
    NodePut,
    NodeGet,
    Connect,
    Disconnect,
    Ring,
    Fence,
}

/// Why a request is refused. The text is sent to the rank, unless its version has another text.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum Refusal<'a> {
    #[error("not_initialized")]
    NotInitialized,
    #[error("key_empty")]
    KeyEmpty,
    #[error("{0}")]
    Put(PutRefusal),
    #[error("too_many_bytes_put_between_fences")]
    PendingFull,
    #[error("name_empty")]
    NameEmpty,
    #[error("name_too_long")]
    NameTooLong,
    #[error("port_empty")]
    PortEmpty,
    #[error("port_too_long")]
    PortTooLong,
    #[error("{0}")]
    Name(NameError),
    #[error("{0}")]
    Spawn(SpawnError),
    /// The launcher's reason.
    #[error("{0}")]
    SpawnFailed(&'a str),
    #[error("some_processes_were_not_started")]
    PartlySpawned,
    #[error("no_segment_here")]
    NoSegment,
    #[error("value_too_long")]
    ValueTooLong,
    #[error("too_many_attributes")]
    TooManyAttributes,
    #[error("jobid_empty")]
    JobEmpty,
    #[error("jobid_too_long")]
    JobTooLong,
    #[error("no_such_job")]
    NoSuchJob,
    #[error("a_process_has_died")]
    RankDied,
    #[error("a_process_of_the_group_has_died_or_does_not_exist")]
    GroupFailed,
    #[error("the_process_is_in_this_fence_already")]
    InFence,
    #[error("too_many_fences_at_once")]
    TooManyFences,
}

/// Why a conversation is broken off: fits "rank 3 broke the PMI protocol: {violation}".
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum Violation {
    #[error(transparent)]
    LineTooLong(#[from] LineTooLong),
    #[error(transparent)]
    InvalidLength(#[from] InvalidLength),
    #[error("sent a line without a command")]
    LineWithoutCommand,
    #[error("sent a frame without a command")]
    FrameWithoutCommand,
    #[error("sent more than {BACKLOG_BYTES_MAX} bytes without waiting for replies")]
    Flood,
    #[error("entered a barrier without having initialised")]
    BarrierBeforeInit,
    #[error("entered a fence without having initialised")]
    FenceBeforeInit,
    #[error("put more than {PENDING_BYTES_MAX} bytes at once")]
    PutsTooLong,
    #[error("sent puts that are refused: {0}")]
    Puts(#[from] EncodedPutsError),
}

/// The answer that a rank waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    Released,
    Got {
        /// The reply if no rank has put the key.
        if_absent: Vec<u8>,
    },
    GotFromJob {
        key: Vec<u8>,
    },
    Published,
    Found,
    Unpublished,
    Spawned {
        /// The number of codes that the client expects.
        ranks: u64,
    },
    Segment,
    Ring,
    NodePut,
    NodeGot,
    JobAttribute,
    Connected,
}

/// The result of handling a command: a request to the agent, if the agent is needed.
pub(crate) type Outcome = Result<Option<Request>, Violation>;

/// Everything that handling one command takes.
pub(crate) struct Turn<'a, D> {
    pub(crate) dialect: &'a D,
    pub(crate) state: &'a mut RankState,
    pub(crate) board: &'a Board,
    pub(crate) out: &'a mut Vec<u8>,
}

impl<D: Dialect> Turn<'_, D> {
    /// Replies; the agent is not needed.
    pub(crate) fn reply(&mut self, reply: Reply<'_>) -> Option<Request> {
        self.dialect.write(reply, self.out);
        None
    }

    pub(crate) fn refuse(&mut self, operation: Operation, refusal: Refusal<'_>) -> Option<Request> {
        self.reply(Reply::Refused(operation, refusal))
    }

    /// Asks the agent; the rank gets its reply with the answer.
    pub(crate) fn ask(&mut self, awaited: Awaited, request: Request) -> Option<Request> {
        self.state.awaited = Some((D::VERSION, awaited));
        Some(request)
    }

    /// Passes a request on to the root, whose answer the rank awaits.
    pub(crate) fn ask_root(&mut self, awaited: Awaited, request: RootRequest) -> Option<Request> {
        self.ask(awaited, Request::Ask(request))
    }

    /// Whether the rank is initialised. Replies with a refusal if not.
    pub(crate) fn check_active(&mut self, operation: Operation) -> bool {
        let is_active = self.state.is_active();
        if !is_active {
            self.refuse(operation, Refusal::NotInitialized);
        }
        is_active
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Option<Request> {
        if !self.check_active(Operation::Put) {
            return None;
        }
        if let Err(refusal) = check_put(key, value) {
            return self.refuse(Operation::Put, Refusal::Put(refusal));
        }
        match self.state.put(key, value) {
            Ok(request) => {
                self.reply(Reply::Put);
                request
            }
            Err(refusal) => self.refuse(Operation::Put, refusal),
        }
    }

    /// A get from the board of the rank's own namespace.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Request> {
        if !self.check_active(Operation::Get) {
            return None;
        }
        if key.is_empty() {
            return self.refuse(Operation::Get, Refusal::KeyEmpty);
        }
        let Self { dialect, state, board, out } = self;
        let request = if key == TOPOLOGY_FILE {
            Request::TopologyFile
        } else {
            match state.look_up(key, board) {
                LookUp::Found(value) => {
                    dialect.write(Reply::Got { key, value: Some(&value) }, out);
                    return None;
                }
                LookUp::Absent => {
                    dialect.write(Reply::Got { key, value: None }, out);
                    return None;
                }
                LookUp::Unknown => Request::Get { key: Bytes::copy_from_slice(key) },
            }
        };
        let (mut if_absent, value) = (Vec::new(), state.default_value(key));
        dialect.write(Reply::Got { key, value: value.as_deref() }, &mut if_absent);
        self.ask(Awaited::Got { if_absent }, request)
    }

    /// A fence; `violation` is what it breaks before `init`.
    pub(crate) fn fence(&mut self, violation: Violation) -> Outcome {
        if !self.state.is_active() {
            return Err(violation);
        }
        let fence = self.state.fence();
        Ok(self.ask(Awaited::Released, fence))
    }

    /// A fence in which the rank is while it makes other requests: of a group, or of all ranks. `violation` is what it breaks
    /// before `init`.
    ///
    /// The fence of a group shows the group what the rank has put since the last fence of all ranks. The rank still
    /// contributes these puts to the next one.
    pub(crate) fn fence_beside(
        &mut self,
        group: Option<(Ranks, u32)>,
        thread: Option<u32>,
        violation: Violation,
    ) -> Outcome {
        if !self.state.is_active() {
            return Err(violation);
        }
        if let Err(refusal) = self.state.enter_fence(group.clone(), thread) {
            return Ok(self.reply(Reply::FencedBeside { thread, refusal: Some(refusal) }));
        }
        Ok(Some(match group {
            None => self.state.fence(),
            Some((ranks, tag)) => {
                let payload = Bytes::copy_from_slice(self.state.pending_bytes());
                Request::GroupFence { ranks, tag, payload }
            }
        }))
    }

    /// A fence in the segment, whose puts follow.
    pub(crate) fn fence_in_segment(&mut self, puts_bytes: usize) -> Outcome {
        if puts_bytes > PENDING_BYTES_MAX {
            return Err(Violation::PutsTooLong);
        }
        self.state.puts_bytes = Some(puts_bytes);
        Ok(None)
    }

    pub(crate) fn finalize(&mut self) -> Option<Request> {
        match self.state.phase() {
            Phase::Active => {
                self.reply(Reply::Finalized);
                Some(self.state.finalize())
            }
            Phase::Finalized => self.reply(Reply::Finalized),
            Phase::New | Phase::Broken => self.refuse(Operation::Finalize, Refusal::NotInitialized),
        }
    }

    pub(crate) fn publish(&mut self, service: &[u8], port: &[u8]) -> Option<Request> {
        let operation = Operation::Publish;
        if !self.check_service(operation, service) {
            None
        } else if port.is_empty() {
            self.refuse(operation, Refusal::PortEmpty)
        } else if port.len() > PORT_BYTES_MAX {
            self.refuse(operation, Refusal::PortTooLong)
        } else {
            let publish = RootRequest::Publish { service: service.to_vec(), port: port.to_vec() };
            self.ask_root(Awaited::Published, publish)
        }
    }

    pub(crate) fn lookup(&mut self, service: &[u8]) -> Option<Request> {
        if !self.check_service(Operation::Lookup, service) {
            return None;
        }
        self.ask_root(Awaited::Found, RootRequest::Lookup { service: service.to_vec() })
    }

    pub(crate) fn unpublish(&mut self, service: &[u8]) -> Option<Request> {
        if !self.check_service(Operation::Unpublish, service) {
            return None;
        }
        self.ask_root(Awaited::Unpublished, RootRequest::Unpublish { service: service.to_vec() })
    }

    /// Whether the rank is initialised and may use this name. Replies with a refusal if not.
    pub(crate) fn check_service(&mut self, operation: Operation, service: &[u8]) -> bool {
        if !self.check_active(operation) {
            return false;
        }
        let refusal = match service.len() {
            0 => Refusal::NameEmpty,
            1..=SERVICE_BYTES_MAX => return true,
            _ => Refusal::NameTooLong,
        };
        self.refuse(operation, refusal);
        false
    }

    pub(crate) fn spawn(&mut self, parsed: Result<SpawnRequest, SpawnError>) -> Option<Request> {
        if !self.check_active(Operation::Spawn) {
            return None;
        }
        match parsed {
            Ok(spawn) => self.ask_root(Awaited::Spawned { ranks: spawn.ranks() }, RootRequest::Spawn(spawn)),
            Err(error) => self.refuse(Operation::Spawn, Refusal::Spawn(error)),
        }
    }
}

/// Replies with an answer to a fence that the rank is in beside other requests. Returns false if it is in no such fence.
pub(crate) fn answer_beside(dialect: &impl Dialect, state: &mut RankState, answer: &Answer, out: &mut Vec<u8>) -> bool {
    let (group, refusal) = match answer {
        Answer::Released | Answer::Passed => (None, None),
        Answer::FenceFailed => (None, Some(Refusal::RankDied)),
        Answer::GroupFenced { ranks, tag, payload } => {
            (Some((ranks, *tag)), payload.is_none().then_some(Refusal::GroupFailed))
        }
        _ => return false,
    };
    let Some(thread) = state.leave_fence(group) else { return false };
    match answer {
        Answer::Released => state.catch_up(),
        Answer::GroupFenced { payload: Some(payload), .. } => state.learn(payload),
        _ => {}
    }
    dialect.write(Reply::FencedBeside { thread, refusal }, out);
    true
}

/// Replies with an answer to the request that is waited for. Any other answer leaves the rank waiting.
pub(crate) fn answer(dialect: &impl Dialect, awaited: Awaited, answer: Answer, out: &mut Vec<u8>) -> Option<Awaited> {
    let refused = |operation, refusal| Reply::Refused(operation, refusal);
    let named = |operation, error| refused(operation, Refusal::Name(error));
    let reply = match (&awaited, &answer) {
        (Awaited::Released, Answer::Released | Answer::Passed) => Reply::Fenced,
        (Awaited::Released, Answer::FenceFailed) => refused(Operation::Fence, Refusal::RankDied),
        (Awaited::Ring, Answer::FenceFailed) => refused(Operation::Ring, Refusal::RankDied),
        // Only an absent key's reply repeats the key.
        (Awaited::Got { .. }, Answer::Got(Some(value))) => Reply::Got { key: b"", value: Some(value) },
        (Awaited::Got { if_absent }, Answer::Got(None)) => {
            out.extend_from_slice(if_absent);
            return None;
        }
        (Awaited::GotFromJob { key }, Answer::GotFromJob(value)) => Reply::Got { key, value: value.as_deref() },
        (Awaited::Published, Answer::Published(Ok(()))) => Reply::Published,
        (Awaited::Published, Answer::Published(Err(error))) => named(Operation::Publish, *error),
        (Awaited::Found, Answer::Found(Ok(port))) => Reply::Port(port),
        (Awaited::Found, Answer::Found(Err(error))) => named(Operation::Lookup, *error),
        (Awaited::Unpublished, Answer::Unpublished(Ok(()))) => Reply::Unpublished,
        (Awaited::Unpublished, Answer::Unpublished(Err(error))) => named(Operation::Unpublish, *error),
        (Awaited::Spawned { ranks }, Answer::Spawned(result)) => spawned(*ranks, result),
        (Awaited::Segment, Answer::Segment(true)) => Reply::Segment,
        (Awaited::Segment, Answer::Segment(false)) => refused(Operation::Segment, Refusal::NoSegment),
        (Awaited::Ring, Answer::Ring { position, from_left, from_right }) => {
            Reply::Ring { position: *position, from_left, from_right }
        }
        (Awaited::NodePut, Answer::NodePut(true)) => Reply::NodePut,
        (Awaited::NodePut, Answer::NodePut(false)) => refused(Operation::NodePut, Refusal::TooManyAttributes),
        (Awaited::NodeGot, Answer::NodeGot(value)) => Reply::NodeGot(value.as_deref()),
        (Awaited::JobAttribute, Answer::Got(value)) => Reply::JobAttribute(value.as_deref()),
        (Awaited::Connected, Answer::Connected(true)) => Reply::Connected,
        (Awaited::Connected, Answer::Connected(false)) => refused(Operation::Connect, Refusal::NoSuchJob),
        (
            _,
            Answer::Released
            | Answer::Passed
            | Answer::FenceFailed
            | Answer::GroupFenced { .. }
            | Answer::Got(_)
            | Answer::Published(_)
            | Answer::Found(_)
            | Answer::Unpublished(_),
        )
        | (_, Answer::Spawned(_) | Answer::Segment(_) | Answer::Ring { .. } | Answer::NodePut(_))
        | (_, Answer::NodeGot(_) | Answer::GotFromJob(_) | Answer::Connected(_))
        | (_, Answer::Pmix(_)) => return Some(awaited),
    };
    dialect.write(reply, out);
    None
}

fn spawned(ranks: u64, result: &Result<SpawnedJob, String>) -> Reply<'_> {
    let refusal = match result {
        Ok(job) if job.codes.len() as u64 == ranks || job.all_started() => return Reply::Spawned(job),
        Ok(_) => Refusal::PartlySpawned,
        Err(why) => Refusal::SpawnFailed(why),
    };
    Reply::Refused(Operation::Spawn, refusal)
}
