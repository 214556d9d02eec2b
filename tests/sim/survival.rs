//! Sessions that survive faults: the ranks that were not hit go on and see the right board, and all ends in time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::{Report, Scenario};

use crate::seeds::number;

/// The number of seeds without `SCELA_SEEDS`: of small trees, and of large ones. The first seed is `SCELA_SEED`.
const SEEDS: [u64; 2] = [2500, 12];
/// The agents of a large tree.
const AGENTS: u32 = 1024;

/// Runs the scenario of a seed without faults, then with faults. The error contains the scenario and the command to
/// replay it.
fn check(seed: u64, agents: Option<u32>) -> Result<Report, String> {
    let scenario = Scenario::surviving(seed, agents);
    let correct = run(&scenario, agents)?;
    run(&scenario.with_faults_to_survive(&correct), agents)
}

fn run(scenario: &Scenario, agents: Option<u32>) -> Result<Report, String> {
    let failure = |why: &str| {
        let test = if agents.is_some() { "large_trees" } else { "small_trees" };
        let replay = format!("SCELA_SEED={} cargo test --release -p tests --test sim {test}", scenario.seed);
        format!("{scenario}\n  {why}\n  replay: {replay}")
    };
    // A core panics when one of its invariants is broken.
    match catch_unwind(AssertUnwindSafe(|| scenario.run())) {
        Ok(result) => result.map_err(|violation| failure(&violation.to_string())),
        Err(_) => Err(failure("a core panicked; see above")),
    }
}

/// The figures of many runs.
#[derive(Default, Debug)]
struct Totals {
    runs: u64,
    struck: u32,
    rejoined: u32,
    restarted: u32,
    given_up: u32,
    succeeded: u32,
    survived: u32,
    events: u64,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.struck += report.struck;
        self.rejoined += report.rejoined;
        self.restarted += report.restarted;
        self.given_up += report.given_up;
        self.succeeded += u32::from(report.outcome == "success");
        self.survived += u32::from(report.outcome.starts_with("Survived"));
        self.events += report.events;
    }
}

fn check_all(seeds: u64, agents: Option<u32>) -> Totals {
    let first = number("SCELA_SEED");
    let count = number("SCELA_SEEDS").unwrap_or(if first.is_some() { 1 } else { seeds });
    let range = first.unwrap_or(0)..first.unwrap_or(0) + count;
    let (mut totals, mut failures) = (Totals::default(), Vec::new());
    for seed in range.clone() {
        match check(seed, agents) {
            Ok(report) => totals.add(&report),
            Err(failure) => failures.push(failure),
        }
        if failures.len() == 5 {
            break;
        }
    }
    println!("{totals:?}");
    assert!(failures.is_empty(), "of {range:?} seeds, the first that failed:\n{}", failures.join("\n"));
    totals
}

#[test]
fn small_trees_survive_faults() {
    let Totals { runs, rejoined, restarted, given_up, succeeded, survived, .. } = check_all(SEEDS[0], None);
    if runs >= SEEDS[0] {
        let counts = (rejoined, restarted, given_up, succeeded, survived);
        assert!(rejoined > 500 && restarted > 500 && succeeded > 500 && survived > 500, "{counts:?}");
        assert!(given_up < rejoined, "{counts:?}");
    }
}

#[test]
fn large_trees_survive_faults() {
    let Totals { runs, struck, .. } = check_all(SEEDS[1], Some(AGENTS));
    assert!(struck as u64 >= runs / 2, "{struck} faults struck");
}
