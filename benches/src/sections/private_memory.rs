//! The memory that libpmi.so adds to a rank, and the number of copies of the board.
//!
//! Each rank reads its own private memory before PMI is initialised and after it has got every entry.
//! The wire client is the control: its few buffers exist before the first reading, so it should add
//! nothing. Then the bench reads the mappings of boards: a rank should map one board with no private
//! page, and each agent has one that its ranks share.

use std::collections::BTreeMap;

use super::agents::{JobProcesses, megabytes};
use super::measure::{measure, number, participants};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Client, Kind, Launcher};
use crate::overview;
use crate::rounds::median;
use crate::run::{Finished, Job, Program, Void, run_inspected};
use crate::smaps::{self, Mapping};
use crate::suite::Section;
use crate::table::Table;

/// The measurements of one run.
struct Measured {
    run: Finished,
    /// The private memory added, by rank.
    added_kib: Vec<f64>,
    agents_mb: f64,
    agent_names: String,
    boards: Boards,
}

/// The mapped boards.
#[derive(Debug, Default)]
struct Boards {
    /// The resident size of each file: the maximum over processes. The sum of proportional shares would
    /// be too small, because the kernel rounds each of them down.
    files: BTreeMap<u64, u64>,
    /// The largest resident size of a board in a rank.
    rank_rss_kib: u64,
    /// The private part, summed over all ranks.
    ranks_private_kib: u64,
    /// The number of ranks that map no board, or more than one.
    odd_ranks: usize,
    /// The number of processes whose mappings could not be read.
    unreadable: usize,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, |launcher| launcher.kind == Kind::Scela);
    let mut table = Table::default();
    table.group("", &["np", "by"]);
    table.group("added to a rank, KiB", &["median", "max"]);
    table.group("boards", &["files", "total MB"]);
    table.group("a rank's board, KiB", &["mapped", "private"]);
    table.group("agents", &["MB"]);

    let mut notes = Notes::default();
    for np in bench.sizes(&SIZES) {
        let measured = |bench: &Bench, launcher: &Launcher| measured(bench, launcher, np);
        let all = measure(bench, section, np, &launchers, measured, Measured::values)?;
        let cells = launchers.iter().zip(&all);
        let cells = cells.map(|(launcher, series)| {
            (launcher, overview::cell(series, number(series.median(Measured::added_median_kib)), None))
        });
        bench.overview.row(format!("private memory that PMI adds to a rank, np {np}, KiB"), cells);
        for (launcher, series) in launchers.iter().zip(&all) {
            let median = |value: fn(&Measured) -> f64| number(series.median(value));
            table.row(vec![
                np.to_string(),
                launcher.to_string(),
                cell(series, median(Measured::added_median_kib)),
                median(Measured::added_max_kib),
                median(|measured| measured.boards.files.len() as f64),
                median(|measured| measured.boards.all_mb()),
                median(|measured| measured.boards.rank_rss_kib as f64),
                median(|measured| measured.boards.ranks_private_kib as f64),
                median(|measured| measured.agents_mb),
            ]);
            notes.take(launcher, np, series, |measured| &measured.run);
            for measured in series.counted() {
                notes.add(format!("{launcher}, np {np}: agents are {}", measured.agent_names));
                if matches!(launcher.client, Client::Library(_)) && measured.boards.odd_ranks > 0 {
                    let odd = measured.boards.odd_ranks;
                    notes.add(format!("{launcher}, np {np}: {odd} ranks map no board, or more than one"));
                }
                if measured.boards.unreadable > 0 {
                    let unreadable = measured.boards.unreadable;
                    notes.add(format!("{launcher}, np {np}: the mappings of {unreadable} processes cannot be read"));
                }
            }
        }
    }
    let title = "memory that PMI adds to a rank: private, from before its initialisation to after all p gets\n\
                     boards: mappings of the agents' memory; total MB: resident size, each file counted once";
    bench.report.section(title, &table, notes.lines())?;
    Ok(())
}

/// Starts ranks that wait, measures, and lets them continue.
fn measured(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Measured, Void> {
    let job = Job { np, program: Program::Memory };
    let (run, (boards, agents_mb, agent_names)) = run_inspected(bench, launcher, job, |launcher_pid| {
        let processes = JobProcesses::of(launcher_pid, bench.pmi_program(launcher), bench.services.processes());
        (Boards::of(&processes), processes.agents_mb(), processes.agent_names())
    })?;
    let added_kib = run.reading.samples.chunks_exact(2).map(|pair| pair[1] as f64 - pair[0] as f64).collect();
    Ok(Measured { run, added_kib, agents_mb, agent_names, boards })
}

impl Measured {
    fn added_median_kib(&self) -> f64 {
        median(self.added_kib.clone()).unwrap_or(f64::NAN)
    }

    fn added_max_kib(&self) -> f64 {
        self.added_kib.iter().copied().fold(f64::NAN, f64::max)
    }

    fn values(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("added_median_kib", self.added_median_kib()),
            ("added_max_kib", self.added_max_kib()),
            ("boards", self.boards.files.len() as f64),
            ("boards_mb", self.boards.all_mb()),
            ("rank_board_rss_max_kib", self.boards.rank_rss_kib as f64),
            ("ranks_board_private_kib", self.boards.ranks_private_kib as f64),
            ("agents_pss_mb", self.agents_mb),
        ]
    }
}

impl Boards {
    fn of(processes: &JobProcesses) -> Self {
        let mut boards = Self::default();
        for pid in &processes.ranks {
            let Some(mapped) = smaps::mappings(*pid, BOARD) else {
                boards.unreadable += 1;
                continue;
            };
            boards.odd_ranks += usize::from(mapped.len() != 1);
            for mapping in mapped {
                boards.add(mapping);
                boards.rank_rss_kib = boards.rank_rss_kib.max(mapping.rss_kib);
                boards.ranks_private_kib += mapping.private_kib;
            }
        }
        for (pid, _) in &processes.agents {
            match smaps::mappings(*pid, BOARD) {
                Some(mapped) => mapped.into_iter().for_each(|mapping| boards.add(mapping)),
                None => boards.unreadable += 1,
            }
        }
        boards
    }

    fn add(&mut self, mapping: Mapping) {
        let most_kib = self.files.entry(mapping.inode).or_default();
        *most_kib = mapping.rss_kib.max(*most_kib);
    }

    fn all_mb(&self) -> f64 {
        megabytes(self.files.values().sum())
    }
}

/// The name of the memory that an agent shares with its ranks.
const BOARD: &str = "/memfd:scela-board";
const SIZES: [u32; 1] = [4096];
