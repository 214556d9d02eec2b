//! The binding of ranks to processors and memory: which part of its node each rank gets.
//!
//! [`seats()`] is a function of the node's [`Topology`], of what the agent is [`Allowed`], of the session's
//! [`BindingPolicy`] and of the number of ranks on the node. Each agent computes it for its node, so a plan carries only
//! the policy, and nodes of one session may differ.

mod cpu_set;
mod hardware;
mod picture;
mod policy;
mod report;
mod seats;
mod topology;

pub use cpu_set::{CpuSet, CpuSetError};
pub use hardware::{Cache, Hardware, Memory, PartKind};
pub use picture::picture;
pub use policy::{BindTo, BindingPolicy, MapWithin, MemoryPolicy};
pub use report::{BindingNote, BindingReport, BoundRanks, describe};
pub use seats::{Allowed, BindingError, Seat, Seating, seats};
pub use topology::{Level, Topology};

#[cfg(test)]
mod properties;
