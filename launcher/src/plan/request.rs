//! The request for a session: what the user asked for, as typed values.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nla::core::limits::{DEAD_TIME, DEAD_TIME_SURVIVED, STOP_TIME};
use nla::core::{BindTo, CacheBounds, CachePolicy, CleanShm, FailurePolicy, MapWithin, MemoryPolicy, Resources};
use nla::link::Liveness;

use crate::cluster::manager::Manager;
use crate::cluster::node_list::HostOptions;
use crate::plan::collect::Collect;
use crate::plan::stage::StageFile;

/// The most children of an agent on one machine, unless `--fanout` is typed. On several nodes it depends on the job's size.
pub const FANOUT_DEFAULT: u32 = 32;

/// The time between TERM and KILL, unless `--kill-grace` is typed.
pub const KILL_GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// How many bytes `--collect` may bring back, unless `--collect-max` is typed.
const COLLECT_BYTES_DEFAULT: u64 = 10_000_000_000;

/// How often all ranks may start again, unless `--max-restarts` is typed.
pub const MAX_RESTARTS_DEFAULT: u32 = 3;

/// The least dead time for each agent of a session on this machine alone, unless `--dead-time` is typed. An agent and its guardian wake
/// some four times in a dead time, so that all of them wake less than once a second.
const DEAD_TIME_PER_AGENT: Duration = Duration::from_secs(5);
/// The upper bound of a dead time that is chosen in this way. More agents have more processors.
const DEAD_TIME_HERE_MAX: Duration = Duration::from_secs(120);

/// How many heartbeats fit into the dead time, unless `--heartbeat` is typed.
const HEARTBEATS: u32 = 3;

/// A request for one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The options of the whole session.
    pub options: Options,
    /// The programs, in the order of their ranks. Never empty.
    pub commands: Vec<Command>,
}

impl Request {
    /// Returns whether the session is the built-in demonstration, which is then its only command.
    pub fn is_demo(&self) -> bool {
        self.commands.iter().any(|command| command.program == Program::Demo)
    }
}

/// One program and its ranks: the words between two `:`, or one line of a configfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `-np`: the number of ranks, 1 to [`RANKS_MAX`](nla::core::limits::RANKS_MAX). The plan chooses it
    /// if it is `None`. The plan also checks the bound for all commands together.
    pub nprocs: Option<u32>,
    /// The program to run.
    pub program: Program,
    /// The program's arguments, byte for byte as typed.
    pub args: Vec<OsString>,
    /// `-wdir`: the ranks' working directory. Never empty; may be relative to the launcher's own.
    pub wdir: Option<PathBuf>,
    /// `-path`: the directories, separated by `:`, in which to look for the program before those of its PATH. Never empty.
    pub path: Option<OsString>,
    /// `-env`: changes for this program, applied after [`Options::genv`], in the order typed.
    pub env: Vec<EnvChange>,
    /// `-envall`, `-envnone`, `-envlist`: the part of the launcher's environment that this program
    /// inherits. Overrides [`Options::genv_policy`].
    pub env_policy: Option<EnvPolicy>,
    /// The source of this command, for messages about it.
    pub place: TypedAt,
}

/// The source of a command or option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypedAt {
    /// On the command line.
    CommandLine,
    /// In a configfile.
    File {
        /// The file's name as typed.
        path: PathBuf,
        /// The line, counted from 1.
        line: u32,
        /// The character in that line, counted from 1.
        column: u32,
    },
}

/// The program of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program by path, or by a name to be looked up in PATH. Never empty.
    Named(OsString),
    /// `--demo`: the PMI hello that is built into scela-run.
    Demo,
}

/// A change to the environment of ranks. Names are never empty and contain no `=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvChange {
    /// Sets this variable to this value.
    Set(OsString, OsString),
    /// Passes this variable on with the launcher's value (`-x NAME`), whatever the policy is.
    Pass(OsString),
}

/// The part of the launcher's environment that ranks inherit, before any [`EnvChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvPolicy {
    /// All variables. The default.
    All,
    /// No variables.
    None,
    /// These variables only. Never empty.
    List(Vec<OsString>),
}

/// The ranks that read the launcher's standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StdinTo {
    /// No rank.
    None,
    /// Every rank gets all of it.
    All,
    /// These ranks get all of it: ranges from first to last rank, both included, in ascending
    /// order, neither overlapping nor adjacent.
    Ranks(Vec<(u32, u32)>),
    /// Every rank reads this file instead.
    File(PathBuf),
}

/// `-usize`: the value of MPI_UNIVERSE_SIZE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Universe {
    /// The attribute is not set: a program may spawn as many ranks as it likes.
    Infinite,
    /// The sum of all slots: those of the hosts, else the cores of this machine.
    System,
    /// This many ranks.
    Ranks(u32),
}

/// `--mpi`: the MPI library whose variables are added to the ranks' environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mpi {
    /// The library that a program's file names.
    #[default]
    Auto,
    /// No library.
    None,
    /// Open MPI 3 and 4.
    OpenMpi,
    /// Open MPI 5 and other libraries that speak PMIx.
    Pmix,
}

impl Mpi {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Auto, Self::None, Self::OpenMpi, Self::Pmix];

    /// Returns the name that `--mpi` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::OpenMpi => "openmpi",
            Self::Pmix => "pmix",
        }
    }
}

/// `--stats`: the destination of the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatsTo {
    /// A table on standard error.
    Table,
    /// JSON in this file. Never empty; may be relative to the launcher's own directory.
    File(PathBuf),
}

/// `--bootstrap`: how agents are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapKind {
    /// As processes on this machine.
    Fork,
    /// By a secure shell for each node.
    Ssh,
    /// By a resource manager's own command.
    Manager(Manager),
    /// By a command of the user's, in which `{host}` is replaced by the host. Never empty.
    Exec(OsString),
    /// By the keepers of the pool that the job runs in. It cannot be typed.
    Keeper,
}

/// `--launch`: which process starts which agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchShape {
    /// The shape that the model recommends.
    #[default]
    Auto,
    /// The launcher starts all agents, with a remote shell for each rank; for comparison.
    Linear,
    /// The launcher starts all agents, with a remote shell for each node.
    Flat,
    /// Agents start agents.
    Tree,
}

/// How agents are started on their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaunchOptions {
    /// `--bootstrap`. The plan chooses it if it is `None`.
    pub bootstrap: Option<BootstrapKind>,
    /// `--launcher-exec`: the program to run instead of `ssh` or the manager's command.
    pub launcher_exec: Option<OsString>,
    /// `--launch-agent`: the command on the other host that becomes the agent.
    pub launch_agent: Option<OsString>,
    /// `--launch`.
    pub shape: LaunchShape,
    /// `--batch`: remote shells that one agent opens at a time. At least 1; adaptive if `None`.
    pub batch: Option<u32>,
    /// `--connect-back`: the address by which other hosts reach this one.
    pub connect_back: Option<OsString>,
    /// `--iface`: the network interface that has this address.
    pub iface: Option<OsString>,
    /// `--port-range`: first and last port to listen on.
    pub port_range: Option<(u16, u16)>,
    /// `--no-ports`: links use the remote shells that started the agents.
    pub no_ports: bool,
    /// `--clean-program`: leave no program that was sent on a node.
    pub clean_program: bool,
    /// `--min-nodes`: continue with this many nodes if others fail to start.
    pub min_nodes: Option<u32>,
    /// `--spares`: nodes of the list that replace nodes that fail to start.
    pub spares: u32,
    /// `--start-timeout`: the time from the first remote shell until all agents must have reported.
    /// More than zero.
    pub deadline: Option<Duration>,
    /// `--wait-for-hosts`: how long hosts that cannot be reached are tried again, before that time begins.
    pub wait_for_hosts: Option<Duration>,
}

/// The options about processors and memory of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingOptions {
    /// `--bind-to`. The plan chooses it if it is `None`.
    pub bind_to: Option<BindTo>,
    /// `--bind-to X:overload-allowed`: bind more ranks than the node has room for.
    pub overloads: bool,
    /// `--map-by`, as far as it is about the parts of a node.
    pub map_within: Option<MapWithin>,
    /// `--map-by ...:PE=N`: the cores of each rank.
    pub elements: Option<u32>,
    /// `--cpus-per-rank`: the cores of each rank, and the value of OMP_NUM_THREADS.
    pub cpus_per_rank: Option<u32>,
    /// `--mem-bind`.
    pub memory: MemoryPolicy,
    /// `--report-bindings`.
    pub reports: bool,
}

/// The options about accelerators and other devices of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AcceleratorOptions {
    /// `--gpus-per-rank`. If it is given, `gres` names no GPUs.
    pub gpus_per_rank: Option<u32>,
    /// `--gres`: the devices of each rank.
    pub gres: Resources,
}

/// The options of the whole session. The default is a command line without options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The hosts, and the ranks on them.
    pub hosts: HostOptions,
    /// How agents are started there.
    pub launch: LaunchOptions,
    /// `--explain`: print the plan, start nothing.
    pub explain: bool,
    /// `--pool`: the pool that runs the job.
    pub pool: Option<String>,
    /// Whether the first program follows `--pool` without a name at once: it may be meant as the name.
    pub pool_before_program: bool,
    /// `--priority`: the job's priority in the pool.
    pub pool_priority: Option<i32>,
    /// `--no-wait`: the job must start at once.
    pub pool_no_wait: bool,
    /// `--nodes`: how many nodes of the pool the ranks are spread over.
    pub pool_nodes: Option<u32>,
    /// `--detach`: the job has no client.
    pub pool_detach: bool,
    /// `--orphan-time`: how long the job goes on without a client.
    pub pool_orphan_time: Option<Duration>,
    /// `--exclusive`: the job shares no node of the pool.
    pub pool_exclusive: bool,
    /// `-genv` and `-x`: changes for all programs, in the order typed.
    pub genv: Vec<EnvChange>,
    /// `-genvall`, `-genvnone`, `-genvlist`: the part of the launcher's environment that all programs
    /// inherit.
    pub genv_policy: Option<EnvPolicy>,
    /// `--stage`: whether every node gets the programs and their libraries.
    pub stage: bool,
    /// `--stage-file`: the files that every node gets besides.
    pub stage_files: Vec<StageFile>,
    /// `--stage-dir`: the directories that every node gets.
    pub stage_dirs: Vec<StageFile>,
    /// `--stage-cache`: the bounds of the caches of nodes. `None`: nodes have none.
    pub stage_cache: Option<CacheBounds>,
    /// `--collect`: the files of ranks that are brought back.
    pub collect: Vec<Collect>,
    /// `--collect-max`: how many bytes they may have. [`Options::collect_max`] adds the default.
    pub collect_max: Option<u64>,
    /// `--mpi`.
    pub mpi: Mpi,
    /// To which processors and memory ranks are bound.
    pub binding: BindingOptions,
    /// The devices that each rank gets.
    pub accelerators: AcceleratorOptions,
    /// `-memory-alloc-kinds`: the kinds of memory that the MPI library is asked to support.
    pub memory_alloc_kinds: Option<String>,
    /// `-ppn`: the most ranks on one node.
    pub ppn: Option<u32>,
    /// `-usize`.
    pub universe: Option<Universe>,
    /// `-prepend-rank`: whether each line of output begins with its rank.
    pub prepend_rank: bool,
    /// `-outfile-pattern`: the files for the ranks' stdout. Never empty.
    pub outfile_pattern: Option<OsString>,
    /// `-errfile-pattern`: the files for the ranks' stderr. Never empty.
    pub errfile_pattern: Option<OsString>,
    /// `--stdin`. The plan chooses it if it is `None`.
    pub stdin: Option<StdinTo>,
    /// `--timeout`: how long the session may run. More than zero.
    pub timeout: Option<Duration>,
    /// `--exit-timeout`: how long the session may run after its first rank has ended. More than zero.
    pub exit_timeout: Option<Duration>,
    /// `--stuck-after`: how long ranks may wait in a fence before a report of those that are missing. More than zero.
    pub stuck_after: Option<Duration>,
    /// `--signal`: a signal that ranks get, and how long before `timeout` ends.
    pub early_signal: Option<(i32, Duration)>,
    /// `--kill-grace`: the time between TERM and KILL. May be zero. [`Options::kill_grace`] adds the default.
    pub kill_grace: Option<Duration>,
    /// `--heartbeat`: how long a link may be idle. [`Options::liveness`] adds the default, and the parser checks
    /// that it is at most half of the dead time.
    pub heartbeat: Option<Duration>,
    /// `--dead-time`: how long a link or an agent may be silent. [`Options::liveness`] adds the default.
    pub dead_time: Option<Duration>,
    /// `--dead-time`, second time: how long a process may be silent whose machine answers. At least the first one.
    pub stop_time: Option<Duration>,
    /// `--on-failure`: what happens when a rank fails.
    pub on_failure: FailurePolicy,
    /// `--max-restarts`: how often all ranks may start again. The plan adds the default.
    pub max_restarts: Option<u32>,
    /// `--clean-shm`: which files that killed ranks leave in /dev/shm agents remove.
    pub clean_shm: CleanShm,
    /// How often `-v` was typed since the last `-q`.
    pub verbose: u8,
    /// Whether `-q` was typed, with no `-v` after it.
    pub quiet: bool,
    /// `--agents-per-node`. The plan chooses it if it is `None`.
    pub agents_per_node: Option<u32>,
    /// An agent of this machine stands by for the session. No option: launchers of pools set it.
    pub has_standing_agent: bool,
    /// `--agents-as-nodes`: whether each agent counts as a node of its own.
    pub agents_as_nodes: bool,
    /// `--fanout`: the most children of an agent. [`Options::fanout`] adds the default.
    pub fanout: Option<u32>,
    /// `--cache` and `--cache-entries`: the policy of the bulletin board's caches.
    pub cache: CachePolicy,
    /// `--pmi-port`: whether ranks connect to a loopback port rather than inherit a socket.
    pub pmi_port: bool,
    /// `--no-rank-sessions`: whether ranks stay in the session of their agent.
    pub no_rank_sessions: bool,
    /// `--timing`: whether to report how long each phase took.
    pub timing: bool,
    /// `--stats`: whether, and where, to report statistics.
    pub stats: Option<StatsTo>,
    /// `--trace`: the file of the session's trace. Never empty; may be relative to the launcher's own directory.
    pub trace: Option<PathBuf>,
    /// `--report`: the file of the report on the end. Never empty; may be relative to the launcher's own directory.
    pub report: Option<PathBuf>,
    /// `--profile-comm`: the file of the communication profile. Never empty; may be relative to the launcher's own directory.
    pub profile_comm: Option<PathBuf>,
    /// `--profile-comm-collectives`: whether collective operations are counted. They are if it is `None`.
    pub profile_collectives: Option<bool>,
    /// `--label`: the session's name in messages and in `ps`: 1 to 64 characters of `[A-Za-z0-9._-]`,
    /// the first a letter or digit.
    pub label: Option<String>,
}

impl Options {
    /// Returns the files of reports: of `--stats`, `--trace`, `--report`, `--profile-comm`, `--save-rankmap` and `--fault-history`.
    pub fn report_files(&self) -> [Option<&Path>; 6] {
        let stats = if let Some(StatsTo::File(file)) = &self.stats { Some(file.as_path()) } else { None };
        let (save_rankmap, fault_history) = (self.hosts.save_rankmap.as_deref(), self.hosts.fault_history.as_deref());
        [
            stats,
            self.trace.as_deref(),
            self.report.as_deref(),
            self.profile_comm.as_deref(),
            save_rankmap,
            fault_history,
        ]
    }

    /// Returns the most children of an agent in the session's tree.
    pub fn fanout(&self) -> u32 {
        self.fanout.unwrap_or(FANOUT_DEFAULT)
    }

    /// Returns how many bytes the collected files may have.
    pub fn collect_max(&self) -> u64 {
        self.collect_max.unwrap_or(COLLECT_BYTES_DEFAULT)
    }

    /// Returns the time between TERM and KILL.
    pub fn kill_grace(&self) -> Duration {
        self.kill_grace.unwrap_or(KILL_GRACE_DEFAULT)
    }

    /// The dead time where the user asks for none: shorter where a loss does not end the session.
    fn default_dead_time(&self) -> Duration {
        match self.on_failure {
            FailurePolicy::Abort => DEAD_TIME,
            FailurePolicy::Continue | FailurePolicy::Restart | FailurePolicy::RestartRank => DEAD_TIME_SURVIVED,
        }
    }

    /// Chooses the dead time of a session with so many agents, all on this machine, unless the user has. The kernel reports there that
    /// a process has ended or is stopped, so that only few losses are found by silence.
    pub fn choose_dead_time_here(&mut self, agents: u32) {
        let wanted = (DEAD_TIME_PER_AGENT * agents).min(DEAD_TIME_HERE_MAX);
        self.dead_time.get_or_insert(wanted.max(self.default_dead_time()));
    }

    /// Returns when a link counts as lost.
    pub fn liveness(&self) -> Liveness {
        let dead_time = self.dead_time.unwrap_or(self.default_dead_time());
        let stop_time = self.stop_time.unwrap_or(STOP_TIME).max(dead_time);
        Liveness { heartbeat: self.heartbeat.unwrap_or(dead_time / HEARTBEATS), dead_time, stop_time }
    }
}
