//! The events that an agent handles.

use std::time::Duration;

use bytes::Bytes;
use pmi::{Rank, Ranks, Request};
use serde::{Deserialize, Serialize};

use super::passing::SignalWay;
use crate::core::binding::BindingReport;
use crate::core::cause::Exit;
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::message::{Down, Requester, Up};
use crate::core::reason::{LossReason, NotStartedReason};
use crate::core::stats::DriverCounts;
use crate::core::survey::Activity;
use crate::core::trace::TraceSpan;

/// An event that the driver reports to the core. It can be encoded for recordings, not for peers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Input {
    /// The parent sent a message.
    FromParent(Down),
    /// The link to the parent was lost.
    ParentLost {
        /// How the loss was noticed.
        why: LossReason,
    },
    /// The link to the ancestor that [`Action::Rejoin`](super::Action::Rejoin) found is up.
    Rejoined,
    /// No ancestor accepts this agent.
    NotRejoined,
    /// This process did not run for this long until now. If that is the dead time or longer, its peers may have given it up.
    Stopped(Duration),
    /// The link to a child, or to an agent of a subtree in [`Action::Adopt`](super::Action::Adopt), is up, and the peer was authenticated.
    ChildJoined(AgentId),
    /// A child sent a message.
    FromChild(AgentId, Up),
    /// The link to a child was lost.
    ChildLost(AgentId, LossReason),
    /// The same, before all output of the child's subtree has arrived.
    ChildOutputLost(AgentId, LossReason),
    /// Nothing was heard from a child for this time, and its machine answers.
    ChildSilent(AgentId, Duration),
    /// A child that this agent has started did not join.
    ChildFailed(AgentId, NotStartedReason),
    /// The guardian process ended.
    GuardianLost,
    /// The guardian process has not answered heartbeats for the dead time.
    GuardianSilent,
    /// The process that serves PMIx was lost. The text says how: "its scela-pmix ended".
    PmixLost(String),
    /// This process received SIGTERM, SIGUSR1 or SIGUSR2, in this way.
    Signalled(i32, SignalWay),
    /// Ranks of this agent were started.
    Started(NamespaceId, Ranks),
    /// Ranks of this agent could not be started, or were not because [`Action::CancelStarts`](super::Action::CancelStarts) came first.
    NotStarted(NamespaceId, Ranks, NotStartedReason),
    /// One of this agent's ranks sent a request.
    FromRank(NamespaceId, Rank, Request),
    /// The process of one of this agent's ranks has ended. All its requests were handed in before.
    RankEnded(NamespaceId, Rank, Exit),
    /// Answers [`Action::LookUp`](super::Action::LookUp).
    LookedUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Vec<u8>,
        /// The rank that is to be answered.
        requester: Requester,
        /// The key's value on the board, if it has one.
        value: Option<Vec<u8>>,
    },
    /// Answers [`Action::Modex`](super::Action::Modex): the data of one of this agent's ranks, if there is any.
    Modexed(Requester, Option<Bytes>),
    /// Files that this agent's ranks have left were removed or found. Comes before [`Input::Swept`].
    FilesLeft(FileReport),
    /// The kernel has not started, or ended, a process of this agent for a while.
    Busy(String),
    /// A second process joined as this rank of this agent, and was refused. The text names both.
    SecondJoiner(Rank, String),
    /// This agent has all files of the session's plan.
    Staged,
    /// A file of the session's plan cannot be stored here. The text names it and says why.
    NotStaged(String),
    /// The processors of this agent's ranks are chosen. Comes before they are started.
    Bound(Box<BindingReport>),
    /// The limits that this agent's ranks get, if they are lower than in the user's shell, as pairs of kind and limit. Comes
    /// once, before ranks are started.
    LowLimits(Vec<(u32, u64)>),
    /// The processes that [`Action::EndLeft`](super::Action::EndLeft) has found, at most
    /// [`LEFT_PROGRAMS_MAX`](crate::core::limits::LEFT_PROGRAMS_MAX) programs.
    Left(Vec<LeftProcesses>),
    /// [`Action::Sweep`](super::Action::Sweep) or [`Action::Linger`](super::Action::Linger) is done: no descendant is left. Output may still be unread.
    Swept {
        /// The number of processes that had outlived their ranks.
        leftovers: u64,
    },
    /// All output of the subtree has been written to the parent's link, up to its end. Nothing but the last reports
    /// follows on any link.
    Drained {
        /// The driver's counts up to here.
        counted: Box<DriverCounts>,
        /// The spans that the driver has noted, if this agent is traced.
        spans: Vec<TraceSpan>,
    },
    /// [`Action::Clear`](super::Action::Clear) is done: no process of a rank is left.
    Cleared {
        /// The number of processes that had outlived their ranks.
        leftovers: u64,
    },
    /// [`Action::Clear`](super::Action::Clear) cannot be done: the kernel does not let this agent kill all processes.
    NotCleared,
    /// Answers [`Action::Inspect`](super::Action::Inspect): what the ranks of each namespace do.
    Inspected(u32, Vec<(NamespaceId, Vec<(Activity, Ranks)>)>),
    /// The time of the last [`Action::WakeAt`](super::Action::WakeAt) is reached. A stale one is harmless.
    Timeout,
}

impl Input {
    /// Whether the input looks up an entry of the board, or answers such a look-up.
    pub(super) fn is_look_up(&self) -> bool {
        matches!(
            self,
            Self::FromChild(_, Up::Get { .. } | Up::Got { .. })
                | Self::FromParent(Down::Get { .. } | Down::Got { .. })
                | Self::FromRank(_, _, Request::Get { .. })
        )
    }
}
