//! The undirected graph of a communication matrix.

use crate::matrix::Matrix;

/// Ranks, and the bytes that each two exchange in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Graph {
    /// The first edge of each rank, and the number of all edges at the end.
    offsets: Vec<usize>,
    targets: Vec<u32>,
    bytes: Vec<u64>,
}

impl Graph {
    /// Makes the graph of a matrix. What a rank sends to itself does not count, nor do messages without bytes.
    pub fn of(matrix: &Matrix) -> Self {
        Self::of_pairs(matrix.ranks(), matrix.pairs().iter().map(|pair| (pair.from, pair.to, pair.traffic.bytes)))
    }

    /// Makes the graph of pairs. All ranks are below `ranks`.
    pub fn of_pairs(ranks: u32, pairs: impl Iterator<Item = (u32, u32, u64)> + Clone) -> Self {
        let pairs = pairs.filter(|(from, to, bytes)| from != to && *bytes > 0);
        let mut edges: Vec<(u32, u32, u64)> = pairs.clone().chain(pairs.map(|(a, b, bytes)| (b, a, bytes))).collect();
        edges.sort_unstable_by_key(|(from, to, _)| (*from, *to));
        edges.dedup_by(|next, kept| {
            let is_same = (next.0, next.1) == (kept.0, kept.1);
            if is_same {
                kept.2 = kept.2.saturating_add(next.2);
            }
            is_same
        });
        let mut offsets = vec![0; ranks as usize + 1];
        edges.iter().for_each(|(from, ..)| offsets[*from as usize + 1] += 1);
        (0..ranks as usize).for_each(|at| offsets[at + 1] += offsets[at]);
        let (targets, bytes) = edges.into_iter().map(|(_, to, bytes)| (to, bytes)).unzip();
        Self { offsets, targets, bytes }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.offsets.len().saturating_sub(1) as u32
    }

    /// Returns the number of pairs of ranks that exchange bytes, each counted in both directions.
    pub fn edges(&self) -> usize {
        self.targets.len()
    }

    /// Returns the partners of a rank, sorted, with the bytes that they exchange.
    pub fn row(&self, rank: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let range = self.offsets[rank as usize]..self.offsets[rank as usize + 1];
        self.targets[range.clone()].iter().copied().zip(self.bytes[range].iter().copied())
    }

    /// Returns the most bytes of a pair.
    pub fn most(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or_default()
    }
}
