//! Makes the plan of a session from the request, the machine and the node list. Planning itself does no I/O, so
//! tests need neither a machine nor nodes.

pub(crate) mod accelerators;
pub(crate) mod agent_layout;
pub(crate) mod binding;
pub mod checks;
pub mod collect;
mod elf;
pub mod environment;
mod fitting;
pub mod launch;
pub(crate) mod library;
pub mod machine;
pub mod mpi;
pub(crate) mod mpi_user;
pub(crate) mod needs;
mod overwrites;
pub mod pattern;
pub mod placing;
pub mod pmix;
pub mod pool_name;
pub mod process_limits;
mod profile;
mod python;
pub mod remote_launch;
pub mod request;
pub mod stage;
pub(crate) mod wrapper;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use litemap::LiteMap;
use nla::core::limits::{PIECE_BYTES, RANKS_MAX};
use nla::core::{
    AcceleratorPlan, CollectPlan, CommandPlan, DirectOutput, MapWithin, NamespaceId, NamespacePlan, RankSessions,
    RootSettings, SessionPlan, StagePlan, Subtree, TraceScope, owners,
};
use nla::driver::StageSource;
use pmi::{MEMORY_ALLOC_KINDS, Ranks};

use self::agent_layout::{AgentLayout, agent_layout, rule};
use crate::cluster::node::Node;
use crate::cluster::node_list::{HostSource, NodeList};
use crate::cluster::placement::Rule;
use crate::cluster::placement::talk::Talked;
use crate::plan::environment::{environment, is_foreign, search_path};
use crate::plan::machine::Machine;
use crate::plan::mpi_user::MpiUser;
use crate::plan::request::{Command, Options, Program, Request, StdinTo, Universe};
use crate::refusal::Refusal;

/// The argument that makes scela-run a rank of the demo.
pub const DEMO_RANK_ARGUMENT: &str = "--demo-rank";

/// The source of the ranks' standard input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputSource {
    /// The launcher's standard input.
    Standard,
    /// A file.
    File(PathBuf),
}

/// The plan of a session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The settings of the root.
    pub settings: RootSettings,
    /// The node of each agent, in the order of the agents, as an index into the node list. All are 0 on this machine
    /// alone.
    pub node_of_agent: Vec<usize>,
    /// The session's name in `ps` and in messages.
    pub label: String,
    /// The source of standard input; `None` if no rank gets any.
    pub(crate) input: Option<InputSource>,
    /// The files by which each command may call MPI, once they have been looked for.
    pub(crate) mpi_users: Option<Vec<Vec<MpiUser>>>,
    /// The typed options.
    pub options: Options,
    /// Whether the session is the demo.
    pub demo: bool,
    /// Notes for the user, one line each.
    pub remarks: Vec<String>,
    /// The files that every node gets, in the order of the session's plan.
    pub files: Vec<StageSource>,
    /// The gain of mapping by traffic; `None` if ranks are placed otherwise.
    pub talked: Option<Talked>,
    /// The directory for each pattern of files that are brought back.
    pub collect_to: Vec<PathBuf>,
}

impl Plan {
    /// Returns the number of ranks of the first namespace.
    pub fn size(&self) -> u32 {
        self.settings.first.size
    }

    /// Returns the number of agents.
    pub fn agents(&self) -> u32 {
        self.settings.tree.size() - 1
    }

    /// Sets the fan-out of the tree of links.
    pub fn set_fanout(&mut self, fanout: u32) {
        self.options.fanout = Some(fanout);
        self.settings.tree = Subtree::whole(self.agents(), fanout);
    }

    /// Returns the number of nodes that have ranks, and the most ranks on one node.
    pub fn extent(&self) -> (u32, u32) {
        let mut ranks_of_node: LiteMap<u32, u32> = LiteMap::new();
        for (agent, ranks) in &self.settings.first.placement {
            let node = self.settings.nodes.get(agent).copied().unwrap_or_default();
            *ranks_of_node.entry(node).or_default() += ranks.len() as u32;
        }
        (ranks_of_node.len() as u32, ranks_of_node.values().copied().max().unwrap_or_default())
    }

    /// Returns the request with this plan's number of ranks for each command without one. If nodes fail, a new plan
    /// from this request with fewer nodes keeps the size of the job.
    pub fn with_sizes(&self, request: &Request) -> Request {
        let mut request = request.clone();
        for (command, planned) in request.commands.iter_mut().zip(&self.settings.first.commands) {
            command.nprocs = Some(planned.nprocs);
        }
        request
    }
}

/// Returns the session's name in `ps` and in messages.
pub fn label(options: &Options, machine: &Machine) -> String {
    options.label.clone().unwrap_or_else(|| format!("{:08x}", machine.session & 0xffff_ffff))
}

/// Makes the plan. After nodes have failed, it may be made again for fewer nodes from the request
/// [with sizes](Plan::with_sizes).
pub fn plan(request: &Request, machine: &Machine, node_list: &NodeList) -> Result<Plan, Refusal> {
    let Request { options, commands } = request;
    let mut remarks = Vec::new();
    let rule = rule(options)?;
    let requests = accelerators::requests(&options.accelerators)?;
    let limited = accelerators::limited(&requests, node_list, &rule, machine.cores, options.pool.is_some())?;
    let sizes = sizes(commands, options, machine, &limited, &rule)?;
    let commands: Vec<CommandPlan> = commands
        .iter()
        .zip(sizes)
        .map(|(command, nprocs)| command_plan(command, nprocs, options, machine, &mut remarks))
        .collect();
    // `sizes` has checked that the sum is at most RANKS_MAX.
    let size = commands.iter().map(|command| command.nprocs).sum();
    accelerators::check(&requests, node_list, size, options.pool.is_some())?;
    let (stdin, input) = stdin(options, size, machine)?;
    let AgentLayout { nodes, placement, mapping, node_of_agent, remark, mut talked } =
        agent_layout(size, stdin.len() as u32, options, machine, &limited, &rule)?;
    let offers = accelerators::offers(&requests, node_list, &placement, &node_of_agent)?;
    remarks.extend(remark);
    remarks.extend(talked.as_ref().and_then(|talked| talked.remark.clone()));
    let agents = nodes.len() as u32;
    let mut planned = options.clone();
    if matches!(node_list, NodeList::Local { .. }) {
        planned.choose_dead_time_here(agents);
    }
    let mut binding = binding::policy(&options.binding, node_list);
    if let Some(talk) = options.hosts.talk.as_ref().filter(|_| binding::has_order(&binding)) {
        binding::order(&mut binding, talk, &mapping, &mut talked)?;
    }
    let settings = RootSettings {
        stuck_after: options.stuck_after,
        exit_timeout: options.exit_timeout,
        expects_pmi: false,
        max_restarts: options.max_restarts.unwrap_or(request::MAX_RESTARTS_DEFAULT),
        packs: false,
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
            direct: [&options.outfile_pattern, &options.errfile_pattern].map(|pattern| {
                let is_unchanged = pattern.is_none() && !options.prepend_rank;
                let may_write = is_unchanged && !options.agents_as_nodes;
                if may_write { DirectOutput::of_agents(agents) } else { DirectOutput::Never }
            }),
            pmi_port: options.pmi_port,
            kill_grace: options.kill_grace(),
            cache: options.cache,
            clean_shm: options.clean_shm,
            on_failure: options.on_failure,
            dead_time: planned.liveness().dead_time,
            has_ports: !options.launch.no_ports,
            rank_sessions: if options.no_rank_sessions { RankSessions::None } else { RankSessions::All },
            stats: options.stats.is_some(),
            trace: options.trace.is_some().then(|| TraceScope::of(agents)),
            pmix: None,
            binding,
            accelerators: AcceleratorPlan { requests, offers },
            piece_bytes: PIECE_BYTES,
            stage: StagePlan::default(),
            profile: options.profile_comm.is_some(),
            collect: CollectPlan::default(),
            sent: Duration::ZERO,
        },
        first: NamespacePlan {
            id: NamespaceId::FIRST,
            kvsname: format!("scela-{:016x}_0", machine.session),
            size,
            universe: universe(options.universe, machine, node_list),
            spawner: None,
            commands,
            mapping,
            owners: owners(&placement, &nodes),
            placement,
            preputs: options
                .memory_alloc_kinds
                .iter()
                .map(|kinds| (MEMORY_ALLOC_KINDS.to_vec(), kinds.clone().into_bytes()))
                .collect(),
            stdin,
        },
        nodes,
    };
    let label = label(options, machine);
    let (options, demo, files) = (planned, request.is_demo(), Vec::new());
    let collect_to = Vec::new();
    let mpi_users = None;
    Ok(Plan { settings, node_of_agent, label, input, mpi_users, options, demo, remarks, files, collect_to, talked })
}

fn command_plan(
    command: &Command,
    nprocs: u32,
    options: &Options,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> CommandPlan {
    let (inherit, mut set) =
        environment(options, &command.env, command.env_policy.as_ref(), &machine.environment, remarks);
    if let Some(directories) = &command.path {
        set.push(search_path(directories, &inherit, &set, &machine.environment));
    }
    let (program, args) = match &command.program {
        Program::Named(program) => (program.clone(), command.args.clone()),
        Program::Demo => (demo_program(machine), vec![DEMO_RANK_ARGUMENT.into()]),
    };
    let wdir = command.wdir.as_ref().map_or_else(|| machine.wdir.clone(), |wdir| machine.wdir.join(wdir));
    CommandPlan {
        nprocs,
        program: program.into_vec(),
        staged: None,
        args: args.into_iter().map(OsString::into_vec).collect(),
        inherit,
        set,
        wdir: wdir.into_os_string().into_vec(),
    }
}

/// Returns the program of the demo's ranks: this one. If its file was replaced, as it may be while a pool stands, an agent finds the
/// former one as its own.
fn demo_program(machine: &Machine) -> OsString {
    let is_replaced = machine.program.as_os_str().as_bytes().ends_with(b" (deleted)");
    if is_replaced { "/proc/self/exe".into() } else { machine.program.clone().into_os_string() }
}

/// Returns the number of ranks of each command. Their sum is at most [`RANKS_MAX`].
fn sizes(
    commands: &[Command],
    options: &Options,
    machine: &Machine,
    node_list: &NodeList,
    rule: &Rule,
) -> Result<Vec<u32>, Refusal> {
    let typed: u64 = commands.iter().filter_map(|command| command.nprocs).map(u64::from).sum();
    let untyped = commands.iter().filter(|command| command.nprocs.is_none()).count() as u64;
    let default = match (rule, node_list) {
        (
            Rule::Block { per_node } | Rule::Cyclic { per_node } | Rule::Comm { per_node, .. },
            NodeList::Local { slots, .. },
        ) => {
            let filled = match options.binding.map_within {
                Some(MapWithin::Filled(count, level)) => Some(count.saturating_mul((machine.parts)(level))),
                Some(MapWithin::Each(_)) | None => None,
            };
            u64::from(per_node.or(filled).or(*slots).unwrap_or(machine.cores))
        }
        // Commands without -np share the rest of the job equally.
        (_, NodeList::Local { .. } | NodeList::Named { .. }) => {
            (job_size(node_list, rule).saturating_sub(typed) / untyped.max(1)).max(1)
        }
    };
    let ranks = typed + untyped * default;
    if ranks > u64::from(RANKS_MAX) {
        let text = format!("{ranks} ranks are more than a job can have ({RANKS_MAX})");
        return Err(Refusal::new(text, "start fewer ranks with -np"));
    }
    Ok(commands.iter().map(|command| command.nprocs.unwrap_or(default as u32)).collect())
}

/// Returns the number of ranks of a job on these nodes if no `-np` is typed: the allocation's own number unless the
/// rule overrides the slots, else the sum of the slots.
fn job_size(node_list: &NodeList, rule: &Rule) -> u64 {
    let by_slots = rule.per_node().is_none() && !matches!(rule, Rule::Map(_));
    let job = node_list.allocation().filter(|_| by_slots).and_then(|allocation| allocation.ranks);
    job.map_or_else(|| rule.size_of(node_list.nodes()), u64::from)
}

/// Returns PMI's universe size; -1, unknown, if nothing bounds the number of ranks. Programs spawn no more ranks than fit into
/// it, so a guess would keep them from spawning at all.
fn universe(typed: Option<Universe>, machine: &Machine, node_list: &NodeList) -> i32 {
    let of_nodes = |slots: fn(&Node) -> Option<u32>| -> Option<u64> {
        node_list.nodes().iter().map(|node| slots(node).map(u64::from)).sum()
    };
    let bound = match (typed, node_list) {
        (Some(Universe::Infinite), _) => None,
        (Some(Universe::Ranks(ranks)), _) => Some(u64::from(ranks)),
        (Some(Universe::System), NodeList::Local { slots, .. }) => Some(u64::from(slots.unwrap_or(machine.cores))),
        (Some(Universe::System), NodeList::Named { .. }) => of_nodes(|node| node.slots),
        (None, NodeList::Local { max_slots, .. }) => max_slots.map(u64::from),
        (None, NodeList::Named { .. }) if node_list.allocation().is_some() => of_nodes(|node| node.slots),
        (None, NodeList::Named { .. }) => of_nodes(|node| node.max_slots),
    };
    bound.map_or(-1, |bound| i32::try_from(bound).unwrap_or(i32::MAX))
}

/// Returns the ranks that get standard input, and its source if any rank does.
fn stdin(options: &Options, size: u32, machine: &Machine) -> Result<(Ranks, Option<InputSource>), Refusal> {
    let readers = match &options.stdin {
        Some(StdinTo::None) => Ranks::new(),
        Some(StdinTo::All) => Ranks::range(0..size),
        Some(StdinTo::Ranks(intervals)) => {
            let mut ranks = Ranks::new();
            for (first, last) in intervals {
                if *last >= size {
                    let most = size - 1;
                    let text = format!("standard input is to go to rank {last}, but the ranks are 0 to {most}");
                    return Err(Refusal::new(text, "name ranks that exist with -stdin, or start more with -np"));
                }
                ranks.union_with(&Ranks::range(*first..*last + 1));
            }
            ranks
        }
        Some(StdinTo::File(path)) => {
            return Ok((Ranks::range(0..size), Some(InputSource::File(machine.wdir.join(path)))));
        }
        // A background job must not read what the user types at the terminal.
        None if machine.stdin_in_background => Ranks::new(),
        // `-f -` reads the hosts from standard input.
        None if options.hosts.sources.iter().any(HostSource::is_standard_input) => Ranks::new(),
        None => Ranks::range(0..1),
    };
    let source = (!readers.is_empty()).then_some(InputSource::Standard);
    Ok((readers, source))
}

#[cfg(test)]
mod tests;
