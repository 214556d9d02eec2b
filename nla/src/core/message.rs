//! What agents say to each other. `Up` travels toward the launcher, `Down` away from it.
//!
//! Anything that may be about many ranks is a set of ranks, merged by union on its way up, so that
//! a message's size depends on the shape of the set and not on the number of ranks. The encoding
//! is `wire`'s.

use std::time::Duration;

use bytes::Bytes;
use pmi::{NameError, Puts, Rank, Ranks, SpawnOrder};
use serde::{Deserialize, Serialize};

use super::cause::{Cause, Failure};
use super::ids::{AgentId, NamespaceId, Time};
use super::plan::{NamespacePlan, SessionPlan};

/// From an agent to its parent, about the agent's subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Up {
    /// All agents of the subtree have joined.
    Ready,
    /// All ranks that the namespace has in the subtree have been started.
    Started {
        /// Their namespace.
        namespace: NamespaceId,
    },
    /// A rank has spoken PMI for the first time in the subtree.
    Contact {
        /// Its namespace.
        namespace: NamespaceId,
    },
    /// All ranks of the subtree have arrived at a fence.
    Gathered {
        /// Their namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// Who arrived.
        ranks: Ranks,
        /// What they put since the fence before.
        puts: Puts,
    },
    /// Some, not all, ranks of the subtree have been waiting in a fence for a while.
    Waiting {
        /// Their namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
    },
    /// Ranks ended with 0.
    Exited {
        /// Their namespace.
        namespace: NamespaceId,
        /// At how many fences they had arrived.
        fences: u32,
        /// They had spoken PMI and not finalized.
        unfinished: bool,
        /// Who.
        ranks: Ranks,
    },
    /// Something failed.
    Failed(Failure),
    /// Further failures, beyond those reported one by one.
    FailedMore {
        /// How many.
        count: u64,
    },
    /// A rank asks something that only the root can answer; [`Down::Reply`] brings the answer.
    Ask {
        /// The rank's agent.
        agent: AgentId,
        /// The rank's namespace.
        namespace: NamespaceId,
        /// The rank.
        rank: Rank,
        /// What it asks.
        question: Question,
    },
    /// All processes of the subtree have ended. Its output may still be on its way: the end of that
    /// is told in the lanes that carry it.
    Ended {
        /// Processes that outlived their ranks and were killed.
        leftovers: u64,
    },
}

/// What only the root can answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// MPI_Publish_name.
    Publish {
        /// The name.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
        /// What it stands for.
        #[serde(with = "serde_bytes")]
        port: Vec<u8>,
    },
    /// MPI_Lookup_name.
    Lookup {
        /// The name.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// MPI_Unpublish_name.
    Unpublish {
        /// The name.
        #[serde(with = "serde_bytes")]
        service: Vec<u8>,
    },
    /// MPI_Comm_spawn, MPI_Comm_spawn_multiple.
    Spawn(SpawnOrder),
}

/// The root's answer to a [`Question`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Publish`.
    Published(Result<(), NameError>),
    /// To `Lookup`.
    Found(Result<Vec<u8>, NameError>),
    /// To `Unpublish`.
    Unpublished(Result<(), NameError>),
    /// To `Spawn`: how many ranks were started, or why none was.
    Spawned(Result<u32, String>),
}

/// From an agent to a child, about the child's subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Down {
    /// What is the same for all; the first message after the hello.
    Session(SessionPlan),
    /// Start the ranks of this plan.
    Launch(NamespacePlan),
    /// A spawn has failed elsewhere: end what was started of this namespace, silently.
    Undo {
        /// Which.
        namespace: NamespaceId,
    },
    /// All ranks of the namespace have arrived: publish the epoch, then let the ranks go on.
    Release {
        /// Which.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The epoch's bytes; none if nothing was put.
        epoch: Bytes,
    },
    /// An answer for a rank.
    Reply {
        /// The rank's agent.
        agent: AgentId,
        /// The rank's namespace.
        namespace: NamespaceId,
        /// The rank.
        rank: Rank,
        /// The answer.
        reply: Reply,
    },
    /// Send a signal to all ranks.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Stop all ranks; the launcher is about to be stopped.
    Suspend,
    /// Let all ranks go on.
    Resume,
    /// End all ranks: this signal first, KILL after the grace. A second one may shorten the grace.
    End {
        /// The first signal.
        signal: i32,
        /// The time until KILL.
        grace: Duration,
    },
    /// The session is over: leave.
    Leave,
}

impl Up {
    /// A failure of one rank.
    pub fn failed(at: Time, agent: AgentId, namespace: NamespaceId, rank: Rank, cause: Cause) -> Self {
        let ranks = [rank].into_iter().collect();
        Self::Failed(Failure { at, agent, namespace, ranks, cause })
    }

    /// The fence and board messages must keep their order among themselves; all others are short
    /// and urgent.
    pub fn is_board(&self) -> bool {
        matches!(self, Self::Gathered { .. })
    }
}

impl Down {
    /// See [`Up::is_board`].
    pub fn is_board(&self) -> bool {
        matches!(self, Self::Release { .. })
    }
}
