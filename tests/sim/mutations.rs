//! Bugs that are put into agents: the oracle detects each of them.

use nla::core::CachePolicy;
use sim::{Mutation, Report, Scenario, Violation};

const SEEDS: u64 = 150;

/// Runs scenarios without faults, with and without the mutation, and returns the violations. A mutated run without a
/// violation must have the same result as the correct run: the mutation then had no effect.
fn caught(mutation: impl Fn(&Scenario) -> Mutation) -> Vec<(CachePolicy, Violation)> {
    let mut caught = Vec::new();
    for seed in 0..SEEDS {
        let correct = Scenario { rank_fails: false, ..Scenario::from_seed(seed) };
        let mutated = Scenario { mutation: Some(mutation(&correct)), ..correct.clone() };
        let expected = correct.run().unwrap_or_else(|violation| panic!("{correct}: {violation}"));
        match mutated.run() {
            Err(violation) => caught.push((mutated.cache, violation)),
            Ok(report) => assert!(is_same(&report, &expected), "not detected: {mutated}"),
        }
    }
    caught
}

/// Returns whether the ranks saw the same. Traffic and memory may differ.
fn is_same(one: &Report, other: &Report) -> bool {
    one.outcome == other.outcome && one.fences.len() == other.fences.len()
}

fn mutated_agent(scenario: &Scenario) -> u32 {
    1 + (scenario.seed as u32 % scenario.agents)
}

#[track_caller]
fn assert_caught(caught: &[(CachePolicy, Violation)], at_least: usize, words: &[&str]) {
    for (_, violation) in caught {
        let text = violation.to_string();
        assert!(words.iter().any(|word| text.contains(word)), "{text}");
    }
    assert!(caught.len() >= at_least, "only {} mutations were caught", caught.len());
}

#[test]
fn a_lost_release_is_detected() {
    for after in [0, 1] {
        let caught = caught(|scenario| Mutation::LoseRelease { agent: mutated_agent(scenario), after });
        assert_caught(&caught, 20, &["no event is left, but the session has not ended", "the session failed"]);
    }
}

#[test]
fn a_release_before_all_ranks_arrived_is_detected() {
    let caught = caught(|scenario| Mutation::EarlyRelease { agent: mutated_agent(scenario) });
    // If the rank was the last one to arrive, the root has not released the fence.
    assert_caught(&caught, 50, &["had arrived", "before the root had released it"]);
    assert!(caught.iter().any(|(_, violation)| violation.to_string().contains("had arrived")));
}

#[test]
fn a_wrong_value_is_detected() {
    for after in [0, 3] {
        let caught = caught(|scenario| Mutation::WrongValue { agent: mutated_agent(scenario), after });
        assert_caught(&caught, 20, &["got \"wrong\" for "]);
        for policy in ["hcs", "hcma", "hcmab", "hcmab-lru"] {
            assert!(caught.iter().any(|(cache, _)| cache.name() == policy), "no wrong value was caught under {policy}");
        }
    }
}

#[test]
fn a_missed_update_is_detected() {
    for after in [0, 1] {
        let caught = caught(|scenario| Mutation::MissUpdate { agent: mutated_agent(scenario), after });
        assert_caught(&caught, 15, &["got nothing for", "got \""]);
        if after > 0 {
            // The agent keeps a stale value.
            let stale = |policy: &str| caught.iter().any(|(cache, _)| cache.name() == policy);
            assert!(["hcs", "hcma"].into_iter().any(stale), "no stale cache was caught");
            assert!(stale("hcmab"), "no stale board was caught");
        }
    }
}

#[test]
fn a_damaged_piece_of_an_epoch_ends_the_session() {
    for after in [0, 1] {
        let caught = caught(|scenario| Mutation::DamagePiece { agent: mutated_agent(scenario), after });
        let words = ["were damaged on their way: their hash is", "the packed piece at byte"];
        assert_caught(&caught, 20, &words);
        for word in words {
            assert!(caught.iter().any(|(_, violation)| violation.to_string().contains(word)), "{word}");
        }
    }
}
