//! Reads the limits of this machine, user and process on processes, threads and memory.

use std::fs;
use std::path::PathBuf;

use nla::sys::{self, TaskLimit};

/// From this many processes and threads on, all limits are read. Reading them takes time, so smaller jobs skip it: if one of their
/// processes cannot be started, the error says why.
const ALL_READ_FROM: u64 = 64;

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

/// Reads the limits that `tasks` processes and threads could exceed.
pub(super) fn task_limits(tasks: u64) -> Vec<TaskLimit> {
    let mut limits: Vec<TaskLimit> = TaskLimit::of_user(tasks).into_iter().collect();
    if tasks >= ALL_READ_FROM {
        limits.extend(TaskLimit::of_kernel(tasks));
        limits.extend(TaskLimit::of_cgroups());
    }
    limits
}

/// Returns the commands that raise the limits that are too low for so many processes and threads of a session of this process, after
/// some of them could not be created; `None` if no limit is too low, or if one cannot be raised.
pub(crate) fn raises_after_failure(tasks: u64) -> Option<String> {
    let raises: Option<Vec<String>> = TaskLimit::too_low(tasks).iter().map(|limit| limit.raise(tasks)).collect();
    raises.filter(|raises| !raises.is_empty()).map(|raises| raises.join(" and "))
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
    use nla::sys::TaskLimitPlace;

    use super::*;

    #[test]
    fn small_jobs_read_few_limits() {
        assert!(memory_limits(ALL_READ_FROM - 1).is_empty());
        assert!(memory_limits(ALL_READ_FROM).iter().any(|limit| limit.left > 0));
        assert!(task_limits(ALL_READ_FROM).iter().any(|limit| limit.place == TaskLimitPlace::Kernel("pid_max")));
    }
}
