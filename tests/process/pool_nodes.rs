//! Pools whose nodes are drained or added, and clients that leave while the controller is stopped.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tests::{Pool, Process, Running, eventually, sh};

/// Returns the names of a pool's nodes.
fn names(pool: &Pool<'_>) -> Vec<String> {
    let state = pool.state();
    let nodes = state["nodes"].as_array().expect("it has nodes");
    nodes.iter().map(|node| node["node"].as_str().expect("it has a name").to_owned()).collect()
}

#[test]
fn jobs_that_lack_a_drained_node_say_so() {
    let pool = Pool::start(&["--slots", "2"]);
    let [name] = &names(&pool)[..] else { panic!("it has one node") };
    assert!(pool.scela(&["pool", "drain", name]).status.success());
    let list = ["echo a".to_owned(), "echo b".to_owned()];
    // Jobs that are before it are counted in between.
    let lacks = [
        "it needs 1 slot, and 0 are free (1 node is not used: 1 drained)",
        &format!("\n  {name} has been drained for "),
    ];
    let says = |running: &Running, hint| {
        for text in lacks.iter().chain([&hint]) {
            running.wait_for_error(text);
        }
    };
    let map = pool.map(&list).spawn();
    says(&map, "\n  hint: 'scela pool resume ");
    let job = pool.job().np(2).program(sh("echo here")).spawn();
    job.wait_for_error("it needs 2 slots, and 0 are free").wait_for_error("'scela jobs' lists the jobs that wait\n");
    let refused = pool.job().arg("--no-wait").np(1).program(sh("true")).run();
    refused.has_code(251).says(&format!("\n  {name} has been drained for ")).says("\n  hint: 'scela pool resume ");
    let orphan = pool.job().args(["--orphan-time", "60"]).np(1).program(sh("echo orphan")).spawn();
    says(&orphan, "'scela jobs' lists the jobs that wait\n");
    pool.wait_for_jobs(0, 4);
    assert!(pool.scela(&["pool", "resume", name]).status.success());
    job.finish().has_code(0).wrote("here\nhere\n");
    orphan.finish().has_code(0).wrote("orphan\n");
    map.finish().has_code(0).wrote("a\nb\n");
}

/// The client is told at most every ten seconds.
#[test]
fn a_job_with_an_orphan_time_that_waits_is_told_of_a_drained_node() {
    let pool = Pool::start(&["--slots", "1"]);
    let [name] = &names(&pool)[..] else { panic!("it has one node") };
    let runs = pool.job().np(1).program(sh("echo here; exec sleep 1000")).spawn();
    runs.wait_for("here");
    let orphan = pool.job().args(["--orphan-time", "60"]).np(1).program(sh("echo orphan")).spawn();
    orphan.wait_for_error("it needs 1 slot, and 0 are free\n");
    assert!(pool.scela(&["pool", "drain", name]).status.success());
    orphan.wait_for_error(&format!("\n  {name} has been drained for "));
    assert!(pool.scela(&["pool", "resume", name]).status.success());
    assert!(pool.scela(&["kill", "1"]).status.success());
    runs.finish().has_code(143);
    orphan.finish().has_code(0).wrote("orphan\n");
}

#[test]
fn an_addition_that_is_interrupted_adds_nothing() {
    let (pool, directory) = (Pool::unstarted(), tempfile::tempdir().unwrap());
    let (shell, begun) = (directory.path().join("remote-shell"), directory.path().join("begun"));
    // The other hosts hang.
    let script = format!("host=$1; shift\n[ $host = n1 ] && exec \"$@\"\n>{}\nexec sleep 1000\n", begun.display());
    fs::write(&shell, script).unwrap();
    let bootstrap = format!("exec:sh {} {{host}}", shell.display());
    let options = ["--hosts", "n1:1", "--connect-back", "127.0.0.1", "--bootstrap", &bootstrap];
    let started = pool.scela(&[&["pool", "start"][..], &options].concat());
    assert!(started.status.success(), "{started:?}");
    let add = pool.command(&["pool", "add", "n[2-3]"]).stderr(Stdio::piped()).spawn().unwrap();
    eventually(|| begun.exists().then_some(())).expect("the remote shell is opened");
    Process::of(add.id().cast_signed()).unwrap().signal(Signal::SIGINT);
    let output = add.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "scela: INT: not added: n[2-3]\n");
    assert_eq!(names(&pool), ["n1"]);
    let hangs = |process: &Process| process.argv.last().is_some_and(|word| word == "1000");
    let is_over = || (!pool.processes().iter().any(hangs)).then_some(());
    assert!(eventually(is_over).is_some(), "{:?}", pool.processes());
    pool.job().np(1).program(sh("echo here")).run().is_quiet_success().wrote("here\n");
}

#[test]
fn a_job_that_was_withdrawn_while_the_controller_was_stopped_never_begins() {
    let pool = Pool::start(&["--slots", "1"]);
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    eventually(|| controller.has_stopped().then_some(())).expect("it stops");
    let job = pool.job().np(1).program(sh("echo never")).spawn();
    let stopped = format!(
        "scela-run: the controller of the pool 'default', process {0}, is stopped, and the job waits for it: 'kill -CONT {0}' \
         continues it\n",
        controller.pid
    );
    job.wait_for_error(&stopped);
    let client = job.launcher();
    client.signal(Signal::SIGINT);
    let withdrawn = "scela-run: INT: the job is withdrawn\n";
    job.wait_for_error(withdrawn).wait_until("its client ends", || client.has_ended().then_some(()));
    controller.signal(Signal::SIGCONT);
    job.finish().has_code(130).wrote("").says_only(&format!("{stopped}{withdrawn}"));
    pool.job().np(1).program(sh("echo next")).run().is_quiet_success().wrote("next\n");
    pool.wait_for_jobs(0, 0);
    assert_eq!(pool.state()["jobs_ended"], 1);
}
