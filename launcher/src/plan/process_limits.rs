//! Reads the limits of this machine, user and process on processes, threads and memory.

use std::fs;
use std::path::PathBuf;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{geteuid, getuid};
use nla::sys;

/// From this many processes and threads on, all limits are read: that takes time, and small jobs shall start fast. If one of their
/// processes cannot be started, the error says why.
const ALL_READ_FROM: u64 = 64;

/// The processes of a session that may exist before its limits are read: launcher, guardian, agent.
const OWN: u64 = 3;

/// The highest value that the kernel accepts for pid_max.
const PID_MAX_MAX: u64 = 1 << 22;
/// Pids below this are not used again after the first round (RESERVED_PIDS).
const PIDS_RESERVED: u64 = 300;

/// A place that limits the number of processes and threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskLimitPlace {
    /// RLIMIT_NPROC, for the processes of the user.
    User,
    /// A file below /proc/sys/kernel.
    Kernel(&'static str),
    /// The file pids.max of a cgroup.
    Cgroup(PathBuf),
}

/// A limit on the number of processes and threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskLimit {
    /// The place that has it.
    pub place: TaskLimitPlace,
    /// The limit.
    pub max: u64,
    /// How many processes and threads that are not of this session count, at least.
    pub others: u64,
}

impl TaskLimit {
    /// Returns how many processes and threads the session may have.
    pub(super) fn left(&self) -> u64 {
        self.max.saturating_sub(self.others)
    }

    /// Names the limit.
    pub(super) fn name(&self) -> String {
        match &self.place {
            TaskLimitPlace::User => "ulimit -u".to_owned(),
            TaskLimitPlace::Kernel(name) => format!("/proc/sys/kernel/{name}"),
            TaskLimitPlace::Cgroup(file) => file.display().to_string(),
        }
    }

    /// Returns what lets a session have `tasks` processes and threads; `None` if nothing does.
    pub(super) fn raise(&self, tasks: u64) -> Option<String> {
        let max = tasks + self.others;
        match &self.place {
            TaskLimitPlace::User => Some(format!("'ulimit -u {max}'")),
            TaskLimitPlace::Kernel(name) => {
                (max <= PID_MAX_MAX).then(|| format!("'sysctl kernel.{name}={max}' as root"))
            }
            // The agent may have started when the processes of the cgroup were counted, or not.
            TaskLimitPlace::Cgroup(file) => {
                let max = max + OWN;
                Some(format!("'echo {max} > {}' as root, or TasksMax={max} in the systemd unit", file.display()))
            }
        }
    }
}

/// A limit on memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// Names the limit.
    pub name: String,
    /// How many bytes are left for processes.
    pub left: u64,
    /// A limit of a cgroup, which can be raised.
    pub is_of_cgroup: bool,
}

/// Reads the limits on processes and threads that may be exceeded by `tasks` of them.
pub(super) fn task_limits(tasks: u64) -> Vec<TaskLimit> {
    let user = user_limit().filter(|max| tasks + total().unwrap_or(u64::from(u32::MAX)) > *max);
    let user = user.map(|max| TaskLimit { place: TaskLimitPlace::User, max, others: tasks_of_user() });
    let mut limits: Vec<TaskLimit> = user.into_iter().collect();
    if tasks >= ALL_READ_FROM {
        limits.extend(of_kernel());
        limits.extend(of_cgroups());
    }
    limits
}

/// Returns RLIMIT_NPROC; `None` if it does not apply.
fn user_limit() -> Option<u64> {
    let is_exempt = getuid().is_root() || geteuid().is_root();
    let (soft, _) = getrlimit(Resource::RLIMIT_NPROC).ok().filter(|_| !is_exempt)?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// Returns the number of all processes and threads of the machine.
fn total() -> Option<u64> {
    total_of(&fs::read_to_string("/proc/loadavg").ok()?)
}

/// `text` is /proc/loadavg.
fn total_of(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

fn of_kernel() -> Vec<TaskLimit> {
    let others = total().unwrap_or_default().saturating_sub(OWN);
    let read = |name: &'static str| {
        let max: u64 = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()?;
        let reserved = if name == "pid_max" { PIDS_RESERVED } else { 0 };
        Some(TaskLimit { place: TaskLimitPlace::Kernel(name), max, others: others + reserved })
    };
    ["pid_max", "threads-max"].into_iter().filter_map(read).collect()
}

fn of_cgroups() -> Vec<TaskLimit> {
    let limit = |(file, max, used): (PathBuf, u64, u64)| TaskLimit {
        place: TaskLimitPlace::Cgroup(file),
        max,
        others: used.saturating_sub(OWN),
    };
    sys::process_limits().into_iter().map(limit).collect()
}

/// A process as /proc/PID/status shows it.
struct Status {
    pid: u32,
    parent: u32,
    uid: u32,
    threads: u64,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().next()?.parse::<u32>().ok()
        };
        Some(Self { pid: field("Pid")?, parent: field("PPid")?, uid: field("Uid")?, threads: field("Threads")?.into() })
    }
}

/// Counts the processes and threads of this user, without this process, its children, and theirs.
fn tasks_of_user() -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let statuses: Vec<Status> =
        numbered.filter_map(|entry| Status::parse(&fs::read_to_string(entry.path().join("status")).ok()?)).collect();
    tasks_beside(std::process::id(), getuid().as_raw(), &statuses)
}

fn tasks_beside(own: u32, uid: u32, all: &[Status]) -> u64 {
    let children: Vec<u32> = all.iter().filter(|process| process.parent == own).map(|process| process.pid).collect();
    let is_own = |process: &Status| process.pid == own || process.parent == own || children.contains(&process.parent);
    all.iter().filter(|process| process.uid == uid && !is_own(process)).map(|process| process.threads).sum()
}

/// Reads how much memory is left for so many processes and threads.
pub(super) fn memory_limits(tasks: u64) -> Vec<MemoryLimit> {
    if tasks < ALL_READ_FROM {
        return Vec::new();
    }
    let of_kernel = || {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"))?;
        let left = kib.parse::<u64>().ok()?.saturating_mul(1024);
        Some(MemoryLimit { name: "MemAvailable in /proc/meminfo".to_owned(), left, is_of_cgroup: false })
    };
    let of_cgroup =
        |(file, left): (PathBuf, u64)| MemoryLimit { name: file.display().to_string(), left, is_of_cgroup: true };
    of_kernel().into_iter().chain(sys::memory_limits().into_iter().map(of_cgroup)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_of_the_machine_are_read() {
        assert_eq!(total_of("0.52 0.58 0.59 3/1190 31337\n"), Some(1190));
        assert_eq!(total_of(""), None);
        assert!(total().unwrap() > 1);
    }

    #[test]
    fn the_tasks_of_this_session_do_not_count_as_others() {
        let status = |pid: u32, parent: u32, uid: u32, threads: u32| {
            Status::parse(&format!(
                "Name:\tx\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nThreads:\t{threads}\n"
            ))
            .unwrap()
        };
        let shell = status(10, 1, 5, 1);
        let all = [
            shell,
            status(20, 10, 5, 1),
            status(21, 20, 5, 1),
            status(22, 21, 5, 3),
            status(30, 1, 5, 4),
            status(31, 1, 6, 9),
        ];
        assert_eq!(tasks_beside(20, 5, &all), 5);
        assert!(Status::parse("Pid:\t1\n").is_none());
    }

    #[test]
    fn raised_limits_leave_room_for_others() {
        let limit = |place| TaskLimit { place, max: 100, others: 30 };
        assert_eq!(limit(TaskLimitPlace::User).left(), 70);
        assert_eq!(limit(TaskLimitPlace::User).raise(90).unwrap(), "'ulimit -u 120'");
        let kernel = limit(TaskLimitPlace::Kernel("pid_max"));
        assert_eq!(kernel.raise(90).unwrap(), "'sysctl kernel.pid_max=120' as root");
        assert_eq!(kernel.raise(1 << 22), None);
        let cgroup = limit(TaskLimitPlace::Cgroup("/c/pids.max".into()));
        assert_eq!(cgroup.raise(90).unwrap(), "'echo 123 > /c/pids.max' as root, or TasksMax=123 in the systemd unit");
    }

    #[test]
    fn small_jobs_read_few_limits() {
        assert!(memory_limits(ALL_READ_FROM - 1).is_empty());
        assert!(memory_limits(ALL_READ_FROM).iter().any(|limit| limit.left > 0));
        assert!(task_limits(ALL_READ_FROM).iter().any(|limit| limit.place == TaskLimitPlace::Kernel("pid_max")));
    }
}
