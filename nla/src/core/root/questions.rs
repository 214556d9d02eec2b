//! What needs one answer for the whole session: names, spawns, other namespaces.

use pmi::{NameError, SpawnRequest};

use super::namespace::Namespace;
use super::{Phase, Root, RootAction};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::{NAMES_MAX, NAMESPACES_MAX};
use crate::core::message::{Asker, Down, Inquiry, Matter, Question, Reply};
use crate::core::spawning::{self, SpawnContext};

impl Root {
    pub(super) fn on_question(&mut self, asker: Asker, question: Question, actions: &mut Vec<RootAction>) {
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
            Question::Spawn(order) => match self.spawn(asker, order, actions) {
                Ok(()) => return,
                Err(why) => Reply::Spawned(Err(why)),
            },
            Question::Connect { job } => Reply::Connected(self.namespace_of(&job).is_some()),
            Question::Elsewhere { job, key } => match self.look_up(asker, &job, key) {
                Some(inquiry) => return self.inquire(inquiry, actions),
                None => Reply::Elsewhere(None),
            },
        };
        self.reply(asker, reply, actions);
    }

    /// Asks an agent that has the board of `job`. None if there is no such namespace, or can be no
    /// such entry.
    fn look_up(&self, asker: Asker, job: &[u8], key: Vec<u8>) -> Option<Inquiry> {
        let ns = self.namespace_of(job)?;
        let matter = Matter::LookUp { namespace: ns.plan.id, key };
        let to = ns.agent_for(asker.agent)?;
        matter.is_bounded().then_some(Inquiry { to, asker, matter })
    }

    fn namespace_of(&self, job: &[u8]) -> Option<&Namespace> {
        let id = self.jobs.get(std::str::from_utf8(job).ok()?)?;
        self.namespaces.get(id).filter(|ns| !ns.undone)
    }

    fn spawn(&mut self, asker: Asker, order: SpawnRequest, actions: &mut Vec<RootAction>) -> Result<(), String> {
        if !matches!(self.phase, Phase::Running) {
            return Err("the_session_is_ending".to_owned());
        }
        order.check().map_err(|error| error.to_string())?;
        let next = self.namespaces.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        if next >= NAMESPACES_MAX {
            return Err("too_many_namespaces".to_owned());
        }
        let parent = &self.namespaces.get(&asker.namespace).ok_or("unknown_namespace")?.plan;
        let (_, command) = parent.command_of(asker.rank).ok_or("unknown_rank")?;
        let plan = spawning::plan(NamespaceId(next), order, &SpawnContext { parent, command, nodes: &self.nodes })?;
        self.launch(plan, Some(asker), actions);
        Ok(())
    }

    // ---- between agents ----

    /// A rank below `from` asks an agent that is not.
    pub(super) fn on_inquiry(&mut self, now: Time, from: AgentId, inquiry: Inquiry, actions: &mut Vec<RootAction>) {
        let Inquiry { to, asker, matter } = &inquiry;
        let child_of = |agent: AgentId| self.tree.toward(agent).map(|child| child.head());
        let namespace = self.namespaces.get(&asker.namespace);
        let allowed = child_of(asker.agent) == Some(from)
            && child_of(*to).is_some_and(|child| child != from)
            && matter.is_bounded()
            && namespace.is_some_and(|ns| ns.may_inquire(from, &inquiry));
        if allowed {
            self.inquire(inquiry, actions);
        } else {
            let why = format!("it asks agent {to} for rank {}, which it may not", asker.rank);
            self.cut_off(now, from, why, actions);
        }
    }

    /// An agent below `from` answers a rank that is not.
    pub(super) fn on_reply(
        &mut self,
        now: Time,
        from: AgentId,
        asker: Asker,
        reply: Reply,
        actions: &mut Vec<RootAction>,
    ) {
        let elsewhere = self.tree.toward(asker.agent).is_some_and(|child| child.head() != from);
        if elsewhere && reply.is_of_agent() {
            self.reply(asker, reply, actions);
        } else {
            self.cut_off(now, from, format!("it answers rank {}, which it may not", asker.rank), actions);
        }
    }

    fn inquire(&self, inquiry: Inquiry, actions: &mut Vec<RootAction>) {
        if let Some(child) = self.tree.toward(inquiry.to) {
            actions.push(RootAction::ToChild(child.head(), Down::Inquire(inquiry)));
        }
    }

    pub(super) fn reply(&self, asker: Asker, reply: Reply, actions: &mut Vec<RootAction>) {
        if let Some(child) = self.tree.toward(asker.agent) {
            actions.push(RootAction::ToChild(child.head(), Down::Reply { asker, reply }));
        }
    }
}
