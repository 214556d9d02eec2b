//! The memory that libpmi.so adds to a rank, and how many copies of the board there are.
//!
//! Each rank looks at its own private memory before its client is there and after it has got every entry. The wire's
//! client is the control: its few buffers are there before the first look, so it should add nothing. Then the bench
//! looks at the boards: a rank should have one, of which nothing is its own, and each agent has one that its ranks
//! share.

use std::collections::BTreeMap;

use super::agents::{Household, megabytes};
use super::notes::{Notes, cell};
use super::{Section, measure, number, participants};
use crate::bench::{Bench, BenchError};
use crate::launcher::{Client, Kind, Launcher};
use crate::rounds::median;
use crate::run::{Finished, Job, Program, Running, Void};
use crate::smaps::{self, Mapping};
use crate::table::Table;

/// What was seen of one run.
struct Seen {
    run: Finished,
    /// By rank.
    added_kib: Vec<f64>,
    agents_mb: f64,
    agent_names: String,
    boards: Boards,
}

/// The boards as mapped.
#[derive(Debug, Default)]
struct Boards {
    /// How much of each file is in memory: the most that any process has of it. Not the sum of proportional shares,
    /// because the kernel rounds each of them down.
    files: BTreeMap<u64, u64>,
    /// How much of one a rank has in its memory, at most.
    rank_rss_kib: u64,
    /// How much of that is its own, over all ranks.
    ranks_private_kib: u64,
    /// How many ranks have none, or more than one.
    odd_ranks: usize,
    /// How many processes could not be looked at.
    unseen: usize,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, |launcher| launcher.kind == Kind::Scela);
    let mut table = Table::default();
    table.group("", &["np", "by"]);
    table.group("added to a rank, KiB", &["median", "max"]);
    table.group("boards", &["files", "MB in all"]);
    table.group("a rank's board, KiB", &["mapped", "private"]);
    table.group("agents", &["MB"]);

    let mut notes = Notes::default();
    for np in bench.sizes(&SIZES) {
        let seen = |bench: &Bench, launcher: &Launcher| seen(bench, launcher, np);
        let all = measure(bench, section, np, &launchers, seen, Seen::values)?;
        for (launcher, series) in launchers.iter().zip(&all) {
            let median = |value: fn(&Seen) -> f64| number(series.median(value));
            table.row(vec![
                np.to_string(),
                launcher.to_string(),
                cell(series, median(Seen::added_median_kib)),
                median(Seen::added_max_kib),
                median(|seen| seen.boards.files.len() as f64),
                median(|seen| seen.boards.all_mb()),
                median(|seen| seen.boards.rank_rss_kib as f64),
                median(|seen| seen.boards.ranks_private_kib as f64),
                median(|seen| seen.agents_mb),
            ]);
            notes.take(launcher, np, series, |seen| &seen.run);
            for seen in series.counted() {
                notes.add(format!("{launcher}, np {np}: agents are {}", seen.agent_names));
                if matches!(launcher.client, Client::Library(_)) && seen.boards.odd_ranks > 0 {
                    let odd = seen.boards.odd_ranks;
                    notes.add(format!("{launcher}, np {np}: {odd} ranks have mapped no board, or more than one"));
                }
                if seen.boards.unseen > 0 {
                    let unseen = seen.boards.unseen;
                    notes.add(format!("{launcher}, np {np}: {unseen} processes could not be looked at"));
                }
            }
        }
    }
    let title = "memory that PMI adds to a rank: private, from before its client is there to after it has got all p \
                 entries\nboards: mappings of the agents' memory; what is in memory of each file, counted once";
    bench.report.section(title, &table, notes.lines())?;
    Ok(())
}

/// Starts ranks that wait, looks, and lets them go.
fn seen(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Seen, Void> {
    let mut running = Running::start(bench, launcher, Job { np, program: Program::Memory })?;
    running.wait_for_marks()?;
    let household = Household::of(running.launcher_pid(), bench.pmi_program(launcher));
    let boards = Boards::of(&household);
    let (agents_mb, agent_names) = (household.agents_mb(), household.agent_names());
    running.page().release_ranks()?;
    let run = running.finish()?;
    let added_kib = run.reading.samples.chunks_exact(2).map(|pair| pair[1] as f64 - pair[0] as f64).collect();
    Ok(Seen { run, added_kib, agents_mb, agent_names, boards })
}

impl Seen {
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
    fn of(household: &Household) -> Self {
        let mut boards = Self::default();
        for pid in &household.ranks {
            let Some(mapped) = smaps::mappings(*pid, BOARD) else {
                boards.unseen += 1;
                continue;
            };
            boards.odd_ranks += usize::from(mapped.len() != 1);
            for mapping in mapped {
                boards.see(mapping);
                boards.rank_rss_kib = boards.rank_rss_kib.max(mapping.rss_kib);
                boards.ranks_private_kib += mapping.private_kib;
            }
        }
        for (pid, _) in &household.agents {
            match smaps::mappings(*pid, BOARD) {
                Some(mapped) => mapped.into_iter().for_each(|mapping| boards.see(mapping)),
                None => boards.unseen += 1,
            }
        }
        boards
    }

    fn see(&mut self, mapping: Mapping) {
        let most_kib = self.files.entry(mapping.inode).or_default();
        *most_kib = mapping.rss_kib.max(*most_kib);
    }

    fn all_mb(&self) -> f64 {
        megabytes(self.files.values().sum())
    }
}

/// What an agent calls the memory that it shares with its ranks.
const BOARD: &str = "/memfd:scela-board";
const SIZES: [u32; 1] = [4096];
