//! The typed value of a command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use nla::core::CachePolicy;

use super::error::Place;
use super::simulation::Simulation;

/// How many children an agent has at most, where `--fanout` is not typed.
pub const FANOUT_DEFAULT: u32 = 32;

/// How long ranks have between TERM and KILL, where `--kill-grace` is not typed.
pub const KILL_GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// One session, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What is said about the session as a whole.
    pub options: Options,
    /// The programs, in the order of their ranks. Never empty.
    pub commands: Vec<Command>,
}

impl Request {
    /// Whether the session is the built-in demonstration. It is then the only command.
    pub fn is_demo(&self) -> bool {
        self.commands.iter().any(|command| command.program == Program::Demo)
    }
}

/// One program and its ranks: what stands between two `:`, or on one line of a configfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `-np`: the number of ranks, 1 to [`RANKS_MAX`](super::RANKS_MAX). Where it is not typed, the
    /// plan decides. That all commands together stay within the bound is the plan's to check.
    pub nprocs: Option<u32>,
    /// What to run.
    pub program: Program,
    /// The program's arguments, byte for byte as typed.
    pub args: Vec<OsString>,
    /// `-wdir`: where to run it. Never empty; may be relative to the launcher's own directory.
    pub wdir: Option<PathBuf>,
    /// `-env`: changes for this program, after [`Options::genv`], in the order typed.
    pub env: Vec<EnvChange>,
    /// `-envall`, `-envnone`, `-envlist`: what this program gets of the launcher's environment,
    /// in place of [`Options::genv_policy`].
    pub env_policy: Option<EnvPolicy>,
    /// Where this command was typed, for messages about it.
    pub place: Place,
}

/// What a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program by path, or by a name to be looked up in PATH. Never empty.
    Named(OsString),
    /// `--demo`: the PMI hello that is built into scela-run.
    Demo,
}

/// A change to the environment of ranks. Names are never empty and hold no `=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvChange {
    /// This variable gets this value.
    Set(OsString, OsString),
    /// This variable is passed on with the launcher's value (`-x NAME`), whatever the policy says.
    Pass(OsString),
}

/// What ranks get of the launcher's environment before any [`EnvChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvPolicy {
    /// All of it; what a session does where nothing is typed.
    All,
    /// Nothing of it.
    None,
    /// These variables only. Never empty.
    List(Vec<OsString>),
}

/// Who reads the launcher's standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StdinTo {
    /// Nobody.
    None,
    /// Every rank gets all of it.
    All,
    /// These ranks get all of it: ranges from first to last rank, both included, in ascending
    /// order, neither overlapping nor touching.
    Ranks(Vec<(u32, u32)>),
    /// Every rank reads this file instead.
    File(PathBuf),
}

/// Whose needs the ranks' environment serves, beyond PMI's own variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mpi {
    /// Those of the library that a program's file names.
    #[default]
    Auto,
    /// Nobody's.
    None,
    /// Open MPI's, 3 and 4.
    OpenMpi,
}

impl Mpi {
    /// All kinds.
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::None, Self::OpenMpi];

    /// As it is typed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::OpenMpi => "openmpi",
        }
    }
}

/// Where statistics go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatsTo {
    /// To standard error, as a table.
    Table,
    /// Into this file, as JSON. Never empty; may be relative to the launcher's own directory.
    File(PathBuf),
}

/// Where names of hosts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSource {
    /// `-hosts`: the list itself.
    List(OsString),
    /// `-f`: a file; `-` is standard input. Never empty.
    File(PathBuf),
}

/// A resource manager that may have given this job its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// Slurm.
    Slurm,
    /// PBS Professional, OpenPBS and Torque.
    Pbs,
    /// IBM Spectrum LSF.
    Lsf,
    /// Sun, Univa and Open Grid Engine.
    Sge,
    /// Flux.
    Flux,
}

/// `--rm`: whose allocation counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManagerChoice {
    /// That of the first whose variables are there.
    #[default]
    Auto,
    /// Nobody's.
    None,
    /// This one's; that it is not there is an error.
    Only(Manager),
}

/// `--map-by`: which node gets the next rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapBy {
    /// The same, until its slots are taken.
    #[default]
    Slot,
    /// The next one, round and round.
    Node,
    /// The same, until it has so many (`ppr:N:node`). At least 1.
    PerNode(u32),
}

/// Which hosts a session may use, and how its ranks are placed on them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostOptions {
    /// `-hosts` and `-f`, in the order typed.
    pub sources: Vec<HostSource>,
    /// `--exclude`: hosts to leave out.
    pub exclude: Option<OsString>,
    /// `--select`: which of the list to take, by their places in it.
    pub select: Option<OsString>,
    /// `--rm`.
    pub manager: ManagerChoice,
    /// `--map-by`.
    pub map_by: MapBy,
    /// `-rankmap`: the node of each rank, in words; not looked into here.
    pub rankmap: Option<OsString>,
}

/// `--bootstrap`: how agents are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapKind {
    /// As processes of this machine.
    Fork,
    /// A secure shell for each node.
    Ssh,
    /// By a resource manager's own command.
    Manager(Manager),
    /// By a command of the user's, `{host}` in it standing for the host. Never empty.
    Exec(OsString),
}

/// `--launch`: who starts whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchShape {
    /// As the model says.
    #[default]
    Auto,
    /// The launcher starts all, a session for each rank; to compare with.
    Linear,
    /// The launcher starts all, a session for each node.
    Flat,
    /// Agents start agents.
    Tree,
}

/// How agents get to their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaunchOptions {
    /// `--bootstrap`; where it is not typed, the plan decides.
    pub bootstrap: Option<BootstrapKind>,
    /// `--launcher-exec`: the program in place of `ssh`, or of the manager's command.
    pub launcher_exec: Option<OsString>,
    /// `--launch-agent`: the command on the other host that becomes the agent.
    pub launch_agent: Option<OsString>,
    /// `--launch`.
    pub shape: LaunchShape,
    /// `--batch`: sessions that one agent opens at a time. At least 1; adaptive where not typed.
    pub batch: Option<u32>,
    /// `--connect-back`: the address that others reach this host by.
    pub connect_back: Option<OsString>,
    /// `--iface`: the network interface whose address that is.
    pub iface: Option<OsString>,
    /// `--port-range`: first and last port to listen on.
    pub port_range: Option<(u16, u16)>,
    /// `--no-ports`: links go over the sessions that started the agents.
    pub no_ports: bool,
    /// `--min-nodes`: go on with so many nodes, if others fail to start.
    pub min_nodes: Option<u32>,
    /// `--spares`: so many nodes of the list are kept for those that fail.
    pub spares: u32,
    /// `--start-timeout`: by when all agents must be there, counted from the first session. More than zero.
    pub deadline: Option<Duration>,
}

/// What is said about the session as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which hosts, and which ranks on them.
    pub hosts: HostOptions,
    /// How agents get there.
    pub launch: LaunchOptions,
    /// `--explain`: print the plan, start nothing.
    pub explain: bool,
    /// `-genv` and `-x`: changes for all programs, in the order typed.
    pub genv: Vec<EnvChange>,
    /// `-genvall`, `-genvnone`, `-genvlist`: what all programs get of the launcher's environment.
    pub genv_policy: Option<EnvPolicy>,
    /// `--mpi`: for which MPI library the ranks' environment is made.
    pub mpi: Mpi,
    /// `-ppn`: the most ranks on one node.
    pub ppn: Option<u32>,
    /// `-prepend-rank`: whether each line of output begins with its rank.
    pub prepend_rank: bool,
    /// `-outfile-pattern`: the files that get the ranks' stdout. Not looked into here, never empty.
    pub outfile_pattern: Option<OsString>,
    /// `-errfile-pattern`: the files that get the ranks' stderr. Not looked into here, never empty.
    pub errfile_pattern: Option<OsString>,
    /// `--stdin`: who reads standard input. Where it is not typed, the plan decides.
    pub stdin: Option<StdinTo>,
    /// `--timeout`: how long the session may run. More than zero.
    pub timeout: Option<Duration>,
    /// `--kill-grace`: the time between TERM and KILL. May be zero.
    pub kill_grace: Duration,
    /// How often `-v` was typed since the last `-q`.
    pub verbose: u8,
    /// Whether `-q` was typed, and no `-v` behind it.
    pub quiet: bool,
    /// `--agents-per-node`: where it is not typed, the plan decides.
    pub agents_per_node: Option<u32>,
    /// `--agents-as-nodes`: whether each agent counts as a node of its own.
    pub agents_as_nodes: bool,
    /// `--fanout`: the most children of an agent; [`Options::fanout`] where it is not typed.
    pub fanout: Option<u32>,
    /// `--cache` and `--cache-entries`: the policy of the bulletin board's caches.
    pub cache: CachePolicy,
    /// `--pmi-port`: whether ranks connect to a loopback port rather than inherit a socket.
    pub pmi_port: bool,
    /// `--timing`: whether to say how long each phase took.
    pub timing: bool,
    /// `--stats`: whether, and where, to tell what was counted.
    pub stats: Option<StatsTo>,
    /// `--simulate` and what belongs to it.
    pub simulation: Simulation,
    /// `--label`: the session's name for people, 1 to
    /// [`LABEL_BYTES_MAX`](super::LABEL_BYTES_MAX) characters of `[A-Za-z0-9._-]`, the first a
    /// letter or digit.
    pub label: Option<String>,
}

impl Options {
    /// The most children of an agent in the session's tree.
    pub fn fanout(&self) -> u32 {
        self.fanout.unwrap_or(FANOUT_DEFAULT)
    }
}

impl Default for Options {
    /// What holds where nothing is typed.
    fn default() -> Self {
        Self {
            hosts: HostOptions::default(),
            launch: LaunchOptions::default(),
            explain: false,
            genv: Vec::new(),
            genv_policy: None,
            mpi: Mpi::default(),
            ppn: None,
            prepend_rank: false,
            outfile_pattern: None,
            errfile_pattern: None,
            stdin: None,
            timeout: None,
            kill_grace: KILL_GRACE_DEFAULT,
            verbose: 0,
            quiet: false,
            agents_per_node: None,
            agents_as_nodes: false,
            fanout: None,
            cache: CachePolicy::default(),
            pmi_port: false,
            timing: false,
            simulation: Simulation::default(),
            stats: None,
            label: None,
        }
    }
}
