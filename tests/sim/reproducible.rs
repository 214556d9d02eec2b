//! The same seed gives exactly the same run.

use nla::wire::encode;
use sim::{Pattern, Scenario, Spec};

#[test]
fn a_scenario_is_reproducible() {
    for seed in 0..50 {
        let run = || {
            let scenario = Scenario::from_seed(seed);
            let span = scenario.run().expect("no violation without faults").over;
            let scenario = scenario.with_faults(span);
            (scenario.to_string(), encode(&scenario.run().expect("no violation with faults")))
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_job_is_reproducible() {
    for faults in [false, true] {
        let spec = Spec { nodes: 40, ppn: 4, fanout: 3, pattern: Pattern::All, faults, ..Spec::default() };
        let run = || sim::run(&spec).expect("the job can be simulated");
        let (one, other) = (run(), run());
        assert_eq!(encode(&one), encode(&other));
        assert_eq!(one.to_string(), other.to_string());
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let (one, other) = (Scenario::from_seed(1), Scenario::from_seed(2));
    assert_ne!(one.to_string(), other.to_string());
    assert_ne!(
        encode(&one.run().expect("no violation without faults")),
        encode(&other.run().expect("no violation without faults"))
    );
}
