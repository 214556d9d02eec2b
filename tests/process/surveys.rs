//! SIGQUIT, Ctrl-C and `--stuck-after` say which ranks are missing from a fence, and what they do.

use nix::sys::signal::Signal;
use tests::{Process, Run, scela, sh};

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
    running.rank(2).signal(Signal::SIGSTOP);
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

#[test]
fn dead_ranks_and_unread_output_are_reported() {
    let run = scela().np(2).agents(2).unread().args(["--on-failure", "continue"]);
    let running = run.program(sh("[ $PMI_RANK = 1 ] && kill -9 $$; exec yes")).spawn();
    running.wait_for_error("rank 1 on ");
    let says = |text: &str| {
        running.wait_until(text, || {
            running.signal(Signal::SIGQUIT);
            running.stderr().text().contains(text).then_some(())
        });
    };
    says("scela-run: rank 1 is dead; first failure: rank 1 on ");
    // More than the pipe to the reader can hold.
    let has_written = |writer: &Process| writer.name == "yes" && writer.written_bytes() > 512 * 1024;
    let writer = running.wait_until("a rank whose output is not read any more", || {
        running.world().processes().into_iter().find(has_written)
    });
    writer.signal(Signal::SIGKILL);
    says("scela-run: all ranks have ended; their output waits for its reader\n");
    running.finish().has_code(137);
}

#[test]
fn hosts_that_are_being_started_are_reported() {
    let run = scela().args(["-hosts", "n1,n2", "-ppn", "1", "--launch", "flat"]);
    let shell = run.world().file("remote-shell");
    std::fs::write(&shell, "exec sleep 1000\n").unwrap();
    let run = run.arg("--bootstrap").arg(format!("exec:sh {} {{host}}", shell.display()));
    let running = run.program(sh("true")).spawn();
    running.wait_until("the remote shells run", || {
        let processes = running.world().processes();
        (processes.iter().filter(|process| process.name == "sleep").count() == 2).then_some(())
    });
    let text = "scela-run: agents are being started: 0 of 2 have reported, waiting for n[1-2]\n";
    running.wait_until(text, || {
        running.signal(Signal::SIGQUIT);
        running.stderr().text().contains(text).then_some(())
    });
    running.signal(Signal::SIGINT);
    running.finish().has_code(130);
}

/// These ranks speak no PMI, so no wait is seen. One leaves.
#[test]
fn ranks_that_run_on_after_another_has_left_are_named() {
    let run = || scela().np(3).program(sh("[ $PMI_RANK = 0 ] && exit 0; exec sleep 1000"));
    let running = run().args(["--stuck-after", "0.5"]).spawn();
    let host = nla::sys::host_name();
    running.wait_for_error(&format!(
        "scela-run: rank 0 has left, and ranks 1-2 on {host} run on 0 s after the first exit\n"
    ));
    running.wait_for_error("scela-run: 2 ranks run, and none waits in a fence\n");
    running.wait_for_error(&format!("scela-run:   ranks 1-2 on {host}: sleeping, no PMI call so far\n"));
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143).never_says("have not spoken PMI so far");
    let words = "rank 0 had left, and ranks 1-2 were still running 0.5 s after the first exit (--exit-timeout): the job was ended";
    run().args(["--exit-timeout", "0.5"]).run().has_code(124).says(words);
}

/// Ranks 0 and 1 wait in the first fence, so rank 2 should have spoken PMI.
#[test]
fn a_rank_that_others_wait_for_and_that_does_not_speak_pmi_is_named_with_its_program() {
    let run = scela().np(2).args(["--stuck-after", "1"]).program(script(["init", "fence", "finalize"]));
    let running = run.and(1, sh("exec sleep 1000")).spawn();
    let host = nla::sys::host_name();
    running
        .wait_for_error(&format!("scela-run: 1 rank has not spoken PMI so far: rank 2 on {host}, which runs 'sh'\n"));
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}
