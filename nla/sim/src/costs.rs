//! What things cost: the model of the machine.

use serde::{Deserialize, Serialize};

/// The machine. All times are in nanoseconds where a name does not say otherwise.
///
/// An agent has one processor, which does one thing after another, and one way out, over which what
/// it sends to all its links goes one after another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// From one end of a link to the other.
    pub latency: u64,
    /// The same on one machine, where bytes take no time beside the processors'.
    pub loopback_latency: u64,
    /// Bytes per second that an agent or the root can send, over all its links together.
    pub bandwidth: u64,
    /// To start an agent, at the launcher, one after another.
    pub agent_launch: u64,
    /// From an agent's start until it knocks at its parent's door.
    pub agent_boot: u64,
    /// To say hello, at each end: the processor's time.
    pub hello: u64,
    /// To take in a message: to wake up, to open and decode a record.
    pub message_received: u64,
    /// To send a message: to encode and seal it, and the system call.
    pub message_sent: u64,
    /// To open and copy a byte, in picoseconds.
    pub byte_received_ps: u64,
    /// To seal and copy a byte, in picoseconds.
    pub byte_sent_ps: u64,
    /// To merge one put into an epoch, at the root.
    pub entry_merged: u64,
    /// To check one entry of an epoch that came from above.
    pub entry_checked: u64,
    /// To start a rank.
    pub rank_start: u64,
    /// From a rank's start until it speaks PMI.
    pub rank_boot: u64,
    /// From a rank to its agent or back.
    pub local: u64,
    /// To greet a rank that initialises PMI.
    pub join: u64,
    /// To take a put.
    pub put: u64,
    /// To note a rank's arrival at a fence.
    pub arrival: u64,
    /// To let a rank go on.
    pub release: u64,
    /// To answer a get from what is here.
    pub get_hit: u64,
    /// To read an entry from the segment: the rank's own time.
    pub get_read: u64,
    /// To take a get to the core, be it answered there or asked on.
    pub get_asked: u64,
    /// To hand a rank the answer that it waited for.
    pub get_answered: u64,
    /// A rank's own processor time for a question and its answer, its share of changing between it and its
    /// agent included. It counts where ranks and agents share cores.
    pub rank_turn: u64,
    /// What a rank's way through a fence costs beside, likewise: to fall asleep, to be woken by what others
    /// do, and to find nothing of its own in the processor's caches.
    pub rank_fence: u64,
    /// To take leave of a rank that finalises PMI.
    pub finalize: u64,
    /// To reap a rank.
    pub exit: u64,
    /// To sweep up what ranks have left behind, and to read the rest of their output.
    pub sweep: u64,
}

impl Default for Costs {
    /// A cluster of ordinary machines with TCP over a fast network.
    ///
    /// What agents and ranks do was calibrated with the runs in `docs/results/caches.md`, where measured and
    /// simulated times stand side by side: a get from the board of an agent over the wire takes 17 us of
    /// processor time there, the rank's own part included, one through the core 8 us more, and a message
    /// between two agents 22 us.
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
            byte_received_ps: 900,
            byte_sent_ps: 800,
            entry_merged: 150,
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
    /// Where ranks and agents share the cores of one machine: what ranks do costs what agents do beside
    /// them, and links are copies in memory.
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

    /// How long so many bytes are on their way out.
    pub(crate) fn transmission(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.bandwidth.max(1))) as u64
    }

    /// The processor's time for a message that is sent.
    pub(crate) fn sending(&self, bytes: u64) -> u64 {
        self.message_sent + bytes * self.byte_sent_ps / 1000
    }

    /// The processor's time for a message that comes in.
    pub(crate) fn receiving(&self, bytes: u64) -> u64 {
        self.message_received + bytes * self.byte_received_ps / 1000
    }
}
