//! The library as a guest: threads of the program use it at once, its children are no ranks, and the
//! program finds nothing changed.

use tests::{Run, scela};

use crate::libraries::{Api, Ours};

/// Eight ranks of a program of `programs/`, for each interface and over several shapes of the tree, say
/// so: each its rank and `word`.
#[track_caller]
fn all_say(program: &str, word: &str) {
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
fn threads_put_and_get_while_one_fences() {
    all_say("threads", "all was found");
}

#[test]
fn children_are_no_ranks() {
    all_say("forks", "went on");
}

#[test]
fn a_host_finds_nothing_changed() {
    all_say("host", "nothing has changed");
}

/// The same where nobody has started it.
#[test]
fn alone_it_is_a_world_of_one() {
    for api in Api::ALL {
        for (program, word) in [("forks", "went on"), ("host", "nothing has changed")] {
            let compiled = Ours::of(api).compiled(program);
            let output = std::process::Command::new(&compiled).output().expect("it was compiled a moment ago");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!((output.status.code(), said), (Some(0), format!("0: {word}\n")), "{}", compiled.display());
        }
    }
}
