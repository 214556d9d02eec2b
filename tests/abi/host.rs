//! The library inside a host program: threads use it concurrently, forked children are no ranks, and it
//! changes no state of the program.

use tests::{Run, scela};

use crate::libraries::{Api, Ours};

/// Runs eight ranks of a program of `programs/` with each interface and over several shapes of the
/// tree; checks that each rank prints `word`.
#[track_caller]
fn all_print(program: &str, word: &str) {
    for api in Api::ALL {
        let compiled = Ours::of(api).compiled(program).into_os_string();
        let shapes: [fn(Run) -> Run; 2] = [|run| run.agents(1), |run| run.agents(3).fanout(2)];
        for shape in shapes {
            let outcome = shape(scela().np(8)).program(vec![compiled.clone()]).run();
            outcome.is_quiet_success().wrote_lines((0..8).map(|rank| format!("{rank}: {word}")));
        }
    }
}

#[test]
fn threads_put_and_get_while_one_is_in_a_fence() {
    all_print("threads", "all was found");
}

#[test]
fn calls_in_forked_children_fail_and_do_not_disturb_the_rank() {
    all_print("forks", "went on");
}

#[test]
fn the_library_changes_no_state_of_its_host_program() {
    all_print("host", "nothing has changed");
}

/// Groups are in PMI-1.2 only.
#[test]
fn groups_of_ranks_exchange_values() {
    let compiled = Ours::of(Api::Pmi).compiled("groups").into_os_string();
    for (agents, more) in [(1, &[][..]), (3, &["--fanout", "2"]), (4, &["--agents-as-nodes"]), (3, &["--cache", "hcs"])]
    {
        let run = scela().np(8).agents(agents).args(more.iter().copied()).program(vec![compiled.clone()]);
        run.run().is_quiet_success().wrote_lines((0..8).map(|rank| format!("{rank}: groups exchanged")));
    }
}

/// The same programs without a launcher.
#[test]
fn without_a_launcher_the_process_is_a_job_of_one_rank() {
    for api in Api::ALL {
        for (program, word) in [("forks", "went on"), ("host", "nothing has changed")] {
            let compiled = Ours::of(api).compiled(program);
            let output = std::process::Command::new(&compiled).output().expect("the program cannot be started");
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!((output.status.code(), printed), (Some(0), format!("0: {word}\n")), "{}", compiled.display());
        }
    }
}
