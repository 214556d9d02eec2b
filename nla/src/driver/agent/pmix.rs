//! Carries out what the relay of PMIx decides.

use std::collections::VecDeque;

use pmi::{Answer, Rank, Ranks, Request};

use super::AgentDriver;
use crate::core::{Input, NamespaceId, NamespacePlan};
use crate::driver::pmix::{Pmix, PmixEvent};
use crate::driver::serving::call_of;
use crate::driver::table::Key;
use crate::pmix::relay::Step;
use crate::sys;

impl AgentDriver {
    /// Registers a namespace, before its ranks start, if they are served by PMIx. Starts `scela-pmix` for the first one.
    pub(super) fn register(&mut self, plan: &NamespacePlan, ranks: &Ranks) -> Result<(), String> {
        let Some(startup) = self.startup.as_ref().filter(|_| !ranks.is_empty()) else { return Ok(()) };
        let Some(pmix) = &startup.session().pmix else { return Ok(()) };
        // If the binding is impossible, the start of the rank reports it.
        let seat = |rank: Rank| Some((rank.0, startup.binder.seat(plan, rank).ok()??.cpus.to_string()));
        let cpus = ranks.iter().filter_map(seat).collect();
        if self.pmix.is_none() {
            let node = ranks.first().and_then(|rank| plan.mapping.node_of(rank)).unwrap_or_default();
            let host = pmix.hosts.get(node as usize).cloned().unwrap_or_else(sys::host_name);
            let note = self.guarding.pmix_note();
            let started = Pmix::start(pmix, host, startup.session(), note, &self.started, &self.links.tasks);
            self.pmix = Some(started.map_err(|error| format!("scela-pmix could not be started: {error}"))?);
        }
        if let Some(pmix) = &mut self.pmix {
            let message = pmix.relay.register(plan, ranks, cpus);
            pmix.await_registration(plan.id);
            pmix.send(message);
        }
        Ok(())
    }

    /// `scela-pmix` has sent a message, or was lost.
    pub(super) fn on_pmix(&mut self, event: PmixEvent) {
        let Some(pmix) = &mut self.pmix else { return };
        match event {
            PmixEvent::Message(message) => {
                let mut steps = Vec::new();
                pmix.relay.on_message(*message, &mut steps);
                self.take_steps(steps);
            }
            PmixEvent::Lost(why) => {
                let awaited = pmix.take_awaited();
                if awaited.is_empty() {
                    return self.handle(Input::PmixLost(format!("its scela-pmix {why}")));
                }
                for namespace in awaited {
                    self.refuse(namespace, &format!("scela-pmix {why}"));
                }
            }
        }
    }

    /// Lets the relay take an answer of the core. Returns it if the relay has not asked for it.
    pub(super) fn relay_answer(&mut self, key: Key, answer: Answer) -> Option<Answer> {
        let Some(pmix) = &mut self.pmix else { return Some(answer) };
        let mut steps = Vec::new();
        let rest =
            pmix.relay.on_answer(key, answer, &|namespace, rank| self.table.pid_of((namespace, rank)), &mut steps);
        self.take_steps(steps);
        rest
    }

    pub(super) fn take_steps(&mut self, steps: Vec<Step>) {
        let mut steps = VecDeque::from(steps);
        while let (Some(step), Some(pmix)) = (steps.pop_front(), &mut self.pmix) {
            match step {
                Step::Send(message) => pmix.send(message),
                Step::Ask(namespace, rank, request) => match self.got_here(namespace, &request) {
                    Some(answer) => {
                        if let Some(pmix) = &mut self.pmix {
                            let mut more = Vec::new();
                            // The relay takes the answer, because it has asked for it.
                            let pid_of = |namespace, rank| self.table.pid_of((namespace, rank));
                            let _ = pmix.relay.on_answer((namespace, rank), answer, &pid_of, &mut more);
                            steps.extend(more);
                        }
                    }
                    None => {
                        // Note only calls of the rank itself: other requests may be the node's.
                        if matches!(
                            request,
                            Request::Joined | Request::Finalized | Request::Abort { .. } | Request::Fence { .. }
                        ) {
                            self.table.note_call((namespace, rank), call_of(&request));
                        }
                        self.take_request((namespace, rank), request);
                    }
                },
                Step::SecondJoiner(rank, text) => self.handle(Input::SecondJoiner(rank, text)),
                Step::Prepared(namespace, Ok(variables)) => {
                    pmix.note_registered(namespace);
                    if let Some(startup) = &mut self.startup {
                        startup.prepare(namespace, variables);
                    }
                }
                Step::Prepared(namespace, Err(why)) => {
                    pmix.note_registered(namespace);
                    self.refuse(namespace, &format!("libpmix did not register them: {why}"));
                }
                Step::Reply(requester, data) => self.handle(Input::Modexed(requester, data)),
                Step::Failed(why) => {
                    for namespace in pmix.take_awaited() {
                        self.refuse(namespace, &format!("PMIx cannot be served: {why}"));
                    }
                }
            }
        }
    }

    /// Reports that no rank of the namespace is started.
    fn refuse(&mut self, namespace: NamespaceId, why: &str) {
        let input = self.startup.as_mut().and_then(|startup| startup.refuse(namespace, why));
        input.into_iter().for_each(|input| self.handle(input));
    }

    /// Answers a get from this agent's board, if the board knows the answer.
    fn got_here(&self, namespace: NamespaceId, request: &Request) -> Option<Answer> {
        let Request::Get { key } = request else { return None };
        let local = self.namespaces.get(&namespace)?;
        let board = local.board.borrow();
        match board.board().look_up(key) {
            pmi::LookUp::Found(value) => Some(Answer::Got(Some(value.into_owned().into()))),
            pmi::LookUp::Absent => Some(Answer::Got(None)),
            pmi::LookUp::Unknown => None,
        }
    }
}
