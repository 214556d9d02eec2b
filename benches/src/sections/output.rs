//! Output of ranks to a pipe that is read at once: raw bytes, and short lines.
//!
//! The floor is ranks that have the pipe themselves. The processor time is that of the launcher, its agents and the ranks. Daemons of a
//! launcher are no descendants of the bench, so that there is none for launchers that have them.

use super::measure::{measure, number, participants, ratio};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::overview;
use crate::run::{self, Finished, Job, Program};
use crate::suite::Section;
use crate::table::Table;

/// The jobs, with their names.
const JOBS: [(&str, Job); 3] = [
    ("1 rank writes 400 MB", Job { np: 1, program: Program::Bytes(400_000_000) }),
    ("8 ranks write 100 MB each", Job { np: 8, program: Program::Bytes(100_000_000) }),
    ("64 ranks write 100,000 lines each", Job { np: 64, program: Program::Lines(100_000) }),
];

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, |launcher| launcher.kind == Kind::Floor || launcher.serves_pmi());
    for (name, job) in JOBS {
        let run = |bench: &Bench, launcher: &Launcher| run::run(bench, launcher, job);
        let all = measure(bench, section, job.np, &launchers, run, values)?;
        let mut notes = Notes::default();
        let mut table = Table::default();
        table.group("", &["launcher", "s", "x floor"]);
        table.group("processor", &["s", "x floor"]);
        for (launcher, series) in launchers.iter().zip(&all) {
            let has_processor = launcher.kind == Kind::Floor || launcher.owns_agents();
            let processor = |value: Option<f64>| value.filter(|_| has_processor);
            table.row(vec![
                launcher.to_string(),
                cell(series, number(series.median(seconds))),
                ratio(series.median_ratio(&all[0], seconds)),
                number(processor(series.median(processor_seconds))),
                ratio(processor(series.median_ratio(&all[0], processor_seconds))),
            ]);
            notes.take(launcher, job.np, series, |run| run);
        }
        let cells = launchers.iter().zip(&all).map(|(launcher, series)| {
            let to_floor = series.median_ratio(&all[0], seconds).filter(|_| launcher.kind != Kind::Floor);
            (launcher, overview::cell(series, number(series.median(seconds)), to_floor.map(overview::times)))
        });
        bench.overview.row(format!("{name} to a pipe"), cells);
        bench.report.section(&format!("{name} to a pipe"), &table, notes.lines())?;
    }
    Ok(())
}

fn values(run: &Finished) -> Vec<(&'static str, f64)> {
    vec![("wall_s", seconds(run)), ("processor_s", processor_seconds(run))]
}

fn seconds(run: &Finished) -> f64 {
    run.wall.as_secs_f64()
}

fn processor_seconds(run: &Finished) -> f64 {
    run.processor.as_secs_f64()
}
