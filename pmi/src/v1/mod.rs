//! PMI-1, the "simple" wire protocol: one line per request, one line per reply.
//!
//! - [`command`]: a request as a value and as a line.
//! - [`reply`]: all replies, and what MPI libraries require of them.
//! - [`spawn`]: the one request of several lines.
//! - [`initack`]: the handshake on a connection to a port.
//! - `Lines`: the commands and replies in terms of the engine.
//! - [`client`]: [`Client`], the rank's side.

pub mod client;
pub mod command;
mod engine;
pub mod initack;
pub mod reply;
pub mod spawn;

pub use client::{Client, ClientError};
pub(crate) use engine::Lines;
