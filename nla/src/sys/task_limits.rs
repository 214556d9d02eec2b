//! The limits on the number of processes and threads: of the user, of the kernel, and of cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{geteuid, getuid};

use super::cgroup_files::process_limits;
use super::descriptors::open_files_max;
use super::kernel_files::read_text;

/// The highest value that the kernel accepts for pid_max.
const PID_MAX_MAX: u64 = 1 << 22;
/// Pids below this are not used again after the first round (RESERVED_PIDS).
const PIDS_RESERVED: u64 = 300;
/// The inode of the initial pid namespace (PROC_PID_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// A place that limits the number of processes and threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskLimitPlace {
    /// RLIMIT_NPROC, for the processes of the user, and its hard limit.
    User {
        /// Users may raise the limit up to this one.
        hard: u64,
    },
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
    /// The least number of processes and threads of others that count.
    pub others: u64,
}

impl TaskLimit {
    /// The processes of a session that may exist before its limits are read: launcher, guardian, agent.
    const OWN: u64 = 3;

    /// Returns how many processes and threads the session may have.
    pub fn left(&self) -> u64 {
        self.max.saturating_sub(self.others)
    }

    /// Returns whether a clone may just have failed at this limit. Processes may have ended since.
    fn is_near(&self) -> bool {
        const FEW: u64 = 64;
        self.left() <= FEW.max(self.max / 8)
    }

    /// Names the limit.
    pub fn name(&self) -> String {
        match &self.place {
            TaskLimitPlace::User { .. } => "ulimit -u".to_owned(),
            TaskLimitPlace::Kernel(name) => format!("/proc/sys/kernel/{name}"),
            TaskLimitPlace::Cgroup(file) => file.display().to_string(),
        }
    }

    /// Returns the command that raises this limit so that a session may have `tasks` processes and threads; `None` if the kernel
    /// allows no such limit.
    pub fn raise(&self, tasks: u64) -> Option<String> {
        let max = tasks + self.others;
        match &self.place {
            TaskLimitPlace::User { hard } => {
                let how = if max > *hard { " (a hard limit: as root, or by limits.conf)" } else { "" };
                Some(format!("'ulimit -u {max}'{how}"))
            }
            TaskLimitPlace::Kernel(name) => {
                (max <= PID_MAX_MAX).then(|| format!("'sysctl kernel.{name}={max}' as root"))
            }
            // The agent may have started when the processes of the cgroup were counted, or not.
            TaskLimitPlace::Cgroup(file) => {
                let max = max + Self::OWN;
                Some(format!("'echo {max} > {}' as root, or TasksMax={max} in the systemd unit", file.display()))
            }
        }
    }

    /// Reads the limit of this process's user, if `tasks` more processes and threads may exceed it.
    pub fn of_user(tasks: u64) -> Option<Self> {
        let max = user_limit().filter(|max| tasks + total().unwrap_or(u64::from(u32::MAX)) > *max)?;
        Some(Self::user(max, &Tasks::read()))
    }

    /// Reads the limits of the kernel, before the session has started ranks. It will have `tasks` processes and threads.
    pub fn of_kernel(tasks: u64) -> Vec<Self> {
        Self::read_kernel(Self::OWN, tasks, || Tasks::read().of_all())
    }

    /// Reads the limits of this process's cgroups, before the session has started ranks.
    pub fn of_cgroups() -> Vec<Self> {
        Self::read_cgroups(Self::OWN)
    }

    /// Reads the limits that are too low for a session with so many processes and threads. This process and its descendants are the
    /// session, of which some processes may have been started.
    pub fn too_low(tasks: u64) -> Vec<Self> {
        let found = Tasks::read();
        let own = found.of_session();
        let mut limits: Vec<Self> = user_limit().map(|max| Self::user(max, &found)).into_iter().collect();
        limits.extend(Self::read_kernel(own, tasks, || found.of_all()));
        limits.extend(Self::read_cgroups(own));
        limits.retain(|limit| limit.left() < tasks);
        limits
    }

    fn user(max: u64, found: &Tasks) -> Self {
        // Without an answer, no hint about the hard limit.
        let hard = getrlimit(Resource::RLIMIT_NPROC).map_or(RLIM_INFINITY, |(_, hard)| hard);
        Self { place: TaskLimitPlace::User { hard }, max, others: found.of_others(getuid().as_raw()) }
    }

    /// `visible` counts the processes and threads of this process's pid namespace.
    fn read_kernel(own: u64, tasks: u64, visible: impl Fn() -> u64) -> Vec<Self> {
        let total = total().unwrap_or_default();
        let read = |name: &'static str| {
            let max: u64 = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()?;
            let (used, reserved) = if name == "pid_max" {
                let room = max.saturating_sub(PIDS_RESERVED).saturating_sub(tasks);
                (pids_used(total, room, has_own_pids, &visible), PIDS_RESERVED)
            } else {
                (total, 0)
            };
            Some(Self { place: TaskLimitPlace::Kernel(name), max, others: used.saturating_sub(own) + reserved })
        };
        ["pid_max", "threads-max"].into_iter().filter_map(read).collect()
    }

    fn read_cgroups(own: u64) -> Vec<Self> {
        let limit = |(file, max, used): (PathBuf, u64, u64)| Self {
            place: TaskLimitPlace::Cgroup(file),
            max,
            others: used.saturating_sub(own),
        };
        process_limits().into_iter().map(limit).collect()
    }
}

/// Names the limit that this process has reached, if a system call has failed for one. `errno` is the call's error. The text is the
/// same for all failures at one limit. `None` if no limit is known to be near: EAGAIN has other causes, such as RLIMIT_DATA.
pub fn reached_limit(errno: i32) -> Option<String> {
    match errno {
        libc::EAGAIN => nearest_task_limit(),
        libc::EMFILE => Some(format!("the hard limit (ulimit -Hn) allows {} open files", open_files_max())),
        _ => None,
    }
}

/// Names the limit on processes and threads that leaves fewest, if it leaves few.
fn nearest_task_limit() -> Option<String> {
    // Without a session: all of the user's processes count.
    let user = user_limit().map(|max| TaskLimit::user(max, &Tasks { session: BTreeSet::new(), ..Tasks::read() }));
    let of_kernel = TaskLimit::read_kernel(0, u64::MAX, || Tasks::read().of_all());
    let limits = user.into_iter().chain(of_kernel).chain(TaskLimit::read_cgroups(0));
    let nearest = limits.min_by_key(TaskLimit::left).filter(TaskLimit::is_near)?;
    Some(format!("{} allows {} processes and threads", nearest.name(), nearest.max))
}

/// Returns how many processes this process and its descendants are. An ended one counts until it is reaped.
pub fn processes_of_session() -> usize {
    Tasks::read().session.len()
}

/// Returns RLIMIT_NPROC; `None` if it does not apply.
fn user_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NPROC).ok()?;
    let is_root = getuid().is_root() || geteuid().is_root();
    let is_exempt = || is_root && read_text("/proc/self/uid_map").is_ok_and(|map| has_all_users(&map));
    (soft != RLIM_INFINITY && !is_exempt()).then_some(soft)
}

/// Returns whether `map`, which is /proc/self/uid_map, is that of the initial user namespace. The kernel exempts only its root from
/// RLIMIT_NPROC, not that of a rootless container.
fn has_all_users(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the number of all processes and threads of the machine.
fn total() -> Option<u64> {
    total_of(&read_text("/proc/loadavg").ok()?)
}

/// `text` is /proc/loadavg.
fn total_of(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Returns how many pids count for pid_max, or a higher number that is at most `room`. `total` is that of the machine.
///
/// Recent kernels have a pid_max for each pid namespace, and only its own processes count. Reading them all takes long, so do it only
/// where it may decide.
fn pids_used(total: u64, room: u64, has_own_pids: impl Fn() -> bool, visible: impl Fn() -> u64) -> u64 {
    if total > room && has_own_pids() { total.min(visible()) } else { total }
}

/// Returns whether this process is in another pid namespace than the initial one.
fn has_own_pids() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() != INITIAL_PID_NAMESPACE)
}

/// A process as /proc/PID/status shows it.
#[derive(Debug)]
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

/// All processes of this process's pid namespace.
struct Tasks {
    all: Vec<Status>,
    /// Those of the session.
    session: BTreeSet<u32>,
}

impl Tasks {
    fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbered = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
        let status = |entry: fs::DirEntry| Status::parse(&fs::read_to_string(entry.path().join("status")).ok()?);
        Self::of(std::process::id(), numbered.filter_map(status).collect())
    }

    /// `first` and its descendants are the session.
    fn of(first: u32, all: Vec<Status>) -> Self {
        let mut session = BTreeSet::from([first]);
        loop {
            let before = session.len();
            for process in &all {
                if session.contains(&process.parent) {
                    session.insert(process.pid);
                }
            }
            if session.len() == before {
                return Self { all, session };
            }
        }
    }

    /// Counts all processes and threads.
    fn of_all(&self) -> u64 {
        self.all.iter().map(|process| process.threads).sum()
    }

    /// Counts the processes and threads of the session.
    fn of_session(&self) -> u64 {
        self.all.iter().filter(|process| self.session.contains(&process.pid)).map(|process| process.threads).sum()
    }

    /// Counts the other processes and threads of this user.
    fn of_others(&self, uid: u32) -> u64 {
        let others = self.all.iter().filter(|process| process.uid == uid && !self.session.contains(&process.pid));
        others.map(|process| process.threads).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_container_has_a_limit() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("         0       1000          1\n"));
        assert!(!has_all_users("         0     100000      65536\n      65536 1 1\n"));
    }

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
        let all = vec![
            // Pids may have begun again from the lowest.
            status(7, 22, 5, 1),
            shell,
            status(20, 10, 5, 1),
            status(21, 20, 5, 1),
            status(22, 21, 5, 3),
            status(30, 1, 5, 4),
            status(31, 1, 6, 9),
        ];
        let tasks = Tasks::of(20, all);
        assert_eq!((tasks.of_others(5), tasks.of_session(), tasks.of_all()), (5, 6, 20));
        assert!(Status::parse("Pid:\t1\n").is_none());
        assert!(Tasks::read().of_session() > 0);
    }

    #[test]
    fn raised_limits_leave_room_for_others() {
        let limit = |place| TaskLimit { place, max: 100, others: 30 };
        assert_eq!(limit(TaskLimitPlace::User { hard: 120 }).left(), 70);
        assert_eq!(limit(TaskLimitPlace::User { hard: 120 }).raise(90).unwrap(), "'ulimit -u 120'");
        let hard = "'ulimit -u 120' (a hard limit: as root, or by limits.conf)";
        assert_eq!(limit(TaskLimitPlace::User { hard: 119 }).raise(90).unwrap(), hard);
        let kernel = limit(TaskLimitPlace::Kernel("pid_max"));
        assert_eq!(kernel.raise(90).unwrap(), "'sysctl kernel.pid_max=120' as root");
        assert_eq!(kernel.raise(1 << 22), None);
        let cgroup = limit(TaskLimitPlace::Cgroup("/c/pids.max".into()));
        assert_eq!(cgroup.raise(90).unwrap(), "'echo 123 > /c/pids.max' as root, or TasksMax=123 in the systemd unit");
    }

    #[test]
    fn only_processes_of_the_own_pid_namespace_count_for_its_pid_max() {
        let of_namespace = |total, room| pids_used(total, room, || true, || 7);
        assert_eq!(of_namespace(400, 100), 7);
        assert_eq!(of_namespace(5, 0), 5, "/proc may be that of a parent namespace, with more processes");
        assert_eq!(pids_used(400, 100, || false, || 7), 400);
        assert_eq!(pids_used(400, 400, || unreachable!(), || unreachable!()), 400);
    }

    #[test]
    fn only_a_limit_that_leaves_few_tasks_has_been_reached() {
        let is_near = |max, others| TaskLimit { place: TaskLimitPlace::Kernel("pid_max"), max, others }.is_near();
        assert!(is_near(32_768, 32_768) && is_near(32_768, 30_000) && is_near(20, 5));
        assert!(!is_near(32_768, 400) && !is_near(500, 300));
    }

    #[test]
    fn limits_that_are_too_low_are_found_and_named() {
        assert_eq!(TaskLimit::too_low(0), []);
        let too_low = TaskLimit::too_low(PID_MAX_MAX);
        assert!(too_low.iter().any(|limit| limit.place == TaskLimitPlace::Kernel("pid_max")), "{too_low:?}");
        assert!(reached_limit(libc::EMFILE).unwrap().ends_with(" open files"));
        assert_eq!(reached_limit(libc::ENOENT), None);
    }
}
