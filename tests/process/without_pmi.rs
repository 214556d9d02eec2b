//! Programs that do not use PMI. No message mentions them, unless they are MPI programs that look for another kind
//! of launcher and therefore run as copies of rank 0 of 1.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tests::{Run, World, scela, sh};

/// Builds a program that is linked with a library of this name, whose MPI_Init does nothing.
fn build_program_linked_with(library: &str, world: &World) -> PathBuf {
    let place = world.file("");
    fs::write(place.join("library.c"), "int MPI_Init(void) { return 0; }\n").unwrap();
    fs::write(place.join("program.c"), "int MPI_Init(void);\nint main(void) { return MPI_Init(); }\n").unwrap();
    let soname = format!("-Wl,-soname,{library}");
    gcc(world, &["-shared", "-fPIC", "library.c", "-o", library, &soname]);
    gcc(world, &["program.c", &format!("./{library}"), "-o", "program", &format!("-Wl,-rpath,{}", place.display())]);
    place.join("program")
}

fn gcc(world: &World, words: &[&str]) {
    let output = Command::new("gcc").args(words).current_dir(world.file("")).output().expect("gcc is installed");
    assert!(output.status.success(), "gcc {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Begins a run of `ranks` ranks of a program that needs `library`, without PMIx.
fn run_program_linked_with(library: &str, ranks: u32) -> Run {
    let run = scela().np(ranks).agents(ranks.min(2)).args(["--mpi", "none"]);
    let program = build_program_linked_with(library, run.world());
    run.program(vec![program.into()])
}

#[test]
fn open_mpi_programs_that_run_as_copies_get_a_warning() {
    let run = run_program_linked_with("libmpi.so.40", 2);
    let program = run.world().file("program").display().to_string();
    run.run()
        .has_code(0)
        .says("warning: no rank has spoken PMI: if these were MPI ranks, they ran as 2 copies of rank 0 of 1\n")
        .says(&format!("'{program}' needs libmpi.so.40, Open MPI 5's library, which finds its launcher by PMIx"))
        .says("leave '--mpi none' out");
}

#[test]
fn a_program_in_path_or_in_the_working_directory_is_inspected() {
    for name in ["program", "./program"] {
        let run = scela().np(3).agents(2).args(["--mpi", "none"]);
        build_program_linked_with("libmpi.so.40", run.world());
        let place = run.world().file("");
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
        let outcome =
            run.env("PATH", path).args(["-wdir".as_ref(), place.as_os_str()]).program(vec![name.into()]).run();
        outcome.has_code(0).says("3 copies of rank 0 of 1").says(&format!("'{name}' needs libmpi.so.40"));
    }
}

#[test]
fn programs_for_pmix_and_pals_get_a_warning() {
    for (library, words) in [
        ("libpmix.so.2", "needs libpmix.so.2, which finds its launcher by PMIx"),
        ("libcray.so.1", "needs libcray.so.1, a Cray library, which finds its launcher by PALS or ALPS"),
    ] {
        run_program_linked_with(library, 2).run().has_code(0).says("2 copies of rank 0 of 1").says(words);
    }
}

#[test]
fn a_single_rank_gets_no_warning() {
    run_program_linked_with("libmpi.so.40", 1).run().is_quiet_success();
}

#[test]
fn programs_that_do_not_need_pmi_get_no_warning() {
    scela().np(2).program(vec!["true".into()]).run().is_quiet_success();
    scela().np(2).program(sh("true")).run().is_quiet_success();
    // This is the name of MPICH's library. A program that needs it may have no reason to use PMI.
    run_program_linked_with("libmpi.so.12", 2).run().is_quiet_success();
}
