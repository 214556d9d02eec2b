//! The node-level agent (NLA), as a library.
//!
//! - [`core`] decides. It has no sockets, no clock and no threads: facts go in, commands come out.
//! - [`wire`] turns the core's messages into bytes and back, and proves who is at the other end.
//! - [`sys`] is the only unsafe code: starting processes, signals, descriptors, the guardian.
//! - [`driver`] runs: it turns the world into inputs and actions into the world.
//!
//! Who may know whom: `driver -> core, wire, sys`; `wire -> core` (for the messages' types);
//! `core -> pmi` and nothing else. `tests/tidy.rs` holds this.

pub mod bootstrap;
pub mod core;
pub mod driver;
pub mod link;
pub mod sys;
pub mod tasks;
pub mod wire;
