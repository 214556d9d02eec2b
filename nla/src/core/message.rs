//! What agents say to each other. `Up` travels toward the launcher, `Down` away from it.
//!
//! Anything that may be about many ranks is a set of ranks, merged by union on its way up, so that
//! a message's size depends on the shape of the set and not on the number of ranks. The encoding
//! is `wire`'s.

use std::time::Duration;

use bytes::Bytes;
use pmi::limits::{ATTRIBUTE_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use pmi::{Entry, Epoch, Keys, LookUpResult, NameError, Puts, Rank, Ranks, SpawnRequest};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::cause::{Cause, Failure};
use super::ids::{AgentId, NamespaceId, Time};
use super::plan::{NamespacePlan, SessionPlan};
use super::ring::{RingPosition, RingSegment};
use super::stats::Stats;
use super::timing::Timing;

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
    /// All ranks of the subtree have arrived at a fence, or at a ring in its place.
    Gathered {
        /// Their namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// Who arrived.
        ranks: Ranks,
        /// What they contribution.
        contribution: Contribution,
    },
    /// A put of a rank of the subtree, ahead of the fence that makes it visible.
    Put {
        /// The rank's namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The put.
        puts: Puts,
    },
    /// Asks for an entry; [`Down::Got`] brings it.
    Get {
        /// On which namespace's board.
        namespace: NamespaceId,
        /// The key.
        key: Bytes,
    },
    /// Answers [`Down::Get`].
    #[serde(with = "found_below")]
    Got {
        /// On which namespace's board.
        namespace: NamespaceId,
        /// How many fences had been released where the entry was found.
        number: u32,
        /// The entry, if it is in the subtree.
        result: LookUpResult,
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
        /// The rank.
        requester: Requester,
        /// What it asks.
        question: Question,
    },
    /// A rank asks something of an agent outside the subtree.
    Inquire(Inquiry),
    /// What an agent of the subtree answers to a rank outside of it.
    Reply {
        /// The rank.
        requester: Requester,
        /// The answer.
        reply: Reply,
    },
    /// All processes of the subtree have ended. Its output may still be on its way: the end of that
    /// is told in the lanes that carry it.
    Ended {
        /// Processes that outlived their ranks and were killed.
        leftovers: u64,
        /// When the agents of the subtree had done what.
        timing: Box<Timing>,
    },
    /// What the subtree has counted; the last message of all, and only if the session's plan asks for
    /// it.
    Stats(Box<Stats>),
}

/// A rank that asks, and where it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// Its agent.
    pub agent: AgentId,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// The rank.
    pub rank: Rank,
}

/// What ranks bring to a meeting. All must bring the same kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Contribution {
    /// It is a fence: what they put since the one before.
    Puts(Puts),
    /// It is a ring: their part of it.
    Ring(RingSegment),
}

/// What a meeting gives to a subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ReleaseContent {
    /// It was a fence: what everybody is told of it.
    Update(Update),
    /// It was a ring: where the subtree's part of it sits.
    Ring(RingPosition),
}

/// What everybody is told of a fence, for all the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Update {
    /// All that was put; an epoch of nothing if nothing was.
    Epoch(Epoch),
    /// The keys of which an older value, or another rank's, may lie in a cache. All else is asked
    /// for by who needs it.
    Overwritten(Keys),
}

/// A question of a rank to an agent, which travels up to where the agent is below, and down to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inquiry {
    /// The agent.
    pub to: AgentId,
    /// The rank.
    pub requester: Requester,
    /// What it is about.
    pub kind: InquiryKind,
}

/// What an agent can be asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum InquiryKind {
    /// To put an attribute of the node that it owns.
    NodePut {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// For an attribute of the node that it owns.
    NodeGet {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Not to answer before it was put.
        wait: bool,
    },
    /// Nothing any more: the rank has ended while it waited for an attribute.
    NodeForget,
    /// For an entry on its board of another namespace. Only the root passes this on.
    LookUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
}

impl InquiryKind {
    /// What is answered where it cannot be granted; nothing where nothing is owed.
    pub fn refusal(&self) -> Option<Reply> {
        match self {
            Self::NodePut { .. } => Some(Reply::NodePut(false)),
            Self::NodeGet { .. } => Some(Reply::NodeGot(None)),
            Self::NodeForget => None,
            Self::LookUp { .. } => Some(Reply::GotFromJob(None)),
        }
    }

    /// Whether an agent passes it on for a rank; all else comes from the root.
    pub fn is_of_rank(&self) -> bool {
        match self {
            Self::NodePut { .. } | Self::NodeGet { .. } | Self::NodeForget => true,
            Self::LookUp { .. } => false,
        }
    }

    /// Whether keys and values are such as could be put.
    pub fn is_bounded(&self) -> bool {
        let fits =
            |key: &[u8], value: &[u8]| pmi::board::check_put(key, value).is_ok() && value.len() <= ATTRIBUTE_BYTES_MAX;
        match self {
            Self::NodePut { key, value } => fits(key, value),
            Self::NodeGet { key, .. } => fits(key, b""),
            Self::NodeForget => true,
            Self::LookUp { key, .. } => fits(key, b""),
        }
    }
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
    Spawn(SpawnRequest),
    /// Whether there is a namespace of this name.
    Connect {
        /// The name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
    },
    /// For an entry on the board of the namespace of this name.
    #[serde(rename = "Elsewhere")]
    GetFromJob {
        /// The name.
        #[serde(with = "serde_bytes")]
        job: Vec<u8>,
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
}

/// The root's answer to a [`Question`], or an agent's to an [`Inquiry`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Publish`.
    Published(Result<(), NameError>),
    /// To `Lookup`.
    Found(Result<Vec<u8>, NameError>),
    /// To `Unpublish`.
    Unpublished(Result<(), NameError>),
    /// To `Spawn`: the new namespace's name and how many ranks were started, or why none was.
    Spawned(Result<(String, u32), String>),
    /// To `Connect`.
    Connected(bool),
    /// To `Elsewhere`, mostly by the agent that was asked to `LookUp`: the value, if there is one.
    #[serde(rename = "Elsewhere")]
    GotFromJob(Option<ByteBuf>),
    /// To `NodePut`: whether there was room for it.
    NodePut(bool),
    /// To `NodeGet`: the value, if there is one.
    NodeGot(Option<ByteBuf>),
}

impl Reply {
    /// Whether it is one that an agent, not the root, gives, and within bounds.
    pub fn is_of_agent(&self) -> bool {
        match self {
            Self::NodePut(_) => true,
            Self::NodeGot(value) => value.as_ref().is_none_or(|value| value.len() <= ATTRIBUTE_BYTES_MAX),
            Self::GotFromJob(value) => value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX),
            Self::Published(_) | Self::Found(_) | Self::Unpublished(_) | Self::Spawned(_) | Self::Connected(_) => false,
        }
    }
}

/// From an agent to a child, about the child's subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Down {
    /// What is the same for all; the first message after the hello.
    Session(Box<SessionPlan>),
    /// Start the ranks of this plan.
    Launch(Box<NamespacePlan>),
    /// A spawn has failed elsewhere: end what was started of this namespace, silently.
    Undo {
        /// Which.
        namespace: NamespaceId,
    },
    /// All ranks of the namespace have arrived: take in what they are content, then let the ranks go
    /// on.
    Release {
        /// Which.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// What they are content.
        content: ReleaseContent,
    },
    /// Asks for an entry that a rank of the subtree has put; [`Up::Got`] brings it.
    Get {
        /// On which namespace's board.
        namespace: NamespaceId,
        /// The key.
        key: Bytes,
    },
    /// Answers [`Up::Get`].
    #[serde(with = "found")]
    Got {
        /// On which namespace's board.
        namespace: NamespaceId,
        /// The entry, if there is one.
        result: LookUpResult,
    },
    /// A rank elsewhere asks something of an agent of the subtree.
    Inquire(Inquiry),
    /// An answer for a rank.
    Reply {
        /// The rank.
        requester: Requester,
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

/// How [`Down::Got`] travels: as if it had the fields `namespace`, `key` and `value`, where there is one.
/// An entry that comes in is copied once, into memory of its own: whoever keeps it keeps no frame with it.
mod found {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serializer>(
        namespace: &NamespaceId,
        result: &LookUpResult,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let (key, value) = fields(result);
        (namespace, key, value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<(NamespaceId, LookUpResult), D::Error> {
        let (namespace, key, value) = Deserialize::deserialize(deserializer)?;
        Ok((namespace, result(key, value)?))
    }

    pub(super) fn fields(result: &LookUpResult) -> (&serde_bytes::Bytes, Option<&serde_bytes::Bytes>) {
        (serde_bytes::Bytes::new(result.key()), result.value().map(serde_bytes::Bytes::new))
    }

    pub(super) fn result<E: Error>(key: ByteBuf, value: Option<ByteBuf>) -> Result<LookUpResult, E> {
        match value {
            Some(_) if key.len() > KEY_BYTES_MAX => Err(E::invalid_length(key.len(), &"a key")),
            Some(value) => Ok(LookUpResult::Entry(Entry::new(&key, &value))),
            None => Ok(LookUpResult::Absent(key.into_vec().into())),
        }
    }
}

/// How [`Up::Got`] travels; see [`found`].
mod found_below {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serializer>(
        namespace: &NamespaceId,
        number: &u32,
        result: &LookUpResult,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let (key, value) = found::fields(result);
        (namespace, number, key, value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<(NamespaceId, u32, LookUpResult), D::Error> {
        let (namespace, number, key, value) = Deserialize::deserialize(deserializer)?;
        Ok((namespace, number, found::result(key, value)?))
    }
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
        matches!(self, Self::Gathered { .. } | Self::Put { .. } | Self::Get { .. } | Self::Got { .. })
    }
}

impl Down {
    /// See [`Up::is_board`]. Who looks something up finds what was released before it asked.
    pub fn is_board(&self) -> bool {
        match self {
            Self::Release { .. } | Self::Get { .. } | Self::Got { .. } => true,
            Self::Inquire(inquiry) => matches!(inquiry.kind, InquiryKind::LookUp { .. }),
            _ => false,
        }
    }
}
