//! Placement on example nodes.

use super::*;
use crate::cluster::hosts::parse_file;
use crate::cluster::node::merged;
use nla::core::limits::RANKS_MAX;

/// Parses a hosts file, with blanks in place of line ends.
fn nodes(text: &str) -> Vec<Node> {
    merged(parse_file(text.replace(' ', "\n").replace('/', " max-slots=").as_bytes()).unwrap()).unwrap()
}

const BLOCK: Rule = Rule::Block { per_node: None };
const CYCLIC: Rule = Rule::Cyclic { per_node: None };

fn map(text: &str) -> Rule {
    Rule::Map(RankMap::parse(text).unwrap())
}

/// Returns the ranks of each node that has ranks.
fn placed(size: u32, text: &str, rule: &Rule) -> Result<(String, Option<String>), String> {
    let nodes = nodes(text);
    let placement = place(size, &nodes, rule).map_err(|error| error.to_string())?;
    let ranks = placement.ranks_by_node().map_err(|error| error.to_string())?;
    let words: Vec<String> = ranks.iter().map(|(node, ranks)| format!("{}={ranks}", nodes[*node].name)).collect();
    Ok((words.join(" "), placement.remark))
}

#[track_caller]
fn check(size: u32, nodes: &str, rule: &Rule, expected: &str) {
    assert_eq!(placed(size, nodes, rule), Ok((expected.to_owned(), None)));
}

#[track_caller]
fn check_remark(size: u32, nodes: &str, rule: &Rule, expected: &str, remark: &str) {
    assert_eq!(placed(size, nodes, rule), Ok((expected.to_owned(), Some(remark.to_owned()))));
}

#[track_caller]
fn check_error(size: u32, nodes: &str, rule: &Rule, expected: &str) {
    assert_eq!(placed(size, nodes, rule), Err(expected.to_owned()));
}

#[test]
fn blocks_fill_slots_in_order() {
    check(6, "a:4 b:4 c:4", &BLOCK, "a=0-3 b=4-5");
    check(12, "a:4 b:4 c:4", &BLOCK, "a=0-3 b=4-7 c=8-11");
}

#[test]
fn nodes_without_a_number_share_evenly() {
    check(8, "a b c d", &BLOCK, "a=0-1 b=2-3 c=4-5 d=6-7");
    check(10, "a b c d", &BLOCK, "a=0-2 b=3-5 c=6-7 d=8-9");
    check(2, "a b c d", &BLOCK, "a=0 b=1");
    check(10, "a:4 b c", &BLOCK, "a=0-3 b=4-6 c=7-9");
    check(3, "a b:4", &BLOCK, "a=0 b=1-2");
    check(10, "a/2 b c", &BLOCK, "a=0-1 b=2-5 c=6-9");
    let many: Vec<Node> = (0..32).map(|node| Node::named(format!("n{node}"))).collect();
    let counts = |size| {
        let placement = place(size, &many, &BLOCK).unwrap();
        placement.runs().iter().map(|run| run.ranks).collect::<Vec<_>>()
    };
    assert_eq!(counts(512), [16; 32]);
    assert_eq!(counts(4), [1; 4]);
}

#[test]
fn more_ranks_than_slots_lengthen_blocks_evenly() {
    check_remark(64, "a:4 b:4", &BLOCK, "a=0-31 b=32-63", "64 ranks on 8 slots: nodes are oversubscribed");
    check_remark(9, "a:2 b:4", &BLOCK, "a=0-2 b=3-8", "9 ranks on 6 slots: nodes are oversubscribed");
    check_remark(9, "a:2/2 b:4", &BLOCK, "a=0-1 b=2-8", "9 ranks on 6 slots: nodes are oversubscribed");
    check_remark(9, "a:1 b/1", &BLOCK, "a=0-7 b=8", "9 ranks on 2 slots: nodes are oversubscribed");
}

#[test]
fn the_maximum_of_a_node_is_never_exceeded() {
    check(6, "a:2/2 b:4/4", &BLOCK, "a=0-1 b=2-5");
    let error = "7 ranks do not fit: max-slots allows 6 on these 2 nodes";
    check_error(7, "a:2/2 b:4/4", &BLOCK, error);
    check_error(7, "a:2/2 b:4/4", &CYCLIC, error);
    check_error(3, "a/2", &BLOCK, "3 ranks do not fit: max-slots allows 2 on this node");
    check_error(3, "a/2 b", &map("3*0"), "the rank map puts 3 ranks on a, and its max-slots is 2");
    assert_eq!(place(1, &[], &BLOCK).unwrap_err().to_string(), "no node is left to run on");
}

#[test]
fn ranks_per_node_replace_slots() {
    let two = Rule::Block { per_node: Some(2) };
    check(5, "a:8 b c:1", &two, "a=0-1 b=2-3 c=4");
    check_remark(
        8,
        "a:8 b",
        &two,
        "a=0-3 b=4-7",
        "-ppn 2 on 2 nodes allows fewer than 8 ranks; all are started anyway",
    );
    check(4, "a/1 b c", &two, "a=0 b=1-2 c=3");
    check(5, "a b c", &Rule::Cyclic { per_node: Some(2) }, "a=0,3 b=1,4 c=2");
}

#[test]
fn cycles_skip_full_nodes() {
    check(7, "a b c", &CYCLIC, "a=0,3,6 b=1,4 c=2,5");
    check(6, "a:1 b:3 c:2", &CYCLIC, "a=0 b=1,3,5 c=2,4");
    check_remark(8, "a:1 b:2", &CYCLIC, "a=0,3,5,7 b=1-2,4,6", "8 ranks on 3 slots: nodes are oversubscribed");
    check_remark(7, "a:1/2 b:2", &CYCLIC, "a=0,3 b=1-2,4-6", "7 ranks on 3 slots: nodes are oversubscribed");
}

#[test]
fn a_list_places_each_rank() {
    check(7, "a b c d e", &map("0,0,1-3,2*4"), "a=0-1 b=2 c=3 d=4 e=5-6");
    check(4, "a b c", &map("2,0,0,2"), "c=0,3 a=1-2");
    check_remark(3, "a:1 b:1", &map("3*1"), "b=0-2", "3 ranks on 2 slots: nodes are oversubscribed");
    check_error(3, "a b", &map("0,1"), "the rank map is for 2 ranks, and the job has 3");
    check_error(2, "a b", &map("0,2"), "the rank map names node 2, and the nodes are 0 to 1");
}

#[test]
fn without_a_number_there_is_a_rank_for_each_slot() {
    let size = |text: &str, rule: &Rule| rule.size_of(&nodes(text));
    assert_eq!(size("a:4 b:2 c", &BLOCK), 7);
    assert_eq!(size("a b c", &CYCLIC), 3);
    assert_eq!(size("a:4 b", &Rule::Block { per_node: Some(3) }), 6);
    assert_eq!(size("a:4 b/2", &Rule::Block { per_node: Some(3) }), 5);
    assert_eq!(size("a:4", &map("0-2")), 3);
}

#[test]
fn a_million_ranks_are_placed_at_once() {
    let nodes: Vec<Node> = (0..16_384).map(|node| Node::named(format!("n{node}"))).collect();
    let counted: Vec<Node> = nodes.iter().cloned().map(|node| node.with_slots(7)).collect();
    for (nodes, rule) in [(&nodes, &BLOCK), (&nodes, &CYCLIC), (&counted, &BLOCK), (&counted, &CYCLIC)] {
        let placement = place(1 << 20, nodes, rule).unwrap();
        let ranks = placement.ranks_by_node().unwrap();
        assert_eq!((ranks.len(), ranks[0].1.len()), (16_384, 64));
    }
}

#[test]
fn ranks_in_more_pieces_than_agents_take_in_are_refused() {
    let placement = place(RANKS_MAX, &nodes("a b c"), &CYCLIC).unwrap();
    assert_eq!(placement.ranks_by_node(), Err(too_scattered()));
}

mod properties {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn node() -> impl Strategy<Value = Node> {
        (option::of(1u32..6), option::of(0u32..4)).prop_map(|(slots, more)| {
            let max_slots = more.map(|more| slots.unwrap_or(1) + more);
            Node { slots, max_slots, ..Node::named("n") }
        })
    }

    fn counts(placement: &Placement, nodes: usize) -> Vec<u32> {
        let mut counts = vec![0; nodes];
        placement.runs().iter().for_each(|run| counts[run.node] += run.ranks);
        counts
    }

    proptest! {
        #[test]
        fn each_rank_has_one_place_within_bounds(
            size in 1u32..60,
            nodes in vec(node(), 1..8),
            is_cyclic in any::<bool>(),
            per_node in option::of(1u32..6),
        ) {
            let rule = if is_cyclic { Rule::Cyclic { per_node } } else { Rule::Block { per_node } };
            let most: u64 = nodes.iter().map(|node| u64::from(node.max_slots.unwrap_or(u32::MAX))).sum();
            let placement = match place(size, &nodes, &rule) {
                Ok(placement) => placement,
                Err(error) => {
                    let expected = format!("{size} ranks do not fit: max-slots allows {most} on {}", these(nodes.len()));
                    prop_assert_eq!(error.to_string(), expected);
                    prop_assert!(u64::from(size) > most);
                    return Ok(());
                }
            };
            prop_assert!(u64::from(size) <= most);
            let counts = counts(&placement, nodes.len());
            prop_assert_eq!(counts.iter().sum::<u32>(), size);
            prop_assert!(placement.runs().iter().all(|run| run.ranks > 0));
            let ranks = placement.ranks_by_node().unwrap();
            let mut all = Ranks::new();
            for (node, ranks) in &ranks {
                prop_assert!(all.is_disjoint(ranks));
                prop_assert_eq!(ranks.len(), u64::from(counts[*node]));
                all.union_with(ranks);
            }
            prop_assert_eq!(all, Ranks::range(0..size));
            prop_assert!(ranks.is_sorted_by_key(|(_, ranks)| ranks.first()));

            let limit = |node: &Node| slots_of(node, per_node).or(node.max_slots);
            let slots: Vec<Option<u32>> = nodes.iter().map(limit).collect();
            for (node, count) in nodes.iter().zip(&counts) {
                prop_assert!(node.max_slots.is_none_or(|most| *count <= most));
            }
            // No node exceeds its slots while all slots together suffice.
            let sum = slots.iter().try_fold(0, |sum, slots| Some(sum + (*slots)?));
            prop_assert_eq!(placement.remark.is_some(), sum.is_some_and(|sum| size > sum));
            if placement.remark.is_none() {
                let is_within = |(count, slots): (&u32, &Option<u32>)| slots.is_none_or(|slots| *count <= slots);
                prop_assert!(counts.iter().zip(&slots).all(is_within), "{counts:?} {slots:?}");
            } else {
                let is_full = |(count, slots): (&u32, &Option<u32>)| slots.is_none_or(|slots| *count >= slots);
                prop_assert!(counts.iter().zip(&slots).all(is_full), "{counts:?} {slots:?}");
            }
            if !is_cyclic {
                prop_assert!(placement.runs().is_sorted_by(|before, after| before.node < after.node));
            }
        }

        #[test]
        fn cycles_start_again_at_the_first_node(size in 1u32..60, count in 1usize..8) {
            let nodes = vec![Node::named("n"); count];
            let placement = place(size, &nodes, &CYCLIC).unwrap();
            let order = placement.runs().iter().flat_map(|run| std::iter::repeat_n(run.node, run.ranks as usize));
            prop_assert!(order.eq((0..size as usize).map(|rank| rank % count)));
        }
    }
}
