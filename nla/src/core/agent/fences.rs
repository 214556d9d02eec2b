//! The agent's ranks in fences and rings, and the release of both.

use pmi::{Answer, Puts, Rank, Ranks};

use super::{Action, Agent, SIGKILL, Turn};
use crate::core::cause::Cause;
use crate::core::fence::{FenceError, RingPart};
use crate::core::ids::NamespaceId;
use crate::core::limits::NAMESPACES_MAX;
use crate::core::message::{Contribution, Down, ReleaseContent, Up, Update};
use crate::core::parent::Parent;
use crate::core::pieces::{Blob, Incoming, Piece, PieceError, Taken};
use crate::core::reason::LossReason;
use crate::core::ring::RingPosition;

impl Agent {
    /// One of this agent's ranks has arrived at the open fence.
    pub(super) fn on_arrived(
        &mut self,
        namespace: NamespaceId,
        rank: Rank,
        contribution: Contribution,
        turn: &mut Turn<'_>,
    ) {
        let Some(contribution) = self.catch_up_at_fence(namespace, rank, contribution, turn) else { return };
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let entered = if ns.own.contains(rank) {
            ns.exchange.fence.enter(turn.now, rank, contribution)
        } else {
            Err(FenceError::ForeignRanks(std::iter::once(rank).collect()))
        };
        match entered {
            Ok(()) => {
                ns.on_entered(rank);
                if ns.is_job {
                    self.times.arrived = Some(turn.now);
                    if let Some(tracer) = &mut self.tracer {
                        tracer.on_arrived(turn.now);
                    }
                }
                self.on_contributed(namespace, turn);
            }
            Err(error @ FenceError::Mixed { .. }) => {
                self.kill_broken(namespace, rank, error.to_string(), turn);
            }
            Err(error) => {
                self.kill_broken(namespace, rank, format!("its fence was refused: {error}"), turn);
            }
        }
    }

    /// One of this agent's ranks has put something ahead of its fence.
    pub(super) fn on_own_put(&mut self, namespace: NamespaceId, rank: Rank, puts: Puts, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let number = ns.exchange.fence.number();
        match ns.exchange.on_own_put(&ns.own, &puts) {
            Ok(()) => self.to_parent(Up::Put { namespace, number, puts }, turn),
            Err(error) => self.kill_broken(namespace, rank, format!("its put was refused: {error}"), turn),
        }
    }

    /// Kills one of this agent's ranks that broke the PMI protocol, and reports it.
    pub(super) fn kill_broken(&mut self, namespace: NamespaceId, rank: Rank, why: String, turn: &mut Turn<'_>) {
        turn.push(Action::Signal(namespace, std::iter::once(rank).collect(), SIGKILL));
        self.fail_rank(namespace, rank, Cause::Broken { why }, turn);
    }

    /// Ranks have died, here or elsewhere, and the session goes on.
    pub(super) fn on_died(&mut self, namespace: NamespaceId, ranks: &Ranks, turn: &mut Turn<'_>) {
        if !self.namespaces.contains_key(&namespace) {
            // Its plan travels in another lane.
            if self.goes_on() && (self.launched..NAMESPACES_MAX).contains(&namespace.0) {
                self.early_deaths.entry(namespace).or_default().union_with(ranks);
            }
            return;
        }
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let children = ns.exchange.children.iter();
        let message = || Down::Died { namespace, ranks: ranks.clone() };
        turn.extend(children.map(|(child, _)| Action::ToChild(*child, message())));
        ns.mark_dead(ranks);
        ns.dead.union_with(ranks);
        turn.push(Action::ShowDead(namespace, ns.dead.clone()));
        self.fail_groups(namespace, turn);
        self.on_contributed(namespace, turn);
    }

    /// A piece of the epoch of a fence has arrived: forwards it at once.
    pub(super) fn on_piece(&mut self, namespace: NamespaceId, number: u32, piece: Piece, turn: &mut Turn<'_>) {
        let adopts = self.adopts();
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if number != ns.exchange.fence.number() {
            return;
        }
        match ns.exchange.on_piece(&piece) {
            Ok(Taken::New) => {
                let children = ns.exchange.children.iter();
                let message = || Down::Piece { namespace, number, piece: piece.clone() };
                turn.extend(children.map(|(child, _)| Action::ToChild(*child, message())));
            }
            Ok(Taken::Known) => {}
            // A new parent may send this piece before it has read `Rejoined`. It sends it again afterwards.
            Err(PieceError::Misplaced { .. }) if adopts => {}
            Err(error) => self.fail(LossReason::Epoch { number, error }, turn),
        }
    }

    /// Returns the content of a release with the epoch that has arrived in pieces, and its name; `None` if the release has
    /// no effect.
    fn with_pieces(
        &mut self,
        namespace: NamespaceId,
        number: u32,
        content: ReleaseContent,
        turn: &mut Turn<'_>,
    ) -> Option<(ReleaseContent, Option<Blob>)> {
        let (blob, whole): (_, fn(Update) -> ReleaseContent) = match content {
            ReleaseContent::Update(Update::Pieces(blob)) => (blob, ReleaseContent::Update),
            ReleaseContent::Failed(Update::Pieces(blob)) => (blob, ReleaseContent::Failed),
            content => return Some((content, None)),
        };
        let adopts = self.adopts();
        let ns = self.namespaces.get_mut(&namespace).filter(|ns| ns.exchange.fence.number() == number)?;
        let received = ns.exchange.incoming.as_ref().map_or(0, Incoming::received);
        if adopts && received < blob.bytes {
            // The new parent repeats the missing pieces and this release.
            return None;
        }
        let incomplete = PieceError::Incomplete { received, bytes: blob.bytes };
        match ns.exchange.incoming.take().map_or(Err(incomplete), |incoming| incoming.finish(blob)) {
            Ok(epoch) => Some((whole(Update::Epoch(epoch)), Some(blob))),
            Err(error) => {
                self.fail(LossReason::Epoch { number, error }, turn);
                None
            }
        }
    }

    /// The parent releases a fence or a ring.
    pub(super) fn on_release(
        &mut self,
        namespace: NamespaceId,
        number: u32,
        content: ReleaseContent,
        turn: &mut Turn<'_>,
    ) {
        let Some((content, blob)) = self.with_pieces(namespace, number, content, turn) else { return };
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let fence = &ns.exchange.fence;
        let positions = match &content {
            ReleaseContent::Failed(_) => Vec::new(),
            ReleaseContent::Update(_) if fence.is_ring() => return self.fail(LossReason::ReleaseOfFence, turn),
            ReleaseContent::Update(_) => Vec::new(),
            ReleaseContent::Ring(whole) => match fence.ring_positions(number, whole, ns.size) {
                Ok(positions) => positions,
                Err(error) => return self.fail(LossReason::ReleaseOfRing(error), turn),
            },
        };
        // A release out of turn releases no rank and changes nothing.
        let Some((mut released, passed)) = ns.release(turn.now, number) else { return };
        ns.exchange.incoming = None;
        if ns.is_job {
            self.times.on_released(turn.now, number);
            if let Some(tracer) = &mut self.tracer {
                tracer.on_released(turn.now, number);
            }
        }
        // Children go first: their ranks are farther away.
        let to_child = |child, content| Action::ToChild(child, Down::Release { namespace, number, content });
        let (update, failed) = match content {
            ReleaseContent::Update(update) => (update, false),
            ReleaseContent::Failed(update) => (update, true),
            ReleaseContent::Ring(_) => {
                // The position of a child that joins later is not known.
                ns.exchange.last = ns.plan.is_some().then(ReleaseContent::failed);
                let mut answers = Vec::new();
                for (part, position) in positions {
                    match part {
                        RingPart::Child(child) => turn.push(to_child(child, ReleaseContent::Ring(position))),
                        // A rank that has ended since it arrived gets no answer.
                        RingPart::Own(rank) if !released.contains(rank) => {}
                        RingPart::Own(rank) => {
                            let RingPosition { position, from_left, from_right } = position;
                            let answer = Answer::Ring { position, from_left, from_right };
                            answers.push(Action::Answer(namespace, rank, answer));
                        }
                    }
                }
                turn.extend(answers);
                return;
            }
        };
        let content = if failed { ReleaseContent::Failed } else { ReleaseContent::Update };
        ns.exchange.last = ns.plan.is_some().then(|| content(update.clone()));
        let children = ns.exchange.children.iter();
        // They have the pieces.
        let below = || content(blob.map_or_else(|| update.clone(), Update::Pieces));
        turn.extend(children.map(|(child, _)| to_child(*child, below())));
        turn.extend(ns.exchange.cache.release(update).map(|epoch| Action::Publish(namespace, epoch)));
        if failed {
            released.union_with(&passed);
        } else {
            turn.extend(passed.iter().map(|rank| Action::Answer(namespace, rank, Answer::Passed)));
        }
        if !released.is_empty() {
            let release = if failed { Action::FailFence } else { Action::Release };
            turn.push(release(namespace, released));
        }
    }
}
