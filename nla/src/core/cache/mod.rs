//! Cache policies: which entries of a bulletin board a place stores, and where it asks for the others.
//!
//! A place is the launcher at the root of the tree, or an agent. The four policies are those of the ScELA work
//! (Sridhar and Panda); one of them is chosen for a session:
//!
//! | policy | a put goes up | a fence brings down | a get is answered | stored |
//! |---|---|---|---|---|
//! | HCS | at once, separately | the overwritten keys | here, or by the nearest ancestor that has the entry | all that passed |
//! | HCMA | with the fence, merged | the overwritten keys | here, or by the nearest ancestor that has the entry | all that passed |
//! | HCMAB | with the fence, merged | all entries that were put | here | all |
//! | HCMAB-LRU | with the fence, merged | all entries that were put | here, or by the agent whose rank put the entry | `entries` values, the puts of its ranks, an index of the subtree |
//!
//! The rest of the core uses the trait [`Cache`] and does not depend on the policy. Under every policy, a rank sees its
//! own puts at once and the puts of other ranks after the fence.

mod bounded;
mod broadcast;
mod on_demand;

use std::fmt;
use std::str::FromStr;

use pmi::{Board, Entry, Epoch, LookUpResult, Puts, Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::fence::FenceError;
use super::ids::AgentId;
use super::limits::CACHE_ENTRIES_DEFAULT;
use super::message::Update;

/// The rule by which agents store entries of bulletin boards.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CachePolicy {
    /// HCS, hierarchical caching, simple: each put is sent separately.
    Hcs,
    /// HCMA: as HCS, but puts are merged at the fence.
    Hcma,
    /// HCMAB: puts are merged at the fence, and all of them are broadcast with its release.
    #[default]
    Hcmab,
    /// HCMAB-LRU: as HCMAB, with a bound on the stored values. The least recently used ones are evicted.
    HcmabLru {
        /// How many values of other agents' ranks are stored, at least 1.
        entries: u32,
    },
}

impl CachePolicy {
    /// All policies, with the default bound for those that have one.
    pub const ALL: [Self; 4] = [Self::Hcs, Self::Hcma, Self::Hcmab, Self::HcmabLru { entries: CACHE_ENTRIES_DEFAULT }];

    /// The name as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hcs => "hcs",
            Self::Hcma => "hcma",
            Self::Hcmab => "hcmab",
            Self::HcmabLru { .. } => "hcmab-lru",
        }
    }

    /// Returns the bound on stored values, if the policy has one.
    pub fn entries(self) -> Option<u32> {
        match self {
            Self::HcmabLru { entries } => Some(entries),
            Self::Hcs | Self::Hcma | Self::Hcmab => None,
        }
    }

    /// Returns this policy with another bound on stored values, or `None` if the policy has no bound.
    pub fn with_entries(self, entries: u32) -> Option<Self> {
        self.entries().map(|_| Self::HcmabLru { entries })
    }

    /// Returns whether each put is sent separately as soon as a rank makes it.
    pub fn puts_at_once(self) -> bool {
        self == Self::Hcs
    }

    /// Makes the cache of one namespace at `location`.
    pub(super) fn cache_at(self, location: CacheLocation) -> Box<dyn Cache> {
        match self {
            Self::Hcs | Self::Hcma => Box::new(on_demand::OnDemand::new(location.is_root)),
            Self::Hcmab => Box::new(broadcast::Broadcast::default()),
            Self::HcmabLru { entries } => Box::new(bounded::Bounded::new(entries, location)),
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy has this name.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no such cache policy")]
pub struct UnknownPolicy;

impl FromStr for CachePolicy {
    type Err = UnknownPolicy;

    /// Parses a name, in either case.
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(name)).ok_or(UnknownPolicy)
    }
}

/// The location of a cache in the tree.
#[derive(Clone, Debug)]
pub(super) struct CacheLocation {
    /// There is no parent to ask.
    is_root: bool,
    /// The namespace's ranks below each child, as sorted intervals (first, end, child).
    shares: Vec<(u32, u32, AgentId)>,
}

impl CacheLocation {
    pub(super) fn new(is_root: bool, children: &[(AgentId, Ranks)]) -> Self {
        Self { is_root, shares: Vec::new() }.with(children)
    }

    /// The same location with other children.
    fn with(&self, children: &[(AgentId, Ranks)]) -> Self {
        let mut shares = Vec::new();
        for (child, ranks) in children {
            shares.extend(ranks.intervals().iter().map(|(first, end)| (*first, *end, *child)));
        }
        shares.sort_unstable();
        Self { is_root: self.is_root, shares }
    }

    /// The child that has `rank` in its subtree; `None` for one of this agent's ranks, and for one of a lost child's own:
    /// no other agent has its entries.
    fn child_of(&self, rank: Rank) -> Option<AgentId> {
        let after = self.shares.partition_point(|(first, _, _)| *first <= rank.0);
        let (_, end, child) = self.shares.get(after.checked_sub(1)?)?;
        (rank.0 < *end).then_some(*child)
    }
}

/// The source of the value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// This cache stores the entry.
    Stored(Entry),
    /// No rank has put the key.
    Absent,
    /// An agent in this child's subtree may have the entry.
    Child(AgentId),
    /// The parent has the entry, or knows where to ask.
    Parent,
}

/// The most that a cache ever stored at a time, and how many values it evicted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CachePeaks {
    /// Most entries at a time, without those counted in `own_entries` and `index_entries`.
    pub entries: u64,
    /// Bytes of the keys and values of these entries.
    pub bytes: u64,
    /// The maximum number of entries of this agent's ranks that were stored in addition.
    pub own_entries: u64,
    /// Bytes of these.
    pub own_bytes: u64,
    /// Most keys in the index of the subtree.
    pub index_entries: u64,
    /// Values that were evicted, or for which there was no room.
    pub evictions: u64,
}

impl CachePeaks {
    /// Adds up both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// The greater of the two, number by number.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }

    fn combine(self, other: Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            entries: both(self.entries, other.entries),
            bytes: both(self.bytes, other.bytes),
            own_entries: both(self.own_entries, other.own_entries),
            own_bytes: both(self.own_bytes, other.own_bytes),
            index_entries: both(self.index_entries, other.index_entries),
            evictions: both(self.evictions, other.evictions),
        }
    }

    /// Raises the peaks of entries and bytes to these.
    fn note(&mut self, entries: usize, bytes: usize) {
        self.entries = self.entries.max(entries as u64);
        self.bytes = self.bytes.max(bytes as u64);
    }
}

/// The part of one namespace's board that one place stores.
///
/// The calls of a fence are [`Cache::pass`] for each put ahead of it, then [`Cache::gather`] when all ranks of the
/// subtree have arrived (at the root [`Cache::close`] instead), then [`Cache::release`].
pub(super) trait Cache: fmt::Debug + Send {
    /// Returns the board for the tasks that serve ranks here: a complete one, or one with this cache's entries.
    fn board(&self) -> Board;

    /// Whether that board is complete, so that no peer has to be asked.
    fn is_whole(&self) -> bool {
        self.board().is_whole()
    }

    /// Takes puts that pass on their way up, ahead of their fence.
    /// Refused by default: under most policies puts travel with their fence, and these would be lost.
    fn pass(&mut self, _puts: &Puts) -> Result<(), FenceError> {
        Err(FenceError::EarlyPut)
    }

    /// Takes the puts of the whole subtree, all of whose ranks have arrived. Not called at the root.
    fn gather(&mut self, puts: &Puts);

    /// Takes the puts of all ranks at the root. Returns the update for all agents, and the number of entries put.
    fn close(&mut self, puts: Puts) -> (Update, usize);

    /// Applies the update of a release. An epoch that is returned has to be published on the board before any rank is
    /// released.
    fn release(&mut self, update: Update) -> Option<Epoch>;

    /// Returns the source of a key's value, after `tried` children were asked and did not have it.
    fn look_up(&mut self, key: &[u8], tried: usize) -> Source;

    /// Stores the answer of a peer. The entry owns its memory: storing it keeps no larger buffer alive.
    fn learn(&mut self, result: &LookUpResult);

    /// The subtrees of `heirs` are now those of children, in place of a lost child. `children` has the ranks of each
    /// child.
    fn replace_child(&mut self, _lost: AgentId, _heirs: &[AgentId], _children: &[(AgentId, Ranks)]) {}

    /// Forgets what these ranks have put since the last release: their agent was lost, and they will put it again.
    /// `gathered` are the puts of the others that [`Cache::gather`] has taken since.
    fn retract(&mut self, _ranks: &Ranks, _gathered: &[&Puts]) {}

    /// `children` has the ranks of each child: some have moved.
    fn relocate(&mut self, _children: &[(AgentId, Ranks)]) {}

    /// The peaks so far.
    fn peaks(&self) -> CachePeaks;
}

#[cfg(test)]
mod tests;
