//! PMI: wire formats, protocol engines and the bulletin board.
//!
//! **This crate does no I/O.** It opens no socket, reads no clock, starts no thread and draws no random number; the same
//! input gives the same output. The host (the agent, libpmi, a test) owns descriptors and waits.
//!
//! - [`rank`], [`ranks`], [`mapping`]: ranks, sets of ranks, and the node of each rank.
//! - [`request`]: the requests of a rank to its agent, the same for both protocol versions.
//! - [`board`]: the bulletin board: batches of puts that go up the tree, epochs that come down, the node's cache.
//! - [`conversation`]: the server's side for one rank, in either protocol version.
//! - [`segment`]: the layout of the board in shared memory.
//! - [`wire`]: framing and tokens of both protocol versions.
//! - [`v1`], [`v2`]: PMI-1 and PMI-2: commands, replies and a client of each.
//! - [`client`]: the connection and errors of both clients.
//! - [`limits`]: every bound of this crate.
#![forbid(unsafe_code)]

pub mod board;
pub mod client;
pub mod conversation;
mod engine;
pub mod limits;
pub mod mapping;
mod pmix;
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
pub use pmix::{JobDescription, Meeting, Met, PmixAnswer, PmixRequest, PostRange, ProgramDescription};
pub use rank::Rank;
pub use rank_state::{JobAttributes, MEMORY_ALLOC_KINDS, TOPOLOGY_FILE};
pub use ranks::Ranks;
pub use request::{Answer, NameError, Request, RootRequest, SpawnCommand, SpawnRequest, SpawnedJob};
