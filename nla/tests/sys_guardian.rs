//! Guardian and agent: whatever happens to one of them, nothing of the agent's is left.

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
use nla::sys::{self, Descriptors, GuardianLink, Image, ShellState, Spawner};
use sys_support::{PATIENCE, daemon, end_all_children, is_running, myself, sleeper, until};

fn main() -> ExitCode {
    sys_support::run(
        &[
            ("a_killed_agent_leaves_nothing", a_killed_agent_leaves_nothing),
            ("a_stopped_agent_is_killed", a_stopped_agent_is_killed),
            ("a_silent_agent_is_killed", a_silent_agent_is_killed),
            ("an_agent_that_hung_up_is_killed", an_agent_that_hung_up_is_killed),
            ("an_agent_that_ends_leaves_nothing", an_agent_that_ends_leaves_nothing),
            ("a_told_guardian_ends_all", a_told_guardian_ends_all),
            ("the_agent_sees_its_guardian_go", the_agent_sees_its_guardian_go),
            ("a_short_stop_is_forgiven", a_short_stop_is_forgiven),
            ("a_suspended_machine_is_forgiven", a_suspended_machine_is_forgiven),
            ("a_full_link_blocks_nobody", a_full_link_blocks_nobody),
            ("the_guardian_holds_no_channel", the_guardian_holds_no_channel),
            ("the_agent_has_what_the_shell_gave", the_agent_has_what_the_shell_gave),
            ("there_is_no_agent_beside_threads", there_is_no_agent_beside_threads),
        ],
        &[("guardian", guardian), ("threads", threads), ("sleeper", sleeper), ("daemon", daemon)],
    )
}

/// Role: guardian, and its agent.
fn guardian(args: &[String]) {
    let dead_time = Duration::from_millis(args[0].parse().unwrap());
    agent(&args[1], sys::guarded(dead_time));
}

/// Role: would be a guardian, but has a second thread.
fn threads(_: &[String]) {
    let (_kept, until) = channel::<()>();
    std::thread::spawn(move || until.recv());
    sys::guarded(LONG);
    println!("an agent");
}

/// An agent with a rank that has started a daemon. Ends on a line "exit N", or when its
/// guardian is gone.
fn agent(mode: &str, link: GuardianLink) {
    let mut link = Some(link);
    sys::reserve_low().unwrap();
    sys::become_subreaper().unwrap();
    sys::forbid_dump().unwrap();
    println!("agent {}", std::process::id());
    let mut spawner = Spawner::new(ShellState::recorded()).unwrap();
    println!("sleeper {}", start_rank(&mut spawner, "sleeper"));
    let daemon = start_rank(&mut spawner, "daemon");
    until("the daemon to be ours", || sys::reap().is_some_and(|(pid, _)| pid == daemon));
    match mode {
        "serve" => {}
        // A guardian is patient until the first word.
        "mute" => {
            link.as_ref().unwrap().alive().unwrap();
            std::mem::forget(link.take());
        }
        "hang-up" => {
            link.as_ref().unwrap().alive().unwrap();
            drop(link.take());
        }
        "quiet" => {
            println!("ready");
            nix::unistd::dup2_stdout(sys::dev_null(true).unwrap()).unwrap();
        }
        "flood" => {
            let link = link.as_ref().unwrap();
            kill(Pid::parent(), Signal::SIGSTOP).unwrap();
            for _ in 0..100_000 {
                link.alive().unwrap();
            }
            kill(Pid::parent(), Signal::SIGCONT).unwrap();
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
            println!("guardian gone");
            return;
        }
        if fds[0].any() == Some(true) {
            let line = stdin.lines().next().unwrap().unwrap();
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
    spawner.spawn(&image, &[], descriptors).unwrap().pid()
}

/// A guardian with its agent, its rank, and its rank's daemon.
struct World {
    guardian: std::process::Child,
    orders: Option<ChildStdin>,
    said: Receiver<String>,
    agent: u32,
    ranks: [u32; 2],
}

/// All that a guardian and those below it said, once it has ended.
struct Aftermath {
    status: ExitStatus,
    complaints: String,
}

impl World {
    fn new(mode: &str, dead_time: Duration) -> Self {
        // Should the guardian die, what it guards becomes ours.
        sys::become_subreaper().unwrap();
        let dead_time = dead_time.as_millis().to_string();
        let mut guardian = myself(&["--role", "guardian", &dead_time, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, said) = channel();
        let stdout = BufReader::new(guardian.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        let orders = guardian.stdin.take();
        let mut world = Self { guardian, orders, said, agent: 0, ranks: [0; 2] };
        world.agent = world.told("agent ").parse().unwrap();
        world.ranks[0] = world.told("sleeper ").parse().unwrap();
        world.ranks[1] = world.told("daemon ").parse().unwrap();
        world.told("ready");
        assert!(world.ranks.iter().all(|&pid| is_running(pid)));
        world
    }

    fn told(&self, prefix: &str) -> String {
        let line = self.said.recv_timeout(PATIENCE).unwrap();
        line.strip_prefix(prefix).unwrap_or_else(|| panic!("{prefix} expected: {line}")).to_owned()
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

    /// Lets time go by, in which nobody says anything.
    fn nothing_happens_for(&self, time: Duration) {
        assert_eq!(self.said.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    }

    /// Waits for the guardian's end, after which nobody is left.
    fn end(mut self) -> Aftermath {
        let mut status = None;
        until("the guardian to end", || {
            status = self.guardian.try_wait().unwrap();
            status.is_some()
        });
        let left: Vec<_> = self.ranks.into_iter().chain([self.agent]).filter(|&pid| is_running(pid)).collect();
        assert!(left.is_empty(), "{left:?} outlived the guardian");
        assert!(!sys::has_children());
        let mut complaints = String::new();
        self.guardian.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        Aftermath { status: status.unwrap(), complaints }
    }
}

/// Long enough not to matter.
const LONG: Duration = Duration::from_secs(300);
/// Long enough for an agent that says nothing to do all else first.
const SHORT: Duration = Duration::from_millis(1500);

fn a_killed_agent_leaves_nothing() {
    let world = World::new("serve", LONG);
    world.signal_agent(Signal::SIGKILL);
    let end = world.end();
    assert_eq!(end.status.code(), Some(137));
    assert_eq!(end.complaints, "");
}

fn a_stopped_agent_is_killed() {
    let world = World::new("serve", LONG);
    world.signal_agent(Signal::SIGSTOP);
    let end = world.end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.complaints.contains("the agent was stopped by a signal"), "{}", end.complaints);
    assert!(end.complaints.contains(&sys::host_name()));
}

fn a_silent_agent_is_killed() {
    let end = World::new("mute", SHORT).end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.complaints.contains("the agent was silent for 1.5 s"), "{}", end.complaints);
}

fn an_agent_that_hung_up_is_killed() {
    let end = World::new("hang-up", SHORT).end();
    assert_eq!(end.status.code(), Some(137));
    assert!(end.complaints.contains("silent"), "{}", end.complaints);
}

fn an_agent_that_ends_leaves_nothing() {
    for code in [0, 3] {
        let mut world = World::new("serve", LONG);
        world.order(&format!("exit {code}"));
        assert_eq!(world.end().status.code(), Some(code));
    }
}

fn a_told_guardian_ends_all() {
    // Those that our own shell ignores (INT in a background job, HUP under nohup), a guardian
    // of its ignores, too.
    let ignored = ShellState::recorded().ignored;
    let heard = |signal: &Signal| ignored >> (*signal as i32 - 1) & 1 == 0;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().filter(heard) {
        let world = World::new("serve", LONG);
        world.signal_guardian(signal);
        let end = world.end();
        assert_eq!(end.status.code(), Some(128 + signal as i32));
        assert!(end.complaints.contains("told to end by signal"), "{}", end.complaints);
    }
}

fn the_agent_sees_its_guardian_go() {
    let mut world = World::new("serve", LONG);
    world.signal_guardian(Signal::SIGKILL);
    world.told("guardian gone");
    world.guardian.wait().unwrap();
    // The agent is our child now.
    until("the agent to end", || sys::reap().is_some_and(|(pid, _)| pid == world.agent));
    assert!(world.end().complaints.is_empty());
}

fn a_short_stop_is_forgiven() {
    let mut world = World::new("serve", LONG);
    for _ in 0..20 {
        world.signal_agent(Signal::SIGSTOP);
        world.signal_agent(Signal::SIGCONT);
    }
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn a_suspended_machine_is_forgiven() {
    // Guardian, agent and all are stopped for longer than the dead-time, and go on.
    let mut world = World::new("serve", Duration::from_secs(2));
    world.signal_guardian(Signal::SIGSTOP);
    world.signal_agent(Signal::SIGSTOP);
    world.nothing_happens_for(Duration::from_secs(3));
    world.signal_guardian(Signal::SIGCONT);
    world.signal_agent(Signal::SIGCONT);
    world.nothing_happens_for(Duration::from_millis(1500));
    assert!(world.ranks.iter().all(|&pid| is_running(pid)));
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn a_full_link_blocks_nobody() {
    let mut world = World::new("flood", LONG);
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn the_guardian_holds_no_channel() {
    let mut world = World::new("quiet", LONG);
    // The agent has closed its output, and its readers see that.
    assert_eq!(world.said.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    assert!(world.guardian.try_wait().unwrap().is_none());
    world.order("exit 7");
    assert_eq!(world.end().status.code(), Some(7));
}

fn the_agent_has_what_the_shell_gave() {
    let mut world = World::new("serve", LONG);
    let of = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let pipe = 1u64 << (13 - 1);
    for pid in [world.agent, world.ranks[0]] {
        let status = of(pid, "status");
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!(line("SigBlk:"), "0000000000000000");
        if pid == world.agent {
            // Rust's runtime ignores it there, on its own account.
            assert_ne!(u64::from_str_radix(line("SigIgn:"), 16).unwrap() & pipe, 0);
        }
    }
    // Sessions of their own: agent and guardian, not each other's.
    let session = |pid| of(pid, "stat").rsplit_once(')').unwrap().1.split(' ').nth(4).unwrap().to_owned();
    assert_eq!(session(world.agent), world.agent.to_string());
    assert_eq!(session(world.guardian.id()), world.guardian.id().to_string());
    for (pid, name) in [(world.guardian.id(), "scela-guard\n"), (world.agent, "scela-agent\n")] {
        assert_eq!(of(pid, "comm"), name, "ps tells them apart");
    }
    assert_eq!(session(world.ranks[0]), world.agent.to_string(), "a rank has only a group");
    world.order("exit 0");
    assert_eq!(world.end().status.code(), Some(0));
}

fn there_is_no_agent_beside_threads() {
    let output = myself(&["--role", "threads"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(251), b"".as_slice()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("failed to start the agent: there are several threads\n"), "{said}");
}
