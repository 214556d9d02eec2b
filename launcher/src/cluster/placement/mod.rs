//! Placement: assigns ranks to nodes by their numbers of slots.

mod map;
pub mod scotch;
mod share;
pub mod talk;
#[cfg(test)]
mod tests;

use nla::figures::counted;
use pmi::Ranks;

use self::share::{fill, shares};
use self::talk::{Talk, Talked};
use crate::cluster::node::Node;
use crate::refusal::Refusal;

pub use self::map::{MAP_BYTES_MAX, RankMap};

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
    /// The nodes near to the nodes of the ranks that it talks to (`comm`).
    Comm,
}

/// Chooses the node that gets the next rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The same node, until its slots are taken, or its share if its number of slots is unknown.
    /// Ranks beyond all slots lengthen the blocks evenly.
    Block {
        /// The slots of each node, in place of its own number.
        per_node: Option<u32>,
    },
    /// The next node in turn. A node without a free slot is skipped while others have one.
    Cyclic {
        /// The slots of each node, in place of its own number.
        per_node: Option<u32>,
    },
    /// The node near to its partners, as far as the nodes that `Block` fills, and free ones, have slots.
    Comm {
        /// The slots of each node, in place of its own number.
        per_node: Option<u32>,
        /// The partners of each rank.
        talk: Talk,
    },
    /// The node that a rank map names. Slots do not count.
    Map(RankMap),
}

impl Rule {
    /// Returns the slots of each node; `None` if the nodes' own numbers count.
    pub fn per_node(&self) -> Option<u32> {
        match self {
            Self::Block { per_node } | Self::Cyclic { per_node } | Self::Comm { per_node, .. } => *per_node,
            Self::Map(_) => None,
        }
    }

    /// Returns the default number of ranks on these nodes: one for each slot, and one for each node with an
    /// unknown number of slots.
    pub fn size_of(&self, nodes: &[Node]) -> u64 {
        match self {
            Self::Map(map) => u64::from(map.size()),
            Self::Block { .. } | Self::Cyclic { .. } | Self::Comm { .. } => {
                nodes.iter().map(|node| u64::from(slots_of(node, self.per_node()).unwrap_or(1))).sum()
            }
        }
    }
}

/// Consecutive ranks on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The node, by its index in the node list.
    pub node: usize,
    /// The number of ranks. More than zero.
    pub ranks: u32,
}

/// The node of each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Runs from rank 0 on. Adjacent runs are on different nodes.
    runs: Vec<Run>,
    /// A line for the user.
    pub remark: Option<String>,
    /// The gain of mapping by traffic.
    pub talked: Option<Talked>,
}

/// Returns the refusal of ranks that cannot be placed on these nodes.
fn refused(text: impl Into<String>) -> Refusal {
    Refusal::new(text, "name more hosts, or start fewer ranks")
}

/// Returns the refusal of a mapping with more blocks than an agent accepts.
pub(crate) fn too_scattered() -> Refusal {
    refused("neighbouring ranks are on different nodes so often that the map exceeds the limit of agents")
}

fn these(nodes: usize) -> String {
    if nodes == 1 { "this node".to_owned() } else { format!("these {nodes} nodes") }
}

/// Places ranks 0 to `size` on `nodes`. More ranks than slots are a remark, also inside a resource manager's job:
/// the user has chosen the number. More ranks than the nodes' maxima are an error.
pub fn place(size: u32, nodes: &[Node], rule: &Rule) -> Result<Placement, Refusal> {
    if nodes.is_empty() {
        return Err(refused("no node is left to run on"));
    }
    let per_node = rule.per_node();
    let rooms: Vec<Room> = nodes.iter().map(|node| Room::of(node, per_node)).collect();
    let room: u64 = rooms.iter().map(|room| u64::from(room.most)).sum();
    if u64::from(size) > room {
        let text = format!("{size} ranks do not fit: max-slots allows {room} on {}", these(nodes.len()));
        return Err(refused(text));
    }
    // Nodes with an unknown number of slots cannot be oversubscribed.
    let slots = rooms.iter().try_fold(0u64, |sum, room| Some(sum + u64::from(room.limit()?)));
    let crowded = slots.filter(|slots| u64::from(size) > *slots);
    let mut talked = None;
    let runs = match rule {
        Rule::Block { .. } => blocks(size, &rooms, crowded.is_some()),
        Rule::Comm { talk, .. } => {
            let block = blocks(size, &rooms, crowded.is_some());
            let (runs, gained) = talk.place(size, nodes, &rooms, &block)?;
            talked = Some(gained);
            runs
        }
        Rule::Cyclic { .. } => cycles(size, &rooms),
        Rule::Map(map) => mapped(size, nodes, map)?,
    };
    let remark = crowded.map(|slots| match per_node {
        Some(ppn) => {
            let nodes = counted(nodes.len() as u64, "node");
            format!("-ppn {ppn} on {nodes} allows fewer than {size} ranks; all are started anyway")
        }
        None => format!("{size} ranks on {slots} slots: nodes are oversubscribed"),
    });
    Ok(Placement { runs, remark, talked })
}

/// The capacity of a node.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Its slots; `None` if unknown.
    slots: Option<u32>,
    /// Its maximum.
    most: u32,
}

impl Room {
    fn of(node: &Node, per_node: Option<u32>) -> Self {
        Self { slots: slots_of(node, per_node), most: node.max_slots.unwrap_or(u32::MAX) }
    }

    /// Returns the number of ranks that fill it; `None` if nothing is known of it.
    fn limit(self) -> Option<u32> {
        self.slots.or(Some(self.most).filter(|most| *most < u32::MAX))
    }
}

/// Returns the slots of a node: the rule's number, else its own.
fn slots_of(node: &Node, per_node: Option<u32>) -> Option<u32> {
    let most = node.max_slots.unwrap_or(u32::MAX);
    per_node.or(node.slots).map(|slots| slots.min(most))
}

/// Returns a block for each node, in order. All ranks fit.
fn blocks(size: u32, rooms: &[Room], is_crowded: bool) -> Vec<Run> {
    let counts = if is_crowded {
        shares(size, rooms.iter().map(|room| (room.limit().unwrap_or(1), room.most)))
    } else {
        fill(size, &with_shares(size, rooms))
    };
    let runs = counts.into_iter().enumerate().map(|(node, ranks)| Run { node, ranks });
    runs.filter(|run| run.ranks > 0).collect()
}

/// Returns the slots of each node. Nodes with an unknown number share the ranks that the others leave.
fn with_shares(size: u32, rooms: &[Room]) -> Vec<u32> {
    let known: u64 = rooms.iter().filter_map(|room| room.slots).map(u64::from).sum();
    let rest = u64::from(size).saturating_sub(known) as u32;
    let open = || rooms.iter().filter(|room| room.slots.is_none());
    let mut shared = shares(rest, open().map(|room| (1, room.most))).into_iter();
    // Use nodes in their order, even if later ones alone suffice.
    let share = |room: &Room| room.slots.unwrap_or_else(|| shared.next().unwrap_or(0).max(1));
    rooms.iter().map(share).collect()
}

/// Places a rank on each node in turn. All ranks fit.
fn cycles(size: u32, rooms: &[Room]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut held = vec![0u32; rooms.len()];
    let mut left = size;
    // First up to the slots of each node, then up to its maximum.
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

/// Places ranks by a rank map.
fn mapped(size: u32, nodes: &[Node], map: &RankMap) -> Result<Vec<Run>, Refusal> {
    if map.size() != size {
        let text = format!("the rank map is for {} ranks, and the job has {size}", map.size());
        return Err(Refusal::new(text, format!("write a map of {size} ranks, or start {} with -np", map.size())));
    }
    let mut held = vec![0u32; nodes.len()];
    let mut runs = Vec::new();
    for (node, ranks) in map.runs() {
        let at = node as usize;
        let held = held.get_mut(at).ok_or_else(|| {
            refused(format!("the rank map names node {node}, and the nodes are 0 to {}", nodes.len() - 1))
        })?;
        *held += ranks;
        if let Some(max_slots) = nodes[at].max_slots.filter(|most| *held > *most) {
            let node = &nodes[at].name;
            let text = format!("the rank map puts {held} ranks on {node}, and its max-slots is {max_slots}");
            return Err(refused(text));
        }
        add(&mut runs, Run { node: at, ranks });
    }
    Ok(runs)
}

/// Adds a run, or lengthens the last run if it is on the same node.
fn add(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.node == run.node => last.ranks += run.ranks,
        _ => runs.push(run),
    }
}

impl Placement {
    /// Returns runs of consecutive ranks, from rank 0 on.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the nodes that have ranks, in the order of their first ranks, with their ranks.
    pub fn ranks_by_node(&self) -> Result<Vec<(usize, Ranks)>, Refusal> {
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
        let set = |(node, intervals)| Ok((node, Ranks::try_from(intervals).map_err(|_| too_scattered())?));
        found.into_iter().map(set).collect()
    }
}
