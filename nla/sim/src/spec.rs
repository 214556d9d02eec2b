//! A job to be simulated, and whether that can be done here.

use std::time::Duration;

use nla::core::limits::{AGENTS_MAX, FENCE_BYTES_MAX, RANKS_MAX};
use nla::core::{AgentId, CachePolicy, Subtree, place};
use pmi::{Puts, Ranks};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::costs::Costs;
use crate::faults::Faults;
use crate::oracle::Violation;
use crate::program::{Exchange, Pattern, Program};
use crate::report::{Report, size};
use crate::values::{PREFIX_BYTES_MAX, VALUE_BYTES_MAX, Values};
use crate::world::{Setup, World};

/// A job: so many ranks on so many nodes, and what they do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Nodes, with one agent each.
    pub nodes: u32,
    /// Ranks on each node.
    pub ppn: u32,
    /// The most children of an agent.
    pub fanout: u32,
    /// What agents keep of the board.
    pub cache: CachePolicy,
    /// What ranks get from each other.
    pub pattern: Pattern,
    /// Where the board is whole, ranks read it themselves, as through libpmi. Else each get is a question
    /// to the agent, as over PMI's wire.
    pub segment: bool,
    /// Ranks meet at a fence before they put anything, as where an exchange is timed.
    pub ready: bool,
    /// What keys begin with.
    pub prefix: String,
    /// The shortest value, in bytes.
    pub value_min: u32,
    /// The longest value.
    pub value_max: u32,
    /// The machine.
    pub costs: Costs,
    /// From one end of a link to the other, in place of what `costs` says.
    pub latency: Option<Duration>,
    /// Bytes per second that a place can send, in place of what `costs` says.
    pub bandwidth: Option<u64>,
    /// All places share so many cores, as on one machine; else each place has one of its own.
    pub cores: Option<u32>,
    /// What faults are drawn from.
    pub seed: u64,
    /// Whether something goes wrong.
    pub faults: bool,
    /// What the simulation itself may take.
    pub bounds: Bounds,
}

/// What a simulation may take on the machine that it runs on.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of memory, as estimated.
    pub memory: u64,
    /// Messages to be handled one by one, as estimated, or what takes as long. Two millions take about a
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
            latency: None,
            bandwidth: None,
            cores: None,
            seed: 1,
            faults: false,
            bounds: Bounds::default(),
        }
    }
}

/// Why a job was not simulated, or not to its end.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// The job itself makes no sense.
    #[error("{0}")]
    Senseless(String),
    /// The ranks would put more in one fence than ScELA takes.
    #[error(
        "{ranks} ranks would put {} in one fence, and it takes {} at most; fewer ranks or shorter values would do",
        size(*bytes),
        size(FENCE_BYTES_MAX as u64)
    )]
    Fence {
        /// The ranks.
        ranks: u64,
        /// What they would put.
        bytes: u64,
    },
    /// It would take too much memory.
    #[error("it would take about {} of memory, {} is allowed: {why}", size(*needed), size(*allowed))]
    Memory {
        /// The estimate.
        needed: u64,
        /// The bound.
        allowed: u64,
        /// What takes the most.
        why: String,
    },
    /// It would take too long.
    #[error("it would take about {needed} steps, {allowed} are allowed: {why}")]
    Steps {
        /// The estimate.
        needed: u64,
        /// The bound.
        allowed: u64,
        /// What takes the most.
        why: String,
    },
    /// Something happened that must not: a bug of ScELA, or of the simulation.
    #[error("the simulation found a fault of ScELA: {0}")]
    Violated(#[from] Violation),
}

/// Simulates a job. What cannot be simulated here is refused before it begins.
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

/// What an entry takes in a cache, beside key and value, which all caches share: its place in the list
/// and its slot of the index.
const KEPT_BYTES: u64 = 70;
/// How many entries of an epoch an agent takes in while it handles a message.
const RELEASED: u64 = 20;

/// What takes some of a bound, in words.
struct Need {
    amount: u64,
    why: String,
}

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
            program: Program::Exchange(Exchange::new(ranks, self.pattern, self.values(), self.ready)),
            costs,
            segment: self.segment && self.cache == CachePolicy::Hcmab,
            cores: self.cores,
            seed: self.seed,
            faults,
            stubborn: Ranks::new(),
            mutation: None,
            stats: true,
            checked: false,
        });
        world.run()?;
        Ok(world.report(self.fanout, Some(self.pattern), self.seed))
    }

    /// Refuses what cannot be simulated.
    fn check(&self) -> Result<(), Refusal> {
        let senseless = |why: String| Err(Refusal::Senseless(why));
        if self.nodes == 0 || self.ppn == 0 || self.fanout == 0 {
            return senseless("nodes, ranks on each and the fan-out are at least 1".to_owned());
        }
        if self.nodes > AGENTS_MAX || self.ranks() > RANKS_MAX.into() {
            return senseless(format!("a session has at most {AGENTS_MAX} agents and {RANKS_MAX} ranks"));
        }
        if self.prefix.is_empty() || self.prefix.len() > PREFIX_BYTES_MAX || self.prefix.starts_with("PMI_") {
            return senseless(format!("keys begin with 1 to {PREFIX_BYTES_MAX} bytes, and not with PMI_"));
        }
        if self.value_min > self.value_max || self.value_max > VALUE_BYTES_MAX {
            return senseless(format!("values have from value_min to value_max bytes, at most {VALUE_BYTES_MAX}"));
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
        let (needed, allowed) = (memory.iter().map(|need| need.amount).sum(), self.bounds.memory);
        if needed > allowed {
            return Err(Refusal::Memory { needed, allowed, why: most(memory) });
        }
        let (needed, allowed) = (steps.iter().map(|need| need.amount).sum(), self.bounds.steps);
        if needed > allowed {
            return Err(Refusal::Steps { needed, allowed, why: most(steps) });
        }
        Ok(())
    }

    /// What takes memory; all ranks' puts together have so many `bytes`.
    fn memory(&self, bytes: u64) -> Vec<Need> {
        let (agents, ranks) = (u64::from(self.nodes), self.ranks());
        let depth = u64::from(Subtree::whole(self.nodes, self.fanout).depth());
        let entry = bytes / ranks;
        let need = |amount, why| Need { amount, why };
        let mut needs = vec![
            need(agents * 6_000 + ranks * 300, format!("{agents} agents and {ranks} ranks themselves")),
            need(4 * bytes, format!("four times the {} of all puts at the root", size(bytes))),
        ];
        match self.cache {
            CachePolicy::Hcmab => {}
            CachePolicy::Hcs | CachePolicy::Hcma => {
                let passed = bytes + ranks * 90;
                needs.push(need(depth * passed, format!("{} of puts at each of {depth} levels", size(passed))));
                if self.pattern == Pattern::All {
                    let why = format!("{agents} agents x {ranks} entries x {KEPT_BYTES} bytes in their caches");
                    needs.push(need(agents * ranks * KEPT_BYTES, why));
                }
            }
            CachePolicy::HcmabLru { entries } => {
                let (kept, each) = (ranks.min(entries.into()), entry + KEPT_BYTES + 50);
                let why = format!("{agents} agents x {kept} entries x {each} bytes in their caches");
                needs.push(need(agents * kept * each, why));
                let each = entry + 150;
                needs
                    .push(need(depth * ranks * each, format!("{depth} levels x {ranks} keys x {each} bytes of index")));
            }
        }
        needs
    }

    /// What takes time.
    fn steps(&self) -> Vec<Need> {
        let (agents, ranks) = (u64::from(self.nodes), self.ranks());
        let depth = u64::from(Subtree::whole(self.nodes, self.fanout).depth());
        let need = |amount, why| Need { amount, why };
        let gets = if self.pattern == Pattern::All { agents * ranks } else { 0 };
        let mut needs = vec![need(agents * 40 + ranks * 10, format!("{agents} agents and {ranks} ranks themselves"))];
        let asked = || need(gets * 2, format!("{agents} agents x {ranks} keys x 2 messages"));
        match self.cache {
            CachePolicy::Hcmab => {}
            CachePolicy::Hcs => {
                needs.push(need(ranks * depth, format!("{ranks} puts x {depth} levels")));
                needs.push(asked());
            }
            CachePolicy::Hcma => needs.push(asked()),
            CachePolicy::HcmabLru { entries } => {
                let why = format!("{agents} agents x {ranks} entries of the epoch, {RELEASED} of which take as long");
                needs.push(need(agents * ranks / RELEASED, why));
                if u64::from(entries) < ranks {
                    // In step, all who miss a key wait for one answer, which comes from far below.
                    needs.push(asked());
                    needs.push(need(ranks * 2 * depth, format!("{ranks} keys x {} messages", 2 * depth)));
                } else {
                    needs.push(need(gets / 2, format!("{agents} agents x {ranks} keys looked up")));
                }
            }
        }
        needs
    }
}

fn most(needs: Vec<Need>) -> String {
    needs.into_iter().max_by_key(|need| need.amount).map(|need| need.why).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_the_arithmetic() {
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
