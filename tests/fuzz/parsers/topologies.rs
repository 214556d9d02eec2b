//! Topologies: words, and Slurm's files.

use launcher::cluster::hosts::expand;
use placement::limits::PLACES_MAX;
use placement::topology::Topology;

/// Larger topologies are made only.
const CHECKED_PLACES_MAX: u32 = 64;

/// A topology that is read is within its bounds; routes are as long as distances, and both ways are equally long.
pub(super) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let names = |list: &str| expand(list.as_bytes()).map_err(|error| error.to_string());
    for read in [Topology::parse_words(&text), Topology::parse_file(&text, &names)] {
        let topology = match read {
            Ok(topology) => topology,
            Err(_) => continue,
        };
        assert!(topology.places() > 0 && topology.places() <= PLACES_MAX);
        assert!(topology.names().is_empty() || topology.names().len() == topology.places() as usize);
        let places = topology.places().min(CHECKED_PLACES_MAX);
        let mut route = Vec::new();
        for (from, to) in (0..places).map(|from| (from, from * 7 % places)) {
            route.clear();
            topology.route(from, to, &mut route);
            assert_eq!(route.len(), topology.distance(from, to) as usize);
            assert_eq!(topology.distance(from, to), topology.distance(to, from));
            assert!(route.iter().all(|link| *link < topology.links()));
        }
    }
}
