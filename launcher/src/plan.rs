//! What the command line means on this machine: pure arithmetic and bookkeeping on what was typed
//! and what the machine is, so that it can be tested without either.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use nla::core::limits::{RANKS_MAX, RANKS_PER_AGENT};
use nla::core::{
    AgentId, CommandPlan, Inherit, NamespaceId, NamespacePlan, RootSettings, SessionPlan, Subtree, Variable, owners,
    place,
};
use nla::sys::ShellState;
use pmi::{Mapping, Ranks};
use thiserror::Error;

use crate::cli::{EnvChange, EnvPolicy, Options, Program, Request, StdinTo};
use crate::input::Source;

/// Descriptors that an agent needs for one rank: its output, its errors, PMI and, at times, input.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Descriptors that an agent needs for itself.
const DESCRIPTORS_OF_AGENT: u64 = 128;
/// From this many ranks on each core gets an agent: below, starting one more costs more than it
/// saves.
const RANKS_FOR_MORE_AGENTS: u32 = 64;
/// An agent with about so many ranks is quickest: they and it still fit into a core's caches, so
/// that 512 ranks get their entries from 4 agents in three quarters of the time that 2 take.
const RANKS_AT_BEST: u32 = 128;
/// More agents than this for each core cost more than they save: each takes in, and keeps, all that is
/// on the board. With 8 agents on 2 cores 1,024 ranks get all entries over the wire in 8 s, with 4 in
/// 9 to 10; but they start faster with 4, and through libpmi each has its neighbours' entries after 0.039 s
/// in place of 0.049.
const AGENTS_PER_CORE_AT_BEST: u32 = 2;

/// What the plan needs to know about where it runs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The launcher's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub wdir: PathBuf,
    /// Its own program file, for the demo.
    pub program: PathBuf,
    /// Cores that it may use.
    pub cores: u32,
    /// What its shell gave it.
    pub shell: ShellState,
    /// Standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Standard input is a terminal in whose background the launcher was started.
    pub stdin_in_background: bool,
    /// The session's public number.
    pub session: u64,
}

/// Why a request cannot be carried out here.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// More ranks than a namespace can have.
    #[error("{ranks} ranks are more than a job can have ({RANKS_MAX})")]
    TooManyRanks {
        /// How many were asked for.
        ranks: u64,
    },
    /// Input for a rank that will not exist.
    #[error("standard input is to go to rank {rank}, but the ranks are 0 to {}", size - 1)]
    NoSuchRank {
        /// Which.
        rank: u32,
        /// How many there are.
        size: u32,
    },
}

/// A session to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For the root.
    pub settings: RootSettings,
    /// What `ps` and messages call the session.
    pub label: String,
    pub(crate) input: Option<Source>,
    /// The typed options.
    pub options: Options,
    /// The demo is to be run.
    pub demo: bool,
    /// Things that the user should hear, one line each.
    pub remarks: Vec<String>,
}

impl Plan {
    /// How many ranks the first namespace has.
    pub fn size(&self) -> u32 {
        self.settings.first.size
    }

    /// How many agents there are.
    pub fn agents(&self) -> u32 {
        self.settings.tree.size() - 1
    }
}

/// Makes the plan.
pub fn plan(request: Request, machine: &Machine) -> Result<Plan, PlanError> {
    let demo = request.is_demo();
    let Request { options, commands } = request;
    let mut remarks = Vec::new();
    let commands: Vec<CommandPlan> = commands
        .into_iter()
        .map(|command| {
            let (inherit, set) =
                environment(&options, &command.env, command.env_policy.as_ref(), machine, &mut remarks);
            let (program, args) = match command.program {
                Program::Named(program) => (program.into_vec(), command.args),
                Program::Demo => (
                    machine.program.clone().into_os_string().into_vec(),
                    vec![OsString::from(crate::demo::RANK_ARGUMENT)],
                ),
            };
            let wdir = command.wdir.map_or_else(|| machine.wdir.clone(), |wdir| machine.wdir.join(wdir));
            CommandPlan {
                nprocs: command.nprocs.or(options.ppn).unwrap_or(machine.cores),
                program,
                args: args.into_iter().map(OsString::into_vec).collect(),
                inherit,
                set,
                wdir: wdir.into_os_string().into_vec(),
            }
        })
        .collect();
    let ranks: u64 = commands.iter().map(|command| u64::from(command.nprocs)).sum();
    let size = u32::try_from(ranks).ok().filter(|size| *size <= RANKS_MAX).ok_or(PlanError::TooManyRanks { ranks })?;

    let agents = agents(size, &options, machine);
    let ids: Vec<_> = (1..=agents).map(AgentId).collect();
    let nodes: BTreeMap<AgentId, u32> =
        ids.iter().map(|id| (*id, if options.agents_as_nodes { id.0 - 1 } else { 0 })).collect();
    let (placement, mapping) = match options.ppn.filter(|_| options.agents_as_nodes) {
        Some(ppn) => place_by(ppn, size, &ids),
        None => {
            let placement = place(size, &ids);
            let mapping = Mapping::from_nodes(
                placement.iter().flat_map(|(agent, ranks)| std::iter::repeat_n(nodes[agent], ranks.len() as usize)),
            );
            (placement, mapping)
        }
    };
    if let Some(ppn) = options.ppn {
        let nodes = if options.agents_as_nodes { agents } else { 1 };
        let room = u64::from(ppn) * u64::from(nodes);
        if ranks > room {
            remarks.push(format!(
                "{ranks} ranks are more than -ppn {ppn} on {nodes} node(s) makes; they are started all the same"
            ));
        }
    }
    let (stdin, input) = stdin(&options, size, machine)?;
    let name = format!("{:08x}", machine.session & 0xffff_ffff);
    let settings = RootSettings {
        tree: Subtree::whole(agents, options.fanout),
        session: SessionPlan {
            environment: machine
                .environment
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .filter(|(name, _)| !is_foreign(name))
                .collect(),
            shell: nla::wire::encode(&machine.shell).into(),
            hold_lines: !(machine.stdout_is_terminal || size == 1),
            pmi_port: options.pmi_port,
            kill_grace: options.kill_grace,
            cache: options.cache,
            stats: options.stats.is_some(),
        },
        first: NamespacePlan {
            id: NamespaceId::FIRST,
            kvsname: format!("scela-{:016x}_0", machine.session),
            size,
            universe: i32::try_from(size.max(machine.cores)).unwrap_or(i32::MAX),
            spawner: None,
            commands,
            mapping,
            owners: owners(&placement, &nodes),
            placement,
            preputs: Vec::new(),
            stdin,
        },
        nodes,
    };
    Ok(Plan { settings, label: options.label.clone().unwrap_or(name), input, options, demo, remarks })
}

/// How many agents this machine gets.
fn agents(size: u32, options: &Options, machine: &Machine) -> u32 {
    if let Some(agents) = options.agents_per_node {
        return agents;
    }
    if let (true, Some(ppn)) = (options.agents_as_nodes, options.ppn) {
        return size.div_ceil(ppn);
    }
    let descriptors = machine
        .shell
        .limits
        .iter()
        .find(|(resource, _, _)| *resource == libc_nofile())
        .map_or(u64::MAX, |(_, _, hard)| *hard);
    let room = descriptors.saturating_sub(DESCRIPTORS_OF_AGENT) / DESCRIPTORS_PER_RANK;
    let most = u64::from(RANKS_PER_AGENT).min(room).max(1) as u32;
    let by_cores = if size >= RANKS_FOR_MORE_AGENTS { machine.cores } else { 1 };
    let by_speed = size.div_ceil(RANKS_AT_BEST).min(machine.cores.saturating_mul(AGENTS_PER_CORE_AT_BEST));
    size.div_ceil(most).max(by_cores).max(by_speed).max(1)
}

/// RLIMIT_NOFILE, the same number on all Linux machines that ScELA runs on.
fn libc_nofile() -> u32 {
    nix::sys::resource::Resource::RLIMIT_NOFILE as u32
}

/// `ppn` ranks on each agent in turn, around and around.
fn place_by(ppn: u32, size: u32, agents: &[AgentId]) -> (Vec<(AgentId, Ranks)>, Mapping) {
    let node = |rank: u32| (rank / ppn) as usize % agents.len();
    let mut placement: BTreeMap<AgentId, Ranks> = BTreeMap::new();
    for rank in 0..size {
        placement.entry(agents[node(rank)]).or_default().insert(pmi::Rank(rank));
    }
    (placement.into_iter().collect(), Mapping::from_nodes((0..size).map(|rank| node(rank) as u32)))
}

fn stdin(options: &Options, size: u32, machine: &Machine) -> Result<(Ranks, Option<Source>), PlanError> {
    let takers = match &options.stdin {
        Some(StdinTo::None) => Ranks::new(),
        Some(StdinTo::All) => Ranks::range(0..size),
        Some(StdinTo::Ranks(intervals)) => {
            let mut ranks = Ranks::new();
            for (first, last) in intervals {
                if *last >= size {
                    return Err(PlanError::NoSuchRank { rank: *last, size });
                }
                ranks.union_with(&Ranks::range(*first..*last + 1));
            }
            ranks
        }
        Some(StdinTo::File(path)) => return Ok((Ranks::range(0..size), Some(Source::File(machine.wdir.join(path))))),
        // Who is started in the background of a terminal must not steal what is typed there.
        None if machine.stdin_in_background => Ranks::new(),
        None => Ranks::range(0..1),
    };
    let source = (!takers.is_empty()).then_some(Source::Standard);
    Ok((takers, source))
}

/// The environment of one command's ranks: what is inherited, and what is set on top.
fn environment(
    options: &Options,
    own: &[EnvChange],
    own_policy: Option<&EnvPolicy>,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> (Inherit, Vec<Variable>) {
    let inherit = match own_policy.or(options.genv_policy.as_ref()) {
        None | Some(EnvPolicy::All) => Inherit::All,
        Some(EnvPolicy::None) => Inherit::Nothing,
        Some(EnvPolicy::List(names)) => Inherit::Names(names.iter().map(|name| name.as_bytes().to_vec()).collect()),
    };
    let mut set = Vec::new();
    for change in options.genv.iter().chain(own) {
        match change {
            EnvChange::Set(name, value) => set.push((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
            EnvChange::Pass(name) => match machine.environment.iter().find(|(known, _)| known == name) {
                Some((name, value)) => set.push((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
                None => {
                    let remark = format!("'{}' is to be passed to the ranks, but is not set", name.to_string_lossy());
                    if !remarks.contains(&remark) {
                        remarks.push(remark);
                    }
                }
            },
        }
    }
    (inherit, set)
}

/// What an enclosing launcher, or an enclosing ScELA, left in the environment for its own ranks:
/// an MPI library that sees it would talk to that one.
fn is_foreign(name: &[u8]) -> bool {
    const PREFIXES: [&str; 11] = [
        "PMI_",
        "PMIX_",
        "HYDI_",
        "HYDRA_",
        "SCELA_GUARDIAN",
        "SCELA_SEGMENT",
        "OMPI_COMM_WORLD_",
        "PALS_",
        "ALPS_APP_",
        "MV2_COMM_WORLD_",
        "SLURM_STEP_",
    ];
    const NAMES: [&str; 17] = [
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "MPIRUN_RSH_LAUNCH",
        "I_MPI_PMI_LIBRARY",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_STEPID",
        "SLURM_NODEID",
        "SLURM_TASK_PID",
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_SRUN_COMM_HOST",
        "SLURM_SRUN_COMM_PORT",
        "SLURM_MPI_TYPE",
        "FLUX_TASK_RANK",
        "FLUX_TASK_LOCAL_ID",
        "PRTE_LAUNCHED",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
        || NAMES.iter().any(|known| name == known.as_bytes())
}

/// The launcher's environment, read once.
pub fn environment_of_process() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| !name.is_empty() && !name.as_encoded_bytes().contains(&b'=')).collect()
}

/// Whether `name` is set to something in `environment`.
pub fn is_set(environment: &[(OsString, OsString)], name: &str) -> bool {
    environment.iter().any(|(known, value)| known == OsStr::new(name) && !value.is_empty())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
