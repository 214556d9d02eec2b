//! `cargo bench -p benches --bench links`: the time of a fence that brings a large board to many hosts over slow links,
//! and what the simulation predicts. The hosts are network namespaces of this machine, each of which sends at a
//! limited rate (`tc`, a token bucket). Needs root, sshd and tc.
//!
//! The machine's cores also carry each byte from host to host, through TCP, the token bucket and the bridge. On a cluster
//! most of this is the network's work, and each host has its own cores. So before the jobs, the bench measures the
//! processor time that this takes, and the prediction includes it.
//!
//! The time is that from the last rank's arrival to the last rank's release: all ranks read one clock.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use benches::arguments::{number, number_of, parse};
use benches::programs::compile_static;
use benches::slow_link::{PAYLOAD, limit};
use clap::{Arg, ArgMatches, value_parser};
use sim::{BoardCosts, Costs, Pattern, Spec};
use tests::{Cluster, Host};

/// The bytes that each host sends while the cost of carrying them is measured.
const FLOOD_BYTES: u64 = 5_000_000;
/// The length of each value, in bytes.
const VALUE_BYTES: u32 = 1000;

fn main() -> ExitCode {
    match measure(&arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot measure: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &ArgMatches) -> Result<(), String> {
    if let Some(why) = Cluster::missing() {
        return Err(why);
    }
    let number = |name| number_of(arguments, name);
    let (hosts, ppn, mbit, keys) = (number("hosts"), number("ppn"), number("mbit"), number("keys"));
    let cards = arguments.get_flag("cards");
    let cluster = Cluster::new(hosts as usize);
    let program = compile_static("card", cluster.shared().join("card")).map_err(|error| error.to_string())?;
    cluster.everywhere().try_for_each(|host| limit(host, mbit))?;
    let carried_ps = carrying(&cluster)?;
    let bytes = u64::from(hosts * ppn * keys * VALUE_BYTES);
    println!("{hosts} hosts, {mbit} Mbit/s each, values of {} in all; seconds", nla::figures::bytes(bytes));
    println!("carrying a byte between hosts takes {:.1} ns of processor time", carried_ps as f64 / 1000.0);
    println!("{:>8} {:>28} {:>8} {:>8} {:>8} {:>10}", "fan-out", "", "median", "min", "max", "predicted");
    let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
    let mut programs = vec![("scela-run", scela)];
    programs.extend(arguments.get_one::<String>("also").map(|also| ("other scela-run", PathBuf::from(also))));
    let fanouts: Vec<u32> = arguments.get_many("fanouts").into_iter().flatten().copied().collect();
    for fanout in fanouts {
        let chosen =
            if fanout > 0 { fanout } else { default_fanout(&cluster, &programs[0].1, (hosts, ppn), &program)? };
        let predicted = predict(hosts, (ppn, keys), mbit, chosen, carried_ps)?;
        for (name, scela) in &programs {
            let mut times = Vec::new();
            for _ in 0..number("rounds") {
                let times_file = cluster.shared().join("times");
                std::fs::write(&times_file, "").map_err(|error| error.to_string())?;
                let mut command = cluster.front_end().command(scela);
                command.arg("-f").arg(cluster.host_file()).args(["-np", &(hosts * ppn).to_string()]);
                command.args(["-ppn", &ppn.to_string()]);
                if fanout > 0 {
                    command.args(["--fanout", &fanout.to_string()]);
                }
                command.arg(&program).args([keys.to_string(), VALUE_BYTES.to_string()]).arg(&times_file);
                command.args(cards.then_some("cards"));
                times.push(run(command, &times_file, (hosts * ppn) as usize)?);
            }
            times.sort_by(f64::total_cmp);
            let [median, least, most] = [times[times.len() / 2], times[0], times[times.len() - 1]];
            let shown = match (fanout, *name) {
                (0, "scela-run") => format!("{chosen}, auto"),
                // Another build chooses by itself.
                (0, _) => "auto".into(),
                (typed, _) => typed.to_string(),
            };
            // Values of the simulation are random.
            let predicted = if cards { "-".into() } else { format!("{:.3}", predicted.as_secs_f64()) };
            println!("{shown:>8} {name:>28} {median:8.3} {least:8.3} {most:8.3} {predicted:>10}");
        }
    }
    Ok(())
}

/// Runs a job, and returns the time of its fence in seconds.
fn run(mut command: Command, times: &Path, ranks: usize) -> Result<f64, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let text = std::fs::read_to_string(times).map_err(|error| error.to_string())?;
    let times: Vec<(u64, u64)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(arrived, released)| Some((arrived.parse().ok()?, released.parse().ok()?)))
        .collect();
    if times.len() != ranks {
        return Err(format!("{} of {ranks} ranks have written their times", times.len()));
    }
    let arrived = times.iter().map(|(arrived, _)| *arrived).max().unwrap_or_default();
    let released = times.iter().map(|(_, released)| *released).max().unwrap_or_default();
    Ok(released.saturating_sub(arrived) as f64 / 1e9)
}

/// Returns the fan-out that scela-run chooses.
fn default_fanout(cluster: &Cluster, scela: &Path, (hosts, ppn): (u32, u32), program: &Path) -> Result<u32, String> {
    let mut command = cluster.front_end().command(scela);
    command.arg("-f").arg(cluster.host_file()).args(["-np", &(hosts * ppn).to_string(), "-ppn", &ppn.to_string()]);
    let output = command.arg("--explain").arg(program).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = text.split_once("links between agents, fan-out ").ok_or("--explain names no fan-out")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| format!("--explain says {rest}"))
}

/// Returns the processor time to carry a byte from host to host, in picoseconds: that of all cores while each host sends to
/// the next one, divided by the bytes. Other work on the machine counts, as it delays the jobs.
fn carrying(cluster: &Cluster) -> Result<u64, String> {
    let program = compile_static("flood", cluster.shared().join("flood")).map_err(|error| error.to_string())?;
    let (hosts, before) = (cluster.hosts(), busy()?);
    let start = |(host, next): (&Host, &Host)| {
        let mut command = host.command(&program);
        command.args([next.address().to_string(), FLOOD_BYTES.to_string()]).stdin(Stdio::null()).spawn()
    };
    let started: Vec<_> = hosts.iter().zip(hosts.iter().cycle().skip(1)).map(start).collect();
    for flood in started {
        let status = flood.and_then(|mut flood| flood.wait()).map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{}: {status}", program.display()));
        }
    }
    let took = busy()?.saturating_sub(before);
    Ok((took.as_nanos() * 1000 / u128::from(FLOOD_BYTES) / hosts.len() as u128) as u64)
}

/// Returns how long all cores have worked since the machine started.
fn busy() -> Result<Duration, String> {
    let text = std::fs::read_to_string("/proc/stat").map_err(|error| error.to_string())?;
    // user, nice, system, idle, iowait, irq, softirq, steal
    let fields = text.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else { return Err("/proc/stat has no times".into()) };
    Ok(Duration::from_millis((user + nice + system + irq + softirq) * 10))
}

/// Simulates the fence. All hosts share this machine's cores.
fn predict(hosts: u32, (ppn, keys): (u32, u32), mbit: u32, fanout: u32, carried_ps: u64) -> Result<Duration, String> {
    let (usual, each) = (Costs::default(), u64::from(keys.max(1)));
    // A simulated rank puts one entry: so many of them cost what a rank does.
    let costs = Costs {
        put: usual.put / each,
        arrival: usual.arrival / each,
        release: usual.release / each,
        rank_turn: usual.rank_turn / each,
        rank_fence: usual.rank_fence / each,
        board: BoardCosts {
            byte_sent_ps: usual.board.byte_sent_ps + carried_ps / 2,
            byte_received_ps: usual.board.byte_received_ps + carried_ps / 2,
            ..usual.board
        },
        ..usual
    };
    let spec = Spec {
        nodes: hosts,
        ppn: ppn * keys,
        costs,
        cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as u32),
        fanout,
        value_min: VALUE_BYTES,
        value_max: VALUE_BYTES,
        pattern: Pattern::Fences,
        latency: Some(Duration::from_micros(50)),
        bandwidth: Some((f64::from(mbit) * 1e6 / 8.0 * PAYLOAD) as u64),
        ..Spec::default()
    };
    let report = sim::run(&spec).map_err(|error| error.to_string())?;
    let fence = report.fences.first().ok_or("no fence was simulated")?;
    Ok(Duration::from_nanos(fence.releasing))
}

fn arguments() -> ArgMatches {
    parse(
        clap::Command::new("links")
            .arg(number("hosts", "64", "number of hosts"))
            .arg(number("ppn", "4", "ranks per host"))
            .arg(number("mbit", "100", "megabits per second that a host can send"))
            .arg(number("keys", "20", "values of 1000 bytes that each rank puts"))
            .arg(number("rounds", "3", "number of runs of each job"))
            .arg(
                Arg::new("fanouts")
                    .long("fanouts")
                    .value_delimiter(',')
                    .value_parser(value_parser!(u32))
                    .default_value("0,2,4,8,32")
                    .help("the fan-outs to compare; 0 is the default of scela-run"),
            )
            .arg(
                Arg::new("cards")
                    .long("cards")
                    .action(clap::ArgAction::SetTrue)
                    .help("values of which most bytes are the same, as in business cards"),
            )
            .arg(Arg::new("also").long("also").value_name("PROGRAM").help("also run this build of scela-run")),
    )
}
