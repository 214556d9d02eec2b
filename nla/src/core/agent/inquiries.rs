//! What ranks ask of other agents: attributes of their node, and boards of other namespaces.
//!
//! An inquiry travels up to the first agent that has the one it is for below it, or the root, and
//! down from there; the answer the same way back.

use pmi::{Answer, Rank, SpawnedJob};
use serde_bytes::ByteBuf;

use super::{Action, Agent};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::ReplyTo;
use crate::core::message::{Down, Inquiry, InquiryKind, Reply, Requester, Up};

impl Agent {
    /// An own rank asks the agent that owns its node's attributes.
    pub(super) fn ask_owner(
        &mut self,
        namespace: NamespaceId,
        rank: Rank,
        kind: InquiryKind,
        actions: &mut Vec<Action>,
    ) {
        let requester = Requester { agent: self.id(), namespace, rank };
        let here = self.id();
        let Some(ns) = self.namespaces.get_mut(&namespace).filter(|ns| ns.own().contains(rank)) else { return };
        let to = ns.owner_of(here);
        if !kind.is_bounded() {
            return self.refuse(requester, &kind, actions);
        }
        if to != here {
            ns.on_inquiry(rank, &kind);
        }
        self.pass(Inquiry { to, requester, kind }, actions);
    }

    /// An own rank has ended: whoever has its question parked forgets it.
    pub(super) fn forget(&mut self, namespace: NamespaceId, rank: Rank, actions: &mut Vec<Action>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.take_inquiring(rank)) {
            self.ask_owner(namespace, rank, InquiryKind::NodeForget, actions);
        }
    }

    pub(super) fn on_inquiry_from_below(
        &mut self,
        now: Time,
        from: AgentId,
        inquiry: Inquiry,
        actions: &mut Vec<Action>,
    ) {
        let Inquiry { to, requester, kind } = &inquiry;
        let child_of = |agent: AgentId| self.here.toward(agent).map(|child| child.head());
        let namespace = self.namespaces.get(&requester.namespace);
        let allowed = child_of(requester.agent) == Some(from)
            && child_of(*to) != Some(from)
            && kind.is_bounded()
            && namespace.is_some_and(|ns| ns.may_inquire(from, &inquiry));
        if allowed {
            self.pass(inquiry, actions);
        } else {
            let why = format!("it asks agent {to} for rank {}, which it may not", requester.rank);
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
        requester: Requester,
        reply: Reply,
        actions: &mut Vec<Action>,
    ) {
        let back = self.here.toward(requester.agent).is_some_and(|child| child.head() == from);
        if !back && reply.is_of_agent() {
            self.reply(requester, reply, actions);
        } else {
            self.cut_off(now, from, format!("it answers rank {}, which it may not", requester.rank), actions);
        }
    }

    pub(super) fn on_reply_from_above(&mut self, requester: Requester, reply: Reply, actions: &mut Vec<Action>) {
        if self.here.contains(requester.agent) {
            self.reply(requester, reply, actions);
        }
    }

    pub(super) fn on_looked_up(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        requester: Requester,
        value: Option<Vec<u8>>,
        actions: &mut Vec<Action>,
    ) {
        let preput = || self.namespaces.get(&namespace)?.preput(key).cloned();
        let value = value.or_else(preput).map(ByteBuf::from);
        self.reply(requester, Reply::GotFromJob(value), actions);
    }

    /// Sends an inquiry on its way, or answers it.
    fn pass(&mut self, inquiry: Inquiry, actions: &mut Vec<Action>) {
        if inquiry.to == self.id() {
            self.on_inquiry(inquiry.requester, inquiry.kind, actions);
        } else if let Some(child) = self.here.toward(inquiry.to) {
            actions.push(Action::ToChild(child.head(), Down::Inquire(inquiry)));
        } else {
            actions.push(Action::ToParent(Up::Inquire(inquiry)));
        }
    }

    /// Sends an answer on its way, or gives it to the own rank that it is for.
    pub(super) fn reply(&mut self, requester: Requester, reply: Reply, actions: &mut Vec<Action>) {
        if requester.agent == self.id() {
            if let Some(ns) = self.namespaces.get_mut(&requester.namespace) {
                ns.take_inquiring(requester.rank);
            }
            actions.push(Action::Answer(requester.namespace, requester.rank, answer(reply)));
        } else if let Some(child) = self.here.toward(requester.agent) {
            actions.push(Action::ToChild(child.head(), Down::Reply { requester, reply }));
        } else {
            actions.push(Action::ToParent(Up::Reply { requester, reply }));
        }
    }

    fn refuse(&mut self, requester: Requester, kind: &InquiryKind, actions: &mut Vec<Action>) {
        if let Some(reply) = kind.refusal() {
            self.reply(requester, reply, actions);
        }
    }

    /// An inquiry has come to where it was sent.
    fn on_inquiry(&mut self, requester: Requester, kind: InquiryKind, actions: &mut Vec<Action>) {
        let rank = requester.rank;
        let about = match &kind {
            InquiryKind::LookUp { namespace, .. } => *namespace,
            InquiryKind::NodePut { .. } | InquiryKind::NodeGet { .. } | InquiryKind::NodeForget => requester.namespace,
        };
        let ns = self.namespaces.get_mut(&about).filter(|_| kind.is_bounded());
        match (kind, ns) {
            (InquiryKind::LookUp { namespace, key }, Some(ns)) if ns.cache.is_whole() => {
                actions.push(Action::LookUp { namespace, key, requester });
            }
            (InquiryKind::LookUp { namespace, key }, Some(_)) => {
                self.on_get(namespace, ReplyTo::OtherNamespace(requester), &key.into(), actions);
            }
            (InquiryKind::NodePut { key, value }, Some(ns)) if ns.is_owner_for(rank) => {
                let put = ns.node.put(key, value.clone());
                self.reply(requester, Reply::NodePut(put.is_some()), actions);
                for (rank, agent) in put.unwrap_or_default() {
                    let waiting = Requester { agent, rank, ..requester };
                    self.reply(waiting, Reply::NodeGot(Some(ByteBuf::from(value.clone()))), actions);
                }
            }
            (InquiryKind::NodeGet { key, wait }, Some(ns)) if ns.is_owner_for(rank) => match ns.node.get(&key) {
                None if wait => ns.node.park(rank, requester.agent, key),
                value => {
                    let value = value.cloned().map(ByteBuf::from);
                    self.reply(requester, Reply::NodeGot(value), actions);
                }
            },
            (InquiryKind::NodeForget, Some(ns)) => ns.node.forget(rank),
            (kind, _) => self.refuse(requester, &kind, actions),
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
        Reply::GotFromJob(value) => Answer::GotFromJob(value.map(ByteBuf::into_vec)),
        Reply::NodePut(taken) => Answer::NodePut(taken),
        Reply::NodeGot(value) => Answer::NodeGot(value.map(ByteBuf::into_vec)),
    }
}
