//! Decides the fate of the agents below a lost child, and builds the messages that an agent missed before it rejoined.

use std::time::Duration;

use pmi::Ranks;

use super::exchange::{Exchange, MoveIn};
use super::failure_policy::FailurePolicy;
use super::ids::NamespaceId;
use super::message::{Down, OpenFence};
use super::plan::{NamespacePlan, SessionPlan};
use super::topology::Subtree;

/// The fate of the subtree of a lost child.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Heritage {
    /// The session ends.
    End,
    /// The session goes on without the subtree.
    Lost,
    /// The child's children join here within this time.
    Adopted {
        /// The time.
        within: Duration,
    },
}

impl Heritage {
    /// The fate in a session of `plan` while its ranks run.
    pub(super) fn of(plan: &SessionPlan) -> Self {
        match plan.on_failure {
            FailurePolicy::Continue if !plan.has_ports => Self::Lost,
            policy if policy.adopts() && plan.has_ports => Self::Adopted { within: plan.adoption_time() },
            _ => Self::End,
        }
    }
}

/// Returns the messages that free a child's namespaces that its new parent does not know: they have ended, or their
/// spawns have failed. `fences` names the child's namespaces. A parent knows all other namespaces before its child
/// does.
pub(super) fn forgotten(fences: &[OpenFence], is_known: impl Fn(NamespaceId) -> bool) -> Vec<Down> {
    let unknown = fences.iter().filter(|fence| !is_known(fence.namespace));
    unknown.map(|fence| Down::Undo { namespace: fence.namespace }).collect()
}

/// Returns the messages about one namespace that the head of `child` missed before it rejoined. `fences` are the open fences that it
/// knows, `dead` all ranks that have died.
pub(super) fn missed(
    plan: &NamespacePlan,
    exchange: &Exchange,
    dead: &Ranks,
    undone: bool,
    child: Subtree,
    fences: &[OpenFence],
) -> Vec<Down> {
    let namespace = plan.id;
    let Some(share) = plan.share_of(child) else { return Vec::new() };
    let mut messages = Vec::new();
    let known = fences.iter().find(|known| known.namespace == namespace);
    if known.is_none() {
        messages.push(Down::Launch(Box::new(share)));
    }
    if undone {
        messages.push(Down::Undo { namespace });
    }
    if !dead.is_empty() {
        messages.push(Down::Died { namespace, ranks: dead.clone() });
    }
    messages.extend(known.into_iter().flat_map(|known| exchange.missed(*known)));
    // It ignores the orders that have reached it.
    messages.extend(exchange.moved_in.iter().filter(|moved| child.contains(moved.to)).map(|moved| {
        let MoveIn { to, ranks, incarnation } = moved.clone();
        Down::MoveIn { agent: to, namespace, ranks, incarnation }
    }));
    messages
}
