//! A standing pool with a directory of its own, on this machine or on a cluster.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::binary::scela_run;
use crate::cluster::Cluster;
use crate::process::Process;
use crate::run::{Run, scela};
use crate::waiting::eventually;

/// The variable with the directory of pools, which all processes of the pool have in their environment.
const DIRECTORY: &str = "SCELA_POOL_DIR";

/// A pool that runs. Dropping it stops it, and fails if a process of it is left.
#[derive(Debug)]
pub struct Pool<'a> {
    above: TempDir,
    cluster: Option<&'a Cluster>,
}

impl<'a> Pool<'a> {
    /// Starts a pool on all hosts of a cluster, with these options. Its commands run on the front end.
    #[track_caller]
    pub fn start_on(cluster: &'a Cluster, options: &[&str]) -> Self {
        Self::start_on_hosts(cluster, &cluster.names(), options)
    }

    /// The same on some of its hosts.
    #[track_caller]
    pub fn start_on_hosts(cluster: &'a Cluster, hosts: &str, options: &[&str]) -> Self {
        let pool = Self::unstarted_on(cluster);
        let output = pool.scela(&[&["pool", "start", "--hosts", hosts], options].concat());
        assert!(output.status.success(), "{output:?}");
        pool
    }

    /// Returns a place for pools without one, whose commands run on the front end.
    pub fn unstarted_on(cluster: &'a Cluster) -> Self {
        let mut pool = Self::unstarted();
        pool.cluster = Some(cluster);
        pool
    }

    /// Starts a pool with these options.
    #[track_caller]
    pub fn start(options: &[&str]) -> Self {
        let pool = Self::unstarted();
        let output = pool.scela(&[&["pool", "start"], options].concat());
        assert!(output.status.success(), "{output:?}");
        pool
    }

    /// Returns a place for pools without one.
    pub fn unstarted() -> Self {
        let above = tempfile::Builder::new().prefix("pools-").tempdir().expect("a temporary directory");
        Self { above, cluster: None }
    }

    /// Returns the directory of pools. It exists while there is one.
    pub fn directory(&self) -> PathBuf {
        self.above.path().join("pools")
    }

    /// Runs a subcommand to its end.
    pub fn scela(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("scela is beside scela-run")
    }

    /// Returns the command of a subcommand.
    pub fn command(&self, words: &[&str]) -> Command {
        let scela = scela_run().with_file_name("scela");
        let mut command = match self.cluster {
            Some(cluster) => cluster.front_end().command(scela),
            None => Command::new(scela),
        };
        command.args(words).env(DIRECTORY, self.directory()).env_remove("SCELA_LOG");
        command
    }

    /// Returns the builder of a job in the pool.
    pub fn job(&self) -> Run {
        let run = match self.cluster {
            Some(cluster) => scela().on(cluster),
            None => scela(),
        };
        run.arg("--pool").env(DIRECTORY, self.directory())
    }

    /// Returns the builder of a run of `scela pool map`, whose list is standard input.
    pub fn map(&self, commands: &[String]) -> Run {
        let list: String = commands.iter().map(|command| format!("{command}\n")).collect();
        scela().subcommand(["pool", "map"]).program(vec!["-".into()]).env(DIRECTORY, self.directory()).stdin(list)
    }

    /// Returns the builder of a run of `scela pool stop`.
    pub fn stop(&self) -> Run {
        scela().subcommand(["pool", "stop"]).env(DIRECTORY, self.directory())
    }

    /// Returns the state of the default pool and its jobs, as `scela status --json` prints it.
    #[track_caller]
    pub fn state(&self) -> Value {
        let output = self.scela(&["status", "--json", "default"]);
        assert!(output.status.success(), "{output:?}");
        let mut pools: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        pools[0].take()
    }

    /// Waits until the pool has this many jobs that run, and this many that wait.
    #[track_caller]
    pub fn wait_for_jobs(&self, running: usize, waiting: usize) {
        let counts = || {
            let state = self.state();
            let jobs = state["jobs"].as_array().cloned().unwrap_or_default();
            let running = jobs.iter().filter(|job| job["state"] == "runs").count();
            (running, jobs.len() - running)
        };
        if eventually(|| (counts() == (running, waiting)).then_some(())).is_none() {
            panic!("{running} jobs should run and {waiting} wait: {:?}", self.state());
        }
    }

    /// Returns the processes that the pool was started with, and those that were forked from them.
    pub fn processes(&self) -> Vec<Process> {
        let directory = self.directory();
        let is_own =
            |process: &Process| process.environment().get(DIRECTORY).is_some_and(|found| Path::new(found) == directory);
        let mut all = Process::all();
        all.retain(|process| process.state != 'Z' && is_own(process));
        all
    }

    /// Returns the controller.
    #[track_caller]
    pub fn controller(&self) -> Process {
        let pid = self.state()["controller_pid"].as_i64().expect("it has a number");
        Process::of(pid as i32).expect("the controller runs")
    }

    /// Waits until no process of the pool is left.
    #[track_caller]
    pub fn wait_for_end(&self) {
        if eventually(|| self.processes().is_empty().then_some(())).is_none() {
            let left = self.processes();
            left.iter().for_each(|process| process.send(Signal::SIGKILL));
            panic!("processes of the pool are left: {left:?}");
        }
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        // It may have ended. A launcher that a failed test has stopped ends only if it is killed.
        let kill = std::thread::panicking().then_some("--kill");
        let _ = self.command(&["pool", "stop"]).args(kill).output();
        if std::thread::panicking() {
            self.processes().iter().for_each(|process| process.send(Signal::SIGKILL));
        } else {
            self.wait_for_end();
        }
    }
}
