//! The files of Scotch's program `scotch_gmap`: a graph, the hosts of a job, and the mapping that it prints.

use std::fmt::Write as _;

use crate::graph::Graph;
use crate::mapping::{Job, halves, weighted};

/// The most hosts of a job whose files are written: they have a distance for each two hosts.
pub const HOSTS_MAX: usize = 1024;

/// The longest mapping, in bytes, for each rank: two numbers of ten digits, and what separates them.
pub const MAP_BYTES_PER_RANK: usize = 24;

/// The sum of all edges' weights in a file: Scotch multiplies them with distances in 32 bits.
const WEIGHTS_MAX: f64 = 5e7;

/// The largest number of a terminal that Scotch reads.
const TERMINAL_MAX: u64 = 1 << 30;

/// Returns the file of a graph.
pub fn source(graph: &Graph) -> String {
    let rows = || (0..graph.ranks()).map(|rank| graph.row(rank));
    let sum: f64 = rows().flatten().map(|(_, bytes)| bytes as f64).sum();
    let unit = (sum / WEIGHTS_MAX).max(1.0);
    let mut text = format!("0\n{} {}\n0 010\n", graph.ranks(), graph.edges());
    for row in rows() {
        let row: Vec<(u32, u64)> = row.collect();
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", row.len());
        for (to, bytes) in row {
            let _ = write!(text, " {} {to}", (bytes as f64 / unit).round().max(1.0) as u64);
        }
        text.push('\n');
    }
    text
}

/// Returns the file of the hosts that have slots: their slots, how the network divides them, and their distances. `None` if
/// there are fewer than two or too many, or if the division is too uneven.
pub fn target(job: &Job<'_>) -> Option<String> {
    let hosts: Vec<u32> = (0..job.capacities.len() as u32).filter(|host| job.capacities[*host as usize] > 0).collect();
    if !(2..=HOSTS_MAX).contains(&hosts.len()) {
        return None;
    }
    let mut terminals = vec![0; job.capacities.len()];
    let mut open = vec![(hosts.clone(), 1_u64)];
    while let Some((part, terminal)) = open.pop() {
        match part[..] {
            [] => {}
            [host] => terminals[host as usize] = terminal,
            _ if terminal > TERMINAL_MAX / 4 => return None,
            _ => open.extend(halves(job, part).into_iter().zip([2 * terminal, 2 * terminal + 1])),
        }
    }
    let most = terminals.iter().max()?;
    let mut text = format!("deco 0\n{} {most}\n", hosts.len());
    for host in &hosts {
        let _ = writeln!(text, "{host} {} {}", job.capacities[*host as usize], terminals[*host as usize]);
    }
    let place = |host: u32| job.places[host as usize];
    for (at, from) in hosts.iter().enumerate().skip(1) {
        for to in &hosts[..at] {
            // Hosts with one place have no links between them, and Scotch takes no distance of 0.
            let distance = weighted(job.topology, place(*from), place(*to), job.outages).max(1);
            let _ = write!(text, "{distance} ");
        }
        text.push('\n');
    }
    Some(text)
}

/// Reads a mapping of a job that has so many ranks. `None` if it is not whole, or names other hosts.
pub fn parse(text: &str, ranks: u32, hosts: usize) -> Option<Vec<u32>> {
    let mut lines = text.lines();
    if lines.next()?.trim().parse() != Ok(ranks) {
        return None;
    }
    let mut host_of = vec![None; ranks as usize];
    for line in lines.take(ranks as usize) {
        let mut words = line.split_ascii_whitespace();
        let (rank, host) = (words.next()?.parse::<usize>().ok()?, words.next()?.parse::<u32>().ok()?);
        *host_of.get_mut(rank)? = Some(host).filter(|host| (*host as usize) < hosts);
    }
    host_of.into_iter().collect()
}

/// Moves ranks from hosts that have more than their slots to the nearest hosts with free ones: Scotch may put a few more
/// ranks on a host than it has slots.
pub fn fitted(job: &Job<'_>, mut host_of: Vec<u32>) -> Vec<u32> {
    let mut free: Vec<i64> = job.capacities.iter().map(|slots| i64::from(*slots)).collect();
    host_of.iter().for_each(|host| free[*host as usize] -= 1);
    for host in &mut host_of {
        if free[*host as usize] >= 0 {
            continue;
        }
        let from = job.places[*host as usize];
        let open = (0..free.len() as u32).filter(|other| free[*other as usize] > 0);
        let Some(to) = open.min_by_key(|other| (job.topology.distance(from, job.places[*other as usize]), *other))
        else {
            break;
        };
        free[*host as usize] += 1;
        free[to as usize] -= 1;
        *host = to;
    }
    host_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Collector, Matrix, Traffic};
    use crate::topology::Topology;

    fn ring(ranks: u32) -> Matrix {
        let mut collector = Collector::new(ranks).unwrap();
        for rank in 0..ranks {
            collector.add(rank, (rank + 1) % ranks, Traffic { bytes: 5, messages: 1 }).unwrap();
        }
        collector.finish()
    }

    fn with_job<T>(capacities: &[u32], then: impl FnOnce(&Job<'_>) -> T) -> T {
        let places: Vec<u32> = (0..capacities.len() as u32).collect();
        let (matrix, topology) = (ring(4), Topology::torus(&[capacities.len() as u32]).unwrap());
        then(&Job { matrix: &matrix, topology: &topology, places: &places, capacities, outages: None, seed: 1 })
    }

    #[test]
    fn a_job_is_written_as_scotch_reads_it() {
        let graph = Graph::of(&ring(4));
        assert_eq!(source(&graph), "0\n4 8\n0 010\n2 5 1 5 3\n2 5 0 5 2\n2 5 1 5 3\n2 5 0 5 2\n");
        let text = with_job(&[2, 1, 0, 1], target).unwrap();
        assert_eq!(text, "deco 0\n3 7\n0 2 6\n1 1 7\n3 1 2\n1 \n1 2 \n");
        assert_eq!(with_job(&[4], target), None);
        assert_eq!(with_job(&vec![1; HOSTS_MAX + 1], target), None);
        assert!(with_job(&vec![1; HOSTS_MAX], target).is_some());
    }

    #[test]
    fn only_whole_mappings_are_read() {
        assert_eq!(parse("3\n0\t1\n2\t0\n1\t1\n", 3, 2), Some(vec![1, 1, 0]));
        for text in [
            "",
            "3\n0\t1\n1\t1\n",
            "2\n0\t1\n1\t1\n",
            "3\n0 1\n1 1\n2 2\n",
            "3\n0 1\n1 1\n3 1\n",
            "3\n0 1\n1 -1\n2 0\n",
        ] {
            assert_eq!(parse(text, 3, 2), None, "{text}");
        }
    }

    #[test]
    fn ranks_without_a_slot_go_to_the_nearest_host() {
        assert_eq!(with_job(&[1, 1, 1, 1], |job| fitted(job, vec![2, 2, 2, 0])), [1, 3, 2, 0]);
        assert_eq!(with_job(&[1, 3, 1], |job| fitted(job, vec![0, 0, 1, 2])), [1, 0, 1, 2]);
    }

    #[test]
    fn only_scotchs_numbers_count() {
        let graph = Graph::of_pairs(2, [(0, 1, u64::MAX / 4)].into_iter());
        assert_eq!(source(&graph), "0\n2 2\n0 010\n1 25000000 1\n1 25000000 0\n");
    }
}
