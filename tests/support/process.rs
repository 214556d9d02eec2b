//! Processes as /proc describes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A snapshot of a process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The pid.
    pub pid: i32,
    /// The parent's pid.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The session.
    pub session: i32,
    /// The state: R, S, D, T, Z and so on.
    pub state: char,
    /// The first 15 bytes of the name: of its program, or the one that the process has given itself.
    pub name: String,
    /// The command line; empty for a zombie.
    pub argv: Vec<String>,
}

impl Process {
    /// Returns the process `pid`, if it exists.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let argv = strings(&fs::read(format!("/proc/{pid}/cmdline")).ok()?);
        // The name may contain blanks and parentheses.
        let (before, fields) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self { pid, state, parent: number()?, group: number()?, session: number()?, name, argv })
    }

    /// Returns all processes.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Self::of).collect()
    }

    /// Returns the children that its main thread has started and that are still its children, oldest first.
    pub fn children(&self) -> Vec<Self> {
        let pids = fs::read_to_string(self.file(&format!("task/{}/children", self.pid))).unwrap_or_default();
        pids.split_ascii_whitespace().filter_map(|pid| Self::of(pid.parse().ok()?)).collect()
    }

    /// Returns the initial environment, empty if it may not be read.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let entries = strings(&fs::read(self.file("environ")).unwrap_or_default());
        entries.iter().filter_map(|entry| entry.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Returns the rank's number, if the process is a rank or was started by one.
    pub fn rank(&self) -> Option<u32> {
        self.environment().get("PMI_RANK")?.parse().ok()
    }

    /// Returns the targets of the process's descriptors.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.file("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    }

    /// Returns the inodes of the process's sockets.
    pub fn socket_inodes(&self) -> Vec<u64> {
        let inode = |link: &PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
        self.open_files().iter().filter_map(inode).collect()
    }

    /// Returns the bytes of its anonymous resident memory.
    pub fn anonymous_bytes(&self) -> u64 {
        let status = fs::read_to_string(self.file("status")).unwrap_or_default();
        let kibibytes =
            |line: &str| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
        status.lines().find_map(kibibytes).unwrap_or_default() * 1024
    }

    /// Returns the present state, or `None` if the process no longer exists.
    pub fn state_now(&self) -> Option<char> {
        Self::of(self.pid).map(|process| process.state)
    }

    /// Returns the number of bytes that the process has written, 0 if it no longer exists.
    pub fn written_bytes(&self) -> u64 {
        let counts = fs::read_to_string(self.file("io")).unwrap_or_default();
        counts.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap_or_default()
    }

    /// Sends a signal to the process. Ignores a process that no longer exists.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// Returns the path of one of the process's files in /proc.
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
