//! Rings in whole trees.

use litemap::LiteMap;
use pmi::{Answer, Puts, Rank, Request};

use super::tree::{Tree, placements, shapes};
use super::{NS, ranks};
use crate::core::ids::AgentId;
use crate::core::plan::NamespacePlan;

fn ring(rank: u32) -> Request {
    Request::Ring { to_left: format!("{rank}<").into_bytes(), to_right: format!(">{rank}").into_bytes() }
}

fn fence(rank: u32) -> Request {
    let mut puts = Puts::new();
    puts.push(Rank(rank), format!("key-{rank}").as_bytes(), b"v");
    Request::Fence { puts, in_segment: false }
}

/// All agents on one node.
fn one_node(agents: u32) -> LiteMap<AgentId, u32> {
    (1..=agents).map(|agent| (AgentId(agent), 0)).collect()
}

/// Runs a ring and checks that each rank gets its neighbours' values. Returns the ring's order.
#[track_caller]
fn run_ring(tree: &mut Tree, size: u32, backwards: bool) -> Vec<u32> {
    for rank in 0..size {
        let rank = if backwards { size - 1 - rank } else { rank };
        assert_eq!(tree.answer(NS, rank), None, "no rank is answered before all have arrived");
        tree.ask(NS, rank, ring(rank));
        tree.step();
    }
    tree.settle();
    let mut order = vec![None; size as usize];
    let mut heard = Vec::new();
    for rank in 0..size {
        let Some(Answer::Ring { position, from_left, from_right }) = tree.answer(NS, rank) else { panic!("{rank}") };
        assert_eq!(order[position as usize].replace(rank), None, "one rank per position");
        heard.push((from_left, from_right));
    }
    let order: Vec<u32> = order.into_iter().map(Option::unwrap).collect();
    for (at, rank) in order.iter().enumerate() {
        let left = order[(at + order.len() - 1) % order.len()];
        let right = order[(at + 1) % order.len()];
        let expected = (format!(">{left}").into_bytes(), format!("{right}<").into_bytes());
        assert_eq!(heard[*rank as usize], expected, "rank {rank} in {order:?}");
    }
    order
}

#[test]
fn each_rank_gets_its_neighbours_values_in_every_tree() {
    for (agents, fanout) in shapes(7) {
        for (number, placement) in placements(agents).into_iter().enumerate() {
            let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
            let in_blocks = number % 4 == 0;
            let mut tree = Tree::started(agents, fanout, placement, &one_node(agents), number as u64);
            let order = run_ring(&mut tree, size, false);
            if in_blocks {
                assert_eq!(order, (0..size).collect::<Vec<_>>(), "with blocks the order is that of the ranks");
            }
            // Fences and rings share their numbers, and may follow each other in any order.
            for rank in 0..size {
                tree.ask(NS, rank, fence(rank));
            }
            tree.settle();
            for rank in 0..size {
                assert_eq!(tree.answer(NS, rank), Some(Answer::Released));
            }
            assert_eq!(run_ring(&mut tree, size, true), order, "the order depends on the tree only");
            assert_eq!(run_ring(&mut tree, size, false), order);
        }
    }
}

#[test]
fn a_ring_is_two_messages_per_link() {
    let placement = super::plan(64, &[(1, "0-15"), (2, "16-31"), (3, "32-47"), (4, "48-63")]).placement;
    let mut tree = Tree::started(4, 2, placement, &one_node(4), 1);
    let before = tree.messages;
    run_ring(&mut tree, 64, false);
    assert_eq!(tree.messages - before, 8);
}

#[test]
fn the_order_of_a_ring_is_own_ranks_then_children() {
    // 1 - 2, 1 - 3
    let NamespacePlan { placement, .. } = super::plan(5, &[(1, "1,4"), (2, "3"), (3, "0,2")]);
    assert_eq!(placement[0].1, ranks("1,4"));
    let mut tree = Tree::started(3, 1, placement, &one_node(3), 1);
    assert_eq!(run_ring(&mut tree, 5, false), [1, 4, 3, 0, 2]);
}
