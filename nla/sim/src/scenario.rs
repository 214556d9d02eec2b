//! A small job and its faults, drawn from a seed.

use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;

use nla::core::limits::{DEAD_TIME, DEAD_TIME_SURVIVED};
use nla::core::{AgentId, CachePolicy, FailurePolicy, PieceBytes, Subtree};
use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::faults::{Faults, Mutation};
use crate::oracle::Violation;
use crate::program::{Op, Program};
use crate::random::Random;
use crate::report::Report;
use crate::world::{Setup, World};

/// The placement of ranks on agents.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// Blocks of consecutive ranks, of about the same size.
    Block,
    /// Round robin.
    Cyclic,
    /// Random: some agents may have no ranks.
    Uneven,
}

/// The parameters of a reproducible run. The programs of the ranks follow from the seed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The number of agents in the tree.
    pub agents: u32,
    /// The fan-out: the highest number of children.
    pub fanout: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The placement of ranks on agents.
    pub placement: Placement,
    /// The cache policy of the agents.
    pub cache: CachePolicy,
    /// The length of the pieces of long epochs.
    pub piece_bytes: PieceBytes,
    /// Whether these pieces travel packed, where that makes them shorter.
    pub packs: bool,
    /// The number of agents without ranks, on which ranks may start again. They are the first or the last ones.
    pub spares: u32,
    /// Whether they are the first ones.
    pub are_spares_first: bool,
    /// The number of fences of each rank.
    pub rounds: u32,
    /// The action after a failure.
    pub on_failure: FailurePolicy,
    /// Whether one rank aborts, dies or exits early.
    pub rank_fails: bool,
    /// Whether some ranks ignore SIGTERM.
    pub ranks_ignore_term: bool,
    /// Whether agents report their statistics at the end.
    pub stats: bool,
    /// The faults.
    pub faults: Faults,
    /// A bug of one agent, for tests of the oracle.
    pub mutation: Option<Mutation>,
}

/// Draws the length of pieces: mostly some that cut the short epochs of small jobs.
fn piece_bytes(seed: u64) -> PieceBytes {
    NonZeroU32::new(*Random::new(seed ^ 0x91ece).pick(&[0, 16, 48, 48, 150, 150, 500, 1 << 18]))
}

impl Scenario {
    /// Draws a scenario without faults. One of its ranks may still fail.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let agents = *random.pick(&[1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 20]);
        let lru = CachePolicy::HcmabLru { entries: random.between(1, 12) as u32 };
        Self {
            seed,
            agents,
            fanout: random.between(1, 4) as u32,
            ranks: random.between(1, u64::from(agents) * 3) as u32,
            placement: *random.pick(&[Placement::Block, Placement::Cyclic, Placement::Uneven]),
            cache: *random.pick(&[CachePolicy::Hcs, CachePolicy::Hcma, CachePolicy::Hcmab, lru]),
            piece_bytes: piece_bytes(seed),
            packs: Random::new(seed ^ 0x9ac4).once_in(2),
            rounds: random.between(1, 4) as u32,
            spares: 0,
            are_spares_first: false,
            on_failure: FailurePolicy::Abort,
            rank_fails: random.once_in(6),
            ranks_ignore_term: random.once_in(4),
            stats: random.once_in(2),
            faults: Faults::default(),
            mutation: None,
        }
    }

    /// Draws a scenario without faults whose session survives faults: with this number of agents, or a small one.
    pub fn surviving(seed: u64, agents: Option<u32>) -> Self {
        let mut random = Random::new(seed ^ 0x0a11);
        let small = Self::from_seed(seed);
        let fanouts: &[u32] = if agents.is_some() { &[2, 2, 3, 8, 16, 32] } else { &[1, 2, 2, 3, 4] };
        let fanout = *random.pick(fanouts);
        let agents = agents.unwrap_or_else(|| random.between(2, 20) as u32);
        let on_failure = *random.pick(&[FailurePolicy::Continue, FailurePolicy::RestartRank]);
        let spares = if on_failure.starts_again() { random.between(1, 5).min(u64::from(agents) - 1) as u32 } else { 0 };
        Self {
            agents,
            fanout,
            on_failure,
            spares,
            are_spares_first: random.once_in(2),
            ranks: random.between(1, u64::from(agents) * if agents > 100 { 1 } else { 3 }) as u32,
            ..small
        }
    }

    /// Returns the scenario with faults that its session survives. `report` is that of its run without faults.
    #[must_use]
    pub fn with_faults_to_survive(self, report: &Report) -> Self {
        let tree = Subtree::whole(self.agents, self.fanout);
        Self { faults: Faults::to_survive(self.seed, tree, self.ranks, report.joined..report.over), ..self }
    }

    /// Returns the scenario with faults drawn from its seed, within about `span` nanoseconds.
    #[must_use]
    pub fn with_faults(self, span: u64) -> Self {
        Self { faults: Faults::from_seed(self.seed, self.agents, self.ranks, span), ..self }
    }

    /// Runs the scenario with all checks.
    pub fn run(&self) -> Result<Report, Violation> {
        let mut random = Random::new(self.seed ^ 0x5eed);
        let ignoring_term = (0..self.ranks).filter(|_| self.ranks_ignore_term && random.once_in(3)).map(Rank).collect();
        let placement = self.place_ranks(&mut random);
        let mut world = World::new(Setup {
            agents: self.agents,
            fanout: self.fanout,
            placement,
            cache: self.cache,
            on_failure: self.on_failure,
            dead_time: if self.on_failure.adopts() { DEAD_TIME_SURVIVED } else { DEAD_TIME },
            program: Rc::new(self.program_of_all(&mut random)),
            costs: Costs::default(),
            piece_bytes: self.piece_bytes,
            packs: self.packs,
            segment: false,
            cores: None,
            seed: self.seed,
            faults: self.faults.clone(),
            ignoring_term,
            mutation: self.mutation,
            stats: self.stats,
            checked: true,
        });
        world.run()?;
        Ok(world.report(self.fanout, None, self.seed))
    }

    fn place_ranks(&self, random: &mut Random) -> Vec<(AgentId, Ranks)> {
        let agents = self.agents - self.spares;
        let first = if self.are_spares_first { 1 + self.spares } else { 1 };
        let mut placement: Vec<_> = (first..first + agents).map(|agent| (AgentId(agent), Ranks::new())).collect();
        for rank in 0..self.ranks {
            let agent = match self.placement {
                Placement::Block => rank * agents / self.ranks,
                Placement::Cyclic => rank % agents,
                Placement::Uneven => random.below(agents.into()).min(random.below(agents.into())) as u32,
            };
            placement[agent as usize].1.insert(Rank(rank));
        }
        placement.retain(|(_, ranks)| !ranks.is_empty());
        placement
    }

    fn program_of_all(&self, random: &mut Random) -> Program {
        let ops: Vec<_> = (0..self.ranks).map(|rank| self.program(random, rank)).collect();
        let failure = self.rank_fails.then(|| {
            let rank = random.below(self.ranks.into()) as u32;
            let program: &Vec<Op> = &ops[rank as usize];
            // The rank fails before its last fence, where the other ranks wait for it. An early exit needs other
            // ranks.
            let fence = program.iter().rposition(|op| *op == Op::Fence).unwrap_or(0);
            let at = random.between(1, fence as u64) as usize;
            let end = match random.below(4) {
                0 if self.ranks > 1 => Op::ExitEarly,
                0 | 1 => Op::Abort,
                2 => Op::Die(11),
                _ => Op::Exit(3),
            };
            (rank, at as u32, end)
        });
        Program::Drawn { ops, failure }
    }

    fn program(&self, random: &mut Random, rank: u32) -> Vec<Op> {
        let mut ops = vec![Op::Join];
        for round in 0..self.rounds {
            self.put_and_get(random, rank, round, &mut ops);
            ops.push(Op::Fence);
            for _ in 0..random.below(6) {
                ops.push(Op::Get { key: self.key(random, rank).into() });
            }
        }
        if random.once_in(3) {
            self.put_and_get(random, rank, self.rounds, &mut ops);
        }
        ops.push(Op::Finalize);
        if random.once_in(4) {
            ops.push(Op::Compute(random.below(30_000_000)));
        }
        ops.push(Op::Exit(0));
        ops
    }

    /// Draws the steps of a rank between two fences.
    fn put_and_get(&self, random: &mut Random, rank: u32, round: u32, ops: &mut Vec<Op>) {
        for number in 0..random.below(4) {
            let key = self.key(random, rank);
            let mut value = format!("{rank}.{round}.{number}").into_bytes();
            if random.once_in(4) {
                value.resize(value.len().max(random.between(1, 1000) as usize), b'v');
            }
            ops.push(Op::Put { key: key.clone(), value });
            match random.below(6) {
                0 => ops.push(Op::Get { key: key.into() }),
                1 => ops.push(Op::Get { key: self.key(random, rank).into() }),
                2 => ops.push(Op::Compute(random.below(3_000_000))),
                _ => {}
            }
        }
    }

    /// Draws a key: one that several ranks put, one of this rank, one of another rank, or one that no rank puts.
    fn key(&self, random: &mut Random, rank: u32) -> Vec<u8> {
        let key = match random.below(10) {
            0..=3 => format!("shared-{}", random.below(6)),
            4..=6 => format!("of-{rank}-{}", random.below(3)),
            7 | 8 => format!("of-{}-{}", random.below(self.ranks.into()), random.below(3)),
            _ => format!("absent-{}", random.below(20)),
        };
        key.into_bytes()
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, agents, fanout, ranks, placement, cache, rounds, on_failure, spares, .. } = self;
        write!(f, "SCELA_SEED={seed}: {ranks} ranks on {agents} agents ({placement:?}), fan-out {fanout}, {cache}")?;
        if let Some(entries) = cache.entries() {
            write!(f, " of {entries} entries")?;
        }
        if on_failure.adopts() {
            write!(f, ", on failure {}, {spares} spares", on_failure.name())?;
        }
        write!(f, ", {rounds} fences; {}", self.faults)?;
        let notes = [
            (self.rank_fails, "; one rank fails"),
            (self.ranks_ignore_term, "; some ranks ignore SIGTERM"),
            (self.stats, "; with statistics"),
        ];
        notes.iter().filter(|(applies, _)| *applies).try_for_each(|(_, note)| f.write_str(note))?;
        if let Some(mutation) = self.mutation {
            write!(f, "; {mutation:?}")?;
        }
        Ok(())
    }
}
