//! Detects that the kernel killed processes because memory ran out, and measures the memory of processes.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use nix::sys::resource::{UsageWho, getrusage};

use super::cgroup_files::ControllerFile;
use super::kernel_files::read_text;
use crate::figures;

/// The counters that the kernel raises when memory runs out. They only grow.
///
/// Other processes of the same cgroup count too, so a higher number is evidence, not proof.
#[derive(Debug)]
pub struct MemoryWatch {
    /// The files of this process's cgroups, the nearest first, and how often each cgroup had reached its limit.
    limits: Vec<(PathBuf, u64)>,
    vmstat: PathBuf,
    /// The kills that have been noted.
    kills: u64,
}

/// The place where memory ran out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryShortage {
    /// The directory of the cgroup that reached its limit; `None` if the machine had no memory left.
    cgroup: Option<PathBuf>,
    /// The limit, or the memory of the machine.
    bytes: u64,
}

impl Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = figures::bytes(self.bytes);
        match &self.cgroup {
            Some(cgroup) => write!(f, "the cgroup {} allows {bytes}", cgroup.display()),
            None => write!(f, "the machine has {bytes}"),
        }
    }
}

impl MemoryWatch {
    /// Records the current counters, with which later calls compare.
    pub fn begin() -> Self {
        const EVENTS: ControllerFile =
            ControllerFile { controller: "memory", v1: "memory.oom_control", v2: "memory.events" };
        Self::of(EVENTS.of_this_process(), PathBuf::from("/proc/vmstat"))
    }

    /// `files` are those of the cgroups, of which some may not exist.
    fn of(files: Vec<PathBuf>, vmstat: PathBuf) -> Self {
        let limits = files.into_iter().filter_map(|file| Some((reached(&file)?, file)));
        let mut watch = Self { limits: limits.map(|(reached, file)| (file, reached)).collect(), vmstat, kills: 0 };
        watch.kills = watch.kills().unwrap_or_default();
        watch
    }

    /// Returns where memory ran out if the kernel has killed a process that no earlier call has counted, and counts it.
    pub fn take_kill(&mut self) -> Option<MemoryShortage> {
        let shortage = self.shortage()?;
        self.kills += 1;
        Some(shortage)
    }

    /// Like [`take_kill`](Self::take_kill), but does not count the kill.
    pub fn shortage(&self) -> Option<MemoryShortage> {
        self.kills().filter(|kills| *kills > self.kills)?;
        // The kernel counts an exhausted limit in the cgroup that has it and, in version 2, in those above.
        let exhausted = self.limits.iter().filter(|(file, before)| reached(file).is_some_and(|now| now > *before));
        let of_cgroup = exhausted.filter_map(|(file, _)| Some((file.parent()?.to_owned(), limit_of(file)?))).next();
        Some(match of_cgroup {
            Some((cgroup, bytes)) => MemoryShortage { cgroup: Some(cgroup), bytes },
            None => MemoryShortage { cgroup: None, bytes: memory_of_machine() },
        })
    }

    /// Returns how many processes were killed: in the nearest cgroup that counts them, else on the machine.
    fn kills(&self) -> Option<u64> {
        let files = self.limits.iter().map(|(file, _)| file).chain([&self.vmstat]);
        files.into_iter().find_map(|file| counter(&read_text(file).ok()?, "oom_kill"))
    }
}

/// Returns how often a cgroup has reached its limit. `events` is its memory.events, or in version 1 its memory.oom_control.
fn reached(events: &Path) -> Option<u64> {
    let text = read_text(events).ok()?;
    counter(&text, "oom").or_else(|| read_text(events.with_file_name("memory.failcnt")).ok()?.trim().parse().ok())
}

/// Returns the limit of the cgroup, if it has one.
fn limit_of(events: &Path) -> Option<u64> {
    /// Version 1 writes a number like this one for no limit.
    const NO_LIMIT: u64 = 1 << 60;
    let read = |name: &str| read_text(events.with_file_name(name)).ok();
    let text = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    text.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

fn memory_of_machine() -> u64 {
    let text = read_text("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default().saturating_mul(1024)
}

/// Returns the number after `name` at the start of a line.
fn counter(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Returns the memory that these processes have, all together. A page that several of them share counts for each.
pub fn resident_bytes(pids: impl IntoIterator<Item = u32>) -> u64 {
    // SAFETY: sysconf takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = u64::try_from(page).unwrap_or(4096);
    let pages = |pid: u32| {
        let text = read_text(format!("/proc/{pid}/statm")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    pids.into_iter().filter_map(pages).sum::<u64>().saturating_mul(page)
}

/// Returns the peak memory of the largest reaped child. Before its exec, a rank shares the memory of the
/// process that starts it.
pub fn largest_child_bytes() -> u64 {
    let kib = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    u64::try_from(kib).unwrap_or_default().saturating_mul(1024)
}

/// Returns the oom_score_adj of ranks, as text for the file; empty if they are to have that of this process.
///
/// When memory runs out, the kernel ends the process with the highest score. Agents with a thousand ranks are larger than small
/// ranks, and all ranks end with their agent. So ranks get 100 more points, a tenth of the memory, as user services do.
/// Every process may raise its own.
pub(super) fn rank_oom_score() -> Vec<u8> {
    raised(&read_text("/proc/self/oom_score_adj").unwrap_or_default())
}

fn raised(own: &str) -> Vec<u8> {
    const RAISE: i32 = 100;
    /// Keeps a process from being killed; whoever set it wants that for its children too.
    const NEVER: i32 = -1000;
    const MAX: i32 = 1000;
    match own.trim().parse::<i32>() {
        Ok(own) if own > NEVER && own < MAX => (own + RAISE).min(MAX).to_string().into_bytes(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A tree of cgroups with the file of the counters in each, and the file of the machine's counters.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            files.iter().for_each(|(file, text)| tree.write(file, text));
            tree
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, file: &str, text: &str) {
            fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
            fs::write(self.path(file), text).unwrap();
        }

        fn watch(&self, name: &str) -> MemoryWatch {
            let files = ["job/step", "job", "none", ""].map(|group| self.path(group).join(name));
            MemoryWatch::of(files.into(), self.path("vmstat"))
        }
    }

    #[test]
    fn the_cgroup_whose_limit_was_reached_is_named() {
        let v2 = Tree::new(&[
            ("job/step/memory.events", "oom 0\noom_kill 3\n"),
            ("job/step/memory.max", "max\n"),
            ("job/memory.events", "oom 1\noom_kill 5\n"),
            ("job/memory.max", "67108864\n"),
            ("memory.events", "oom 1\noom_kill 5\n"),
            ("memory.max", "1073741824\n"),
        ]);
        let mut watch = v2.watch("memory.events");
        assert_eq!(watch.take_kill(), None);
        v2.write("job/step/memory.events", "oom 0\noom_kill 4\n");
        v2.write("job/memory.events", "oom 2\noom_kill 6\n");
        v2.write("memory.events", "oom 2\noom_kill 6\n");
        let shortage = watch.take_kill().unwrap();
        assert_eq!(shortage.to_string(), format!("the cgroup {} allows 67.1 MB", v2.path("job").display()));
        assert_eq!((watch.take_kill(), watch.shortage()), (None, None), "one process was killed");
        let v1 = Tree::new(&[
            ("job/step/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
            ("job/step/memory.failcnt", "7\n"),
            ("job/step/memory.limit_in_bytes", "4096\n"),
            ("job/memory.oom_control", "oom_kill 0\n"),
            ("job/memory.failcnt", "0\n"),
            ("job/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let watch = v1.watch("memory.oom_control");
        v1.write("job/step/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
        v1.write("job/memory.failcnt", "1\n");
        assert_eq!(watch.shortage().unwrap().cgroup, None, "no limit was reached");
        v1.write("job/step/memory.failcnt", "8\n");
        assert_eq!(watch.shortage().unwrap().cgroup, Some(v1.path("job/step")));
    }

    #[test]
    fn without_cgroups_the_machine_counts() {
        let tree = Tree::new(&[("vmstat", "nr_free_pages 1\noom_kill 2\n")]);
        let watch = tree.watch("memory.events");
        assert_eq!(watch.shortage(), None);
        tree.write("vmstat", "nr_free_pages 1\noom_kill 3\n");
        let shortage = watch.shortage().unwrap();
        assert!(shortage.cgroup.is_none() && shortage.bytes > 0, "{shortage}");
        assert!(shortage.to_string().starts_with("the machine has "), "{shortage}");
        assert_eq!(Tree::new(&[]).watch("memory.events").shortage(), None, "no file counts");
    }

    #[test]
    fn the_counter_is_the_number_after_its_name() {
        assert_eq!(counter("oom 1\noom_kill 7\noom_group_kill 2\n", "oom_kill"), Some(7));
        assert_eq!(counter("oom_kill x\n", "oom_kill"), None);
    }

    #[test]
    fn memory_of_processes_is_read() {
        let own = resident_bytes([std::process::id()]);
        assert!(own > 0 && resident_bytes([std::process::id(); 2]) >= own / 2 && resident_bytes([u32::MAX]) == 0);
    }

    #[test]
    fn ranks_have_a_higher_score_than_the_user_has_set() {
        let score = |own: &str| String::from_utf8(raised(own)).unwrap();
        assert_eq!(["0\n", "200\n", "-999\n", "950\n"].map(score), ["100", "300", "-899", "1000"]);
        assert_eq!(["-1000\n", "1000\n", "", "x"].map(score), [""; 4]);
    }
}
