//! SIGQUIT, Ctrl-C and `--stuck-after` say which ranks are missing from a fence, and what they do.

use nix::sys::signal::Signal;
use tests::{Run, scela, sh};

use crate::script;

/// Ranks 0 and 1 wait in a fence for rank 2, which pauses after PMI_Init, and for rank 3, which never calls PMI.
fn stuck() -> Run {
    let waits = script(["init", "say ready", "fence", "finalize"]);
    let pauses = script(["init", "say ready", "pause"]);
    scela().np(2).agents(2).program(waits).and(1, pauses).and(1, sh("echo ready; exec sleep 1000"))
}

const HEADING: &str = "scela-run: fence 0: 2 ranks have arrived and wait for 2\n";

#[test]
fn sigquit_reports_missing_ranks_and_the_job_goes_on() {
    let running = stuck().spawn();
    running.wait_for_times("ready", 4);
    running.world().ranks()[2].1.signal(Signal::SIGSTOP);
    let host = nla::sys::host_name();
    running.wait_until("the ranks are in the fence", || {
        running.signal(Signal::SIGQUIT);
        let said = running.stderr().text();
        let lines = [
            HEADING.to_owned(),
            format!("scela-run:   rank 2 on {host}: stopped by a signal or a debugger, last PMI call: PMI_Init\n"),
            format!("scela-run:   rank 3 on {host}: sleeping, no PMI call so far\n"),
        ];
        lines.iter().all(|line| said.contains(line)).then_some(())
    });
    assert_eq!(running.world().ranks().len(), 4, "all ranks still run");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn a_fence_that_takes_long_is_reported_once_and_again_at_ctrl_c() {
    let running = stuck().args(["--stuck-after", "0.1"]).spawn();
    running.wait_for_error(HEADING);
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    outcome.has_code(130);
    assert_eq!(outcome.err().matches(HEADING).count(), 2);
}
