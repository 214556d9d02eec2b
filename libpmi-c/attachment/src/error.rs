//! [`enum@Error`]: why a call on an attachment failed.

use std::io;

use pmi::board::PutRefusal;
use pmi::client::ClientError;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum Error {
    /// PMI is not initialised, is finalised, or was initialised by a parent of this process.
    #[error("PMI is not initialised in this process")]
    NotInitialized,
    /// Connecting to the server failed.
    #[error("failed to connect to the PMI server")]
    Connection(#[source] io::Error),
    /// A request could not be sent, or the server refused it.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The server closed the connection, or sent a reply that cannot be parsed.
    #[error("the PMI server has closed the connection")]
    Disconnected,
    /// The fence ended without a rank that has died.
    #[error("a process of the job has died")]
    RankDied,
    /// No server would accept this put.
    #[error("{0}")]
    Put(PutRefusal),
    /// The puts since the last fence exceed the bound.
    #[error("too many bytes put between fences")]
    Full,
    /// The server does not support this request, or there is no server.
    #[error("the PMI server does not support this")]
    Unsupported,
    /// Another thread waits in a fence.
    #[error("another thread waits in a fence")]
    Busy,
    /// An earlier call panicked or received an invalid reply, so the state of the connection is unknown.
    #[error("an earlier failure has left the PMI connection unusable")]
    Broken,
}
