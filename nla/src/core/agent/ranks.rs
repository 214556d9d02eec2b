//! The agent's own ranks, from their start to their end, and their requests.

use pmi::{Rank, Ranks, Request};

use super::namespace::EndState;
use super::{Action, Agent, SIGKILL, SIGSTOP};
use crate::core::cause::{Cause, Exit, Failure, bounded};
use crate::core::ids::{NamespaceId, Time};
use crate::core::lookup::ReplyTo;
use crate::core::message::{Contribution, InquiryKind, Requester, Up};
use crate::core::parent::{Exited, Parent};
use crate::core::reason::NotStartedReason;
use crate::core::ring::RingSegment;

impl Agent {
    /// The driver has started own ranks.
    pub(super) fn on_started(&mut self, now: Time, namespace: NamespaceId, ranks: &Ranks, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if namespace == NamespaceId::FIRST {
            self.times.on_started(now);
        }
        let complete = ns.on_started(ranks);
        if ns.undone || !self.is_serving() {
            // The driver had started them before it cancelled the others.
            actions.push(Action::Signal(namespace, ranks.clone(), SIGKILL));
        } else if self.suspended {
            actions.push(Action::Signal(namespace, ranks.clone(), SIGSTOP));
        }
        if complete {
            actions.push(Action::ToParent(Up::Started { namespace }));
        }
    }

    /// The driver has not started own ranks.
    pub(super) fn on_not_started(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        ranks: Ranks,
        why: NotStartedReason,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.on_not_started(&ranks);
        let undone = ns.undone;
        if self.is_serving() && !undone {
            let cause = Cause::NotStarted { why };
            self.report_failure(Failure { at: now, agent: self.id(), namespace, ranks, cause }, actions);
        }
    }

    /// An own rank sent a request.
    pub(super) fn on_request(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        request: Request,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match request {
            Request::Joined => {
                ns.set_active(rank, true);
                if namespace == NamespaceId::FIRST {
                    self.times.on_contact(now);
                }
                if ns.on_contact() {
                    actions.push(Action::ToParent(Up::Contact { namespace }));
                }
            }
            Request::Finalized => ns.set_active(rank, false),
            Request::Fence { puts, .. } => {
                self.on_arrived(now, namespace, rank, Contribution::Puts(puts), actions);
            }
            Request::Put { puts } => self.on_own_put(now, namespace, rank, puts, actions),
            Request::Get { key } => self.on_get(namespace, ReplyTo::Rank(rank), &key, actions),
            Request::Ring { to_left, to_right } => {
                let segment = RingSegment::of_rank(to_left, to_right);
                self.on_arrived(now, namespace, rank, Contribution::Ring(segment), actions);
            }
            Request::NodePut { key, value } => {
                self.ask_owner(namespace, rank, InquiryKind::NodePut { key, value }, actions);
            }
            Request::NodeGet { key, wait } => {
                self.ask_owner(namespace, rank, InquiryKind::NodeGet { key, wait }, actions);
            }
            Request::Abort { code, message } => {
                let cause = Cause::Abort { code, message: bounded(message) };
                self.fail_rank(now, namespace, rank, cause, actions);
            }
            Request::Broken { why } => self.kill_broken(now, namespace, rank, bounded(why), actions),
            // The driver answers it: it has the segment's descriptor.
            Request::Segment => {}
            Request::Ask(question) => {
                let requester = Requester { agent: self.id(), namespace, rank };
                actions.push(Action::ToParent(Up::Ask { requester, question }));
            }
        }
    }

    /// An own rank's process has ended.
    pub(super) fn on_rank_ended(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        exit: Exit,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let Some(EndState { fences, unfinished }) = ns.end(rank, "its process ended") else { return };
        if namespace == NamespaceId::FIRST {
            self.times.on_rank_ended(now);
        }
        let undone = ns.undone;
        self.withdraw_inquiry(namespace, rank, actions);
        if undone || !self.is_serving() {
            return;
        }
        match exit {
            Exit::Code(0) => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.note_exited(now, &Exited { fences, unfinished, ranks: std::iter::once(rank).collect() });
                }
            }
            Exit::Code(code) => self.fail_rank(now, namespace, rank, Cause::Code(code), actions),
            Exit::Signal { signal, core, out_of_memory } => {
                self.fail_rank(now, namespace, rank, Cause::Signal { signal, core, out_of_memory }, actions);
            }
        }
    }

    /// Reports a failure of an own rank, unless one was reported before.
    pub(super) fn fail_rank(
        &mut self,
        at: Time,
        namespace: NamespaceId,
        rank: Rank,
        cause: Cause,
        actions: &mut Vec<Action>,
    ) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.note_failure(rank)) {
            self.report_failure(Failure::of_rank(at, self.id(), namespace, rank, cause), actions);
        }
    }
}
