//! The time to start and end a job, compared with the kernel's floor.

use super::measure::{measure, number, participants, ratio};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::overview;
use crate::run::{self, Finished, Job, Program};
use crate::suite::Section;
use crate::table::Table;

pub(super) fn run(bench: &mut Bench, section: Section, program: Program) -> Result<(), BenchError> {
    let needs_pmi = program != Program::Empty;
    let launchers = participants(bench, |launcher| launcher.kind == Kind::Floor || launcher.serves_pmi() || !needs_pmi);
    let mut table = Table::default();
    table.group("", &["np"]);
    for launcher in &launchers {
        let heads: &[&str] = if launcher.kind == Kind::Floor { &["s"] } else { &["s", "x floor"] };
        table.group(launcher.to_string(), heads);
    }

    let mut notes = Notes::default();
    for np in bench.sizes(if needs_pmi { &[64, 1024] } else { &[1, 4, 64, 1024, 4096] }) {
        let job = Job { np, program };
        let run = |bench: &Bench, launcher: &Launcher| run::run(bench, launcher, job);
        let all = measure(bench, section, np, &launchers, run, |run| vec![("wall_s", seconds(run))])?;
        let mut row = vec![np.to_string()];
        for (launcher, series) in launchers.iter().zip(&all) {
            row.push(cell(series, number(series.median(seconds))));
            if launcher.kind != Kind::Floor {
                row.push(ratio(series.median_ratio(&all[0], seconds)));
            }
            notes.take(launcher, np, series, |run| run);
        }
        table.row(row);
        let cells = launchers.iter().zip(&all).filter(|(launcher, _)| launcher.kind != Kind::Floor || !needs_pmi);
        let cells = cells.map(|(launcher, series)| {
            let to_floor = series.median_ratio(&all[0], seconds).filter(|_| launcher.kind != Kind::Floor);
            (launcher, overview::cell(series, number(series.median(seconds)), to_floor.map(overview::times)))
        });
        bench.overview.row(format!("{}, np {np}", row_title(program)), cells);
    }
    bench.report.section(title(program), &table, notes.lines())?;
    Ok(())
}

fn title(program: Program) -> &'static str {
    match program {
        Program::Empty => "empty program: seconds from start to end, and ratio to the floor",
        _ => {
            "PMI hello (init, put, fence, get 2, fence, finalize): seconds from start to end, and ratio to the floor of \
                         the empty program"
        }
    }
}

fn row_title(program: Program) -> &'static str {
    if program == Program::Empty { "empty program" } else { "PMI hello" }
}

fn seconds(run: &Finished) -> f64 {
    run.wall.as_secs_f64()
}
