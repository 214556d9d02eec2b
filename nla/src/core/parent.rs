//! How a parent treats its children: the part of the root's and of each agent's decisions that is the same.
//!
//! Messages from children are checked here before anything is done: a child speaks only for its own subtree. A child
//! that breaks the protocol is cut off: its link is closed, and with that it is lost.

use bytes::Bytes;
use pmi::{LookUpResult, Puts, Ranks, RootRequest};

use super::cause::{Cause, Failure};
use super::children::{Children, EndReport};
use super::exchange::Exchange;
use super::fence::FenceError;
use super::ids::{AgentId, NamespaceId, Time};
use super::leftovers::FileReport;
use super::lookup::{AnswerEffect, LookUpStep, Peer, ReplyTo};
use super::message::{Contribution, Down, Inquiry, InquiryKind, Reply, Requester, Up};
use super::plan::{NamespacePlan, find};
use super::reason::{LossReason, Violation};
use super::stats::Stats;
use super::survey::Survey;
use super::timing::Timing;
use super::topology::Subtree;
use super::turn::Turn;

/// The root or an agent, as the parent of its children.
///
/// The two differ in the required methods and share the provided ones.
pub(super) trait Parent {
    /// A command to the driver.
    type Action;

    /// The command that sends a message to a child.
    fn send(child: AgentId, message: Down) -> Self::Action;

    /// The command that closes the link to a child.
    fn close(child: AgentId, why: LossReason) -> Self::Action;

    /// The subtree at whose head this is.
    fn subtree(&self) -> Subtree;

    fn children(&mut self) -> &mut Children;

    fn exchange(&mut self, namespace: NamespaceId) -> Option<&mut Exchange>;

    /// The agent that owns the attributes of the node of `agent`. `None`: the namespace is unknown.
    fn owner_of(&self, namespace: NamespaceId, agent: AgentId) -> Option<AgentId>;

    /// Sends a message to the parent. The root has none and drops it.
    fn to_parent(&mut self, message: Up, turn: &mut Turn<'_, Self::Action>);

    /// A failure was noticed, or a child reported one.
    fn on_failure(&mut self, failure: Failure, turn: &mut Turn<'_, Self::Action>);

    /// A child counted failures beyond those that it reported one by one.
    fn on_more_failures(&mut self, count: u64);

    /// All ranks that a namespace has below `child` were started.
    fn on_child_started(&mut self, child: AgentId, namespace: NamespaceId, turn: &mut Turn<'_, Self::Action>);

    /// A rank below spoke PMI for the first time in its child's subtree.
    fn on_contact(&mut self, namespace: NamespaceId, turn: &mut Turn<'_, Self::Action>);

    /// All ranks of the subtree have arrived at the open fence.
    fn on_fence_complete(&mut self, namespace: NamespaceId, turn: &mut Turn<'_, Self::Action>);

    /// Some, not all, ranks below have been waiting in a fence for a while.
    fn on_waiting(&mut self, namespace: NamespaceId, number: u32, turn: &mut Turn<'_, Self::Action>);

    /// Ranks below ended with code 0.
    fn on_exited(&mut self, now: Time, namespace: NamespaceId, state: EndState, ranks: &Ranks);

    /// A child answers a survey.
    fn on_surveyed(&mut self, child: AgentId, number: u32, survey: Survey);

    /// A rank below sent a request that only the root can answer.
    fn on_root_request(&mut self, requester: Requester, request: RootRequest, turn: &mut Turn<'_, Self::Action>);

    /// Answers a get.
    fn answer_get(
        &mut self,
        namespace: NamespaceId,
        reply_to: ReplyTo,
        result: LookUpResult,
        turn: &mut Turn<'_, Self::Action>,
    );

    /// An inquiry arrived for this agent itself.
    fn on_own_inquiry(&mut self, requester: Requester, kind: InquiryKind, turn: &mut Turn<'_, Self::Action>);

    /// A reply arrived for a rank of this agent.
    fn on_own_reply(&mut self, requester: Requester, reply: Reply, turn: &mut Turn<'_, Self::Action>);

    /// An agent below has removed or found files that its ranks have left.
    fn on_files_left(&mut self, agent: AgentId, report: FileReport, turn: &mut Turn<'_, Self::Action>);

    /// An agent below waits for the kernel to start or to end a process.
    fn on_busy(&mut self, agent: AgentId, text: String, turn: &mut Turn<'_, Self::Action>);

    /// A child's subtree has ended; `leftovers` processes had outlived their ranks there.
    fn on_subtree_ended(&mut self, leftovers: u64, timing: &Timing);

    /// Whether children may send statistics.
    fn expects_stats(&self) -> bool;

    // ---- provided ----

    /// Acts on a message of a child.
    fn on_up(&mut self, from: AgentId, message: Up, turn: &mut Turn<'_, Self::Action>) {
        if !self.children().contains(from) {
            return;
        }
        match message {
            Up::Ready => self.children().on_ready(from),
            Up::Ended { leftovers, timing } => self.on_ended(from, leftovers, &timing, turn),
            Up::FilesLeft { agent, report } => self.on_files_left(agent, report.bounded(), turn),
            Up::Busy { agent, text } => self.on_busy(agent, text, turn),
            Up::Started { namespace } => self.on_child_started(from, namespace, turn),
            Up::Contact { namespace } => self.on_contact(namespace, turn),
            Up::Gathered { namespace, number, ranks, contribution } => {
                self.on_gathered(from, (namespace, number), ranks, contribution, turn);
            }
            Up::Put { namespace, number, puts } => self.on_child_put(from, (namespace, number), puts, turn),
            Up::Get { namespace, key } => self.on_child_get(from, namespace, &key, turn),
            Up::Got { namespace, number, result } => {
                self.on_got(namespace, Peer::Child(from), Some(number), result, turn);
            }
            Up::Waiting { namespace, number } => self.on_waiting(namespace, number, turn),
            Up::Exited { namespace, fences, unfinished, ranks } => {
                self.on_exited(turn.now, namespace, EndState { fences, unfinished }, &ranks);
            }
            Up::Failed(failure) => self.on_failure(failure, turn),
            Up::FailedMore { count } => self.on_more_failures(count),
            Up::Ask { requester, request } => self.on_root_request(requester, request, turn),
            Up::Inquire(inquiry) => self.on_child_inquiry(from, inquiry, turn),
            Up::Reply { requester, reply } => self.on_child_reply(from, requester, reply, turn),
            Up::Surveyed { number, survey } => self.on_surveyed(from, number, *survey),
            Up::Stats(stats) => self.on_stats(from, stats, turn),
        }
    }

    fn to_children(&mut self, message: &Down, turn: &mut Turn<'_, Self::Action>) {
        turn.extend(self.children().reachable().map(|child| Self::send(child, message.clone())));
    }

    /// Sends each child its share of `plan`.
    fn launch_below(&mut self, plan: &NamespacePlan, turn: &mut Turn<'_, Self::Action>) {
        for child in self.subtree().children() {
            let share = plan.share_of(child).map(Box::new);
            turn.extend(share.map(|share| Self::send(child.head(), Down::Launch(share))));
        }
    }

    // ---- the loss and the end of children ----

    /// Closes the link to a child that broke the protocol. With that the child is lost.
    fn cut_off(&mut self, child: AgentId, violation: Violation, turn: &mut Turn<'_, Self::Action>) {
        let why = LossReason::from(violation);
        turn.push(Self::close(child, why.clone()));
        self.on_child_lost(child, Cause::Lost { why }, turn);
    }

    /// Nothing more arrives from a child, because of `cause`.
    fn on_child_lost(&mut self, child: AgentId, cause: Cause, turn: &mut Turn<'_, Self::Action>) {
        if self.children().on_lost(child, true) {
            self.on_failure(Failure::of_agent(turn.now, child, cause), turn);
        }
    }

    /// A child's link has ended before all output of its subtree has arrived.
    fn on_child_output_lost(&mut self, child: AgentId, why: LossReason, turn: &mut Turn<'_, Self::Action>) {
        if self.children().on_lost(child, false) {
            self.on_failure(Failure::of_agent(turn.now, child, Cause::Lost { why }), turn);
        }
    }

    /// A child reports that all processes of its subtree have ended.
    fn on_ended(&mut self, from: AgentId, leftovers: u64, timing: &Timing, turn: &mut Turn<'_, Self::Action>) {
        let Some(below) = self.subtree().toward(from) else { return };
        match self.children().on_ended(from, timing.is_of(below)) {
            EndReport::Accepted => self.on_subtree_ended(leftovers, timing),
            EndReport::Refused => self.cut_off(from, Violation::Ended, turn),
            EndReport::Late => {}
        }
    }

    fn on_stats(&mut self, from: AgentId, stats: Box<Stats>, turn: &mut Turn<'_, Self::Action>) {
        let Some(below) = self.subtree().toward(from) else { return };
        let accepted = self.expects_stats() && stats.is_of(below) && self.children().on_stats(from, stats);
        if !accepted {
            self.cut_off(from, Violation::Stats, turn);
        }
    }

    // ---- fences and gets ----

    /// All ranks of a child have arrived at a fence.
    fn on_gathered(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        ranks: Ranks,
        contribution: Contribution,
        turn: &mut Turn<'_, Self::Action>,
    ) {
        let Some(exchange) = self.exchange(namespace) else { return };
        match exchange.on_gathered(turn.now, from, number, &ranks, contribution) {
            Ok(()) if exchange.fence.is_complete() => self.on_fence_complete(namespace, turn),
            Ok(()) => {}
            // The program is at fault, not the agent that passed it on.
            Err(error @ FenceError::Mixed { .. }) => {
                let cause = Cause::Broken { why: error.to_string() };
                self.on_failure(Failure { at: turn.now, agent: from, namespace, ranks, cause }, turn);
            }
            Err(error) => self.cut_off(from, Violation::Fence { namespace, number, error }, turn),
        }
    }

    /// A rank of a child's subtree has put something ahead of its fence.
    fn on_child_put(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        puts: Puts,
        turn: &mut Turn<'_, Self::Action>,
    ) {
        let Some(exchange) = self.exchange(namespace) else { return };
        match exchange.on_child_put(from, number, &puts) {
            Ok(()) => self.to_parent(Up::Put { namespace, number, puts }, turn),
            Err(error) => self.cut_off(from, Violation::Put { namespace, number, error }, turn),
        }
    }

    fn on_child_get(&mut self, from: AgentId, namespace: NamespaceId, key: &Bytes, turn: &mut Turn<'_, Self::Action>) {
        let Some(exchange) = self.exchange(namespace) else { return };
        if exchange.may_get(from, key) {
            self.on_get(namespace, ReplyTo::Child(from), key, turn);
        } else {
            self.cut_off(from, Violation::Get, turn);
        }
    }

    /// Answers a get from the cache, or asks the peer that may have the entry.
    fn on_get(&mut self, namespace: NamespaceId, reply_to: ReplyTo, key: &Bytes, turn: &mut Turn<'_, Self::Action>) {
        let Some(exchange) = self.exchange(namespace) else { return };
        match exchange.look_ups.ask(exchange.cache.as_mut(), reply_to, key) {
            LookUpStep::Answer(result) => self.answer_get(namespace, reply_to, result, turn),
            LookUpStep::Ask(peer) => self.ask(namespace, peer, key.clone(), turn),
            LookUpStep::Wait => {}
        }
    }

    /// A peer has answered. A child says in `number` how many fences had been released at the agent that answered.
    fn on_got(
        &mut self,
        namespace: NamespaceId,
        from: Peer,
        number: Option<u32>,
        result: LookUpResult,
        turn: &mut Turn<'_, Self::Action>,
    ) {
        let Some(exchange) = self.exchange(namespace) else { return };
        let is_fresh = number.is_none_or(|number| number == exchange.fence.number());
        let effect = exchange.look_ups.on_answer(exchange.cache.as_mut(), from, result, is_fresh);
        let AnswerEffect { answered, result, ask } = effect;
        for reply_to in answered {
            self.answer_get(namespace, reply_to, result.clone(), turn);
        }
        if let Some(peer) = ask {
            self.ask(namespace, peer, Bytes::copy_from_slice(result.key()), turn);
        }
    }

    fn ask(&mut self, namespace: NamespaceId, peer: Peer, key: Bytes, turn: &mut Turn<'_, Self::Action>) {
        match peer {
            Peer::Parent => self.to_parent(Up::Get { namespace, key }, turn),
            Peer::Child(child) => turn.push(Self::send(child, Down::Get { namespace, key })),
        }
    }

    // ---- inquiries and replies ----

    /// A rank below `from` asks an agent that is not below `from`.
    fn on_child_inquiry(&mut self, from: AgentId, inquiry: Inquiry, turn: &mut Turn<'_, Self::Action>) {
        let Inquiry { to, requester, kind } = &inquiry;
        let (to, Requester { agent, namespace, rank }) = (*to, *requester);
        let share = self.exchange(namespace).and_then(|exchange| find(&exchange.children, from));
        let is_theirs = share.is_some_and(|ranks| ranks.contains(rank));
        let allowed = is_theirs
            && self.child_toward(agent) == Some(from)
            && self.leads_elsewhere(to, from)
            && self.owner_of(namespace, agent) == Some(to)
            // Only the root sends `LookUp`.
            && !matches!(kind, InquiryKind::LookUp { .. })
            && kind.is_bounded();
        if allowed {
            self.route_inquiry(inquiry, turn);
        } else {
            self.cut_off(from, Violation::Inquiry { to, rank }, turn);
        }
    }

    /// An agent below `from` answers a rank that is not below `from`.
    fn on_child_reply(&mut self, from: AgentId, requester: Requester, reply: Reply, turn: &mut Turn<'_, Self::Action>) {
        if self.leads_elsewhere(requester.agent, from) && reply.is_from_agent() {
            self.route_reply(requester, reply, turn);
        } else {
            self.cut_off(from, Violation::Reply { rank: requester.rank }, turn);
        }
    }

    /// Sends an inquiry toward its agent, or answers it here.
    fn route_inquiry(&mut self, inquiry: Inquiry, turn: &mut Turn<'_, Self::Action>) {
        match self.child_toward(inquiry.to) {
            Some(child) => turn.push(Self::send(child, Down::Inquire(inquiry))),
            None if inquiry.to == self.subtree().head() => {
                self.on_own_inquiry(inquiry.requester, inquiry.kind, turn);
            }
            None => self.to_parent(Up::Inquire(inquiry), turn),
        }
    }

    /// Sends a reply toward its rank, or hands it to the rank.
    fn route_reply(&mut self, requester: Requester, reply: Reply, turn: &mut Turn<'_, Self::Action>) {
        match self.child_toward(requester.agent) {
            Some(child) => turn.push(Self::send(child, Down::Reply { requester, reply })),
            None if requester.agent == self.subtree().head() => self.on_own_reply(requester, reply, turn),
            None => self.to_parent(Up::Reply { requester, reply }, turn),
        }
    }

    /// The child below which `agent` is, or that is `agent`.
    fn child_toward(&self, agent: AgentId) -> Option<AgentId> {
        self.subtree().toward(agent).map(|child| child.head())
    }

    /// Whether the route from child `from` to `agent` leaves the child's subtree. No route leads to an agent that the
    /// root does not find below itself.
    fn leads_elsewhere(&self, agent: AgentId, from: AgentId) -> bool {
        match self.child_toward(agent) {
            Some(child) => child != from,
            None => self.subtree().head() != AgentId::ROOT,
        }
    }
}

/// The state of ranks when they ended with code 0.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct EndState {
    /// The number of fences at which the ranks had arrived.
    pub(super) fences: u32,
    /// The ranks had spoken PMI and not finalized it.
    pub(super) unfinished: bool,
}
