//! The processors and memory that ranks are bound to, as the kernel shows them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use nla::core::{CpuSet, Level};
use nla::driver::this_node;
use tests::{Outcome, Program, Run, eventually, scela, sh, skip};

use crate::host;

/// Lets one test of this file run at a time: sessions that bind ranks to the same processors say so.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processors that this process may use, in ascending order.
fn usable() -> Vec<u32> {
    this_node().1.cpus.iter().collect()
}

/// The processors of each core that may be used.
fn cores() -> Vec<CpuSet> {
    let (topology, allowed) = this_node();
    let usable = topology.parts(Level::Core).iter().map(|core| core.intersection(&allowed.cpus));
    usable.filter(|core| !core.is_empty()).collect()
}

/// Returns whether this machine has two cores. Skips if not.
fn has_two_cores() -> bool {
    let has_two = cores().len() > 1;
    if !has_two {
        skip("two cores are needed");
    }
    has_two
}

/// Prints each rank and the processors that it may use.
fn print_cpus() -> Program {
    sh("echo $PMI_RANK $(sed -n 's/^Cpus_allowed_list:\\t//p' /proc/$$/status)")
}

/// Runs ranks and returns what each may use.
fn bound(run: Run) -> (Outcome, Vec<String>) {
    let outcome = run.program(print_cpus()).run();
    outcome.has_code(0);
    let mut lines: Vec<(u32, String)> = outcome
        .out()
        .lines()
        .map(|line| line.split_once(' ').map(|(rank, cpus)| (rank.parse().unwrap(), cpus.to_owned())).unwrap())
        .collect();
    lines.sort_unstable();
    (outcome, lines.into_iter().map(|(_, cpus)| cpus).collect())
}

#[test]
fn each_rank_has_a_core_of_its_own() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let cores: Vec<String> = cores().iter().take(2).map(ToString::to_string).collect();
    for agents in [1, 2] {
        let run = scela().np(2).agents(agents).args(["--bind-to", "core"]);
        let (outcome, cpus) = bound(run);
        assert_eq!(cpus, cores, "{outcome}");
        outcome.is_quiet_success();
    }
    // The agents play nodes of their own, but have the same cores.
    let run = scela().np(2).args(["--agents-per-node", "2", "--agents-as-nodes", "-bind-to", "core"]);
    assert_eq!(bound(run).1, cores);
}

#[test]
fn ranks_are_not_bound_unless_asked_for() {
    let _alone = alone();
    let all = this_node().1.cpus.to_string();
    for run in [scela().np(2), scela().np(2).args(["--bind-to", "none"])] {
        let (outcome, cpus) = bound(run);
        outcome.is_quiet_success();
        assert_eq!(cpus, [all.as_str(), all.as_str()]);
    }
}

#[test]
fn bindings_are_reported() {
    let _alone = alone();
    let cpu = usable()[0];
    let run = scela().np(2).args(["--report-bindings", "--bind-to", &format!("user:{cpu}")]);
    let (outcome, cpus) = bound(run);
    assert_eq!(cpus, [cpu.to_string(), cpu.to_string()]);
    let mask = CpuSet::from_iter([cpu]).mask();
    outcome.says(&format!("scela-run: ranks 0-1 on {}: [", host())).says(&format!("] processor {cpu}, mask {mask}\n"));
    let (outcome, _) = bound(scela().np(2).arg("--report-bindings"));
    let all = this_node().1.cpus;
    let noun = if all.len() == 1 { "processor" } else { "processors" };
    outcome.says_only(&format!("scela-run: ranks 0-1 on {}: not bound, may use {noun} {all}\n", host()));
}

#[test]
fn explain_shows_the_binding_of_this_machine() {
    let _alone = alone();
    let cpu = usable()[0];
    let run = scela().np(1).args(["--explain", "--bind-to", &format!("user:{cpu}")]).program(sh("true"));
    run.run().is_quiet_success().wrote_among_others("\nbinding of ranks:\n  rank 0: [");
}

#[test]
fn partners_get_neighbouring_cores() {
    let _alone = alone();
    let place = tempfile::TempDir::new().unwrap();
    let matrix = place.path().join("matrix");
    fs::write(&matrix, "scela-comm 1 ranks 4 pairs 2\n0 2 1000 1\n1 3 1000 1\n").unwrap();
    let bound_to = ["--bind-to", "hwthread:1:overload-allowed"];
    let run = || scela().np(4).args(bound_to).args(["--map-by", "comm", "--comm-matrix"]).arg(&matrix);
    let explained = run().arg("--explain").program(sh("true")).run();
    explained.has_code(0).wrote_among_others(
        "placement by what ranks send to each other:\n  levels per byte within nodes: 2.000 by number, 1.000 in the order of \
         this plan\n",
    );
    // By number, rank n has place n. Partners get the places 0 and 1, or 2 and 3.
    let (_, by_number) = bound(scela().np(4).args(bound_to));
    let (_, cpus) = bound(run());
    let pair = |one: usize, other: usize| BTreeSet::from([&cpus[one], &cpus[other]]);
    let places = |one: usize, other: usize| BTreeSet::from([&by_number[one], &by_number[other]]);
    let expected = BTreeSet::from([places(0, 1), places(2, 3)]);
    assert_eq!(BTreeSet::from([pair(0, 2), pair(1, 3)]), expected, "{cpus:?}");
}

#[test]
fn only_what_taskset_leaves_is_used() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let cpu = cores()[1].first().unwrap();
    let run = scela().np(1).shell(&format!("set -- taskset -c {cpu} \"$@\"")).args(["--bind-to", "core"]);
    let (outcome, cpus) = bound(run);
    outcome.is_quiet_success();
    assert_eq!(cpus, [cpu.to_string()]);
    let other = cores()[0].first().unwrap();
    let run = scela().np(1).shell(&format!("set -- taskset -c {cpu} \"$@\""));
    let run = run.args(["--bind-to", &format!("user:{other}")]).program(sh("true"));
    run.run().has_code(251).says(&format!(
        "rank 0 on {} could not be started: cannot bind to processor {other}: only {cpu} may be used here; \
         name others with --bind-to user:LIST",
        host()
    ));
}

#[test]
fn more_ranks_than_cores_are_not_bound_unless_they_may_share_them() {
    let _alone = alone();
    let (cores, all) = (cores(), this_node().1.cpus);
    let ranks = cores.len() as u32 + 1;
    let (outcome, cpus) = bound(scela().np(ranks).args(["--bind-to", "core"]));
    assert!(cpus.iter().all(|cpus| *cpus == all.to_string()), "{cpus:?}");
    outcome.says(&format!("ranks on {}: not bound: {ranks} ranks do not fit on processor", host()));
    let (outcome, cpus) = bound(scela().np(ranks).args(["--bind-to", "core:overload-allowed"]));
    outcome.is_quiet_success();
    assert_eq!((&cpus[0], cpus.last()), (&cores[0].to_string(), Some(&cores[0].to_string())));
    let (outcome, _) = bound(scela().np(ranks).args(["--cpus-per-rank", "1"]));
    outcome.says(&format!(", which have room for {}; '--bind-to core:overload-allowed' lets", cores.len()));
}

#[test]
fn any_number_of_ranks_shares_a_package() {
    let _alone = alone();
    let packages = this_node().0.parts(Level::Package).len();
    let ranks = usable().len() as u32 + 1;
    let (outcome, cpus) = bound(scela().np(ranks).args(["--bind-to", "package"]));
    outcome.is_quiet_success();
    if packages == 1 {
        assert!(cpus.iter().all(|cpus| *cpus == this_node().1.cpus.to_string()), "{cpus:?}");
    }
}

#[test]
fn a_rank_that_never_fits_is_not_started() {
    let _alone = alone();
    let most = usable().len();
    let to = format!("hwthread:{}:overload-allowed", most + 1);
    let run = |more: &[&str]| scela().np(1).args(["--bind-to", &to]).args(more).program(sh("echo started")).run();
    let text = format!(
        "a rank needs {} hwthreads, and at most {most} may be used here; give each at most {most} by --bind-to LEVEL:N,",
        most + 1
    );
    run(&[]).has_code(251).wrote("").says(&format!("rank 0 on {} could not be started: {text}", host()));
    run(&["--explain"]).has_code(0).wrote_among_others(&format!("ranks could not be started: {text}"));
}

#[test]
fn a_rank_gets_several_cores_and_as_many_threads() {
    let _alone = alone();
    let threads = |run: Run| {
        let outcome = run.program(sh("echo $OMP_NUM_THREADS")).run();
        outcome.has_code(0).out()
    };
    assert_eq!(threads(scela().np(1).args(["--cpus-per-rank", "1"])), "1\n");
    assert_eq!(threads(scela().np(1).args(["--cpus-per-rank", "1"]).env("OMP_NUM_THREADS", "5")), "5\n");
    assert_eq!(threads(scela().np(1).args(["--cpus-per-rank", "1", "-genv", "OMP_NUM_THREADS", "7"])), "7\n");
    if has_two_cores() {
        let (_, cpus) = bound(scela().np(1).args(["--cpus-per-rank", "2"]));
        assert_eq!(cpus, [cores()[0].union(&cores()[1]).to_string()]);
    }
}

#[test]
fn memory_is_bound_to_nodes_that_may_be_used() {
    let _alone = alone();
    let node = this_node().1.memory.first().unwrap();
    // The line of the policy of the stack names the nodes.
    let program = sh("grep -h stack /proc/$$/numa_maps");
    let run = scela().np(1).args(["--mem-bind", &node.to_string()]).program(program);
    run.run().is_quiet_success().wrote_among_others(&format!(" bind:{node} "));
    let run = scela().np(1).args(["--mem-bind", "1000"]).program(sh("true"));
    run.run().has_code(251).says("cannot bind to memory of node 1000: ").says("; name others with --mem-bind");
}

#[test]
fn a_rank_that_starts_again_has_its_processors() {
    let _alone = alone();
    let cpu = *usable().last().unwrap();
    let script = "[ -n \"$SCELA_INCARNATION\" ] || exit 3; sed -n 's/^Cpus_allowed_list:\\t//p' /proc/$$/status";
    let run = scela().np(1).args(["--on-failure", "restart=rank", "--bind-to", &format!("user:{cpu}")]);
    run.program(sh(script)).run().has_code(0).wrote(&format!("{cpu}\n"));
}

/// Two sessions must not use the same processor without a word.
#[test]
fn another_session_on_the_same_processors_is_named() {
    let _alone = alone();
    let to = format!("user:{}", usable()[0]);
    let first = scela().np(1).args(["--bind-to", &to]).program(sh("echo here; exec sleep 1000")).spawn();
    first.wait_for("here");
    let (outcome, _) = bound(scela().np(1).args(["--bind-to", &to]));
    outcome.says(&format!("ranks on {}: processor {} is also used by another of your sessions", host(), usable()[0]));
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143).never_says("another session");
    let (outcome, _) = bound(scela().np(1).args(["--bind-to", &to]));
    outcome.is_quiet_success();
}

/// Agents in the environment of a Slurm job on this machine, whose step has `cpus` processors of it.
fn of_slurm(cpus: usize) -> Run {
    let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "h1"), ("SLURM_TASKS_PER_NODE", "2")];
    let agents = format!("exec:env SLURM_CPUS_ON_NODE={cpus} X={{host}}");
    scela().np(2).envs(job).args(["--bootstrap", &agents])
}

#[test]
fn a_node_that_the_job_has_alone_is_shared_out() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let all = this_node().1.cpus;
    let (_, shares) = bound(of_slurm(usable().len()));
    let sets: Vec<CpuSet> = shares.iter().map(|cpus| cpus.parse().unwrap()).collect();
    assert!(sets[0].is_disjoint(&sets[1]) && sets[0].union(&sets[1]) == all, "{shares:?}");
    let (_, shares) = bound(of_slurm(usable().len() - 1));
    assert_eq!(shares, [all.to_string(), all.to_string()], "others may use the rest");
    let cpu = usable()[0];
    let other =
        scela().np(1).args(["--bind-to", &format!("user:{cpu}")]).program(sh("echo here; exec sleep 1000")).spawn();
    other.wait_for("here");
    let (outcome, shares) = bound(of_slurm(usable().len()));
    outcome.is_quiet_success();
    assert_eq!(shares, [all.to_string(), all.to_string()], "another session has one of the processors");
    other.signal(Signal::SIGTERM);
    other.finish().has_code(143);
    let (_, shares) = bound(of_slurm(usable().len()).args(["--bind-to", "none"]));
    assert_eq!(shares, [all.to_string(), all.to_string()]);
}

/// A cpuset cgroup with one processor. Dropping it removes it.
struct Cpuset(PathBuf);

impl Cpuset {
    fn new(cpu: u32, label: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skip("only root may create a cpuset");
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_cpuset = |line: &&str| {
            let (_, kind) = line.split_once(" - ").unwrap_or_default();
            kind.starts_with("cgroup ") && kind.split([',', ' ']).any(|option| option == "cpuset")
        };
        let of_v1 = mounts.lines().find(is_cpuset);
        let mount = of_v1.or(mounts.lines().find(|line| line.contains(" - cgroup2 ")));
        let place = mount.and_then(|line| line.split(' ').nth(4)).map(|mount| PathBuf::from(mount).join(label));
        let Some(place) = place else {
            skip("no cgroup is mounted");
            return None;
        };
        if let Err(problem) = fs::create_dir(&place) {
            skip(&format!("no cgroup can be created: {problem}"));
            return None;
        }
        let created = Self(place);
        let write = |name: &str, text: &str| fs::write(created.0.join(name), text);
        if let Err(problem) = write("cpuset.mems", "0").and_then(|()| write("cpuset.cpus", &cpu.to_string())) {
            skip(&format!("the cgroup has no cpuset: {problem}"));
            return None;
        }
        Some(created)
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let removed = eventually(|| fs::remove_dir(&self.0).is_ok().then_some(()));
        assert!(removed.is_some() || std::thread::panicking(), "{} is not empty", self.0.display());
    }
}

#[test]
fn only_what_a_cpuset_leaves_is_used() {
    let _alone = alone();
    let run = scela().np(2);
    let cpu = *usable().last().unwrap();
    let Some(group) = Cpuset::new(cpu, run.world().label()) else { return };
    let run = run.shell(&format!("echo $$ > {}", group.0.join("cgroup.procs").display()));
    let (outcome, cpus) = bound(run.args(["--bind-to", "core:overload-allowed", "--report-bindings"]));
    assert_eq!(cpus, [cpu.to_string(), cpu.to_string()]);
    outcome.says(&format!("] processor {cpu}, mask "));
}
