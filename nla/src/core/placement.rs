//! Placement of ranks on agents, also after the loss of agents, and owners of nodes' attributes.

use std::collections::BTreeSet;

use litemap::LiteMap;
use pmi::Ranks;

use super::ids::AgentId;
use super::limits::RANKS_PER_AGENT;

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

/// Moves the ranks of `lost` agents to others, for a job that starts again. `nodes` maps each agent to its node.
///
/// All ranks of a node with a lost agent move to a spare node: one that has no ranks and as many agents, none of them
/// lost. If no spare node is left, the node's other agents share the ranks of the lost one. Returns `None` if neither
/// is possible. The result is sorted by agent.
pub(super) fn without_lost(
    placement: &[(AgentId, Ranks)],
    nodes: &LiteMap<AgentId, u32>,
    lost: &BTreeSet<AgentId>,
) -> Option<Vec<(AgentId, Ranks)>> {
    let node_of = |agent: &AgentId| nodes.get(agent).copied();
    let mut agents_of: LiteMap<u32, Vec<AgentId>> = LiteMap::new();
    for (agent, node) in nodes {
        agents_of.entry(*node).or_default().push(*agent);
    }
    let used: BTreeSet<u32> = placement.iter().filter_map(|(agent, _)| node_of(agent)).collect();
    let is_spare = |(node, agents): &(&u32, &Vec<AgentId>)| {
        !used.contains(node) && agents.iter().all(|agent| !lost.contains(agent))
    };
    let mut spares: Vec<&[AgentId]> = agents_of.iter().filter(is_spare).map(|(_, agents)| &agents[..]).collect();
    let failed = placement.iter().filter(|(agent, _)| lost.contains(agent)).map(|(agent, _)| node_of(agent));
    let failed: BTreeSet<u32> = failed.collect::<Option<_>>()?;
    let mut moved: Vec<(AgentId, Ranks)> = placement
        .iter()
        .filter(|(agent, _)| node_of(agent).is_none_or(|node| !failed.contains(&node)))
        .cloned()
        .collect();
    for node in failed {
        let shares = || placement.iter().filter(|(agent, _)| node_of(agent) == Some(node));
        if let Some(at) = spares.iter().position(|spare| spare.len() >= shares().count()) {
            let spare = spares.remove(at);
            moved.extend(spare.iter().copied().zip(shares().map(|(_, ranks)| ranks.clone())));
            continue;
        }
        let mut left: Vec<_> = shares().filter(|(agent, _)| !lost.contains(agent)).cloned().collect();
        for (_, ranks) in shares().filter(|(agent, _)| lost.contains(agent)) {
            let (_, least) = left.iter_mut().min_by_key(|(_, ranks)| ranks.len())?;
            least.union_with(ranks);
            if least.len() > u64::from(RANKS_PER_AGENT) {
                return None;
            }
        }
        moved.extend(left);
    }
    moved.sort_by_key(|(agent, _)| *agent);
    Some(moved)
}

/// Returns an agent that can take over the `count` ranks of the agent `lost`, while the others go on: a spare one, which
/// `placement` names without ranks, else the one with the fewest ranks on the node of the lost one. `nodes` maps each agent to
/// its node.
pub(super) fn shelter(
    placement: &[(AgentId, Ranks)],
    nodes: &LiteMap<AgentId, u32>,
    all_lost: &BTreeSet<AgentId>,
    lost: AgentId,
    count: u64,
) -> Option<AgentId> {
    let candidates = || placement.iter().filter(|(agent, _)| *agent != lost && !all_lost.contains(agent));
    if let Some((spare, _)) = candidates().find(|(_, ranks)| ranks.is_empty()) {
        return Some(*spare);
    }
    let node = nodes.get(&lost)?;
    let neighbours = candidates().filter(|(agent, _)| nodes.get(agent) == Some(node));
    let (least, ranks) = neighbours.min_by_key(|(_, ranks)| ranks.len())?;
    (ranks.len() + count <= u64::from(RANKS_PER_AGENT)).then_some(*least)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves the ranks of `lost` agents. Agent `i` is on node `nodes[i - 1]`; each of the first `used` agents has a rank
    /// of its own number. Returns the agent of each rank.
    fn moved(nodes: &[u32], used: u32, lost: &[u32]) -> Option<Vec<u32>> {
        let placement: Vec<_> = (1..=used).map(|agent| (AgentId(agent), Ranks::range(agent..agent + 1))).collect();
        let nodes = (1..).map(AgentId).zip(nodes.iter().copied()).collect();
        let lost = lost.iter().copied().map(AgentId).collect();
        let moved = without_lost(&placement, &nodes, &lost)?;
        assert!(moved.is_sorted_by_key(|(agent, _)| *agent));
        let agent_of = |rank| moved.iter().find(|(_, ranks)| ranks.contains(pmi::Rank(rank))).unwrap().0.0;
        Some((1..=used).map(agent_of).collect())
    }

    #[test]
    fn a_spare_node_takes_the_ranks_of_a_lost_one() {
        assert_eq!(moved(&[0, 1, 2, 3, 4], 3, &[2]), Some(vec![1, 4, 3]));
        assert_eq!(moved(&[0, 1, 2, 3, 4], 3, &[2, 4]), Some(vec![1, 5, 3]), "a lost spare is of no use");
        assert_eq!(moved(&[0, 1, 2, 3, 4], 3, &[1, 3]), Some(vec![4, 2, 5]));
        assert_eq!(moved(&[0, 1, 2, 3, 4], 3, &[5]), Some(vec![1, 2, 3]), "it has no ranks");
        assert_eq!(moved(&[0, 1, 2, 3], 3, &[1, 3]), None, "one spare for two nodes");
    }

    #[test]
    fn all_ranks_of_a_node_move_together() {
        assert_eq!(moved(&[0, 0, 1, 1, 2, 2], 4, &[3]), Some(vec![1, 2, 5, 6]));
        assert_eq!(moved(&[0, 0, 1, 1, 2, 3, 3], 4, &[3, 4]), Some(vec![1, 2, 6, 7]), "node 2 has too few agents");
        assert_eq!(moved(&[0, 0, 1, 1, 2, 2], 4, &[3, 6]), Some(vec![1, 2, 4, 4]), "no spare is whole");
    }

    #[test]
    fn without_a_spare_the_other_agents_of_the_node_share_the_ranks() {
        assert_eq!(moved(&[0, 0, 0, 1], 4, &[1]), Some(vec![2, 2, 3, 4]));
        assert_eq!(moved(&[0, 0, 0, 1], 4, &[1, 3]), Some(vec![2, 2, 2, 4]));
        assert_eq!(moved(&[0, 0, 0, 1], 4, &[4]), None);
        let nodes = [(AgentId(1), 0), (AgentId(2), 0)].into_iter().collect();
        let full = |agent: u32| (AgentId(agent), Ranks::range((agent - 1) * RANKS_PER_AGENT..agent * RANKS_PER_AGENT));
        assert_eq!(without_lost(&[full(1), full(2)], &nodes, &[AgentId(1)].into()), None, "too many ranks for one");
        let one = (AgentId(1), Ranks::range(0..1));
        let all_but_one = (AgentId(2), Ranks::range(1..RANKS_PER_AGENT));
        let together = vec![(AgentId(2), Ranks::range(0..RANKS_PER_AGENT))];
        assert_eq!(without_lost(&[one, all_but_one], &nodes, &[AgentId(1)].into()), Some(together));
    }

    #[test]
    fn a_spare_agent_or_a_neighbour_takes_over_while_the_others_go_on() {
        let placement: Vec<_> = [(1, "0-1"), (2, "2"), (3, "3-4"), (4, ""), (5, "")]
            .into_iter()
            .map(|(agent, ranks)| (AgentId(agent), ranks.parse().unwrap()))
            .collect();
        let nodes = (1..).map(AgentId).zip([0, 0, 1, 2, 3]).collect();
        let of = |all_lost: &[u32], lost: u32, count: u64| {
            let all_lost = all_lost.iter().copied().map(AgentId).collect();
            shelter(&placement, &nodes, &all_lost, AgentId(lost), count).map(|agent| agent.0)
        };
        assert_eq!(of(&[1], 1, 2), Some(4), "the first spare");
        assert_eq!(of(&[1, 4], 1, 2), Some(5), "not a lost one");
        assert_eq!(of(&[1, 4, 5], 1, 2), Some(2), "the other agent of the node");
        assert_eq!(of(&[3, 4, 5], 3, 2), None, "it was alone on its node");
        let full = u64::from(RANKS_PER_AGENT);
        assert_eq!((of(&[1, 4, 5], 1, full - 1), of(&[1, 4, 5], 1, full)), (Some(2), None));
    }

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
