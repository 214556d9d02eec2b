//! Runs the sessions of a round, by a deadline, and looks whether they left anything.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::draw::{Round, Session};
use crate::leftovers;

/// A session takes less than a second on a quiet machine, and never more than the default grace
/// plus some; what takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(30);

/// A launcher at work.
struct Running<'a> {
    session: &'a Session,
    place: PathBuf,
    child: Child,
    /// Says when the launcher has ended, which is then still to be reaped.
    ended: Receiver<()>,
    begun: Instant,
    /// Signals to send, and when.
    interrupts: Vec<Instant>,
}

/// Runs a round to its end; an error says all that is known.
pub(crate) fn round(launcher: &Path, round: &Round, place: &Path) -> Result<(), String> {
    let mut running: Vec<Running<'_>> =
        round.sessions.iter().enumerate().map(|(part, session)| start(launcher, session, place, part)).collect();
    let mut problems = String::new();
    send_interrupts(&mut running);
    for session in &mut running {
        if let Err(why) = session.end() {
            problems += &why;
        }
    }
    drop(running);
    if let Err(why) = leftovers::no_children() {
        problems += &format!("  it left processes behind, right after its end:\n{why}");
    }
    if let Err(why) = leftovers::no_files(place) {
        problems += &format!("  it left files behind: {why}\n");
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("  {round}\n{problems}")) }
}

fn start<'a>(launcher: &Path, session: &'a Session, place: &Path, part: usize) -> Running<'a> {
    let place = place.join(part.to_string());
    fs::create_dir(&place).expect("the place is empty");
    let output = |name: &str| Stdio::from(File::create(place.join(name)).expect("the disk has room"));
    let mut command = session.command(launcher);
    command.stdin(Stdio::null()).stdout(output("stdout")).stderr(output("stderr"));
    fs::create_dir(place.join("tmp")).expect("the disk has room");
    command.env("TMPDIR", place.join("tmp")).current_dir(place.join("tmp")).process_group(0);
    let begun = Instant::now();
    let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", launcher.display()));
    let (end, ended) = channel();
    let pid = pid(&child);
    std::thread::spawn(move || {
        // Leaves it to be reaped by who owns it, so that its number cannot be somebody else's yet.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let _ = end.send(());
    });
    let mut at = begun;
    let when = |after: Duration| {
        at += after;
        at
    };
    let interrupts = session.interrupts().into_iter().map(when).collect();
    Running { session, place, child, ended, begun, interrupts }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

/// Sends all signals of all sessions, each in its time, to those that have not ended.
fn send_interrupts(running: &mut [Running<'_>]) {
    let next = |running: &[Running<'_>]| {
        let times =
            running.iter().enumerate().flat_map(|(which, session)| session.interrupts.first().map(|at| (*at, which)));
        times.min()
    };
    while let Some((at, which)) = next(running) {
        let session = &mut running[which];
        session.interrupts.remove(0);
        if session.ends_by(at) {
            session.interrupts.clear();
        } else {
            // Not yet reaped, so it is this one.
            let _ = kill(pid(&session.child), Signal::SIGINT);
        }
    }
}

impl Running<'_> {
    /// Waits until the launcher has ended, but not beyond this time.
    fn ends_by(&self, at: Instant) -> bool {
        let ended = self.ended.recv_timeout(at.saturating_duration_since(Instant::now()));
        // Disconnected: the end was seen before.
        ended != Err(RecvTimeoutError::Timeout)
    }

    fn end(&mut self) -> Result<(), String> {
        if !self.ends_by(self.begun + DEADLINE) {
            let state = leftovers::describe_descendants();
            let said = self.said();
            leftovers::end_all(&mut self.child);
            let secs = DEADLINE.as_secs();
            return Err(format!("  [{}] did not end within {secs} s. Its processes:\n{state}{said}", self.session));
        }
        let took = self.begun.elapsed();
        let status: ExitStatus = self.child.wait().expect("it is our child");
        let (stdout, stderr) = (self.read("stdout"), self.read("stderr"));
        let verdict = self.session.judge(status, took, &stdout, &stderr);
        verdict.map_err(|why| format!("  [{}] {why}\n{}", self.session, self.said()))?;
        for name in ["stdout", "stderr"] {
            fs::remove_file(self.place.join(name)).map_err(|error| format!("  {name}: {error}"))?;
        }
        leftovers::no_files(&self.place.join("tmp")).map_err(|why| format!("  it left files behind: {why}\n"))?;
        fs::remove_dir_all(&self.place).map_err(|error| format!("  its files cannot be removed: {error}"))
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.place.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn said(&self) -> String {
        let section = |name: &str| format!("    --- its {name}\n{}", self.read(name));
        section("stdout") + &section("stderr") + "    ---\n"
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // After a failure only; else it is gone.
        let _ = fs::remove_dir_all(&self.place);
    }
}
