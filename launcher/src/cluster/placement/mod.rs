//! Placement: which rank goes to which node. Arithmetic on numbers of slots; nothing here knows what a
//! name means.

mod map;
mod share;
#[cfg(test)]
mod tests;

use pmi::Ranks;
use thiserror::Error;

use self::share::{fill, shares};
use crate::cluster::node::Node;

pub use self::map::{MAP_BYTES_MAX, MapError, RankMap};

/// `--map-by`: which node gets the next rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapBy {
    /// The same node, until its slots are taken.
    #[default]
    Slot,
    /// The next node, in turn.
    Node,
    /// The same node, until it has this many ranks (`ppr:N:node`). At least 1.
    PerNode(u32),
}

/// Which node gets the next rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The same, until its slots are taken, or its share where nobody said how many slots there are.
    /// Ranks that find no slot lengthen the blocks evenly.
    Block {
        /// So many slots on each node, whatever was said of it.
        per_node: Option<u32>,
    },
    /// The next one, round and round; who has no slot left is passed over while others have.
    Cyclic {
        /// So many slots on each node, whatever was said of it.
        per_node: Option<u32>,
    },
    /// The one that a list names. Slots are no matter.
    Map(RankMap),
}

impl Rule {
    /// How many slots it gives each node, if it does not leave that to the nodes.
    pub fn per_node(&self) -> Option<u32> {
        match self {
            Self::Block { per_node } | Self::Cyclic { per_node } => *per_node,
            Self::Map(_) => None,
        }
    }

    /// How many ranks these nodes are for, if nobody says: as many as there are slots, and one for
    /// each node of which nobody said how many.
    pub fn size_of(&self, nodes: &[Node]) -> u64 {
        match self {
            Self::Map(map) => u64::from(map.size()),
            Self::Block { .. } | Self::Cyclic { .. } => {
                nodes.iter().map(|node| u64::from(slots_of(node, self.per_node()).unwrap_or(1))).sum()
            }
        }
    }
}

/// Consecutive ranks on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The node, by its place in the field.
    pub node: usize,
    /// How many ranks. More than zero.
    pub ranks: u32,
}

/// Where each rank goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// From rank 0 on. Neighbours are on different nodes.
    runs: Vec<Run>,
    /// What the user should hear.
    pub remark: Option<String>,
}

/// Why ranks cannot be placed on these nodes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Nowhere to place them.
    #[error("no node is left to run on")]
    NoNodes,
    /// More ranks than the nodes may ever hold.
    #[error("{ranks} ranks do not fit: max-slots allows {room} on {}", these(*nodes))]
    NoRoom {
        /// How many there are to be.
        ranks: u32,
        /// How many there may be.
        room: u64,
        /// On so many nodes.
        nodes: usize,
    },
    /// A list puts more ranks on a node than that may ever hold.
    #[error("the rank map puts {ranks} ranks on {node}, and its max-slots is {max_slots}")]
    NoRoomOnNode {
        /// How many.
        ranks: u32,
        /// The node.
        node: String,
        /// How many it may hold.
        max_slots: u32,
    },
    /// A list for another number of ranks.
    #[error("the rank map is for {map} ranks, and the job has {ranks}")]
    OtherSize {
        /// Ranks of the list.
        map: u32,
        /// Ranks of the job.
        ranks: u32,
    },
    /// A list with a node that is not there.
    #[error("the rank map names node {node}, and the nodes are 0 to {}", nodes - 1)]
    NoSuchNode {
        /// Which.
        node: u32,
        /// How many there are. More than zero.
        nodes: usize,
    },
    /// Sets of ranks, or a mapping, that agents would not take in.
    #[error("neighbouring ranks are on different nodes so often that agents do not take it in")]
    TooScattered,
}

fn these(nodes: usize) -> String {
    if nodes == 1 { "this node".to_owned() } else { format!("these {nodes} nodes") }
}

/// Places ranks 0 to `size` on `nodes`. More ranks than slots are a remark, inside of a resource manager's job too:
/// an explicit number is the user's to choose. More ranks than the nodes' maximum are an error.
pub fn place(size: u32, nodes: &[Node], rule: &Rule) -> Result<Placement, PlacementError> {
    if nodes.is_empty() {
        return Err(PlacementError::NoNodes);
    }
    let per_node = rule.per_node();
    let rooms: Vec<Room> = nodes.iter().map(|node| Room::of(node, per_node)).collect();
    let room: u64 = rooms.iter().map(|room| u64::from(room.most)).sum();
    if u64::from(size) > room {
        return Err(PlacementError::NoRoom { ranks: size, room, nodes: nodes.len() });
    }
    // Of nodes without any number everybody knows that they have room for what they get.
    let slots = rooms.iter().try_fold(0u64, |sum, room| Some(sum + u64::from(room.limit()?)));
    let crowded = slots.filter(|slots| u64::from(size) > *slots);
    let runs = match rule {
        Rule::Block { .. } => blocks(size, &rooms, crowded.is_some()),
        Rule::Cyclic { .. } => cycles(size, &rooms),
        Rule::Map(map) => mapped(size, nodes, map)?,
    };
    let remark = crowded.map(|slots| match per_node {
        Some(ppn) => {
            let nodes = nodes.len();
            format!("{size} ranks are more than -ppn {ppn} on {nodes} node(s) makes; they are started all the same")
        }
        None => format!("{size} ranks on {slots} slots: nodes are oversubscribed"),
    });
    Ok(Placement { runs, remark })
}

/// How much fits on a node.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// As many as it should hold; none if nobody said.
    slots: Option<u32>,
    /// As many as it can hold.
    most: u32,
}

impl Room {
    fn of(node: &Node, per_node: Option<u32>) -> Self {
        Self { slots: slots_of(node, per_node), most: node.max_slots.unwrap_or(u32::MAX) }
    }

    /// As many as make it full; none if nobody said anything of it.
    fn limit(self) -> Option<u32> {
        self.slots.or(Some(self.most).filter(|most| *most < u32::MAX))
    }
}

/// The slots of a node under a rule that may say how many there are.
fn slots_of(node: &Node, per_node: Option<u32>) -> Option<u32> {
    let most = node.max_slots.unwrap_or(u32::MAX);
    per_node.or(node.slots).map(|slots| slots.min(most))
}

/// A block for each node, in order. All of it fits.
fn blocks(size: u32, rooms: &[Room], is_crowded: bool) -> Vec<Run> {
    let counts = if is_crowded {
        shares(size, rooms.iter().map(|room| (room.limit().unwrap_or(1), room.most)))
    } else {
        fill(size, &with_shares(size, rooms))
    };
    let runs = counts.into_iter().enumerate().map(|(node, ranks)| Run { node, ranks });
    runs.filter(|run| run.ranks > 0).collect()
}

/// The slots of each node, where those without a number share what the others leave.
fn with_shares(size: u32, rooms: &[Room]) -> Vec<u32> {
    let known: u64 = rooms.iter().filter_map(|room| room.slots).map(u64::from).sum();
    let rest = u64::from(size).saturating_sub(known) as u32;
    let open = || rooms.iter().filter(|room| room.slots.is_none());
    let mut shared = shares(rest, open().map(|room| (1, room.most))).into_iter();
    // A node that is named first is used first, even if what comes later is enough.
    let share = |room: &Room| room.slots.unwrap_or_else(|| shared.next().unwrap_or(0).max(1));
    rooms.iter().map(share).collect()
}

/// A rank for each node in turn. All of it fits.
fn cycles(size: u32, rooms: &[Room]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut held = vec![0u32; rooms.len()];
    let mut left = size;
    // Once around for the slots; whoever is left then, for what can be held at all.
    for limit in [|room: &Room| room.slots.unwrap_or(room.most), |room: &Room| room.most] {
        let mut open: Vec<usize> = (0..rooms.len()).collect();
        while left > 0 && !open.is_empty() {
            open.retain(|&node| held[node] < limit(&rooms[node]));
            if let [node] = open[..] {
                let ranks = left.min(limit(&rooms[node]) - held[node]);
                held[node] += ranks;
                left -= ranks;
                add(&mut runs, Run { node, ranks });
                break;
            }
            for &node in open.iter().take(left as usize) {
                held[node] += 1;
                add(&mut runs, Run { node, ranks: 1 });
            }
            left -= left.min(open.len() as u32);
        }
    }
    runs
}

/// As a list says.
fn mapped(size: u32, nodes: &[Node], map: &RankMap) -> Result<Vec<Run>, PlacementError> {
    if map.size() != size {
        return Err(PlacementError::OtherSize { map: map.size(), ranks: size });
    }
    let mut held = vec![0u32; nodes.len()];
    let mut runs = Vec::new();
    for (node, ranks) in map.stretches() {
        let at = node as usize;
        let held = held.get_mut(at).ok_or(PlacementError::NoSuchNode { node, nodes: nodes.len() })?;
        *held += ranks;
        if let Some(max_slots) = nodes[at].max_slots.filter(|most| *held > *most) {
            return Err(PlacementError::NoRoomOnNode { ranks: *held, node: nodes[at].name.clone(), max_slots });
        }
        add(&mut runs, Run { node: at, ranks });
    }
    Ok(runs)
}

/// Adds a run, or lengthens the last one by it.
fn add(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.node == run.node => last.ranks += run.ranks,
        _ => runs.push(run),
    }
}

impl Placement {
    /// Runs of consecutive ranks, from rank 0 on.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The nodes that have ranks, in the order of their first ranks, and their ranks.
    pub fn ranks_by_node(&self) -> Result<Vec<(usize, Ranks)>, PlacementError> {
        let nodes = self.runs.iter().map(|run| run.node + 1).max().unwrap_or(0);
        let mut places: Vec<Option<usize>> = vec![None; nodes];
        let mut found: Vec<(usize, Vec<(u32, u32)>)> = Vec::new();
        let mut first = 0;
        for run in &self.runs {
            let place = *places[run.node].get_or_insert_with(|| {
                found.push((run.node, Vec::new()));
                found.len() - 1
            });
            found[place].1.push((first, first + run.ranks));
            first += run.ranks;
        }
        let set = |(node, intervals)| match Ranks::try_from(intervals) {
            Ok(ranks) => Ok((node, ranks)),
            Err(_) => Err(PlacementError::TooScattered),
        };
        found.into_iter().map(set).collect()
    }
}
