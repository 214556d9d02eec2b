//! Fences in a loop, with and without a flood of output.
//!
//! In the flood, second threads of the upper half of the ranks write to stdout while their first
//! threads continue with fences. So every rank keeps arriving, and the measurement is of the launcher,
//! not of a rank that is blocked in write(2). Two times are measured for the lower half of the ranks:
//! from a rank's own arrival until it is released, and from the last rank's arrival until it is
//! released, which excludes the time that ranks wait for each other. The table also shows the
//! throughput of the output: a launcher could have fast fences by not reading.

use super::measure::{measure, number, participants, ratio};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::Launcher;
use crate::overview;
use crate::page::Reading;
use crate::rounds::{Series, Spread};
use crate::run::{self, Finished, Job, Program, Void};
use crate::suite::Section;
use crate::table::Table;

/// A run without flood and a run with it, of the same round.
struct Pair {
    quiet: Timed,
    flood: Timed,
}

/// A run with latencies in milliseconds.
struct Timed {
    run: Finished,
    felt: Spread,
    after_last: Spread,
}

/// One rank's passage through one fence, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passage {
    /// Just before the rank arrives.
    entered_ns: u64,
    /// Just after it is released.
    left_ns: u64,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, Launcher::serves_pmi);
    for np in bench.sizes(&SIZES) {
        let pair = |bench: &Bench, launcher: &Launcher| pair(bench, launcher, np);
        let all = measure(bench, section, np, &launchers, pair, Pair::values)?;

        let mut notes = Notes::default();
        let mut table = Table::default();
        table.group("", &["ms"]);
        table.group("quiet", &["p50", "p99"]);
        table.group("flood", &["p50", "p99", "MB/s"]);
        table.group("flood / quiet", &["p50", "p99"]);
        for (launcher, series) in launchers.iter().zip(&all) {
            table.row(row(format!("{launcher}, own arrival"), series, |timed| &timed.felt));
            table.row(row(format!("{launcher}, last arrival"), series, |timed| &timed.after_last));
            notes.take(launcher, np, series, |pair| &pair.flood.run);
        }
        let cells = launchers.iter().zip(&all).map(|(launcher, series)| {
            let (quiet, flood) = (|pair: &Pair| pair.quiet.felt.p99, |pair: &Pair| pair.flood.felt.p99);
            let to_quiet = series.median(|pair| flood(pair) / quiet(pair));
            (launcher, overview::cell(series, number(series.median(flood)), to_quiet.map(overview::times)))
        });
        bench.overview.row(format!("99th percentile of a fence during a flood of output, np {np}, ms"), cells);
        let fences = bench.options.fences;
        let title = format!(
            "fence at np {np}: {fences} fences, quiet and while {} ranks flood stdout\nms from a rank's own arrival, or \
                     the last rank's, to the release",
            np - np / 2
        );
        bench.report.section(&title, &table, notes.lines())?;
    }
    Ok(())
}

fn row(title: String, series: &Series<Pair>, which: impl Fn(&Timed) -> &Spread) -> Vec<String> {
    let p50 = |timed: &Timed| which(timed).p50;
    let p99 = |timed: &Timed| which(timed).p99;
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

/// Computes the latencies of the lower half of the ranks, from their own arrival and from the last.
fn latencies(reading: &Reading, fences: usize) -> (Spread, Spread) {
    let passage = |pair: &[u64]| Passage { entered_ns: pair[0], left_ns: pair[1] };
    let passages: Vec<Passage> = reading.samples.chunks_exact(2).map(passage).collect();
    let ranks: Vec<&[Passage]> = passages.chunks_exact(fences.max(1)).collect();
    let last_arrival = |fence: usize| ranks.iter().map(|passages| passages[fence].entered_ns).max().unwrap_or(0);
    let last_arrivals: Vec<u64> = (0..fences).map(last_arrival).collect();
    let measured = || ranks.iter().take(ranks.len().div_ceil(2)).flat_map(|passages| passages.iter().enumerate());
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    let felt = measured().map(|(_, passage)| passage.left_ns.saturating_sub(passage.entered_ns));
    let after = measured().map(|(fence, passage)| passage.left_ns.saturating_sub(last_arrivals[fence]));
    (Spread::of(felt.map(milliseconds)), Spread::of(after.map(milliseconds)))
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
            ("quiet_felt_p50_ms", self.quiet.felt.p50),
            ("quiet_felt_p99_ms", self.quiet.felt.p99),
            ("quiet_after_last_p50_ms", self.quiet.after_last.p50),
            ("quiet_after_last_p99_ms", self.quiet.after_last.p99),
            ("flood_felt_p50_ms", self.flood.felt.p50),
            ("flood_felt_p99_ms", self.flood.felt.p99),
            ("flood_after_last_p50_ms", self.flood.after_last.p50),
            ("flood_after_last_p99_ms", self.flood.after_last.p99),
            ("flood_mb_per_s", self.flood.megabytes_per_second()),
        ]
    }
}

const SIZES: [u32; 1] = [64];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_arrival_may_be_in_the_upper_half() {
        let samples = [0, 10, 20, 26, 7, 11, 21, 27].map(|ms: u64| ms * 1_000_000).to_vec();
        let reading = Reading { samples, ..Reading::default() };
        let (felt, after_last) = latencies(&reading, 2);
        assert_eq!((felt.p50, felt.p99), (6.0, 10.0));
        assert_eq!((after_last.p50, after_last.p99), (3.0, 5.0));
    }
}
