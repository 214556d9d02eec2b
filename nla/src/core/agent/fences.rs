//! The agent's own ranks in fences and rings, and the release of both.

use pmi::{Answer, Puts, Rank, Ranks};

use super::{Action, Agent, SIGKILL};
use crate::core::cause::Cause;
use crate::core::fence::{FenceError, RingPart};
use crate::core::ids::{NamespaceId, Time};
use crate::core::message::{Contribution, Down, ReleaseContent, Up, Update};
use crate::core::parent::Parent;
use crate::core::reason::LossReason;
use crate::core::ring::RingPosition;

impl Agent {
    /// An own rank has arrived at the open fence.
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
            ns.exchange.fence.enter(now, rank, contribution)
        } else {
            Err(FenceError::ForeignRanks(std::iter::once(rank).collect()))
        };
        match entered {
            Ok(()) => {
                ns.on_entered(rank);
                if namespace == NamespaceId::FIRST {
                    self.times.on_arrived(now);
                }
                self.on_fence_complete(now, namespace, actions);
            }
            Err(error @ FenceError::Mixed { .. }) => {
                self.kill_broken(now, namespace, rank, error.to_string(), actions);
            }
            Err(error) => {
                self.kill_broken(now, namespace, rank, format!("its fence was refused: {error}"), actions);
            }
        }
    }

    /// An own rank has put something ahead of its fence.
    pub(super) fn on_own_put(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        puts: Puts,
        actions: &mut Vec<Action>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let number = ns.exchange.fence.number();
        match ns.on_put(&puts) {
            Ok(()) => actions.push(Action::ToParent(Up::Put { namespace, number, puts })),
            Err(error) => self.kill_broken(now, namespace, rank, format!("its put was refused: {error}"), actions),
        }
    }

    /// Kills an own rank that broke the PMI protocol, and reports it.
    pub(super) fn kill_broken(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        rank: Rank,
        why: String,
        actions: &mut Vec<Action>,
    ) {
        actions.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
        self.fail_rank(now, namespace, rank, Cause::Broken { why }, actions);
    }

    /// The parent releases a fence or a ring.
    pub(super) fn on_release(
        &mut self,
        now: Time,
        namespace: NamespaceId,
        number: u32,
        content: ReleaseContent,
        actions: &mut Vec<Action>,
    ) {
        let released = match content {
            ReleaseContent::Update(update) => self.release_fence(now, (namespace, number), update, actions),
            ReleaseContent::Ring(whole) => self.release_ring(now, (namespace, number), &whole, actions),
        };
        if let Err(why) = released {
            self.fail(now, why, actions);
        }
    }

    fn release_fence(
        &mut self,
        now: Time,
        (namespace, number): (NamespaceId, u32),
        update: Update,
        actions: &mut Vec<Action>,
    ) -> Result<(), LossReason> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        if ns.exchange.fence.is_ring() {
            return Err(LossReason::ReleaseOfFence);
        }
        // A release out of turn releases no rank and changes nothing.
        let Some(released) = ns.release(now, number) else { return Ok(()) };
        if namespace == NamespaceId::FIRST {
            self.times.on_released(now, number);
        }
        // Children go first: their ranks are farther away.
        for child in ns.exchange.children.keys() {
            let content = ReleaseContent::Update(update.clone());
            actions.push(Action::ToChild(*child, Down::Release { namespace, number, content }));
        }
        actions.extend(ns.exchange.cache.release(update).map(|epoch| Action::Publish(namespace, epoch)));
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
    ) -> Result<(), LossReason> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        let positions = ns.ring_positions(number, whole).map_err(LossReason::ReleaseOfRing)?;
        let released: Ranks = ns.release(now, number).unwrap_or_default();
        if namespace == NamespaceId::FIRST {
            self.times.on_released(now, number);
        }
        let mut answers = Vec::new();
        for (part, position) in positions {
            match part {
                RingPart::Child(child) => {
                    let content = ReleaseContent::Ring(position);
                    actions.push(Action::ToChild(child, Down::Release { namespace, number, content }));
                }
                RingPart::Own(rank) => {
                    let RingPosition { position, from_left, from_right } = position;
                    answers.push((rank, Answer::Ring { position, from_left, from_right }));
                }
            }
        }
        // A rank that has ended since it arrived gets no answer.
        let answers = answers.into_iter().filter(|(rank, _)| released.contains(*rank));
        actions.extend(answers.map(|(rank, answer)| Action::Answer(namespace, rank, answer)));
        Ok(())
    }
}
