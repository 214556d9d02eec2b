//! Recordings of agents are replayed into new cores, which produce the same output.

use nix::sys::signal::Signal;
use tests::{CACHES, Outcome, Run, scela};

use crate::{rank, script};

/// Records a run and asserts that the recordings of `agents` agents can be replayed. Each must have some steps.
#[track_caller]
fn assert_replayable(run: Run, agents: u32, finish: impl FnOnce(Run) -> Outcome) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let outcome = finish(run.env("SCELA_RECORD", place.path()).agents(agents));
    for agent in 1..=agents {
        let path = place.path().join(format!("agent-{agent}.recording"));
        let recording = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}\n{outcome}", path.display()));
        let steps = nla::wire::replay(&recording).unwrap_or_else(|error| panic!("agent {agent}: {error}\n{outcome}"));
        outcome.check(steps > 5, "a recording should have more than five steps");
    }
}

#[test]
fn exchanges_can_be_replayed_under_each_policy() {
    for policy in CACHES {
        assert_replayable(scela().np(24).fanout(2).cache(policy), 5, |run| {
            let outcome = run.program(rank(["everybody", "3"])).run();
            outcome.is_quiet_success();
            outcome
        });
    }
}

#[test]
fn an_abort_can_be_replayed() {
    let steps = ["init", "fence", "@1", "cmd=abort exitcode=7", "@*", "fence"];
    assert_replayable(scela().np(6).fanout(2), 3, |run| run.program(script(steps)).run());
}

#[test]
fn a_session_with_a_lost_agent_can_be_replayed() {
    // The recording of the killed agent ends in the middle. The recordings of the others end with the loss.
    assert_replayable(scela().np(6).fanout(2), 3, |run| {
        let running = run.program(script(["init", "fence", "say here", "pause"])).spawn();
        running.wait_for_times("here", 6);
        running.world().agents()[0].signal(Signal::SIGKILL);
        running.finish()
    });
}
