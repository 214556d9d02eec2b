//! The exchange of entries in one namespace: the part that is the same for the root and for agents.

use std::collections::BTreeMap;

use pmi::{Puts, Ranks};

use super::cache::{Cache, CacheLocation, CachePolicy};
use super::fence::{Fence, FenceError};
use super::ids::{AgentId, Time};
use super::lookup::LookUps;
use super::message::Contribution;

/// The open fence, the cache and the open look-ups of one namespace at one member of the tree.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) fence: Fence,
    pub(super) cache: Box<dyn Cache>,
    /// Gets that wait for an answer from another member of the tree.
    pub(super) look_ups: LookUps,
    /// The ranks of each child subtree that has ranks. The child may report for these ranks only.
    pub(super) children: BTreeMap<AgentId, Ranks>,
}

impl Exchange {
    /// Creates the exchange of `ranks`, which include the ranks of `children`.
    pub(super) fn new(ranks: Ranks, children: BTreeMap<AgentId, Ranks>, is_root: bool, policy: CachePolicy) -> Self {
        Self {
            fence: Fence::new(ranks),
            cache: policy.cache_at(CacheLocation::new(is_root, &children)),
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
        let share = self.children.get(&child).unwrap_or(&none);
        self.fence.arrive(now, child, number, ranks, share, contribution)
    }

    /// Hands puts of `child`'s ranks, ahead of fence `number`, to the cache.
    pub(super) fn on_child_put(&mut self, child: AgentId, number: u32, puts: &Puts) -> Result<(), FenceError> {
        let none = Ranks::new();
        self.fence.check_ahead(number, self.children.get(&child).unwrap_or(&none), puts)?;
        self.cache.pass(puts)
    }

    /// Hands puts of the agent's `own` ranks, ahead of the open fence, to the cache.
    pub(super) fn on_own_put(&mut self, own: &Ranks, puts: &Puts) -> Result<(), FenceError> {
        self.fence.check_ahead(self.fence.number(), own, puts)?;
        self.cache.pass(puts)
    }

    /// Whether `child` may ask for this key: it has ranks that can, and not too many look-ups are open.
    pub(super) fn may_get(&self, child: AgentId, key: &[u8]) -> bool {
        self.children.contains_key(&child) && self.look_ups.admits(self.fence.expected(), key)
    }
}
