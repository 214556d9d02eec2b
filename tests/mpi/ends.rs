//! MPI_Abort, exits and signals in the middle of MPI. One rank ends while the others wait for it in an MPI barrier,
//! which the launcher does not see.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::Outcome;

use crate::library::{ALL, Library, debian_mpich};

/// The maximum time of a run, well below the deadline of one that hangs. Most of it is for the start: see
/// [`Library::scela`].
const TIME_MAX: Duration = Duration::from_secs(90);

/// Runs eight ranks, of which rank `who` ends as `how` says. `ends.c` lists the possible values.
fn run_until_one_ends(mpi: &Library, event: &str, rank: u32, code: i32) -> Outcome {
    let program = mpi.c("ends", &[event, &rank.to_string(), &code.to_string()]);
    mpi.scela_on_one_node(3).np(8).program(program).run()
}

/// Asserts that the report names the rank and that the other ranks were ended.
#[track_caller]
fn assert_reported(outcome: &Outcome, code: i32, what: &str) {
    let host = nla::sys::host_name();
    outcome.has_code(code).says(&what.replace("HOST", &host)).says("the job's 7 other ranks were ended");
    outcome.took_less_than(TIME_MAX);
}

#[test]
fn an_abort_is_reported_with_its_code() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        assert_reported(&run_until_one_ends(&mpi, "abort", 3, 7), 7, "error: rank 3 on HOST called MPI_Abort(7)");
    }
}

#[test]
fn the_exit_code_is_the_low_byte_of_the_abort_code() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        assert_reported(&run_until_one_ends(&mpi, "abort", 0, 300), 44, "error: rank 0 on HOST called MPI_Abort(300)");
        assert_reported(&run_until_one_ends(&mpi, "abort", 7, 256), 1, "error: rank 7 on HOST called MPI_Abort(256)");
    }
}

#[test]
fn an_exit_without_finalize_is_reported() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        assert_reported(&run_until_one_ends(&mpi, "exit", 2, 5), 5, "error: rank 2 on HOST exited with code 5");
    }
}

/// In this case Hydra ends the job with code 0 or 9, and other launchers hang.
#[test]
fn an_exit_with_0_without_finalize_is_an_error() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        assert_reported(&run_until_one_ends(&mpi, "exit", 2, 0), 1, "error: rank 2 on HOST ended w");
    }
}

#[test]
fn a_killed_rank_is_reported() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        // UCX has no handler for this signal.
        assert_reported(
            &run_until_one_ends(&mpi, "signal", 5, 9),
            137,
            "error: rank 5 on HOST was killed by signal 9 (KILL)",
        );
    }
}

/// MPICH 5 and Open MPI keep files until MPI_Finalize. MPICH 4 and Intel MPI remove theirs in MPI_Init.
#[test]
fn killed_ranks_leave_nothing_in_shared_memory() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let check = |agents: u32, words: &[&str], code: i32| {
            let run = mpi.scela_over(agents).own_shared_memory().leaves_no_shared_memory();
            // Open MPI's files would be in a directory of the test.
            let sessions = run.world().file("sessions");
            let run = run.env("OMPI_MCA_btl_vader_backing_directory", "/dev/shm");
            let run = run.env("OMPI_MCA_orte_tmpdir_base", sessions).np(4);
            run.program(mpi.c("ends", words)).run().has_code(code).took_less_than(TIME_MAX);
        };
        check(1, &["signal", "1", "9"], 137);
        check(2, &["signal", "1", "9"], 137);
        check(1, &["abort", "2", "7"], 7);
    }
}

#[test]
fn an_exit_code_after_finalize_is_reported() {
    for library in ALL {
        let Some(mpi) = library() else { continue };
        let outcome = run_until_one_ends(&mpi, "after", 6, 3);
        outcome.has_code(3).says(&format!("error: rank 6 on {} exited with code 3", nla::sys::host_name()));
    }
}

/// Without the variables of PMI each rank is the only one of its world, and waits.
#[test]
fn ranks_that_do_not_find_pmi_are_named() {
    let Some(mpi) = debian_mpich() else { return };
    let words = ["env", "-i"].into_iter().map(Into::into).chain(mpi.c("ends", &["wait", "0", "0"]));
    let running = mpi.scela().np(2).args(["--stuck-after", "1"]).program(words.collect()).spawn();
    let host = nla::sys::host_name();
    let named = format!(
        "2 ranks have not spoken PMI so far: ranks 0-1 on {host}, which run 'env', which names the MPI program '"
    );
    running.wait_for_error(&named);
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}
