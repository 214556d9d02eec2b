//! GetCounts that only the root can answer, or send to where the entry is.

use bytes::Bytes;
use pmi::LookUpResult;

use super::{Root, RootAction};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::{AnswerEffect, LookUpStep, Peer, ReplyTo};
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
        match ns.look_ups.ask(ns.cache.as_mut(), ReplyTo::Child(from), key) {
            LookUpStep::Answer(result) => actions.push(RootAction::ToChild(from, Down::Got { namespace, result })),
            LookUpStep::Ask(way) => ask(namespace, way, key.clone(), actions),
            LookUpStep::Wait => {}
        }
    }

    /// A child answers; it says how many fences had been released there.
    pub(super) fn on_got(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        result: LookUpResult,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number == ns.fence.number();
        let answered = ns.look_ups.on_answer(ns.cache.as_mut(), Peer::Child(from), result, is_fresh);
        let AnswerEffect { tell, result, ask: way } = answered;
        for waiter in tell {
            if let ReplyTo::Child(child) = waiter {
                actions.push(RootAction::ToChild(child, Down::Got { namespace, result: result.clone() }));
            }
        }
        if let Some(way) = way {
            ask(namespace, way, Bytes::copy_from_slice(result.key()), actions);
        }
    }
}

fn ask(namespace: NamespaceId, way: Peer, key: Bytes, actions: &mut Vec<RootAction>) {
    // There is nobody above.
    if let Peer::Child(child) = way {
        actions.push(RootAction::ToChild(child, Down::Get { namespace, key }));
    }
}
