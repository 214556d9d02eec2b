//! `cargo bench -p benches --bench mpi`: an MPI hello with more and more ranks, as many as fit into memory.
//!
//! The program initializes MPI, does one allreduce and ends. Its library is Debian's MPICH without shared memory between ranks
//! (`UCX_TLS=tcp,self,sysv`), the configuration of those tried that needs least memory. Times are from start to end.
//!
//! Memory is measured while all ranks sleep after the allreduce: their proportional set sizes, and the decrease of the machine's
//! `MemAvailable`, which also counts the kernel's part (page tables, stacks, sockets) and the launcher. So nothing else should run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use benches::arguments::{self, number_of, parse, write_option, write_table};
use benches::cargo::{SCELA_RUN, target_directory, without_foreign_variables};
use benches::error::BenchError;
use benches::family::{command_line, descendants, settle};
use benches::machine::{Machine, isolate};
use benches::rounds::{Series, rounds};
use benches::run::Void;
use benches::smaps::pss_kib;
use clap::{ArgMatches, value_parser};
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

/// The page with the table.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
/// The name of the table's markers.
const PLACE: &str = "mpi";
/// Debian's names of MPICH's compiler and launcher.
const COMPILER: &str = "mpicc.mpich";
const HYDRA: &str = "mpiexec.hydra";
/// The time after which a run is killed.
const DEADLINE: Duration = Duration::from_secs(300);
/// A run that takes longer than this is not repeated.
const REPEATED_UP_TO: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(10);
/// The part of the available memory that ranks may be expected to need.
const FILL: f64 = 0.8;

fn main() -> ExitCode {
    match measure(&arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A command that begins with a launcher's program and is followed by `-np N PROGRAM`.
#[derive(Clone)]
struct Launcher {
    name: &'static str,
    path: PathBuf,
}

/// The memory of a job whose ranks sleep, in MB per rank.
struct Memory {
    ranks: f64,
    machine: f64,
}

/// The compiled program and its FIFOs.
struct Setup {
    directory: tempfile::TempDir,
}

fn measure(arguments: &ArgMatches) -> Result<(), BenchError> {
    isolate()?;
    let runs = number_of(arguments, "runs");
    let least = number_of(arguments, "least");
    let most = number_of(arguments, "most");
    let setup = Setup::new()?;
    let launchers = [
        Launcher { name: "scela-run", path: SCELA_RUN.find(&target_directory()?)? },
        Launcher { name: "Hydra", path: HYDRA.into() },
    ];
    let machine = Machine::ask()?.to_string();
    println!("{machine}");
    let mut text = format!("{machine}. Medians of {runs} rounds.\n\n");
    text += "| ranks | scela-run, s | Hydra, s | ratio | a rank, MB (PSS) | a rank, MB (machine) |\n|---:|---:|---:|---:|---:|---:|\n";
    let mut too_large = None;
    let sizes = std::iter::successors(Some(least), |np| np.checked_mul(2)).take_while(|np| *np <= most);
    for np in sizes {
        let memory = setup.memory(&launchers[0], np)?;
        let mut slow = Vec::new();
        let all = rounds(&launchers.each_ref(), runs, |_, launcher| {
            if slow.contains(&launcher.name) {
                return Err(Void::Slow(REPEATED_UP_TO));
            }
            let seconds = setup.time(launcher, np)?;
            if seconds > REPEATED_UP_TO.as_secs_f64() {
                slow.push(launcher.name);
            }
            Ok(seconds)
        });
        let row = row(np, &all, &memory);
        print!("{row}");
        for (launcher, series) in launchers.iter().zip(&all) {
            if let Some((count, why)) = series.voids() {
                println!("  {}: {count} of {runs} runs not counted: {why}", launcher.name);
            }
        }
        text += &row;
        // The memory of a rank grows with the number of ranks, so this estimate is low.
        let (needed, available) = (memory.machine.max(memory.ranks) * f64::from(np) * 2.0, available_mb()?);
        if needed > available * FILL {
            too_large = Some(format!(
                "\nThe machine's {available:.0} MB of available memory have no room for {} ranks of {:.1} MB.\n",
                np.saturating_mul(2),
                memory.machine.max(memory.ranks)
            ));
            break;
        }
    }
    text += too_large.as_deref().unwrap_or_default();
    write_table(arguments, PLACE, &text)
}

fn row(np: u32, all: &[Series<f64>], memory: &Memory) -> String {
    let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let cells = match all {
        [ours, theirs] => [
            seconds(ours.median(|time| *time)),
            seconds(theirs.median(|time| *time)),
            seconds(ours.median_ratio(theirs, |time| *time)),
        ]
        .join(" | "),
        _ => String::new(),
    };
    format!("| {np} | {cells} | {:.1} | {:.1} |\n", memory.ranks, memory.machine)
}

impl Setup {
    fn new() -> Result<Self, BenchError> {
        let directory = tempfile::tempdir().map_err(BenchError::because("cannot create a directory"))?;
        let setup = Self { directory };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hello.c");
        let output = Command::new(COMPILER).arg("-O2").arg("-o").arg(setup.path("hello")).arg(source).output();
        let output = output.map_err(BenchError::because(format!("cannot run {COMPILER} (Debian: libmpich-dev)")))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::new(format!("hello.c does not compile:\n{complaint}")));
        }
        for name in ["ready", "go"] {
            mkfifo(&setup.path(name), Mode::S_IRWXU)?;
        }
        Ok(setup)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the time of a run in seconds.
    fn time(&self, launcher: &Launcher, np: u32) -> Result<f64, Void> {
        let began = Instant::now();
        let mut job = self.start(launcher, np, &[])?;
        if !job.end(began + DEADLINE)? {
            return Err(Void::Failed(format!("{} failed", launcher.name)));
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Measures the memory of a job whose ranks sleep.
    fn memory(&self, launcher: &Launcher, np: u32) -> Result<Memory, BenchError> {
        let before = available_mb()?;
        // Open for writing too: the read end never sees the end of the file between two ranks.
        let unusable = || BenchError::because("cannot use a FIFO");
        let mut ready = OpenOptions::new();
        let ready = ready.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(self.path("ready"));
        let mut ready = ready.map_err(unusable())?;
        let deadline = Instant::now() + DEADLINE;
        let fifos = [self.path("ready").into(), self.path("go").into()];
        let mut job = self.start(launcher, np, &fifos).map_err(BenchError::because("cannot start a job"))?;
        let mut arrived = 0;
        let mut bytes = [0; 4096];
        while arrived < np as usize {
            match ready.read(&mut bytes) {
                Ok(count) => arrived += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() > deadline || job.has_ended() {
                        return Err(BenchError::new(format!(
                            "np {np}: {arrived} ranks have arrived after their allreduce"
                        )));
                    }
                    thread::sleep(TICK);
                }
                Err(error) => return Err(unusable()(error)),
            }
        }
        let machine = (before - available_mb()?) / f64::from(np);
        let hello = self.path("hello").into_os_string().into_string().unwrap_or_default();
        let of_ranks = descendants(job.pid()).into_iter().filter(|pid| command_line(*pid).first() == Some(&hello));
        let ranks = of_ranks.filter_map(pss_kib).sum::<u64>() as f64 / 1024.0 / f64::from(np);
        // Ranks that open it later find this writer.
        let go = File::options().read(true).write(true).open(self.path("go")).map_err(unusable())?;
        let ended = job.end(deadline).map_err(BenchError::because(format!("np {np}")))?;
        drop(go);
        if !ended {
            return Err(BenchError::new(format!("np {np}: {} failed", launcher.name)));
        }
        Ok(Memory { ranks, machine })
    }

    fn start(&self, launcher: &Launcher, np: u32, words: &[OsString]) -> io::Result<Running> {
        let mut command = Command::new(&launcher.path);
        command.arg("-np").arg(np.to_string()).arg(self.path("hello")).args(words);
        without_foreign_variables(&mut command);
        command.env("UCX_TLS", "tcp,self,sysv").env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        Ok(Running { child: command.spawn()? })
    }
}

/// A job in progress; it is killed on drop.
struct Running {
    child: Child,
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits into an i32"))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end, and returns whether the job succeeded.
    fn end(&mut self, deadline: Instant) -> Result<bool, Void> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            if Instant::now() > deadline {
                return Err(Void::Hung(DEADLINE));
            }
            thread::sleep(TICK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            // ESRCH is expected: the group may have ended.
            let _ = killpg(self.pid(), Signal::SIGTERM);
        }
        let _left = settle(&BTreeSet::new());
    }
}

/// Returns the machine's available memory in MB.
fn available_mb() -> Result<f64, BenchError> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(BenchError::because("cannot read /proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| BenchError::new("/proc/meminfo has no MemAvailable"))
}

fn arguments() -> ArgMatches {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        arguments::number(name, default, help).value_parser(value_parser!(u32).range(1..=65_536))
    };
    parse(
        clap::Command::new("mpi")
            .about("Measures an MPI hello with more and more ranks, beside Hydra")
            .after_help("SCELA_RUN=PATH measures that instead of building it.")
            .arg(number("least", "64", "the first number of ranks; each further one is twice as many"))
            .arg(number("most", "65536", "the last number of ranks, if memory does not end the series before"))
            .arg(number("runs", "3", "number of rounds; the table shows medians over them"))
            .arg(write_option(PAGE)),
    )
}
