//! PMI-1, the "simple" wire protocol: one line per request, one line per reply.
//!
//! - [`command`]: a request as a value, and its line.
//! - [`reply`]: every reply that is ever sent, and what MPI libraries insist on.
//! - [`spawn`]: the one request of several lines.
//! - [`server`]: [`Conversation`], the server's side for one rank.
//! - [`client`]: [`Client`], for demonstration and test programs.

pub mod client;
pub mod command;
mod engine;
mod pending;
pub mod reply;
pub mod server;
pub mod spawn;

pub use client::{Client, ClientError};
pub use server::{Conversation, Facts};
