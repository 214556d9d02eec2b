//! Agents that do wrong: the oracle notices each.

use nla::core::CachePolicy;
use sim::{Mutation, Report, Scenario, Violation};

const SEEDS: u64 = 150;

/// Runs calm scenarios of all seeds with and without the mutation, and hands out the violations. A run that
/// ends well must be the same as without: then the mutation had no occasion.
fn caught(mutation: impl Fn(&Scenario) -> Mutation) -> Vec<(CachePolicy, Violation)> {
    let mut caught = Vec::new();
    for seed in 0..SEEDS {
        let right = Scenario { doomed: false, ..Scenario::from_seed(seed) };
        let wrong = Scenario { mutation: Some(mutation(&right)), ..right.clone() };
        let expected = right.run().unwrap_or_else(|violation| panic!("{right}: {violation}"));
        match wrong.run() {
            Err(violation) => caught.push((wrong.cache, violation)),
            Ok(report) => assert!(is_same(&report, &expected), "not noticed: {wrong}"),
        }
    }
    caught
}

/// Whether ranks have seen the same; how much less was sent and kept does not matter.
fn is_same(one: &Report, other: &Report) -> bool {
    one.outcome == other.outcome && one.fences.len() == other.fences.len()
}

fn an_agent(scenario: &Scenario) -> u32 {
    1 + (scenario.seed as u32 % scenario.agents)
}

#[track_caller]
fn all_say(caught: &[(CachePolicy, Violation)], at_least: usize, words: &[&str]) {
    for (_, violation) in caught {
        let text = violation.to_string();
        assert!(words.iter().any(|word| text.contains(word)), "{text}");
    }
    assert!(caught.len() >= at_least, "only {} were caught", caught.len());
}

#[test]
fn a_lost_release() {
    for after in [0, 1] {
        let caught = caught(|scenario| Mutation::LoseRelease { agent: an_agent(scenario), after });
        all_say(&caught, 20, &["nothing is left to happen, and the session is not over", "the session failed"]);
    }
}

#[test]
fn a_release_before_all_have_arrived() {
    let caught = caught(|scenario| Mutation::EarlyRelease { agent: an_agent(scenario) });
    // Where it was the last to arrive, what it gets afterwards is too old, or it puts or arrives once more.
    all_say(&caught, 50, &["had arrived", "got ", "arrived twice"]);
    assert!(caught.iter().any(|(_, violation)| violation.to_string().contains("had arrived")));
}

#[test]
fn a_wrong_value() {
    for after in [0, 3] {
        let caught = caught(|scenario| Mutation::WrongValue { agent: an_agent(scenario), after });
        all_say(&caught, 20, &["got \"wrong\" for "]);
        for policy in ["hcs", "hcma", "hcmab", "hcmab-lru"] {
            assert!(caught.iter().any(|(cache, _)| cache.name() == policy), "none under {policy}");
        }
    }
}

#[test]
fn news_that_an_agent_misses() {
    for after in [0, 1] {
        let caught = caught(|scenario| Mutation::MissUpdate { agent: an_agent(scenario), after });
        all_say(&caught, 15, &["got nothing for", "got \""]);
        if after > 0 {
            // An old value that is not dropped.
            let stale = |policy: &str| caught.iter().any(|(cache, _)| cache.name() == policy);
            assert!(["hcs", "hcma"].into_iter().any(stale), "none of the caches that are asked was stale");
            assert!(stale("hcmab"), "no board was stale");
        }
    }
}
