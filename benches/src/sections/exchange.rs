//! Exchanging entries, timed inside the ranks: from when all are ready to the last rank's last get.

use super::notes::{Notes, cell};
use super::{Section, measure, number, participants, ratio};
use crate::bench::{Bench, BenchError};
use crate::launcher::{Kind, Launcher};
use crate::run::{self, Finished, Job, Program};
use crate::table::Table;

pub(super) fn run(bench: &mut Bench, section: Section, program: Program) -> Result<(), BenchError> {
    let launchers = participants(bench, Launcher::serves_pmi);
    let reference = launchers.iter().position(|launcher| launcher.kind == Kind::Hydra);
    let times = reference.map(|index| format!("x {}", launchers[index])).unwrap_or_default();
    let mut table = Table::default();
    table.group("", &["np"]);
    for (index, launcher) in launchers.iter().enumerate() {
        match reference {
            Some(reference) if reference != index => table.group(launcher.to_string(), &["s", &times, "wall s"]),
            _ => table.group(launcher.to_string(), &["s", "wall s"]),
        }
    }

    let mut notes = Notes::default();
    for np in bench.sizes(&SIZES) {
        let job = Job { np, program };
        let run = |bench: &Bench, launcher: &Launcher| run::run(bench, launcher, job);
        let values = |run: &Finished| vec![("inside_s", inside(run)), ("wall_s", wall(run))];
        let all = measure(bench, section, np, &launchers, run, values)?;
        let mut row = vec![np.to_string()];
        for (index, (launcher, series)) in launchers.iter().zip(&all).enumerate() {
            row.push(cell(series, number(series.median(inside))));
            if let Some(reference) = reference.filter(|reference| *reference != index) {
                row.push(ratio(series.median_ratio(&all[reference], inside)));
            }
            row.push(number(series.median(wall)));
            notes.take(launcher, np, series, |run| run);
        }
        table.row(row);
    }
    let title = match section {
        Section::OneToAll => "PMI wire 1:p exchange: each rank puts one entry and gets all p, in an order of its own",
        _ => "PMI wire 1:2 exchange: each rank puts one entry and gets its two neighbours'",
    };
    let clock = "seconds inside the ranks, from all ready to the last get; beside it the whole run";
    bench.report.section(&format!("{title}\n{clock}"), &table, notes.lines())?;
    Ok(())
}

fn inside(run: &Finished) -> f64 {
    run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64())
}

fn wall(run: &Finished) -> f64 {
    run.wall.as_secs_f64()
}

const SIZES: [u32; 4] = [64, 128, 256, 512];
