//! Checks that sessions leave nothing behind: processes, shared memory, sockets, temporary files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// The time that the kernel may take to close the last connections.
const SOCKETS_TIME: Duration = Duration::from_secs(30);

/// The state of the machine before the first session.
pub(crate) struct Before {
    shared_memory: BTreeSet<String>,
    temporary: BTreeSet<String>,
    orphaned_sockets: u64,
}

impl Before {
    /// Records the state.
    pub(crate) fn record() -> Self {
        Self { shared_memory: shared_memory(), temporary: temporary(), orphaned_sockets: orphaned_sockets() }
    }

    /// Reads the state again and reports what is new.
    pub(crate) fn compare(&self) -> Result<(), String> {
        let new = |before: &BTreeSet<String>, after: BTreeSet<String>| -> Vec<String> {
            after.difference(before).cloned().collect()
        };
        let memory = new(&self.shared_memory, shared_memory());
        if !memory.is_empty() {
            return Err(format!("  left in /dev/shm: {memory:?}"));
        }
        let temporary = new(&self.temporary, temporary());
        if !temporary.is_empty() {
            return Err(format!("  left in {}: {temporary:?}", std::env::temp_dir().display()));
        }
        let begun = Instant::now();
        while orphaned_sockets() > self.orphaned_sockets {
            if begun.elapsed() > SOCKETS_TIME {
                return Err(format!("  {} sockets that no process owns are left", orphaned_sockets()));
            }
            pause();
        }
        Ok(())
    }
}

/// Returns the names in /dev/shm. No session here runs MPICH, so the names of MPICH belong to other tests on this
/// machine.
fn shared_memory() -> BTreeSet<String> {
    entries(Path::new("/dev/shm")).into_iter().filter(|name| !name.starts_with("mpich")).collect()
}

/// Returns the temporary files whose names begin with the project's, outside the directories of the sessions.
fn temporary() -> BTreeSet<String> {
    entries(&std::env::temp_dir()).into_iter().filter(|name| name.starts_with("scela")).collect()
}

fn entries(place: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(place).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the number of TCP sockets that belong to no process and are not in TIME_WAIT. Every other socket has an
/// owner, and a more exact check shows that no process of a session is left.
fn orphaned_sockets() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let mut words = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default().split(' ');
    let count = words.by_ref().find(|word| *word == "orphan").and_then(|_| words.next());
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Checks that this process has no children. The error lists the children, whose ancestors have all ended, after
/// killing them.
pub(crate) fn no_children() -> Result<(), String> {
    if !has_children() {
        return Ok(());
    }
    let text = describe_descendants();
    end_orphans();
    Err(text)
}

/// Checks that a directory is empty. The error names the files that were found, which are removed.
pub(crate) fn no_files(place: &Path) -> Result<(), String> {
    let names = entries(place);
    for name in &names {
        let path = place.join(name);
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
    if names.is_empty() { Ok(()) } else { Err(format!("{names:?}")) }
}

/// Kills a launcher that hangs, and all processes that it started.
pub(crate) fn end_all(launcher: &mut Child) {
    let _ = launcher.kill();
    let _ = launcher.wait();
}

fn has_children() -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    waitid(Id::All, flags) != Err(Errno::ECHILD)
}

fn end_orphans() {
    while has_children() {
        nla::sys::kill_children(9);
        let reap = || waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
        while matches!(reap(), Ok(status) if status != WaitStatus::StillAlive) {}
        pause();
    }
}

fn pause() {
    let _ = poll(&mut [], PollTimeout::from(2_u8));
}

/// Lists the descendants of this process: pid, parent, state, place in the kernel, command line.
pub(crate) fn describe_descendants() -> String {
    let mut known = BTreeSet::from([std::process::id()]);
    let mut processes: Vec<(u32, u32, String)> = entries(Path::new("/proc"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter_map(|pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            let mut words = rest.split(' ');
            let state = words.next()?.to_owned();
            Some((pid, words.next()?.parse().ok()?, state))
        })
        .collect();
    processes.sort_unstable();
    loop {
        let more: Vec<u32> =
            processes.iter().filter(|(_, parent, _)| known.contains(parent)).map(|(pid, ..)| *pid).collect();
        let before = known.len();
        known.extend(more);
        if known.len() == before {
            break;
        }
    }
    known.remove(&std::process::id());
    let mut text = String::new();
    for (pid, parent, state) in processes.iter().filter(|(pid, ..)| known.contains(pid)) {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let place = String::from_utf8_lossy(&read("wchan")).into_owned();
        let threads = entries(Path::new(&format!("/proc/{pid}/task"))).len();
        text += &format!("    {pid} (child of {parent}) {state} in {place}, {threads} threads: {command}\n");
    }
    text
}
