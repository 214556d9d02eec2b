//! Gets that only the root can answer, or send to where the entry is.

use bytes::Bytes;
use pmi::LookUpResult;

use super::{Root, RootAction};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::{Answered, Asked, Waiter, Way};
use crate::core::message::Down;

impl Root {
    /// A child asks for a key.
    pub(super) fn on_get(
        &mut self,
        now: Time,
        from: AgentId,
        namespace: NamespaceId,
        key: &Bytes,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if !(ns.children.contains_key(&from) && ns.look_ups.admits(ns.fence.expected(), key)) {
            return self.cut_off(now, from, "it asks for what it may not".to_owned(), actions);
        }
        match ns.look_ups.ask(ns.cache.as_mut(), Waiter::Child(from), key) {
            Asked::Answer(finding) => actions.push(RootAction::ToChild(from, Down::Got { namespace, finding })),
            Asked::Ask(way) => ask(namespace, way, key.clone(), actions),
            Asked::Waits => {}
        }
    }

    /// A child answers; it says how many fences had been released there.
    pub(super) fn on_got(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        finding: LookUpResult,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number == ns.fence.number();
        let answered = ns.look_ups.on_answer(ns.cache.as_mut(), Way::Down(from), finding, is_fresh);
        let Answered { tell, finding, ask: way } = answered;
        for waiter in tell {
            if let Waiter::Child(child) = waiter {
                actions.push(RootAction::ToChild(child, Down::Got { namespace, finding: finding.clone() }));
            }
        }
        if let Some(way) = way {
            ask(namespace, way, Bytes::copy_from_slice(finding.key()), actions);
        }
    }
}

fn ask(namespace: NamespaceId, way: Way, key: Bytes, actions: &mut Vec<RootAction>) {
    // There is nobody above.
    if let Way::Down(child) = way {
        actions.push(RootAction::ToChild(child, Down::Get { namespace, key }));
    }
}
