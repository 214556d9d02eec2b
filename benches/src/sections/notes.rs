//! Notes about single launchers, below a table.

use crate::launcher::Launcher;
use crate::mark::Mark;
use crate::rounds::Series;
use crate::run::Finished;

/// The notes of a table, each once.
#[derive(Debug, Default)]
pub(super) struct Notes {
    lines: Vec<String>,
}

impl Notes {
    /// Adds notes about one launcher's results at one size; `finished` returns the run of a result.
    pub(super) fn take<'a, T: 'a>(
        &mut self,
        launcher: &Launcher,
        np: u32,
        series: &'a Series<T>,
        finished: impl Fn(&'a T) -> &'a Finished,
    ) {
        match series.voids() {
            Some((_, why)) if series.was_left_out() => self.add(format!("{launcher}, np {np}: not run: {why}")),
            Some((count, why)) => {
                self.add(format!("{launcher}, np {np}: {count} of {} runs not counted: {why}", series.len()));
            }
            None => {}
        }
        if let Some(why) = series.not_repeated() {
            let count = series.counted().count();
            self.add(format!("{launcher}, np {np}: {count} of {} runs: {why}", series.len()));
        }
        let runs = || series.counted().map(&finished);
        let faults = runs().fold(Mark::default(), |faults, run| faults.union(run.faults));
        if !faults.is_clean() {
            self.add(format!("{launcher}: {faults}"));
        }
        if runs().any(|run| run.left_behind > 0) {
            self.add(format!("{launcher}: processes outlived it and were killed"));
        }
    }

    /// Adds a note unless it exists.
    pub(super) fn add(&mut self, line: String) {
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}

/// Returns the contents of a cell: the value, or why there is none.
pub(super) fn cell<T>(series: &Series<T>, shown: String) -> String {
    match series.voids() {
        _ if series.was_left_out() => "-".to_owned(),
        _ if series.has_hung() => "hung".to_owned(),
        Some(_) if series.counted().next().is_none() => "failed".to_owned(),
        Some((count, _)) => format!("{shown} (-{count})"),
        None => shown,
    }
}
