//! Fences and rings: what comes together at the root, and what goes out again.

use bytes::Bytes;
use pmi::{Epoch, Puts, Ranks};

use super::namespace::Namespace;
use super::{Notice, Root, RootAction};
use crate::core::cause::{Cause, Failure};
use crate::core::fence::{FenceError, Part};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::message::{Brought, Down, Given};

impl Root {
    pub(super) fn on_gathered(
        &mut self,
        now: Time,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        ranks: Ranks,
        brought: Brought,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let nobody = Ranks::new();
        let share = ns.children.get(&from).unwrap_or(&nobody);
        match ns.fence.arrive(now, from, number, &ranks, share, brought) {
            Ok(()) => release(ns, actions),
            Err(error @ FenceError::Mixed { .. }) => {
                let cause = Cause::Broken { why: error.to_string() };
                self.on_failure(now, Failure { at: now, agent: from, namespace, ranks, cause }, actions);
            }
            Err(error) => {
                let why = format!("fence {number} of namespace {namespace}: {error}");
                self.cut_off(now, from, why, actions);
            }
        }
    }
}

/// Releases the open fence if all have arrived.
fn release(ns: &mut Namespace, actions: &mut Vec<RootAction>) {
    if !ns.fence.is_complete() {
        return;
    }
    let (namespace, number) = (ns.plan.id, ns.fence.number());
    let mut to = |child, given| actions.push(RootAction::ToChild(child, Down::Release { namespace, number, given }));
    let (entries, bytes) = match ns.fence.take() {
        Brought::Puts(puts) => {
            let (entries, bytes) = merged(&puts);
            for child in ns.children.keys() {
                to(*child, Given::Epoch(bytes.clone()));
            }
            (entries, bytes.len())
        }
        Brought::Ring(whole) => {
            // All parts were checked when they came in, so they have seats.
            for (part, seat) in ns.fence.seats(number, &whole.closed(), ns.plan.size).unwrap_or_default() {
                if let Part::Child(child) = part {
                    to(child, Given::Ring(seat));
                }
            }
            (0, 0)
        }
    };
    actions.push(RootAction::Notice(Notice::Released { namespace, number, entries, bytes }));
    ns.fence.release(number);
}

/// The epoch of these puts: how many entries it has, and its bytes; none if nothing was put.
fn merged(puts: &Puts) -> (usize, Bytes) {
    // The puts were validated when they came in, so merging them cannot fail.
    let epoch = Epoch::merge(puts).unwrap_or_else(|_| Epoch::from_entries([]));
    (epoch.len(), if epoch.is_empty() { Bytes::new() } else { epoch.bytes().clone() })
}
