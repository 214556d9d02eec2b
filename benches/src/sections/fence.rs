//! Fences, one after another, in quiet and while half the ranks flood their stdout.
//!
//! The flood comes from second threads of the upper half's ranks, whose first threads go on fencing, so that every
//! rank keeps arriving and what is measured is the launcher, not a rank stuck in write(2). Two times are taken:
//! as the lower half's ranks feel a fence (from saying that they are there until they go on), and from the last
//! rank's arrival until each of them goes on, which leaves out that ranks wait for each other. How much output came
//! through is shown too: a launcher could have quick fences by not reading.

use super::notes::{Notes, cell};
use super::{Section, measure, number, participants, ratio};
use crate::bench::{Bench, BenchError};
use crate::launcher::Launcher;
use crate::page::Reading;
use crate::rounds::{Series, percentile};
use crate::run::{self, Finished, Job, Program, Void};
use crate::table::Table;

/// A quiet run and a flooded one, of the same round.
struct Pair {
    quiet: Timed,
    flood: Timed,
}

struct Timed {
    run: Finished,
    felt: Latency,
    after_last: Latency,
}

/// One rank's passage through one fence, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passage {
    /// Just before the rank said that it is there.
    entered_ns: u64,
    /// Just after it was released.
    left_ns: u64,
}

/// Milliseconds.
struct Latency {
    p50_ms: f64,
    p99_ms: f64,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, Launcher::serves_pmi);
    for np in bench.sizes(&SIZES) {
        let pair = |bench: &Bench, launcher: &Launcher| pair(bench, launcher, np);
        let all = measure(bench, section, np, &launchers, pair, Pair::values)?;

        let mut notes = Notes::default();
        let mut table = Table::default();
        table.group("", &["ms"]);
        table.group("in quiet", &["p50", "p99"]);
        table.group("in the flood", &["p50", "p99", "MB/s"]);
        table.group("flood / quiet", &["p50", "p99"]);
        for (launcher, series) in launchers.iter().zip(&all) {
            table.row(row(format!("{launcher}, as felt"), series, |timed| &timed.felt));
            table.row(row(format!("{launcher}, after the last arrival"), series, |timed| &timed.after_last));
            notes.take(launcher, np, series, |pair| &pair.flood.run);
        }
        let fences = bench.options.fences;
        let title = format!("fence at np {np}: {fences} fences, in quiet and while {} ranks flood stdout", np - np / 2);
        bench.report.section(&title, &table, notes.lines())?;
    }
    Ok(())
}

fn row(title: String, series: &Series<Pair>, which: impl Fn(&Timed) -> &Latency) -> Vec<String> {
    let p50 = |timed: &Timed| which(timed).p50_ms;
    let p99 = |timed: &Timed| which(timed).p99_ms;
    vec![
        title,
        cell(series, number(series.median(|pair| p50(&pair.quiet)))),
        number(series.median(|pair| p99(&pair.quiet))),
        number(series.median(|pair| p50(&pair.flood))),
        number(series.median(|pair| p99(&pair.flood))),
        number(series.median(|pair| pair.flood.megabytes_per_second())),
        ratio(series.median(|pair| p50(&pair.flood) / p50(&pair.quiet))),
        ratio(series.median(|pair| p99(&pair.flood) / p99(&pair.quiet))),
    ]
}

fn pair(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Pair, Void> {
    let timed = |program| {
        let run = run::run(bench, launcher, Job { np, program })?;
        let (felt, after_last) = latencies(&run.reading, bench.options.fences as usize);
        Ok::<_, Void>(Timed { run, felt, after_last })
    };
    Ok(Pair { quiet: timed(Program::Fence)?, flood: timed(Program::Flood)? })
}

/// How long the lower half's ranks took, as they felt it and after the last arrival.
fn latencies(reading: &Reading, fences: usize) -> (Latency, Latency) {
    let passage = |pair: &[u64]| Passage { entered_ns: pair[0], left_ns: pair[1] };
    let passages: Vec<Passage> = reading.samples.chunks_exact(2).map(passage).collect();
    let ranks: Vec<&[Passage]> = passages.chunks_exact(fences.max(1)).collect();
    let last_arrival = |fence: usize| ranks.iter().map(|passages| passages[fence].entered_ns).max().unwrap_or(0);
    let last_arrivals: Vec<u64> = (0..fences).map(last_arrival).collect();
    let measured = || ranks.iter().take(ranks.len().div_ceil(2)).flat_map(|passages| passages.iter().enumerate());
    let felt = measured().map(|(_, passage)| passage.left_ns.saturating_sub(passage.entered_ns));
    let after = measured().map(|(fence, passage)| passage.left_ns.saturating_sub(last_arrivals[fence]));
    (Latency::of(felt), Latency::of(after))
}

impl Latency {
    fn of(samples_ns: impl Iterator<Item = u64>) -> Self {
        let samples_ms: Vec<f64> = samples_ns.map(|ns| ns as f64 / 1e6).collect();
        let at = |percent| percentile(samples_ms.clone(), percent).unwrap_or(f64::NAN);
        Self { p50_ms: at(50), p99_ms: at(99) }
    }
}

impl Timed {
    fn megabytes_per_second(&self) -> f64 {
        let seconds = self.run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64());
        self.run.reading.bytes as f64 / 1e6 / seconds
    }
}

impl Pair {
    fn values(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("quiet_felt_p50_ms", self.quiet.felt.p50_ms),
            ("quiet_felt_p99_ms", self.quiet.felt.p99_ms),
            ("quiet_after_last_p50_ms", self.quiet.after_last.p50_ms),
            ("quiet_after_last_p99_ms", self.quiet.after_last.p99_ms),
            ("flood_felt_p50_ms", self.flood.felt.p50_ms),
            ("flood_felt_p99_ms", self.flood.felt.p99_ms),
            ("flood_after_last_p50_ms", self.flood.after_last.p50_ms),
            ("flood_after_last_p99_ms", self.flood.after_last.p99_ms),
            ("flood_mb_per_s", self.flood.megabytes_per_second()),
        ]
    }
}

const SIZES: [u32; 1] = [64];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_arrival_may_be_an_upper_rank_s() {
        let samples = [0, 10, 20, 26, 7, 11, 21, 27].map(|ms: u64| ms * 1_000_000).to_vec();
        let reading = Reading { inside: None, bytes: 0, marks: Vec::new(), samples };
        let (felt, after_last) = latencies(&reading, 2);
        assert_eq!((felt.p50_ms, felt.p99_ms), (6.0, 10.0));
        assert_eq!((after_last.p50_ms, after_last.p99_ms), (3.0, 5.0));
    }
}
