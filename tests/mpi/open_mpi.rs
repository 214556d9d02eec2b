//! Programs that get the path of ScELA's libpmi.so, and others that do not. The tests of all libraries check that Open MPI's
//! ranks then form a world and end as they should.

use tests::{Outcome, quote, sh};

use crate::library::{debian_mpich, open_mpi, python, succeeded};

/// Prints the variables that Open MPI reads.
const SHOW: &str = "env | grep ^FLUX_ | sort; :";

fn shown(outcome: &Outcome) -> String {
    outcome.is_quiet_success().out()
}

#[test]
fn only_open_mpi_programs_get_the_variables() {
    let Some(mpi) = open_mpi() else { return };
    let run = |options: &[&str]| mpi.scela().np(1).args(options).program(sh(SHOW)).run();
    assert_eq!(shown(&run(&[])), "");
    assert_eq!(shown(&run(&["--mpi", "none"])), "");
    let variables = shown(&run(&["--mpi", "openmpi"]));
    let lines: Vec<_> = variables.lines().collect();
    let number = lines[0].strip_prefix("FLUX_JOB_ID=").expect("the job's number");
    assert!(number.parse::<u32>().is_ok(), "{variables}");
    let library = lines[1].strip_prefix("FLUX_PMI_LIBRARY_PATH=").expect("our library");
    assert!(std::path::Path::new(library).is_file(), "{variables}");
    assert_eq!(lines.len(), 2, "{variables}");
}

/// The variables are set for each program according to its own file, not to that of another program.
#[test]
fn each_program_gets_the_variables_for_its_own_library() {
    let Some(mpi) = open_mpi() else { return };
    let shown = sh(&format!("echo variables:; {SHOW}"));
    let outcome = mpi.scela().np(1).program(mpi.c("world", &[])).and(1, shown).run();
    // The first program used PMI and waited for a rank that is not one of Open MPI.
    outcome.wrote("variables:\n").says("error: rank 1 on ").says("while others wait for it in a fence");
}

#[test]
fn programs_of_another_mpi_get_no_variables() {
    let Some(mpi) = debian_mpich() else { return };
    let outcome = mpi.scela().np(2).arg("-v").program(mpi.c("world", &["x"])).env("SCELA_PMI_LIBRARY", "/none").run();
    // Looking for the library would have failed.
    outcome.has_code(0).wrote_among_others("rank 0 of 2, ");
}

/// Two sessions at the same time each have their own shared memory, whose name contains the job's number.
#[test]
fn two_sessions_can_run_at_once() {
    let Some(mpi) = open_mpi() else { return };
    let start = || mpi.scela().np(8).agents(2).program(mpi.c("world", &[])).spawn();
    let (first, second) = (start(), start());
    for running in [first, second] {
        succeeded(&running.finish(), crate::worlds::World::on_one_node(8).lines());
    }
}

/// The file that is executed is python or a shell. mpi4py shows which library Python loads, also in the words of a script.
#[test]
fn python_with_open_mpi_and_a_script_that_starts_it_need_no_option() {
    let Some(mpi) = open_mpi() else { return };
    let host = nla::sys::host_name();
    let hello = ["-m", "mpi4py.bench", "helloworld"];
    let words: Vec<_> = python(&hello).iter().map(|word| quote(&word.to_string_lossy())).collect();
    let script = sh(&format!("exec {}", words.join(" ")));
    for program in [python(&hello), script] {
        let run = mpi.scela().np(4).agents(2).env("MPI4PY_MPIABI", "openmpi");
        let outcome = run.program(program).run();
        succeeded(&outcome, (0..4).map(|rank| format!("Hello, World! I am process {rank} of 4 on {host}.")));
    }
}

#[test]
fn a_missing_libpmi_is_reported_with_a_hint() {
    let Some(mpi) = open_mpi() else { return };
    let outcome = mpi.scela().np(2).env("SCELA_PMI_LIBRARY", "/none/libpmi.so").program(mpi.c("world", &[])).run();
    outcome.has_code(251).wrote("").says_only(
        "scela-run: error: SCELA_PMI_LIBRARY names '/none/libpmi.so', which is not a file\n  \
         hint: name ScELA's libpmi.so, or unset it\n",
    );
}

#[test]
fn ranks_without_the_variables_are_explained() {
    let Some(mpi) = open_mpi() else { return };
    let outcome = mpi.scela().np(2).args(["--mpi", "none"]).program(mpi.c("world", &[])).run();
    outcome.has_code(0).says("they ran as 2 copies of rank 0 of 1\n").says("use '--mpi openmpi'");
}
