//! Attributes of nodes, and boards of other namespaces, in whole trees.

use litemap::LiteMap;
use pmi::{Answer, Puts, Rank, Ranks, Request, RootRequest, SpawnCommand, SpawnRequest};

use super::NS;
use super::boards::policies;
use super::tree::{Tree, placements, shapes};
use crate::core::agent::Input;
use crate::core::cache::CachePolicy;
use crate::core::cause::Exit;
use crate::core::ids::{AgentId, NamespaceId};

fn put(key: &str, value: &str) -> Request {
    Request::NodePut { key: key.into(), value: value.into() }
}

fn get(key: &str, wait: bool) -> Request {
    Request::NodeGet { key: key.into(), wait }
}

fn got(value: &str) -> Option<Answer> {
    Some(Answer::NodeGot(Some(value.into())))
}

/// Placements of agents on nodes: all on one, one on each, two on each, and alternating between two.
fn nodes(agents: u32) -> Vec<LiteMap<AgentId, u32>> {
    let all = |node_of: &dyn Fn(u32) -> u32| (0..agents).map(|at| (AgentId(at + 1), node_of(at))).collect();
    vec![all(&|_| 0), all(&|at| at), all(&|at| at / 2), all(&|at| at % 2)]
}

/// The ranks of each node.
fn neighbours(placement: &[(AgentId, Ranks)], nodes: &LiteMap<AgentId, u32>) -> Vec<Vec<u32>> {
    let mut all: LiteMap<u32, Vec<u32>> = LiteMap::new();
    for (agent, ranks) in placement {
        all.entry(nodes[agent]).or_default().extend(ranks.iter().map(|rank| rank.0));
    }
    all.into_iter().map(|(_, ranks)| ranks).collect()
}

#[test]
fn ranks_of_a_node_share_its_attributes_in_every_tree() {
    for (agents, fanout) in shapes(7) {
        for nodes in nodes(agents) {
            for (number, placement) in placements(agents).into_iter().enumerate() {
                let groups = neighbours(&placement, &nodes);
                let mut tree = Tree::started(agents, fanout, placement, &nodes, number as u64);
                for (name, group) in groups.iter().enumerate() {
                    // One rank waits, another finds nothing yet, the last one puts.
                    let (first, last) = (group[0], group[group.len() - 1]);
                    assert_eq!(tree.answer_to(last, get("k", false)), Some(Answer::NodeGot(None)));
                    if first != last {
                        assert_eq!(tree.answer_to(first, get("k", true)), None, "it waits");
                    }
                    let value = format!("of {name}");
                    assert_eq!(tree.answer_to(last, put("k", &value)), Some(Answer::NodePut(true)));
                    if first != last {
                        assert_eq!(tree.answer(NS, first), got(&value));
                    }
                }
                for (name, group) in groups.iter().enumerate() {
                    for (at, rank) in group.iter().enumerate() {
                        // Waiting and non-waiting gets receive the same answer.
                        assert_eq!(tree.answer_to(*rank, get("k", at % 2 == 0)), got(&format!("of {name}")));
                    }
                    assert_eq!(tree.answer_to(group[0], put("k", "again")), Some(Answer::NodePut(true)));
                    assert_eq!(tree.answer_to(group[group.len() - 1], get("k", false)), got("again"));
                }
            }
        }
    }
}

#[test]
fn all_ranks_of_a_node_may_wait_while_one_puts() {
    for seed in 0..50 {
        let nodes = (1..=5).map(|agent| (AgentId(agent), 0)).collect();
        let placement = placements(5).pop().unwrap();
        let mut tree = Tree::started(5, 2, placement, &nodes, seed);
        for rank in 1..11 {
            tree.ask(NS, rank, get("k", true));
        }
        tree.ask(NS, 0, put("k", "v"));
        tree.settle();
        assert_eq!(tree.answer(NS, 0), Some(Answer::NodePut(true)));
        for rank in 1..11 {
            assert_eq!(tree.answer(NS, rank), got("v"), "rank {rank}");
        }
    }
}

#[test]
fn a_rank_that_ends_while_it_waits_gets_no_answer() {
    let nodes = (1..=2).map(|agent| (AgentId(agent), 0)).collect();
    let placement = super::plan(4, &[(1, "0-1"), (2, "2-3")]).placement;
    let mut tree = Tree::started(2, 2, placement, &nodes, 3);
    for rank in [1, 3] {
        assert_eq!(tree.answer_to(rank, get("k", true)), None);
        tree.input(rank, Input::RankEnded(NS, Rank(rank), Exit::Code(0)));
        tree.settle();
    }
    assert_eq!(tree.answer_to(0, put("k", "v")), Some(Answer::NodePut(true)));
    assert_eq!((tree.answer(NS, 1), tree.answer(NS, 3)), (None, None));
}

#[test]
fn keys_that_cannot_be_put_are_refused_at_once() {
    let nodes = (1..=2).map(|agent| (AgentId(agent), 0)).collect();
    let placement = super::plan(2, &[(1, "0"), (2, "1")]).placement;
    let mut tree = Tree::started(2, 2, placement, &nodes, 3);
    for rank in [0, 1] {
        for key in ["", "PMI_x", &"k".repeat(pmi::limits::KEY_BYTES_MAX + 1)] {
            assert_eq!(tree.answer_to(rank, get(key, true)), Some(Answer::NodeGot(None)));
            assert_eq!(tree.answer_to(rank, put(key, "v")), Some(Answer::NodePut(false)));
        }
        let long = "v".repeat(pmi::limits::ATTRIBUTE_BYTES_MAX);
        assert_eq!(tree.answer_to(rank, put("k", &long)), Some(Answer::NodePut(true)));
        assert_eq!(tree.answer_to(rank, put("k", &(long + "v"))), Some(Answer::NodePut(false)));
    }
}

fn get_from(job: &str, key: &str) -> Request {
    Request::Ask(RootRequest::GetFromJob { job: job.into(), key: key.into() })
}

fn found(value: &str) -> Option<Answer> {
    Some(Answer::GotFromJob(Some(value.into())))
}

#[test]
fn an_answer_that_crosses_a_release_is_never_cached() {
    for policy in policies() {
        for seed in 0..300 {
            // The ranks that ask are of the other namespace, so they can ask while the fence is open.
            let nodes = (1..=4).map(|agent| (AgentId(agent), agent)).collect();
            let placement = (1..=4).map(|agent| (AgentId(agent), Ranks::range(agent - 1..agent))).collect();
            let mut tree = Tree::with(policy, 4, 1 + seed as u32 % 4, placement, &nodes, seed);
            let command = SpawnCommand { program: b"c".to_vec(), args: Vec::new(), nprocs: 4, info: Vec::new() };
            let request = SpawnRequest { commands: vec![command], preputs: Vec::new() };
            let Some(Answer::Spawned(Ok(launched))) = tree.answer_to(0, Request::Ask(RootRequest::Spawn(request)))
            else {
                panic!("spawned")
            };
            let (child, job) = (NamespaceId(1), launched.job);
            let (mut last, mut drawn) = (None, seed);
            for round in 0..4 {
                let value = round.to_string();
                for rank in 0..4 {
                    let mut puts = Puts::new();
                    if rank == round % 4 {
                        puts.push(Rank(rank), b"k", value.as_bytes());
                    }
                    puts.push(Rank(rank), format!("other-{rank}").as_bytes(), b"x");
                    tree.ask(child, rank, Request::Fence { puts, in_segment: false });
                }
                // Some gets are made before the release, some while it is on its way.
                for rank in 0..4 {
                    drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    for _ in 0..(drawn >> 33) % 9 {
                        tree.step();
                    }
                    tree.ask(NS, rank, get_from(&job, "k"));
                }
                tree.settle();
                for rank in 0..4 {
                    let answer = tree.answer(NS, rank);
                    let old = last.as_deref().map_or(Some(Answer::GotFromJob(None)), found);
                    assert!(answer == old || answer == found(&value), "{answer:?} in round {round} under {policy:?}");
                    assert_eq!(tree.answer(child, rank), Some(Answer::Released));
                }
                for rank in 0..4 {
                    assert_eq!(tree.answer_to(rank, get_from(&job, "k")), found(&value), "seed {seed}, {policy:?}");
                    assert_eq!(tree.get(child, rank, "k"), Some(value.clone()), "seed {seed}, {policy:?}");
                }
                // These gets make the smallest caches evict "k".
                for rank in 0..4 {
                    assert_eq!(tree.get(child, rank, &format!("other-{}", (rank + 1) % 4)).as_deref(), Some("x"));
                }
                last = Some(value);
            }
        }
    }
}

#[test]
fn boards_of_other_namespaces_are_found_in_every_tree() {
    for policy in policies() {
        for (agents, fanout) in shapes(7) {
            for (number, placement) in placements(agents).into_iter().enumerate() {
                check_other_boards(policy, agents, fanout, placement, number as u64);
            }
        }
    }
}

fn check_other_boards(policy: CachePolicy, agents: u32, fanout: u32, placement: Vec<(AgentId, Ranks)>, seed: u64) {
    let connect = |job: &str| Request::Ask(RootRequest::Connect { job: job.into() });
    let nodes = (1..=agents).map(|agent| (AgentId(agent), 0)).collect();
    let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
    let mut tree = Tree::with(policy, agents, fanout, placement, &nodes, seed);
    let parent = "scela-77_0";
    assert_eq!(tree.answer_to(0, connect("scela-77_1")), Some(Answer::Connected(false)));
    let command = SpawnCommand { program: b"c".to_vec(), args: Vec::new(), nprocs: 2, info: Vec::new() };
    let preputs = vec![(b"preput".to_vec(), b"p".to_vec()), (b"both".to_vec(), b"p".to_vec())];
    let spawned =
        tree.answer_to(0, Request::Ask(RootRequest::Spawn(SpawnRequest { commands: vec![command], preputs })));
    let Some(Answer::Spawned(Ok(launched))) = spawned else { panic!("{spawned:?}") };
    let (child, job) = (NamespaceId(1), launched.job);

    assert_eq!(tree.answer_to(size - 1, connect(&job)), Some(Answer::Connected(true)));
    assert_eq!(tree.answer_to(size - 1, get_from(&job, "preput")), found("p"));
    assert_eq!(tree.answer_to(0, get_from(&job, "k")), Some(Answer::GotFromJob(None)));
    assert_eq!(tree.answer_to(0, get_from("unknown", "k")), Some(Answer::GotFromJob(None)));
    for rank in 0..2 {
        let mut puts = Puts::new();
        puts.push(Rank(rank), b"k", b"v");
        puts.push(Rank(rank), b"both", b"put");
        tree.ask(child, rank, Request::Fence { puts, in_segment: false });
    }
    // A rank may tell another namespace to get the entry as soon as it is released itself.
    while tree.answer(child, 0).is_none() {
        assert!(tree.step());
    }
    for rank in 0..size {
        assert_eq!(tree.answer_to(rank, get_from(&job, "k")), found("v"));
        assert_eq!(tree.answer_to(rank, get_from(&job, "both")), found("put"));
    }
    tree.ask(child, 0, connect(parent));
    tree.settle();
    assert_eq!(tree.answer(child, 0), Some(Answer::Connected(true)));
}
