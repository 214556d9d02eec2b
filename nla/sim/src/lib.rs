//! The tree in simulation: the real cores, virtual time, a million ranks on one machine.
//!
//! A run has a root, its agents and their ranks, but no process, no socket and no clock. The cores
//! ([`nla::core::Root`], [`nla::core::Agent`]) are those of the product, and so are their messages, whose
//! sizes on the wire are known to the byte; how long things take is what [`Costs`] says. Ranks are
//! counters that go through a program. The same [`Spec`], or [`Scenario`], gives the same run, event by
//! event.
//!
//! - [`run`] answers how long and how much: a job of so many nodes, ranks, and so on, in a [`Report`].
//! - [`Scenario`] answers whether it is right: a small job with everything that can go wrong, drawn from
//!   a seed, and an oracle that knows what ranks have to see.
//!
//! What is not here: output, input, spawns, rings, suspension, names.
#![forbid(unsafe_code)]

mod agents;
mod costs;
mod events;
mod faults;
mod links;
mod oracle;
mod processors;
mod program;
mod random;
mod ranks;
mod report;
mod scenario;
mod setup;
mod spec;
mod values;
mod world;

pub use costs::Costs;
pub use faults::{Fault, Faults, Mutation, Timed};
pub use oracle::Violation;
pub use program::Pattern;
pub use report::{FenceMessages, FenceReport, GetsReport, Level, Memory, Report, Traffic};
pub use scenario::{Placement, Scenario};
pub use spec::{Bounds, Refusal, Spec, run};
