//! Processes that are stopped or starved: a stop costs its time, not the job, unless an agent or a guardian stops alone.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Process, Running, Tree, scela, sh};

use crate::host;

const SHORT: [&str; 2] = ["--dead-time", "0.5"];
/// Several dead times.
const STOP: Duration = Duration::from_millis(1600);

/// A session with three agents whose ranks wait for the file "go".
fn start(options: &[&str]) -> Running {
    let run = scela().np(3).agents(3).args(options);
    let go = run.world().file("go");
    let running = run.program(sh(&format!("echo here; until [ -e {} ]; do sleep 0.02; done", go.display()))).spawn();
    running.wait_for_times("here", 3);
    running
}

/// Waits for several dead times, in which all agents must stay.
fn outlive(running: &Running) {
    let began = Instant::now();
    running.wait_until("several dead times", || {
        assert_eq!(running.world().agents().len(), 3, "an agent has ended after {:?}", began.elapsed());
        (began.elapsed() >= STOP).then_some(())
    });
}

fn finish(running: Running) {
    fs::write(running.world().file("go"), "").unwrap();
    running.finish().has_code(0).never_says(" was lost");
}

/// Over pipes and over Unix sockets, also for longer than the stop time, and over TCP.
#[test]
fn a_stopped_launcher_costs_its_time_and_not_the_job() {
    let sessions = [&["0.5,1"][..], &["0.5,1", "--fanout", "2"], &["0.5", "--agents-as-nodes"]]
        .map(|options| start(&[&["--dead-time"], options].concat()));
    for running in &sessions {
        running.signal(Signal::SIGSTOP);
    }
    sessions.iter().for_each(outlive);
    for running in &sessions {
        running.signal(Signal::SIGCONT);
    }
    sessions.into_iter().for_each(finish);
}

#[test]
fn a_stopped_session_costs_its_time_and_not_the_job() {
    let sessions = [&["--fanout", "2"][..], &["--agents-as-nodes", "--on-failure", "continue"]];
    let sessions = sessions.map(|options| start(&[&SHORT, options].concat()));
    let all: Vec<Process> = sessions.iter().flat_map(|running| running.world().processes()).collect();
    Process::signal_all(&all, Signal::SIGSTOP);
    sessions.iter().for_each(outlive);
    Process::signal_all(&all, Signal::SIGCONT);
    sessions.into_iter().for_each(finish);
}

fn stop_an_agent_with_its_guardian(running: &Running) -> [Process; 2] {
    let agent = Tree::new(3, 32).process(running.world(), 2);
    // The guardian would notice that the agent alone is stopped.
    let guardian = Process::of(agent.parent).unwrap();
    guardian.signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGSTOP);
    [agent, guardian]
}

#[test]
fn a_silent_agent_is_told_and_goes_on() {
    let running = start(&SHORT);
    let stopped = stop_an_agent_with_its_guardian(&running);
    let told = format!("scela-run: nothing was heard from agent 2 on {} for ", host());
    running.wait_for_error(&told);
    running.wait_for_error("although its machine answers: it is stopped or starved; it counts as lost after 600 s");
    Process::signal_all(&stopped, Signal::SIGCONT);
    fs::write(running.world().file("go"), "").unwrap();
    running.finish().has_code(0).says(&told);
}

#[test]
fn a_silent_agent_is_lost_after_its_limit() {
    let running = start(&["-v", "--dead-time", "0.5,1.5"]);
    let stopped = stop_an_agent_with_its_guardian(&running);
    running.wait_for_error("reported: ");
    Process::signal_all(&stopped, Signal::SIGCONT);
    let lost = " was lost: nothing was heard from it for 1.5 s, although its machine answers; was it stopped?";
    running.finish().has_code(252).says(lost);
}
