//! Names of things that a session has many of.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time since the session began, as the root's clock has it. Agents learn their offset when they
/// join, so that times of different agents can be compared to about the latency of a link.
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

/// The number of a namespace in its session: 0 for the ranks that the user asked for, then one
/// more for each `MPI_Comm_spawn`.
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
