//! The specification of a simulated job, and the bounds on what can be simulated.

use std::rc::Rc;
use std::time::Duration;

use nla::core::limits::{AGENTS_MAX, DEAD_TIME, END_MARGIN, FENCE_BYTES_MAX, PIECE_BYTES, RANKS_MAX};
use nla::core::{AgentId, CachePolicy, FailurePolicy, PieceBytes, Subtree, place};
use nla::figures;
use pmi::{Puts, Ranks};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::costs::Costs;
use crate::faults::Faults;
use crate::oracle::Violation;
use crate::program::{Exchange, Pattern, Program};
use crate::report::Report;
use crate::values::{PREFIX_BYTES_MAX, VALUE_BYTES_MAX, Values};
use crate::world::{Setup, World};

/// A job to simulate: its size, its machine, and the entries that its ranks exchange.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// The number of nodes. Each node has one agent.
    pub nodes: u32,
    /// The number of ranks on each node.
    pub ppn: u32,
    /// The fan-out: the highest number of children.
    pub fanout: u32,
    /// The cache policy of the agents.
    pub cache: CachePolicy,
    /// The entries that ranks get from each other.
    pub pattern: Pattern,
    /// Ranks read a whole board in the shared segment, as with libpmi. Otherwise each get is a request to the agent,
    /// over the PMI socket.
    pub segment: bool,
    /// Ranks pass a fence before they put anything, as a benchmark that times the exchange does.
    pub ready: bool,
    /// The prefix of all keys.
    pub prefix: String,
    /// The shortest value, in bytes.
    pub value_min: u32,
    /// The longest value, in bytes.
    pub value_max: u32,
    /// The times that operations take.
    pub costs: Costs,
    /// The length of the pieces of long epochs.
    pub piece_bytes: PieceBytes,
    /// Whether these pieces travel packed, where that makes them shorter. How much that saves depends on the values: those of
    /// simulated ranks are random.
    pub packs: bool,
    /// The latency of a link. Overrides `costs`.
    pub latency: Option<Duration>,
    /// The bytes per second that a place can send. Overrides `costs`.
    pub bandwidth: Option<u64>,
    /// The number of cores that all places share, as on one machine. If `None`, each place has its own.
    pub cores: Option<u32>,
    /// The seed of the faults.
    pub seed: u64,
    /// Whether faults are drawn from the seed.
    pub faults: bool,
    /// The bounds on memory and time of the simulation itself.
    pub bounds: Bounds,
}

/// The memory and the time that a simulation may take on the machine on which it runs.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// The bound on the estimated memory, in bytes.
    pub memory: u64,
    /// The bound on the estimated number of messages, or of operations that take as long. Two million take about a
    /// second.
    pub steps: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { memory: 20_000_000_000, steps: 500_000_000 }
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            nodes: 16,
            ppn: 64,
            fanout: 32,
            cache: CachePolicy::default(),
            pattern: Pattern::default(),
            segment: false,
            ready: false,
            prefix: "card-".to_owned(),
            value_min: 1,
            value_max: 1000,
            costs: Costs::default(),
            piece_bytes: PIECE_BYTES,
            packs: false,
            latency: None,
            bandwidth: None,
            cores: None,
            seed: 1,
            faults: false,
            bounds: Bounds::default(),
        }
    }
}

/// The reason why a job was not simulated, or not to its end.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// The specification is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The ranks would put more in one fence than ScELA accepts.
    #[error(
        "{ranks} ranks would put {} in one fence, which accepts at most {}; use fewer ranks or shorter values",
        figures::bytes(*bytes),
        figures::bytes(FENCE_BYTES_MAX as u64)
    )]
    Fence {
        /// The number of ranks.
        ranks: u64,
        /// The bytes that they would put.
        bytes: u64,
    },
    /// The simulation would take too much memory.
    #[error("the simulation would take about {} of memory, at most {} is allowed: {why}", figures::bytes(*needed), figures::bytes(*allowed))]
    Memory {
        /// The estimate.
        needed: u64,
        /// The bound.
        allowed: u64,
        /// The largest part of the estimate, in words.
        why: String,
    },
    /// The simulation would take too long.
    #[error("the simulation would take about {needed} steps, at most {allowed} are allowed: {why}")]
    Steps {
        /// The estimate.
        needed: u64,
        /// The bound.
        allowed: u64,
        /// The largest part of the estimate, in words.
        why: String,
    },
    /// The latency is longer than any for which sessions have their deadlines.
    #[error("a latency of {} is too long for the deadlines of a session; use a shorter one", figures::time(*latency))]
    Late {
        /// The latency of a link.
        latency: Duration,
    },
    /// The bandwidth is smaller than any for which sessions have their deadlines.
    #[error(
        "a bandwidth of {} per second is too small for the deadlines of a session; use a larger one",
        figures::counted(*bandwidth, "byte")
    )]
    Narrow {
        /// The bytes per second that a node can send.
        bandwidth: u64,
    },
    /// The oracle found a bug of ScELA, or of the simulation.
    #[error("the simulation found a bug of ScELA: {0}")]
    Violated(#[from] Violation),
}

/// Simulates a job. Refuses a job that is invalid or too large before it begins.
pub fn run(spec: &Spec) -> Result<Report, Refusal> {
    spec.check()?;
    let faults = if spec.faults {
        let span = spec.simulate(Faults::default())?.over;
        Faults::from_seed(spec.seed, spec.nodes, spec.nodes * spec.ppn, span)
    } else {
        Faults::default()
    };
    spec.simulate(faults)
}

/// The bytes of an entry in a cache besides key and value, which all caches share: its list node and its index slot.
const CACHED_ENTRY_BYTES: u64 = 70;
/// The number of entries of an epoch that an agent processes in the time of one message.
const ENTRIES_PER_MESSAGE: u64 = 20;

/// The bytes of an agent's longest message at the end of a session, with its statistics.
const LAST_MESSAGE_BYTES: f64 = 4096.0;

/// A part of an estimate, and its reason in words.
type Estimate = (u64, String);

impl Spec {
    fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ppn)
    }

    fn values(&self) -> Values {
        Values::new(&self.prefix, self.value_min, self.value_max)
    }

    fn simulate(&self, faults: Faults) -> Result<Report, Refusal> {
        let ranks = self.ranks() as u32;
        let agents: Vec<_> = (1..=self.nodes).map(AgentId).collect();
        let mut costs = self.costs.clone();
        if self.cores.is_some() {
            costs = costs.on_one_machine();
        }
        if let Some(latency) = self.latency {
            costs.latency = latency.as_nanos() as u64;
        }
        costs.bandwidth = self.bandwidth.unwrap_or(costs.bandwidth);
        let mut world = World::new(Setup {
            agents: self.nodes,
            fanout: self.fanout,
            placement: place(ranks, &agents),
            cache: self.cache,
            on_failure: FailurePolicy::Abort,
            dead_time: DEAD_TIME,
            program: Rc::new(Program::Exchange(Exchange::new(ranks, self.pattern, self.values(), self.ready))),
            costs,
            piece_bytes: self.piece_bytes,
            packs: self.packs,
            segment: self.segment && self.cache == CachePolicy::Hcmab,
            cores: self.cores,
            seed: self.seed,
            faults,
            ignoring_term: Ranks::new(),
            mutation: None,
            stats: true,
            checked: false,
        });
        world.run().map_err(|violation| self.slow().unwrap_or(violation.into()))?;
        Ok(world.report(self.fanout, Some(self.pattern), self.seed))
    }

    /// Returns the refusal of a network on which an order and its answers may take longer than the end of a session.
    fn slow(&self) -> Option<Refusal> {
        let way_and_back = 2 * Subtree::whole(self.nodes, self.fanout).depth();
        let is_late = |message: Duration| message.saturating_mul(way_and_back) > END_MARGIN;
        let latency = self.latency.filter(|latency| is_late(*latency)).map(|latency| Refusal::Late { latency });
        let sent = |bandwidth: u64| Duration::from_secs_f64(LAST_MESSAGE_BYTES / bandwidth.max(1) as f64);
        let narrow = || self.bandwidth.filter(|bandwidth| is_late(sent(*bandwidth)));
        latency.or_else(|| narrow().map(|bandwidth| Refusal::Narrow { bandwidth }))
    }

    /// Refuses a job that is invalid or too large.
    fn check(&self) -> Result<(), Refusal> {
        let invalid = |why: String| Err(Refusal::Invalid(why));
        if self.nodes == 0 || self.ppn == 0 || self.fanout == 0 {
            return invalid("the nodes, the ranks on each node and the fan-out must be at least 1".to_owned());
        }
        if self.nodes > AGENTS_MAX || self.ranks() > RANKS_MAX.into() {
            return invalid(format!("a session has at most {AGENTS_MAX} agents and {RANKS_MAX} ranks"));
        }
        if self.prefix.is_empty() || self.prefix.len() > PREFIX_BYTES_MAX || self.prefix.starts_with("PMI_") {
            return invalid(format!(
                "the prefix of keys must have 1 to {PREFIX_BYTES_MAX} bytes and must not begin with PMI_"
            ));
        }
        if self.value_min > self.value_max || self.value_max > VALUE_BYTES_MAX {
            return invalid(format!("values must have value_min to value_max bytes, at most {VALUE_BYTES_MAX}"));
        }
        if self.pattern == Pattern::Nothing {
            return Ok(());
        }
        let entries = self.values().bytes(self.ranks() as u32);
        let bytes = entries + self.ranks() * Puts::cost(b"", b"") as u64;
        if bytes > FENCE_BYTES_MAX as u64 {
            return Err(Refusal::Fence { ranks: self.ranks(), bytes });
        }
        let (memory, steps) = (self.memory(bytes), self.steps());
        let (needed, allowed) = (memory.iter().map(|(amount, _)| amount).sum(), self.bounds.memory);
        if needed > allowed {
            return Err(Refusal::Memory { needed, allowed, why: largest(memory) });
        }
        let (needed, allowed) = (steps.iter().map(|(amount, _)| amount).sum(), self.bounds.steps);
        if needed > allowed {
            return Err(Refusal::Steps { needed, allowed, why: largest(steps) });
        }
        Ok(())
    }

    /// Estimates the memory, in bytes. `bytes` is the size of all ranks' puts together.
    fn memory(&self, bytes: u64) -> Vec<Estimate> {
        let (agents, ranks) = (u64::from(self.nodes), self.ranks());
        let depth = u64::from(Subtree::whole(self.nodes, self.fanout).depth());
        let entry = bytes / ranks;
        let mut needs = vec![
            (agents * 6_000 + ranks * 300, format!("{agents} agents and {ranks} ranks themselves")),
            (4 * bytes, format!("four times the {} of all puts at the root", figures::bytes(bytes))),
        ];
        match self.cache {
            CachePolicy::Hcmab => {}
            CachePolicy::Hcs | CachePolicy::Hcma => {
                let passed = bytes + ranks * 90;
                needs.push((depth * passed, format!("{} of puts at each of {depth} levels", figures::bytes(passed))));
                if self.pattern == Pattern::All {
                    let why = format!("{agents} agents x {ranks} entries x {CACHED_ENTRY_BYTES} bytes in their caches");
                    needs.push((agents * ranks * CACHED_ENTRY_BYTES, why));
                }
            }
            CachePolicy::HcmabLru { entries } => {
                let (cached, each) = (ranks.min(entries.into()), entry + CACHED_ENTRY_BYTES + 50);
                let why = format!("{agents} agents x {cached} entries x {each} bytes in their caches");
                needs.push((agents * cached * each, why));
                let each = entry + 150;
                needs.push((depth * ranks * each, format!("{depth} levels x {ranks} keys x {each} bytes of index")));
            }
        }
        needs
    }

    /// Estimates the time, in messages.
    fn steps(&self) -> Vec<Estimate> {
        let (agents, ranks) = (u64::from(self.nodes), self.ranks());
        let depth = u64::from(Subtree::whole(self.nodes, self.fanout).depth());
        let gets = if self.pattern == Pattern::All { agents * ranks } else { 0 };
        let mut needs = vec![(agents * 40 + ranks * 10, format!("{agents} agents and {ranks} ranks themselves"))];
        let asked = || (gets * 2, format!("{agents} agents x {ranks} keys x 2 messages"));
        match self.cache {
            CachePolicy::Hcmab => {}
            CachePolicy::Hcs => {
                needs.push((ranks * depth, format!("{ranks} puts x {depth} levels")));
                needs.push(asked());
            }
            CachePolicy::Hcma => needs.push(asked()),
            CachePolicy::HcmabLru { entries } => {
                let why = format!(
                    "{agents} agents x {ranks} entries of the epoch, {ENTRIES_PER_MESSAGE} of which take as long as a message"
                );
                needs.push((agents * ranks / ENTRIES_PER_MESSAGE, why));
                if u64::from(entries) < ranks {
                    // In lockstep, all agents that miss a key wait for one answer, which comes from a leaf.
                    needs.push(asked());
                    needs.push((ranks * 2 * depth, format!("{ranks} keys x {} messages", 2 * depth)));
                } else {
                    needs.push((gets / 2, format!("{agents} agents x {ranks} keys looked up")));
                }
            }
        }
        needs
    }
}

fn largest(needs: Vec<Estimate>) -> String {
    needs.into_iter().max_by_key(|(amount, _)| *amount).map(|(_, why)| why).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_too_slow_for_sessions_is_no_bug() {
        let spec = |seconds, nodes, fanout| Spec {
            nodes,
            ppn: 1,
            fanout,
            latency: Some(Duration::from_secs(seconds)),
            ..Spec::default()
        };
        let text = run(&spec(15, 4, 32)).unwrap_err().to_string();
        assert_eq!(text, "a latency of 15.0 s is too long for the deadlines of a session; use a shorter one");
        assert!(matches!(run(&spec(4, 20, 2)), Err(Refusal::Late { .. })), "the levels add up");
        assert!(run(&spec(5, 4, 32)).is_ok());
        let narrow = |bandwidth| Spec { bandwidth: Some(bandwidth), latency: None, ..spec(0, 4, 32) };
        let text = run(&narrow(10)).unwrap_err().to_string();
        let told = "a bandwidth of 10 bytes per second is too small for the deadlines of a session; use a larger one";
        assert_eq!(text, told);
        let text = run(&narrow(1)).unwrap_err().to_string();
        assert!(text.starts_with("a bandwidth of 1 byte per second is too small"), "{text}");
        assert!(run(&narrow(100_000)).is_ok());
    }

    #[test]
    fn a_job_beyond_the_bounds_is_refused_with_the_estimate() {
        let refused = |spec: Spec| spec.check().unwrap_err().to_string();
        let large = Spec { nodes: 16_384, pattern: Pattern::All, ..Spec::default() };
        assert_eq!(large.check(), Ok(()));
        let text = refused(Spec { cache: CachePolicy::Hcma, ..large.clone() });
        assert!(text.contains("16384 agents x 1048576 entries x 70 bytes in their caches"), "{text}");
        let roomy = Bounds { memory: u64::MAX, ..Bounds::default() };
        let text = refused(Spec { cache: CachePolicy::Hcma, bounds: roomy, ..large.clone() });
        assert!(text.contains("16384 agents x 1048576 keys x 2 messages"), "{text}");
        let text = refused(Spec { nodes: 65_536, ..large.clone() });
        assert!(text.contains("4194304 ranks would put"), "{text}");
        for cache in CachePolicy::ALL {
            let exchange = Spec { nodes: 1024, value_min: 64, value_max: 64, cache, ..large.clone() };
            assert_eq!(exchange.check(), Ok(()), "{cache}");
            let twice = Spec { nodes: 2048, bounds: roomy, ..exchange };
            assert_eq!(twice.check().is_ok(), cache == CachePolicy::Hcmab, "{cache}");
        }
        assert!(refused(Spec { ppn: 0, ..Spec::default() }).contains("at least 1"));
        assert!(refused(Spec { value_max: 1024, ..Spec::default() }).contains("at most 1023"));
        assert!(refused(Spec { nodes: 1 << 19, ..Spec::default() }).contains("at most"));
        assert!(refused(Spec { prefix: "x".repeat(33), ..Spec::default() }).contains("1 to 32 bytes"));
    }
}
