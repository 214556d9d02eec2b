//! Deaths of ranks and agents at random moments in whole trees: the others go on, and see the same board.

use std::collections::BTreeMap;

use pmi::{Answer, Puts, Rank, Ranks, Request};

use super::NS;
use super::boards::policies;
use super::tree::{Tree, placements, shapes};
use crate::core::agent::Input;
use crate::core::cache::CachePolicy;
use crate::core::cause::{Cause, Exit, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::AgentId;

const FENCES: u32 = 3;

/// A xorshift generator: what dies when follows from the seed.
pub(in crate::core) struct Random(pub(in crate::core) u64);

impl Random {
    pub(in crate::core) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(bound)) as u32
    }
}

/// The next step of a rank of the test.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Step {
    Enter(u32),
    Wait(u32),
    Done,
    Dead,
}

/// Runs all ranks through [`FENCES`] fences while one in `odds` dies in each round, and so many agents crash at random
/// moments. Each rank puts a key per fence.
fn run(tree: &mut Tree, size: u32, policy: CachePolicy, odds: u32, crashes: &mut Vec<u32>, random: &mut Random) {
    let (at_once, is_bounded) = (policy.puts_at_once(), policy.entries().is_some());
    let mut steps = vec![Step::Enter(0); size as usize];
    let mut board: BTreeMap<String, bool> = BTreeMap::new();
    let mut failed = vec![0; FENCES as usize];
    let has_crashes = !crashes.is_empty();
    let mut rounds = 0;
    while steps.iter().any(|step| matches!(step, Step::Enter(_) | Step::Wait(_))) {
        rounds += 1;
        assert!(rounds < 100_000, "fences complete: {steps:?}");
        if !crashes.is_empty() && random.below(2 * size) == 0 {
            let agent = crashes.remove(0);
            // The ancestor of an orphaned agent notices its death only when its time is over.
            if !tree.is_linked(agent) {
                continue;
            }
            for rank in tree.ranks_at(agent) {
                if steps[rank as usize] != Step::Done {
                    steps[rank as usize] = Step::Dead;
                }
            }
            tree.crash(agent);
        }
        if random.below(4) == 0 {
            tree.rejoin();
        }
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
            while tree.rejoin() {
                tree.settle();
            }
        }
    }
    crashes.clear();
    while tree.rejoin() {}
    tree.settle();
    assert_eq!(failed[1..], [0; FENCES as usize - 1], "only the first fence fails");
    let dead: Ranks = (0..size).filter(|rank| steps[*rank as usize] == Step::Dead).map(Rank).collect();
    let finished = |rank: &u32| steps[*rank as usize] == Step::Done && tree.runs(*rank);
    let finished: Vec<_> = (0..size).filter(finished).collect();
    let mut common = BTreeMap::new();
    for rank in finished {
        if !has_crashes {
            assert_eq!(tree.dead(rank), Some(dead.to_string().as_str()));
        }
        for peer in 0..size {
            let seen: Vec<_> = (0..FENCES).map(|number| tree.get(NS, rank, &format!("{peer}-{number}"))).collect();
            let entered: Vec<_> = (0..FENCES).map(|number| board.contains_key(&format!("{peer}-{number}"))).collect();
            for (number, (seen, entered)) in seen.iter().zip(&entered).enumerate() {
                if is_bounded && has_crashes && !tree.runs(peer) {
                    // Under this policy, only the rank's agent stores the entry for good.
                } else if has_crashes && dead.contains(Rank(peer)) {
                    // The contribution of a rank whose agent crashed afterwards may be lost, then for all.
                    let same = common.entry((peer, number)).or_insert_with(|| seen.clone());
                    assert_eq!(same, seen, "rank {rank} sees {seen:?} of rank {peer}");
                } else {
                    assert_eq!(seen.is_some(), *entered, "rank {rank} sees {seen:?} of rank {peer}");
                }
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
                run(&mut tree, size, policy, 6, &mut Vec::new(), &mut Random(seed));
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

#[test]
fn the_subtrees_of_agents_that_crash_join_an_ancestor() {
    const AGENTS: u32 = 14;
    for seed in 1..150 {
        let mut random = Random(seed);
        let policy = policies()[random.below(6) as usize];
        let fanout = 1 + random.below(3);
        let placements = placements(AGENTS);
        let placement = placements[random.below(placements.len() as u32) as usize].clone();
        let nodes = (1..=AGENTS).map(|agent| (AgentId(agent), agent)).collect();
        let size: u32 = placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
        let shape = (AGENTS, fanout);
        let mut tree = Tree::with_policies(policy, FailurePolicy::Continue, shape, placement, &nodes, seed);
        let mut crashes: Vec<_> = (0..1 + random.below(3)).map(|_| 1 + random.below(AGENTS)).collect();
        crashes.dedup();
        run(&mut tree, size, policy, 40, &mut crashes, &mut random);
        tree.close_output();
        assert!(
            matches!(tree.outcome, Some(Outcome::Success | Outcome::Survived { .. })),
            "seed {seed}: {:?}",
            tree.outcome
        );
    }
}
