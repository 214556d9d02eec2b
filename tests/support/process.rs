//! What the kernel tells about a process.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process as it was when it was looked at.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// What it does: R, S, D, T, Z and so on.
    pub state: char,
    /// What it calls itself, or its program is called: the first 15 bytes.
    pub name: String,
    /// Its command line; empty for a zombie.
    pub argv: Vec<String>,
}

impl Process {
    /// The process `pid`, if there is one.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let argv = strings(&fs::read(format!("/proc/{pid}/cmdline")).ok()?);
        // The name may hold blanks and parentheses.
        let (before, fields) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self { pid, state, parent: number()?, group: number()?, name, argv })
    }

    /// All processes.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Self::of).collect()
    }

    /// The processes that its main thread has started and that are still its children, the oldest
    /// first.
    pub fn children(&self) -> Vec<Self> {
        let pids = fs::read_to_string(self.file(&format!("task/{}/children", self.pid))).unwrap_or_default();
        pids.split_ascii_whitespace().filter_map(|pid| Self::of(pid.parse().ok()?)).collect()
    }

    /// The environment that it was started with, as far as it may be seen.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let entries = strings(&fs::read(self.file("environ")).unwrap_or_default());
        entries.iter().filter_map(|entry| entry.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Its rank, if it was started as one or by one.
    pub fn rank(&self) -> Option<u32> {
        self.environment().get("PMI_RANK")?.parse().ok()
    }

    /// What its descriptors lead to.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.file("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    }

    /// Inodes of the sockets that it holds.
    pub fn socket_inodes(&self) -> Vec<u64> {
        let inode = |link: &PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
        self.open_files().iter().filter_map(inode).collect()
    }

    /// Bytes of memory that it has for itself: anonymous, resident.
    pub fn anonymous_bytes(&self) -> u64 {
        let status = fs::read_to_string(self.file("status")).unwrap_or_default();
        let kibibytes =
            |line: &str| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
        status.lines().find_map(kibibytes).unwrap_or_default() * 1024
    }

    /// Its state now; `None` when it is gone.
    pub fn state_now(&self) -> Option<char> {
        Self::of(self.pid).map(|process| process.state)
    }

    /// Sends it a signal. That it is gone already is no failure.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// A file about it in /proc.
    pub fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }
}

fn strings(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
