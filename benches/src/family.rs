//! The processes that descend from the bench, found by who started whom.
//!
//! The bench is a child subreaper (see [`crate::machine::isolate`]), so that a process whose parents are gone still
//! descends from it, and nothing that a launcher starts gets lost. Only descendants are ever signalled.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// All processes below `ancestor` that have not ended, parents before children.
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

/// Waits until nothing is left of a run whose launcher has ended, and ends what stays; how many had to be ended.
///
/// The bench must have no other child.
#[must_use]
pub fn settle() -> usize {
    let patience = Instant::now() + PATIENCE;
    loop {
        reap();
        let left = descendants(getpid());
        if left.is_empty() {
            return 0;
        }
        if Instant::now() > patience {
            end_all();
            return left.len();
        }
        thread::sleep(TICK);
    }
}

/// Kills every descendant of the bench until there is none, within a bound.
pub fn end_all() {
    for _ in 0..ROUNDS_MAX {
        let left = descendants(getpid());
        if left.is_empty() {
            return;
        }
        for pid in left {
            // Gone already is as good.
            let _ = kill(pid, Signal::SIGKILL);
        }
        reap();
        thread::sleep(TICK);
    }
}

/// The words of a process's command line.
#[must_use]
pub fn command_line(pid: Pid) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// What a process calls itself, or its program is called: the first 15 bytes.
#[must_use]
pub fn name(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Reaps what has ended, adopted orphans too.
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

/// `pid (name) state ppid ...`, where the name may hold anything, parentheses too.
fn parse_stat(line: &str) -> Option<Stat> {
    let (before, after) = line.rsplit_once(')')?;
    let pid = before.split_once(' ')?.0.parse().ok()?;
    let mut fields = after.split_whitespace();
    let state = fields.next()?;
    Some(Stat { pid, parent: fields.next()?.parse().ok()?, is_zombie: matches!(state, "Z" | "X") })
}

/// How long a launcher's helpers may outlive it.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(5);
const ROUNDS_MAX: u32 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_are_read_past() {
        let stat = parse_stat("77 (a) (b) Z 12 77 77 0").unwrap();
        assert_eq!(stat, Stat { pid: 77, parent: 12, is_zombie: true });
        assert_eq!(parse_stat("no process"), None);
    }

    #[test]
    fn this_process_has_a_command_line() {
        assert!(command_line(getpid())[0].contains("benches"));
    }
}
