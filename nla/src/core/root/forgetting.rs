//! Namespaces of MPI_Comm_spawn that have ended: agents and root free their state.
//!
//! A namespace has ended when the spawn was answered and all ranks were reported as ended. The root then sends
//! [`Down::Forget`] behind all releases and look-ups of the namespace. Messages about it that arrive later are ignored.

use super::{Phase, Root, Turn};
use crate::core::ids::NamespaceId;
use crate::core::limits::{NAMESPACES_ENDED_MAX, NAMESPACES_MAX};
use crate::core::message::Down;
use crate::core::parent::Parent;

impl Root {
    /// The number of the next namespace. `None`: there were as many as the bound allows.
    pub(super) fn next_namespace(&self) -> Option<NamespaceId> {
        (self.made < NAMESPACES_MAX).then_some(NamespaceId(self.made))
    }

    /// Frees the namespaces that have ended, except the last [`NAMESPACES_ENDED_MAX`]: the ranks that spawned them may
    /// still look up their entries.
    pub(super) fn forget_ended(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let ended = &mut self.ended;
        let new = self.namespaces.iter().filter(|(id, ns)| **id != self.job && ns.has_ended() && !ended.contains(id));
        let new: Vec<_> = new.map(|(id, _)| *id).collect();
        ended.extend(new);
        while self.ended.len() > NAMESPACES_ENDED_MAX
            && let Some(namespace) = self.ended.pop_front()
        {
            let children = self.forget(namespace);
            turn.extend(children.into_iter().map(|child| Self::send(child, Down::Forget { namespace })));
        }
    }

    /// Frees the state of a namespace here. Returns the children that have ranks of it.
    pub(super) fn forget(&mut self, namespace: NamespaceId) -> Vec<crate::core::ids::AgentId> {
        let stored = self.stored_peaks();
        let Some(ns) = self.namespaces.remove(&namespace) else { return Vec::new() };
        self.forgotten.note(&ns.exchange, stored);
        self.posts.forget(namespace);
        self.answered.retain(|(_, requester, _), _| *requester != namespace);
        ns.exchange.children.iter().map(|(child, _)| *child).collect()
    }
}
