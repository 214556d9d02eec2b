//! Runs Scotch's programs on files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use placement::graph::Graph;
use placement::scotch::source;
use placement::topology::Topology;

/// A mapping by Scotch.
pub(crate) struct Mapping {
    /// The place of each rank. Several ones, if the order in which Scotch counts dimensions is not known.
    pub(crate) candidates: Vec<Vec<u32>>,
    /// The time that Scotch states for mapping alone.
    pub(crate) time: Duration,
}

/// Maps a graph onto a torus of three dimensions, or onto its first places if the graph has fewer ranks.
pub(crate) fn gmap(directory: &Path, graph: &Graph, topology: &Topology) -> Option<Mapping> {
    let [source_file, target, map] = ["job.grf", "network.tgt", "job.map"].map(|name| directory.join(name));
    fs::write(&source_file, source(graph)).ok()?;
    let sizes: Vec<u32> =
        topology.text().strip_prefix("torus:")?.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let [x, y, z] = sizes[..] else { return None };
    let is_whole = graph.ranks() == topology.places();
    if is_whole {
        fs::write(&target, format!("torus3D {x} {y} {z}\n")).ok()?;
    } else {
        part(directory, graph.ranks(), topology, &target)?;
    }
    let output = Command::new("scotch_gmap").args([&source_file, &target, &map]).arg("-vt").output().ok()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let time = printed.lines().find_map(|line| line.strip_prefix("T\tMapping\t\t"))?.trim().parse().ok()?;
    let mut terminals = vec![0u32; graph.ranks() as usize];
    for line in fs::read_to_string(&map).ok()?.lines().skip(1) {
        let (rank, terminal) = line.split_once('\t')?;
        *terminals.get_mut(rank.trim().parse::<usize>().ok()?)? = terminal.trim().parse().ok()?;
    }
    // Ours counts the last coordinate fastest.
    let reversed = |terminal: &u32| (terminal % x) * y * z + terminal / x % y * z + terminal / x / y;
    let candidates = if is_whole { vec![terminals.iter().map(reversed).collect(), terminals] } else { vec![terminals] };
    Some(Mapping { candidates, time: Duration::from_secs_f64(time) })
}

/// Makes the target of the first places of a network, as the publication does: `amk_grf` with a list of vertices.
fn part(directory: &Path, count: u32, topology: &Topology, target: &Path) -> Option<()> {
    let [network, list] = ["network.grf", "vertices"].map(|name| directory.join(name));
    let places = topology.places();
    let neighbours = (0..places)
        .flat_map(|from| (0..places).filter(move |to| topology.distance(from, *to) == 1).map(move |to| (from, to, 1)));
    let graph = Graph::of_pairs(places, neighbours.filter(|(from, to, _)| from < to));
    fs::write(&network, source(&graph)).ok()?;
    let mut text = format!("{count}\n");
    (0..count).for_each(|place| text.push_str(&format!("{place}\n")));
    fs::write(&list, text).ok()?;
    let output = Command::new("amk_grf").args([&network, target]).arg(format!("-l{}", list.display())).output().ok()?;
    output.status.success().then_some(())
}
