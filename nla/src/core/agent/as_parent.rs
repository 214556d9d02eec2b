//! The agent as the parent of its children: it merges what they report and passes it on.

use std::time::Duration;

use bytes::Bytes;
use pmi::{Answer, Entry, LookUpResult, Rank, Ranks, RootRequest, SpawnedJob};

use super::{Action, Agent, Turn};
use crate::core::binding::BindingReport;
use crate::core::cause::Failure;
use crate::core::children::Children;
use crate::core::exchange::Exchange;
use crate::core::failure_policy::FailurePolicy;
use crate::core::group::RankGroup;
use crate::core::heritage::Heritage;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::lookup::ReplyTo;
use crate::core::low_limits::LowLimits;
use crate::core::message::{Down, InquiryKind, Killed, OpenFence, Reply, Requester, Up};
use crate::core::parent::{EndState, Parent};
use crate::core::plan::NamespacePlan;
use crate::core::reason::LossReason;
use crate::core::stats::Stats;
use crate::core::survey::Survey;
use crate::core::timing::Timing;
use crate::core::topology::Subtree;

impl Parent for Agent {
    type Action = Action;

    fn send(child: AgentId, message: Down) -> Action {
        Action::ToChild(child, message)
    }

    fn close(child: AgentId, why: LossReason) -> Action {
        Action::CloseChild(child, why)
    }

    fn subtree(&self) -> Subtree {
        self.here
    }

    fn adopt(orphans: Vec<Subtree>) -> Action {
        Action::Adopt(orphans)
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
        namespace.0 < self.launched && !self.namespaces.contains_key(&namespace)
    }

    fn owner_of(&self, namespace: NamespaceId, agent: AgentId) -> Option<AgentId> {
        self.namespaces.get(&namespace).map(|ns| ns.owner_of(agent))
    }

    fn to_parent(&mut self, message: Up, turn: &mut Turn<'_>) {
        self.note_request(&message);
        if let Up::Put { namespace, puts, .. } = &message
            && let Some(ns) = self.namespaces.get_mut(namespace)
        {
            ns.on_put_sent(puts);
        }
        turn.push(Action::ToParent(message));
    }

    fn answer_group(
        &mut self,
        namespace: NamespaceId,
        group: &RankGroup,
        ranks: &Ranks,
        payload: Option<&Bytes>,
        turn: &mut Turn<'_>,
    ) {
        self.answer_waiting_in_group(namespace, group, ranks, payload, turn);
    }

    fn on_failure(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        self.report_failure(failure, turn);
    }

    fn on_more_failures(&mut self, count: u64) {
        self.failures_more = self.failures_more.saturating_add(count);
    }

    fn on_child_started(&mut self, child: AgentId, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.on_part_started(child)) {
            self.report_started(namespace, turn);
        }
    }

    fn on_contact(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if self.namespaces.get_mut(&namespace).is_some_and(|ns| ns.on_contact()) {
            turn.push(Action::ToParent(Up::Contact { namespace }));
        }
    }

    fn on_contributed(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let gathered = ns.take_gathered(turn.now);
        let is_complete = matches!(gathered, Some(Up::Gathered { .. }));
        if let Some(tracer) = self.tracer.as_mut().filter(|_| is_complete && ns.is_job) {
            tracer.on_gathered(turn.now);
        }
        turn.extend(gathered.map(Action::ToParent));
    }

    fn on_waiting(&mut self, namespace: NamespaceId, number: u32, turn: &mut Turn<'_>) {
        let waiting = self.namespaces.get_mut(&namespace).and_then(|ns| ns.take_waiting(number));
        turn.extend(waiting.map(Action::ToParent));
    }

    fn on_exited(&mut self, now: Time, namespace: NamespaceId, state: EndState, ranks: &Ranks) {
        if let Some(ns) = self.namespaces.get_mut(&namespace) {
            ns.note_exited(now, state, ranks);
        }
    }

    fn on_cleared(&mut self, child: AgentId, leftovers: u64, _: &mut Turn<'_>) {
        self.on_child_cleared(child, leftovers);
    }

    fn policy(&self) -> FailurePolicy {
        self.on_failure
    }

    fn await_heirs(&mut self, child: AgentId, heirs: &[AgentId], _: Time) {
        if let Some(clearing) = &mut self.clearing {
            clearing.await_heirs(child, heirs);
        }
    }

    fn heritage(&self, _: Time) -> Heritage {
        match &self.plan {
            Some(plan) if self.is_serving() => Heritage::of(plan),
            _ => Heritage::End,
        }
    }

    fn namespace_ids(&self) -> Vec<NamespaceId> {
        self.namespaces.keys().copied().collect()
    }

    fn is_configured(&self) -> bool {
        self.is_configured
    }

    fn inherit(&mut self, namespace: NamespaceId, lost: Subtree, heirs: &[Subtree]) -> Ranks {
        self.namespaces.get_mut(&namespace).map(|ns| ns.inherit(lost, heirs)).unwrap_or_default()
    }

    fn missed(&self, now: Time, child: Subtree, has_plan: bool, fences: &[OpenFence]) -> Vec<Down> {
        self.missed_by(now, child, has_plan, fences)
    }

    fn on_dead(&mut self, namespace: NamespaceId, ranks: Ranks, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.mark_dead(&ranks);
        // First the contribution that is complete without these ranks: if the parent knew first of their death, it would
        // not wait for what they or others here have contributed before.
        self.on_contributed(namespace, turn);
        turn.push(Action::ToParent(Up::Died { namespace, ranks }));
    }

    fn plan(&self, namespace: NamespaceId) -> Option<&NamespacePlan> {
        self.namespaces.get(&namespace)?.plan.as_deref()
    }

    fn on_moved_out(&mut self, namespace: NamespaceId, agent: AgentId, ranks: &Ranks, turn: &mut Turn<'_>) {
        self.on_own_moved_out(namespace, agent, ranks, turn);
    }

    fn on_surveyed(&mut self, child: AgentId, number: u32, survey: Survey) {
        if let Some(collecting) = &mut self.survey {
            collecting.on_child(child, number, survey);
        }
    }

    fn on_root_request(&mut self, requester: Requester, request: RootRequest, turn: &mut Turn<'_>) {
        self.to_parent(Up::Ask { requester, request }, turn);
    }

    fn answer_get(&mut self, namespace: NamespaceId, reply_to: ReplyTo, result: LookUpResult, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        match reply_to {
            ReplyTo::Rank(rank) => {
                let value = result.entry().map(Entry::value_bytes);
                turn.push(Action::Answer(namespace, rank, Answer::Got(value)));
            }
            ReplyTo::Parent => {
                let number = ns.exchange.fence.number();
                turn.push(Action::ToParent(Up::Got { namespace, number, result }));
            }
            ReplyTo::OtherNamespace(requester) => {
                let preput = || ns.preput(result.key()).map(Vec::as_slice);
                let value = result.value().or_else(preput).map(<[u8]>::to_vec);
                self.route_reply(requester, Reply::GotFromJob(value), turn);
            }
            ReplyTo::Child(child) => turn.push(Action::ToChild(child, Down::Got { namespace, result })),
        }
    }

    fn on_own_inquiry(&mut self, requester: Requester, kind: InquiryKind, turn: &mut Turn<'_>) {
        self.on_inquiry(requester, kind, turn);
    }

    fn on_own_reply(&mut self, requester: Requester, reply: Reply, turn: &mut Turn<'_>) {
        let Requester { namespace, rank, number, .. } = requester;
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.take_inquiring(rank);
        if ns.take_reply(rank, number) {
            turn.push(Action::Answer(namespace, rank, answer_of(reply)));
        }
    }

    fn on_files_left(&mut self, agent: AgentId, report: FileReport, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::FilesLeft { agent, report }));
    }

    fn on_left(&mut self, left: LeftProcesses, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::Left(vec![left])));
    }

    fn on_killed(&mut self, killed: Killed, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::Killed(killed)));
    }

    fn on_busy(&mut self, agent: AgentId, text: String, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::Busy { agent, text }));
    }

    fn on_silent(&mut self, agent: AgentId, time: Duration, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::Silent { agent, time }));
    }

    fn on_second_joiner(&mut self, agent: AgentId, rank: Rank, text: String, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::SecondJoiner { agent, rank, text }));
    }

    fn on_bound(&mut self, agent: AgentId, report: Box<BindingReport>, turn: &mut Turn<'_>) {
        turn.push(Action::ToParent(Up::Bound { agent, report }));
    }

    fn on_low_limits(&mut self, limits: LowLimits, turn: &mut Turn<'_>) {
        self.note_low_limits(limits, turn);
    }

    fn on_subtree_ended(&mut self, leftovers: u64, timing: &Timing) {
        self.leftovers = self.leftovers.saturating_add(leftovers);
        self.times.timing.merge(timing);
    }

    fn has_ordered_end(&self) -> bool {
        !self.is_serving()
    }

    /// The parent refuses statistics for which it has not asked.
    fn accepts_stats(&self, stats: &Stats, below: Subtree) -> bool {
        stats.is_of(below, self.trace_scope)
    }
}

/// Converts a reply to the answer for the rank.
fn answer_of(reply: Reply) -> Answer {
    match reply {
        Reply::Published(result) => Answer::Published(result),
        Reply::Found(result) => Answer::Found(result),
        Reply::Unpublished(result) => Answer::Unpublished(result),
        Reply::Spawned(result) => {
            Answer::Spawned(result.map(|(job, count)| SpawnedJob { job, codes: vec![0; count as usize] }))
        }
        Reply::Connected(is_known) => Answer::Connected(is_known),
        Reply::GotFromJob(value) => Answer::GotFromJob(value),
        Reply::Pmix(answer) => Answer::Pmix(answer),
        Reply::NodePut(is_stored) => Answer::NodePut(is_stored),
        Reply::NodeGot(value) => Answer::NodeGot(value),
    }
}
