//! The messages between a keeper and the controller of its pool.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::limits::{DEAD_TIME_MAX, DEAD_TIME_MIN};
use crate::link::SessionKey;
use crate::wire::SessionId;

/// The most bytes of a [`Flow::Data`].
pub(super) const PIECE_BYTES_MAX: usize = 16 * 1024;
/// The most bytes of a label.
const LABEL_BYTES_MAX: usize = 4096;

/// The number of a channel, which the controller chooses. The next channel has the next number.
pub(super) type ChannelNumber = u64;

/// Everything that a keeper needs to find its controller. It arrives on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeeperOrder {
    /// The public number of these keepers' connections.
    pub session: SessionId,
    /// The key.
    pub key: SessionKey,
    /// The addresses of the controller, the likeliest first.
    pub controller: Vec<SocketAddr>,
    /// The number of the keeper that is rank 0.
    pub first: u32,
    /// After how long without an answer a host counts as lost.
    pub dead_time: Duration,
}

/// The agent that a channel starts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentSpec {
    /// The name of its session in `ps`.
    pub label: String,
    /// How long it may be silent before its guardian ends it.
    pub dead_time: Duration,
}

impl AgentSpec {
    /// Returns whether all values are in their ranges.
    pub fn is_valid(&self) -> bool {
        (DEAD_TIME_MIN..=DEAD_TIME_MAX).contains(&self.dead_time) && self.label.len() <= LABEL_BYTES_MAX
    }
}

/// A message of the controller.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToKeeper {
    /// Start an agent whose streams this channel carries.
    Open(ChannelNumber, AgentSpec),
    /// A part of a channel's streams.
    Parcel(Parcel),
    /// Drop a channel: its other end is gone.
    Close(ChannelNumber),
    /// Report the state of the node.
    Report,
}

/// A message of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromKeeper {
    /// The state of the node. The first message.
    State(NodeState),
    /// A part of a channel's streams.
    Parcel(Parcel),
}

/// The state of a node.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeState {
    /// The cores that the keeper may use.
    pub cores: u32,
    /// The processes that ran or waited for a processor or a disk in the last minute, on average.
    pub load: f32,
    /// The bytes of memory that programs can get.
    pub memory_free: u64,
    /// The bytes of memory that the node has.
    pub memory: u64,
}

/// A standard stream of an agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum StreamName {
    Input,
    Output,
    Errors,
}

/// A part of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub channel: ChannelNumber,
    pub stream: StreamName,
    pub flow: Flow,
}

/// See [`Parcel`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Flow {
    /// Bytes in the direction of the stream. Never empty.
    Data(Vec<u8>),
    /// The stream has ended.
    End,
    /// In the other direction: this many bytes were taken.
    Taken(u32),
}
