//! The ranks of a lost agent start again on another one, while the others go on.

use pmi::Ranks;

use super::{Notice, Phase, Root, RootAction, SIGTERM, Turn};
use crate::core::cause::{Cause, Failure};
use crate::core::exchange::MoveIn;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::message::Down;
use crate::core::parent::Parent;
use crate::core::placement::shelter;
use crate::core::reason::LossReason;

/// Ranks whose agent was lost, until they start again.
#[derive(Debug)]
pub(super) struct Homeless {
    pub(super) agent: AgentId,
    namespace: NamespaceId,
    pub(super) ranks: Ranks,
    /// The lost agent may run them until then.
    pub(super) until: Time,
}

impl Root {
    /// Takes the loss of an agent whose ranks can move. Returns false if they cannot: the session ends.
    pub(super) fn on_movable_loss(&mut self, failure: &Failure, turn: &mut Turn<'_>) -> bool {
        let is_allowed = failure.is_loss() && self.session.moves_ranks() && matches!(self.phase, Phase::Running);
        if !is_allowed {
            return false;
        }
        let lost = failure.agent;
        let (ranks, can_move) = self.left_at(lost);
        let is_spare = self.is_spare(lost);
        if ranks && (!can_move || self.restarts.done >= self.restarts.max) {
            let why = if can_move { Notice::NoRestartLeft(self.restarts.max) } else { Notice::NoSpare };
            turn.push(RootAction::Notice(why));
            return false;
        }
        self.note_lost(failure, turn);
        if ranks {
            self.restarts.done += 1;
            let (number, of) = (self.restarts.done, self.restarts.max);
            let wait = self.time_to_end(lost, Some(failure));
            turn.push(RootAction::Notice(Notice::Reviving { failure: failure.clone(), number, of, wait }));
            self.restarts.losses.push(failure.clone());
        } else {
            turn.push(RootAction::Notice(Notice::Failure(failure.clone())));
            if !is_spare {
                // Its ranks had ended, but their last output may be lost.
                self.failures.push(failure.clone());
            }
        }
        true
    }

    /// Whether a lost agent had ranks that have not ended, and whether all of them can move.
    fn left_at(&self, lost: AgentId) -> (bool, bool) {
        let (mut any, mut can_move) = (false, true);
        for (id, ns) in &self.namespaces {
            let placed = ns.plan.ranks_at(lost).map(|ranks| ns.not_gone(ranks)).unwrap_or_default();
            let of_it = |homeless: &&Homeless| homeless.agent == lost && homeless.namespace == *id;
            let known = self.restarts.homeless.iter().find(of_it).map_or(0, |homeless| homeless.ranks.len());
            let count = placed.len() + known;
            any |= count > 0;
            can_move &= count == 0 || shelter(&ns.plan.placement, &self.nodes, &self.lost, lost, count).is_some();
        }
        (any, can_move)
    }

    /// Ranks have lost their agent: only the root waits for them in the open fence.
    pub(super) fn on_homeless(&mut self, namespace: NamespaceId, agent: AgentId, ranks: &Ranks, now: Time) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let ranks = ns.move_out(agent, ranks);
        if !ranks.is_empty() {
            let loss = self.restarts.losses.iter().find(|loss| loss.agent == agent);
            let until = now + self.time_to_end(agent, loss);
            self.restarts.homeless.push(Homeless { agent, namespace, ranks, until });
        }
    }

    /// Restarts the ranks whose lost agents must have ended them by now.
    pub(super) fn move_homeless(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let namespaces = &self.namespaces;
        self.restarts.homeless.retain(|homeless| namespaces.contains_key(&homeless.namespace));
        // No agent comes later that could take them over.
        if let Some(stranded) = self.restarts.homeless.iter().find(|homeless| self.shelter_of(homeless).is_none()) {
            return self.give_up(stranded.agent, turn);
        }
        let (due, later) = self.restarts.homeless.drain(..).partition(|homeless| turn.now >= homeless.until);
        self.restarts.homeless = later;
        let due: Vec<Homeless> = due;
        let mut has_moved = false;
        for homeless in due {
            // Others may have moved there meanwhile.
            let Some(to) = self.shelter_of(&homeless) else { return self.give_up(homeless.agent, turn) };
            let Homeless { agent, namespace, ranks, .. } = homeless;
            let Some(ns) = self.namespaces.get_mut(&namespace) else { continue };
            let incarnation = self.restarts.done;
            let child = self.children.toward(to);
            ns.move_in(MoveIn { to, ranks: ranks.clone(), incarnation }, child);
            if namespace == self.job {
                self.restarts.move_to(agent, to, &ranks);
                has_moved = true;
            }
            turn.extend(
                child.map(|child| Self::send(child, Down::MoveIn { agent: to, namespace, ranks, incarnation })),
            );
        }
        if has_moved && let Some(ns) = self.namespaces.get(&self.job) {
            let placement = ns.plan.placement.iter().filter(|(_, ranks)| !ranks.is_empty()).cloned().collect();
            turn.push(RootAction::Notice(Notice::Moved(placement)));
        }
    }

    /// Returns the agent that can take over these ranks now.
    fn shelter_of(&self, homeless: &Homeless) -> Option<AgentId> {
        let placement = &self.namespaces.get(&homeless.namespace)?.plan.placement;
        shelter(placement, &self.nodes, &self.lost, homeless.agent, homeless.ranks.len())
    }

    /// Ends the session: no agent is left that can start the ranks of the lost one.
    fn give_up(&mut self, lost: AgentId, turn: &mut Turn<'_>) {
        let loss = self.restarts.losses.iter().find(|loss| loss.agent == lost).cloned();
        let cause = || Cause::Lost { why: LossReason::Reported("it was lost".to_owned()) };
        self.failures.push(loss.unwrap_or_else(|| Failure::of_agent(turn.now, lost, cause())));
        turn.push(RootAction::Notice(Notice::NoSpare));
        self.end(self.elected(), SIGTERM, "no agent can take over the ranks of a lost one", turn);
    }
}
