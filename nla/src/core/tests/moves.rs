//! Agents that crash at random moments while the others go on: their ranks start again on other agents, catch up, and see the
//! same board.

use std::time::Duration;

use pmi::{Answer, Puts, Ranks};

use super::NS;
use super::boards::policies;
use super::deaths::Random;
use super::processes::Process;
use super::tree::{Tree, placements};
use crate::core::agent::Input;
use crate::core::cache::CachePolicy;
use crate::core::cause::{Exit, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::AgentId;

const FENCES: u32 = 4;
const SPARES: u32 = 3;

/// All ranks make [`FENCES`] fences. A rank puts a new key and replaces another one before each fence. Agents crash, at most
/// as many as there are spares, and ranks fail.
struct Session {
    tree: Tree,
    policy: CachePolicy,
    random: Random,
    agents: u32,
    ranks: Vec<Process>,
    crashes: u32,
    failures: u32,
}

impl Session {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = policies()[random.below(6) as usize];
        let used = 1 + random.below(8);
        let agents = used + SPARES;
        let placements = placements(used);
        let placement = placements[random.below(placements.len() as u32) as usize].clone();
        let nodes = (1..=agents).map(|agent| (AgentId(agent), agent)).collect();
        let size: usize = placement.iter().map(|(_, ranks)| ranks.len() as usize).sum();
        let shape = (agents, 1 + random.below(4));
        let tree = Tree::with_policies(policy, FailurePolicy::RestartRank, shape, placement, &nodes, seed);
        Self { tree, policy, random, agents, ranks: Process::all(size), crashes: SPARES, failures: 3 }
    }

    fn some_rank(&mut self) -> usize {
        self.random.below(self.ranks.len() as u32) as usize
    }

    fn begins_again(&mut self, rank: usize) {
        self.ranks[rank].begin_again();
    }

    /// An agent crashes, at any moment, or a rank fails.
    fn fail(&mut self) {
        let agent = 1 + self.random.below(self.agents);
        if self.crashes > 0 && self.tree.is_linked(agent) && !self.tree.has_orphans() {
            self.crashes -= 1;
            for rank in self.tree.ranks_at(agent) {
                self.begins_again(rank as usize);
            }
            return self.tree.crash(agent);
        }
        let rank = self.some_rank();
        if self.failures > 0 && self.tree.runs(rank as u32) {
            self.failures -= 1;
            self.tree.answer(NS, rank as u32);
            self.begins_again(rank);
            self.tree.fail(rank as u32);
        }
    }

    /// Lets everything happen that is due now.
    fn calm_down(&mut self) {
        self.tree.settle();
        while self.tree.rejoin() {
            self.tree.settle();
        }
    }

    /// A rank that runs makes its next fence.
    fn enter(&mut self, rank: usize) {
        let Process { left, waits, .. } = self.ranks[rank];
        if waits || left == FENCES || !self.tree.runs(rank as u32) {
            return;
        }
        self.ranks[rank].enter(&mut self.tree, self.policy);
    }

    /// Ranks that were released have left a fence. The cards of this fence are on the board.
    fn leave(&mut self) {
        for rank in 0..self.ranks.len() {
            let Some(number) = self.ranks[rank].leave(&mut self.tree) else { continue };
            let peer = self.some_rank();
            // This policy keeps most entries only at the agent that is lost.
            let may_be_lost = matches!(self.policy, CachePolicy::HcmabLru { .. }) && self.crashes < SPARES;
            if may_be_lost || self.tree.has_orphans() || !self.tree.runs(rank as u32) {
                continue;
            }
            let card = self.tree.get(NS, rank as u32, &format!("card-{peer}-{number}"));
            assert_eq!(card.as_deref(), Some("card"), "rank {rank} has left fence {number}, {peer} has entered it");
        }
    }

    fn run(&mut self, seed: u64) {
        let mut rounds = 0;
        while self.ranks.iter().any(|rank| rank.left < FENCES) && !self.tree.has_no_spare {
            rounds += 1;
            assert!(rounds < 100_000, "seed {seed}: fences complete");
            if self.random.below(12) == 0 {
                self.fail();
            }
            let rank = self.some_rank();
            self.enter(rank);
            for _ in 0..self.random.below(8) {
                self.tree.step();
            }
            if self.random.below(6) == 0 {
                self.tree.rejoin();
            }
            // An agent that can join an ancestor does so in time.
            if self.random.below(16) == 0 && !self.tree.rejoin() {
                self.tree.advance(Duration::from_secs(1 + u64::from(self.random.below(20))));
            }
            self.leave();
        }
        self.calm_down();
    }

    /// One more fence, in which the entries of those that caught up last become visible.
    fn check_addresses(&mut self, seed: u64) {
        let size = self.ranks.len();
        for rank in &mut self.ranks {
            rank.fence(Puts::new(), &mut self.tree, self.policy);
        }
        self.tree.settle();
        for rank in 0..size {
            assert_eq!(self.tree.answer(NS, rank as u32), Some(Answer::Released), "seed {seed}: rank {rank}");
        }
        for rank in 0..size {
            for peer in 0..size {
                let address = self.tree.get(NS, rank as u32, &format!("address-{peer}"));
                let newest = Some(self.ranks[peer].start.to_string());
                assert_eq!(address, newest, "seed {seed}: rank {rank} looks up rank {peer}");
            }
        }
    }
}

#[test]
fn the_ranks_of_agents_that_crash_start_elsewhere_and_the_others_go_on() {
    let (mut crashed, mut moved, mut without_spare) = (0, 0, 0);
    for seed in 1..600 {
        let mut session = Session::new(seed);
        session.run(seed);
        if session.tree.has_no_spare {
            // A spare that was orphaned while others completed fences is given up.
            without_spare += 1;
            continue;
        }
        session.check_addresses(seed);
        crashed += SPARES - session.crashes;
        moved += u32::from(session.tree.moved.is_some());
        let running = session.tree.running(NS);
        let ranks: Ranks = running.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, Ranks::range(0..session.ranks.len() as u32), "seed {seed}: each rank runs once");
        for (rank, agent) in running {
            session.tree.hand(agent, Input::RankEnded(NS, rank, Exit::Code(0)));
        }
        session.tree.settle();
        session.tree.close_output();
        assert_eq!(session.tree.outcome, Some(Outcome::Success), "seed {seed}");
    }
    assert!(without_spare < 20, "{without_spare} sessions ran out of spares");
    assert!(crashed > 600 && moved > 200, "{crashed} agents crashed, ranks moved in {moved} sessions");
}
