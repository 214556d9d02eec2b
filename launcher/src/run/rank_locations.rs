//! On which host what is, as reports and file names call it.

use nla::core::{AgentId, NamespaceId, NamespacePlan};
use pmi::{Rank, Ranks};

/// The hosts of agents, and of the first namespace's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RankLocations {
    /// The launcher's.
    own: String,
    /// Of each agent, from the first on; all are on the launcher's if there are none.
    agents: Vec<String>,
    placement: Vec<(AgentId, Ranks)>,
}

impl RankLocations {
    /// Everything is on the launcher's own host.
    pub(crate) fn here(own: String) -> Self {
        Self { own, agents: Vec::new(), placement: Vec::new() }
    }

    /// Agents are on these hosts, and the ranks of `plan` on its agents.
    pub(crate) fn there(own: String, agents: Vec<String>, plan: &NamespacePlan) -> Self {
        Self { own, agents, placement: plan.placement.clone() }
    }

    /// Agents are on these hosts; of ranks nothing is known.
    #[cfg(test)]
    pub(crate) fn on(own: String, agents: Vec<String>) -> Self {
        Self { own, agents, placement: Vec::new() }
    }

    /// The host of an agent.
    pub(crate) fn of_agent(&self, agent: AgentId) -> &str {
        let agent = (agent.0 as usize).checked_sub(1).and_then(|agent| self.agents.get(agent));
        agent.unwrap_or(&self.own)
    }

    /// The host of a rank. Where ranks are that others have spawned only their agents know: they are
    /// taken to be where the first agent is.
    pub(crate) fn of_rank(&self, namespace: NamespaceId, rank: Rank) -> &str {
        let holds = |(_, ranks): &&(AgentId, Ranks)| ranks.contains(rank);
        let agent = self.placement.iter().find(holds).filter(|_| namespace == NamespaceId::FIRST);
        self.of_agent(agent.map_or(AgentId(1), |(agent, _)| *agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_and_ranks_are_on_hosts() {
        let placement = vec![(AgentId(1), Ranks::range(0..4)), (AgentId(2), Ranks::range(4..8))];
        let there = RankLocations { own: "front".into(), agents: vec!["n1".into(), "n2".into()], placement };
        assert_eq!([0, 1, 2, 3].map(|agent| there.of_agent(AgentId(agent))), ["front", "n1", "n2", "front"]);
        assert_eq!([0, 5].map(|rank| there.of_rank(NamespaceId::FIRST, Rank(rank))), ["n1", "n2"]);
        assert_eq!(there.of_rank(NamespaceId(1), Rank(5)), "n1");
        let here = RankLocations::here("laptop".into());
        assert_eq!((here.of_agent(AgentId(3)), here.of_rank(NamespaceId::FIRST, Rank(9))), ("laptop", "laptop"));
    }
}
