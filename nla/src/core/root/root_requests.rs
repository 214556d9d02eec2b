//! Requests that need one answer for the whole session: names, spawns, other namespaces.

use pmi::{NameError, PmixAnswer, PmixRequest, Rank, RootRequest, SpawnRequest};

use super::namespace::Namespace;
use super::posts::Caller;
use super::{Phase, Root, Turn};
use crate::core::limits::NAMES_MAX;
use crate::core::message::{Inquiry, InquiryKind, Reply, Requester};
use crate::core::parent::Parent;
use crate::core::spawning;

impl Root {
    /// Answers a request, or asks an agent that can.
    pub(super) fn answer(&mut self, requester: Requester, request: RootRequest, turn: &mut Turn<'_>) {
        if self.is_answered_again(requester, turn) {
            return;
        }
        let reply = match request {
            RootRequest::Publish { service, port } => Reply::Published(if self.names.contains_key(&service) {
                Err(NameError::Taken)
            } else if self.names.len() >= NAMES_MAX {
                Err(NameError::Full)
            } else {
                self.names.insert(service, port);
                Ok(())
            }),
            RootRequest::Lookup { service } => {
                Reply::Found(self.names.get(&service).cloned().ok_or(NameError::Unknown))
            }
            RootRequest::Unpublish { service } => {
                Reply::Unpublished(self.names.remove(&service).map(drop).ok_or(NameError::Unknown))
            }
            RootRequest::Spawn(request) => match self.spawn(requester, request, turn) {
                Ok(()) => return,
                Err(why) => Reply::Spawned(Err(why)),
            },
            RootRequest::Connect { job } => Reply::Connected(self.namespace_of(&job).is_some()),
            RootRequest::GetFromJob { job, key } => match self.look_up(requester, &job, key) {
                Some(inquiry) => {
                    // The agent's reply does not pass here: a repeated request is passed on again.
                    self.answered.remove(&(requester.agent, requester.namespace, requester.rank));
                    return self.route_inquiry(inquiry, turn);
                }
                None => Reply::GotFromJob(None),
            },
            RootRequest::Pmix(request) => match self.answer_pmix(requester, request, turn) {
                Some(answer) => Reply::Pmix(answer),
                None => return,
            },
        };
        self.reply(requester, reply, turn);
    }

    /// Sends the root's reply to a request.
    pub(super) fn reply(&mut self, requester: Requester, reply: Reply, turn: &mut Turn<'_>) {
        if self.adopts() {
            let key = (requester.agent, requester.namespace, requester.rank);
            self.answered.insert(key, (requester.number, Some(reply.clone())));
        }
        self.route_reply(requester, reply, turn);
    }

    /// Whether the request was made before: an agent that has joined again repeats it. Then the same reply is sent, if
    /// there is one already.
    fn is_answered_again(&mut self, requester: Requester, turn: &mut Turn<'_>) -> bool {
        if !self.adopts() {
            return false;
        }
        let key = (requester.agent, requester.namespace, requester.rank);
        match self.answered.get(&key).cloned() {
            Some((number, reply)) if number == requester.number => {
                if let Some(reply) = reply {
                    self.route_reply(requester, reply, turn);
                }
                true
            }
            _ => {
                self.answered.insert(key, (requester.number, None));
                false
            }
        }
    }

    /// Makes the inquiry to an agent that has the board of `job`. `None` if `job` is no namespace, or `key` cannot be
    /// put.
    fn look_up(&self, requester: Requester, job: &[u8], key: Vec<u8>) -> Option<Inquiry> {
        let ns = self.namespace_of(job)?;
        let kind = InquiryKind::LookUp { namespace: ns.plan.id, key };
        let to = ns.agent_for(requester.agent)?;
        kind.is_bounded().then_some(Inquiry { to, requester, kind })
    }

    /// Answers a request of PMIx. Returns `None` if the answer comes later, or from an agent.
    fn answer_pmix(&mut self, requester: Requester, request: PmixRequest, turn: &mut Turn<'_>) -> Option<PmixAnswer> {
        Some(match request {
            PmixRequest::Modex { job, rank } => {
                let Some(inquiry) = self.modex(requester, &job, rank) else { return Some(PmixAnswer::Modex(None)) };
                // The agent's reply does not pass here: a repeated request is passed on again.
                self.answered.remove(&(requester.agent, requester.namespace, requester.rank));
                self.route_inquiry(inquiry, turn);
                return None;
            }
            PmixRequest::Meet(meeting) => {
                self.meet(requester, meeting, turn);
                return None;
            }
            PmixRequest::Describe { job } => {
                PmixAnswer::Described(self.namespace_of(&job).map(|ns| Box::new(ns.plan.describe())))
            }
            PmixRequest::Post { entries, once, range, rank } => {
                PmixAnswer::Posted(self.post(Caller { requester, rank }, entries, once, range, turn))
            }
            PmixRequest::Read { keys, wait, timeout_s, rank } => {
                let wait = wait.then_some(timeout_s);
                self.posts.look_up(Caller { requester, rank }, keys, wait, turn.now)?
            }
            PmixRequest::Unpost { keys, rank } => {
                self.unpost(Caller { requester, rank }, &keys);
                PmixAnswer::Posted(Ok(()))
            }
            PmixRequest::Jobs { described } => {
                let running = self.namespaces.values().filter(|ns| !ns.is_over());
                let known = described.iter().filter_map(|job| self.namespace_of(job.as_bytes()));
                PmixAnswer::Jobs {
                    names: running.map(|ns| ns.plan.kvsname.clone()).collect(),
                    described: known.map(|ns| (ns.plan.describe(), ns.gone().clone())).collect(),
                }
            }
        })
    }

    /// Makes the inquiry to the agent of a rank. `None` if `job` has no such rank.
    fn modex(&self, requester: Requester, job: &[u8], rank: Rank) -> Option<Inquiry> {
        let plan = &self.namespace_of(job)?.plan;
        let (to, _) = plan.placement.iter().find(|(_, ranks)| ranks.contains(rank))?;
        Some(Inquiry { to: *to, requester, kind: InquiryKind::Modex { namespace: plan.id, rank } })
    }

    pub(super) fn namespace_of(&self, job: &[u8]) -> Option<&Namespace> {
        self.namespaces.values().find(|ns| ns.plan.kvsname.as_bytes() == job)
    }

    fn spawn(&mut self, requester: Requester, request: SpawnRequest, turn: &mut Turn<'_>) -> Result<(), String> {
        if !matches!(self.phase, Phase::Running) {
            return Err("the_session_is_ending".to_owned());
        }
        request.check().map_err(|error| error.to_string())?;
        let next = self.next_namespace().ok_or("too_many_namespaces")?;
        let parent = &self.namespaces.get(&requester.namespace).ok_or("unknown_namespace")?.plan;
        let (_, command) = parent.command_of(requester.rank).ok_or("unknown_rank")?;
        let plan = spawning::plan(next, request, (parent, requester.rank), command, &self.nodes_for_spawns())?;
        self.launch(plan, Some(requester), turn);
        Ok(())
    }
}
