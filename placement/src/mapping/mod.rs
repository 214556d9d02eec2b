//! Maps ranks to hosts so that bytes cross few links, and no link carries much more than others.
//!
//! Recursive bipartition (`distribute`) gives a first placement. Exchanges of ranks (`refine`) shorten it, and then take
//! load from the heaviest link. The result is compared with the placement that the job would have otherwise, block
//! placement: it is never worse in any figure of [`Metrics`].

mod bisect;
mod distances;
mod distribute;
mod metrics;
mod refine;
#[cfg(test)]
mod tests;

use self::distances::Distances;
use self::distribute::distribute;
use self::refine::{Guard, Refiner};
use crate::graph::Graph;
use crate::matrix::Matrix;
use crate::random::Random;
use crate::topology::Topology;

pub use self::distances::{FAULTY_LINK, weighted};
pub use self::metrics::{Loads, Metrics, loads, measure};

/// Up to this many ranks, simulated annealing follows the exchanges; it would take seconds for more.
const ANNEALED_RANKS_MAX: u32 = 1024;

/// The edges whose lengths annealing compares in total.
const ANNEALED_EDGES: usize = 10_000_000;

/// Routes that are followed in order to take load from heavy links, in total.
const LIGHTENING_ROUTES: usize = 8_000_000;

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
    /// Whether each place may fail, by place: links at them count as [`FAULTY_LINK`] links each.
    pub is_faulty: Option<&'a [bool]>,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The placement that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The one by bipartition and exchanges, as it was.
    Mapped,
    /// That one, after ranks were exchanged in order to relieve the heaviest link.
    Relieved,
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
    /// How it was found.
    pub chosen: Chosen,
}

/// Maps the ranks of a job. `block` is the host of each rank without a mapping: no host may have more ranks than its
/// capacity. The result is not worse than it in any figure, unless hosts may fail: then it is the one whose bytes cross
/// the least weight of links.
pub fn map(job: &Job<'_>, block: &[u32]) -> Mapped {
    let graph = Graph::of(job.matrix);
    let distances = Distances::new(job.topology, job.places, job.is_faulty);
    let near = near(job);
    let mut random = Random::new(job.seed);
    let before = figures(job, block);
    let chosen = |host_of: Vec<u32>, after, chosen| Mapped { host_of, after, before, chosen };
    if graph.edges() == 0 {
        return chosen(block.to_vec(), before, Chosen::Block);
    }
    let refiner = |host_of: Vec<u32>| Refiner::new(&graph, &distances, job.capacities, &near, host_of);
    let mut best: Option<(Metrics, u128, Refiner<'_>)> = None;
    for counts in counts(job, block) {
        let mut placed = refiner(distribute(&graph, job.topology, job.places, &counts, &mut random));
        placed.shorten(&mut random, None);
        if graph.ranks() <= ANNEALED_RANKS_MAX {
            let edges = (graph.edges() / graph.ranks() as usize).max(1);
            placed.anneal(&mut random, ANNEALED_EDGES / (2 * edges));
            placed.shorten(&mut random, None);
        }
        let after = figures(job, placed.host_of());
        let weight = weight(job, &after, placed.host_of());
        if best.as_ref().is_none_or(|(_, least, _)| weight < *least) {
            best = Some((after, weight, placed));
        }
    }
    let Some((after, cost, mut placed)) = best else { return chosen(block.to_vec(), before, Chosen::Block) };
    if job.is_faulty.is_some() {
        return match cost < weight(job, &before, block) {
            true => chosen(placed.host_of().to_vec(), after, Chosen::Mapped),
            false => chosen(block.to_vec(), before, Chosen::Block),
        };
    }
    let routes = job.matrix.pairs().len().max(1);
    let rounds = (LIGHTENING_ROUTES / routes).clamp(4, 512);
    let guard = |host_of: &[u32]| {
        Guard::new(job.matrix, job.topology, job.places, host_of, (before.heaviest, before.between_hosts))
    };
    // First at no cost, down to nothing; then, if that is not enough, at the cost of longer ways.
    let plain = placed.host_of().to_vec();
    let mut relief = guard(&plain);
    placed.lighten(&mut relief, 0, 0, rounds);
    let relieved = figures(job, placed.host_of());
    if relieved.heaviest > before.heaviest {
        let spare = before.hop_bytes.saturating_sub(relieved.hop_bytes) as f64;
        let unit = graph.most() as f64 / distribute::scaled(graph.most(), graph.most()) as f64;
        placed.lighten(&mut relief, before.heaviest, (spare / unit * 0.9) as i64, 4 * rounds);
    }
    let relieved = figures(job, placed.host_of());
    let is_plain_good = after.is_never_worse(&before);
    // Weights are rounded: an exchange at no cost may cost a few bytes.
    let is_relief_free = relieved.hop_bytes <= after.hop_bytes + after.hop_bytes / 1000;
    if relieved.is_never_worse(&before) && (is_relief_free || !is_plain_good) {
        let how = if is_plain_good { Chosen::Mapped } else { Chosen::Relieved };
        return chosen(placed.host_of().to_vec(), relieved, how);
    }
    if is_plain_good {
        return chosen(plain, after, Chosen::Mapped);
    }
    // Then by annealing, from here and from block placement, which has no excess.
    for start in [&plain[..], block] {
        let mut placed = refiner(start.to_vec());
        let Some(found) = placed.relieve(&mut guard(start), &mut random) else { continue };
        let mut placed = refiner(found);
        let mut keep = guard(placed.host_of());
        placed.shorten(&mut random, Some(&mut keep));
        let relieved = figures(job, placed.host_of());
        if relieved.is_never_worse(&before) && relieved.hop_bytes < before.hop_bytes {
            return chosen(placed.host_of().to_vec(), relieved, Chosen::Relieved);
        }
    }
    let mut placed = refiner(block.to_vec());
    let mut keep = guard(block);
    placed.shorten(&mut random, Some(&mut keep));
    let improved = figures(job, placed.host_of());
    if improved.is_never_worse(&before) && improved != before {
        return chosen(placed.host_of().to_vec(), improved, Chosen::Improved);
    }
    chosen(block.to_vec(), before, Chosen::Block)
}

/// Returns the figures of a placement.
pub fn figures(job: &Job<'_>, host_of: &[u32]) -> Metrics {
    let place_of: Vec<u32> = host_of.iter().map(|host| job.places[*host as usize]).collect();
    measure(job.matrix, job.topology, &place_of)
}

/// Returns the figure that placements are compared by: bytes times links, or times their weights if hosts may fail.
fn weight(job: &Job<'_>, metrics: &Metrics, host_of: &[u32]) -> u128 {
    if job.is_faulty.is_none() {
        return metrics.hop_bytes;
    }
    let of = |rank: u32| job.places[host_of[rank as usize] as usize];
    let pairs = job.matrix.pairs().iter().filter(|pair| pair.from != pair.to);
    pairs
        .map(|pair| {
            let weight = weighted(job.topology, of(pair.from), of(pair.to), job.is_faulty);
            u128::from(pair.traffic.bytes) * u128::from(weight)
        })
        .sum()
}

/// Returns the numbers of ranks of each host that are tried: those of block placement, and, if slots are free, those of
/// hosts that are near to each other.
fn counts(job: &Job<'_>, block: &[u32]) -> Vec<Vec<u32>> {
    let hosts = job.capacities.len();
    let mut of_block = vec![0u32; hosts];
    block.iter().for_each(|host| of_block[*host as usize] += 1);
    let slots: u64 = job.capacities.iter().map(|slots| u64::from(*slots)).sum();
    let mut all = Vec::new();
    if slots > block.len() as u64 || job.is_faulty.is_some() {
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
    let is_faulty = |host: &u32| job.is_faulty.is_some_and(|faulty| faulty[job.places[*host as usize] as usize]);
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
        let distance = |host: u32| weighted(job.topology, place, job.places[host as usize], job.is_faulty);
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
    if job.is_faulty.is_none()
        && let Some(box_of) = boxed(job, places, ranks as u64)
    {
        let mut order: Vec<u32> = (0..hosts as u32).collect();
        order.sort_by_key(|host| !box_of.contains(&job.places[*host as usize]));
        found.push(fill(&order));
    }
    found
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
