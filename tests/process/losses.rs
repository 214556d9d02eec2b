//! Agents, guardians and launchers that die or are stopped: they are reported by name, and nothing is left behind.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Outcome, Process, Running, Tree, eventually, scela, sh};

use crate::{DEAD_TIME, host, script};

const AGENTS: u32 = 7;

/// Starts one rank on each of seven agents. All ranks wait to be ended.
fn start_seven_agents() -> (Running, Tree) {
    start_seven_agents_with(&[])
}

fn start_seven_agents_with(options: &[&str]) -> (Running, Tree) {
    let run = scela().np(AGENTS).agents(AGENTS).fanout(2).args(options);
    let running = run.program(sh("sleep 1000 & echo here; wait")).spawn();
    running.wait_for_times("here", AGENTS as usize);
    (running, Tree::new(AGENTS, 2))
}

fn assert_lost(outcome: &Outcome, agent: u32) {
    outcome
        .has_code(252)
        .says(&format!("error: agent {agent} on {} was lost: ", host()))
        .says("the job was ended; first failure at ")
        .took_less_than(Duration::from_secs(20));
}

#[test]
fn a_killed_inner_agent_is_reported_as_lost() {
    let (running, tree) = start_seven_agents();
    let agent = tree.inner();
    tree.process(running.world(), agent).signal(Signal::SIGKILL);
    assert_lost(&running.finish(), agent);
}

#[test]
fn a_killed_leaf_is_reported_as_lost() {
    let (running, tree) = start_seven_agents();
    let agent = tree.leaf();
    tree.process(running.world(), agent).signal(Signal::SIGKILL);
    assert_lost(&running.finish(), agent);
}

#[test]
fn the_agent_of_a_killed_guardian_is_reported_as_lost() {
    let (running, tree) = start_seven_agents();
    let agent = tree.leaf();
    let guardian = Process::of(tree.process(running.world(), agent).parent).unwrap();
    assert_eq!(guardian.name, "scela-guard");
    guardian.signal(Signal::SIGKILL);
    assert_lost(&running.finish(), agent);
}

#[test]
fn the_ranks_of_an_agent_whose_guardian_was_killed_have_their_grace() {
    let script = "trap 'sleep 0.5; echo saved; exit 1' TERM; echo here; while :; do sleep 0.05; done";
    let running = scela().np(2).agents(2).program(sh(script)).spawn();
    running.wait_for_times("here", 2);
    let agent = running.rank(0).parent;
    Process::of(Process::of(agent).unwrap().parent).unwrap().signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.has_code(252).wrote_lines(["here", "here", "saved", "saved"]);
}

/// The kernel ends the ranks: they get SIGKILL when their agent dies.
#[test]
fn an_agent_killed_with_its_guardian_leaves_no_rank() {
    let running = scela().np(AGENTS).agents(AGENTS).fanout(2).program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", AGENTS as usize);
    let tree = Tree::new(AGENTS, 2);
    let agent = tree.process(running.world(), tree.leaf());
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    Process::signal_all([&agent, &guardian], Signal::SIGKILL);
    assert_lost(&running.finish(), tree.leaf());
}

/// Kills an agent and its guardian so that neither acts on the death of the other.
fn kill_with_its_guardian(agent: &Process) {
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    Process::signal_all([agent, &guardian], Signal::SIGKILL);
}

/// The launcher adopts and ends the processes that the ranks have started.
#[test]
fn an_agent_killed_with_its_guardian_leaves_no_process() {
    let run = scela().np(AGENTS).agents(AGENTS).fanout(2);
    // The label in its arguments shows whose process it is.
    let unmarked = format!("env -i setsid sh -c 'sleep 1000; :' {}", run.world().label());
    let script = format!("sleep 1000 & setsid sleep 1000 & {unmarked} & echo here; wait");
    let running = run.program(sh(&script)).spawn();
    running.wait_for_times("here", AGENTS as usize);
    let tree = Tree::new(AGENTS, 2);
    kill_with_its_guardian(&tree.process(running.world(), tree.leaf()));
    assert_lost(&running.finish(), tree.leaf());
}

#[test]
fn the_processes_of_a_lost_agent_end_while_the_others_go_on() {
    let script = "if [ $PMI_RANK = 1 ]; then sleep 1234567 & fi; echo here; exec sleep 1000";
    let run = scela().np(2).agents(2).args(["--on-failure", "continue"]).program(sh(script));
    let running = run.spawn();
    running.wait_for_times("here", 2);
    let started =
        || running.world().processes().into_iter().find(|process| process.argv.iter().any(|w| w == "1234567"));
    running.wait_until("the child of rank 1 runs its program", started);
    kill_with_its_guardian(&Tree::new(2, 32).process(running.world(), 2));
    running.wait_until("the child of the lost rank ends", || started().is_none().then_some(()));
    assert_eq!(running.world().ranks().len(), 1, "the other rank runs");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// A shell may have started processes before it executes scela-run.
#[test]
fn processes_that_the_launcher_did_not_start_are_left() {
    let run = scela().np(1).agents(1).program(sh("echo here; sleep 1000 & wait"));
    let file = run.world().file("pid");
    let running = run.shell(&format!("env -u SCELA_TEST_WORLD sleep 1000 & echo $! >{}", file.display())).spawn();
    running.wait_for("here");
    let pid = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let launcher = running.launcher();
    kill_with_its_guardian(&running.world().agents()[0]);
    running.wait_until("the launcher ends", || launcher.state_now().is_none_or(|state| state == 'Z').then_some(()));
    let other = Process::of(pid);
    Process::signal_all(&other, Signal::SIGKILL);
    assert!(other.is_some_and(|process| process.argv.first().is_some_and(|name| name == "sleep")));
}

#[test]
fn a_stopped_guardian_of_a_killed_agent_does_not_delay_the_end() {
    let run = scela().np(3).agents(3).env("SCELA_LOG", "info").program(sh("echo here; exec sleep 1000"));
    let running = run.spawn();
    running.wait_for_times("here", 3);
    let agent = Tree::new(3, 32).process(running.world(), 2);
    Process::of(agent.parent).unwrap().signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGKILL);
    let outcome = running.finish();
    assert_lost(&outcome, 2);
    outcome.never_says("phase=\"shells\"");
}

/// SIGCONT wakes the stopped agent when its guardian dies.
#[test]
fn a_stopped_agent_whose_guardian_was_killed_ends() {
    let (running, tree) = start_seven_agents();
    let agent = tree.process(running.world(), tree.leaf());
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGSTOP);
    guardian.signal(Signal::SIGKILL);
    let outcome = running.finish();
    assert_lost(&outcome, tree.leaf());
    outcome.says("its guardian process ended");
}

/// The agent sees at its next tick that its guardian is stopped, and a second later that it still is.
#[test]
fn a_stopped_guardian_is_noticed_by_its_agent() {
    let (running, tree) = start_seven_agents_with(&["--dead-time", "300", "--heartbeat", "0.5"]);
    let guardian = Process::of(tree.process(running.world(), tree.leaf()).parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    let outcome = running.finish();
    outcome.has_code(252).took_less_than(Duration::from_secs(60));
    outcome.says(&format!("error: agent {} on {} was lost: its guardian process does not answer", tree.leaf(), host()));
}

/// The launcher would kill the guardian at the end of the session, which goes on here.
#[test]
fn a_stopped_guardian_is_killed_by_its_agent() {
    let options = ["--on-failure", "continue", "--dead-time", DEAD_TIME, "--heartbeat", "1"];
    let run = scela().np(2).agents(2).args(options);
    let go = run.world().file("go");
    let wait = format!("echo here; until [ -e {} ]; do sleep 0.02; done", go.display());
    let running = run.program(sh(&wait)).spawn();
    running.wait_for_times("here", 2);
    let guardian = Process::of(Tree::new(2, 32).process(running.world(), 2).parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    running.wait_until("the guardian is dead", || guardian.state_now().is_none_or(|state| state == 'Z').then_some(()));
    fs::write(&go, "").unwrap();
    running.finish().has_code(252).says("agent 2 on ").says(" was lost: its guardian process does not answer");
}

#[test]
fn a_stopped_agent_is_killed_by_its_guardian() {
    let (running, tree) = start_seven_agents();
    let agent = tree.inner();
    tree.process(running.world(), agent).signal(Signal::SIGSTOP);
    let outcome = running.finish();
    assert_lost(&outcome, agent);
    outcome.says("the agent was stopped by a signal; it and its ranks were killed");
}

#[test]
fn one_of_several_killed_agents_is_reported_and_the_others_are_counted() {
    let (running, _) = start_seven_agents();
    Process::signal_all(&running.world().agents(), Signal::SIGKILL);
    running.finish().has_code(252).says(" was lost: ").says("more failure");
}

#[test]
fn an_agent_killed_while_ranks_wait_in_a_fence_is_reported_as_lost() {
    let program = script(["init", "say here", "@0", "pause", "@*", "fence"]);
    let running = scela().np(AGENTS).agents(AGENTS).fanout(2).program(program).spawn();
    running.wait_for_times("here", AGENTS as usize);
    let tree = Tree::new(AGENTS, 2);
    tree.process(running.world(), tree.inner()).signal(Signal::SIGKILL);
    assert_lost(&running.finish(), tree.inner());
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    let (running, _) = start_seven_agents();
    running.signal(Signal::SIGKILL);
    let outcome = running.finish_killed();
    outcome.check(outcome.signal == Some(9), "SIGKILL should have ended the launcher");
}

#[test]
fn a_killed_launcher_leaves_no_rank_that_ignores_term() {
    let script = "trap '' TERM HUP INT; setsid sleep 1000 & echo here; while :; do sleep 1000; done";
    let running = scela().np(3).agents(3).fanout(2).program(sh(script)).spawn();
    running.wait_for_times("here", 3).signal(Signal::SIGKILL);
    running.finish_killed();
}

#[test]
fn a_launcher_killed_during_the_launch_leaves_no_process() {
    let running = scela().np(64).agents(16).fanout(2).program(sh("exec sleep 1000")).spawn();
    running.wait_until("an agent has started", || (!running.world().agents().is_empty()).then_some(()));
    running.signal(Signal::SIGKILL);
    running.finish_killed();
}

/// The rank has exited with 0, but nothing has read its output yet. Part of the output is still with the agent.
#[test]
fn an_agent_killed_while_its_output_is_passed_on_fails_the_job() {
    let run = scela().np(1).unread();
    let written = run.world().file("written");
    // More than the launcher stores, in memory and in the pipe to its reader; less than it stores together with the agent.
    let script = format!("head -c 900000 /dev/zero; touch {}", written.display());
    let mut running = run.program(sh(&script)).spawn();
    let agent = running.wait_until("the rank has exited", || {
        let agent = running.world().agents().pop()?;
        (written.exists() && agent.children().is_empty()).then_some(agent)
    });
    agent.signal(Signal::SIGKILL);
    running.read_output();
    let outcome = running.finish();
    outcome.has_code(252).says(" was lost: ");
    outcome.check(outcome.stdout.len() < 900_000, "part of the output was lost");
}

#[test]
fn an_idle_session_lives_longer_than_its_dead_time() {
    let script = "echo here; until [ -e \"$1\" ]; do sleep 0.02; done";
    let run = scela().np(3).agents(3).fanout(2).args(["--dead-time", "2", "--heartbeat", "0.5"]);
    let file = run.world().file("end");
    let program = sh(script).into_iter().chain([file.clone().into()]).collect();
    let running = run.program(program).spawn();
    running.wait_for_times("here", 3);
    let began = Instant::now();
    assert!(eventually(|| (began.elapsed() > Duration::from_secs(5)).then_some(())).is_some());
    fs::write(file, "").unwrap();
    running.finish().is_quiet_success();
}

/// Rank 0 exits, and its child floods the PMI socket that it has inherited. Rank 1 must still be served, and the job
/// must end when rank 1 ends.
#[test]
fn a_child_of_an_ended_rank_cannot_hold_the_agent() {
    let run = scela().np(2).agents(1);
    let done = run.world().file("done");
    let script = format!(
        "if [ $PMI_RANK = 0 ]; then yes '' >&$PMI_FD 2>/dev/null & echo flooding; exit 0; fi
        while ! [ -e {} ]; do sleep 0.02; done; echo served",
        done.display()
    );
    // dash cannot redirect to a descriptor of two digits.
    let running = run.program(["bash", "-c", &script].map(Into::into).to_vec()).spawn();
    running.wait_for("flooding");
    std::fs::write(&done, "").unwrap();
    let outcome = running.finish();
    outcome.has_code(0);
    assert!(outcome.out().contains("served"), "{outcome}");
}

/// Rank 0 fails, and its child floods the PMI socket that it has inherited. The agent must still report the failure.
#[test]
fn the_failure_of_a_rank_is_reported_although_its_child_floods_the_agent() {
    let script = "if [ $PMI_RANK = 0 ]; then yes '' >&$PMI_FD 2>/dev/null & exit 3; fi; exec sleep 1000";
    let run = scela().np(2).agents(1).program(["bash", "-c", script].map(Into::into).to_vec());
    run.run().has_code(3);
}
