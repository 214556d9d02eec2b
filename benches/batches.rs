//! `cargo bench -p benches --bench batches`: the publication's batches of jobs on a torus whose hosts fail, by
//! `scela simulate-batch`, and the two models of messages beside each other. Needs SimGrid (Debian: libsimgrid-dev).
//!
//! The output has no times of this machine: it is the same on each one.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use benches::arguments::parse;
use benches::cargo::{SCELA, target_directory};
use benches::error::BenchError;
use benches::results::replace_table;
use clap::Arg;

/// The page with the tables, and their names there.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/placement.md");
const BATCHES: &str = "batches";
const MODELS: &str = "models";
/// The programs: that of the publication, and the time of its topology- and fault-aware batches; the pattern and ranks here.
const PROGRAMS: [(&str, &str, &str, &str); 4] = [
    ("NPB CG", "70", "cg", "64"),
    ("HPL", "90", "hpl", "64"),
    ("NPB DT", "69", "dt", "85"),
    ("LAMMPS", "81", "halo3d", "64"),
];
/// The hosts that may fail, and their probability.
const FAULTS: [(&str, &str); 4] = [("8", "0.02"), ("8", "0.05"), ("16", "0.02"), ("16", "0.05")];
/// Other networks on which the models are compared, with patterns.
const NETWORKS: [(&str, &str, &str); 3] =
    [("torus:8x8x8", "geometric", "64"), ("fat-tree:3:8", "cg", "64"), ("dragonfly:8:4:4", "cg", "64")];

fn main() -> ExitCode {
    let command = clap::Command::new("batches").arg(
        Arg::new("write")
            .long("write")
            .action(clap::ArgAction::SetTrue)
            .help("also write the tables of docs/placement.md, between their markers"),
    );
    let arguments = parse(command);
    match tables() {
        Ok(tables) if arguments.get_flag("write") => {
            let page = Path::new(PAGE);
            match [BATCHES, MODELS].iter().zip(&tables).try_for_each(|(place, text)| replace_table(page, place, text)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => fail(&why.to_string()),
            }
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("cannot simulate: {why}");
    ExitCode::FAILURE
}

/// Makes the tables of batches and of models.
fn tables() -> Result<[String; 2], String> {
    let text = |error: BenchError| error.to_string();
    let scela = SCELA.find(&target_directory().map_err(text)?).map_err(text)?;
    Ok([batches(&scela)?, models(&scela)?])
}

fn batches(scela: &Path) -> Result<String, String> {
    let mut text = String::from(
        "| program | hosts that may fail | probability | random | greedy | topology | topology and faults | publication |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (program, published, pattern, ranks) in PROGRAMS {
        for (faulty, probability) in FAULTS {
            let words = ["--pattern", pattern, "-n", ranks, "--faulty", faulty, "--probability", probability];
            let rows = simulated(scela, &[&words[..], &["--messages", "simgrid"]].concat())?;
            let [block, others @ ..] = &rows[..] else { return Err("there are no results".to_owned()) };
            let percent = probability.parse::<f64>().unwrap_or_default() * 100.0;
            let mut line = format!(
                "| {program} ({pattern}, {ranks} ranks; block aborted {:.1}) | {faulty} | {percent:.0} % |",
                block.aborted
            );
            others.iter().for_each(|row| {
                let _ = write!(line, " {:.1} ({:.1}) |", row.batch_s / block.batch_s * 100.0, row.aborted);
            });
            println!("{line} {published} |");
            let _ = writeln!(text, "{line} {published} |");
        }
    }
    Ok(text)
}

fn models(scela: &Path) -> Result<String, String> {
    let mut text = String::from(
        "| network | pattern | placement | by SimGrid, ms | by the model of links, ms | SimGrid / links |\n\
         |---|---|---|---:|---:|---:|\n",
    );
    let torus = PROGRAMS.iter().map(|(_, _, pattern, ranks)| ("torus:8x8x8", *pattern, *ranks));
    for (network, pattern, ranks) in torus.chain(NETWORKS) {
        // A batch of 1,000 jobs without computation and failures takes as many seconds as a job's messages take milliseconds.
        let words = ["--pattern", pattern, "-n", ranks, "--topology", network, "--compute", "0", "--probability", "0"];
        let words = [&words[..], &["--batches", "1", "--jobs", "1000", "--messages"]].concat();
        let by = |model| simulated(scela, &[&words[..], &[model]].concat());
        for (simgrid, links) in by("simgrid")?.iter().zip(by("links")?).take(4) {
            let (placement, ratio) = (&simgrid.placement, simgrid.batch_s / links.batch_s);
            let (simgrid, links) = (simgrid.batch_s, links.batch_s);
            let line =
                format!("| {network} | {pattern}, {ranks} | {placement} | {simgrid:.2} | {links:.2} | {ratio:.2} |");
            println!("{line}");
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// A line of results.
struct Row {
    placement: String,
    batch_s: f64,
    /// In per cent.
    aborted: f64,
}

/// Simulates batches.
fn simulated(scela: &Path, words: &[&str]) -> Result<Vec<Row>, String> {
    let mut command = Command::new(scela);
    let output = command.arg("simulate-batch").args(words).output().map_err(|error| error.to_string())?;
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() || !complaint.is_empty() {
        return Err(format!("{command:?}: {}\n{said}{complaint}", output.status));
    }
    // Three lines of heads.
    let rows: Option<Vec<Row>> = said.lines().skip(3).map(row).collect();
    rows.ok_or_else(|| format!("{command:?} printed other lines than expected:\n{said}"))
}

/// Parses `block    1.000 s   100.0 %   2.72 %`.
fn row(line: &str) -> Option<Row> {
    let (before, after) = line.split_once(" s ")?;
    let (placement, batch_s) = before.rsplit_once(' ')?;
    let aborted = after.split('%').nth(1)?;
    Some(Row {
        placement: placement.trim().to_owned(),
        batch_s: batch_s.parse().ok()?,
        aborted: aborted.trim().parse().ok()?,
    })
}
