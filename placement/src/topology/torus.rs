//! Tori and meshes: hosts are connected to their neighbours in each dimension.
//!
//! Routes go through the dimensions in their order, each the shorter way around; upwards if both ways are as long.

use super::{GRID, TopologyError, checked, nearest_half};
use crate::limits::DIMENSIONS_MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Torus {
    dimensions: Vec<u32>,
    /// Whether the last place of a row is connected to its first one.
    is_wrapped: bool,
    /// The coordinates of each place, one after the other.
    coordinates: Vec<u32>,
}

impl Torus {
    pub(super) fn new(dimensions: &[u32], is_wrapped: bool) -> Result<Self, TopologyError> {
        let count = dimensions.iter().try_fold(1u64, |count, size| count.checked_mul(u64::from(*size)));
        let words = || dimensions.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        if dimensions.is_empty() || dimensions.contains(&0) {
            return Err(TopologyError::Numbers(words()));
        }
        if dimensions.len() > DIMENSIONS_MAX {
            return Err(TopologyError::Dimensions(words()));
        }
        let count = count.unwrap_or(u64::MAX);
        checked(count, count.saturating_mul(2 * dimensions.len() as u64))?;
        let mut coordinates = Vec::with_capacity(count as usize * dimensions.len());
        for place in 0..count {
            let mut rest = place;
            let mut stride = count;
            for size in dimensions {
                stride /= u64::from(*size);
                coordinates.push((rest / stride) as u32);
                rest %= stride;
            }
        }
        Ok(Self { dimensions: dimensions.to_vec(), is_wrapped, coordinates })
    }

    pub(super) fn places(&self) -> u32 {
        (self.coordinates.len() / self.dimensions.len()) as u32
    }

    fn at(&self, place: u32) -> &[u32] {
        let count = self.dimensions.len();
        &self.coordinates[place as usize * count..][..count]
    }

    fn place(&self, coordinates: &[u32]) -> u32 {
        coordinates.iter().zip(&self.dimensions).fold(0, |place, (at, size)| place * size + at)
    }

    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        let pairs = self.at(from).iter().zip(self.at(to)).zip(&self.dimensions);
        let steps = pairs.map(|((from, to), size)| {
            let apart = from.abs_diff(*to);
            if self.is_wrapped { apart.min(size - apart) } else { apart }
        });
        steps.sum()
    }

    pub(super) fn links(&self) -> u32 {
        self.places() * 2 * self.dimensions.len() as u32
    }

    fn link(&self, place: u32, dimension: usize, is_down: bool) -> u32 {
        (place * self.dimensions.len() as u32 + dimension as u32) * 2 + u32::from(is_down)
    }

    /// Returns the next coordinate in a direction; `None` beyond the edge of a mesh.
    fn step(&self, at: u32, size: u32, is_down: bool) -> Option<u32> {
        match (is_down, self.is_wrapped) {
            (false, _) if at + 1 < size => Some(at + 1),
            (true, _) if at > 0 => Some(at - 1),
            (false, true) => Some(0),
            (true, true) => Some(size - 1),
            (_, false) => None,
        }
    }

    pub(super) fn route(&self, from: u32, to: u32, links: &mut Vec<u32>) {
        let mut place = from;
        // The number of places from one coordinate to the next.
        let mut stride = self.places();
        let coordinates = self.at(from).iter().zip(self.at(to)).zip(&self.dimensions);
        for (dimension, ((from, to), size)) in coordinates.enumerate() {
            stride /= size;
            let (mut here, target) = (*from, *to);
            let up = if target >= here { target - here } else { target + size - here };
            let is_down = if self.is_wrapped { up > size - up } else { target < here };
            while here != target {
                links.push(self.link(place, dimension, is_down));
                // A route never leaves a mesh.
                let next = self.step(here, *size, is_down).unwrap_or(target);
                place = place + next * stride - here * stride;
                here = next;
            }
        }
    }

    /// Returns the coordinates of each place, and the sizes; a mesh has no way around. `None` for many dimensions.
    pub(super) fn grid(&self) -> Option<(Vec<[u16; GRID]>, [u16; GRID])> {
        if self.dimensions.len() > GRID || self.dimensions.iter().any(|size| *size > u32::from(u16::MAX / 2)) {
            return None;
        }
        let mut sizes = [u16::MAX; GRID];
        if self.is_wrapped {
            sizes.iter_mut().zip(&self.dimensions).for_each(|(size, known)| *size = *known as u16);
        }
        let one = |place: u32| {
            let mut at = [0; GRID];
            at.iter_mut().zip(self.at(place)).for_each(|(at, known)| *at = *known as u16);
            at
        };
        Some(((0..self.places()).map(one).collect(), sizes))
    }

    pub(super) fn ends(&self, link: u32) -> [Option<u32>; 2] {
        let (at, is_down) = (link / 2, link % 2 == 1);
        let count = self.dimensions.len() as u32;
        let (place, dimension) = (at / count, (at % count) as usize);
        let mut to = self.at(place).to_vec();
        let next = self.step(to[dimension], self.dimensions[dimension], is_down);
        to[dimension] = next.unwrap_or(to[dimension]);
        [Some(place), Some(self.place(&to))]
    }

    pub(super) fn neighbours(&self, place: u32) -> Vec<u32> {
        let mut found: Vec<u32> = (0..self.dimensions.len())
            .flat_map(|dimension| [false, true].map(|is_down| self.link(place, dimension, is_down)))
            .filter_map(|link| self.ends(link)[1])
            .filter(|other| *other != place)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the coordinate after the widest gap of a dimension's used coordinates, and how many it spans from there.
    fn extent(&self, places: &[u32], dimension: usize) -> (u32, u32) {
        let size = self.dimensions[dimension];
        let mut used: Vec<u32> = places.iter().map(|place| self.at(*place)[dimension]).collect();
        used.sort_unstable();
        used.dedup();
        let (first, last) = (used[0], used[used.len() - 1]);
        if !self.is_wrapped {
            return (first, last - first + 1);
        }
        let mut best = (first, last - first + 1);
        for pair in used.windows(2) {
            let span = size - (pair[1] - pair[0]) + 1;
            if span < best.1 {
                best = (pair[1], span);
            }
        }
        best
    }

    /// Cuts the longest dimension, between planes where the parts stay nearly equal.
    pub(super) fn split(&self, places: &mut [u32], weight: &dyn Fn(u32) -> u64) -> usize {
        let extents: Vec<(u32, u32)> = (0..self.dimensions.len()).map(|at| self.extent(places, at)).collect();
        // Of equally long dimensions the first: its planes hold consecutive places.
        let longest = (0..extents.len()).max_by_key(|at| (extents[*at].1, std::cmp::Reverse(*at))).unwrap_or_default();
        let along = |place: u32, dimension: usize| {
            let (size, first) = (self.dimensions[dimension], extents[dimension].0);
            (self.at(place)[dimension] + size - first) % size
        };
        places.sort_by_key(|place| (along(*place, longest), *place));
        let places = &*places;
        let total: u64 = places.iter().map(|place| weight(*place)).sum();
        let at = nearest_half(places, weight, |at| along(places[at - 1], longest) != along(places[at], longest));
        let first: u64 = places[..at].iter().map(|place| weight(*place)).sum();
        // A plane's edge far from the half makes one part long and thin.
        if first * 4 < total || first * 4 > total * 3 { nearest_half(places, weight, |_| true) } else { at }
    }

    /// Returns the distance of the centres, in 16ths; of small sets the average over all pairs.
    pub(super) fn spread(&self, one: &[u32], other: &[u32]) -> i64 {
        if one.len() * other.len() <= 64 {
            let pairs = one.iter().flat_map(|a| other.iter().map(|b| i64::from(self.distance(*a, *b))));
            return pairs.sum::<i64>() * 16 / (one.len() * other.len()) as i64;
        }
        let step = |places: &[u32]| places.len().div_ceil(16).max(1);
        // An odd stride visits other coordinates in each row.
        let some = |places: &[u32]| -> Vec<u32> { places.iter().copied().step_by(step(places) | 1).collect() };
        let (one, other) = (some(one), some(other));
        let pairs = one.iter().flat_map(|a| other.iter().map(|b| i64::from(self.distance(*a, *b))));
        pairs.sum::<i64>() * 16 / (one.len() * other.len()) as i64
    }
}
