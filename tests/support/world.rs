//! The files and processes of one run, and how they are found.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::process::Process;
use crate::waiting::eventually;

/// The environment variable that marks the processes of a run.
const MARK: &str = "SCELA_TEST_WORLD";
/// The directory of POSIX shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The environment of one run: its label, its directory, its processes.
#[derive(Debug)]
pub struct World {
    label: String,
    directory: TempDir,
    /// Further directories in which the run must leave nothing, with their contents before the run.
    watched: Vec<(PathBuf, BTreeSet<PathBuf>)>,
    /// The directory that the run sees as /dev/shm, if it has one of its own. Removed with the world.
    shared_memory: Option<TempDir>,
    /// The run must leave nothing in its own /dev/shm, whatever the names.
    is_shared_memory_watched: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        // Labels have the same length: none may be a prefix of another, or it would also match the other's processes.
        let label = format!("test-{}-{run:06}", std::process::id());
        let directory = tempfile::Builder::new().prefix(&format!("{label}-")).tempdir();
        let directory = directory.expect("a temporary directory");
        Self { label, directory, watched: Vec::new(), shared_memory: None, is_shared_memory_watched: false }
    }

    /// Adds the hosts of a cluster: the run's TMPDIR exists there as well, and the run must leave nothing on them.
    pub(crate) fn extend_to(&mut self, cluster: &Cluster) {
        let temporary = self.temporary();
        // The front end has the /tmp of this machine, where other programs have their files too.
        self.watch(cluster.front_end().path("/dev/shm"));
        for host in cluster.hosts() {
            fs::create_dir_all(host.path(&temporary)).expect("a directory for temporary files on a host");
            for place in [Path::new("/dev/shm"), Path::new("/tmp"), &temporary] {
                self.watch(host.path(place));
            }
        }
    }

    /// Creates the directory that the run sees as /dev/shm.
    pub(crate) fn create_shared_memory(&mut self) {
        let directory = tempfile::Builder::new().prefix(&format!("{}-", self.label)).tempdir_in(SHARED_MEMORY);
        self.shared_memory = Some(directory.expect("a directory in /dev/shm"));
    }

    /// Makes every file that the run leaves in its own /dev/shm a leftover.
    pub(crate) fn watch_shared_memory(&mut self) {
        self.is_shared_memory_watched = true;
    }

    /// Returns whether the run has a /dev/shm of its own.
    pub fn has_own_shared_memory(&self) -> bool {
        self.shared_memory.is_some()
    }

    /// Returns the directory that the run sees as /dev/shm, if it has one of its own.
    pub(crate) fn shared_memory(&self) -> Option<&Path> {
        self.shared_memory.as_ref().map(TempDir::path)
    }

    /// Returns whether the world has hosts other than this machine.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.watched.is_empty()
    }

    fn watch(&mut self, directory: PathBuf) {
        let before = files(&directory).collect();
        self.watched.push((directory, before));
    }

    /// Returns the session's label, unique on this machine.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the path for a file of this run. The file is removed with the world.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the directory that is the run's TMPDIR. It must be empty when the run ends.
    pub fn temporary(&self) -> PathBuf {
        let path = self.file("tmp");
        fs::create_dir_all(&path).expect("a directory for temporary files");
        path
    }

    pub(crate) fn mark(&self) -> (&'static str, &str) {
        (MARK, &self.label)
    }

    /// Returns all living processes of the run.
    pub fn processes(&self) -> Vec<Process> {
        let me = std::process::id() as i32;
        let mut all = Process::all();
        all.retain(|process| process.pid != me && process.state != 'Z' && self.owns(process));
        all
    }

    fn owns(&self, process: &Process) -> bool {
        let environment = process.environment();
        process.argv.iter().any(|word| word.contains(&self.label))
            || environment.get(MARK).is_some_and(|mark| *mark == self.label)
            // `scela-pmix` gets no other variable of the run, and on other hosts not even this one.
            || environment.get("TMPDIR").is_some_and(|directory| directory.contains(&self.label))
            || process.name == "scela-pmix" && Process::of(process.parent).is_some_and(|agent| self.owns(&agent))
    }

    /// Returns the agents, by pid.
    pub fn agents(&self) -> Vec<Process> {
        self.named("scela-agent")
    }

    /// Returns the guardians.
    pub fn guardians(&self) -> Vec<Process> {
        self.named("scela-guard")
    }

    /// Returns the processes that serve PMIx, by pid.
    pub fn pmix_servers(&self) -> Vec<Process> {
        self.named("scela-pmix")
    }

    fn named(&self, name: &str) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| process.name == name);
        found
    }

    /// Returns the ranks that have executed their programs, by rank. They are children of agents. A rank may have been
    /// reported as started before that: see [`rank`](Self::rank) and [`all_ranks`](Self::all_ranks).
    pub fn ranks(&self) -> Vec<(u32, Process)> {
        let processes = self.processes();
        let is_agent = |pid| processes.iter().any(|process| process.pid == pid && process.name == "scela-agent");
        let ranks = processes.iter().filter(|process| process.name != "scela-agent" && is_agent(process.parent));
        let mut ranks: Vec<_> = ranks.filter_map(|process| Some((process.rank()?, process.clone()))).collect();
        ranks.sort_by_key(|(rank, _)| *rank);
        ranks
    }

    /// Waits until a rank has executed its program, and returns its process. Panics if that takes too long.
    #[track_caller]
    pub fn rank(&self, number: u32) -> Process {
        let found = || self.ranks().into_iter().find_map(|(rank, process)| (rank == number).then_some(process));
        eventually(found).unwrap_or_else(|| panic!("there is no rank {number}:\n{}", self.listing()))
    }

    /// Waits until `count` ranks have executed their programs, and returns their processes, by rank. Panics if that takes
    /// too long.
    #[track_caller]
    pub fn all_ranks(&self, count: u32) -> Vec<Process> {
        let found = || Some(self.ranks()).filter(|ranks| ranks.len() == count as usize);
        let ranks = eventually(found).unwrap_or_else(|| panic!("there are not {count} ranks:\n{}", self.listing()));
        ranks.into_iter().map(|(_, process)| process).collect()
    }

    /// Describes processes and files that are left after the run; `None` if there are none.
    pub fn leftovers(&self) -> Option<String> {
        let mut text = self.listing();
        // Benchmarks that run on the same machine keep their files there, and all sessions that bind ranks share one.
        let is_ours = |path: &PathBuf| {
            let path = path.to_string_lossy();
            path.contains("scela") && !path.contains("scela-bench") && !path.contains("scela-marks")
        };
        let watched = self.watched.iter();
        // A sent program stays in root's own directory for the next session.
        let was_sent = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes() == b".scela-0");
        let on_hosts = watched.flat_map(|(place, before)| files(place).filter(|path| !before.contains(path)));
        let on_hosts = on_hosts.filter(|path| !was_sent(path));
        let shared_memory = [Some(Path::new(SHARED_MEMORY)), self.shared_memory()].into_iter().flatten();
        let in_memory = shared_memory.flat_map(files).filter(is_ours);
        let own = self.shared_memory().filter(|_| self.is_shared_memory_watched);
        let in_memory = in_memory.chain(own.into_iter().flat_map(files));
        for path in files(&self.temporary()).chain(in_memory).chain(on_hosts) {
            let _ = writeln!(text, "{}", path.display());
        }
        (!text.is_empty()).then_some(text)
    }

    /// Lists the living processes, one per line.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for Process { pid, parent, state, argv, .. } in self.processes() {
            let _ = writeln!(text, "{pid} (child of {parent}, {state}): {}", argv.join(" "));
        }
        text
    }

    /// Kills all processes that are left.
    pub fn end_all(&self) {
        let have_ended = eventually(|| {
            let left = self.processes();
            left.iter().for_each(|process| process.send(Signal::SIGKILL));
            left.is_empty().then_some(())
        });
        if have_ended.is_none() {
            eprintln!("processes of {} cannot be ended:\n{}", self.label, self.listing());
        }
    }
}

/// Returns the entries of a directory.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
