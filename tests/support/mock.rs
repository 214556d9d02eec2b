//! Mock resource managers: commands that behave, as far as a launcher can tell, like those of the real managers, on the
//! hosts of a cluster. The head of each script in `mocks/` describes its command.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::{Cluster, Host};

/// The resource manager whose commands are mocked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Manager {
    /// `pbs_tmrsh` and `pbsdsh`.
    Pbs,
    /// `blaunch`.
    Lsf,
    /// `qrsh -inherit`.
    Sge,
    /// `flux exec`, `resource list`, `hostlist`, `getattr`, `kvs get`, `job info`.
    Flux,
}

/// A job of a resource manager that has all hosts of a cluster. Its commands work in the test itself and on the front
/// end.
#[derive(Debug)]
pub struct Mock {
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Mock {
    /// Creates a job with this number of slots on each host.
    pub fn new(manager: Manager, cluster: &Cluster, slots: usize) -> Self {
        let directory = cluster.shared().join(format!("{manager:?}"));
        fs::create_dir(&directory).expect("a cluster has one job of a manager");
        let mut mock = Self { directory, environment: Vec::new() };
        let hosts = cluster.hosts();
        let nsenter = |host: &Host| host.nsenter().join(" ".as_ref()).to_string_lossy().into_owned();
        let lines = hosts.iter().map(|host| {
            let nsenter = nsenter(host);
            format!("{} {}\n", host.name(), nsenter.strip_prefix("nsenter ").unwrap_or(&nsenter))
        });
        mock.write("hosts", &lines.collect::<String>());
        mock.set("MOCK_DIRECTORY", mock.directory.display().to_string());
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("support/mocks");
        let commands = place.join(format!("{manager:?}").to_lowercase()).display().to_string();
        mock.set("PATH", format!("{commands}:{}", std::env::var("PATH").unwrap_or_default()));
        match manager {
            Manager::Pbs => mock.pbs(hosts, slots),
            Manager::Lsf => mock.lsf(hosts, slots, commands),
            Manager::Sge => mock.sge(hosts, slots, commands),
            Manager::Flux => mock.flux(slots),
        }
        mock
    }

    /// Returns the variables that the manager sets for processes in the job, and those that its commands need.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Returns the words of each call of its commands so far.
    pub fn calls(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.file("calls")).unwrap_or_default();
        let mut words = text.split_terminator('\0').map(str::to_owned);
        let mut calls = Vec::new();
        while let Some(count) = words.next() {
            calls.push(words.by_ref().take(count.parse().expect("the number of words")).collect());
        }
        calls
    }

    /// Returns the output that no command passes on and that the manager writes to the job's output file.
    pub fn output(&self) -> String {
        fs::read_to_string(self.file("output")).unwrap_or_default()
    }

    fn pbs(&mut self, hosts: &[Host], slots: usize) {
        let list = self.write("nodes", &for_each_slot(hosts, slots, "\n"));
        self.set("PBS_ENVIRONMENT", "PBS_BATCH");
        self.set("PBS_JOBID", "1.server");
        self.set("PBS_NODEFILE", list);
    }

    fn lsf(&mut self, hosts: &[Host], slots: usize, commands: String) {
        let list = self.write("slots", &for_each_slot(hosts, slots, "\n"));
        self.set("LSB_JOBID", "1");
        self.set("LSB_DJOB_HOSTFILE", list);
        self.set("LSB_DJOB_NUMPROC", (hosts.len() * slots).to_string());
        self.set("LSB_HOSTS", for_each_slot(hosts, slots, " ").trim_end());
        self.set("LSB_MCPU_HOSTS", lines(hosts, |host| format!("{} {slots} ", host.name())).trim_end());
        self.set("LSF_BINDIR", commands);
    }

    fn sge(&mut self, hosts: &[Host], slots: usize, commands: String) {
        let list = lines(hosts, |host| format!("{0} {slots} all.q@{0} UNDEFINED\n", host.name()));
        let list = self.write("slots", &list);
        self.set("JOB_ID", "1");
        self.set("PE", "mpi");
        self.set("PE_HOSTFILE", list);
        self.set("NHOSTS", hosts.len().to_string());
        self.set("NSLOTS", (hosts.len() * slots).to_string());
        self.set("QUEUE", "all.q");
        self.set("SGE_ROOT", commands);
        self.set("ARC", "lx-amd64");
    }

    fn flux(&mut self, slots: usize) {
        self.set("FLUX_URI", format!("local://{}", self.file("local-0").display()));
        self.set("FLUX_ENCLOSING_ID", "1");
        self.set("FLUX_MOCK_CORES", slots.to_string());
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.environment.push((name, value.into()));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file of the job and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        fs::write(&path, text).expect("a file of a job can be written");
        path.display().to_string()
    }
}

fn lines(hosts: &[Host], line: impl Fn(&Host) -> String) -> String {
    hosts.iter().map(line).collect()
}

/// Returns each name once for each of its slots.
fn for_each_slot(hosts: &[Host], slots: usize, end: &str) -> String {
    lines(hosts, |host| format!("{}{end}", host.name()).repeat(slots))
}
