//! The orders of an agent to its driver.

use pmi::{Answer, Board, Epoch, Rank, Ranks};
use serde::{Serialize, Serializer};

use crate::core::ids::{AgentId, GuardianAt, NamespaceId, Time};
use crate::core::message::{Down, Requester, Up};
use crate::core::plan::{NamespacePlan, SessionPlan};
use crate::core::reason::LossReason;
use crate::core::topology::Subtree;

/// A command to the driver. It can be encoded for recordings, not for peers.
#[derive(Debug, PartialEq, Serialize)]
pub enum Action {
    /// Send a message to the parent.
    ToParent(Up),
    /// Send a message to a child.
    ToChild(AgentId, Down),
    /// Join the nearest ancestor that accepts this agent, instead of the lost parent, then hand in [`Input::Rejoined`](super::Input::Rejoined).
    /// Give up at this time, and hand in [`Input::NotRejoined`](super::Input::NotRejoined).
    Rejoin(Time),
    /// Let each agent of these subtrees join once, from now on. Refuse all other agents that have lost their parents. A
    /// subtree leaves the list when its head joins.
    Adopt(Vec<Subtree>),
    /// Close the link to a child that broke the rules. [`Input::ChildLost`](super::Input::ChildLost) need not follow.
    CloseChild(AgentId, LossReason),
    /// Store the plan of the session; later starts need it.
    Configure(Box<SessionPlan>),
    /// Start these ranks of this agent, possibly none, and send standard input where the plan says. The board is what
    /// the ranks see at first.
    Start(Box<NamespacePlan>, Ranks, #[serde(serialize_with = "wholeness")] Board),
    /// Drop all starts that were ordered and not made yet.
    CancelStarts,
    /// Make an epoch's entries visible to this agent's ranks of the namespace.
    Publish(NamespaceId, Epoch),
    /// Answer these ranks [`Answer::Released`].
    Release(NamespaceId, Ranks),
    /// Answer these ranks [`Answer::FenceFailed`].
    FailFence(NamespaceId, Ranks),
    /// Publish the dead ranks of the namespace, which are exactly these, on the board here, and notify the ranks that
    /// handle SIGUSR1.
    ShowDead(NamespaceId, Ranks),
    /// Answer a rank.
    Answer(NamespaceId, Rank, Answer),
    /// Look up an entry on the namespace's board here, and hand in [`Input::LookedUp`](super::Input::LookedUp).
    LookUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Vec<u8>,
        /// The rank that is to be answered; the input repeats it.
        requester: Requester,
    },
    /// Hand in the data that one of this agent's ranks has put by PMIx, once it has: [`Input::Modexed`](super::Input::Modexed).
    Modex {
        /// The namespace.
        namespace: NamespaceId,
        /// The rank.
        rank: Rank,
        /// The rank that is to be answered; the input repeats it.
        requester: Requester,
    },
    /// Send a signal to the process groups of these ranks.
    Signal(NamespaceId, Ranks, i32),
    /// Hand in, with this number, what these running ranks do: [`Input::Inspected`](super::Input::Inspected).
    Inspect(u32, Vec<(NamespaceId, Ranks)>),
    /// Free the state of a namespace: its ranks here have ended, and no rank elsewhere asks for its entries.
    Forget(NamespaceId),
    /// Stop (true) or resume (false) treating the parent's silence as a loss.
    Suspended(bool),
    /// Restart this rank, whose process has ended. The number is the incarnation.
    Restart(NamespaceId, Rank, u32),
    /// Another agent on this machine is lost: end its guardian, and what it has left here.
    EndNeighbour(AgentId, GuardianAt),
    /// Kill all descendants that are left and forget all namespaces, then hand in [`Input::Cleared`](super::Input::Cleared).
    Clear,
    /// Kill all descendants that are left, then hand in [`Input::Swept`](super::Input::Swept). When their output and that of the children
    /// has been read to its end, say so to the parent on the lanes that carry it, then hand in [`Input::Drained`](super::Input::Drained).
    Sweep,
    /// Hand in [`Input::Swept`](super::Input::Swept) once no descendant is left. All ranks have ended well.
    Linger,
    /// Send SIGTERM to all descendants, also to those that are found later, and hand in [`Input::Left`](super::Input::Left). Comes
    /// after [`Linger`](Self::Linger).
    EndLeft,
    /// Hand in [`Input::Timeout`](super::Input::Timeout) at this time. A later `WakeAt` replaces this one.
    WakeAt(Time),
    /// Close everything and exit with this code. The first of several counts.
    Leave(u8),
}

/// Encodes all that can differ between boards that are still empty.
fn wholeness<S: Serializer>(board: &Board, serializer: S) -> Result<S::Ok, S::Error> {
    board.is_whole().serialize(serializer)
}
