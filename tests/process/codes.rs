//! How sessions end: the exit code, the reported reason, and nothing left behind.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::lines::line;
use tests::{Outcome, scela, sh};

use crate::{host, rank, script};

/// Runs four ranks on three agents. Rank 1 does `what` and the others wait to be ended.
fn one_of_four(what: &str) -> Outcome {
    let script = format!("if [ $PMI_RANK = 1 ]; then {what}; fi; exec sleep 1000");
    scela().np(4).agents(3).fanout(2).program(sh(&script)).run()
}

#[test]
fn a_job_whose_ranks_all_exit_with_0_succeeds() {
    let outcome = scela().np(5).agents(3).program(sh("echo rank $PMI_RANK of $PMI_SIZE")).run();
    outcome.is_quiet_success().wrote_lines((0..5).map(|rank| format!("rank {rank} of 5")));
}

#[test]
fn fewer_ranks_than_agents() {
    let outcome = scela().np(2).agents(5).fanout(2).program(sh("echo rank $PMI_RANK")).run();
    outcome.is_quiet_success().wrote_lines(["rank 0", "rank 1"]);
}

#[test]
fn more_ranks_than_agents() {
    let outcome = scela().np(61).agents(4).fanout(2).program(rank(["neighbours", "1"])).run();
    outcome.is_quiet_success();
}

#[test]
fn the_exit_code_of_a_failed_rank_is_that_of_the_job() {
    let outcome = one_of_four("exit 3");
    let at = first_failure_at(&outcome);
    outcome.has_code(3).says_only(&format!(
        "scela-run: error: rank 1 on {} exited with code 3\n  the job's 3 other ranks were ended; first failure at {at} s\n",
        host()
    ));
}

/// Returns the time in a report, the one part of it that a test cannot predict.
fn first_failure_at(outcome: &Outcome) -> String {
    let text = outcome.err();
    let time = text.split("first failure at ").nth(1).and_then(|rest| rest.split(' ').next());
    time.unwrap_or_else(|| panic!("no time is named\n{outcome}")).to_owned()
}

#[test]
fn an_exit_code_after_finalize_is_that_of_the_job() {
    let program = script(["init", "fence", "finalize", "@2", "exit 42"]);
    let outcome = scela().np(4).agents(2).program(program).run();
    outcome.has_code(42).says(&format!("rank 2 on {} exited with code 42\n", host()));
}

#[test]
fn a_rank_killed_by_a_signal_is_reported() {
    one_of_four("kill -SEGV $$")
        .has_code(139)
        .says(&format!("error: rank 1 on {} was killed by signal 11 (SEGV)\n", host()))
        .says("the job's 3 other ranks were ended")
        .says("hint: for a core dump, run 'ulimit -c unlimited' before scela-run");
    one_of_four("kill -KILL $$")
        .has_code(137)
        .says(&format!("error: rank 1 on {} was killed by signal 9 (KILL)\n", host()))
        .never_says("core");
}

#[test]
fn a_core_dump_is_reported() {
    let run = scela().np(1).shell("ulimit -c unlimited").program(sh("kill -ABRT $$"));
    let directory = run.world().file("");
    let outcome = run.directory(directory).run();
    outcome.has_code(134).says("was killed by signal 6 (ABRT, core dumped)\n").never_says("hint");
}

#[test]
fn a_signal_takes_precedence_over_an_exit_code_that_follows_from_it() {
    let script = r#"
        if [ $PMI_RANK = 0 ]; then : > "$1"; exit 1; fi
        until [ -e "$1" ]; do :; done
        kill -SEGV $$"#;
    let attempt = || {
        let run = scela().np(2).agents(2);
        let file = run.world().file("gone");
        let mut program = sh(script);
        program.push(file.into());
        run.program(program).run()
    };
    // The launcher does not wait long for a second report, which may be late on a busy machine.
    let both = (0..10).map(|_| attempt()).find(|outcome| outcome.err().contains("more failure"));
    both.expect("one of ten runs reports the second failure soon after the first")
        .has_code(139)
        .says(&format!("error: rank 1 on {} was killed by signal 11 (SEGV)\n", host()))
        .says("1 more failure was reported");
}

#[test]
fn the_first_of_many_failures_is_reported_and_the_others_are_counted() {
    let outcome = scela().np(100).agents(3).program(sh("exit $((PMI_RANK + 1))")).run();
    let code = outcome.code.unwrap_or_default();
    assert!((1..=100).contains(&code), "{outcome}");
    outcome.says(&format!("error: rank {} on {} exited with code {code}\n", code - 1, host()));
    outcome.says("more failure");
    outcome.check(outcome.err().matches("exited with").count() == 1, "only one failure should be reported in full");
}

#[test]
fn the_code_of_mpi_abort_is_that_of_the_job() {
    for (given, code) in [("37", 37), ("256", 1), ("512", 1), ("68770831", 15), ("-1", 255), ("0", 1)] {
        let abort = format!(">cmd=abort exitcode={given}");
        let outcome = scela().np(4).agents(2).program(script(["init", "@2", &abort, "@*", "<end", "pause"])).run();
        outcome.has_code(code).says(&format!("error: rank 2 on {} called MPI_Abort({given})\n", host()));
    }
}

#[test]
fn the_message_of_mpi_abort_is_reported() {
    let program = script(["init", ">cmd=abort exitcode=9 message=solver_diverged", "pause"]);
    scela().np(1).program(program).run().has_code(9).says("called MPI_Abort(9): solver_diverged\n");
}

#[test]
fn a_rank_that_exits_with_0_while_others_wait_fails_the_job() {
    for steps in [["init", "@1", "exit 0", "@*", "fence"], ["@1", "exit 0", "@*", "init", "fence"]] {
        let outcome = scela().np(4).agents(2).program(script(steps)).run();
        outcome
            .has_code(1)
            .says(&format!("error: rank 1 on {} ended while others wait for it in a fence\n", host()))
            .says("hint: does each rank call MPI_Init and MPI_Finalize");
    }
}

#[test]
fn a_rank_that_exits_after_finalize_while_others_wait_fails_the_job() {
    let outcome = scela().np(3).agents(3).program(script(["init", "@2", "finalize", "exit 0", "@*", "fence"])).run();
    outcome.has_code(1).says(&format!("rank 2 on {}", host())).says("while others wait for it in a fence");
}

#[test]
fn a_rank_that_exits_without_finalize_while_others_run_fails_the_job() {
    // The server does not see what the other ranks do: they may be in a barrier over shared memory.
    let outcome = scela().np(4).agents(3).fanout(2).program(script(["init", "fence", "@1", "exit 0", "@*", "pause"]));
    outcome
        .run()
        .has_code(1)
        .says(&format!("error: rank 1 on {} ended without MPI_Finalize while others still run\n", host()))
        .says("the job's 3 other ranks were ended")
        .took_less_than(Duration::from_secs(20));
}

#[test]
fn exiting_after_finalize_or_without_init_is_no_failure() {
    // Rank 0 has finalized and rank 1 never initialized PMI, so neither counts as missing however long the others
    // run.
    let steps = ["@0", "init", "finalize", "exit 0", "@1", "exit 0", "@2", "init", "pause", "@3", "pause"];
    let outcome = scela().np(4).agents(2).args(["--timeout", "3"]).program(script(steps)).run();
    outcome.has_code(124).never_says("MPI_Finalize");
}

#[test]
fn ranks_that_all_exit_without_finalize_are_no_failure() {
    scela().np(3).agents(2).program(script(["init", "fence", "exit 0"])).run().is_quiet_success();
}

#[test]
fn a_job_that_exceeds_its_timeout_is_ended() {
    let run = scela().np(3).agents(2).args(["--timeout", "7.5"]);
    let outcome = run.program(sh("echo here; exec sleep 1000")).run();
    outcome
        .has_code(124)
        .says_only("scela-run: error: the job ran longer than 7.5 s (--timeout) and was ended\n")
        .wrote("here\nhere\nhere\n");
}

#[test]
fn a_rank_that_ignores_term_is_killed_after_the_grace() {
    let run = scela().np(2).args(["--timeout", "0.2", "--kill-grace", "0.3"]);
    let outcome = run.program(sh("trap '' TERM; echo here; while :; do sleep 1000; done")).run();
    outcome.has_code(124).took_less_than(Duration::from_secs(20));
}

#[test]
fn output_of_a_term_handler_is_not_lost() {
    let script = "trap 'echo final output; exit 0' TERM; echo here; while :; do sleep 0.01; done";
    let running = scela().np(2).agents(2).program(sh(script)).spawn();
    running.wait_for_times("here", 2).signal(Signal::SIGTERM);
    running.finish().has_code(143).wrote_lines(["here", "here", "final output", "final output"]);
}

#[test]
fn usage_errors_have_code_2_and_a_hint() {
    let usage = |words: &[&str], text: &str, hint: &str| {
        scela().args(words).run().has_code(2).says(&format!("scela-run: error: {text}")).says(hint).wrote("");
    };
    usage(&["--nq", "2", "true"], "there is no option '--nq'", "hint: did you mean '--np'?");
    usage(&[], "", "hint: ");
    usage(&["-np", "0", "true"], "", "hint: ");
    usage(&["-np", "many", "true"], "", "many");
    usage(&["-np", "2", "-s", "7", "cat"], "standard input is to go to rank 7, but the ranks are 0 to 1", "");
}

#[test]
fn options_that_cannot_work_are_refused_before_anything_starts() {
    let refused = |words: &[&str], text: &str| {
        let outcome = scela().np(2).args(words).program(sh("echo started >&2; cat")).run();
        outcome
            .has_code(2)
            .says(&format!("scela-run: error: {text}"))
            .says("\n  hint: ")
            .never_says("started")
            .wrote("");
    };
    refused(&["-stdin", "/no/such/file"], "option '-stdin': '/no/such/file' cannot be read: No such file or directory");
    refused(&["-stdin", "/proc"], "option '-stdin': '/proc' is a directory");
    refused(&["--iface", "eth99"], "option '--iface': no interface named 'eth99' has an address on this host");
    refused(
        &["-outfile-pattern", "out.%z"],
        "option '-outfile-pattern': '%z' in 'out.%z' is unknown; the placeholders",
    );
    refused(&["--mpi", "pmix", "--pmi-port"], "--pmi-port serves PMI by TCP, and this job needs PMIx");
    refused(
        &["--mpi", "pmix", "--on-failure", "restart=rank"],
        "'--on-failure restart=rank' starts a rank again while the others go on, and PMIx cannot do that",
    );
    let processes = "1000000 ranks and ";
    let many = scela().args(["-np", "1000000"]).program(sh("echo started >&2")).run();
    let pid_max: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    if pid_max < 1_000_000 {
        many.has_code(2).says(processes).says("do not fit on this machine").never_says("started");
    }
}

#[test]
fn an_unknown_log_level_is_refused() {
    let outcome = scela().np(1).env("SCELA_LOG", "foo").program(sh("echo started")).run();
    outcome
        .has_code(2)
        .wrote("")
        .says("scela-run: error: SCELA_LOG: 'foo' is not a level\n  hint: SCELA_LOG=LEVEL, with");
}

#[test]
fn a_host_list_of_this_machine_needs_no_shell() {
    scela().np(2).args(["-hosts", &host()]).program(sh("echo here")).run().is_quiet_success().wrote("here\nhere\n");
}

#[test]
fn a_misspelt_program_has_a_suggestion() {
    let run = || {
        let run = scela().np(1);
        let directory = run.world().file("bin");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("frobnicate3"), "").unwrap();
        let path = format!("/usr/bin:/bin:{}", directory.display());
        (run.env("PATH", &path), path)
    };
    let (quiet, path) = run();
    let outcome = quiet.args(["frobincate3"]).run();
    outcome.has_code(251).says("\n  hint: did you mean 'frobnicate3'?\n").never_says(&path);
    let (verbose, path) = run();
    verbose.args(["-v", "frobincate3"]).run().has_code(251).says(&format!("'frobnicate3'? PATH is {path}"));
}

#[test]
fn a_script_with_dos_line_ends_is_named() {
    let run = scela().np(1);
    let path = run.world().file("script");
    std::fs::write(&path, "#!/bin/sh\r\necho hello\r\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    run.arg(&path).run().has_code(251).says("is a script whose line 1 ends with CR; try dos2unix");
}

#[test]
fn no_statistics_are_printed_if_no_rank_ran() {
    scela().np(2).args(["--stats", "/no/such/program"]).run().has_code(251).never_says("level").never_says("phases");
}

fn assert_not_launched(words: &[&str], why: &str) {
    let outcome = scela().np(3).agents(2).args(words).run();
    outcome.has_code(251).says("could not be started: ").says(why).says("no rank was left running").wrote("");
}

#[test]
fn a_missing_program_is_reported() {
    assert_not_launched(&["/no/such/program"], "program '/no/such/program' was not found from working directory");
    assert_not_launched(&["no-such-program"], "program 'no-such-program' was not found in PATH");
    assert_not_launched(&["no-such-program"], "give its path (./name for one in the working directory), or set PATH");
}

#[test]
fn a_program_that_cannot_be_executed_is_reported() {
    assert_not_launched(&["/etc/passwd"], "program '/etc/passwd' is not executable; try chmod +x");
    assert_not_launched(&["/etc"], "program '/etc' is");
}

#[test]
fn a_missing_interpreter_is_reported() {
    let run = scela().np(1);
    let path = run.world().file("script");
    std::fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = run.arg(&path).run();
    outcome.has_code(251).says(&path.display().to_string()).says("interpreter that its first line names");
}

#[test]
fn a_missing_working_directory_is_reported() {
    assert_not_launched(
        &["-wdir", "/no/such/directory", "true"],
        "working directory '/no/such/directory' does not exist on this node; give one that does with -wdir",
    );
}

#[test]
fn a_missing_second_program_is_reported() {
    let outcome = scela().np(2).agents(2).program(sh("exec sleep 1000")).and(1, vec!["/no/such".into()]).run();
    outcome.has_code(251).says(&format!("rank 2 on {} could not be started: program '/no/such' was not found", host()));
}

#[test]
fn processes_that_keep_the_pipes_open_do_not_delay_the_end() {
    for leave in ["sleep 1000 &", "setsid sleep 1000 &", "(setsid sh -c 'sleep 1000 & sleep 1001' &)"] {
        let run = scela().np(3).agents(2).args(["--kill-grace", "0.3"]).program(sh(&format!("{leave}\necho done")));
        let outcome = run.run();
        outcome.has_code(0).wrote("done\ndone\ndone\n").took_less_than(Duration::from_secs(20));
        outcome
            .says("processes that the ranks had left running were ended, 0.3 s after the last rank (--kill-grace): s");
    }
}

/// Also those whose parent ignores SIGTERM.
#[test]
fn all_processes_that_a_rank_has_left_may_end_by_themselves() {
    let below =
        "(trap 'echo ended; exit' TERM; : >\"$1\"; while :; do sleep 0.05; done) & trap '' TERM; wait; sleep 1000";
    let script = format!("({below}) & until [ -e \"$1\" ]; do sleep 0.01; done");
    let run = scela().np(1).args(["--kill-grace", "0.3"]);
    let mut program = sh(&script);
    program.push(run.world().file("ready").into());
    let outcome = run.program(program).run();
    outcome.has_code(0).wrote("ended\n").says("0.3 s after the last rank (--kill-grace): sh of rank 0 (2 processes, ");
}

#[test]
fn no_output_is_lost_when_a_rank_fails() {
    let script = r#"
        "$1" lines 2000 200
        : > "$2/$PMI_RANK"
        if [ $PMI_RANK != 0 ]; then exec sleep 1000; fi
        until [ -e "$2/1" ] && [ -e "$2/2" ] && [ -e "$2/3" ]; do sleep 0.01; done
        "$1" lines 2000 200
        exit 5"#;
    let run = scela().np(4).agents(3).fanout(2);
    let mut program = sh(script);
    program.extend([env!("CARGO_BIN_EXE_rank").into(), run.world().file("").into()]);
    let outcome = run.program(program).run();
    outcome.has_code(5);
    let out = outcome.out();
    for rank in 0..4 {
        let expected: String = (0..2000).map(|number| line(rank, number, 200)).collect();
        let expected = if rank == 0 { expected.repeat(2) } else { expected };
        let label = format!("{rank} ");
        let got: String = out.split_inclusive('\n').filter(|line| line.starts_with(&label)).collect();
        assert!(got == expected, "the lines of rank {rank}: {} bytes, not {}", got.len(), expected.len());
    }
}
