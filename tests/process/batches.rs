//! `scela simulate-batch`: batches of jobs, with SimGrid's `smpirun` and without.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;
use tests::{eventually, scela_run, skip};

/// Runs two jobs of eight ranks that send to their neighbours.
fn simulate(words: &[&str], path: Option<&Path>) -> Output {
    simulation(words, path).output().unwrap()
}

fn simulation(words: &[&str], path: Option<&Path>) -> Command {
    let mut command = Command::new(scela_run().with_file_name("scela"));
    command.args(["simulate-batch", "--pattern", "ring", "-n", "8", "--topology", "torus:4x4", "--batches", "1"]);
    command.args(["--jobs", "1000", "--compute", "0", "--probability", "0"]).args(words).env_remove("SCELA_LOG");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command
}

fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the time of block placement's batch.
fn block_s(said: &str) -> f64 {
    let line = said.lines().find(|line| line.starts_with("block")).unwrap_or_else(|| panic!("{said}"));
    line.split_ascii_whitespace().nth(1).and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn simgrid_simulates_the_messages_of_each_placement() {
    let (code, said, complaint) = texts(&simulate(&["--messages", "auto"], None));
    if said.contains("there is no smpirun") {
        return skip("there is no smpirun; ./tests/run installs it");
    }
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("\ntime of messages: SimGrid ") && said.lines().count() == 8, "{said}");
    let (_, by_links, _) = texts(&simulate(&["--messages", "links"], None));
    // SimGrid's links have less than their nominal bandwidth, and no message is more than twice as slow here.
    let ratio = block_s(&said) / block_s(&by_links);
    assert!(ratio > 1.0 && ratio < 2.0, "{ratio}\n{said}\n{by_links}");
}

#[test]
fn without_simgrid_the_model_of_links_is_used() {
    let empty = TempDir::new().unwrap();
    let (code, said, complaint) = texts(&simulate(&[], Some(empty.path())));
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{said}");
    let named = "\ntime of messages: the model of links, as there is no smpirun in PATH (Debian: libsimgrid-dev)\n";
    assert!(said.contains(named), "{said}");
    let (code, said, complaint) = texts(&simulate(&["--messages", "simgrid"], Some(empty.path())));
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert_eq!(complaint, "scela: error: --messages simgrid: there is no smpirun in PATH (Debian: libsimgrid-dev)\n");
}

/// A directory of programs that come before those of the system.
struct Programs(TempDir);

impl Programs {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn with(self, name: &str, script: &str) -> Self {
        let file = self.0.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// Returns a value for PATH.
    fn path(&self) -> PathBuf {
        format!("{}:/usr/bin:/bin", self.0.path().display()).into()
    }

    fn simulate(&self, words: &[&str]) -> (Option<i32>, String, String) {
        texts(&simulate(words, Some(&self.path())))
    }
}

/// A `smpirun` that states a version, and does something else with a job.
fn smpirun(job: &str) -> Programs {
    Programs::new().with("smpirun", &format!("[ \"$1\" = -version ] && echo SimGrid version 9.9 && exit\n{job}"))
}

/// Checks that a simulation falls back to the model of links, and says why.
#[track_caller]
fn falls_back(programs: &Programs, why: &str) {
    let (code, said, complaint) = programs.simulate(&[]);
    assert_eq!(code, Some(0), "{said}{complaint}");
    let warning = format!(
        "scela: warning: SimGrid 9.9 cannot simulate the messages: {why}; all times are by the model of links\n"
    );
    assert_eq!(complaint, warning);
    assert!(said.contains("\ntime of messages: the model of links, as SimGrid failed\n"), "{said}");
    // A user who asks for SimGrid gets no other times.
    let (code, none, complaint) = programs.simulate(&["--messages", "simgrid"]);
    assert_eq!((code, none.as_str()), (Some(2), ""));
    let error = format!("scela: error: --messages simgrid: SimGrid 9.9 cannot simulate the messages: {why}\n");
    assert_eq!(complaint, error);
    assert_eq!(block_s(&said), block_s(&texts(&simulate(&["--messages", "links"], None)).1));
}

#[test]
fn a_simgrid_that_fails_is_replaced_for_all_placements() {
    falls_back(&smpirun("echo no such platform >&2\nexit 1"), "smpirun: no such platform");
}

#[test]
fn a_simgrid_that_states_nothing_is_replaced() {
    falls_back(&smpirun("exit 0"), "smpirun wrote no log: No such file or directory (os error 2)");
    falls_back(
        &smpirun("for word; do log=${word##*app:file:}; done\necho nothing >\"$log\""),
        "smpirun stated no time",
    );
}

#[test]
fn a_simgrid_that_is_killed_is_replaced() {
    falls_back(&smpirun("kill -9 $$"), "smpirun: it failed without a message");
}

#[test]
fn a_simgrid_that_prints_without_end_is_ended() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("pid");
    let job = format!("echo $$ >{}\nexec yes", file.display());
    falls_back(&smpirun(&job), "smpirun printed more than 64 KiB");
    has_ended(&file);
}

#[test]
fn a_simgrid_that_never_ends_is_ended() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("pid");
    // The time that a simulation may take is cut, so that the test need not wait for all of it.
    let real = "for word; do shift; [ \"$word\" != 60 ] || break; done\nexec /usr/bin/timeout --foreground --kill-after=5 1 \"$@\"";
    let job = format!("echo $$ >{}\nexec sleep 1000", file.display());
    falls_back(&smpirun(&job).with("timeout", real), "smpirun: it failed without a message");
    has_ended(&file);
}

/// Waits until the process ends whose number is in a file. It may have been ended before it could write that.
#[track_caller]
fn has_ended(file: &Path) {
    let pid = fs::read_to_string(file).unwrap_or_default();
    let is_there = || !pid.is_empty() && Path::new("/proc").join(pid.trim()).exists();
    assert!(eventually(|| (!is_there()).then_some(())).is_some(), "process {pid} still runs");
}

#[test]
fn the_help_of_scela_lists_the_simulation() {
    let output = Command::new(scela_run().with_file_name("scela")).arg("--help").output().unwrap();
    let (code, said, _) = texts(&output);
    let line =
        "\n  simulate-batch  Simulates batches of jobs on a network whose hosts fail, for each way to place ranks\n";
    assert!(code == Some(0) && said.contains(line), "{said}");
}

#[test]
fn an_interrupt_leaves_no_file_and_no_process() {
    let place = TempDir::new().unwrap();
    let (files, fifo) = (place.path().join("files"), place.path().join("fifo"));
    fs::create_dir(&files).unwrap();
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    // A process of its own has the FIFO open until it ends.
    let programs = smpirun(&format!("{{ echo begun; exec sleep 50; }} > {} & wait", fifo.display()));
    let mut command = simulation(&[], Some(&programs.path()));
    let mut scela = command.env("TMPDIR", &files).stdout(Stdio::null()).spawn().unwrap();
    let mut began = File::open(&fifo).unwrap();
    began.read_exact(&mut [0]).unwrap();
    assert_eq!(fs::read_dir(&files).unwrap().count(), 1);
    kill(Pid::from_raw(scela.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(scela.wait().unwrap().signal(), Some(Signal::SIGINT as i32));
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0);
    let begun = Instant::now();
    began.read_to_end(&mut Vec::new()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "its processes were ended");
}
