//! Distributes ranks over hosts by recursive bipartition of both: hosts by the topology, ranks by their traffic.
//!
//! Each host gets exactly its count. Domains (sets of hosts) are divided level by level, so that the domain of every
//! partner outside is about as small as the divided one.

use super::bisect::{Weighted, bisect};
use super::edges::Edges;
use crate::random::Random;
use crate::topology::Topology;

/// A set of hosts and the ranks that they get.
struct Domain {
    /// Hosts, by index.
    hosts: Vec<u32>,
    ranks: Vec<u32>,
}

/// Returns the host of each rank. The counts add up to the number of ranks. `places` are those of the hosts.
pub(super) fn distribute(
    edges: &Edges,
    topology: &Topology,
    places: &[u32],
    counts: &[u32],
    random: &mut Random,
) -> Vec<u32> {
    let ranks = edges.ranks();
    let mut host_of = vec![0; ranks as usize];
    // The domain of each rank, and the places of each domain.
    let mut domain_of = vec![0u32; ranks as usize];
    let mut places_of: Vec<Vec<u32>> = vec![Vec::new()];
    let hosts: Vec<u32> = (0..counts.len() as u32).filter(|host| counts[*host as usize] > 0).collect();
    let mut level = vec![Domain { hosts, ranks: (0..ranks).collect() }];
    let mut local = vec![u32::MAX; ranks as usize];
    // The pull of each foreign domain, valid for one division.
    let mut pulls: Vec<(u32, i64)> = Vec::new();
    let mut division = 0;
    while !level.is_empty() {
        let mut next = Vec::new();
        for Domain { hosts, ranks } in level {
            if let [host] = hosts[..] {
                ranks.iter().for_each(|rank| host_of[*rank as usize] = host);
                continue;
            }
            if hosts.is_empty() {
                continue;
            }
            let halves = split(topology, places, counts, hosts);
            let place_sets =
                halves.each_ref().map(|half| half.iter().map(|host| places[*host as usize]).collect::<Vec<_>>());
            let apart = topology.spread(&place_sets[0], &place_sets[1]).max(1);
            division += 1;
            ranks.iter().zip(0..).for_each(|(rank, at)| local[*rank as usize] = at);
            let mut part = Weighted { offsets: vec![0], ..Weighted::default() };
            for rank in &ranks {
                let mut pull = 0;
                for (to, weight) in edges.row(*rank) {
                    let at = local[to as usize];
                    if at != u32::MAX {
                        part.targets.push(at);
                        part.weights.push(weight * apart);
                        continue;
                    }
                    let domain = domain_of[to as usize] as usize;
                    pulls.resize(places_of.len(), (0, 0));
                    if pulls[domain].0 != division {
                        let [zero, one] = place_sets.each_ref().map(|half| topology.spread(half, &places_of[domain]));
                        pulls[domain] = (division, zero - one);
                    }
                    pull += weight * pulls[domain].1;
                }
                part.offsets.push(part.targets.len() as u32);
                part.sizes.push(1);
                part.pulls.push(pull);
            }
            ranks.iter().for_each(|rank| local[*rank as usize] = u32::MAX);
            let first: u32 = halves[0].iter().map(|host| counts[*host as usize]).sum();
            let is_second = bisect(part, first, random);
            let mut parts = [Vec::new(), Vec::new()];
            for (rank, is_second) in ranks.into_iter().zip(is_second) {
                domain_of[rank as usize] = places_of.len() as u32 + u32::from(is_second);
                parts[usize::from(is_second)].push(rank);
            }
            places_of.extend(place_sets);
            next.extend(halves.into_iter().zip(parts).map(|(hosts, ranks)| Domain { hosts, ranks }));
        }
        level = next;
    }
    host_of
}

/// Divides hosts into two sets of about the same number of ranks. There are at least two hosts.
pub(super) fn split(topology: &Topology, places: &[u32], counts: &[u32], hosts: Vec<u32>) -> [Vec<u32>; 2] {
    // Several hosts may have one place. The topology divides places; hosts follow in the order of theirs.
    let mut by_place: Vec<(u32, u32)> = hosts.into_iter().map(|host| (places[host as usize], host)).collect();
    by_place.sort_unstable();
    let mut distinct: Vec<u32> = by_place.iter().map(|(place, _)| *place).collect();
    distinct.dedup();
    if distinct.len() < 2 {
        let second = by_place.split_off(by_place.len() / 2);
        return [by_place, second].map(|part| part.into_iter().map(|(_, host)| host).collect());
    }
    let range = |place: u32| {
        let first = by_place.partition_point(|(at, _)| *at < place);
        let count = by_place[first..].partition_point(|(at, _)| *at == place);
        &by_place[first..first + count]
    };
    let weight = |place: u32| range(place).iter().map(|(_, host)| u64::from(counts[*host as usize])).sum();
    let at = topology.split(&mut distinct, &weight);
    let (first, second) = distinct.split_at(at);
    [first, second].map(|part| part.iter().flat_map(|place| range(*place).iter().map(|(_, host)| *host)).collect())
}
