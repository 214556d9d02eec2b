//! What the command line means here: pure arithmetic and bookkeeping on what was typed, what the
//! machine is and which nodes there are, so that it can be tested without any of them.

pub mod checks;
mod elf;
pub mod environment;
pub mod launch;
pub(crate) mod library;
pub mod machine;
pub mod mpi;
pub mod pattern;
pub mod remote_launch;
pub mod request;
mod seats;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use nla::core::limits::{AGENTS_MAX, RANKS_MAX};
use nla::core::{CommandPlan, NamespaceId, NamespacePlan, RootSettings, SessionPlan, Subtree, owners};
use pmi::Ranks;
use thiserror::Error;

use self::seats::{Seating, rule, seating};
use crate::cluster::node_list::{HostSource, NodeList};
use crate::cluster::placement::{MapError, PlacementError, Rule};
use crate::plan::environment::{environment, is_foreign};
use crate::plan::machine::Machine;
use crate::plan::request::{Command, Options, Program, Request, StdinTo};

/// The argument that makes this program a rank of the demo.
pub const DEMO_RANK_ARGUMENT: &str = "--demo-rank";

/// The source of the ranks' standard input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputSource {
    /// The launcher's standard input.
    Standard,
    /// A file.
    File(PathBuf),
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
    /// More processes than this machine allows.
    #[error(
        "{ranks} ranks and {agents} agents do not fit on this machine: with a guardian for each agent they are \
         {} processes, and {limit} allows {max}", *ranks + 2 * *agents
    )]
    TooManyProcesses {
        /// How many ranks there would be.
        ranks: u64,
        /// How many agents there would be.
        agents: u64,
        /// The limit's name.
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// More agents than a session can have.
    #[error("{agents} agents are more than a session can have ({AGENTS_MAX})")]
    TooManyAgents {
        /// How many it would be.
        agents: u64,
    },
    /// An experiment for one machine on several.
    #[error("--agents-as-nodes plays several nodes on this machine, and cannot be used with hosts")]
    AgentsAsNodes,
    /// The number of ranks for each node is given twice.
    #[error("-ppn {ppn} and --map-by ppr:{per_node}:node do not agree")]
    TwoPerNode {
        /// One number.
        ppn: u32,
        /// The other.
        per_node: u32,
    },
    /// The text of `-rankmap`.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The ranks do not fit.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

impl PlanError {
    /// Returns the next step to try, a fragment without full stop.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TooManyRanks { .. } => "start fewer ranks with -np",
            Self::NoSuchRank { .. } => "name ranks that exist with -stdin, or start more with -np",
            Self::TooManyProcesses { .. } => "start fewer ranks with -np, or name other hosts with -hosts or -f",
            Self::TooManyAgents { .. } => "leave --agents-per-node and --launch linear out",
            Self::AgentsAsNodes => "leave --agents-as-nodes out, or name no hosts",
            Self::TwoPerNode { .. } => "leave one of them out",
            Self::Map(_) => "write the node of each rank, counted from 0, as in -rankmap 0,0,1,1",
            Self::Placement(_) => "name more hosts, or start fewer ranks",
        }
    }
}

/// A session to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For the root.
    pub settings: RootSettings,
    /// For each agent, from the first on, the node of the field that it is on, by its place there.
    /// On this machine alone all are 0.
    pub seats: Vec<usize>,
    /// What `ps` and messages call the session.
    pub label: String,
    pub(crate) input: Option<InputSource>,
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

    /// On how many nodes there are ranks, and the most on one.
    pub fn extent(&self) -> (u32, u32) {
        let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
        for (agent, some) in &self.settings.first.placement {
            *ranks.entry(self.settings.nodes.get(agent).copied().unwrap_or_default()).or_default() += some.len() as u32;
        }
        (ranks.len() as u32, ranks.into_values().max().unwrap_or_default())
    }

    /// The request with the numbers of ranks that this plan has found where none were typed. A plan
    /// that is made of it with less of the field has as many ranks: nodes may fail, a job does not
    /// shrink.
    pub fn settled(&self, request: &Request) -> Request {
        let mut request = request.clone();
        for (command, planned) in request.commands.iter_mut().zip(&self.settings.first.commands) {
            command.nprocs = Some(planned.nprocs);
        }
        request
    }
}

/// Makes the plan. It may be made again with less of the field, from the [settled](Plan::settled) request.
pub fn plan(request: &Request, machine: &Machine, field: &NodeList) -> Result<Plan, PlanError> {
    let Request { options, commands } = request;
    let mut remarks = Vec::new();
    let rule = rule(options)?;
    let sizes = sizes(commands, machine, field, &rule)?;
    let commands: Vec<CommandPlan> = commands
        .iter()
        .zip(sizes)
        .map(|(command, nprocs)| command_plan(command, nprocs, options, machine, &mut remarks))
        .collect();
    // The sizes were checked to be no more than a job can have.
    let size = commands.iter().map(|command| command.nprocs).sum();
    let Seating { nodes, placement, mapping, seats, remark } = seating(size, options, machine, field, &rule)?;
    remarks.extend(remark);
    let agents = nodes.len() as u32;
    if let NodeList::Local { .. } = field {
        check_processes(size, agents, machine)?;
    }
    let (stdin, input) = stdin(options, size, machine)?;
    let name = format!("{:08x}", machine.session & 0xffff_ffff);
    let settings = RootSettings {
        tree: Subtree::whole(agents, options.fanout()),
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
            sent: Duration::ZERO,
        },
        first: NamespacePlan {
            id: NamespaceId::FIRST,
            kvsname: format!("scela-{:016x}_0", machine.session),
            size,
            universe: universe(size, machine, field),
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
    let label = options.label.clone().unwrap_or(name);
    Ok(Plan { settings, seats, label, input, options: options.clone(), demo: request.is_demo(), remarks })
}

/// Checks that this machine can have as many processes: ranks, agents and their guardians.
fn check_processes(ranks: u32, agents: u32, machine: &Machine) -> Result<(), PlanError> {
    let (ranks, agents) = (u64::from(ranks), u64::from(agents));
    match machine.process_limits.iter().find(|(_, max)| ranks + 2 * agents > *max) {
        Some((limit, max)) => Err(PlanError::TooManyProcesses { ranks, agents, limit, max: *max }),
        None => Ok(()),
    }
}

fn command_plan(
    command: &Command,
    nprocs: u32,
    options: &Options,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> CommandPlan {
    let (inherit, set) = environment(options, &command.env, command.env_policy.as_ref(), &machine.environment, remarks);
    let (program, args) = match &command.program {
        Program::Named(program) => (program.clone(), command.args.clone()),
        Program::Demo => (machine.program.clone().into_os_string(), vec![DEMO_RANK_ARGUMENT.into()]),
    };
    let wdir = command.wdir.as_ref().map_or_else(|| machine.wdir.clone(), |wdir| machine.wdir.join(wdir));
    CommandPlan {
        nprocs,
        program: program.into_vec(),
        args: args.into_iter().map(OsString::into_vec).collect(),
        inherit,
        set,
        wdir: wdir.into_os_string().into_vec(),
    }
}

/// How many ranks each command has. All together they are no more than a job can have.
fn sizes(commands: &[Command], machine: &Machine, field: &NodeList, rule: &Rule) -> Result<Vec<u32>, PlanError> {
    let typed: u64 = commands.iter().filter_map(|command| command.nprocs).map(u64::from).sum();
    let untyped = commands.iter().filter(|command| command.nprocs.is_none()).count() as u64;
    let alone = match (rule, field) {
        (Rule::Block { per_node } | Rule::Cyclic { per_node }, NodeList::Local { slots, .. }) => {
            u64::from(per_node.or(*slots).unwrap_or(machine.cores))
        }
        // What the others leave of it, in equal parts.
        (_, NodeList::Local { .. } | NodeList::Named { .. }) => {
            (whole(field, rule).saturating_sub(typed) / untyped.max(1)).max(1)
        }
    };
    let ranks = typed + untyped * alone;
    if ranks > u64::from(RANKS_MAX) {
        return Err(PlanError::TooManyRanks { ranks });
    }
    Ok(commands.iter().map(|command| command.nprocs.unwrap_or(alone as u32)).collect())
}

/// How many ranks a field is for, if nobody says.
fn whole(field: &NodeList, rule: &Rule) -> u64 {
    let by_slots = matches!(rule, Rule::Block { per_node: None } | Rule::Cyclic { per_node: None });
    let job = field.allocation().filter(|_| by_slots).and_then(|allocation| allocation.ranks);
    job.map_or_else(|| rule.size_of(field.nodes()), u64::from)
}

/// What PMI calls the universe size: as many ranks as there are slots, as far as they are known, and
/// at least those that there are.
fn universe(size: u32, machine: &Machine, field: &NodeList) -> i32 {
    let slots = match field {
        NodeList::Local { slots, .. } => u64::from(slots.unwrap_or(machine.cores)),
        NodeList::Named { nodes, .. } => nodes.iter().filter_map(|node| node.slots).map(u64::from).sum(),
    };
    i32::try_from(slots.max(u64::from(size))).unwrap_or(i32::MAX)
}

fn stdin(options: &Options, size: u32, machine: &Machine) -> Result<(Ranks, Option<InputSource>), PlanError> {
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
        Some(StdinTo::File(path)) => {
            return Ok((Ranks::range(0..size), Some(InputSource::File(machine.wdir.join(path)))));
        }
        // Who is started in the background of a terminal must not steal what is typed there.
        None if machine.stdin_in_background => Ranks::new(),
        // The hosts were read from it.
        None if options.hosts.sources.iter().any(is_standard_input) => Ranks::new(),
        None => Ranks::range(0..1),
    };
    let source = (!takers.is_empty()).then_some(InputSource::Standard);
    Ok((takers, source))
}

fn is_standard_input(source: &HostSource) -> bool {
    matches!(source, HostSource::File(path) if path.as_os_str() == "-")
}

#[cfg(test)]
mod tests;
