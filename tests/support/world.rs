//! All that belongs to one run, and how it is found again.

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

/// The variable that marks the processes of a run.
const MARK: &str = "SCELA_TEST_WORLD";

/// The surroundings of one run: its label, its directory, its processes.
#[derive(Debug)]
pub struct World {
    label: String,
    directory: TempDir,
    /// Further directories in which nothing is to be left, with what was there before.
    watched: Vec<(PathBuf, BTreeSet<PathBuf>)>,
}

impl World {
    pub(crate) fn new() -> Self {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        // Of one width: no label may be the beginning of another, which would own its processes.
        let label = format!("test-{}-{run:06}", std::process::id());
        let directory = tempfile::Builder::new().prefix(&format!("{label}-")).tempdir();
        Self { label, directory: directory.expect("a place for temporary files"), watched: Vec::new() }
    }

    /// Hosts of a cluster are part of it: what the run is given as TMPDIR is there as well, and nothing is
    /// to be left on them.
    pub(crate) fn extend_to(&mut self, cluster: &Cluster) {
        let temporary = self.temporary();
        // The front end has the /tmp of this machine, where others have their files too.
        self.watch(cluster.front_end().path("/dev/shm"));
        for host in cluster.hosts() {
            fs::create_dir_all(host.path(&temporary)).expect("a directory for temporary files on a host");
            for place in [Path::new("/dev/shm"), Path::new("/tmp"), &temporary] {
                self.watch(host.path(place));
            }
        }
    }

    /// Whether it has other hosts than this one.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.watched.is_empty()
    }

    fn watch(&mut self, directory: PathBuf) {
        let before = files(&directory).collect();
        self.watched.push((directory, before));
    }

    /// The session's label, unique on this machine.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Where files of this run may lie; removed with the world.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the run is given as TMPDIR; to be empty at its end.
    pub(crate) fn temporary(&self) -> PathBuf {
        let path = self.file("tmp");
        fs::create_dir_all(&path).expect("a directory for temporary files");
        path
    }

    pub(crate) fn mark(&self) -> (&'static str, &str) {
        (MARK, &self.label)
    }

    /// All living processes of the run.
    pub fn processes(&self) -> Vec<Process> {
        let me = std::process::id() as i32;
        let mut all = Process::all();
        all.retain(|process| process.pid != me && process.state != 'Z' && self.owns(process));
        all
    }

    fn owns(&self, process: &Process) -> bool {
        process.argv.iter().any(|word| word.contains(&self.label))
            || process.environment().get(MARK).is_some_and(|mark| *mark == self.label)
    }

    /// Its agents, by pid.
    pub fn agents(&self) -> Vec<Process> {
        self.named("scela-agent")
    }

    /// Its guardians.
    pub fn guardians(&self) -> Vec<Process> {
        self.named("scela-guard")
    }

    fn named(&self, name: &str) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| process.name == name);
        found
    }

    /// Its ranks: the children of agents. By rank.
    pub fn ranks(&self) -> Vec<(u32, Process)> {
        let processes = self.processes();
        let is_agent = |pid| processes.iter().any(|process| process.pid == pid && process.name == "scela-agent");
        let ranks = processes.iter().filter(|process| process.name != "scela-agent" && is_agent(process.parent));
        let mut ranks: Vec<_> = ranks.filter_map(|process| Some((process.rank()?, process.clone()))).collect();
        ranks.sort_by_key(|(rank, _)| *rank);
        ranks
    }

    /// What should be gone when a run is over and is not, in words.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let mut text = self.listing();
        // Benchmarks that run on the same machine have theirs there.
        let is_ours = |path: &PathBuf| {
            let path = path.to_string_lossy();
            path.contains("scela") && !path.contains("scela-bench")
        };
        let watched = self.watched.iter();
        // A program that was sent stays for the next session, in root's own directory.
        let was_sent = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes() == b".scela-0");
        let on_hosts = watched.flat_map(|(place, before)| files(place).filter(|path| !before.contains(path)));
        let on_hosts = on_hosts.filter(|path| !was_sent(path));
        for path in files(&self.temporary()).chain(files(Path::new("/dev/shm")).filter(is_ours)).chain(on_hosts) {
            let _ = writeln!(text, "{}", path.display());
        }
        (!text.is_empty()).then_some(text)
    }

    /// The living processes, a line for each.
    pub(crate) fn listing(&self) -> String {
        let mut text = String::new();
        for Process { pid, parent, state, argv, .. } in self.processes() {
            let _ = writeln!(text, "{pid} (child of {parent}, {state}): {}", argv.join(" "));
        }
        text
    }

    /// Ends all that is left.
    pub(crate) fn end_all(&self) {
        let gone = eventually(|| {
            let left = self.processes();
            left.iter().for_each(|process| process.signal(Signal::SIGKILL));
            left.is_empty().then_some(())
        });
        if gone.is_none() {
            eprintln!("processes of {} cannot be ended:\n{}", self.label, self.listing());
        }
    }
}

/// What is in a directory.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
