//! `cargo bench -p benches --bench batches`: the publication's batches of jobs on a torus whose hosts fail, by
//! `scela simulate-batch`, and the two models of messages beside each other. Needs SimGrid (Debian: libsimgrid-dev).
//!
//! The output has no times of this machine: it is the same on each one. The pictures of docs/placement.md are drawn from its
//! tables.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use benches::arguments::parse;
use benches::cargo::{SCELA, target_directory};
use benches::error::BenchError;
use benches::results::bars::{Bars, number, table};
use benches::results::replace_table;
use clap::{Arg, ArgAction};

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
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let command = clap::Command::new("batches")
        .arg(flag("write").help("also write the tables of docs/placement.md, between their markers, and its pictures"))
        .arg(flag("pictures").help("simulate nothing; draw the pictures of docs/placement.md from its tables"));
    let arguments = parse(command);
    let done = match (arguments.get_flag("pictures"), arguments.get_flag("write")) {
        (true, _) => draw(),
        (false, true) => tables().and_then(|tables| write(&tables)).and_then(|()| draw()),
        (false, false) => tables().map(|_| ()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

fn write(tables: &[String; 2]) -> Result<(), String> {
    let write = |(place, text): (&&str, &String)| replace_table(Path::new(PAGE), place, text);
    [BATCHES, MODELS].iter().zip(tables).try_for_each(write).map_err(|error| error.to_string())
}

/// Draws the pictures of the page from its tables.
fn draw() -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    for (name, bars) in [("mappings", mappings(&page)), ("batches", programs(&page))] {
        if bars.groups.is_empty() {
            return Err(format!("{PAGE} has no rows for the picture of {name}"));
        }
        let path = Path::new(PAGE).with_file_name(format!("placement-{name}.svg"));
        fs::write(&path, bars.draw()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the chart of hops per byte of the patterns with 512 ranks.
fn mappings(page: &str) -> Bars {
    let rows = table(page, "graphs").into_iter().filter(|row| row.get(1).is_some_and(|ranks| ranks == "512"));
    let group = |row: Vec<String>| {
        let numbers: Option<Vec<f64>> = row.get(3..6)?.iter().map(|cell| number(cell)).collect();
        Some((row[0].clone(), numbers?))
    };
    Bars {
        title: "Hops per byte of 512 ranks on a torus of 8 x 8 x 8 hosts".to_owned(),
        series: names(&["block", "--map-by comm", "scotch_gmap"]),
        groups: rows.filter_map(group).collect(),
    }
}

/// Returns the chart of the programs' times in the hardest of the experiments.
fn programs(page: &str) -> Bars {
    let hardest = |row: &Vec<String>| row.get(1).is_some_and(|faulty| faulty == "16") && row[2] == "5 %";
    let group = |row: Vec<String>| {
        let numbers: Option<Vec<f64>> = row.get(3..8)?.iter().map(|cell| number(cell)).collect();
        let name = row[0].split(" (").next()?.to_owned();
        Some((name, [vec![100.0], numbers?].concat()))
    };
    Bars {
        title: "Time of a batch, % of block placement's: 16 of 512 hosts fail during a job with probability 5 %"
            .to_owned(),
        series: names(&["block", "random", "greedy", "topology", "topology and faults", "publication"]),
        groups: table(page, BATCHES).into_iter().filter(hardest).filter_map(group).collect(),
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
