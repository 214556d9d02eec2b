//! Mapping on patterns.

use super::*;
use crate::patterns::{self, Pattern};

fn check(pattern: Pattern, ranks: u32, topology: &str) -> Mapped {
    let topology = Topology::parse_words(topology).unwrap();
    let matrix = patterns::matrix(pattern, ranks, 1);
    let hosts = topology.places();
    let per_host = ranks.div_ceil(hosts);
    let places: Vec<u32> = (0..hosts).collect();
    let capacities = vec![per_host; hosts as usize];
    let block: Vec<u32> = (0..ranks).map(|rank| rank / per_host).collect();
    let job = Job {
        matrix: &matrix,
        topology: &topology,
        places: &places,
        capacities: &capacities,
        is_faulty: None,
        seed: 1,
    };
    let mapped = map(&job, &block);
    let mut held = vec![0; hosts as usize];
    mapped.host_of.iter().for_each(|host| held[*host as usize] += 1);
    assert!(held.iter().all(|held| *held <= per_host));
    assert_eq!(mapped.after, figures(&job, &mapped.host_of));
    assert!(mapped.after.is_never_worse(&mapped.before), "{mapped:?}");
    mapped
}

#[test]
fn a_halo_fits_its_torus() {
    let mapped = check(Pattern::Halo3d, 512, "torus:8x8x8");
    // The least that is possible: 6 faces of 256 KiB one link away, 12 edges of 8 KiB two links away.
    assert!((mapped.after.hops_per_byte() - 18.0 / 17.0).abs() < 1e-9, "{}", mapped.after.hops_per_byte());
}

#[test]
fn no_pattern_gets_worse() {
    for pattern in Pattern::ALL {
        for (ranks, topology) in [
            (64, "torus:4x4x4"),
            (64, "torus:8x8x8"),
            (60, "torus:4x4"),
            (64, "fat-tree:2:8"),
            (128, "dragonfly:5:4:2"),
        ] {
            let mapped = check(pattern, ranks, topology);
            assert_ne!((mapped.chosen, pattern), (Chosen::Block, Pattern::Random), "{topology}");
        }
    }
}

#[test]
fn several_first_placements_are_annealed() {
    // Annealing the shortest one alone ended at 1.76 and 2.08.
    for (pattern, ranks, most) in [(Pattern::Cg, 256, 1.71), (Pattern::Dt, 85, 2.06)] {
        let hops = check(pattern, ranks, "torus:8x8x8").after.hops_per_byte();
        assert!(hops < most, "{pattern:?}: {hops}");
    }
}

#[test]
fn links_that_annealing_leaves_too_heavy_are_relieved() {
    let mapped = check(Pattern::Hpl, 2048, "torus:16x16x8");
    assert_eq!(mapped.chosen, Chosen::Relieved, "{:?}", mapped.after);
}
