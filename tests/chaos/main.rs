//! Runs random sessions that meet one or two faults at random moments, and checks that each ends in time, with a code
//! and a report that the faults explain, and leaves nothing behind.
//!
//! Sessions of the seed `SCELA_CHAOS_SEED` (default: 1) are run until `SCELA_CHAOS_SECONDS` are over (default: 200), or
//! `SCELA_CHAOS_SESSIONS` of them. `SCELA_CHAOS_ONLY` repeats one session of a seed.
//!
//! As in the soak, this process is a child subreaper: processes that a session leaves behind become its children, also
//! those that have cleared their environment. As root it starts itself again with a /dev/shm of its own, so that files
//! of other processes are not taken for those of a session. For the same reasons it has no libtest harness.

mod draw;
mod lateness;
mod oracle;
mod pool;
mod reader;
mod stage;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use draw::{Place, Session};
use stage::Stage;
use tests::{Cluster, Random, is_wanted};

/// The name under which libtest would list this test.
const NAME: &str = "sessions_survive_faults_or_end_in_time_and_leave_nothing";
/// The default seed. It is fixed, so that only the timing of processes differs between two runs of a commit's checks.
const SEED: u64 = 1;
/// How long sessions are started, by default.
const SECONDS: u64 = 200;
/// The number of reported failures after which the test gives up.
const FAILURES_MAX: usize = 20;
/// The variable by which this program knows that it has started itself again.
const AGAIN: &str = "SCELA_CHAOS_AGAIN";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !is_wanted(NAME, &arguments) {
        return ExitCode::SUCCESS;
    }
    start_again();
    match chaos(&Settings::from_environment()) {
        Ok(()) => {
            println!("test {NAME} ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("test {NAME} ... FAILED\n{why}\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program again with signals as a terminal's shell leaves them, and as root with a mount namespace and a
/// /dev/shm of its own. Returns if that has been done.
fn start_again() {
    if std::env::var_os(AGAIN).is_some() {
        return;
    }
    let own = std::env::current_exe().expect("/proc is mounted");
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM,PIPE"]);
    let mut again = "signals";
    if Cluster::missing().is_none() {
        let script = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec \"$@\"";
        command.args(["unshare", "--mount", "sh", "-c", script, "sh"]);
        again = "memory";
    }
    let error = command.arg(own).args(std::env::args_os().skip(1)).env(AGAIN, again).exec();
    panic!("failed to start again: {error}");
}

/// Returns whether no other process uses the /dev/shm of this one.
fn has_own_shared_memory() -> bool {
    std::env::var(AGAIN).is_ok_and(|again| again == "memory")
}

/// The sessions to run.
struct Settings {
    seed: u64,
    numbers: std::ops::Range<u64>,
    /// When no further session is started.
    until: Option<Instant>,
}

impl Settings {
    fn from_environment() -> Self {
        let number = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name}={value} is no number")))
        };
        let seed = number("SCELA_CHAOS_SEED").unwrap_or(SEED);
        let seconds = number("SCELA_CHAOS_SECONDS").unwrap_or(SECONDS);
        match (number("SCELA_CHAOS_ONLY"), number("SCELA_CHAOS_SESSIONS")) {
            (Some(only), _) => Self { seed, numbers: only..only + 1, until: None },
            (None, Some(count)) => Self { seed, numbers: 0..count, until: None },
            (None, None) => {
                Self { seed, numbers: 0..u64::MAX, until: Some(Instant::now() + Duration::from_secs(seconds)) }
            }
        }
    }
}

/// The sessions of a kind of fault.
#[derive(Default)]
struct Tally {
    sessions: u32,
    failures: u32,
}

fn chaos(settings: &Settings) -> Result<(), String> {
    nla::sys::become_subreaper().expect("Linux has it");
    if let Some(why) = Cluster::missing() {
        tests::skip(&format!("sessions on hosts and those with some limits: {why}"));
    }
    let begun = Instant::now();
    let mut stage = Stage::new();
    let mut failures: Vec<String> = Vec::new();
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let (mut played, mut on_hosts, mut skipped) = (0u32, 0u32, 0u32);
    let mut open = None;
    let Settings { seed, numbers, until } = settings;
    for number in numbers.clone() {
        let is_late = until.is_some_and(|until| Instant::now() > until);
        if is_late || failures.len() >= FAILURES_MAX {
            break;
        }
        let session = Session::draw(&mut Random::of_session(*seed, number));
        if session.needs_root() && Cluster::missing().is_some() {
            skipped += 1;
            continue;
        }
        let at = Instant::now();
        let mut result = stage.play(&session);
        // The first session is exempt: it may open descriptors that stay open.
        let descriptors = stage::descriptors(open.unwrap_or(usize::MAX));
        if open.is_some_and(|open| descriptors > open) && result.is_ok() {
            result = Err(format!("  the test has {descriptors} descriptors open, and had {open:?}"));
        }
        open = Some(descriptors);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("chaos: {seed}/{number} {verdict} in {:.1} s: {session}", at.elapsed().as_secs_f64());
        played += 1;
        on_hosts += u32::from(matches!(session.place, Place::Hosts { .. }));
        for fault in &session.faults {
            let tally = tallies.entry(fault.what.kind()).or_default();
            tally.sessions += 1;
            tally.failures += u32::from(result.is_err());
        }
        if let Err(why) = result {
            let failure = format!(
                "--- session {number} of seed {seed} failed\n  {session}\n{why}\n    again: SCELA_CHAOS_SEED={seed} \
                     SCELA_CHAOS_ONLY={number} cargo test --release -p tests --test chaos\n"
            );
            println!("{failure}");
            failures.push(failure);
        }
    }
    let took = begun.elapsed().as_secs_f64();
    println!(
        "chaos: {played} sessions ({on_hosts} on hosts, {skipped} left out) in {took:.1} s, {} failures",
        failures.len()
    );
    for (kind, Tally { sessions, failures }) in &tallies {
        println!("  {sessions:5} sessions, {failures:3} failures: {kind}");
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.concat()) }
}
