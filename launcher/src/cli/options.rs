//! The table of options. The parser, the help text and suggestions read option names from here only.

use crate::suggest;

/// Identifies an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    Local(Local),
    Global(Global),
    Mode(Mode),
}

/// An option of the command that it is typed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Local {
    Np,
    Wdir,
    Path,
    Env,
    EnvList,
    EnvNone,
    EnvAll,
}

/// An option of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    Ppn,
    Stage,
    StageFile,
    StageDir,
    StageCache,
    Collect,
    CollectMax,
    Genv,
    X,
    GenvList,
    GenvNone,
    GenvAll,
    Mpi,
    MemoryAllocKinds,
    InitialErrhandler,
    Stdin,
    PrependRank,
    OutfilePattern,
    ErrfilePattern,
    Timeout,
    Signal,
    ExitTimeout,
    StuckAfter,
    KillGrace,
    DeadTime,
    Heartbeat,
    CleanShm,
    OnFailure,
    MaxRestarts,
    DisableAutoCleanup,
    WithFt,
    AgentsPerNode,
    AgentsAsNodes,
    Fanout,
    Cache,
    CacheEntries,
    PmiPort,
    NoRankSessions,
    Label,
    Timing,
    Stats,
    Trace,
    Report,
    ProfileComm,
    ProfileCommCollectives,
    Verbose,
    Quiet,
    HostFile,
    HostList,
    Exclude,
    Select,
    ResourceManager,
    MapBy,
    BindTo,
    CpusPerRank,
    MemBind,
    ReportBindings,
    GpusPerRank,
    Gres,
    Usize,
    RankMap,
    CommMatrix,
    Topology,
    SaveRankMap,
    FaultHistory,
    AvoidFaults,
    Bootstrap,
    LauncherExec,
    LaunchAgent,
    Launch,
    Batch,
    ConnectBack,
    Iface,
    PortRange,
    NoPorts,
    CleanProgram,
    MinNodes,
    Spares,
    StartTimeout,
    WaitForHosts,
    Explain,
    Pool,
    Priority,
    NoWait,
    Nodes,
    Exclusive,
    Detach,
    OrphanTime,
    Simulate,
    Pattern,
    Latency,
    Bandwidth,
    Cores,
    Fanouts,
    Seed,
    Faults,
}

/// An option that selects what scela-run does. Valid on the command line only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    ConfigFile,
    Demo,
    Calibrate,
    Help,
    Version,
}

/// The headings of the help text.
pub(super) mod group {
    pub(in crate::cli) const PROGRAM: &str = "For the program that follows";
    pub(in crate::cli) const PROGRAMS: &str = "For all programs";
    pub(in crate::cli) const HOSTS: &str = "Hosts";
    pub(in crate::cli) const BINDING: &str = "Processors, memory and devices of ranks";
    pub(in crate::cli) const LAUNCH: &str = "How agents are started";
    pub(in crate::cli) const POOL: &str = "A job in a standing pool ('scela pool start')";
    pub(in crate::cli) const ENVIRONMENT: &str = "Environment of all programs";
    pub(in crate::cli) const STREAMS: &str = "Input and output";
    pub(in crate::cli) const ENDING: &str = "End of the session";
    pub(in crate::cli) const TREE: &str = "The tree of agents";
    pub(in crate::cli) const SIMULATION: &str = "Simulation instead of a job";
    pub(in crate::cli) const TALKING: &str = "Messages and reports";
}

/// The description of one option.
#[derive(Debug)]
pub(super) struct Spec {
    /// The option.
    pub(super) id: Id,
    /// Its names without dashes, the one to show first.
    pub(super) names: &'static [&'static str],
    /// The names of its values, one for each value.
    pub(super) values: &'static [&'static str],
    /// An optional value.
    pub(super) optional: Option<Optional>,
    /// Its help text in `-h`, one line; `None` if only `--help` shows it.
    pub(super) short: Option<&'static str>,
    /// The heading under which help shows it.
    pub(super) group: &'static str,
    /// The help text, in lines that fit a terminal.
    pub(super) help: &'static str,
}

/// The ending that no word has: a value follows only after `=`.
const ONLY_AFTER_EQUALS: &str = "\0";

/// An optional value. After `=` it may be anything; the next word is taken for it only if it ends with
/// `ending`.
#[derive(Debug)]
pub(super) struct Optional {
    /// Its name in help.
    pub(super) name: &'static str,
    /// The ending of such a word.
    pub(super) ending: &'static str,
}

impl Spec {
    /// Adds an optional value.
    const fn with(mut self, name: &'static str, ending: &'static str) -> Self {
        self.optional = Some(Optional { name, ending });
        self
    }

    /// Makes `-h` show the option, with this text.
    const fn common(mut self, short: &'static str) -> Self {
        self.short = Some(short);
        self
    }

    /// Returns whether the option is refused in a configfile.
    pub(super) fn is_of_the_command_line(&self) -> bool {
        matches!(self.id, Id::Mode(_)) || self.group == group::SIMULATION
    }

    /// Returns whether its value is a number, which may be glued to the name.
    fn takes_number(&self) -> bool {
        self.values == [N]
    }
}

const N: &str = "N";

const fn spec(
    id: Id,
    names: &'static [&'static str],
    values: &'static [&'static str],
    group: &'static str,
    help: &'static str,
) -> Spec {
    Spec { id, names, values, optional: None, short: None, group, help }
}

/// All options, in the order of the help text.
#[rustfmt::skip]
pub(super) const OPTIONS: &[Spec] = &[
    spec(Id::Local(Local::Np), &["np", "n", "c", "sz"], &[N], group::PROGRAM,
        "start N ranks (default: as many as the allocation or\n\
         the machine has room for)").common("start N ranks"),
    spec(Id::Local(Local::Wdir), &["wdir", "wd"], &["DIR"], group::PROGRAM,
        "start it in DIR").common("start the program in DIR"),
    spec(Id::Local(Local::Path), &["path"], &["DIRS"], group::PROGRAM,
        "look for it in these directories first; they precede\n\
         its PATH"),
    spec(Id::Local(Local::Env), &["env"], &["NAME", "VALUE"], group::PROGRAM,
        "set a variable (NAME=VALUE does as well)"),
    spec(Id::Local(Local::EnvList), &["envlist"], &["A,B"], group::PROGRAM,
        "pass only these variables of your environment"),
    spec(Id::Local(Local::EnvNone), &["envnone"], &[], group::PROGRAM,
        "pass none of your environment"),
    spec(Id::Local(Local::EnvAll), &["envall"], &[], group::PROGRAM,
        "pass all of your environment (default)"),

    spec(Id::Global(Global::Ppn), &["ppn", "N", "npernode"], &[N], group::PROGRAMS,
        "put at most N ranks on a node").common("put at most N ranks on a node"),
    spec(Id::Mode(Mode::ConfigFile), &["configfile"], &["FILE"], group::PROGRAMS,
        "read the programs from FILE, a line of options,\n\
         program and arguments for each; # begins a comment,\n\
         quotes and backslashes work as in a shell"),
    spec(Id::Global(Global::Stage), &["stage"], &[], group::PROGRAMS,
        "send the programs and their libraries to every node,\n\
         and run them there"),
    spec(Id::Global(Global::StageFile), &["stage-file"], &["FILE"], group::PROGRAMS,
        "send FILE to every node; ranks find it in the\n\
         directory that SCELA_STAGE_DIR names, under its own\n\
         name or, with FILE=NAME, as NAME"),
    spec(Id::Global(Global::StageDir), &["stage-dir"], &["DIR"], group::PROGRAMS,
        "send the directory DIR to every node, as\n\
         --stage-file sends files; a Python environment comes\n\
         with its interpreter and standard library"),
    spec(Id::Global(Global::StageCache), &["stage-cache"], &["SIZE"], group::PROGRAMS,
        "let every node keep up to SIZE of staged files for\n\
         later jobs (10G; SIZE,TIME: for TIME, default 168h),\n\
         and send only what it lacks; none: keep nothing\n\
         (default)"),
    spec(Id::Global(Global::Collect), &["collect"], &["PATTERN=DIR"], group::PROGRAMS,
        "bring the files of ranks that match PATTERN in their\n\
         working directory back to DIR at the end; a pattern\n\
         that begins with '$SCELA_STAGE_DIR/' matches there"),
    spec(Id::Global(Global::CollectMax), &["collect-max"], &["SIZE"], group::PROGRAMS,
        "how much --collect may bring back (default 10G)"),
    spec(Id::Mode(Mode::Demo), &["demo"], &[], group::PROGRAMS,
        "run a built-in PMI program; it needs no MPI").common("run a built-in PMI program; it needs no MPI"),

    spec(Id::Global(Global::HostFile), &["f", "hostfile", "machinefile"], &["FILE"], group::HOSTS,
        "use the hosts in FILE, - for standard\n\
         input").common("use the hosts in FILE"),
    spec(Id::Global(Global::HostList), &["hosts", "host", "H"], &["LIST"], group::HOSTS,
        "use these hosts: node[001-032],gpu[1-4]:8,ada@login;\n\
         lists and files add up").common("use these hosts: node[001-032],gpu[1-4]:8"),
    spec(Id::Global(Global::Exclude), &["exclude"], &["LIST"], group::HOSTS,
        "leave these hosts out"),
    spec(Id::Global(Global::Select), &["select"], &["INDICES"], group::HOSTS,
        "use only these positions of the list: 1..4,10"),
    spec(Id::Global(Global::ResourceManager), &["rm", "rmk"], &["NAME"], group::HOSTS,
        "use the allocation of slurm, pbs, lsf, sge or flux;\n\
         none: ignore allocations; auto (default): the first\n\
         one found"),
    spec(Id::Global(Global::MapBy), &["map-by"], &["RULE"], group::HOSTS,
        "fill nodes slot by slot (default), deal ranks out\n\
         node by node, or put N on each: ppr:N:node; with a\n\
         level of --bind-to, deal ranks out over the parts of\n\
         each node, or put N on each part: ppr:N:numa; :PE=N\n\
         gives each rank N cores; comm: near to the ranks that\n\
         it sends to, by --comm-matrix"),
    spec(Id::Global(Global::CommMatrix), &["comm-matrix"], &["FILE"], group::HOSTS,
        "what ranks send to each other, for --map-by comm"),
    spec(Id::Global(Global::Topology), &["topology"], &["NETWORK"], group::HOSTS,
        "the network between hosts, for --map-by comm: Slurm's\n\
         topology.conf or topology.yaml, torus:8x8x8,\n\
         fat-tree:LEVELS:PORTS or\n\
         dragonfly:GROUPS:ROUTERS:HOSTS; default: what Slurm\n\
         knows of its job, else all hosts equally far apart"),
    spec(Id::Global(Global::Usize), &["usize"], &["SIZE"], group::HOSTS,
        "the value of MPI_UNIVERSE_SIZE: a number, SYSTEM (the\n\
         sum of all slots) or INFINITE (not set); default: the\n\
         slots of an allocation or max-slots, else not set"),
    spec(Id::Global(Global::RankMap), &["rankmap"], &["MAP"], group::HOSTS,
        "the node of each rank, counted from 0: 0,0,1,1; or\n\
         @FILE of --save-rankmap"),
    spec(Id::Global(Global::SaveRankMap), &["save-rankmap"], &["FILE"], group::HOSTS,
        "write the node of each rank to FILE"),
    spec(Id::Global(Global::AvoidFaults), &["avoid-faults"], &[], group::HOSTS,
        "use hosts last that sessions have lost lately"),
    spec(Id::Global(Global::FaultHistory), &["fault-history"], &["FILE"], group::HOSTS,
        "the history of lost hosts, in place of your own in\n\
         ~/.local/state/scela/faults"),

    spec(Id::Global(Global::BindTo), &["bind-to"], &["WHAT"], group::BINDING,
        "bind each rank to a hwthread, core, l2cache, l3cache,\n\
         numa or package; to N of them: core:2; to a list, an\n\
         entry for each rank of a node: user:0+2,1+3; or none.\n\
         default: an even share of the node where Slurm has\n\
         given all of it to the job, else none"),
    spec(Id::Global(Global::CpusPerRank), &["cpus-per-rank"], &[N], group::BINDING,
        "give each rank N cores, and set OMP_NUM_THREADS to N"),
    spec(Id::Global(Global::MemBind), &["mem-bind", "membind"], &["WHERE"], group::BINDING,
        "bind memory to the NUMA nodes of the rank's\n\
         processors (local), or to these nodes: 0,2-3"),
    spec(Id::Global(Global::ReportBindings), &["report-bindings"], &[], group::BINDING,
        "report the processors and devices of each rank"),
    spec(Id::Global(Global::GpusPerRank), &["gpus-per-rank"], &[N], group::BINDING,
        "give each rank N GPUs of its own, the nearest ones,\n\
         and set CUDA_VISIBLE_DEVICES or the like"),
    spec(Id::Global(Global::Gres), &["gres"], &["DEVICES"], group::BINDING,
        "give each rank such devices of its own, as\n\
         NAME[:TYPE][:N]; types, and devices other than gpu,\n\
         are those of a hosts file:\n\
         node1 gres=gpu:a100:4,fpga:allreduce:1"),

    spec(Id::Global(Global::Bootstrap), &["bootstrap", "launcher"], &["NAME"], group::LAUNCH,
        "start agents by fork, ssh, slurm, pbs, lsf, sge,\n\
         flux, or exec:COMMAND with {host} in it; by default\n\
         as the allocation does, else ssh"),
    spec(Id::Global(Global::LauncherExec), &["launcher-exec", "bootstrap-exec"], &["PROGRAM"], group::LAUNCH,
        "run this in place of ssh or srun"),
    spec(Id::Global(Global::LaunchAgent), &["launch-agent"], &["COMMAND"], group::LAUNCH,
        "the command to run on the nodes as the agent"),
    spec(Id::Global(Global::Launch), &["launch"], &["SHAPE"], group::LAUNCH,
        "tree: agents start agents; flat: scela-run starts all;\n\
         linear: scela-run opens one remote shell per rank,\n\
         for comparison;\n\
         auto (default): as a model recommends"),
    spec(Id::Global(Global::Batch), &["batch"], &[N], group::LAUNCH,
        "open at most N remote shells at a time, 1 to 1024\n\
         (default: adaptive)"),
    spec(Id::Global(Global::ConnectBack), &["connect-back"], &["ADDRESS"], group::LAUNCH,
        "the address or name by which nodes reach this host"),
    spec(Id::Global(Global::Iface), &["iface"], &["NAME"], group::LAUNCH,
        "the network interface for links: ib0"),
    spec(Id::Global(Global::PortRange), &["port-range"], &["FIRST:LAST"], group::LAUNCH,
        "listen on these ports only"),
    spec(Id::Global(Global::NoPorts), &["no-ports"], &[], group::LAUNCH,
        "listen on no port: links go through the remote shells"),
    spec(Id::Global(Global::CleanProgram), &["clean-program"], &[], group::LAUNCH,
        "store no scela-run on nodes that it is sent to, and remove\n\
         one that an earlier session has stored"),
    spec(Id::Global(Global::MinNodes), &["min-nodes"], &[N], group::LAUNCH,
        "continue without nodes that fail if N nodes start"),
    spec(Id::Global(Global::Spares), &["spares"], &[N], group::LAUNCH,
        "keep N nodes of the list to replace those that fail"),
    spec(Id::Global(Global::StartTimeout), &["start-timeout"], &["TIME"], group::LAUNCH,
        "how long agents may take to report: seconds, or 2m"),
    spec(Id::Global(Global::WaitForHosts), &["wait-for-hosts"], &["TIME"], group::LAUNCH,
        "keep trying unreachable hosts for TIME: 5m\n\
         (default: 0; in Kubernetes 10m)"),
    spec(Id::Mode(Mode::Calibrate), &["calibrate"], &["LIST"], group::LAUNCH,
        "run nothing; measure the constants of the model of\n\
         start-up times on these hosts, and store them"),

    spec(Id::Global(Global::Genv), &["genv"], &["NAME", "VALUE"], group::ENVIRONMENT,
        "set a variable (NAME=VALUE does as well)").common("set a variable"),
    spec(Id::Global(Global::X), &["x"], &["NAME[=VALUE]"], group::ENVIRONMENT,
        "set a variable, or pass it on from your environment").common("set a variable, or pass yours on"),
    spec(Id::Global(Global::GenvList), &["genvlist"], &["A,B"], group::ENVIRONMENT,
        "pass only these variables of your environment"),
    spec(Id::Global(Global::GenvNone), &["genvnone"], &[], group::ENVIRONMENT,
        "pass none of your environment"),
    spec(Id::Global(Global::GenvAll), &["genvall"], &[], group::ENVIRONMENT,
        "pass all of your environment (default)"),
    spec(Id::Global(Global::Mpi), &["mpi"], &["KIND"], group::ENVIRONMENT,
        "serve this MPI library: openmpi (3 and 4), pmix\n\
         (Open MPI 5), none, or auto, which inspects the\n\
         program's file (default)"),
    spec(Id::Global(Global::MemoryAllocKinds), &["memory-alloc-kinds"], &["KINDS"], group::ENVIRONMENT,
        "the kinds of memory that the program asks MPI to\n\
         support: mpi,system,cuda:device (MPICH 4.3 and later)"),
    spec(Id::Global(Global::InitialErrhandler), &["initial-errhandler"], &["NAME"], group::ENVIRONMENT,
        "MPI's first error handler: mpi_errors_abort,\n\
         mpi_errors_are_fatal or mpi_errors_return (Open MPI 5)"),

    spec(Id::Global(Global::Stdin), &["stdin", "s"], &["RANKS"], group::STREAMS,
        "ranks that read standard input: none, all, 0,3-5,\n\
         or the name of a file for all ranks to read instead\n\
         (./0 for a file called 0); rank 0 by default").common("ranks that read standard input: none, all, 0,3-5"),
    spec(Id::Global(Global::PrependRank), &["prepend-rank", "l", "tag-output"], &[], group::STREAMS,
        "begin each line with its rank").common("prefix each line with its rank"),
    spec(Id::Global(Global::OutfilePattern), &["outfile-pattern"], &["FILE"], group::STREAMS,
        "write stdout to FILE; %r stands for the rank, %h for\n\
         the host, %n for the namespace, %j for the session;\n\
         without %r, ranks share the file, line by line").common("write stdout to FILE; %r stands for the rank"),
    spec(Id::Global(Global::ErrfilePattern), &["errfile-pattern"], &["FILE"], group::STREAMS,
        "the same for stderr"),

    spec(Id::Global(Global::Timeout), &["timeout"], &["TIME"], group::ENDING,
        "end the session after TIME: seconds, or 1.5h, 30m").common("end the session after TIME: seconds, or 1.5h, 30m"),
    spec(Id::Global(Global::Signal), &["signal"], &["SIGNAL@TIME"], group::ENDING,
        "with --timeout: send the ranks SIGNAL, such as USR1,\n\
         TIME before it ends them (@60 if it is left out)"),
    spec(Id::Global(Global::ExitTimeout), &["exit-timeout"], &["TIME"], group::ENDING,
        "end the session TIME after the first rank has ended"),
    spec(Id::Global(Global::StuckAfter), &["stuck-after"], &["TIME"], group::ENDING,
        "when ranks have waited in a fence for TIME, report\n\
         which ranks are missing; so does SIGQUIT (Ctrl-\\)"),
    spec(Id::Global(Global::KillGrace), &["kill-grace"], &["TIME"], group::ENDING,
        "how long ranks have between TERM and KILL\n\
         (default: 5 seconds)"),
    spec(Id::Global(Global::OnFailure), &["on-failure"], &["ACTION"], group::ENDING,
        "when a rank fails: abort, end all ranks (default);\n\
         continue, let the others go on; restart (or\n\
         restart=job), end all ranks and start them again;\n\
         or restart=rank, start only the failed rank again"),
    spec(Id::Global(Global::MaxRestarts), &["max-restarts"], &[N], group::ENDING,
        "start ranks again at most N times (default: 3);\n\
         hosts kept by --spares replace lost ones"),
    spec(Id::Global(Global::DisableAutoCleanup), &["disable-auto-cleanup"], &[], group::ENDING,
        "the same as --on-failure continue"),
    spec(Id::Global(Global::WithFt), &["with-ft"], &["KIND"], group::ENDING,
        "as Open MPI 5 does: ulfm (or mpi) turns on its fault\n\
         tolerance and --on-failure continue; none does not"),
    spec(Id::Global(Global::DeadTime), &["dead-time"], &["TIME[,TIME]"], group::ENDING,
        "count a host that does not answer for TIME as lost\n\
         (default: 20 seconds; 5 seconds with --on-failure\n\
         continue or restart; on this machine alone at least\n\
         5 seconds per agent, up to 2 minutes), and a process\n\
         that is silent on a host that answers, because it is\n\
         stopped or starved, after the second TIME (default:\n\
         10 minutes)"),
    spec(Id::Global(Global::Heartbeat), &["heartbeat"], &["TIME"], group::ENDING,
        "send heartbeats over links every TIME, at most a third\n\
         of the dead time (the default)"),
    spec(Id::Global(Global::CleanShm), &["clean-shm"], &["WHICH"], group::ENDING,
        "after an abnormal end, remove files in /dev/shm that\n\
         ranks had mapped: mpi (default), those with names\n\
         that MPI libraries give; all; or none"),

    spec(Id::Global(Global::AgentsPerNode), &["agents-per-node"], &[N], group::TREE,
        "start N agents on each node (default: automatic)"),
    spec(Id::Global(Global::AgentsAsNodes), &["agents-as-nodes"], &[], group::TREE,
        "treat each agent as a node of its own, for tests"),
    spec(Id::Global(Global::Fanout), &["fanout"], &[N], group::TREE,
        "give an agent at most N children, 2 to 1024\n\
         (default: by the job's size; 32 on one machine)"),
    spec(Id::Global(Global::Cache), &["cache"], &["POLICY"], group::TREE,
        "how agents cache entries of ranks: hcs, hcma,\n\
         hcmab (default) or hcmab-lru"),
    spec(Id::Global(Global::CacheEntries), &["cache-entries"], &[N], group::TREE,
        "under hcmab-lru, store at most N entries of other\n\
         agents' ranks (default: 4096)"),
    spec(Id::Global(Global::PmiPort), &["pmi-port"], &[], group::TREE,
        "let ranks connect to a loopback port for PMI"),
    spec(Id::Global(Global::NoRankSessions), &["no-rank-sessions"], &[], group::TREE,
        "give ranks no sessions of their own: the kernel's\n\
         autogroups then give all ranks of an agent the share\n\
         of one program"),

    spec(Id::Global(Global::Pool), &["pool"], &[], group::POOL,
        "run the job in the pool NAME, or in the pool 'default';\n\
         NAME follows '='").with("NAME", ONLY_AFTER_EQUALS),
    spec(Id::Global(Global::Priority), &["priority"], &[N], group::POOL,
        "start before the jobs that wait with a lower priority,\n\
         -1000 to 1000 (default: 0)"),
    spec(Id::Global(Global::NoWait), &["no-wait"], &[], group::POOL,
        "fail if the job would have to wait for slots"),
    spec(Id::Global(Global::Nodes), &["nodes"], &[N], group::POOL,
        "spread the ranks over N nodes of the pool"),
    spec(Id::Global(Global::Exclusive), &["exclusive"], &[], group::POOL,
        "share no node of the pool with another job"),
    spec(Id::Global(Global::Detach), &["detach"], &[], group::POOL,
        "print the job's number and leave it running; 'scela\n\
         attach NUMBER' shows its output"),
    spec(Id::Global(Global::OrphanTime), &["orphan-time"], &["TIME"], group::POOL,
        "let the job go on for TIME when scela-run is lost;\n\
         'scela attach' takes it over"),
    spec(Id::Global(Global::Simulate), &["simulate"], &["NODESxPPN"], group::SIMULATION,
        "simulate NODES nodes with PPN ranks each, with\n\
         the same code for the tree; --fanout and --cache apply"),
    spec(Id::Global(Global::Pattern), &["pattern"], &["PATTERN"], group::SIMULATION,
        "what ranks get after a fence: entries of neighbours,\n\
         1:2 (default), of all, 1:p; or fence, or none"),
    spec(Id::Global(Global::Latency), &["latency"], &["TIME"], group::SIMULATION,
        "latency of a link: 25us, 1ms"),
    spec(Id::Global(Global::Bandwidth), &["bandwidth"], &["BYTES"], group::SIMULATION,
        "bytes per second that a node sends: 100M, 12.5G"),
    spec(Id::Global(Global::Cores), &["cores"], &[N], group::SIMULATION,
        "all nodes share N cores, as on one machine"),
    spec(Id::Global(Global::Fanouts), &["fanouts"], &["A,B"], group::SIMULATION,
        "compare these fan-outs"),
    spec(Id::Global(Global::Seed), &["seed"], &["NUMBER"], group::SIMULATION,
        "the seed of --faults"),
    spec(Id::Global(Global::Faults), &["faults"], &[], group::SIMULATION,
        "let links and agents fail"),

    spec(Id::Global(Global::Label), &["label"], &["TEXT"], group::TALKING,
        "call the session TEXT in messages and in ps"),
    spec(Id::Global(Global::Explain), &["explain"], &[], group::TALKING,
        "print hosts, ranks, tree, commands and predicted\n\
         times; start nothing").common("print the plan and predicted times, start nothing"),
    spec(Id::Global(Global::Timing), &["timing"], &[], group::TALKING,
        "report how long each phase took").common("report how long each phase took"),
    spec(Id::Global(Global::Stats), &["stats"], &[], group::TALKING,
        "report what each level of the tree sent, answered and\n\
         stored; with a file, write it there as JSON").with("FILE.json", ".json"),
    spec(Id::Global(Global::Trace), &["trace"], &["FILE.json"], group::TALKING,
        "write the times of all steps to the file, for Perfetto\n\
         (ui.perfetto.dev) or chrome://tracing"),
    spec(Id::Global(Global::Report), &["report"], &["FILE.json"], group::TALKING,
        "write how the job ended to the file: cause, ranks,\n\
         hosts, codes, signals, last lines, times"),
    spec(Id::Global(Global::ProfileComm), &["profile-comm"], &["FILE"], group::TALKING,
        "write what MPI ranks send to each other to the file,\n\
         which 'scela comm show' reads"),
    spec(Id::Global(Global::ProfileCommCollectives), &["profile-comm-collectives"], &["WHICH"], group::TALKING,
        "count collective operations by the schedules of\n\
         docs/profiling.md ('schedule', the default) or 'none'"),
    spec(Id::Global(Global::Verbose), &["verbose", "v"], &[], group::TALKING,
        "print more; -vv still more").common("print more; -vv still more"),
    spec(Id::Global(Global::Quiet), &["quiet", "q"], &[], group::TALKING,
        "print errors only").common("print errors only"),
    spec(Id::Mode(Mode::Help), &["help", "h"], &[], group::TALKING,
        "print this text; -h prints the most common options").common("print this text; --help prints everything"),
    spec(Id::Mode(Mode::Version), &["version", "V"], &[], group::TALKING,
        "print the version").common("print the version"),
];

/// Returns the option of this name, given without dashes.
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    OPTIONS.iter().find(|spec| spec.names.contains(&name))
}

/// Returns the option and the number in a word such as `n4`, given without its dash.
pub(super) fn find_with_number(word: &str) -> Option<(&'static Spec, &str)> {
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let (name, number) = word.split_at(digits);
    let all_digits = number.bytes().all(|b| b.is_ascii_digit());
    find(name).filter(|spec| spec.takes_number() && all_digits).map(|spec| (spec, number))
}

/// Returns the option's name that is most similar to `name`, if one is similar enough.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    suggest::nearest(name.trim_start_matches('-'), OPTIONS.iter().flat_map(|spec| spec.names.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_occurs_once() {
        let mut seen = BTreeSet::new();
        for name in OPTIONS.iter().flat_map(|spec| spec.names) {
            assert!(seen.insert(name), "{name} occurs twice");
            assert!(!name.starts_with('-') && !name.contains(|c: char| c.is_ascii_digit()));
        }
    }

    #[test]
    fn each_id_occurs_once() {
        for spec in OPTIONS {
            assert_eq!(OPTIONS.iter().filter(|other| other.id == spec.id).count(), 1);
        }
        let count = |of: fn(&Id) -> bool| OPTIONS.iter().filter(|spec| of(&spec.id)).count();
        assert_eq!(count(|id| matches!(id, Id::Local(_))), Local::EnvAll as usize + 1);
        assert_eq!(count(|id| matches!(id, Id::Global(_))), Global::Faults as usize + 1);
        assert_eq!(count(|id| matches!(id, Id::Mode(_))), Mode::Version as usize + 1);
    }

    #[test]
    fn options_of_a_program_form_a_group_of_their_own() {
        for spec in OPTIONS {
            let local = matches!(spec.id, Id::Local(_));
            assert_eq!(spec.group == group::PROGRAM, local, "{:?}", spec.id);
        }
    }

    #[test]
    fn misspelt_options_have_suggestions() {
        for (typed, meant) in [
            ("nq", Some("np")),
            ("pn", Some("np")),
            ("verbos", Some("verbose")),
            ("verb", Some("verbose")),
            ("prepend", Some("prepend-rank")),
            ("prepend_rank", Some("prepend-rank")),
            ("timout", Some("timeout")),
            ("fan-out", Some("fanout")),
            ("NP", None),
            ("z", None),
            ("", None),
            ("oversubscribe-everything", None),
        ] {
            assert_eq!(nearest(typed), meant, "{typed}");
        }
        assert_eq!(nearest(&"v".repeat(100_000)), None);
    }

    #[test]
    fn numbers_glued_to_names() {
        let found = |word| find_with_number(word).map(|(spec, number)| (spec.id, number));
        assert_eq!(found("n4"), Some((Id::Local(Local::Np), "4")));
        assert_eq!(found("np16"), Some((Id::Local(Local::Np), "16")));
        assert_eq!(found("N2"), Some((Id::Global(Global::Ppn), "2")));
        for word in ["n", "4", "n4x", "v3", "x3", "wdir3", ""] {
            assert_eq!(found(word), None, "{word}");
        }
    }
}
