//! GetCounts that the board here cannot answer: the question on its way, and the answer on its way back.

use bytes::Bytes;
use pmi::{Answer, Entry, LookUpResult};
use serde_bytes::ByteBuf;

use super::{Action, Agent};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::{AnswerEffect, LookUpStep, Peer, ReplyTo};
use crate::core::message::{Down, Reply, Up};

impl Agent {
    /// Somebody asks for a key, and is answered in turn.
    pub(super) fn on_get(&mut self, namespace: NamespaceId, waiter: ReplyTo, key: &Bytes, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match ns.look_ups.ask(ns.cache.as_mut(), waiter, key) {
            LookUpStep::Answer(result) => self.tell(namespace, waiter, result, actions),
            LookUpStep::Ask(way) => ask(namespace, way, key.clone(), actions),
            LookUpStep::Wait => {}
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
            self.on_get(namespace, ReplyTo::Child(from), key, actions);
        } else {
            self.cut_off(now, from, "it asks for what it may not".to_owned(), actions);
        }
    }

    /// An answer has come from where a question went. One from below says how many fences had been
    /// released there.
    pub(super) fn on_got(
        &mut self,
        namespace: NamespaceId,
        from: Peer,
        number: Option<u32>,
        result: LookUpResult,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let is_fresh = number.is_none_or(|number| number == ns.fence.number());
        let AnswerEffect { tell, result, ask: way } = ns.look_ups.on_answer(ns.cache.as_mut(), from, result, is_fresh);
        for waiter in tell {
            self.tell(namespace, waiter, result.clone(), actions);
        }
        if let Some(way) = way {
            ask(namespace, way, Bytes::copy_from_slice(result.key()), actions);
        }
    }

    fn tell(&mut self, namespace: NamespaceId, waiter: ReplyTo, result: LookUpResult, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        match waiter {
            ReplyTo::Rank(rank) => {
                let value = result.entry().map(Entry::value_bytes);
                actions.push(Action::Answer(namespace, rank, Answer::Got(value)));
            }
            ReplyTo::Child(child) => actions.push(Action::ToChild(child, Down::Got { namespace, result })),
            ReplyTo::Parent => {
                actions.push(Action::ToParent(Up::Got { namespace, number: ns.fence.number(), result }));
            }
            ReplyTo::OtherNamespace(requester) => {
                let preput = || ns.preput(result.key()).map(Vec::as_slice);
                let value = result.value().or_else(preput).map(ByteBuf::from);
                self.reply(requester, Reply::GotFromJob(value), actions);
            }
        }
    }
}

fn ask(namespace: NamespaceId, way: Peer, key: Bytes, actions: &mut Vec<Action>) {
    actions.push(match way {
        Peer::Parent => Action::ToParent(Up::Get { namespace, key }),
        Peer::Child(child) => Action::ToChild(child, Down::Get { namespace, key }),
    });
}
