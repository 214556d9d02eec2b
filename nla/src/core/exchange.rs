//! The exchange of entries in one namespace: the part that is the same for the root and for agents.

use pmi::{Puts, Ranks};

use super::cache::{Cache, CacheLocation, CachePolicy};
use super::fence::{Fence, FenceError};
use super::group::GroupFences;
use super::ids::{AgentId, NamespaceId, Time};
use super::lookup::LookUps;
use super::message::{Contribution, Down, OpenFence, ReleaseContent};
use super::pieces::{Incoming, Piece, PieceBytes, PieceError, Taken, release_messages};
use super::plan::{NamespacePlan, find};
use super::topology::Subtree;

/// The open fence, the open fences of groups, the cache and the open look-ups of one namespace at one place.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) fence: Fence,
    pub(super) groups: GroupFences,
    pub(super) cache: Box<dyn Cache>,
    /// Gets that wait for an answer from another place.
    pub(super) look_ups: LookUps,
    /// The ranks of each child subtree that has ranks, sorted by child. The child may report for these ranks only.
    pub(super) children: Vec<(AgentId, Ranks)>,
    /// The content of the last release, if the session goes on after the loss of an agent: a child that joins again may
    /// have missed it.
    pub(super) last: Option<ReleaseContent>,
    /// The pieces of the open fence's epoch that have arrived.
    pub(super) incoming: Option<Incoming>,
    /// The length of the pieces of epochs.
    pub(super) piece_bytes: PieceBytes,
    /// The ranks that have moved to agents of the subtree.
    pub(super) moved_in: Vec<MoveIn>,
}

/// Ranks of a lost agent that another agent starts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct MoveIn {
    pub(super) to: AgentId,
    pub(super) ranks: Ranks,
    pub(super) incarnation: u32,
}

impl Exchange {
    /// Creates the exchange of the ranks that `plan` places in the subtree `here`, whose head has these `children`.
    pub(super) fn new(
        plan: &NamespacePlan,
        here: Subtree,
        children: &[Subtree],
        policy: CachePolicy,
        piece_bytes: PieceBytes,
    ) -> Self {
        let children = shares(plan, children);
        Self {
            fence: Fence::new(plan.ranks_of(here)),
            groups: GroupFences::default(),
            cache: policy.cache_at(CacheLocation::new(here.head() == AgentId::ROOT, &children)),
            look_ups: LookUps::default(),
            children,
            last: None,
            incoming: None,
            piece_bytes,
            moved_in: Vec::new(),
        }
    }

    /// The open fence, for a new parent.
    pub(super) fn open_fence(&self, namespace: NamespaceId) -> OpenFence {
        let received = self.incoming.as_ref().map_or(0, Incoming::received);
        OpenFence { namespace, number: self.fence.number(), received }
    }

    /// Returns the messages that a child with this `open` fence missed: the release of that fence, or pieces of its epoch.
    pub(super) fn missed(&self, open: OpenFence) -> Vec<Down> {
        let OpenFence { namespace, number, received } = open;
        if number.wrapping_add(1) == self.fence.number() {
            let last = self.last.as_ref();
            let messages =
                |content| release_messages((namespace, number), content, received, (self.piece_bytes, false));
            return last.map(messages).unwrap_or_default();
        }
        let Some((incoming, piece_bytes)) = self.incoming.as_ref().zip(self.piece_bytes) else { return Vec::new() };
        if number != self.fence.number() {
            return Vec::new();
        }
        let pieces = incoming.pieces_from(received, piece_bytes).into_iter();
        pieces.map(|piece| Down::Piece { namespace, number, piece }).collect()
    }

    /// Takes a piece of the open fence's epoch.
    pub(super) fn on_piece(&mut self, piece: &Piece) -> Result<Taken, PieceError> {
        let Some(piece_bytes) = self.piece_bytes else { return Err(PieceError::Unexpected) };
        let incoming = match self.incoming.take() {
            Some(incoming) => incoming,
            None => Incoming::begin(piece)?,
        };
        self.incoming.insert(incoming).push(piece, piece_bytes)
    }

    /// Adds what ranks of `child` contribute to fence `number`.
    pub(super) fn on_gathered(
        &mut self,
        now: Time,
        child: AgentId,
        number: u32,
        ranks: &Ranks,
        contribution: Contribution,
    ) -> Result<(), FenceError> {
        let none = Ranks::new();
        let share = find(&self.children, child).unwrap_or(&none);
        self.fence.arrive(now, child, number, ranks, share, contribution)
    }

    /// Stops waiting for the ranks of `child` that are not among the `ranks` with which its subtree is complete: they
    /// have died. Returns the ones that were not dead before.
    pub(super) fn on_gathered_without(&mut self, child: AgentId, ranks: &Ranks) -> Ranks {
        let missing = find(&self.children, child).map(|share| share.difference(ranks)).unwrap_or_default();
        // Ranks that an earlier `Gathering` has reported are alive.
        self.fence.mark_dead(&missing.difference(self.fence.arrived()))
    }

    /// Hands puts of `child`'s ranks, ahead of fence `number`, to the cache.
    pub(super) fn on_child_put(&mut self, child: AgentId, number: u32, puts: &Puts) -> Result<(), FenceError> {
        let none = Ranks::new();
        self.fence.check_ahead(number, find(&self.children, child).unwrap_or(&none), puts)?;
        self.cache.pass(puts)
    }

    /// Hands puts of the agent's `own` ranks, ahead of the open fence, to the cache.
    pub(super) fn on_own_put(&mut self, own: &Ranks, puts: &Puts) -> Result<(), FenceError> {
        self.fence.check_ahead(self.fence.number(), own, puts)?;
        self.cache.pass(puts)
    }

    /// Lets `heirs` take the place of a lost child. Returns the ranks of the child's former subtree that no heir has, and
    /// the heirs that have ranks.
    pub(super) fn inherit(&mut self, plan: &NamespacePlan, lost: Subtree, heirs: &[Subtree]) -> (Ranks, Vec<AgentId>) {
        let child = lost.head();
        let Ok(at) = self.children.binary_search_by_key(&child, |(child, _)| *child) else { return Default::default() };
        let shares = shares(plan, heirs);
        let with_ranks: Vec<_> = shares.iter().filter(|(_, ranks)| !ranks.is_empty()).map(|(heir, _)| *heir).collect();
        let without = shares.iter().fold(plan.ranks_of(lost), |rest, (_, ranks)| rest.difference(ranks));
        self.children.splice(at..=at, shares);
        self.cache.replace_child(child, &with_ranks, &self.children);
        (without, with_ranks)
    }

    /// Forgets these ranks of children: their agent was lost. `gathered` are the puts of the others that have gone up for the
    /// open fence.
    pub(super) fn move_out(&mut self, ranks: &Ranks, gathered: &[&Puts]) {
        for (_, share) in &mut self.children {
            *share = share.difference(ranks);
        }
        for moved in &mut self.moved_in {
            moved.ranks = moved.ranks.difference(ranks);
        }
        self.moved_in.retain(|moved| !moved.ranks.is_empty());
        self.cache.retract(ranks, gathered);
        self.cache.relocate(&self.children);
    }

    /// Notes that ranks start again on an agent of the subtree: in that of this child, or here if there is none.
    pub(super) fn move_in(&mut self, moved: MoveIn, child: Option<AgentId>) {
        let share = child.and_then(|child| self.children.binary_search_by_key(&child, |(child, _)| *child).ok());
        if let Some(at) = share {
            self.children[at].1.union_with(&moved.ranks);
        }
        self.fence.move_in(&moved.ranks);
        self.moved_in.push(moved);
        self.cache.relocate(&self.children);
    }

    /// The children that have ranks.
    pub(super) fn with_ranks(&self) -> impl Iterator<Item = AgentId> {
        self.children.iter().filter(|(_, ranks)| !ranks.is_empty()).map(|(child, _)| *child)
    }

    /// Whether `child` may ask for this key: it has ranks that can, and not too many look-ups are open.
    pub(super) fn may_get(&self, child: AgentId, key: &[u8]) -> bool {
        find(&self.children, child).is_some() && self.look_ups.admits(self.fence.expected(), key)
    }
}

/// The ranks of each of these subtrees that the plan names. It names spare agents too, which have no ranks.
fn shares(plan: &NamespacePlan, subtrees: &[Subtree]) -> Vec<(AgentId, Ranks)> {
    let named = subtrees.iter().filter(|subtree| plan.names_agents_of(**subtree));
    named.map(|subtree| (subtree.head(), plan.ranks_of(*subtree))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{plan, ranks};

    #[test]
    fn orders_to_take_over_ranks_are_kept_until_the_ranks_have_moved_on() {
        let here = Subtree::whole(3, 1).of(AgentId(1)).unwrap(); // 1 - 2 - 3
        let plan = plan(4, &[(1, "0-1"), (2, "2-3")]);
        let children: Vec<_> = here.children().collect();
        let mut exchange = Exchange::new(&plan, here, &children, CachePolicy::default(), None);
        exchange.move_in(MoveIn { to: AgentId(3), ranks: ranks("2-3"), incarnation: 1 }, Some(AgentId(2)));
        let left = |exchange: &Exchange| exchange.moved_in.iter().map(|moved| moved.ranks.clone()).collect::<Vec<_>>();
        exchange.move_out(&ranks("2"), &[]);
        assert_eq!(left(&exchange), [ranks("3")]);
        exchange.move_out(&ranks("3"), &[]);
        assert_eq!(left(&exchange), []);
    }
}
