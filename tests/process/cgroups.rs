//! A cgroup that is delegated to the user: each agent and its ranks get one of their own, which its guardian, or else the
//! launcher, kills and removes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tests::{Process, Run, Running, Tree, World, eventually, scela, sh, skip};

/// An unprivileged user (nobody).
const USER: u32 = 65534;

/// A cgroup that belongs to [`USER`]. Dropping it removes it.
struct Delegated(PathBuf);

impl Delegated {
    /// Creates the cgroup for the run of `world`. Skips if that is not possible here.
    fn new(world: &World) -> Option<Self> {
        if !geteuid().is_root() {
            skip("only root may delegate a cgroup");
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let Some(mount) = mount else {
            skip("no cgroup v2 is mounted");
            return None;
        };
        let group = Path::new(mount).join(world.label());
        if let Err(problem) = fs::create_dir(&group) {
            skip(&format!("no cgroup can be created: {problem}"));
            return None;
        }
        let created = Self(group);
        for file in [created.0.clone(), created.procs()] {
            chown(file, Some(USER), Some(USER)).unwrap();
        }
        Some(created)
    }

    fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Returns the names of the cgroups below.
    fn below(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|folder| folder.file_name().into_string().unwrap()).collect()
    }

    /// Makes [`USER`] run the launcher in this cgroup.
    fn launch(&self, run: Run) -> Run {
        let copy = run.world().file("scela-run");
        // The directory of the run belongs to root.
        let folder = copy.parent().unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let (procs, copy) = (self.procs(), copy.display().to_string());
        run.shell(&format!(
            "cp \"$1\" {copy} && chmod 755 {copy} && shift && echo $$ > {} && cd / && unset TMPDIR\n\
             set -- setpriv --reuid {USER} --regid {USER} --clear-groups {copy} \"$@\"",
            procs.display()
        ))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // A process that has just ended may not have left it.
        let removed = eventually(|| fs::remove_dir(&self.0).is_ok().then_some(()));
        assert!(removed.is_some() || std::thread::panicking(), "{} is not empty", self.0.display());
    }
}

/// Starts a rank on each of two agents, with a process that outlives it.
fn start() -> Option<(Running, Delegated)> {
    let run = scela().np(2).agents(2).args(["--dead-time", "2,2"]);
    let group = Delegated::new(run.world())?;
    let run = group.launch(run).program(sh("setsid sleep 1000 & echo here; exec sleep 1000"));
    let running = run.spawn();
    running.wait_for_times("here", 2);
    Some((running, group))
}

#[test]
fn each_agent_and_its_ranks_have_a_cgroup_that_is_removed() {
    let run = scela().np(4).agents(2);
    let Some(group) = Delegated::new(run.world()) else { return };
    let outcome = group.launch(run).program(sh("grep ^0:: /proc/self/cgroup")).run();
    outcome.has_code(0);
    let out = outcome.out();
    let mut groups: Vec<&str> = out.lines().collect();
    groups.sort_unstable();
    groups.dedup();
    outcome.check(out.lines().count() == 4 && groups.len() == 2, "each agent should have a cgroup");
    outcome.check(groups.iter().all(|name| name.contains("/scela-")), "they have names");
    assert_eq!(group.below(), [] as [String; 0]);
}

/// Their parents' death ends the ranks, but not the processes that these have started.
#[test]
fn an_agent_killed_with_its_guardian_leaves_no_process() {
    let Some((running, group)) = start() else { return };
    let agent = Tree::new(2, 32).process(running.world(), 2);
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    Process::signal_all([&agent, &guardian], Signal::SIGKILL);
    running.finish().has_code(252).says("agent 2 on ").says(" was lost: ");
    assert_eq!(group.below(), [] as [String; 0]);
}

/// No process is left to end the ranks but the launcher, which kills stopped guardians.
#[test]
fn a_stopped_agent_with_a_stopped_guardian_leaves_no_process() {
    let Some((running, group)) = start() else { return };
    let agent = Tree::new(2, 32).process(running.world(), 2);
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGSTOP);
    running.signal(Signal::SIGTERM);
    running.finish();
    assert_eq!(group.below(), [] as [String; 0]);
}

/// The guardian kills what its agent has left. A launcher in a rank has created cgroups below the agent's.
#[test]
fn a_killed_agent_leaves_no_cgroup_of_a_nested_launcher() {
    let run = scela().np(1);
    let Some(group) = Delegated::new(run.world()) else { return };
    let nested = format!("{} -np 2 sh -c 'echo here; exec sleep 1000'", run.world().file("scela-run").display());
    let running = group.launch(run).program(sh(&nested)).spawn();
    running.wait_for_times("here", 2);
    let names = group.below();
    let [outer] = names.as_slice() else { panic!("{names:?}") };
    let inner = Delegated(group.0.join(outer));
    assert_eq!(inner.below().len(), 1, "the nested launcher's agent has one");
    std::mem::forget(inner);
    let pid = fs::read_to_string(group.0.join(outer).join("cgroup.procs")).unwrap();
    let of_outer = pid.lines().filter_map(|pid| Process::of(pid.parse().unwrap()));
    let agent = of_outer.into_iter().find(|process| process.name == "scela-agent").unwrap();
    agent.signal(Signal::SIGKILL);
    running.finish().has_code(252);
    assert_eq!(group.below(), [] as [String; 0]);
}
