//! The costs of operations: a model of the machine.

use serde::{Deserialize, Serialize};

/// The costs of entries on their way through the tree, as `--calibrate` measures it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoardCosts {
    /// Receiving, opening and assembling a byte, in picoseconds.
    pub byte_received_ps: u64,
    /// Sealing and sending a byte, in picoseconds.
    pub byte_sent_ps: u64,
    /// Hashing a byte of an epoch in pieces, in picoseconds.
    pub byte_hashed_ps: u64,
    /// Copying a byte of an epoch in pieces, in picoseconds: to the memory of the epoch, and to the message to the children.
    pub byte_copied_ps: u64,
    /// Packing a byte of an epoch in pieces at the root, in picoseconds.
    pub byte_packed_ps: u64,
    /// Unpacking a byte of an epoch in pieces, in picoseconds. It counts unpacked.
    pub byte_unpacked_ps: u64,
    /// Checking, merging, encoding and indexing one put at the root, in nanoseconds.
    pub entry_merged: u64,
}

impl Default for BoardCosts {
    /// The costs on the machine of `docs/results/simulation.md`.
    fn default() -> Self {
        Self {
            byte_received_ps: 830,
            byte_sent_ps: 845,
            byte_hashed_ps: 53,
            byte_copied_ps: 130,
            byte_packed_ps: 1200,
            byte_unpacked_ps: 300,
            entry_merged: 100,
        }
    }
}

/// The times that operations take, in nanoseconds unless a name says otherwise.
///
/// Each agent has one processor, which handles one event at a time, and one network interface, which sends one
/// message at a time over all links of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// The latency of a link.
    pub latency: u64,
    /// The latency of a link on one machine. Bytes then take only processor time.
    pub loopback_latency: u64,
    /// The bytes per second that the root or an agent can send, over all its links together.
    pub bandwidth: u64,
    /// Starting one agent, at the launcher. Agents are started one after another.
    pub agent_launch: u64,
    /// From an agent's start until it connects to its parent.
    pub agent_boot: u64,
    /// Processor time of the handshake, at each end.
    pub hello: u64,
    /// Receiving a message: waking up, opening a record and decoding it.
    pub message_received: u64,
    /// Sending a message: encoding and sealing it, and the system call.
    pub message_sent: u64,
    /// The costs of entries on their way through the tree.
    pub board: BoardCosts,
    /// Checking one entry of an epoch that was received whole.
    pub entry_checked: u64,
    /// Starting a rank.
    pub rank_start: u64,
    /// From a rank's start until it initializes PMI.
    pub rank_boot: u64,
    /// The latency between a rank and its agent, in either direction.
    pub local: u64,
    /// Answering a rank that initializes PMI.
    pub join: u64,
    /// Accepting a put.
    pub put: u64,
    /// Recording a rank's arrival at a fence.
    pub arrival: u64,
    /// Releasing a rank from a fence.
    pub release: u64,
    /// Answering a get from the agent's board.
    pub get_hit: u64,
    /// Reading an entry from the shared segment: the rank's own time.
    pub get_read: u64,
    /// Handing a get to the core, which answers it or asks its parent.
    pub get_asked: u64,
    /// Sending a rank the answer for which it waited.
    pub get_answered: u64,
    /// A rank's own processor time for one request and its answer, with its share of the context switches. It counts
    /// only if ranks and agents share cores.
    pub rank_turn: u64,
    /// A rank's additional processor time for a fence: falling asleep, waking up, and the cache misses after that. It
    /// counts only if ranks and agents share cores.
    pub rank_fence: u64,
    /// Answering a rank that finalizes PMI.
    pub finalize: u64,
    /// Reaping a rank.
    pub exit: u64,
    /// Killing the processes that ranks left behind, and reading the rest of their output.
    pub sweep: u64,
}

impl Default for Costs {
    /// Returns the costs of a cluster of ordinary machines with TCP over a fast network.
    ///
    /// The processor times of agents and ranks were calibrated with the runs in `docs/results/caches.md`, which
    /// compares measured and simulated times. In these runs a get from an agent's board over the PMI socket takes 17
    /// us of processor time, including the rank's share; a get through the core takes 8 us more; a message between
    /// two agents takes 22 us.
    fn default() -> Self {
        Self {
            latency: 25_000,
            loopback_latency: 5_000,
            bandwidth: 1_500_000_000,
            agent_launch: 100_000,
            agent_boot: 2_000_000,
            hello: 200_000,
            message_received: 13_000,
            message_sent: 9_000,
            board: BoardCosts::default(),
            entry_checked: 40,
            rank_start: 450_000,
            rank_boot: 1_000_000,
            local: 5_000,
            join: 6_000,
            put: 7_000,
            arrival: 8_000,
            release: 4_000,
            get_hit: 7_000,
            get_read: 100,
            get_asked: 15_000,
            get_answered: 5_000,
            rank_turn: 10_000,
            rank_fence: 20_000,
            finalize: 5_000,
            exit: 20_000,
            sweep: 1_000_000,
        }
    }
}

impl Costs {
    /// Returns the costs if ranks and agents share the cores of one machine: agents also pay for the ranks' processor
    /// time, and links are copies in memory.
    pub(crate) fn on_one_machine(mut self) -> Self {
        self.latency = self.loopback_latency;
        self.bandwidth = u64::MAX;
        for cost in [&mut self.put, &mut self.arrival, &mut self.get_hit, &mut self.get_asked] {
            *cost += self.rank_turn;
        }
        self.arrival += self.rank_fence / 2;
        self.release += self.rank_fence - self.rank_fence / 2;
        self
    }

    /// Returns how long the network interface needs to send `bytes`.
    pub(crate) fn transmission(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.bandwidth.max(1))) as u64
    }

    /// Returns the processor time to send a message of `bytes`.
    pub(crate) fn sending(&self, bytes: u64) -> u64 {
        self.message_sent + bytes * self.board.byte_sent_ps / 1000
    }

    /// Returns the processor time to receive a message of `bytes`.
    pub(crate) fn receiving(&self, bytes: u64) -> u64 {
        self.message_received + bytes * self.board.byte_received_ps / 1000
    }
}
