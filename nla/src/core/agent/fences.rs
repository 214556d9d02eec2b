//! Fences and rings: what comes together at this agent, and what goes out again.

use pmi::{Answer, Puts, Rank, Ranks};

use super::{Action, Agent, SIGKILL};
use crate::core::cause::{Cause, Failure};
use crate::core::fence::{FenceError, Part};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::message::{Contribution, Down, ReleaseContent, Up, Update};
use crate::core::ring::RingPosition;

impl Agent {
    /// An own rank has arrived.
    pub(super) fn on_arrived(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        contribution: Contribution,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let entered = if ns.own().contains(rank) {
            ns.fence.enter(now, rank, contribution)
        } else {
            Err(FenceError::ForeignRanks(std::iter::once(rank).collect()))
        };
        match entered {
            Ok(()) => {
                ns.on_entered(rank);
                if namespace == NamespaceId::FIRST {
                    self.times.on_arrived(now);
                }
                actions.extend(ns.gathered(now).map(Action::ToParent));
            }
            Err(error) => {
                actions.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
                let why = match error {
                    FenceError::Mixed { .. } => error.to_string(),
                    error => format!("its fence was refused: {error}"),
                };
                self.fail_rank(now, namespace, rank, Cause::Broken { why }, actions);
            }
        }
    }

    /// An own rank has put something, ahead of its fence.
    pub(super) fn on_put(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        puts: Puts,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let number = ns.fence.number();
        match ns.pass(None, number, &puts) {
            Ok(()) => actions.push(Action::ToParent(Up::Put { namespace, number, puts })),
            Err(error) => {
                actions.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
                let why = format!("its put was refused: {error}");
                self.fail_rank(now, namespace, rank, Cause::Broken { why }, actions);
            }
        }
    }

    /// A rank of a child has put something, ahead of its fence.
    pub(super) fn on_put_below(
        &mut self,
        now: Time,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        puts: Puts,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match ns.pass(Some(from), number, &puts) {
            Ok(()) => actions.push(Action::ToParent(Up::Put { namespace, number, puts })),
            Err(error) => {
                let why = format!("a put for fence {number} of namespace {namespace}: {error}");
                self.cut_off(now, from, why, actions);
            }
        }
    }

    /// Ranks of a child have arrived.
    pub(super) fn on_gathered(
        &mut self,
        now: Time,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        ranks: Ranks,
        contribution: Contribution,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        match ns.arrive(now, from, number, &ranks, contribution) {
            Ok(()) => actions.extend(ns.gathered(now).map(Action::ToParent)),
            Err(error @ FenceError::Mixed { .. }) => {
                let cause = Cause::Broken { why: error.to_string() };
                self.fail(Failure { at: now, agent: from, namespace, ranks, cause }, actions);
            }
            Err(error) => {
                let why = format!("fence {number} of namespace {namespace}: {error}");
                self.cut_off(now, from, why, actions);
            }
        }
    }

    pub(super) fn on_release(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        number: u32,
        content: ReleaseContent,
        actions: &mut Vec<Action>,
    ) {
        let released = match content {
            ReleaseContent::Update(news) => self.release_fence(now, (namespace, number), news, actions),
            ReleaseContent::Ring(seat) => self.release_ring(now, (namespace, number), &seat, actions),
        };
        if let Err(why) = released {
            let cause = Cause::Lost { why };
            self.fail(Failure { at: now, agent: self.id(), namespace, ranks: Ranks::new(), cause }, actions);
        }
    }

    fn release_fence(
        &mut self,
        now: Time,
        (namespace, number): (NamespaceId, u32),
        news: Update,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        if ns.fence.is_ring() {
            return Err("it got a fence's release where a ring was waited for".to_owned());
        }
        // Out of turn it lets nobody go and changes nothing.
        let Some(released) = ns.release(now, number) else { return Ok(()) };
        if namespace == NamespaceId::FIRST {
            self.times.on_released(now, number);
        }
        // The children first: the farther away, the longer the way.
        for child in ns.children.keys() {
            let content = ReleaseContent::Update(news.clone());
            actions.push(Action::ToChild(*child, Down::Release { namespace, number, content }));
        }
        actions.extend(ns.cache.release(news).map(|epoch| Action::Publish(namespace, epoch)));
        if !released.is_empty() {
            actions.push(Action::Release(namespace, released));
        }
        Ok(())
    }

    fn release_ring(
        &mut self,
        now: Time,
        (namespace, number): (NamespaceId, u32),
        whole: &RingPosition,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        let seats = ns.seats(number, whole);
        let seats = seats.map_err(|error| format!("it got the release of a ring that makes no sense: {error}"))?;
        let released = ns.release(now, number).unwrap_or_default();
        if namespace == NamespaceId::FIRST {
            self.times.on_released(now, number);
        }
        let mut own = Vec::new();
        for (part, seat) in seats {
            match part {
                Part::Child(child) => {
                    let content = ReleaseContent::Ring(seat);
                    actions.push(Action::ToChild(child, Down::Release { namespace, number, content }));
                }
                Part::Own(rank) => {
                    let RingPosition { position, from_left, from_right } = seat;
                    own.push((rank, Answer::Ring { position, from_left, from_right }));
                }
            }
        }
        let answers = own.into_iter().filter(|(rank, _)| released.contains(*rank));
        actions.extend(answers.map(|(rank, answer)| Action::Answer(namespace, rank, answer)));
        Ok(())
    }
}
