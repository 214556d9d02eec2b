//! The hosts of agents and ranks, by the names that reports and file names use.

use nla::core::{AgentId, NamespaceId, NamespacePlan};
use pmi::{Rank, Ranks};

/// The hosts of agents, and of the first namespace's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RankLocations {
    /// The launcher's host.
    own: String,
    /// The host of each agent, in the order of the agents. Empty if all agents are on the launcher's host.
    agents: Vec<String>,
    /// The ranks of each agent in the first namespace.
    placement: Vec<(AgentId, Ranks)>,
}

impl RankLocations {
    /// Returns the locations of a session that runs on the launcher's host alone.
    pub(crate) fn local(own: String) -> Self {
        Self { own, agents: Vec::new(), placement: Vec::new() }
    }

    /// Returns the locations of a session with agents on these hosts, and with the ranks of `plan`.
    pub(crate) fn on_hosts(own: String, agents: Vec<String>, plan: &NamespacePlan) -> Self {
        Self { own, agents, placement: plan.placement.clone() }
    }

    /// Returns the locations of agents on these hosts, without ranks.
    #[cfg(test)]
    pub(crate) fn of_agents(own: String, agents: Vec<String>) -> Self {
        Self { own, agents, placement: Vec::new() }
    }

    /// Returns the locations of a session with this placement.
    #[cfg(test)]
    pub(crate) fn with_placement(own: String, agents: Vec<String>, placement: Vec<(AgentId, Ranks)>) -> Self {
        Self { own, agents, placement }
    }

    /// Returns the host of an agent.
    pub(crate) fn of_agent(&self, agent: AgentId) -> &str {
        let agent = (agent.0 as usize).checked_sub(1).and_then(|agent| self.agents.get(agent));
        agent.unwrap_or(&self.own)
    }

    /// Returns the hosts of ranks of the first namespace, in the order of the agents.
    pub(crate) fn hosts_of(&self, ranks: &Ranks) -> impl Iterator<Item = &str> {
        let is_here = |(_, here): &&(AgentId, Ranks)| !here.is_disjoint(ranks);
        let hosts = self.placement.iter().filter(is_here).map(|(agent, _)| self.of_agent(*agent));
        // Without a placement, all ranks are on this host.
        hosts.chain(self.placement.is_empty().then_some(self.own.as_str()))
    }

    /// Returns the host of a rank. Only the agents know the hosts of spawned ranks, so this returns the first agent's
    /// host for ranks of other namespaces.
    pub(crate) fn of_rank(&self, namespace: NamespaceId, rank: Rank) -> &str {
        let has_rank = |(_, ranks): &&(AgentId, Ranks)| ranks.contains(rank);
        let agent = self.placement.iter().find(has_rank).filter(|_| namespace == NamespaceId::FIRST);
        self.of_agent(agent.map_or(AgentId(1), |(agent, _)| *agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_agents_and_ranks_are_found() {
        let placement = vec![(AgentId(1), Ranks::range(0..4)), (AgentId(2), Ranks::range(4..8))];
        let remote = RankLocations { own: "front".into(), agents: vec!["n1".into(), "n2".into()], placement };
        assert_eq!([0, 1, 2, 3].map(|agent| remote.of_agent(AgentId(agent))), ["front", "n1", "n2", "front"]);
        assert_eq!([0, 5].map(|rank| remote.of_rank(NamespaceId::FIRST, Rank(rank))), ["n1", "n2"]);
        assert_eq!(remote.of_rank(NamespaceId(1), Rank(5)), "n1");
        let local = RankLocations::local("laptop".into());
        assert_eq!((local.of_agent(AgentId(3)), local.of_rank(NamespaceId::FIRST, Rank(9))), ("laptop", "laptop"));
    }
}
