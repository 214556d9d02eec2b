//! Gets that only the root can answer, or send to where the entry is.

use bytes::Bytes;

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
        key: &[u8],
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if !(ns.children.contains_key(&from) && ns.look_ups.admits(ns.fence.expected(), key)) {
            return self.cut_off(now, from, "it asks for what it may not".to_owned(), actions);
        }
        match ns.look_ups.ask(ns.cache.as_mut(), Waiter::Child(from), key) {
            Asked::Answer(value) => {
                actions.push(RootAction::ToChild(from, Down::Got { namespace, key: key.to_vec(), value }));
            }
            Asked::Ask(way) => ask(namespace, way, key, actions),
            Asked::Waits => {}
        }
    }

    /// A child answers; it says how many fences had been released there.
    pub(super) fn on_got(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        key: &[u8],
        value: Option<Bytes>,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number == ns.fence.number();
        let answered = ns.look_ups.on_answer(ns.cache.as_mut(), Way::Down(from), key, value, is_fresh);
        let Answered { tell, value, ask: way } = answered;
        for waiter in tell {
            if let Waiter::Child(child) = waiter {
                let (key, value) = (key.to_vec(), value.clone());
                actions.push(RootAction::ToChild(child, Down::Got { namespace, key, value }));
            }
        }
        if let Some(way) = way {
            ask(namespace, way, key, actions);
        }
    }
}

fn ask(namespace: NamespaceId, way: Way, key: &[u8], actions: &mut Vec<RootAction>) {
    // There is nobody above.
    if let Way::Down(child) = way {
        actions.push(RootAction::ToChild(child, Down::Get { namespace, key: key.to_vec() }));
    }
}
