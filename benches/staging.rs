//! `cargo bench -p benches --bench staging`: the time to bring a file to many hosts over slow links, by `--stage-file`, by
//! Slurm's `sbcast` and by one `scp` for each host at the same time; how many copies the launcher sends; and the time of
//! fences of another job meanwhile. The hosts are network namespaces of this machine, each of which sends at a limited rate (`tc`,
//! a token bucket). Needs root, sshd and tc; sbcast needs slurm-wlm and munge.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use benches::error::BenchError;
use benches::machine::Machine;
use benches::programs::compile_static;
use benches::results::replace_table;
use benches::slow_link::{PAYLOAD, limit};
use clap::{Arg, ArgMatches, value_parser};
use serde_json::Value;
use tests::{Cluster, Slurm};

/// The page with the table, and the table's name there.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/staging.md");
const PLACE: &str = "staging";
/// The fences of the other job before and while files are staged.
const FENCES: usize = 200;

fn main() -> ExitCode {
    match measure(&arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot measure: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The size of the measurement.
struct Setting {
    hosts: usize,
    mbit: u32,
    fanout: u32,
    bytes: u64,
}

impl Setting {
    /// The time in which a host can send so many copies.
    fn time_of(&self, copies: u32) -> Duration {
        Duration::from_secs_f64(f64::from(copies) * self.bytes as f64 * 8.0 / (f64::from(self.mbit) * 1e6 * PAYLOAD))
    }
}

fn measure(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let number = |name| *arguments.get_one::<u32>(name).expect("the option has a default");
    let bytes = u64::from(number("megabytes")) * 1_000_000;
    let setting = Setting { hosts: number("hosts") as usize, mbit: number("mbit"), fanout: number("fanout"), bytes };
    let cluster = Cluster::new(setting.hosts);
    let file = cluster.shared().join("file");
    random_file(&file, bytes)?;
    let slurm = Slurm::on(&cluster);
    cluster.everywhere().try_for_each(|host| limit(host, setting.mbit))?;
    let machine = Machine::ask().map_err(|error| error.to_string())?.to_string();
    let least = setting.time_of(setting.fanout);
    let mut text = format!(
        "{machine}.\n{} to {} hosts over links of {} Mbit/s, fan-out {}: a host sends {} copies in {:.1} s.\n\n| | s | copies that \
         the launcher sends | x |\n|---|---|---|---|\n",
        nla::figures::bytes(bytes),
        setting.hosts,
        setting.mbit,
        setting.fanout,
        setting.fanout,
        least.as_secs_f64()
    );
    let mut row = |name: &str, times: &[Duration], copies: Option<f64>| {
        let mut times = times.to_vec();
        times.sort();
        let time = times[times.len() / 2];
        let copies = copies.map_or_else(String::new, |copies| format!("{copies:.2}"));
        let ratio = time.as_secs_f64() / least.as_secs_f64();
        let line = format!("| {name} | {:.1} | {copies} | {ratio:.2} |", time.as_secs_f64());
        println!("{line}");
        let _ = writeln!(text, "{line}");
    };
    let (mut times, mut copies) = (Vec::new(), 0.0);
    for _ in 0..number("rounds") {
        let (time, sent) = stage(&cluster, &setting, &file)?;
        times.push(time);
        copies = sent as f64 / bytes as f64;
    }
    row("`--stage-file`, the whole job included", &times, Some(copies));
    match &slurm {
        Ok(slurm) => {
            let mut times = Vec::new();
            let allocation = slurm.allocate_evenly(setting.hosts, 1);
            for _ in 0..number("rounds") {
                let mut command = cluster.front_end().command("sbcast");
                command.envs(allocation.environment()).arg("--force").arg(&file).arg("/tmp/copy");
                times.push(timed(command)?);
            }
            row("`sbcast`", &times, None);
        }
        Err(why) => println!("no sbcast: {why}"),
    }
    let copy = format!("scp -q -o BatchMode=yes {} $host:/tmp/copy & pids=\"$pids $!\"", file.display());
    let each = format!("while read host; do {copy}; done; for pid in $pids; do wait $pid || exit 1; done");
    let mut command = cluster.front_end().command("sh");
    command.args(["-c", &format!("exec <{}; {each}", cluster.host_file().display())]);
    row(&format!("{} times `scp` at the same time", setting.hosts), &[timed(command)?], Some(setting.hosts as f64));
    drop(slurm);
    let (before, meanwhile) = fences(&cluster, &setting, &file)?;
    let line = format!(
        "\nA fence of another job on the same hosts took {:.1} ms before and {:.1} ms while the file was staged (medians): {:.2} x.",
        before.as_secs_f64() * 1e3,
        meanwhile.as_secs_f64() * 1e3,
        meanwhile.as_secs_f64() / before.as_secs_f64()
    );
    println!("{line}");
    let _ = writeln!(text, "{line}");
    match arguments.get_one::<PathBuf>("write") {
        Some(page) => replace_table(page, PLACE, &text).map_err(|error: BenchError| error.to_string()),
        None => Ok(()),
    }
}

/// Returns a job that stages the file on all hosts.
fn staging(cluster: &Cluster, setting: &Setting, file: &Path) -> Command {
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    let mut command = cluster.front_end().command(scela);
    command.arg("-f").arg(cluster.host_file()).args(["-np", &setting.hosts.to_string(), "-ppn", "1"]);
    command.args(["--fanout", &setting.fanout.to_string(), "--stage-file"]).arg(file);
    command
}

/// Stages the file. Returns the time of the whole job, and the bytes that the launcher has sent.
fn stage(cluster: &Cluster, setting: &Setting, file: &Path) -> Result<(Duration, u64), String> {
    let stats = cluster.shared().join("stats.json");
    let mut command = staging(cluster, setting, file);
    command.arg(format!("--stats={}", stats.display())).arg("true");
    let time = timed(command)?;
    let text = fs::read(&stats).map_err(|error| error.to_string())?;
    let statistics: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let sent = statistics["levels"][0]["link_bytes"].as_u64().ok_or("the statistics have no bytes of links")?;
    Ok((time, sent))
}

/// Returns the median time of a fence of another job before and while the file is staged.
fn fences(cluster: &Cluster, setting: &Setting, file: &Path) -> Result<(Duration, Duration), String> {
    let program = compile_static("fences", cluster.shared().join("fences")).map_err(|error| error.to_string())?;
    let times = cluster.shared().join("times");
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    let mut command = cluster.front_end().command(scela);
    command.arg("-f").arg(cluster.host_file()).args(["-np", &setting.hosts.to_string(), "-ppn", "1"]);
    command.arg(program).arg("1000000").arg(&times);
    let mut job = Ended(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?);
    let read = || -> Vec<u64> {
        let text = fs::read_to_string(&times).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while read().len() < FENCES {
        if Instant::now() > deadline || !matches!(job.0.try_wait(), Ok(None)) {
            return Err("the job with fences does not go on".to_owned());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    // Bytes of the file travel from when all agents have joined to when all have the file.
    let mut command = staging(cluster, setting, file);
    let mut other = command.args(["sh", "-c", ":"]).stdin(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    std::thread::sleep(setting.time_of(setting.fanout) / 4);
    let first = read().len();
    std::thread::sleep(setting.time_of(setting.fanout) / 2);
    let last = read().len();
    let status = other.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("the job with the file: {status}"));
    }
    let all = read();
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied().map(Duration::from_nanos).ok_or("there was no fence meanwhile")
    };
    Ok((median(&all[FENCES / 10..FENCES])?, median(&all[first..last])?))
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn timed(mut command: Command) -> Result<Duration, String> {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(began.elapsed()),
        false => Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Writes bytes that no one can compress.
fn random_file(path: &Path, bytes: u64) -> Result<(), String> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let content: Vec<u8> = words.flatten().take(bytes as usize).collect();
    fs::write(path, content).map_err(|error| error.to_string())
}

fn arguments() -> ArgMatches {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(u32)).default_value(default).help(help)
    };
    clap::Command::new("staging")
        .arg(number("hosts", "32", "number of hosts"))
        .arg(number("mbit", "200", "megabits per second that a host can send"))
        .arg(number("fanout", "4", "children of a place in the tree"))
        .arg(number("megabytes", "100", "length of the file"))
        .arg(number("rounds", "3", "number of runs of each, but one of scp"))
        .arg(
            Arg::new("write")
                .long("write")
                .num_args(0..=1)
                .require_equals(true)
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .default_missing_value(PAGE)
                .help("also write the table of FILE, between its markers [default: docs/staging.md]"),
        )
        // Cargo passes this option to benchmarks.
        .arg(Arg::new("bench").long("bench").hide(true).action(clap::ArgAction::SetTrue))
        .get_matches()
}
