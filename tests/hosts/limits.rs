//! Limits on a host other than the launcher's: they are met when ranks start.

use std::process::Command;

use tests::{Cluster, Host, scela};

use crate::{out, rank};

/// Lowers the limit on open files of the logins on a host, for ever: a container's root may not raise it.
fn limit_files(host: &Host, files: u32) {
    for sshd in host.processes().into_iter().filter(|process| process.parent == host.pid() && process.name == "sshd") {
        let words = ["--pid".to_owned(), sshd.pid.to_string(), format!("--nofile={files}:{files}")];
        out(Command::new("prlimit").args(words).output().unwrap());
    }
}

#[test]
fn a_host_that_allows_too_few_open_files_is_named_with_advice_that_is_enough() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    // The fence lets no rank end before all of them run.
    let run = |hosts: &str| {
        let run = scela().on(&cluster).args(["-hosts", hosts, "-ppn", "32", "-np", "64"]);
        run.program(rank(["neighbours", "1"])).run()
    };
    limit_files(cluster.host(1), 64);
    let outcome = run("node[001-002]");
    outcome.has_code(251).says(" on node002 could not be started: ").says(": Too many open files (");
    outcome
        .says("; the hard limit (ulimit -Hn) allows 64 open files")
        .says("\n  hint: allow an agent on node002 some ");
    let errors = outcome.err();
    let advised = errors.split_once("on node002 some ").and_then(|(_, rest)| rest.split_once(" open files"));
    limit_files(cluster.host(2), advised.and_then(|(number, _)| number.parse().ok()).expect("a number"));
    let outcome = run("node[001,003]");
    outcome.has_code(0).says("warning: ranks on node003 have at most ").never_says("error:");
}
