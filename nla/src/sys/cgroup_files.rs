//! The files of a controller in this process's cgroups, of version 1 and version 2.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::identity::cores;
use super::kernel_files::read_text;

/// A file that a controller has in each of its cgroups.
pub(super) struct ControllerFile {
    /// The controller's name.
    pub(super) controller: &'static str,
    /// The file's name in version 1.
    pub(super) v1: &'static str,
    /// The file's name in version 2.
    pub(super) v2: &'static str,
}

impl ControllerFile {
    /// Returns the files of this process's cgroup and of those above it, the nearest first. In version 2 not each of them
    /// exists: a cgroup may lack the controller.
    pub(super) fn of_this_process(&self) -> Vec<PathBuf> {
        self.among(cgroup_mounts(), &read_text("/proc/self/cgroup").unwrap_or_default())
    }

    fn among(&self, mounts: &str, groups: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let v2 = id == "0" && controllers.is_empty();
            if !v2 && !controllers.split(',').any(|name| name == self.controller) {
                continue;
            }
            let (file, hierarchy) = if v2 { (self.v2, None) } else { (self.v1, Some(self.controller)) };
            let Some((root, mount)) = mounts.lines().find_map(|mount| cgroup_mount(mount, hierarchy)) else {
                continue;
            };
            // In a container the root of the mount may be this process's cgroup or below it.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            files.extend(below.ancestors().map(|ancestor| Path::new(mount).join(ancestor).join(file)));
        }
        files
    }
}

/// Returns the lines of this process's mountinfo that are cgroup hierarchies. Read once: a machine can have thousands of mounts,
/// and the processes that the launcher forks have the same.
pub(super) fn cgroup_mounts() -> &'static str {
    static MOUNTS: OnceLock<String> = OnceLock::new();
    MOUNTS.get_or_init(|| {
        let mounts = read_text("/proc/self/mountinfo").unwrap_or_default();
        mounts.split_inclusive('\n').filter(|line| line.contains(" - cgroup")).collect()
    })
}

/// Returns root and mount point if this line of mountinfo is the hierarchy with the controller; `None` is that of version 2.
pub(super) fn cgroup_mount<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (filesystem, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
    let is_wanted = match controller {
        None => filesystem == "cgroup2",
        Some(controller) => filesystem == "cgroup" && options.split(',').any(|name| name == controller),
    };
    let mut mount = mount.split(' ').skip(3);
    is_wanted.then_some((mount.next()?, mount.next()?))
}

/// Returns the limits on processes and threads of this process's cgroups: the file, the limit, and how many there are.
pub(super) fn process_limits() -> Vec<(PathBuf, u64, u64)> {
    const MAX: ControllerFile = ControllerFile { controller: "pids", v1: "pids.max", v2: "pids.max" };
    process_limits_in(MAX.of_this_process())
}

/// `files` are the files `pids.max`, of which some may not exist.
fn process_limits_in(files: Vec<PathBuf>) -> Vec<(PathBuf, u64, u64)> {
    let limit = |max: PathBuf| {
        let current = read_text(max.with_file_name("pids.current")).ok()?;
        let (limit, used) = process_limit_of(&read_text(&max).ok()?, &current)?;
        Some((max, limit, used))
    };
    files.into_iter().filter_map(limit).collect()
}

/// Returns the limits on memory of this process's cgroups: the file, and how many bytes processes may still get. The kernel can
/// reclaim cached files, so they count as free.
pub fn memory_limits() -> Vec<(PathBuf, u64)> {
    const MAX: ControllerFile = ControllerFile { controller: "memory", v1: "memory.limit_in_bytes", v2: "memory.max" };
    memory_limits_in(MAX.of_this_process())
}

/// `files` are the files with the limits, of which some may not exist.
fn memory_limits_in(files: Vec<PathBuf>) -> Vec<(PathBuf, u64)> {
    let left = |max: PathBuf| {
        let read = |name: &str| read_text(max.with_file_name(name)).ok();
        let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
        let left = memory_left_of(&read_text(&max).ok()?, &used, &read("memory.stat")?)?;
        Some((max, left))
    };
    files.into_iter().filter_map(left).collect()
}

/// `max`, `used` and `stat` are the contents of the three files.
fn memory_left_of(max: &str, used: &str, stat: &str) -> Option<u64> {
    // Version 1 writes a huge number for no limit, version 2 `max`.
    let max: u64 = max.trim().parse().ok()?;
    // `total_cache` is that of version 1, with the cgroups below.
    let cached = stat.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        ["file", "total_cache"].contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    Some(max.saturating_sub(used.trim().parse::<u64>().ok()?.saturating_sub(cached.unwrap_or(0))))
}

/// Returns how many processors this process can keep busy; at least 1: those that it may run on, or fewer if its cgroups have a
/// quota. A part of a processor does not count: the kernel stops all processes of a cgroup that has used up its quota, so one rank
/// too many makes all others wait in their fences.
pub fn usable_cores() -> usize {
    const QUOTA: ControllerFile = ControllerFile { controller: "cpu", v1: "cpu.cfs_quota_us", v2: "cpu.max" };
    whole_cores(cores(), quota_in(QUOTA.of_this_process()))
}

fn whole_cores(cores: usize, quota: Option<f64>) -> usize {
    quota.map_or(cores, |quota| cores.min(quota as usize)).max(1)
}

/// Returns the lowest quota, in processors. `files` are those with the quotas, of which some may not exist.
fn quota_in(files: Vec<PathBuf>) -> Option<f64> {
    let quota = |file: PathBuf| {
        let text = read_text(&file).ok()?;
        let mut words = text.split_ascii_whitespace();
        // Version 2 writes `max` for no quota, version 1 -1. Version 1 has the period in a file of its own.
        let quota: u64 = words.next()?.parse().ok()?;
        let of_v1 = || read_text(file.with_file_name("cpu.cfs_period_us"));
        let period = words.next().map_or_else(of_v1, |period| Ok(period.to_owned())).ok()?;
        let period: u64 = period.trim().parse().ok().filter(|period| *period > 0)?;
        Some(quota as f64 / period as f64)
    };
    files.into_iter().filter_map(quota).min_by(f64::total_cmp)
}

/// `max` and `current` are the contents of the two files. Returns both numbers.
fn process_limit_of(max: &str, current: &str) -> Option<(u64, u64)> {
    // `max` stands for no limit.
    Some((max.trim().parse().ok()?, current.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_found_in_both_versions() {
        let file = ControllerFile { controller: "memory", v1: "memory.oom_control", v2: "memory.events" };
        let v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            file.among(v2, "0::/job/step\n"),
            ["/sys/fs/cgroup/job/step", "/sys/fs/cgroup/job", "/sys/fs/cgroup"]
                .map(|folder| Path::new(folder).join("memory.events"))
        );
        let v1 = "30 23 0:27 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            file.among(v1, "5:cpu:/x\n4:memory:/box/job\n0::/\n"),
            ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"]
                .map(|folder| Path::new(folder).join("memory.oom_control"))
        );
        assert_eq!(file.among("", "0::/\n"), [] as [PathBuf; 0]);
    }

    /// Writes files of cgroups into a directory. Returns the files with this name, and one that does not exist.
    fn cgroups(directory: &Path, files: &[(&str, &str)], name: &str) -> Vec<PathBuf> {
        for (file, content) in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        ["job/step", "job", "none", ""].map(|group| directory.join(group).join(name)).into()
    }

    #[test]
    fn limits_of_all_cgroups_above_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let files = [
            ("job/step/pids.max", "max\n"),
            ("job/step/pids.current", "4\n"),
            ("job/pids.max", "12\n"),
            ("job/pids.current", "7\n"),
            ("pids.max", "1000\n"),
            ("pids.current", "90\n"),
        ];
        let found = process_limits_in(cgroups(directory.path(), &files, "pids.max"));
        assert_eq!(found, [(path("job/pids.max"), 12, 7), (path("pids.max"), 1000, 90)]);
        let files = [
            ("job/step/memory.max", "max\n"),
            ("job/step/memory.current", "5\n"),
            ("job/step/memory.stat", "file 1\n"),
            ("job/memory.max", "4096\n"),
            ("job/memory.current", "3000\n"),
            ("job/memory.stat", "anon 2000\nfile 1000\n"),
        ];
        let found = memory_limits_in(cgroups(directory.path(), &files, "memory.max"));
        assert_eq!(found, [(path("job/memory.max"), 2096)]);
        let files = [
            ("job/memory.limit_in_bytes", "4096\n"),
            ("job/memory.usage_in_bytes", "3000\n"),
            ("job/memory.stat", "total_cache 1000\n"),
        ];
        let version_1 = tempfile::tempdir().unwrap();
        let found = memory_limits_in(cgroups(version_1.path(), &files, "memory.limit_in_bytes"));
        assert_eq!(found, [(version_1.path().join("job/memory.limit_in_bytes"), 2096)]);
    }

    #[test]
    fn the_lowest_quota_of_all_cgroups_above_counts() {
        let quota = |files: &[(&str, &str)], name: &str| {
            let directory = tempfile::tempdir().unwrap();
            quota_in(cgroups(directory.path(), files, name))
        };
        let v2 =
            [("job/step/cpu.max", "max 100000\n"), ("job/cpu.max", "50000 100000\n"), ("cpu.max", "400000 100000\n")];
        assert_eq!(quota(&v2, "cpu.max"), Some(0.5));
        assert_eq!(quota(&v2[..1], "cpu.max"), None);
        assert_eq!(quota(&[("job/cpu.max", "x\n"), ("cpu.max", "100000 0\n")], "cpu.max"), None);
        let v1 = [
            ("job/step/cpu.cfs_quota_us", "-1\n"),
            ("job/step/cpu.cfs_period_us", "100000\n"),
            ("job/cpu.cfs_quota_us", "25000\n"),
            ("job/cpu.cfs_period_us", "10000\n"),
        ];
        assert_eq!(quota(&v1, "cpu.cfs_quota_us"), Some(2.5));
        let cores = [None, Some(0.5), Some(2.5), Some(8.0)].map(|quota| whole_cores(4, quota));
        assert_eq!(cores, [4, 1, 2, 4]);
        assert!((1..=self::cores()).contains(&usable_cores()));
    }

    #[test]
    fn a_limit_on_processes_is_read_with_their_number() {
        assert_eq!(process_limit_of("100\n", "30\n"), Some((100, 30)));
        assert_eq!(process_limit_of("max\n", "30\n"), None);
        assert_eq!(process_limit_of("100\n", ""), None);
    }

    #[test]
    fn cached_files_count_as_free_memory() {
        let (v2, v1) = ("anon 10\nfile 30\nkernel 5\n", "cache 1\ntotal_cache 30\ntotal_rss 10\n");
        for stat in [v2, v1] {
            assert_eq!(memory_left_of("100\n", "50\n", stat), Some(80));
        }
        assert_eq!(memory_left_of("100\n", "150\n", ""), Some(0), "the limit was lowered");
        assert_eq!(memory_left_of("max\n", "50\n", v2), None);
        assert_eq!(memory_left_of("100\n", "", v2), None);
    }
}
