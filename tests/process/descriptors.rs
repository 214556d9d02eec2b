//! Only the launcher keeps the descriptors that it inherits: a pipe that it inherited closes when the launcher
//! ends.

use std::fs::File;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tests::{Capture, Process, Running, World, event_timeout, scela, sh};

/// Starts a run that waits to be ended and whose launcher has inherited a pipe. Returns it with the other end of
/// the pipe.
fn start_with_inherited_pipe() -> (Running, Capture) {
    let run = scela().np(3).agents(3).fanout(2);
    let path = pipe(run.world());
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let run = run.env("PIPE_PATH", &path).shell("exec 9> \"$PIPE_PATH\"");
    let running = run.program(sh("sleep 1000 & echo here; wait")).spawn();
    // The open blocks until the shell that becomes the launcher has opened the pipe.
    let pipe = Capture::of(File::open(path).unwrap());
    running.wait_for_times("here", 3);
    (running, pipe)
}

fn pipe(world: &World) -> std::path::PathBuf {
    world.file("pipe")
}

#[test]
fn only_the_launcher_keeps_an_inherited_pipe() {
    let (running, end) = start_with_inherited_pipe();
    let path = pipe(running.world());
    let (guardians, agents) = (running.world().guardians(), running.world().agents());
    assert_eq!((guardians.len(), agents.len()), (3, 3));
    let holders: Vec<_> =
        running.world().processes().into_iter().filter(|process| process.open_files().contains(&path)).collect();
    assert_eq!(holders.iter().map(|process| process.pid).collect::<Vec<_>>(), [running.launcher().pid], "{holders:?}");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
    assert!(end.wait_end(event_timeout()), "a process still has the pipe open");
}

#[test]
fn an_inherited_pipe_closes_when_the_launcher_is_killed() {
    let (running, end) = start_with_inherited_pipe();
    let guardians = running.world().guardians();
    // Guardians are stopped so that only the launcher's own end can close the pipe.
    Process::signal_all(&guardians, Signal::SIGSTOP);
    running.signal(Signal::SIGKILL);
    assert!(end.wait_end(event_timeout()), "a process other than the launcher has the pipe open");
    Process::signal_all(&guardians, Signal::SIGCONT);
    running.finish_killed();
}
