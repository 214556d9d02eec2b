//! The agent's ranks in fences of groups.

use bytes::Bytes;
use pmi::{Answer, Rank, Ranks};

use super::{Action, Agent, Turn};
use crate::core::failure_policy::FailurePolicy;
use crate::core::group::{self, RankGroup};
use crate::core::ids::NamespaceId;
use crate::core::parent::Parent;

impl Agent {
    /// One of this agent's ranks has arrived at a fence of a group.
    ///
    /// If single ranks start again, the fence fails: a rank that has started again does not know in which fences its
    /// former process has been.
    pub(super) fn on_group_arrived(
        &mut self,
        namespace: NamespaceId,
        rank: Rank,
        group: RankGroup,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) {
        let moves_ranks = self.policy() == FailurePolicy::RestartRank;
        let Some(ns) = self.namespaces.get(&namespace).filter(|ns| ns.own.contains(rank)) else { return };
        let is_whole = group.ranks.last().is_none_or(|last| last.0 < ns.size) && ns.dead.is_disjoint(&group.ranks);
        let ranks: Ranks = std::iter::once(rank).collect();
        let entered = !moves_ranks && is_whole && {
            let entered = group::arrive(self, namespace, group.clone(), (&ranks, payload), turn);
            entered.inspect_err(|error| tracing::debug!(rank = rank.0, %error, "a group fence is refused")).is_ok()
        };
        if !entered {
            self.answer_group(namespace, &group, &ranks, None, turn);
        }
    }

    /// The parent releases a fence of a group. One that has failed here meanwhile is not open.
    pub(super) fn on_group_release(
        &mut self,
        namespace: NamespaceId,
        group: &RankGroup,
        payload: &Bytes,
        turn: &mut Turn<'_>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        if ns.exchange.groups.close(group) {
            group::release(self, namespace, group, payload, turn);
        }
    }

    /// The root has broadcast that ranks have died: all open fences of groups fail.
    pub(super) fn fail_groups(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        for (group, waiting) in ns.exchange.groups.on_deaths(ns.dead.len()) {
            self.answer_group(namespace, &group, &waiting, None, turn);
        }
    }

    /// Answers this agent's ranks among `ranks`, which are in the fence of the group.
    pub(super) fn answer_waiting_in_group(
        &self,
        namespace: NamespaceId,
        group: &RankGroup,
        ranks: &Ranks,
        payload: Option<&Bytes>,
        turn: &mut Turn<'_>,
    ) {
        let Some(ns) = self.namespaces.get(&namespace) else { return };
        let waiting = ns.at(super::Stage::Running).intersection(ranks);
        turn.extend(waiting.iter().map(|rank| {
            let RankGroup { ranks, tag } = group.clone();
            Action::Answer(namespace, rank, Answer::GroupFenced { ranks, tag, payload: payload.cloned() })
        }));
    }
}
