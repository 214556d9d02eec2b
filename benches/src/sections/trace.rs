//! The trace of a start, and a picture of it.

use std::ffi::OsString;
use std::fs;

use super::measure::number;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Client, Kind};
use crate::results::Findings;
use crate::results::timeline::Timeline;
use crate::run::{self, Job, Program};
use crate::suite::Section;
use crate::table::Table;

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let is_wire =
        |launcher: &&crate::launcher::Launcher| launcher.kind == Kind::Scela && launcher.client == Client::Wire;
    let own = bench.launchers.iter().find(is_wire).cloned();
    let own = own.ok_or_else(|| BenchError::new("scela-run is needed"))?;
    let np = bench.sizes(&SIZES).last().copied().unwrap_or(SIZES[0]);
    let file = bench.scratch.programs().join("trace.json");
    let mut option = OsString::from("--trace=");
    option.push(&file);
    let finished = run::run(bench, &own.with_options([option]), Job { np, program: Program::Hello });
    let finished = finished.map_err(BenchError::because("a run with --trace"))?;
    let text = fs::read_to_string(&file).map_err(BenchError::because("a run has no trace"))?;
    let timeline = Timeline::parse(&text).map_err(BenchError::new)?;
    let mut table = Table::default();
    table.group("", &["np", "s", "kB"]);
    let kilobytes = text.len() as f64 / 1000.0;
    table.row(vec![np.to_string(), number(Some(finished.wall.as_secs_f64())), number(Some(kilobytes))]);
    let mut findings = Findings::new(section);
    findings.table(
        bench,
        "a PMI hello over the wire with --trace: the time of the run and the size of its trace",
        &table,
        &[],
    )?;
    let title = format!("scela-run -np {np}: PMI hello over the wire");
    let svg = timeline.draw(&title).map_err(BenchError::because("cannot draw the trace"))?;
    findings.drawing("timeline", title, svg);
    findings.write(bench)
}

const SIZES: [u32; 1] = [16_384];
