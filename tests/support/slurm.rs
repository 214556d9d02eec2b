//! A Slurm of its own, for the ranks that only a real `srun` can start.
//!
//! Its daemons run in the foreground as children of the test, listen on the loopback interface only,
//! and keep all their files in one temporary directory. They say that this machine is two nodes with
//! many cores each; nothing is accounted, bound or confined.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};

use crate::process::Process;
use crate::waiting::eventually;
use crate::world::World;

/// What it consists of, and who asks it.
const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "srun", "scontrol", "sinfo"];

/// The nodes that it believes to have.
const NODES: [&str; 2] = ["node1", "node2"];

/// A running Slurm. Dropping it ends all that it has started.
#[derive(Debug)]
pub struct Slurm {
    daemons: Vec<Daemon>,
    world: World,
}

#[derive(Debug)]
struct Daemon {
    name: String,
    child: Child,
}

impl Slurm {
    /// The one that other tests of this binary hold at the moment, or else a new one. `Err` says what
    /// is missing on this machine.
    #[track_caller]
    pub fn shared() -> Result<Arc<Self>, String> {
        static RUNNING: Mutex<Weak<Slurm>> = Mutex::new(Weak::new());
        // A test that failed meanwhile has left nothing half done.
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slurm) = running.upgrade() {
            return Ok(slurm);
        }
        let missing: Vec<_> = PROGRAMS.into_iter().filter(|name| found(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(format!(
                "Slurm is not here ({} missing); Debian has it in slurm-wlm and munge, ./tests/run installs it",
                missing.join(", ")
            ));
        }
        let slurm = Arc::new(Self::start());
        *running = Arc::downgrade(&slurm);
        Ok(slurm)
    }

    /// A command that starts `ranks` ranks on `nodes` nodes by `srun --mpi=MPI`; the program and its
    /// arguments are for the caller to add.
    pub fn srun(&self, mpi: &str, nodes: usize, ranks: u32) -> Command {
        let mut command = self.command("srun");
        command.arg(format!("--mpi={mpi}")).arg(format!("--nodes={nodes}")).arg(format!("--ntasks={ranks}"));
        command
    }

    /// What its daemons said, for the reader of a failure.
    pub fn logs(&self) -> String {
        let log = |name: &String| {
            let text = fs::read(self.log(name)).unwrap_or_default();
            format!("--- {name}\n{}", String::from_utf8_lossy(&text))
        };
        let nodes = NODES.map(|node| format!("steps.{node}"));
        self.daemons.iter().map(|daemon| &daemon.name).chain(&nodes).map(log).collect()
    }

    #[track_caller]
    fn start() -> Self {
        let mut slurm = Self { daemons: Vec::new(), world: World::new() };
        slurm.write_files();
        slurm.add("munged", "munged", &munged_words(&slurm.world));
        slurm.wait("munged listens", |slurm| UnixStream::connect(slurm.world.file("munge.socket")).is_ok());
        slurm.add("slurmctld", "slurmctld", &["-D", "-i"].map(String::from));
        slurm.wait("slurmctld answers", |slurm| slurm.says("scontrol", &["ping"]).contains("is UP"));
        for node in NODES {
            slurm.add(&format!("slurmd.{node}"), "slurmd", &["-D", "-N", node].map(String::from));
        }
        let idle = format!("idle {}", NODES.len());
        slurm.wait("the nodes are idle", |slurm| {
            slurm.says("sinfo", &["--noheader", "--format=%T %D"]).lines().any(|line| line.trim() == idle)
        });
        slurm
    }

    fn write_files(&self) {
        let place = |name: &str| self.world.file(name);
        for directory in ["state", "spool"] {
            fs::create_dir(place(directory)).expect("a directory of Slurm can be made");
        }
        let mut random = [0; 128];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .expect("the kernel has chance");
        let key = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(place("munge.key"));
        key.and_then(|mut key| key.write_all(&random)).expect("munge's key can be written");
        fs::write(place("slurm.conf"), self.configuration()).expect("slurm.conf can be written");
    }

    fn configuration(&self) -> String {
        let place = self.world.file("");
        let place = place.display().to_string();
        let place = place.trim_end_matches('/');
        let user = User::from_uid(Uid::effective()).ok().flatten().map_or_else(|| "root".into(), |user| user.name);
        // Slurm's name of a host ends at the first dot.
        let host = nla::sys::host_name();
        let host = host.split('.').next().unwrap_or_default();
        let [control, ports @ ..] = free_ports::<3>();
        let nodes: String = NODES
            .iter()
            .zip(ports)
            .map(|(node, port)| {
                format!("NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 State=UNKNOWN\n")
            })
            .collect();
        let names = NODES.join(",");
        format!(
            "ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmdLogFile={place}/steps.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=1
{nodes}PartitionName=all Nodes={names} Default=YES OverSubscribe=FORCE:64 MaxTime=INFINITE State=UP
"
        )
    }

    fn log(&self, name: &str) -> PathBuf {
        self.world.file(&format!("{name}.log"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(found(program).unwrap_or_else(|| program.into()));
        // A test that runs under some Slurm is not to talk to that one.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SLURM") || name.starts_with("PMI")) {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.world.file("slurm.conf")).stdin(Stdio::null());
        command
    }

    /// Starts a daemon.
    #[track_caller]
    fn add(&mut self, name: &str, program: &str, words: &[impl AsRef<OsStr>]) {
        let log = File::create(self.log(name)).expect("a log can be written");
        let also = log.try_clone().expect("a log can be written twice");
        let started = self.command(program).args(words).stdout(log).stderr(also).process_group(0).spawn();
        match started {
            Ok(child) => self.daemons.push(Daemon { name: name.to_owned(), child }),
            Err(error) => panic!("failed to start {program}: {error}"),
        }
    }

    /// All of its processes, its ranks too. Slurm gives some of them an environment of its own making, of
    /// which no more is left than where its configuration is.
    fn processes(&self) -> Vec<Process> {
        let configuration = self.world.file("slurm.conf");
        let is_ours = |process: &Process| {
            process.environment().get("SLURM_CONF").is_some_and(|value| configuration.as_os_str() == value.as_str())
        };
        let mut all = Process::all();
        all.retain(|process| process.state != 'Z' && is_ours(process));
        all
    }

    /// What a program says about it.
    fn says(&self, program: &str, words: &[&str]) -> String {
        let said = self.command(program).args(words).output();
        said.map_or_else(|_| String::new(), |said| String::from_utf8_lossy(&said.stdout).into_owned())
    }

    #[track_caller]
    fn wait(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let over = eventually(|| {
            if condition(self) {
                return Some(None);
            }
            let mut daemons = self.daemons.iter_mut();
            daemons.find_map(|daemon| (!matches!(daemon.child.try_wait(), Ok(None))).then(|| Some(daemon.name.clone())))
        });
        match over {
            Some(None) => {}
            Some(Some(name)) => panic!("{name} ended before this came true: {what}\n{}", self.logs()),
            None => panic!("this never came true: {what}\n{}", self.logs()),
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // The last that it ever does; it need not be in order. One that becomes another program at this very
        // moment looks like none of ours.
        let mut quiet = 0;
        let gone = eventually(|| {
            let left = self.processes();
            left.iter().for_each(|process| process.signal(Signal::SIGKILL));
            quiet = if left.is_empty() { quiet + 1 } else { 0 };
            (quiet > 1).then_some(())
        });
        if gone.is_none() {
            eprintln!("processes of Slurm cannot be ended: {:?}", self.processes());
        }
        for daemon in &mut self.daemons {
            let _ = daemon.child.wait();
        }
    }
}

fn munged_words(world: &World) -> Vec<String> {
    let file = |option: &str, name: &str| format!("--{option}={}", world.file(name).display());
    let files =
        [("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")];
    let files = files.map(|(option, name)| file(option, &format!("munge.{name}")));
    // A directory for temporary files is one that others may write to, which it does not like.
    ["--foreground", "--force"].map(String::from).into_iter().chain(files).collect()
}

/// Ports that nobody listens on at the moment.
fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    // All at once, so that they differ.
    let listeners = [(); COUNT].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("there is a loopback interface"));
    listeners.map(|listener| listener.local_addr().expect("a listener has an address").port())
}

/// Where a program is. Daemons lie where not every user looks.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|candidate| candidate.is_file())
}
