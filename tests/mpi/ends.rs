//! MPI_Abort, exits and signals in the middle of MPI. One rank ends while the others wait for it in an MPI barrier,
//! which the launcher does not see.

use std::time::Duration;

use tests::Outcome;

use crate::library::{ALL, Library};

/// The maximum time of a run, well below the deadline of one that hangs. Most of it is for the start: see
/// [`Library::scela`].
const AT_ONCE: Duration = Duration::from_secs(90);

/// Runs eight ranks, of which rank `who` ends as `how` says. `ends.c` lists the possible values.
fn ended(mpi: &Library, how: &str, who: u32, code: i32) -> Outcome {
    let program = mpi.c("ends", &[how, &who.to_string(), &code.to_string()]);
    mpi.scela().np(8).agents(3).fanout(2).program(program).run()
}

/// Asserts that the report names the rank and that the other ranks were ended.
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

/// In this case Hydra ends the job with code 0 or 9, and other launchers hang.
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
        // UCX has no handler for this signal.
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
