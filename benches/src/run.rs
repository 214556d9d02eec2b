//! One run: one launcher and one job, until the last of its processes has ended.
//!
//! The time of a launcher is from just before its start until it has exited. The floor measures its own
//! time, from before it forks its workers until it has reaped the last rank, so that its own start does
//! not count.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use thiserror::Error;

use crate::bench::Bench;
use crate::cargo;
use crate::family;
use crate::launcher::{Client, Kind, Launcher};
use crate::machine::STARTING;
use crate::mark::Mark;
use crate::page::{Header, Page, Reading};
use crate::programs::Programs;

/// The job that every launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The number of ranks.
    pub np: u32,
    /// The program of the ranks.
    pub program: Program,
}

/// The programs: `empty.c`, `output.c`, and `pmi.c` in each of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Only the checks.
    Empty,
    /// The least PMI that an MPI program needs.
    Hello,
    /// Each rank gets the entries of its two neighbours.
    OneToTwo,
    /// The kernel's part of [`Program::OneToTwo`] through shared memory, which only [`Kind::Server`] runs.
    Wakes,
    /// Each rank gets the entries of all ranks.
    OneToAll,
    /// Fences in a loop.
    Fence,
    /// Fences in a loop, while half of the ranks write to stdout continuously.
    Flood,
    /// All ranks but one wait in a fence until the bench releases them.
    Sleep,
    /// One rank measures gets, while all others wait in a fence.
    Get,
    /// Each rank gets the entries of all ranks and reads its memory use before and after; then as
    /// [`Program::Sleep`].
    Memory,
    /// Each rank writes this many bytes to a pipe, in blocks of 64 KiB.
    Bytes(u64),
    /// Each rank writes this many lines of [`LINE_BYTES`] to a pipe, one by one.
    Lines(u64),
    /// [`Program::OneToTwo`] this many times with new entries; then as [`Program::Sleep`].
    Rounds(u32),
}

/// A run that counts.
#[derive(Debug, Default)]
pub struct Finished {
    /// The time as measured by the bench.
    pub wall: Duration,
    /// The time from just before the launcher's start until the last rank was about to send its first PMI message; `None` if
    /// the ranks do not speak PMI.
    pub last_rank_started: Option<Duration>,
    /// The marks that the ranks have written to the page.
    pub reading: Reading,
    /// Faults in the environment of ranks that did not prevent the job.
    pub faults: Mark,
    /// The processor time of the launcher and its descendants.
    pub processor: Duration,
    /// The number of processes that outlived the launcher and were killed.
    pub left_behind: usize,
}

/// Why a run does not count.
#[derive(Debug, Error)]
pub enum Void {
    /// It exceeded the deadline.
    #[error("killed after {} s", .0.as_secs())]
    Hung(Duration),
    /// A system call failed.
    #[error("{0}")]
    Machine(#[from] io::Error),
    /// This size takes too long and must be requested explicitly.
    #[error("more than {0} ranks only with --np")]
    NotTyped(u32),
    /// An earlier run of this size took longer than this.
    #[error("a run that took more than {} s is not repeated", .0.as_secs())]
    Slow(Duration),
    /// The launcher or ranks failed, statistics are missing, or the run was skipped: the reason as text.
    #[error("{0}")]
    Failed(String),
}

/// A run in progress.
#[derive(Debug)]
struct Running<'a> {
    launcher: &'a Launcher,
    services: &'a BTreeSet<Pid>,
    child: Child,
    started: Instant,
    /// The same time as the ranks' clock shows it.
    started_for_ranks: Duration,
    deadline: Duration,
    page: Page,
    complaints: PathBuf,
    job: Job,
    /// Reads standard output to its end; returns the number of bytes.
    reader: Option<JoinHandle<io::Result<u64>>>,
    /// The processor time of ended children before this run.
    processor_before: Duration,
}

/// Runs a job until it has ended.
///
/// # Errors
/// If the run does not count.
pub fn run(bench: &Bench, launcher: &Launcher, job: Job) -> Result<Finished, Void> {
    Running::start(bench, launcher, job)?.finish()
}

/// Runs a job whose ranks wait after they have written their marks. `inspect` is called with the launcher's process id
/// while they wait.
///
/// # Errors
/// If the run does not count.
pub fn run_inspected<T>(
    bench: &Bench,
    launcher: &Launcher,
    job: Job,
    inspect: impl FnOnce(Pid) -> T,
) -> Result<(Finished, T), Void> {
    let mut running = Running::start(bench, launcher, job)?;
    running.wait_for_marks()?;
    let found = inspect(running.launcher_pid());
    running.page.release_ranks()?;
    Ok((running.finish()?, found))
}

impl<'a> Running<'a> {
    fn start(bench: &'a Bench, launcher: &'a Launcher, job: Job) -> Result<Self, Void> {
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
        let stdout = if job.output_bytes().is_some() { Stdio::piped() } else { Stdio::null() };
        let processor_before = processor_of_children()?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(File::create(&complaints)?).process_group(0);
        let _no_clean_up_now = STARTING.lock();
        let started = Instant::now();
        let started_for_ranks = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(io::Error::from)?);
        let mut child = command.spawn()?;
        let reader = child.stdout.take().map(|stdout| thread::spawn(|| read_all(stdout)));
        let services = bench.services.processes();
        Ok(Self {
            launcher,
            services,
            child,
            started,
            started_for_ranks,
            deadline,
            page,
            complaints,
            job,
            reader,
            processor_before,
        })
    }

    fn launcher_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits into an i32"))
    }

    /// Waits until all ranks have written their marks, or the launcher has exited, or the deadline has
    /// passed.
    fn wait_for_marks(&mut self) -> io::Result<()> {
        while self.is_going() && self.page.marked()? < self.job.np as usize {
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Waits for the end, checks the run, and removes all it has left behind.
    fn finish(mut self) -> Result<Finished, Void> {
        let in_time = self.wait();
        let wall = self.started.elapsed();
        let status = self.child.wait()?;
        let left_behind = family::settle(self.services);
        let processor = processor_of_children()?.saturating_sub(self.processor_before);
        if !in_time {
            return Err(Void::Hung(self.deadline));
        }
        let reading = self.page.read()?;
        let faults = self.judge(status, &reading, left_behind)?;
        // A daemon of a rival that has standard output open would let this wait.
        if let (Some(reader), Some(expected)) = (self.reader.take(), self.job.output_bytes()) {
            let arrived = reader.join().unwrap_or(Ok(0))?;
            if arrived != expected {
                return Err(Void::Failed(format!("{arrived} of {expected} bytes of output arrived")));
            }
        }
        let wall = if self.launcher.kind == Kind::Floor { reading.inside.unwrap_or(wall) } else { wall };
        let last_rank_started = reading.last_contact.checked_sub(self.started_for_ranks);
        Ok(Finished { wall, last_rank_started, reading, faults, processor, left_behind })
    }

    /// Returns whether the deadline has not passed and the launcher is running.
    fn is_going(&mut self) -> bool {
        self.started.elapsed() < self.deadline && matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the launcher has exited, killing it after the deadline. Returns whether it exited in
    /// time.
    ///
    /// The process is not reaped before the watcher has ended, so that the watcher cannot signal a new
    /// process with the same id.
    fn wait(&mut self) -> bool {
        let pid = self.launcher_pid();
        let left = self.deadline.saturating_sub(self.started.elapsed());
        let (off, watch) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let watch = scope.spawn(move || {
                for (timeout, signal) in [(left, Signal::SIGTERM), (GRACE, Signal::SIGKILL)] {
                    if watch.recv_timeout(timeout) != Err(RecvTimeoutError::Timeout) {
                        return signal == Signal::SIGTERM;
                    }
                    // ESRCH is expected: the group may have ended.
                    let _ = killpg(pid, signal);
                }
                false
            });
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            drop(off);
            watch.join().unwrap_or(false)
        })
    }

    /// Checks the run and returns its faults, which only rivals may have: scela-run and the floors must
    /// have none.
    ///
    /// Faults that ranks report come before the launcher's exit status, which is often only their
    /// consequence.
    fn judge(&self, status: ExitStatus, reading: &Reading, left_behind: usize) -> Result<Mark, Void> {
        let marks = || reading.marks.iter();
        let faults = marks().fold(Mark::default(), |faults, mark| faults.union(mark.faults()));
        if !faults.spoils().is_clean() {
            return Err(Void::Failed(faults.to_string()));
        }
        if !status.success() {
            return Err(Void::Failed(format!("{status}{}", complaint(&self.complaints))));
        }
        let missing = marks().filter(|mark| !mark.is_here()).count();
        if missing > 0 {
            return Err(Void::Failed(format!("{missing} of {} ranks left no mark", self.job.np)));
        }
        let is_strict = matches!(self.launcher.kind, Kind::Scela | Kind::Floor | Kind::Server);
        if is_strict && !faults.is_clean() {
            return Err(Void::Failed(faults.to_string()));
        }
        if is_strict && left_behind > 0 {
            return Err(Void::Failed(format!("{left_behind} processes left behind")));
        }
        Ok(faults)
    }
}

impl Program {
    /// Returns the mode of `pmi.c`; `None` for the other programs.
    fn mode(self) -> Option<&'static str> {
        match self {
            Self::Empty | Self::Bytes(_) | Self::Lines(_) => None,
            Self::Hello => Some("hello"),
            Self::OneToTwo => Some("1:2"),
            Self::Wakes => Some("wakes"),
            Self::OneToAll => Some("1:p"),
            Self::Fence => Some("fence"),
            Self::Flood => Some("flood"),
            Self::Sleep => Some("sleep"),
            Self::Get => Some("get"),
            Self::Memory => Some("memory"),
            Self::Rounds(_) => Some("rounds"),
        }
    }

    /// Returns the mode of `output.c`, the count of its pieces and their size in bytes; `None` for the other programs.
    fn output(self) -> Option<(&'static str, u64, u64)> {
        match self {
            Self::Bytes(count) => Some(("bytes", count, 1)),
            Self::Lines(count) => Some(("lines", count, LINE_BYTES)),
            _ => None,
        }
    }

    /// Returns the program that needs no PMI, `empty.c` or `output.c`, and its arguments after the page and the kind of launcher.
    fn without_pmi(self, programs: &Programs) -> (&Path, Vec<String>) {
        match self.output() {
            Some((mode, count, _)) => (&programs.output, vec![mode.to_owned(), count.to_string()]),
            None => (&programs.empty, Vec::new()),
        }
    }

    /// Returns the number of gets to measure of each kind; fewer over a socket.
    fn gets(self, launcher: &Launcher) -> u32 {
        match (self, &launcher.client) {
            (Self::Get, Client::Wire) => 1000,
            (Self::Get, Client::Library(_)) => 10_000,
            _ => 0,
        }
    }
}

impl Job {
    /// Returns the number of entries that each rank puts.
    #[must_use]
    pub fn keys(self) -> u32 {
        match self.program {
            Program::Get => (GET_ENTRIES / self.np).max(1),
            Program::Rounds(rounds) => rounds,
            _ => 1,
        }
    }

    /// Returns the number of bytes that all ranks write to standard output, if the bench reads it.
    fn output_bytes(self) -> Option<u64> {
        self.program.output().map(|(_, count, bytes)| u64::from(self.np) * count * bytes)
    }

    /// Returns the number of words that the program stores.
    fn samples(self, fences: u32, launcher: &Launcher) -> usize {
        let np = self.np as usize;
        match self.program {
            // The times at which each rank entered and left each fence.
            Program::Fence | Program::Flood => 2 * np * fences as usize,
            // The cost of reading the clock; single gets and batches of gets, of present and of absent
            // keys.
            Program::Get => 5 * self.program.gets(launcher) as usize,
            // Memory before and after.
            Program::Memory => 2 * np,
            _ => 0,
        }
    }
}

fn command(bench: &Bench, launcher: &Launcher, job: Job, page: &Path) -> Command {
    let programs = &bench.programs;
    let mut command = match (launcher.kind, job.program.mode()) {
        // The floor starts no program that speaks PMI, but the empty program.
        (Kind::Floor, _) => {
            let mut command = Command::new(&launcher.path);
            let (program, words) = job.program.without_pmi(programs);
            command.arg(page).arg(program).arg(bench.machine.cores.to_string()).args(words);
            command
        }
        (Kind::Server, Some(mode)) => {
            let mut command = Command::new(&launcher.path);
            let program = if job.program == Program::Wakes { &programs.wakes } else { &programs.pmi };
            command.arg(page).arg(program).arg(mode).arg(bench.machine.cores.to_string());
            command
        }
        (_, None) => {
            let (program, words) = job.program.without_pmi(programs);
            let mut command = launcher.command(job.np, program);
            command.arg(page).arg(if launcher.serves_pmi() { "pmi" } else { "bare" }).args(words);
            command
        }
        (_, Some(mode)) => {
            let mut command = launcher.command(job.np, bench.pmi_program(launcher));
            command.arg(page).arg(mode);
            command
        }
    };
    // Files that a killed launcher leaves there are removed with the scratch directory.
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

/// Reads standard output of a launcher to its end. Returns the number of bytes.
fn read_all(mut stdout: ChildStdout) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut all = 0;
    loop {
        match stdout.read(&mut buffer)? {
            0 => return Ok(all),
            count => all += count as u64,
        }
    }
}

/// Returns the processor time of all children of this process that have ended, and of their descendants.
fn processor_of_children() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.iter().map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)).sum())
}

/// Returns the last line that a launcher wrote to stderr, to append to its status.
fn complaint(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim().chars().take(COMPLAINT_CHARS_MAX).collect::<String>()),
        None => String::new(),
    }
}

/// The length of a line of `output.c`.
pub const LINE_BYTES: u64 = 16;
/// The size of a read of standard output: that of cat(1).
const READ_BYTES: usize = 128 * 1024;
/// The number of entries on the board when single gets are measured.
const GET_ENTRIES: u32 = 4096;
const TICK: Duration = Duration::from_millis(10);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const COMPLAINT_CHARS_MAX: usize = 200;
