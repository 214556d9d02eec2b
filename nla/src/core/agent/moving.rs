//! Ranks whose agent was lost start again on another agent, while the others go on.
//!
//! The parent of the lost agent reports its ranks as moved out: from then on no place on the way to the root expects them,
//! and what they had contributed to the open fence is dropped. Only the root still waits for them. Its order to the agent
//! that takes them over makes the places on the way down expect them again, from the open fence on.

use pmi::Ranks;

use super::{Action, Agent, Turn};
use crate::core::exchange::MoveIn;
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::message::{Down, Up};
use crate::core::parent::Parent;

impl Agent {
    /// Ranks below this agent have lost their agent.
    pub(super) fn on_own_moved_out(
        &mut self,
        namespace: NamespaceId,
        agent: AgentId,
        ranks: &Ranks,
        turn: &mut Turn<'_>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let ranks = ns.move_out(agent, ranks);
        if ranks.is_empty() {
            // An agent that has joined again repeats it.
            return;
        }
        self.requests.retain(|(requester, of, _), _| *requester != agent || *of != namespace);
        turn.push(Action::ToParent(Up::MovedOut { namespace, agent, ranks }));
        // The others may have been waiting for them alone.
        self.on_contributed(namespace, turn);
    }

    /// The launcher lets an agent of this subtree start ranks whose own agent was lost.
    pub(super) fn on_move_in(&mut self, namespace: NamespaceId, moved: MoveIn, turn: &mut Turn<'_>) {
        if !self.is_serving() {
            // The order to end all ranks travels in another lane, and has overtaken this one.
            return;
        }
        let here = self.id();
        let MoveIn { to, ranks, incarnation } = moved.clone();
        let child = self.child_toward(to);
        let Some(ns) = self.namespaces.get_mut(&namespace).filter(|ns| !ns.undone) else { return };
        if self.children.is_lost(to) {
            // When `to` was lost it had no ranks, so its loss was not reported as a move. Report these ranks now.
            return turn.push(Action::ToParent(Up::MovedOut { namespace, agent: to, ranks }));
        }
        if to != here && child.is_none() || !ns.move_in(moved, child) {
            return;
        }
        match child {
            Some(child) => {
                let order = Down::MoveIn { agent: to, namespace, ranks, incarnation };
                turn.push(Action::ToChild(child, order));
            }
            None => turn.extend(ranks.iter().map(|rank| Action::Restart(namespace, rank, incarnation))),
        }
    }
}
