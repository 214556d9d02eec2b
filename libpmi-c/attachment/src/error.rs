//! [`enum@Error`]: why a call on an attachment failed.

use std::io;

use pmi::board::PutRefusal;
use pmi::client::ClientError;
use thiserror::Error;

use crate::environment::EnvironmentError;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum Error {
    /// PMI is not initialised, is finalised, or was initialised by a parent of this process.
    #[error("PMI is not initialised in this process")]
    NotJoined,
    /// The environment says nothing that could be done.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// There is no connection to be had.
    #[error("failed to connect to the PMI server")]
    Connection(#[source] io::Error),
    /// The server could not be asked, or said no.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The server went away, or said what nobody understands.
    #[error("PMI server is gone")]
    Gone,
    /// A put that no server would take.
    #[error("{0}")]
    Put(PutRefusal),
    /// More was put since the last fence than is held.
    #[error("too many bytes put between fences")]
    Full,
    /// The server cannot do this, or there is none.
    #[error("the PMI server does not offer this")]
    Unsupported,
    /// Another thread waits in a fence.
    #[error("another thread waits in a fence")]
    Busy,
    /// A call before this one has failed by a bug of ours, and left the connection in doubt.
    #[error("the PMI library has failed before")]
    Broken,
}
