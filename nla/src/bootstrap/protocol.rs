//! What goes over a bootstrap channel: the input and output of the process that starts an agent.
//!
//! Who starts an agent writes a [`BootOrder`] with the session's key, and then [`BootCommand`]s; the
//! agent answers with [`BootReport`]s. An agent that has started others passes on what it and they say
//! to each other. The channel is over when the agent and all that it has started have joined the tree.
//!
//! A session that need not last is closed as soon as there is a better channel: its order says where who has
//! opened it listens, the agent connects there as to a parent, and says everything over that connection. On
//! its output come only its marker and, if it cannot connect, why.
//!
//! Where one command starts many agents, they share its standard input, and its output is nobody's. All then
//! get one [`BootOrder`], and connect in the same way. The first report of each is [`BootReport::Task`].
//!
//! Where links go over sessions, the channel becomes the link: an agent that is told to join says that it is about
//! to, and both ends go on with the hello. Who is below an agent is told its place by that agent, once it has joined.
//!
//! A channel of standard input and output is dirty: a shell may greet first. So the agent's first bytes there
//! are a marker that the order named, and up to [`SHELL_GREETING_BYTES_MAX`] bytes before it are skipped.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::decide::failure::StartFailure;
use crate::core::limits::SHELL_GREETING_BYTES_MAX;
use crate::link::Reach;
use crate::wire::{SessionId, SessionKey, TreePosition};

/// Bytes of the marker.
pub const MARKER: usize = 16;

/// All that an agent needs to say that it is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootOrder {
    /// The session's public name.
    pub session: SessionId,
    /// The session's key.
    pub key: SessionKey,
    /// The agent's first bytes on its output must be these.
    pub marker: [u8; MARKER],
    /// The target that it is at; 0 in an order for many.
    pub target: u32,
    /// Where who has started it hears it, the likeliest first; nowhere if its channel is its standard input and
    /// output.
    pub callback: Vec<SocketAddr>,
    /// Who has to reach it.
    pub reach: Reach,
    /// What links go over.
    pub links: Links,
    /// What `ps` shows and messages say for this session.
    pub label: String,
    /// How long silence on a link or from the guardian means nothing.
    pub dead_time: Duration,
    /// The targets that it is to start agents at.
    pub below: Option<Below>,
    /// The launcher's log of long epochs, if this agent is on the same machine: the launcher's process and
    /// a descriptor there.
    pub log: Option<(u32, i32)>,
}

/// What links go over.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Links {
    /// Connections of their own.
    Connections,
    /// The sessions that start agents: who has opened one is the parent, and nobody listens anywhere.
    RemoteShells,
}

impl BootOrder {
    /// Many get it, and its target is none.
    pub fn is_shared(&self) -> bool {
        self.target == 0
    }

    /// Whether the agent is on another node than the launcher, as far as that is known.
    pub fn is_remote(&self) -> bool {
        matches!(self.reach, Reach::Network(_)) || self.links == Links::RemoteShells
    }
}

/// Stations below one, for the agent there to start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Below {
    /// How many targets the session has; with the fan-out they form a tree as agents do.
    pub targets: u32,
    /// The most that one agent starts.
    pub fanout: u32,
    /// The hosts of all targets below this one, in order.
    pub hosts: Vec<HostAt>,
    /// How to get there.
    pub method: Method,
    /// How many sessions to open at a time; adaptive if nothing is given.
    pub batch: Option<u32>,
    /// How long all of them together may take to be there, from when this is read.
    pub patience: Duration,
}

/// A host as sessions are opened to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostAt {
    /// Its name, as the user or the resource manager wrote it.
    pub name: String,
    /// The user to be there, if it is another.
    pub user: Option<String>,
}

/// How the process that becomes an agent is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Method {
    /// As a child, on this machine.
    Fork,
    /// By a command that opens a session on another node, and passes its input and output on.
    RemoteShell {
        /// The command's words; `{host}` in them stands for the host, with `user@` in front where it has
        /// one. What the session is to run follows them.
        words: Vec<String>,
        /// The session has to last as long as the agent does.
        lasts: bool,
        /// What the session is to run.
        program: RemoteProgram,
    },
    /// By one command of a resource manager that starts a task on each of many nodes. It lasts as long as
    /// the agents do, so that only the launcher can run it.
    Step {
        /// The command's words; `{hosts}` in them stands for the list of hosts, `{nodes}` for how many these
        /// are. What each task is to run follows them.
        words: Vec<String>,
        /// What each task is to run.
        program: RemoteProgram,
    },
}

/// What becomes an agent at the other end of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RemoteProgram {
    /// This program, if it is there under this path and of this version; else it is sent through the
    /// session.
    Own {
        /// The path.
        path: String,
        /// What is sent. If nothing is, it has to be there.
        sent: Option<Sent>,
    },
    /// A command of the user's, as one would type it there, that ends with a `scela-run` of this version.
    Command(String),
}

/// A program that may be sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sent {
    /// The SHA-256 of what is sent, in hexadecimal digits.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
}

/// What an agent is told before it is part of the tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum BootCommand {
    /// Join the tree.
    Join {
        /// There.
        place: TreePosition,
        /// Where its parent may be reached, the likeliest first. Nowhere if links go over sessions.
        parent: Vec<SocketAddr>,
        /// Its parent is who opened the session to this node, and listens on this port: the address that
        /// the session came from is the likeliest of all.
        opener_port: Option<u16>,
    },
    /// It is not needed.
    Leave,
    /// Pass this on to that target, which is below.
    Below(u32, Box<BootCommand>),
}

/// What an agent tells before it is part of the tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum BootReport {
    /// Which of those it is that share an order: nothing else comes first.
    Task {
        /// The node that it is on, as the resource manager calls it.
        node: String,
    },
    /// It is there.
    Here {
        /// Where its children may connect, the likeliest first; none if it will have none.
        addresses: Vec<SocketAddr>,
        /// The name of its host, as the host has it.
        host: String,
        /// How many descriptors it may open.
        descriptors: u64,
        /// It can read the launcher's log.
        reads_log: bool,
    },
    /// It is about to say hello to its parent over this channel, on which nothing else follows. Only where links go
    /// over sessions.
    Joining,
    /// It is connected to its parent.
    Joined {
        /// Since it was told its place.
        took: Duration,
    },
    /// It cannot go on, or was never there.
    NotStarted(StartFailure),
    /// A target below says so.
    Below(u32, Box<BootReport>),
}

/// A channel said more than [`SHELL_GREETING_BYTES_MAX`] bytes, and no marker among them.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("its channel said {SHELL_GREETING_BYTES_MAX} bytes, none of them from an agent")]
pub struct NoMarker;

/// Where the bytes after `marker` begin in what a channel has said so far; `None` while it may
/// still come.
pub fn marked(said: &[u8], marker: &[u8; MARKER]) -> Result<Option<usize>, NoMarker> {
    match said.windows(MARKER).position(|window| window == marker) {
        Some(at) => Ok(Some(at + MARKER)),
        None if said.len() > SHELL_GREETING_BYTES_MAX + MARKER => Err(NoMarker),
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
        assert_eq!(marked(&vec![b'x'; SHELL_GREETING_BYTES_MAX + MARKER + 1], &marker), Err(NoMarker));
    }
}
