//! Runs the sessions of a round with a deadline, and checks that they leave nothing behind.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tests::eventually;

use crate::draw::{Round, Session};
use crate::leftovers;

/// A session takes less than a second on an idle machine, and never much longer than the default grace. A session
/// that takes longer than this hangs.
const DEADLINE: Duration = Duration::from_secs(30);
/// The message of a launcher that has received a signal.
const TAKEN: &str = "Ctrl-C again ends it at once";

/// A launcher that was started.
struct Running<'a> {
    session: &'a Session,
    place: PathBuf,
    child: Child,
    /// Receives the time at which the launcher ended. The launcher must still be reaped.
    ended: Receiver<Instant>,
    /// The time received from `ended`.
    over: Option<Instant>,
    begun: Instant,
    /// The delays of the signals still to send: the first after the start, each other one after its predecessor was
    /// sent.
    interrupts: VecDeque<Duration>,
    /// The time at which the last signal was sent.
    interrupted: Option<Instant>,
}

/// Runs a round to its end. An error contains everything known about the failure.
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
        // WNOWAIT leaves the launcher to be reaped by its owner, so that its pid cannot be reused yet.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let _ = end.send(Instant::now());
    });
    let interrupts = session.interrupts().into();
    Running { session, place, child, ended, over: None, begun, interrupts, interrupted: None }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

/// Sends all signals of all sessions at their times, except to launchers that have ended.
fn send_interrupts(running: &mut [Running<'_>]) {
    let next = |running: &[Running<'_>]| {
        let due = |(which, session): (usize, &Running<'_>)| session.due().map(|at| (at, which));
        running.iter().enumerate().filter_map(due).min()
    };
    while let Some((at, which)) = next(running) {
        running[which].interrupt(at);
    }
}

impl Running<'_> {
    /// Returns the time of the next signal, if any.
    fn due(&self) -> Option<Instant> {
        self.interrupts.front().map(|after| self.interrupted.unwrap_or(self.begun) + *after)
    }

    /// Sends the next signal at this time, unless the launcher has ended by then.
    fn interrupt(&mut self, at: Instant) {
        self.interrupts.pop_front();
        if self.ends_by(at) || self.interrupted.is_some() && !self.has_taken_one() {
            self.interrupts.clear();
            return;
        }
        // The launcher has not been reaped, so the pid is still its own.
        let _ = kill(pid(&self.child), Signal::SIGINT);
        self.interrupted = Some(Instant::now());
    }

    /// Waits until the launcher has handled a signal, because the kernel merges two pending signals into one.
    /// Returns false if the launcher ends.
    fn has_taken_one(&mut self) -> bool {
        let taken = || {
            let is_over = self.ends_by(Instant::now());
            (is_over || self.read("stderr").contains(TAKEN)).then_some(!is_over)
        };
        eventually(taken).unwrap_or(false)
    }

    /// Waits until the launcher has ended or this time is reached. Returns whether it has ended.
    fn ends_by(&mut self, at: Instant) -> bool {
        let ended = || self.ended.recv_timeout(at.saturating_duration_since(Instant::now())).ok();
        self.over = self.over.or_else(ended);
        self.over.is_some()
    }

    fn end(&mut self) -> Result<(), String> {
        if !self.ends_by(self.begun + DEADLINE) {
            let state = leftovers::describe_descendants();
            let said = self.said();
            leftovers::end_all(&mut self.child);
            let secs = DEADLINE.as_secs();
            return Err(format!("  [{}] did not end within {secs} s. Its processes:\n{state}{said}", self.session));
        }
        let went_on = self.over.zip(self.interrupted).map(|(over, interrupted)| over - interrupted);
        let status: ExitStatus = self.child.wait().expect("it is our child");
        let (stdout, stderr) = (self.read("stdout"), self.read("stderr"));
        let verdict = self.session.judge(status, went_on, &stdout, &stderr);
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
        // The directory still exists only after a failure.
        let _ = fs::remove_dir_all(&self.place);
    }
}
