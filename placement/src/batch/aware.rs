//! Places the ranks of a job on a network some of whose hosts may fail.
//!
//! Several placements are made, and the one that is aborted with the least probability is taken. None is taken unless it
//! [is as safe](Exposure::is_as_safe_as) as block placement.

use super::{Experiment, mapped, messages_s};
use crate::exposure::Exposure;
use crate::faults::quiet_window;
use crate::matrix::Matrix;

/// The routes that are followed to compare block placements that begin at other hosts.
const COMPARED_ROUTES: usize = 500_000;

/// A placement, and the places that may fail and that it needs.
#[derive(Debug, Clone, PartialEq)]
struct Candidate {
    place_of: Vec<u32>,
    exposure: Exposure,
}

impl Candidate {
    /// Returns whether the ranks have consecutive places, none of which may fail.
    fn has_window(&self, is_faulty: &[bool]) -> bool {
        let (first, last) = (self.place_of.iter().min(), self.place_of.iter().max());
        let span = first.zip(last).map_or(0, |(first, last)| (last - first) as usize + 1);
        span == self.place_of.len() && !self.place_of.iter().any(|place| is_faulty[*place as usize])
    }
}

/// Returns the place of each rank, and whether these are consecutive sound hosts.
///
/// The first choice is the mapping onto consecutive sound hosts whose messages pass sound hosts only. Without such hosts these
/// placements are compared: the mappings onto the first consecutive sound hosts, onto all hosts, and onto the consecutive hosts
/// whose block placement is exposed least, and that block placement.
pub(super) fn place(experiment: &Experiment, matrix: &Matrix, is_faulty: &[bool]) -> (Vec<u32>, bool) {
    let (topology, ranks) = (&experiment.topology, matrix.ranks());
    let all: Vec<u32> = (0..topology.places()).collect();
    // Avoid hosts that may fail even if `--probability` is 0.
    let probability = experiment.probability.max(f64::EPSILON);
    let outages: Vec<f64> = is_faulty.iter().map(|is_faulty| if *is_faulty { probability } else { 0.0 }).collect();
    let candidate = |place_of: Vec<u32>| {
        let exposure = Exposure::of(matrix, topology, &place_of, &outages);
        Candidate { exposure, place_of }
    };
    let onto = |places: &[u32]| candidate(mapped(experiment, matrix, places, Some(&outages)));

    let mut candidates = Vec::new();
    if let Some(window) = quiet_window(topology, is_faulty, ranks) {
        let in_window = onto(&all[window]);
        if in_window.exposure.is_none() {
            return (in_window.place_of, true);
        }
        candidates.push(in_window);
    }
    let block = candidate(all[..ranks as usize].to_vec());
    let moved = moved_blocks(topology.places(), matrix).map(candidate);
    let moved = moved.min_by(|one, other| one.exposure.compare(&other.exposure)).unwrap_or_else(|| block.clone());
    candidates.extend([onto(&all), onto(&moved.place_of), moved, block.clone()]);
    let chosen = least_exposed(candidates, &block, |place_of| messages_s(experiment, matrix, place_of));
    let has_window = chosen.has_window(is_faulty);
    (chosen.place_of, has_window)
}

/// Returns the safest candidate among those that are as safe as block placement; of several, the one whose messages take the
/// least time.
fn least_exposed(candidates: Vec<Candidate>, block: &Candidate, seconds: impl Fn(&[u32]) -> f64) -> Candidate {
    let safe = candidates.into_iter().filter(|candidate| candidate.exposure.is_as_safe_as(&block.exposure));
    let timed = safe.map(|candidate| (seconds(&candidate.place_of), candidate));
    let least = timed
        .min_by(|(one_s, one), (other_s, other)| one.exposure.compare(&other.exposure).then(one_s.total_cmp(other_s)));
    least.map_or_else(|| block.clone(), |(_, candidate)| candidate)
}

/// Returns block placements from the first host on, and from others: at most as many as [`COMPARED_ROUTES`] allows, at equal
/// distances.
fn moved_blocks(places: u32, matrix: &Matrix) -> impl Iterator<Item = Vec<u32>> {
    let most = (COMPARED_ROUTES / matrix.pairs().len().max(1)).max(1) as u32;
    // A power of two keeps to the rows of most networks.
    let step = places.div_ceil(most).next_power_of_two();
    let ranks = matrix.ranks();
    (0..places).step_by(step as usize).map(move |first| (0..ranks).map(|rank| (first + rank) % places).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::experiment;
    use super::*;
    use crate::matrix::Collector;
    use crate::patterns::{Pattern, matrix};
    use crate::random::Random;
    use crate::topology::Topology;

    /// Ranks that send nothing, on places that may all fail.
    fn of(place_of: &[u32]) -> Candidate {
        let nothing = Collector::new(place_of.len() as u32).unwrap().finish();
        let exposure = Exposure::of(&nothing, &Topology::torus(&[16]).unwrap(), place_of, &[0.05; 16]);
        Candidate { place_of: place_of.to_vec(), exposure }
    }

    #[test]
    fn the_least_exposed_placement_is_chosen_if_it_is_as_safe_as_block() {
        let chosen = |candidates: &[&[u32]], block: &[u32]| {
            let candidates = candidates.iter().map(|exposed| of(exposed)).collect();
            least_exposed(candidates, &of(block), |place_of| f64::from(place_of[0])).place_of
        };
        assert_eq!(chosen(&[&[1, 2, 3], &[7, 8], &[4, 5]], &[1, 2, 3]), [4, 5]);
        // As many exposed places, but others: the draws of a simulation may hit them more often.
        assert_eq!(chosen(&[&[1, 2], &[3, 4, 5]], &[8, 9]), [8, 9]);
        assert_eq!(chosen(&[&[8, 9]], &[8, 9]), [8, 9]);
    }

    #[test]
    fn blocks_are_moved_over_the_whole_network() {
        let ring = matrix(Pattern::Ring, 3, 1);
        let blocks: Vec<Vec<u32>> = moved_blocks(4, &ring).collect();
        assert_eq!(blocks, [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]);
        let random = matrix(Pattern::Random, 512, 1);
        let most = COMPARED_ROUTES / random.pairs().len();
        let count = moved_blocks(512, &random).count();
        assert!(count <= most && 512 % count == 0 && count > most / 4, "{count} of {most}");
    }

    #[test]
    fn a_window_has_neither_gaps_nor_hosts_that_may_fail() {
        let is_faulty = [false, false, false, true, false];
        let has_window =
            |place_of: &[u32]| Candidate { exposure: Exposure::default(), ..of(place_of) }.has_window(&is_faulty);
        assert!(has_window(&[2, 0, 1]));
        assert!(!has_window(&[1, 2, 4]) && !has_window(&[1, 2, 3]));
    }

    #[test]
    fn no_placement_is_exposed_more_than_block() {
        let check = |words: &str, ranks: u32, pattern: Pattern, faulty: u32| {
            let topology = Topology::parse_words(words).unwrap();
            let matrix = matrix(pattern, ranks, 1);
            let mut is_faulty: Vec<bool> = (0..topology.places()).map(|place| place < faulty).collect();
            Random::of(7, &[u64::from(faulty)]).shuffle(&mut is_faulty);
            let experiment = Experiment { topology, ..experiment(faulty) };
            let outages: Vec<f64> = is_faulty.iter().map(|is_faulty| f64::from(u8::from(*is_faulty)) * 0.05).collect();
            let exposed = |place_of: &[u32]| Exposure::of(&matrix, &experiment.topology, place_of, &outages);
            let (place_of, _) = place(&experiment, &matrix, &is_faulty);
            let block: Vec<u32> = (0..ranks).collect();
            assert!(exposed(&place_of).is_as_safe_as(&exposed(&block)), "{words} {pattern:?} {faulty}");
        };
        // These jobs have no sound consecutive hosts.
        for pattern in Pattern::ALL {
            [64, 128].into_iter().for_each(|faulty| check("torus:8x8x8", 64, pattern, faulty));
        }
        for pattern in [Pattern::Cg, Pattern::Random] {
            check("fat-tree:2:8", 16, pattern, 6);
            check("dragonfly:3:4:2", 12, pattern, 6);
        }
    }
}
