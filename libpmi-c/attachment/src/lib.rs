//! A rank's attachment to its PMI server, from inside the process: what libpmi and libpmi2 share.
//!
//! - [`Environment`]: what the process was told when it was started.
//! - [`Attachment`]: initialise, put, fence, get and the rest; whatever the server.
//! - [`c`]: C strings in, C strings out.
//!
//! It lives in somebody else's process: it starts no thread, installs no signal handler, changes no
//! environment, prints nothing, closes no descriptor that it did not open, and never exits.

mod attachment;
pub mod c;
mod clique;
mod environment;
mod error;
mod forked;
mod futex;
mod joined;
mod own;
mod segment;
mod socket;
mod wire;

pub use self::attachment::{Attachment, Entries};
pub use environment::{Environment, EnvironmentError, Server};
pub use error::Error;
pub use joined::Joined;
pub use pmi::board::PutRefusal;
pub use pmi::client::ClientError;
pub use pmi::v1::client::Maxes;
pub use pmi::{SpawnCommand, SpawnRequest, SpawnedJob, limits};
pub use wire::Version;
