//! Communication matrices of known patterns, for tests and comparisons.

use crate::matrix::{Collector, Matrix, Traffic};
use crate::random::Random;

/// A pattern of communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each rank to the next.
    Ring,
    /// A grid, with its four neighbours.
    Halo2d,
    /// A grid, with its six neighbours, and a little with those across edges, as LAMMPS exchanges ghost atoms.
    Halo3d,
    /// NPB's CG: exchanges in a row of processors, at distances of powers of two, and with the transposed processor.
    Cg,
    /// NPB's DT: layers of a graph in which each node feeds the next layer's, like a shuffle.
    Dt,
    /// HPL: panels go along the rows of a grid in a ring, rows are exchanged along its columns.
    Hpl,
    /// Each rank with the rank whose row and column are exchanged.
    Transpose,
    /// Random partners, 26 on average.
    Random,
    /// Points in a square, each with those near it; ranks are numbered at random.
    Geometric,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 9] = [
        Self::Ring,
        Self::Halo2d,
        Self::Halo3d,
        Self::Cg,
        Self::Dt,
        Self::Hpl,
        Self::Transpose,
        Self::Random,
        Self::Geometric,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Halo2d => "halo2d",
            Self::Halo3d => "halo3d",
            Self::Cg => "cg",
            Self::Dt => "dt",
            Self::Hpl => "hpl",
            Self::Transpose => "transpose",
            Self::Random => "random",
            Self::Geometric => "geometric",
        }
    }

    /// Returns the pattern of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }
}

/// The factors of a number, as nearly equal as they can be, the largest first.
pub fn grid<const N: usize>(ranks: u32) -> [u32; N] {
    let mut sizes = [1_u32; N];
    let mut rest = ranks.max(1);
    for (at, size) in sizes.iter_mut().enumerate() {
        let left = (N - at) as f64;
        let goal = libm::pow(f64::from(rest), 1.0 / left).round().max(1.0) as u32;
        let factor =
            (1..=rest).filter(|factor| rest.is_multiple_of(*factor)).min_by_key(|factor| factor.abs_diff(goal));
        *size = if at + 1 == N { rest } else { factor.unwrap_or(1) };
        rest /= *size;
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Returns the matrix of a pattern. `ranks` is at most 2^20, else the matrix is empty.
pub fn matrix(pattern: Pattern, ranks: u32, seed: u64) -> Matrix {
    let Ok(mut collector) = Collector::new(ranks) else { return Matrix::default() };
    let mut random = Random::new(seed);
    let mut send = |from: u32, to: u32, bytes: u64, messages: u64| {
        // Only too many pairs could be refused, and patterns have few for each rank.
        let _ = collector.add(from, to, Traffic { bytes, messages });
    };
    match pattern {
        Pattern::Ring => (0..ranks).for_each(|rank| send(rank, (rank + 1) % ranks, 1 << 20, 1)),
        Pattern::Halo2d => {
            let [rows, columns] = grid(ranks);
            for rank in 0..ranks {
                let (row, column) = (rank / columns, rank % columns);
                for (down, right) in [(1, 0), (rows - 1, 0), (0, 1), (0, columns - 1)] {
                    let to = (row + down) % rows * columns + (column + right) % columns;
                    send(rank, to, 64 << 10, 8);
                }
            }
        }
        Pattern::Halo3d => halo(grid(ranks), &mut send),
        Pattern::Cg => cg(ranks, &mut send),
        Pattern::Dt => dt(ranks, &mut send),
        Pattern::Hpl => {
            let [columns, rows] = grid(ranks);
            for rank in 0..ranks {
                let (row, column) = (rank / columns, rank % columns);
                send(rank, row * columns + (column + 1) % columns, 8 << 20, 64);
                let mut step = 1;
                while step < rows {
                    send(rank, (row + step) % rows * columns + column, 2 << 20, 64);
                    step *= 2;
                }
            }
        }
        Pattern::Transpose => {
            let side = (1..=ranks).take_while(|side| side * side <= ranks).last().unwrap_or(1);
            (0..side * side).for_each(|rank| send(rank, rank % side * side + rank / side, 1 << 20, 4));
        }
        Pattern::Random => {
            for rank in 0..ranks {
                for _ in 0..13.min(ranks) {
                    let to = random.below(ranks as usize) as u32;
                    let bytes = 1 << (10 + random.below(8));
                    send(rank, to, bytes, 1);
                    send(to, rank, bytes, 1);
                }
            }
        }
        Pattern::Geometric => geometric(ranks, &mut random, &mut send),
    }
    collector.finish()
}

fn halo([x, y, z]: [u32; 3], send: &mut impl FnMut(u32, u32, u64, u64)) {
    let sizes = [x, y, z];
    for rank in 0..x * y * z {
        let at = [rank / (y * z), rank / z % y, rank % z];
        for steps in (0..27).map(|code| [code / 9, code / 3 % 3, code % 3]) {
            let moved = steps.iter().filter(|step| **step != 1).count();
            let bytes = [0, 256 << 10, 8 << 10, 0][moved];
            if bytes == 0 {
                continue;
            }
            let mut to = 0;
            for dimension in 0..3 {
                let size = sizes[dimension];
                to = to * size + (at[dimension] + steps[dimension] + size - 1) % size;
            }
            send(rank, to, bytes, 10);
        }
    }
}

/// NPB 3.4's `setup_proc_info` and `conj_grad`: 25 steps, each with a reduction over a row and an exchange with the
/// transposed processor.
fn cg(ranks: u32, send: &mut impl FnMut(u32, u32, u64, u64)) {
    let count = 1u32 << ranks.max(1).ilog2();
    let log = count.ilog2();
    let (columns, rows) = (1u32 << log.div_ceil(2), 1u32 << (log / 2));
    for rank in 0..count {
        let (row, column) = (rank / columns, rank % columns);
        let mut step = 1;
        while step < columns {
            send(rank, row * columns + (column ^ step), 600_000, 26);
            step *= 2;
        }
        let transposed =
            if columns == rows { column * columns + row } else { 2 * (column / 2 * rows + row) + column % 2 };
        send(rank, transposed % count, 1_200_000, 26);
    }
}

/// NPB's DT, graph SH: layers of equal width, each node feeds four of the next layer.
fn dt(ranks: u32, send: &mut impl FnMut(u32, u32, u64, u64)) {
    let width = (1..=ranks).take_while(|width| width * (1 + width.ilog2()) <= ranks).last().unwrap_or(1);
    let width = 1u32 << width.ilog2();
    let layers = (ranks / width).max(1);
    for layer in 0..layers - 1 {
        for node in 0..width {
            for feed in 0..4.min(width) {
                let to = (node * 4 + feed) % width;
                send(layer * width + node, (layer + 1) * width + to, 1 << 20, 1);
            }
        }
    }
}

fn geometric(ranks: u32, random: &mut Random, send: &mut impl FnMut(u32, u32, u64, u64)) {
    // 12 partners on average.
    let radius = (12.0 / (std::f64::consts::PI * f64::from(ranks.max(1)))).sqrt();
    let points: Vec<(f64, f64)> = (0..ranks).map(|_| (random.fraction(), random.fraction())).collect();
    let cells = (1.0 / radius).floor().clamp(1.0, 1024.0) as usize;
    let cell = |value: f64| ((value * cells as f64) as usize).min(cells - 1);
    let mut of_cell: Vec<Vec<u32>> = vec![Vec::new(); cells * cells];
    for (point, rank) in points.iter().zip(0..) {
        of_cell[cell(point.0) * cells + cell(point.1)].push(rank);
    }
    for (point, rank) in points.iter().zip(0..) {
        let (x, y) = (cell(point.0), cell(point.1));
        for near_x in x.saturating_sub(1)..=(x + 1).min(cells - 1) {
            for near_y in y.saturating_sub(1)..=(y + 1).min(cells - 1) {
                for other in &of_cell[near_x * cells + near_y] {
                    let to = points[*other as usize];
                    let apart = libm::hypot(point.0 - to.0, point.1 - to.1);
                    if *other != rank && apart < radius {
                        send(rank, *other, 1024 + ((1.0 - apart / radius) * 65_536.0) as u64, 1);
                    }
                }
            }
        }
    }
}
