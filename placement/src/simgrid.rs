//! The files with which SimGrid simulates the messages of a placement: a platform, the hosts of ranks, and a trace that its
//! `smpirun -replay` reads; and the time that it prints.
//!
//! The platform has the links and routes of a [`Topology`], so any of them is simulated, on the routes that the figures of a
//! placement assume. Its parts are those that the messages of the job use. Ranks are on different places.
//!
//! Each rank exchanges its messages in rounds: it posts all receives of a round, all sends, and waits for both.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::limits::{SIMULATED_BYTES_MAX, SIMULATED_MESSAGES};
use crate::matrix::{Matrix, Pair};
use crate::topology::Topology;

/// SimGrid's number for `MPI_BYTE`.
const MPI_BYTE: u32 = 6;

/// Returns the platform: a host for each place of a rank, and a route for each pair of ranks that exchange messages, in both
/// directions. Links have `bandwidth` bytes per second and take `latency_s` seconds.
pub fn platform(topology: &Topology, matrix: &Matrix, place_of: &[u32], bandwidth: f64, latency_s: f64) -> String {
    let mut text = String::from(
        "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n\
         <zone id=\"network\" routing=\"Full\">\n",
    );
    let places: BTreeSet<u32> = place_of.iter().copied().collect();
    for place in &places {
        let _ = writeln!(text, "<host id=\"h{place}\" speed=\"1Gf\"/>");
    }
    // The flow of a message loads the way back a little, so SimGrid asks for it.
    let pairs: BTreeSet<(u32, u32)> = partners(matrix)
        .map(|pair| (place_of[pair.from as usize], place_of[pair.to as usize]))
        .flat_map(|(from, to)| [(from, to), (to, from)])
        .collect();
    let routes: Vec<(u32, u32, Vec<u32>)> = pairs
        .into_iter()
        .map(|(from, to)| {
            let mut route = Vec::new();
            topology.route(from, to, &mut route);
            (from, to, route)
        })
        .collect();
    let links: BTreeSet<u32> = routes.iter().flat_map(|(.., route)| route).copied().collect();
    for link in links {
        let bandwidth = bandwidth * f64::from(topology.width(link));
        let _ = writeln!(text, "<link id=\"l{link}\" bandwidth=\"{bandwidth}Bps\" latency=\"{latency_s}s\"/>");
    }
    for (from, to, route) in routes {
        let _ = write!(text, "<route src=\"h{from}\" dst=\"h{to}\" symmetrical=\"NO\">");
        route.iter().for_each(|link| {
            let _ = write!(text, "<link_ctn id=\"l{link}\"/>");
        });
        text.push_str("</route>\n");
    }
    text + "</zone>\n</platform>\n"
}

/// Returns the list of hosts: that of rank 0, of rank 1, and so on.
pub fn hosts(place_of: &[u32]) -> String {
    place_of.iter().map(|place| format!("h{place}\n")).collect()
}

/// Returns the trace of all ranks. A pair of ranks exchanges as many messages as the matrix says, as long as the whole trace
/// has at most about [`SIMULATED_MESSAGES`] of them; beyond that, fewer and longer ones. Returns `None` if a message
/// would be longer than [`SIMULATED_BYTES_MAX`].
pub fn trace(matrix: &Matrix) -> Option<String> {
    let pairs: Vec<&Pair> = partners(matrix).collect();
    let most = pairs.iter().map(|pair| pair.traffic.messages).max().unwrap_or_default();
    let rounds = most.min(SIMULATED_MESSAGES / (pairs.len() as u64).max(1)).max(1);
    let messages = |pair: &Pair| pair.traffic.messages.clamp(1, rounds);
    let bytes = |pair: &Pair, round: u64| {
        let (each, rest) = (pair.traffic.bytes / messages(pair), pair.traffic.bytes % messages(pair));
        if round == 0 { each + rest } else { each }
    };
    if pairs.iter().any(|pair| bytes(pair, 0) > SIMULATED_BYTES_MAX) {
        return None;
    }
    let mut senders: Vec<Vec<&Pair>> = vec![Vec::new(); matrix.ranks() as usize];
    pairs.iter().for_each(|pair| senders[pair.to as usize].push(pair));
    let mut text = String::new();
    for rank in 0..matrix.ranks() {
        let receivers: Vec<&Pair> = matrix.row(rank).iter().filter(|pair| pair.from != pair.to).collect();
        let _ = writeln!(text, "{rank} init");
        for round in 0..rounds {
            let now = |pair: &&&Pair| round < messages(pair);
            let mut count = 0;
            for pair in senders[rank as usize].iter().filter(now) {
                let _ = writeln!(text, "{rank} irecv {} 0 {} {MPI_BYTE}", pair.from, bytes(pair, round));
                count += 1;
            }
            for pair in receivers.iter().filter(now) {
                let _ = writeln!(text, "{rank} isend {} 0 {} {MPI_BYTE}", pair.to, bytes(pair, round));
                count += 1;
            }
            if count > 0 {
                let _ = writeln!(text, "{rank} waitall {count}");
            }
        }
        let _ = writeln!(text, "{rank} finalize");
    }
    Some(text)
}

/// Returns the simulated seconds, by what `smpirun -replay` has logged.
pub fn seconds(log: &str) -> Option<f64> {
    let (_, rest) = log.rsplit_once("Simulation time ")?;
    let seconds: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Returns the pairs of different ranks.
fn partners(matrix: &Matrix) -> impl Iterator<Item = &Pair> {
    matrix.pairs().iter().filter(|pair| pair.from != pair.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Collector, Traffic};

    fn matrix(ranks: u32, pairs: &[(u32, u32, u64, u64)]) -> Matrix {
        let mut collector = Collector::new(ranks).unwrap();
        for (from, to, bytes, messages) in pairs {
            collector.add(*from, *to, Traffic { bytes: *bytes, messages: *messages }).unwrap();
        }
        collector.finish()
    }

    #[test]
    fn a_platform_has_the_routes_of_the_topology() {
        let topology = Topology::torus(&[4, 4]).unwrap();
        let text = platform(&topology, &matrix(2, &[(0, 1, 8, 1), (1, 1, 8, 1)]), &[0, 5], 1.25e9, 1e-6);
        let lines: Vec<&str> = text.lines().skip(4).collect();
        // From (0, 0) over (1, 0) to (1, 1), and back over (0, 1).
        assert_eq!(
            lines,
            [
                "<host id=\"h0\" speed=\"1Gf\"/>",
                "<host id=\"h5\" speed=\"1Gf\"/>",
                "<link id=\"l0\" bandwidth=\"1250000000Bps\" latency=\"0.000001s\"/>",
                "<link id=\"l7\" bandwidth=\"1250000000Bps\" latency=\"0.000001s\"/>",
                "<link id=\"l18\" bandwidth=\"1250000000Bps\" latency=\"0.000001s\"/>",
                "<link id=\"l21\" bandwidth=\"1250000000Bps\" latency=\"0.000001s\"/>",
                "<route src=\"h0\" dst=\"h5\" symmetrical=\"NO\"><link_ctn id=\"l0\"/><link_ctn id=\"l18\"/></route>",
                "<route src=\"h5\" dst=\"h0\" symmetrical=\"NO\"><link_ctn id=\"l21\"/><link_ctn id=\"l7\"/></route>",
                "</zone>",
                "</platform>",
            ]
        );
        assert_eq!(hosts(&[0, 5]), "h0\nh5\n");
    }

    #[test]
    fn a_link_of_several_cables_is_as_fast_as_they_are() {
        let topology = Topology::parse_words("fat-tree:2:4").unwrap();
        let text = platform(&topology, &matrix(2, &[(0, 1, 8, 1)]), &[0, 7], 1e9, 0.0);
        assert_eq!(text.matches("bandwidth=\"1000000000Bps\" latency=\"0s\"").count(), 4, "{text}");
        assert_eq!(text.matches("bandwidth=\"2000000000Bps\"").count(), 4, "{text}");
    }

    #[test]
    fn ranks_exchange_their_messages_in_rounds() {
        let text = trace(&matrix(3, &[(0, 1, 11, 2), (1, 0, 5, 1), (2, 2, 7, 1)])).unwrap();
        let of_rank = |rank: &str| -> Vec<&str> { text.lines().filter_map(|line| line.strip_prefix(rank)).collect() };
        let (first, second) = (["init", "irecv 1 0 5 6", "isend 1 0 6 6", "waitall 2"], ["isend 1 0 5 6", "waitall 1"]);
        assert_eq!(of_rank("0 "), [&first[..], &second[..], &["finalize"]].concat());
        let (first, second) = (["init", "irecv 0 0 6 6", "isend 0 0 5 6", "waitall 2"], ["irecv 0 0 5 6", "waitall 1"]);
        assert_eq!(of_rank("1 "), [&first[..], &second[..], &["finalize"]].concat());
        assert_eq!(of_rank("2 "), ["init", "finalize"]);
    }

    #[test]
    fn a_trace_has_a_bounded_number_of_messages() {
        let text = trace(&matrix(2, &[(0, 1, 3 * SIMULATED_MESSAGES, 3 * SIMULATED_MESSAGES)])).unwrap();
        assert_eq!(text.matches("isend 1 0 3 6\n").count() as u64, SIMULATED_MESSAGES);
        assert_eq!(text.matches("isend").count() as u64, SIMULATED_MESSAGES);
        let long = |bytes| trace(&matrix(2, &[(0, 1, bytes, 1)]));
        assert!(long(SIMULATED_BYTES_MAX).is_some());
        assert_eq!(long(SIMULATED_BYTES_MAX + 1), None);
    }

    #[test]
    fn the_last_time_of_a_log_counts() {
        let line = "[h64:6:(7) 0.000947] [smpi_replay/INFO] Simulation time";
        assert_eq!(seconds(&format!("{line} 0.5\n{line} 0.000947\n")), Some(0.000947));
        assert_eq!([seconds(line), seconds(&format!("{line} x")), seconds(&format!("{line} inf"))], [None; 3]);
    }
}
