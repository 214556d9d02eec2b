//! What PMI *is*: wire formats, protocol engines, the bulletin board.
//!
//! **This crate does no I/O.** It opens no socket, reads no clock, starts no thread and draws no
//! random number; the same bytes in give the same bytes out. Whoever hosts it (the agent, libpmi, a
//! test) owns the descriptors and the waiting.
//!
//! - [`rank`], [`ranks`], [`mapping`]: who is where.
//! - [`request`]: what a rank asks of its agent, whatever interface it speaks.
//! - [`board`]: the bulletin board: batches of puts on their way up, epochs on their way down, the
//!   node's cache.
//! - [`wire`]: framing and tokens shared by the protocol versions.
//! - [`v1`]: PMI-1: commands, replies, the server's engine, a client.
//! - [`limits`]: every bound of this crate, in one place.
#![forbid(unsafe_code)]

pub mod board;
pub mod limits;
pub mod mapping;
pub mod rank;
pub mod ranks;
pub mod request;
pub mod v1;
pub mod wire;

pub use board::{Board, Epoch, EpochError, Put, Puts, PutsError};
pub use mapping::{Block, Mapping};
pub use rank::Rank;
pub use ranks::Ranks;
pub use request::{Answer, NameError, Request, SpawnCommand, SpawnOrder};
