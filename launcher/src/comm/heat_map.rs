//! The matrix in bins, so that a picture of many ranks has a bounded size.

use placement::matrix::Matrix;

use super::Measure;

/// The sums of squares of ranks.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct HeatMap {
    /// The number of ranks.
    pub(super) ranks: u32,
    /// The ranks on each side of a bin.
    pub(super) per_bin: u32,
    /// The bins on each side.
    pub(super) side: usize,
    /// The sums, by sender and then by receiver.
    sums: Vec<u64>,
    /// The highest of them.
    pub(super) most: u64,
    /// The lowest above zero.
    least: u64,
    pub(super) measure: Measure,
}

impl HeatMap {
    /// Adds the traffic up in at most `bins_max` bins on each side.
    pub(super) fn new(matrix: &Matrix, measure: Measure, bins_max: u32) -> Self {
        let ranks = matrix.ranks();
        let per_bin = ranks.div_ceil(bins_max).max(1);
        let side = ranks.div_ceil(per_bin) as usize;
        let mut sums = vec![0_u64; side * side];
        for pair in matrix.pairs() {
            let value = match measure {
                Measure::Bytes => pair.traffic.bytes,
                Measure::Messages => pair.traffic.messages,
            };
            let bin = (pair.from / per_bin) as usize * side + (pair.to / per_bin) as usize;
            sums[bin] = sums[bin].saturating_add(value);
        }
        let most = sums.iter().copied().max().unwrap_or(0);
        let least = sums.iter().copied().filter(|sum| *sum > 0).min().unwrap_or(0);
        Self { ranks, per_bin, side, sums, most, least, measure }
    }

    /// Returns the sum of a bin.
    pub(super) fn sum(&self, from: usize, to: usize) -> u64 {
        self.sums[from * self.side + to]
    }

    /// Returns the shade of a bin, from 0 to [`SHADES`] - 1 on a logarithmic scale; `None` without traffic.
    pub(super) fn shade(&self, from: usize, to: usize) -> Option<usize> {
        let sum = self.sum(from, to);
        if sum == 0 {
            return None;
        }
        let (least, most) = (libm::log(self.least as f64), libm::log(self.most as f64));
        let part = if most > least { (libm::log(sum as f64) - least) / (most - least) } else { 1.0 };
        Some((part * (SHADES - 1) as f64).round() as usize)
    }

    /// Returns the value that a shade stands for.
    pub(super) fn value_of(&self, shade: usize) -> u64 {
        let (least, most) = (libm::log(self.least.max(1) as f64), libm::log(self.most.max(1) as f64));
        libm::exp(least + (most - least) * shade as f64 / (SHADES - 1) as f64).round() as u64
    }
}

/// The number of shades.
pub(super) const SHADES: usize = 64;

/// Returns the colour of a shade: from light yellow over red to dark violet, so that more is darker, also in print.
pub(super) fn colour(shade: usize) -> [u8; 3] {
    const STOPS: [[f64; 3]; 6] = [
        [253.0, 231.0, 160.0],
        [252.0, 180.0, 105.0],
        [240.0, 110.0, 85.0],
        [190.0, 50.0, 110.0],
        [110.0, 25.0, 120.0],
        [35.0, 10.0, 70.0],
    ];
    let at = shade.min(SHADES - 1) as f64 / (SHADES - 1) as f64 * (STOPS.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(STOPS.len() - 1);
    [0, 1, 2].map(|part_of| (STOPS[low][part_of] * (1.0 - part) + STOPS[high][part_of] * part).round() as u8)
}
