//! What ranks ask of other agents: attributes of their node, and boards of other namespaces.
//!
//! An inquiry travels up to the first agent that has the one it is for below it, or the root, and
//! down from there; the answer the same way back.

use pmi::{Answer, Rank, SpawnedJob};
use serde_bytes::ByteBuf;

use super::{Action, Agent};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::Waiter;
use crate::core::message::{Asker, Down, Inquiry, Matter, Reply, Up};

impl Agent {
    /// An own rank asks the agent that owns its node's attributes.
    pub(super) fn ask_owner(&mut self, namespace: NamespaceId, rank: Rank, matter: Matter, actions: &mut Vec<Action>) {
        let asker = Asker { agent: self.id(), namespace, rank };
        let here = self.id();
        let Some(ns) = self.namespaces.get_mut(&namespace).filter(|ns| ns.own().contains(rank)) else { return };
        let to = ns.owner_of(here);
        if !matter.is_bounded() {
            return self.refuse(asker, &matter, actions);
        }
        if to != here {
            ns.on_inquiry(rank, &matter);
        }
        self.pass(Inquiry { to, asker, matter }, actions);
    }

    /// An own rank has ended: whoever has its question parked forgets it.
    pub(super) fn forget(&mut self, namespace: NamespaceId, rank: Rank, actions: &mut Vec<Action>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.take_inquiring(rank)) {
            self.ask_owner(namespace, rank, Matter::NodeForget, actions);
        }
    }

    pub(super) fn on_inquiry_from_below(
        &mut self,
        now: Time,
        from: AgentId,
        inquiry: Inquiry,
        actions: &mut Vec<Action>,
    ) {
        let Inquiry { to, asker, matter } = &inquiry;
        let child_of = |agent: AgentId| self.here.toward(agent).map(|child| child.head());
        let namespace = self.namespaces.get(&asker.namespace);
        let allowed = child_of(asker.agent) == Some(from)
            && child_of(*to) != Some(from)
            && matter.is_bounded()
            && namespace.is_some_and(|ns| ns.may_inquire(from, &inquiry));
        if allowed {
            self.pass(inquiry, actions);
        } else {
            let why = format!("it asks agent {to} for rank {}, which it may not", asker.rank);
            self.cut_off(now, from, why, actions);
        }
    }

    pub(super) fn on_inquiry_from_above(&mut self, inquiry: Inquiry, actions: &mut Vec<Action>) {
        if self.here.contains(inquiry.to) {
            self.pass(inquiry, actions);
        }
    }

    pub(super) fn on_reply_from_below(
        &mut self,
        now: Time,
        from: AgentId,
        asker: Asker,
        reply: Reply,
        actions: &mut Vec<Action>,
    ) {
        let back = self.here.toward(asker.agent).is_some_and(|child| child.head() == from);
        if !back && reply.is_of_agent() {
            self.reply(asker, reply, actions);
        } else {
            self.cut_off(now, from, format!("it answers rank {}, which it may not", asker.rank), actions);
        }
    }

    pub(super) fn on_reply_from_above(&mut self, asker: Asker, reply: Reply, actions: &mut Vec<Action>) {
        if self.here.contains(asker.agent) {
            self.reply(asker, reply, actions);
        }
    }

    pub(super) fn on_looked_up(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        asker: Asker,
        value: Option<Vec<u8>>,
        actions: &mut Vec<Action>,
    ) {
        let preput = || self.namespaces.get(&namespace)?.preput(key).cloned();
        let value = value.or_else(preput).map(ByteBuf::from);
        self.reply(asker, Reply::Elsewhere(value), actions);
    }

    /// Sends an inquiry on its way, or answers it.
    fn pass(&mut self, inquiry: Inquiry, actions: &mut Vec<Action>) {
        if inquiry.to == self.id() {
            self.on_inquiry(inquiry.asker, inquiry.matter, actions);
        } else if let Some(child) = self.here.toward(inquiry.to) {
            actions.push(Action::ToChild(child.head(), Down::Inquire(inquiry)));
        } else {
            actions.push(Action::ToParent(Up::Inquire(inquiry)));
        }
    }

    /// Sends an answer on its way, or gives it to the own rank that it is for.
    pub(super) fn reply(&mut self, asker: Asker, reply: Reply, actions: &mut Vec<Action>) {
        if asker.agent == self.id() {
            if let Some(ns) = self.namespaces.get_mut(&asker.namespace) {
                ns.take_inquiring(asker.rank);
            }
            actions.push(Action::Answer(asker.namespace, asker.rank, answer(reply)));
        } else if let Some(child) = self.here.toward(asker.agent) {
            actions.push(Action::ToChild(child.head(), Down::Reply { asker, reply }));
        } else {
            actions.push(Action::ToParent(Up::Reply { asker, reply }));
        }
    }

    fn refuse(&mut self, asker: Asker, matter: &Matter, actions: &mut Vec<Action>) {
        if let Some(reply) = matter.refusal() {
            self.reply(asker, reply, actions);
        }
    }

    /// An inquiry has come to where it was sent.
    fn on_inquiry(&mut self, asker: Asker, matter: Matter, actions: &mut Vec<Action>) {
        let rank = asker.rank;
        let about = match &matter {
            Matter::LookUp { namespace, .. } => *namespace,
            Matter::NodePut { .. } | Matter::NodeGet { .. } | Matter::NodeForget => asker.namespace,
        };
        let ns = self.namespaces.get_mut(&about).filter(|_| matter.is_bounded());
        match (matter, ns) {
            (Matter::LookUp { namespace, key }, Some(ns)) if ns.cache.is_whole() => {
                actions.push(Action::LookUp { namespace, key, asker });
            }
            (Matter::LookUp { namespace, key }, Some(_)) => {
                self.on_get(namespace, Waiter::Elsewhere(asker), &key.into(), actions);
            }
            (Matter::NodePut { key, value }, Some(ns)) if ns.is_owner_for(rank) => {
                let put = ns.node.put(key, value.clone());
                self.reply(asker, Reply::NodePut(put.is_some()), actions);
                for (rank, agent) in put.unwrap_or_default() {
                    let waiting = Asker { agent, rank, ..asker };
                    self.reply(waiting, Reply::NodeGot(Some(ByteBuf::from(value.clone()))), actions);
                }
            }
            (Matter::NodeGet { key, wait }, Some(ns)) if ns.is_owner_for(rank) => match ns.node.get(&key) {
                None if wait => ns.node.park(rank, asker.agent, key),
                value => {
                    let value = value.cloned().map(ByteBuf::from);
                    self.reply(asker, Reply::NodeGot(value), actions);
                }
            },
            (Matter::NodeForget, Some(ns)) => ns.node.forget(rank),
            (matter, _) => self.refuse(asker, &matter, actions),
        }
    }
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Published(result) => Answer::Published(result),
        Reply::Found(result) => Answer::Found(result),
        Reply::Unpublished(result) => Answer::Unpublished(result),
        Reply::Spawned(result) => {
            Answer::Spawned(result.map(|(job, count)| SpawnedJob { job, codes: vec![0; count as usize] }))
        }
        Reply::Connected(is_there) => Answer::Connected(is_there),
        Reply::Elsewhere(value) => Answer::GotFromJob(value.map(ByteBuf::into_vec)),
        Reply::NodePut(taken) => Answer::NodePut(taken),
        Reply::NodeGot(value) => Answer::NodeGot(value.map(ByteBuf::into_vec)),
    }
}
