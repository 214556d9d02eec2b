//! The handshake on a connection to a port (`PMI_PORT`), by which the server learns the rank.

use thiserror::Error;

use super::command::{Command, ParseError};
use super::reply::Reply;
use crate::Rank;
use crate::rank_state::JobAttributes;

/// Why a line is not the `initack` that opens a conversation on a port.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum InitackError {
    /// The line is not a request, or an `initack` without a rank.
    #[error("failed to read the first line on the PMI port: peer {0}")]
    Parse(#[from] ParseError),
    /// The line is another request.
    #[error("first line on the PMI port is not initack")]
    OtherCommand,
}

/// Returns the rank that the first line on a connection to a port (`PMI_PORT`) names.
///
/// The line proves nothing: the caller checks that the rank exists and which user owns the peer. A rank that has
/// finalised may connect again and begin a new conversation.
pub fn parse(line: &[u8]) -> Result<Rank, InitackError> {
    match Command::parse(line)? {
        Command::Initack { rank } => Ok(Rank(rank)),
        _ => Err(InitackError::OtherCommand),
    }
}

/// Returns the four lines that answer an `initack`, in the order in which clients read them.
pub fn reply(attributes: &JobAttributes, rank: Rank) -> Vec<u8> {
    let mut out = Vec::new();
    Reply::Initack { size: attributes.size, rank: rank.0 }.write(&mut out);
    out
}
