//! Namespaces of MPI_Comm_spawn that have ended: the agent frees their state when the root has forgotten them.
//!
//! Messages about a forgotten namespace are ignored: they were under way when it ended.

use pmi::LookUpResult;

use super::{Action, Agent, Turn};
use crate::core::ids::NamespaceId;
use crate::core::lookup::ReplyTo;
use crate::core::message::Down;
use crate::core::parent::Parent;

impl Agent {
    /// All ranks of the namespace have ended, and the root answers no look-up of its entries any more.
    pub(super) fn on_forget(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.forgotten = true;
        let children = ns.exchange.children.iter();
        turn.extend(children.map(|(child, _)| Action::ToChild(*child, Down::Forget { namespace })));
    }

    /// Frees namespaces that the root has forgotten or undone, when their ranks here have ended.
    pub(super) fn free_ended(&mut self, turn: &mut Turn<'_>) {
        if !self.is_serving() || self.clearing.is_some() {
            return;
        }
        let freeable: Vec<_> = self.namespaces.iter().filter(|(_, ns)| ns.is_freeable()).map(|(id, _)| *id).collect();
        for namespace in freeable {
            self.free(namespace, turn);
        }
    }

    fn free(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let foreign = self.namespaces.get(&namespace).map(|ns| ns.exchange.look_ups.foreign());
        for (requester, key) in foreign.unwrap_or_default() {
            // The places that could answer have forgotten the namespace too.
            self.answer_get(namespace, ReplyTo::OtherNamespace(requester), LookUpResult::Absent(key), turn);
        }
        self.forget(namespace);
        self.requests.retain(|(_, requester, _), _| *requester != namespace);
        self.early_deaths.remove(&namespace);
        // The bound on single reports would be reached by spawns that fail one after another.
        self.failures.retain(|failure| failure.namespace != namespace);
        turn.push(Action::Forget(namespace));
    }

    /// Frees all namespaces: their ranks have ended, and the job starts again.
    pub(super) fn forget_all(&mut self) {
        let all: Vec<_> = self.namespaces.keys().copied().collect();
        all.into_iter().for_each(|namespace| self.forget(namespace));
    }

    /// Frees a namespace, but not its counts.
    fn forget(&mut self, namespace: NamespaceId) {
        let stored = self.stored_peaks();
        if let Some(ns) = self.namespaces.remove(&namespace) {
            self.forgotten.note(&ns.exchange, stored);
            self.forgotten.fences.merge(&ns.fence_times);
        }
    }
}
