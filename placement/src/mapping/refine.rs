//! Improves a placement by exchanging ranks of two hosts, or moving a rank to a free slot.

use super::distances::Distances;
use super::distribute::scaled;
use super::metrics::Loads;
use crate::graph::Graph;
use crate::matrix::Matrix;
use crate::random::Random;
use crate::topology::Topology;

/// How many of a rank's partners, the heaviest ones, attract it.
const PARTNERS: usize = 8;

/// How many ranks of a host are tried in exchange.
const OCCUPANTS: usize = 4;

/// The most passes over all ranks.
const PASSES_MAX: usize = 24;

/// The most edges whose lengths exchanges compare, in total.
const EDGES_MAX: usize = 400_000_000;

/// The most pairs whose loads are moved in order to relieve links by annealing, in total.
const ACCOUNTED_PAIRS: usize = 6_000_000;

/// A placement that is being improved.
#[derive(Clone)]
pub(super) struct Refiner<'a> {
    graph: &'a Graph,
    distances: &'a Distances<'a>,
    most: u64,
    /// The host of each rank.
    host_of: Vec<u32>,
    /// The ranks of each host.
    ranks_of: Vec<Vec<u32>>,
    /// The index of each rank in the list of its host.
    index_of: Vec<u32>,
    capacities: &'a [u32],
    near: &'a [Vec<u32>],
    /// The heaviest partners of each rank.
    partners: Vec<Vec<u32>>,
}

/// A change: a rank goes to a host, and a rank of that host may come in exchange.
#[derive(Debug, Clone, Copy)]
struct Change {
    rank: u32,
    host: u32,
    other: Option<u32>,
}

impl<'a> Refiner<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        distances: &'a Distances<'a>,
        capacities: &'a [u32],
        near: &'a [Vec<u32>],
        host_of: Vec<u32>,
    ) -> Self {
        let mut ranks_of: Vec<Vec<u32>> = vec![Vec::new(); capacities.len()];
        let mut index_of = vec![0; host_of.len()];
        for (rank, host) in host_of.iter().enumerate() {
            index_of[rank] = ranks_of[*host as usize].len() as u32;
            ranks_of[*host as usize].push(rank as u32);
        }
        let heaviest = |rank| {
            let mut row: Vec<(u32, u64)> = graph.row(rank).collect();
            row.sort_unstable_by_key(|(to, bytes)| (std::cmp::Reverse(*bytes), *to));
            row.truncate(PARTNERS);
            row.into_iter().map(|(to, _)| to).collect()
        };
        let partners = (0..graph.ranks()).map(heaviest).collect();
        let most = graph.most();
        Self { graph, distances, most, host_of, ranks_of, index_of, capacities, near, partners }
    }

    pub(super) fn host_of(&self) -> &[u32] {
        &self.host_of
    }

    /// Returns what a rank's traffic gets more if the rank moves to a host while `other` stays at the same distance.
    fn shift(&self, rank: u32, to: u32, other: Option<u32>) -> i64 {
        let from = self.host_of[rank as usize];
        let mut sum = 0;
        for (partner, bytes) in self.graph.row(rank) {
            if Some(partner) != other {
                let at = self.host_of[partner as usize];
                let (after, before) = (self.distances.between(to, at), self.distances.between(from, at));
                sum += scaled(bytes, self.most) * (i64::from(after) - i64::from(before));
            }
        }
        sum
    }

    /// Returns what a change adds to the sum of weight times distance.
    fn cost(&self, change: Change) -> i64 {
        let from = self.host_of[change.rank as usize];
        let back = change.other.map_or(0, |other| self.shift(other, from, Some(change.rank)));
        self.shift(change.rank, change.host, change.other) + back
    }

    fn put(&mut self, rank: u32, host: u32) {
        let list = &mut self.ranks_of[self.host_of[rank as usize] as usize];
        let at = self.index_of[rank as usize] as usize;
        list.swap_remove(at);
        if let Some(moved) = list.get(at) {
            self.index_of[*moved as usize] = at as u32;
        }
        let list = &mut self.ranks_of[host as usize];
        self.index_of[rank as usize] = list.len() as u32;
        list.push(rank);
        self.host_of[rank as usize] = host;
    }

    /// Applies a change, and returns the one that undoes it.
    fn apply(&mut self, change: Change) -> Change {
        let from = self.host_of[change.rank as usize];
        self.put(change.rank, change.host);
        if let Some(other) = change.other {
            self.put(other, from);
        }
        Change { host: from, ..change }
    }

    /// Lists hosts near the partners of a rank, and near itself; each once.
    fn candidates(&self, rank: u32, seen: &mut [u32], stamp: u32, hosts: &mut Vec<u32>) {
        hosts.clear();
        let own = self.host_of[rank as usize];
        seen[own as usize] = stamp;
        let around = self.partners[rank as usize].iter().map(|partner| self.host_of[*partner as usize]);
        for host in around.chain([own]) {
            for near in std::iter::once(&host).chain(&self.near[host as usize]) {
                if std::mem::replace(&mut seen[*near as usize], stamp) != stamp {
                    hosts.push(*near);
                }
            }
        }
    }

    /// Returns changes that bring a rank to a host: into a free slot, or in exchange for some of its ranks.
    fn changes(&self, rank: u32, host: u32, turn: usize) -> impl Iterator<Item = Change> + use<> {
        let list = &self.ranks_of[host as usize];
        let is_free = list.len() < self.capacities[host as usize] as usize;
        let count = list.len().min(OCCUPANTS);
        let others: Vec<u32> = (0..count).map(|at| list[(turn + at) % list.len()]).collect();
        let moves = is_free.then_some(Change { rank, host, other: None });
        moves.into_iter().chain(others.into_iter().map(move |other| Change { rank, host, other: Some(other) }))
    }

    /// Exchanges ranks while that shortens the ways of bytes. A guard may refuse changes.
    pub(super) fn shorten(&mut self, random: &mut Random, mut guard: Option<&mut Guard<'_>>) {
        let ranks = self.host_of.len();
        let mut order: Vec<u32> = (0..ranks as u32).collect();
        let mut seen = vec![0; self.capacities.len()];
        let mut is_settled = vec![false; ranks];
        let (mut stamp, mut hosts) = (0, Vec::new());
        let mut left = EDGES_MAX;
        let degree = self.graph.edges() / ranks.max(1) + 1;
        for _ in 0..PASSES_MAX {
            random.shuffle(&mut order);
            let mut gained = 0;
            for rank in &order {
                if is_settled[*rank as usize] {
                    continue;
                }
                stamp += 1;
                self.candidates(*rank, &mut seen, stamp, &mut hosts);
                let turn = random.below(1 << 16);
                left = left.saturating_sub(2 * degree * hosts.len());
                if left == 0 {
                    return;
                }
                let mut best = (0, None);
                for host in &hosts {
                    for change in self.changes(*rank, *host, turn) {
                        let cost = self.cost(change);
                        if cost < best.0 {
                            best = (cost, Some(change));
                        }
                    }
                }
                is_settled[*rank as usize] = true;
                let (cost, Some(change)) = best else { continue };
                if guard.as_deref_mut().is_some_and(|guard| !guard.accepts(self, change)) {
                    continue;
                }
                if guard.is_none() {
                    self.apply(change);
                }
                gained -= cost;
                for moved in std::iter::once(change.rank).chain(change.other) {
                    is_settled[moved as usize] = false;
                    self.graph.row(moved).for_each(|(partner, _)| is_settled[partner as usize] = false);
                }
            }
            if gained == 0 {
                break;
            }
        }
    }

    /// Improves a placement by changes that may also be bad, ever more rarely (simulated annealing), and returns the
    /// best placement that occurred. `changes` is the number of tries.
    pub(super) fn anneal(&mut self, random: &mut Random, changes: usize) {
        let ranks = self.host_of.len();
        if ranks < 2 {
            return;
        }
        // The temperature starts at what a usual bad change costs, and falls to a hundredth.
        let mut costs: Vec<i64> = Vec::new();
        for _ in 0..256 {
            if let Some(change) = self.drawn(random) {
                costs.push(self.cost(change).abs());
            }
        }
        costs.retain(|cost| *cost > 0);
        costs.sort_unstable();
        let Some(usual) = costs.get(costs.len() / 8).copied() else { return };
        let (start, end) = (usual as f64 * 0.5, usual as f64 * 0.01);
        let (mut sum, mut best) = (0i64, 0i64);
        let mut best_hosts = self.host_of.clone();
        let mut is_best = true;
        let mut temperature = start;
        let cooling = (end / start).powf(64.0 / changes.max(64) as f64);
        for turn in 0..changes {
            if turn % 64 == 0 {
                temperature *= cooling;
            }
            let Some(change) = self.drawn(random) else { continue };
            let cost = self.cost(change);
            if cost > 0 && random.fraction() >= (-(cost as f64) / temperature).exp() {
                continue;
            }
            if is_best && cost > 0 && sum == best {
                best_hosts.copy_from_slice(&self.host_of);
                is_best = false;
            }
            self.apply(change);
            sum += cost;
            if sum < best {
                (best, is_best) = (sum, true);
            }
        }
        if sum > best {
            *self = Self::new(self.graph, self.distances, self.capacities, self.near, best_hosts);
        }
    }

    /// Relieves links that carry more than the guard's bound by annealing, in which their excess counts as length. Returns
    /// the shortest placement that occurred without any excess; `None` if there was none.
    pub(super) fn relieve(&mut self, guard: &mut Guard<'_>, random: &mut Random) -> Option<Vec<u32>> {
        guard.loads.set_bound(guard.topology, guard.bound);
        guard.bound = u64::MAX;
        let scale = scaled(self.most, self.most) as f64 / self.most.max(1) as f64;
        let pairs = guard.pairs.len() / self.host_of.len().max(1) + 1;
        let tries = ACCOUNTED_PAIRS / (6 * pairs);
        let mut costs: Vec<i64> =
            (0..256).filter_map(|_| self.drawn(random)).map(|change| self.cost(change).abs()).collect();
        costs.retain(|cost| *cost > 0);
        costs.sort_unstable();
        let usual = costs.get(costs.len() / 8).copied()? as f64;
        let (start, end) = (usual * 0.1, usual * 0.02);
        let cooling = (end / start).powf(64.0 / tries.max(64) as f64);
        let mut temperature = start;
        let (mut sum, mut best) = (0i64, None::<(i64, Vec<u32>)>);
        for turn in 0..tries {
            if turn % 64 == 0 {
                temperature *= cooling;
            }
            let Some(change) = self.drawn(random) else { continue };
            let before = guard.excess();
            let cost = self.cost(change);
            guard.account(self, change, false);
            let back = self.apply(change);
            guard.account(self, change, true);
            let worse = cost as f64 + (guard.excess() - before) as f64 * scale * 4.0;
            if worse > 0.0 && random.fraction() >= (-worse / temperature).exp() {
                guard.account(self, change, false);
                self.apply(back);
                guard.account(self, change, true);
                continue;
            }
            sum += cost;
            if guard.excess() == 0 && best.as_ref().is_none_or(|(least, _)| sum < *least) {
                best = Some((sum, self.host_of.clone()));
            }
        }
        best.map(|(_, host_of)| host_of)
    }

    /// Draws a change: a rank goes near to one of its partners, or near to its own host.
    fn drawn(&self, random: &mut Random) -> Option<Change> {
        let rank = random.below(self.host_of.len()) as u32;
        let partners = &self.partners[rank as usize];
        let own = self.host_of[rank as usize];
        let around = match random.below(partners.len() + 1).checked_sub(1) {
            Some(at) => self.host_of[partners[at] as usize],
            None => own,
        };
        let near = &self.near[around as usize];
        let host = match random.below(near.len() + 1).checked_sub(1) {
            Some(at) => near[at],
            None => around,
        };
        if host == own {
            return None;
        }
        let list = &self.ranks_of[host as usize];
        let free = (self.capacities[host as usize] as usize).saturating_sub(list.len());
        let at = random.below(list.len() + free.min(1));
        Some(Change { rank, host, other: list.get(at).copied() })
    }

    /// Takes load from the heaviest link until it has at most `target`, in at most `rounds` rounds, without letting the
    /// sum of weight times distance grow by more than `allowed`. Returns whether it is reached.
    pub(super) fn lighten(&mut self, guard: &mut Guard<'_>, target: u64, allowed: i64, rounds: usize) -> bool {
        let mut left = allowed;
        let mut seen = vec![0; self.capacities.len()];
        let (mut stamp, mut hosts) = (0, Vec::new());
        for round in 0..rounds {
            let Some((link, load)) = guard.loads.heaviest(guard.topology) else { return true };
            if load <= target {
                return true;
            }
            guard.bound = load - 1;
            let mut is_lighter = false;
            'ranks: for rank in guard.ranks_on(self, link) {
                stamp += 1;
                self.candidates(rank, &mut seen, stamp, &mut hosts);
                let mut tried: Vec<(i64, Change)> = Vec::new();
                for host in &hosts {
                    tried.extend(self.changes(rank, *host, round).map(|change| (self.cost(change), change)));
                }
                tried.sort_by_key(|(cost, _)| *cost);
                for (cost, change) in tried.into_iter().take_while(|(cost, _)| *cost <= left).take(12) {
                    if guard.accepts_if(self, change, |guard| guard.load(link) < load) {
                        left -= cost;
                        is_lighter = true;
                        break 'ranks;
                    }
                }
            }
            if !is_lighter {
                return false;
            }
        }
        guard.loads.heaviest(guard.topology).is_none_or(|(_, load)| load <= target)
    }
}

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
    bound: u64,
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
        let loads = super::metrics::loads(matrix, topology, &place_of);
        let between_max = i128::try_from(between_max).unwrap_or(i128::MAX);
        Self { matrix, topology, places, offsets, pairs, loads, bound, between_hosts, between_max }
    }

    /// Returns the bytes that links and the network have beyond what is allowed.
    fn excess(&self) -> i128 {
        self.loads.excess() + (self.between_hosts - self.between_max).max(0)
    }

    fn load(&self, link: u32) -> u64 {
        self.loads.per_cable(self.topology, link)
    }

    /// Adds or removes the load of all pairs of the ranks of a change. Returns the heaviest touched link's bytes.
    fn account(&mut self, refiner: &Refiner<'_>, change: Change, is_added: bool) -> u64 {
        let mut heaviest = 0;
        for rank in std::iter::once(change.rank).chain(change.other) {
            for at in self.offsets[rank as usize]..self.offsets[rank as usize + 1] {
                let pair = self.matrix.pairs()[self.pairs[at] as usize];
                // A pair of both ranks counts once.
                let other = if pair.from == rank { pair.to } else { pair.from };
                if rank != change.rank && other == change.rank {
                    continue;
                }
                let [from, to] = [pair.from, pair.to].map(|rank| refiner.host_of[rank as usize]);
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
    fn accepts(&mut self, refiner: &mut Refiner<'_>, change: Change) -> bool {
        self.accepts_if(refiner, change, |_| true)
    }

    fn accepts_if(&mut self, refiner: &mut Refiner<'_>, change: Change, holds: impl Fn(&Self) -> bool) -> bool {
        self.account(refiner, change, false);
        let back = refiner.apply(change);
        let heaviest = self.account(refiner, change, true);
        if heaviest <= self.bound && self.between_hosts <= self.between_max && holds(self) {
            return true;
        }
        self.account(refiner, change, false);
        refiner.apply(back);
        self.account(refiner, change, true);
        false
    }

    /// Returns the ranks whose messages cross a link, the one with most bytes first. At most 24.
    fn ranks_on(&self, refiner: &Refiner<'_>, link: u32) -> Vec<u32> {
        let mut bytes = std::collections::BTreeMap::<u32, u64>::new();
        let mut route = Vec::new();
        for pair in self.matrix.pairs().iter().filter(|pair| pair.from != pair.to) {
            let [from, to] = [pair.from, pair.to].map(|rank| self.places[refiner.host_of[rank as usize] as usize]);
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
