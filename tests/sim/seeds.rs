//! Jobs in which anything goes wrong, drawn from seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::Scenario;

/// What is tried without being asked for more.
const SEEDS: u64 = 1000;

/// Runs the scenario of a seed twice: with nothing going wrong around the ranks, and with faults. The error
/// is what the reader of a failed test needs.
fn check(seed: u64, tell: bool) -> Result<(), String> {
    let calm = Scenario::from_seed(seed);
    let span = report(&calm, tell)?.over;
    report(&calm.troubled(span), tell)?;
    Ok(())
}

fn report(scenario: &Scenario, tell: bool) -> Result<sim::Report, String> {
    let wrong = |what: String| {
        let replay = format!("SCELA_SEED={} cargo test -p tests --test sim seeds", scenario.seed);
        format!("{scenario}\n  {what}\n  again: {replay}")
    };
    if tell {
        println!("{scenario}");
    }
    // An invariant that does not hold panics inside of a core.
    let report = match catch_unwind(AssertUnwindSafe(|| scenario.run())) {
        Ok(Ok(report)) => report,
        Ok(Err(violation)) => return Err(wrong(violation.to_string())),
        Err(_) => return Err(wrong("an invariant does not hold; see above".to_owned())),
    };
    if tell {
        println!("{report}");
    }
    Ok(report)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn whatever_goes_wrong_ends_well_or_with_a_reason() {
    if let Some(seed) = number("SCELA_SEED") {
        return check(seed, true).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    let seeds = number("SCELA_SEEDS").unwrap_or(SEEDS);
    let wrong: Vec<String> = (0..seeds).filter_map(|seed| check(seed, false).err()).take(5).collect();
    assert!(wrong.is_empty(), "of {seeds} seeds, the first that went wrong:\n{}", wrong.join("\n"));
}

#[test]
fn faults_strike_and_sessions_end_in_all_ways() {
    let (mut struck, mut success, mut failed, mut interrupted) = (0, 0, 0, 0);
    for seed in 0..200 {
        let calm = Scenario::from_seed(seed);
        let span = calm.run().expect("nothing goes wrong").over;
        let report = calm.troubled(span).run().expect("what goes wrong is dealt with");
        struck += report.struck;
        success += u32::from(report.outcome == "success");
        failed += u32::from(report.outcome.starts_with("Failed"));
        interrupted += u32::from(report.outcome.starts_with("Interrupted"));
    }
    let counts = (struck, success, failed, interrupted);
    assert!(struck > 100 && success > 30 && failed > 50 && interrupted > 5, "{counts:?}");
}
