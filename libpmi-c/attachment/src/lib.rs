//! A rank's attachment to its PMI server, in the rank's process: the code that libpmi and libpmi2 share.
//!
//! - [`Environment`]: the PMI variables that the launcher has set.
//! - [`Attachment`]: initialise, put, fence, get and the other requests, whatever the server.
//! - [`c`]: C strings, arrays and result codes.
//! - [`spawn`]: the C arrays of a spawn call.
//!
//! The crate runs inside other people's programs: it starts no thread, installs no signal handler,
//! changes no environment variable, prints nothing but the message of an abort, closes no descriptor
//! that it did not open, and never exits.

mod attachment;
pub mod c;
mod client;
mod clique;
mod environment;
mod error;
mod forked;
mod futex;
mod member;
mod own_puts;
mod replies;
mod segment;
mod socket;
pub mod spawn;

pub use self::attachment::{Attachment, Entries};
pub use client::{SCELA_MAXES, Version};
pub use environment::{Environment, EnvironmentError, ServerAddress};
pub use error::Error;
pub use member::Member;
pub use pmi::board::PutRefusal;
pub use pmi::client::ClientError;
pub use pmi::v1::client::Maxes;
pub use pmi::{Rank, Ranks, SpawnCommand, SpawnRequest, SpawnedJob, limits};
