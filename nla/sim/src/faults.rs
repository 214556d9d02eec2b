//! What goes wrong, when: drawn from a seed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Something that goes wrong once.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// An agent's process is killed; its guardian kills its ranks.
    Crash {
        /// Which.
        agent: u32,
    },
    /// The link between an agent and its parent is cut; what is on its way is lost.
    Cut {
        /// The agent.
        agent: u32,
    },
    /// An agent, or with 0 the root, does nothing for a while.
    Stall {
        /// Which.
        agent: u32,
        /// For so many nanoseconds.
        nanoseconds: u64,
    },
    /// A rank is killed.
    Kill {
        /// Which.
        rank: u32,
    },
    /// The user presses Ctrl-C.
    Interrupt,
}

/// A fault with its time.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// When, in nanoseconds.
    pub at: u64,
    /// What.
    pub fault: Fault,
    /// How much later the parent, and a child, of who is gone notice it.
    pub noticed: [u64; 2],
}

/// All that goes wrong in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Each message takes up to so many nanoseconds more, no two the same. None overtakes another of
    /// its lane.
    pub delay: u64,
    /// The faults, in order of time.
    pub faults: Vec<Timed>,
}

/// The longest time until the end of a link is noticed: nobody says so, and silence is waited for.
const SILENT: u64 = 20_000_000_000;

impl Faults {
    /// What goes wrong in a session of so many agents and ranks that takes about `span` nanoseconds
    /// when nothing does. The same numbers give the same faults.
    pub fn from_seed(seed: u64, agents: u32, ranks: u32, span: u64) -> Self {
        let mut random = Random::new(seed ^ 0xfa17);
        let delay = *random.pick(&[0, 1_000, 200_000, 5_000_000, 100_000_000]);
        let count = *random.pick(&[0, 1, 1, 1, 2, 3]);
        let mut faults: Vec<_> = (0..count).map(|_| Self::draw(&mut random, agents, ranks, span)).collect();
        faults.sort_by_key(|timed| timed.at);
        Self { delay, faults }
    }

    fn draw(random: &mut Random, agents: u32, ranks: u32, span: u64) -> Timed {
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
        let mut noticed = || if random.once_in(4) { random.below(SILENT) } else { random.below(2_000_000) };
        let noticed = [noticed(), noticed()];
        Timed { at: random.below(span + span / 8 + 1), fault, noticed }
    }
}

impl Fault {
    /// Whether the job cannot end well once this has happened.
    pub(crate) fn is_fatal(self) -> bool {
        match self {
            Self::Crash { .. } | Self::Cut { .. } | Self::Kill { .. } | Self::Interrupt => true,
            Self::Stall { .. } => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash { agent } => write!(f, "agent {agent} crashes"),
            Self::Cut { agent } => write!(f, "the link above agent {agent} is cut"),
            Self::Stall { agent, nanoseconds } => {
                write!(f, "agent {agent} does nothing for {} ms", nanoseconds / 1_000_000)
            }
            Self::Kill { rank } => write!(f, "rank {rank} is killed"),
            Self::Interrupt => f.write_str("Ctrl-C"),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delays of up to {} us", self.delay / 1000)?;
        for Timed { at, fault, .. } in &self.faults {
            write!(f, "; at {:.3} ms {fault}", *at as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// What a broken agent would do, to see that it is noticed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mutation {
    /// An agent forgets to let its ranks go, once.
    LoseRelease {
        /// Which.
        agent: u32,
        /// How many are let go before.
        after: u32,
    },
    /// An agent lets a rank go as soon as it arrives at a fence, once.
    EarlyRelease {
        /// Which.
        agent: u32,
    },
    /// A rank of the agent is given another value than was put, once.
    WrongValue {
        /// Which.
        agent: u32,
        /// How many gets are answered before.
        after: u32,
    },
    /// An agent, and with it all below, does not hear what a fence has changed on the board, once: what
    /// they had before is stale.
    MissUpdate {
        /// Which.
        agent: u32,
        /// Of how many fences it hears before.
        after: u32,
    },
}
