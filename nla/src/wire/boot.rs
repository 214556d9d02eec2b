//! What goes over a bootstrap channel: the input and output of the process that starts an agent.
//!
//! The launcher writes a [`BootOrder`] with the session's key, and, when it is known, the address
//! of the agent's parent. The agent answers with [`BootReport`]s. Such a channel is dirty: a shell
//! may greet first. So the agent's first bytes are a marker that the order named, and up to
//! [`GREETING_BYTES_MAX`] bytes before it are skipped.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::hello::{SessionId, SessionKey};
use crate::core::AgentId;
use crate::core::limits::GREETING_BYTES_MAX;

/// Bytes of the marker.
pub const MARKER: usize = 16;

/// All that an agent needs to find its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootOrder {
    /// The session's public name.
    pub session: SessionId,
    /// The session's key.
    pub key: SessionKey,
    /// The agent's first bytes on its output must be these.
    pub marker: [u8; MARKER],
    /// Which agent it is.
    pub agent: AgentId,
    /// How many agents there are.
    pub agents: u32,
    /// The tree's fan-out.
    pub fanout: u32,
    /// What `ps` shows and messages say for this session.
    pub label: String,
    /// How long silence on a link or from the guardian means nothing.
    pub dead_time: Duration,
}

/// Where the agent's parent listens; follows the order as soon as it is known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParentAddress(pub SocketAddr);

/// What an agent tells its launcher before it is part of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BootReport {
    /// It is there.
    Listening {
        /// Where its children may connect; none if it will have none.
        address: Option<SocketAddr>,
        /// The name of its host, as the host has it.
        host: String,
        /// How many descriptors it may open.
        descriptors: u64,
    },
    /// It is connected to its parent; the channel is not needed any more.
    Joined,
    /// It cannot go on.
    Failed {
        /// Why.
        why: String,
    },
}

/// A channel said more than [`GREETING_BYTES_MAX`] bytes, and no marker among them.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("its channel said {GREETING_BYTES_MAX} bytes, none of them from an agent")]
pub struct NoMarker;

/// Where the bytes after `marker` begin in what a channel has said so far; `None` while it may
/// still come.
pub fn marked(said: &[u8], marker: &[u8; MARKER]) -> Result<Option<usize>, NoMarker> {
    match said.windows(MARKER).position(|window| window == marker) {
        Some(at) => Ok(Some(at + MARKER)),
        None if said.len() > GREETING_BYTES_MAX + MARKER => Err(NoMarker),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_skipped_up_to_their_bound() {
        let marker = [9; MARKER];
        let mut said = b"Welcome to the cluster!\r\n".to_vec();
        assert_eq!(marked(&said, &marker), Ok(None));
        said.extend_from_slice(&marker);
        assert_eq!(marked(&said, &marker), Ok(Some(said.len())));
        assert_eq!(marked(&vec![b'x'; GREETING_BYTES_MAX + MARKER + 1], &marker), Err(NoMarker));
    }
}
