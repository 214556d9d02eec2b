//! Runs many sessions in a row, drawn from a seed, and checks that `scela-run` always ends in time, with the right
//! exit code, and leaves nothing behind.
//!
//! `SCELA_SOAK_SESSIONS` sets the number of sessions (default: 150). `SCELA_SOAK_SEED` sets the seed (default: a
//! new one, which is printed). `SCELA_SOAK_ONLY` repeats one session of a seed. The program under test is
//! `SCELA_RUN`, or the one that cargo built beside this test.
//!
//! This process is a child subreaper, and launchers are its only children. Any process that a session leaves behind
//! becomes its child, so it asks the kernel for children as soon as the launcher has ended. No other process on the
//! machine can disturb the answer. For the same reason it has no libtest harness.

mod draw;
mod leftovers;
mod rank;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use draw::Round;
use leftovers::Before;
use tests::{Random, is_wanted};

/// The name under which libtest would list this test.
const NAME: &str = "sessions_end_in_time_with_the_right_code_and_leave_nothing";
/// The default number of sessions, which run within a minute.
const SESSIONS: u64 = 150;
/// The number of reported failures after which the test gives up.
const FAILURES_MAX: usize = 20;
/// The number of slowest sessions that are listed.
const SLOWEST: usize = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == rank::ARGUMENT) {
        return rank::run(&arguments[1..]);
    }
    if !is_wanted(NAME, &arguments) {
        return ExitCode::SUCCESS;
    }
    match soak(&Settings::from_environment()) {
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

struct Settings {
    program: PathBuf,
    seed: u64,
    sessions: std::ops::Range<u64>,
}

impl Settings {
    fn from_environment() -> Self {
        let number = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name}={value} is no number")))
        };
        let fresh = || {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            now.as_nanos() as u64 % 1_000_000_000
        };
        let sessions = match number("SCELA_SOAK_ONLY") {
            Some(only) => only..only + 1,
            None => 0..number("SCELA_SOAK_SESSIONS").unwrap_or(SESSIONS),
        };
        Self { program: program(), seed: number("SCELA_SOAK_SEED").unwrap_or_else(fresh), sessions }
    }
}

/// The launcher under test.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("SCELA_RUN") {
        return PathBuf::from(program);
    }
    let own = std::env::current_exe().expect("/proc is mounted");
    let beside = own.parent().and_then(|deps| deps.parent()).map(|profile| profile.join("scela-run"));
    beside.filter(|program| program.exists()).expect("no scela-run: build it, or say where it is by SCELA_RUN")
}

fn soak(settings: &Settings) -> Result<(), String> {
    let Settings { program, seed, sessions } = settings;
    println!("soak: seed {seed}, sessions {} to {}, {}", sessions.start, sessions.end, program.display());
    nla::sys::become_subreaper().expect("Linux has it");
    let begun = Instant::now();
    let place = tempfile::Builder::new().prefix("soak-").tempdir().expect("a place for temporary files");
    let before = Before::record();
    let mut failures: Vec<String> = Vec::new();
    let mut times: Vec<(Duration, u64)> = Vec::new();
    for number in sessions.clone() {
        let round = Round::draw(&mut Random::of_session(*seed, number), number);
        let at = Instant::now();
        if let Err(why) = run::round(program, &round, place.path()) {
            let failure = format!(
                "--- session {number} of seed {seed} failed, after {:.1} s\n{why}\n    \
                 again: SCELA_SOAK_SEED={seed} SCELA_SOAK_ONLY={number} cargo test -p tests --test soak --release\n",
                at.elapsed().as_secs_f64()
            );
            println!("{failure}");
            failures.push(failure);
            if failures.len() == FAILURES_MAX {
                break;
            }
        }
        times.push((at.elapsed(), number));
    }
    if let Err(why) = before.compare() {
        failures.push(format!("--- after all sessions of seed {seed}\n{why}\n"));
    }
    let took = begun.elapsed();
    println!("soak: {} sessions in {:.1} s, {} failures", times.len(), took.as_secs_f64(), failures.len());
    times.sort_unstable_by(|left, right| right.cmp(left));
    for (time, number) in times.iter().take(SLOWEST) {
        let round = Round::draw(&mut Random::of_session(*seed, *number), *number);
        println!("  {:6.2} s  session {number}: {round}", time.as_secs_f64());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.concat()) }
}
