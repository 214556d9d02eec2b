//! Unmodified MPICH programs over several hosts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::{Cluster, MPICH_OVER_TCP, Outcome, Run, scela, scela_run, skip};

use crate::{break_five, reports_five};

/// The virtual environment with PyPI's MPICH and charm4py, as [`venv_of`] takes it.
pub(crate) const VENV: (&str, &str) = ("TESTS_VENV", "test-venv");
/// Ranks of MPICH wait by spinning, and all of them share this machine's cores.
const DEADLINE: Duration = Duration::from_secs(180);

/// Compiles the program `world.c` of the mpi tier in a directory that all hosts share.
pub(crate) fn world(cluster: &Cluster) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/programs/world.c");
    let program = cluster.shared().join("world");
    compile(&source, &program).then_some(program)
}

/// Compiles a program against PyPI's MPICH, if that is installed.
///
/// It runs over libfabric's TCP provider. Debian's MPICH uses UCX, which is misled by the namespaces of one machine
/// and never returns from MPI_Finalize there, under Hydra either.
pub(crate) fn compile(source: &Path, program: &Path) -> bool {
    compile_with(VENV, source, program)
}

/// Compiles a program with the MPI of a virtual environment, which a variable or a directory of the target directory names.
pub(crate) fn compile_with(venv: (&str, &str), source: &Path, program: &Path) -> bool {
    let mut compiler = Command::new(venv_of(venv).join("bin/mpicc"));
    match compiler.args(["-O1", "-o"]).arg(program).arg(source).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            true
        }
        Err(error) => {
            skip(&format!("an MPI of PyPI is not installed ({compiler:?}: {error}); ./tests/run installs it"));
            false
        }
    }
}

/// Returns the directory of a virtual environment of `tests/run`.
pub(crate) fn venv_of((variable, directory): (&str, &str)) -> PathBuf {
    let target = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(directory);
    std::env::var_os(variable).map_or_else(target, PathBuf::from)
}

/// Begins a run of a program that [`compile`] built.
pub(crate) fn mpich() -> Run {
    scela().envs(MPICH_OVER_TCP).deadline(DEADLINE)
}

pub(crate) fn on(cluster: &Cluster, program: &Path) -> Run {
    mpich().on(cluster).args(["-hosts", &cluster.names()]).program(vec![program.as_os_str().to_owned()])
}

/// Asserts that each rank took part in an Allreduce and a ring with all others and found the sums right.
#[track_caller]
pub(crate) fn assert_all_right(outcome: &Outcome, np: usize) {
    outcome.has_code(0);
    let right = outcome.sorted_lines().iter().filter(|line| line.ends_with(": right")).count();
    outcome.check(right == np, &format!("{np} ranks should have computed the right sums"));
}

#[test]
fn mpich_runs_flat_and_in_trees_on_hosts_without_scela() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
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
        assert_all_right(&on(&cluster, &program).np(16).args(options).run(), 16);
    }
}

/// Returns the number of hosts and of ranks per host. `TESTS_WORLD=32x16` sets more than a test usually has time
/// for.
fn size() -> (usize, usize) {
    let typed = std::env::var("TESTS_WORLD").unwrap_or_else(|_| "8x2".to_owned());
    let (hosts, ppn) = typed.split_once('x').unwrap();
    (hosts.parse().unwrap(), ppn.parse().unwrap())
}

#[test]
fn bad_hosts_get_no_rank() {
    let (hosts, ppn) = size();
    let Some(cluster) = Cluster::new_or_skip(hosts) else { return };
    let Some(program) = world(&cluster) else { return };
    break_five(&cluster);
    let good = hosts - 5;
    let np = hosts * ppn;
    let pattern = cluster.shared().join("out-%h");
    let run = on(&cluster, &program).np(np as u32).args(["--min-nodes", &good.to_string(), "--start-timeout", "20"]);
    let outcome = run.args(["-outfile-pattern".as_ref(), pattern.as_os_str()]).run();
    outcome.has_code(0);
    reports_five(&outcome, hosts);
    println!("{}", outcome.err());
    let right = |host: &tests::Host| {
        let file = cluster.shared().join(format!("out-{}", host.name()));
        std::fs::read_to_string(file).unwrap_or_default().lines().filter(|line| line.ends_with(": right")).count()
    };
    let right: Vec<usize> = cluster.hosts().iter().map(right).collect();
    assert_eq!(right.iter().sum::<usize>(), np, "{right:?}");
    assert!(right[1..6].iter().all(|count| *count == 0), "{right:?}");
}
