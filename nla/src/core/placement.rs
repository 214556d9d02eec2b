//! Which agent starts which ranks.

use pmi::Ranks;

use super::ids::AgentId;

/// Places ranks 0 to `size` over `agents` in blocks that differ by at most one rank. Agents that
/// get no rank are left out.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_even_and_cover_all() {
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
