//! A small job in which anything can go wrong, drawn from a seed.

use std::fmt;

use nla::core::{AgentId, CachePolicy};
use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::faults::{Faults, Mutation};
use crate::oracle::Violation;
use crate::program::{Op, Program};
use crate::random::Random;
use crate::report::Report;
use crate::world::{Setup, World};

/// How ranks are dealt to agents.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// In blocks of the same size.
    Block,
    /// One by one around.
    Cyclic,
    /// As it comes: some agents may get none.
    Uneven,
}

/// Everything that is needed to have the same run again. The programs of the ranks follow from the
/// seed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// What all was drawn from.
    pub seed: u64,
    /// Agents in the tree.
    pub agents: u32,
    /// The most children of an agent.
    pub fanout: u32,
    /// Ranks.
    pub ranks: u32,
    /// Where they are.
    pub placement: Placement,
    /// What agents keep of the board.
    pub cache: CachePolicy,
    /// Fences that each rank takes part in.
    pub rounds: u32,
    /// Whether a rank's program ends as it should not.
    pub doomed: bool,
    /// Whether some ranks do not end when they are asked to.
    pub stubborn: bool,
    /// Whether agents tell at the end what they have counted.
    pub stats: bool,
    /// What goes wrong around them.
    pub faults: Faults,
    /// What an agent does wrong, for tests of the oracle.
    pub mutation: Option<Mutation>,
}

impl Scenario {
    /// The scenario of a seed, with nothing going wrong but what ranks do themselves.
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
            rounds: random.between(1, 4) as u32,
            doomed: random.once_in(6),
            stubborn: random.once_in(4),
            stats: random.once_in(2),
            faults: Faults::default(),
            mutation: None,
        }
    }

    /// The same with faults that are drawn from the seed, within about `span` nanoseconds.
    #[must_use]
    pub fn troubled(self, span: u64) -> Self {
        Self { faults: Faults::from_seed(self.seed, self.agents, self.ranks, span), ..self }
    }

    /// Runs it, with everything checked that can be.
    pub fn run(&self) -> Result<Report, Violation> {
        let mut random = Random::new(self.seed ^ 0x5eed);
        let stubborn: Ranks = (0..self.ranks).filter(|_| self.stubborn && random.once_in(3)).map(Rank).collect();
        let placement = self.placed(&mut random);
        let mut world = World::new(Setup {
            agents: self.agents,
            fanout: self.fanout,
            placement,
            cache: self.cache,
            program: Program::drawn(self.programs(&mut random)),
            costs: Costs::default(),
            segment: false,
            cores: None,
            seed: self.seed,
            faults: self.faults.clone(),
            stubborn,
            mutation: self.mutation,
            stats: self.stats,
            checked: true,
        });
        world.run()?;
        Ok(world.report(self.fanout, None, self.seed))
    }

    fn placed(&self, random: &mut Random) -> Vec<(AgentId, Ranks)> {
        let mut placement: Vec<_> = (1..=self.agents).map(|agent| (AgentId(agent), Ranks::new())).collect();
        for rank in 0..self.ranks {
            let agent = match self.placement {
                Placement::Block => rank * self.agents / self.ranks,
                Placement::Cyclic => rank % self.agents,
                Placement::Uneven => random.below(self.agents.into()).min(random.below(self.agents.into())) as u32,
            };
            placement[agent as usize].1.insert(Rank(rank));
        }
        placement.retain(|(_, ranks)| !ranks.is_empty());
        placement
    }

    fn programs(&self, random: &mut Random) -> Vec<Vec<Op>> {
        let mut programs: Vec<_> = (0..self.ranks).map(|rank| self.program(random, rank)).collect();
        if self.doomed {
            let program = &mut programs[random.below(self.ranks.into()) as usize];
            // Where others wait for it, which takes others.
            let fence = program.iter().rposition(|op| *op == Op::Fence).unwrap_or(0);
            let at = random.between(1, fence as u64) as usize;
            let end = match random.below(4) {
                0 if self.ranks > 1 => Op::Leave,
                0 | 1 => Op::Abort,
                2 => Op::Die(11),
                _ => Op::Exit(3),
            };
            program.truncate(at);
            program.push(end);
        }
        programs
    }

    fn program(&self, random: &mut Random, rank: u32) -> Vec<Op> {
        let mut ops = vec![Op::Join];
        for round in 0..self.rounds {
            self.act(random, rank, round, &mut ops);
            ops.push(Op::Fence);
            for _ in 0..random.below(6) {
                ops.push(Op::Get { key: self.key(random, rank).into() });
            }
        }
        if random.once_in(3) {
            self.act(random, rank, self.rounds, &mut ops);
        }
        ops.push(Op::Finalize);
        if random.once_in(4) {
            ops.push(Op::Compute(random.below(30_000_000)));
        }
        ops.push(Op::Exit(0));
        ops
    }

    /// What a rank does between two fences.
    fn act(&self, random: &mut Random, rank: u32, round: u32, ops: &mut Vec<Op>) {
        for number in 0..random.below(4) {
            let key = self.key(random, rank);
            let mut value = format!("{rank}.{round}.{number}").into_bytes();
            if random.once_in(4) {
                value.resize(random.between(1, 1000) as usize, b'v');
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

    /// One that several ranks put, one of its own, one of another rank's, or one that nobody puts.
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
        let Self { seed, agents, fanout, ranks, placement, cache, rounds, .. } = self;
        write!(f, "SCELA_SEED={seed}: {ranks} ranks on {agents} agents ({placement:?}), fan-out {fanout}, {cache}")?;
        if let Some(entries) = cache.entries() {
            write!(f, " of {entries} entries")?;
        }
        write!(f, ", {rounds} fences; {}", self.faults)?;
        let notes = [
            (self.doomed, "; a rank ends badly"),
            (self.stubborn, "; some ranks outlive TERM"),
            (self.stats, "; with statistics"),
        ];
        notes.iter().filter(|(holds, _)| *holds).try_for_each(|(_, note)| f.write_str(note))?;
        if let Some(mutation) = self.mutation {
            write!(f, "; {mutation:?}")?;
        }
        Ok(())
    }
}
