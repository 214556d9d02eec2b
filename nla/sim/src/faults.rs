//! Faults: what fails in a run and when, drawn from a seed.

use std::fmt;
use std::ops::Range;

use nla::core::limits::{DEAD_TIME_SURVIVED, STOP_TIME};
use nla::core::{AgentId, Subtree};
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
    /// The link between an agent and its parent is cut. Messages in flight are lost, unless the cut is shorter than the dead
    /// time and the session has a policy to survive faults: then they arrive later.
    Cut {
        /// The number of the agent.
        agent: u32,
        /// The length of the cut, in nanoseconds.
        nanoseconds: u64,
    },
    /// The process of an agent, or the root (number 0), stops for some time. Its host acknowledges what is sent.
    Stall {
        /// The number of the agent.
        agent: u32,
        /// The length of the stall, in nanoseconds.
        nanoseconds: u64,
    },
    /// The host of an agent stops for some time, and acknowledges nothing.
    Pause {
        /// The number of the agent.
        agent: u32,
        /// The length of the pause, in nanoseconds.
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
/// The length of a cut that is never healed.
const FOR_EVER: u64 = u64::MAX;
/// The silence after which a link counts as lost where the session goes on.
const DEAD: u64 = DEAD_TIME_SURVIVED.as_nanos() as u64;
/// The time after which a process counts as lost although its host answers.
const STOPPED: u64 = STOP_TIME.as_nanos() as u64;

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
            3 | 4 => Fault::Cut { agent, nanoseconds: FOR_EVER },
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

/// The session that draws its faults.
struct Survivor<'a> {
    random: &'a mut Random,
    tree: Subtree,
    ranks: u32,
    /// The time in which ranks run.
    span: Range<u64>,
}

impl Faults {
    /// Draws the faults of a session that survives them: crashes, stops and cuts, shorter and longer than the dead time, often
    /// two at once. `span` is the time in which the ranks run without faults.
    pub(crate) fn to_survive(seed: u64, tree: Subtree, ranks: u32, span: Range<u64>) -> Self {
        let random = &mut Random::new(seed ^ 0x5afe);
        let delay = *random.pick(&[0, 1_000, 200_000, 5_000_000, 100_000_000]);
        let count = *random.pick(&[1, 1, 2, 2, 2, 3]);
        let mut survivor = Survivor { random, tree, ranks, span };
        let mut faults: Vec<TimedFault> = Vec::new();
        if count == 1 && survivor.random.once_in(3) {
            faults.push(survivor.draw_stall());
        }
        for _ in faults.len()..count {
            let next = survivor.draw(faults.last());
            faults.push(next);
        }
        faults.sort_by_key(|timed| timed.at);
        Self { delay, faults }
    }
}

impl Survivor<'_> {
    fn draw(&mut self, before: Option<&TimedFault>) -> TimedFault {
        let at = self.time(before.map(|before| before.at));
        let agent = self.agent(before.and_then(|before| before.fault.agent()));
        let (short, long) = (1_000_000..DEAD / 5 * 4, DEAD / 5 * 6..8 * DEAD);
        let mut within = |range: &Range<u64>| self.random.between(range.start, range.end);
        let lengths = [within(&short), within(&long)];
        let fault = match self.random.below(12) {
            0..=3 => Fault::Crash { agent },
            4 | 5 => Fault::Kill { rank: self.random.below(self.ranks.into()) as u32 },
            6 => Fault::Cut { agent, nanoseconds: lengths[0] },
            7 => Fault::Cut { agent, nanoseconds: lengths[1] },
            8 => Fault::Cut { agent, nanoseconds: FOR_EVER },
            9 => Fault::Stall { agent: self.random.below(self.tree.size().into()) as u32, nanoseconds: lengths[0] },
            _ => Fault::Pause { agent, nanoseconds: lengths[1] },
        };
        self.timed(at, fault)
    }

    /// A long stall. It is the only fault: agents below a lost one do not wait for an ancestor that is stopped. If its agent is not to
    /// be lost, it is shorter than an agent may take to end its ranks.
    fn draw_stall(&mut self) -> TimedFault {
        let at = self.time(None);
        let agent = self.random.below(self.tree.size().into()) as u32;
        let is_lost = agent > 0 && self.random.once_in(4);
        let (least, most) = if is_lost { (STOPPED, STOPPED + 8 * DEAD) } else { (DEAD / 5 * 6, DEAD / 10 * 19) };
        let nanoseconds = self.random.between(least, most);
        self.timed(at, Fault::Stall { agent, nanoseconds })
    }

    fn timed(&mut self, at: u64, fault: Fault) -> TimedFault {
        let random = &mut *self.random;
        let mut detection = || if random.once_in(3) { random.below(DEAD) } else { random.below(2_000_000) };
        TimedFault { at, fault, detected_after: [detection(), detection()] }
    }

    /// While the ranks run; often together with the fault before, or while the session recovers from it.
    fn time(&mut self, before: Option<u64>) -> u64 {
        let Range { start, end } = self.span;
        match (before, self.random.below(4)) {
            (None, _) | (_, 0) => self.random.between(start, end),
            (Some(before), 1) => before,
            (Some(before), 2) => before + self.random.below(10_000_000),
            (Some(before), _) => before + self.random.below(5 * DEAD),
        }
    }

    /// Any agent, or one that has children; often the neighbour of the agent that was hit before.
    fn agent(&mut self, before: Option<u32>) -> u32 {
        let any = self.random.between(1, u64::from(self.tree.size()) - 1) as u32;
        let near = before.filter(|_| self.random.once_in(3)).unwrap_or(any);
        let parent = self.tree.parent_of(AgentId(near)).map_or(0, |parent| parent.0);
        if parent > 0 && self.random.once_in(2) { parent } else { near.max(1) }
    }
}

impl Fault {
    fn agent(&self) -> Option<u32> {
        match *self {
            Self::Crash { agent } | Self::Cut { agent, .. } | Self::Stall { agent, .. } | Self::Pause { agent, .. } => {
                Some(agent)
            }
            Self::Kill { .. } | Self::Interrupt => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash { agent } => write!(f, "agent {agent} crashes"),
            Self::Cut { agent, nanoseconds: FOR_EVER } => write!(f, "the link above agent {agent} is cut"),
            Self::Cut { agent, nanoseconds } => {
                write!(f, "the link above agent {agent} is cut for {} ms", nanoseconds / 1_000_000)
            }
            Self::Stall { agent, nanoseconds } => {
                write!(f, "agent {agent} stalls for {} ms", nanoseconds / 1_000_000)
            }
            Self::Pause { agent, nanoseconds } => {
                write!(f, "the host of agent {agent} stops for {} ms", nanoseconds / 1_000_000)
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
    /// A byte of each piece of one fence's epoch changes on its way to the agent.
    DamagePiece {
        /// The number of the agent.
        agent: u32,
        /// The number of the fence.
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
