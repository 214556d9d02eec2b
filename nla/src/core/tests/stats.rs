//! Statistics of whole trees: they equal the traffic on the links.

use std::collections::{BTreeMap, BTreeSet};

use pmi::{Puts, Rank, Ranks, Request};

use super::NS;
use super::tree::{Tree, placements, shapes};
use crate::core::cache::CachePolicy;
use crate::core::ids::AgentId;
use crate::core::stats::{Stats, Traffic};
use crate::core::topology::Subtree;
use crate::core::trace::{SpanKind, TraceScope};

const POLICIES: [CachePolicy; 4] =
    [CachePolicy::Hcs, CachePolicy::Hcma, CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 2 }];

/// Runs a session in which each rank puts an entry, enters a fence, and gets all entries.
fn session(policy: CachePolicy, agents: u32, fanout: u32, placement: Vec<(AgentId, Ranks)>) -> (Tree, Stats) {
    let nodes = (1..=agents).map(|agent| (AgentId(agent), agent)).collect();
    let size = placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
    let mut tree = Tree::with(policy, agents, fanout, placement, &nodes, u64::from(size));
    for rank in 0..size {
        let mut puts = Puts::new();
        puts.push(Rank(rank), format!("key-{rank}").as_bytes(), b"value");
        if policy.puts_at_once() {
            tree.ask(NS, rank, Request::Put { puts: puts.clone() });
            puts = Puts::new();
        }
        tree.ask(NS, rank, Request::Fence { puts, in_segment: false });
    }
    tree.settle();
    for rank in 0..size {
        tree.answer(NS, rank);
    }
    for rank in 0..size {
        for key in 0..size {
            assert!(tree.get(NS, rank, &format!("key-{key}")).is_some());
        }
    }
    let stats = tree.end();
    (tree, stats)
}

/// The level of an agent.
fn level(tree: Subtree, agent: AgentId) -> usize {
    tree.parent_of(agent).map_or(0, |parent| level(tree, parent) + 1)
}

#[test]
fn levels_add_up_to_the_traffic_on_the_links() {
    for policy in POLICIES {
        for (agents, fanout) in shapes(6) {
            let whole = Subtree::whole(agents, fanout);
            for placement in placements(agents) {
                let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>();
                let members = placement.len() as u64;
                let (tree, stats) = session(policy, agents, fanout, placement);
                assert_eq!(stats.members(), u64::from(agents) + 1);
                assert_eq!(stats.levels.len(), whole.depth() as usize + 1);
                let mut up: BTreeMap<usize, Traffic> = BTreeMap::new();
                let mut messages = 0;
                for (agent, counted) in &tree.counted {
                    let sum = up.entry(level(whole, *agent)).or_default();
                    for (sum, some) in [(&mut sum.board, counted.up.board), (&mut sum.control, counted.up.control)] {
                        sum.messages += some.messages;
                        sum.bytes += some.bytes;
                        messages += some.messages;
                    }
                    messages += counted.down.board.messages + counted.down.control.messages;
                }
                assert_eq!(messages, tree.messages as u64);
                for (at, level) in stats.levels.iter().enumerate() {
                    assert_eq!(level.counted.up.board, up[&at].board, "level {at}, {policy:?}");
                    // The messages with the statistics are sent after the counting.
                    let reports = if at == 0 { 0 } else { level.members };
                    assert_eq!(level.counted.up.control.messages, up[&at].control.messages - reports);
                }
                let gets = stats.levels.iter().map(|level| level.gets.own + level.counted.board_gets);
                let asked = stats.levels.iter().map(|level| level.gets.asked).sum::<u64>();
                // Gets are made one by one, so none joins an open look-up.
                let here = gets.sum::<u64>();
                assert!(here <= size * size && (here == size * size || asked > 0), "{policy:?}: {here} and {asked}");
                let scope = TraceScope::of(agents);
                assert!(scope.allows(&stats.spans, whole) && stats.spans.is_sorted_by_key(|span| span.agent));
                let traced: BTreeSet<AgentId> = stats.spans.iter().map(|span| span.agent).collect();
                assert!(traced.into_iter().eq((1..=agents).map(AgentId)), "each agent has reported its spans");
                let exits = stats.spans.iter().filter(|span| span.kind == SpanKind::Exits);
                assert_eq!(exits.map(|span| u64::from(span.count)).sum::<u64>(), size);
                let fences: u64 = stats.levels.iter().map(|level| level.fences.count()).sum();
                assert!(fences >= members, "each agent with ranks and each of its ancestors times its fences");
            }
        }
    }
}
