//! Gets that the board here cannot answer: the question on its way, and the answer on its way back.

use bytes::Bytes;
use pmi::{Answer, Entry, LookUpResult};
use serde_bytes::ByteBuf;

use super::{Action, Agent};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::{Answered, Asked, Waiter, Way};
use crate::core::message::{Down, Reply, Up};

impl Agent {
    /// Somebody asks for a key, and is answered in turn.
    pub(super) fn on_get(&mut self, namespace: NamespaceId, waiter: Waiter, key: &Bytes, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match ns.look_ups.ask(ns.cache.as_mut(), waiter, key) {
            Asked::Answer(finding) => self.tell(namespace, waiter, finding, actions),
            Asked::Ask(way) => ask(namespace, way, key.clone(), actions),
            Asked::Waits => {}
        }
    }

    /// A child asks for a key.
    pub(super) fn on_get_below(
        &mut self,
        now: Time,
        from: AgentId,
        namespace: NamespaceId,
        key: &Bytes,
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
        finding: LookUpResult,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number.is_none_or(|number| number == ns.fence.number());
        let Answered { tell, finding, ask: way } = ns.look_ups.on_answer(ns.cache.as_mut(), from, finding, is_fresh);
        for waiter in tell {
            self.tell(namespace, waiter, finding.clone(), actions);
        }
        if let Some(way) = way {
            ask(namespace, way, Bytes::copy_from_slice(finding.key()), actions);
        }
    }

    fn tell(&mut self, namespace: NamespaceId, waiter: Waiter, finding: LookUpResult, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        match waiter {
            Waiter::Own(rank) => {
                let value = finding.entry().map(Entry::value_bytes);
                actions.push(Action::Answer(namespace, rank, Answer::Got(value)));
            }
            Waiter::Child(child) => actions.push(Action::ToChild(child, Down::Got { namespace, finding })),
            Waiter::Parent => {
                actions.push(Action::ToParent(Up::Got { namespace, number: ns.fence.number(), finding }));
            }
            Waiter::Elsewhere(asker) => {
                let preput = || ns.preput(finding.key()).map(Vec::as_slice);
                let value = finding.value().or_else(preput).map(ByteBuf::from);
                self.reply(asker, Reply::Elsewhere(value), actions);
            }
        }
    }
}

fn ask(namespace: NamespaceId, way: Way, key: Bytes, actions: &mut Vec<Action>) {
    actions.push(match way {
        Way::Up => Action::ToParent(Up::Get { namespace, key }),
        Way::Down(child) => Action::ToChild(child, Down::Get { namespace, key }),
    });
}
