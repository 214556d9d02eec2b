//! `cargo bench -p benches --bench staging`: the time to bring a file to many hosts over slow links, by `--stage-file`, by
//! Slurm's `sbcast` and by one `scp` for each host at the same time; how many copies the launcher sends; and the times of
//! fences of another job meanwhile, on the same hosts and on other ones. The hosts are network namespaces of this machine,
//! each of which sends at a limited rate (`tc`, a token bucket). Needs root, sshd and tc; sbcast needs slurm-wlm and munge.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use benches::arguments::{number, number_of, parse, write_option, write_table};
use benches::machine::Machine;
use benches::programs::compile_static;
use benches::rounds::median;
use benches::slow_link::{PAYLOAD, limit};
use clap::{Arg, ArgMatches, value_parser};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tests::{Cluster, Host, Slurm};

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
#[derive(Copy, Clone)]
struct Setting {
    hosts: usize,
    mbit: u32,
    fanout: u32,
    bytes: u64,
    /// A command that takes longer is ended.
    deadline: Duration,
}

impl Setting {
    /// The time in which a host can send so many copies.
    fn time_of(&self, copies: u32) -> Duration {
        Duration::from_secs_f64(f64::from(copies) * self.bytes as f64 * 8.0 / (f64::from(self.mbit) * 1e6 * PAYLOAD))
    }
}

/// The parts of the measurement.
const SECTIONS: [&str; 4] = ["stage", "sbcast", "scp", "fences"];

/// The table, as it is printed and written.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: &str) {
        println!("{line}");
        let _ = writeln!(self.0, "{line}");
    }
}

fn measure(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let number = |name| number_of(arguments, name);
    let sections: Vec<&String> = arguments.get_many("only").expect("the option has a default").collect();
    let is_wanted = |section: &str| sections.iter().any(|wanted| *wanted == section);
    let setting = Setting {
        hosts: number("hosts") as usize,
        mbit: number("mbit"),
        fanout: number("fanout"),
        bytes: u64::from(number("megabytes")) * 1_000_000,
        deadline: Duration::from_secs(number("deadline").into()),
    };
    let machine = Machine::ask().map_err(|error| error.to_string())?.to_string();
    let mut page = Page::default();
    page.line(&format!(
        "{machine}.\n{} to {} hosts over links of {} Mbit/s, fan-out {}: a host sends {} copies in {:.1} s.\n",
        nla::figures::bytes(setting.bytes),
        setting.hosts,
        setting.mbit,
        setting.fanout,
        setting.fanout,
        setting.time_of(setting.fanout).as_secs_f64()
    ));
    if ["stage", "sbcast", "scp"].into_iter().any(is_wanted) {
        page.line("| | s | copies that the launcher sends | x |\n|---|---|---|---|");
        times(&setting, number("rounds"), is_wanted, &mut page)?;
    }
    if is_wanted("fences") {
        page.line(
            "\n| hosts | fences of another job | ms before | ms while the file is staged | x |\n|---|---|---|---|---|",
        );
        for hosts in arguments.get_many::<u16>("fence-hosts").expect("the option has a default").copied() {
            let setting = Setting { hosts: usize::from(hosts), ..setting };
            fence_rows(&setting, number("rounds"), &mut page)?;
        }
    }
    write_table(arguments, PLACE, &page.0).map_err(|error| error.to_string())
}

/// Measures the times to bring the file to all hosts.
fn times(setting: &Setting, rounds: u32, is_wanted: impl Fn(&str) -> bool, page: &mut Page) -> Result<(), String> {
    let cluster = Cluster::new(setting.hosts);
    let file = cluster.shared().join("file");
    random_file(&file, setting.bytes)?;
    let slurm = is_wanted("sbcast").then(|| Slurm::on(&cluster));
    cluster.everywhere().try_for_each(|host| limit(host, setting.mbit))?;
    let least = setting.time_of(setting.fanout).as_secs_f64();
    let mut row = |name: &str, times: &[Option<Duration>], copies: Option<f64>| {
        // A run that was ended is longer than all others.
        let mut times: Vec<_> = times.iter().map(|time| time.unwrap_or(Duration::MAX)).collect();
        times.sort();
        let copies = copies.map_or_else(String::new, |copies| format!("{copies:.2}"));
        let (mark, time) = match times[times.len() / 2] {
            Duration::MAX => ("> ", setting.deadline.as_secs_f64()),
            time => ("", time.as_secs_f64()),
        };
        page.line(&format!("| {name} | {mark}{time:.1} | {copies} | {mark}{:.2} |", time / least));
    };
    if is_wanted("stage") {
        let (mut times, mut copies) = (Vec::new(), 0.0);
        for _ in 0..rounds {
            let (time, sent) = stage(&cluster, setting, &file)?;
            times.push(time);
            copies = sent as f64 / setting.bytes as f64;
        }
        row("`--stage-file`, the whole job included", &times, Some(copies));
    }
    match slurm {
        None => {}
        Some(Ok(slurm)) => {
            let allocation = slurm.allocate_evenly(setting.hosts, 1);
            let mut command = cluster.front_end().command("sbcast");
            command.envs(allocation.environment()).arg("--force").arg(&file).arg("/tmp/copy");
            row("`sbcast`", &[timed(command, setting.deadline)?], None);
        }
        Some(Err(why)) => println!("no sbcast: {why}"),
    }
    if is_wanted("scp") {
        let copy = format!("scp -q -o BatchMode=yes {} $host:/tmp/copy & pids=\"$pids $!\"", file.display());
        let each = format!("while read host; do {copy}; done; for pid in $pids; do wait $pid || exit 1; done");
        let mut command = cluster.front_end().command("sh");
        command.args(["-c", &format!("exec <{}; {each}", cluster.host_file().display())]);
        let name = format!("{} times `scp` at the same time", setting.hosts);
        row(&name, &[timed(command, setting.deadline)?], Some(setting.hosts as f64));
    }
    Ok(())
}

/// Returns `scela-run`, started on `from`, with a rank on each of these hosts.
fn on_hosts(from: &Host, hosts: &[Host]) -> Command {
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    let names: Vec<_> = hosts.iter().map(Host::name).collect();
    let mut command = from.command(scela);
    command.args(["-hosts", &names.join(","), "-np", &hosts.len().to_string(), "-ppn", "1"]);
    command
}

/// Returns a job that stages the file on so many hosts of the setting.
fn staging(cluster: &Cluster, setting: &Setting, file: &Path) -> Command {
    let mut command = on_hosts(cluster.front_end(), &cluster.hosts()[..setting.hosts]);
    command.args(["--fanout", &setting.fanout.to_string(), "--stage-file"]).arg(file);
    command
}

/// Stages the file. Returns the time of the whole job, and the bytes that the launcher has sent.
fn stage(cluster: &Cluster, setting: &Setting, file: &Path) -> Result<(Option<Duration>, u64), String> {
    let stats = cluster.shared().join("stats.json");
    let mut command = staging(cluster, setting, file);
    command.arg(format!("--stats={}", stats.display())).arg("true");
    let Some(time) = timed(command, setting.deadline)? else { return Ok((None, 0)) };
    let text = fs::read(&stats).map_err(|error| error.to_string())?;
    let statistics: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let sent = statistics["levels"][0]["link_bytes"].as_u64().ok_or("the statistics have no bytes of links")?;
    Ok((Some(time), sent))
}

/// The medians of a job's fences.
#[derive(Copy, Clone)]
struct Fences {
    before: Duration,
    meanwhile: Duration,
}

impl Fences {
    fn ratio(&self) -> f64 {
        self.meanwhile.as_secs_f64() / self.before.as_secs_f64()
    }
}

/// Measures the fences of another job in so many rounds. Each figure is the median of the rounds.
fn fence_rows(setting: &Setting, rounds: u32, page: &mut Page) -> Result<(), String> {
    let rounds = (0..rounds).map(|_| fences(setting)).collect::<Result<Vec<_>, _>>()?;
    let hosts = setting.hosts;
    let median = |of: &dyn Fn(&(Fences, Fences)) -> f64| median(rounds.iter().map(of).collect()).unwrap_or(f64::NAN);
    let mut row = |name: &str, job: &dyn Fn(&(Fences, Fences)) -> Fences| {
        let milliseconds = |of: fn(Fences) -> Duration| median(&|round| of(job(round)).as_secs_f64() * 1e3);
        let (before, meanwhile) = (milliseconds(|job| job.before), milliseconds(|job| job.meanwhile));
        let ratio = median(&|round| job(round).ratio());
        page.line(&format!("| {hosts} | {name} | {before:.2} | {meanwhile:.2} | {ratio:.2} |"));
    };
    row("on the same hosts", &|(same, _)| *same);
    row("on other hosts, which share only the processors", &|(_, other)| *other);
    let links = median(&|(same, other)| same.ratio() / other.ratio());
    page.line(&format!("| {hosts} | ratio of the two: the effect of the links | | | {links:.2} |"));
    Ok(())
}

/// Returns the fences of a job on the hosts on which the file is staged, and those of one on as many other hosts.
fn fences(setting: &Setting) -> Result<(Fences, Fences), String> {
    let cluster = Cluster::new(2 * setting.hosts);
    let file = cluster.shared().join("file");
    random_file(&file, setting.bytes)?;
    cluster.everywhere().try_for_each(|host| limit(host, setting.mbit))?;
    let (same, other) = cluster.hosts().split_at(setting.hosts);
    // The launcher's link counts as well.
    let (front_end, first) = (cluster.front_end(), &other[0]);
    Ok((fences_of(&cluster, (front_end, same), setting, &file)?, fences_of(&cluster, (first, other), setting, &file)?))
}

fn fences_of(
    cluster: &Cluster,
    (from, hosts): (&Host, &[Host]),
    setting: &Setting,
    file: &Path,
) -> Result<Fences, String> {
    let program = compile_static("fences", cluster.shared().join("fences")).map_err(|error| error.to_string())?;
    let times = cluster.shared().join(format!("times-{}", hosts[0].name()));
    let mut command = on_hosts(from, hosts);
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
    let mut other = command.arg("true").stdin(Stdio::null()).spawn().map_err(|error| error.to_string())?;
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
    Ok(Fences { before: median(&all[FENCES / 10..FENCES])?, meanwhile: median(&all[first..last])? })
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end. `None` if it was ended after the deadline.
fn timed(mut command: Command, deadline: Duration) -> Result<Option<Duration>, String> {
    let began = Instant::now();
    let mut said = tempfile::tempfile().map_err(|error| error.to_string())?;
    let stderr = said.try_clone().map_err(|error| error.to_string())?;
    // A group of its own: the command may have children.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if began.elapsed() > deadline {
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(Some(began.elapsed()));
    }
    let mut text = String::new();
    let _ = said.rewind().and_then(|()| said.read_to_string(&mut text));
    Err(format!("{command:?}: {status}\n{text}"))
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
    parse(
        clap::Command::new("staging")
            .arg(number("hosts", "32", "number of hosts"))
            .arg(number("mbit", "200", "megabits per second that a host can send"))
            .arg(number("fanout", "4", "children of a place in the tree"))
            .arg(number("megabytes", "100", "length of the file"))
            .arg(
                Arg::new("fence-hosts")
                    .long("fence-hosts")
                    .value_name("N,...")
                    .value_delimiter(',')
                    .value_parser(value_parser!(u16).range(1..))
                    .default_value("8,32")
                    .help("numbers of hosts on which fences are measured"),
            )
            .arg(number("rounds", "3", "number of runs with --stage-file, and of those beside fences"))
            .arg(number("deadline", "120", "seconds after which a command is ended"))
            .arg(
                Arg::new("only")
                    .long("only")
                    .value_name("PARTS")
                    .value_delimiter(',')
                    .value_parser(SECTIONS)
                    .default_values(SECTIONS)
                    .help("the parts to be measured"),
            )
            .arg(write_option(PAGE)),
    )
}
