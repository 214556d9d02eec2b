//! Requests that only ranks that speak PMIx make. They travel through the tree as other root requests do.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Mapping, NameError, Rank, Ranks};

/// A request of a rank that speaks PMIx to the root of the tree. Its encoding is part of the protocol between agents.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PmixRequest {
    /// The direct modex: requests the data that a rank has put, as soon as it has. Answered by [`PmixAnswer::Modex`].
    Modex {
        /// The name of the rank's namespace.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
        /// The rank.
        rank: Rank,
    },
    /// Ranks wait for each other. Answered by [`PmixAnswer::Met`].
    Meet(Meeting),
    /// Describes a job. Answered by [`PmixAnswer::Described`].
    Describe {
        /// The name of its namespace.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
    },
    /// `PMIx_Publish`. Answered by [`PmixAnswer::Posted`].
    Post {
        /// The keys and their values. They have nothing to do with the names of [`RootRequest::Publish`](crate::RootRequest::Publish).
        #[serde(with = "crate::wire::byte_pairs")]
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        /// Each value is removed when it is read.
        once: bool,
        /// The ranks that can look them up.
        range: PostRange,
        /// The rank.
        rank: Rank,
    },
    /// `PMIx_Lookup`. Answered by [`PmixAnswer::Read`].
    Read {
        /// The keys.
        #[serde(with = "crate::wire::byte_strings")]
        keys: Vec<Vec<u8>>,
        /// Wait with the answer until all keys have a value.
        wait: bool,
        /// How long to wait, in seconds; 0: for ever. Then the answer is [`PmixAnswer::TimedOut`].
        timeout_s: u32,
        /// The rank.
        rank: Rank,
    },
    /// `PMIx_Unpublish`. Answered by [`PmixAnswer::Posted`].
    Unpost {
        /// The keys.
        #[serde(with = "crate::wire::byte_strings")]
        keys: Vec<Vec<u8>>,
        /// The rank.
        rank: Rank,
    },
    /// `PMIx_Query_info`: lists the jobs of the session, and describes some of them. Answered by [`PmixAnswer::Jobs`].
    Jobs {
        /// The names of the namespaces of the jobs to describe.
        described: Vec<String>,
    },
}

/// The answer to a [`PmixRequest`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PmixAnswer {
    /// The rank's data; `None` if the rank has ended or does not exist.
    Modex(Option<Bytes>),
    /// All ranks have arrived; `None` if one of them has ended before, or if there are too many meetings.
    Met(Option<Met>),
    /// The job; `None` if no job has this name.
    Described(Option<Box<JobDescription>>),
    /// Whether all values were published, or removed.
    Posted(Result<(), NameError>),
    /// Those of the keys that have a value: all of them, if the lookup waits.
    Read(#[serde(with = "crate::wire::byte_pairs")] Vec<(Vec<u8>, Vec<u8>)>),
    /// The jobs of the session.
    Jobs {
        /// The names of the namespaces whose ranks have not all ended.
        names: Vec<String>,
        /// Those of the jobs to describe that exist, and the ranks of each that have ended.
        described: Vec<(JobDescription, Ranks)>,
    },
    /// The time for a meeting, or for a lookup that waits, is over.
    TimedOut,
    /// The lookup would have to wait, and too many wait already. It has read nothing.
    Full,
}

/// The ranks that can look up a published value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PostRange {
    /// All ranks of the session.
    Session,
    /// The ranks of the publisher's namespace.
    Namespace,
    /// The ranks of the publisher's node.
    Node,
    /// Only the publisher.
    Rank,
}

/// Ranks that wait for each other, of one or more jobs. Each agent asks once for all of its ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meeting {
    /// Distinguishes it from other meetings of the same ranks at the same time.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The names of the jobs, and the ranks of each that take part; `None` stands for all. The same for all agents.
    pub members: Vec<(String, Option<Ranks>)>,
    /// The ranks that have arrived at this agent.
    pub here: Vec<(String, Ranks)>,
    /// Their data.
    pub data: Bytes,
    /// How long they wait for the others, in seconds; 0: for ever. The meeting fails for all when the shortest time is over.
    pub timeout_s: u32,
}

/// A meeting at which all ranks have arrived.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Met {
    /// Its number: no other meeting of the session has it. At least 1.
    pub number: u64,
    /// The data of all agents, in the same order for all.
    pub data: Vec<Bytes>,
}

/// A job as PMIx describes it to its ranks and to those of connected jobs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobDescription {
    /// The name of its namespace.
    pub kvsname: String,
    /// The number of its ranks.
    pub size: u32,
    /// The universe size; negative if it is not known.
    pub universe: i32,
    /// The rank that has spawned it: the name of its namespace, and its number.
    pub spawner: Option<(String, Rank)>,
    /// The node of each rank.
    pub mapping: Mapping,
    /// Its programs.
    pub programs: Vec<ProgramDescription>,
}

/// One program of a job. Ranks are numbered through the programs in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramDescription {
    /// The number of ranks that run it.
    pub nprocs: u32,
    /// The program and its arguments. Not empty.
    #[serde(with = "crate::wire::byte_strings")]
    pub argv: Vec<Vec<u8>>,
    /// The working directory.
    #[serde(with = "serde_bytes")]
    pub wdir: Vec<u8>,
}
