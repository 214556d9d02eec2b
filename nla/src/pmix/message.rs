//! The messages between an agent and its `scela-pmix`, and their frames.

use std::io::{self, Read, Write};

use bytes::Bytes;
use pmi::{JobDescription, PostRange, SpawnCommand};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::Variable;
use crate::core::limits::BOARD_BYTES_MAX;
use crate::sys::pmix::{CallError, Process, Question};
use crate::wire::{decode, encode};

/// A process as PMIx names it: the name of its namespace, and its rank; `None` stands for all ranks.
pub type ProcessName = (String, Option<u32>);

/// Returns the name of a process in messages.
pub fn name_of(process: Process) -> ProcessName {
    (process.namespace, process.rank)
}

/// From the agent to `scela-pmix`.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToHelper {
    /// Start to serve; the first message. [`ToAgent::Ready`] answers.
    Begin {
        /// The path or file name of libpmix.
        #[serde(with = "serde_bytes")]
        library: Vec<u8>,
        /// The directory of this session's files, with mode 0700.
        directory: String,
        /// The name of this node.
        host: String,
        /// The name of the server's own namespace. No rank has it.
        namespace: String,
    },
    /// Expect the ranks of a namespace. [`ToAgent::Registered`] answers.
    Register(Box<Registration>),
    /// The namespace has ended.
    Deregister(String),
    /// The process of a rank that is not connected has ended. libpmix forgets the rank, and removes the files that it has
    /// registered for removal. Those of other ranks are removed at the end of the namespace.
    Ended(ProcessName),
    /// A rank of any node has died, and others go on.
    Died(ProcessName),
    /// Answers the call of this number.
    Answer(u64, Outcome),
    /// Asks whether it runs. [`ToAgent::Alive`] answers.
    Ping,
    /// Asks for the data that a rank of this node has put. [`ToAgent::Got`] answers with the same number.
    Ask(u64, ProcessName),
}

/// A namespace as `scela-pmix` registers it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Registration {
    /// Its name for PMIx, a secret.
    pub name: String,
    /// The names of all nodes, by their numbers.
    pub hosts: Vec<String>,
    /// The number of this node.
    pub node: u32,
    /// The rank that has spawned it.
    pub spawner: Option<ProcessName>,
    /// Its ranks and programs.
    pub job: JobDescription,
    /// The ranks here that are bound, and their processors: `0,2-3`.
    pub cpus: Vec<(u32, String)>,
}

/// The result of a call. One that does not fit the call counts as a failure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It has failed.
    Failed(CallError),
    /// An operation without a result has succeeded.
    Done,
    /// Of a fence or a modex: the data.
    Data(Bytes),
    /// Of a lookup: the keys that were found, and what was published under them.
    Found(#[serde(with = "pmi::wire::byte_pairs")] Vec<(Vec<u8>, Vec<u8>)>),
    /// Of a spawn: the name of the new namespace.
    Spawned(String),
    /// Of a group: its number, its members, and the data of all nodes.
    Group(u64, Vec<ProcessName>, Bytes),
    /// Of a query: the known keys and their values. The flag says whether all keys are known.
    Answered(Vec<(String, Fact)>, bool),
}

/// The value of a key that a rank has queried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fact {
    /// A list, separated by commas.
    Text(String),
    /// A number of ranks.
    Ranks(u32),
    /// A number of other things.
    Size(u32),
    /// A table of processes.
    Table(Vec<Row>),
}

/// A row of a table of processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The process.
    pub process: ProcessName,
    /// The name of its node.
    pub host: String,
    /// Its program.
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// Its pid; 0 if it is not known.
    pub pid: u32,
    /// It has ended.
    pub has_ended: bool,
}

/// From `scela-pmix` to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// The server runs, with the library of this version; or why it does not.
    Ready(Result<String, String>),
    /// The namespace of this name is registered, and its ranks find the server by these variables; or why it is not.
    Registered(String, Result<Vec<Variable>, String>),
    /// A rank has initialized PMIx.
    Joined(ProcessName),
    /// A second process has joined as this rank, and was killed: the report, without the rank and the host. Once for each rank.
    SecondJoiner(ProcessName, String),
    /// A rank has finalized PMIx.
    ///
    /// The number is that of the call, which [`ToHelper::Answer`] repeats; this holds for all calls below. The rank goes on
    /// after the answer, so the agent learns of this before the rank can exit.
    Finalized(u64, ProcessName),
    /// A rank has called `PMIx_Abort`, with its status and its message.
    Abort(u64, ProcessName, i32, String),
    /// All ranks of this node that take part have arrived at a fence.
    Fence {
        /// The number of the call.
        call: u64,
        /// All ranks that take part, on all nodes.
        members: Vec<ProcessName>,
        /// The data of this node's ranks.
        data: Bytes,
        /// The data of all nodes is to be returned.
        collect: bool,
        /// How long to wait for the other nodes, in seconds; 0: for ever.
        timeout_s: u32,
    },
    /// A rank of this node asks for the data of a rank of another one.
    Modex(u64, ProcessName),
    /// A rank publishes these keys and values.
    Publish {
        /// The number of the call.
        call: u64,
        /// The rank.
        process: ProcessName,
        /// The keys and their values.
        #[serde(with = "pmi::wire::byte_pairs")]
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        /// Each is removed when it is read.
        once: bool,
        /// The ranks that can look them up.
        range: PostRange,
    },
    /// A rank looks up keys.
    Lookup {
        /// The number of the call.
        call: u64,
        /// The rank.
        process: ProcessName,
        /// The keys.
        #[serde(with = "pmi::wire::byte_strings")]
        keys: Vec<Vec<u8>>,
        /// The answer waits until all are published.
        wait: bool,
        /// How long to wait, in seconds; 0: for ever.
        timeout_s: u32,
    },
    /// A rank removes what it has published.
    Unpublish(u64, ProcessName, #[serde(with = "pmi::wire::byte_strings")] Vec<Vec<u8>>),
    /// A rank spawns others.
    Spawn(u64, ProcessName, Vec<SpawnCommand>),
    /// All ranks of this node that take part meet those of other nodes, for another purpose than a fence.
    Meet {
        /// The number of the call.
        call: u64,
        /// The purpose.
        purpose: Purpose,
        /// All ranks that take part, on all nodes.
        members: Vec<ProcessName>,
        /// The data of this node's ranks, for those of all nodes.
        data: Bytes,
        /// How long to wait for the other nodes, in seconds; 0: for ever.
        timeout_s: u32,
    },
    /// A rank of this node queries keys that libpmix does not know.
    Query(u64, Vec<Question>),
    /// Answers [`ToHelper::Ping`].
    Alive,
    /// Answers [`ToHelper::Ask`].
    Got(u64, Option<Bytes>),
}

/// The purpose of a meeting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// They connect themselves: each learns of the namespaces of all.
    Connect,
    /// They disconnect.
    Disconnect,
    /// They make the group of this name, which gets a number.
    Group(String),
    /// They dissolve the group of this name.
    EndOfGroup(String),
}

/// Writes one message, with its length before it.
pub fn write_frame<M: Serialize>(to: &mut impl Write, message: &M) -> io::Result<()> {
    let bytes = encode(message);
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&bytes)
}

/// Returns how many bytes of a message follow its length.
///
/// # Errors
///
/// If they are more than the largest message has.
pub fn frame_length(length: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    if length > BOARD_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes is too long")));
    }
    Ok(length)
}

/// Reads one message; `None` at the end of the stream.
pub fn read_frame<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<M>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut bytes = vec![0; frame_length(length)?];
    from.read_exact(&mut bytes)?;
    decode(&bytes).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_frames() {
        let mut bytes = Vec::new();
        let members = vec![("n".to_owned(), None), ("m".to_owned(), Some(3))];
        let fence =
            ToAgent::Fence { call: 7, members, data: Bytes::from_static(b"\0\xff"), collect: true, timeout_s: 1 };
        write_frame(&mut bytes, &fence).unwrap();
        write_frame(&mut bytes, &ToAgent::Got(8, None)).unwrap();
        let mut from = &bytes[..];
        let read = |from: &mut &[u8]| format!("{:?}", read_frame::<ToAgent>(from).unwrap());
        assert_eq!(read(&mut from), format!("{:?}", Some(fence)));
        assert_eq!(read(&mut from), "Some(Got(8, None))");
        assert_eq!(read(&mut from), "None");
    }

    #[test]
    fn a_frame_is_bounded() {
        assert!(frame_length((BOARD_BYTES_MAX as u32).to_le_bytes()).is_ok());
        assert!(frame_length((BOARD_BYTES_MAX as u32 + 1).to_le_bytes()).is_err());
    }
}
