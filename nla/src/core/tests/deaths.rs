//! Deaths of ranks at random moments in whole trees: the others go on, and see the same board.

use std::collections::BTreeMap;

use pmi::{Answer, Puts, Rank, Ranks, Request};

use super::NS;
use super::boards::policies;
use super::tree::{Tree, placements, shapes};
use crate::core::agent::Input;
use crate::core::cause::{Cause, Exit, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::AgentId;

const FENCES: u32 = 3;

/// A xorshift generator: what dies when follows from the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(bound)) as u32
    }
}

/// What a rank of the test does next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Step {
    Enter(u32),
    Wait(u32),
    Done,
    Dead,
}

/// Runs all ranks through [`FENCES`] fences while one in `odds` dies in each round. Each rank puts a key per fence.
fn run(tree: &mut Tree, size: u32, at_once: bool, odds: u32, random: &mut Random) {
    let mut steps = vec![Step::Enter(0); size as usize];
    let mut board: BTreeMap<String, bool> = BTreeMap::new();
    let mut failed = vec![0; FENCES as usize];
    while steps.iter().any(|step| matches!(step, Step::Enter(_) | Step::Wait(_))) {
        let rank = random.below(size);
        let step = &mut steps[rank as usize];
        let can_die = matches!(step, Step::Enter(_) | Step::Wait(_)) && random.below(odds) == 0;
        if can_die {
            *step = Step::Dead;
            tree.answer(NS, rank);
            tree.input(rank, Input::RankEnded(NS, Rank(rank), Exit::Code(7)));
        } else if let Step::Enter(number) = *step {
            let key = format!("{rank}-{number}");
            let mut puts = Puts::new();
            puts.push(Rank(rank), key.as_bytes(), b"v");
            if at_once {
                let puts = std::mem::take(&mut puts);
                tree.ask(NS, rank, Request::Put { puts });
            }
            tree.ask(NS, rank, Request::Fence { puts, in_segment: false });
            board.insert(key, true);
            steps[rank as usize] = Step::Wait(number);
        }
        for _ in 0..random.below(8) {
            tree.step();
        }
        for (rank, step) in steps.iter_mut().enumerate() {
            let Step::Wait(number) = *step else { continue };
            match tree.answer(NS, rank as u32) {
                Some(Answer::Released) => {}
                Some(Answer::FenceFailed) => failed[number as usize] += 1,
                None => continue,
                Some(answer) => panic!("{answer:?}"),
            }
            *step = if number + 1 < FENCES { Step::Enter(number + 1) } else { Step::Done };
        }
        if steps.iter().all(|step| !matches!(step, Step::Enter(_))) {
            tree.settle();
        }
    }
    tree.settle();
    assert_eq!(failed[1..], [0; FENCES as usize - 1], "only the first fence fails");
    let dead: Ranks = (0..size).filter(|rank| steps[*rank as usize] == Step::Dead).map(Rank).collect();
    for rank in (0..size).filter(|rank| steps[*rank as usize] == Step::Done) {
        assert_eq!(tree.dead(rank), Some(dead.to_string().as_str()));
        for peer in 0..size {
            let seen: Vec<_> = (0..FENCES).map(|number| tree.get(NS, rank, &format!("{peer}-{number}"))).collect();
            let entered: Vec<_> = (0..FENCES).map(|number| board.contains_key(&format!("{peer}-{number}"))).collect();
            for (seen, entered) in seen.iter().zip(&entered) {
                assert_eq!(seen.is_some(), *entered, "rank {rank} sees {seen:?} of rank {peer}");
            }
        }
        tree.input(rank, Input::RankEnded(NS, Rank(rank), Exit::Code(0)));
    }
    tree.settle();
}

#[test]
fn fences_go_on_without_the_ranks_that_die() {
    let mut seed = 1;
    for policy in policies() {
        for (agents, fanout) in shapes(5) {
            for placement in placements(agents) {
                seed += 1;
                let nodes = (1..=agents).map(|agent| (AgentId(agent), agent)).collect();
                let size: u32 = placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
                let shape = (agents, fanout);
                let mut tree = Tree::with_policies(policy, FailurePolicy::Continue, shape, placement, &nodes, seed);
                run(&mut tree, size, policy.puts_at_once(), 6, &mut Random(seed));
                tree.close_output();
                match &tree.outcome {
                    Some(Outcome::Success) => assert_eq!(tree.dead(0), Some("")),
                    Some(Outcome::Survived { first, .. }) => assert_eq!(first.cause, Cause::Code(7)),
                    outcome => panic!("{outcome:?}"),
                }
            }
        }
    }
}
