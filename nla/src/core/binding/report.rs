//! Reports to the user how an agent has bound its ranks.

use litemap::LiteMap;
use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::cpu_set::CpuSet;
use super::picture::picture;
use super::policy::{BindTo, BindingPolicy};
use super::seats::{Allowed, Seat, Seating};
use super::topology::{Level, Topology};
use crate::core::words::deserialize_one_line;

/// The bindings of an agent's ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BindingReport {
    /// The bindings, if the user wants them reported.
    pub bound: Vec<BoundRanks>,
    /// A note for the user. Only the agent with the node's first rank reports it.
    pub note: Option<BindingNote>,
}

impl BindingReport {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Ranks of a node with the same binding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BoundRanks {
    /// The ranks.
    pub ranks: Ranks,
    /// They are bound. Otherwise `cpus` are those that their agent may use.
    pub is_bound: bool,
    /// Their processors.
    pub cpus: CpuSet,
    /// Their memory nodes; empty if their memory is not bound.
    pub memory: CpuSet,
    /// A [`picture`](super::picture()) of the binding; empty if the node is too large for one.
    #[serde(deserialize_with = "deserialize_one_line")]
    pub picture: String,
    /// Their devices, as in `gpu 0,1, fpga 0`; empty if they asked for none.
    #[serde(deserialize_with = "deserialize_one_line")]
    pub devices: String,
}

/// Describes the seats and the devices of ranks of a node, one entry for each combination, in the order of the ranks.
pub fn describe(
    topology: &Topology,
    allowed: &Allowed,
    seats: impl IntoIterator<Item = (Rank, Seat, String)>,
) -> Vec<BoundRanks> {
    let mut by_seat: LiteMap<(Seat, String), Ranks> = LiteMap::new();
    for (rank, seat, devices) in seats {
        by_seat.entry((seat, devices)).or_default().insert(rank);
    }
    let described = |((Seat { cpus, memory }, devices), ranks): ((Seat, String), Ranks)| {
        let is_bound = !cpus.is_empty();
        let cpus = if is_bound { cpus } else { allowed.cpus.clone() };
        let picture = picture(topology, &allowed.cpus, &cpus).filter(|_| is_bound).unwrap_or_default();
        BoundRanks { ranks, is_bound, cpus, memory, picture, devices }
    };
    let mut described: Vec<BoundRanks> = by_seat.into_iter().map(described).collect();
    described.sort_by_key(|bound| bound.ranks.first());
    described
}

/// Why a node's ranks are not bound as the user may expect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BindingNote {
    /// The node has fewer places than ranks, so none of them is bound.
    Crowded {
        /// The number of ranks.
        ranks: u32,
        /// The processors of the node that may be used.
        cpus: CpuSet,
        /// How many ranks would fit.
        room: u32,
        /// Each rank would be bound to this many parts ...
        count: u32,
        /// ... of this level.
        level: Level,
    },
    /// Ranks of another session of the user are bound to some of the same processors.
    Shared {
        /// These processors.
        cpus: CpuSet,
    },
    /// Other sessions of the user do not see which processors the ranks are bound to, nor this one theirs.
    Unmarked {
        /// Why they cannot be marked.
        #[serde(deserialize_with = "deserialize_one_line")]
        why: String,
    },
}

impl BindingNote {
    /// Returns the note about a node whose `ranks` are not bound because it has fewer places; `None` if they are bound, or the
    /// user has not asked for it.
    pub fn of_crowded(seating: &Seating, policy: &BindingPolicy, ranks: u32, allowed: &Allowed) -> Option<Self> {
        let (Some(room), &BindTo::Parts(level, count)) = (seating.crowded, &policy.bind_to) else { return None };
        let note = Self::Crowded { ranks, cpus: allowed.cpus.clone(), room, count, level };
        seating.cpus().is_empty().then_some(note)
    }
}
