//! Placement of ranks on agents, and owners of nodes' attributes.

use litemap::LiteMap;
use pmi::Ranks;

use super::ids::AgentId;

/// Places ranks 0 to `size` on `agents` in consecutive blocks whose sizes differ by at most one. Agents without a rank
/// are left out.
pub fn place(size: u32, agents: &[AgentId]) -> Vec<(AgentId, Ranks)> {
    let count = agents.len() as u64;
    let cut = |i: u64| (u64::from(size) * i / count) as u32;
    agents
        .iter()
        .zip(0u64..)
        .map(|(agent, i)| (*agent, Ranks::range(cut(i)..cut(i + 1))))
        .filter(|(_, ranks)| !ranks.is_empty())
        .collect()
}

/// Returns, for each agent that does not own the attributes of its node, the agent that does: the node's first agent
/// that has ranks. `nodes` maps each agent to its node.
pub fn owners(placement: &[(AgentId, Ranks)], nodes: &LiteMap<AgentId, u32>) -> Vec<(AgentId, AgentId)> {
    let mut first: LiteMap<u32, AgentId> = LiteMap::new();
    let agents = placement.iter().map(|(agent, _)| *agent);
    agents
        .filter_map(|agent| {
            let owner = *first.entry(*nodes.get(&agent)?).or_insert(agent);
            (owner != agent).then_some((agent, owner))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_agent_with_ranks_owns_its_nodes_attributes() {
        let placement: Vec<_> = [2, 3, 4, 6].into_iter().map(|agent| (AgentId(agent), Ranks::range(0..1))).collect();
        let nodes = |nodes: &[u32]| (1..).map(AgentId).zip(nodes.iter().copied()).collect();
        let to = |owners: &[(u32, u32)]| -> Vec<_> { owners.iter().map(|(a, o)| (AgentId(*a), AgentId(*o))).collect() };
        assert_eq!(owners(&placement, &nodes(&[0, 0, 0, 0, 0, 0])), to(&[(3, 2), (4, 2), (6, 2)]));
        assert_eq!(owners(&placement, &nodes(&[0, 0, 1, 1, 0, 0])), to(&[(4, 3), (6, 2)]));
        assert_eq!(owners(&placement, &nodes(&[0, 1, 2, 3, 4, 5])), to(&[]));
    }

    #[test]
    fn blocks_are_even_and_cover_all_ranks() {
        for size in [1u32, 2, 5, 16, 1000, 16_384] {
            for count in [1u32, 3, 5, 64] {
                let agents: Vec<_> = (1..=count).map(AgentId).collect();
                let placed = place(size, &agents);
                let mut all = Ranks::new();
                for (_, ranks) in &placed {
                    assert!(all.is_disjoint(ranks));
                    assert_eq!(ranks.intervals().len(), 1);
                    all.union_with(ranks);
                }
                assert_eq!(all, Ranks::range(0..size));
                let sizes: Vec<_> = placed.iter().map(|(_, ranks)| ranks.len()).collect();
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }
}
