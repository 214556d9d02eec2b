//! Tasks that panic: the session ends, the message names the task and the agent that panicked, and nothing is left
//! behind.
//!
//! `SCELA_PANIC=END/TASK` makes the tasks of that name panic at their start. Each case runs without and with a
//! backtrace, because printing one delays the unwinding and the report.

use std::fs;
use std::io::Read;
use std::time::Duration;

use tests::{Outcome, Pool, scela, sh};

use crate::{host, with_full_error_pipe};

const AGENTS: u32 = 3;

/// Runs sessions with a panic in a task. Their ranks would wait until they are ended.
fn sessions_with_panic_in(task: &str) -> [Outcome; 2] {
    sessions(task, "input\n", "cat; echo error >&2; sleep 1000 & wait")
}

/// Runs sessions with a panic in a task. Their ranks end at once, so the panic races with the end of the session.
fn short_sessions_with_panic_in(task: &str) -> [Outcome; 2] {
    sessions(task, "", "echo output; echo error >&2")
}

fn sessions(task: &str, input: &str, program: &str) -> [Outcome; 2] {
    ["0", "1"].map(|backtrace| {
        let run = scela().np(AGENTS).agents(AGENTS).fanout(2).env("SCELA_PANIC", task).env("RUST_BACKTRACE", backtrace);
        let run = if ["launcher/stdout", "launcher/stderr"].contains(&task) {
            // Only output that may have to wait, such as that to files, is written by threads.
            let [out, err] = ["out", "err"].map(|name| run.world().file(name));
            run.arg("-outfile-pattern").arg(&out).arg("-errfile-pattern").arg(&err)
        } else {
            run
        };
        let outcome = run.stdin(input).program(sh(program)).run();
        outcome.took_less_than(Duration::from_secs(20));
        outcome
    })
}

fn reports_lost_agent(outcome: &Outcome, task: &str) {
    outcome.has_code(252).says(&format!(" on {} was lost: its task '{task}' panicked at ", host()));
    outcome.says(": SCELA_PANIC asked for this\n  the job was ended; first failure at ");
}

fn reports_failed_launcher(outcome: &Outcome, task: &str) {
    outcome.has_code(253).says(&format!("error: the launcher failed: its task '{task}' panicked at "));
    outcome.says(": SCELA_PANIC asked for this\n  the job was ended\n  hint: this is a bug of ScELA; please report it");
}

fn agent_is_lost_after_panic_in(task: &str) {
    sessions_with_panic_in(&format!("agent/{task}")).iter().for_each(|outcome| reports_lost_agent(outcome, task));
}

fn launcher_fails_after_panic_in(task: &str) {
    let outcomes = sessions_with_panic_in(&format!("launcher/{task}"));
    outcomes.iter().for_each(|outcome| reports_failed_launcher(outcome, task));
}

#[test]
fn a_panic_is_reported_although_the_ranks_have_ended() {
    let outcomes = short_sessions_with_panic_in("agent/output");
    outcomes.iter().for_each(|outcome| reports_lost_agent(outcome, "output"));
    for thread in ["stdin", "stdout", "stderr"] {
        let outcomes = short_sessions_with_panic_in(&format!("launcher/{thread}"));
        outcomes.iter().for_each(|outcome| reports_failed_launcher(outcome, thread));
    }
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
fn a_panic_in_the_input_of_a_rank_ends_its_agent() {
    agent_is_lost_after_panic_in("rank input");
}

/// The agent listens before it joins, so its start may fail. The first report may also be that of a child of this
/// agent, which cannot reach its parent.
#[test]
fn a_panic_in_the_listener_ends_its_agent() {
    let panicked = format!(" on {} was lost: its task 'listener' panicked at ", host());
    for outcome in sessions_with_panic_in("agent/listener") {
        let error = outcome.err();
        let is_reported = match outcome.code {
            Some(252) => error.contains(&panicked),
            Some(251) => {
                error.contains("could not be started: its parent cannot be reached")
                    || error.contains("could not be started: its task 'listener' panicked at ")
            }
            _ => false,
        };
        outcome.check(is_reported, "it should have reported the panic, or the agent that cannot reach its parent");
    }
}

/// The agent has no link left over which it could report the panic.
#[test]
fn a_panic_in_a_link_ends_its_agent() {
    for outcome in sessions_with_panic_in("agent/link") {
        outcome.has_code(252).says(&format!(" on {} was lost: ", host()));
    }
}

#[test]
fn a_panic_before_an_agent_has_joined_fails_its_start() {
    for task in ["bootstrap", "relay"] {
        for outcome in sessions_with_panic_in(&format!("agent/{task}")) {
            outcome.has_code(251).says(&format!("could not be started: its task '{task}' panicked at "));
        }
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

#[test]
fn a_panic_in_a_job_of_a_pool_ends_no_other_job() {
    let pool = Pool::start(&["--slots", "5"]);
    let other = pool.job().np(1);
    let file = other.world().file("go on");
    let wait = format!("echo here; until [ -e '{}' ]; do sleep 0.02; done; echo done", file.display());
    let other = other.program(sh(&wait)).spawn();
    other.wait_for("here");
    let panicking = |task| pool.job().np(1).env("SCELA_PANIC", task).program(sh("sleep 1000")).run();
    let next_runs = || {
        pool.job().np(1).program(sh("echo next")).run().has_code(0).wrote("next\n");
    };
    reports_lost_agent(&panicking("agent/rank"), "rank");
    next_runs();
    reports_failed_launcher(&panicking("launcher/session"), "session");
    next_runs();
    fs::write(&file, "").unwrap();
    other.finish().has_code(0).wrote("here\ndone\n");
}

#[test]
fn a_panic_is_reported_after_standard_error_was_full() {
    // The agents would find their launcher silent after the dead time.
    let run = scela().np(AGENTS).agents(AGENTS).fanout(2).args(["--dead-time", "300"]);
    let run = run.env("SCELA_PANIC", "launcher/session");
    let (run, mut pipe_end) = with_full_error_pipe(run);
    let running = run.program(sh("sleep 1000")).spawn();
    let launcher = running.launcher();
    // The thread that writes standard error starts with the panic's message, after the agents.
    let has_panicked = || {
        let threads = fs::read_dir(launcher.file("task")).into_iter().flatten().flatten();
        threads
            .map(|thread| fs::read_to_string(thread.path().join("comm")))
            .any(|name| name.is_ok_and(|name| name == "messages\n"))
    };
    running.wait_until("the agents end although nothing reads the panic's message", || {
        (has_panicked() && running.world().guardians().is_empty()).then_some(())
    });
    let mut text = Vec::new();
    running.wait_until("the panic is reported", || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = pipe_end.read(&mut bytes) {
            text.extend_from_slice(&bytes[..length]);
        }
        String::from_utf8_lossy(&text).contains("the launcher failed: its task 'session' panicked at ").then_some(())
    });
    running.finish().has_code(253);
}
