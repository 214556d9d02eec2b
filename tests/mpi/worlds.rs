//! The ranks' numbers, their communication, and their complete output.

use tests::CACHES;

use crate::library::{ALL, debian_mpich, pypi_mpich, python, succeeded};

/// The world that one line of `world.c` describes.
pub(crate) struct World {
    pub(crate) size: u32,
    /// The universe size; -1 if nothing bounds the number of ranks.
    pub(crate) universe: i32,
    /// The number of ranks on each node.
    pub(crate) nodes: Vec<u32>,
    /// The number of ranks of each program, and its argument.
    pub(crate) programs: Vec<(u32, &'static str)>,
}

impl World {
    pub(crate) fn on_one_node(size: u32) -> Self {
        Self::over(size, 1)
    }

    /// Returns the world of ranks that are spread over agents of which each is a node.
    pub(crate) fn over(size: u32, agents: u32) -> Self {
        let nodes = (0..agents).map(|agent| size * (agent + 1) / agents - size * agent / agents).collect();
        Self { size, universe: -1, nodes, programs: vec![(size, "")] }
    }

    /// Returns the line of each rank.
    pub(crate) fn lines(&self) -> Vec<String> {
        let nodes = self.nodes.iter().flat_map(|&locals| (0..locals).map(move |local| (local, locals)));
        let apps = self.programs.iter().enumerate();
        let apps = apps.flat_map(|(app, &(ranks, word))| (0..ranks).map(move |_| (app, word)));
        let line = |(rank, ((local, locals), (app, word)))| {
            let comma = if str::is_empty(word) { "" } else { ", " };
            let Self { size, universe, .. } = self;
            format!(
                "rank {rank} of {size}, local {local} of {locals}, universe {universe}, app {app}{comma}{word}: right"
            )
        };
        nodes.zip(apps).enumerate().map(line).collect()
    }
}

#[test]
fn allreduce_and_ring_over_a_tree() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let outcome = mpi.scela_over(5).np(16).program(mpi.c("world", &[])).run();
        succeeded(&outcome, mpi.world_over(16, 5).lines());
    }
}

#[test]
fn allreduce_and_ring_under_each_cache_policy() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        for policy in &CACHES[1..] {
            let run = mpi.scela_over(5).np(16).cache(policy);
            succeeded(&run.program(mpi.c("world", &[])).run(), mpi.world_over(16, 5).lines());
        }
    }
}

#[test]
fn a_world_of_one_rank() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let outcome = mpi.scela().np(1).program(mpi.c("world", &[])).run();
        succeeded(&outcome, mpi.world_over(1, 1).lines());
    }
}

#[test]
fn two_ranks_over_one_to_four_agents() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        for agents in 1..=4 {
            let outcome = mpi.scela_over(agents).np(2).program(mpi.c("world", &[])).run();
            succeeded(&outcome, mpi.world_over(2, agents).lines());
        }
    }
}

/// Between nodes, MPI uses the network instead of shared memory. Several nodes on one machine work as well. Open
/// MPI gets an option that turns shared memory off.
#[test]
fn agents_can_count_as_nodes() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let run = mpi.scela().np(16).agents(5).arg("--agents-as-nodes").fanout(2);
        let outcome = run.program(mpi.c("world", &[])).run();
        let world = World { universe: mpi.universe(16), ..World::over(16, 5) };
        assert_eq!(world.nodes, [3, 3, 3, 3, 4]);
        succeeded(&outcome, world.lines());
    }
}

#[test]
fn several_programs_form_one_world() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let first = mpi.scela_over(2).np(1).program(mpi.c("world", &["head"]));
        let outcome = first.and(2, mpi.c("world", &["body"])).and(3, mpi.c("world", &["tail"])).run();
        let programs = vec![(1, "head"), (2, "body"), (3, "tail")];
        succeeded(&outcome, World { programs, ..mpi.world_over(6, 2) }.lines());
    }
}

#[test]
fn mpi_works_over_a_pmi_port() {
    for library in ALL {
        let Some(mpi) = library().filter(|mpi| !mpi.is_served_by_pmix()) else { continue };
        let outcome = mpi.scela().np(4).agents(2).arg("--pmi-port").program(mpi.c("world", &[])).run();
        succeeded(&outcome, World::on_one_node(4).lines());
    }
}

/// Runs mpi4py's own hello program, in which each rank writes its line in turn.
#[test]
fn the_hello_program_of_mpi4py_runs() {
    let Some(mpi) = pypi_mpich() else { return };
    let outcome = mpi.scela().np(16).agents(3).program(python(&["-m", "mpi4py.bench", "helloworld"])).run();
    let host = nla::sys::host_name();
    succeeded(&outcome, (0..16).map(|rank| format!("Hello, World! I am process {rank:2} of 16 on {host}.")));
}

/// MPI_Init makes standard output unbuffered, so that every piece of a line is a separate write.
#[test]
fn lines_written_in_pieces_stay_whole() {
    let Some(mpi) = debian_mpich() else { return };
    let outcome = mpi.scela().np(8).agents(3).program(mpi.c("pieces", &["200"])).run();
    let lines = (0..8).flat_map(|rank| (0..200).map(move |line| format!("rank {rank} says line {line} in pieces")));
    succeeded(&outcome, lines);
}
