//! Reaping and killing children.
//!
//! Only one thread reaps and signals, except that the spawner thread reaps a child that could not exec (see
//! [`Launching`](super::launching::Launching)). The pid of a child that was not reaped cannot be reused, so a signal
//! reaches that child or no process.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::memory::resident_bytes;
use super::shared_files::processes;

/// The most bytes of an environment that are read: the kernel's default bound for arguments and environment.
const ENVIRONMENT_BYTES_MAX: u64 = 2 << 20;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ended {
    /// The process exited with this status, 0 to 255.
    Exited(i32),
    /// A signal killed the process.
    Killed {
        /// The signal's number.
        signal: i32,
        /// A core dump was written.
        core: bool,
    },
}

impl Ended {
    /// Returns the exit code that a shell would report: the status, or 128+n for signal n.
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

/// Holds back SIGCHLD from this thread while it exists. The kernel merges the signals and delivers one at the drop.
#[derive(Debug)]
pub struct ExitSignalsHeld {
    /// A signal mask belongs to a thread.
    _of_thread: PhantomData<*const ()>,
}

impl ExitSignalsHeld {
    /// Holds back SIGCHLD. The other threads of the process must have called [`leave_exit_signals`].
    pub fn begin() -> Self {
        leave_exit_signals();
        Self { _of_thread: PhantomData }
    }
}

impl Drop for ExitSignalsHeld {
    fn drop(&mut self) {
        // SIGCHLD is a signal that may be unblocked.
        let _ = exit_signal().thread_unblock();
    }
}

/// Blocks SIGCHLD in this thread, for its life: another thread of the process handles it.
pub fn leave_exit_signals() {
    // SIGCHLD is a signal that may be blocked.
    let _ = exit_signal().thread_block();
}

fn exit_signal() -> SigSet {
    SigSet::from(Signal::SIGCHLD)
}

/// Reaps one ended child and returns its pid; `None` if no child has ended. Never blocks.
///
/// After each SIGCHLD call it until it returns `None`, because the kernel merges pending SIGCHLDs.
pub fn reap() -> Option<(u32, Ended)> {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG).ok().flatten()
}

/// Returns one ended child, which stays to be reaped; `None` if no child has ended. Never blocks.
pub(super) fn ended_child() -> Option<(u32, Ended)> {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).ok().flatten()
}

/// Sends SIGKILL to the process group of a child that has not been reaped and whose pid is the group's.
pub fn kill_group(child: u32) {
    if let Ok(group) = i32::try_from(child) {
        // The child itself has ended, so the group may be empty: ESRCH.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

/// Returns whether a process group has members. Those that were not reaped count.
pub fn has_group(group: u32) -> bool {
    i32::try_from(group).is_ok_and(|group| killpg(Pid::from_raw(group), None) != Err(Errno::ESRCH))
}

/// Reaps this child if it has ended. Never blocks.
pub(super) fn reap_ended(pid: u32) -> Option<Ended> {
    let (_, ended) = wait(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG).ok().flatten()?;
    Some(ended)
}

/// Returns whether this process has children, running or ended.
pub fn has_children() -> bool {
    wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).is_ok()
}

/// Returns whether all children but `spared` are in uninterruptible sleep, and there is one. SIGKILL ends them only when
/// the kernel wakes them. Returns their pids.
pub fn blocked_children_but(spared: &BTreeSet<u32>) -> Option<Vec<u32>> {
    let left = children()?.into_iter().filter_map(|pid| u32::try_from(pid).ok()).filter(|pid| !spared.contains(pid));
    let left: Vec<u32> = left.collect();
    (!left.is_empty() && left.iter().all(|pid| process_state(*pid) == Some(b'D'))).then_some(left)
}

/// Returns whether this process has children other than `spared`, running or ended. If /proc belongs to another pid
/// namespace, every child counts.
pub fn has_children_but(spared: &BTreeSet<u32>) -> bool {
    if !has_children() {
        return false;
    }
    match children() {
        Some(children) if !spared.is_empty() => children.iter().any(|&pid| !is_spared(pid, spared)),
        _ => true,
    }
}

/// Returns all children except `spared`, including ended ones. If /proc belongs to another pid namespace, there are none.
pub fn children_but(spared: &BTreeSet<u32>) -> BTreeSet<u32> {
    let all = children().unwrap_or_default().into_iter().filter_map(|pid| u32::try_from(pid).ok());
    all.filter(|pid| *pid > 1 && !spared.contains(pid)).collect()
}

/// Returns all descendants except `spared` and those below them. Looks at all processes.
pub fn descendants_but(spared: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut found = children_but(spared);
    let parents = processes().into_iter().filter(|pid| !spared.contains(pid));
    let parents: Vec<(u32, u32)> = parents.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    loop {
        let below: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if below.is_empty() {
            return found;
        }
        found.extend(below);
    }
}

/// Sends a signal to these processes. Those that have ended are ignored.
pub fn signal_all(pids: &BTreeSet<u32>, signal: i32) {
    for pid in pids {
        let _ = kill(pid.cast_signed(), signal);
    }
}

/// Returns the name of the program that a process runs, as the kernel has it; `None` if there is no such process, or it has ended.
pub fn program_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok().filter(|_| process_state(pid) != Some(b'Z'))?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Returns the report about a second process that has joined as a rank, without the rank and the host.
pub fn refusal_text(second: Option<u32>, first: Option<u32>, fate: &str) -> String {
    let named = |pid: Option<u32>, unknown: &str| match pid {
        None => unknown.to_owned(),
        Some(pid) => {
            let name = program_of(pid).map_or(String::new(), |name| format!(" ({name})"));
            format!("process {pid}{name}")
        }
    };
    let (second, first) = (named(second, "another process"), named(first, "a process that runs"));
    format!("{second} tried to join as this rank, which {first} still is, and was {fate}")
}

/// Returns a variable of a process's initial environment; `None` without it, or if the kernel does not show the environment.
pub fn variable_of(pid: u32, name: &str) -> Option<String> {
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment).ok()?;
    let mut entries = environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Returns whether a signal has stopped this child.
pub fn is_stopped(pid: u32) -> bool {
    // WNOWAIT: the kernel reports the stop again until the child continues.
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    matches!(wait(libc::P_PID, pid, flags), Ok(Some(_)))
}

/// Waits until this child has ended and reaps it.
pub(super) fn reap_one(pid: u32) -> Option<Ended> {
    let (_, ended) = wait(libc::P_PID, pid, libc::WEXITED).ok().flatten()?;
    Some(ended)
}

/// Calls waitid. Returns `Ok(None)` if no child has changed its state (with WNOHANG), an error if there is no such
/// child.
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
        // SAFETY: after waitid the siginfo_t is either still zero or that of a SIGCHLD, which has these two fields.
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

/// Returns the letter of a process's state in /proc/PID/stat: R, S, D, T and so on; `None` if there is no such process.
pub fn process_state(pid: u32) -> Option<u8> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any byte.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied()
}

/// Whether the process has a handler for the signal. False if there is no such process.
pub fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    (1..=64).contains(&signal) && mask & (1 << (signal - 1)) != 0
}

/// Signals all current children of this process, including adopted orphans. Returns how many were signalled.
///
/// Ended children that were not reaped count. The function makes one pass: the orphans of a child become ours (see
/// [`become_subreaper`](super::identity::become_subreaper)) only when the child dies. So call it alternately with
/// [`reap`] until [`has_children`] returns false. A result of 0 while there are children means that they belong to
/// another user (setuid), or that /proc belongs to another pid namespace.
pub fn kill_children(signal: i32) -> usize {
    kill_children_but(signal, &BTreeSet::new())
}

/// Signals all children except `spared`; see [`kill_children`].
pub fn kill_children_but(signal: i32, spared: &BTreeSet<u32>) -> usize {
    let children = children().unwrap_or_default();
    children.into_iter().filter(|&pid| pid > 1 && !is_spared(pid, spared) && kill(pid, signal).is_ok()).count()
}

/// Returns the memory that all current children of this process have.
pub(super) fn memory_of_children() -> u64 {
    resident_bytes(children().unwrap_or_default().into_iter().filter_map(|pid| u32::try_from(pid).ok()))
}

/// Makes this process adopt orphaned descendants, which [`end_orphans`] then ends. Returns false and changes nothing if it
/// has children already, as a program that a shell script executes may have: their orphans are not ours to end.
pub fn adopt_orphans() -> io::Result<bool> {
    if has_children() {
        return Ok(false);
    }
    super::identity::become_subreaper()?;
    Ok(true)
}

/// Reaps and kills all children but `spared`. With `spares_agents`, agents that have lost their guardian run on: they end
/// their ranks themselves. Returns how many children were left.
pub fn end_orphans(spared: &BTreeSet<u32>, spares_agents: bool) -> usize {
    let orphans = children().unwrap_or_default().into_iter().filter(|&pid| pid > 1 && !is_spared(pid, spared));
    let is_agent = |pid: i32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"scela-agent\n");
    let is_left = |pid: i32| {
        if reap_ended(pid.unsigned_abs()).is_some() {
            return false;
        }
        if !(spares_agents && is_agent(pid)) {
            // A refusal means that the process belongs to another user (setuid).
            let _ = kill(pid, libc::SIGKILL);
        }
        true
    };
    orphans.filter(|&pid| is_left(pid)).count()
}

fn is_spared(pid: i32, spared: &BTreeSet<u32>) -> bool {
    u32::try_from(pid).is_ok_and(|pid| spared.contains(&pid))
}

/// Returns all children, including ended ones; `None` if /proc belongs to another pid namespace.
pub(super) fn children() -> Option<Vec<i32>> {
    if !has_children() {
        // Faster than /proc.
        return Some(Vec::new());
    }
    // The pids in a /proc of another namespace belong to other processes.
    let ours = fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&std::process::id().to_string()));
    ours.then(|| listed_children().unwrap_or_else(scanned_children))
}

/// Reads the kernel's list of children; `None` if it was built without CONFIG_PROC_CHILDREN.
fn listed_children() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(pids) => children.extend(pids.split_ascii_whitespace().flat_map(str::parse::<i32>)),
            // The thread has just ended, or the kernel has no such file.
            Err(_) if task.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

/// Finds children by checking the parent of each process.
fn scanned_children() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pid_of = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let is_child = |pid: &i32| parent_of(pid.unsigned_abs()) == Some(std::process::id());
    entries.flatten().filter_map(|entry| pid_of(&entry)).filter(is_child).collect()
}

/// Returns the parent of a process.
pub(super) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state ppid": the name can contain any character, so parse from the last parenthesis.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the short name of a signal, such as "KILL", "SEGV" or "RTMIN+3", or its number if it has no name.
pub fn signal_name(signal: i32) -> String {
    let first = libc::SIGRTMIN();
    if signal == first {
        return "RTMIN".to_owned();
    }
    if (first..=libc::SIGRTMAX()).contains(&signal) {
        return format!("RTMIN+{}", signal - first);
    }
    Signal::try_from(signal).map_or(signal.to_string(), |signal| signal.as_str().replacen("SIG", "", 1))
}

pub(super) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two numbers.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a descriptor of this process, with which others may signal it by [`signal_by`]. It is close-on-exec.
pub fn pidfd_of_this() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    match c_int::try_from(fd) {
        // SAFETY: the kernel has just opened it, so no other value owns it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to the process of a pidfd. Fails with ESRCH if the process was reaped, even if another has its pid now.
pub fn signal_by(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = ptr::null::<libc::siginfo_t>();
    // SAFETY: numbers, and a null pointer that the kernel permits.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_signals_are_held_back_until_the_drop() {
        let is_blocked = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGCHLD);
        std::thread::spawn(move || {
            assert!(!is_blocked());
            let held = ExitSignalsHeld::begin();
            assert!(is_blocked());
            drop(held);
            assert!(!is_blocked());
            leave_exit_signals();
            assert!(is_blocked());
        })
        .join()
        .unwrap();
        assert!(!is_blocked(), "the mask is the thread's own");
    }

    #[test]
    fn signals_have_names() {
        let names = [1, 9, 11, 15, 31, libc::SIGRTMIN(), libc::SIGRTMIN() + 3, 0, -1, 99].map(signal_name);
        assert_eq!(names, ["HUP", "KILL", "SEGV", "TERM", "SYS", "RTMIN", "RTMIN+3", "0", "-1", "99"]);
        let killed = Ended::Killed { signal: 11, core: true };
        assert_eq!(killed.to_string(), "killed by signal 11 (SEGV), core dumped");
        assert_eq!((killed.code(), Ended::Exited(3).code()), (139, 3));
    }

    #[test]
    fn a_handler_is_seen_from_outside() {
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, noop as extern "C" fn(i32) as libc::sighandler_t) };
        let own = std::process::id();
        assert_eq!(
            [libc::SIGUSR2, libc::SIGWINCH, 0, 65, -1].map(|signal| catches(own, signal)),
            [true, false, false, false, false]
        );
        assert!(!catches(u32::MAX, libc::SIGUSR2), "there is no such process");
    }

    extern "C" fn noop(_: i32) {}

    #[test]
    fn both_methods_find_the_same_children() {
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
