//! Where agents sit: how many each node gets, and which ranks each of them starts.

use std::collections::BTreeMap;

use nla::core::limits::{AGENTS_MAX, RANKS_PER_AGENT};
use nla::core::{AgentId, place};
use pmi::limits::MAPPING_BLOCKS_MAX;
use pmi::{Mapping, Ranks};

use super::PlanError;
use crate::cluster::node_list::{Node, NodeList};
use crate::cluster::placement::{self, MapBy, Placement, PlacementError, RankMap, Rule};
use crate::plan::machine::Machine;
use crate::plan::request::{LaunchShape, Options};

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

/// Agents, their nodes and their ranks.
pub(super) struct Seating {
    /// The node of each agent, counted from 0 in the order of their first ranks.
    pub(super) nodes: BTreeMap<AgentId, u32>,
    /// The ranks of each agent that has any.
    pub(super) placement: Vec<(AgentId, Ranks)>,
    /// The node of each rank, by the same numbers.
    pub(super) mapping: Mapping,
    /// The node of each agent by its place in the field.
    pub(super) seats: Vec<usize>,
    /// What the user should hear.
    pub(super) remark: Option<String>,
}

/// Which node gets the next rank, as the options have it. A rank map says it all: where there is one,
/// nothing else counts.
pub(super) fn rule(options: &Options) -> Result<Rule, PlanError> {
    if let Some(map) = &options.hosts.rankmap {
        return Ok(Rule::Map(RankMap::parse(&map.to_string_lossy())?));
    }
    Ok(match (options.hosts.map_by, options.ppn) {
        (MapBy::PerNode(per_node), Some(ppn)) if per_node != ppn => {
            return Err(PlanError::TwoPerNode { ppn, per_node });
        }
        (MapBy::PerNode(per_node), _) => Rule::Block { per_node: Some(per_node) },
        (MapBy::Slot, per_node) => Rule::Block { per_node },
        (MapBy::Node, per_node) => Rule::Cyclic { per_node },
    })
}

/// Seats agents for `size` ranks.
pub(super) fn seating(
    size: u32,
    options: &Options,
    machine: &Machine,
    field: &NodeList,
    rule: &Rule,
) -> Result<Seating, PlanError> {
    match field {
        NodeList::Local { slots, max_slots } => {
            let node = Node { slots: *slots, max_slots: *max_slots, ..Node::named("this machine") };
            here(size, options, machine, &node, rule)
        }
        NodeList::Named { .. } if options.agents_as_nodes => Err(PlanError::AgentsAsNodes),
        NodeList::Named { nodes, .. } => {
            let placement = placement::place(size, nodes, rule)?;
            let per_node = match options.launch.shape {
                LaunchShape::Linear => PerNode::EachRank,
                LaunchShape::Auto | LaunchShape::Flat | LaunchShape::Tree => {
                    options.agents_per_node.map_or(PerNode::AsManyAsNeeded, PerNode::Fixed)
                }
            };
            there(&placement, per_node)
        }
    }
}

/// All agents on this machine.
fn here(size: u32, options: &Options, machine: &Machine, node: &Node, rule: &Rule) -> Result<Seating, PlanError> {
    let agents = agents_here(size, options, rule.per_node(), machine);
    let ids: Vec<_> = (1..=agents).map(AgentId).collect();
    let nodes: BTreeMap<AgentId, u32> =
        ids.iter().map(|id| (*id, if options.agents_as_nodes { id.0 - 1 } else { 0 })).collect();
    let (placement, mapping) = match rule.per_node().filter(|_| options.agents_as_nodes) {
        Some(ppn) => place_by(ppn, size, &ids),
        None => {
            let placement = place(size, &ids);
            let mapping = Mapping::from_nodes(
                placement.iter().flat_map(|(agent, ranks)| std::iter::repeat_n(nodes[agent], ranks.len() as usize)),
            );
            (placement, mapping)
        }
    };
    let played = if options.agents_as_nodes { agents as usize } else { 1 };
    let remark = placement::place(size, &vec![node.clone(); played], rule)?.remark;
    Ok(Seating { nodes, placement, mapping, seats: vec![0; agents as usize], remark })
}

/// How many agents a node gets.
#[derive(Copy, Clone, Debug)]
enum PerNode {
    /// Few, as each can have many ranks.
    AsManyAsNeeded,
    /// So many.
    Fixed(u32),
    /// One for each rank.
    EachRank,
}

/// Agents on the nodes of a placement.
fn there(placement: &Placement, per_node: PerNode) -> Result<Seating, PlanError> {
    let ranks_by_node = placement.ranks_by_node()?;
    let agents_of = |ranks: &Ranks| match per_node {
        PerNode::AsManyAsNeeded => ranks.len().div_ceil(u64::from(RANKS_PER_AGENT)),
        PerNode::Fixed(agents) => u64::from(agents),
        PerNode::EachRank => ranks.len(),
    };
    let agents: u64 = ranks_by_node.iter().map(|(_, ranks)| agents_of(ranks)).sum();
    if agents > u64::from(AGENTS_MAX) {
        return Err(PlanError::TooManyAgents { agents });
    }
    let mapping = mapping(placement, &ranks_by_node);
    if mapping.blocks().len() > MAPPING_BLOCKS_MAX {
        return Err(PlacementError::TooScattered.into());
    }
    let mut ids = (1..).map(AgentId);
    let mut seating = Seating {
        nodes: BTreeMap::new(),
        placement: Vec::new(),
        mapping,
        seats: Vec::new(),
        remark: placement.remark.clone(),
    };
    for (number, (seat, ranks)) in (0..).zip(&ranks_by_node) {
        for (part, id) in parts(ranks, agents_of(ranks)).into_iter().zip(ids.by_ref()) {
            seating.nodes.insert(id, number);
            seating.seats.push(*seat);
            if !part.is_empty() {
                seating.placement.push((id, part));
            }
        }
    }
    Ok(seating)
}

/// The node of each rank, by its place among the nodes that have ranks.
fn mapping(placement: &Placement, ranks_by_node: &[(usize, Ranks)]) -> Mapping {
    let numbers: BTreeMap<usize, u32> = ranks_by_node.iter().map(|(seat, _)| *seat).zip(0..).collect();
    let nodes = placement.runs().iter().map(|run| std::iter::repeat_n(numbers[&run.node], run.ranks as usize));
    Mapping::from_nodes(nodes.flatten())
}

/// Ranks in `count` parts, in order, whose sizes differ by at most one.
fn parts(ranks: &Ranks, count: u64) -> Vec<Ranks> {
    let mut intervals = ranks.intervals().iter().copied();
    let mut open = intervals.next();
    let size = ranks.len();
    let part = |at: u64| {
        let mut wanted = (size * (at + 1) / count - size * at / count) as u32;
        let mut part = Ranks::new();
        while let Some((first, end)) = open.filter(|_| wanted > 0) {
            let taken = wanted.min(end - first);
            part.extend((first..first + taken).map(pmi::Rank));
            wanted -= taken;
            open = if first + taken < end { Some((first + taken, end)) } else { intervals.next() };
        }
        part
    };
    (0..count).map(part).collect()
}

/// How many agents this machine gets, if it is all there is.
fn agents_here(size: u32, options: &Options, per_node: Option<u32>, machine: &Machine) -> u32 {
    if let Some(agents) = options.agents_per_node {
        return agents;
    }
    if let (true, Some(ppn)) = (options.agents_as_nodes, per_node) {
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
pub(super) fn libc_nofile() -> u32 {
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
