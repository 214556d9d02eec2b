//! Improves a placement by exchanging ranks of two hosts, or moving a rank to a free slot.

use super::distances::Distances;
use super::edges::Edges;
use super::guard::Guard;
use crate::random::Random;

/// How many of a rank's partners, the heaviest ones, attract it.
const PARTNERS: usize = 8;

/// How many ranks of a host are tried in exchange.
const OCCUPANTS: usize = 4;

/// The most passes over all ranks.
const PASSES_MAX: usize = 24;

/// The most edges whose lengths exchanges compare, in total.
const EDGES_MAX: usize = 300_000_000;

/// A placement that is being improved.
#[derive(Clone)]
pub(super) struct Refiner<'a> {
    edges: &'a Edges,
    distances: &'a Distances<'a>,
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
pub(super) struct Change {
    pub(super) rank: u32,
    pub(super) host: u32,
    pub(super) other: Option<u32>,
}

impl<'a> Refiner<'a> {
    pub(super) fn new(
        edges: &'a Edges,
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
            let mut row: Vec<(u32, i64)> = edges.row(rank).collect();
            row.sort_unstable_by_key(|(to, weight)| (std::cmp::Reverse(*weight), *to));
            row.truncate(PARTNERS);
            row.into_iter().map(|(to, _)| to).collect()
        };
        let partners = (0..edges.ranks()).map(heaviest).collect();
        Self { edges, distances, host_of, ranks_of, index_of, capacities, near, partners }
    }

    pub(super) fn host_of(&self) -> &[u32] {
        &self.host_of
    }

    /// Returns what a rank's traffic gets more if the rank moves to a host while `other` stays at the same distance.
    fn shift(&self, rank: u32, to: u32, other: Option<u32>) -> i64 {
        let from = self.host_of[rank as usize];
        let others = self.edges.row(rank).filter(|(partner, _)| Some(*partner) != other);
        self.distances.longer(from, to, others.map(|(partner, weight)| (self.host_of[partner as usize], weight)))
    }

    /// Returns what a change adds to the sum of weight times distance.
    pub(super) fn cost(&self, change: Change) -> i64 {
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
    pub(super) fn apply(&mut self, change: Change) -> Change {
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
        let degree = self.edges.count() / ranks.max(1) + 1;
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
                    self.edges.row(moved).for_each(|(partner, _)| is_settled[partner as usize] = false);
                }
            }
            if gained == 0 {
                break;
            }
        }
    }

    /// Returns the sum of weight times distance.
    pub(super) fn length(&self) -> i64 {
        self.edges.length(self.distances, &self.host_of)
    }

    pub(super) fn ranks(&self) -> u32 {
        self.edges.ranks()
    }

    pub(super) fn edges(&self) -> &'a Edges {
        self.edges
    }

    /// Begins again with another placement.
    pub(super) fn restart(&mut self, host_of: Vec<u32>) {
        *self = Self::new(self.edges, self.distances, self.capacities, self.near, host_of);
    }

    /// Draws a change of a rank: it goes near to one of its partners, or near to its own host.
    pub(super) fn drawn(&self, rank: u32, random: &mut Random) -> Option<Change> {
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
            let Some((link, load)) = guard.heaviest() else { return true };
            if load <= target {
                return true;
            }
            guard.set_limit(load - 1);
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
        guard.heaviest().is_none_or(|(_, load)| load <= target)
    }
}
