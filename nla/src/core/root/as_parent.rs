//! The root as the parent of its children: it judges what they report, and answers what only it can.

use pmi::{LookUpResult, Ranks, RootRequest};

use super::{Notice, Root, RootAction, Turn};
use crate::core::cause::Failure;
use crate::core::children::Children;
use crate::core::exchange::Exchange;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::leftovers::FileReport;
use crate::core::lookup::ReplyTo;
use crate::core::message::{Down, InquiryKind, Reply, Requester, Up};
use crate::core::parent::{EndState, Parent};
use crate::core::plan::{find, owner_of};
use crate::core::reason::LossReason;
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

    fn children(&mut self) -> &mut Children {
        &mut self.children
    }

    fn exchange(&mut self, namespace: NamespaceId) -> Option<&mut Exchange> {
        self.namespaces.get_mut(&namespace).map(|ns| &mut ns.exchange)
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
        ns.unstarted = ns.unstarted.saturating_sub(1);
        ns.started += find(&ns.exchange.children, child).map_or(0, Ranks::len);
        if ns.unstarted > 0 || ns.undone {
            return;
        }
        let size = ns.plan.size;
        turn.push(RootAction::Notice(Notice::Started(namespace, size)));
        if let Some(requester) = ns.requester.take() {
            let job = ns.plan.kvsname.clone();
            self.route_reply(requester, Reply::Spawned(Ok((job, size))), turn);
        }
    }

    fn on_contact(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if let Some(ns) = self.namespaces.get_mut(&namespace)
            && !std::mem::replace(&mut ns.contacted, true)
        {
            turn.push(RootAction::Notice(Notice::Contact(namespace)));
        }
    }

    fn on_fence_complete(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        if let Some(ns) = self.namespaces.get_mut(&namespace) {
            ns.release(turn);
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

    fn on_surveyed(&mut self, child: AgentId, number: u32, survey: Survey) {
        if let Some(collecting) = &mut self.survey {
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

    fn on_busy(&mut self, agent: AgentId, text: String, turn: &mut Turn<'_>) {
        turn.push(RootAction::Notice(Notice::Busy(agent, text)));
    }

    fn on_subtree_ended(&mut self, leftovers: u64, timing: &Timing) {
        self.leftovers = self.leftovers.saturating_add(leftovers);
        self.timing.merge(timing);
    }

    fn expects_stats(&self) -> bool {
        self.session.stats
    }
}
