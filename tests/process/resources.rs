//! Cgroups that limit processor time and memory.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::Value;
use tempfile::TempDir;
use tests::{Outcome, Run, Running, World, eventually, scela, sh, skip};

use crate::host;

/// A cgroup of one controller. Dropping it removes it.
struct Limited {
    group: PathBuf,
    is_v1: bool,
}

impl Limited {
    /// Creates the cgroup for the run of `world`. Skips if that is not possible here.
    fn new(world: &World, controller: &str) -> Option<Self> {
        let created = if geteuid().is_root() { Self::create(world, controller) } else { None };
        if created.is_none() {
            skip(&format!("no cgroup with the controller {controller} can be created"));
        }
        created
    }

    fn create(world: &World, controller: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount_of = |kind: &str, has: &dyn Fn(&Path, &str) -> bool| {
            let mounts = mounts.lines().filter_map(|line| line.split_once(&format!(" - {kind} ")));
            let mut mounts = mounts.map(|(mount, options)| (PathBuf::from(mount.split(' ').nth(4).unwrap()), options));
            mounts.find_map(|(mount, options)| has(&mount, options).then_some(mount))
        };
        let of_v1 = mount_of("cgroup", &|_, options| options.split([',', ' ']).any(|name| name == controller));
        let is_v1 = of_v1.is_some();
        let enables =
            |mount: &Path, _: &str| fs::write(mount.join("cgroup.subtree_control"), format!("+{controller}")).is_ok();
        let group = of_v1.or_else(|| mount_of("cgroup2", &enables))?.join(world.label());
        fs::create_dir(&group).ok().map(|()| Self { group, is_v1 })
    }

    /// Writes a limit: to the file of version 1, or to that of version 2.
    fn set(&self, v1: (&str, &str), v2: (&str, &str)) {
        let (file, limit) = if self.is_v1 { v1 } else { v2 };
        fs::write(self.group.join(file), limit).unwrap();
    }

    /// Lets the launcher run in this cgroup.
    fn around(&self, run: Run) -> Run {
        run.shell(&format!("echo $$ > {}/cgroup.procs", self.group.display()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A process that has just ended may not have left it.
        let removed = eventually(|| fs::remove_dir(&self.group).is_ok().then_some(()));
        assert!(removed.is_some() || std::thread::panicking(), "{} is not empty", self.group.display());
    }
}

/// Two ranks would share the half core, and each would wait for the other in every fence.
#[test]
fn a_quota_of_half_a_core_starts_one_rank() {
    let run = scela();
    let Some(group) = Limited::new(run.world(), "cpu") else { return };
    group.set(("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000"));
    group.around(run).program(sh("echo $PMI_SIZE")).run().has_code(0).wrote("1\n");
}

/// A rank that takes memory until there is none, and one that waits.
const EATS: &str =
    "[ $PMI_RANK = 0 ] && exec sleep 1000; echo here; while [ ! -e eat ]; do sleep 0.05; done; exec tail /dev/zero";

/// Starts two ranks with little memory, of which rank 1 takes all of it once the file `eat` exists.
fn with_little_memory() -> Option<(Running, Limited, TempDir)> {
    let run = scela().np(2).args(["--report", "report.json"]);
    let group = Limited::new(run.world(), "memory")?;
    group.set(("memory.limit_in_bytes", "268435456"), ("memory.max", "268435456"));
    let place = tempfile::tempdir().unwrap();
    let running = group.around(run).directory(place.path()).program(sh(EATS)).spawn();
    running.wait_for("here");
    Some((running, group, place))
}

/// Lets rank 1 take all memory. Returns the end, and the file of `--report`.
fn finish(running: Running, place: &TempDir) -> (Outcome, Value) {
    fs::write(place.path().join("eat"), "").unwrap();
    let outcome = running.finish();
    (outcome, serde_json::from_slice(&fs::read(place.path().join("report.json")).unwrap()).unwrap())
}

#[test]
fn a_rank_that_the_kernel_kills_for_lack_of_memory_is_reported_with_the_limit() {
    let Some((running, group, place)) = with_little_memory() else { return };
    let limit = format!("the cgroup {} allows 268 MB", group.group.display());
    let (outcome, report) = finish(running, &place);
    outcome.has_code(137).says(&format!(
        "rank 1 on {} was killed by signal 9 (KILL); the kernel ended it because memory ran out: {limit}; of this agent's ranks, the \
         largest that has ended had 2",
        host()
    ));
    outcome.says(" MB, and the 1 that is left has ").says("hint: give the job more memory");
    let kill = &report["memory_kills"][0];
    assert!(kill["ranks"] == "1" && kill["text"].as_str().unwrap().starts_with(&limit), "{report}");
}

/// The kernel prefers the agent, as with thousands of small ranks.
#[test]
fn an_agent_that_the_kernel_kills_for_lack_of_memory_is_reported_with_the_limit() {
    let Some((running, group, place)) = with_little_memory() else { return };
    let agent = running.world().agents().pop().unwrap();
    let rank = running.rank(1);
    for (process, score) in [(&agent, "1000"), (&rank, "0")] {
        fs::write(format!("/proc/{}/oom_score_adj", process.pid), score).unwrap();
    }
    let (outcome, report) = finish(running, &place);
    let limit = format!("because memory ran out: the cgroup {} allows 268 MB", group.group.display());
    outcome.has_code(252).says(&format!("agent 1 on {} was lost: ", host()));
    outcome.says(&format!("the kernel has killed a process there {limit}\n"));
    outcome.says(&format!("the kernel killed the agent {limit}; of its processes, the largest had 2"));
    outcome.never_says("did not end").says("hint: give the job more memory");
    assert_eq!(report["memory_kills"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["cause"]["kind"], "agent_lost", "{report}");
}

#[test]
fn ranks_are_killed_before_agents_when_memory_runs_out() {
    let run = scela().np(1).program(sh("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj"));
    let own: i32 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let of_ranks = if own == -1000 { own } else { (own + 100).min(1000) };
    run.run().is_quiet_success().wrote(&format!("{of_ranks}\n{own}\n"));
}
