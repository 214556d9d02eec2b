//! Programs on a file system that does not answer: the agent goes on, and says what it waits for.

use nix::sys::signal::Signal;
use tests::{Call, Running, StallingFiles, eventually, scela, sh, skip};

use crate::host;

/// Starts a rank that waits for `file` next to one whose program stalls in `call`. The agent may be silent for 2 s.
fn start_stalled(call: Call) -> Option<(Running, StallingFiles)> {
    start_stalled_with(call, &[])
}

/// Does the same with options.
fn start_stalled_with(call: Call, options: &[&str]) -> Option<(Running, StallingFiles)> {
    let files = StallingFiles::mount(call).inspect_err(|why| skip(why)).ok()?;
    let run = scela().np(1).args(["-v", "--dead-time", "2"]).args(options);
    let wait = format!("echo here; while ! test -e {}; do sleep 0.1; done", run.world().file("go").display());
    let program = match call {
        Call::Exec | Call::LookUp | Call::Plan => vec![files.program().into()],
        Call::Directory => ["-wdir".into(), files.directory().into()].into_iter().chain(sh("echo ran")).collect(),
    };
    let running = run.program(sh(&wait)).and(1, program).spawn();
    Some((running, files))
}

/// The stall lasts three times the dead time. The guardian, the parent and the other rank do not notice.
#[test]
fn a_program_that_stalls_in_exec_starts_when_the_file_system_answers() {
    let Some((running, files)) = start_stalled(Call::Exec) else { return };
    running.wait_for("here");
    running.wait_for_error(&format!(": busy in exec of {} for 5 s on {}", files.program().display(), host()));
    files.answer();
    running.wait_for("ran");
    std::fs::write(running.world().file("go"), "").unwrap();
    running.finish().has_code(0).says("rank 1, process ").never_says("error");
}

#[test]
fn a_program_whose_look_up_stalls_is_named_and_can_be_interrupted() {
    let Some((running, files)) = start_stalled(Call::LookUp) else { return };
    running.wait_for_error(&format!("busy in the search for 'sh, {}' for 5 s on ", files.program().display()));
    running.signal(Signal::SIGINT);
    let launcher = running.launcher();
    eventually(|| launcher.state_now().is_none_or(|state| state == 'Z').then_some(()))
        .unwrap_or_else(|| running.fail("late"));
    files.answer();
    running.finish_killed().has_code(130);
}

/// SIGKILL does not end the stalled process, so the agent names it and leaves. Its guardian waits for it.
#[test]
fn a_session_with_a_stalled_exec_ends_in_bounded_time_after_an_interrupt() {
    let Some((running, files)) = start_stalled(Call::Exec) else { return };
    running.wait_for("here");
    running.wait_for_error(": busy in exec of ");
    running.signal(Signal::SIGINT);
    running.wait_for_error(&format!(" of rank 1 in exec of {}", files.program().display()));
    let launcher = running.launcher();
    eventually(|| launcher.state_now().is_none_or(|state| state == 'Z').then_some(()))
        .unwrap_or_else(|| running.fail("late"));
    files.answer();
    let outcome = running.finish_killed();
    outcome.has_code(130).says(&format!(" cannot be killed: it is in uninterruptible sleep on {}", host()));
}

#[test]
fn a_rank_whose_working_directory_stalls_is_named_and_starts_when_it_answers() {
    let Some((running, files)) = start_stalled(Call::Directory) else { return };
    running.wait_for("here");
    running.wait_for_error(&format!(": busy in chdir to {} for 5 s on {}", files.directory().display(), host()));
    files.answer();
    running.wait_for("ran");
    std::fs::write(running.world().file("go"), "").unwrap();
    running.finish().has_code(0).never_says("error");
}

#[test]
fn the_time_limit_ends_a_session_with_a_stalled_exec() {
    let Some((running, files)) = start_stalled_with(Call::Exec, &["--timeout", "8"]) else { return };
    running.wait_for("here");
    running.wait_for_error(&format!(" of rank 1 in exec of {}", files.program().display()));
    let launcher = running.launcher();
    eventually(|| launcher.state_now().is_none_or(|state| state == 'Z').then_some(()))
        .unwrap_or_else(|| running.fail("late"));
    files.answer();
    running.finish_killed().has_code(124).says("the job ran longer than 8 s (--timeout) and was ended");
}

/// The script's file does not answer. The launcher looks at it for longer than an agent waits for an order at this dead time, and then
/// goes on without it.
#[test]
fn a_file_that_a_script_names_delays_a_job_for_a_bounded_time() {
    let Some(files) = StallingFiles::mount(Call::Plan).inspect_err(|why| skip(why)).ok() else { return };
    let script = format!(": {}; echo ran", files.program().display());
    let run = |kind| scela().np(1).args(["--dead-time", "1", "--mpi", kind]).program(sh(&script));
    run("none").run().is_quiet_success().wrote("ran\n");
    let running = run("auto").spawn();
    running.wait_for("ran");
    // The kernel does not let the launcher exit before that.
    files.answer();
    running.finish().has_code(0).says("the files that 'sh' names were not found within 4 s");
}
