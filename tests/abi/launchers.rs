//! The launchers that start the ranks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::{Slurm, eventually, scela, skip};

use crate::libraries::Api;

/// The number of ranks: three, so that the neighbours in a ring differ.
pub(crate) const RANKS: u32 = 3;

/// A launcher, or none.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// scela-run, with one agent.
    Scela,
    /// Debian's MPICH's mpiexec, version 4.
    Hydra,
    /// The mpiexec of PyPI's MPICH, version 5: this file.
    Hydra5(PathBuf),
    /// Slurm's srun, with this number of nodes.
    Srun(Arc<Slurm>, usize),
    /// No launcher: the program runs by itself.
    None,
}

/// The results of a run by the names of checks, and its exit code as "exit".
pub(crate) type Results = BTreeMap<String, String>;

/// Returns the installed launchers; prints a notice for each that is missing.
#[track_caller]
pub(crate) fn all() -> Vec<Launcher> {
    let mut launchers = vec![Launcher::Scela, Launcher::None];
    match Command::new("mpiexec.hydra").arg("-info").output() {
        Ok(_) => launchers.push(Launcher::Hydra),
        Err(_) => skip("mpiexec.hydra is not installed; Debian has it in mpich, ./tests/run installs it"),
    }
    launchers.extend(sruns());
    launchers
}

/// Returns the mpiexec of PyPI's MPICH, which `tests/run` installs; prints a notice if it is missing.
pub(crate) fn hydra5() -> Option<Launcher> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-venv").into_os_string();
    let mpiexec = PathBuf::from(std::env::var_os("TESTS_VENV").unwrap_or_else(default)).join("bin/mpiexec");
    if mpiexec.is_file() {
        return Some(Launcher::Hydra5(mpiexec));
    }
    skip(&format!("there is no {}; ./tests/run installs PyPI's mpich", mpiexec.display()));
    None
}

/// Returns srun with one node and with two; none if Slurm is not installed.
#[track_caller]
pub(crate) fn sruns() -> Vec<Launcher> {
    match Slurm::shared() {
        Ok(slurm) => [1, 2].map(|nodes| Launcher::Srun(Arc::clone(&slurm), nodes)).into(),
        Err(why) => {
            skip(&why);
            Vec::new()
        }
    }
}

impl Launcher {
    /// Returns the name in the lists of differences.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Scela => "scela",
            Self::Hydra => "hydra",
            Self::Hydra5(_) => "hydra-5",
            Self::Srun(_, 1) => "srun",
            Self::Srun(..) => "srun-2-nodes",
            Self::None => "none",
        }
    }

    /// Returns whether Slurm's library of this interface works under this launcher. Slurm's PMI-1
    /// contacts srun only; under other launchers each rank initialises as a job of one rank, without an
    /// error.
    pub(crate) fn is_supported_by_slurms(&self, api: Api) -> bool {
        matches!((self, api), (Self::Srun(..) | Self::None, _) | (_, Api::Pmi2))
    }

    /// Returns the sections of a walk to leave out: the launcher crashes or hangs in them, or Slurm's
    /// library answers every call of them alike.
    pub(crate) fn without(&self, api: Api) -> &'static [&'static str] {
        match (self, api) {
            // Hydra ends the job on a command that it does not know.
            (Self::Hydra, Api::Pmi2) => &["ring", "connect", "spawn"],
            // Hydra 5 also ends it on an empty value.
            (Self::Hydra5(_), Api::Pmi) => &["texts"],
            (Self::Hydra5(_), Api::Pmi2) => &["ring", "connect", "spawn", "texts", "attributes"],
            // Slurm does not answer these; with two nodes, it waits for attributes of the other node.
            (Self::Srun(_, 1), Api::Pmi2) => &["connect"],
            (Self::Srun(..), Api::Pmi2) => &["connect", "attributes"],
            // Without a launcher, Slurm's library has no space.
            (Self::None, Api::Pmi2) => &[
                "arguments",
                "exchange",
                "cuts",
                "bounds",
                "attributes",
                "job",
                "services",
                "twice",
                "texts",
                "connect",
                "spawn",
            ],
            _ => &[],
        }
    }

    /// Runs a walk. Panics if it does not end.
    #[track_caller]
    pub(crate) fn walk(&self, program: &Path, words: &[&str]) -> Results {
        let directory = TempDir::new().expect("failed to create a temporary directory");
        let into = ["--into", directory.path().to_str().expect("the path is not UTF-8")];
        let words: Vec<&str> = words.iter().copied().chain(into).collect();
        let ended = self.run(program, &words, directory.path());
        let mut results = Results::new();
        for rank in 0..RANKS {
            let text = fs::read(directory.path().join(rank.to_string())).unwrap_or_default();
            for line in String::from_utf8_lossy(&text).lines() {
                let (name, result) = line.split_once(" = ").unwrap_or_else(|| panic!("no result in {line:?}"));
                let old = results.insert(name.to_owned(), result.to_owned());
                assert!(old.is_none(), "two results of {name}: {old:?} and {result:?}");
            }
        }
        results.insert("exit".to_owned(), ended);
        if let Self::Srun(slurm, _) = self
            && results.keys().any(|name| name.starts_with("walk.gave_up"))
        {
            eprintln!("calls of {} hung under srun\n{}", program.display(), slurm.logs());
        }
        results
    }

    /// Runs a program and returns its exit code as text. Panics if it does not end.
    #[track_caller]
    fn run(&self, program: &Path, words: &[&str], directory: &Path) -> String {
        let mut command = match self {
            Self::Scela => {
                let words = words.iter().map(Into::into);
                let outcome = scela().np(RANKS).program(std::iter::once(program.into()).chain(words).collect()).run();
                return outcome.code.map_or_else(|| "by a signal".into(), |code| code.to_string());
            }
            Self::Hydra => {
                let mut command = Command::new("mpiexec.hydra");
                command.args(["-n", &RANKS.to_string()]).arg(program);
                command
            }
            Self::Hydra5(mpiexec) => {
                let mut command = Command::new(mpiexec);
                command.args(["-n", &RANKS.to_string()]).arg(program);
                command
            }
            Self::Srun(slurm, nodes) => {
                // Slurm's PMI-1 works with any --mpi.
                let mut command = slurm.srun("pmi2", *nodes, RANKS);
                command.arg(program);
                command
            }
            Self::None => Command::new(program),
        };
        let log = directory.join("log");
        let file = File::create(&log).expect("failed to create the log file");
        let also = file.try_clone().expect("failed to duplicate a descriptor");
        command.args(words).stdin(Stdio::null()).stdout(file).stderr(also).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        if let Some(status) = eventually(|| child.try_wait().ok().flatten()) {
            return status.code().map_or_else(|| "by a signal".into(), |code| code.to_string());
        }
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
        let output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let slurm = if let Self::Srun(slurm, _) = self { slurm.logs() } else { String::new() };
        panic!("timeout: {command:?} did not end\n{output}\n{slurm}");
    }
}
