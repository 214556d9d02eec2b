//! [`Request`] and [`Answer`]: the requests of a rank to its agent, the same for both protocol versions.
//!
//! A [`Conversation`](crate::Conversation) replies on its own where the job's attributes and the node's board suffice.
//! Everything else becomes a [`Request`]. The host gives exactly one [`Answer`] of the same kind to each request that wants
//! one.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Ranks;
use crate::board::Puts;
use crate::limits::{
    SPAWN_ARGS_MAX, SPAWN_BYTES_MAX, SPAWN_COMMANDS_MAX, SPAWN_INFO_MAX, SPAWN_PREPUTS_MAX, SPAWN_RANKS_MAX,
};
use crate::pmix::{PmixAnswer, PmixRequest};

/// One command of a spawn: `nprocs` ranks of one program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnCommand {
    /// The program as the parent wrote it; not empty in a spawn that passed [`SpawnRequest::check`].
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// The arguments without the program's name; an argument may be empty.
    #[serde(with = "crate::wire::byte_strings")]
    pub args: Vec<Vec<u8>>,
    /// The number of ranks, at least 1.
    pub nprocs: u32,
    /// The MPI_Info pairs (`wdir`, `host`, ...) in the parent's order; unknown keys are to be ignored.
    #[serde(with = "crate::wire::byte_pairs")]
    pub info: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A call of `MPI_Comm_spawn` or `MPI_Comm_spawn_multiple`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// The commands in the order of their application numbers, at least one.
    pub commands: Vec<SpawnCommand>,
    /// The entries that the children find on their board before their first fence; keys are distinct.
    #[serde(with = "crate::wire::byte_pairs")]
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why a [`SpawnRequest`] is refused.
///
/// The text contains no blank: PMI-1 sends it as `msg=`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum SpawnRequestError {
    /// There is no command, or more than [`SPAWN_COMMANDS_MAX`].
    #[error("number_of_commands_not_in_1..{SPAWN_COMMANDS_MAX}")]
    Commands,
    /// A command has no program.
    #[error("program_missing")]
    Program,
    /// A command has no rank, or the commands have more than [`SPAWN_RANKS_MAX`] ranks together.
    #[error("number_of_processes_not_in_1..{SPAWN_RANKS_MAX}")]
    Ranks,
    /// A command has more than [`SPAWN_ARGS_MAX`] arguments.
    #[error("more_than_{SPAWN_ARGS_MAX}_arguments")]
    Args,
    /// A command has more than [`SPAWN_INFO_MAX`] info pairs.
    #[error("more_than_{SPAWN_INFO_MAX}_infos")]
    Info,
    /// There are more than [`SPAWN_PREPUTS_MAX`] preputs.
    #[error("more_than_{SPAWN_PREPUTS_MAX}_preputs")]
    Preputs,
    /// A preput has an empty, too long or reserved key, or a too long value.
    #[error("preput_{0}")]
    Preput(crate::board::PutRefusal),
    /// The spawn has more than [`SPAWN_BYTES_MAX`] bytes.
    #[error("order_longer_than_{SPAWN_BYTES_MAX}_bytes")]
    Bytes,
}

impl SpawnRequest {
    /// Checks the spawn against the bounds of [`crate::limits`].
    ///
    /// Both protocol versions check a spawn before it becomes a [`Request`]. An agent that receives one from a peer should
    /// check it too.
    pub fn check(&self) -> Result<(), SpawnRequestError> {
        use SpawnRequestError as Error;
        let require = |is_met: bool, error| if is_met { Ok(()) } else { Err(error) };
        require((1..=SPAWN_COMMANDS_MAX).contains(&self.commands.len()), Error::Commands)?;
        for command in &self.commands {
            require(!command.program.is_empty(), Error::Program)?;
            require(command.nprocs > 0, Error::Ranks)?;
            require(command.args.len() <= SPAWN_ARGS_MAX, Error::Args)?;
            require(command.info.len() <= SPAWN_INFO_MAX, Error::Info)?;
        }
        require(self.ranks() <= u64::from(SPAWN_RANKS_MAX), Error::Ranks)?;
        require(self.preputs.len() <= SPAWN_PREPUTS_MAX, Error::Preputs)?;
        for (key, value) in &self.preputs {
            crate::board::check_put(key, value).map_err(Error::Preput)?;
        }
        require(self.bytes_len() <= SPAWN_BYTES_MAX, Error::Bytes)
    }

    /// Returns the number of ranks of all commands together.
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

/// A request of a rank to its agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The rank has initialised PMI, for the first time or again after finalising. No answer.
    Joined,
    /// The rank has arrived at the namespace's fence. Answered by [`Answer::Released`], or by [`Answer::FenceFailed`], once all entries of the epoch can be
    /// looked up.
    Fence {
        /// The rank's puts since its last fence that no [`Request::Put`] has handed on, in the rank's order; may be empty.
        puts: Puts,
        /// Whether the rank waits in the segment: it is then released there and wants no answer.
        in_segment: bool,
    },
    /// The rank has made a put. Only where puts are handed on [at once](crate::JobAttributes::puts_at_once); the next
    /// fence then does not repeat it. No answer.
    Put {
        /// Exactly one put.
        puts: Puts,
    },
    /// Requests the value of a key that this node's part of the board does not know. Answered by [`Answer::Got`], without
    /// waiting for a put.
    Get {
        /// The key, which passes [`check_put`](crate::board::check_put).
        key: Bytes,
    },
    /// `PMIX_Ring`: all ranks wait for each other, as in a fence, and exchange values with their neighbours. Publishes
    /// nothing. Answered by [`Answer::Ring`].
    Ring {
        /// The value for the left neighbour, of at most [`ATTRIBUTE_BYTES_MAX`](crate::limits::ATTRIBUTE_BYTES_MAX)
        /// bytes.
        #[serde(with = "serde_bytes")]
        to_left: Vec<u8>,
        /// The value for the right neighbour.
        #[serde(with = "serde_bytes")]
        to_right: Vec<u8>,
    },
    /// Some ranks of the namespace wait for each other and exchange bytes. Answered by [`Answer::GroupFenced`].
    GroupFence {
        /// The ranks of the group, this one among them.
        ranks: Ranks,
        /// Distinguishes fences of the same ranks that are open at the same time.
        tag: u32,
        /// The bytes for the others.
        payload: Bytes,
    },
    /// Puts an attribute of the node for the namespace's ranks on it. Answered by [`Answer::NodePut`] once all of them can
    /// get it.
    NodePut {
        /// The key, which passes [`check_put`](crate::board::check_put).
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Requests an attribute of the node. Answered by [`Answer::NodeGot`].
    NodeGet {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Whether the answer is withheld until a rank has put the attribute.
        wait: bool,
    },
    /// Requests the name of a file that describes the node to hwloc, which the rank can open. Answered by [`Answer::Got`], with
    /// `None` if hwloc is to find the topology itself.
    TopologyFile,
    /// Requests the segment. Answered by [`Answer::Segment`] by the owner of the descriptor.
    Segment,
    /// Asks what has one answer for the whole session.
    Ask(RootRequest),
    /// `MPI_Abort`: the namespace is to be ended. **Never answered**: the rank waits to be killed or has already exited.
    Abort {
        /// The rank's code: any number, also beyond 8 bits (MPICH's own errors).
        code: i32,
        /// The rank's message for the report; may be empty; contains no control characters.
        message: String,
    },
    /// The rank has finalised PMI (the acknowledgement is already in `out`). It may run for hours and may join again. No
    /// answer.
    Finalized,
    /// The rank broke the protocol and is to be failed. Nothing more is read from it. No answer.
    Broken {
        /// Fits "rank 3 broke the PMI protocol: {why}".
        why: String,
    },
}

/// A request that only the root of the tree can answer. Its encoding is part of the protocol between agents.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RootRequest {
    /// `MPI_Publish_name`. Answered by [`Answer::Published`].
    Publish {
        /// The name, not empty; may contain blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
        /// The port, not empty. Only PMI-2 allows a blank in it; PMI-1 then cannot look it up.
        #[serde(with = "serde_bytes")]
        port: Vec<u8>,
    },
    /// `MPI_Lookup_name`. Answered by [`Answer::Found`], without waiting for the name to be published.
    Lookup {
        /// The name, not empty; may contain blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// `MPI_Unpublish_name`. Answered by [`Answer::Unpublished`].
    Unpublish {
        /// The name, not empty; may contain blanks.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// `MPI_Comm_spawn`, after [`SpawnRequest::check`]. Answered by [`Answer::Spawned`].
    Spawn(SpawnRequest),
    /// `PMI2_Job_Connect`: asks whether a namespace of this name exists. Answered by [`Answer::Connected`].
    Connect {
        /// The namespace's name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
    },
    /// Requests an entry of another namespace's board. Answered by [`Answer::GotFromJob`].
    #[serde(rename = "Elsewhere")]
    GetFromJob {
        /// The other namespace's name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// A request that only ranks that speak PMIx make. Answered by [`Answer::Pmix`].
    Pmix(PmixRequest),
}

/// An agent's answer to a [`Request`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The fence is complete: every entry of its epoch can be looked up on this node.
    Released,
    /// The others have completed the fence without the rank, which has started again. Only the rank itself sees its puts until
    /// it enters a fence with the others.
    Passed,
    /// The fence or ring ended without a rank that has died.
    FenceFailed,
    /// The key's newest value, if a rank has put it.
    Got(Option<Bytes>),
    /// The outcome of [`RootRequest::Publish`].
    Published(Result<(), NameError>),
    /// The outcome of [`RootRequest::Lookup`]: the port.
    Found(#[serde(with = "crate::wire::byte_result")] Result<Vec<u8>, NameError>),
    /// The outcome of [`RootRequest::Unpublish`].
    Unpublished(Result<(), NameError>),
    /// The outcome of [`RootRequest::Spawn`], after the children were launched, or why they were not.
    Spawned(Result<SpawnedJob, String>),
    /// The rank's position in the ring and its neighbours' values.
    Ring {
        /// The position, from 0 to the namespace's size minus one.
        position: u32,
        /// The value that the left neighbour passed to its right.
        #[serde(with = "serde_bytes")]
        from_left: Vec<u8>,
        /// The value that the right neighbour passed to its left.
        #[serde(with = "serde_bytes")]
        from_right: Vec<u8>,
    },
    /// The outcome of a group's fence.
    GroupFenced {
        /// The ranks of the group.
        ranks: Ranks,
        /// The tag of [`Request::GroupFence`].
        tag: u32,
        /// What all ranks contributed, joined in any order. `None`: a rank has died, or the fence was refused.
        payload: Option<Bytes>,
    },
    /// Whether the node stored the attribute: their number is bounded.
    NodePut(bool),
    /// The attribute's value, if a rank has put it.
    NodeGot(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// The entry's value; `None` if the entry or the namespace does not exist.
    GotFromJob(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// Whether a namespace of that name exists.
    Connected(bool),
    /// The outcome of [`RootRequest::Pmix`].
    Pmix(PmixAnswer),
    /// Whether the descriptor of the segment comes with the reply.
    Segment(bool),
}

/// The job that a spawn has started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnedJob {
    /// The name of the new namespace.
    pub job: String,
    /// A code for each requested rank; 0 if it was started.
    pub codes: Vec<i32>,
}

impl SpawnedJob {
    /// Whether all ranks were started.
    pub(crate) fn all_started(&self) -> bool {
        self.codes.iter().all(|&code| code == 0)
    }
}

/// Why a request about a published name was refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum NameError {
    /// The name is already published.
    #[error("name is already published")]
    Taken,
    /// The name is not published.
    #[error("name is not published")]
    Unknown,
    /// The session has as many published names as it may have.
    #[error("too many names are published")]
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::PutRefusal;
    use crate::{PostRange, Rank};

    fn spawn() -> SpawnRequest {
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
        let mut spawn = spawn();
        change(&mut spawn);
        assert_eq!(spawn.check(), expected);
    }

    #[test]
    fn orders_are_held_to_their_bounds() {
        let nothing = || (Vec::new(), Vec::new());
        check(|_| {}, Ok(()));
        check(|spawn| spawn.commands.clear(), Err(SpawnRequestError::Commands));
        check(|spawn| spawn.commands[0].program.clear(), Err(SpawnRequestError::Program));
        check(|spawn| spawn.commands[0].nprocs = 0, Err(SpawnRequestError::Ranks));
        check(|spawn| spawn.commands[0].nprocs = SPAWN_RANKS_MAX, Ok(()));
        check(|spawn| spawn.commands[0].nprocs = SPAWN_RANKS_MAX + 1, Err(SpawnRequestError::Ranks));
        let infos = |count| {
            move |spawn: &mut SpawnRequest| {
                spawn.commands[0].info = vec![nothing(); count];
            }
        };
        check(infos(SPAWN_INFO_MAX), Ok(()));
        check(infos(SPAWN_INFO_MAX + 1), Err(SpawnRequestError::Info));
        let args = |count| {
            move |spawn: &mut SpawnRequest| {
                spawn.commands[0].args = vec![Vec::new(); count];
            }
        };
        check(args(SPAWN_ARGS_MAX), Ok(()));
        check(args(SPAWN_ARGS_MAX + 1), Err(SpawnRequestError::Args));
        check(
            |spawn| spawn.preputs.push((Vec::new(), Vec::new())),
            Err(SpawnRequestError::Preput(PutRefusal::KeyEmpty)),
        );
        // Two commands of the most ranks each are too many together.
        check(
            |spawn| {
                spawn.commands[0].nprocs = SPAWN_RANKS_MAX;
                spawn.commands.push(spawn.commands[0].clone());
            },
            Err(SpawnRequestError::Ranks),
        );
    }

    #[test]
    fn spawns_are_serialized_as_byte_strings() {
        let bytes = rmp_serde::to_vec(&spawn()).unwrap();
        assert_eq!(rmp_serde::from_slice::<SpawnRequest>(&bytes).unwrap(), spawn());
        // Encoded as a number, the byte 0xff would take two bytes.
        assert!(bytes.windows(3).any(|window| window == [0xc4, 1, 0xff]));
    }

    #[test]
    fn requests_and_answers_are_serialized_as_byte_strings() {
        let bytes = || vec![0xff; 3];
        // A byte of 0xff that is serialized as a number begins with 0xcc.
        let is_lean = |written: &[u8]| !written.windows(2).any(|window| window == [0xcc, 0xff]);
        let mut puts = Puts::new();
        puts.push(crate::Rank(1), b"k", b"v");
        let requests = [
            Request::Joined,
            Request::Fence { puts: puts.clone(), in_segment: true },
            Request::Put { puts },
            Request::Get { key: bytes().into() },
            Request::Ring { to_left: bytes(), to_right: bytes() },
            Request::GroupFence { ranks: Ranks::range(0..2), tag: 1, payload: bytes().into() },
            Request::NodePut { key: bytes(), value: bytes() },
            Request::NodeGet { key: bytes(), wait: true },
            Request::Ask(RootRequest::GetFromJob { job: bytes(), key: bytes() }),
            Request::Ask(RootRequest::Connect { job: bytes() }),
            Request::TopologyFile,
            Request::Segment,
            Request::Ask(RootRequest::Publish { service: bytes(), port: bytes() }),
            Request::Ask(RootRequest::Lookup { service: bytes() }),
            Request::Ask(RootRequest::Unpublish { service: bytes() }),
            Request::Ask(RootRequest::Spawn(spawn())),
            Request::Ask(RootRequest::Pmix(PmixRequest::Post {
                entries: vec![(bytes(), bytes())],
                once: true,
                range: PostRange::Node,
                rank: Rank(1),
            })),
            Request::Ask(RootRequest::Pmix(PmixRequest::Read {
                keys: vec![bytes()],
                wait: true,
                timeout_s: 1,
                rank: Rank(1),
            })),
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
            Answer::Passed,
            Answer::Got(Some(bytes().into())),
            Answer::Got(None),
            Answer::Published(Ok(())),
            Answer::Found(Ok(bytes())),
            Answer::Found(Err(NameError::Unknown)),
            Answer::Unpublished(Err(NameError::Full)),
            Answer::Spawned(Ok(SpawnedJob { job: "j".into(), codes: vec![0, 13] })),
            Answer::Spawned(Err("why".into())),
            Answer::Ring { position: 3, from_left: bytes(), from_right: bytes() },
            Answer::GroupFenced { ranks: Ranks::range(0..2), tag: 1, payload: Some(bytes().into()) },
            Answer::GroupFenced { ranks: Ranks::range(0..2), tag: 1, payload: None },
            Answer::NodePut(true),
            Answer::NodeGot(Some(bytes())),
            Answer::NodeGot(None),
            Answer::GotFromJob(Some(bytes())),
            Answer::Connected(false),
            Answer::Pmix(PmixAnswer::Modex(Some(bytes().into()))),
            Answer::Pmix(PmixAnswer::Read(vec![(bytes(), bytes())])),
            Answer::Segment(true),
        ];
        for answer in answers {
            let written = rmp_serde::to_vec(&answer).unwrap();
            assert!(is_lean(&written), "{answer:?}");
            assert_eq!(rmp_serde::from_slice::<Answer>(&written).unwrap(), answer);
        }
    }

    #[test]
    fn refusals_of_spawns_contain_no_blanks() {
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
