//! One run: one launcher, one job, from its start to the last trace of it.
//!
//! The time of a launcher goes from just before it is started to when it has ended; the floor takes its own, from
//! before its workers are forked to after the last rank is reaped, so that its own start does not count.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use thiserror::Error;

use crate::bench::Bench;
use crate::cargo;
use crate::family;
use crate::launcher::{Client, Kind, Launcher};
use crate::machine::STARTING;
use crate::mark::Mark;
use crate::page::{Header, Page, Reading};
use crate::stats::StatsError;

/// What is started, whoever starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// How many ranks.
    pub np: u32,
    /// What they do.
    pub program: Program,
}

/// The programs: `empty.c`, and `pmi.c` in each of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Nothing but the checks.
    Empty,
    /// As little PMI as an MPI program can do.
    Hello,
    /// Everyone gets its two neighbours' entries.
    OneToTwo,
    /// Everyone gets everyone's entry.
    OneToAll,
    /// One fence after another.
    Fence,
    /// The same while half the ranks flood their stdout.
    Flood,
    /// All but one wait in a fence until told to go on.
    Sleep,
    /// One takes times of gets, while all others wait in a fence.
    Get,
    /// Everyone gets everyone's entry and looks at its own memory before and after; then as [`Program::Sleep`].
    Memory,
    /// As [`Program::OneToTwo`], so many times with new entries; then as [`Program::Sleep`].
    Rounds(u32),
}

/// A run that counts.
#[derive(Debug)]
pub struct Finished {
    /// How long it took as seen from outside.
    pub wall: Duration,
    /// What the ranks left in the page.
    pub reading: Reading,
    /// What the launcher did not give its ranks, though the job was done.
    pub faults: Mark,
    /// How many processes outlived the launcher and had to be ended.
    pub left_behind: usize,
}

/// Why a run does not count.
#[derive(Debug, Error)]
pub enum Void {
    /// It did not end in time.
    #[error("no end within {} s", .0.as_secs())]
    Hung(Duration),
    /// The launcher says itself that it failed.
    #[error("{status}{complaint}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote to stderr.
        complaint: String,
    },
    /// Ranks that were to be started were not.
    #[error("{missing} of {np} marks missing")]
    Missing {
        /// How many did not mark themselves.
        missing: usize,
        /// How many there should be.
        np: u32,
    },
    /// The ranks found something wrong that makes the time worthless.
    #[error("{0}")]
    Spoiled(Mark),
    /// scela-run left processes behind, which makes its time worthless.
    #[error("{0} processes left behind")]
    LeftBehind(usize),
    /// The machine failed.
    #[error("{0}")]
    Machine(#[from] io::Error),
    /// It would take too long, and was not asked for by name.
    #[error("more than {0} ranks only where typed (--np)")]
    NotTyped(u32),
    /// What scela-run counted is not there.
    #[error("{0}")]
    Stats(#[from] StatsError),
    /// An earlier run hung, so this one was not tried.
    #[error("not tried after a run that hung")]
    NotTried,
}

/// A run on its way, for who wants to look at it before it ends.
#[derive(Debug)]
pub struct Running<'a> {
    launcher: &'a Launcher,
    child: Child,
    started: Instant,
    deadline: Duration,
    page: Page,
    complaints: PathBuf,
    job: Job,
}

/// Runs a job to its end.
///
/// # Errors
/// Where the run does not count.
pub fn run(bench: &Bench, launcher: &Launcher, job: Job) -> Result<Finished, Void> {
    Running::start(bench, launcher, job)?.finish()
}

impl<'a> Running<'a> {
    /// Starts a job.
    ///
    /// # Errors
    /// Where the launcher cannot be started.
    pub fn start(bench: &Bench, launcher: &'a Launcher, job: Job) -> Result<Self, Void> {
        let deadline = bench.options.deadline;
        let page = Page::create(
            bench.scratch.pages().join("page"),
            Header {
                np: job.np,
                nofile: bench.machine.nofile,
                fences: bench.options.fences,
                value_bytes: bench.value_bytes(launcher),
                keys: job.keys(),
                gets: job.program.gets(launcher),
                samples: job.samples(bench.options.fences, launcher),
                deadline: deadline + GRACE,
            },
        )?;
        let complaints = bench.scratch.programs().join("complaints");
        let mut command = command(bench, launcher, job, page.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&complaints)?).process_group(0);
        let _no_signal_cleans_up_now = STARTING.lock();
        let started = Instant::now();
        let child = command.spawn()?;
        Ok(Self { launcher, child, started, deadline, page, complaints, job })
    }

    /// The launcher's process.
    #[must_use]
    pub fn launcher_pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// The page that the ranks write to.
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Waits until all ranks have marked themselves, or it is clear that they will not.
    ///
    /// # Errors
    /// Where the page cannot be read.
    pub fn wait_for_marks(&mut self) -> io::Result<()> {
        while self.is_going() && self.page.marked()? < self.job.np as usize {
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Waits for the end, judges the run, and leaves nothing of it.
    ///
    /// # Errors
    /// Where the run does not count.
    pub fn finish(mut self) -> Result<Finished, Void> {
        let in_time = self.wait();
        let wall = self.started.elapsed();
        let status = self.child.wait()?;
        let left_behind = family::settle();
        if !in_time {
            return Err(Void::Hung(self.deadline));
        }
        let reading = self.page.read()?;
        let faults = self.judge(status, &reading, left_behind)?;
        let wall = if self.launcher.kind == Kind::Floor { reading.inside.unwrap_or(wall) } else { wall };
        Ok(Finished { wall, reading, faults, left_behind })
    }

    /// Whether the run is still within its deadline and its launcher alive.
    fn is_going(&mut self) -> bool {
        self.started.elapsed() < self.deadline && matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the launcher has ended, or has been told to because its time is over.
    ///
    /// The process is not reaped before the watch is off, so that the watch cannot signal another one.
    fn wait(&mut self) -> bool {
        let pid = self.launcher_pid();
        let left = self.deadline.saturating_sub(self.started.elapsed());
        let (off, watch) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let watch = scope.spawn(move || {
                for (patience, signal) in [(left, Signal::SIGTERM), (GRACE, Signal::SIGKILL)] {
                    if watch.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
                        return signal == Signal::SIGTERM;
                    }
                    // A group that is gone already is as good.
                    let _ = killpg(pid, signal);
                }
                false
            });
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            drop(off);
            watch.join().unwrap_or(false)
        })
    }
}

impl Running<'_> {
    /// The faults that a rival may have. scela-run and the floor may have none.
    ///
    /// What ranks found comes before how the launcher ended, which is often only the consequence.
    fn judge(&self, status: ExitStatus, reading: &Reading, left_behind: usize) -> Result<Mark, Void> {
        let marks = || reading.marks.iter();
        let faults = marks().fold(Mark::default(), |faults, mark| faults.union(mark.faults()));
        if !faults.spoils().is_clean() {
            return Err(Void::Spoiled(faults));
        }
        if !status.success() {
            return Err(Void::Failed { status, complaint: complaint(&self.complaints) });
        }
        let missing = marks().filter(|mark| !mark.is_here()).count();
        if missing > 0 {
            return Err(Void::Missing { missing, np: self.job.np });
        }
        let is_strict = matches!(self.launcher.kind, Kind::Scela | Kind::Floor);
        if is_strict && !faults.is_clean() {
            return Err(Void::Spoiled(faults));
        }
        if is_strict && left_behind > 0 {
            return Err(Void::LeftBehind(left_behind));
        }
        Ok(faults)
    }
}

impl Program {
    /// The mode of `pmi.c`; none for the empty program.
    fn mode(self) -> Option<&'static str> {
        match self {
            Self::Empty => None,
            Self::Hello => Some("hello"),
            Self::OneToTwo => Some("1:2"),
            Self::OneToAll => Some("1:p"),
            Self::Fence => Some("fence"),
            Self::Flood => Some("flood"),
            Self::Sleep => Some("sleep"),
            Self::Get => Some("get"),
            Self::Memory => Some("memory"),
            Self::Rounds(_) => Some("rounds"),
        }
    }

    /// How many times of each kind to take of a get: of one over a socket, fewer.
    fn gets(self, launcher: &Launcher) -> u32 {
        match (self, &launcher.client) {
            (Self::Get, Client::Wire) => 1000,
            (Self::Get, Client::Library(_)) => 10_000,
            _ => 0,
        }
    }
}

impl Job {
    /// How many entries each rank puts.
    #[must_use]
    pub fn keys(self) -> u32 {
        match self.program {
            Program::Get => (GET_ENTRIES / self.np).max(1),
            Program::Rounds(rounds) => rounds,
            _ => 1,
        }
    }

    /// How many words the program takes down.
    fn samples(self, fences: u32, launcher: &Launcher) -> usize {
        let np = self.np as usize;
        match self.program {
            // When each rank entered and left each.
            Program::Fence | Program::Flood => 2 * np * fences as usize,
            // One clock; and single gets and batches of them, of what is there and of what is not.
            Program::Get => 5 * self.program.gets(launcher) as usize,
            // Before and after.
            Program::Memory => 2 * np,
            Program::Empty
            | Program::Hello
            | Program::OneToTwo
            | Program::OneToAll
            | Program::Sleep
            | Program::Rounds(_) => 0,
        }
    }
}

fn command(bench: &Bench, launcher: &Launcher, job: Job, page: &Path) -> Command {
    let programs = &bench.programs;
    let mut command = match (launcher.kind, job.program.mode()) {
        // Whatever the others run, the floor starts the empty program.
        (Kind::Floor, _) => {
            let mut command = Command::new(&launcher.path);
            command.arg(page).arg(&programs.empty).arg(bench.machine.cores.to_string());
            command
        }
        (_, None) => {
            let mut command = launcher.command(job.np, &programs.empty);
            command.arg(page).arg(if launcher.serves_pmi() { "pmi" } else { "bare" });
            command
        }
        (_, Some(mode)) => {
            let mut command = launcher.command(job.np, bench.pmi_program(launcher));
            command.arg(page).arg(mode);
            command
        }
    };
    // What a launcher that had to be ended leaves there goes with the scratch directory.
    command.env("TMPDIR", bench.scratch.programs());
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if cargo::is_foreign(&name) {
            command.env_remove(&*name);
        } else if name == LIBRARY_PATH {
            match cargo::own_library_path(&value.to_string_lossy(), &bench.target) {
                own if own.is_empty() => command.env_remove(LIBRARY_PATH),
                own => command.env(LIBRARY_PATH, own),
            };
        }
    }
    command
}

/// The last line that a launcher wrote to stderr, as an addition to its status.
fn complaint(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim().chars().take(COMPLAINT_CHARS_MAX).collect::<String>()),
        None => String::new(),
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid is positive and fits"))
}

/// How many entries the board has of which single ones are got.
const GET_ENTRIES: u32 = 4096;
const TICK: Duration = Duration::from_millis(10);
/// Between asking a launcher to end and ending it.
const GRACE: Duration = Duration::from_secs(3);
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const COMPLAINT_CHARS_MAX: usize = 200;
