//! The time of one get at rank 0 while all other ranks wait in a fence: over the wire and through
//! libpmi.so.
//!
//! The time of a single get includes reading the clock, whose cost is shown as well. In a batch that
//! cost is negligible, but the differences between gets are hidden. Before the measurement, every entry
//! is read once and checked.

use super::measure::{measure, number, participants};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::overview;
use crate::rounds::{Series, Spread};
use crate::run::{self, Finished, Job, Program};
use crate::suite::Section;
use crate::table::Table;

/// The measurements of one run, in nanoseconds per get.
struct Timed {
    run: Finished,
    clock: Spread,
    present: Gets,
    absent: Gets,
}

struct Gets {
    single: Spread,
    batched: Spread,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, |launcher| launcher.kind == Kind::Scela);
    for np in bench.sizes(&SIZES) {
        let job = Job { np, program: Program::Get };
        let timed = |bench: &Bench, launcher: &Launcher| Ok(Timed::of(run::run(bench, launcher, job)?));
        let all = measure(bench, section, np, &launchers, timed, Timed::values)?;

        let mut notes = Notes::default();
        let mut table = Table::default();
        table.group("", &["ns"]);
        table.group(format!("a batch of {BATCH_GETS}, per get"), &["p50", "p99"]);
        table.group("one get, with the clock", &["p50", "p99"]);
        table.group("the clock alone", &["p50", "p99"]);
        for (launcher, series) in launchers.iter().zip(&all) {
            table.row(row(format!("{launcher}, present keys"), series, |timed| &timed.present));
            table.row(row(format!("{launcher}, absent keys"), series, |timed| &timed.absent));
            notes.take(launcher, np, series, |timed| &timed.run);
        }
        let cells = launchers.iter().zip(&all);
        let cells = cells.map(|(launcher, series)| {
            (launcher, overview::cell(series, number(series.median(|timed| timed.present.batched.p50)), None))
        });
        let keys = job.keys();
        bench.overview.row(format!("one get of {} entries, ns", np * keys), cells);
        let title = format!(
            "get at np {np}: one rank gets random keys of {} (each rank put {keys}), while the others wait in a fence",
            np * keys
        );
        bench.report.section(&title, &table, notes.lines())?;
    }
    Ok(())
}

fn row(title: String, series: &Series<Timed>, which: impl Fn(&Timed) -> &Gets) -> Vec<String> {
    let median = |value: &dyn Fn(&Timed) -> f64| number(series.median(value));
    vec![
        title,
        cell(series, median(&|timed| which(timed).batched.p50)),
        median(&|timed| which(timed).batched.p99),
        median(&|timed| which(timed).single.p50),
        median(&|timed| which(timed).single.p99),
        median(&|timed| timed.clock.p50),
        median(&|timed| timed.clock.p99),
    ]
}

impl Timed {
    /// Reads the samples of `pmi.c`, which have five parts of the same length.
    fn of(run: Finished) -> Self {
        let samples = &run.reading.samples;
        let mut kinds = samples.chunks_exact((samples.len() / 5).max(1));
        let mut next = |gets: u32| {
            let samples_ns = kinds.next().unwrap_or_default();
            Spread::of(samples_ns.iter().map(|ns| *ns as f64 / f64::from(gets)))
        };
        let clock = next(1);
        let mut gets = || Gets { single: next(1), batched: next(BATCH_GETS) };
        let (present, absent) = (gets(), gets());
        Self { run, clock, present, absent }
    }

    fn values(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("clock_p50_ns", self.clock.p50),
            ("clock_p99_ns", self.clock.p99),
            ("present_batch_p50_ns", self.present.batched.p50),
            ("present_batch_p99_ns", self.present.batched.p99),
            ("present_single_p50_ns", self.present.single.p50),
            ("present_single_p99_ns", self.present.single.p99),
            ("absent_batch_p50_ns", self.absent.batched.p50),
            ("absent_batch_p99_ns", self.absent.batched.p99),
            ("absent_single_p50_ns", self.absent.single.p50),
            ("absent_single_p99_ns", self.absent.single.p99),
        ]
    }
}

/// As in `programs/pmi.c`.
const BATCH_GETS: u32 = 20;
const SIZES: [u32; 1] = [64];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Reading;

    #[test]
    fn the_samples_are_split_into_their_five_parts() {
        let samples = vec![20, 20, 300, 320, 4000, 6000, 70, 80, 1000, 1000];
        let reading = Reading { samples, ..Reading::default() };
        let timed = Timed::of(Finished { reading, ..Finished::default() });
        let found = timed.values().into_iter().map(|(_, value)| value);
        assert!(found.eq([20.0, 20.0, 200.0, 300.0, 300.0, 320.0, 50.0, 50.0, 70.0, 80.0]));
    }
}
