//! PMI-2: frames of `name=value;`, after one line of PMI-1 that chooses them.
//!
//! - [`pairs`]: the pairs of a payload; [`mod@crate::wire::frame`] has the frame around it.
//! - [`command`]: a request as a value and as a frame.
//! - [`spawn`]: the one request that is a list of lists.
//! - [`reply`]: all replies, and what MPI libraries require of them.
//! - `Frames`: the commands and replies in terms of the engine.
//! - [`client`]: [`Client`], the rank's side.

pub mod client;
pub mod command;
mod engine;
pub mod pairs;
pub mod reply;
pub mod spawn;

pub use crate::client::ClientError;
pub use client::{Client, InitError};
pub(crate) use engine::Frames;
