//! Lost hosts: with `--on-failure continue` a lost host takes only its own ranks with it, with `restart` a spare host
//! replaces it.

use nix::sys::signal::Signal;
use tests::{Cluster, Host, Process, Running, Tree, scela, sh};

use crate::rank;

const HOSTS: u32 = 16;
const ROUNDS: u32 = 60;

/// Starts one rank on each of 16 hosts, in a tree with a fan-out of 2.
fn start(cluster: &Cluster) -> (Running, Tree) {
    let run = scela().on(cluster).args(["-hosts", &cluster.names(), "-v", "-ppn", "1"]).np(HOSTS).fanout(2);
    let run = run.args(["--on-failure", "continue", "--dead-time", "4"]);
    let running = run.program(rank(["survivors", &ROUNDS.to_string(), "after-death"])).spawn();
    running.wait_for_error("fence 5: ");
    (running, Tree::new(HOSTS, 2))
}

/// Asserts that all ranks but that of `agent` have finished all rounds, with right entries of each other.
fn assert_survived(running: Running, agent: u32) {
    let dead = agent - 1;
    let outcome = running.finish();
    outcome.has_code(252).says(&format!("went on without rank {dead}; "));
    let others = (0..HOSTS).filter(|rank| *rank != dead);
    outcome.wrote_lines(others.map(|rank| format!("rank {rank}: {ROUNDS} rounds, 0 failed, dead: {dead}")));
}

fn ranks_on(host: &Host) -> usize {
    host.processes().iter().filter(|process| process.name == "rank").count()
}

#[test]
fn an_inner_agent_killed_among_sixteen_hosts_takes_only_its_rank() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS as usize) else { return };
    let (running, tree) = start(&cluster);
    let host = cluster.host(tree.inner() as usize - 1);
    let agent = host.processes().into_iter().find(|process| process.name == "scela-agent").unwrap();
    agent.signal(Signal::SIGKILL);
    assert_survived(running, tree.inner());
}

#[test]
fn a_host_that_is_cut_off_ends_its_ranks_and_the_others_go_on() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS as usize) else { return };
    let (running, tree) = start(&cluster);
    let host = cluster.host(tree.inner() as usize - 1);
    assert_eq!(ranks_on(host), 1);
    cluster.cut(host);
    running.wait_until("the agent of the host ends its rank", || (ranks_on(host) == 0).then_some(()));
    cluster.mend(host);
    assert_survived(running, tree.inner());
}

/// Starts two agents with two ranks each on each of two hosts. Each rank has a child.
fn start_two_agents_per_host(cluster: &Cluster) -> Running {
    let options = ["--agents-per-node", "2", "--dead-time", "4,4", "--kill-grace", "1"];
    let run = scela().on(cluster).args(["-hosts", &cluster.names(), "-ppn", "4"]).args(options).np(8);
    let running = run.program(sh("sleep 1000 & echo start; exec sleep 1000")).spawn();
    running.wait_for_times("start", 8);
    running
}

/// The other agent of the host ends what is left.
#[test]
fn an_agent_lost_with_its_guardian_leaves_nothing_on_a_host_with_another_agent() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    for (agent_gets, guardian_gets) in
        [(Signal::SIGSTOP, Signal::SIGSTOP), (Signal::SIGKILL, Signal::SIGSTOP), (Signal::SIGKILL, Signal::SIGKILL)]
    {
        let running = start_two_agents_per_host(&cluster);
        let host = cluster.host(1);
        let agent = host.processes().into_iter().rfind(|process| process.name == "scela-agent").unwrap();
        let guardian = Process::of(agent.parent).unwrap();
        guardian.signal(Signal::SIGSTOP);
        agent.send(agent_gets);
        guardian.signal(guardian_gets);
        agent.signal(agent_gets);
        // The end of a run includes that nothing is left on the hosts.
        running.finish().has_code(252).says(" was lost: ");
    }
}

/// The agent gives its ranks their grace, because its guardian was killed, and is stopped meanwhile.
#[test]
fn a_stopped_agent_without_a_guardian_is_ended_on_a_host_with_another_agent() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let options = ["--agents-per-node", "2", "--dead-time", "4,4", "--kill-grace", "2"];
    let run = scela().on(&cluster).args(["-hosts", &cluster.names(), "-ppn", "2"]).args(options).np(4);
    let running = run.program(sh("trap '' TERM; echo start; while :; do sleep 1; done")).spawn();
    running.wait_for_times("start", 4);
    let agent = cluster.host(1).processes().into_iter().rfind(|process| process.name == "scela-agent").unwrap();
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGKILL);
    running.wait_until("the guardian is dead", || guardian.state_now().is_none_or(|state| state == 'Z').then_some(()));
    agent.signal(Signal::SIGSTOP);
    running.finish().has_code(252).says(" was lost: ");
}

/// The other agent of the host is the lost one's child, and gets the order when it has joined the launcher.
#[test]
fn an_agent_below_a_lost_one_on_its_host_ends_what_that_has_left() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let options = ["--agents-per-node", "2", "--fanout", "2", "--on-failure", "continue", "--dead-time", "4,4"];
    let run = scela().on(&cluster).args(["-hosts", &cluster.names(), "-ppn", "2"]).args(options).np(6);
    let running = run.program(sh("echo start; exec sleep 1000")).spawn();
    running.wait_for_times("start", 6);
    let rank = |number| cluster.host(0).processes().into_iter().find(move |process| process.rank() == Some(number));
    let agent = Process::of(rank(0).unwrap().parent).unwrap();
    assert_eq!(agent.name, "scela-agent");
    Process::of(agent.parent).unwrap().signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGSTOP);
    running.wait_until("the lost agent and its rank end", || {
        (rank(0).is_none() && agent.state_now().is_none_or(|state| state == 'Z')).then_some(())
    });
    assert!(rank(1).is_some(), "the other rank runs");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// Starts one rank on each of 16 hosts, with one spare host, in a tree with a fan-out of 2. The first start lasts until it
/// is ended.
fn start_with_spare(cluster: &Cluster) -> Running {
    let run = scela().on(cluster).args(["-hosts", &cluster.names(), "-v", "-ppn", "1", "--spares", "1"]);
    let run = run.np(HOSTS).fanout(2).args(["--on-failure", "restart", "--dead-time", "4", "--kill-grace", "1"]);
    let mut program = sh("if [ $SCELA_INCARNATION = 0 ]; then exec \"$@\" 1000000; else exec \"$@\" 3; fi");
    program.extend(rank(["survivors"]));
    let running = run.program(program).spawn();
    running.wait_for_error("fence 5: ");
    running
}

fn assert_restarted(running: Running, cluster: &Cluster, lost: u32) {
    let outcome = running.finish();
    let spare = cluster.host(HOSTS as usize).name();
    outcome.has_code(0).says("restart 1 of at most 3").says(&format!("rank {} is on {spare} now", lost - 1));
    outcome.wrote_lines((0..HOSTS).map(|rank| format!("rank {rank}: 3 rounds, 0 failed, dead: ")));
}

#[test]
fn a_spare_host_replaces_one_whose_agent_was_killed() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS as usize + 1) else { return };
    let running = start_with_spare(&cluster);
    let inner = Tree::new(HOSTS + 1, 2).inner();
    let host = cluster.host(inner as usize - 1);
    let agent = host.processes().into_iter().find(|process| process.name == "scela-agent").unwrap();
    agent.signal(Signal::SIGKILL);
    assert_restarted(running, &cluster, inner);
}

#[test]
fn a_spare_host_replaces_one_that_is_cut_off_after_this_one_has_ended_its_ranks() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS as usize + 1) else { return };
    let running = start_with_spare(&cluster);
    let inner = Tree::new(HOSTS + 1, 2).inner();
    let host = cluster.host(inner as usize - 1);
    cluster.cut(host);
    running.wait_for_error("is on ");
    assert_eq!(ranks_on(host), 0, "no rank runs twice");
    cluster.mend(host);
    assert_restarted(running, &cluster, inner);
}

#[test]
fn a_spare_host_takes_over_the_ranks_of_a_lost_one_while_the_others_go_on() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS as usize + 1) else { return };
    let run = scela().on(&cluster).args(["-hosts", &cluster.names(), "-v", "-ppn", "1", "--spares", "1"]);
    let run = run.np(HOSTS).fanout(2).args(["--on-failure", "restart=rank", "--dead-time", "4", "--kill-grace", "1"]);
    let running = run.program(rank(["survivors", "60"])).spawn();
    running.wait_for_error("fence 5: ");
    let inner = Tree::new(HOSTS + 1, 2).inner();
    let host = cluster.host(inner as usize - 1);
    cluster.cut(host);
    running.wait_for_error("is on ");
    assert_eq!(ranks_on(host), 0, "no rank runs twice");
    cluster.mend(host);
    let outcome = running.finish();
    let spare = cluster.host(HOSTS as usize).name();
    outcome.has_code(0).says("restart 1 of at most 3").says(&format!("rank {} is on {spare} now", inner - 1));
    outcome.wrote_lines((0..HOSTS).map(|rank| format!("rank {rank}: 60 rounds, 0 failed, dead: ")));
}
