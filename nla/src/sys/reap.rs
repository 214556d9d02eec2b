//! How children end, and how they are made to.
//!
//! All of it belongs to one thread: the one that starts ranks. As long as nobody else waits for
//! children, the pid of a child that has not been returned by [`reap`] cannot be reused, and so a
//! signal reaches that child or nobody.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ended {
    /// It exited with this status, 0 to 255.
    Exited(i32),
    /// A signal killed it.
    Killed {
        /// The signal's number.
        signal: i32,
        /// A core dump was written.
        core: bool,
    },
}

impl Ended {
    /// What a shell would call its exit code: the status, or 128+n for signal n.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed { signal, .. } => 128 + signal,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(status) => write!(f, "exited with {status}"),
            Self::Killed { signal, core } => {
                write!(f, "killed by signal {signal} ({})", signal_name(signal))?;
                if core { f.write_str(", core dumped") } else { Ok(()) }
            }
        }
    }
}

/// The process group of a child that has not been reaped: the only way to signal a rank.
///
/// Got from [`Child::group`](super::spawn::Child::group); to be dropped when [`reap`] returns the
/// child's pid. Pid 0, -1 or one that was never a child of ours cannot be expressed.
#[derive(Debug, PartialEq, Eq)]
pub struct Group(NonZeroU32);

impl Group {
    /// `leader` is the pid of a child that leads its own group; above 1 by the caller's word.
    pub(super) fn led_by(leader: NonZeroU32) -> Self {
        Self(leader)
    }

    /// Sends the signal to every process of the group.
    ///
    /// Fails with ESRCH where nobody of the group is left to signal, with EPERM where all of them
    /// belong to another user.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match i32::try_from(self.0.get()) {
            Ok(leader) if leader > 1 => kill(-leader, signal),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

/// Takes one ended child, with its pid; `None` if there is none to be taken now. Never waits.
///
/// To be called until `None` after each SIGCHLD, of which many may have become one.
pub fn reap() -> Option<(u32, Ended)> {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG).ok().flatten()
}

/// Is there any child, running or ended?
pub fn has_children() -> bool {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).is_ok()
}

/// Is there any child but these, running or ended? Where /proc is not ours nobody can tell, and any child counts.
pub fn has_children_but(spared: &BTreeSet<u32>) -> bool {
    if !has_children() {
        return false;
    }
    match children() {
        Some(children) if !spared.is_empty() => children.iter().any(|&pid| !is_spared(pid, spared)),
        _ => true,
    }
}

/// Is this child stopped by a signal right now?
pub(super) fn is_stopped(pid: u32) -> bool {
    // WNOWAIT: the kernel says it again until the child goes on.
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    matches!(wait(libc::P_PID, pid, flags), Ok(Some(_)))
}

/// Waits until this one child has ended, and takes it.
pub(super) fn reap_one(pid: u32) -> Option<Ended> {
    let (_, ended) = wait(libc::P_PID, pid, libc::WEXITED).ok().flatten()?;
    Some(ended)
}

/// waitid: `Ok(None)` if nothing has happened (with WNOHANG), an error if there is no such child.
fn wait(which: libc::idtype_t, id: u32, flags: libc::c_int) -> io::Result<Option<(u32, Ended)>> {
    loop {
        // SAFETY: a siginfo_t is plain data, for which all zeros are a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: waitid writes into `info`, which lives on our stack.
        if unsafe { libc::waitid(which, id, &raw mut info, flags) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        // SAFETY: after waitid the siginfo_t is either still zero or one of SIGCHLD, which has
        // these two fields.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let Ok(pid @ 1..) = u32::try_from(pid) else {
            return Ok(None);
        };
        let ended = match info.si_code {
            libc::CLD_EXITED => Ended::Exited(status),
            code => Ended::Killed { signal: status, core: code == libc::CLD_DUMPED },
        };
        return Ok(Some((pid, ended)));
    }
}

/// Signals every present child of this process, adopted orphans too; returns how many took it.
///
/// Ended children that have not been reaped count. One pass: what the children leave behind
/// becomes ours (see [`become_subreaper`](super::identity::become_subreaper)) only when they die,
/// so call it in turn with [`reap`] until [`has_children`] says no. 0 while there are children
/// means that they belong to another user (setuid), or that /proc is not ours.
pub fn kill_children(signal: i32) -> usize {
    kill_children_but(signal, &BTreeSet::new())
}

/// The same for every child but these.
pub fn kill_children_but(signal: i32, spared: &BTreeSet<u32>) -> usize {
    let children = children().unwrap_or_default();
    children.into_iter().filter(|&pid| pid > 1 && !is_spared(pid, spared) && kill(pid, signal).is_ok()).count()
}

fn is_spared(pid: i32, spared: &BTreeSet<u32>) -> bool {
    u32::try_from(pid).is_ok_and(|pid| spared.contains(&pid))
}

/// All children, ended ones too; `None` if /proc is not ours.
fn children() -> Option<Vec<i32>> {
    // That of another pid namespace would name strangers.
    let ours = fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own_pid().to_string()));
    ours.then(|| listed_children().unwrap_or_else(scanned_children))
}

/// As the kernel lists them; `None` where it was built without CONFIG_PROC_CHILDREN.
fn listed_children() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(pids) => children.extend(pids.split_ascii_whitespace().flat_map(str::parse::<i32>)),
            // The thread has just ended; or there is no such file at all.
            Err(_) if task.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

/// By looking at everybody's parent.
fn scanned_children() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pid_of = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let parent_of = |pid: i32| -> Option<u32> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // "pid (name) state ppid": the name may contain anything, so from its last parenthesis.
        let end = stat.iter().rposition(|&byte| byte == b')')?;
        std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let entries = entries.flatten();
    entries.filter_map(|entry| pid_of(&entry)).filter(|&pid| parent_of(pid) == Some(own_pid())).collect()
}

/// The short name of a signal: "KILL", "SEGV", "RTMIN+3"; the number where it has none.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    let first = libc::SIGRTMIN();
    if signal == first {
        return "RTMIN".to_owned();
    }
    if (first..=libc::SIGRTMAX()).contains(&signal) {
        return format!("RTMIN+{}", signal - first);
    }
    let index = usize::try_from(signal).ok().and_then(|n| n.checked_sub(1));
    match index.and_then(|index| NAMES.get(index)) {
        Some(&name) => name.to_owned(),
        None => signal.to_string(),
    }
}

/// How many processes the kernel has killed for want of memory where this process lives.
///
/// The counter `oom_kill` of our memory cgroup and all below it (v2: memory.events, v1:
/// memory.oom_control); without one, that of the whole node (/proc/vmstat); `None` if unknown.
/// It only grows: compare a value from before with one from after. A neighbour in the same
/// cgroup counts too, so a difference is evidence, not proof.
pub fn out_of_memory_kills() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let counted = counter_files(&mounts, &groups).into_iter().find_map(|file| counter(&read(&file)?, "oom_kill"));
    counted.or_else(|| counter(&read(Path::new("/proc/vmstat"))?, "oom_kill"))
}

/// Where the counter may be, the nearest cgroup first: v2 counts at the nearest ancestor that has
/// the memory controller.
fn counter_files(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let v2 = id == "0" && controllers.is_empty();
        if !v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let file = if v2 { "memory.events" } else { "memory.oom_control" };
        let Some((root, mount)) = mounts.lines().find_map(|mount| cgroup_mount(mount, v2)) else {
            continue;
        };
        // In a container the mount's root may be our cgroup, or below it.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        for ancestor in below.ancestors() {
            files.push(Path::new(mount).join(ancestor).join(file));
        }
    }
    files
}

/// Root and mount point, if this line of mountinfo is the hierarchy that counts memory.
fn cgroup_mount(line: &str, v2: bool) -> Option<(&str, &str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (filesystem, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
    let wanted = match v2 {
        true => filesystem == "cgroup2",
        false => filesystem == "cgroup" && options.split(',').any(|name| name == "memory"),
    };
    let mut place = place.split(' ').skip(3);
    wanted.then_some((place.next()?, place.next()?))
}

/// The number after `name` at the start of a line.
fn counter(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn own_pid() -> u32 {
    std::process::id()
}

fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two numbers.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        let names = [1, 9, 11, 15, 31, libc::SIGRTMIN(), libc::SIGRTMIN() + 3, 0, -1, 99].map(signal_name);
        assert_eq!(names, ["HUP", "KILL", "SEGV", "TERM", "SYS", "RTMIN", "RTMIN+3", "0", "-1", "99"]);
        let killed = Ended::Killed { signal: 11, core: true };
        assert_eq!(killed.to_string(), "killed by signal 11 (SEGV), core dumped");
        assert_eq!((killed.code(), Ended::Exited(3).code()), (139, 3));
    }

    #[test]
    fn the_counter_is_found_under_both_versions() {
        let v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            counter_files(v2, "0::/job/step\n"),
            ["/sys/fs/cgroup/job/step", "/sys/fs/cgroup/job", "/sys/fs/cgroup"]
                .map(|folder| Path::new(folder).join("memory.events"))
        );
        let v1 = "30 23 0:27 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            counter_files(v1, "5:cpu:/x\n4:memory:/box/job\n0::/\n"),
            ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"]
                .map(|folder| Path::new(folder).join("memory.oom_control"))
        );
        assert_eq!(counter_files("", "0::/\n"), [] as [PathBuf; 0]);
        assert_eq!(counter("oom 1\noom_kill 7\noom_group_kill 2\n", "oom_kill"), Some(7));
        assert_eq!(counter("oom_kill x\n", "oom_kill"), None);
    }

    #[test]
    fn both_ways_to_find_children_agree() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(scanned_children().contains(&pid));
        if let Some(listed) = listed_children() {
            assert!(listed.contains(&pid));
        }
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
}
