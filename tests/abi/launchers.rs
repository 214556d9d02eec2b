//! Who starts the ranks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::{Slurm, eventually, scela, skip};

use crate::libraries::Api;

/// How many ranks walk; three, so that the neighbours in a ring differ.
pub(crate) const RANKS: u32 = 3;

/// What starts ranks, or not.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// scela-run, with one agent.
    Scela,
    /// MPICH's mpiexec.
    Hydra,
    /// Slurm's srun, with so many nodes.
    Srun(Arc<Slurm>, usize),
    /// Nobody: the program runs as it is.
    Nobody,
}

/// What a run wrote: results by the names of checks, and how it ended.
pub(crate) type Results = BTreeMap<String, String>;

/// All launchers that are here. Those that are not are said.
#[track_caller]
pub(crate) fn all() -> Vec<Launcher> {
    let mut launchers = vec![Launcher::Scela, Launcher::Nobody];
    match Command::new("mpiexec.hydra").arg("-info").output() {
        Ok(_) => launchers.push(Launcher::Hydra),
        Err(_) => skip("mpiexec.hydra is not here; Debian has it in mpich, ./tests/run installs it"),
    }
    launchers.extend(sruns());
    launchers
}

/// Those that are Slurm's: with one node, and with two.
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
    /// As lists of differences call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Scela => "scela",
            Self::Hydra => "hydra",
            Self::Srun(_, 1) => "srun",
            Self::Srun(..) => "srun-2-nodes",
            Self::Nobody => "nobody",
        }
    }

    /// Is it one under which Slurm's library does what it is for? Slurm's PMI-1 asks no other launcher than
    /// srun; under others each rank believes to be alone, and is content.
    pub(crate) fn is_home(&self, api: Api) -> bool {
        matches!((self, api), (Self::Srun(..) | Self::Nobody, _) | (_, Api::Pmi2))
    }

    /// The sections of a walk that it does not survive, does not answer, or of which Slurm's library says
    /// the same to everything.
    pub(crate) fn without(&self, api: Api) -> &'static [&'static str] {
        match (self, api) {
            // It ends the session where it does not know a command.
            (Self::Hydra, Api::Pmi2) => &["ring", "connect", "spawn"],
            // It does not answer; and waits for attributes of the other node.
            (Self::Srun(_, 1), Api::Pmi2) => &["connect"],
            (Self::Srun(..), Api::Pmi2) => &["connect", "attributes"],
            // Alone, Slurm's library has no space.
            (Self::Nobody, Api::Pmi2) => &[
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

    /// Walks with a program that was built for that. Fails if it does not end.
    #[track_caller]
    pub(crate) fn walk(&self, program: &Path, words: &[&str]) -> Results {
        let directory = TempDir::new().expect("a place for temporary files");
        let into = ["--into", directory.path().to_str().expect("a path of text")];
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
            eprintln!("calls of {} did not end under srun\n{}", program.display(), slurm.logs());
        }
        results
    }

    /// Runs a program to its end, and says how that was.
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
            Self::Srun(slurm, nodes) => {
                // Its own PMI-1 does not look at --mpi.
                let mut command = slurm.srun("pmi2", *nodes, RANKS);
                command.arg(program);
                command
            }
            Self::Nobody => Command::new(program),
        };
        let log = directory.join("log");
        let file = File::create(&log).expect("a file for the output");
        let also = file.try_clone().expect("a second descriptor of it");
        command.args(words).stdin(Stdio::null()).stdout(file).stderr(also).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        if let Some(status) = eventually(|| child.try_wait().ok().flatten()) {
            return status.code().map_or_else(|| "by a signal".into(), |code| code.to_string());
        }
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
        let said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let slurm = if let Self::Srun(slurm, _) = self { slurm.logs() } else { String::new() };
        panic!("this did not end: {command:?}\n{said}\n{slurm}");
    }
}
