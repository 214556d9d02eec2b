//! The binding that the user has asked for.

use pmi::Rank;
use serde::{Deserialize, Serialize};

use super::cpu_set::CpuSet;
use super::topology::Level;

/// How the ranks of a session are bound. The default binds nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BindingPolicy {
    /// The unit that each rank is bound to.
    pub bind_to: BindTo,
    /// How ranks are distributed within a node; `None`: parts of the kind that they are bound to are filled in their order.
    pub map_within: Option<MapWithin>,
    /// The cores of each rank, or the hardware threads if ranks are bound to such.
    pub cpus_per_rank: Option<u32>,
    /// If a node has fewer places than ranks, several ranks get the same processors. Without this, none of them is bound.
    pub overloads: bool,
    /// The memory that ranks may use.
    pub memory: MemoryPolicy,
    /// Agents report what they have bound.
    pub reports: bool,
    /// All ranks are on one machine, even if their plan names several nodes.
    pub is_one_machine: bool,
    /// The place of each rank among those of its node. Ranks beyond its end have the places by their numbers.
    pub order: Vec<u32>,
}

impl BindingPolicy {
    /// Returns the place of a rank among those of its node; `local` is its number among the node's ranks.
    pub fn place_of(&self, rank: Rank, local: u32) -> u32 {
        self.order.get(rank.0 as usize).copied().unwrap_or(local)
    }
}

/// The unit that each rank is bound to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum BindTo {
    /// To nothing: it may use the processors that its agent may use.
    #[default]
    Nothing,
    /// To an even share of its node, if the resource manager has given the session all processors that it may use there.
    /// Otherwise to nothing.
    Share,
    /// To this many parts of this level. At least 1.
    Parts(Level, u32),
    /// To the processors of this list, in turn. Not empty.
    List(Vec<CpuSet>),
}

/// How ranks are distributed within a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapWithin {
    /// To the parts of this level in turn.
    Each(Level),
    /// This many to the first part of the level, then as many to the next. At least 1.
    Filled(u32, Level),
}

/// The memory that ranks may use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemoryPolicy {
    /// All that their agent may use.
    #[default]
    Inherited,
    /// That of the memory nodes near to the rank's processors.
    Local,
    /// That of these memory nodes.
    Nodes(CpuSet),
}
