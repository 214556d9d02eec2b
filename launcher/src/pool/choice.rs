//! The choice of several nodes for a job among those that it can have: sound ones first, near to each other where the network is known. Pure.

use std::cmp::Reverse;

use placement::faults::ordered;
use placement::topology::Topology;

use super::nodes::NodeNumber;

/// The nodes around which near ones are looked for: more would delay jobs of large pools.
const CENTRES_MAX: usize = 32;

/// A node that a job can have slots of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Its number.
    pub(super) at: NodeNumber,
    /// Its slots.
    pub(super) slots: u32,
    /// Those that no job has. More than 0.
    pub(super) free: u32,
    /// It may fail, and the job is to avoid that.
    pub(super) is_avoided: bool,
    /// Its place in the network, if that is known.
    pub(super) place: Option<u32>,
}

/// The demand of a job.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Demand {
    /// So many nodes.
    Nodes(usize),
    /// So many slots.
    Slots(u32),
}

impl Demand {
    /// Returns the part of the demand that a node meets.
    fn met(self, node: &Candidate) -> u64 {
        match self {
            Self::Nodes(_) => 1,
            Self::Slots(_) => u64::from(node.free),
        }
    }

    fn all(self) -> u64 {
        match self {
            Self::Nodes(nodes) => nodes as u64,
            Self::Slots(slots) => u64::from(slots),
        }
    }

    /// Returns the first candidates of an order, as many as meet the demand.
    fn first<'a>(self, order: impl IntoIterator<Item = &'a Candidate>) -> Vec<Candidate> {
        let (mut chosen, mut met) = (Vec::new(), 0);
        for node in order {
            if met >= self.all() {
                break;
            }
            met += self.met(node);
            chosen.push(*node);
        }
        chosen
    }
}

/// Chooses nodes that meet the demand together. `candidates` are in the order of the pool. Returns `None` if all of them do not meet it.
pub(super) fn gather(candidates: &[Candidate], demand: Demand, network: Option<&Topology>) -> Option<Vec<Candidate>> {
    if demand.all() == 0 || candidates.iter().map(|node| demand.met(node)).sum::<u64>() < demand.all() {
        return None;
    }
    if let Some(network) = network {
        return Some(near(candidates, demand, network));
    }
    if candidates.iter().any(|node| node.is_avoided) {
        let is_faulty: Vec<bool> = candidates.iter().map(|node| node.is_avoided).collect();
        let sizes: Vec<u64> = candidates.iter().map(|node| demand.met(node)).collect();
        let (order, _) = ordered(&is_faulty, &sizes, demand.all());
        return Some(demand.first(order.iter().map(|at| &candidates[*at])));
    }
    let mut order: Vec<&Candidate> = candidates.iter().collect();
    match demand {
        // The fullest ones: the others keep room for jobs that need all of a node.
        Demand::Nodes(_) => order.sort_by_key(|node| (node.free, node.at)),
        // Emptiest nodes first, so that the job uses few nodes.
        Demand::Slots(_) => order.sort_by_key(|node| (Reverse(node.free), node.at)),
    }
    Some(demand.first(order))
}

/// Chooses the nodes around the centre with which the fewest may fail, then the fewest are needed, then the least links are between
/// them and the centre.
fn near(candidates: &[Candidate], demand: Demand, network: &Topology) -> Vec<Candidate> {
    let distance = |one: &Candidate, other: &Candidate| match (one.place, other.place) {
        (Some(one), Some(other)) => network.distance(one, other),
        _ => u32::MAX,
    };
    let around = |centre: &Candidate| {
        let mut order: Vec<&Candidate> = candidates.iter().collect();
        order.sort_by_key(|node| (node.is_avoided, distance(centre, node), Reverse(demand.met(node)), node.at));
        let chosen = demand.first(order);
        let avoided = chosen.iter().filter(|node| node.is_avoided).count();
        let links: u64 = chosen.iter().map(|node| u64::from(distance(centre, node))).sum();
        ((avoided, chosen.len(), links), chosen)
    };
    let step = candidates.len().div_ceil(CENTRES_MAX).max(1);
    let all = candidates.iter().step_by(step).map(around);
    all.min_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, chosen)| chosen).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates with these free slots, in this order.
    fn candidates(free: &[u32]) -> Vec<Candidate> {
        let one = |(at, free): (usize, &u32)| Candidate {
            at,
            slots: 4,
            free: *free,
            is_avoided: false,
            place: Some(at as u32),
        };
        free.iter().enumerate().map(one).collect()
    }

    fn avoiding(free: &[u32], avoided: &[usize]) -> Vec<Candidate> {
        let mut all = candidates(free);
        avoided.iter().for_each(|at| all[*at].is_avoided = true);
        all
    }

    fn numbers(chosen: Option<Vec<Candidate>>) -> Option<Vec<NodeNumber>> {
        Some(chosen?.iter().map(|node| node.at).collect())
    }

    #[test]
    fn consecutive_sound_nodes_come_first_and_others_only_if_they_are_needed() {
        let all = avoiding(&[2; 8], &[1, 4]);
        let slots = |slots| numbers(gather(&all, Demand::Slots(slots), None));
        assert_eq!(slots(4), Some(vec![2, 3]));
        assert_eq!(slots(5), Some(vec![5, 6, 7]));
        assert_eq!(slots(12), Some(vec![0, 2, 3, 5, 6, 7]));
        assert_eq!(slots(13), Some(vec![0, 2, 3, 5, 6, 7, 1]));
        assert_eq!(slots(17), None);
        assert_eq!(numbers(gather(&all, Demand::Nodes(3), None)), Some(vec![5, 6, 7]));
        assert_eq!(gather(&all, Demand::Nodes(9), None), None);
        assert_eq!(gather(&all, Demand::Nodes(0), None), None);
    }

    #[test]
    fn nodes_near_to_each_other_are_chosen_where_the_network_is_known() {
        // Two pairs of hosts, each at a switch: 0 and 2, 1 and 3.
        let text = "SwitchName=s0 Nodes=a,c\nSwitchName=s1 Nodes=b,d\nSwitchName=top Switches=s[0-1]\n";
        let expand = |list: &str| -> Result<Vec<String>, String> {
            Ok(match list {
                "s[0-1]" => vec!["s0".to_owned(), "s1".to_owned()],
                list => list.split(',').map(str::to_owned).collect(),
            })
        };
        let network = Topology::parse_file(text, &expand).unwrap();
        let places = network.places_of(["a", "b", "c", "d"].into_iter()).unwrap();
        let placed = |mut all: Vec<Candidate>| {
            all.iter_mut().zip(&places).for_each(|(node, place)| node.place = Some(*place));
            all
        };
        let pair = |all: Vec<Candidate>, demand| {
            let mut chosen = numbers(gather(&placed(all), demand, Some(&network))).unwrap();
            chosen.sort_unstable();
            chosen
        };
        assert_eq!(pair(candidates(&[4; 4]), Demand::Nodes(2)), [0, 2]);
        assert_eq!(pair(candidates(&[4; 4]), Demand::Slots(7)), [0, 2]);
        assert_eq!(pair(candidates(&[1, 4, 4, 4]), Demand::Slots(7)), [1, 3], "the fewest nodes, then the nearest");
        assert_eq!(pair(avoiding(&[4; 4], &[2]), Demand::Nodes(2)), [1, 3]);
        assert_eq!(pair(avoiding(&[4; 4], &[2, 3]), Demand::Nodes(2)), [0, 1], "soundness comes before nearness");
        // A node that was added without a place in the network is used last.
        let mut strange = placed(candidates(&[4; 4]));
        strange[2].place = None;
        assert_eq!(numbers(gather(&strange, Demand::Nodes(2), Some(&network))), Some(vec![1, 3]));
    }
}
