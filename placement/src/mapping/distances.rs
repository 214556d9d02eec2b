//! Distances between hosts, by a table where that is small.

use crate::topology::Topology;

/// From this many hosts on, distances are computed each time: a table of them would not fit into a core's caches.
const TABLE_HOSTS_MAX: usize = 2048;

/// The distances between hosts. A faulty host makes each link that ends at it 100 links longer.
#[derive(Debug, Clone)]
pub(super) struct Distances<'a> {
    topology: &'a Topology,
    places: &'a [u32],
    is_faulty: Option<&'a [bool]>,
    table: Vec<u16>,
}

/// How many links a link counts for if a host at its end may fail: 1 + 100.
pub const FAULTY_LINK: u32 = 101;

impl<'a> Distances<'a> {
    /// `is_faulty` is indexed by place.
    pub(super) fn new(topology: &'a Topology, places: &'a [u32], is_faulty: Option<&'a [bool]>) -> Self {
        let mut made = Self { topology, places, is_faulty, table: Vec::new() };
        if places.len() <= TABLE_HOSTS_MAX {
            let count = places.len();
            let mut table = vec![0; count * count];
            for from in 0..count {
                for to in 0..from {
                    let distance = u16::try_from(made.computed(from as u32, to as u32)).unwrap_or(u16::MAX);
                    table[from * count + to] = distance;
                    table[to * count + from] = distance;
                }
            }
            made.table = table;
        }
        made
    }

    fn computed(&self, from: u32, to: u32) -> u32 {
        weighted(self.topology, self.places[from as usize], self.places[to as usize], self.is_faulty)
    }

    pub(super) fn between(&self, from: u32, to: u32) -> u32 {
        if from == to {
            0
        } else if self.table.is_empty() {
            self.computed(from, to)
        } else {
            u32::from(self.table[from as usize * self.places.len() + to as usize])
        }
    }
}

/// Returns the weight of the route between two places: the sum over its links of 1, and 100 more for each link at an
/// end of which a host may fail (equation 5.1 of the publication, with c = 1).
pub fn weighted(topology: &Topology, from: u32, to: u32, is_faulty: Option<&[bool]>) -> u32 {
    let Some(is_faulty) = is_faulty else { return topology.distance(from, to) };
    let mut route = Vec::new();
    topology.route(from, to, &mut route);
    let is_bad = |link: &u32| topology.ends(*link).into_iter().flatten().any(|place| is_faulty[place as usize]);
    route.iter().map(|link| if is_bad(link) { FAULTY_LINK } else { 1 }).sum()
}
