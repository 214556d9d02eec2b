//! The layout of agents: how many each node gets, and which ranks each of them starts.

use litemap::LiteMap;
use nla::core::limits::{AGENTS_MAX, RANKS_PER_AGENT};
use nla::core::{AgentId, place};
use nla::sys::ShellState;
use pmi::limits::MAPPING_BLOCKS_MAX;
use pmi::{Mapping, Ranks};

use crate::cluster::node_list::{Node, NodeList};
use crate::cluster::placement::talk::Talked;
use crate::cluster::placement::{self, MapBy, Placement, RankMap, Rule};
use crate::plan::fitting::{Wish, fitting_agents};
use crate::plan::launch::asked_for;
use crate::plan::machine::Machine;
use crate::plan::needs::LocalJob;
use crate::plan::request::{LaunchShape, Options};
use crate::refusal::Refusal;

/// From this many ranks on, each core gets an agent. Below, one more agent costs more than it saves.
const RANKS_FOR_AGENT_PER_CORE: u32 = 64;
/// The number of ranks per agent that is fastest. The agent and its ranks still fit into a core's caches: with 4
/// agents, 512 ranks get their entries in three quarters of the time that 2 agents take.
const RANKS_PER_AGENT_BEST: u32 = 128;
/// More agents per core than this cost more than they save, because each agent receives and stores the whole board.
/// On 2 cores, 1,024 ranks get all entries over the wire in 8 s with 8 agents and in 9 to 10 s with 4. But 4 agents
/// start faster, and through libpmi each rank has its neighbours' entries after 0.039 s instead of 0.049 s.
const AGENTS_PER_CORE_BEST: u32 = 2;

/// The agents of a session, with their nodes and ranks.
pub(super) struct AgentLayout {
    /// The node of each agent. Nodes are numbered from 0 in the order of their first ranks.
    pub(super) nodes: LiteMap<AgentId, u32>,
    /// The ranks of each agent that has any.
    pub(super) placement: Vec<(AgentId, Ranks)>,
    /// The node of each rank, with the numbers of `nodes`.
    pub(super) mapping: Mapping,
    /// The node of each agent, as an index into the node list.
    pub(super) node_of_agent: Vec<usize>,
    /// A note for the user.
    pub(super) remark: Option<String>,
    /// The gain of mapping by traffic.
    pub(super) talked: Option<Talked>,
}

/// Returns the rule that assigns ranks to nodes. A rank map overrides all other options.
pub(super) fn rule(options: &Options) -> Result<Rule, Refusal> {
    if let Some(map) = &options.hosts.rankmap {
        return Ok(Rule::Map(RankMap::parse(&map.to_string_lossy())?));
    }
    Ok(match (options.hosts.map_by, options.ppn) {
        (MapBy::PerNode(per_node), Some(ppn)) if per_node != ppn => {
            let text = format!("-ppn {ppn} and --map-by ppr:{per_node}:node do not agree");
            return Err(Refusal::new(text, "leave one of them out"));
        }
        (MapBy::PerNode(per_node), _) => Rule::Block { per_node: Some(per_node) },
        (MapBy::Slot, per_node) => Rule::Block { per_node },
        (MapBy::Node, per_node) => Rule::Cyclic { per_node },
        (MapBy::Comm, per_node) => match &options.hosts.talk {
            Some(talk) => Rule::Comm { per_node, talk: talk.clone() },
            // Only on this machine alone, where there is nothing to choose.
            None => Rule::Block { per_node },
        },
    })
}

/// Lays out the agents of `size` ranks, of which so many get standard input.
pub(super) fn agent_layout(
    size: u32,
    readers: u32,
    options: &Options,
    machine: &Machine,
    node_list: &NodeList,
    rule: &Rule,
) -> Result<AgentLayout, Refusal> {
    match node_list {
        NodeList::Local { slots, max_slots, .. } => {
            let node = Node { slots: *slots, max_slots: *max_slots, ..Node::named("this machine") };
            local_layout(size, readers, options, machine, &node, rule)
        }
        NodeList::Named { .. } if options.agents_as_nodes => Err(Refusal::new(
            "--agents-as-nodes plays several nodes on this machine, and cannot be used with hosts",
            "leave --agents-as-nodes out, or name no hosts",
        )),
        NodeList::Named { nodes, .. } => {
            let placement = placement::place(size, nodes, rule)?;
            let per_node = match options.launch.shape {
                LaunchShape::Linear => AgentsPerNode::OnePerRank,
                LaunchShape::Auto | LaunchShape::Flat | LaunchShape::Tree => {
                    options.agents_per_node.map_or(AgentsPerNode::Fewest, AgentsPerNode::Fixed)
                }
            };
            remote_layout(&placement, per_node)
        }
    }
}

/// Lays out all agents on this machine.
fn local_layout(
    size: u32,
    readers: u32,
    options: &Options,
    machine: &Machine,
    node: &Node,
    rule: &Rule,
) -> Result<AgentLayout, Refusal> {
    let spares = options.launch.spares;
    let per_node = rule.per_node();
    let job = LocalJob {
        ranks: size,
        readers,
        fanout: options.fanout(),
        cores: machine.cores,
        block: per_node.filter(|_| options.agents_as_nodes).unwrap_or(1),
        spares,
    };
    let agents = fitting_agents(&job, wished_agents(size, options, per_node, machine.cores), machine)?;
    let (nodes, hint) = if options.agents_as_nodes {
        (agents, "play more nodes with --agents-per-node, or write a smaller number")
    } else {
        (1, "name hosts with -hosts or -f, or leave --spares out")
    };
    if spares >= nodes {
        let text =
            format!("option '--spares': {}; besides the one that must run, there are {}", asked_for(spares), nodes - 1);
        return Err(Refusal::new(text, hint));
    }
    let ids: Vec<_> = (1..=agents).map(AgentId).collect();
    let used = &ids[..(agents - spares) as usize];
    let nodes: LiteMap<AgentId, u32> =
        ids.iter().map(|id| (*id, if options.agents_as_nodes { id.0 - 1 } else { 0 })).collect();
    let (placement, mapping) = match rule.per_node().filter(|_| options.agents_as_nodes) {
        Some(ppn) => place_in_turn(ppn, size, used),
        None => {
            let placement = place(size, used);
            let mapping = Mapping::from_nodes(
                placement.iter().flat_map(|(agent, ranks)| std::iter::repeat_n(nodes[agent], ranks.len() as usize)),
            );
            (placement, mapping)
        }
    };
    let node_count = if options.agents_as_nodes { agents as usize } else { 1 };
    // Only the number of ranks counts here.
    let by_slots = Rule::Block { per_node };
    let rule = if let Rule::Comm { .. } = rule { &by_slots } else { rule };
    let remark = placement::place(size, &vec![node.clone(); node_count], rule)?.remark;
    let node_of_agent = vec![0; agents as usize];
    Ok(AgentLayout { nodes, placement, mapping, node_of_agent, remark, talked: None })
}

/// The number of agents of a node.
#[derive(Copy, Clone, Debug)]
enum AgentsPerNode {
    /// The least number that can serve the node's ranks, each with at most [`RANKS_PER_AGENT`].
    Fewest,
    /// This number.
    Fixed(u32),
    /// One for each rank.
    OnePerRank,
}

/// Lays out agents on the nodes of a placement.
fn remote_layout(placement: &Placement, per_node: AgentsPerNode) -> Result<AgentLayout, Refusal> {
    let ranks_by_node = placement.ranks_by_node()?;
    let agents_of = |ranks: &Ranks| match per_node {
        AgentsPerNode::Fewest => ranks.len().div_ceil(u64::from(RANKS_PER_AGENT)),
        AgentsPerNode::Fixed(agents) => u64::from(agents),
        AgentsPerNode::OnePerRank => ranks.len(),
    };
    let agents: u64 = ranks_by_node.iter().map(|(_, ranks)| agents_of(ranks)).sum();
    if agents > u64::from(AGENTS_MAX) {
        let text = format!("{agents} agents are more than a session can have ({AGENTS_MAX})");
        return Err(Refusal::new(text, "leave --agents-per-node and --launch linear out"));
    }
    let mapping = mapping(placement, &ranks_by_node);
    if mapping.blocks().len() > MAPPING_BLOCKS_MAX {
        return Err(placement::too_scattered());
    }
    let mut ids = (1..).map(AgentId);
    let mut layout = AgentLayout {
        nodes: LiteMap::new(),
        placement: Vec::new(),
        mapping,
        node_of_agent: Vec::new(),
        remark: placement.remark.clone(),
        talked: placement.talked.clone(),
    };
    for (number, (node, ranks)) in (0..).zip(&ranks_by_node) {
        for (part, id) in parts(ranks, agents_of(ranks)).into_iter().zip(ids.by_ref()) {
            layout.nodes.insert(id, number);
            layout.node_of_agent.push(*node);
            if !part.is_empty() {
                layout.placement.push((id, part));
            }
        }
    }
    Ok(layout)
}

/// Returns the node of each rank. Nodes are numbered among those that have ranks.
fn mapping(placement: &Placement, ranks_by_node: &[(usize, Ranks)]) -> Mapping {
    let numbers: LiteMap<usize, u32> = ranks_by_node.iter().map(|(node, _)| *node).zip(0..).collect();
    let nodes = placement.runs().iter().map(|run| std::iter::repeat_n(numbers[&run.node], run.ranks as usize));
    Mapping::from_nodes(nodes.flatten())
}

/// Splits ranks into `count` parts, in order, whose sizes differ by at most one.
fn parts(ranks: &Ranks, count: u64) -> Vec<Ranks> {
    let mut intervals = ranks.intervals().iter().copied();
    let mut rest = intervals.next();
    let size = ranks.len();
    let part = |at: u64| {
        let mut wanted = (size * (at + 1) / count - size * at / count) as u32;
        let mut part = Ranks::new();
        while let Some((first, end)) = rest.filter(|_| wanted > 0) {
            let taken = wanted.min(end - first);
            part.extend((first..first + taken).map(pmi::Rank));
            wanted -= taken;
            rest = if first + taken < end { Some((first + taken, end)) } else { intervals.next() };
        }
        part
    };
    (0..count).map(part).collect()
}

/// Returns the wanted number of agents of a session on this machine alone.
fn wished_agents(size: u32, options: &Options, per_node: Option<u32>, cores: u32) -> Wish {
    if let Some(agents) = options.agents_per_node {
        return Wish::Fixed(agents);
    }
    if let (true, Some(ppn)) = (options.agents_as_nodes, per_node) {
        return Wish::Fixed(size.div_ceil(ppn));
    }
    // One agent that stands by is faster than several that do not.
    let ranks_for_more = if options.has_standing_agent { RANKS_PER_AGENT_BEST + 1 } else { RANKS_FOR_AGENT_PER_CORE };
    let by_cores = if size >= ranks_for_more { cores } else { 1 };
    let by_speed = size.div_ceil(RANKS_PER_AGENT_BEST).min(cores.saturating_mul(AGENTS_PER_CORE_BEST));
    Wish::Fastest(size.div_ceil(RANKS_PER_AGENT).max(by_cores).max(by_speed).max(1))
}

/// Returns the hard limit on open files, to which an agent raises its own limit.
pub(crate) fn open_files_max(shell: &ShellState) -> u64 {
    let limit = shell.limits.iter().find(|(resource, _, _)| *resource == libc_nofile());
    limit.map_or(u64::MAX, |(_, _, hard)| *hard)
}

/// Returns the number of RLIMIT_NOFILE, which is the same on all Linux machines that ScELA runs on.
pub(super) fn libc_nofile() -> u32 {
    nix::sys::resource::Resource::RLIMIT_NOFILE as u32
}

/// Places `ppn` ranks on each agent in turn, and starts again with the first agent until all ranks are placed.
fn place_in_turn(ppn: u32, size: u32, agents: &[AgentId]) -> (Vec<(AgentId, Ranks)>, Mapping) {
    let node = |rank: u32| (rank / ppn) as usize % agents.len();
    let mut placement: LiteMap<AgentId, Ranks> = LiteMap::new();
    for rank in 0..size {
        placement.entry(agents[node(rank)]).or_default().insert(pmi::Rank(rank));
    }
    (placement.into_iter().collect(), Mapping::from_nodes((0..size).map(|rank| node(rank) as u32)))
}
