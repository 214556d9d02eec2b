//! Unmodified MPICH programs over several hosts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::{Broken, Cluster, Outcome, Run, scela, scela_run};

use crate::{cluster, skip};

/// Ranks of MPICH wait by spinning, all on this machine's cores.
const DEADLINE: Duration = Duration::from_secs(180);

/// The program `world.c` of the mpi tier, where all hosts see it.
///
/// PyPI's MPICH, over TCP as libfabric does it: Debian's, whose UCX takes namespaces of one machine for
/// what they are not, never comes out of MPI_Finalize there, under Hydra neither.
fn world(cluster: &Cluster) -> Option<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let venv = std::env::var_os("TESTS_VENV").map_or_else(|| tests.join("../target/test-venv"), PathBuf::from);
    let program = cluster.shared().join("world");
    let mut compiler = Command::new(venv.join("bin/mpicc"));
    match compiler.args(["-O1", "-o"]).arg(&program).arg(tests.join("mpi/programs/world.c")).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(program)
        }
        Err(error) => {
            skip(&format!("mpich of PyPI is not here ({compiler:?}: {error}); ./tests/run installs it"));
            None
        }
    }
}

fn on(cluster: &Cluster, program: &Path) -> Run {
    let run = scela().on(cluster).args(["-hosts", &cluster.names()]).deadline(DEADLINE);
    let run = run.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("FI_PROVIDER", "tcp");
    run.program(vec![program.as_os_str().to_owned()])
}

/// Each rank has met all others in an Allreduce and a ring, and found the sums right.
#[track_caller]
fn all_right(outcome: &Outcome, np: usize) {
    outcome.has_code(0);
    let right = outcome.sorted_lines().iter().filter(|line| line.ends_with(": right")).count();
    outcome.check(right == np, &format!("{np} ranks should be right"));
}

#[test]
fn flat_and_in_trees_with_nothing_installed() {
    let Some(cluster) = cluster(8) else { return };
    let Some(program) = world(&cluster) else { return };
    for host in cluster.hosts() {
        host.hide(scela_run());
        host.make_home_read_only();
    }
    for options in [
        &["--launch", "flat"][..],
        &["--launch", "flat", "--fanout", "2"],
        &["--launch", "tree", "--fanout", "2"],
        &["--launch", "tree", "--fanout", "8"],
    ] {
        all_right(&on(&cluster, &program).np(16).args(options).run(), 16);
    }
}

#[test]
fn bad_hosts_get_no_rank() {
    let Some(cluster) = cluster(6) else { return };
    let Some(program) = world(&cluster) else { return };
    cluster.host(1).break_as(Broken::Refused);
    cluster.host(4).break_as(Broken::NoLogin);
    let outcome = on(&cluster, &program).np(12).args(["--min-nodes", "4", "-outfile-pattern"]);
    let pattern = cluster.shared().join("out-%h");
    let outcome = outcome.arg(pattern.as_os_str()).run();
    outcome.has_code(0).says("2 of 6 hosts could not be started");
    let lines = |host: usize| {
        let file = cluster.shared().join(format!("out-{}", cluster.host(host).name()));
        std::fs::read_to_string(file).unwrap_or_default().lines().filter(|line| line.ends_with(": right")).count()
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(lines), [3, 0, 3, 3, 0, 3]);
}
