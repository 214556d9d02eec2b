//! One namespace as the root sees it: its plan, the open fence, and who is gone.

use std::collections::BTreeMap;

use pmi::Ranks;

use crate::core::cache::Cache;
use crate::core::fence::Fence;
use crate::core::ids::{AgentId, Time};
use crate::core::limits::UNFINALIZED_TIME;
use crate::core::lookup::LookUps;
use crate::core::message::{Inquiry, Requester};
use crate::core::plan::NamespacePlan;

/// See the module.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) plan: NamespacePlan,
    pub(super) fence: Fence,
    /// What is kept here of the board.
    pub(super) cache: Box<dyn Cache>,
    /// GetCounts that wait for an answer from below.
    pub(super) look_ups: LookUps,
    /// Child subtrees that have ranks of it; the shares that these may speak for.
    pub(super) children: BTreeMap<AgentId, Ranks>,
    pub(super) unstarted: usize,
    /// Ranks of those child subtrees that were started.
    pub(super) started: u64,
    pub(super) contacted: bool,
    /// Ranks that ended with 0, by the number of fences at which they had arrived.
    pub(super) gone: BTreeMap<u32, Ranks>,
    pub(super) gone_count: u64,
    /// Those of them that had spoken PMI and not finalized, and when the first was heard of.
    pub(super) unfinished: Ranks,
    pub(super) unfinished_since: Option<Time>,
    /// A fence in which somebody waits although it is not complete below.
    pub(super) waiting: Option<u32>,
    /// The rank that spawned it and has not been answered yet.
    pub(super) requester: Option<Requester>,
    pub(super) undone: bool,
}

impl Namespace {
    pub(super) fn is_over(&self) -> bool {
        self.undone || self.gone_count >= u64::from(self.plan.size)
    }

    /// Ranks that have ended where they should not have, and whether others wait for them in a
    /// fence.
    pub(super) fn left(&self, now: Time) -> Option<(Ranks, bool)> {
        if self.is_over() {
            return None;
        }
        let missed = self.missed();
        if !missed.is_empty() {
            return Some((missed, true));
        }
        let late = self.unfinished_since.is_some_and(|since| now >= since + UNFINALIZED_TIME);
        late.then(|| (self.unfinished.clone(), false))
    }

    /// Whether `child` may pass this on: it comes from a rank of its own, to who owns its node.
    pub(super) fn may_inquire(&self, child: AgentId, inquiry: &Inquiry) -> bool {
        let requester = inquiry.requester;
        let theirs = self.children.get(&child).is_some_and(|ranks| ranks.contains(requester.rank));
        theirs && self.plan.owner_of(requester.agent) == inquiry.to && inquiry.kind.is_of_rank()
    }

    /// An agent that has ranks of it and so its board: the requester's own, or, so that not all ask the
    /// same, one picked by the requester's number.
    pub(super) fn agent_for(&self, requester: AgentId) -> Option<AgentId> {
        let placement = &self.plan.placement;
        let at = placement.binary_search_by_key(&requester, |(agent, _)| *agent);
        let at = at.unwrap_or(requester.0 as usize % placement.len().max(1));
        placement.get(at).map(|(agent, _)| *agent)
    }

    /// Ranks that have ended and for which others wait in the open fence.
    fn missed(&self) -> Ranks {
        let mut missed = Ranks::new();
        let open = self.fence.number();
        if self.fence.since().is_some() || self.waiting == Some(open) {
            for (_, ranks) in self.gone.range(..=open) {
                missed.union_with(ranks);
            }
        }
        missed
    }
}
