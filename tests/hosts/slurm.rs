//! The Slurm that the tests run under, with nodes of this machine and with nodes that are hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tests::{Cluster, Slurm, scela, sh, skip};

use crate::out;

/// Returns the Slurm, or skips the test if this machine has none.
#[track_caller]
pub(crate) fn or_skip(slurm: Result<Slurm, String>) -> Option<Slurm> {
    slurm.map_err(|why| skip(&why)).ok()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

const NAMES: [&str; 4] = ["node001", "node002", "node003", "node004"];

#[test]
fn ranks_start_on_nodes_of_this_machine() {
    let Some(slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let said = slurm.srun("none", 4, 4).args(["sh", "-c", "echo $SLURMD_NODENAME"]).output().unwrap();
    assert_eq!(sorted(&out(said)), NAMES);
}

#[test]
fn ranks_start_on_hosts() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let Some(slurm) = or_skip(Slurm::on(&cluster)) else { return };
    let said = slurm.srun("none", 4, 4).arg("hostname").output().unwrap();
    assert_eq!(sorted(&out(said)), NAMES);
}

#[test]
fn an_allocation_has_the_variables_of_slurm() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let Some(slurm) = or_skip(Slurm::on(&cluster)) else { return };
    let allocation = slurm.allocate(3, 6);
    let environment: BTreeMap<_, _> = allocation.environment().collect();
    assert_eq!(environment["SLURM_JOB_NODELIST"], "node[001-003]");
    assert_eq!(environment["SLURM_NTASKS"], "6");
    // A command that a rank starts with srun runs on the nodes of the allocation.
    let command = "srun --overlap --ntasks-per-node=1 --ntasks=3 hostname";
    let run = scela().on(&cluster).envs(allocation.environment()).np(1).program(sh(command));
    run.run().is_quiet_success().wrote_lines(&NAMES[..3]);
}

#[test]
fn ranks_are_placed_by_the_switches_that_slurm_knows() {
    let Some(slurm) = or_skip(Slurm::with_switches(4)) else { return };
    let allocation = slurm.allocate(4, 4);
    let place = TempDir::new().unwrap();
    let matrix = place.path().join("matrix");
    fs::write(&matrix, "scela-comm 1 ranks 4 pairs 2\n0 2 1000 1\n1 3 1000 1\n").unwrap();
    let run = scela().envs(allocation.environment()).np(4).args(["--explain", "--map-by", "comm"]);
    let outcome = run.arg("--comm-matrix").arg(&matrix).program(sh("true")).run();
    // Partners are behind the same switch now, two links apart.
    outcome.is_quiet_success().wrote_among_others("  hops per byte           4.000        2.000\n");
}

#[test]
fn many_nodes_start_within_seconds() {
    let since = Instant::now();
    let Some(slurm) = or_skip(Slurm::with_nodes(32)) else { return };
    let said = slurm.srun("none", 32, 32).args(["sh", "-c", "echo $SLURMD_NODENAME"]).output().unwrap();
    assert_eq!(out(said).lines().collect::<BTreeSet<_>>().len(), 32);
    drop(slurm);
    // This takes one or two seconds if the cores are idle.
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
}
