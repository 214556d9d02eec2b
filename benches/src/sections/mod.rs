//! The sections: one measurement of every launcher each, with its table.

mod agents;
mod caches;
mod exchange;
mod fence;
mod get;
mod launch;
mod memory;
mod notes;
mod private_memory;

use std::fmt;
use std::io;

use crate::bench::{Bench, BenchError};
use crate::launcher::Launcher;
use crate::report::Record;
use crate::rounds::{Series, rounds};
use crate::run::{Program, Void};

/// One measurement and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The time to start and end the empty program.
    Empty,
    /// The same with the least PMI that an MPI program needs.
    Hello,
    /// Each rank puts one entry and gets those of its two neighbours.
    OneToTwo,
    /// Each rank puts one entry and gets those of all ranks.
    OneToAll,
    /// The time of a fence, with and without a flood of output.
    Fence,
    /// The memory of agents.
    Memory,
    /// The time of a get.
    Get,
    /// The memory that PMI adds to a rank.
    PrivateMemory,
    /// [`Section::OneToTwo`] under each cache policy.
    CachedOneToTwo,
    /// [`Section::OneToAll`] under each cache policy.
    CachedOneToAll,
    /// The memory of the board under each cache policy.
    CachedMemory,
    /// The simulated times of the exchanges under each cache policy.
    Simulated,
}

impl Section {
    /// Runs the section and prints its results.
    ///
    /// # Errors
    /// If results cannot be printed. A launcher that fails is a result.
    pub fn run(self, bench: &mut Bench) -> Result<(), BenchError> {
        match self {
            Self::Empty => launch::run(bench, self, Program::Empty),
            Self::Hello => launch::run(bench, self, Program::Hello),
            Self::OneToTwo => exchange::run(bench, self, Program::OneToTwo),
            Self::OneToAll => exchange::run(bench, self, Program::OneToAll),
            Self::Fence => fence::run(bench, self),
            Self::Memory => memory::run(bench, self),
            Self::Get => get::run(bench, self),
            Self::PrivateMemory => private_memory::run(bench, self),
            Self::CachedOneToTwo => caches::exchange::run(bench, self, Program::OneToTwo),
            Self::CachedOneToAll => caches::exchange::run(bench, self, Program::OneToAll),
            Self::CachedMemory => caches::memory::run(bench, self),
            Self::Simulated => caches::simulated::run(bench, self),
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::Hello => "hello",
            // Sections of different suites may have the same name.
            Self::OneToTwo | Self::CachedOneToTwo => "1:2",
            Self::OneToAll | Self::CachedOneToAll => "1:p",
            Self::Fence => "fence",
            Self::Get => "get",
            Self::Memory | Self::PrivateMemory | Self::CachedMemory => "memory",
            Self::Simulated => "simulated",
        })
    }
}

/// Returns the launchers that can take part.
fn participants(bench: &Bench, can: impl Fn(&Launcher) -> bool) -> Vec<Launcher> {
    bench.launchers.iter().filter(|launcher| can(launcher)).cloned().collect()
}

/// Runs rounds of one job and records each run; `values` are the quantities for the CSV file.
fn measure<T>(
    bench: &mut Bench,
    section: Section,
    np: u32,
    launchers: &[Launcher],
    run: impl Fn(&Bench, &Launcher) -> Result<T, Void>,
    values: impl Fn(&T) -> Vec<(&'static str, f64)>,
) -> io::Result<Vec<Series<T>>> {
    let mut recorded = Ok(());
    let turns: Vec<&Launcher> = launchers.iter().collect();
    let all = rounds(&turns, bench.options.runs, |round, launcher| {
        let result = run(bench, launcher);
        let values = result.as_ref().map(&values).map_err(ToString::to_string);
        let record = Record { section, np, launcher, round: round + 1, result: values };
        if recorded.is_ok() {
            recorded = bench.report.record(&record);
        }
        result
    });
    recorded.map(|()| all)
}

/// Formats a number with about three significant digits; a dash without one.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 9.995 => format!("{value:.3}"),
        Some(value) if value < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Formats a ratio; a dash without one.
fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 0.0995 => format!("{value:.4}"),
        Some(value) => format!("{value:.2}"),
    }
}
