//! How a parent treats its children: the part of the root's and of each agent's decisions that is the same.
//!
//! Messages from children are checked here before anything is done: a child speaks only for its own subtree. A child
//! that breaks the protocol is cut off: its link is closed, and with that it is lost.

use std::time::Duration;

use bytes::Bytes;
use pmi::{LookUpResult, Puts, Rank, Ranks, RootRequest};

use super::binding::BindingReport;
use super::cause::{Cause, Failure};
use super::children::{Children, EndReport};
use super::exchange::Exchange;
use super::failure_policy::FailurePolicy;
use super::fence::FenceError;
use super::group::{self, RankGroup};
use super::heritage::Heritage;
use super::ids::{AgentId, NamespaceId, Time};
use super::leftovers::{FileReport, LeftProcesses};
use super::limits::LEFT_PROGRAMS_MAX;
use super::lookup::{AnswerEffect, LookUpStep, Peer, ReplyTo};
use super::low_limits::LowLimits;
use super::message::{Contribution, Down, Inquiry, InquiryKind, Killed, OpenFence, Reply, Requester, Up};
use super::plan::{NamespacePlan, find};
use super::reason::{LossReason, NotStartedReason, Violation};
use super::stats::Stats;
use super::survey::Survey;
use super::timing::Timing;
use super::topology::Subtree;
use super::turn::Turn;

/// The same on all Linux machines.
const SIGKILL: i32 = 9;

/// The root or an agent, as the parent of its children. The two differ in the required methods and share the provided ones.
pub(super) trait Parent: Sized {
    /// A command to the driver.
    type Action;

    /// The command that sends a message to a child.
    fn send(child: AgentId, message: Down) -> Self::Action;

    /// The command that closes the link to a child.
    fn close(child: AgentId, why: LossReason) -> Self::Action;

    /// The command that lets the agents of these subtrees join here, and no others.
    fn adopt(orphans: Vec<Subtree>) -> Self::Action;

    /// The subtree at whose head this is.
    fn subtree(&self) -> Subtree;

    fn children(&self) -> &Children;

    fn children_mut(&mut self) -> &mut Children;

    fn exchange(&mut self, namespace: NamespaceId) -> Option<&mut Exchange>;

    /// Whether the namespace existed here and its state was freed.
    fn is_forgotten(&self, namespace: NamespaceId) -> bool;

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

    /// Ranks of the subtree have arrived at the open fence, or it no longer waits for some.
    fn on_contributed(&mut self, namespace: NamespaceId, turn: &mut Turn<'_, Self::Action>);

    /// Some, not all, ranks below have been waiting in a fence for a while.
    fn on_waiting(&mut self, namespace: NamespaceId, number: u32, turn: &mut Turn<'_, Self::Action>);

    /// Ranks below ended with code 0.
    fn on_exited(&mut self, now: Time, namespace: NamespaceId, state: EndState, ranks: &Ranks);

    /// No process of a rank is left below `child`; `leftovers` had outlived their ranks.
    fn on_cleared(&mut self, child: AgentId, leftovers: u64, turn: &mut Turn<'_, Self::Action>);

    /// The failure policy of the session.
    fn policy(&self) -> FailurePolicy;

    /// Whether the other ranks go on after the death of a rank.
    fn goes_on(&self) -> bool {
        self.policy().goes_on()
    }

    /// Whether children of lost agents join here, and repeat what the lost agent may not have passed on.
    fn adopts(&self) -> bool {
        self.policy().adopts()
    }

    /// The fate of the subtree of a child that is lost now.
    fn heritage(&self, now: Time) -> Heritage;

    /// The namespaces, in the order of their numbers.
    fn namespace_ids(&self) -> Vec<NamespaceId>;

    /// Whether the failure policy of the session is known here.
    fn is_configured(&self) -> bool;

    /// Lets `heirs` take the place of a lost child in a namespace. Returns the ranks that are lost with the child: those of
    /// its former subtree `lost` that are in no heir's and have not ended with code 0.
    fn inherit(&mut self, namespace: NamespaceId, lost: Subtree, heirs: &[Subtree]) -> Ranks;

    /// Returns the messages that `child`'s head missed before it joined again. `has_plan`: it has the session's plan.
    /// `fences`: the open fence of each namespace that it knows.
    fn missed(&self, now: Time, child: Subtree, has_plan: bool, fences: &[OpenFence]) -> Vec<Down>;

    /// Answers this agent's own of `ranks`, which wait in the fence of a group: with its payload, or that it failed.
    fn answer_group(
        &mut self,
        namespace: NamespaceId,
        group: &RankGroup,
        ranks: &Ranks,
        payload: Option<&Bytes>,
        turn: &mut Turn<'_, Self::Action>,
    );

    /// Ranks of the subtree have died, and the session goes on. If the open fence is complete without them, it goes up,
    /// or is released.
    fn on_dead(&mut self, namespace: NamespaceId, ranks: Ranks, turn: &mut Turn<'_, Self::Action>);

    /// The plan of a namespace below here, if the session adopts agents.
    fn plan(&self, namespace: NamespaceId) -> Option<&NamespacePlan>;

    /// These ranks of a namespace have lost their agent, and will start again elsewhere.
    fn on_moved_out(
        &mut self,
        namespace: NamespaceId,
        agent: AgentId,
        ranks: &Ranks,
        turn: &mut Turn<'_, Self::Action>,
    );

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

    /// Ranks below were killed when their grace was over.
    fn on_killed(&mut self, killed: Killed, turn: &mut Turn<'_, Self::Action>);

    /// Processes of a program that ranks below have left did not end in their time.
    fn on_left(&mut self, left: LeftProcesses, turn: &mut Turn<'_, Self::Action>);

    /// An agent below waits for the kernel to start or to end a process.
    fn on_busy(&mut self, agent: AgentId, text: String, turn: &mut Turn<'_, Self::Action>);

    /// An agent below has refused a second process as this rank.
    fn on_second_joiner(&mut self, agent: AgentId, rank: Rank, text: String, turn: &mut Turn<'_, Self::Action>);

    /// An agent below has chosen the processors of its ranks.
    fn on_bound(&mut self, agent: AgentId, report: Box<BindingReport>, turn: &mut Turn<'_, Self::Action>);

    /// An agent below is silent for this time, and its machine answers.
    fn on_silent(&mut self, agent: AgentId, time: Duration, turn: &mut Turn<'_, Self::Action>);

    /// Agents below give their ranks lower limits than the user's shell has. There is at least one entry.
    fn on_low_limits(&mut self, limits: LowLimits, turn: &mut Turn<'_, Self::Action>);

    /// A child's subtree has ended; `leftovers` processes had outlived their ranks there.
    fn on_subtree_ended(&mut self, leftovers: u64, timing: &Timing);

    /// Whether the children were told to end their ranks for good. Before that, none of them can have ended.
    fn has_ordered_end(&self) -> bool;

    /// Whether a child may send statistics, and these can be of its subtree.
    fn accepts_stats(&self, stats: &Stats, below: Subtree) -> bool;

    // ---- provided ----

    /// Acts on a message of a child.
    fn on_up(&mut self, from: AgentId, message: Up, turn: &mut Turn<'_, Self::Action>) {
        if !self.children().contains(from) {
            return;
        }
        if self.adopts() && self.children().is_lost(from) {
            return Self::on_up_of_lost(from, &message, turn);
        }
        match message {
            Up::Ready => self.children_mut().on_ready(from),
            Up::Staged => self.children_mut().on_staged(from),
            Up::Rejoined { has_plan, fences } => self.on_rejoined(from, has_plan, &fences, turn),
            Up::Ended { leftovers, timing } => self.on_ended(from, leftovers, &timing, turn),
            Up::FilesLeft { agent, report } => self.on_files_left(agent, report.bounded(), turn),
            Up::Left(left) => left.into_iter().take(LEFT_PROGRAMS_MAX).for_each(|left| self.on_left(left, turn)),
            Up::Killed(killed) => self.on_killed(killed, turn),
            Up::Busy { agent, text } => self.on_busy(agent, text, turn),
            Up::Silent { agent, time } => {
                if self.children().toward(agent) == Some(from) {
                    self.on_silent(agent, time, turn);
                }
            }
            Up::SecondJoiner { agent, rank, text } => self.on_second_joiner(agent, rank, text, turn),
            Up::Bound { agent, report } => self.on_bound(agent, report, turn),
            Up::LowLimits(limits) => {
                let limits = self.children().subtree(from).map(|child| limits.within(child)).unwrap_or_default();
                if !limits.is_empty() {
                    self.on_low_limits(limits, turn);
                }
            }
            Up::Started { namespace } => self.on_child_started(from, namespace, turn),
            Up::Contact { namespace } => self.on_contact(namespace, turn),
            Up::Gathering { namespace, number, ranks, puts } => {
                self.on_gathered(from, (namespace, number), ranks, (Contribution::Puts(puts), false), turn);
            }
            Up::Gathered { namespace, number, ranks, contribution } => {
                self.on_gathered(from, (namespace, number), ranks, (contribution, true), turn);
            }
            Up::GroupGathered { namespace, group, deaths, ranks, payload } => {
                group::on_child_gathered(self, from, namespace, (group, deaths), (&ranks, &payload), turn);
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
            Up::Cleared { leftovers } => self.on_cleared(from, leftovers, turn),
            Up::Died { namespace, ranks } => self.on_child_died(from, namespace, ranks, turn),
            Up::MovedOut { namespace, agent, ranks } => self.on_child_moved_out(from, namespace, (agent, &ranks), turn),
            Up::Failed(failure) => {
                let is_below = self.children().toward(failure.agent) == Some(from);
                // A lost agent's processes are ended, so a child's word counts only for agents below it.
                if is_below || !matches!(failure.cause, Cause::Lost { .. }) {
                    if is_below && failure.is_loss() {
                        self.children_mut().note_lost(failure.agent);
                    }
                    self.on_failure(failure, turn);
                }
            }
            Up::FailedMore { count } => self.on_more_failures(count),
            Up::Ask { requester, request } => self.on_root_request(requester, request, turn),
            Up::Inquire(inquiry) => self.on_child_inquiry(from, inquiry, turn),
            Up::Reply { requester, reply } => self.on_child_reply(from, requester, reply, turn),
            Up::Surveyed { number, survey } => self.on_surveyed(from, number, *survey),
            Up::Stats(stats) => self.on_stats(from, stats, turn),
        }
    }

    /// An agent that was stopped for long has joined again after it was given up. Others may run its ranks, so it ends them.
    fn on_up_of_lost(from: AgentId, message: &Up, turn: &mut Turn<'_, Self::Action>) {
        match message {
            Up::Rejoined { .. } => turn.push(Self::send(from, Down::End { signal: SIGKILL, grace: Duration::ZERO })),
            Up::Ended { .. } => turn.push(Self::close(from, Violation::Late.into())),
            _ => {}
        }
    }

    fn to_children(&mut self, message: &Down, turn: &mut Turn<'_, Self::Action>) {
        turn.extend(self.children().reachable().map(|child| Self::send(child, message.clone())));
    }

    /// Orders the children to end their ranks before a restart. A child that is behind gets the order with what it has missed: a
    /// second order would meet the ranks of the restart.
    fn clear_children(&mut self, order: &Down, turn: &mut Turn<'_, Self::Action>) {
        turn.extend(self.children().up_to_date().map(|child| Self::send(child, order.clone())));
    }

    /// Sends each child its share of `plan`.
    fn launch_below(&mut self, plan: &NamespacePlan, turn: &mut Turn<'_, Self::Action>) {
        for child in self.children().subtrees() {
            let share = plan.share_of(child).map(Box::new);
            turn.extend(share.map(|share| Self::send(child.head(), Down::Launch(share))));
        }
    }

    // ---- the loss and the end of children ----

    /// Closes the link to a child that broke the protocol. With that the child is lost.
    fn cut_off(&mut self, child: AgentId, violation: Violation, turn: &mut Turn<'_, Self::Action>) {
        let why = LossReason::from(violation);
        turn.push(Self::close(child, why.clone()));
        // Output that is still under way is lost with the link.
        self.on_child_output_lost(child, why, turn);
    }

    /// Nothing more arrives from a child, because of `cause`.
    fn on_child_lost(&mut self, child: AgentId, cause: Cause, turn: &mut Turn<'_, Self::Action>) {
        self.on_loss(child, cause, true, turn);
    }

    /// A child's link has ended before all output of its subtree has arrived.
    fn on_child_output_lost(&mut self, child: AgentId, why: LossReason, turn: &mut Turn<'_, Self::Action>) {
        self.on_loss(child, Cause::Lost { why }, false, turn);
    }

    fn on_loss(&mut self, child: AgentId, cause: Cause, is_output_complete: bool, turn: &mut Turn<'_, Self::Action>) {
        if !self.children_mut().on_lost(child, is_output_complete) {
            return;
        }
        let cause = match cause {
            // No policy is known by which an ancestor could adopt the agents below, so these end too.
            Cause::Lost { why } if !self.is_configured() => Cause::NotStarted { why: NotStartedReason::Lost(why) },
            cause => cause,
        };
        self.on_failure(Failure::of_agent(turn.now, child, cause), turn);
        let Some(subtree) = self.children().subtree(child) else { return };
        let heirs = match self.heritage(turn.now) {
            Heritage::End => return,
            Heritage::Lost => Vec::new(),
            Heritage::Adopted { within } => self.children_mut().replace(child, turn.now + within),
        };
        let heads: Vec<_> = heirs.iter().map(Subtree::head).collect();
        self.await_heirs(child, &heads, turn.now);
        if !heirs.is_empty() {
            turn.push(Self::adopt(self.children().orphans()));
        }
        self.replace(subtree, &heirs, turn);
    }

    /// Handles the join of a child or of an agent further down. If it is further down, reports the orphaned agents
    /// between as lost: the topmost of them had not joined to report the loss of the others.
    fn on_child_joined(&mut self, child: AgentId, turn: &mut Turn<'_, Self::Action>) {
        while let Some(between) = self.children().toward(child).filter(|between| *between != child)
            && self.children().is_orphaned(between)
            && self.heritage(turn.now) != Heritage::End
        {
            self.on_child_lost(between, Cause::Lost { why: LossReason::LostBy(child) }, turn);
        }
        if self.children().contains(child) {
            self.children_mut().on_joined(child);
        } else {
            turn.push(Self::close(child, Violation::Unawaited.into()));
        }
    }

    /// A lost child is replaced by `heirs`: waits for them where it waited for the child.
    fn await_heirs(&mut self, child: AgentId, heirs: &[AgentId], now: Time);

    /// Lets `heirs` take the place of a lost child in all namespaces.
    fn replace(&mut self, subtree: Subtree, heirs: &[Subtree], turn: &mut Turn<'_, Self::Action>) {
        let lost = subtree.head();
        for namespace in self.namespace_ids() {
            let dead = self.inherit(namespace, subtree, heirs);
            // It will start no further rank.
            self.on_child_started(lost, namespace, turn);
            if !dead.is_empty() && self.goes_on() {
                self.on_dead(namespace, dead, turn);
            } else {
                self.move_out(namespace, &dead, turn);
            }
            let asked = self.exchange(namespace).map(|exchange| exchange.look_ups.asked(Peer::Child(lost)));
            for key in asked.unwrap_or_default() {
                // The answer of a fence that is over: the next peer is asked.
                self.on_got(namespace, Peer::Child(lost), Some(u32::MAX), LookUpResult::Absent(key), turn);
            }
        }
    }

    /// The agents of these ranks were lost: reports those that will start again elsewhere.
    fn move_out(&mut self, namespace: NamespaceId, ranks: &Ranks, turn: &mut Turn<'_, Self::Action>) {
        if ranks.is_empty() || self.policy() != FailurePolicy::RestartRank {
            return;
        }
        for (agent, ranks) in self.plan(namespace).map(|plan| plan.by_agent(ranks)).unwrap_or_default() {
            self.on_moved_out(namespace, agent, &ranks, turn);
        }
    }

    /// Gives up the orphaned children that have not joined in time.
    fn lose_late_orphans(&mut self, waited: Duration, turn: &mut Turn<'_, Self::Action>) {
        for child in self.children().late(turn.now) {
            self.on_child_lost(child, Cause::Lost { why: LossReason::NotRejoined(waited) }, turn);
        }
    }

    /// A child whose former parent was lost has joined here.
    fn on_rejoined(&mut self, from: AgentId, has_plan: bool, fences: &[OpenFence], turn: &mut Turn<'_, Self::Action>) {
        let Some(subtree) = self.children().subtree(from).filter(|_| self.adopts()) else { return };
        if let Some(number) = self.missed_fence(subtree, fences) {
            return self.cut_off(from, Violation::Behind(number), turn);
        }
        self.children_mut().on_rejoined(from);
        turn.extend(
            self.missed(turn.now, subtree, has_plan, fences).into_iter().map(|message| Self::send(from, message)),
        );
        for namespace in self.namespace_ids() {
            let asked = self.exchange(namespace).map(|exchange| exchange.look_ups.asked(Peer::Child(from)));
            for key in asked.unwrap_or_default() {
                turn.push(Self::send(from, Down::Get { namespace, key }));
            }
        }
    }

    /// Returns a fence whose release `child`'s head has missed for good. Only the last release is stored, and fences do
    /// not wait for agents without ranks.
    fn missed_fence(&mut self, child: Subtree, fences: &[OpenFence]) -> Option<u32> {
        if self.policy() != FailurePolicy::RestartRank {
            return None;
        }
        self.namespace_ids().into_iter().find_map(|namespace| {
            self.plan(namespace).filter(|plan| plan.names_agents_of(child))?;
            let open = self.exchange(namespace)?.fence.number();
            match fences.iter().find(|known| known.namespace == namespace) {
                Some(OpenFence { number, .. }) => (open > number.wrapping_add(1)).then_some(*number),
                None => (open > 0).then_some(0),
            }
        })
    }

    /// A child reports that all processes of its subtree have ended.
    fn on_ended(&mut self, from: AgentId, leftovers: u64, timing: &Timing, turn: &mut Turn<'_, Self::Action>) {
        let Some(below) = self.children().subtree(from) else { return };
        // A report ahead of the order would count as the end of ranks that were never reported as ended.
        let fits = self.has_ordered_end() && timing.is_of(below);
        match self.children_mut().on_ended(from, fits) {
            EndReport::Accepted => self.on_subtree_ended(leftovers, timing),
            EndReport::Refused => self.cut_off(from, Violation::Ended, turn),
            EndReport::Late => {}
        }
    }

    fn on_stats(&mut self, from: AgentId, stats: Box<Stats>, turn: &mut Turn<'_, Self::Action>) {
        let Some(below) = self.children().subtree(from) else { return };
        let accepted = self.accepts_stats(&stats, below) && self.children_mut().on_stats(from, stats);
        if !accepted {
            self.cut_off(from, Violation::Stats, turn);
        }
    }

    // ---- fences and gets ----

    /// Ranks of a child have arrived at a fence; the last ones if the contribution `is_last`.
    fn on_gathered(
        &mut self,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        ranks: Ranks,
        (contribution, is_last): (Contribution, bool),
        turn: &mut Turn<'_, Self::Action>,
    ) {
        let (goes_on, adopts) = (self.goes_on(), self.adopts());
        let Some(exchange) = self.exchange(namespace) else { return };
        if adopts && exchange.fence.has_passed(number, &ranks) {
            // The agent has joined again, and the parent that it lost had passed this on.
            return;
        }
        let is_open = number == exchange.fence.number();
        let dead =
            if goes_on && is_open && is_last { exchange.on_gathered_without(from, &ranks) } else { Ranks::new() };
        match exchange.on_gathered(turn.now, from, number, &ranks, contribution) {
            Ok(()) if !dead.is_empty() => self.on_dead(namespace, dead, turn),
            Ok(()) => self.on_contributed(namespace, turn),
            // The program is at fault, not the agent that passed it on.
            Err(error @ FenceError::Mixed { .. }) => {
                let cause = Cause::Broken { why: error.to_string() };
                self.on_failure(Failure { at: turn.now, agent: from, namespace, ranks, cause }, turn);
            }
            Err(error) => self.cut_off(from, Violation::Fence { namespace, number, error }, turn),
        }
    }

    /// Ranks of a child's subtree have died.
    fn on_child_died(
        &mut self,
        from: AgentId,
        namespace: NamespaceId,
        ranks: Ranks,
        turn: &mut Turn<'_, Self::Action>,
    ) {
        let goes_on = self.goes_on();
        let Some(exchange) = self.exchange(namespace) else { return };
        let are_theirs = find(&exchange.children, from).is_some_and(|share| share.contains_all(&ranks));
        if goes_on && are_theirs {
            self.on_dead(namespace, ranks, turn);
        } else {
            self.cut_off(from, Violation::Died(ranks), turn);
        }
    }

    /// Ranks of a child's subtree have lost their agent.
    fn on_child_moved_out(
        &mut self,
        from: AgentId,
        namespace: NamespaceId,
        (agent, ranks): (AgentId, &Ranks),
        turn: &mut Turn<'_, Self::Action>,
    ) {
        if self.policy() == FailurePolicy::RestartRank && self.child_toward(agent) == Some(from) {
            self.on_moved_out(namespace, agent, ranks, turn);
        } else {
            self.cut_off(from, Violation::MovedOut(ranks.clone()), turn);
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
        let adopts = self.adopts();
        let Some(exchange) = self.exchange(namespace) else { return };
        if adopts && exchange.fence.has_passed(number, &puts.iter().map_while(Result::ok).map(|put| put.rank).collect())
        {
            return;
        }
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
        let (to, Requester { agent, namespace, rank, .. }) = (*to, *requester);
        if self.is_forgotten(namespace) {
            // It ended while the inquiry was under way, so its rank does not wait for an answer.
            return;
        }
        let share = self.exchange(namespace).and_then(|exchange| find(&exchange.children, from));
        let is_theirs = share.is_some_and(|ranks| ranks.contains(rank));
        let allowed = is_theirs
            && self.child_toward(agent) == Some(from)
            && self.leads_elsewhere(to, from)
            && self.owner_of(namespace, agent) == Some(to)
            // Only the root sends these.
            && !matches!(kind, InquiryKind::LookUp { .. } | InquiryKind::Modex { .. })
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
            Some(child) if self.children().is_lost(child) => {
                if let Some(reply) = inquiry.kind.refusal() {
                    self.route_reply(inquiry.requester, reply, turn);
                }
            }
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

    /// Sends an order toward the agent that it is for, which is below this place.
    fn route_order(&mut self, agent: AgentId, message: Down, turn: &mut Turn<'_, Self::Action>) {
        if let Some(child) = self.child_toward(agent) {
            turn.push(Self::send(child, message));
        }
    }

    /// The child below which `agent` is, or that is `agent`.
    fn child_toward(&self, agent: AgentId) -> Option<AgentId> {
        self.children().toward(agent)
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
