//! Faults: what fails in a run and when, drawn from a seed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// A fault that strikes once.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// An agent's process is killed. Its guardian kills its ranks.
    Crash {
        /// The number of the agent.
        agent: u32,
    },
    /// The link between an agent and its parent is cut. Messages in flight are lost.
    Cut {
        /// The number of the agent.
        agent: u32,
    },
    /// An agent, or the root (number 0), stops for some time.
    Stall {
        /// The number of the agent.
        agent: u32,
        /// The length of the stall, in nanoseconds.
        nanoseconds: u64,
    },
    /// A rank is killed.
    Kill {
        /// The rank.
        rank: u32,
    },
    /// The user presses Ctrl-C.
    Interrupt,
}

/// A fault and its time.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimedFault {
    /// When it strikes, in nanoseconds.
    pub at: u64,
    /// The fault.
    pub fault: Fault,
    /// How much later the other ends of the failed links detect it: the parent's, then each child's. In nanoseconds.
    pub detected_after: [u64; 2],
}

/// All faults of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// The bound on the random additional delay of each message, in nanoseconds. No message overtakes another one of
    /// the same lane.
    pub delay: u64,
    /// The faults, in the order of time.
    pub faults: Vec<TimedFault>,
}

/// The bound on the time until the other end detects a failed link that was not closed, in nanoseconds: only silence
/// shows it.
const DETECTION_MAX: u64 = 20_000_000_000;

impl Faults {
    /// Draws the faults of a session of the given size. `span` is about how many nanoseconds the session takes
    /// without faults. The same arguments give the same faults.
    pub fn from_seed(seed: u64, agents: u32, ranks: u32, span: u64) -> Self {
        let mut random = Random::new(seed ^ 0xfa17);
        let delay = *random.pick(&[0, 1_000, 200_000, 5_000_000, 100_000_000]);
        let count = *random.pick(&[0, 1, 1, 1, 2, 3]);
        let mut faults: Vec<_> = (0..count).map(|_| Self::draw(&mut random, agents, ranks, span)).collect();
        faults.sort_by_key(|timed| timed.at);
        Self { delay, faults }
    }

    fn draw(random: &mut Random, agents: u32, ranks: u32, span: u64) -> TimedFault {
        let agent = random.between(1, agents.max(1).into()) as u32;
        let fault = match random.below(10) {
            0..=2 => Fault::Crash { agent },
            3 | 4 => Fault::Cut { agent },
            5 | 6 => Fault::Kill { rank: random.below(ranks.into()) as u32 },
            7 | 8 => {
                let agent = random.below(u64::from(agents) + 1) as u32;
                Fault::Stall { agent, nanoseconds: *random.pick(&[1_000_000, 300_000_000, 3_000_000_000]) }
            }
            _ => Fault::Interrupt,
        };
        let mut detection = || if random.once_in(4) { random.below(DETECTION_MAX) } else { random.below(2_000_000) };
        let detected_after = [detection(), detection()];
        TimedFault { at: random.below(span + span / 8 + 1), fault, detected_after }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash { agent } => write!(f, "agent {agent} crashes"),
            Self::Cut { agent } => write!(f, "the link above agent {agent} is cut"),
            Self::Stall { agent, nanoseconds } => {
                write!(f, "agent {agent} stalls for {} ms", nanoseconds / 1_000_000)
            }
            Self::Kill { rank } => write!(f, "rank {rank} is killed"),
            Self::Interrupt => f.write_str("Ctrl-C"),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delays of up to {} us", self.delay / 1000)?;
        for TimedFault { at, fault, .. } in &self.faults {
            write!(f, "; at {:.3} ms {fault}", *at as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// A bug that is put into one agent, to test that the oracle detects it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mutation {
    /// The agent does not release its ranks from one fence.
    LoseRelease {
        /// The number of the agent.
        agent: u32,
        /// The number of correct releases before.
        after: u32,
    },
    /// The agent once releases a rank as soon as it arrives at a fence.
    EarlyRelease {
        /// The number of the agent.
        agent: u32,
    },
    /// The agent answers one get with a value that no rank put.
    WrongValue {
        /// The number of the agent.
        agent: u32,
        /// The number of correct answers before.
        after: u32,
    },
    /// The agent and its subtree miss the board's changes of one fence, and keep stale values.
    MissUpdate {
        /// The number of the agent.
        agent: u32,
        /// The number of the fence.
        after: u32,
    },
}
