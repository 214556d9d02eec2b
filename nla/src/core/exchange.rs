//! The exchange of entries in one namespace: the part that is the same for the root and for agents.

use pmi::{Puts, Ranks};

use super::cache::{Cache, CacheLocation, CachePolicy};
use super::fence::{Fence, FenceError};
use super::ids::{AgentId, Time};
use super::lookup::LookUps;
use super::message::Contribution;
use super::plan::{NamespacePlan, find};
use super::topology::Subtree;

/// The open fence, the cache and the open look-ups of one namespace at one place.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) fence: Fence,
    pub(super) cache: Box<dyn Cache>,
    /// Gets that wait for an answer from another place.
    pub(super) look_ups: LookUps,
    /// The ranks of each child subtree that has ranks, sorted by child. The child may report for these ranks only.
    pub(super) children: Vec<(AgentId, Ranks)>,
}

impl Exchange {
    /// Creates the exchange of the ranks that `plan` places in the subtree `here`.
    pub(super) fn new(plan: &NamespacePlan, here: Subtree, policy: CachePolicy) -> Self {
        let shares = here.children().map(|child| (child.head(), plan.ranks_of(child)));
        let children: Vec<_> = shares.filter(|(_, ranks)| !ranks.is_empty()).collect();
        Self {
            fence: Fence::new(plan.ranks_of(here)),
            cache: policy.cache_at(CacheLocation::new(here.head() == AgentId::ROOT, &children)),
            look_ups: LookUps::default(),
            children,
        }
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
        self.fence.mark_dead(&missing)
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

    /// Whether `child` may ask for this key: it has ranks that can, and not too many look-ups are open.
    pub(super) fn may_get(&self, child: AgentId, key: &[u8]) -> bool {
        find(&self.children, child).is_some() && self.look_ups.admits(self.fence.expected(), key)
    }
}
