//! The figures of a placement.

use crate::matrix::Matrix;
use crate::topology::Topology;

/// The figures of a placement. Less is better for each.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Metrics {
    /// The sum over all messages of their bytes times the links that they cross.
    pub hop_bytes: u128,
    /// The bytes of all pairs of different ranks.
    pub bytes: u128,
    /// The bytes between different hosts.
    pub between_hosts: u128,
    /// The most bytes on one link, for each of its cables.
    pub heaviest: u64,
    /// The link that has them.
    pub heaviest_link: Option<u32>,
}

impl Metrics {
    /// Returns the average number of links that a byte crosses.
    pub fn hops_per_byte(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.hop_bytes as f64 / self.bytes as f64 }
    }

    /// Whether no figure is worse than another placement's.
    pub fn is_never_worse(&self, than: &Self) -> bool {
        self.hop_bytes <= than.hop_bytes && self.heaviest <= than.heaviest && self.between_hosts <= than.between_hosts
    }
}

/// The bytes on each link.
#[derive(Debug, Clone)]
pub struct Loads {
    bytes: Vec<u64>,
    route: Vec<u32>,
    /// The bytes of a cable that are allowed, and the sum of what links have beyond them.
    bound: u64,
    excess: i128,
}

impl Loads {
    /// Starts without any.
    pub fn new(topology: &Topology) -> Self {
        Self { bytes: vec![0; topology.links() as usize], route: Vec::new(), bound: u64::MAX, excess: 0 }
    }

    /// Adds bytes to each link of a route, or takes them away.
    pub fn add(&mut self, topology: &Topology, from: u32, to: u32, bytes: u64, is_added: bool) {
        self.route.clear();
        topology.route(from, to, &mut self.route);
        for link in &self.route {
            let load = &mut self.bytes[*link as usize];
            let allowed = self.bound.saturating_mul(u64::from(topology.width(*link)));
            self.excess -= i128::from(load.saturating_sub(allowed));
            *load = if is_added { load.saturating_add(bytes) } else { load.saturating_sub(bytes) };
            self.excess += i128::from(load.saturating_sub(allowed));
        }
    }

    /// Counts from now on what links have beyond `bound` bytes per cable.
    pub(super) fn set_bound(&mut self, topology: &Topology, bound: u64) {
        self.bound = bound;
        let beyond = |(link, load): (usize, &u64)| {
            load.saturating_sub(bound.saturating_mul(u64::from(topology.width(link as u32))))
        };
        self.excess = self.bytes.iter().enumerate().map(beyond).map(i128::from).sum();
    }

    /// Whether a link has more bytes than the bound.
    pub(super) fn is_beyond(&self, topology: &Topology, link: u32) -> bool {
        self.bytes[link as usize] > self.bound.saturating_mul(u64::from(topology.width(link)))
    }

    /// Returns the sum of what links have beyond the bound.
    pub(super) fn excess(&self) -> i128 {
        self.excess
    }

    /// Returns the links of the last route, with their bytes per cable.
    pub fn touched(&self, topology: &Topology) -> impl Iterator<Item = (u32, u64)> {
        self.route.iter().map(|link| (*link, self.per_cable(topology, *link)))
    }

    pub(super) fn per_cable(&self, topology: &Topology, link: u32) -> u64 {
        self.bytes[link as usize].div_ceil(u64::from(topology.width(link)))
    }

    /// Returns the bytes per cable of all links.
    pub fn all(&self, topology: &Topology) -> impl Iterator<Item = (u32, u64)> {
        (0..self.bytes.len() as u32).map(|link| (link, self.per_cable(topology, link)))
    }

    /// Returns the link with the most bytes per cable; the first of equals.
    pub fn heaviest(&self, topology: &Topology) -> Option<(u32, u64)> {
        self.all(topology).filter(|(_, load)| *load > 0).max_by_key(|(link, load)| (*load, std::cmp::Reverse(*link)))
    }
}

/// Returns the loads of all links. `place_of` is indexed by rank.
pub fn loads(matrix: &Matrix, topology: &Topology, place_of: &[u32]) -> Loads {
    let mut loads = Loads::new(topology);
    for pair in matrix.pairs() {
        let (from, to) = (place_of[pair.from as usize], place_of[pair.to as usize]);
        if from != to {
            loads.add(topology, from, to, pair.traffic.bytes, true);
        }
    }
    loads
}

/// Measures a placement: the place of each rank.
pub fn measure(matrix: &Matrix, topology: &Topology, place_of: &[u32]) -> Metrics {
    let mut metrics = Metrics::default();
    for pair in matrix.pairs().iter().filter(|pair| pair.from != pair.to) {
        let (from, to) = (place_of[pair.from as usize], place_of[pair.to as usize]);
        let bytes = u128::from(pair.traffic.bytes);
        metrics.bytes += bytes;
        metrics.between_hosts += if from == to { 0 } else { bytes };
        metrics.hop_bytes += bytes * u128::from(topology.distance(from, to));
    }
    let heaviest = loads(matrix, topology, place_of).heaviest(topology);
    (metrics.heaviest_link, metrics.heaviest) = heaviest.map_or((None, 0), |(link, load)| (Some(link), load));
    metrics
}
