//! Exchanges of entries. The ranks measure the time from when all are ready to the last get of the last
//! rank.

use super::measure::{measure, number, participants, ratio};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::overview;
use crate::run::{self, Finished, Job, Program, Void};
use crate::suite::{Section, Suite};
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

    let suite = bench.options.suite;
    let bytes = suite.value_bytes();
    let mut notes = Notes::default();
    for launcher in &launchers {
        let own = bench.value_bytes(launcher);
        if own != bytes {
            notes.add(format!("{launcher}: values of at most {} bytes, the largest it accepts", own.end()));
        }
    }
    let is_typed = bench.options.np.is_some();
    for np in bench.sizes(sizes(suite)) {
        let job = Job { np, program };
        let run = |bench: &Bench, launcher: &Launcher| match cap(section, launcher) {
            Some(cap) if np > cap && !is_typed => Err(Void::NotTyped(cap)),
            _ => run::run(bench, launcher, job),
        };
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
        let cells = launchers.iter().zip(&all);
        let cells =
            cells.map(|(launcher, series)| (launcher, overview::cell(series, number(series.median(inside)), None)));
        bench.overview.row(format!("{}, np {np}", row_title(section)), cells);
    }
    let gets = match section {
        Section::OneToAll => "gets those of all p ranks in a random order",
        _ => "gets the entries of its two neighbours",
    };
    let bytes = match (bytes.start(), bytes.end()) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    };
    let title = format!("PMI {section} exchange: each rank puts one entry of {bytes} bytes and {gets}");
    let clock = "s: seconds from the time when all ranks are ready to the last get; wall s: seconds of the whole run";
    bench.report.section(&format!("{title}\n{clock}"), &table, notes.lines())?;
    Ok(())
}

fn row_title(section: Section) -> &'static str {
    if section == Section::OneToAll { "each rank gets all entries" } else { "each rank gets 2 entries" }
}

fn inside(run: &Finished) -> f64 {
    run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64())
}

fn wall(run: &Finished) -> f64 {
    run.wall.as_secs_f64()
}

/// Returns the default numbers of ranks.
pub(super) fn sizes(suite: Suite) -> &'static [u32] {
    match suite {
        Suite::Launch => &[512],
        Suite::Caches => &[64, 128, 256, 512],
        Suite::Pmi | Suite::Scale => &[256, 1024],
    }
}

/// Returns the largest number of ranks that a launcher runs by default. All p² gets of 4,096 ranks take
/// minutes if each is a request and a reply over a socket.
fn cap(section: Section, launcher: &Launcher) -> Option<u32> {
    (section == Section::OneToAll && launcher.kind != Kind::Scela).then_some(1024)
}
