//! Processes that are stopped on hosts that answer, and hosts that do not answer.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Cluster, Process, Running, scela, sh};

/// Several dead times.
const STOP: Duration = Duration::from_millis(3500);

/// Starts a rank on each of three hosts. All wait for the file "go", and rank 1 writes as much as it can.
fn start(cluster: &Cluster, dead_time: &str) -> Running {
    let run = scela().on(cluster).args(["-hosts", &cluster.names(), "--fanout", "2", "--dead-time", dead_time]).np(3);
    let go = cluster.shared().join("go");
    let script = format!(
        "echo here; if [ $PMI_RANK = 1 ]; then until [ -e {0} ]; do head -c 200000 /dev/zero | tr '\\0' x; echo; done
        else until [ -e {0} ]; do sleep 0.05; done; fi",
        go.display()
    );
    let running = run.program(sh(&script)).spawn();
    running.wait_for_times("here", 3);
    running
}

fn finish(cluster: &Cluster, running: Running) {
    fs::write(cluster.shared().join("go"), "").unwrap();
    running.finish().has_code(0).never_says(" was lost");
}

/// Waits for several dead times, in which all agents must stay.
fn outlive(cluster: &Cluster, running: &Running) {
    let began = Instant::now();
    running.wait_until("several dead times", || {
        let agents = cluster.hosts().iter().filter(|host| agent_on(host).is_some()).count();
        assert_eq!(agents, 3, "an agent has ended after {:?}: {}", began.elapsed(), running.stderr().text());
        (began.elapsed() >= STOP).then_some(())
    });
}

fn agent_on(host: &tests::Host) -> Option<Process> {
    host.processes().into_iter().find(|process| process.name == "scela-agent")
}

/// Stops the agent of host 2 with its guardian and its rank.
fn stop_host(cluster: &Cluster) -> Vec<Process> {
    let processes = cluster.host(1).processes();
    let stopped: Vec<_> = processes.into_iter().filter(|process| process.name != "sshd").collect();
    // The guardian first: it would notice that its agent is stopped.
    let (guardians, others): (Vec<_>, Vec<_>) = stopped.into_iter().partition(|process| process.name == "scela-guard");
    let all: Vec<_> = guardians.into_iter().chain(others).collect();
    Process::signal_all(&all, Signal::SIGSTOP);
    all
}

/// The pipes and windows of all that the second rank writes are full meanwhile.
#[test]
fn a_stopped_launcher_costs_its_time_and_not_the_job() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let running = start(&cluster, "1");
    running.signal(Signal::SIGSTOP);
    outlive(&cluster, &running);
    running.signal(Signal::SIGCONT);
    finish(&cluster, running);
}

#[test]
fn a_host_whose_processes_are_stopped_is_told_and_goes_on() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let running = start(&cluster, "1");
    let stopped = stop_host(&cluster);
    outlive(&cluster, &running);
    running.wait_for_error("although its machine answers: it is stopped or starved; it counts as lost after 600 s");
    Process::signal_all(&stopped, Signal::SIGCONT);
    finish(&cluster, running);
}

#[test]
fn a_host_whose_processes_stay_stopped_is_lost_after_their_limit() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let running = start(&cluster, "1,3");
    let stopped = stop_host(&cluster);
    running.wait_for_error(" was lost: nothing was heard from it for 3 s, although its machine answers");
    Process::signal_all(&stopped, Signal::SIGCONT);
    running.finish().has_code(252).says("on node002 was lost: ");
}

/// Its processes may be silent for much longer.
#[test]
fn a_host_that_is_cut_off_is_lost_after_the_dead_time_and_leaves_no_orphan() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let running = start(&cluster, "2");
    let host = cluster.host(2);
    cluster.cut(host);
    running.wait_for_error("on node003 was lost: nothing was heard from it for 2 s\n");
    running.wait_until("the agent of the host ends", || agent_on(host).is_none().then_some(()));
    cluster.mend(host);
    running.finish().has_code(252);
}
