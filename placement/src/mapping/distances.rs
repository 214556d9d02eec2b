//! Distances between hosts, by a table where that is small.

use crate::topology::{GRID, Topology};

/// From this many hosts on, distances are computed each time: a table of them would not fit into a core's caches.
const TABLE_HOSTS_MAX: usize = 2048;

/// The distances between hosts. A faulty host makes each link that ends at it 100 links longer.
#[derive(Debug, Clone)]
pub(super) enum Distances<'a> {
    /// The distance of each two hosts.
    Table { count: usize, table: Vec<u16> },
    /// The coordinates of hosts in a torus, and its sizes; a size that no way around is shorter than in a mesh.
    Grid { at: Vec<[u16; GRID]>, sizes: [u16; GRID] },
    /// Any other network: distances are computed each time.
    Computed { topology: &'a Topology, places: &'a [u32], outages: Option<&'a [f64]> },
}

/// How many links a link counts for if a host at its end may fail: 1 + 100.
pub const FAULTY_LINK: u32 = 101;

impl<'a> Distances<'a> {
    /// `outages` is indexed by place.
    pub(super) fn new(topology: &'a Topology, places: &'a [u32], outages: Option<&'a [f64]>) -> Self {
        let count = places.len();
        let grid = topology.grid().filter(|_| outages.is_none());
        let made = match grid {
            Some((of_place, sizes)) => {
                Self::Grid { at: places.iter().map(|place| of_place[*place as usize]).collect(), sizes }
            }
            None => Self::Computed { topology, places, outages },
        };
        if count > TABLE_HOSTS_MAX {
            return made;
        }
        let mut table = vec![0; count * count];
        for from in 0..count {
            for to in 0..from {
                let distance = u16::try_from(made.between(from as u32, to as u32)).unwrap_or(u16::MAX);
                table[from * count + to] = distance;
                table[to * count + from] = distance;
            }
        }
        Self::Table { count, table }
    }

    pub(super) fn between(&self, from: u32, to: u32) -> u32 {
        match self {
            Self::Table { count, table } => u32::from(table[from as usize * count + to as usize]),
            Self::Grid { at, sizes } => steps(&at[from as usize], &at[to as usize], sizes),
            Self::Computed { .. } if from == to => 0,
            Self::Computed { topology, places, outages } => {
                weighted(topology, places[from as usize], places[to as usize], *outages)
            }
        }
    }

    /// Returns the sum over a rank's edges of weight times what the edge gets longer if the rank moves from one host to
    /// another. The other ends' hosts come with the weights.
    pub(super) fn longer(&self, from: u32, to: u32, ends: impl Iterator<Item = (u32, i64)>) -> i64 {
        match self {
            Self::Table { count, table } => {
                let row = |host: u32| &table[host as usize * count..][..*count];
                let (before, after) = (row(from), row(to));
                ends.map(|(at, weight)| weight * (i64::from(after[at as usize]) - i64::from(before[at as usize]))).sum()
            }
            Self::Grid { at, sizes } => {
                let (before, after) = (&at[from as usize], &at[to as usize]);
                let one = |(end, weight): (u32, i64)| {
                    let end = &at[end as usize];
                    weight * (i64::from(steps(after, end, sizes)) - i64::from(steps(before, end, sizes)))
                };
                ends.map(one).sum()
            }
            Self::Computed { .. } => ends
                .map(|(at, weight)| weight * (i64::from(self.between(to, at)) - i64::from(self.between(from, at))))
                .sum(),
        }
    }
}

/// Returns the steps between two coordinates.
fn steps(one: &[u16; GRID], other: &[u16; GRID], sizes: &[u16; GRID]) -> u32 {
    let mut sum = 0;
    for dimension in 0..GRID {
        let apart = one[dimension].abs_diff(other[dimension]);
        sum += u32::from(apart.min(sizes[dimension].wrapping_sub(apart)));
    }
    sum
}

/// Returns the weight of the route between two places: the sum over its links of 1, and 100 more for each link at an
/// end of which a host may fail (equation 5.1 of the publication, with c = 1).
pub fn weighted(topology: &Topology, from: u32, to: u32, outages: Option<&[f64]>) -> u32 {
    let Some(outages) = outages else { return topology.distance(from, to) };
    let mut route = Vec::new();
    topology.route(from, to, &mut route);
    let is_bad = |link: &u32| topology.ends(*link).into_iter().flatten().any(|place| outages[place as usize] > 0.0);
    route.iter().map(|link| if is_bad(link) { FAULTY_LINK } else { 1 }).sum()
}
