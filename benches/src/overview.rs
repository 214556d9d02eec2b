//! The table of README.md: a row for each measurement, a column for each launcher.
//!
//! The bench writes only between its two markers in README.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::Launcher;
use crate::options::Options;
use crate::results::{document, replace};
use crate::rounds::Series;
use crate::run::Void;
use crate::suite::{REPEATED_UP_TO, Suite};

/// The rows so far.
#[derive(Debug, Default)]
pub struct Overview {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    title: String,
    /// The cells by the names of their launchers.
    cells: BTreeMap<String, String>,
}

impl Overview {
    /// Adds a row. Launchers without a cell take no part in the measurement.
    pub fn row<'a>(&mut self, title: String, cells: impl IntoIterator<Item = (&'a Launcher, String)>) {
        let cells = cells.into_iter().map(|(launcher, cell)| (launcher.to_string(), cell)).collect();
        self.rows.push(Row { title, cells });
    }

    /// Writes the table if `--write` is given and the suite has one.
    ///
    /// # Errors
    /// If the page cannot be written or has no markers.
    pub fn write(bench: &Bench) -> Result<(), BenchError> {
        let options = &bench.options;
        match &options.write {
            Some(page) if options.suite.has_overview() => {
                let conditions = conditions(&bench.machine.to_string(), options, &bench.launchers);
                let block = format!("{conditions}\n{}", bench.overview.markdown(&bench.launchers));
                let blank = || Suite::OF_README.map(|suite| document::blank_overview(suite.name())).concat();
                replace(page, blank, options.suite.name(), &block)
            }
            _ => Ok(()),
        }
    }

    /// Formats the table in Markdown. Only launchers that have a cell get a column.
    fn markdown(&self, launchers: &[Launcher]) -> String {
        let names = launchers.iter().map(ToString::to_string);
        let names: Vec<_> = names.filter(|name| self.rows.iter().any(|row| row.cells.contains_key(name))).collect();
        let mut text = format!("| | {} |\n|---{}|\n", names.join(" | "), "|---".repeat(names.len()));
        for row in &self.rows {
            let cells = names.iter().map(|name| row.cells.get(name).map_or("", String::as_str));
            let _ = write!(text, "|");
            for cell in [row.title.as_str()].into_iter().chain(cells) {
                let _ = if cell.is_empty() { write!(text, " |") } else { write!(text, " {cell} |") };
            }
            text.push('\n');
        }
        text
    }
}

/// Formats a ratio.
#[must_use]
pub fn times(ratio: f64) -> String {
    let digits = if ratio < 9.995 { 2 } else { 0 };
    format!("{ratio:.digits$}")
}

/// Returns the contents of a cell: the value, a remark about it, and how many runs it stands for, or why there is none.
#[must_use]
pub fn cell<T>(series: &Series<T>, value: String, remark: Option<String>) -> String {
    let counted = series.counted().count();
    match series.voids() {
        _ if series.was_left_out() => String::new(),
        Some((_, Void::Hung(deadline))) => format!("more than {}", deadline.as_secs()),
        _ if counted == 0 => "failed".to_owned(),
        _ => {
            let runs = match counted {
                all if all == series.len() => None,
                1 => Some("one run".to_owned()),
                some => Some(format!("{some} runs")),
            };
            let remarks: Vec<String> = remark.into_iter().chain(runs).collect();
            if remarks.is_empty() { value } else { format!("{value} ({})", remarks.join("; ")) }
        }
    }
}

/// Describes how the table was made.
fn conditions(machine: &str, options: &Options, launchers: &[Launcher]) -> String {
    let mut text = format!("{machine}.\nSeconds, unless the row says otherwise; medians of {} rounds.\n", options.runs);
    if options.suite == Suite::Launch {
        text += "In brackets: the ratio to the floor; for a fence, to one without the flood.\n";
    }
    let limit = REPEATED_UP_TO.as_secs();
    let _ = writeln!(text, "A launcher that took more than {limit} s was not run again, as its cell says.");
    for launcher in launchers.iter().filter(|launcher| !launcher.service.description.is_empty()) {
        let _ = writeln!(text, "{launcher} ran {}.", launcher.service.description);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::launcher::Client;
    use crate::rounds::rounds;

    fn series(results: &[Result<f64, u64>]) -> Series<f64> {
        let result = |round: u32| results[round as usize].map_err(|s| Void::Slow(Duration::from_secs(s)));
        rounds(&[()], results.len() as u32, |round, ()| result(round)).remove(0)
    }

    #[test]
    fn a_cell_says_how_many_runs_it_stands_for_unless_all_count() {
        let of = |results: &[Result<f64, u64>]| {
            let series = series(results);
            let value = format!("{:?}", series.median(|value| *value));
            cell(&series, value, Some(times(2.0)))
        };
        assert_eq!(of(&[Ok(1.0), Ok(2.0), Ok(3.0)]), "Some(2.0) (2.00)");
        assert_eq!(of(&[Ok(25.0), Err(20), Err(20)]), "Some(25.0) (2.00; one run)");
        assert_eq!(of(&[Err(20), Err(20)]), "failed");
    }

    #[test]
    fn a_run_that_was_killed_has_a_lower_bound() {
        let hung = rounds(&[()], 2, |_, ()| Err::<f64, _>(Void::Hung(Duration::from_secs(60)))).remove(0);
        assert_eq!(cell(&hung, "-".to_owned(), None), "more than 60");
    }

    #[test]
    fn launchers_that_take_no_part_have_empty_cells_or_no_column() {
        let floor = Launcher::floor(PathBuf::new());
        let scela = Launcher::scela(PathBuf::new(), Client::Wire, None);
        let absent = Launcher::scela(PathBuf::new(), Client::Library(PathBuf::new()), None);
        let mut overview = Overview::default();
        overview.row("empty".to_owned(), [(&floor, "1".to_owned()), (&scela, "2".to_owned())]);
        overview.row("hello".to_owned(), [(&scela, "3".to_owned())]);
        let text = "| | floor | scela-run |\n|---|---|---|\n| empty | 1 | 2 |\n| hello | | 3 |\n";
        assert_eq!(overview.markdown(&[floor, scela, absent]), text);
    }
}
