//! What needs one answer for the whole session: names, spawns, other namespaces.

use pmi::{NameError, SpawnRequest};

use super::namespace::Namespace;
use super::{Phase, Root, RootAction};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::{NAMES_MAX, NAMESPACES_MAX};
use crate::core::message::{Down, Inquiry, InquiryKind, Question, Reply, Requester};
use crate::core::spawning::{self, SpawnContext};

impl Root {
    pub(super) fn on_question(&mut self, requester: Requester, question: Question, actions: &mut Vec<RootAction>) {
        let reply = match question {
            Question::Publish { service, port } => Reply::Published(if self.names.contains_key(&service) {
                Err(NameError::Taken)
            } else if self.names.len() >= NAMES_MAX {
                Err(NameError::Full)
            } else {
                self.names.insert(service, port);
                Ok(())
            }),
            Question::Lookup { service } => Reply::Found(self.names.get(&service).cloned().ok_or(NameError::Unknown)),
            Question::Unpublish { service } => {
                Reply::Unpublished(self.names.remove(&service).map(drop).ok_or(NameError::Unknown))
            }
            Question::Spawn(order) => match self.spawn(requester, order, actions) {
                Ok(()) => return,
                Err(why) => Reply::Spawned(Err(why)),
            },
            Question::Connect { job } => Reply::Connected(self.namespace_of(&job).is_some()),
            Question::GetFromJob { job, key } => match self.look_up(requester, &job, key) {
                Some(inquiry) => return self.inquire(inquiry, actions),
                None => Reply::GotFromJob(None),
            },
        };
        self.reply(requester, reply, actions);
    }

    /// Asks an agent that has the board of `job`. None if there is no such namespace, or can be no
    /// such entry.
    fn look_up(&self, requester: Requester, job: &[u8], key: Vec<u8>) -> Option<Inquiry> {
        let ns = self.namespace_of(job)?;
        let kind = InquiryKind::LookUp { namespace: ns.plan.id, key };
        let to = ns.agent_for(requester.agent)?;
        kind.is_bounded().then_some(Inquiry { to, requester, kind })
    }

    fn namespace_of(&self, job: &[u8]) -> Option<&Namespace> {
        let id = self.jobs.get(std::str::from_utf8(job).ok()?)?;
        self.namespaces.get(id).filter(|ns| !ns.undone)
    }

    fn spawn(
        &mut self,
        requester: Requester,
        order: SpawnRequest,
        actions: &mut Vec<RootAction>,
    ) -> Result<(), String> {
        if !matches!(self.phase, Phase::Running) {
            return Err("the_session_is_ending".to_owned());
        }
        order.check().map_err(|error| error.to_string())?;
        let next = self.namespaces.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        if next >= NAMESPACES_MAX {
            return Err("too_many_namespaces".to_owned());
        }
        let parent = &self.namespaces.get(&requester.namespace).ok_or("unknown_namespace")?.plan;
        let (_, command) = parent.command_of(requester.rank).ok_or("unknown_rank")?;
        let plan = spawning::plan(NamespaceId(next), order, &SpawnContext { parent, command, nodes: &self.nodes })?;
        self.launch(plan, Some(requester), actions);
        Ok(())
    }

    // ---- between agents ----

    /// A rank below `from` asks an agent that is not.
    pub(super) fn on_inquiry(&mut self, now: Time, from: AgentId, inquiry: Inquiry, actions: &mut Vec<RootAction>) {
        let Inquiry { to, requester, kind } = &inquiry;
        let child_of = |agent: AgentId| self.tree.toward(agent).map(|child| child.head());
        let namespace = self.namespaces.get(&requester.namespace);
        let allowed = child_of(requester.agent) == Some(from)
            && child_of(*to).is_some_and(|child| child != from)
            && kind.is_bounded()
            && namespace.is_some_and(|ns| ns.may_inquire(from, &inquiry));
        if allowed {
            self.inquire(inquiry, actions);
        } else {
            let why = format!("it asks agent {to} for rank {}, which it may not", requester.rank);
            self.cut_off(now, from, why, actions);
        }
    }

    /// An agent below `from` answers a rank that is not.
    pub(super) fn on_reply(
        &mut self,
        now: Time,
        from: AgentId,
        requester: Requester,
        reply: Reply,
        actions: &mut Vec<RootAction>,
    ) {
        let elsewhere = self.tree.toward(requester.agent).is_some_and(|child| child.head() != from);
        if elsewhere && reply.is_of_agent() {
            self.reply(requester, reply, actions);
        } else {
            self.cut_off(now, from, format!("it answers rank {}, which it may not", requester.rank), actions);
        }
    }

    fn inquire(&self, inquiry: Inquiry, actions: &mut Vec<RootAction>) {
        if let Some(child) = self.tree.toward(inquiry.to) {
            actions.push(RootAction::ToChild(child.head(), Down::Inquire(inquiry)));
        }
    }

    pub(super) fn reply(&self, requester: Requester, reply: Reply, actions: &mut Vec<RootAction>) {
        if let Some(child) = self.tree.toward(requester.agent) {
            actions.push(RootAction::ToChild(child.head(), Down::Reply { requester, reply }));
        }
    }
}
