//! The nodes of a pool, and which of them a job gets. Pure.
//!
//! A job gets slots of as few nodes as possible: of the fullest node that has room for all its ranks; otherwise of the emptiest
//! nodes, one after the other, or of nodes near to each other if the network is known (`choice`). Nodes that are drained, or whose
//! keepers are lost, are left out.

use std::collections::BTreeMap;

use nla::core::Resources;
use placement::topology::Topology;
use serde::{Deserialize, Serialize};

use super::choice::{Candidate, Demand, gather};
use super::devices::Devices;
use super::message::{Ask, JobNumber};
use super::waits::{Needs, Room, Sharing, Unusable};

/// The number of a node in its pool. It is never another node's.
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
    /// Its accelerators and other devices, as far as they are known.
    pub devices: Devices,
    /// The job there that uses devices, if it is unknown how many there are.
    pub device_job: Option<JobNumber>,
    /// Whether it can have jobs.
    pub health: Health,
    /// The user has drained it: it gets no new jobs.
    pub is_drained: bool,
}

impl Node {
    /// Returns a node without jobs.
    pub fn new(name: impl Into<String>, slots: u32, health: Health) -> Self {
        let (name, devices) = (name.into(), Devices::default());
        Self { name, slots, busy: 0, devices, device_job: None, health, is_drained: false }
    }

    fn is_usable(&self) -> bool {
        self.health == Health::Up && !self.is_drained
    }
}

/// The slots of a job, by node.
pub type Shares = BTreeMap<NodeNumber, u32>;

/// The nodes of a pool.
#[derive(Debug, Default)]
pub struct Nodes {
    all: BTreeMap<NodeNumber, Node>,
    /// The network between them, if it is known.
    network: Option<Topology>,
    /// The place in the network of each node that has one.
    places: BTreeMap<NodeNumber, u32>,
}

/// The part of a node that a job can have.
struct Offer<'a> {
    at: NodeNumber,
    node: &'a Node,
    /// The slots for as many ranks as the node has devices for, if no other job were there.
    slots: u32,
    /// Slots that are free now, limited by free devices.
    free: u32,
}

/// So many nodes, with so many slots of each.
#[derive(Copy, Clone)]
struct Shape {
    nodes: usize,
    /// More than a node has means all of it.
    each: u32,
}

impl Nodes {
    /// Begins with these nodes, numbered from 0.
    pub fn new(nodes: Vec<Node>) -> Self {
        Self { all: nodes.into_iter().enumerate().collect(), ..Self::default() }
    }

    /// Notes the network between the nodes, which has places for all of them.
    pub fn set_network(&mut self, network: Topology) {
        let places = match network.names().is_empty() {
            true => self.all.keys().filter_map(|at| place(&network, *at, "")).collect(),
            false => network.places_of(self.all.values().map(|node| node.name.as_str())).unwrap_or_default(),
        };
        self.places = self.all.keys().copied().zip(places).collect();
        self.network = Some(network);
    }

    /// Returns whether the network, if it is known, has a place for a node.
    pub fn has_place(&self, at: NodeNumber, name: &str) -> bool {
        self.network.as_ref().is_none_or(|network| place(network, at, name).is_some())
    }

    /// Returns all nodes in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = (NodeNumber, &Node)> {
        self.all.iter().map(|(at, node)| (*at, node))
    }

    /// Returns the number of all nodes.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the node with this number.
    pub fn node(&self, at: NodeNumber) -> Option<&Node> {
        self.all.get(&at)
    }

    /// Adds a node.
    pub fn add(&mut self, at: NodeNumber, node: Node) {
        if let Some(place) = self.network.as_ref().and_then(|network| place(network, at, &node.name)) {
            self.places.insert(at, place);
        }
        self.all.insert(at, node);
    }

    /// Removes a node. Jobs that run there keep what they have.
    pub fn remove(&mut self, at: NodeNumber) {
        self.places.remove(&at);
        self.all.remove(&at);
    }

    /// Notes that a node can have no jobs.
    pub fn set_health(&mut self, node: NodeNumber, health: Health) {
        if let Some(node) = self.all.get_mut(&node) {
            node.health = health;
        }
    }

    /// Notes that the keeper of a node answers. A node whose number of slots is unknown, 0, gets one for each core.
    pub fn set_up(&mut self, node: NodeNumber, cores: u32) {
        if let Some(node) = self.all.get_mut(&node) {
            node.health = Health::Up;
            if node.slots == 0 {
                node.slots = cores.max(1);
            }
        }
    }

    /// Drains a node, or ends that.
    pub fn set_drained(&mut self, node: NodeNumber, is_drained: bool) {
        if let Some(node) = self.all.get_mut(&node) {
            node.is_drained = is_drained;
        }
    }

    /// Returns the slots of the nodes that can have jobs.
    pub fn slots(&self) -> u32 {
        self.usable().map(|(_, node)| node.slots).sum()
    }

    fn usable(&self) -> impl Iterator<Item = (NodeNumber, &Node)> {
        self.all().filter(|(_, node)| node.is_usable())
    }

    /// Returns whether the list of hosts or an option says what devices nodes have. A node without an entry has none.
    fn knows_devices(&self) -> bool {
        self.all.values().any(|node| !node.devices.are_none())
    }

    /// Returns whether a node has the devices for a rank, as far as that is known.
    pub fn may_have(&self, requests: &Resources) -> bool {
        requests.is_empty() || !self.knows_devices() || self.all.values().any(|node| node.devices.room(requests) > 0)
    }

    /// Returns the devices that a job has of a node, if they are known.
    pub fn devices_of(&self, at: NodeNumber, job: JobNumber) -> Resources {
        self.all.get(&at).map(|node| node.devices.of_job(job)).unwrap_or_default()
    }

    /// Returns what the usable nodes offer the job.
    fn offers(&self, ask: &Ask) -> impl Iterator<Item = Offer<'_>> {
        self.offers_of_all(ask).filter(|offer| offer.node.is_usable())
    }

    /// Returns what all nodes offer the job, as if all were usable.
    fn offers_of_all(&self, ask: &Ask) -> impl Iterator<Item = Offer<'_>> {
        let asks_devices = !ask.devices.is_empty();
        let knows_devices = asks_devices && self.knows_devices();
        let offers = self.all().map(move |(at, node)| {
            // Agents of different jobs do not know of each other's devices.
            let (room, free_room) = match knows_devices {
                true => (node.devices.room(&ask.devices), node.devices.free_room(&ask.devices)),
                false if asks_devices && node.device_job.is_some() => (u32::MAX, 0),
                false => (u32::MAX, u32::MAX),
            };
            Offer { at, node, slots: node.slots.min(room), free: (node.slots - node.busy).min(free_room) }
        });
        offers.filter(|offer| offer.slots > 0)
    }

    /// Returns how many nodes the job needs, and how many slots of each, if it says so.
    fn shape(&self, ask: &Ask) -> Option<Shape> {
        let usable = || self.offers(ask).count();
        let fitting = |nodes: &usize| *nodes <= self.offers_of_all(ask).count();
        let wanted = |each: u32| ask.ranks.map(|ranks| ranks.div_ceil(each.max(1)) as usize);
        match (ask.nodes, ask.per_node) {
            (Some(nodes), Some(each)) => Some(Shape { nodes: nodes as usize, each }),
            (Some(nodes), None) => {
                let each = ask.ranks.map_or(u32::MAX, |ranks| ranks.div_ceil(nodes.max(1)));
                Some(Shape { nodes: nodes as usize, each })
            }
            // Like `need`: a job for more nodes than the pool has gets all usable ones.
            (None, Some(each)) => {
                let nodes = wanted(each).filter(fitting).unwrap_or_else(usable);
                Some(Shape { nodes, each })
            }
            (None, None) => None,
        }
    }

    /// Returns how many slots the job needs. A job that asks for more slots than the pool has gets all usable ones, so it runs alone.
    /// One that fits into the pool waits for nodes that are not usable, if it needs them: its ranks do not share slots.
    pub fn need(&self, ask: &Ask) -> u32 {
        let slots: u32 = self.offers_of_all(ask).map(|offer| offer.slots).sum();
        let wanted = match self.shape(ask) {
            Some(Shape { nodes, each }) => each.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)),
            None => ask.ranks.unwrap_or(u32::MAX),
        };
        let needed = if wanted <= slots { wanted } else { self.offers(ask).map(|offer| offer.slots).sum() };
        needed.max(1)
    }

    /// Returns the nodes with free slots that the job can have.
    fn candidates(&self, ask: &Ask, shape: Option<Shape>) -> Vec<Candidate> {
        let may_be_used = |node: &Node| !(ask.is_exclusive && node.busy > 0);
        let offers = self.offers(ask).filter(|offer| may_be_used(offer.node));
        let candidate = |Offer { at, node, slots, free }: Offer<'_>| Candidate {
            at,
            slots,
            free,
            is_avoided: ask.avoided.contains(&node.name),
            place: self.places.get(&at).copied(),
        };
        let fits =
            |node: &Candidate| node.free > 0 && shape.is_none_or(|shape| node.free >= shape.each.min(node.slots));
        offers.map(candidate).filter(fits).collect()
    }

    /// Returns the slots that a job would get now; `None` if it must wait.
    pub fn choose(&self, ask: &Ask) -> Option<Shares> {
        let shape = self.shape(ask);
        let free = self.candidates(ask, shape);
        let network = self.network.as_ref();
        let all_of = |at: NodeNumber| self.all.get(&at).map(|node| node.slots).filter(|_| ask.is_exclusive);
        let whole = |node: &Candidate, taken: u32| (node.at, all_of(node.at).unwrap_or(taken));
        if let Some(Shape { nodes, each }) = shape {
            let chosen = gather(&free, Demand::Nodes(nodes), network)?;
            return Some(chosen.iter().map(|node| whole(node, each.min(node.slots))).collect());
        }
        let need = self.need(ask);
        let fitting = free.iter().filter(|node| node.free >= need);
        let fitting = fitting.min_by_key(|node| (node.is_avoided, node.free, node.at));
        if let Some(node) = fitting.filter(|node| !node.is_avoided) {
            return Some([whole(node, need)].into());
        }
        let together = gather(&free, Demand::Slots(need), network)?;
        if let Some(node) = fitting.filter(|_| together.iter().any(|node| node.is_avoided)) {
            return Some([whole(node, need)].into());
        }
        let mut missing = need;
        let share = |node: &Candidate| {
            let taken = node.free.min(missing);
            missing -= taken;
            whole(node, taken)
        };
        Some(together.iter().map(share).collect())
    }

    /// Returns the demand of a job beside what is free. [`Nodes::choose`] has slots for it if that suffices.
    pub fn room(&self, ask: &Ask) -> Room {
        let shape = self.shape(ask);
        let free = self.candidates(ask, shape);
        let sharing = match (ask.is_exclusive, ask.devices.is_empty()) {
            (true, _) => Sharing::Alone,
            (false, true) => Sharing::Any,
            (false, false) if self.knows_devices() => Sharing::Free,
            (false, false) => Sharing::Devices,
        };
        let mut unusable = Unusable::default();
        for (_, node) in self.all() {
            match (&node.health, node.is_drained) {
                (Health::Up, false) => {}
                (Health::Up, true) => unusable.drained += 1,
                (Health::Down(_), _) => unusable.down += 1,
                (Health::Starts, _) => unusable.starting += 1,
            }
        }
        match shape {
            Some(Shape { nodes, each }) => {
                let nodes = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
                let needs = Needs::Nodes { nodes, each: Some(each).filter(|each| *each < u32::MAX), sharing };
                Room { needs, free: free.len() as u32, unusable }
            }
            None => {
                let needs = Needs::Slots { slots: self.need(ask), sharing };
                Room { needs, free: free.iter().map(|node| node.free).sum(), unusable }
            }
        }
    }

    /// Returns whether the usable nodes suffice for the job once no other job has slots or devices of them.
    pub fn may_suffice(&self, ask: &Ask) -> bool {
        match self.shape(ask) {
            Some(Shape { nodes, .. }) => self.offers(ask).count() >= nodes.max(1),
            None => self.offers(ask).map(|offer| offer.slots).sum::<u32>() >= self.need(ask),
        }
    }

    /// Returns the nodes that the job needs and cannot have, as they are drained or down; none if the usable nodes suffice once no other
    /// job has slots of them.
    pub fn lacking(&self, ask: &Ask) -> impl Iterator<Item = NodeNumber> {
        let is_lacking = !self.may_suffice(ask);
        self.offers_of_all(ask).filter(move |offer| is_lacking && !offer.node.is_usable()).map(|offer| offer.at)
    }

    /// Takes the slots of a job, and devices of its nodes if its ranks ask for some.
    pub fn take(&mut self, job: JobNumber, shares: &Shares, requests: &Resources) {
        let knows_devices = self.knows_devices();
        for (at, taken) in shares {
            let Some(node) = self.all.get_mut(at) else { continue };
            node.busy += taken;
            if requests.is_empty() {
                continue;
            }
            if knows_devices {
                node.devices.take(job, requests, *taken);
            } else {
                node.device_job = Some(job);
            }
        }
    }

    /// Gives back what a job has taken.
    pub fn give_back(&mut self, job: JobNumber, shares: &Shares) {
        for (at, taken) in shares {
            let Some(node) = self.all.get_mut(at) else { continue };
            node.busy -= taken;
            node.devices.give_back(job);
            node.device_job.take_if(|holder| *holder == job);
        }
    }
}

/// Returns the place of a node: by its name, or its number if the network names no hosts.
fn place(network: &Topology, at: NodeNumber, name: &str) -> Option<u32> {
    if network.names().is_empty() {
        return u32::try_from(at).ok().filter(|place| *place < network.places());
    }
    network.places_of([name].into_iter()).ok()?.first().copied()
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

    /// Returns the choice, and checks it against [`Nodes::room`].
    fn chosen(nodes: &Nodes, ask: &Ask) -> Option<Vec<(NodeNumber, u32)>> {
        let chosen = nodes.choose(ask);
        assert_eq!(chosen.is_some(), nodes.room(ask).suffices(), "{ask:?} {:?}", nodes.room(ask));
        assert!(chosen.is_none() || nodes.may_suffice(ask), "{ask:?}");
        Some(chosen?.into_iter().collect())
    }

    #[test]
    fn a_job_that_waits_is_told_what_is_missing() {
        let mut nodes = nodes(&[(4, 0), (4, 2), (4, 4), (4, 0), (4, 0)]);
        nodes.set_drained(3, true);
        nodes.set_health(4, Health::Down("it was lost".to_owned()));
        let unusable = Unusable { drained: 1, down: 1, starting: 0 };
        let slots = |slots, sharing, free| Room { needs: Needs::Slots { slots, sharing }, free, unusable };
        assert_eq!(nodes.room(&ask(7)), slots(7, Sharing::Any, 6));
        assert_eq!(nodes.room(&Ask { is_exclusive: true, ..ask(7) }), slots(7, Sharing::Alone, 4));
        assert_eq!(nodes.room(&Ask::default()), slots(12, Sharing::Any, 6), "it wants all that can have jobs");
        let on = |count, each, free| {
            let needs = Needs::Nodes { nodes: count, each, sharing: Sharing::Any };
            Room { needs, free, unusable }
        };
        assert_eq!(nodes.room(&Ask { nodes: Some(3), ..ask(3) }), on(3, Some(1), 2));
        assert_eq!(nodes.room(&Ask { nodes: Some(2), ..Ask::default() }), on(2, None, 1));
        assert_eq!(nodes.room(&Ask { per_node: Some(3), ..ask(6) }), on(2, Some(3), 1));
        nodes.set_health(4, Health::Starts);
        (0..3).for_each(|at| nodes.set_drained(at, true));
        let unusable = Unusable { drained: 4, down: 0, starting: 1 };
        let room = |slots| Room { needs: Needs::Slots { slots, sharing: Sharing::Any }, free: 0, unusable };
        assert_eq!((nodes.room(&ask(7)), nodes.room(&ask(64))), (room(7), room(1)));
        assert!(!nodes.room(&Ask { per_node: Some(3), ..ask(6) }).suffices());
    }

    #[test]
    fn a_node_that_was_removed_gets_no_jobs_and_its_job_may_end() {
        let mut nodes = nodes(&[(2, 0), (2, 0)]);
        let shares = nodes.choose(&ask(4)).unwrap();
        nodes.take(1, &shares, &Resources::NONE);
        nodes.remove(0);
        nodes.give_back(1, &shares);
        assert_eq!((chosen(&nodes, &ask(2)), nodes.slots()), (Some(vec![(1, 2)]), 2));
        nodes.add(2, Node::new("new", 3, Health::Up));
        assert_eq!(chosen(&nodes, &ask(3)), Some(vec![(2, 3)]));
    }

    #[test]
    fn a_job_gets_the_fullest_node_that_fits_or_the_emptiest_nodes() {
        let nodes = nodes(&[(4, 0), (4, 2), (4, 3)]);
        assert_eq!(chosen(&nodes, &ask(1)), Some(vec![(2, 1)]));
        assert_eq!(chosen(&nodes, &ask(2)), Some(vec![(1, 2)]));
        assert_eq!(chosen(&nodes, &ask(4)), Some(vec![(0, 4)]));
        assert_eq!(chosen(&nodes, &ask(5)), Some(vec![(0, 4), (1, 1)]));
        assert_eq!(chosen(&nodes, &ask(7)), Some(vec![(0, 4), (1, 2), (2, 1)]));
        assert_eq!((chosen(&nodes, &ask(8)), nodes.need(&ask(8)), nodes.room(&ask(8)).free), (None, 8, 7));
    }

    #[test]
    fn a_job_that_is_larger_than_the_pool_gets_all_of_it() {
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 0)]), &ask(64)), Some(vec![(0, 2), (1, 2)]));
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 1)]), &ask(64)), None);
        assert_eq!(chosen(&nodes(&[(2, 0), (2, 0)]), &Ask::default()), Some(vec![(0, 2), (1, 2)]));
    }

    #[test]
    fn a_job_that_fits_into_the_pool_waits_for_nodes_that_are_not_used() {
        let mut nodes = nodes(&[(2, 0), (2, 0), (2, 0)]);
        let ppn = |ranks| Ask { per_node: Some(2), ..ask(ranks) };
        let shares = Some(vec![(0, 2), (1, 2)]);
        let change: [fn(&mut Nodes); 3] = [
            |nodes| nodes.set_drained(2, true),
            |nodes| nodes.set_health(2, Health::Down("it was lost".to_owned())),
            |nodes| nodes.set_drained(2, false),
        ];
        for change in change {
            change(&mut nodes);
            assert_eq!((chosen(&nodes, &ask(4)), chosen(&nodes, &ppn(4))), (shares.clone(), shares.clone()));
            assert_eq!((chosen(&nodes, &ask(6)), chosen(&nodes, &ppn(6))), (None, None));
            assert_eq!((nodes.need(&ask(6)), nodes.need(&ppn(6)), nodes.need(&ask(7))), (6, 6, 4));
            assert!(!nodes.may_suffice(&ask(6)) && !nodes.may_suffice(&ppn(6)));
            // These share slots anyway, or take what there is.
            assert_eq!((chosen(&nodes, &ask(7)), chosen(&nodes, &ppn(7))), (shares.clone(), shares.clone()));
            assert_eq!(chosen(&nodes, &Ask::default()), shares);
        }
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

    fn with_devices(ranks: u32, devices: &str) -> Ask {
        Ask { devices: devices.parse().unwrap(), ..ask(ranks) }
    }

    #[test]
    fn jobs_share_no_node_whose_devices_are_unknown() {
        let mut nodes = nodes(&[(4, 0), (4, 0)]);
        let job = |ranks| with_devices(ranks, "gpu");
        let shares = nodes.choose(&job(1)).unwrap();
        nodes.take(1, &shares, &job(1).devices);
        assert_eq!(chosen(&nodes, &job(1)), Some(vec![(1, 1)]));
        assert_eq!(chosen(&nodes, &ask(1)), Some(vec![(0, 1)]), "another job may use the other slots");
        assert_eq!(chosen(&nodes, &job(5)), None);
        let needs = Needs::Slots { slots: 5, sharing: Sharing::Devices };
        assert_eq!(nodes.room(&job(5)), Room { needs, free: 4, unusable: Unusable::default() });
        nodes.take(2, &[(0, 1)].into(), &Resources::NONE);
        nodes.give_back(2, &[(0, 1)].into());
        assert_eq!(chosen(&nodes, &job(5)), None, "that of the first job is left");
        nodes.give_back(1, &shares);
        assert_eq!(chosen(&nodes, &job(5)), Some(vec![(0, 4), (1, 1)]));
    }

    #[test]
    fn each_job_has_its_own_devices_where_they_are_known() {
        let mut nodes = nodes(&[(4, 0), (4, 0), (4, 0)]);
        for (at, gres) in [(0, "gpu:a100:2,fpga:1"), (1, "gpu:v100:3")] {
            nodes.all.get_mut(&at).unwrap().devices = Devices::of(&gres.parse().unwrap());
        }
        let job = with_devices;
        let mut take = |number, ask: &Ask| {
            let shares = nodes.choose(ask).unwrap();
            nodes.take(number, &shares, &ask.devices);
            let own: Vec<_> = shares.keys().map(|at| (*at, nodes.devices_of(*at, number).to_string())).collect();
            (own, shares)
        };
        let text = |own: &[(usize, &str)]| own.iter().map(|(at, gres)| (*at, (*gres).to_owned())).collect::<Vec<_>>();
        assert_eq!(take(1, &job(1, "gpu:a100")).0, text(&[(0, "gpu:a100:1@0")]));
        let (own, second) = take(2, &job(3, "gpu"));
        assert_eq!(own, text(&[(1, "gpu:v100:3@0+1+2")]));
        assert_eq!(take(3, &job(1, "gpu,fpga")).0, text(&[(0, "fpga:1@0,gpu:a100:1@1")]));
        let room = nodes.room(&job(1, "gpu"));
        assert_eq!((room.needs, room.free), (Needs::Slots { slots: 1, sharing: Sharing::Free }, 0));
        assert_eq!(chosen(&nodes, &job(1, "gpu")), None);
        assert_eq!(chosen(&nodes, &ask(2)), Some(vec![(0, 2)]), "slots without devices are left");
        nodes.give_back(2, &second);
        assert_eq!(chosen(&nodes, &job(2, "gpu")), Some(vec![(1, 2)]));
        assert_eq!((nodes.need(&job(9, "gpu")), nodes.need(&job(9, "gpu:2"))), (5, 2), "all that there are");
        assert_eq!(chosen(&nodes, &Ask { nodes: Some(1), is_exclusive: true, ..job(1, "gpu") }), Some(vec![(1, 4)]));
        assert_eq!(
            ["gpu", "gpu:4", "fpga:v", "gpu:v100:3"].map(|gres| nodes.may_have(&gres.parse().unwrap())),
            [true, false, false, true]
        );
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
    fn nodes_may_suffice_once_jobs_have_ended() {
        let mut nodes = nodes(&[(4, 4), (4, 2), (2, 2)]);
        nodes.all.get_mut(&0).unwrap().device_job = Some(1);
        let on = |count| Ask { nodes: Some(count), ..ask(count) };
        let asks = [ask(10), ask(64), Ask { is_exclusive: true, ..ask(10) }, with_devices(10, "gpu"), on(3)];
        let each = |nodes: &Nodes| asks.each_ref().map(|ask| (nodes.choose(ask).is_some(), nodes.may_suffice(ask)));
        assert_eq!(each(&nodes), [(false, true); 5]);
        nodes.set_drained(1, true);
        assert!(!nodes.may_suffice(&on(3)) && nodes.may_suffice(&on(2)));
        nodes.set_health(0, Health::Down("it was lost".to_owned()));
        assert!(!nodes.may_suffice(&on(2)) && nodes.may_suffice(&Ask { per_node: Some(4), ..ask(1) }));
        nodes.set_drained(2, true);
        assert_eq!(each(&nodes), [(false, false); 5]);
    }

    #[test]
    fn a_job_avoids_nodes_that_may_fail() {
        let nodes = nodes(&[(4, 0), (4, 2), (4, 0), (4, 0)]);
        let avoiding = |ranks, names: &[&str]| {
            let avoided = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&nodes, &Ask { avoided, ..ask(ranks) })
        };
        assert_eq!(avoiding(2, &[]), Some(vec![(1, 2)]));
        assert_eq!(avoiding(2, &["1"]), Some(vec![(0, 2)]));
        assert_eq!(avoiding(4, &["0", "2", "3"]), Some(vec![(0, 4)]), "all that fit may fail");
        assert_eq!(avoiding(6, &["0"]), Some(vec![(1, 2), (2, 4)]));
        assert_eq!(avoiding(14, &["2"]), Some(vec![(0, 4), (1, 2), (2, 4), (3, 4)]));
        assert_eq!(avoiding(1, &["0", "1", "2", "3"]), Some(vec![(1, 1)]));
    }

    #[test]
    fn a_network_has_places_by_names_or_numbers() {
        let mut nodes = nodes(&[(1, 0), (1, 0), (1, 0), (1, 0), (1, 0)]);
        nodes.set_network(Topology::parse_words("torus:8x1x1").unwrap());
        assert_eq!((nodes.has_place(7, "any"), nodes.has_place(8, "any")), (true, false));
        nodes.take(1, &[(1, 1)].into(), &Resources::NONE);
        nodes.set_drained(3, true);
        assert_eq!(chosen(&nodes, &ask(2)), Some(vec![(0, 1), (2, 1)]), "there is no nearer pair");
        nodes.set_drained(3, false);
        assert_eq!(chosen(&nodes, &ask(2)), Some(vec![(2, 1), (3, 1)]));
        assert_eq!(chosen(&nodes, &Ask { nodes: Some(3), ..ask(3) }), Some(vec![(2, 1), (3, 1), (4, 1)]));
    }

    #[test]
    fn slots_are_given_back() {
        let mut nodes = nodes(&[(2, 0), (2, 0)]);
        let shares = nodes.choose(&ask(3)).unwrap();
        nodes.take(1, &shares, &Resources::NONE);
        assert_eq!(nodes.room(&ask(3)).free, 1);
        nodes.give_back(1, &shares);
        assert_eq!(nodes.room(&ask(3)).free, 4);
    }
}
