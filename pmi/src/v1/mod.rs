//! PMI-1, the "simple" wire protocol: one line per request, one line per reply.
//!
//! - [`command`]: a request as a value, and its line.
//! - [`reply`]: every reply that is ever sent, and what MPI libraries insist on.
//! - [`spawn`]: the one request of several lines.
//! - [`initack`]: what goes before all that on a connection to a port.
//! - `Engine`: what each line of a rank does.
//! - [`client`]: [`Client`], the rank's side.

pub mod client;
pub mod command;
mod engine;
pub mod initack;
pub mod reply;
pub mod spawn;

pub use client::{Client, ClientError};
pub(crate) use engine::Lines;
