//! Places ranks by the digits of their numbers: programs that number a grid of ranks row by row are folded onto the network.
//!
//! The hosts form a frame: a box of a torus, or a list. An index of the frame has digits, several for each dimension, and so
//! has a rank's number. A fold assigns each digit of the rank to a digit of the frame with the same radix. It may also
//! reverse a digit while the sum of some more significant ones is odd: so rows run to and fro, like a snake. Without reversed digits,
//! and with the digits in their order, a fold is block placement. A search by annealing exchanges and reverses digits.

use super::distances::Distances;
use super::edges::Edges;
use crate::random::Random;

/// The most digits of a frame.
const DIGITS_MAX: usize = 24;

/// The temperature at the start of a search, in parts of the length.
const HEAT: f64 = 0.03;

/// A search with fewer tries finds nothing.
const TRIES_MIN: usize = 100;

/// Hosts in the order of a box, with the sizes of its dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) hosts: Vec<u32>,
    pub(super) sizes: Vec<u32>,
}

/// A digit of a frame.
#[derive(Debug, Clone, Copy)]
struct Digit {
    radix: u32,
    /// The distance of two of its values in the list of hosts; 0 for the digits within a host.
    stride: u32,
    /// The dimension that it belongs to.
    dimension: usize,
}

/// An assignment of digits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fold {
    /// The digit of the frame that each digit of a rank becomes, the most significant first.
    to: Vec<usize>,
    /// The more significant digits of a rank that reverse each digit, as bits.
    reversed_by: Vec<u32>,
}

/// Returns the prime factors of a number, the largest first.
fn factors(mut number: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut factor = 2;
    while factor * factor <= number {
        while number.is_multiple_of(factor) {
            found.push(factor);
            number /= factor;
        }
        factor += 1;
    }
    if number > 1 {
        found.push(number);
    }
    found.reverse();
    found
}

/// Returns the digits of a frame with so many ranks on each host.
fn digits(frame: &Frame, per_host: u32) -> Vec<Digit> {
    let mut stride = frame.hosts.len() as u32;
    let mut digits = Vec::new();
    for (dimension, size) in frame.sizes.iter().enumerate() {
        for radix in factors(*size) {
            stride /= radix;
            digits.push(Digit { radix, stride, dimension });
        }
    }
    let within = factors(per_host).into_iter().map(|radix| Digit { radix, stride: 0, dimension: frame.sizes.len() });
    digits.extend(within);
    digits
}

impl Fold {
    fn block(digits: usize) -> Self {
        Self { to: (0..digits).collect(), reversed_by: vec![0; digits] }
    }

    /// Writes the host of each rank.
    fn apply(&self, frame: &Frame, digits: &[Digit], host_of: &mut [u32]) {
        let count = self.to.len();
        let (mut value, mut odd) = ([0u32; DIGITS_MAX], 0u32);
        let of: Vec<Digit> = self.to.iter().map(|to| digits[*to]).collect();
        for host in host_of {
            let mut index = 0;
            for (at, digit) in of.iter().enumerate() {
                let is_reversed = (odd & self.reversed_by[at]).count_ones() % 2 == 1;
                index += digit.stride * if is_reversed { digit.radix - 1 - value[at] } else { value[at] };
            }
            *host = frame.hosts[index as usize];
            for at in (0..count).rev() {
                value[at] += 1;
                if value[at] == of[at].radix {
                    value[at] = 0;
                }
                odd = odd & !(1 << at) | (value[at] & 1) << at;
                if value[at] != 0 {
                    break;
                }
            }
        }
    }

    /// Changes an assignment a little.
    fn change(&mut self, digits: &[Digit], random: &mut Random) {
        let count = self.to.len();
        let (one, other) = (random.below(count), random.below(count));
        let (upper, lower) = (one.min(other), one.max(other));
        match random.below(4) {
            0 | 1 => {
                if digits[self.to[one]].radix == digits[self.to[other]].radix {
                    self.to.swap(one, other);
                }
            }
            2 if upper < lower => self.reversed_by[lower] ^= 1 << upper,
            // All less significant digits of a dimension: a row of it runs the other way.
            _ => {
                let dimension = digits[self.to[lower]].dimension;
                for at in upper + 1..count {
                    if digits[self.to[at]].dimension == dimension {
                        self.reversed_by[at] ^= 1 << upper;
                    }
                }
            }
        }
    }
}

/// A search for folds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) edges: &'a Edges,
    pub(super) distances: &'a Distances<'a>,
    /// The edges and digits that are visited.
    pub(super) work: usize,
    /// The length of another placement. The search is given up if it stays far from that.
    pub(super) goal: Option<i64>,
}

impl Search<'_> {
    /// Searches for the shortest fold of a frame. `is_allowed` says of a shorter placement than any before whether it may be
    /// chosen. Returns `None` if the ranks do not fill the frame evenly, or none is allowed.
    pub(super) fn run(
        &self,
        frame: &Frame,
        random: &mut Random,
        is_allowed: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Option<Vec<u32>> {
        let Self { edges, distances, work, goal } = *self;
        let ranks = edges.ranks();
        let hosts = u32::try_from(frame.hosts.len()).ok().filter(|hosts| *hosts > 0 && ranks.is_multiple_of(*hosts))?;
        let digits = digits(frame, ranks / hosts);
        let tries = work / (ranks as usize * digits.len() + edges.count());
        if !(2..=DIGITS_MAX).contains(&digits.len()) || tries < TRIES_MIN {
            return None;
        }
        let mut host_of = vec![0; ranks as usize];
        let mut now = Fold::block(digits.len());
        now.apply(frame, &digits, &mut host_of);
        let mut now_length = edges.length(distances, &host_of);
        let mut least = now_length;
        let mut best = is_allowed(&host_of).then(|| (now_length, host_of.clone()));
        for turn in 0..tries {
            if turn == tries / 4 && goal.is_some_and(|goal| least > goal + goal / 4) {
                break;
            }
            let left = 1.0 - turn as f64 / tries as f64;
            let temperature = now_length as f64 * HEAT * left * left;
            let mut next = now.clone();
            for _ in 0..=random.below(3) {
                next.change(&digits, random);
            }
            if next == now {
                continue;
            }
            next.apply(frame, &digits, &mut host_of);
            let next_length = edges.length(distances, &host_of);
            let bound = now_length as f64 - temperature * libm::log(random.fraction().max(f64::MIN_POSITIVE));
            if next_length as f64 > bound {
                continue;
            }
            (now, now_length) = (next, next_length);
            least = least.min(now_length);
            if best.as_ref().is_none_or(|(least, _)| now_length < *least) && is_allowed(&host_of) {
                best = Some((now_length, host_of.clone()));
            }
        }
        best.map(|(_, host_of)| host_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::topology::Topology;

    fn folded_ring(ranks: u32, sizes: &[u32]) -> f64 {
        let topology = Topology::torus(sizes).unwrap();
        let places: Vec<u32> = (0..topology.places()).collect();
        let edges = Edges::of(&Graph::of_pairs(ranks, (0..ranks).map(|rank| (rank, (rank + 1) % ranks, 1))));
        let distances = Distances::new(&topology, &places, None);
        let frame = Frame { hosts: places.clone(), sizes: sizes.to_vec() };
        let search = Search { edges: &edges, distances: &distances, work: 1_000_000, goal: None };
        let host_of = search.run(&frame, &mut Random::new(1), &mut |_| true).unwrap();
        let mut held = vec![0; places.len()];
        host_of.iter().for_each(|host| held[*host as usize] += 1);
        assert!(held.iter().all(|held| *held == ranks / topology.places()), "{held:?}");
        let apart = |rank: u32| topology.distance(host_of[rank as usize], host_of[((rank + 1) % ranks) as usize]);
        f64::from((0..ranks).map(apart).sum::<u32>()) / f64::from(ranks)
    }

    #[test]
    fn a_ring_becomes_a_snake() {
        assert_eq!(folded_ring(64, &[4, 4, 4]), 1.0);
        assert_eq!(folded_ring(36, &[6, 6]), 1.0);
        assert_eq!(folded_ring(64, &[4, 4]), 0.25);
    }

    #[test]
    fn digits_have_the_radices_of_their_dimensions() {
        assert_eq!(factors(60), [5, 3, 2, 2]);
        assert_eq!(factors(1), []);
        let frame = Frame { hosts: (0..12).collect(), sizes: vec![4, 3] };
        let digits = digits(&frame, 2);
        let shown: Vec<_> = digits.iter().map(|digit| (digit.radix, digit.stride, digit.dimension)).collect();
        assert_eq!(shown, [(2, 6, 0), (2, 3, 0), (3, 1, 1), (2, 0, 2)]);
        // Without a search a fold is block placement.
        let mut host_of = vec![0; 24];
        Fold::block(4).apply(&frame, &digits, &mut host_of);
        assert_eq!(host_of, (0..24).map(|rank| rank / 2).collect::<Vec<u32>>());
    }
}
