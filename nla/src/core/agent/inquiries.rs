//! Requests of ranks to other agents: for attributes of their node, and for entries of other namespaces' boards.
//!
//! An inquiry travels up to the lowest ancestor that has the asked agent below it, and down from there. The reply
//! takes the same route back.

use bytes::Bytes;
use pmi::{PmixAnswer, Rank};

use super::{Action, Agent, Turn};
use crate::core::ids::NamespaceId;
use crate::core::limits::MODEX_BYTES_MAX;
use crate::core::lookup::ReplyTo;
use crate::core::message::{Inquiry, InquiryKind, Reply, Requester};
use crate::core::parent::Parent;

impl Agent {
    /// Asks the agent that owns the node's attributes on behalf of one of this agent's ranks.
    pub(super) fn ask_owner(&mut self, namespace: NamespaceId, rank: Rank, kind: InquiryKind, turn: &mut Turn<'_>) {
        let here = self.id();
        let Some(ns) = self.namespaces.get_mut(&namespace).filter(|ns| ns.own.contains(rank)) else { return };
        let is_new = !matches!(kind, InquiryKind::NodeForget);
        let requester = if is_new { ns.next_request(rank) } else { ns.last_request(rank) };
        let to = ns.owner_of(here);
        if !kind.is_bounded() {
            return self.refuse(requester, &kind, turn);
        }
        if to != here {
            ns.on_inquiry(rank, &kind);
        }
        self.route_inquiry(Inquiry { to, requester, kind }, turn);
    }

    /// Withdraws the parked inquiry of one of this agent's ranks that has ended.
    pub(super) fn withdraw_inquiry(&mut self, namespace: NamespaceId, rank: Rank, turn: &mut Turn<'_>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.take_inquiring(rank)) {
            self.ask_owner(namespace, rank, InquiryKind::NodeForget, turn);
        }
    }

    /// The driver has looked up an entry on a board for a rank of another namespace.
    pub(super) fn on_looked_up(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        requester: Requester,
        value: Option<Vec<u8>>,
        turn: &mut Turn<'_>,
    ) {
        let preput = || self.namespaces.get(&namespace)?.preput(key).cloned();
        self.route_reply(requester, Reply::GotFromJob(value.or_else(preput)), turn);
    }

    /// One of this agent's ranks has put its data, or there is none, for a rank elsewhere.
    pub(super) fn on_modexed(&mut self, requester: Requester, data: Option<Bytes>, turn: &mut Turn<'_>) {
        let data = data.filter(|data| data.len() <= MODEX_BYTES_MAX);
        self.route_reply(requester, Reply::Pmix(PmixAnswer::Modex(data)), turn);
    }

    /// Sends the refusal of an inquiry, if the requester waits for a reply.
    fn refuse(&mut self, requester: Requester, kind: &InquiryKind, turn: &mut Turn<'_>) {
        if let Some(reply) = kind.refusal() {
            self.route_reply(requester, reply, turn);
        }
    }

    /// Answers an inquiry that was sent to this agent.
    pub(super) fn on_inquiry(&mut self, requester: Requester, kind: InquiryKind, turn: &mut Turn<'_>) {
        let rank = requester.rank;
        let about = match &kind {
            InquiryKind::LookUp { namespace, .. } | InquiryKind::Modex { namespace, .. } => *namespace,
            InquiryKind::NodePut { .. } | InquiryKind::NodeGet { .. } | InquiryKind::NodeForget => requester.namespace,
        };
        let ns = self.namespaces.get_mut(&about).filter(|_| kind.is_bounded());
        match (kind, ns) {
            (InquiryKind::LookUp { namespace, key }, Some(ns)) if ns.exchange.cache.is_whole() => {
                turn.push(Action::LookUp { namespace, key, requester });
            }
            (InquiryKind::LookUp { namespace, key }, Some(_)) => {
                self.on_get(namespace, ReplyTo::OtherNamespace(requester), &key.into(), turn);
            }
            (InquiryKind::NodePut { key, value }, Some(ns)) if ns.is_owner_for(rank) => {
                let put = ns.node.put(key, value.clone());
                self.route_reply(requester, Reply::NodePut(put.is_some()), turn);
                for waiting in put.unwrap_or_default() {
                    self.route_reply(waiting, Reply::NodeGot(Some(value.clone())), turn);
                }
            }
            (InquiryKind::NodeGet { key, wait }, Some(ns)) if ns.is_owner_for(rank) => match ns.node.get(&key) {
                None if wait => ns.node.park(requester, key),
                value => {
                    let reply = Reply::NodeGot(value.cloned());
                    self.route_reply(requester, reply, turn);
                }
            },
            (InquiryKind::Modex { namespace, rank }, Some(ns)) if ns.own.contains(rank) => {
                turn.push(Action::Modex { namespace, rank, requester });
            }
            (InquiryKind::NodeForget, Some(ns)) => ns.node.forget(rank),
            (kind, _) => self.refuse(requester, &kind, turn),
        }
    }
}
