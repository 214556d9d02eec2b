//! Losses of agents at random moments in whole trees whose ranks start again: spare agents take the ranks over.

use std::collections::BTreeSet;
use std::time::Duration;

use pmi::{Answer, Puts, Rank, Ranks, Request};

use super::boards::policies;
use super::deaths::Random;
use super::tree::{Tree, placements};
use crate::core::agent::Input;
use crate::core::cause::{Exit, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::limits::GATHER_WINDOW;

const AGENTS: u32 = 12;
/// The agents of this number and above are spares.
const FIRST_SPARE: u32 = 10;
/// Longer than a lost agent may run its ranks.
const LONG: Duration = Duration::from_secs(60);

/// A session whose last three agents are spares, and of which up to three agents crash.
struct Session {
    tree: Tree,
    random: Random,
    size: u32,
    puts_at_once: bool,
    /// The newest namespace, and its ranks that have entered their fence.
    namespace: NamespaceId,
    entered: BTreeSet<Rank>,
    crashes: u32,
}

impl Session {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = policies()[random.below(6) as usize];
        let shape = (AGENTS, 1 + random.below(4));
        let placements = placements(FIRST_SPARE - 1);
        let placement = placements[random.below(placements.len() as u32) as usize].clone();
        let nodes = (1..=AGENTS).map(|agent| (AgentId(agent), agent)).collect();
        let size: u32 = placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
        let tree = Tree::with_policies(policy, FailurePolicy::Restart, shape, placement, &nodes, seed);
        let crashes = random.below(4);
        let (namespace, entered) = (NamespaceId::FIRST, BTreeSet::new());
        Self { tree, random, size, puts_at_once: policy.puts_at_once(), namespace, entered, crashes }
    }

    /// A random agent crashes, or a rank fails.
    fn fail(&mut self) {
        let agent = 1 + self.random.below(AGENTS);
        if self.random.below(2) == 0 && self.crashes > 0 && self.tree.is_linked(agent) {
            self.crashes -= 1;
            self.tree.crash(agent);
        } else if let Some((rank, agent)) = self.some_rank() {
            self.tree.hand(agent, Input::RankEnded(self.namespace, rank, Exit::Code(7)));
        }
    }

    /// A running rank of the newest namespace, and its agent.
    fn some_rank(&mut self) -> Option<(Rank, AgentId)> {
        let newest = self.tree.newest_namespace();
        if newest != self.namespace {
            self.namespace = newest;
            self.entered.clear();
        }
        let running = self.tree.running(self.namespace);
        running.get(self.random.below(running.len().max(1) as u32) as usize).copied()
    }

    /// A rank enters its fence, once.
    fn enter(&mut self, rank: Rank) {
        if !self.entered.insert(rank) {
            return;
        }
        let mut puts = Puts::new();
        puts.push(rank, rank.to_string().as_bytes(), b"value");
        if self.puts_at_once {
            let puts = std::mem::take(&mut puts);
            self.tree.ask(self.namespace, rank.0, Request::Put { puts });
        }
        self.tree.ask(self.namespace, rank.0, Request::Fence { puts, in_segment: false });
    }

    /// Some ranks enter a fence, messages travel, agents join their ancestors, and time passes.
    fn live(&mut self) {
        for _ in 0..self.random.below(self.size) {
            if let Some((rank, _)) = self.some_rank() {
                self.enter(rank);
            }
        }
        for _ in 0..self.random.below(40) {
            self.tree.step();
        }
        if self.random.below(2) == 0 {
            self.tree.rejoin();
        }
        if self.random.below(4) == 0 {
            self.tree.advance(GATHER_WINDOW);
        }
    }

    /// Lets everything happen that is due.
    fn calm_down(&mut self) {
        for _ in 0..4 {
            self.tree.settle();
            while self.tree.rejoin() {
                self.tree.settle();
            }
            self.tree.advance(LONG);
        }
        self.tree.settle();
    }

    /// The running ranks of the newest namespace, with their agents.
    fn running(&mut self) -> Vec<(Rank, AgentId)> {
        self.some_rank();
        self.tree.running(self.namespace)
    }
}

#[test]
fn spares_take_over_the_ranks_of_agents_that_crash() {
    let mut moved = 0;
    for seed in 1..200 {
        let mut session = Session::new(seed);
        for _ in 0..3 {
            for _ in 0..1 + session.random.below(4) {
                session.live();
                session.fail();
            }
            session.calm_down();
            let running: Ranks = session.running().iter().map(|(rank, _)| *rank).collect();
            assert_eq!(running, Ranks::range(0..session.size), "seed {seed}: each rank runs");
            for older in (0..session.namespace.0).map(NamespaceId) {
                assert_eq!(session.tree.running(older), [], "seed {seed}: no rank runs twice");
            }
        }
        moved += u32::from(session.tree.moved.is_some());
        for (rank, _) in session.running() {
            session.enter(rank);
        }
        session.tree.settle();
        for (rank, agent) in session.running() {
            let answer = session.tree.answer(session.namespace, rank.0);
            assert_eq!(answer, Some(Answer::Released), "seed {seed}: rank {rank}");
            for peer in 0..session.size {
                let value = session.tree.get(session.namespace, rank.0, &peer.to_string());
                assert_eq!(value.as_deref(), Some("value"), "seed {seed}: rank {rank} gets the entry of {peer}");
            }
            session.tree.hand(agent, Input::RankEnded(session.namespace, rank, Exit::Code(0)));
        }
        session.tree.settle();
        session.tree.close_output();
        assert_eq!(session.tree.outcome, Some(Outcome::Success), "seed {seed}");
    }
    assert!(moved > 50, "{moved} sessions moved ranks");
}
