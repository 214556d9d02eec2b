//! The agent's own ranks: from their start to their end.

use pmi::{Rank, Ranks, Request};

use super::{Action, Agent, Phase, SIGKILL, SIGSTOP};
use crate::core::cause::{Cause, Exit, Failure, bounded};
use crate::core::ids::{NamespaceId, Time};
use crate::core::limits::FAILURES_SINGLE_MAX;
use crate::core::lookup::ReplyTo;
use crate::core::message::{Contribution, InquiryKind, Question, Requester, Up};
use crate::core::ring::RingSegment;

impl Agent {
    pub(super) fn on_started(&mut self, now: Time, namespace: NamespaceId, ranks: &Ranks, actions: &mut Vec<Action>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if namespace == NamespaceId::FIRST {
            self.times.on_started(now);
        }
        let complete = ns.on_started(ranks);
        if ns.undone || !matches!(self.phase, Phase::Serving) {
            // They slipped out between the order to end and the cancelling of the rest.
            actions.push(Action::Signal(namespace, ranks.clone(), SIGKILL));
        } else if self.suspended {
            actions.push(Action::Signal(namespace, ranks.clone(), SIGSTOP));
        }
        if complete {
            actions.push(Action::ToParent(Up::Started { namespace }));
        }
    }

    pub(super) fn on_not_started(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        ranks: Ranks,
        why: String,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.on_not_started(&ranks);
        let undone = ns.undone;
        if self.is_serving() && !undone {
            let cause = Cause::NotStarted { why: bounded(why) };
            self.fail(Failure { at: now, agent: self.id(), namespace, ranks, cause }, actions);
        }
    }

    pub(super) fn on_request(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        request: Request,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let question = match request {
            Request::Joined => {
                ns.set_active(rank, true);
                if namespace == NamespaceId::FIRST {
                    self.times.on_contact(now);
                }
                if ns.on_contact() {
                    actions.push(Action::ToParent(Up::Contact { namespace }));
                }
                return;
            }
            Request::Finalized => return ns.set_active(rank, false),
            Request::Fence { puts, .. } => {
                return self.on_arrived(now, namespace, rank, Contribution::Puts(puts), actions);
            }
            Request::Put { puts } => return self.on_put(now, namespace, rank, puts, actions),
            Request::Get { key } => return self.on_get(namespace, ReplyTo::Rank(rank), &key, actions),
            Request::Ring { to_left, to_right } => {
                let part = RingSegment::of_rank(to_left, to_right);
                return self.on_arrived(now, namespace, rank, Contribution::Ring(part), actions);
            }
            Request::NodePut { key, value } => {
                return self.ask_owner(namespace, rank, InquiryKind::NodePut { key, value }, actions);
            }
            Request::NodeGet { key, wait } => {
                return self.ask_owner(namespace, rank, InquiryKind::NodeGet { key, wait }, actions);
            }
            Request::Abort { code, message } => {
                let cause = Cause::Abort { code, message: bounded(message) };
                return self.fail_rank(now, namespace, rank, cause, actions);
            }
            Request::Broken { why } => {
                actions.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
                return self.fail_rank(now, namespace, rank, Cause::Broken { why: bounded(why) }, actions);
            }
            // AnswerEffect by the driver, which holds the descriptor.
            Request::Segment => return,
            Request::Publish { service, port } => Question::Publish { service, port },
            Request::Lookup { service } => Question::Lookup { service },
            Request::Unpublish { service } => Question::Unpublish { service },
            Request::Spawn(order) => Question::Spawn(order),
            Request::Connect { job } => Question::Connect { job },
            Request::GetFromJob { job, key } => Question::GetFromJob { job, key },
        };
        let requester = Requester { agent: self.id(), namespace, rank };
        actions.push(Action::ToParent(Up::Ask { requester, question }));
    }

    pub(super) fn on_rank_ended(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        exit: Exit,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let Some((fences, unfinished)) = ns.end(rank) else { return };
        if namespace == NamespaceId::FIRST {
            self.times.on_rank_ended(now);
        }
        let undone = ns.undone;
        self.forget(namespace, rank, actions);
        if undone || !matches!(self.phase, Phase::Serving) {
            return;
        }
        match exit {
            Exit::Code(0) => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.note_exit(now, fences, unfinished, &std::iter::once(rank).collect());
                }
            }
            Exit::Code(code) => self.fail_rank(now, namespace, rank, Cause::Code(code), actions),
            Exit::Signal { signal, core, out_of_memory } => {
                self.fail_rank(now, namespace, rank, Cause::Signal { signal, core, out_of_memory }, actions);
            }
        }
    }

    pub(super) fn fail_rank(
        &mut self,
        at: Time,
        namespace: NamespaceId,
        rank: Rank,
        cause: Cause,
        actions: &mut Vec<Action>,
    ) {
        let fresh = self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.note_failure(rank));
        if fresh {
            let agent = self.id();
            self.fail(Failure { at, agent, namespace, ranks: std::iter::once(rank).collect(), cause }, actions);
        }
    }

    pub(super) fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        if self.failures_told < FAILURES_SINGLE_MAX {
            self.failures_told += 1;
            actions.push(Action::ToParent(Up::Failed(failure)));
        } else {
            self.failures_more = self.failures_more.saturating_add(1);
        }
    }
}
