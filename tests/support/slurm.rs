//! A Slurm that the tests start, for tests that need a real `srun` or a real `salloc`.
//!
//! Its daemons run in the foreground as children of the test and keep all their files in one temporary directory. They
//! either listen on the loopback interface only and present this machine as several nodes, or each host of a
//! [`Cluster`] is a node with a slurmd. Nodes have many cores. Nothing is accounted, bound or confined.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};

use crate::binary::found;
use crate::capture::Capture;
use crate::cluster::{Cluster, Host};
use crate::process::Process;
use crate::waiting::{event_timeout, eventually};
use crate::world::World;

/// Slurm's daemons and commands that the tests need.
const PROGRAMS: [&str; 7] = ["munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "sinfo"];

/// A running Slurm. Dropping it ends all processes that it has started.
#[derive(Debug)]
pub struct Slurm {
    daemons: Vec<Daemon>,
    /// The world with its files, unless a cluster has them.
    _world: Option<World>,
    /// The directory of its files, the same on all its nodes.
    place: PathBuf,
    /// How much its daemons log: a level of Slurm.
    log_level: &'static str,
    /// Each two nodes have a switch, and one switch connects these.
    has_switches: bool,
    /// The node of its controller and of its users.
    controller: Node,
    nodes: Vec<Node>,
}

/// A node of Slurm.
#[derive(Debug)]
struct Node {
    name: String,
    /// The host name of the node's host.
    host: String,
    address: Ipv4Addr,
    port: u16,
    /// The words in front of a command that make it run on the node.
    nsenter: Vec<OsString>,
}

/// An allocation of nodes. Dropping it releases the nodes.
#[derive(Debug)]
pub struct Allocation {
    salloc: Child,
    environment: Vec<(String, String)>,
}

#[derive(Debug)]
struct Daemon {
    name: String,
    child: Child,
}

impl Slurm {
    /// Returns the Slurm that other tests of this binary use at the moment, or starts one. `Err` names the program that
    /// is missing on this machine.
    #[track_caller]
    pub fn shared() -> Result<Arc<Self>, String> {
        static RUNNING: Mutex<Weak<Slurm>> = Mutex::new(Weak::new());
        // A test that panicked has left the value consistent.
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slurm) = running.upgrade() {
            return Ok(slurm);
        }
        let slurm = Arc::new(Self::with_nodes(2)?);
        *running = Arc::downgrade(&slurm);
        Ok(slurm)
    }

    /// Starts a Slurm for which this machine is several nodes: `node001`, `node002` and so on. `Err` names the program
    /// that is missing on this machine.
    #[track_caller]
    pub fn with_nodes(nodes: usize) -> Result<Self, String> {
        let (controller, nodes) = on_this_machine(nodes);
        let world = World::new();
        let place = world.file("slurm");
        Self::start(Some(world), place, controller, nodes, false)
    }

    /// Starts a Slurm as [`Slurm::with_nodes`] does, which knows a switch of each two nodes, and one that connects these.
    #[track_caller]
    pub fn with_switches(nodes: usize) -> Result<Self, String> {
        let (controller, nodes) = on_this_machine(nodes);
        let world = World::new();
        let place = world.file("slurm");
        Self::start(Some(world), place, controller, nodes, true)
    }

    /// Starts a Slurm as [`Slurm::with_nodes`] does, for measurements: its daemons log errors only, and its files are in
    /// `place`, which must not exist.
    ///
    /// # Errors
    /// If a program is missing on this machine, or if Slurm does not start. The first line is the reason, the others are
    /// the daemons' logs.
    pub fn for_measurements(place: PathBuf, nodes: usize) -> Result<Self, String> {
        let (controller, nodes) = on_this_machine(nodes);
        Self::launched(None, place, ("error", false), controller, nodes)
    }

    /// Starts a Slurm whose nodes are the hosts of a cluster and whose users are on its front end. `Err` names the
    /// program that is missing on this machine.
    #[track_caller]
    pub fn on(cluster: &Cluster) -> Result<Self, String> {
        let node = |host: &Host, port| {
            let name = host.name().to_owned();
            Node { host: name.clone(), name, address: host.address(), port, nsenter: host.nsenter() }
        };
        let nodes = cluster.hosts().iter().map(|host| node(host, 6818)).collect();
        let place = cluster.shared().join("slurm");
        Self::start(None, place, node(cluster.front_end(), 6817), nodes, false)
    }

    /// Returns the path of Slurm's configuration, which its commands read from `SLURM_CONF`.
    pub fn configuration_file(&self) -> PathBuf {
        self.file("slurm.conf")
    }

    /// Returns the command that starts `ranks` ranks on `nodes` nodes by `srun --mpi=MPI`. The caller adds the program
    /// and its arguments.
    pub fn srun(&self, mpi: &str, nodes: usize, ranks: u32) -> Command {
        let mut command = self.command("srun");
        command.arg(format!("--mpi={mpi}")).arg(format!("--nodes={nodes}")).arg(format!("--ntasks={ranks}"));
        command
    }

    /// Allocates nodes for `ranks` ranks.
    #[track_caller]
    pub fn allocate(&self, nodes: usize, ranks: u32) -> Allocation {
        self.salloc(nodes, &[format!("--ntasks={ranks}")])
    }

    /// Allocates nodes for this number of ranks on each.
    #[track_caller]
    pub fn allocate_evenly(&self, nodes: usize, ranks: u32) -> Allocation {
        self.salloc(nodes, &[format!("--ntasks-per-node={ranks}")])
    }

    #[track_caller]
    fn salloc(&self, nodes: usize, options: &[String]) -> Allocation {
        let mut salloc = self.command("salloc");
        salloc.arg("--quiet").arg(format!("--nodes={nodes}")).args(options);
        // Print the environment of the allocation, then keep the allocation until standard input is closed.
        let salloc = salloc.args(["sh", "-c", "env -0 && echo && exec cat"]).process_group(0);
        let mut salloc = salloc.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("salloc can be started");
        let said = salloc.stdout.take().map_or_else(Capture::none, Capture::of);
        let is_said = said.wait(event_timeout(), |said| said.ends_with("\0\n"));
        let said = said.text();
        let variables = said.split('\0').filter_map(|variable| variable.split_once('='));
        let of_slurm = variables.filter(|(name, _)| name.starts_with("SLURM"));
        let environment = of_slurm.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let allocation = Allocation { salloc, environment };
        assert!(is_said, "{nodes} nodes were never allocated\n{}", self.logs());
        allocation
    }

    /// Sends a signal to the daemon of a node.
    #[track_caller]
    pub fn signal_slurmd(&self, node: &str, signal: Signal) {
        let name = format!("slurmd.{node}");
        let daemon = self.daemons.iter().find(|daemon| daemon.name == name).expect("a node that is there");
        let entered = Process::of(daemon.child.id() as i32).expect("the daemon runs");
        // On a host, the daemon is a child of the process that entered the host's namespaces, which stops itself when its
        // child is stopped.
        entered.children().into_iter().for_each(|slurmd| slurmd.signal(signal));
        entered.signal(signal);
    }

    /// Kills the daemon of a node without notice to the controller.
    #[track_caller]
    pub fn kill_slurmd(&mut self, node: &str) {
        let name = format!("slurmd.{node}");
        let at = self.daemons.iter().position(|daemon| daemon.name == name).expect("a node that is there");
        let mut daemon = self.daemons.remove(at);
        // On a host, the daemon is a child of the process that entered the host's namespaces.
        let entered = Process::of(daemon.child.id() as i32);
        entered.iter().flat_map(Process::children).for_each(|slurmd| slurmd.signal(Signal::SIGKILL));
        daemon.child.kill().and_then(|()| daemon.child.wait()).expect("a daemon can be killed");
    }

    /// Returns the logs of the daemons, for failure messages.
    pub fn logs(&self) -> String {
        let log = |name: &String| {
            let text = fs::read(self.log(name)).unwrap_or_default();
            format!("--- {name}\n{}", String::from_utf8_lossy(&text))
        };
        let steps: Vec<_> = self.nodes.iter().map(|node| format!("steps.{}", node.name)).collect();
        self.daemons.iter().map(|daemon| &daemon.name).chain(&steps).map(log).collect()
    }

    #[track_caller]
    fn start(
        world: Option<World>,
        place: PathBuf,
        controller: Node,
        nodes: Vec<Node>,
        has_switches: bool,
    ) -> Result<Self, String> {
        let how = ("debug2", has_switches);
        match missing() {
            Some(why) => Err(why),
            // An installed Slurm that does not start is a failure of the test.
            None => Ok(Self::launched(world, place, how, controller, nodes).unwrap_or_else(|why| panic!("{why}"))),
        }
    }

    fn launched(
        world: Option<World>,
        place: PathBuf,
        (log_level, has_switches): (&'static str, bool),
        controller: Node,
        nodes: Vec<Node>,
    ) -> Result<Self, String> {
        if let Some(why) = missing() {
            return Err(why);
        }
        let mut slurm = Self { daemons: Vec::new(), _world: world, place, log_level, has_switches, controller, nodes };
        slurm.write_files();
        // All hosts reach the same munged: its socket is a file.
        let munged = slurm.command("munged");
        slurm.add("munged", munged, &slurm.munged_words())?;
        slurm.wait("munged listens", |slurm| UnixStream::connect(slurm.file("munge.socket")).is_ok())?;
        let controller = slurm.command("slurmctld");
        slurm.add("slurmctld", controller, &["-D", "-i"].map(String::from))?;
        slurm.wait("slurmctld answers", |slurm| slurm.says("scontrol", &["ping"]).contains("is UP"))?;
        for index in 0..slurm.nodes.len() {
            let node = &slurm.nodes[index];
            let (name, slurmd) = (node.name.clone(), slurm.command_on(node, "slurmd"));
            slurm.add(&format!("slurmd.{name}"), slurmd, &["-D", "-N", &name].map(String::from))?;
        }
        let idle = format!("idle {}", slurm.nodes.len());
        slurm.wait("the nodes are idle", |slurm| {
            slurm.says("sinfo", &["--noheader", "--format=%T %D"]).lines().any(|line| line.trim() == idle)
        })?;
        Ok(slurm)
    }

    fn write_files(&self) {
        for directory in ["", "state", "spool"] {
            fs::create_dir(self.file(directory)).expect("a directory of Slurm can be made");
        }
        let mut random = [0; 128];
        File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).expect("random bytes");
        let key = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file("munge.key"));
        key.and_then(|mut key| key.write_all(&random)).expect("munge's key can be written");
        fs::write(self.configuration_file(), self.configuration()).expect("slurm.conf can be written");
        if self.has_switches {
            fs::write(self.file("topology.conf"), self.switches()).expect("topology.conf can be written");
        }
    }

    fn configuration(&self) -> String {
        let (place, log_level) = (self.place.display(), self.log_level);
        let user = User::from_uid(Uid::effective()).ok().flatten().map_or_else(|| "root".into(), |user| user.name);
        let Node { host, address, port, .. } = &self.controller;
        let nodes: String = self
            .nodes
            .iter()
            .map(|Node { name, host, address, port, .. }| {
                format!("NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=64 State=UNKNOWN\n")
            })
            .collect();
        let names = self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(",");
        let plugin = if self.has_switches { "tree" } else { "none" };
        format!(
            "ClusterName=tests
TopologyPlugin=topology/{plugin}
SlurmctldHost={host}({address})
SlurmctldPort={port}
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
SlurmctldDebug={log_level}
SlurmdDebug={log_level}
SlurmdLogFile={place}/steps.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=none
MaxTasksPerNode=65533
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

    fn switches(&self) -> String {
        let pairs = self.nodes.chunks(2).enumerate().map(|(number, pair)| {
            let names: Vec<&str> = pair.iter().map(|node| node.name.as_str()).collect();
            format!("SwitchName=leaf{number} Nodes={}\n", names.join(","))
        });
        let leaves = self.nodes.chunks(2).len();
        pairs.collect::<String>() + &format!("SwitchName=top Switches=leaf[0-{}]\n", leaves - 1)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.log"))
    }

    /// Returns a command that runs on the node of the users.
    fn command(&self, program: &str) -> Command {
        self.command_on(&self.controller, program)
    }

    fn command_on(&self, node: &Node, program: &str) -> Command {
        let program = found(program).unwrap_or_else(|| program.into()).into_os_string();
        let mut words = node.nsenter.iter().chain([&program]);
        let mut command = Command::new(words.next().expect("the program, if nothing else"));
        command.args(words);
        // A test that runs inside another Slurm must not contact that one.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SLURM") || name.starts_with("PMI")) {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.configuration_file()).stdin(Stdio::null());
        command
    }

    fn munged_words(&self) -> Vec<String> {
        let file = |option: &str, name: &str| format!("--{option}={}", self.file(name).display());
        let files = [
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ];
        let files = files.map(|(option, name)| file(option, &format!("munge.{name}")));
        // munged refuses a directory that other users may write to, as directories for temporary files are.
        ["--foreground", "--force"].map(String::from).into_iter().chain(files).collect()
    }

    /// Starts a daemon.
    fn add(&mut self, name: &str, mut command: Command, words: &[impl AsRef<OsStr>]) -> Result<(), String> {
        let log = File::create(self.log(name)).expect("a log can be written");
        let also = log.try_clone().expect("a log can be written twice");
        let started = command.args(words).stdout(log).stderr(also).process_group(0).spawn();
        let child = started.map_err(|error| format!("failed to start {name}: {error}"))?;
        self.daemons.push(Daemon { name: name.to_owned(), child });
        Ok(())
    }

    /// Returns all processes of this Slurm, ranks included. Slurm gives some of them an environment of its own, which
    /// still has SLURM_CONF, the path of the configuration.
    fn processes(&self) -> Vec<Process> {
        let configuration = self.configuration_file();
        let is_ours = |process: &Process| {
            process.environment().get("SLURM_CONF").is_some_and(|value| configuration.as_os_str() == value.as_str())
        };
        let mut all = Process::all();
        all.retain(|process| process.state != 'Z' && is_ours(process));
        all
    }

    /// Runs a program that reports Slurm's state, and returns its output.
    fn says(&self, program: &str, words: &[&str]) -> String {
        let said = self.command(program).args(words).output();
        said.map_or_else(|_| String::new(), |said| String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// Waits for a condition. The error has the daemons' logs.
    fn wait(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<(), String> {
        let over = eventually(|| {
            if condition(self) {
                return Some(None);
            }
            let mut daemons = self.daemons.iter_mut();
            daemons.find_map(|daemon| (!matches!(daemon.child.try_wait(), Ok(None))).then(|| Some(daemon.name.clone())))
        });
        match over {
            Some(None) => Ok(()),
            Some(Some(name)) => Err(format!("{name} ended before this condition held: {what}\n{}", self.logs())),
            None => Err(format!("timeout: {what}\n{}", self.logs())),
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        // Slurm ends here, so the order of the kills does not matter. A process in the middle of execve looks like none
        // of Slurm's, so look several times.
        let mut quiet = 0;
        let have_ended = eventually(|| {
            let left = self.processes();
            left.iter().for_each(|process| process.send(Signal::SIGKILL));
            quiet = if left.is_empty() { quiet + 1 } else { 0 };
            (quiet > 1).then_some(())
        });
        if have_ended.is_none() {
            eprintln!("processes of Slurm cannot be ended: {:?}", self.processes());
        }
        for daemon in &mut self.daemons {
            let _ = daemon.child.wait();
        }
    }
}

impl Allocation {
    /// Returns the variables that `salloc` sets for its command, and the path of Slurm's configuration.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        drop(self.salloc.stdin.take());
        if eventually(|| self.salloc.try_wait().ok().flatten()).is_none() {
            let _ = self.salloc.kill();
            let _ = self.salloc.wait();
        }
    }
}

/// Returns why Slurm cannot be started: the programs that are missing on this machine.
fn missing() -> Option<String> {
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|name| found(name).is_none()).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "Slurm is not installed ({} missing); Debian has it in slurm-wlm and munge, ./tests/run installs it",
            missing.join(", ")
        )
    })
}

/// Returns a controller and this number of nodes, all with ports of this machine.
fn on_this_machine(nodes: usize) -> (Node, Vec<Node>) {
    // Slurm cuts the name of a host at the first dot.
    let host = nla::sys::host_name();
    let host = host.split('.').next().unwrap_or_default();
    let node = |name: String, port| {
        let host = host.to_owned();
        Node { name, host, address: Ipv4Addr::LOCALHOST, port, nsenter: Vec::new() }
    };
    let mut ports = free_ports(nodes + 1).into_iter();
    let controller = node(host.to_owned(), ports.next().expect("one more than nodes"));
    let nodes = ports.zip(1..).map(|(port, number)| node(format!("node{number:03}"), port)).collect();
    (controller, nodes)
}

/// Returns ports on which no process listens and that the kernel does not assign by itself: the daemons bind them much
/// later. No port is returned twice.
fn free_ports(count: usize) -> Vec<u16> {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    const FIRST: usize = 10_000;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768);
    let span = usize::max(end, FIRST + 1_000) - FIRST;
    // Other runs of the tests on this machine start at other ports.
    let begin = std::process::id() as usize * 97;
    let next = || FIRST + (begin + GIVEN.fetch_add(1, Ordering::Relaxed)) % span;
    let ports = std::iter::repeat_with(next).take(span).map(|port| port as u16);
    let free: Vec<_> = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect();
    assert_eq!(free.len(), count, "no ports are free below the kernel's own");
    free
}
