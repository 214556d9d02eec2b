//! Programs that do not use PMI. No message mentions them, unless they are MPI programs that look for another kind
//! of launcher: these would run as copies of rank 0 of 1.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tests::{Run, World, scela, sh};

/// Builds a program that is linked with a library of this name, whose MPI_Init does nothing. The library needs those of `below`.
fn build_program_linked_with(library: &str, below: &[&str], world: &World) -> PathBuf {
    let place = world.file("");
    fs::write(place.join("library.c"), "int MPI_Init(void) { return 0; }\n").unwrap();
    fs::write(place.join("below.c"), "int below;\n").unwrap();
    fs::write(place.join("program.c"), "int MPI_Init(void);\nint main(void) { return MPI_Init(); }\n").unwrap();
    let rpath = format!("-Wl,-rpath,{}", place.display());
    let shared = |source: &str, name: &str, needed: &[&str]| {
        let soname = format!("-Wl,-soname,{name}");
        let needed: Vec<String> = needed.iter().map(|name| format!("./{name}")).collect();
        let mut words = vec!["-shared", "-fPIC", "-Wl,--no-as-needed", source, "-o", name, &soname, &rpath];
        words.extend(needed.iter().map(String::as_str));
        gcc(world, &words);
    };
    below.iter().for_each(|name| shared("below.c", name, &[]));
    shared("library.c", library, below);
    gcc(world, &["program.c", &format!("./{library}"), "-o", "program", &rpath]);
    place.join("program")
}

fn gcc(world: &World, words: &[&str]) {
    let output = Command::new("gcc").args(words).current_dir(world.file("")).output().expect("gcc is installed");
    assert!(output.status.success(), "gcc {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Begins a run of `ranks` ranks of a program that needs `library`, with this `--mpi`.
fn run_program_linked_with(library: &str, below: &[&str], ranks: u32, mpi: &str) -> Run {
    let run = scela().np(ranks).agents(ranks.min(2)).args(["--mpi", mpi]);
    let program = build_program_linked_with(library, below, run.world());
    run.program(vec![program.into()])
}

#[test]
fn open_mpi_programs_that_were_to_run_as_copies_get_a_warning() {
    let run = run_program_linked_with("libmpi.so.40", &[], 2, "none");
    let program = run.world().file("program").display().to_string();
    run.run()
        .has_code(0)
        .says("warning: no rank has spoken PMI: if these were MPI ranks, they ran as 2 copies of rank 0 of 1\n")
        .says(&format!("'{program}' needs libmpi.so.40, Open MPI 5's library, which finds its launcher by PMIx"))
        .says("hint: leave '--mpi' out");
}

#[test]
fn a_program_in_path_or_in_the_working_directory_is_inspected() {
    for name in ["program", "./program"] {
        let run = scela().np(3).agents(2).args(["--mpi", "none"]);
        build_program_linked_with("libmpi.so.40", &[], run.world());
        let place = run.world().file("");
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
        let outcome =
            run.env("PATH", path).args(["-wdir".as_ref(), place.as_os_str()]).program(vec![name.into()]).run();
        outcome.has_code(0).says("3 copies of rank 0 of 1").says(&format!("'{name}' needs libmpi.so.40"));
    }
}

/// No rank starts.
#[test]
fn programs_whose_files_show_another_launcher_are_refused() {
    for (library, below, mpi, words) in [
        ("libmpi.so.40", &[][..], "openmpi", "Open MPI 5's library, which finds its launcher by PMIx alone"),
        ("libmpi.so.20", &[], "auto", "an old Open MPI's library, which finds its launcher by PMIx"),
        ("libmpi.so.12", &["libopen-rte.so.12"], "auto", "needs libopen-rte.so.12, a part of an old Open MPI"),
    ] {
        let run = run_program_linked_with(library, below, 2, mpi);
        let outcome = run.env("SCELA_PMI_LIBRARY", tests::scela_run().with_file_name("libpmi.so")).run();
        outcome.has_code(2).says(words).says("its ranks would run as copies of rank 0 of 1\n  hint: ");
        outcome.says("; '--mpi none' starts them anyway\n");
        run_program_linked_with(library, below, 2, "none").run().has_code(0).says("2 copies of rank 0 of 1");
    }
}

/// Slurm's libpmi is linked with libslurm, MPICH can be built for it. The loader would find it in the program's own directory.
#[test]
fn a_program_for_slurms_libpmi_loads_scelas() {
    let run = scela().np(2);
    let place = run.world().file("");
    let program = build_program_linked_with("libmpi.so.12", &["libpmi.so.0"], run.world());
    fs::write(place.join("slurm.c"), "int slurm;\n").unwrap();
    gcc(run.world(), &["-shared", "-fPIC", "slurm.c", "-o", "libslurm.so.38", "-Wl,-soname,libslurm.so.38"]);
    let words = ["-shared", "-fPIC", "-Wl,--no-as-needed", "below.c", "-o", "libpmi.so.0", "./libslurm.so.38"];
    gcc(run.world(), &words);
    let show = format!("{} && echo \"$LD_PRELOAD\"", program.display());
    let own = tests::scela_run().with_file_name("libpmi.so");
    let outcome = scela().np(2).env("SCELA_PMI_LIBRARY", &own).program(sh(&show)).run();
    outcome.has_code(0).wrote_lines([own.display(), own.display()]);
    outcome.says(&format!("if the ranks used '{}', they ran as 2 copies of rank 0 of 1\n", program.display()));
    outcome.says("'--mpi none' silences this warning\n");
    scela().np(2).args(["--mpi", "none"]).program(sh(&program.display().to_string())).run().is_quiet_success();
    let outcome = run.env("SCELA_PMI_LIBRARY", place.join("none")).program(vec![program.into()]).run();
    outcome.has_code(251).says("which is not a file");
}

/// The files do not show that this library finds no launcher.
#[test]
fn mpi_programs_that_ran_as_copies_are_an_error() {
    for library in ["libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"] {
        let outcome = run_program_linked_with(library, &[], 2, "auto").run();
        outcome.has_code(1).says(
            "scela-run: error: no rank has spoken PMI: if these were MPI ranks, they ran as 2 copies of rank 0 of 1\n",
        );
        outcome.says(&format!("needs {library}, an MPI library that did not look for scela-run\n  hint: "));
        run_program_linked_with(library, &[], 2, "none").run().is_quiet_success();
    }
    let outcome = run_program_linked_with("libmpi_cray.so.12", &["libcray.so.1"], 2, "auto").run();
    outcome.has_code(1).says("needs libcray.so.1, a Cray library, which finds its launcher by PALS or ALPS");
}

/// The fake library has no function of PMIx.
#[test]
fn an_mpi_library_that_needs_libpmix_is_served_by_pmix() {
    let run = scela().np(2);
    let program = build_program_linked_with("libmpi.so.12", &["libpmix.so.2"], run.world());
    let library = run.world().file("libpmix.so.2").display().to_string();
    run.program(vec![program.into()]).run().has_code(251).says("PMIx cannot be served").says(&library);
}

#[test]
fn programs_for_pmix_and_pals_get_a_warning() {
    for (library, words) in [
        ("libpmix.so.2", "needs libpmix.so.2, which finds its launcher by PMIx"),
        ("libcray.so.1", "needs libcray.so.1, a Cray library, which finds its launcher by PALS or ALPS"),
    ] {
        run_program_linked_with(library, &[], 2, "none").run().has_code(0).says("2 copies of rank 0 of 1").says(words);
    }
}

#[test]
fn a_single_rank_gets_no_warning() {
    for (library, mpi) in [("libmpi.so.40", "none"), ("libmpi.so.20", "auto"), ("libmpi.so.12", "auto")] {
        run_program_linked_with(library, &[], 1, mpi).run().is_quiet_success();
    }
}

#[test]
fn programs_that_do_not_need_pmi_get_no_warning() {
    scela().np(2).program(vec!["true".into()]).run().is_quiet_success();
    scela().np(2).program(sh("true")).run().is_quiet_success();
}
