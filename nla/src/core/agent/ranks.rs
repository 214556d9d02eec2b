//! The agent's ranks, from their start to their end, and their requests.

use pmi::{Rank, Ranks, Request};

use super::{Action, Agent, SIGSTOP, Turn};
use crate::core::cause::{Cause, Exit, Failure};
use crate::core::group::RankGroup;
use crate::core::ids::NamespaceId;
use crate::core::lookup::ReplyTo;
use crate::core::low_limits::LowLimits;
use crate::core::message::{Contribution, InquiryKind, Up};
use crate::core::parent::Parent;
use crate::core::reason::NotStartedReason;
use crate::core::ring::RingSegment;
use crate::core::words::one_line;

impl Agent {
    /// The driver has started ranks of this agent.
    pub(super) fn on_started(&mut self, namespace: NamespaceId, ranks: &Ranks, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if ns.is_job {
            self.times.started = Some(turn.now);
        }
        let complete = ns.on_started(ranks);
        if ns.undone || !self.is_serving() {
            // The driver had started them before it cancelled the others. Those that are left get SIGKILL with the others.
            let signal = self.signal_of_late_rank();
            turn.push(Action::Signal(namespace, ranks.clone(), signal));
        } else if self.suspended {
            turn.push(Action::Signal(namespace, ranks.clone(), SIGSTOP));
        }
        if complete {
            self.report_started(namespace, turn);
        }
    }

    /// Reports that all ranks that a namespace has in the subtree were started, behind their low limits.
    pub(super) fn report_started(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if !self.is_start_reported && !self.low_limits.is_empty() {
            turn.push(Action::ToParent(Up::LowLimits(self.low_limits.clone())));
        }
        self.is_start_reported = true;
        turn.push(Action::ToParent(Up::Started { namespace }));
    }

    /// Notes low limits of agents of the subtree. They are reported together when all ranks have started, or at once if that
    /// was reported.
    pub(super) fn note_low_limits(&mut self, limits: LowLimits, turn: &mut Turn<'_>) {
        self.low_limits.merge(limits.clone());
        if self.is_start_reported {
            turn.push(Action::ToParent(Up::LowLimits(limits)));
        }
    }

    /// The driver has not started ranks of this agent.
    pub(super) fn on_not_started(
        &mut self,
        namespace: NamespaceId,
        ranks: Ranks,
        why: NotStartedReason,
        turn: &mut Turn<'_>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        for rank in ranks.iter() {
            ns.end(rank, "it was not started");
        }
        let undone = ns.undone;
        if self.is_serving() && !undone {
            let cause = Cause::NotStarted { why };
            self.report_failure(Failure { at: turn.now, agent: self.id(), namespace, ranks, cause }, turn);
        }
    }

    /// One of this agent's ranks sent a request.
    pub(super) fn on_request(&mut self, namespace: NamespaceId, rank: Rank, request: Request, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match request {
            Request::Joined => {
                ns.set_active(rank, true);
                if ns.is_job {
                    self.times.on_contact(turn.now);
                }
                if let Some(tracer) = &mut self.tracer {
                    tracer.contacts.note(turn.now, turn.now, 1);
                }
                if ns.on_contact() {
                    turn.push(Action::ToParent(Up::Contact { namespace }));
                }
            }
            Request::Finalized => ns.set_active(rank, false),
            Request::Fence { puts, .. } => {
                self.on_arrived(namespace, rank, Contribution::Puts(puts), turn);
            }
            Request::Put { puts } if ns.catch_up(rank).is_some() => self.hold_puts(namespace, rank, &puts, turn),
            Request::Put { puts } => self.on_own_put(namespace, rank, puts, turn),
            Request::Get { key } => self.on_get(namespace, ReplyTo::Rank(rank), &key, turn),
            Request::Ring { to_left, to_right } => {
                let segment = RingSegment::of_rank(to_left, to_right);
                self.on_arrived(namespace, rank, Contribution::Ring(segment), turn);
            }
            Request::GroupFence { ranks, tag, payload } => {
                self.on_group_arrived(namespace, rank, RankGroup { ranks, tag }, &payload, turn);
            }
            Request::NodePut { key, value } => {
                self.ask_owner(namespace, rank, InquiryKind::NodePut { key, value }, turn);
            }
            Request::NodeGet { key, wait } => {
                self.ask_owner(namespace, rank, InquiryKind::NodeGet { key, wait }, turn);
            }
            Request::Abort { code, message } => {
                let cause = Cause::Abort { code, message: one_line(message) };
                self.fail_rank(namespace, rank, cause, turn);
            }
            Request::Broken { why } => self.kill_broken(namespace, rank, one_line(why), turn),
            // The driver answers these: it has the descriptors.
            Request::TopologyFile | Request::Segment => {}
            Request::Ask(request) => {
                let requester = ns.next_request(rank);
                self.to_parent(Up::Ask { requester, request }, turn);
            }
        }
    }

    /// The process of one of this agent's ranks has ended.
    pub(super) fn on_rank_ended(&mut self, namespace: NamespaceId, rank: Rank, exit: Exit, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let Some(state) = ns.end(rank, "its process ended") else { return };
        if ns.is_job {
            self.times.rank_ended = Some(turn.now);
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.exits.note(turn.now, turn.now, 1);
        }
        let undone = ns.undone;
        ns.exchange.look_ups.withdraw(rank);
        self.withdraw_inquiry(namespace, rank, turn);
        if undone || !self.is_serving() {
            return;
        }
        let died = exit != Exit::Code(0) && self.goes_on();
        match exit {
            Exit::Code(0) => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.note_exited(turn.now, state, &std::iter::once(rank).collect());
                }
            }
            Exit::Code(code) => self.fail_rank(namespace, rank, Cause::Code(code), turn),
            Exit::Signal { signal, core, out_of_memory } => {
                self.fail_rank(namespace, rank, Cause::Signal { signal, core, out_of_memory }, turn);
            }
        }
        if let Some(incarnation) = self.namespaces.get_mut(&namespace).and_then(|ns| ns.take_revival(rank)) {
            turn.push(Action::Restart(namespace, rank, incarnation));
        }
        if died {
            self.on_dead(namespace, std::iter::once(rank).collect(), turn);
        }
    }

    /// Reports a failure of one of this agent's ranks, unless one was reported before.
    pub(super) fn fail_rank(&mut self, namespace: NamespaceId, rank: Rank, cause: Cause, turn: &mut Turn<'_>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.note_failure(rank)) {
            self.report_failure(Failure::of_rank(turn.now, self.id(), namespace, rank, cause), turn);
        }
    }
}
