//! From agents that join to ranks that run.

use std::collections::BTreeMap;

use pmi::Ranks;

use super::namespace::Namespace;
use super::{Notice, Phase, Root, RootAction};
use crate::core::cache::Place;
use crate::core::cause::{Cause, Failure};
use crate::core::fence::Fence;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::lookup::LookUps;
use crate::core::message::{Down, Reply, Requester};
use crate::core::plan::NamespacePlan;

impl Root {
    pub(super) fn launch(&mut self, plan: NamespacePlan, requester: Option<Requester>, actions: &mut Vec<RootAction>) {
        let mut children = BTreeMap::new();
        for child in self.tree.children() {
            if let Some(share) = plan.share_of(child) {
                children.insert(child.head(), share.ranks_of(child));
                actions.push(RootAction::ToChild(child.head(), Down::Launch(Box::new(share))));
            }
        }
        let namespace = Namespace {
            fence: Fence::new(Ranks::range(0..plan.size)),
            cache: self.session.cache.at(Place::new(true, &children)),
            look_ups: LookUps::default(),
            unstarted: children.len(),
            started: 0,
            children,
            contacted: false,
            gone: BTreeMap::new(),
            gone_count: 0,
            unfinished: Ranks::new(),
            unfinished_since: None,
            waiting: None,
            requester,
            undone: false,
            plan,
        };
        self.jobs.insert(namespace.plan.kvsname.clone(), namespace.plan.id);
        self.namespaces.insert(namespace.plan.id, namespace);
    }

    pub(super) fn on_started(&mut self, from: AgentId, namespace: NamespaceId, actions: &mut Vec<RootAction>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.unstarted = ns.unstarted.saturating_sub(1);
        ns.started += ns.children.get(&from).map_or(0, Ranks::len);
        if ns.unstarted > 0 || ns.undone {
            return;
        }
        actions.push(RootAction::Notice(Notice::Started(namespace, ns.plan.size)));
        if let Some(requester) = ns.requester.take() {
            let size = ns.plan.size;
            let job = ns.plan.kvsname.clone();
            self.reply(requester, Reply::Spawned(Ok((job, size))), actions);
        }
    }

    pub(super) fn on_agent_failed(&mut self, now: Time, agent: AgentId, why: String, actions: &mut Vec<RootAction>) {
        if let Phase::Joining { .. } = self.phase {
            self.note_not_started(now, agent, why, actions);
        }
    }

    pub(super) fn note_not_started(&mut self, now: Time, agent: AgentId, why: String, actions: &mut Vec<RootAction>) {
        let (namespace, cause) = (NamespaceId::FIRST, Cause::NotStarted { why });
        self.on_failure(now, Failure { at: now, agent, namespace, ranks: Ranks::new(), cause }, actions);
    }
}
