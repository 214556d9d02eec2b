//! The agents and ranks that faults have hit: the others must survive.

use std::collections::BTreeSet;

use pmi::{Rank, Ranks};

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Casualties {
    agents: BTreeSet<u32>,
    /// Those of the agents that have joined an ancestor since.
    rejoined: BTreeSet<u32>,
    ranks: Ranks,
}

impl Casualties {
    pub(crate) fn add_agent(&mut self, agent: u32) {
        self.agents.insert(agent);
    }

    pub(crate) fn add_rank(&mut self, rank: u32) {
        self.ranks.insert(Rank(rank));
    }

    pub(crate) fn has_agent(&self, agent: u32) -> bool {
        self.agents.contains(&agent)
    }

    pub(crate) fn add_rejoined(&mut self, agent: u32) {
        self.rejoined.insert(agent);
    }

    /// Whether other agents may never hear of this agent's ranks: a fault hit it, and it has not joined an ancestor
    /// since.
    pub(crate) fn is_out_of_reach(&self, agent: u32) -> bool {
        self.has_agent(agent) && !self.rejoined.contains(&agent)
    }

    /// The number of agents.
    pub(crate) fn agents(&self) -> u32 {
        self.agents.len() as u32
    }

    pub(crate) fn ranks(&self) -> &Ranks {
        &self.ranks
    }
}
