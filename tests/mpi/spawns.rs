//! MPI_Comm_spawn, MPI_Publish_name and related calls, by mpi4py over PyPI's mpich. Parents and children, or
//! servers and clients, meet in one group and compute a sum.

use std::fmt::Display;

use tests::{CACHES, Outcome};

use crate::library::{pypi_mpich, script, succeeded};

/// Returns the line that each of these ranks writes.
fn from_each(ranks: std::ops::Range<u32>, name: impl Fn(u32) -> String, what: impl Display) -> Vec<String> {
    ranks.map(|rank| format!("{}: {what}", name(rank))).collect()
}

fn parents(size: u32, what: impl Display) -> Vec<String> {
    from_each(0..size, |rank| format!("parent {rank} of {size}"), what)
}

fn children(ranks: std::ops::Range<u32>, size: u32, what: impl Display) -> Vec<String> {
    from_each(ranks, |rank| format!("child {rank} of {size}"), what)
}

/// Runs a script on three agents. Returns `None`, with a message, if the library is not installed.
fn run(ranks: u32, name: &str, what: &str) -> Option<Outcome> {
    run_under(CACHES[0], ranks, name, what)
}

fn run_under(policy: &[&str], ranks: u32, name: &str, what: &str) -> Option<Outcome> {
    let mpi = pypi_mpich()?;
    Some(mpi.scela().np(ranks).agents(3).cache(policy).program(script(name, &[what])).run())
}

/// Children of a rank that inherit its place and call MPI_Init.
#[test]
fn a_child_that_calls_mpi_init_is_refused_and_its_rank_goes_on() {
    let Some(mpi) = pypi_mpich() else { return };
    for options in [&[][..], &["--pmi-port"]] {
        let outcome = mpi.scela().np(2).args(options).program(script("nested.py", &[])).run();
        outcome.has_code(0).wrote_lines(["0: 2", "1: 2"]);
        let refused = format!("warning: rank 0 on {}: process ", nla::sys::host_name());
        outcome.says(&refused).says("tried to join as this rank, which process");
        outcome.check(outcome.err().matches("tried to join").count() == 1, "it is told once");
    }
}

#[test]
fn a_spawn_of_one_command() {
    let Some(outcome) = run(4, "spawn.py", "one") else { return };
    let parents = parents(4, "5 children, 9 together, sum 36");
    let arguments = "app 0, arguments ['a b', '', '=c']";
    let children = children(0..5, 5, format!("{arguments}, 4 parents, 9 together, sum 36, in / False"));
    succeeded(&outcome, [parents, children].concat());
}

#[test]
fn a_spawn_of_several_commands_under_each_cache_policy() {
    for policy in &CACHES[1..] {
        let Some(outcome) = run_under(policy, 4, "spawn.py", "several") else { return };
        assert_several_met(&outcome);
    }
}

#[test]
fn a_spawn_by_one_parent() {
    let Some(outcome) = run(1, "spawn.py", "one") else { return };
    let arguments = "app 0, arguments ['a b', '', '=c']";
    let children = children(0..5, 5, format!("{arguments}, 1 parents, 6 together, sum 15, in / False"));
    succeeded(&outcome, [parents(1, "5 children, 6 together, sum 15"), children].concat());
}

#[test]
fn a_spawn_of_several_commands() {
    let Some(outcome) = run(4, "spawn.py", "several") else { return };
    assert_several_met(&outcome);
}

#[track_caller]
fn assert_several_met(outcome: &Outcome) {
    let met = "4 parents, 9 together, sum 36";
    let first = children(0..2, 5, format!("app 0, arguments ['first'], {met}, in / True"));
    let second = children(2..5, 5, format!("app 1, arguments ['second'], {met}, in / False"));
    succeeded(outcome, [parents(4, "5 children, 9 together, sum 36"), first, second].concat());
}

/// The caller gets an error, no process of the attempt is left, and the job continues: it spawns again.
#[test]
fn a_missing_program_fails_only_the_spawn() {
    let Some(outcome) = run(3, "spawn.py", "missing") else { return };
    let refused = parents(3, "refused with class other");
    let go_on = parents(3, "3 go on");
    let met = parents(3, "2 children, 5 together, sum 10");
    let children = children(0..2, 2, "app 0, arguments [], 3 parents, 5 together, sum 10, in / False");
    outcome.has_code(0).wrote_lines([refused, go_on, met, children].concat());
}

#[test]
fn a_child_that_aborts_ends_the_session() {
    let Some(outcome) = run(3, "spawn.py", "aborting") else { return };
    // In a world of one rank, MPICH exits by itself instead of requesting an abort.
    outcome.has_code(9).says(&format!("error: rank 0 of namespace 1 on {} exited with code 9", nla::sys::host_name()));
}

#[test]
fn a_published_name_connects_two_groups() {
    let Some(outcome) = run(5, "names.py", "groups") else { return };
    let servers = from_each(0..2, |rank| format!("server {rank}"), "3 met, 5 together, sum 5");
    let clients = from_each(2..5, |rank| format!("client {rank}"), "2 met, 5 together, sum 5");
    let unknown = ["server 0: published False", "client 4: published False"].map(str::to_owned).to_vec();
    succeeded(&outcome, [servers, clients, unknown].concat());
}

#[test]
fn a_published_name_connects_two_namespaces() {
    let Some(outcome) = run(4, "names.py", "namespaces") else { return };
    let servers = from_each(0..4, |rank| format!("server {rank}"), "3 met, 7 together, sum 7");
    let clients = from_each(0..3, |rank| format!("client {rank}"), "4 met, 7 together, sum 7");
    succeeded(&outcome, [servers, clients].concat());
}
