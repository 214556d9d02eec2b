//! The hosts of agents and ranks, by the names that reports and file names use.

use std::sync::{Arc, Mutex, PoisonError};

use nla::core::{AgentId, NamespaceId, NamespacePlan};
use pmi::{Rank, Ranks};

/// The hosts of agents, and of the first namespace's ranks.
#[derive(Debug)]
pub(crate) struct RankLocations {
    /// The launcher's host.
    own: String,
    /// The host of each agent, in the order of the agents. Empty if all agents are on the launcher's host.
    agents: Vec<String>,
    /// The ranks of each agent in the first namespace. It changes when ranks start again on other agents; threads that
    /// write output read it.
    placement: Mutex<Arc<[(AgentId, Ranks)]>>,
    /// The namespaces of the job's later starts.
    restarts: Mutex<Vec<NamespaceId>>,
}

impl RankLocations {
    /// Returns the locations of a session that runs on the launcher's host alone.
    pub(crate) fn local(own: String) -> Self {
        Self::with_placement(own, Vec::new(), Vec::new())
    }

    /// Returns the locations of a session with agents on these hosts, and with the ranks of `plan`.
    pub(crate) fn on_hosts(own: String, agents: Vec<String>, plan: &NamespacePlan) -> Self {
        Self::with_placement(own, agents, plan.placement.clone())
    }

    /// Returns the locations of agents on these hosts, without ranks.
    #[cfg(test)]
    pub(crate) fn of_agents(own: String, agents: Vec<String>) -> Self {
        Self::with_placement(own, agents, Vec::new())
    }

    /// Returns the locations of a session with this placement.
    pub(crate) fn with_placement(own: String, agents: Vec<String>, placement: Vec<(AgentId, Ranks)>) -> Self {
        Self { own, agents, placement: Mutex::new(placement.into()), restarts: Mutex::default() }
    }

    fn placement(&self) -> Arc<[(AgentId, Ranks)]> {
        Arc::clone(&self.placement.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the ranks are on these agents from now on. Returns the ranks that have moved, with their new agents.
    /// On the launcher's host alone, all ranks stay there, and none is returned.
    pub(crate) fn move_to(&self, placement: &[(AgentId, Ranks)]) -> Vec<(AgentId, Ranks)> {
        if self.agents.is_empty() {
            return Vec::new();
        }
        let before = std::mem::replace(
            &mut *self.placement.lock().unwrap_or_else(PoisonError::into_inner),
            placement.to_vec().into(),
        );
        let at = |agent: AgentId| before.iter().find(|(other, _)| *other == agent).map(|(_, ranks)| ranks);
        let moved = placement
            .iter()
            .map(|(agent, ranks)| (*agent, at(*agent).map_or(ranks.clone(), |at| ranks.difference(at))));
        moved.filter(|(_, ranks)| !ranks.is_empty()).collect()
    }

    /// Notes that the job has started again, as this namespace.
    pub(crate) fn note_restart(&self, namespace: NamespaceId) {
        self.restarts.lock().unwrap_or_else(PoisonError::into_inner).push(namespace);
    }

    /// Returns the namespace by which the user knows `namespace`: the first one for all starts of the job.
    pub(crate) fn known(&self, namespace: NamespaceId) -> NamespaceId {
        let is_job = || self.restarts.lock().unwrap_or_else(PoisonError::into_inner).contains(&namespace);
        if namespace != NamespaceId::FIRST && is_job() { NamespaceId::FIRST } else { namespace }
    }

    /// Returns the host of an agent.
    pub(crate) fn of_agent(&self, agent: AgentId) -> &str {
        let agent = (agent.0 as usize).checked_sub(1).and_then(|agent| self.agents.get(agent));
        agent.unwrap_or(&self.own)
    }

    /// Returns the hosts of ranks of the first namespace, in the order of the agents.
    pub(crate) fn hosts_of(&self, ranks: &Ranks) -> Vec<&str> {
        let placement = self.placement();
        let is_here = |(_, here): &&(AgentId, Ranks)| !here.is_disjoint(ranks);
        let hosts = placement.iter().filter(is_here).map(|(agent, _)| self.of_agent(*agent));
        // Without a placement, all ranks are on this host.
        hosts.chain(placement.is_empty().then_some(self.own.as_str())).collect()
    }

    /// Returns the host of a rank. Only the agents know the hosts of spawned ranks, so this returns the first agent's
    /// host for ranks of other namespaces.
    pub(crate) fn of_rank(&self, namespace: NamespaceId, rank: Rank) -> &str {
        let has_rank = |(_, ranks): &&(AgentId, Ranks)| ranks.contains(rank);
        let placement = self.placement();
        let agent = placement.iter().find(has_rank).filter(|_| namespace == NamespaceId::FIRST);
        self.of_agent(agent.map_or(AgentId(1), |(agent, _)| *agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_agents_and_ranks_are_found() {
        let placement = vec![(AgentId(1), Ranks::range(0..4)), (AgentId(2), Ranks::range(4..8))];
        let remote = RankLocations::with_placement("front".into(), vec!["n1".into(), "n2".into()], placement);
        assert_eq!([0, 1, 2, 3].map(|agent| remote.of_agent(AgentId(agent))), ["front", "n1", "n2", "front"]);
        assert_eq!([0, 5].map(|rank| remote.of_rank(NamespaceId::FIRST, Rank(rank))), ["n1", "n2"]);
        assert_eq!(remote.of_rank(NamespaceId(1), Rank(5)), "n1");
        let moved = remote.move_to(&[(AgentId(2), Ranks::range(0..8))]);
        assert_eq!(moved, [(AgentId(2), Ranks::range(0..4))]);
        assert_eq!(remote.of_rank(NamespaceId::FIRST, Rank(0)), "n2");
        let local = RankLocations::local("laptop".into());
        assert_eq!((local.of_agent(AgentId(3)), local.of_rank(NamespaceId::FIRST, Rank(9))), ("laptop", "laptop"));
    }
}
