//! Maps ranks to hosts so that bytes cross few links, and no link carries much more than others.
//!
//! Recursive bipartition (`distribute`) gives a first placement. Exchanges of ranks (`refine`) shorten it. Annealing (`anneal`)
//! shortens it more, and relieves links that carry more than the heaviest link of the placement that the job would have
//! otherwise, block placement. The same is done with block placement itself. Of the results the one is chosen whose bytes
//! cross the least links, among those that are not worse than block placement in any figure of [`Metrics`].

mod anneal;
mod bisect;
mod distances;
mod distribute;
mod edges;
mod fold;
mod guard;
mod metrics;
mod order;
mod refine;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use self::anneal::Schedule;
use self::distances::Distances;
use self::distribute::distribute;
use self::edges::Edges;
use self::fold::{Frame, Search};
use self::guard::Guard;
use self::refine::Refiner;
use crate::exposure::Exposure;
use crate::graph::Graph;
use crate::matrix::Matrix;
use crate::random::Random;
use crate::topology::Topology;

pub use self::distances::{FAULTY_LINK, weighted};
pub use self::metrics::{Loads, Metrics, loads, measure};
pub use self::order::{Order, order};

/// Up to this many ranks, annealing moves all of them; it would take seconds for more.
const ANNEALED_RANKS_MAX: u32 = 1024;

/// The edges that annealing visits, for each rank and at most.
const ANNEALED_EDGES_PER_RANK: usize = 40_000;
const ANNEALED_EDGES_MIN: usize = 10_000_000;
const ANNEALED_EDGES_MAX: usize = 30_000_000;

/// The edges that annealing visits for each of several first placements, before it goes on with the shortest.
const START_EDGES: usize = 4_000_000;

/// Jobs of at most this many ranks anneal twice as many initial placements, which often reach other minima. The edges that
/// annealing visits for each of them.
const TWICE_RANKS_MAX: u32 = 128;
const START_EDGES_TWICE: usize = 3_000_000;

/// The number of these that are annealed further.
const CONTINUED: usize = 2;

/// The temperatures of annealing, in parts of what a usual bad change costs: of a single first placement, of each of several
/// ones, and of the shortest of these.
const HEAT: (f64, f64) = (0.35, 0.07);
const HEAT_OF_STARTS: (f64, f64) = (0.35, 0.1);
const HEAT_AGAIN: (f64, f64) = (0.25, 0.07);

/// The edges and digits that the search for folds visits, for each rank and at most.
const FOLDING_STEPS_PER_RANK: usize = 40_000;
const FOLDING_STEPS_MAX: usize = 300_000_000;

/// The most boxes of a torus that are folded onto.
const BOXES: usize = 3;

/// The edges that are visited in order to relieve links of larger jobs.
const RELIEF_EDGES: usize = 400_000_000;

/// Routes that are followed in order to take load from heavy links, in total.
const LIGHTENING_ROUTES: usize = 1_000_000;

/// Routes that are followed in order to relieve the links that annealing leaves too heavy.
const RELIEF_ROUTES: usize = 20_000_000;

/// The share of what a placement is shorter than block placement that relieving links may cost.
const LIGHTENING_SHARE: f64 = 0.9;

/// The ranks of a job and the hosts that it may use.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The bytes from rank to rank.
    pub matrix: &'a Matrix,
    /// The network.
    pub topology: &'a Topology,
    /// The place of each host.
    pub places: &'a [u32],
    /// The most ranks of each host. Together they are at least the number of ranks.
    pub capacities: &'a [u32],
    /// The probability of each place that it fails during the job, by place. Links at places that may fail count as
    /// [`FAULTY_LINK`] links each.
    pub outages: Option<&'a [f64]>,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The placement that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The one by bipartition, exchanges and annealing.
    Mapped,
    /// The same mapping, after annealing also relieved its links.
    Relieved,
    /// One by the digits of the ranks' numbers, after annealing.
    Folded,
    /// One by another program, after exchanges.
    Foreign,
    /// Block placement, after exchanges that make no figure worse.
    Improved,
    /// Block placement itself: the other ones were worse in a figure.
    Block,
}

/// A placement, its figures and those of block placement.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapped {
    /// The host of each rank.
    pub host_of: Vec<u32>,
    /// Its figures.
    pub after: Metrics,
    /// The figures of the placement before.
    pub before: Metrics,
    /// The places that may fail and that it needs.
    pub exposed_after: Exposure,
    /// Those of the placement before.
    pub exposed_before: Exposure,
    /// How it was found.
    pub chosen: Chosen,
}

/// Maps the ranks of a job. `block` is the host of each rank without a mapping: no host may have more ranks than its
/// capacity. The result [is as safe](Exposure::is_as_safe_as), and not worse in any figure unless it is safer.
pub fn map(job: &Job<'_>, block: &[u32]) -> Mapped {
    map_from(job, block, None)
}

/// Maps as [`map`] does, and also improves a placement by another program. Of equally good ones its own is chosen.
pub fn map_from(job: &Job<'_>, block: &[u32], foreign: Option<Vec<u32>>) -> Mapped {
    let graph = Graph::of(job.matrix);
    let edges = Edges::of(&graph);
    let before = Judged::of(job, block);
    let mut best = (Chosen::Block, block.to_vec(), before.clone());
    if edges.count() > 0 {
        let distances = Distances::new(job.topology, job.places, job.outages);
        let mapper = Mapper { job, edges: &edges, distances: &distances, near: &near(job), before: &before };
        let mut random = Random::new(job.seed);
        let own = mapper.divided(block, &mut random);
        let folded = mapper.folded(own.as_ref(), &mut random).map(|host_of| mapper.refiner(host_of));
        let foreign = foreign.map(|host_of| mapper.refiner(host_of));
        let mut starts: Vec<(Chosen, Judged, Refiner<'_>)> =
            [(Chosen::Mapped, own), (Chosen::Folded, folded), (Chosen::Foreign, foreign)]
                .into_iter()
                .filter_map(|(how, placed)| placed.map(|placed| (how, Judged::of(job, placed.host_of()), placed)))
                .collect();
        // The shortest first: it often makes the others needless.
        starts.sort_by(|(_, one, _), (_, other, _)| one.compare(other));
        starts.push((Chosen::Improved, before.clone(), mapper.refiner(block.to_vec())));
        for (from, start, placed) in starts {
            let is_needless = match (best.0, from) {
                (Chosen::Block, _) => false,
                (_, Chosen::Improved) => true,
                _ if start.exposure.compare(&best.2.exposure).is_ne() => {
                    !start.exposure.is_safer_than(&best.2.exposure)
                }
                // Relieving links makes it longer.
                (_, Chosen::Mapped) => start.metrics.hop_bytes >= best.2.metrics.hop_bytes,
                _ => start.metrics.hop_bytes > best.2.metrics.hop_bytes + best.2.metrics.hop_bytes / 20,
            };
            if is_needless {
                continue;
            }
            let Some((how, host_of)) = mapper.improved(from, placed, &mut random) else { continue };
            let after = Judged::of(job, &host_of);
            if after.is_allowed(&before) && after.compare(&best.2).is_lt() {
                best = (how, host_of, after);
            }
        }
    }
    let (chosen, host_of, after) = best;
    Mapped {
        host_of,
        after: after.metrics,
        before: before.metrics,
        exposed_after: after.exposure,
        exposed_before: before.exposure,
        chosen,
    }
}

/// All that improving a placement needs.
struct Mapper<'a> {
    job: &'a Job<'a>,
    edges: &'a Edges,
    distances: &'a Distances<'a>,
    near: &'a [Vec<u32>],
    /// Block placement's figures.
    before: &'a Judged,
}

impl<'a> Mapper<'a> {
    fn is_small(&self) -> bool {
        self.edges.ranks() <= ANNEALED_RANKS_MAX
    }

    fn refiner(&self, host_of: Vec<u32>) -> Refiner<'a> {
        Refiner::new(self.edges, self.distances, self.job.capacities, self.near, host_of)
    }

    /// Refuses placements that are worse than block placement. There is no guard for a placement that is safer: then block
    /// placement's figures are no bounds.
    fn guard(&self, host_of: &[u32]) -> Option<Guard<'a>> {
        let Metrics { heaviest, between_hosts, .. } = self.before.metrics;
        let Job { matrix, topology, places, .. } = *self.job;
        let is_safer = exposure(self.job, host_of).is_safer_than(&self.before.exposure);
        (!is_safer).then(|| Guard::new(matrix, topology, places, host_of, (heaviest, between_hosts)))
    }

    /// Returns the shortest placement by bipartition, exchanges and annealing.
    fn divided(&self, block: &[u32], random: &mut Random) -> Option<Refiner<'a>> {
        let counts = counts(self.job, block);
        let (turns, start_edges) = match self.edges.ranks() <= TWICE_RANKS_MAX && counts.len() > 1 {
            true => (2, START_EDGES_TWICE),
            false => (1, START_EDGES),
        };
        let mut found: Vec<Refiner<'_>> = Vec::new();
        for counts in (0..turns).flat_map(|_| &counts) {
            let host_of = distribute(self.edges, self.job.topology, self.job.places, counts, random);
            let mut placed = self.refiner(host_of);
            placed.shorten(random, None);
            found.push(placed);
        }
        if !self.is_small() {
            return self.shortest(found);
        }
        let is_single = found.len() == 1;
        if !is_single {
            // The shortest one is not always the shortest after annealing too.
            for placed in &mut found {
                placed.anneal(None, random, Schedule { heat: HEAT_OF_STARTS, work: start_edges });
            }
            found = self.ranked(found);
            found.truncate(CONTINUED);
        }
        let heat = if is_single { HEAT } else { HEAT_AGAIN };
        for placed in &mut found {
            placed.anneal(None, random, Schedule { heat, work: self.work() });
            placed.shorten(random, None);
        }
        self.shortest(found)
    }

    /// Returns the placements, the best one first.
    fn ranked(&self, found: Vec<Refiner<'a>>) -> Vec<Refiner<'a>> {
        let judged = found.into_iter().map(|placed| (Judged::of(self.job, placed.host_of()), placed));
        let mut judged: Vec<(Judged, Refiner<'_>)> = judged.collect();
        judged.sort_by(|(one, _), (other, _)| one.compare(other));
        judged.into_iter().map(|(_, placed)| placed).collect()
    }

    fn shortest(&self, found: Vec<Refiner<'a>>) -> Option<Refiner<'a>> {
        self.ranked(found).into_iter().next()
    }

    /// Returns how many edges annealing visits.
    fn work(&self) -> usize {
        (self.edges.ranks() as usize * ANNEALED_EDGES_PER_RANK).clamp(ANNEALED_EDGES_MIN, ANNEALED_EDGES_MAX)
    }

    /// Returns the shortest fold that is not worse than block placement. Another placement shows what is good.
    fn folded(&self, other: Option<&Refiner<'_>>, random: &mut Random) -> Option<Vec<u32>> {
        let frames = frames(self.job, self.edges.ranks());
        let goal = other.map(|placed| placed.length());
        let mut best: Option<(Judged, Vec<u32>)> = None;
        for frame in &frames {
            let mut is_allowed = |host_of: &[u32]| Judged::of(self.job, host_of).is_allowed(self.before);
            let work = (self.edges.ranks() as usize * FOLDING_STEPS_PER_RANK).min(FOLDING_STEPS_MAX) / frames.len();
            let found =
                Search { edges: self.edges, distances: self.distances, work, goal }.run(frame, random, &mut is_allowed);
            let Some(host_of) = found else { continue };
            let judged = Judged::of(self.job, &host_of);
            if best.as_ref().is_none_or(|(least, _)| judged.compare(least).is_lt()) {
                best = Some((judged, host_of));
            }
        }
        best.map(|(_, host_of)| host_of)
    }

    /// Improves a placement by annealing and exchanges. Returns `None` if it stays worse than block placement.
    fn improved(&self, from: Chosen, mut placed: Refiner<'a>, random: &mut Random) -> Option<(Chosen, Vec<u32>)> {
        let mut guard = self.guard(placed.host_of());
        let has_excess = guard.as_ref().is_some_and(|guard| guard.excess() > 0);
        let how = if has_excess && from == Chosen::Mapped { Chosen::Relieved } else { from };
        let schedule = match how {
            _ if !self.is_small() => Schedule { heat: (0.1, 0.02), work: if has_excess { RELIEF_EDGES } else { 0 } },
            // It was annealed without a guard.
            Chosen::Mapped => Schedule { heat: (0.1, 0.02), work: 0 },
            Chosen::Relieved => Schedule { heat: (0.5, 0.01), work: self.work() },
            // More heat would destroy its order.
            Chosen::Folded | Chosen::Foreign | Chosen::Improved | Chosen::Block => {
                Schedule { heat: (0.1, 0.01), work: self.work() / 4 }
            }
        };
        // With many ranks, annealing visits each rank rarely and may leave some links overloaded.
        if !placed.anneal(guard.as_mut(), random, schedule) && !self.lighten(&mut placed) {
            return None;
        }
        Some((how, self.settled(placed, random)))
    }

    /// Takes load from the heaviest links, at the cost of longer ways, until none carries more than block placement's
    /// heaviest. Returns whether that is reached.
    fn lighten(&self, placed: &mut Refiner<'a>) -> bool {
        let Some(mut guard) = self.guard(placed.host_of()) else { return true };
        let before = &self.before.metrics;
        let spare = before.hop_bytes.saturating_sub(figures(self.job, placed.host_of()).hop_bytes) as f64;
        let allowed = (spare * LIGHTENING_SHARE * self.edges.per_byte()) as i64;
        placed.lighten(&mut guard, before.heaviest, allowed, self.rounds(RELIEF_ROUTES))
    }

    /// Returns how often the heaviest link is relieved if that may follow so many routes.
    fn rounds(&self, routes: usize) -> usize {
        (routes / self.job.matrix.pairs().len().max(1)).clamp(4, 512)
    }

    /// Exchanges ranks while no figure gets worse, and takes load from links where that costs nothing.
    fn settled(&self, mut placed: Refiner<'a>, random: &mut Random) -> Vec<u32> {
        // Annealing may have gone back to an earlier placement, without the guard.
        let mut guard = self.guard(placed.host_of());
        placed.shorten(random, guard.as_mut());
        if let Some(guard) = &mut guard {
            placed.lighten(guard, 0, 0, self.rounds(LIGHTENING_ROUTES));
        }
        placed.host_of().to_vec()
    }
}

/// A placement's figures, and the places that may fail and that it needs.
#[derive(Debug, Clone)]
struct Judged {
    metrics: Metrics,
    exposure: Exposure,
}

impl Judged {
    fn of(job: &Job<'_>, host_of: &[u32]) -> Self {
        Self { metrics: figures(job, host_of), exposure: exposure(job, host_of) }
    }

    /// Whether a placement may be chosen in place of another one.
    fn is_allowed(&self, than: &Self) -> bool {
        self.exposure.is_as_safe_as(&than.exposure)
            && (self.exposure.is_safer_than(&than.exposure) || self.metrics.is_never_worse(&than.metrics))
    }

    /// Compares the probabilities of an abort first, then the ways of bytes, then the heaviest links.
    fn compare(&self, other: &Self) -> Ordering {
        let figures = |judged: &Self| (judged.metrics.hop_bytes, judged.metrics.heaviest);
        self.exposure.compare(&other.exposure).then_with(|| figures(self).cmp(&figures(other)))
    }
}

/// Divides hosts into two parts with about the same number of slots and little distance within each. There are at least
/// two.
pub(crate) fn halves(job: &Job<'_>, hosts: Vec<u32>) -> [Vec<u32>; 2] {
    distribute::split(job.topology, job.places, job.capacities, hosts)
}

/// Returns the figures of a placement.
pub fn figures(job: &Job<'_>, host_of: &[u32]) -> Metrics {
    let place_of: Vec<u32> = host_of.iter().map(|host| job.places[*host as usize]).collect();
    measure(job.matrix, job.topology, &place_of)
}

/// Returns what a placement needs of the places that may fail.
fn exposure(job: &Job<'_>, host_of: &[u32]) -> Exposure {
    let Some(outages) = job.outages else { return Exposure::default() };
    let place_of: Vec<u32> = host_of.iter().map(|host| job.places[*host as usize]).collect();
    Exposure::of(job.matrix, job.topology, &place_of, outages)
}

/// Returns the numbers of ranks of each host that are tried: those of block placement, and, if slots are free, those of
/// hosts that are near to each other.
fn counts(job: &Job<'_>, block: &[u32]) -> Vec<Vec<u32>> {
    let hosts = job.capacities.len();
    let mut of_block = vec![0u32; hosts];
    block.iter().for_each(|host| of_block[*host as usize] += 1);
    let slots: u64 = job.capacities.iter().map(|slots| u64::from(*slots)).sum();
    let mut all = Vec::new();
    if slots > block.len() as u64 || job.outages.is_some() {
        all.extend(compact(job, block.len()));
        all.dedup();
    }
    all.retain(|counts| *counts != of_block);
    all.insert(0, of_block);
    all
}

/// Returns the numbers of ranks on hosts that are near to each other, from a few hosts on.
fn compact(job: &Job<'_>, ranks: usize) -> Vec<Vec<u32>> {
    /// How many hosts in the middle are tried.
    const CENTRES: usize = 4;
    let hosts = job.capacities.len();
    let is_faulty = |host: &u32| job.outages.is_some_and(|outages| outages[job.places[*host as usize] as usize] > 0.0);
    let fill = |order: &[u32]| {
        let mut counts = vec![0; hosts];
        let mut left = ranks as u64;
        for host in order {
            let taken = left.min(u64::from(job.capacities[*host as usize]));
            counts[*host as usize] = taken as u32;
            left -= taken;
        }
        counts
    };
    let centres = (0..CENTRES.min(hosts)).map(|at| (at * hosts / CENTRES.min(hosts)) as u32);
    let around = |centre: u32| {
        let place = job.places[centre as usize];
        let distance = |host: u32| weighted(job.topology, place, job.places[host as usize], job.outages);
        let mut order: Vec<(bool, u32, u32)> =
            (0..hosts as u32).map(|host| (is_faulty(&host), distance(host), host)).collect();
        order.sort_unstable();
        fill(&order.into_iter().map(|(.., host)| host).collect::<Vec<_>>())
    };
    let mut found: Vec<Vec<u32>> = centres.filter(|centre| !is_faulty(centre)).map(around).collect();
    // And those that recursive division of the network keeps together.
    let mut places: Vec<u32> = job.places.to_vec();
    places.sort_unstable();
    places.dedup();
    if job.outages.is_none()
        && let Some(box_of) = boxed(job, places, ranks as u64)
    {
        let mut order: Vec<u32> = (0..hosts as u32).collect();
        order.sort_by_key(|host| !box_of.contains(&job.places[*host as usize]));
        found.push(fill(&order));
    }
    found
}

/// Returns the frames that ranks are folded onto: all hosts, if each gets as many ranks; else compact boxes of a torus.
fn frames(job: &Job<'_>, ranks: u32) -> Vec<Frame> {
    let mut hosts: Vec<u32> =
        (0..job.capacities.len() as u32).filter(|host| job.capacities[*host as usize] > 0).collect();
    let Some(least) = hosts.iter().map(|host| job.capacities[*host as usize]).min() else { return Vec::new() };
    hosts.sort_by_key(|host| (job.places[*host as usize], *host));
    let count = hosts.len() as u32;
    let grid = job.topology.grid().filter(|_| count == job.topology.places());
    let Some((at, sizes)) =
        grid.filter(|_| hosts.iter().zip(0..).all(|(host, place)| job.places[*host as usize] == place))
    else {
        let fits = ranks.is_multiple_of(count) && ranks / count <= least;
        return fits.then(|| Frame { hosts, sizes: vec![count] }).into_iter().collect();
    };
    // A size of a mesh counts no way around: the largest coordinate says how long it is.
    let largest = |dimension: usize| at.iter().map(|at| u32::from(at[dimension]) + 1).max().unwrap_or(1);
    let whole: Vec<u32> = (0..sizes.len()).map(largest).collect();
    let box_hosts = |box_sizes: &[u32]| -> Vec<u32> {
        let is_inside = |host: &u32| {
            let at = &at[job.places[*host as usize] as usize];
            at.iter().zip(box_sizes).all(|(at, size)| u32::from(*at) < *size)
        };
        hosts.iter().copied().filter(is_inside).collect()
    };
    let mut boxes: Vec<Vec<u32>> = vec![Vec::new()];
    for size in &whole {
        let longer = |part: &Vec<u32>| (1..=*size).map(|size| [&part[..], &[size]].concat()).collect::<Vec<_>>();
        boxes = boxes.iter().flat_map(longer).filter(|part| part.iter().product::<u32>() <= ranks).collect();
    }
    let is_even = |sizes: &Vec<u32>| {
        let count = sizes.iter().product::<u32>();
        ranks.is_multiple_of(count) && ranks / count <= least
    };
    boxes.retain(is_even);
    // The fewest hosts first, of these the shortest ways.
    boxes.sort_by_key(|sizes| (sizes.iter().product::<u32>(), sizes.iter().map(|size| size * size).sum::<u32>()));
    let fewest = boxes.first().map_or(0, |sizes| sizes.iter().product::<u32>());
    boxes.retain(|sizes| sizes.iter().product::<u32>() == fewest);
    boxes.truncate(BOXES);
    boxes.into_iter().map(|sizes| Frame { hosts: box_hosts(&sizes), sizes }).collect()
}

/// Returns the places of the smallest part that recursive division of the network finds with enough slots.
fn boxed(job: &Job<'_>, mut places: Vec<u32>, ranks: u64) -> Option<std::collections::BTreeSet<u32>> {
    let mut slots = std::collections::BTreeMap::<u32, u64>::new();
    for (place, capacity) in job.places.iter().zip(job.capacities) {
        *slots.entry(*place).or_default() += u64::from(*capacity);
    }
    let weight = |place: u32| slots.get(&place).copied().unwrap_or_default();
    while places.len() > 1 {
        let at = job.topology.split(&mut places, &weight);
        let second = places.split_off(at);
        let fits = |half: &[u32]| half.iter().map(|place| weight(*place)).sum::<u64>() >= ranks;
        match (fits(&places), fits(&second)) {
            (true, _) => {}
            (false, true) => places = second,
            (false, false) => {
                places.extend(second);
                break;
            }
        }
    }
    Some(places.into_iter().collect())
}

/// Returns the hosts near each host: those one link away, and those beside it in the order of places.
fn near(job: &Job<'_>) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..job.places.len() as u32).collect();
    order.sort_by_key(|host| (job.places[*host as usize], *host));
    let mut near: Vec<Vec<u32>> = vec![Vec::new(); order.len()];
    let of_place = |place: u32| {
        let first = order.partition_point(|host| job.places[*host as usize] < place);
        order[first..].iter().copied().take_while(move |host| job.places[*host as usize] == place)
    };
    for (at, host) in order.iter().enumerate() {
        let found = &mut near[*host as usize];
        for place in job.topology.neighbours(job.places[*host as usize]) {
            found.extend(of_place(place).take(4));
        }
        let beside = if found.is_empty() { 3 } else { 1 };
        let others = order[at.saturating_sub(beside)..].iter().take(2 * beside + 1);
        let others: Vec<u32> = others.copied().filter(|other| other != host && !found.contains(other)).collect();
        found.extend(others);
    }
    near
}
