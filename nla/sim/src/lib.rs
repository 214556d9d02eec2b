//! Simulates the tree: the real cores in virtual time, up to a million ranks on one machine.
//!
//! A run has a root, its agents and their ranks, but no process, socket or clock. The cores ([`nla::core::Root`],
//! [`nla::core::Agent`]) and their messages are those of the product, so the size of each message on the wire is
//! exact. [`Costs`] says how long each operation takes. A rank is a position in a program. The same [`Spec`] or
//! [`Scenario`] always gives the same sequence of events.
//!
//! - [`run`] measures a job of a given size: times, traffic and memory, in a [`Report`].
//! - [`Scenario`] checks correctness: it draws a small job and its faults from a seed, and compares what the ranks
//!   see with what they must see.
//!
//! Not simulated: output, input, spawns, rings, suspension, published names.
#![forbid(unsafe_code)]

mod agents;
mod casualties;
mod costs;
mod events;
mod faults;
mod ledger;
mod links;
mod oracle;
mod processors;
mod program;
mod random;
mod ranks;
mod rejoining;
mod report;
mod restarting;
mod scenario;
mod setup;
mod spec;
mod values;
mod world;

pub use costs::{BoardCosts, Costs};
pub use faults::{Fault, Faults, Mutation, TimedFault};
pub use oracle::Violation;
pub use program::Pattern;
pub use report::{FenceMessages, FenceReport, GetsReport, Level, Memory, Report, Traffic};
pub use scenario::{Placement, Scenario};
pub use spec::{Bounds, Refusal, Spec, run};
