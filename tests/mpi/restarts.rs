//! A program that writes checkpoints starts again after a crash, and computes what it would have computed without one.

use crate::library::{ALL, succeeded};

#[test]
fn a_program_with_checkpoints_goes_on_after_a_crash() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let directory = tempfile::tempdir().expect("a directory");
        let run = |crash: &str| {
            let place = directory.path().join(crash);
            std::fs::create_dir(&place).expect("a new directory");
            let program = mpi.c("checkpoint", &[&place.display().to_string(), "20", crash]);
            mpi.scela_on_one_node(2).args(["--on-failure", "restart"]).np(4).program(program).run()
        };
        succeeded(&run("0"), ["from step 0", "sum 2100"]);
        let outcome = run("12");
        outcome.has_code(0).says("rank 1 on ").says("all ranks start again: restart 1 of at most 3");
        outcome.wrote_lines(["from step 0", "from step 11", "sum 2100"]);
    }
}
