//! Cache policies: what a place in the tree keeps of a bulletin board, and where it asks for the rest.
//!
//! Four of them, from the ScELA work (Sridhar and Panda), chosen once for a session:
//!
//! | policy | a put goes up | a fence brings down | a get is answered | kept here |
//! |---|---|---|---|---|
//! | HCS | at once, by itself | which keys were overwritten | here, or by the nearest above that has it | all that passed |
//! | HCMA | with the fence, merged | the same | the same | all that passed |
//! | HCMAB | with the fence, merged | all that was put | here | all |
//! | HCMAB-LRU | with the fence, merged | all that was put | here, or where it was put | `entries` values, own ranks' puts, an index of the subtree |
//!
//! The rest of the core knows a [`Cache`] and not which. Under each a rank sees the same: its own puts
//! at once, those of others after the fence.

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

/// What agents keep of bulletin boards; see the module.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CachePolicy {
    /// Hierarchical caching, simple: each put travels by itself.
    Hcs,
    /// With merging of puts at the fence.
    Hcma,
    /// With merging, and a broadcast of all that was put.
    #[default]
    Hcmab,
    /// As HCMAB, with a bound on the values that a place keeps; the least recently used ones go.
    HcmabLru {
        /// How many values of other places' ranks are kept, at least 1.
        entries: u32,
    },
}

impl CachePolicy {
    /// All policies, with the default bound where there is one.
    pub const ALL: [Self; 4] = [Self::Hcs, Self::Hcma, Self::Hcmab, Self::HcmabLru { entries: CACHE_ENTRIES_DEFAULT }];

    /// Its name as it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hcs => "hcs",
            Self::Hcma => "hcma",
            Self::Hcmab => "hcmab",
            Self::HcmabLru { .. } => "hcmab-lru",
        }
    }

    /// Its bound on cached values, if it has one.
    pub fn entries(self) -> Option<u32> {
        match self {
            Self::HcmabLru { entries } => Some(entries),
            Self::Hcs | Self::Hcma | Self::Hcmab => None,
        }
    }

    /// The same policy with another bound on cached values; `None` if it has no bound.
    pub fn with_entries(self, entries: u32) -> Option<Self> {
        self.entries().map(|_| Self::HcmabLru { entries })
    }

    /// Whether ranks' puts are handed on one by one as they are made.
    pub fn puts_at_once(self) -> bool {
        self == Self::Hcs
    }

    /// The cache of one namespace at one place in the tree.
    pub(super) fn at(self, place: Place) -> Box<dyn Cache> {
        match self {
            Self::Hcs | Self::Hcma => Box::new(on_demand::OnDemand::new(place.is_root)),
            Self::Hcmab => Box::new(broadcast::Broadcast::default()),
            Self::HcmabLru { entries } => Box::new(bounded::Bounded::new(entries, place)),
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no policy of this name.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no such cache policy")]
pub struct UnknownPolicy;

impl FromStr for CachePolicy {
    type Err = UnknownPolicy;

    /// Reads a name, in either case.
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(name)).ok_or(UnknownPolicy)
    }
}

/// Where in the tree a cache is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// There is nobody above to ask.
    pub(super) is_root: bool,
    /// The namespace's ranks below each child, as intervals (first, end, child) in order.
    shares: Vec<(u32, u32, AgentId)>,
}

impl Place {
    pub(super) fn new<'a>(is_root: bool, children: impl IntoIterator<Item = (&'a AgentId, &'a Ranks)>) -> Self {
        let intervals = |(child, ranks): (&AgentId, &'a Ranks)| {
            let child = *child;
            ranks.intervals().iter().map(move |(first, end)| (*first, *end, child))
        };
        let mut shares: Vec<_> = children.into_iter().flat_map(intervals).collect();
        shares.sort_unstable();
        Self { is_root, shares }
    }

    /// The child that has the rank below it; `None`: it is an own one.
    fn child_of(&self, rank: Rank) -> Option<AgentId> {
        let after = self.shares.partition_point(|(first, _, _)| *first <= rank.0);
        let (_, end, child) = self.shares.get(after.checked_sub(1)?)?;
        (rank.0 < *end).then_some(*child)
    }
}

/// Where a key's value is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Here: this is it.
    Stored(Entry),
    /// Nobody has put it.
    Absent,
    /// This child may have it below.
    Child(AgentId),
    /// The parent knows.
    Parent,
}

/// How much a cache has ever held at a time, and what it let go.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CachePeaks {
    /// Most entries that were held at a time, without those of `own` and `index`.
    pub entries: u64,
    /// Bytes of keys and values of these.
    pub bytes: u64,
    /// Most entries of own ranks that had to be kept beside them.
    pub own_entries: u64,
    /// Their bytes.
    pub own_bytes: u64,
    /// Most keys that the index of the subtree had.
    pub index_entries: u64,
    /// Values that were let go, or found no room.
    pub evictions: u64,
}

impl CachePeaks {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Of each number the greater one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    fn with(self, other: Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            entries: both(self.entries, other.entries),
            bytes: both(self.bytes, other.bytes),
            own_entries: both(self.own_entries, other.own_entries),
            own_bytes: both(self.own_bytes, other.own_bytes),
            index_entries: both(self.index_entries, other.index_entries),
            evictions: both(self.evictions, other.evictions),
        }
    }

    /// Raises the peak of entries and bytes.
    fn note(&mut self, entries: usize, bytes: usize) {
        self.entries = self.entries.max(entries as u64);
        self.bytes = self.bytes.max(bytes as u64);
    }
}

/// What one place in the tree keeps of one namespace's board.
///
/// A fence goes [`Cache::pass`] for puts that come ahead of it, [`Cache::gather`] when the subtree has
/// arrived, at the root [`Cache::close`], and everywhere [`Cache::release`].
pub(super) trait Cache: fmt::Debug + Send {
    /// The board as those see it who serve ranks here: whole, or with what this cache keeps.
    fn board(&self) -> Board;

    /// Whether all is on that board, so that nobody has to be asked.
    fn is_whole(&self) -> bool {
        self.board().is_whole()
    }

    /// A put comes by on its way up, ahead of its fence.
    fn pass(&mut self, puts: &Puts) -> Result<(), FenceError>;

    /// The whole subtree has arrived and contribution these puts. Not called at the root.
    fn gather(&mut self, puts: &Puts);

    /// At the root all have arrived and contribution these puts: what everybody is told, and how many
    /// entries were put.
    fn close(&mut self, puts: Puts) -> (Update, usize);

    /// The fence is released with this news. An epoch that comes back is to be published on the
    /// board before any rank goes on.
    fn release(&mut self, news: Update) -> Option<Epoch>;

    /// Where the value of a key is. After asking in vain below, `tried` says of how many children.
    fn look_up(&mut self, key: &[u8], tried: usize) -> Source;

    /// What was asked for is here, or is nowhere. An entry may be kept as it is: its memory is not a
    /// part of something larger that it would keep alive.
    fn learn(&mut self, result: &LookUpResult);

    /// The peaks so far.
    fn peaks(&self) -> CachePeaks;
}

#[cfg(test)]
mod tests;
