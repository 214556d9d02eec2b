//! Orders the ranks of a node onto its processors: those that send much to each other get neighbouring ones.
//!
//! The launcher does not know the processors of other nodes. In the order of a node's topology, neighbouring cores share a
//! cache, and more distant ones only a package. So the node's places are divided into halves, these into halves again, and
//! so on: each block holds the places whose numbers begin with the same bits. The fewer bytes leave small blocks, the better,
//! whatever the sizes of the node's caches are.

use super::anneal::Schedule;
use super::distances::Distances;
use super::distribute::distribute;
use super::edges::Edges;
use super::refine::Refiner;
use super::{HEAT, Job, near};
use crate::graph::Graph;
use crate::matrix::Matrix;
use crate::random::Random;
use crate::topology::Topology;

/// The edges that annealing visits for each rank: few, since a job may have thousands of nodes.
const EDGES_PER_RANK: usize = 4000;

/// An order of a node's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The place of each rank, counted from 0.
    pub place_of: Vec<u32>,
    /// The bytes of all messages, times the level of the smallest block that holds both places, in the order by number.
    pub before: u128,
    /// The same in this order. Never more than before.
    pub after: u128,
    /// The bytes of all messages.
    pub bytes: u128,
}

/// Orders the ranks of a node. The matrix has their messages, and counts them from 0.
pub fn order(matrix: &Matrix, seed: u64) -> Order {
    let graph = Graph::of(matrix);
    let ranks = graph.ranks();
    let by_number: Vec<u32> = (0..ranks).collect();
    let (before, bytes) = weight(&graph, &by_number);
    let found = divided(matrix, &graph, &by_number, seed).map(|place_of| (weight(&graph, &place_of).0, place_of));
    match found.filter(|(after, _)| *after < before) {
        Some((after, place_of)) => Order { place_of, before, after, bytes },
        None => Order { place_of: by_number, before, after: before, bytes },
    }
}

fn divided(matrix: &Matrix, graph: &Graph, places: &[u32], seed: u64) -> Option<Vec<u32>> {
    // Two ranks are neighbours in any order.
    if places.len() < 3 || graph.edges() == 0 {
        return None;
    }
    let topology = Topology::halves(graph.ranks()).ok()?;
    let capacities = vec![1; places.len()];
    let job = Job { matrix, topology: &topology, places, capacities: &capacities, outages: None, seed };
    let edges = Edges::of(graph);
    let distances = Distances::new(&topology, places, None);
    let near = near(&job);
    let mut random = Random::new(seed);
    let place_of = distribute(&edges, &topology, places, &capacities, &mut random);
    let mut placed = Refiner::new(&edges, &distances, &capacities, &near, place_of);
    placed.shorten(&mut random, None);
    placed.anneal(None, &mut random, Schedule { heat: HEAT, work: places.len() * EDGES_PER_RANK });
    placed.shorten(&mut random, None);
    Some(placed.host_of().to_vec())
}

/// Returns the bytes times levels of an order, and the bytes.
fn weight(graph: &Graph, place_of: &[u32]) -> (u128, u128) {
    let level = |one: u32, other: u32| u128::from(u32::BITS - (one ^ other).leading_zeros());
    let of_rank = |rank: u32| {
        let here = place_of[rank as usize];
        let row = graph.row(rank).filter(move |(to, _)| *to > rank);
        row.map(move |(to, bytes)| (u128::from(bytes) * level(here, place_of[to as usize]), u128::from(bytes)))
    };
    (0..graph.ranks()).flat_map(of_rank).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Collector, Traffic};
    use crate::patterns::{self, Pattern};

    fn talking(ranks: u32, pairs: impl IntoIterator<Item = (u32, u32, u64)>) -> Matrix {
        let mut collector = Collector::new(ranks).unwrap();
        for (from, to, bytes) in pairs {
            collector.add(from, to, Traffic { bytes, messages: 1 }).unwrap();
        }
        collector.finish()
    }

    #[test]
    fn partners_get_neighbouring_places() {
        // Pairs talk much, and two pairs each a little.
        let pairs = (0..8).map(|rank| (rank, rank + 8, 1000)).chain((0..4).map(|rank| (rank, rank + 4, 10)));
        let found = order(&talking(16, pairs), 1);
        let apart = |one: usize, other: usize| (found.place_of[one] ^ found.place_of[other]).ilog2();
        assert!((0..8).all(|rank| apart(rank, rank + 8) == 0), "{found:?}");
        assert!((0..4).all(|rank| apart(rank, rank + 4) == 1), "{found:?}");
        assert_eq!((found.before, found.after), (8 * 1000 * 4 + 4 * 10 * 3, 8 * 1000 + 4 * 10 * 2));
    }

    #[test]
    fn no_order_is_worse_than_by_number() {
        for pattern in Pattern::ALL {
            for ranks in [2, 3, 16, 24, 61, 64] {
                let found = order(&patterns::matrix(pattern, ranks, 1), 1);
                assert!(found.after <= found.before, "{pattern:?} {ranks}");
                let mut places = found.place_of.clone();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..found.place_of.len() as u32), "{pattern:?} {ranks}: {found:?}");
            }
        }
        let silent = order(&talking(4, [(3, 3, 0)]), 1);
        assert_eq!((silent.place_of, silent.bytes), (vec![0, 1, 2, 3], 0));
    }
}
