//! The table of options: the one place that knows their names. Parser, help and suggestions read
//! it.

use strsim::damerau_levenshtein;

/// The least `--fanout`. With 1 the tree would be a chain, each agent one link further away.
pub const FANOUT_MIN: u32 = 2;

/// The greatest `--fanout`.
pub const FANOUT_MAX: u32 = 1024;

/// The most `--cache-entries`; nobody has so many.
pub(super) const CACHE_ENTRIES_MAX: u32 = 1 << 28;

/// The most `--cores`.
pub(super) const CORES_MAX: u32 = 1 << 20;

/// The most `--batch`: as many as an agent can have children in a tree.
pub const BATCH_MAX: u32 = FANOUT_MAX;

/// The most agents that can be asked for on one node.
pub const AGENTS_PER_NODE_MAX: u32 = 4096;

/// Which option, by what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    Local(Local),
    Global(Global),
    Mode(Mode),
}

/// An option about the command that it is typed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Local {
    Np,
    Wdir,
    Env,
    EnvList,
    EnvNone,
    EnvAll,
}

/// An option about the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    Ppn,
    Genv,
    X,
    GenvList,
    GenvNone,
    GenvAll,
    Mpi,
    Stdin,
    PrependRank,
    OutfilePattern,
    ErrfilePattern,
    Timeout,
    KillGrace,
    AgentsPerNode,
    AgentsAsNodes,
    Fanout,
    Cache,
    CacheEntries,
    PmiPort,
    Label,
    Timing,
    Stats,
    Verbose,
    Quiet,
    HostFile,
    HostList,
    Exclude,
    Select,
    ResourceManager,
    MapBy,
    RankMap,
    Bootstrap,
    LauncherExec,
    LaunchAgent,
    Launch,
    Batch,
    ConnectBack,
    Iface,
    PortRange,
    NoPorts,
    MinNodes,
    Spares,
    StartTimeout,
    Explain,
    Simulate,
    Pattern,
    Latency,
    Bandwidth,
    Cores,
    Fanouts,
    Seed,
    Faults,
}

/// An option about what to do at all. It stands on the command line only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    ConfigFile,
    Demo,
    Calibrate,
    Help,
    Version,
}

/// A heading of the help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Program,
    Programs,
    Hosts,
    Launch,
    Environment,
    Streams,
    Ending,
    Tree,
    Simulation,
    Talking,
}

impl Group {
    /// The heading's text.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Program => "For the program that follows",
            Self::Programs => "For all programs",
            Self::Hosts => "Hosts",
            Self::Launch => "How agents get there",
            Self::Environment => "Environment of all programs",
            Self::Streams => "Input and output",
            Self::Ending => "How it ends",
            Self::Tree => "The tree of agents",
            Self::Simulation => "A simulation in place of a job",
            Self::Talking => "What scela-run says",
        }
    }
}

/// What is known about one option.
#[derive(Debug)]
pub(super) struct Spec {
    /// Which one it is.
    pub(super) id: Id,
    /// Its names without dashes, the one to show first.
    pub(super) names: &'static [&'static str],
    /// What its values are called; as many as it takes.
    pub(super) values: &'static [&'static str],
    /// A value that it may have and need not.
    pub(super) optional: Option<Optional>,
    /// Where help shows it.
    pub(super) group: Group,
    /// What help says, in lines that fit.
    pub(super) help: &'static str,
}

/// A value that may be left out. Behind `=` it may be anything; the next word is only taken for it if
/// it looks so.
#[derive(Debug)]
pub(super) struct Optional {
    /// What it is called.
    pub(super) name: &'static str,
    /// How a word ends that is one.
    pub(super) ending: &'static str,
}

impl Spec {
    /// This option, with a value that may be left out.
    const fn with(mut self, name: &'static str, ending: &'static str) -> Self {
        self.optional = Some(Optional { name, ending });
        self
    }

    /// Whether a configfile has no use for it.
    pub(super) fn is_of_the_command_line(&self) -> bool {
        matches!(self.id, Id::Mode(_)) || self.group == Group::Simulation
    }

    /// Whether its value is a number, which may be glued to the name.
    fn takes_number(&self) -> bool {
        self.values == [N]
    }
}

const N: &str = "N";

const fn spec(
    id: Id,
    names: &'static [&'static str],
    values: &'static [&'static str],
    group: Group,
    help: &'static str,
) -> Spec {
    Spec { id, names, values, optional: None, group, help }
}

/// All options, in the order of the help text.
#[rustfmt::skip]
pub(super) const OPTIONS: &[Spec] = &[
    spec(Id::Local(Local::Np), &["np", "n", "c", "sz"], &[N], Group::Program,
        "start N ranks of it; without this, as many as the\n\
         allocation or the machine has room for"),
    spec(Id::Local(Local::Wdir), &["wdir", "wd"], &["DIR"], Group::Program,
        "start it in DIR"),
    spec(Id::Local(Local::Env), &["env"], &["NAME", "VALUE"], Group::Program,
        "set a variable (NAME=VALUE does as well)"),
    spec(Id::Local(Local::EnvList), &["envlist"], &["A,B"], Group::Program,
        "pass only these variables of your environment"),
    spec(Id::Local(Local::EnvNone), &["envnone"], &[], Group::Program,
        "pass none of your environment"),
    spec(Id::Local(Local::EnvAll), &["envall"], &[], Group::Program,
        "pass all of your environment (default)"),

    spec(Id::Global(Global::Ppn), &["ppn", "N", "npernode"], &[N], Group::Programs,
        "put at most N ranks on a node"),
    spec(Id::Mode(Mode::ConfigFile), &["configfile"], &["FILE"], Group::Programs,
        "read the programs from FILE, a line of options,\n\
         program and arguments for each; # begins a comment,\n\
         quotes and backslashes work as in a shell"),
    spec(Id::Mode(Mode::Demo), &["demo"], &[], Group::Programs,
        "run a built-in PMI hello; no MPI is needed"),

    spec(Id::Global(Global::HostFile), &["f", "hostfile", "machinefile"], &["FILE"], Group::Hosts,
        "use the hosts in FILE, - for standard\n\
         input"),
    spec(Id::Global(Global::HostList), &["hosts", "host", "H"], &["LIST"], Group::Hosts,
        "use these: node[001-032],gpu[1-4]:8,ada@login;\n\
         lists and files add up"),
    spec(Id::Global(Global::Exclude), &["exclude"], &["LIST"], Group::Hosts,
        "leave these out"),
    spec(Id::Global(Global::Select), &["select"], &["INDICES"], Group::Hosts,
        "take only these of the list, counted from 1: 1..4,10"),
    spec(Id::Global(Global::ResourceManager), &["rm", "rmk"], &["NAME"], Group::Hosts,
        "whose allocation counts: slurm, pbs, lsf, sge, flux,\n\
         none, or auto (default), what is there"),
    spec(Id::Global(Global::MapBy), &["map-by"], &["WHAT"], Group::Hosts,
        "fill nodes slot by slot (default), deal ranks out\n\
         node by node, or put N on each: ppr:N:node"),
    spec(Id::Global(Global::RankMap), &["rankmap"], &["MAP"], Group::Hosts,
        "the node of each rank, counted from 0: 0,0,1,1"),

    spec(Id::Global(Global::Bootstrap), &["bootstrap", "launcher"], &["NAME"], Group::Launch,
        "start agents by fork, ssh, slurm, pbs, lsf, sge,\n\
         flux, or exec:COMMAND with {host} in it; by default\n\
         as the allocation does, else ssh"),
    spec(Id::Global(Global::LauncherExec), &["launcher-exec", "bootstrap-exec"], &["PROGRAM"], Group::Launch,
        "run this in place of ssh or srun"),
    spec(Id::Global(Global::LaunchAgent), &["launch-agent"], &["COMMAND"], Group::Launch,
        "what to run on the nodes as the agent"),
    spec(Id::Global(Global::Launch), &["launch"], &["SHAPE"], Group::Launch,
        "who starts agents: tree (agents do), flat (scela-run\n\
         does), linear (it does, a session for each rank, to\n\
         compare with) or auto (default), as a model says"),
    spec(Id::Global(Global::Batch), &["batch"], &[N], Group::Launch,
        "open at most N sessions at a time, 1 to 1024\n\
         (default: adaptive)"),
    spec(Id::Global(Global::ConnectBack), &["connect-back"], &["ADDRESS"], Group::Launch,
        "the address or name that nodes reach this host by"),
    spec(Id::Global(Global::Iface), &["iface"], &["NAME"], Group::Launch,
        "the network interface for links: ib0"),
    spec(Id::Global(Global::PortRange), &["port-range"], &["FIRST:LAST"], Group::Launch,
        "listen on these ports only"),
    spec(Id::Global(Global::NoPorts), &["no-ports"], &[], Group::Launch,
        "listen nowhere: links go through the sessions"),
    spec(Id::Global(Global::MinNodes), &["min-nodes"], &[N], Group::Launch,
        "go on without bad nodes if N are good"),
    spec(Id::Global(Global::Spares), &["spares"], &[N], Group::Launch,
        "keep N nodes of the list for those that fail"),
    spec(Id::Global(Global::StartTimeout), &["start-timeout"], &["TIME"], Group::Launch,
        "by when all agents must be there: seconds, or 2m"),
    spec(Id::Mode(Mode::Calibrate), &["calibrate"], &["LIST"], Group::Launch,
        "run nothing; measure on these hosts what the model of\n\
         start-up times needs, and keep it"),

    spec(Id::Global(Global::Genv), &["genv"], &["NAME", "VALUE"], Group::Environment,
        "set a variable (NAME=VALUE does as well)"),
    spec(Id::Global(Global::X), &["x"], &["NAME[=VALUE]"], Group::Environment,
        "set a variable, or pass it on from your environment"),
    spec(Id::Global(Global::GenvList), &["genvlist"], &["A,B"], Group::Environment,
        "pass only these variables of your environment"),
    spec(Id::Global(Global::GenvNone), &["genvnone"], &[], Group::Environment,
        "pass none of your environment"),
    spec(Id::Global(Global::GenvAll), &["genvall"], &[], Group::Environment,
        "pass all of your environment (default)"),
    spec(Id::Global(Global::Mpi), &["mpi"], &["KIND"], Group::Environment,
        "set what this MPI library needs: openmpi (3 and 4),\n\
         none, or auto, which looks into the program's file\n\
         (default)"),

    spec(Id::Global(Global::Stdin), &["stdin", "s"], &["WHO"], Group::Streams,
        "who reads standard input: none, all, ranks (0,3-5),\n\
         or the name of a file for all ranks to read instead\n\
         (./0 for a file called 0); rank 0 by default"),
    spec(Id::Global(Global::PrependRank), &["prepend-rank", "l", "tag-output"], &[], Group::Streams,
        "begin each line with its rank"),
    spec(Id::Global(Global::OutfilePattern), &["outfile-pattern"], &["FILE"], Group::Streams,
        "write stdout to FILE; %r stands for the rank, %h for\n\
         the host, %j for the session"),
    spec(Id::Global(Global::ErrfilePattern), &["errfile-pattern"], &["FILE"], Group::Streams,
        "the same for stderr"),

    spec(Id::Global(Global::Timeout), &["timeout"], &["TIME"], Group::Ending,
        "end the session after TIME: seconds, or 1.5h, 30m"),
    spec(Id::Global(Global::KillGrace), &["kill-grace"], &["TIME"], Group::Ending,
        "how long ranks have between TERM and KILL\n\
         (default: 5 seconds)"),

    spec(Id::Global(Global::AgentsPerNode), &["agents-per-node"], &[N], Group::Tree,
        "start N agents on each node (default: automatic)"),
    spec(Id::Global(Global::AgentsAsNodes), &["agents-as-nodes"], &[], Group::Tree,
        "let each agent be a node of its own, for tests"),
    spec(Id::Global(Global::Fanout), &["fanout"], &[N], Group::Tree,
        "give an agent at most N children, 2 to 1024\n\
         (default: 32)"),
    spec(Id::Global(Global::Cache), &["cache"], &["POLICY"], Group::Tree,
        "how agents cache what ranks publish: hcs, hcma,\n\
         hcmab (default) or hcmab-lru"),
    spec(Id::Global(Global::CacheEntries), &["cache-entries"], &[N], Group::Tree,
        "the most values that an agent keeps of others' under\n\
         hcmab-lru (default: 4096)"),
    spec(Id::Global(Global::PmiPort), &["pmi-port"], &[], Group::Tree,
        "let ranks connect to a loopback port for PMI"),

    spec(Id::Global(Global::Simulate), &["simulate"], &["NODESxPPN"], Group::Simulation,
        "simulate so many nodes with so many ranks each, with\n\
         the same code for the tree; --fanout and --cache hold"),
    spec(Id::Global(Global::Pattern), &["pattern"], &["PATTERN"], Group::Simulation,
        "what ranks get after a fence: their neighbours'\n\
         entries, 1:2 (default), all, 1:p, or fence or none"),
    spec(Id::Global(Global::Latency), &["latency"], &["TIME"], Group::Simulation,
        "of a link: 25us, 1ms"),
    spec(Id::Global(Global::Bandwidth), &["bandwidth"], &["BYTES"], Group::Simulation,
        "per second, of what a node sends: 100M, 12.5G"),
    spec(Id::Global(Global::Cores), &["cores"], &[N], Group::Simulation,
        "all nodes share N cores, as on one machine"),
    spec(Id::Global(Global::Fanouts), &["fanouts"], &["A,B"], Group::Simulation,
        "compare these fan-outs"),
    spec(Id::Global(Global::Seed), &["seed"], &["NUMBER"], Group::Simulation,
        "what --faults are drawn from"),
    spec(Id::Global(Global::Faults), &["faults"], &[], Group::Simulation,
        "let links and agents fail"),

    spec(Id::Global(Global::Label), &["label"], &["TEXT"], Group::Talking,
        "call the session TEXT in messages and in ps"),
    spec(Id::Global(Global::Explain), &["explain"], &[], Group::Talking,
        "print hosts, ranks, tree, commands and predicted\n\
         times; start nothing"),
    spec(Id::Global(Global::Timing), &["timing"], &[], Group::Talking,
        "tell how long each phase took"),
    spec(Id::Global(Global::Stats), &["stats"], &[], Group::Talking,
        "tell what each level of the tree sent, answered and\n\
         held; with a file, write it there as JSON").with("FILE.json", ".json"),
    spec(Id::Global(Global::Verbose), &["verbose", "v"], &[], Group::Talking,
        "say more; -vv still more"),
    spec(Id::Global(Global::Quiet), &["quiet", "q"], &[], Group::Talking,
        "say nothing but errors"),
    spec(Id::Mode(Mode::Help), &["help", "h"], &[], Group::Talking,
        "print this text"),
    spec(Id::Mode(Mode::Version), &["version", "V"], &[], Group::Talking,
        "print the version"),
];

/// The option of this name, given without dashes.
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    OPTIONS.iter().find(|spec| spec.names.contains(&name))
}

/// The option and the number in a word like `n4`, given without its dash.
pub(super) fn find_with_number(word: &str) -> Option<(&'static Spec, &str)> {
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let (name, number) = word.split_at(digits);
    let all_digits = number.bytes().all(|b| b.is_ascii_digit());
    find(name).filter(|spec| spec.takes_number() && all_digits).map(|spec| (spec, number))
}

/// The name nearest to `name`, if one is near enough to be what was meant.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    nearest_of(name, OPTIONS.iter().flat_map(|spec| spec.names.iter().copied()))
}

/// The candidate nearest to `word`: one that it is the beginning of, or that differs in at most a
/// third of its letters. A single letter is near to nothing.
pub(super) fn nearest_of<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 64;
    if word.len() < 2 || word.len() > WORD_BYTES_MAX {
        return None;
    }
    let far = (word.chars().count() / 3).max(1);
    candidates
        .filter_map(|candidate| {
            let begun = word.len() >= 3 && candidate.starts_with(word);
            let distance = if begun { 1 } else { damerau_levenshtein(word, candidate) };
            // A one-letter name is one step away from every word of two letters.
            let near = distance <= far && candidate.len() > 1;
            let same_length = candidate.len() == word.len();
            let same_first = candidate.chars().next() == word.chars().next();
            near.then_some((distance, !same_length, !same_first, candidate))
        })
        .min_by_key(|&(distance, longer, other, _)| (distance, longer, other))
        .map(|(.., candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_is_there_once() {
        let mut seen = BTreeSet::new();
        for name in OPTIONS.iter().flat_map(|spec| spec.names) {
            assert!(seen.insert(name), "{name} is there twice");
            assert!(!name.starts_with('-') && !name.contains(|c: char| c.is_ascii_digit()));
        }
    }

    #[test]
    fn each_id_is_there_once() {
        for spec in OPTIONS {
            assert_eq!(OPTIONS.iter().filter(|other| other.id == spec.id).count(), 1);
        }
        let count = |of: fn(&Id) -> bool| OPTIONS.iter().filter(|spec| of(&spec.id)).count();
        assert_eq!(count(|id| matches!(id, Id::Local(_))), Local::EnvAll as usize + 1);
        assert_eq!(count(|id| matches!(id, Id::Global(_))), Global::Faults as usize + 1);
        assert_eq!(count(|id| matches!(id, Id::Mode(_))), Mode::Version as usize + 1);
    }

    #[test]
    fn help_groups_by_whom_an_option_is_about() {
        for spec in OPTIONS {
            let local = matches!(spec.id, Id::Local(_));
            assert_eq!(spec.group == Group::Program, local, "{:?}", spec.id);
        }
    }

    #[test]
    fn near_misses() {
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
