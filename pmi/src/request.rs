//! What a rank asks of its agent, whatever interface it speaks, and what it is answered.
//!
//! A protocol engine ([`crate::v1`], [`crate::v2`]) answers on its own what it can answer from its
//! facts and the node's board. What is left becomes a [`Request`]; those for which
//! [`Request::wants_answer`] holds are owed exactly one [`Answer`] of the same kind.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::board::Puts;
use crate::limits::{
    SPAWN_ARGS_MAX, SPAWN_BYTES_MAX, SPAWN_COMMANDS_MAX, SPAWN_INFO_MAX, SPAWN_PREPUTS_MAX, SPAWN_RANKS_MAX,
};

/// One command of a spawn: `nprocs` ranks of one program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnCommand {
    /// The program as the parent wrote it; never empty in an order that passed [`SpawnRequest::check`].
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// Its arguments without the program's name; an argument may be empty.
    #[serde(with = "crate::wire::byte_strings")]
    pub args: Vec<Vec<u8>>,
    /// How many ranks, at least 1.
    pub nprocs: u32,
    /// MPI_Info pairs (`wdir`, `host`, ...) in the parent's order; unknown keys are to be ignored.
    #[serde(with = "crate::wire::byte_pairs")]
    pub info: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One `MPI_Comm_spawn` or `MPI_Comm_spawn_multiple`: commands in order of their application number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// At least one command.
    pub commands: Vec<SpawnCommand>,
    /// Entries that the children find on their board before their first fence; keys are distinct.
    #[serde(with = "crate::wire::byte_pairs")]
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why a [`SpawnRequest`] is refused before anybody is asked to start anything.
///
/// The text holds no blank: it is also what PMI-1 sends as `msg=`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum SpawnRequestError {
    /// No command at all, or more than [`SPAWN_COMMANDS_MAX`].
    #[error("number_of_commands_not_in_1..{SPAWN_COMMANDS_MAX}")]
    Commands,
    /// A command without a program.
    #[error("program_missing")]
    Program,
    /// A command for no rank, or commands for more than [`SPAWN_RANKS_MAX`] ranks together.
    #[error("number_of_processes_not_in_1..{SPAWN_RANKS_MAX}")]
    Ranks,
    /// More than [`SPAWN_ARGS_MAX`] arguments for one command.
    #[error("more_than_{SPAWN_ARGS_MAX}_arguments")]
    Args,
    /// More than [`SPAWN_INFO_MAX`] info pairs for one command.
    #[error("more_than_{SPAWN_INFO_MAX}_infos")]
    Info,
    /// More than [`SPAWN_PREPUTS_MAX`] preputs.
    #[error("more_than_{SPAWN_PREPUTS_MAX}_preputs")]
    Preputs,
    /// A preput that could not be put: its key or value is empty, too long or reserved.
    #[error("preput_{0}")]
    Preput(crate::board::PutRefusal),
    /// More than [`SPAWN_BYTES_MAX`] bytes in all.
    #[error("order_longer_than_{SPAWN_BYTES_MAX}_bytes")]
    Bytes,
}

impl SpawnRequest {
    /// Checks the order against the bounds of [`crate::limits`].
    ///
    /// Every engine calls this before it hands an order on; an agent that receives one from a peer
    /// should too.
    pub fn check(&self) -> Result<(), SpawnRequestError> {
        if self.commands.is_empty() || self.commands.len() > SPAWN_COMMANDS_MAX {
            return Err(SpawnRequestError::Commands);
        }
        let mut ranks = 0_u64;
        for command in &self.commands {
            if command.program.is_empty() {
                return Err(SpawnRequestError::Program);
            }
            if command.nprocs == 0 {
                return Err(SpawnRequestError::Ranks);
            }
            ranks += u64::from(command.nprocs);
            if command.args.len() > SPAWN_ARGS_MAX {
                return Err(SpawnRequestError::Args);
            }
            if command.info.len() > SPAWN_INFO_MAX {
                return Err(SpawnRequestError::Info);
            }
        }
        if ranks > u64::from(SPAWN_RANKS_MAX) {
            return Err(SpawnRequestError::Ranks);
        }
        if self.preputs.len() > SPAWN_PREPUTS_MAX {
            return Err(SpawnRequestError::Preputs);
        }
        for (key, value) in &self.preputs {
            crate::board::check_put(key, value).map_err(SpawnRequestError::Preput)?;
        }
        if self.bytes_len() > SPAWN_BYTES_MAX {
            return Err(SpawnRequestError::Bytes);
        }
        Ok(())
    }

    /// How many ranks the order asks for, all commands together.
    pub fn ranks(&self) -> u64 {
        self.commands.iter().map(|command| u64::from(command.nprocs)).sum()
    }

    fn bytes_len(&self) -> usize {
        self.commands.iter().map(SpawnCommand::bytes_len).sum::<usize>() + pairs_len(&self.preputs)
    }
}

impl SpawnCommand {
    /// Returns the length of the command's program, arguments and infos.
    pub(crate) fn bytes_len(&self) -> usize {
        let args: usize = self.args.iter().map(Vec::len).sum();
        self.program.len() + args + pairs_len(&self.info)
    }
}

fn pairs_len(pairs: &[(Vec<u8>, Vec<u8>)]) -> usize {
    pairs.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// What a rank asks of its agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The rank has initialised PMI, for the first time or again after it had finalised. No answer.
    Joined,
    /// The rank has arrived at the namespace's fence and brings what it put since the last one.
    /// Answered by [`Answer::Released`], once all entries of the epoch can be looked up.
    Fence {
        /// The rank's puts since its last fence that no [`Request::Put`] has handed on, in its own
        /// order; may be empty.
        puts: Puts,
        /// The rank waits in the segment: it is released there, and wants no answer.
        in_segment: bool,
    },
    /// One put of the rank, made before its next fence. Only where puts are handed on
    /// [at once](crate::JobAttributes::puts_at_once): then the fence does not bring it again. No answer.
    Put {
        /// The put, and no other.
        puts: Puts,
    },
    /// Asks for the value of a key that this node's part of the board does not tell. Answered by
    /// [`Answer::Got`], without waiting for anybody to put it.
    Get {
        /// The key: one that could be put on the board.
        key: Bytes,
    },
    /// `PMIX_Ring`: a meeting of all ranks, like a fence, at which each learns who is beside it.
    /// Publishes nothing. Answered by [`Answer::Ring`].
    Ring {
        /// What its left neighbour is to learn of it; at most
        /// [`ATTRIBUTE_BYTES_MAX`](crate::limits::ATTRIBUTE_BYTES_MAX) bytes.
        #[serde(with = "serde_bytes")]
        to_left: Vec<u8>,
        /// What its right neighbour is to learn of it.
        #[serde(with = "serde_bytes")]
        to_right: Vec<u8>,
    },
    /// Puts an attribute of the node, for the namespace's ranks on it. Answered by
    /// [`Answer::NodePut`], once all of them can get it.
    NodePut {
        /// The key: one that could be put on the board.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Asks for an attribute of the node. Answered by [`Answer::NodeGot`].
    NodeGet {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The answer is withheld until somebody has put it.
        wait: bool,
    },
    /// Asks for an entry on another namespace's board. Answered by [`Answer::GotFromJob`].
    GetFromJob {
        /// The other namespace's name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// `PMI2_Job_Connect`: asks whether there is a namespace of this name. Answered by
    /// [`Answer::Connected`].
    Connect {
        /// Its name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
    },
    /// Asks for the segment. Answered by [`Answer::Segment`], by who holds the descriptor.
    Segment,
    /// `MPI_Publish_name`. Answered by [`Answer::Published`].
    Publish {
        /// The name, not empty; may hold blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
        /// The port, not empty. With a blank only from PMI-2, and then PMI-1 cannot look it up.
        #[serde(with = "serde_bytes")]
        port: Vec<u8>,
    },
    /// `MPI_Lookup_name`. Answered by [`Answer::Found`], without waiting for anybody to publish.
    Lookup {
        /// The name, not empty; may hold blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// `MPI_Unpublish_name`. Answered by [`Answer::Unpublished`].
    Unpublish {
        /// The name, not empty; may hold blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// `MPI_Comm_spawn`. Passed [`SpawnRequest::check`]. Answered by [`Answer::Spawned`].
    Spawn(SpawnRequest),
    /// `MPI_Abort`: the namespace is to be ended. **Never answered**: the rank waits to be killed,
    /// or has gone already.
    Abort {
        /// The code as the rank gave it: any number, also beyond 8 bits (MPICH's own errors).
        code: i32,
        /// The rank's words for the report; may be empty; holds no control characters.
        message: String,
    },
    /// The rank has finalised PMI (the acknowledgement is already in `out`). It may live on for
    /// hours, and may join again. No answer.
    Finalized,
    /// The rank broke the protocol beyond repair and is to be failed. Nothing more is read from it.
    Broken {
        /// Fits "rank 3 broke the PMI protocol: {why}".
        why: String,
    },
}

impl Request {
    /// Whether the rank now waits for an [`Answer`].
    pub fn wants_answer(&self) -> bool {
        match self {
            Self::Fence { in_segment, .. } => !in_segment,
            Self::Publish { .. }
            | Self::Lookup { .. }
            | Self::Unpublish { .. }
            | Self::Spawn(_)
            | Self::Ring { .. }
            | Self::NodePut { .. }
            | Self::NodeGet { .. }
            | Self::GetFromJob { .. }
            | Self::Connect { .. }
            | Self::Get { .. }
            | Self::Segment => true,
            Self::Put { .. } | Self::Joined | Self::Abort { .. } | Self::Finalized | Self::Broken { .. } => false,
        }
    }
}

/// What a rank is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The fence is complete: every entry of its epoch can be looked up on this node.
    Released,
    /// The key's newest value, if anybody has put it.
    Got(Option<Bytes>),
    /// The outcome of [`Request::Publish`].
    Published(Result<(), NameError>),
    /// The outcome of [`Request::Lookup`]: the port.
    Found(#[serde(with = "crate::wire::byte_result")] Result<Vec<u8>, NameError>),
    /// The outcome of [`Request::Unpublish`].
    Unpublished(Result<(), NameError>),
    /// The outcome of [`Request::Spawn`], once the children were launched.
    Spawned(Result<SpawnedJob, String>),
    /// The rank's place in the ring, and what its neighbours gave it.
    Ring {
        /// Its position, from 0; the ring has as many as the namespace has ranks.
        position: u32,
        /// What its left neighbour gave to its right.
        #[serde(with = "serde_bytes")]
        from_left: Vec<u8>,
        /// What its right neighbour gave to its left.
        #[serde(with = "serde_bytes")]
        from_right: Vec<u8>,
    },
    /// Whether the node took the attribute: there is a bound on how many it holds.
    NodePut(bool),
    /// The attribute's value, if anybody has put it.
    NodeGot(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// The entry's value; `None` if there is none, or no such namespace.
    GotFromJob(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// Whether there is a namespace of that name.
    Connected(bool),
    /// Whether the descriptor of the segment comes with the reply.
    Segment(bool),
}

/// What a spawn has started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnedJob {
    /// The name of the new namespace.
    pub job: String,
    /// One code per rank that was asked for; 0: started.
    pub codes: Vec<i32>,
}

impl SpawnedJob {
    /// Whether all ranks were started.
    pub(crate) fn all_started(&self) -> bool {
        self.codes.iter().all(|&code| code == 0)
    }
}

/// Why a published name was refused or not found.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum NameError {
    /// Somebody has published this name already.
    #[error("name is already published")]
    Taken,
    /// Nobody has published this name.
    #[error("name is not published")]
    Unknown,
    /// The session holds as many names as it may.
    #[error("too many names are published")]
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::PutRefusal;

    fn order() -> SpawnRequest {
        let command = SpawnCommand {
            program: b"child".to_vec(),
            args: vec![b"two words".to_vec(), vec![0xff]],
            nprocs: 2,
            info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
        };
        SpawnRequest { commands: vec![command], preputs: vec![(b"k".to_vec(), b"v".to_vec())] }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut SpawnRequest), expected: Result<(), SpawnRequestError>) {
        let mut order = order();
        change(&mut order);
        assert_eq!(order.check(), expected);
    }

    #[test]
    fn orders_are_held_to_their_bounds() {
        let nothing = || (Vec::new(), Vec::new());
        check(|_| {}, Ok(()));
        check(|order| order.commands.clear(), Err(SpawnRequestError::Commands));
        check(|order| order.commands[0].program.clear(), Err(SpawnRequestError::Program));
        check(|order| order.commands[0].nprocs = 0, Err(SpawnRequestError::Ranks));
        check(|order| order.commands[0].nprocs = SPAWN_RANKS_MAX, Ok(()));
        check(|order| order.commands[0].nprocs = SPAWN_RANKS_MAX + 1, Err(SpawnRequestError::Ranks));
        let infos = |count| {
            move |order: &mut SpawnRequest| {
                order.commands[0].info = vec![nothing(); count];
            }
        };
        check(infos(SPAWN_INFO_MAX), Ok(()));
        check(infos(SPAWN_INFO_MAX + 1), Err(SpawnRequestError::Info));
        let args = |count| {
            move |order: &mut SpawnRequest| {
                order.commands[0].args = vec![Vec::new(); count];
            }
        };
        check(args(SPAWN_ARGS_MAX), Ok(()));
        check(args(SPAWN_ARGS_MAX + 1), Err(SpawnRequestError::Args));
        check(
            |order| order.preputs.push((Vec::new(), Vec::new())),
            Err(SpawnRequestError::Preput(PutRefusal::KeyEmpty)),
        );
        // Two commands of the most ranks each are too many together.
        check(
            |order| {
                order.commands[0].nprocs = SPAWN_RANKS_MAX;
                order.commands.push(order.commands[0].clone());
            },
            Err(SpawnRequestError::Ranks),
        );
    }

    #[test]
    fn orders_travel_as_byte_strings() {
        let bytes = rmp_serde::to_vec(&order()).unwrap();
        assert_eq!(rmp_serde::from_slice::<SpawnRequest>(&bytes).unwrap(), order());
        // A byte of 0xff would take two as a number.
        assert!(bytes.windows(3).any(|window| window == [0xc4, 1, 0xff]));
    }

    #[test]
    fn requests_and_answers_travel_as_byte_strings() {
        let bytes = || vec![0xff; 3];
        // How a byte of 0xff is written as a number.
        let is_lean = |written: &[u8]| !written.windows(2).any(|window| window == [0xcc, 0xff]);
        let mut puts = Puts::new();
        puts.push(crate::Rank(1), b"k", b"v");
        let requests = [
            Request::Joined,
            Request::Fence { puts: puts.clone(), in_segment: true },
            Request::Put { puts },
            Request::Get { key: bytes().into() },
            Request::Ring { to_left: bytes(), to_right: bytes() },
            Request::NodePut { key: bytes(), value: bytes() },
            Request::NodeGet { key: bytes(), wait: true },
            Request::GetFromJob { job: bytes(), key: bytes() },
            Request::Connect { job: bytes() },
            Request::Segment,
            Request::Publish { service: bytes(), port: bytes() },
            Request::Lookup { service: bytes() },
            Request::Unpublish { service: bytes() },
            Request::Spawn(order()),
            Request::Abort { code: -1, message: "m".into() },
            Request::Finalized,
            Request::Broken { why: "w".into() },
        ];
        for request in requests {
            let written = rmp_serde::to_vec(&request).unwrap();
            assert!(is_lean(&written), "{request:?}");
            assert_eq!(rmp_serde::from_slice::<Request>(&written).unwrap(), request);
        }
        let answers = [
            Answer::Released,
            Answer::Got(Some(bytes().into())),
            Answer::Got(None),
            Answer::Published(Ok(())),
            Answer::Found(Ok(bytes())),
            Answer::Found(Err(NameError::Unknown)),
            Answer::Unpublished(Err(NameError::Full)),
            Answer::Spawned(Ok(SpawnedJob { job: "j".into(), codes: vec![0, 13] })),
            Answer::Spawned(Err("why".into())),
            Answer::Ring { position: 3, from_left: bytes(), from_right: bytes() },
            Answer::NodePut(true),
            Answer::NodeGot(Some(bytes())),
            Answer::NodeGot(None),
            Answer::GotFromJob(Some(bytes())),
            Answer::Connected(false),
            Answer::Segment(true),
        ];
        for answer in answers {
            let written = rmp_serde::to_vec(&answer).unwrap();
            assert!(is_lean(&written), "{answer:?}");
            assert_eq!(rmp_serde::from_slice::<Answer>(&written).unwrap(), answer);
        }
    }

    #[test]
    fn reasons_for_the_wire_have_no_blanks() {
        for error in [
            SpawnRequestError::Commands,
            SpawnRequestError::Program,
            SpawnRequestError::Ranks,
            SpawnRequestError::Args,
            SpawnRequestError::Info,
            SpawnRequestError::Preputs,
            SpawnRequestError::Preput(PutRefusal::ValueTooLong),
            SpawnRequestError::Bytes,
        ] {
            assert!(!error.to_string().contains(' '), "{error}");
        }
        assert_eq!(NameError::Taken.to_string(), "name is already published");
    }
}
