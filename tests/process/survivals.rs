//! `--on-failure continue`: the other ranks go on when one dies.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Process, Run, Tree, link_sockets, scela, sh, tcp_sockets};

use crate::{rank, script};

fn going_on() -> Run {
    scela().args(["--on-failure", "continue"])
}

/// The line that each of `ranks` prints.
fn seen(ranks: impl IntoIterator<Item = u32>, rounds: u32, failed: u32, dead: &str) -> Vec<String> {
    let line = |rank| format!("rank {rank}: {rounds} rounds, {failed} failed, dead: {dead}");
    ranks.into_iter().map(line).collect()
}

#[test]
fn the_others_go_on_and_the_first_cause_gives_the_code() {
    for pmi_port in [&[][..], &["--pmi-port"]] {
        let run = going_on().args(pmi_port).np(8).agents(4).fanout(2);
        let outcome = run.program(rank(["survivors", "4", "5@2", "2@3"])).run();
        outcome
            .has_code(137)
            .says("rank 5 on ")
            .says("was killed by signal 9 (KILL)\n  the job went on without ranks 2,5; first failure at ");
        outcome.wrote_lines(seen([0, 1, 3, 4, 6, 7], 4, 0, "2,5"));
    }
}

#[test]
fn every_policy_goes_on() {
    for policy in ["hcs", "hcma", "hcmab-lru"] {
        let run = going_on().cache(&[policy]).np(6).agents(3).fanout(2);
        let outcome = run.program(rank(["survivors", "3", "1@1", "4@2"])).run();
        outcome.has_code(137).wrote_lines(seen([0, 2, 3, 5], 3, 0, "1,4"));
    }
}

#[test]
fn a_death_before_the_first_fence_fails_that_fence_for_all() {
    let run = scela().arg("-disable-auto-cleanup").np(4).agents(2);
    let outcome = run.program(rank(["survivors", "3", "3@0"])).run();
    outcome.has_code(137).wrote_lines(seen([0, 1, 2], 3, 1, "3"));
}

#[test]
fn only_ranks_that_catch_sigusr1_get_it() {
    let catches = sh("trap 'echo told' USR1; echo ready; sleep 1000 & wait; wait");
    // SIGUSR1 would end this one.
    let ignorant = sh("echo ready; exec sleep 1000");
    let running = going_on().np(1).program(catches).and(2, ignorant).spawn();
    running.wait_for_times("ready", 3);
    running.rank(2).signal(Signal::SIGKILL);
    running.wait_for("told");
    assert!(running.world().ranks().iter().any(|(rank, _)| *rank == 1), "rank 1 still runs");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// A wrapper script that is killed leaves the program that it has started.
#[test]
fn what_a_dead_rank_has_started_ends_with_it() {
    let program = sh("if [ $PMI_RANK = 1 ]; then sleep 1234567 & echo worker; wait; exit 1; fi; exec sleep 1000");
    let running = going_on().np(2).program(program).spawn();
    running.wait_for("worker");
    let workers = || running.world().processes().iter().filter(|one| one.argv.iter().any(|w| w == "1234567")).count();
    // The shell prints before its child has become the worker.
    running.wait_until("the worker runs", || (workers() == 1).then_some(()));
    running.rank(1).signal(Signal::SIGKILL);
    running.wait_until("the worker of the dead rank ends", || (workers() == 0).then_some(()));
    assert!(running.world().ranks().iter().any(|(rank, _)| *rank == 0), "rank 0 still runs");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn a_death_is_reported_at_once_and_again_when_the_user_or_the_time_limit_ends_the_job() {
    let waiting = |run: Run| {
        let running = run.np(4).agents(2).program(sh("echo ready; exec sleep 1000")).spawn();
        running.wait_for_times("ready", 4).rank(1).signal(Signal::SIGKILL);
        running
    };
    let report = "error: rank 1 on ";
    let without = "was killed by signal 9 (KILL)\n  the job went on without rank 1; first failure at ";
    let running = waiting(going_on());
    running.wait_for_error("was killed by signal 9 (KILL); the other ranks go on\n").signal(Signal::SIGINT);
    running.finish().has_code(130).says(report).says(without);
    let outcome = waiting(going_on().args(["--timeout", "10"])).finish();
    outcome.has_code(124).says(report).says(without).says("the job ran longer than 10 s (--timeout) and was ended\n");
}

#[test]
fn an_abort_ends_the_others() {
    let aborts = script(["init", ">cmd=abort exitcode=7", "pause"]);
    going_on().np(1).program(aborts).and(1, sh("exec sleep 1000")).run().has_code(7);
}

#[test]
fn a_rank_that_leaves_a_fence_with_code_0_counts_as_dead() {
    let fences = script(["init", "fence", "fence", "finalize"]);
    let leaves = script(["init", "fence"]);
    going_on().np(2).agents(2).program(fences).and(1, leaves).run().says("rank 2");
}

/// Agents connect to each other as from node to node.
const AS_NODES: &[&str] = &["--agents-as-nodes"];

/// Kills an inner agent of 16 in a session that goes on. All ranks of other agents finish all rounds, and see the ranks of
/// that agent as the only dead ones.
fn loses_an_inner_agent(policy: &str, options: &[&str]) {
    let tree = Tree::new(16, 2);
    let run = going_on().arg("-v").args(options).cache(&[policy]).np(16).agents(16).fanout(2);
    let running = run.program(rank(["survivors", "40", "after-death"])).spawn();
    running.wait_for_error("fence 5: ");
    let agent = tree.inner();
    tree.process(running.world(), agent).signal(Signal::SIGKILL);
    let outcome = running.finish();
    let dead = agent - 1;
    outcome.has_code(252).says(&format!("agent {agent} on ")).says(&format!("went on without rank {dead}; "));
    let others = (0..16).filter(|rank| *rank != dead);
    outcome.wrote_lines(seen(others, 40, 0, &dead.to_string()));
}

#[test]
fn an_inner_agent_takes_only_its_own_ranks_with_it() {
    loses_an_inner_agent("hcmab", AS_NODES);
    loses_an_inner_agent("hcmab", &[]);
}

#[test]
fn puts_in_flight_survive_an_inner_agent() {
    loses_an_inner_agent("hcs", AS_NODES);
    loses_an_inner_agent("hcs", &[]);
}

/// The children of a lost agent reach its parent at the same socket as the other agents of the machine.
#[test]
fn agents_of_a_machine_join_an_ancestor_without_tcp() {
    let tree = Tree::new(16, 2);
    let running = going_on().np(16).agents(16).fanout(2).program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", 16);
    let agent = tree.inner();
    let launcher = running.launcher();
    let accepted = |world: &[Process]| -> usize {
        let all = world.iter().chain([&launcher]).flat_map(link_sockets);
        all.filter(|socket| !socket.listens).count()
    };
    assert_eq!((accepted(&running.world().agents()), tree.links(agent)), (16, 3), "one for each agent");
    tree.process(running.world(), agent).signal(Signal::SIGKILL);
    // Three links are lost, and two of them replaced.
    running.wait_until("its children have joined", || (accepted(&running.world().agents()) == 15).then_some(()));
    let agents = running.world().agents();
    let connections: Vec<_> = agents.iter().chain([&launcher]).flat_map(tcp_sockets).collect();
    assert!(connections.iter().all(|socket| !socket.established), "{connections:?}");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn a_job_without_agents_ends_when_their_guardians_have_ended() {
    let run = going_on().args(["--dead-time", "300"]).np(4).agents(4).fanout(2);
    let running = run.program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", 4);
    Process::signal_all(&running.world().agents(), Signal::SIGKILL);
    running.finish().has_code(252).took_less_than(Duration::from_secs(100));
}
