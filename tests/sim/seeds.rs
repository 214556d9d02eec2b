//! Jobs and faults drawn from seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::Scenario;

/// The number of seeds without `SCELA_SEEDS`.
const SEEDS: u64 = 1000;

/// Runs the scenario of a seed without faults, then with faults. The error contains the scenario and the command to
/// replay it.
fn check(seed: u64, print: bool) -> Result<(), String> {
    let scenario = Scenario::from_seed(seed);
    let span = report(&scenario, print)?.over;
    report(&scenario.with_faults(span), print)?;
    Ok(())
}

fn report(scenario: &Scenario, print: bool) -> Result<sim::Report, String> {
    let failure = |why: String| {
        let replay = format!("SCELA_SEED={} cargo test -p tests --test sim seeds", scenario.seed);
        format!("{scenario}\n  {why}\n  replay: {replay}")
    };
    if print {
        println!("{scenario}");
    }
    // A core panics when one of its invariants is broken.
    let report = match catch_unwind(AssertUnwindSafe(|| scenario.run())) {
        Ok(Ok(report)) => report,
        Ok(Err(violation)) => return Err(failure(violation.to_string())),
        Err(_) => return Err(failure("a core panicked; see above".to_owned())),
    };
    if print {
        println!("{report}");
    }
    Ok(report)
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn all_seeds_run_without_a_violation() {
    if let Some(seed) = number("SCELA_SEED") {
        return check(seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let seeds = number("SCELA_SEEDS").unwrap_or(SEEDS);
    let failures: Vec<String> = (0..seeds).filter_map(|seed| check(seed, false).err()).take(5).collect();
    assert!(failures.is_empty(), "of {seeds} seeds, the first that failed:\n{}", failures.join("\n"));
}

#[test]
fn drawn_faults_cause_every_kind_of_outcome() {
    let (mut struck, mut success, mut failed, mut interrupted) = (0, 0, 0, 0);
    for seed in 0..200 {
        let scenario = Scenario::from_seed(seed);
        let span = scenario.run().expect("no violation without faults").over;
        let report = scenario.with_faults(span).run().expect("no violation with faults");
        struck += report.struck;
        success += u32::from(report.outcome == "success");
        failed += u32::from(report.outcome.starts_with("Failed"));
        interrupted += u32::from(report.outcome.starts_with("Interrupted"));
    }
    let counts = (struck, success, failed, interrupted);
    assert!(struck > 100 && success > 30 && failed > 50 && interrupted > 5, "{counts:?}");
}
