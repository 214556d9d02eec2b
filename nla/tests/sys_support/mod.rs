//! A small test harness for cases that start and reap processes.
//!
//! `waitid(P_ALL)` affects the whole process, so each case runs in a process of its own: this test binary, started
//! again with `--case`. With `--role` the binary acts as a rank, an agent or another process of a case. A case that
//! exceeds its deadline or leaves processes behind has failed.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The timeout of each wait: long enough for a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) type Case = (&'static str, fn());
pub(crate) type Role = (&'static str, fn(&[String]));

/// Runs a test binary. Call it from `main`.
pub(crate) fn run(cases: &[Case], roles: &[Role]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("--role") => {
            let name = &args[1];
            let (_, role) = roles.iter().find(|(known, _)| known == name).expect("a known role");
            role(&args[2..]);
            return ExitCode::SUCCESS;
        }
        Some("--case") => {
            let name = &args[1];
            let (_, case) = cases.iter().find(|(known, _)| known == name).expect("a known case");
            case();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let exact = args.iter().any(|arg| arg == "--exact");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| {
        let matches = |filter: &&String| {
            if exact { name == **filter } else { name.contains(*filter) }
        };
        filters.is_empty() || filters.iter().any(matches)
    };
    // Some tools ask for the ignored tests: no case is ignored.
    let ignored = args.iter().any(|arg| arg == "--ignored");
    let chosen: Vec<_> = cases.iter().filter(|(name, _)| !ignored && wanted(name)).collect();
    if args.iter().any(|arg| arg == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    nla::sys::become_subreaper().expect("Linux has child subreapers");
    let mut failed = 0;
    for (name, _) in &chosen {
        match run_case(name) {
            Ok(()) => println!("test {name} ... ok"),
            Err(why) => {
                failed += 1;
                println!("test {name} ... FAILED\n{why}");
            }
        }
    }
    println!("\ntest result: {} passed; {failed} failed\n", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_case(name: &str) -> Result<(), String> {
    let log = tempfile::tempfile().expect("a temporary file can be created");
    let copy = || Stdio::from(log.try_clone().expect("descriptors are left"));
    let mut case = myself(&["--case", name]);
    let mut case =
        case.stdin(Stdio::null()).stdout(copy()).stderr(copy()).spawn().expect("this program can be started");
    let mut status = None;
    let in_time = holds(2 * TIMEOUT, || {
        status = case.try_wait().expect("it is our child");
        status.is_some()
    });
    let mut why = String::new();
    match status {
        Some(status) if status.success() => {}
        Some(status) => why = format!("the case ended with {status}"),
        None => why = "the case did not end in time".to_owned(),
    }
    if nla::sys::has_children() {
        if in_time {
            why += "; the case left processes behind";
        }
        end_all_children();
    }
    if why.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    let mut log = log;
    std::io::Seek::rewind(&mut log).expect("a file can be rewound");
    let _ = log.read_to_string(&mut text);
    Err(format!("{why}\n--- output of the case\n{text}---"))
}

/// Kills and reaps all children, as agents do.
pub(crate) fn end_all_children() {
    until("the children to end", || {
        nla::sys::kill_children(9);
        while nla::sys::reap().is_some() {}
        !nla::sys::has_children()
    });
}

/// Returns a command that runs this program again.
pub(crate) fn myself(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("/proc is mounted"));
    command.args(args);
    command
}

/// Waits until a condition is true. Panics after [`TIMEOUT`].
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds(TIMEOUT, condition), "timed out waiting for {what}");
}

/// Waits until a condition is true. Returns false after `timeout`.
pub(crate) fn holds(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > timeout {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Returns whether the process runs. A zombie does not.
pub(crate) fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    !state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// Role: sleeps for a bounded time.
pub(crate) fn sleeper(_: &[String]) {
    std::thread::park_timeout(2 * TIMEOUT);
}

/// Role: starts a sleeper in a new session by a double fork, prints its pid, and exits, as a daemon does.
pub(crate) fn daemon(args: &[String]) {
    match args.first() {
        None => {
            let mut again = myself(&["--role", "daemon", "inner"]);
            again.spawn().expect("this program can be started").wait().expect("it is our child");
        }
        Some(_) => {
            nla::sys::new_session().expect("this process leads no group");
            let mut sleeper = myself(&["--role", "sleeper"]);
            let sleeper = sleeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            println!("daemon {}", sleeper.spawn().expect("this program can be started").id());
        }
    }
}
