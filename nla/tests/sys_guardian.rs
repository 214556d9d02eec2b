//! The guardian and its agent: however one of them ends, no process of the agent is left.

#![allow(clippy::unwrap_used, reason = "a panic is how a case fails")]

mod sys_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nla::sys::{self, Descriptors, GuardianLink, Image, Masks, ShellState, Spawner};
use sys_support::{TIMEOUT, daemon, end_all_children, is_running, myself, sleeper, until};

fn main() -> ExitCode {
    sys_support::run(
        &[
            ("a_killed_agent_leaves_nothing", a_killed_agent_leaves_nothing),
            ("a_stopped_agent_is_killed", a_stopped_agent_is_killed),
            ("a_silent_agent_is_killed", a_silent_agent_is_killed),
            ("an_agent_that_closed_its_link_is_killed", an_agent_that_closed_its_link_is_killed),
            ("an_agent_that_exits_leaves_nothing", an_agent_that_exits_leaves_nothing),
            ("an_agent_that_exits_continues_its_guardian", an_agent_that_exits_continues_its_guardian),
            ("a_guardian_passes_term_and_int_on_as_term", a_guardian_passes_term_and_int_on_as_term),
            (
                "signals_of_others_end_neither_the_guardian_nor_the_agent",
                signals_of_others_end_neither_the_guardian_nor_the_agent,
            ),
            ("the_agent_detects_the_death_of_its_guardian", the_agent_detects_the_death_of_its_guardian),
            ("an_agent_survives_a_short_stop", an_agent_survives_a_short_stop),
            ("an_agent_survives_a_suspended_machine", an_agent_survives_a_suspended_machine),
            ("an_agent_sees_whether_its_guardian_runs", an_agent_sees_whether_its_guardian_runs),
            ("the_guardian_keeps_no_standard_stream_open", the_guardian_keeps_no_standard_stream_open),
            (
                "the_agent_and_its_ranks_have_sessions_and_signal_masks_of_their_own",
                the_agent_and_its_ranks_have_sessions_and_signal_masks_of_their_own,
            ),
            ("a_process_with_threads_cannot_be_a_guardian", a_process_with_threads_cannot_be_a_guardian),
        ],
        &[("guardian", guardian), ("threads", threads), ("sleeper", sleeper), ("daemon", daemon)],
    )
}

/// Role: a guardian and its agent.
fn guardian(args: &[String]) {
    let dead_time = Duration::from_millis(args[0].parse().unwrap());
    agent(&args[1], sys::guarded(dead_time));
}

/// Role: tries to become a guardian with a second thread running.
fn threads(_: &[String]) {
    let (_kept, until) = channel::<()>();
    std::thread::spawn(move || until.recv());
    sys::guarded(LONG);
    println!("an agent");
}

/// Runs an agent with a rank that starts a daemon. Exits on a line "exit N", or when its guardian has died.
fn agent(mode: &str, link: GuardianLink) {
    let mut link = Some(link);
    sys::reserve_low().unwrap();
    sys::become_subreaper().unwrap();
    sys::forbid_dump().unwrap();
    println!("agent {}", std::process::id());
    let mut spawner = Spawner::new(ShellState::recorded(), &Default::default()).unwrap();
    println!("sleeper {}", start_rank(&mut spawner, "sleeper"));
    let daemon = start_rank(&mut spawner, "daemon");
    until("the daemon to become our child", || sys::reap().is_some_and(|(pid, _)| pid == daemon));
    match mode {
        "serve" => {}
        // Before the first sign of life the guardian allows more time, so send one.
        "mute" => {
            link.as_ref().unwrap().alive().unwrap();
            link.as_ref().unwrap().announce_limit(SHORT);
            std::mem::forget(link.take());
        }
        "close" => {
            link.as_ref().unwrap().alive().unwrap();
            drop(link.take());
        }
        "quiet" => {
            println!("ready");
            nix::unistd::dup2_stdout(sys::dev_null(true).unwrap()).unwrap();
        }
        "watch" => {
            let link = link.as_ref().unwrap();
            let runs = || {
                link.alive().unwrap();
                link.has_run()
            };
            (0..3).for_each(|_| until("the guardian to run", runs));
            kill(Pid::parent(), Signal::SIGSTOP).unwrap();
            // It may have run shortly before.
            link.has_run();
            until("the guardian to be stopped", || link.is_stopped());
            poll(&mut [], PollTimeout::from(1500u16)).unwrap();
            assert!(!runs());
            kill(Pid::parent(), Signal::SIGCONT).unwrap();
            until("the guardian to run", runs);
            assert!(!link.is_stopped());
        }
        other => panic!("unknown mode {other}"),
    }
    if mode != "quiet" {
        println!("ready");
    }
    let stdin = std::io::stdin();
    let tick = PollTimeout::from(20u8);
    loop {
        let orders = PollFd::new(stdin.as_fd(), PollFlags::POLLIN);
        let mut fds = vec![orders];
        fds.extend(link.as_ref().map(|link| PollFd::new(link.as_fd(), PollFlags::POLLIN)));
        poll(&mut fds, tick).unwrap();
        if fds.get(1).is_some_and(|fd| fd.any() == Some(true)) {
            assert!(link.as_ref().unwrap().alive().is_err());
            end_all_children();
            println!("guardian died");
            return;
        }
        if fds[0].any() == Some(true) {
            let line = stdin.lines().next().unwrap().unwrap();
            drop(link.take());
            std::process::exit(line.strip_prefix("exit ").unwrap().parse().unwrap());
        }
        let _ = link.as_ref().map(GuardianLink::alive);
    }
}

fn start_rank(spawner: &mut Spawner, role: &str) -> u32 {
    let me = std::env::current_exe().unwrap();
    let argv = [me.to_str().unwrap(), "--role", role].map(|a| a.as_bytes().to_vec());
    let image = Image::prepare(&argv[0], &argv, &[], b"").unwrap();
    let (null, hole) = (sys::dev_null(false).unwrap(), sys::dev_null(true).unwrap());
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let stdout = if role == "daemon" { stdout.as_fd() } else { hole.as_fd() };
    let (stdin, stderr) = (null.as_fd(), stderr.as_fd());
    let descriptors = Descriptors { stdin, stdout, stderr, pmi: None };
    spawner.spawn(&image, &[], descriptors, Masks::default()).unwrap().pid()
}

/// A guardian with its agent, the agent's rank, and the rank's daemon.
struct World {
    guardian: std::process::Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    agent: u32,
    ranks: [u32; 2],
}

/// How a guardian ended.
struct GuardianEnd {
    status: ExitStatus,
    /// The standard error of the guardian and its descendants.
    stderr: String,
}

impl World {
    fn new(mode: &str, dead_time: Duration) -> Self {
        // If the guardian dies, its descendants become children of this process.
        sys::become_subreaper().unwrap();
        let dead_time = dead_time.as_millis().to_string();
        let mut guardian = myself(&["--role", "guardian", &dead_time, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(guardian.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        let orders = guardian.stdin.take();
        let mut world = Self { guardian, orders, lines, agent: 0, ranks: [0; 2] };
        world.agent = world.printed("agent ").parse().unwrap();
        world.ranks[0] = world.printed("sleeper ").parse().unwrap();
        world.ranks[1] = world.printed("daemon ").parse().unwrap();
        world.printed("ready");
        assert!(world.ranks.iter().all(|&pid| is_running(pid)));
        world
    }

    /// Returns the rest of the next line, which must begin with `prefix`.
    fn printed(&self, prefix: &str) -> String {
        let line = self.lines.recv_timeout(TIMEOUT).unwrap();
        line.strip_prefix(prefix).unwrap_or_else(|| panic!("expected {prefix}: {line}")).to_owned()
    }

    fn signal_agent(&self, signal: Signal) {
        kill(Pid::from_raw(self.agent.try_into().unwrap()), signal).unwrap();
    }

    fn signal_guardian(&self, signal: Signal) {
        kill(Pid::from_raw(self.guardian.id().try_into().unwrap()), signal).unwrap();
    }

    fn order(&mut self, line: &str) {
        writeln!(self.orders.as_ref().unwrap(), "{line}").unwrap();
    }

    /// Waits, and asserts that no line is printed meanwhile.
    fn assert_silent_for(&self, time: Duration) {
        assert_eq!(self.lines.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    }

    /// Waits for the guardian's end and asserts that no process is left.
    fn end(mut self) -> GuardianEnd {
        let mut status = None;
        until("the guardian to end", || {
            status = self.guardian.try_wait().unwrap();
            status.is_some()
        });
        let left: Vec<_> = self.ranks.into_iter().chain([self.agent]).filter(|&pid| is_running(pid)).collect();
        assert!(left.is_empty(), "{left:?} outlived the guardian");
        assert!(!sys::has_children());
        let mut stderr = String::new();
        self.guardian.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        GuardianEnd { status: status.unwrap(), stderr }
    }
}

/// A dead-time that no case reaches.
const LONG: Duration = Duration::from_secs(300);
/// A dead-time in which a silent agent finishes its other steps.
const SHORT: Duration = Duration::from_millis(1500);

fn a_killed_agent_leaves_nothing() {
    let world = World::new("serve", LONG);
    world.signal_agent(Signal::SIGKILL);
    let end = world.end();
    assert_eq!(end.status.code(), Some(137));
    assert_eq!(end.stderr, "");
}

fn a_stopped_agent_is_killed() {
    let world = World::new("serve", LONG);
    world.signal_agent(Signal::SIGSTOP);
    let end = world.end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.stderr.contains("the agent was stopped by a signal"), "{}", end.stderr);
    assert!(end.stderr.contains(&sys::host_name()));
}

fn a_silent_agent_is_killed() {
    let end = World::new("mute", SHORT).end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.stderr.contains("the agent was silent for 1.5 s"), "{}", end.stderr);
}

fn an_agent_that_closed_its_link_is_killed() {
    let end = World::new("close", SHORT).end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.stderr.contains("silent"), "{}", end.stderr);
}

fn an_agent_that_exits_leaves_nothing() {
    for code in [0, 3] {
        let mut world = World::new("serve", LONG);
        world.order(&format!("exit {code}"));
        assert_eq!(world.end().status.code(), Some(code));
    }
}

fn an_agent_that_exits_continues_its_guardian() {
    let mut world = World::new("serve", LONG);
    world.signal_guardian(Signal::SIGSTOP);
    world.order("exit 3");
    assert_eq!(world.end().status.code(), Some(3));
}

/// The agent of this test has no handler for SIGTERM, so it dies of it.
fn a_guardian_passes_term_and_int_on_as_term() {
    // A guardian ignores the signals that the user's shell ignores (SIGINT in a background job).
    let ignored = ShellState::recorded().ignored;
    let handled = |signal: &Signal| ignored >> (*signal as i32 - 1) & 1 == 0;
    for signal in [Signal::SIGTERM, Signal::SIGINT].into_iter().filter(handled) {
        let world = World::new("serve", LONG);
        world.signal_guardian(signal);
        let end = world.end();
        assert_eq!(end.status.code(), Some(143), "{signal}");
        assert_eq!(end.stderr, "", "the guardian itself killed nothing");
    }
}

fn signals_of_others_end_neither_the_guardian_nor_the_agent() {
    let mut world = World::new("serve", LONG);
    let timers = [Signal::SIGALRM, Signal::SIGVTALRM, Signal::SIGPROF, Signal::SIGXCPU, Signal::SIGXFSZ];
    let others = [Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE, Signal::SIGIO, Signal::SIGPWR];
    for signal in timers.into_iter().chain(others) {
        world.signal_guardian(signal);
        world.signal_agent(signal);
    }
    assert!(world.ranks.iter().all(|&pid| is_running(pid)));
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn the_agent_detects_the_death_of_its_guardian() {
    let mut world = World::new("serve", LONG);
    world.signal_guardian(Signal::SIGKILL);
    world.printed("guardian died");
    world.guardian.wait().unwrap();
    // The agent is now a child of this process.
    until("the agent to end", || sys::reap().is_some_and(|(pid, _)| pid == world.agent));
    assert!(world.end().stderr.is_empty());
}

fn an_agent_survives_a_short_stop() {
    let mut world = World::new("serve", LONG);
    for _ in 0..20 {
        world.signal_agent(Signal::SIGSTOP);
        world.signal_agent(Signal::SIGCONT);
    }
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn an_agent_survives_a_suspended_machine() {
    // The guardian and the agent are stopped for longer than the dead-time, then continued.
    let mut world = World::new("serve", Duration::from_secs(2));
    world.signal_guardian(Signal::SIGSTOP);
    world.signal_agent(Signal::SIGSTOP);
    world.assert_silent_for(Duration::from_secs(3));
    world.signal_guardian(Signal::SIGCONT);
    world.signal_agent(Signal::SIGCONT);
    world.assert_silent_for(Duration::from_millis(1500));
    assert!(world.ranks.iter().all(|&pid| is_running(pid)));
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn an_agent_sees_whether_its_guardian_runs() {
    let mut world = World::new("watch", SHORT);
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn the_guardian_keeps_no_standard_stream_open() {
    let mut world = World::new("quiet", LONG);
    // The agent has closed its output, and the reader gets end of file: the guardian has no copy of it.
    assert_eq!(world.lines.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
    assert!(world.guardian.try_wait().unwrap().is_none());
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn the_agent_and_its_ranks_have_sessions_and_signal_masks_of_their_own() {
    let mut world = World::new("serve", LONG);
    let of = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let pipe = 1u64 << (13 - 1);
    for pid in [world.agent, world.ranks[0]] {
        let status = of(pid, "status");
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let set = |name| u64::from_str_radix(line(name), 16).unwrap();
        if pid == world.agent {
            // In the agent, Rust's runtime ignores SIGPIPE.
            assert_ne!(set("SigIgn:") & pipe, 0);
            let acted_on = [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCHLD];
            assert!(acted_on.iter().all(|signal| set("SigBlk:") >> (*signal as i32 - 1) & 1 == 0));
        } else {
            assert_eq!(set("SigBlk:"), 0);
        }
    }
    // The agent and the guardian each lead a session.
    let session = |pid| of(pid, "stat").rsplit_once(')').unwrap().1.split(' ').nth(4).unwrap().to_owned();
    assert_eq!(session(world.agent), world.agent.to_string());
    assert_eq!(session(world.guardian.id()), world.guardian.id().to_string());
    for (pid, name) in [(world.guardian.id(), "scela-guard\n"), (world.agent, "scela-agent\n")] {
        assert_eq!(of(pid, "comm"), name, "ps shows different names");
    }
    assert_eq!(session(world.ranks[0]), world.ranks[0].to_string(), "so does each rank");
    world.order("exit 0");
    assert_eq!(world.end().status.code(), Some(0));
}

fn a_process_with_threads_cannot_be_a_guardian() {
    let output = myself(&["--role", "threads"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(251), b"".as_slice()));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("failed to start the agent: a thread of this process is still busy"), "{stderr}");
}
