//! Processes that a lost agent may have left on this machine: its guardian, the guardian's descendants, and processes
//! whose environment names the agent.
//!
//! Reads and signals go through a descriptor of the process's directory in /proc, so they never reach another process that
//! has taken the pid. The descriptor is open only during that operation. A process of another user is never signalled.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::cpu_marks::remove_unused_marks;
use super::kernel_files::read_text;
use super::reap::signal_by;
use super::shared_files::{ProcessFiles, processes, user};

/// The pause between two looks at processes that are to end.
const PAUSE: Duration = Duration::from_millis(20);
/// The most bytes of an environment that are read: the kernel's default bound for arguments and environment.
const ENVIRONMENT_BYTES_MAX: u64 = 2 << 20;

/// Returns a number that is the same for all processes that see this machine's processes under the same pids: of its boot
/// and of the pid namespace. `None` if /proc belongs to another pid namespace.
pub fn machine() -> Option<u64> {
    static MACHINE: OnceLock<Option<u64>> = OnceLock::new();
    *MACHINE.get_or_init(find_machine)
}

fn find_machine() -> Option<u64> {
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str()?.parse() != Ok(std::process::id()) {
        return None;
    }
    let boot = read_text("/proc/sys/kernel/random/boot_id").ok()?;
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(boot as u64 ^ (boot >> 64) as u64 ^ namespace.rotate_left(32))
}

/// Returns when a process started, in clock ticks since the boot; `None` if there is no such process. No two processes
/// have the same pid and the same start.
pub fn start_of(pid: u32) -> Option<u64> {
    Survivor::open(pid)?.started()
}

/// A process: its pid, and when it started.
type Known = (u32, u64);

/// Ends guardians and their agents; each pair names the guardian first. Leaves a process that has taken such a pid but started
/// at another time.
///
/// A guardian is continued first: if it was only stopped, it kills all that its agent has started, and exits. If it has
/// not exited after `timeout`, it gets SIGKILL, and so do its descendants after the same time again: their agent has run on
/// since its guardian died, and should have ended its ranks. An agent whose guardian has died before, and that was stopped
/// since, is ended in the guardian's place. Blocks for twice `timeout` at most.
pub fn end_guardians(all: &[(Known, Known)], timeout: Duration) {
    let own = |&(pid, started): &Known| Some(ProcessId { pid, started }).filter(|one| one.is_own() && one.is_alive());
    let mut guardians: Vec<ProcessId> =
        all.iter().filter_map(|(guardian, agent)| own(guardian).or_else(|| own(agent))).collect();
    guardians.iter().for_each(|guardian| guardian.signal(libc::SIGCONT));
    let have_ended = || {
        guardians.retain(ProcessId::is_alive);
        guardians.is_empty()
    };
    if end_within(timeout, have_ended) {
        return;
    }
    let mut left: Vec<ProcessId> = descendants(&guardians);
    guardians.iter().for_each(|guardian| guardian.signal(libc::SIGKILL));
    let have_ended = || {
        left.retain(ProcessId::is_alive);
        left.is_empty()
    };
    if !end_within(timeout, have_ended) {
        left.iter().for_each(|one| one.signal(libc::SIGKILL));
    }
}

/// Kills all processes of this user whose initial environment has one of the entries `marks` (`NAME=value`), until there
/// are none or the time `limit` is over. Removes the file of their marks of processors, too. Returns how many were killed.
///
/// The kernel hides the environment of a process that is not dumpable, for example of a setuid program.
pub fn end_marked(marks: &[String], limit: Duration) -> usize {
    let mut killed = 0;
    end_within(limit, || {
        let own = processes().into_iter().filter_map(Survivor::open).filter(Survivor::is_own);
        // A child that was forked during the search inherits the environment, and is found by the next one.
        let marked = own.filter(|one| one.is_marked(marks));
        let found = marked.inspect(|one| one.signal(libc::SIGKILL)).count();
        killed += found;
        found == 0
    });
    // Their guardian may have been killed as well.
    remove_unused_marks();
    killed
}

/// Calls `is_over` until it returns true, for at most `limit`. Returns whether it did.
fn end_within(limit: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_over() {
            return true;
        }
        if begun.elapsed() >= limit {
            return false;
        }
        sleep(PAUSE);
    }
}

/// Returns the descendants of these processes.
pub(super) fn descendants(of: &[ProcessId]) -> Vec<ProcessId> {
    let mut children_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in processes() {
        if let Some(parent) = Survivor::open(pid).and_then(|found| found.files.parent()) {
            children_of.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut parents) = (Vec::new(), of.to_vec());
    while let Some(parent) = parents.pop() {
        let pids = children_of.get(&parent.pid).into_iter().flatten();
        let children = pids.filter_map(|pid| Survivor::open(*pid));
        let children = children.filter(|child| child.files.parent() == Some(parent.pid));
        let children: Vec<ProcessId> = children.filter_map(|child| child.id()).collect();
        // A parent that still exists is the process that its children have named.
        if parent.is_alive() {
            parents.extend(&children);
            found.extend(children);
        }
    }
    found
}

/// A process, identified by its pid and start time. Stores no descriptor, because a rank may have started thousands of
/// processes.
#[derive(Copy, Clone, Debug)]
pub(super) struct ProcessId {
    pub(super) pid: u32,
    /// When it started, in clock ticks since the boot.
    started: u64,
}

impl ProcessId {
    /// Returns the process that has this pid now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        Survivor::open(pid)?.id()
    }

    /// Opens it, if it still exists.
    fn open(&self) -> Option<Survivor> {
        Survivor::open(self.pid).filter(|found| found.started() == Some(self.started))
    }

    pub(super) fn is_own(&self) -> bool {
        self.open().is_some_and(|found| found.is_own())
    }

    pub(super) fn is_alive(&self) -> bool {
        self.open().is_some_and(|found| found.is_alive())
    }

    /// Whether this is the name of its first thread, as `ps` shows it.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let found = self.open().and_then(|found| found.files.read("comm", 64).ok()).unwrap_or_default();
        found.strip_suffix(b"\n") == Some(name.as_bytes())
    }

    pub(super) fn signal(&self, signal: i32) {
        if let Some(found) = self.open() {
            found.signal(signal);
        }
    }
}

/// A process by its directory in /proc.
struct Survivor {
    pid: u32,
    files: ProcessFiles,
}

impl Survivor {
    fn open(pid: u32) -> Option<Self> {
        Some(Self { pid, files: ProcessFiles::open(pid).ok()? })
    }

    fn id(&self) -> Option<ProcessId> {
        Some(ProcessId { pid: self.pid, started: self.started()? })
    }

    fn started(&self) -> Option<u64> {
        self.files.stat_field(19)?.parse().ok()
    }

    /// Whether it has not ended. A zombie has.
    fn is_alive(&self) -> bool {
        self.files.stat_field(0).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
    }

    /// Whether its real, effective, saved and file system user are this process's user.
    fn is_own(&self) -> bool {
        let status = self.files.read("status", 16384).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        users.is_some_and(|users| users.split_ascii_whitespace().all(|one| one.parse() == Ok(user())))
    }

    /// Whether its initial environment has one of these entries.
    fn is_marked(&self, marks: &[String]) -> bool {
        let environment = self.files.read("environ", ENVIRONMENT_BYTES_MAX).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| marks.iter().any(|mark| entry == mark.as_bytes()))
    }

    fn signal(&self, signal: i32) {
        // ESRCH: it has ended. EPERM: a program of another user. ENOSYS, EBADF: a kernel without such descriptors.
        let _ = signal_by(self.files.as_fd(), signal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(30);
    /// No process.
    const NONE: Known = (u32::MAX, 0);

    /// A process that can end only by a signal, and its mark.
    fn marked(script: &str) -> (Child, String) {
        let mark = format!("{:x}-{:?}", std::process::id(), Instant::now());
        let mut child = Command::new("sh")
            .args(["-c", &format!("{script} echo; exec sleep 1000")])
            .env("SCELA_TEST_MARK", &mark)
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let mut ready = child.stdout.take().expect("it is a pipe");
        std::io::Read::read_exact(&mut ready, &mut [0]).expect("it writes");
        (child, format!("SCELA_TEST_MARK={mark}"))
    }

    fn end(mut child: Child) {
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    #[test]
    fn a_machine_has_one_number() {
        assert!(machine().is_some());
        assert_eq!(machine(), machine());
        assert!(start_of(std::process::id()).is_some());
        assert_eq!(start_of(u32::MAX), None);
    }

    #[test]
    fn only_processes_with_the_mark_are_killed() {
        let (mut child, mark) = marked("setsid sleep 1000 &");
        let (other, _) = marked("");
        let marks = [mark[..mark.len() - 1].to_owned(), mark];
        assert_eq!(end_marked(&marks[..1], LONG), 0, "a part of an entry is no entry");
        assert!(end_marked(&marks, LONG) >= 2, "the process and the one that it has started");
        child.wait().expect("it is our child");
        assert!(Survivor::open(other.id()).is_some_and(|other| other.is_alive()));
        end(other);
    }

    #[test]
    fn a_process_with_the_pid_of_a_guardian_is_left() {
        let (child, _) = marked("");
        let started = start_of(child.id()).expect("it runs");
        end_guardians(&[((child.id(), started + 1), NONE)], SHORT);
        assert!(Survivor::open(child.id()).is_some_and(|child| child.is_alive()));
        end(child);
    }

    /// Only root can start one. Root may also read its environment and signal it.
    #[test]
    fn a_process_of_another_user_is_left() {
        if user() != 0 {
            return;
        }
        let mut command = Command::new("sleep");
        let child = command.arg("1000").env("SCELA_TEST_MARK", "other").uid(65534).spawn().expect("sleep runs");
        let marks = ["SCELA_TEST_MARK=other".to_owned()];
        let other = Survivor::open(child.id()).expect("it runs");
        // After its exec.
        assert!(end_within(LONG, || other.is_marked(&marks)));
        assert_eq!(end_marked(&marks, SHORT), 0);
        let known = (child.id(), other.started().expect("it runs"));
        end_guardians(&[(known, known)], SHORT);
        assert!(other.is_alive());
        end(child);
    }

    #[test]
    fn a_stopped_guardian_runs_on_and_may_end_by_itself() {
        let (child, _) = marked("trap 'exit 7' CONT; echo; kill -STOP $$;");
        let started = start_of(child.id()).expect("it runs");
        let stopped = || Survivor::open(child.id()).and_then(|child| child.files.stat_field(0));
        assert!(end_within(LONG, || stopped().is_some_and(|state| state == "T")));
        end_guardians(&[((child.id(), started), NONE)], LONG);
        let mut child = child;
        assert_eq!(child.wait().expect("it is our child").code(), Some(7));
    }

    #[test]
    fn a_stopped_agent_without_a_guardian_is_killed() {
        let (mut child, _) = marked("trap '' CONT; echo; kill -STOP $$;");
        let started = start_of(child.id()).expect("it runs");
        let stopped = || Survivor::open(child.id()).and_then(|child| child.files.stat_field(0));
        assert!(end_within(LONG, || stopped().is_some_and(|state| state == "T")));
        end_guardians(&[(NONE, (child.id(), started))], SHORT);
        child.wait().expect("it is our child");
    }

    #[test]
    fn a_guardian_that_does_not_end_is_killed_with_its_descendants() {
        let (mut child, _) = marked("sh -c 'sleep 1000; :' & setsid sleep 1000 &");
        let guardian = Survivor::open(child.id()).and_then(|child| child.id()).expect("it runs");
        assert!(end_within(LONG, || descendants(&[guardian]).len() >= 3));
        let family = descendants(&[guardian]);
        end_guardians(&[((child.id(), guardian.started), NONE)], SHORT);
        child.wait().expect("it is our child");
        assert!(end_within(LONG, || family.iter().all(|one| !one.is_alive())));
    }
}
