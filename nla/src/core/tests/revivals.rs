//! Ranks that fail at random moments and start again while the others go on: all see the same board in the end.

use pmi::{Answer, Puts, Rank};

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
const FAILURES: u32 = 5;

/// All ranks make [`FENCES`] fences. A rank puts a new key and replaces another one before each fence.
struct Session {
    tree: Tree,
    policy: CachePolicy,
    random: Random,
    ranks: Vec<Process>,
    failures: u32,
}

impl Session {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = policies()[random.below(6) as usize];
        let agents = 1 + random.below(6);
        let placements = placements(agents);
        let placement = placements[random.below(placements.len() as u32) as usize].clone();
        let nodes = (1..=agents).map(|agent| (AgentId(agent), agent)).collect();
        let size: usize = placement.iter().map(|(_, ranks)| ranks.len() as usize).sum();
        let shape = (agents, 1 + random.below(3));
        let tree = Tree::with_policies(policy, FailurePolicy::RestartRank, shape, placement, &nodes, seed);
        Self { tree, policy, random, ranks: Process::all(size), failures: FAILURES }
    }

    fn some_rank(&mut self) -> usize {
        self.random.below(self.ranks.len() as u32) as usize
    }

    /// A rank fails, at any moment. It starts again at once or when the launcher's order arrives.
    fn fail(&mut self) {
        let rank = self.some_rank();
        self.failures -= 1;
        self.tree.answer(NS, rank as u32);
        self.tree.input(rank as u32, Input::RankEnded(NS, Rank(rank as u32), Exit::Code(7)));
        self.ranks[rank].begin_again();
        // Its requests come after its start.
        self.tree.settle();
    }

    /// A rank makes its next fence.
    fn enter(&mut self, rank: usize) {
        let Process { left, waits, .. } = self.ranks[rank];
        if waits || left == FENCES {
            return;
        }
        self.ranks[rank].enter(&mut self.tree, self.policy);
    }

    /// Ranks that were released have left a fence. All cards of this fence are on the board.
    fn leave(&mut self) {
        for rank in 0..self.ranks.len() {
            let Some(number) = self.ranks[rank].leave(&mut self.tree) else { continue };
            let peer = self.some_rank();
            let card = self.tree.get(NS, rank as u32, &format!("card-{peer}-{number}"));
            assert_eq!(
                card.as_deref(),
                Some("card"),
                "rank {rank} has left fence {number}, which rank {peer} has entered"
            );
        }
    }

    fn run(&mut self) {
        let mut rounds = 0;
        while self.ranks.iter().any(|rank| rank.left < FENCES) {
            rounds += 1;
            assert!(rounds < 100_000, "fences complete");
            if self.failures > 0 && self.random.below(8) == 0 {
                self.fail();
            }
            let rank = self.some_rank();
            self.enter(rank);
            for _ in 0..self.random.below(8) {
                self.tree.step();
            }
            self.leave();
        }
    }
}

#[test]
fn ranks_that_start_again_catch_up_and_replace_their_entries() {
    let (mut revived, mut passed) = (0, 0);
    for seed in 1..400 {
        let mut session = Session::new(seed);
        session.run();
        // One more fence, in which the entries of those that caught up last become visible.
        let size = session.ranks.len();
        for rank in 0..size {
            session.ranks[rank].fence(Puts::new(), &mut session.tree, session.policy);
        }
        session.tree.settle();
        for rank in 0..size {
            assert_eq!(session.tree.answer(NS, rank as u32), Some(Answer::Released), "seed {seed}");
            for peer in 0..size {
                let address = session.tree.get(NS, rank as u32, &format!("address-{peer}"));
                assert_eq!(address, Some(session.ranks[peer].start.to_string()), "seed {seed}: rank {rank}, {peer}");
            }
        }
        passed += session.ranks.iter().map(|rank| rank.passed).sum::<u32>();
        revived += session.ranks.iter().map(|rank| rank.start).sum::<u32>();
        for rank in 0..size as u32 {
            session.tree.input(rank, Input::RankEnded(NS, Rank(rank), Exit::Code(0)));
        }
        session.tree.settle();
        session.tree.close_output();
        assert_eq!(session.tree.outcome, Some(Outcome::Success), "seed {seed}");
    }
    assert!(revived > 500 && passed > 500, "{revived} starts, {passed} fences");
}
