//! The messages between the launcher and the agents of the tree. `Up` travels toward the launcher, `Down` away from it.
//!
//! Anything that may be about many ranks is a set of ranks, merged by union on its way up, so that the size of a
//! message depends on the shape of the set and not on the number of ranks. The module `wire` encodes them: names of
//! variants and the order of fields are part of the protocol.

use std::time::Duration;

use bytes::Bytes;
use pmi::limits::{ATTRIBUTE_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use pmi::{Entry, Epoch, Keys, LookUpResult, NameError, PmixAnswer, Puts, Rank, Ranks, RootRequest};
use serde::{Deserialize, Serialize};

use super::binding::BindingReport;
use super::cause::Failure;
use super::group::RankGroup;
use super::ids::{AgentId, GuardianAt, NamespaceId};
use super::leftovers::{FileReport, LeftProcesses};
use super::limits::{MODEX_BYTES_MAX, RANKS_MAX};
use super::low_limits::LowLimits;
use super::pieces::{Blob, Piece};
use super::plan::{NamespacePlan, SessionPlan};
use super::ring::{RingPosition, RingSegment};
use super::stats::Stats;
use super::survey::Survey;
use super::timing::Timing;
use super::words::deserialize_one_line;

/// A message from an agent to its parent, about the agent's subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Up {
    /// All agents of the subtree have joined.
    Ready,
    /// All agents of the subtree have all files of the session's plan.
    Staged,
    /// All ranks that the namespace has in the subtree were started.
    Started {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// A rank of the subtree has spoken PMI; the first one of the namespace.
    Contact {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// Some ranks of the subtree have arrived at a fence, with at least a piece of puts. The others are still missing.
    Gathering {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The ranks.
        ranks: Ranks,
        /// Their puts.
        puts: Puts,
    },
    /// All ranks of the subtree have arrived at a fence or a ring. Those that were named in [`Up::Gathering`] are not named
    /// again.
    Gathered {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The ranks.
        ranks: Ranks,
        /// Their contribution.
        contribution: Contribution,
    },
    /// All ranks that a group has in the subtree have arrived at a fence of the group.
    GroupGathered {
        /// The namespace.
        namespace: NamespaceId,
        /// The group.
        group: RankGroup,
        /// The number of dead ranks of the namespace that the sender knows.
        deaths: u64,
        /// The ranks.
        ranks: Ranks,
        /// Their joined payloads.
        payload: Bytes,
    },
    /// A rank of the subtree has put something, ahead of the fence that makes it visible.
    Put {
        /// The rank's namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The put.
        puts: Puts,
    },
    /// Asks for an entry; [`Down::Got`] answers.
    Get {
        /// The namespace of the board.
        namespace: NamespaceId,
        /// The key.
        key: Bytes,
    },
    /// Answers [`Down::Get`].
    #[serde(serialize_with = "got_encoding::serialize_up", deserialize_with = "got_encoding::deserialize_up")]
    Got {
        /// The namespace of the board.
        namespace: NamespaceId,
        /// The number of fences that had been released at the agent that answers.
        number: u32,
        /// The entry, if the subtree has it.
        result: LookUpResult,
    },
    /// Some, not all, ranks of the subtree have been waiting in a fence for a while.
    Waiting {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
    },
    /// Ranks ended with code 0.
    Exited {
        /// The namespace.
        namespace: NamespaceId,
        /// The number of fences at which the ranks had arrived.
        fences: u32,
        /// The ranks had spoken PMI and not finalized it.
        unfinished: bool,
        /// The ranks.
        ranks: Ranks,
    },
    /// Answers [`Down::Clear`]: no process of a rank is left in the subtree, and its namespaces are forgotten.
    Cleared {
        /// The number of processes that outlived their ranks and were killed.
        leftovers: u64,
    },
    /// Ranks have died, and the session goes on: fences do not wait for them.
    Died {
        /// The namespace.
        namespace: NamespaceId,
        /// The ranks.
        ranks: Ranks,
    },
    /// The agent of these ranks was lost. Another agent will start them: until then no agent of the subtree contributes for
    /// them.
    MovedOut {
        /// The namespace.
        namespace: NamespaceId,
        /// The lost agent.
        agent: AgentId,
        /// Its ranks that had not ended.
        ranks: Ranks,
    },
    /// The first message of an agent that has lost its parent and joined this one. Then the agent repeats all reports of
    /// its subtree that the lost parent may not have passed on.
    Rejoined {
        /// The agent has the session's plan.
        has_plan: bool,
        /// The open fence of each namespace that it knows.
        fences: Vec<OpenFence>,
    },
    /// Ranks, or an agent, failed.
    Failed(Failure),
    /// There were further failures, beyond those reported one by one.
    FailedMore {
        /// Their number.
        count: u64,
    },
    /// A rank asks what only the root can answer; [`Down::Reply`] answers.
    Ask {
        /// The rank.
        requester: Requester,
        /// The request.
        request: RootRequest,
    },
    /// A rank of the subtree asks an agent outside the subtree.
    Inquire(Inquiry),
    /// An agent of the subtree answers a rank outside the subtree.
    Reply {
        /// The rank.
        requester: Requester,
        /// The answer.
        reply: Reply,
    },
    /// An agent of the subtree has removed or found files that its ranks have left.
    FilesLeft {
        /// The agent.
        agent: AgentId,
        /// The files.
        report: FileReport,
    },
    /// Processes that ranks of an agent of the subtree have left did not end in their time, and got SIGTERM.
    Left(Vec<LeftProcesses>),
    /// Ranks of the subtree were still running when their grace was over, and got SIGKILL.
    Killed(Killed),
    /// An agent of the subtree waits for the kernel to start or to end a process.
    Busy {
        /// The agent.
        agent: AgentId,
        /// The process, and what the agent waits for.
        #[serde(deserialize_with = "deserialize_one_line")]
        text: String,
    },
    /// Nothing was heard from an agent of the subtree for this time, and its machine answers. Its parent repeats that once a minute.
    Silent {
        /// The agent.
        agent: AgentId,
        /// How long it is silent.
        time: Duration,
    },
    /// A process was refused that joined as one of an agent's ranks while another one is that rank. Sent once for each rank.
    SecondJoiner {
        /// The agent.
        agent: AgentId,
        /// The rank.
        rank: Rank,
        /// Both processes.
        #[serde(deserialize_with = "deserialize_one_line")]
        text: String,
    },
    /// An agent of the subtree has chosen the processors of its ranks. Comes before the namespace's `Started`.
    Bound {
        /// The agent.
        agent: AgentId,
        /// The bindings that it has made.
        report: Box<BindingReport>,
    },
    /// Agents of the subtree give their ranks lower limits than the user's shell has. Comes before the subtree's `Started`.
    LowLimits(LowLimits),
    /// All processes of the subtree have ended. Their output may still be on its way; an empty message in each stream
    /// lane marks its end.
    Ended {
        /// The number of processes that outlived their ranks and were killed.
        leftovers: u64,
        /// The times that the agents of the subtree have noted.
        timing: Box<Timing>,
    },
    /// Answers [`Down::Survey`].
    Surveyed {
        /// The survey's number.
        number: u32,
        /// The merged answer of the subtree.
        survey: Box<Survey>,
    },
    /// The statistics of the subtree: the last message, sent only if the session's plan asks for it.
    Stats(Box<Stats>),
}

/// In [`Down::End`]: all ranks have ended well.
pub(super) const NO_SIGNAL: i32 = 0;

/// Ranks that were killed when their grace was over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Killed {
    /// Their namespace.
    pub namespace: NamespaceId,
    /// The ranks.
    pub ranks: Ranks,
    /// The signal that had asked them to end.
    pub signal: i32,
    /// The time from that signal to SIGKILL.
    pub after: Duration,
}

/// A request that an agent makes for its node, and not for one rank, has a number from this one on in place of the rank. No rank
/// has such a number. A rank can have one request under way, a node one for each number.
pub const NODE_REQUESTS_FROM: u32 = RANKS_MAX;

/// A rank that waits for an answer, and its agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// The rank's agent.
    pub agent: AgentId,
    /// The rank's namespace.
    pub namespace: NamespaceId,
    /// The rank; or a number from [`NODE_REQUESTS_FROM`] on.
    pub rank: Rank,
    /// The number of the request at its agent. A repeated request has the same.
    pub number: u32,
}

/// A namespace's open fence at an agent that joins another parent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenFence {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The fence's number.
    pub number: u32,
    /// How many bytes of its epoch have arrived in pieces.
    pub received: u64,
}

/// The contribution of ranks to a fence or a ring. All ranks must contribute the same kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Contribution {
    /// To a fence: their puts since the last one.
    Puts(Puts),
    /// To a ring: their segment of it.
    Ring(RingSegment),
}

/// The content of the release of a fence or a ring, for one subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ReleaseContent {
    /// Of a fence: the update of all boards.
    #[serde(rename = "News")]
    Update(Update),
    /// Of a ring: the position of the subtree's segment.
    Ring(RingPosition),
    /// Of a fence or a ring that failed, because a rank has died: the update of all boards. The ranks that wait are
    /// answered with the failure.
    Failed(Update),
}

impl ReleaseContent {
    /// The failure of a fence or ring without an update.
    pub(super) fn failed() -> Self {
        Self::Failed(Update::Epoch(Epoch::default()))
    }
}

/// The update of all boards and caches after a fence; the same for every agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Update {
    /// All entries that were put; none if there were no puts.
    Epoch(Epoch),
    /// All entries that were put. They have arrived in pieces, ahead of the release.
    Pieces(Blob),
    /// The keys of which a cache may have another value. Entries are looked up when a rank needs them.
    Overwritten(Keys),
}

/// A rank's request to an agent. It travels up to the lowest place that has the agent below it, and down from there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inquiry {
    /// The agent.
    pub to: AgentId,
    /// The rank.
    pub requester: Requester,
    /// The request.
    pub kind: InquiryKind,
}

/// A request that an agent can answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum InquiryKind {
    /// Put an attribute of the node that the agent owns.
    NodePut {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Get an attribute of the node that the agent owns.
    NodeGet {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Wait with the answer until the attribute is put.
        wait: bool,
    },
    /// Drop the rank's parked `NodeGet`: the rank has ended. There is no reply.
    NodeForget,
    /// Look up an entry on the agent's board of another namespace. Only the root sends this.
    LookUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// Get the data that one of the agent's ranks has put by PMIx, once it has. Only the root sends this.
    Modex {
        /// The namespace.
        namespace: NamespaceId,
        /// The rank.
        rank: Rank,
    },
}

impl InquiryKind {
    /// The reply if the agent cannot do it; `None` if no reply is expected.
    pub fn refusal(&self) -> Option<Reply> {
        match self {
            Self::NodePut { .. } => Some(Reply::NodePut(false)),
            Self::NodeGet { .. } => Some(Reply::NodeGot(None)),
            Self::NodeForget => None,
            Self::LookUp { .. } => Some(Reply::GotFromJob(None)),
            Self::Modex { .. } => Some(Reply::Pmix(PmixAnswer::Modex(None))),
        }
    }

    /// Whether key and value are within the bounds for puts.
    pub fn is_bounded(&self) -> bool {
        let fits =
            |key: &[u8], value: &[u8]| pmi::board::check_put(key, value).is_ok() && value.len() <= ATTRIBUTE_BYTES_MAX;
        match self {
            Self::NodePut { key, value } => fits(key, value),
            Self::NodeGet { key, .. } | Self::LookUp { key, .. } => fits(key, b""),
            Self::NodeForget | Self::Modex { .. } => true,
        }
    }
}

/// The root's answer to a [`RootRequest`], or an agent's to an [`Inquiry`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Publish`.
    Published(Result<(), NameError>),
    /// To `Lookup`.
    Found(Result<Vec<u8>, NameError>),
    /// To `Unpublish`.
    Unpublished(Result<(), NameError>),
    /// To `Spawn`: the new namespace's name and the number of its ranks, or the reason of the failure.
    Spawned(Result<(String, u32), String>),
    /// To `Connect`.
    Connected(bool),
    /// To `GetFromJob`, mostly from the agent that was asked to `LookUp`: the value, if there is one.
    #[serde(rename = "Elsewhere")]
    GotFromJob(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// To `NodePut`: whether the attribute was stored.
    NodePut(bool),
    /// To `NodeGet`: the value, if there is one.
    NodeGot(#[serde(with = "serde_bytes")] Option<Vec<u8>>),
    /// To `Pmix`; the rank's data from the agent that was asked for it.
    Pmix(PmixAnswer),
}

impl Reply {
    /// Whether an agent may send this, as opposed to the root, and it is within bounds.
    pub fn is_from_agent(&self) -> bool {
        match self {
            Self::NodePut(_) => true,
            Self::NodeGot(value) => value.as_ref().is_none_or(|value| value.len() <= ATTRIBUTE_BYTES_MAX),
            Self::GotFromJob(value) => value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX),
            Self::Pmix(PmixAnswer::Modex(data)) => data.as_ref().is_none_or(|data| data.len() <= MODEX_BYTES_MAX),
            Self::Published(_) | Self::Found(_) | Self::Unpublished(_) | Self::Spawned(_) | Self::Connected(_) => false,
            Self::Pmix(_) => false,
        }
    }
}

/// A message from an agent or the launcher to a child, about the child's subtree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Down {
    /// The part of the plan that is the same for all agents; the first message after the handshake.
    Session(Box<SessionPlan>),
    /// Start the ranks of this plan.
    Launch(Box<NamespacePlan>),
    /// A spawn has failed elsewhere: end the namespace's ranks without reporting their ends as failures.
    Undo {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// All ranks of the namespace have ended and will be asked for nothing: free its state.
    Forget {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// A piece of the epoch with which the fence will be released.
    Piece {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The piece.
        piece: Piece,
    },
    /// All ranks of the namespace have arrived: apply the content, then release the ranks.
    Release {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The content for the subtree.
        content: ReleaseContent,
    },
    /// All ranks of a group have arrived at its fence: release those of the subtree.
    GroupReleased {
        /// The namespace.
        namespace: NamespaceId,
        /// The group.
        group: RankGroup,
        /// All payloads, joined in any order.
        payload: Bytes,
    },
    /// End all ranks of all namespaces, without reports of their ends: send this signal first, SIGKILL after the grace.
    /// Then kill the processes that outlived them and forget the namespaces; [`Up::Cleared`] answers. Others follow.
    Clear {
        /// The first signal, or 0.
        signal: i32,
        /// The time until SIGKILL, or until SIGTERM.
        grace: Duration,
    },
    /// Start a rank again, whose failure was reported, while the others go on. Goes to the rank's agent.
    Revive {
        /// The rank's agent.
        agent: AgentId,
        /// The namespace.
        namespace: NamespaceId,
        /// The rank.
        rank: Rank,
        /// How often ranks of the session have started again, this start included.
        incarnation: u32,
    },
    /// Start ranks whose agent was lost, while the others go on. Goes to the agent that takes them over; all agents on the
    /// way expect the ranks from the open fence on.
    MoveIn {
        /// The agent that starts them.
        agent: AgentId,
        /// The namespace.
        namespace: NamespaceId,
        /// The ranks.
        ranks: Ranks,
        /// How often ranks of the session have started again, this start included.
        incarnation: u32,
    },
    /// Ranks of the namespace have died, of any subtree, and the session goes on.
    Died {
        /// The namespace.
        namespace: NamespaceId,
        /// The ranks.
        ranks: Ranks,
    },
    /// Asks for an entry that a rank of the subtree has put; [`Up::Got`] answers.
    Get {
        /// The namespace of the board.
        namespace: NamespaceId,
        /// The key.
        key: Bytes,
    },
    /// Answers [`Up::Get`].
    #[serde(serialize_with = "got_encoding::serialize_down", deserialize_with = "got_encoding::deserialize_down")]
    Got {
        /// The namespace of the board.
        namespace: NamespaceId,
        /// The entry, if there is one.
        result: LookUpResult,
    },
    /// A rank outside the subtree asks an agent of the subtree.
    Inquire(Inquiry),
    /// Answers a rank of the subtree.
    Reply {
        /// The rank.
        requester: Requester,
        /// The answer.
        reply: Reply,
    },
    /// Another agent on the same machine is lost for good: end its guardian, and what it has left there. Goes to `agent`.
    EndNeighbour {
        /// The agent that is to do it.
        agent: AgentId,
        /// The lost agent.
        lost: AgentId,
        /// The lost agent's guardian.
        guardian: GuardianAt,
    },
    /// Asks how far the ranks of the subtree are; [`Up::Surveyed`] answers.
    Survey {
        /// The survey's number. A new survey replaces the one under way.
        number: u32,
        /// The time for the answer.
        within: Duration,
    },
    /// Send a signal to all ranks.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Stop all ranks: the launcher is about to be stopped.
    Suspend,
    /// Continue all ranks.
    Resume,
    /// End all ranks: send this signal first, SIGKILL after the grace. A second `End` can shorten the grace. With signal 0 all
    /// ranks have ended well: processes that they have left have the grace to end by themselves. Then they get SIGTERM, and
    /// SIGKILL after another grace.
    End {
        /// The first signal.
        signal: i32,
        /// The time until SIGKILL.
        grace: Duration,
    },
    /// The session is over: exit.
    Leave,
}

/// The encoding of [`Down::Got`] and [`Up::Got`], with a key and an optional value in place of the result.
///
/// A decoded entry is copied once, into memory of its own, so that storing it does not keep the received frame alive.
mod got_encoding {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    use super::*;

    fn fields(result: &LookUpResult) -> (&Bytes, Option<&Bytes>) {
        (Bytes::new(result.key()), result.value().map(Bytes::new))
    }

    fn from_fields<E: Error>(key: ByteBuf, value: Option<ByteBuf>) -> Result<LookUpResult, E> {
        match value {
            Some(_) if key.len() > KEY_BYTES_MAX => Err(E::invalid_length(key.len(), &"a key")),
            Some(value) => Ok(LookUpResult::Entry(Entry::new(&key, &value))),
            None => Ok(LookUpResult::Absent(key.into_vec().into())),
        }
    }

    pub(super) fn serialize_down<S: Serializer>(
        namespace: &NamespaceId,
        result: &LookUpResult,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let (key, value) = fields(result);
        (namespace, key, value).serialize(serializer)
    }

    pub(super) fn deserialize_down<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<(NamespaceId, LookUpResult), D::Error> {
        let (namespace, key, value) = Deserialize::deserialize(deserializer)?;
        Ok((namespace, from_fields(key, value)?))
    }

    pub(super) fn serialize_up<S: Serializer>(
        namespace: &NamespaceId,
        number: &u32,
        result: &LookUpResult,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let (key, value) = fields(result);
        (namespace, number, key, value).serialize(serializer)
    }

    pub(super) fn deserialize_up<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<(NamespaceId, u32, LookUpResult), D::Error> {
        let (namespace, number, key, value) = Deserialize::deserialize(deserializer)?;
        Ok((namespace, number, from_fields(key, value)?))
    }
}

impl Up {
    /// Whether the message travels in the board lane. Messages about fences and boards must keep their order among
    /// themselves; all others are short and urgent.
    pub fn is_board(&self) -> bool {
        matches!(
            self,
            Self::Gathering { .. }
                | Self::Gathered { .. }
                | Self::GroupGathered { .. }
                | Self::Died { .. }
                | Self::MovedOut { .. }
                | Self::Rejoined { .. }
                | Self::Put { .. }
                | Self::Get { .. }
                | Self::Got { .. }
                | Self::Reply { reply: Reply::Pmix(_), .. }
                | Self::Ask { request: RootRequest::Pmix(_), .. }
        )
    }
}

impl Down {
    /// Whether the message travels in the board lane, as [`Up::is_board`] says. A look-up for another namespace does
    /// too: it must find the entries that were released before it was sent.
    pub fn is_board(&self) -> bool {
        match self {
            // Behind the releases and look-ups of its namespace.
            Self::Forget { .. } => true,
            // Behind the releases of the fences that the ranks do not enter.
            Self::MoveIn { .. } => true,
            Self::Piece { .. }
            | Self::Release { .. }
            | Self::GroupReleased { .. }
            | Self::Died { .. }
            | Self::Get { .. }
            | Self::Got { .. } => true,
            Self::Inquire(inquiry) => matches!(inquiry.kind, InquiryKind::LookUp { .. }),
            // It may have megabytes.
            Self::Reply { reply, .. } => matches!(reply, Reply::Pmix(_)),
            Self::Session(_)
            | Self::Launch(_)
            | Self::Undo { .. }
            | Self::Clear { .. }
            | Self::Revive { .. }
            | Self::EndNeighbour { .. }
            | Self::Survey { .. }
            | Self::Signal { .. }
            | Self::Suspend
            | Self::Resume
            | Self::End { .. }
            | Self::Leave => false,
        }
    }
}

#[cfg(test)]
mod tests;
