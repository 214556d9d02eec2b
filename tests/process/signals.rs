//! Signals to the launcher, from a terminal and from other processes.

use std::io::Read;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Outcome, Process, Running, Terminal, scela, sh};

use crate::{host, with_full_error_pipe};

const RANKS: usize = 4;
/// A shell reports each child that a signal has ended. This hides the reports.
const QUIET: &str = "exec 2>/dev/null\n";

fn start_waiting_job(script: &str) -> Running {
    let script = format!("{QUIET}{script}\necho here\nwhile :; do sleep 0.02; done");
    let running = scela().np(RANKS as u32).agents(3).fanout(2).program(sh(&script)).spawn();
    running.wait_for_times("here", RANKS);
    running
}

#[test]
fn ctrl_c_ends_the_job_with_a_message() {
    let running = start_waiting_job("");
    running.signal(Signal::SIGINT);
    running.finish().has_code(130).says_only("scela-run: INT: the job is being ended; Ctrl-C again ends it at once\n");
}

#[test]
fn ctrl_c_reaches_the_ranks() {
    let running = start_waiting_job("trap 'echo interrupted; exit 0' INT");
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    outcome.has_code(130);
    assert_eq!(outcome.out().matches("interrupted").count(), RANKS, "{outcome}");
}

#[test]
fn a_second_ctrl_c_ends_the_job_at_once() {
    let script = "trap '' INT TERM\necho here\nwhile :; do sleep 0.02; done";
    let run = scela().np(3).agents(2).args(["--kill-grace", "3600"]).program(sh(script));
    let running = run.spawn();
    running.wait_for_times("here", 3).signal(Signal::SIGINT);
    running.wait_for_error("Ctrl-C again ends it at once").signal(Signal::SIGINT);
    running.finish().has_code(130).took_less_than(Duration::from_secs(20));
}

#[test]
fn ranks_that_ignore_ctrl_c_are_killed_after_the_grace() {
    let script = "trap '' INT TERM\necho here\nwhile :; do sleep 0.02; done";
    let running = scela().np(3).agents(2).args(["--kill-grace", "0.3"]).program(sh(script)).spawn();
    running.wait_for_times("here", 3).signal(Signal::SIGINT);
    running.finish().has_code(130).took_less_than(Duration::from_secs(20));
}

#[test]
fn term_and_hup_end_the_job() {
    for (signal, name, code) in [(Signal::SIGTERM, "TERM", 143), (Signal::SIGHUP, "HUP", 129)] {
        let running = start_waiting_job(&format!("trap 'echo got {name}; exit 0' {name}"));
        running.signal(signal);
        let outcome = running.finish();
        outcome.has_code(code).says_only(&format!("scela-run: {name}: the job is being ended\n"));
        assert_eq!(outcome.out().matches(&format!("got {name}")).count(), RANKS, "{outcome}");
    }
}

#[test]
fn a_rank_that_is_stopped_gets_the_request_to_end() {
    let script = "trap 'echo saved; exit 0' TERM\necho here\nwhile :; do sleep 0.02; done";
    let running = scela().np(1).agents(1).args(["--kill-grace", "3600"]).program(sh(script)).spawn();
    running.wait_for("here");
    running.rank(0).signal(Signal::SIGSTOP);
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143).wrote("here\nsaved\n");
}

#[test]
fn usr1_and_usr2_are_only_forwarded() {
    let running = start_waiting_job("trap 'echo got 1' USR1; trap 'echo got 2; exit 0' USR2");
    running.signal(Signal::SIGUSR1);
    running.wait_for_times("got 1", RANKS).signal(Signal::SIGUSR2);
    running.finish().is_quiet_success();
}

#[test]
fn under_nohup_hup_is_ignored() {
    let script = format!("{QUIET}trap 'echo got 1; exit 0' USR1\necho here\nwhile :; do sleep 0.02; done");
    let running = scela().np(2).agents(2).shell("trap '' HUP").program(sh(&script)).spawn();
    running.wait_for_times("here", 2).signal(Signal::SIGHUP).signal(Signal::SIGUSR1);
    running.finish().is_quiet_success();
}

/// Ranks that need time after SIGTERM to write a checkpoint.
const CHECKPOINT: &str = "trap 'sleep 0.3; echo saved; exit 0' TERM";

#[track_caller]
fn assert_all_saved(outcome: &Outcome) {
    outcome.has_code(143);
    assert_eq!(outcome.out().matches("saved").count(), RANKS, "{outcome}");
}

#[test]
fn term_to_an_agent_gives_all_ranks_their_grace() {
    let running = start_waiting_job(CHECKPOINT);
    running.world().agents()[0].signal(Signal::SIGTERM);
    let outcome = running.finish();
    assert_all_saved(&outcome);
    outcome.says("error: agent ").says(&format!(" on {} was asked to end by signal 15 (TERM)", host()));
}

#[test]
fn term_to_a_guardian_gives_all_ranks_their_grace() {
    let running = start_waiting_job(CHECKPOINT);
    running.world().guardians()[0].signal(Signal::SIGTERM);
    let outcome = running.finish();
    assert_all_saved(&outcome);
    outcome.says(&format!(" on {} was asked to end by signal 15 (TERM)", host()));
}

/// Resource managers send SIGTERM to every process of a step at its time limit.
#[test]
fn term_to_every_process_gives_all_ranks_their_grace() {
    let running = start_waiting_job(CHECKPOINT);
    let processes = running.world().processes();
    processes.iter().filter(|process| process.name != "sleep").for_each(|process| process.signal(Signal::SIGTERM));
    assert_all_saved(&running.finish());
}

#[test]
fn a_rank_killed_from_outside_is_named() {
    let running = start_waiting_job("");
    running.rank(2).signal(Signal::SIGKILL);
    running.finish().has_code(137).says("error: rank 2 on ").says("was killed by signal 9 (KILL)\n");
}

fn start_on_terminal(script: &str, options: &[&str]) -> Terminal {
    let run = scela().np(3).agents(2).args(options).program(sh(script));
    let mut terminal = Terminal::open(run);
    terminal.enter("").wait_for_times("here\r\n", 3);
    terminal
}

#[test]
fn ctrl_c_on_a_terminal_ends_the_job() {
    let mut terminal = start_on_terminal("echo here; exec sleep 1000", &[]);
    terminal.type_in("\x03").wait_for("scela-run: INT: the job is being ended; Ctrl-C again ends it at once");
    terminal.wait_for_prompt();
    assert_eq!(terminal.code(), 130);
    terminal.close();
}

#[test]
fn a_second_ctrl_c_on_a_terminal_ends_the_job_at_once() {
    let script = "trap '' INT TERM; echo here; while :; do sleep 0.02; done";
    let mut terminal = start_on_terminal(script, &["--kill-grace", "3600"]);
    terminal.type_in("\x03").wait_for("Ctrl-C again").type_in("\x03").wait_for_prompt();
    assert_eq!(terminal.code(), 130);
    terminal.close();
}

#[test]
fn ctrl_z_stops_all_ranks_and_fg_continues_them() {
    let mut terminal =
        start_on_terminal("trap 'echo go on; exit 0' USR1; echo here; while :; do sleep 0.02; done", &[]);
    terminal.type_in("\x1a").wait_for("Stopped").wait_for_prompt();
    let ranks = terminal.world().all_ranks(3);
    let states = || ranks.iter().filter_map(Process::state_now).collect::<String>();
    // A shell that is stopped while its child is between vfork and exec waits in state D for the child, which is
    // stopped too.
    let stopped = |states: String| states.len() == 3 && states.chars().all(|state| "TD".contains(state));
    tests::eventually(|| stopped(states()).then_some(())).unwrap_or_else(|| panic!("ranks are {}", states()));
    terminal.enter("fg");
    tests::eventually(|| (!states().contains('T')).then_some(())).unwrap_or_else(|| panic!("ranks are {}", states()));
    Process::signal_all(&ranks, Signal::SIGUSR1);
    terminal.wait_for_times("go on\r\n", 3).wait_for_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.close();
}

#[test]
fn bg_continues_a_stopped_job() {
    let mut terminal =
        start_on_terminal("trap 'echo go on; exit 0' USR1; echo here; while :; do sleep 0.02; done", &[]);
    terminal.type_in("\x1a").wait_for("Stopped").wait_for_prompt();
    terminal.enter("bg").wait_for_prompt();
    let ranks = terminal.world().all_ranks(3);
    let states = || ranks.iter().filter_map(Process::state_now).collect::<String>();
    tests::eventually(|| (!states().contains('T')).then_some(())).unwrap_or_else(|| panic!("ranks are {}", states()));
    Process::signal_all(&ranks, Signal::SIGUSR1);
    terminal.wait_for_times("go on\r\n", 3);
    terminal.enter("wait").wait_for_prompt();
    terminal.close();
}

/// While the launcher waits for the reader of standard error, it is about to stop itself.
#[test]
fn a_launcher_that_is_continued_before_it_stops_itself_goes_on() {
    let (run, mut pipe_end) = with_full_error_pipe(scela().np(2).agents(2).arg("-v"));
    // A shell that has just forked is not stopped before its child executes a program.
    let running = run.program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", 2);
    let rank = running.rank(0);
    for _ in 0..5 {
        running.signal(Signal::SIGTSTP);
        running.wait_until("the rank is stopped", || (rank.state_now() == Some('T')).then_some(()));
        running.signal(Signal::SIGCONT);
        running.wait_until("the rank goes on", || (rank.state_now() != Some('T')).then_some(()));
    }
    let mut bytes = [0; 4096];
    while let Ok(1..) = pipe_end.read(&mut bytes) {}
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn a_stopped_job_can_be_ended() {
    let mut terminal = start_on_terminal("echo here; exec sleep 1000", &[]);
    terminal.type_in("\x1a").wait_for("Stopped").wait_for_prompt();
    terminal.enter("kill %1; fg").wait_for_prompt();
    assert_eq!(terminal.code(), 143);
    terminal.close();
}

/// The kernel reaps the children of a process that ignores SIGCHLD. Their pids may then be those of other processes.
#[test]
fn a_launcher_started_with_sigchld_ignored_reaps_its_remote_shells() {
    let run = scela().shell("trap '' CHLD").args(["-hosts", "n1,n2,n3", "-ppn", "1", "--launch", "flat"]);
    let shell = run.world().file("remote-shell");
    std::fs::write(&shell, "exit 77\n").unwrap();
    let run = run.arg("--bootstrap").arg(format!("exec:sh {} {{host}}", shell.display())).program(sh("true"));
    run.run().has_code(251).says("n[1-3]: the remote shell ended with code 77 and said nothing\n");
}

/// Ranks that tell each USR1 and end at USR2.
const TELLS: &str = "trap 'echo got 1' USR1; trap 'echo got 2; exit 0' USR2";

#[test]
fn one_signal_to_all_processes_of_a_job_reaches_each_rank_once() {
    let running = start_waiting_job(TELLS);
    let world = running.world();
    let all: Vec<_> = [running.launcher()].into_iter().chain(world.guardians()).chain(world.agents()).collect();
    assert_eq!(all.len(), 7);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        Process::signal_all(&all, signal);
        running.wait_for_times(if signal == Signal::SIGUSR1 { "got 1" } else { "got 2" }, RANKS);
    }
    let outcome = running.finish();
    outcome.is_quiet_success();
    let count = |text: &str| outcome.out().matches(text).count();
    assert_eq!((count("got 1"), count("got 2")), (RANKS, RANKS), "{outcome}");
}

#[test]
fn guardians_and_agents_pass_a_signal_on_to_their_own_ranks() {
    for are_guardians in [true, false] {
        let running = start_waiting_job(TELLS);
        let world = running.world();
        let told = if are_guardians { world.guardians() } else { world.agents() };
        Process::signal_all(&told, Signal::SIGUSR1);
        running.wait_for_times("got 1", RANKS);
        Process::signal_all(&told, Signal::SIGUSR2);
        running.finish().is_quiet_success();
    }
}

#[test]
fn no_signal_without_a_meaning_ends_a_process_of_the_launcher() {
    use Signal::{SIGALRM, SIGHUP, SIGIO, SIGPIPE, SIGPROF, SIGPWR, SIGQUIT, SIGSTKFLT, SIGVTALRM, SIGXCPU, SIGXFSZ};
    let running = start_waiting_job(TELLS);
    let world = running.world();
    let all = || world.guardians().into_iter().chain(world.agents());
    let before: Vec<_> = all().map(|process| process.pid).collect();
    for process in all() {
        for signal in
            [SIGALRM, SIGHUP, SIGIO, SIGPIPE, SIGPROF, SIGPWR, SIGQUIT, SIGSTKFLT, SIGVTALRM, SIGXCPU, SIGXFSZ]
        {
            process.send(signal);
        }
        // Real-time signals have no name.
        let shell = std::process::Command::new("kill").args(["-40", &process.pid.to_string()]).status();
        assert!(shell.unwrap().success());
    }
    // Those that mean nothing to scela-run do not end it.
    for signal in [SIGALRM, SIGIO, SIGPROF, SIGPWR, SIGSTKFLT, SIGVTALRM, SIGXCPU, SIGXFSZ] {
        running.signal(signal);
    }
    running.signal(Signal::SIGUSR1).wait_for_times("got 1", RANKS);
    assert_eq!(all().map(|process| process.pid).collect::<Vec<_>>(), before);
    running.signal(Signal::SIGUSR2);
    running.finish().is_quiet_success();
}

#[test]
fn ranks_start_with_the_users_signals_whatever_their_agent_blocks() {
    let script = "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status";
    let plain = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
    scela().np(1).program(sh(script)).run().has_code(0).wrote(&String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn a_rank_that_was_killed_after_the_grace_is_reported() {
    let script = "trap '' TERM\necho here\nwhile :; do sleep 0.02; done";
    let running = scela().np(3).agents(2).args(["--kill-grace", "0.3"]).program(sh(script)).spawn();
    running.wait_for_times("here", 3).signal(Signal::SIGTERM);
    running.finish().has_code(143).says("scela-run: ranks 0-2 were killed 0.3 s after TERM\n");
}

#[test]
fn ranks_get_a_signal_before_the_time_limit() {
    let script = format!("{QUIET}trap 'echo saved; exit 0' USR1\nwhile :; do sleep 0.02; done");
    let run = scela().np(2).agents(2).args(["--timeout", "100.5", "--signal", "USR1@100"]);
    run.program(sh(&script)).run().is_quiet_success().wrote("saved\nsaved\n");
}
