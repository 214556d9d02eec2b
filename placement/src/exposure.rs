//! The hosts that may fail and that a job needs, and the rule by which two placements are compared by them.
//!
//! A job needs the hosts of its ranks and those that its messages pass. It is aborted if one of them fails. The mapping of a job and the
//! simulation of batches follow the same rule: no placement is taken unless it [is as safe](Exposure::is_as_safe_as) as block
//! placement.

use std::cmp::Ordering;

use crate::matrix::Matrix;
use crate::topology::Topology;

/// The places that may fail and that a job needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exposure {
    places: Vec<u32>,
    /// The sum of the rates r of these places, of which each fails with the probability 1 - exp(-r).
    rate: f64,
}

/// The highest probability that is used: the rate of probability 1 is infinite.
const PROBABILITY_MAX: f64 = 1.0 - 1e-9;

impl Exposure {
    /// Returns the exposure of a placement. `place_of` is indexed by rank. `outages` has the probability of each place that it fails
    /// during the job, 0 for those that do not.
    pub fn of(matrix: &Matrix, topology: &Topology, place_of: &[u32], outages: &[f64]) -> Self {
        let needed = needed(matrix, topology, place_of);
        let is_exposed = |place: &u32| needed[*place as usize] && outages[*place as usize] > 0.0;
        let places: Vec<u32> = (0..topology.places()).filter(is_exposed).collect();
        let rate = |place: &u32| -libm::log1p(-outages[*place as usize].min(PROBABILITY_MAX));
        Self { rate: places.iter().map(rate).sum(), places }
    }

    /// Returns the places, ascending.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Returns whether no place that may fail is needed.
    pub fn is_none(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the probability that one of the places fails, so that the job is aborted.
    pub fn probability(&self) -> f64 {
        1.0 - libm::exp(-self.rate)
    }

    /// Compares the probabilities of an abort.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.rate.total_cmp(&other.rate)
    }

    /// Returns whether a job is aborted less often than with the other exposure.
    pub fn is_safer_than(&self, other: &Self) -> bool {
        self.compare(other).is_lt()
    }

    /// Returns whether a job is never aborted more often than with the other exposure. Equal probabilities count only if the places are
    /// the same: then both jobs are aborted by the same failures.
    pub fn is_as_safe_as(&self, other: &Self) -> bool {
        self.is_safer_than(other) || self.places == other.places
    }
}

/// Returns which places a job needs: those of its ranks, and those that its messages pass.
pub fn needed(matrix: &Matrix, topology: &Topology, place_of: &[u32]) -> Vec<bool> {
    let mut needed = vec![false; topology.places() as usize];
    place_of.iter().for_each(|place| needed[*place as usize] = true);
    let mut route = Vec::new();
    for pair in matrix.pairs() {
        route.clear();
        topology.route(place_of[pair.from as usize], place_of[pair.to as usize], &mut route);
        for link in &route {
            topology.ends(*link).into_iter().flatten().for_each(|place| needed[place as usize] = true);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Collector, Traffic};

    /// Two ranks on a ring of eight places, 1 and 4.
    fn exposed(outages: [f64; 8]) -> Exposure {
        let mut collector = Collector::new(2).unwrap();
        collector.add(0, 1, Traffic { bytes: 0, messages: 1 }).unwrap();
        let torus = Topology::torus(&[8]).unwrap();
        Exposure::of(&collector.finish(), &torus, &[1, 4], &outages)
    }

    #[test]
    fn a_job_needs_its_places_and_those_on_its_ways() {
        let exposure = exposed([0.5; 8]);
        assert_eq!(exposure.places(), [1, 2, 3, 4]);
        assert!((exposure.probability() - 15.0 / 16.0).abs() < 1e-9, "{exposure:?}");
        let none = exposed([0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 0.5]);
        assert_eq!((none.is_none(), none.probability()), (true, 0.0));
    }

    #[test]
    fn the_probability_of_an_abort_counts_and_not_the_number_of_hosts() {
        let likely = exposed([0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let two = exposed([0.0, 0.0, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0]);
        assert!(two.is_safer_than(&likely) && two.is_as_safe_as(&likely) && !likely.is_as_safe_as(&two));
        let certain = exposed([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(likely.is_safer_than(&certain) && certain.probability() > 0.99, "{certain:?}");
    }

    #[test]
    fn equal_probabilities_are_as_safe_for_the_same_places_only() {
        let [second, third] =
            [[0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0]].map(exposed);
        assert!(second.is_as_safe_as(&second) && !second.is_safer_than(&second));
        assert!(!second.is_as_safe_as(&third) && second.compare(&third).is_eq());
    }
}
