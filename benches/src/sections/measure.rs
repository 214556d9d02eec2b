//! The measurement of all launchers in rounds, and the format of its numbers.

use std::io;
use std::time::Instant;

use crate::bench::Bench;
use crate::launcher::Launcher;
use crate::rounds::{Series, rounds};
use crate::run::Void;
use crate::suite::Section;

/// Returns the launchers that can take part.
pub(super) fn participants(bench: &Bench, can: impl Fn(&Launcher) -> bool) -> Vec<Launcher> {
    bench.launchers.iter().filter(|launcher| can(launcher)).cloned().collect()
}

/// Runs rounds of one job and records each run. A launcher that takes longer than the suite repeats is not run again;
/// `values` are the quantities for the CSV file.
pub(super) fn measure<T>(
    bench: &mut Bench,
    section: Section,
    np: u32,
    launchers: &[Launcher],
    run: impl Fn(&Bench, &Launcher) -> Result<T, Void>,
    values: impl Fn(&T) -> Vec<(&'static str, f64)>,
) -> io::Result<Vec<Series<T>>> {
    let mut recorded = Ok(());
    let limit = bench.options.suite.repeated_up_to();
    let mut slow: Vec<&Launcher> = Vec::new();
    let turns: Vec<&Launcher> = launchers.iter().collect();
    let all = rounds(&turns, bench.options.runs, |round, launcher| {
        let began = Instant::now();
        let result = match limit {
            Some(limit) if slow.contains(&launcher) => Err(Void::Slow(limit)),
            _ => run(bench, launcher),
        };
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            slow.push(launcher);
        }
        let values = result.as_ref().map(&values).map_err(ToString::to_string);
        if recorded.is_ok() {
            recorded = bench.report.record(section, np, launcher, round + 1, values);
        }
        result
    });
    recorded.map(|()| all)
}

/// Formats a number with about three significant digits; a dash without one.
pub(super) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) if value < 0.0995 => format!("{value:.4}"),
        Some(value) if value < 9.995 => format!("{value:.3}"),
        Some(value) if value < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Formats a ratio; a dash without one.
pub(super) fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 0.0995 => format!("{value:.4}"),
        Some(value) => format!("{value:.2}"),
    }
}
