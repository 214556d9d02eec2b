//! scela-run's statistics of each level of the tree.

use super::{Counted, entries};
use crate::launcher::{Client, Launcher};
use crate::results::csv::Csv;
use crate::rounds::Series;
use crate::sections::measure::number;
use crate::sections::notes::Notes;
use crate::stats::Level;
use crate::table::Table;

/// The statistics of all jobs: medians over rounds.
#[derive(Debug)]
pub(super) struct Levels {
    numbers: Csv,
}

impl Default for Levels {
    fn default() -> Self {
        let quantities = QUANTITIES.map(|(name, _)| name).join(",");
        Self { numbers: Csv::new(&format!("{JOB_HEADS},{quantities}")) }
    }
}

impl Levels {
    /// Adds a row for each level.
    pub(super) fn add(&mut self, launcher: &Launcher, np: u32, series: &Series<Counted>) {
        let fanout = launcher.caching.as_ref().map_or(0, |caching| caching.fanout);
        let (label, entries) = (launcher.label(), entries(launcher, np));
        for (at, level) in levels(series).iter().enumerate() {
            let medians = QUANTITIES.map(|(_, of)| median(series, at, of).unwrap_or(f64::NAN));
            let mut row: Vec<&dyn std::fmt::Display> =
                vec![&fanout, &np, &label, &entries, &level.level, &level.places];
            row.extend(medians.iter().map(|median| median as &dyn std::fmt::Display));
            self.numbers.row(&row);
        }
    }

    pub(super) fn numbers(self) -> Csv {
        self.numbers
    }
}

/// Returns the table of the levels of one job under each policy.
pub(super) fn table(launchers: &[Launcher], all: &[Series<Counted>]) -> Table {
    let mut table = Table::default();
    table.group("", &["", "level", "agents"]);
    table.group("up", &["messages", "kB"]);
    table.group("down", &["messages", "kB"]);
    table.group("gets", &["own", "others'", "sent", "waited"]);
    table.group("values", &["evicted"]);
    for (launcher, series) in launchers.iter().zip(all) {
        for (at, level) in levels(series).iter().enumerate() {
            let count = |of| median(series, at, of).map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"));
            let kilobytes = |of| number(median(series, at, of).map(|bytes| bytes / 1e3));
            table.row(vec![
                if at == 0 { launcher.label() } else { String::new() },
                level.level.to_string(),
                level.places.to_string(),
                count(|level| level.up.board.messages),
                kilobytes(|level| level.up.board.bytes),
                count(|level| level.down.board.messages),
                kilobytes(|level| level.down.board.bytes),
                count(|level| level.gets.board + level.gets.own),
                count(|level| level.gets.others),
                count(|level| level.gets.asked),
                count(|level| level.gets.joined),
                count(|level| level.held.sum.evictions),
            ]);
        }
    }
    table
}

/// Returns notes about single policies: the bound of a cache, and ranks without a segment.
pub(super) fn notes(launchers: &[Launcher], all: &[Series<Counted>]) -> Notes {
    let mut notes = Notes::default();
    for (launcher, series) in launchers.iter().zip(all) {
        let label = launcher.label();
        for Counted { stats, run } in series.counted() {
            if let Some(entries) = stats.cache_entries {
                notes.add(format!("{label}: a cache stores at most {entries} values of other agents' ranks"));
            }
            let (ranks, readers) = (run.reading.marks.len(), stats.ranks_with_segment);
            if matches!(launcher.client, Client::Library(_)) && readers as usize != ranks {
                notes.add(format!("{label}: only {readers} of {ranks} ranks read their agent's memory"));
            }
        }
    }
    notes
}

/// Returns the levels of the tree, which are the same in every run.
fn levels(series: &Series<Counted>) -> &[Level] {
    series.counted().next().map_or(&[], |counted| &counted.stats.levels)
}

fn median(series: &Series<Counted>, level: usize, of: Quantity) -> Option<f64> {
    series.median(|counted| counted.stats.levels.get(level).map_or(f64::NAN, |level| of(level) as f64))
}

const JOB_HEADS: &str = "fanout,np,policy,cache_entries,level,places";

type Quantity = fn(&Level) -> u64;

/// The quantities of the file of numbers, after [`JOB_HEADS`].
const QUANTITIES: [(&str, Quantity); 19] = [
    ("up_board_messages", |level| level.up.board.messages),
    ("up_board_bytes", |level| level.up.board.bytes),
    ("up_control_messages", |level| level.up.control.messages),
    ("up_control_bytes", |level| level.up.control.bytes),
    ("down_board_messages", |level| level.down.board.messages),
    ("down_board_bytes", |level| level.down.board.bytes),
    ("down_control_messages", |level| level.down.control.messages),
    ("down_control_bytes", |level| level.down.control.bytes),
    ("link_bytes", |level| level.link_bytes),
    ("gets_board", |level| level.gets.board),
    ("gets_own", |level| level.gets.own),
    ("gets_others", |level| level.gets.others),
    ("gets_asked", |level| level.gets.asked),
    ("gets_joined", |level| level.gets.joined),
    ("held_max_bytes", |level| level.held.max.bytes),
    ("held_max_own_bytes", |level| level.held.max.own_bytes),
    ("held_max_index_entries", |level| level.held.max.index_entries),
    ("held_sum_bytes", |level| level.held.sum.all_bytes()),
    ("evictions", |level| level.held.sum.evictions),
];
