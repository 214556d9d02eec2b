//! `cargo bench -p benches --bench hosts`: how long a job of empty programs takes over ssh, on hosts that are
//! namespaces of this machine, beside Hydra on the same hosts. Needs root, sshd and mpiexec.hydra.
//!
//! All hosts share this machine's cores, and nearly all of the time is ssh's own cryptography: what is
//! compared is what each launcher adds to it. The processor time is that of the whole machine until the last daemon
//! of the run has ended, also after its launcher; it varies less.
//!
//! With `--slurm`, the hosts are as many slurmd of this machine, in one allocation, and the rival is
//! `srun --mpi=pmi2`. Needs root and slurm-wlm.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, value_parser};
use tests::{Cluster, Slurm};

/// Names of rivals, and their words.
type Rivals = Vec<(&'static str, Vec<String>)>;

fn main() -> ExitCode {
    let arguments = arguments();
    let result = if arguments.get_flag("slurm") { in_slurm(&arguments) } else { over_ssh(&arguments) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("there can be no hosts here: {why}");
            ExitCode::FAILURE
        }
    }
}

fn in_slurm(arguments: &ArgMatches) -> Result<(), String> {
    let number = |name: &str| arguments.get_one::<u32>(name).copied().unwrap_or_default();
    let (hosts, ppn) = (number("hosts"), number("ppn"));
    let slurm = Slurm::with_nodes(hosts as usize)?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let empty = directory.path().join("empty");
    compile_empty(directory.path(), &empty);
    let allocation = slurm.allocate_evenly(hosts as usize, ppn);
    let (np, program) = ((hosts * ppn).to_string(), empty.display().to_string());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rivals = vec![
        ("scela-run", words(&[&scela(), "-np", &np, &program])),
        ("srun --mpi=pmi2", words(&["srun", "--mpi=pmi2", "--overlap", "-n", &np, &program])),
    ];
    measure(&rivals, arguments, |words| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(allocation.environment());
        command
    });
    Ok(())
}

fn over_ssh(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let number = |name: &str| arguments.get_one::<u32>(name).copied().unwrap_or_default();
    let (hosts, ppn) = (number("hosts"), number("ppn"));
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let cluster = Cluster::new(hosts as usize);
    let empty = cluster.shared().join("empty");
    compile_empty(directory.path(), &empty);
    if number("delay") > 0 {
        let delay = Duration::from_millis(number("delay").into());
        cluster.hosts().iter().for_each(|host| host.delay_logins(delay));
    }
    if number("limit") > 0 {
        cluster.limit_ssh(number("limit"));
    }
    let np = (hosts * ppn).to_string();
    let file = cluster.host_file().display().to_string();
    let scela = scela();
    let program = empty.display().to_string();
    let ours = |options: &[&str]| {
        let words = [&[scela.as_str(), "-f", &file, "-np", &np], options, &[program.as_str()]].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let ppn = ppn.to_string();
    let hydra = ["mpiexec.hydra", "-f", &file, "-np", &np, "-ppn", &ppn, &program].map(str::to_owned).to_vec();
    let sessions = "while read host; do ssh -T -x -o BatchMode=yes $host true </dev/null & done; wait";
    let sessions = format!("exec <{file}; {sessions}");
    let mut rivals = vec![
        ("ssh HOST true, all at once", ["sh", "-c", &sessions].map(str::to_owned).to_vec()),
        ("scela-run, as it chooses", ours(&[])),
        ("scela-run --launch flat", ours(&["--launch", "flat"])),
        ("scela-run --launch tree --fanout 2", ours(&["--launch", "tree", "--fanout", "2"])),
        ("scela-run --launch tree --fanout 8", ours(&["--launch", "tree", "--fanout", "8"])),
    ];
    let limit = number("limit").to_string();
    if number("limit") > 0 {
        rivals.push(("scela-run --launch flat --batch LIMIT", ours(&["--launch", "flat", "--batch", &limit])));
    }
    if !arguments.get_flag("alone") {
        rivals.push(("mpiexec.hydra", hydra));
    }
    measure(&rivals, arguments, |words| {
        let mut command = cluster.front_end().command(&words[0]);
        command.args(&words[1..]);
        command
    });
    Ok(())
}

/// The program that is measured.
fn scela() -> String {
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    scela.display().to_string()
}

/// Of a run: until its launcher has ended, and what processors did until all that it has begun had. In seconds.
struct Took {
    wall: f64,
    processors: f64,
}

/// Runs all in turn, each round beginning with the next of them, and prints how long they took. None begins before
/// the processes of the one before have ended: a daemon of a session ends after the session.
fn measure(rivals: &Rivals, arguments: &ArgMatches, command: impl Fn(&[String]) -> Command) {
    let number = |name: &str| arguments.get_one::<u32>(name).copied().unwrap_or_default();
    let (hosts, ppn, rounds) = (number("hosts"), number("ppn"), number("rounds"));
    println!("{hosts} hosts, {ppn} ranks on each, {rounds} rounds; medians, ratios to the last within rounds");
    println!("{:36} {:>7} {:>7} {:>7} {:>7}   {:>10} {:>7}", "", "s", "least", "most", "ratio", "processors", "ratio");
    let mut all: Vec<Vec<Took>> = rivals.iter().map(|_| Vec::new()).collect();
    let before = processes();
    let settle = |name: &str| {
        if tests::eventually(|| (processes() <= before).then_some(())).is_none() {
            eprintln!("{name}: {} processes more than at first", processes().saturating_sub(before));
        }
    };
    for round in 0..rounds as usize {
        for turn in 0..rivals.len() {
            let rival = (round + turn) % rivals.len();
            let (name, words) = &rivals[rival];
            let busy = processors_busy();
            let wall = run(command(words)).unwrap_or_else(|why| {
                eprintln!("{name}: {why}");
                f64::NAN
            });
            settle(name);
            all[rival].push(Took { wall, processors: processors_busy() - busy });
        }
    }
    let Some(last) = all.last() else { return };
    for ((name, _), took) in rivals.iter().zip(&all) {
        let median_of = |of: fn(&Took) -> f64| median(took.iter().map(of).collect());
        let ratio_of =
            |of: fn(&Took) -> f64| median(took.iter().zip(last).map(|(ours, its)| of(ours) / of(its)).collect());
        let least = took.iter().map(|took| took.wall).fold(f64::INFINITY, f64::min);
        let most = took.iter().map(|took| took.wall).fold(0_f64, f64::max);
        let (wall, processors) = (median_of(|took| took.wall), median_of(|took| took.processors));
        let ratios = [ratio_of(|took| took.wall), ratio_of(|took| took.processors)];
        println!("{name:36} {wall:7.3} {least:7.3} {most:7.3} {:7.2}   {processors:10.2} {:7.2}", ratios[0], ratios[1]);
    }
}

/// How long this machine's processors have been at work since it began, all together, in seconds.
fn processors_busy() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let all = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks =
        all.lines().next().unwrap_or_default().split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0.0));
    // user, nice, system, idle, iowait, irq, softirq; what follows is others' or counted already.
    let ticks: Vec<f64> = ticks.take(7).collect();
    (ticks.iter().sum::<f64>() - ticks.iter().skip(3).take(2).sum::<f64>()) / TICKS_PER_SECOND
}

/// How many there are on this machine. Those of the kernel have no command line.
fn processes() -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty())).count()
}

fn arguments() -> ArgMatches {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(u32)).default_value(default).help(help)
    };
    clap::Command::new("hosts")
        .arg(number("hosts", "32", "how many hosts"))
        .arg(number("ppn", "16", "ranks on each"))
        .arg(number("rounds", "5", "how often each launcher is run"))
        .arg(number("delay", "0", "milliseconds by which each login is delayed"))
        .arg(number("limit", "0", "connections to sshd that may be open at a time; 0: any number"))
        .arg(Arg::new("slurm").long("slurm").action(clap::ArgAction::SetTrue).help("in an allocation of Slurm"))
        .arg(Arg::new("alone").long("alone").action(clap::ArgAction::SetTrue).help("leave rivals out"))
        // Cargo's own word to benchmarks.
        .arg(Arg::new("bench").long("bench").hide(true).action(clap::ArgAction::SetTrue))
        .get_matches()
}

fn compile_empty(directory: &Path, to: &Path) {
    let source = directory.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a source can be written");
    let status = Command::new("cc").args(["-O2", "-static", "-o"]).arg(to).arg(&source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc compiles an empty program");
}

fn run(mut command: Command) -> Result<f64, String> {
    command.stdin(Stdio::null());
    let began = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let took = began.elapsed().as_secs_f64();
    if output.status.success() { Ok(took) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
