//! The sections: what is asked of every launcher, each with its table.

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

/// One question and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Starting and ending the empty program.
    Empty,
    /// The same with as little PMI as an MPI program can do.
    Hello,
    /// Everyone puts one entry and gets its neighbours' two.
    OneToTwo,
    /// Everyone puts one entry and gets everyone's.
    OneToAll,
    /// How long a fence takes, in quiet and while output floods.
    Fence,
    /// How much memory serving takes.
    Memory,
    /// How long a get takes.
    Get,
    /// How much memory PMI takes of a rank.
    PrivateMemory,
    /// [`Section::OneToTwo`] under each cache policy.
    CachedOneToTwo,
    /// [`Section::OneToAll`] under each cache policy.
    CachedOneToAll,
    /// How much memory the board takes under each cache policy.
    CachedMemory,
    /// What the simulation makes of the exchanges under each cache policy.
    Simulated,
}

impl Section {
    /// Measures and prints.
    ///
    /// # Errors
    /// Where results cannot be printed; a launcher that fails is a result.
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
            // Some have the same name in another suite.
            Self::OneToTwo | Self::CachedOneToTwo => "1:2",
            Self::OneToAll | Self::CachedOneToAll => "1:p",
            Self::Fence => "fence",
            Self::Get => "get",
            Self::Memory | Self::PrivateMemory | Self::CachedMemory => "memory",
            Self::Simulated => "simulated",
        })
    }
}

/// The launchers that can take part.
fn participants(bench: &Bench, can: impl Fn(&Launcher) -> bool) -> Vec<Launcher> {
    bench.launchers.iter().filter(|launcher| can(launcher)).cloned().collect()
}

/// Rounds of one job, each run recorded; `values` are its names and numbers for the file.
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

/// A number with about three digits that matter; a dash where there is none.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 9.995 => format!("{value:.3}"),
        Some(value) if value < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// A ratio; a dash where there is none.
fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 0.0995 => format!("{value:.4}"),
        Some(value) => format!("{value:.2}"),
    }
}
