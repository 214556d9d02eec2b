//! Bulletin boards in whole trees: every policy gives the same answers.

use std::collections::BTreeMap;

use pmi::{Answer, Puts, Rank, Ranks, Request};

use super::NS;
use super::tree::{Tree, placements, shapes};
use crate::core::cache::CachePolicy;
use crate::core::ids::AgentId;

/// All policies; the bounded one with room for one entry, for some, and for all.
pub(super) fn policies() -> Vec<CachePolicy> {
    let bounded = [1, 3, 1000].map(|entries| CachePolicy::HcmabLru { entries });
    [CachePolicy::Hcs, CachePolicy::Hcma, CachePolicy::Hcmab].into_iter().chain(bounded).collect()
}

/// A tree, and the entries that should be on its board.
struct World {
    tree: Tree,
    policy: CachePolicy,
    size: u32,
    board: BTreeMap<String, String>,
    open: BTreeMap<String, (u32, String)>,
    puts: BTreeMap<u32, Puts>,
}

impl World {
    fn new(policy: CachePolicy, agents: u32, fanout: u32, placement: Vec<(AgentId, Ranks)>, seed: u64) -> Self {
        let nodes = (1..=agents).map(|agent| (AgentId(agent), agent)).collect();
        let size = placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
        let tree = Tree::with(policy, agents, fanout, placement, &nodes, seed);
        Self { tree, policy, size, board: BTreeMap::new(), open: BTreeMap::new(), puts: BTreeMap::new() }
    }

    fn put(&mut self, rank: u32, key: &str, value: &str) {
        let mut put = Puts::new();
        put.push(Rank(rank), key.as_bytes(), value.as_bytes());
        if self.policy.puts_at_once() {
            self.tree.ask(NS, rank, Request::Put { puts: put });
        } else {
            self.puts.entry(rank).or_default().append(&put);
        }
        let best = self.open.entry(key.to_owned()).or_insert((rank, String::new()));
        if best.0 <= rank {
            *best = (rank, value.to_owned());
        }
    }

    fn fence(&mut self) {
        for rank in 0..self.size {
            let puts = self.puts.remove(&rank).unwrap_or_default();
            self.tree.ask(NS, rank, Request::Fence { puts, in_segment: false });
        }
        self.tree.settle();
        for rank in 0..self.size {
            assert_eq!(self.tree.answer(NS, rank), Some(Answer::Released));
        }
        let open = std::mem::take(&mut self.open);
        self.board.extend(open.into_iter().map(|(key, (_, value))| (key, value)));
    }

    fn check(&mut self, rank: u32, key: &str) {
        let found = self.tree.get(NS, rank, key);
        assert_eq!(found.as_ref(), self.board.get(key), "{} for rank {rank} under {:?}", key, self.policy);
    }

    fn check_all(&mut self) {
        let keys: Vec<_> = self.board.keys().cloned().chain(["no rank put this".to_owned()]).collect();
        for rank in 0..self.size {
            for key in &keys {
                self.check(rank, key);
            }
        }
    }
}

#[test]
fn every_policy_gives_the_same_answers_in_every_tree() {
    for policy in policies() {
        for (agents, fanout) in shapes(6) {
            for (number, placement) in placements(agents).into_iter().enumerate() {
                let mut world = World::new(policy, agents, fanout, placement, number as u64);
                let last = world.size - 1;
                world.check(last, "own-0");
                for rank in 0..world.size {
                    world.put(rank, &format!("own-{rank}"), &format!("{rank}"));
                    world.put(rank, "common", &format!("by {rank}"));
                }
                world.check(0, &format!("own-{last}"));
                world.fence();
                world.check_all();
                // Put the same keys by another rank, by the same rank twice, and with the old value; then a new key.
                world.put(0, &format!("own-{last}"), "taken over");
                world.put(last, "own-0", "first");
                world.put(last, "own-0", "second");
                world.put(last / 2, &format!("own-{}", last / 2), &format!("{}", last / 2));
                world.put(last / 2, "late", "late");
                world.check_all();
                world.fence();
                world.check_all();
                world.put(0, "common", "by the first this time");
                world.fence();
                world.fence();
                world.check_all();
            }
        }
    }
}

#[test]
fn concurrent_gets_of_one_key_are_asked_once() {
    for policy in [CachePolicy::Hcs, CachePolicy::Hcma, CachePolicy::HcmabLru { entries: 1 }] {
        // 0 - 1 - 2 - 3, all ranks but one on the last.
        let placement = vec![(AgentId(1), super::ranks("0")), (AgentId(3), super::ranks("1-4"))];
        let mut world = World::new(policy, 3, 1, placement, 7);
        world.put(0, "card", "x");
        world.put(0, "other", "y");
        world.fence();
        for key in ["card", "none"] {
            let before = world.tree.messages;
            for rank in 1..=4 {
                world.tree.ask(NS, rank, Request::Get { key: key.to_owned().into() });
            }
            world.tree.settle();
            for rank in 1..=4 {
                let value = (key == "card").then(|| "x".into());
                assert_eq!(world.tree.answer(NS, rank), Some(Answer::Got(value)));
            }
            // Agent 1 has the entry; only the root knows that a key is absent.
            assert_eq!(world.tree.messages - before, if key == "card" { 4 } else { 6 }, "{key} under {policy:?}");
            let before = world.tree.messages;
            assert_eq!(world.tree.get(NS, 1, key).is_some(), key == "card");
            assert_eq!(world.tree.messages, before, "{key} is cached now");
        }
    }
}

#[test]
fn each_policy_sends_its_number_of_messages_per_fence() {
    let entries = 8;
    for policy in policies() {
        let placement = (1..=7).map(|agent| (AgentId(agent), Ranks::range(agent - 1..agent))).collect();
        // This seed cuts no epoch.
        let mut world = World::new(policy, 7, 2, placement, 4);
        let before = world.tree.messages;
        for at in 0..entries {
            world.put(6, &format!("key-{at}"), "v");
        }
        world.tree.settle();
        // Agent 7 is three links away from the root.
        let up = if policy.puts_at_once() { 3 * entries } else { 0 };
        assert_eq!(world.tree.messages - before, up, "{policy:?}");
        world.fence();
        assert_eq!(world.tree.messages - before, up + 7 + 7, "one up and one down for each agent");
    }
}

#[test]
fn the_bounded_policy_keeps_its_bound_and_loses_no_entry() {
    let policy = CachePolicy::HcmabLru { entries: 2 };
    let placement = (1..=4).map(|agent| (AgentId(agent), Ranks::range(agent - 1..agent))).collect();
    let mut world = World::new(policy, 4, 2, placement, 3);
    for round in 0..3 {
        for rank in 0..4 {
            for at in 0..5 {
                world.put(rank, &format!("{rank}-{at}"), &format!("{round}"));
            }
        }
        world.fence();
        world.check_all();
    }
    for agent in 1..=4 {
        let peaks = world.tree.cache_peaks(agent);
        assert_eq!((peaks.entries, peaks.own_entries), (2, 5), "agent {agent}");
        assert!(peaks.evictions > 0, "agent {agent}");
    }
}
