//! The agent's own ranks in fences and rings, and the release of both.

use pmi::{Answer, Puts, Rank, Ranks};

use super::{Action, Agent, SIGKILL, Step};
use crate::core::cause::Cause;
use crate::core::fence::{FenceError, RingPart};
use crate::core::ids::NamespaceId;
use crate::core::message::{Contribution, Down, ReleaseContent, Up, Update};
use crate::core::parent::Parent;
use crate::core::reason::LossReason;
use crate::core::ring::RingPosition;

impl Agent {
    /// An own rank has arrived at the open fence.
    pub(super) fn on_arrived(
        &mut self,
        namespace: NamespaceId,
        rank: Rank,
        contribution: Contribution,
        step: &mut Step<'_>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let entered = if ns.own.contains(rank) {
            ns.exchange.fence.enter(step.now, rank, contribution)
        } else {
            Err(FenceError::ForeignRanks(std::iter::once(rank).collect()))
        };
        match entered {
            Ok(()) => {
                ns.on_entered(rank);
                if namespace == NamespaceId::FIRST {
                    self.times.on_arrived(step.now);
                }
                self.on_fence_complete(namespace, step);
            }
            Err(error @ FenceError::Mixed { .. }) => {
                self.kill_broken(namespace, rank, error.to_string(), step);
            }
            Err(error) => {
                self.kill_broken(namespace, rank, format!("its fence was refused: {error}"), step);
            }
        }
    }

    /// An own rank has put something ahead of its fence.
    pub(super) fn on_own_put(&mut self, namespace: NamespaceId, rank: Rank, puts: Puts, step: &mut Step<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let number = ns.exchange.fence.number();
        match ns.exchange.on_own_put(&ns.own, &puts) {
            Ok(()) => step.push(Action::ToParent(Up::Put { namespace, number, puts })),
            Err(error) => self.kill_broken(namespace, rank, format!("its put was refused: {error}"), step),
        }
    }

    /// Kills an own rank that broke the PMI protocol, and reports it.
    pub(super) fn kill_broken(&mut self, namespace: NamespaceId, rank: Rank, why: String, step: &mut Step<'_>) {
        step.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
        self.fail_rank(namespace, rank, Cause::Broken { why }, step);
    }

    /// The parent releases a fence or a ring.
    pub(super) fn on_release(
        &mut self,
        namespace: NamespaceId,
        number: u32,
        content: ReleaseContent,
        step: &mut Step<'_>,
    ) {
        let released = match content {
            ReleaseContent::Update(update) => self.release_fence((namespace, number), update, step),
            ReleaseContent::Ring(whole) => self.release_ring((namespace, number), &whole, step),
        };
        if let Err(why) = released {
            self.fail(why, step);
        }
    }

    fn release_fence(
        &mut self,
        (namespace, number): (NamespaceId, u32),
        update: Update,
        step: &mut Step<'_>,
    ) -> Result<(), LossReason> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        if ns.exchange.fence.is_ring() {
            return Err(LossReason::ReleaseOfFence);
        }
        // A release out of turn releases no rank and changes nothing.
        let Some(released) = ns.release(step.now, number) else { return Ok(()) };
        if namespace == NamespaceId::FIRST {
            self.times.on_released(step.now, number);
        }
        // Children go first: their ranks are farther away.
        for (child, _) in &ns.exchange.children {
            let content = ReleaseContent::Update(update.clone());
            step.push(Action::ToChild(*child, Down::Release { namespace, number, content }));
        }
        step.extend(ns.exchange.cache.release(update).map(|epoch| Action::Publish(namespace, epoch)));
        if !released.is_empty() {
            step.push(Action::Release(namespace, released));
        }
        Ok(())
    }

    fn release_ring(
        &mut self,
        (namespace, number): (NamespaceId, u32),
        whole: &RingPosition,
        step: &mut Step<'_>,
    ) -> Result<(), LossReason> {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        let positions = ns.exchange.fence.ring_positions(number, whole, ns.size).map_err(LossReason::ReleaseOfRing)?;
        let released: Ranks = ns.release(step.now, number).unwrap_or_default();
        if namespace == NamespaceId::FIRST {
            self.times.on_released(step.now, number);
        }
        let mut answers = Vec::new();
        for (part, position) in positions {
            match part {
                RingPart::Child(child) => {
                    let content = ReleaseContent::Ring(position);
                    step.push(Action::ToChild(child, Down::Release { namespace, number, content }));
                }
                RingPart::Own(rank) => {
                    let RingPosition { position, from_left, from_right } = position;
                    answers.push((rank, Answer::Ring { position, from_left, from_right }));
                }
            }
        }
        // A rank that has ended since it arrived gets no answer.
        let answers = answers.into_iter().filter(|(rank, _)| released.contains(*rank));
        step.extend(answers.map(|(rank, answer)| Action::Answer(namespace, rank, answer)));
        Ok(())
    }
}
