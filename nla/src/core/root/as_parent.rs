//! The root as the parent of its children: it judges what they report, and answers what only it can.

use std::time::Duration;

use bytes::Bytes;
use pmi::{LookUpResult, Rank, Ranks, RootRequest};

use super::{Notice, Phase, Root, RootAction, SIGTERM, Turn};
use crate::core::binding::BindingReport;
use crate::core::cause::{Failure, Outcome};
use crate::core::children::Children;
use crate::core::exchange::Exchange;
use crate::core::failure_policy::FailurePolicy;
use crate::core::group::RankGroup;
use crate::core::heritage::{Heritage, forgotten, missed};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::limits::KILLED_KINDS_MAX;
use crate::core::lookup::ReplyTo;
use crate::core::low_limits::LowLimits;
use crate::core::message::{Down, InquiryKind, Killed, NO_SIGNAL, OpenFence, Reply, Requester, Up};
use crate::core::parent::{EndState, Parent};
use crate::core::plan::{NamespacePlan, find, owner_of};
use crate::core::reason::LossReason;
use crate::core::stats::Stats;
use crate::core::survey::Survey;
use crate::core::timing::Timing;
use crate::core::topology::Subtree;

impl Parent for Root {
    type Action = RootAction;

    fn send(child: AgentId, message: Down) -> RootAction {
        RootAction::ToChild(child, message)
    }

    fn close(child: AgentId, why: LossReason) -> RootAction {
        RootAction::CloseChild(child, why)
    }

    fn subtree(&self) -> Subtree {
        self.tree
    }

    fn adopt(orphans: Vec<Subtree>) -> RootAction {
        RootAction::Adopt(orphans)
    }

    fn children(&self) -> &Children {
        &self.children
    }

    fn children_mut(&mut self) -> &mut Children {
        &mut self.children
    }

    fn exchange(&mut self, namespace: NamespaceId) -> Option<&mut Exchange> {
        self.namespaces.get_mut(&namespace).map(|ns| &mut ns.exchange)
    }

    fn is_forgotten(&self, namespace: NamespaceId) -> bool {
        namespace.0 < self.made && !self.namespaces.contains_key(&namespace)
    }

    fn owner_of(&self, namespace: NamespaceId, agent: AgentId) -> Option<AgentId> {
        self.namespaces.get(&namespace).map(|ns| owner_of(&ns.plan.owners, agent))
    }

    fn to_parent(&mut self, _: Up, _: &mut Turn<'_>) {}

    fn on_failure(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        self.judge(failure, turn);
    }

    fn on_more_failures(&mut self, count: u64) {
        self.failures_more = self.failures_more.saturating_add(count);
    }

    fn on_child_started(&mut self, child: AgentId, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let Some(at) = ns.unstarted.iter().position(|unstarted| *unstarted == child) else { return };
        ns.unstarted.swap_remove(at);
        ns.started += find(&ns.exchange.children, child).map_or(0, Ranks::len);
        if !ns.unstarted.is_empty() {
            return;
        }
        ns.watched.started = Some(turn.now);
        let size = ns.plan.size;
        turn.push(RootAction::Notice(Notice::Started(namespace, size)));
        if let Some(requester) = ns.requester.take() {
            let job = ns.plan.kvsname.clone();
            self.reply(requester, Reply::Spawned(Ok((job, size))), turn);
        }
    }

    fn on_contact(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if let Some(ns) = self.namespaces.get_mut(&namespace)
            && !std::mem::replace(&mut ns.contacted, true)
        {
            turn.push(RootAction::Notice(Notice::Contact(namespace)));
        }
    }

    fn on_contributed(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let (keeps, packs) = (self.adopts(), self.packs);
        if let Some(ns) = self.namespaces.get_mut(&namespace)
            && ns.exchange.fence.is_complete()
        {
            ns.release(keeps, packs, turn);
        }
    }

    fn on_waiting(&mut self, namespace: NamespaceId, number: u32, turn: &mut Turn<'_>) {
        if let Some(ns) = self.namespaces.get_mut(&namespace)
            && ns.waiting.is_none_or(|(known, _)| known != number)
        {
            ns.waiting = Some((number, turn.now));
        }
    }

    fn on_exited(&mut self, now: Time, namespace: NamespaceId, state: EndState, ranks: &Ranks) {
        if let Some(ns) = self.namespaces.get_mut(&namespace) {
            ns.on_exited(now, state, ranks);
        }
    }

    fn on_cleared(&mut self, child: AgentId, leftovers: u64, _: &mut Turn<'_>) {
        self.on_child_cleared(child, leftovers);
    }

    fn policy(&self) -> FailurePolicy {
        self.session.on_failure
    }

    fn heritage(&self, now: Time) -> Heritage {
        let heritage = match self.phase {
            Phase::Running => Heritage::of(&self.session),
            Phase::Gathering { .. } | Phase::Restarting { .. } if self.policy() == FailurePolicy::Restart => {
                Heritage::of(&self.session)
            }
            _ => Heritage::End,
        };
        match heritage {
            // The child has given the launcher up, as its own children have.
            Heritage::Adopted { within } => Heritage::Adopted { within: self.time_after_stop(now).unwrap_or(within) },
            heritage => heritage,
        }
    }

    fn await_heirs(&mut self, child: AgentId, heirs: &[AgentId], _: Time) {
        if let Phase::Restarting { awaited, .. } = &mut self.phase
            && let Some(at) = awaited.iter().position(|awaited| *awaited == child)
        {
            awaited.splice(at..=at, heirs.iter().copied());
        }
    }

    fn namespace_ids(&self) -> Vec<NamespaceId> {
        self.namespaces.keys().copied().collect()
    }

    fn is_configured(&self) -> bool {
        true
    }

    fn inherit(&mut self, namespace: NamespaceId, lost: Subtree, heirs: &[Subtree]) -> Ranks {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ranks::new() };
        ns.inherit(lost, heirs)
    }

    fn missed(&self, _: Time, child: Subtree, has_plan: bool, fences: &[OpenFence]) -> Vec<Down> {
        let mut messages = Vec::new();
        match self.phase {
            Phase::Joining { .. } | Phase::Staging => return messages,
            Phase::Restarting { ref awaited, .. } => {
                if awaited.contains(&child.head()) {
                    messages.push(self.order_to_clear());
                }
                return messages;
            }
            Phase::Running | Phase::Gathering { .. } => messages.push(Down::Resume),
            Phase::Ending { ref outcome, .. } | Phase::Flushing { ref outcome } => {
                let signal = if *outcome == Outcome::Success { NO_SIGNAL } else { SIGTERM };
                messages.push(Down::End { signal, grace: self.session.kill_grace });
            }
            Phase::Over => messages.push(Down::Leave),
        }
        if !has_plan {
            messages.insert(0, Down::Session(Box::new(self.session.clone())));
        }
        messages.extend(forgotten(fences, |id| self.namespaces.contains_key(&id)));
        for ns in self.namespaces.values() {
            messages.extend(missed(&ns.plan, &ns.exchange, ns.dead(), false, child, fences));
        }
        messages
    }

    fn on_dead(&mut self, namespace: NamespaceId, ranks: Ranks, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let new = ns.mark_dead(&ranks);
        if new.is_empty() {
            return;
        }
        ns.watched.left.get_or_insert(turn.now);
        // The root has no ranks that wait.
        ns.exchange.groups.on_deaths(ns.dead().len()).for_each(drop);
        let message = || Down::Died { namespace, ranks: new.clone() };
        let children = ns.exchange.children.iter();
        // Ahead of the release that does not wait for these ranks.
        turn.extend(children.map(|(child, _)| RootAction::ToChild(*child, message())));
        if ns.exchange.fence.is_complete() {
            ns.release(true, self.packs, turn);
        }
    }

    /// The root has no ranks.
    fn answer_group(&mut self, _: NamespaceId, _: &RankGroup, _: &Ranks, _: Option<&Bytes>, _: &mut Turn<'_>) {}

    fn plan(&self, namespace: NamespaceId) -> Option<&NamespacePlan> {
        self.namespaces.get(&namespace).map(|ns| &ns.plan)
    }

    fn on_moved_out(&mut self, namespace: NamespaceId, agent: AgentId, ranks: &Ranks, turn: &mut Turn<'_>) {
        self.on_homeless(namespace, agent, ranks, turn.now);
    }

    fn on_surveyed(&mut self, child: AgentId, number: u32, survey: Survey) {
        if let Some((collecting, _)) = &mut self.survey {
            collecting.on_child(child, number, survey);
        }
    }

    fn on_root_request(&mut self, requester: Requester, request: RootRequest, turn: &mut Turn<'_>) {
        self.answer(requester, request, turn);
    }

    /// Only children make gets at the root.
    fn answer_get(&mut self, namespace: NamespaceId, reply_to: ReplyTo, result: LookUpResult, turn: &mut Turn<'_>) {
        if let ReplyTo::Child(child) = reply_to {
            turn.push(Self::send(child, Down::Got { namespace, result }));
        }
    }

    /// The root owns no attributes and serves no board.
    fn on_own_inquiry(&mut self, _: Requester, _: InquiryKind, _: &mut Turn<'_>) {}

    /// The root has no ranks.
    fn on_own_reply(&mut self, _: Requester, _: Reply, _: &mut Turn<'_>) {}

    fn on_files_left(&mut self, agent: AgentId, report: FileReport, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::FilesLeft(agent, report)));
    }

    fn on_left(&mut self, left: LeftProcesses, _: &mut Turn<'_>) {
        left.add_to(&mut self.left);
    }

    fn on_killed(&mut self, Killed { namespace, ranks, signal, after }: Killed, _: &mut Turn<'_>) {
        if let Some(all) = self.killed.iter_mut().find(|all| (all.namespace, all.signal) == (namespace, signal)) {
            all.ranks.union_with(&ranks);
            all.after = all.after.max(after);
        } else if self.killed.len() < KILLED_KINDS_MAX {
            self.killed.push(Killed { namespace, ranks, signal, after });
        }
    }

    fn on_busy(&mut self, agent: AgentId, text: String, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::Busy(agent, text)));
    }

    fn on_silent(&mut self, agent: AgentId, time: Duration, turn: &mut Turn<'_>) {
        self.await_silent(agent, time, turn.now);
    }

    fn on_second_joiner(&mut self, agent: AgentId, rank: Rank, text: String, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::SecondJoiner(agent, rank, text)));
    }

    fn on_bound(&mut self, agent: AgentId, report: Box<BindingReport>, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::Bound(agent, report)));
    }

    fn on_low_limits(&mut self, limits: LowLimits, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::LowLimits(limits)));
    }

    fn on_subtree_ended(&mut self, leftovers: u64, timing: &Timing) {
        self.leftovers = self.leftovers.saturating_add(leftovers);
        self.timing.merge(timing);
    }

    fn has_ordered_end(&self) -> bool {
        self.is_ending()
    }

    fn accepts_stats(&self, stats: &Stats, below: Subtree) -> bool {
        self.session.has_last_reports() && stats.is_of(below, self.session.trace)
    }
}
