//! Sessions inside an allocation of Slurm, whose agents are started by one step.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Allocation, Cluster, Outcome, Process, Program, Run, Running, Slurm, scela, scela_run, sh, skip};

use crate::slurm::or_skip;
use crate::{mpich, rank};

/// Begins a run whose environment describes the allocation.
fn within(allocation: &Allocation) -> Run {
    scela().envs(allocation.environment())
}

/// Prints each rank and its node, where nodes are not hosts. The node is read from the environment of the rank's
/// parent, its agent.
const RANK_AND_NODE: &str = "echo $PMI_RANK $(tr '\\0' '\\n' </proc/$PPID/environ | sed -n s/^SLURMD_NODENAME=//p)";

fn placed(outcome: &Outcome) -> String {
    outcome.is_quiet_success();
    outcome.sorted_lines().join(",")
}

/// Waits for a child process of the launcher with this name.
fn process_of(run: &Running, name: &str) -> Process {
    run.wait_until(name, || run.launcher().children().into_iter().find(|process| process.name == name))
}

/// Waits for the agent on a node.
fn agent_on(run: &Running, node: &str) -> Process {
    let label = run.world().label();
    let is_it = |process: &Process| {
        let is_there = || process.environment().get("SLURMD_NODENAME").is_some_and(|known| known == node);
        process.name == "scela-agent" && process.argv.iter().any(|word| word == label) && is_there()
    };
    run.wait_until("an agent", || Process::all().into_iter().find(is_it))
}

#[test]
fn an_allocation_gives_nodes_and_slots() {
    let Some(slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let allocation = slurm.allocate_evenly(4, 2);
    let place = |options: &[&str]| placed(&within(&allocation).args(options).program(sh(RANK_AND_NODE)).run());
    assert_eq!(
        place(&[]),
        "0 node001,1 node001,2 node002,3 node002,4 node003,5 node003,6 node004,7 node004",
        "nodes and slots"
    );
    assert_eq!(place(&["-np", "3"]), "0 node001,1 node001,2 node002");
    assert_eq!(place(&["-np", "5", "--map-by", "node"]), "0 node001,1 node002,2 node003,3 node004,4 node001");
    assert_eq!(place(&["-ppn", "1"]), "0 node001,1 node002,2 node003,3 node004");
    assert_eq!(place(&["-np", "2", "-ppn", "1", "-hosts", "node003,node001"]), "0 node003,1 node001");
    assert_eq!(place(&["-np", "4", "-ppn", "2", "--agents-per-node", "2"]), "0 node001,1 node001,2 node002,3 node002");
    let run = within(&allocation).args(["--agents-per-node", "3"]).program(rank(["neighbours", "2"]));
    run.run().is_quiet_success();
}

/// Slurm has given all processors of the nodes to the job: both nodes are this machine, so their ranks have the same ones.
#[test]
fn nodes_that_the_job_has_alone_are_shared_out() {
    let usable = nla::sys::cores();
    if usable < 2 {
        return skip("two processors are needed");
    }
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate_evenly(2, 2);
    let cpus = "sed -n 's/^Cpus_allowed_list:\t//p' /proc/$$/status";
    let run = |options: &[&str]| within(&allocation).args(options).program(sh(cpus)).run();
    let shares = run(&[]).is_quiet_success().sorted_lines();
    assert!(shares[0] == shares[1] && shares[1] != shares[2] && shares[2] == shares[3], "{shares:?}");
    let unbound = run(&["--bind-to", "none"]).is_quiet_success().sorted_lines();
    assert_eq!(unbound, vec![unbound[0].clone(); 4]);
}

#[test]
fn explain_shows_the_step() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    let explained = |options: &[&str]| within(&allocation).args(options).arg("--explain").program(sh("")).run();
    explained(&["--agents-per-node", "1"])
        .is_quiet_success()
        .wrote_among_others("  for node[001-002]: srun --overlap ")
        .wrote_among_others(" --nodes=2 --ntasks=2 --ntasks-per-node=1 '--nodelist=node[001-002]' /bin/sh -c ...\n");
}

/// Each agent has a step of its own, whose standard input and output are the agent's link.
#[test]
fn links_can_use_the_streams_of_steps() {
    let Some(slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let allocation = slurm.allocate_evenly(4, 2);
    for options in [&["--no-ports"][..], &["--no-ports", "--launch", "tree", "--fanout", "2"]] {
        within(&allocation).args(options).program(rank(["neighbours", "2"])).run().is_quiet_success();
    }
    let run = within(&allocation).stdin("a line\n").args(["--no-ports", "-l", "--stdin", "5"]);
    let run =
        run.program(sh("cat; test $PMI_RANK != 5 || { head -c 300000 /dev/zero | tr '\\0' x; echo; exit 3; }")).run();
    run.has_code(3).says("rank 5 on node003 exited with code 3");
    assert_eq!(run.out().len(), "[5] a line\n".len() + "[5] \n".len() + 300_000);
}

#[test]
fn ranks_have_the_variables_of_the_job_and_of_no_step() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    let script =
        "env | grep -E '^(SLURM_(STEP|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|LAUNCH|SRUN|CPU_BIND)|SLURMD_|PMIX_)'
        echo $SLURM_JOB_NODELIST ${SLURM_JOB_ID:+a job}";
    within(&allocation).program(sh(script)).run().is_quiet_success().wrote_lines(["node[001-002] a job"; 2]);
    // The device list in the job's own environment is valid on its node only. The list of the step applies.
    let run = within(&allocation).env("CUDA_VISIBLE_DEVICES", "3").env("SLURM_NTASKS_PER_GPU", "7");
    run.program(sh("echo $CUDA_VISIBLE_DEVICES")).run().is_quiet_success().wrote_lines(["3"; 2]);
    // Names of GPUs and of MIG instances, as Slurm may write them, are kept as they are.
    let names = "GPU-5b8a3c9e-7b1d-4c86-8a51-1c2f3e4d5a6b,MIG-1a2b3c4d-5e6f-5a7b-8c9d-0e1f2a3b4c5d";
    let run = within(&allocation).env("CUDA_VISIBLE_DEVICES", names).args(["--bind-to", "core:overload-allowed"]);
    let outcome = run.program(sh("echo $CUDA_VISIBLE_DEVICES")).run();
    outcome.has_code(0).wrote_lines([names; 2]);
    // A launcher that runs in a step of its own has that step's variables in its environment.
    let run = within(&allocation).np(2).env("SLURM_HOSTFILE", "/nonexistent").env("SLURM_DISTRIBUTION", "plane=7");
    run.env("SLURM_STEP_ID", "0").program(rank(["neighbours", "1"])).run().has_code(0);
}

#[test]
fn input_output_and_codes_are_forwarded() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    let run = within(&allocation).stdin("a line\n").args(["-l", "--stdin", "1"]).program(sh("cat; exit $PMI_RANK"));
    run.run().has_code(1).wrote("[1] a line\n").says("rank 1 on node002 exited with code 1");
}

#[test]
fn lost_agents_are_reported_by_node() {
    let Some(slurm) = or_skip(Slurm::with_nodes(3)) else { return };
    let allocation = slurm.allocate(3, 3);
    let run = within(&allocation).program(sh("echo up; sleep 1000")).spawn();
    run.wait_for_times("up", 3);
    agent_on(&run, "node002").signal(Signal::SIGKILL);
    run.finish().has_code(252).says("on node002 was lost");
}

/// srun holds the order back until all nodes have answered.
#[test]
fn agents_wait_longer_than_the_dead_time_for_a_slow_node() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    slurm.signal_slurmd("node002", Signal::SIGSTOP);
    let run = within(&allocation).args(["--dead-time", "1"]).program(rank(["neighbours", "1"])).spawn();
    agent_on(&run, "node001");
    let waiting = Instant::now();
    run.wait_until("longer than ORDER_TIME_MIN", || (waiting.elapsed() > Duration::from_secs(4)).then_some(()));
    slurm.signal_slurmd("node002", Signal::SIGCONT);
    run.finish().is_quiet_success();
}

#[test]
fn a_signal_ends_the_session() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    let run = within(&allocation).program(sh("echo up; sleep 1000")).spawn();
    run.wait_for_times("up", 2).signal(Signal::SIGINT);
    let outcome = run.finish();
    outcome.has_code(130).says("INT: the job is being ended");
    // The signal arrives before any agent has started.
    let run = within(&allocation).args(["--launch-agent", "sleep 1000 #"]).program(sh("echo up")).spawn();
    process_of(&run, "srun");
    run.signal(Signal::SIGINT);
    let outcome = run.finish();
    outcome.has_code(130).says("INT: the launch is given up");
}

/// When a step's srun ends, Slurm ends the tasks of the step.
#[test]
fn a_killed_srun_ends_the_session() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let run = within(&allocation).program(sh("echo up; sleep 1000")).spawn();
        run.wait_for_times("up", 2);
        process_of(&run, "srun").signal(signal);
        run.finish().has_code(252).says("was lost");
    }
}

#[test]
fn nodes_that_cannot_be_reached_are_named_and_left_out() {
    let Some(mut slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let allocation = slurm.allocate_evenly(4, 1);
    slurm.kill_slurmd("node003");
    let bad = |outcome: &Outcome| {
        outcome.says("1 of 4 hosts could not be started").says("node003: its slurmd did not start the agent");
    };
    let outcome = within(&allocation).program(sh(RANK_AND_NODE)).run();
    outcome.has_code(251).says("no rank was started").wrote("");
    bad(&outcome);
    let outcome = within(&allocation).args(["--min-nodes", "3"]).program(sh(RANK_AND_NODE)).run();
    outcome.has_code(0).says("continuing without the failed hosts");
    bad(&outcome);
    assert_eq!(outcome.sorted_lines().join(","), "0 node001,1 node001,2 node002,3 node004");
}

#[test]
fn missing_programs_and_expired_timeouts_are_reported() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate(2, 2);
    let run = |options: &[&str]| within(&allocation).args(options).program(sh("echo up")).run();
    let outcome = run(&["--launch-agent", "/nonexistent/scela-run"]);
    outcome.has_code(251).says("node[001-002]: its agent exited before its first report").says("--launch-agent");
    let outcome = run(&["--launch-agent", "sleep 1000 #", "--start-timeout", "2"]);
    outcome.has_code(251).says("node[001-002]: no answer in time (--start-timeout)");
    let outcome = run(&["-launcher-exec", "/nonexistent/srun"]);
    outcome.has_code(251).says("node[001-002]: /nonexistent/srun: No such file or directory");
    let outcome = within(&allocation).env("SLURM_JOB_ID", "4711").program(sh("echo up")).run();
    outcome.has_code(251).says("Invalid job id specified");
}

/// Compiles a program of `mpi/programs` against Debian's MPICH.
fn debian_mpich(program: &str) -> Option<Program> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/programs").join(format!("{program}.c"));
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hosts-{program}"));
    let compiled = Command::new("mpicc.mpich").args(["-O1", "-o"]).arg(&built).arg(source).status();
    match compiled {
        Ok(status) if status.success() => Some(vec![built.into()]),
        problem => {
            skip(&format!("MPICH of Debian is not installed ({problem:?}); ./tests/run installs it"));
            None
        }
    }
}

fn assert_all_right(outcome: &Outcome) {
    outcome.has_code(0);
    let right = outcome.out().lines().filter(|line| line.ends_with("right")).count();
    outcome.check(right == 8, "all 8 ranks should have computed the right sums");
}

/// This test does not use hosts: Debian's UCX never finishes there, under any launcher.
#[test]
fn mpi_runs_on_nodes_of_this_machine() {
    let Some(slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let allocation = slurm.allocate_evenly(4, 2);
    let Some(program) = debian_mpich("world") else { return };
    assert_all_right(&within(&allocation).program(program).run());
}

/// Starts four hosts as nodes of a Slurm, and an allocation with two slots on each.
fn hosts() -> Option<(Cluster, Slurm, Allocation)> {
    let cluster = Cluster::new_or_skip(4)?;
    let slurm = or_skip(Slurm::on(&cluster))?;
    let allocation = slurm.allocate_evenly(4, 2);
    Some((cluster, slurm, allocation))
}

#[test]
fn hosts_of_an_allocation_are_its_nodes() {
    let Some((cluster, _slurm, allocation)) = hosts() else { return };
    let within = || within(&allocation).on(&cluster);
    let place = |options: &[&str]| placed(&within().args(options).program(sh("echo $PMI_RANK $(hostname)")).run());
    let all = "0 node001,1 node001,2 node002,3 node002,4 node003,5 node003,6 node004,7 node004";
    assert_eq!(place(&[]), all);
    assert_eq!(place(&["--bootstrap", "ssh"]), all, "Slurm's nodes, and not its step");
    within().program(rank(["everybody", "2"])).run().is_quiet_success();
}

/// Agents are started by one step, by a step for each agent whose streams are its link, and by ssh in a tree.
#[test]
fn mpich_runs_on_hosts_of_an_allocation() {
    let Some((cluster, _slurm, allocation)) = hosts() else { return };
    let Some(program) = mpich::world(&cluster) else { return };
    for options in [&[][..], &["--no-ports"], &["--bootstrap", "ssh", "--launch", "tree", "--fanout", "2"]] {
        let run = mpich::mpich().on(&cluster).envs(allocation.environment()).args(options);
        mpich::assert_all_right(&run.program(vec![program.clone().into()]).run(), 8);
    }
}

#[test]
fn lost_hosts_are_reported_and_left_out() {
    let Some((cluster, mut slurm, allocation)) = hosts() else { return };
    let run = within(&allocation).on(&cluster).program(sh("echo up; sleep 1000")).spawn();
    run.wait_for_times("up", 8);
    agent_on(&run, "node003").signal(Signal::SIGKILL);
    run.finish().has_code(252).says("on node003 was lost");
    slurm.kill_slurmd("node002");
    let run = within(&allocation).on(&cluster).args(["-np", "2", "-ppn", "1", "--spares", "2"]);
    let outcome = run.program(sh("echo $PMI_RANK $(hostname)")).run();
    outcome.has_code(0).says("node002: its slurmd").wrote_lines(["0 node001", "1 node003"]);
}

/// The program is sent to these nodes in a step of its own and is cached there for the next session.
#[test]
fn the_program_is_sent_to_nodes_without_it() {
    let Some((cluster, _slurm, allocation)) = hosts() else { return };
    let run = |options: &[&str]| within(&allocation).on(&cluster).args(options).program(rank(["everybody", "2"])).run();
    for host in [1, 3] {
        cluster.host(host).hide(scela_run());
    }
    run(&[]).is_quiet_success();
    run(&["--agents-per-node", "2"]).is_quiet_success();
    run(&["--port-range", "31000:31001"]).is_quiet_success();
    for host in [0, 2] {
        cluster.host(host).hide(scela_run());
    }
    run(&[]).is_quiet_success();
}

/// `proctrack/linuxproc` sends a signal to all processes of a step, the ranks included.
#[test]
fn a_signal_of_slurm_reaches_each_rank_once() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate_evenly(2, 2);
    let (_, job) = allocation.environment().find(|(name, _)| *name == "SLURM_JOB_ID").expect("the job has a number");
    let cancel = |signal: &str| {
        let mut scancel = Command::new("scancel");
        assert!(scancel.envs(allocation.environment()).args(["--signal", signal, job]).status().unwrap().success());
    };
    let script = "exec 2>/dev/null
        trap 'echo got 1' USR1; trap 'echo got 15' TERM; echo here; while :; do sleep 0.05; done";
    let running = within(&allocation).program(sh(script)).spawn();
    running.wait_for_times("here", 4);
    let began = Instant::now();
    cancel("USR1");
    running.wait_for_times("got 1", 4);
    // The launcher asks Slurm for its KillWait, which is 1 s, a second after the start.
    running.wait_until("Slurm was asked", || (began.elapsed() > Duration::from_secs(3)).then_some(()));
    cancel("TERM");
    let outcome = running.finish();
    outcome.has_code(143).says("ranks 0-3 were killed 1 s after TERM");
    let count = |text: &str| outcome.out().lines().filter(|line| *line == text).count();
    assert_eq!((count("got 1"), count("got 15")), (4, 4), "{outcome}");
}
