//! Refuses changes of a placement that make a link heavier than a bound, or more bytes leave hosts.

use super::metrics::Loads;
use super::refine::{Change, Refiner};
use crate::matrix::Matrix;
use crate::topology::Topology;

/// Refuses changes that make a link heavier than a bound, or more bytes leave hosts.
#[derive(Clone)]
pub(super) struct Guard<'a> {
    matrix: &'a Matrix,
    topology: &'a Topology,
    places: &'a [u32],
    /// The pairs of each rank, as indices into those of the matrix.
    offsets: Vec<usize>,
    pairs: Vec<u32>,
    loads: Loads,
    /// The most bytes of a link that a change touches.
    limit: u64,
    between_hosts: i128,
    between_max: i128,
}

impl<'a> Guard<'a> {
    pub(super) fn new(
        matrix: &'a Matrix,
        topology: &'a Topology,
        places: &'a [u32],
        host_of: &[u32],
        (bound, between_max): (u64, u128),
    ) -> Self {
        let mut offsets = vec![0; matrix.ranks() as usize + 1];
        let real = || matrix.pairs().iter().enumerate().filter(|(_, pair)| pair.from != pair.to);
        for (_, pair) in real() {
            offsets[pair.from as usize + 1] += 1;
            offsets[pair.to as usize + 1] += 1;
        }
        (1..offsets.len()).for_each(|at| offsets[at] += offsets[at - 1]);
        let mut pairs = vec![0; offsets.last().copied().unwrap_or_default()];
        let mut next = offsets.clone();
        let mut between_hosts = 0;
        for (at, pair) in real() {
            for rank in [pair.from, pair.to] {
                pairs[next[rank as usize]] = at as u32;
                next[rank as usize] += 1;
            }
            if host_of[pair.from as usize] != host_of[pair.to as usize] {
                between_hosts += i128::from(pair.traffic.bytes);
            }
        }
        let place_of: Vec<u32> = host_of.iter().map(|host| places[*host as usize]).collect();
        let mut loads = super::metrics::loads(matrix, topology, &place_of);
        loads.set_bound(topology, bound);
        let between_max = i128::try_from(between_max).unwrap_or(i128::MAX);
        Self { matrix, topology, places, offsets, pairs, loads, limit: bound, between_hosts, between_max }
    }

    /// Returns the bytes that links and the network have beyond what is allowed.
    pub(super) fn excess(&self) -> i128 {
        self.loads.excess() + (self.between_hosts - self.between_max).max(0)
    }

    pub(super) fn load(&self, link: u32) -> u64 {
        self.loads.per_cable(self.topology, link)
    }

    /// Returns the link with the most bytes per cable.
    pub(super) fn heaviest(&self) -> Option<(u32, u64)> {
        self.loads.heaviest(self.topology)
    }

    /// Refuses from now on changes after which a touched link has more bytes than this.
    pub(super) fn set_limit(&mut self, bound: u64) {
        self.limit = bound;
    }

    /// Returns the number of pairs of a change's ranks.
    pub(super) fn pairs_of(&self, change: Change) -> usize {
        let of = |rank: u32| self.offsets[rank as usize + 1] - self.offsets[rank as usize];
        of(change.rank) + change.other.map_or(0, of)
    }

    /// Returns the ranks with messages that cross links beyond the bound, or leave hosts if too many bytes do.
    pub(super) fn hot(&self, refiner: &Refiner<'_>) -> Vec<u32> {
        if self.excess() == 0 {
            return Vec::new();
        }
        let mut is_hot = vec![false; refiner.host_of().len()];
        let mut route = Vec::new();
        let all_leave = self.between_hosts > self.between_max;
        for pair in self.matrix.pairs().iter().filter(|pair| pair.from != pair.to) {
            let [from, to] = [pair.from, pair.to].map(|rank| refiner.host_of()[rank as usize]);
            if from == to {
                continue;
            }
            route.clear();
            self.topology.route(self.places[from as usize], self.places[to as usize], &mut route);
            if all_leave || route.iter().any(|link| self.loads.is_beyond(self.topology, *link)) {
                (is_hot[pair.from as usize], is_hot[pair.to as usize]) = (true, true);
            }
        }
        (0..is_hot.len() as u32).filter(|rank| is_hot[*rank as usize]).collect()
    }

    /// Adds or removes the load of all pairs of the ranks of a change. Returns the heaviest touched link's bytes.
    pub(super) fn account(&mut self, refiner: &Refiner<'_>, change: Change, is_added: bool) -> u64 {
        let mut heaviest = 0;
        for rank in std::iter::once(change.rank).chain(change.other) {
            for at in self.offsets[rank as usize]..self.offsets[rank as usize + 1] {
                let pair = self.matrix.pairs()[self.pairs[at] as usize];
                // A pair of both ranks counts once.
                let other = if pair.from == rank { pair.to } else { pair.from };
                if rank != change.rank && other == change.rank {
                    continue;
                }
                let [from, to] = [pair.from, pair.to].map(|rank| refiner.host_of()[rank as usize]);
                if from == to {
                    continue;
                }
                let bytes = pair.traffic.bytes;
                self.between_hosts += if is_added { i128::from(bytes) } else { -i128::from(bytes) };
                let [from, to] = [from, to].map(|host| self.places[host as usize]);
                self.loads.add(self.topology, from, to, bytes, is_added);
                if is_added {
                    let most = self.loads.touched(self.topology).map(|(_, load)| load).max();
                    heaviest = heaviest.max(most.unwrap_or_default());
                }
            }
        }
        heaviest
    }

    /// Applies a change, and returns whether it stays within the bounds; else undoes it.
    pub(super) fn accepts(&mut self, refiner: &mut Refiner<'_>, change: Change) -> bool {
        self.accepts_if(refiner, change, |_| true)
    }

    pub(super) fn accepts_if(
        &mut self,
        refiner: &mut Refiner<'_>,
        change: Change,
        holds: impl Fn(&Self) -> bool,
    ) -> bool {
        self.account(refiner, change, false);
        let back = refiner.apply(change);
        let heaviest = self.account(refiner, change, true);
        if heaviest <= self.limit && self.between_hosts <= self.between_max && holds(self) {
            return true;
        }
        self.account(refiner, change, false);
        refiner.apply(back);
        self.account(refiner, change, true);
        false
    }

    /// Returns the ranks whose messages cross a link, the one with most bytes first. At most 24.
    pub(super) fn ranks_on(&self, refiner: &Refiner<'_>, link: u32) -> Vec<u32> {
        let mut bytes = std::collections::BTreeMap::<u32, u64>::new();
        let mut route = Vec::new();
        for pair in self.matrix.pairs().iter().filter(|pair| pair.from != pair.to) {
            let [from, to] = [pair.from, pair.to].map(|rank| self.places[refiner.host_of()[rank as usize] as usize]);
            if from == to {
                continue;
            }
            route.clear();
            self.topology.route(from, to, &mut route);
            if route.contains(&link) {
                for rank in [pair.from, pair.to] {
                    let sum = bytes.entry(rank).or_default();
                    *sum = sum.saturating_add(pair.traffic.bytes);
                }
            }
        }
        let mut ranks: Vec<(u32, u64)> = bytes.into_iter().collect();
        ranks.sort_by_key(|(rank, bytes)| (std::cmp::Reverse(*bytes), *rank));
        ranks.truncate(24);
        ranks.into_iter().map(|(rank, _)| rank).collect()
    }
}
