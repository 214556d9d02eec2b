//! Gets that the board here cannot answer: the question on its way, and the answer on its way back.

use bytes::Bytes;
use pmi::Answer;
use serde_bytes::ByteBuf;

use super::{Action, Agent};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::{Answered, Asked, Waiter, Way};
use crate::core::message::{Down, Reply, Up};

impl Agent {
    /// Somebody asks for a key, and is answered in turn.
    pub(super) fn on_get(&mut self, namespace: NamespaceId, waiter: Waiter, key: &[u8], actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match ns.look_ups.ask(ns.cache.as_mut(), waiter, key) {
            Asked::Answer(value) => self.tell(namespace, waiter, key, value, actions),
            Asked::Ask(way) => ask(namespace, way, key, actions),
            Asked::Waits => {}
        }
    }

    /// A child asks for a key.
    pub(super) fn on_get_below(
        &mut self,
        now: Time,
        from: AgentId,
        namespace: NamespaceId,
        key: &[u8],
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        if ns.may_get(from, key) {
            self.on_get(namespace, Waiter::Child(from), key, actions);
        } else {
            self.cut_off(now, from, "it asks for what it may not".to_owned(), actions);
        }
    }

    /// An answer has come from where a question went. One from below says how many fences had been
    /// released there.
    pub(super) fn on_got(
        &mut self,
        namespace: NamespaceId,
        from: Way,
        number: Option<u32>,
        key: &[u8],
        value: Option<Bytes>,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number.is_none_or(|number| number == ns.fence.number());
        let Answered { tell, value, ask: way } = ns.look_ups.on_answer(ns.cache.as_mut(), from, key, value, is_fresh);
        for waiter in tell {
            self.tell(namespace, waiter, key, value.clone(), actions);
        }
        if let Some(way) = way {
            ask(namespace, way, key, actions);
        }
    }

    fn tell(
        &mut self,
        namespace: NamespaceId,
        waiter: Waiter,
        key: &[u8],
        value: Option<Bytes>,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        match waiter {
            Waiter::Own(rank) => actions.push(Action::Answer(namespace, rank, Answer::Got(value))),
            Waiter::Child(child) => {
                actions.push(Action::ToChild(child, Down::Got { namespace, key: key.to_vec(), value }));
            }
            Waiter::Parent => {
                let number = ns.fence.number();
                actions.push(Action::ToParent(Up::Got { namespace, number, key: key.to_vec(), value }));
            }
            Waiter::Elsewhere(asker) => {
                let preput = || ns.preput(key).map(|value| value.as_slice());
                let value = value.as_deref().or_else(preput).map(ByteBuf::from);
                self.reply(asker, Reply::Elsewhere(value), actions);
            }
        }
    }
}

fn ask(namespace: NamespaceId, way: Way, key: &[u8], actions: &mut Vec<Action>) {
    let key = key.to_vec();
    actions.push(match way {
        Way::Up => Action::ToParent(Up::Get { namespace, key }),
        Way::Down(child) => Action::ToChild(child, Down::Get { namespace, key }),
    });
}
