//! `cargo bench -p benches --bench hosts`: the time of a job of empty programs over ssh, with scela-run
//! and with Hydra. The hosts are network namespaces of this machine. Needs root, sshd and
//! mpiexec.hydra.
//!
//! All hosts share this machine's cores, and nearly all of the time is ssh's cryptography: the
//! comparison is of what each launcher adds to it. The processor time is that of the whole machine
//! until the last daemon of the run has ended, which may be after its launcher.
//!
//! With `--slurm`, the hosts are slurmd processes of this machine in one allocation, and the rival is
//! `srun --mpi=pmi2`. Needs root and slurm-wlm.
//!
//! With `--pool`, a PMI hello over ssh is compared with the same job in a pool on the same hosts, and the start of a pool with the
//! start of a job.
//!
//! With `--strangers N`, scela-run alone is measured: by itself, while N connections are made on the launcher's host
//! to a program that accepts and closes them, and while N strangers connect to the launcher's own ports.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use benches::arguments::{number, number_of, parse};
use benches::family::descendants;
use benches::machine::isolate;
use benches::page::{Header, Page};
use benches::programs::compile_static;
use benches::rounds::rounds;
use benches::run::Void;
use clap::{Arg, ArgMatches};
use nix::unistd::getpid;
use nla::core::AgentId;
use nla::wire::{Initiator, Role, SessionId};
use tests::{Cluster, Pool, Slurm, Strangers, Target};

/// After how long ranks of the PMI program give up.
const PAGE_TIME: Duration = Duration::from_secs(60);

/// Names and command lines of the launchers to compare.
type Rivals = Vec<(&'static str, Vec<String>)>;

fn main() -> ExitCode {
    let arguments = arguments();
    if let Err(error) = isolate() {
        eprintln!("cannot become a subreaper, so the times exclude daemons that outlive their launcher: {error}");
    }
    let result = match () {
        () if arguments.get_flag("slurm") => in_slurm(&arguments),
        () if arguments.get_flag("pool") => in_pool(&arguments),
        () if number_of(&arguments, "strangers") > 0 => beside_strangers(&arguments),
        () => over_ssh(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot set up hosts on this machine: {why}");
            ExitCode::FAILURE
        }
    }
}

fn in_slurm(arguments: &ArgMatches) -> Result<(), String> {
    let (hosts, ppn) = (number_of(arguments, "hosts"), number_of(arguments, "ppn"));
    let slurm = Slurm::with_nodes(hosts as usize)?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let empty = compile_static("empty", directory.path().join("empty")).map_err(|error| error.to_string())?;
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
    let (hosts, ppn) = (number_of(arguments, "hosts"), number_of(arguments, "ppn"));
    let cluster = Cluster::new(hosts as usize);
    let empty = compile_static("empty", cluster.shared().join("empty")).map_err(|error| error.to_string())?;
    delay_logins(&cluster, arguments);
    if number_of(arguments, "limit") > 0 {
        cluster.limit_ssh(number_of(arguments, "limit"));
    }
    let np = (hosts * ppn).to_string();
    let file = cluster.host_file().display().to_string();
    let scela = scela();
    let program = empty.display().to_string();
    let words_of = |scela: &str, options: &[&str]| {
        let words = [&[scela, "-f", &file, "-np", &np], options, &[program.as_str()]].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let ours = |options: &[&str]| words_of(&scela, options);
    let ppn = ppn.to_string();
    let hydra = ["mpiexec.hydra", "-f", &file, "-np", &np, "-ppn", &ppn, &program].map(str::to_owned).to_vec();
    // The time of ssh itself, and of ssh with as many processes as there are ranks.
    let remote_shells = |what: &str| {
        let each = format!("ssh -T -x -o BatchMode=yes $host '{what}' </dev/null & done; wait");
        ["sh", "-c", &format!("exec <{file}; while read host; do {each}")].map(str::to_owned).to_vec()
    };
    let ranks = format!("for rank in $(seq {ppn}); do {program} & done; wait");
    let mut rivals = Vec::new();
    // sshd refuses connections beyond the limit, which would look fast.
    if number_of(arguments, "limit") == 0 {
        rivals.push(("ssh HOST true, all at once", remote_shells("true")));
        rivals.push(("ssh HOST, PPN times the program", remote_shells(&ranks)));
    }
    rivals.extend([
        ("scela-run, default launch", ours(&[])),
        ("scela-run --launch flat", ours(&["--launch", "flat"])),
        ("scela-run --launch tree --fanout 2", ours(&["--launch", "tree", "--fanout", "2"])),
        ("scela-run --launch tree --fanout 8", ours(&["--launch", "tree", "--fanout", "8"])),
    ]);
    if let Some(also) = arguments.get_one::<String>("also") {
        rivals.push(("other scela-run, default launch", words_of(also, &[])));
    }
    let limit = number_of(arguments, "limit").to_string();
    if number_of(arguments, "limit") > 0 {
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

fn in_pool(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let (hosts, ppn) = (number_of(arguments, "hosts"), number_of(arguments, "ppn"));
    let cluster = Cluster::new(hosts as usize);
    let compiled = |name| {
        let path = compile_static(name, cluster.shared().join(name)).map_err(|error| error.to_string())?;
        Ok::<_, String>(path.display().to_string())
    };
    let (hello, empty) = (compiled("pmi")?, compiled("empty")?);
    delay_logins(&cluster, arguments);
    // The program marks its end there; nothing reads the marks.
    let header = Header {
        np: hosts * ppn,
        nofile: 0,
        fences: 0,
        value_bytes: 1..=1000,
        keys: 1,
        gets: 0,
        samples: 0,
        deadline: PAGE_TIME,
    };
    let page = Page::create(cluster.shared().join("page"), header).map_err(|error| error.to_string())?;
    let page = page.path().display().to_string();
    let (np, slots, one) = ((hosts * ppn).to_string(), ppn.to_string(), hosts.to_string());
    let (scela, pool) = (scela(), Pool::start_on(&cluster, &["--slots", &slots]));
    let (file, directory) = (cluster.host_file().display().to_string(), pool.directory().display().to_string());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let pools = scela.replace("scela-run", "scela");
    let start = format!("{pools} pool start other -f {file} --slots {slots}");
    let rivals = vec![
        ("scela pool start and stop", words(&["sh", "-c", &format!("{start} && {pools} pool stop other")])),
        ("an empty program on each host, ssh", words(&[&scela, "-f", &file, "-np", &one, "-ppn", "1", &empty])),
        ("the same in a pool", words(&[&scela, "--pool", "-np", &one, "-ppn", "1", &empty])),
        ("PMI hello in a pool", words(&[&scela, "--pool", "-np", &np, &hello, &page, "hello"])),
        ("PMI hello, ssh", words(&[&scela, "-f", &file, "-np", &np, "-ppn", &slots, &hello, &page, "hello"])),
    ];
    measure(&rivals, arguments, |words| {
        let mut command = cluster.front_end().command(&words[0]);
        command.args(&words[1..]).env("SCELA_POOL_DIR", &directory);
        command
    });
    drop(pool);
    Ok(())
}

fn beside_strangers(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let (hosts, ppn) = (number_of(arguments, "hosts"), number_of(arguments, "ppn"));
    let count = number_of(arguments, "strangers") as usize;
    let cluster = Cluster::new(hosts as usize);
    delay_logins(&cluster, arguments);
    let empty = compile_static("empty", cluster.shared().join("empty")).map_err(|error| error.to_string())?;
    let role = Role::Link { parent: AgentId::ROOT };
    let (_, hello) = Initiator::new(SessionId(1), &[7; 32], role).map_err(|error| error.to_string())?;
    let turns = [
        ("scela-run, alone", None),
        ("beside connections to another program", Some(Target::Acceptor)),
        ("beside strangers", Some(Target::Ports)),
    ];
    let (np, file) = ((hosts * ppn).to_string(), cluster.host_file().display().to_string());
    let runs = number_of(arguments, "rounds");
    let all = rounds(&turns, runs, |_, (_, target)| {
        let strangers = target.map(|target| Strangers::start(cluster.front_end(), target, count, hello.clone()));
        let mut command = cluster.front_end().command(scela());
        command.args(["-f", &file, "-np", &np]).arg(&empty);
        let wall = run(command);
        // Without a session no port is open: the connections that were not made until its end are never made.
        let made = strangers.map_or(0, Strangers::stop);
        Ok((wall?, made as f64))
    });
    let [_, beside, _] = &all[..] else { return Ok(()) };
    println!("{hosts} hosts, {ppn} ranks on each, {runs} rounds; medians; ratios to the second line within rounds");
    println!("{:40} {:>7} {:>7} {:>7} {:>7} {:>12}", "", "s", "min", "max", "ratio", "connections");
    for ((name, _), series) in turns.iter().zip(&all) {
        let cells = [
            series.median(|(wall, _)| *wall),
            series.counted().map(|(wall, _)| *wall).reduce(f64::min),
            series.counted().map(|(wall, _)| *wall).reduce(f64::max),
            series.median_ratio(beside, |(wall, _)| *wall),
            series.median(|(_, made)| *made),
        ];
        let [wall, least, most, ratio, made] = cells.map(|cell| cell.unwrap_or(f64::NAN));
        println!("{name:40} {wall:7.3} {least:7.3} {most:7.3} {ratio:7.2} {made:12.0}");
        if let Some((count, why)) = series.voids() {
            println!("  {count} of {runs} runs excluded: {why}");
        }
    }
    Ok(())
}

fn delay_logins(cluster: &Cluster, arguments: &ArgMatches) {
    let delay = Duration::from_millis(number_of(arguments, "delay").into());
    if !delay.is_zero() {
        cluster.hosts().iter().for_each(|host| host.delay_logins(delay));
    }
}

/// Returns the path of the measured scela-run.
fn scela() -> String {
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    scela.display().to_string()
}

/// The times of a run in seconds: `wall` until its launcher has ended, `processors` until all its
/// processes have.
struct Took {
    wall: f64,
    processors: f64,
}

/// Runs all launchers in rounds and prints their times. Each run starts after all processes of the one
/// before have ended, since a daemon may outlive its launcher.
fn measure(rivals: &Rivals, arguments: &ArgMatches, command: impl Fn(&[String]) -> Command) {
    let (hosts, ppn, runs) =
        (number_of(arguments, "hosts"), number_of(arguments, "ppn"), number_of(arguments, "rounds"));
    let wanted = |name: &str| {
        let parts: Vec<&String> = arguments.get_many("only").into_iter().flatten().collect();
        parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()))
    };
    let turns: Vec<_> = rivals.iter().filter(|(name, _)| wanted(name)).collect();
    println!("{hosts} hosts, {ppn} ranks on each, {runs} rounds; medians; ratios to the last launcher within rounds");
    println!("{:36} {:>7} {:>7} {:>7} {:>7}   {:>10} {:>7}", "", "s", "min", "max", "ratio", "processors", "ratio");
    let before = descendants(getpid()).len();
    let all = rounds(&turns, runs, |_, (name, words)| {
        let busy = processors_busy();
        let wall = run(command(words));
        let left = || descendants(getpid()).len().saturating_sub(before);
        if tests::eventually(|| (left() == 0).then_some(())).is_none() {
            eprintln!("{name}: {} processes are left after the run", left());
        }
        Ok(Took { wall: wall?, processors: processors_busy() - busy })
    });
    let Some(last) = all.last() else { return };
    for ((name, _), series) in turns.iter().zip(&all) {
        let cells = [
            series.median(|took| took.wall),
            series.counted().map(|took| took.wall).reduce(f64::min),
            series.counted().map(|took| took.wall).reduce(f64::max),
            series.median_ratio(last, |took| took.wall),
            series.median(|took| took.processors),
            series.median_ratio(last, |took| took.processors),
        ];
        let [wall, least, most, ratio, processors, their_ratio] = cells.map(|cell| cell.unwrap_or(f64::NAN));
        println!("{name:36} {wall:7.3} {least:7.3} {most:7.3} {ratio:7.2}   {processors:10.2} {their_ratio:7.2}");
        if let Some((count, why)) = series.voids() {
            println!("  {count} of {runs} runs excluded: {why}");
        }
    }
}

/// Returns the time that this machine's processors have been busy since boot, in seconds.
fn processors_busy() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let all = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks =
        all.lines().next().unwrap_or_default().split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0.0));
    // user, nice, system, idle, iowait, irq, softirq. The fields after them are steal time, or counted
    // already.
    let ticks: Vec<f64> = ticks.take(7).collect();
    (ticks.iter().sum::<f64>() - ticks.iter().skip(3).take(2).sum::<f64>()) / TICKS_PER_SECOND
}

fn arguments() -> ArgMatches {
    parse(
        clap::Command::new("hosts")
            .arg(number("hosts", "32", "number of hosts"))
            .arg(number("ppn", "16", "ranks per host"))
            .arg(number("rounds", "5", "number of runs of each launcher"))
            .arg(number("delay", "0", "milliseconds by which each login is delayed"))
            .arg(number("strangers", "0", "number of connections of strangers during a launch"))
            .arg(number("limit", "0", "maximum number of open connections to an sshd; 0: no limit"))
            .arg(
                Arg::new("only")
                    .long("only")
                    .value_delimiter(',')
                    .help("run only launchers whose names contain one of these"),
            )
            .arg(Arg::new("also").long("also").value_name("PROGRAM").help("also run this build of scela-run"))
            .arg(Arg::new("slurm").long("slurm").action(clap::ArgAction::SetTrue).help("run in a Slurm allocation"))
            .arg(
                Arg::new("pool").long("pool").action(clap::ArgAction::SetTrue).help("compare with a pool on the hosts"),
            )
            .arg(Arg::new("alone").long("alone").action(clap::ArgAction::SetTrue).help("do not run Hydra")),
    )
}

fn run(mut command: Command) -> Result<f64, Void> {
    command.stdin(Stdio::null());
    let began = Instant::now();
    let Output { status, stderr, .. } = command.output()?;
    let wall = began.elapsed().as_secs_f64();
    let failure = || format!("{status}\n{}", String::from_utf8_lossy(&stderr));
    if status.success() { Ok(wall) } else { Err(Void::Failed(failure())) }
}
