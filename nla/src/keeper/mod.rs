//! Keepers: processes that keep nodes in a pool, and start agents on them for one session after the other.
//!
//! A keeper connects to the controller of its pool ([`await_keepers`]) and proves that it knows the key that it has read from
//! standard input. The controller opens channels over that connection. A channel carries the standard streams of one agent, as a
//! remote shell does, so the session that the agent belongs to needs no other way to the node.
//!
//! - `message.rs` has the messages, and `relay.rs` the flow of a channel's streams, which is the same at both ends.
//! - `node.rs` is the keeper: a process with a runtime, and a fork server with one thread, which forks the guardians.
//! - `controller.rs` is the controller's end.
//!
//! This module builds on [`crate::link`], and knows neither [`crate::bootstrap`] nor [`crate::driver`].

mod controller;
#[doc(hidden)]
pub mod fuzzing;
mod message;
mod node;
mod relay;

pub use controller::{AgentStreams, Keeper, KeeperEvent, KeeperNumber, await_keepers, follow_keeper};
pub use message::{AgentSpec, NodeState};
pub use node::{Kept, keep_node, node_state};
