//! Numbers of agents and namespaces, and the session's time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time since the session began, by the root's clock. Agents learn their offset from it when they join, so times of
/// different agents are comparable to about the latency of a link.
pub type Time = Duration;

/// The number of an agent in the tree, in pre-order. The launcher, the root, is number 0.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct AgentId(pub u32);

impl AgentId {
    /// The launcher.
    pub const ROOT: Self = Self(0);
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The process that guards an agent, and the agent. Neither can be mistaken for another process.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GuardianAt {
    /// The machine: all processes that see its processes under the same pids have the same number.
    pub machine: u64,
    /// The guardian's pid, and when it started, in clock ticks since the machine's boot.
    pub guardian: (u32, u64),
    /// The agent's pid and start time, in the same units.
    pub agent: (u32, u64),
}

/// The number of a namespace in its session: 0 for the ranks that the user asked for, then one more for each
/// `MPI_Comm_spawn`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NamespaceId(pub u32);

impl NamespaceId {
    /// The namespace that the session starts with.
    pub const FIRST: Self = Self(0);
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
