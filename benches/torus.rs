//! `cargo bench -p benches --bench torus`: what `--map-by comm` gains on a torus. The hosts are network namespaces of this
//! machine, connected by cables of a limited rate (`tc`, a token bucket), and forward packets to each other. An MPI program
//! exchanges halos under block placement, under `--map-by node` and under `--map-by comm`, with the matrix that
//! `--profile-comm` has recorded from it. Needs root, sshd, tc and MPICH's wheel, which `./tests/run` installs.
//!
//! The bench also compares the bytes that the heaviest link has carried with those that the placement's figures say.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use benches::arguments::{number, number_of, parse, write_option, write_table};
use benches::machine::Machine;
use benches::slow_link::PAYLOAD;
use benches::torus::{INTERFACE, connect, sent};
use clap::ArgMatches;
use placement::mapping::{Metrics, measure};
use placement::matrix::Matrix;
use placement::topology::Topology;
use tests::{Cluster, MPICH_OVER_TCP};

/// The page with the table, and the table's name there.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/placement.md");
const PLACE: &str = "torus";
/// The sides of the torus, and the ranks of each host.
const SIDE: u32 = 4;
const PPN: u32 = 4;
/// The programs: a name, and the words after the program's name. The number of rounds follows the third of them.
const PROGRAMS: [(&str, [&str; 3], &str); 3] = [
    ("8 x 8 cells, in order", ["8", "8", "1"], "0"),
    ("4 x 4 x 4 cells, in order", ["4", "4", "4"], "0"),
    ("4 x 4 x 4 cells, in random order", ["4", "4", "4"], "1"),
];
/// The placements: a name, and the options.
const PLACEMENTS: [(&str, &[&str]); 3] =
    [("block", &[]), ("`--map-by node`", &["--map-by", "node"]), ("`--map-by comm`", &["--map-by", "comm"])];

fn main() -> ExitCode {
    match compare(&arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot measure: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The hosts, the program and the size of the measurement.
struct Setting {
    cluster: Cluster,
    topology: Topology,
    program: PathBuf,
    mbit: u32,
    bytes: u32,
    rounds: u32,
}

/// A placement of a program: what it says of the heaviest link, and what was measured.
struct Row {
    figures: Metrics,
    times: Vec<f64>,
    /// The most bytes that a link has carried in a run, without the headers of packets.
    carried: f64,
}

fn compare(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let number = |name| number_of(arguments, name);
    let topology = Topology::torus(&[SIDE, SIDE]).map_err(|error| error.to_string())?;
    let cluster = Cluster::new(topology.places() as usize);
    connect(&cluster, &topology, number("mbit"))?;
    let program = cluster.shared().join("halo");
    compile(&program)?;
    let setting =
        Setting { cluster, topology, program, mbit: number("mbit"), bytes: number("bytes"), rounds: number("rounds") };
    let machine = Machine::ask().map_err(|error| error.to_string())?.to_string();
    let mut text = format!(
        "{machine}.\n{} hosts in a {} by cables of {} Mbit/s, {PPN} ranks on each; {} rounds in which each rank sends {} to each \
         of the cells beside its own; medians of {} runs.\n\n\
         | cells of ranks | placement | hops per byte | heaviest link | at best, s | s | of block |\n\
         |---|---|---:|---:|---:|---:|---:|\n",
        setting.topology.places(),
        setting.topology.text(),
        setting.mbit,
        setting.rounds,
        nla::figures::bytes(u64::from(setting.bytes)),
        number("runs")
    );
    for (name, sides, seed) in PROGRAMS {
        let rows = setting.measure(sides, seed, number("runs"))?;
        let median = |row: &Row| row.times[row.times.len() / 2];
        let block = rows.first().map_or(1.0, median);
        for (row, (placement, _)) in rows.iter().zip(PLACEMENTS) {
            let least = row.figures.heaviest as f64 * 8.0 / (f64::from(setting.mbit) * 1e6 * PAYLOAD);
            let line = format!(
                "| {name} | {placement} | {:.2} | {} | {least:.2} | {:.2} | {:.2} |",
                row.figures.hops_per_byte(),
                nla::figures::bytes(row.figures.heaviest),
                median(row),
                median(row) / block
            );
            println!(
                "{line} {:.2} to {:.2} s; the heaviest link carried {:.2} times as much",
                row.times[0],
                row.times[row.times.len() - 1],
                row.carried / row.figures.heaviest as f64
            );
            let _ = writeln!(text, "{line}");
        }
    }
    write_table(arguments, PLACE, &text).map_err(|error| error.to_string())
}

impl Setting {
    /// Runs a program under each placement. Placements take turns.
    fn measure(&self, sides: [&str; 3], seed: &str, runs: u32) -> Result<Vec<Row>, String> {
        let shared = self.cluster.shared();
        let recorded = shared.join("matrix");
        // The messages of ranks do not depend on their placement.
        let profile = ["--profile-comm".into(), recorded.clone().into_os_string()];
        self.run(&profile, sides, seed)?;
        let file = File::open(&recorded).map_err(|error| format!("--profile-comm wrote no file: {error}"))?;
        let matrix = Matrix::read(BufReader::new(file)).map_err(|error| error.to_string())?;
        let mut rows = Vec::new();
        let map = shared.join("map");
        let options = PLACEMENTS.map(|(_, options)| {
            let files =
                ["--comm-matrix".as_ref(), recorded.as_os_str(), "--topology".as_ref(), self.topology.text().as_ref()];
            let files = if options.contains(&"comm") { &files[..] } else { &files[..0] };
            let saved = ["--save-rankmap".as_ref(), map.as_os_str()];
            let words = options.iter().map(AsRef::as_ref).chain(files.iter().copied()).chain(saved);
            words.map(std::ffi::OsStr::to_owned).collect::<Vec<_>>()
        });
        for _ in 0..runs {
            for (at, options) in options.iter().enumerate() {
                let before = self.sent()?;
                let time = self.run(options, sides, seed)?;
                let after = self.sent()?;
                let carried = after.iter().zip(&before).map(|(after, before)| after - before).max().unwrap_or_default();
                if rows.len() == at {
                    let text = fs::read_to_string(&map).map_err(|error| format!("{}: {error}", map.display()))?;
                    let figures = measure(&matrix, &self.topology, &places(&text, matrix.ranks())?);
                    rows.push(Row { figures, times: Vec::new(), carried: carried as f64 * PAYLOAD });
                }
                rows[at].times.push(time);
            }
        }
        rows.iter_mut().for_each(|row| row.times.sort_by(f64::total_cmp));
        Ok(rows)
    }

    /// Returns the bytes that each link has carried, always in the same order.
    fn sent(&self) -> Result<Vec<u64>, String> {
        let hosts = self.cluster.hosts().iter().zip(0..);
        let all: Result<Vec<_>, _> = hosts.map(|(host, place)| sent(host, &self.topology, place)).collect();
        Ok(all?.into_iter().flatten().map(|(_, bytes)| bytes).collect())
    }

    /// Runs the program once. Returns the seconds that it states.
    fn run(&self, options: &[std::ffi::OsString], sides: [&str; 3], seed: &str) -> Result<f64, String> {
        let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
        let mut command = self.cluster.front_end().command(scela);
        command.arg("-f").arg(self.cluster.host_file()).args(["-np", &(self.topology.places() * PPN).to_string()]);
        command.args(["-ppn", &PPN.to_string()]).args(options).arg(&self.program).args(sides);
        command.args([self.bytes.to_string(), self.rounds.to_string()]).arg(seed);
        command.envs(MPICH_OVER_TCP).env("FI_TCP_IFACE", INTERFACE).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let time = said.lines().find_map(|line| line.strip_prefix("halo ")?.parse().ok());
        match time {
            Some(time) if output.status.success() => Ok(time),
            _ => Err(format!("{command:?}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// Returns the host of each rank, by the text of a saved rank map.
fn places(text: &str, ranks: u32) -> Result<Vec<u32>, String> {
    let runs = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (count, host) = line.split_once('*').unwrap_or(("1", line));
        Some((count.trim().parse::<usize>().ok()?, host.trim().parse::<u32>().ok()?))
    });
    let runs: Option<Vec<(usize, u32)>> = runs.collect();
    let places: Option<Vec<u32>> =
        runs.map(|runs| runs.into_iter().flat_map(|(count, host)| std::iter::repeat_n(host, count)).collect());
    places.filter(|places| places.len() == ranks as usize).ok_or_else(|| format!("the rank map is not one:\n{text}"))
}

/// Compiles `programs/halo.c` with MPICH's wheel.
fn compile(program: &Path) -> Result<(), String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wheels = std::env::var_os("TESTS_VENV").map_or_else(|| directory.join("../target/test-venv"), PathBuf::from);
    let mut compiler = Command::new(wheels.join("bin/mpicc"));
    compiler.args(["-std=gnu11", "-O2", "-o"]).arg(program).arg(directory.join("programs/halo.c"));
    match compiler.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{compiler:?}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("no MPICH in {} ({error}); ./tests/run installs it", wheels.display())),
    }
}

fn arguments() -> ArgMatches {
    parse(
        clap::Command::new("torus")
            .arg(number("mbit", "50", "megabits per second of a cable, in each direction"))
            .arg(number("bytes", "65536", "bytes that a rank sends to each of the cells beside its own, in a round"))
            .arg(number("rounds", "20", "rounds of a run"))
            .arg(number("runs", "5", "runs of each placement"))
            .arg(write_option(PAGE)),
    )
}
