//! PMI-2: frames of `name=value;`, after one line of PMI-1 that chooses them.
//!
//! - [`pairs`]: what a payload is made of; [`mod@crate::wire::frame`] has what is around it.
//! - [`command`]: a request as a value, and its frame.
//! - [`spawn`]: the one request that is a list of lists.
//! - [`reply`]: every reply that is ever sent, and what MPI libraries insist on.
//! - `Engine`: what each frame of a rank does.
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
