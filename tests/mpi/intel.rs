//! The three ways in which Intel MPI may use PMI: its own client, ScELA's libpmi.so, and ScELA's libpmi2.so, which
//! it recognizes by its name.

use std::path::Path;
use std::time::Duration;

use tests::Run;

use crate::library::{Library, intel, ours};
use crate::worlds::World;

/// Runs the ranks of a world on two agents. Asserts that they are one world and that they name this PMI.
#[track_caller]
fn check(mpi: &Library, configure: impl Fn(Run) -> Run, api: &str) {
    let run = mpi.scela().np(6).agents(2).args(["-genv", "I_MPI_DEBUG", "5"]);
    let outcome = configure(run).program(mpi.c("world", &[])).run();
    let (printed, mut lines): (Vec<_>, Vec<_>) =
        outcome.sorted_lines().into_iter().partition(|line| line.starts_with("[0] MPI startup(): "));
    outcome.is_quiet_success().check(
        printed.iter().any(|line| line == &format!("[0] MPI startup(): PMI API: {api}")),
        &format!("it should have used {api}"),
    );
    lines.retain(|line| !line.is_empty());
    outcome.check(lines == World::on_one_node(6).lines(), "all ranks should have been right");
}

fn library(run: Run, path: &Path) -> Run {
    let path = path.to_str().expect("the target directory has a name in UTF-8");
    run.args(["-genv", "I_MPI_PMI_LIBRARY", path])
}

#[test]
fn intel_mpi_works_with_its_own_client() {
    let Some(mpi) = intel() else { return };
    check(&mpi, |run| run, "pmi");
}

#[test]
fn intel_mpi_works_with_libpmi() {
    let Some(mpi) = intel() else { return };
    check(&mpi, |run| library(run, &ours("libpmi.so")), "pmi");
}

#[test]
fn intel_mpi_works_with_libpmi2() {
    let Some(mpi) = intel() else { return };
    check(&mpi, |run| library(run.args(["-genv", "I_MPI_PMI", "pmi2"]), &ours("libpmi2.so")), "pmi2");
}

/// Ranks that share cores yield the processor while they wait. If they spin, this takes a minute.
#[test]
fn ranks_that_share_cores_do_not_spin() {
    let Some(mpi) = intel() else { return };
    let ranks = 2 * u32::try_from(nla::sys::cores()).expect("few cores");
    let words = ["-iter", "100", "-npmin", &ranks.to_string(), "-msglog", "0:10", "Allreduce"];
    let (benchmark, libraries) = mpi.installed("IMB-MPI1", &words);
    let run = mpi.scela().np(ranks).env("LD_LIBRARY_PATH", libraries).deadline(Duration::from_secs(20));
    run.program(benchmark).run().has_code(0);
}

/// A site may set the library for its own launcher. ScELA does not pass on an inherited value.
#[test]
fn an_inherited_library_is_not_loaded() {
    let Some(mpi) = intel() else { return };
    check(&mpi, |run| run.env("I_MPI_PMI_LIBRARY", "/none/libpmi.so"), "pmi");
}

/// A library that is given as an option is loaded. If that fails, Intel MPI reports it and uses its own client.
#[test]
fn a_library_given_as_an_option_is_loaded() {
    let Some(mpi) = intel() else { return };
    let run = library(mpi.scela().np(2), Path::new("/none/libpmi.so"));
    let outcome = run.program(mpi.c("world", &[])).run();
    let printed = format!("{}{}", outcome.out(), outcome.err());
    outcome
        .has_code(0)
        .check(printed.contains("Could not open /none/libpmi.so"), "it should have looked for the library");
}
