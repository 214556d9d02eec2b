//! How scela-run is called: its names, files of programs, defaults, verbosity.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tests::{Outcome, Terminal, scela, scela_run, sh};

use crate::script;

#[test]
fn the_launcher_can_be_called_mpiexec_or_mpirun() {
    for name in ["mpiexec", "mpirun"] {
        let run = scela().np(3).agents(2).program(sh("exec \"$SCELA\" -n 2 --label \"$LABEL\" echo inner"));
        let link = run.world().file(name);
        symlink(scela_run(), &link).unwrap();
        let label = run.world().label().to_owned();
        // The ranks run a second launcher, which has the same name.
        let outcome = run.env("SCELA", &link).env("LABEL", label).run();
        outcome.is_quiet_success().wrote(&"inner\n".repeat(6));
    }
}

#[test]
fn without_np_each_core_gets_a_rank() {
    let cores = std::thread::available_parallelism().unwrap().get();
    scela().program(sh("echo x")).run().is_quiet_success().wrote(&"x\n".repeat(cores));
}

#[test]
fn a_program_is_looked_for_in_the_directories_of_path_first() {
    let run = scela().np(1);
    let program = run.world().file("here");
    fs::write(&program, "#!/bin/sh\necho mine, with $(basename /x/ls)\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let directory = run.world().file("").to_str().unwrap().to_owned();
    run.args(["-path", &directory]).program(vec!["here".into()]).run().is_quiet_success().wrote("mine, with ls\n");
}

/// Variables of Hydra stand for options that are not typed.
#[test]
fn variables_of_hydra_have_their_meaning_or_are_named() {
    let sleep = || scela().np(1).env("MPIEXEC_TIMEOUT", "1").env("HYDRA_LAUNCHER", "fork");
    let outcome = sleep().program(sh("exec sleep 1000")).run();
    outcome.has_code(124).says("the job ran longer than 1 s");
    let outcome = sleep().args(["--timeout", "90"]).env("HYDRA_BINDING", "core").program(sh("echo x")).run();
    let remark = "scela-run: HYDRA_BINDING has no meaning here: options say how ranks are bound\n";
    outcome.has_code(0).wrote("x\n").says_only(remark);
    let outcome = scela().np(1).env("MPIEXEC_TIMEOUT", "soon").program(sh("echo x")).run();
    outcome
        .has_code(2)
        .says("error: variable MPIEXEC_TIMEOUT, which stands for -timeout: 'soon' is not a length of time");
}

#[test]
fn a_configfile_lists_programs() {
    let run = scela();
    let file = run.world().file("programs");
    fs::write(&file, "# two programs\n-np 1 echo one 'and two'\n\n-sz 2 echo three # and no more\n").unwrap();
    run.arg("-configfile").arg(&file).run().is_quiet_success().wrote_lines(["one and two", "three", "three"]);
}

#[test]
fn verbose_reports_each_step() {
    let outcome = scela().np(2).agents(2).arg("-v").program(script(["init", "put a b", "fence", "finalize"])).run();
    outcome
        .has_code(0)
        .says("all agents have joined\n")
        .says("2 ranks were started\n")
        .says("the first rank has spoken PMI\n")
        .says("fence 0: 1 new entries, ")
        .says("all ranks have ended\n");
}

#[test]
fn the_log_shows_what_its_filter_selects() {
    let run = |filter| scela().np(1).agents(1).env("SCELA_LOG", filter).program(sh("true")).run();
    run("debug").has_code(0).says("nla::driver::root: in ");
    run("error,nla::driver=debug").has_code(0).says("nla::driver::root: in ");
    run("debug,nla=off,launcher=off").is_quiet_success();
}

#[test]
fn the_log_has_a_dozen_lines_of_a_job_of_any_size() {
    let run = |program| scela().np(16).agents(16).env("SCELA_LOG", "info").program(program).run();
    let has_a_dozen = |outcome: &Outcome| {
        let lines = outcome.err().lines().filter(|line| line.starts_with(" INFO ")).count();
        outcome.check(lines <= 12, "standard error should have a dozen lines of the log at most");
    };
    let outcome = run(script(["init", "put a b", "fence", "fence", "finalize"]));
    outcome
        .has_code(0)
        .says(": the session begins ranks=16 agents=16 bootstrap=\"fork\" seconds=0.")
        .says(": all agents have joined agents=16 seconds=")
        .says(": all ranks were started ranks=16 seconds=")
        .says(": the first rank has spoken PMI seconds=")
        .says(": the first fence was released entries=1 bytes=")
        .says(": all ranks have ended seconds=")
        .says(": all output of the ranks has arrived seconds=")
        .says(": the session is over code=0 seconds=");
    has_a_dozen(&outcome);
    let outcome = run(sh("exit 3"));
    outcome
        .has_code(3)
        .says(": the first failure was reported what=rank ")
        .says(" exited with code 3 seconds=")
        .says(": the ranks are being ended why=\"a failure\" signal=\"TERM\" seconds=")
        .says(": the session is over code=3 seconds=");
    has_a_dozen(&outcome);
    let launch = scela().np(1).args(["-H", "nowhere", "--bootstrap", "exec:false {host}"]).env("SCELA_LOG", "info");
    launch
        .program(sh("true"))
        .run()
        .has_code(251)
        .says(": the session begins ranks=1 agents=1 bootstrap=\"false\" seconds=")
        .says(": the session is over code=251 seconds=");
}

#[test]
fn quiet_reports_errors_only() {
    let quiet = || scela().np(1).arg("-q");
    quiet().args(["--kill-grace", "0.1"]).program(sh("setsid sleep 1000 & exit 0")).run().is_quiet_success();
    quiet().program(sh("exit 3")).run().has_code(3).says("error: rank 0 on ");
}

#[test]
fn a_slow_launch_shows_its_progress() {
    let run = scela().np(2).agents(2);
    let file = run.world().file("go on");
    let wait = format!("await {}", file.display());
    let program = script(["init", "@1", &wait, "@*", "fence", "finalize", "say done"]);
    let mut terminal = Terminal::open(run.program(program));
    terminal.enter("").wait_for("scela-run: 2 ranks started, 1 of 2 in the fence");
    fs::write(&file, "").unwrap();
    // The progress line was erased, and none of it precedes the output of ranks.
    terminal.wait_for("\r\x1b[K").wait_for("done").wait_for_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.close();
}

#[test]
fn texts_have_colours_only_on_a_terminal_that_wants_them() {
    let shown = |no_colour: &str, word: &str| {
        let run = scela().env("TERM", "xterm").env("NO_COLOR", no_colour).args([word]);
        let mut terminal = Terminal::open(run);
        terminal.enter("").wait_for_prompt();
        terminal.close()
    };
    let red = "scela-run: \x1b[1m\x1b[31merror:\x1b[0m there is no option '--nump'";
    let error = shown("", "--nump");
    assert!(error.contains(red) && error.contains("  \x1b[1m\x1b[36mhint:\x1b[0m "), "{error}");
    let help = shown("", "-h");
    assert!(help.contains("\x1b[1mUsage:\x1b[0m") && help.contains("\x1b[1mOptions:\x1b[0m"), "{help}");
    for word in ["--nump", "-h"] {
        let plain = shown("1", word);
        assert!(!plain.contains('\x1b'), "{plain}");
    }
    scela().env("TERM", "xterm").args(["--nump"]).run().has_code(2).says("scela-run: error: there is no option");
}

#[test]
fn a_plan_for_this_machine_names_no_remote_shells_and_is_checked() {
    let explain = |program: &str| scela().np(8).agents(4).fanout(2).args(["--explain", program]).run();
    let outcome = explain("true");
    outcome
        .is_quiet_success()
        .wrote_among_others("launch: on this machine, fan-out 2, 2 levels\n  scela-run ─┬─ agent1");
    let text = outcome.out();
    assert!(!text.contains("shell") && !text.contains("recommended") && !text.contains("--batch"), "{text}");
    let missing = "error: the ranks could not be started: program 'no-such-program' was not found in PATH";
    explain("no-such-program").has_code(251).says(missing).wrote_among_others("nothing was started\n");
    let message = "is not executable; try chmod +x";
    explain("/etc/passwd").has_code(251).says(message);
}

#[test]
fn phases_are_printed_on_request() {
    let program = || script(["init", "fence", "fence", "finalize"]);
    let outcome = scela().np(4).agents(2).arg("--timing").program(program()).run();
    outcome.has_code(0).says("scela-run: phases:\n").says("\nspawn ").says("\nfence 1 ").says("\nend ");
    outcome
        .says("━\n")
        .says("\nmin, median, max: of the agents' durations; bar: from the first begin to the last end\n");
    outcome.never_says(" last\n");
    // Without the option, the launcher reports no phases.
    scela().np(4).program(program()).run().is_quiet_success();
}

#[test]
fn the_demo_runs() {
    let outcome = scela().np(64).arg("--demo").run();
    outcome.is_quiet_success().wrote_among_others("64 ranks said hello through ").wrote_among_others("\nfence 1 ");
}

#[test]
fn files_that_variables_name_are_checked_before_the_start() {
    let with = |name: &str, path: &str| {
        let outcome = scela().np(2).args(["--mpi", "pmix"]).env(name, path).program(vec!["true".into()]).run();
        outcome.never_says("warning");
        outcome
    };
    with("TMPDIR", "/nonexistent").has_code(251).says(
        "error: PMIx needs a directory in '/nonexistent', which TMPDIR names: it is not a directory\n  hint: create",
    );
    with("SCELA_PMIX_LIBRARY", "/etc/passwd").has_code(251).says(
        "error: SCELA_PMIX_LIBRARY names '/etc/passwd', which is not a shared library\n  hint: name libpmix.so.2",
    );
    with("HYDRA_HOST_FILE", "/nonexistent")
        .has_code(2)
        .says("the hosts cannot be read from /nonexistent (HYDRA_HOST_FILE): ")
        .says(", or unset HYDRA_HOST_FILE\n");
}

#[test]
fn version_and_help_start_no_ranks() {
    for (word, text) in [("--version", "scela-run"), ("--help", "Usage:"), ("-h", "lists all options")] {
        let output = Command::new(scela_run()).arg(word).output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(text), "{output:?}");
    }
}

/// The process that has started an agent may be on a host that is lost.
#[test]
fn an_agent_that_gets_no_order_ends_and_says_so() {
    let mut command = Command::new(scela_run());
    command.args(["--guard", &nla::bootstrap::agent_id(), "label", "100"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut guardian = command.spawn().expect("scela-run exists");
    let input = guardian.stdin.take().expect("it is a pipe");
    // The agent must exit before its input ends and before its guardian kills it.
    let began = Instant::now();
    let output = guardian.wait_with_output().expect("it is our child");
    drop(input);
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).ends_with(": the order did not arrive in time\n"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "it has waited {:?}", began.elapsed());
}
