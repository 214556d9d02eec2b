//! Fences of groups in whole trees: random groups overlap in time, and each rank gets the payloads of its own group only.

use bytes::Bytes;
use litemap::LiteMap;
use pmi::{Answer, Rank, Ranks, Request};

use super::NS;
use super::deaths::Random;
use super::tree::{Tree, placements, shapes};
use crate::core::cache::CachePolicy;
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::AgentId;

fn one_node(agents: u32) -> LiteMap<AgentId, u32> {
    (1..=agents).map(|agent| (AgentId(agent), 0)).collect()
}

fn fence(ranks: &Ranks, tag: u32, rank: u32) -> Request {
    Request::GroupFence { ranks: ranks.clone(), tag, payload: Bytes::from(format!("<{rank}>")) }
}

/// Asserts that `payload` has one part of each rank.
#[track_caller]
fn is_of(payload: &[u8], ranks: &Ranks) {
    let text = std::str::from_utf8(payload).unwrap();
    let mut parts: Vec<&str> = text.split_inclusive('>').collect();
    parts.sort_unstable();
    let mut expected: Vec<String> = ranks.iter().map(|rank| format!("<{rank}>")).collect();
    expected.sort_unstable();
    assert_eq!(parts, expected);
}

/// Draws a group of at least one of the free ranks, and takes its ranks from them.
fn draw(free: &mut Vec<u32>, random: &mut Random) -> Ranks {
    let count = 1 + random.below(free.len() as u32) as usize;
    let mut drawn = Vec::new();
    for _ in 0..count {
        drawn.push(Rank(free.swap_remove(random.below(free.len() as u32) as usize)));
    }
    drawn.into_iter().collect()
}

#[test]
fn each_group_exchanges_its_payloads_in_every_tree() {
    for (agents, fanout) in shapes(7) {
        for (number, placement) in placements(agents).into_iter().enumerate() {
            let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
            let mut tree = Tree::started(agents, fanout, placement, &one_node(agents), number as u64);
            let mut random = Random(u64::from(agents) << 32 | u64::from(fanout) << 16 | (number as u64 + 1));
            // Several fences in a row, some of the same groups, without a pause between them.
            let mut groups: Vec<Ranks> = Vec::new();
            for round in 0..4 {
                if round % 2 == 0 {
                    groups.clear();
                    let mut free: Vec<u32> = (0..size).collect();
                    while !free.is_empty() {
                        groups.push(draw(&mut free, &mut random));
                    }
                }
                for group in &groups {
                    for rank in group.iter() {
                        tree.ask(NS, rank.0, fence(group, 7, rank.0));
                        tree.step();
                    }
                }
                tree.settle();
                for group in &groups {
                    for rank in group.iter() {
                        let answer = tree.answer(NS, rank.0);
                        let Some(Answer::GroupFenced { payload: Some(payload), .. }) = answer else {
                            panic!("{rank}: {answer:?}")
                        };
                        is_of(&payload, group);
                    }
                }
            }
        }
    }
}

#[test]
fn a_group_below_one_agent_sends_no_message() {
    let placement = super::plan(8, &[(1, "0-1"), (2, "2-3"), (3, "4-5"), (4, "6-7")]).placement;
    let mut tree = Tree::started(4, 2, placement, &one_node(4), 1); // 0 - 1 (2), 3 (4)
    let mut messages = |members: &str| {
        let group: Ranks = members.parse().unwrap();
        let before = tree.messages;
        for rank in group.iter() {
            tree.ask(NS, rank.0, fence(&group, 0, rank.0));
        }
        tree.settle();
        for rank in group.iter() {
            assert!(matches!(tree.answer(NS, rank.0), Some(Answer::GroupFenced { payload: Some(_), .. })));
        }
        tree.messages - before
    };
    assert_eq!(messages("2-3"), 0);
    assert_eq!(messages("0,2"), 2, "up to agent 1 and down");
    assert_eq!(messages("0,7"), 6, "up to the launcher and down");
    assert_eq!(messages("0-7"), 8);
}

#[test]
fn a_missing_rank_is_waited_for_and_an_unknown_one_is_refused() {
    let placement = super::plan(4, &[(1, "0-1"), (2, "2-3")]).placement;
    let mut tree = Tree::started(2, 2, placement, &one_node(2), 1);
    let pair = Ranks::range(1..3);
    tree.ask(NS, 1, fence(&pair, 0, 1));
    tree.settle();
    assert_eq!(tree.answer(NS, 1), None);
    let refused = |ranks| Some(Answer::GroupFenced { ranks, tag: 0, payload: None });
    let (beyond, others) = (Ranks::range(0..5), Ranks::range(1..3));
    assert_eq!(tree.answer_to(0, fence(&beyond, 0, 0)), refused(beyond), "there is no rank 4");
    assert_eq!(tree.answer_to(0, fence(&others, 0, 0)), refused(others), "rank 0 is not in the group");
    assert!(matches!(tree.answer_to(2, fence(&pair, 0, 2)), Some(Answer::GroupFenced { payload: Some(_), .. })));
    assert!(matches!(tree.answer(NS, 1), Some(Answer::GroupFenced { payload: Some(_), .. })));
}

/// Ranks die at random moments. Each fence of a group with a dead rank fails, no other rank waits for ever, and later groups
/// of living ranks succeed.
#[test]
fn deaths_fail_the_open_fences_and_no_later_ones_of_living_ranks() {
    for (agents, fanout) in shapes(6) {
        for (number, placement) in placements(agents).into_iter().enumerate() {
            let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
            if size < 4 {
                continue;
            }
            let (cache, policy) = (CachePolicy::default(), FailurePolicy::Continue);
            let nodes = one_node(agents);
            let mut tree = Tree::with_policies(cache, policy, (agents, fanout), placement, &nodes, number as u64);
            let mut random = Random(u64::from(agents) << 32 | u64::from(fanout) << 16 | (number as u64 + 1));
            let mut alive: Vec<u32> = (0..size).collect();
            while alive.len() > 2 {
                let group: Ranks = alive.iter().copied().map(Rank).collect();
                let dies = alive.swap_remove(random.below(alive.len() as u32) as usize);
                let at = random.below(alive.len() as u32) as usize;
                for (turn, rank) in alive.iter().enumerate() {
                    if turn == at {
                        tree.fail(dies);
                    }
                    tree.ask(NS, *rank, fence(&group, 0, *rank));
                    for _ in 0..random.below(3) {
                        tree.step();
                    }
                }
                tree.settle();
                for rank in &alive {
                    let failed = Answer::GroupFenced { ranks: group.clone(), tag: 0, payload: None };
                    assert_eq!(tree.answer(NS, *rank), Some(failed), "rank {dies} has died");
                }
                let group: Ranks = alive.iter().copied().map(Rank).collect();
                for rank in &alive {
                    tree.ask(NS, *rank, fence(&group, 0, *rank));
                }
                tree.settle();
                for rank in &alive {
                    match tree.answer(NS, *rank) {
                        Some(Answer::GroupFenced { payload: Some(payload), .. }) => is_of(&payload, &group),
                        other => panic!("{rank}: {other:?}"),
                    }
                }
            }
        }
    }
}
