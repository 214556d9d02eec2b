//! The descendants of the bench, found by their parents' process ids.
//!
//! The bench is a child subreaper (see [`crate::machine::isolate`]), so a process whose parents have
//! exited is still a descendant, and no process that a launcher starts is missed. Only descendants are
//! ever signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// Returns all running descendants of `ancestor`, parents before children.
#[must_use]
pub fn descendants(ancestor: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<Stat>> = BTreeMap::new();
    for stat in all_stats() {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut front = vec![ancestor.as_raw()];
    while let Some(parent) = front.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            front.push(child.pid);
            if !child.is_zombie {
                found.push(Pid::from_raw(child.pid));
            }
        }
    }
    found
}

/// Waits until no process of a run whose launcher has exited is left. Kills those that remain after a
/// timeout, and returns their number.
///
/// The bench must have no other child, except the processes of services.
#[must_use]
pub fn settle(services: &BTreeSet<Pid>) -> usize {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        reap();
        let left = others(services);
        if left.is_empty() {
            return 0;
        }
        if Instant::now() > deadline {
            end_all_but(services);
            return left.len();
        }
        thread::sleep(TICK);
    }
}

/// Kills all descendants of the bench, again and again until none is left, within a bound.
pub fn end_all() {
    end_all_but(&BTreeSet::new());
}

fn end_all_but(services: &BTreeSet<Pid>) {
    for _ in 0..ROUNDS_MAX {
        let left = others(services);
        if left.is_empty() {
            return;
        }
        for pid in left {
            // ESRCH is expected: it may have exited already.
            let _ = kill(pid, Signal::SIGKILL);
        }
        reap();
        thread::sleep(TICK);
    }
}

/// Returns all descendants of the bench that do not belong to services.
#[must_use]
pub fn others(services: &BTreeSet<Pid>) -> Vec<Pid> {
    let mut all = descendants(getpid());
    all.retain(|pid| !services.contains(pid));
    all
}

/// Returns the command line of a process.
#[must_use]
pub fn command_line(pid: Pid) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// Returns the name of a process: the first 15 bytes of its own or its program's name.
#[must_use]
pub fn name(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Reaps all exited children, including adopted orphans.
fn reap() {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
            Ok(_) | Err(_) => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    parent: i32,
    is_zombie: bool,
}

fn all_stats() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// Parses `pid (name) state ppid ...`, where the name may contain any characters, even parentheses.
fn parse_stat(line: &str) -> Option<Stat> {
    let (before, after) = line.rsplit_once(')')?;
    let pid = before.split_once(' ')?.0.parse().ok()?;
    let mut fields = after.split_whitespace();
    let state = fields.next()?;
    Some(Stat { pid, parent: fields.next()?.parse().ok()?, is_zombie: matches!(state, "Z" | "X") })
}

/// How long processes of a launcher may outlive it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(5);
const ROUNDS_MAX: u32 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_parentheses() {
        let stat = parse_stat("77 (a) (b) Z 12 77 77 0").unwrap();
        assert_eq!(stat, Stat { pid: 77, parent: 12, is_zombie: true });
        assert_eq!(parse_stat("no process"), None);
    }

    #[test]
    fn this_process_has_a_command_line() {
        assert!(command_line(getpid())[0].contains("benches"));
    }
}
