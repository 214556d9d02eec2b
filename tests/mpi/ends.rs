//! MPI_Abort, exits and signals in the middle of MPI: one rank ends, the others wait for it in a
//! barrier of MPI's, of which the launcher knows nothing.

use std::time::Duration;

use tests::Outcome;

use crate::library::{ALL, Library};

/// Well before a run that hangs is ended. Most of it is for the start: see [`Library::scela`].
const AT_ONCE: Duration = Duration::from_secs(90);

/// Of eight ranks, rank `who` ends in a way that `ends.c` knows.
fn ended(mpi: &Library, how: &str, who: u32, code: i32) -> Outcome {
    let program = mpi.c("ends", &[how, &who.to_string(), &code.to_string()]);
    mpi.scela().np(8).agents(3).fanout(2).program(program).run()
}

/// The report names the rank, and the others were ended for it.
#[track_caller]
fn reports(outcome: &Outcome, code: i32, what: &str) {
    let host = nla::sys::host_name();
    outcome.has_code(code).says(&what.replace("HOST", &host)).says("the job's 7 other ranks were ended");
    outcome.took_less_than(AT_ONCE);
}

#[test]
fn abort() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        reports(&ended(&mpi, "abort", 3, 7), 7, "error: rank 3 on HOST called MPI_Abort(7)");
    }
}

#[test]
fn the_low_byte_of_an_abort() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        reports(&ended(&mpi, "abort", 0, 300), 44, "error: rank 0 on HOST called MPI_Abort(300)");
        reports(&ended(&mpi, "abort", 7, 256), 1, "error: rank 7 on HOST called MPI_Abort(256)");
    }
}

#[test]
fn exit_without_finalize() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        reports(&ended(&mpi, "exit", 2, 5), 5, "error: rank 2 on HOST exited with code 5");
    }
}

/// Where Hydra ends the job and says 0 or 9, and others hang.
#[test]
fn exit_with_0_without_finalize() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        reports(&ended(&mpi, "exit", 2, 0), 1, "error: rank 2 on HOST ended without MPI_Finalize");
    }
}

#[test]
fn killed_by_a_signal() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        // One that UCX has no handler for.
        reports(&ended(&mpi, "signal", 5, 9), 137, "error: rank 5 on HOST was killed by signal 9 (KILL)");
    }
}

#[test]
fn a_code_after_finalize() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let outcome = ended(&mpi, "after", 6, 3);
        outcome.has_code(3).says(&format!("error: rank 6 on {} exited with code 3", nla::sys::host_name()));
    }
}
