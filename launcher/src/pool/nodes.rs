//! The nodes of a pool, and which of them a job gets. Pure.
//!
//! A job gets slots of as few nodes as possible: of the fullest node that has room for all its ranks; otherwise of the emptiest
//! nodes, one after the other. Nodes that are drained, or whose keepers are lost, are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::Ask;

/// The place of a node in the list of its pool.
pub type NodeNumber = usize;

/// Whether a node can have jobs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Health {
    /// Its keeper is being started.
    Starts,
    /// Its keeper answers.
    Up,
    /// Its keeper is lost, or did not start, for this reason.
    Down(String),
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name, as jobs name it.
    pub name: String,
    /// How many ranks it runs at a time; 0 while that is unknown.
    pub slots: u32,
    /// The slots that jobs have.
    pub busy: u32,
    /// Whether it can have jobs.
    pub health: Health,
    /// The user has drained it: it gets no new jobs.
    pub is_drained: bool,
}

impl Node {
    /// Returns a node without jobs.
    pub fn new(name: impl Into<String>, slots: u32, health: Health) -> Self {
        Self { name: name.into(), slots, busy: 0, health, is_drained: false }
    }

    fn is_usable(&self) -> bool {
        self.health == Health::Up && !self.is_drained
    }
}

/// The slots of a job, by node.
pub type Shares = BTreeMap<NodeNumber, u32>;

/// The nodes of a pool.
#[derive(Debug)]
pub struct Nodes(Vec<Node>);

impl Nodes {
    /// Begins with these nodes.
    pub fn new(nodes: Vec<Node>) -> Self {
        Self(nodes)
    }

    /// Returns all nodes.
    pub fn all(&self) -> &[Node] {
        &self.0
    }

    /// Adds a node.
    pub fn add(&mut self, node: Node) {
        self.0.push(node);
    }

    /// Notes that a node can have no jobs.
    pub fn set_health(&mut self, node: NodeNumber, health: Health) {
        if let Some(node) = self.0.get_mut(node) {
            node.health = health;
        }
    }

    /// Notes that the keeper of a node answers. A node whose number of slots is unknown, 0, gets one for each core.
    pub fn set_up(&mut self, node: NodeNumber, cores: u32) {
        if let Some(node) = self.0.get_mut(node) {
            node.health = Health::Up;
            if node.slots == 0 {
                node.slots = cores.max(1);
            }
        }
    }

    /// Drains a node, or ends that.
    pub fn set_drained(&mut self, node: NodeNumber, is_drained: bool) {
        if let Some(node) = self.0.get_mut(node) {
            node.is_drained = is_drained;
        }
    }

    /// Returns the slots of the nodes that can have jobs.
    pub fn slots(&self) -> u32 {
        self.usable().map(|(_, node)| node.slots).sum()
    }

    /// Returns those of them that no job has.
    pub fn free(&self) -> u32 {
        self.usable().map(|(_, node)| node.slots - node.busy).sum()
    }

    fn usable(&self) -> impl Iterator<Item = (NodeNumber, &Node)> {
        self.0.iter().enumerate().filter(|(_, node)| node.is_usable())
    }

    /// Returns how many nodes the job needs, and how many slots of each, if it says so. More than a node has means all of it.
    fn shape(&self, ask: &Ask) -> Option<(usize, u32)> {
        let all = self.usable().count();
        match (ask.nodes, ask.per_node) {
            (Some(nodes), Some(ppn)) => Some((nodes as usize, ppn)),
            (Some(nodes), None) => {
                Some((nodes as usize, ask.ranks.map_or(u32::MAX, |ranks| ranks.div_ceil(nodes.max(1)))))
            }
            // A job that needs more nodes than there are gets all of them.
            (None, Some(ppn)) => {
                Some((ask.ranks.map_or(all, |ranks| (ranks.div_ceil(ppn.max(1)) as usize).min(all)), ppn))
            }
            (None, None) => None,
        }
    }

    /// Returns how many slots the job needs. A job that asks for more slots than the pool has gets all of them, so it runs alone.
    pub fn need(&self, ask: &Ask) -> u32 {
        let slots = self.slots();
        let wanted = match self.shape(ask) {
            Some((nodes, ppn)) => ppn.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)),
            None => ask.ranks.unwrap_or(u32::MAX),
        };
        wanted.min(slots).max(1)
    }

    /// Returns the slots that a job would get now; `None` if it must wait.
    pub fn choose(&self, ask: &Ask) -> Option<Shares> {
        let mut free: Vec<(NodeNumber, u32, u32)> =
            self.usable().map(|(at, node)| (at, node.slots, node.slots - node.busy)).collect();
        if ask.is_exclusive {
            free.retain(|(_, slots, free)| slots == free);
        }
        let whole = |at: NodeNumber, taken: u32, slots: u32| (at, if ask.is_exclusive { slots } else { taken });
        if let Some((wanted, ppn)) = self.shape(ask) {
            free.retain(|(_, slots, free)| *free > 0 && *free >= ppn.min(*slots));
            free.sort_by_key(|(at, _, free)| (*free, *at));
            let chosen = free.into_iter().take(wanted).map(|(at, slots, _)| whole(at, ppn.min(slots), slots));
            let shares: Shares = chosen.collect();
            return (wanted > 0 && shares.len() == wanted).then_some(shares);
        }
        let need = self.need(ask);
        let fitting = free.iter().filter(|(_, _, free)| *free >= need);
        if let Some((at, slots, _)) = fitting.min_by_key(|(at, _, free)| (*free, *at)) {
            return Some([whole(*at, need, *slots)].into());
        }
        free.sort_by_key(|(at, _, free)| (std::cmp::Reverse(*free), *at));
        let (mut shares, mut missing) = (Shares::new(), need);
        for (at, slots, free) in free.into_iter().filter(|(_, _, free)| *free > 0) {
            let taken = free.min(missing);
            shares.extend([whole(at, taken, slots)]);
            missing -= taken;
            if missing == 0 {
                return Some(shares);
            }
        }
        None
    }

    /// Takes slots for a job.
    pub fn take(&mut self, shares: &Shares) {
        for (at, taken) in shares {
            self.0[*at].busy += taken;
        }
    }

    /// Gives the slots of a job back.
    pub fn give_back(&mut self, shares: &Shares) {
        for (at, taken) in shares {
            self.0[*at].busy -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(ranks: u32) -> Ask {
        Ask { ranks: Some(ranks), ..Ask::default() }
    }

    /// Nodes with these slots, of which these are busy.
    fn nodes(slots: &[(u32, u32)]) -> Nodes {
        let node = |(at, (slots, busy)): (usize, &(u32, u32))| Node {
            busy: *busy,
            ..Node::new(at.to_string(), *slots, Health::Up)
        };
        Nodes::new(slots.iter().enumerate().map(node).collect())
    }

    fn chosen(nodes: &Nodes, ask: &Ask) -> Option<Vec<(NodeNumber, u32)>> {
        Some(nodes.choose(ask)?.into_iter().collect())
    }

    #[test]
    fn a_job_gets_the_fullest_node_that_fits_or_the_emptiest_nodes() {
        let nodes = nodes(&[(4, 0), (4, 2), (4, 3)]);
        assert_eq!(chosen(&nodes, &ask(1)), Some(vec![(2, 1)]));
        assert_eq!(chosen(&nodes, &ask(2)), Some(vec![(1, 2)]));
        assert_eq!(chosen(&nodes, &ask(4)), Some(vec![(0, 4)]));
        assert_eq!(chosen(&nodes, &ask(5)), Some(vec![(0, 4), (1, 1)]));
        assert_eq!(chosen(&nodes, &ask(7)), Some(vec![(0, 4), (1, 2), (2, 1)]));
        assert_eq!((chosen(&nodes, &ask(8)), nodes.need(&ask(8)), nodes.free()), (None, 8, 7));
    }

    #[test]
    fn a_job_that_is_larger_than_the_pool_gets_all_of_it() {
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 0)]), &ask(64)), Some(vec![(0, 2), (1, 2)]));
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 1)]), &ask(64)), None);
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 0)]), &Ask::default()), Some(vec![(0, 2), (1, 2)]));
    }

    #[test]
    fn ranks_per_node_and_numbers_of_nodes_are_kept() {
        let nodes = nodes(&[(4, 0), (4, 2), (4, 3), (4, 0)]);
        let ppn = |ranks, ppn| Ask { per_node: Some(ppn), ..ask(ranks) };
        assert_eq!(chosen(&nodes, &ppn(4, 2)), Some(vec![(0, 2), (1, 2)]));
        assert_eq!(chosen(&nodes, &ppn(8, 4)), Some(vec![(0, 4), (3, 4)]));
        assert_eq!(chosen(&nodes, &ppn(12, 4)), None);
        let both = Ask { nodes: Some(2), ..ppn(8, 4) };
        assert_eq!((chosen(&nodes, &both), nodes.need(&both)), (Some(vec![(0, 4), (3, 4)]), 8));
        let each = Ask { ranks: None, ..ppn(0, 1) };
        assert_eq!(chosen(&nodes, &each), Some(vec![(0, 1), (1, 1), (2, 1), (3, 1)]));
        let whole = Ask { nodes: Some(2), ..Ask::default() };
        assert_eq!(chosen(&nodes, &whole), Some(vec![(0, 4), (3, 4)]));
        let on = |ranks, nodes| Ask { nodes: Some(nodes), ..ask(ranks) };
        assert_eq!(chosen(&nodes, &on(3, 3)), Some(vec![(0, 1), (1, 1), (2, 1)]));
        assert_eq!(chosen(&nodes, &on(8, 4)), None);
        assert_eq!(chosen(&nodes, &on(6, 2)), Some(vec![(0, 3), (3, 3)]));
    }

    #[test]
    fn an_exclusive_job_gets_whole_nodes() {
        let nodes = nodes(&[(4, 0), (4, 1), (4, 0)]);
        let alone = |ranks| Ask { is_exclusive: true, ..ask(ranks) };
        assert_eq!(chosen(&nodes, &alone(1)), Some(vec![(0, 4)]));
        assert_eq!(chosen(&nodes, &alone(6)), Some(vec![(0, 4), (2, 4)]));
        assert_eq!(chosen(&nodes, &alone(9)), None);
    }

    #[test]
    fn drained_and_lost_nodes_are_left_out() {
        let mut nodes = nodes(&[(4, 0), (4, 0), (4, 0)]);
        nodes.set_drained(0, true);
        nodes.set_health(1, Health::Down("it was lost".to_owned()));
        assert_eq!((chosen(&nodes, &ask(4)), nodes.slots()), (Some(vec![(2, 4)]), 4));
        nodes.set_health(2, Health::Starts);
        assert_eq!((chosen(&nodes, &ask(1)), nodes.need(&ask(1))), (None, 1), "no job starts without nodes");
        assert_eq!(chosen(&nodes, &Ask { nodes: Some(1), ..ask(1) }), None);
        nodes.set_drained(0, false);
        assert_eq!(chosen(&nodes, &ask(4)), Some(vec![(0, 4)]));
    }

    #[test]
    fn slots_are_given_back() {
        let mut nodes = nodes(&[(2, 0), (2, 0)]);
        let shares = nodes.choose(&ask(3)).unwrap();
        nodes.take(&shares);
        assert_eq!(nodes.free(), 1);
        nodes.give_back(&shares);
        assert_eq!(nodes.free(), 4);
    }
}
