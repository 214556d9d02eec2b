//! The edges of a graph with weights in place of bytes: small enough that sums of them times distances do not overflow.

use super::distances::Distances;
use crate::graph::Graph;

/// The heaviest edge's weight.
const WEIGHT_MAX: u64 = 1 << 20;

/// A graph's edges, each in both directions.
#[derive(Debug, Clone)]
pub(super) struct Edges {
    offsets: Vec<u32>,
    targets: Vec<u32>,
    weights: Vec<u32>,
    most: u64,
}

impl Edges {
    /// Scales the bytes of a graph. No weight is 0.
    pub(super) fn of(graph: &Graph) -> Self {
        let most = graph.most().max(1);
        let scaled = |bytes: u64| (u128::from(bytes) * u128::from(WEIGHT_MAX) / u128::from(most)).max(1) as u32;
        let mut made = Self { offsets: vec![0], targets: Vec::new(), weights: Vec::new(), most };
        for rank in 0..graph.ranks() {
            for (to, bytes) in graph.row(rank) {
                made.targets.push(to);
                made.weights.push(scaled(bytes));
            }
            made.offsets.push(made.targets.len() as u32);
        }
        made
    }

    pub(super) fn ranks(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    /// Returns the number of edges, each counted in both directions.
    pub(super) fn count(&self) -> usize {
        self.targets.len()
    }

    /// Returns the partners of a rank, sorted, with the weights of their edges.
    pub(super) fn row(&self, rank: u32) -> impl Iterator<Item = (u32, i64)> + '_ {
        let range = self.offsets[rank as usize] as usize..self.offsets[rank as usize + 1] as usize;
        self.targets[range.clone()].iter().copied().zip(self.weights[range].iter().map(|weight| i64::from(*weight)))
    }

    /// Returns the number of a rank's partners.
    pub(super) fn degree(&self, rank: u32) -> usize {
        (self.offsets[rank as usize + 1] - self.offsets[rank as usize]) as usize
    }

    /// Returns the sum of weight times distance of a placement.
    pub(super) fn length(&self, distances: &Distances<'_>, host_of: &[u32]) -> i64 {
        let of_rank = |rank: u32| -> i64 {
            let here = host_of[rank as usize];
            let row = self.row(rank).filter(|(to, _)| *to > rank);
            row.map(|(to, weight)| weight * i64::from(distances.between(here, host_of[to as usize]))).sum()
        };
        (0..self.ranks()).map(of_rank).sum()
    }

    /// Returns the weight of a byte.
    pub(super) fn per_byte(&self) -> f64 {
        WEIGHT_MAX as f64 / self.most as f64
    }
}
