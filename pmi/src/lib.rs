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
//! - [`conversation`]: the server's side for one rank, which speaks either protocol version.
//! - [`segment`]: how the board lies in shared memory.
//! - [`wire`]: framing and tokens shared by the protocol versions.
//! - [`v1`], [`v2`]: PMI-1 and PMI-2: requests, replies, the server's engine, a client.
//! - [`client`]: what the clients of both share.
//! - [`limits`]: every bound of this crate, in one place.
#![forbid(unsafe_code)]

pub mod board;
pub mod client;
pub mod conversation;
mod engine;
pub mod limits;
pub mod mapping;
pub mod rank;
mod rank_state;
pub mod ranks;
pub mod request;
pub mod segment;
mod spawn_fields;
pub mod v1;
pub mod v2;
pub mod wire;

pub use board::{
    Board, CacheLookUp, Entry, Epoch, EpochError, Keys, KeysError, LookUp, LookUpResult, NodeCache, Put, Puts,
    PutsError,
};
pub use conversation::Conversation;
pub use mapping::{Block, Mapping};
pub use rank::Rank;
pub use rank_state::JobAttributes;
pub use ranks::Ranks;
pub use request::{Answer, NameError, Request, SpawnCommand, SpawnRequest, SpawnedJob};
