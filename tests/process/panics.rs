//! Tasks that panic: the session ends, the message names the task and the agent that panicked, and nothing is left
//! behind.
//!
//! `SCELA_PANIC=END/TASK` makes the tasks of that name panic at their start.

use std::time::Duration;

use tests::{Outcome, scela, sh};

use crate::host;

const AGENTS: u32 = 3;

/// Runs a session with a panic in a task. Its ranks would wait until they are ended.
fn session_with_panic_in(task: &str) -> Outcome {
    let run = scela().np(AGENTS).agents(AGENTS).fanout(2).env("SCELA_PANIC", task);
    let outcome = run.stdin("input\n").program(sh("cat; sleep 1000 & wait")).run();
    outcome.took_less_than(Duration::from_secs(20));
    outcome
}

fn agent_is_lost_after_panic_in(task: &str) {
    let outcome = session_with_panic_in(&format!("agent/{task}"));
    outcome.has_code(252).says(&format!(" on {} was lost: its task '{task}' panicked at ", host()));
    outcome.says(": SCELA_PANIC asked for this\n  the job was ended; first failure at ");
}

fn launcher_fails_after_panic_in(task: &str) {
    let outcome = session_with_panic_in(&format!("launcher/{task}"));
    outcome.has_code(253).says(&format!("error: the launcher failed: its task '{task}' panicked at "));
    outcome.says(": SCELA_PANIC asked for this\n  the job was ended\n  hint: this is a bug of ScELA; please report it");
}

#[test]
fn a_panic_in_the_task_of_a_rank_ends_its_agent() {
    agent_is_lost_after_panic_in("rank");
}

#[test]
fn a_panic_in_the_actor_of_an_agent_ends_the_agent() {
    agent_is_lost_after_panic_in("agent");
}

#[test]
fn a_panic_in_the_output_thread_ends_its_agent() {
    agent_is_lost_after_panic_in("output");
}

#[test]
fn a_panic_in_a_stream_of_output_ends_its_agent() {
    agent_is_lost_after_panic_in("output stream");
}

#[test]
fn a_panic_in_the_input_of_a_rank_ends_its_agent() {
    agent_is_lost_after_panic_in("rank input");
}

/// The first report may be that of a child of this agent, which cannot reach its parent.
#[test]
fn a_panic_in_the_listener_ends_its_agent() {
    let outcome = session_with_panic_in("agent/listener");
    let error = outcome.err();
    let panicked = format!(" on {} was lost: its task 'listener' panicked at ", host());
    let is_reported = match outcome.code {
        Some(252) => error.contains(&panicked),
        Some(251) => error.contains("could not be started: its parent cannot be reached"),
        _ => false,
    };
    outcome.check(is_reported, "it should have reported the panic, or the agent that cannot reach its parent");
}

/// The agent has no link left over which it could report the panic.
#[test]
fn a_panic_in_a_link_ends_its_agent() {
    let outcome = session_with_panic_in("agent/link");
    outcome.has_code(252).says(&format!(" on {} was lost: ", host()));
}

#[test]
fn a_panic_before_an_agent_has_joined_fails_its_start() {
    for task in ["bootstrap", "relay"] {
        let outcome = session_with_panic_in(&format!("agent/{task}"));
        outcome.has_code(251).says(&format!("could not be started: its task '{task}' panicked at "));
    }
}

#[test]
fn a_panic_in_a_task_of_the_launcher_ends_the_session() {
    for task in ["start", "session", "signals", "starter", "listener", "link"] {
        launcher_fails_after_panic_in(task);
    }
}

#[test]
fn a_panic_in_a_thread_of_the_launcher_ends_the_session() {
    for thread in ["stdin", "stdout", "stderr"] {
        launcher_fails_after_panic_in(thread);
    }
}

/// The ranks have exited before the backtrace of the panic is printed.
#[test]
fn a_panic_during_a_short_job_is_reported_too() {
    for (task, code, words) in [
        ("agent/output", 252, "was lost: its task 'output' panicked at "),
        ("launcher/stdin", 253, "the launcher failed: its task 'stdin' panicked at "),
    ] {
        let run = scela().np(2).env("SCELA_PANIC", task).env("RUST_BACKTRACE", "1");
        run.stdin("").program(sh("echo done")).run().has_code(code).says(words);
    }
}
