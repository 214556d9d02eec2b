//! Agents that stand by for the jobs of a pool, and processes of a pool that are stopped or whose files cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use tests::{Pool, Process, eventually, scela_run, sh};

/// Waits until a pool has so many processes of this name, and returns them.
#[track_caller]
fn wait_for(pool: &Pool<'_>, name: &str, least: usize) -> Vec<Process> {
    let found = || {
        let mut found = pool.processes();
        found.retain(|process| process.name == name);
        (found.len() >= least).then_some(found)
    };
    eventually(found).unwrap_or_else(|| panic!("no {name}: {:?}", pool.processes()))
}

#[test]
fn jobs_use_the_agents_that_stand_by_one_after_the_other() {
    let pool = Pool::start(&["--slots", "4"]);
    let before: Vec<i32> = wait_for(&pool, "scela-agent", 2).iter().map(|agent| agent.pid).collect();
    for np in [1, 4, 2] {
        let outcome = pool.job().np(np).program(sh("echo $PPID")).run();
        let text = String::from_utf8_lossy(&outcome.is_quiet_success().stdout).into_owned();
        let agents: Vec<i32> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(agents.len(), np as usize);
        assert!(agents.iter().all(|agent| before.contains(agent)), "{agents:?} are not of {before:?}");
    }
}

#[test]
fn launchers_that_are_stopped_get_no_jobs() {
    let pool = Pool::start(&["--slots", "2"]);
    // Some may not stand by yet.
    let stopped = wait_for(&pool, "scela-standby", 2);
    Process::signal_all(&stopped, Signal::SIGSTOP);
    pool.job().np(1).program(sh("echo here")).run().is_quiet_success().wrote("here\n");
    // They must not run the job when they go on.
    let is_gone = |launcher: &Process| launcher.state_now().is_none_or(|state| state == 'Z');
    assert!(eventually(|| stopped.iter().any(is_gone).then_some(())).is_some(), "{stopped:?}");
    Process::signal_all(&stopped, Signal::SIGCONT);
    pool.job().np(1).program(sh("echo again")).run().is_quiet_success().wrote("again\n");
    assert_eq!(pool.state()["jobs_ended"], 2);
}

#[test]
fn ranks_of_each_job_have_the_files_of_their_session() {
    let pool = Pool::start(&["--slots", "1"]);
    let show = "for fd in 10 11 12; do readlink /proc/$$/fd/$fd; done";
    for _ in 0..12 {
        let profile = pool.directory().with_file_name("profile");
        let outcome = pool.job().np(1).arg("--profile-comm").arg(&profile).program(sh(show)).run();
        let text = String::from_utf8_lossy(&outcome.has_code(0).stdout).into_owned();
        let files: Vec<&str> = text.lines().collect();
        assert!(files[0].starts_with("socket:["), "{text}");
        assert_eq!(files[1..], ["/memfd:scela-topology (deleted)", "/memfd:scela-profile (deleted)"]);
    }
}

#[test]
fn a_controller_that_is_stopped_is_named_at_once() {
    let pool = Pool::start(&[]);
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    for words in [&["status", "default"][..], &["kill", "1"], &["pool", "stop"], &["attach", "1"]] {
        let output = pool.scela(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let stopped = format!(
            "scela: error: the pool 'default' does not answer: its controller, process {}, is stopped",
            controller.pid
        );
        assert!(output.status.code() == Some(251) && text.contains(&stopped), "{words:?}: {output:?}");
    }
    controller.signal(Signal::SIGCONT);
    pool.job().np(1).program(sh("true")).run().is_quiet_success();
}

#[test]
fn a_client_whose_controller_is_stopped_says_so_and_waits() {
    let pool = Pool::start(&["--slots", "1"]);
    let first = pool.job().np(1).program(sh("exec 2>/dev/null\necho here\nwhile :; do sleep 0.02; done")).spawn();
    first.wait_for("here");
    let second = pool.job().np(1).program(sh("echo second")).spawn();
    second.wait_for_error("waits in the pool 'default'");
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    let text = format!(
        "scela-run: the controller of the pool 'default', process {0}, is stopped, and the job waits for it: 'kill -CONT {0}' \
         continues it\n",
        controller.pid
    );
    second.wait_for_error(&text);
    controller.signal(Signal::SIGCONT);
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143);
    second.finish().has_code(0).wrote("second\n");
}

#[test]
fn errors_begin_with_the_name_that_was_typed() {
    let pool = Pool::unstarted();
    let said = |words: &[&str]| String::from_utf8_lossy(&pool.scela(words).stderr).into_owned();
    assert!(said(&["status", "none"]).starts_with("scela: error: there is no pool 'none'"));
    assert!(said(&["pool", "fly"]).starts_with("scela: error: "));
    assert!(said(&["run", "-np", "0", "true"]).starts_with("scela-run: error: "));
    fs::create_dir(pool.directory()).unwrap();
    fs::set_permissions(pool.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    // Not "no pool", with code 0: another user may have made the directory.
    let output = pool.scela(&["status"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(251) && text.contains("is not used: its mode is 755"), "{output:?}");
    fs::set_permissions(pool.directory(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(pool.scela(&["status"]).status.code(), Some(0));
}

#[test]
fn a_limit_on_the_sizes_of_the_clients_files_is_none_for_its_job() {
    let pool = Pool::start(&[]);
    for limit in ["0", "1"] {
        let outcome = pool.job().np(1).shell(&format!("ulimit -f {limit}")).program(sh("echo $(ulimit -f)")).run();
        outcome.is_quiet_success().wrote(&format!("{limit}\n"));
    }
    // Launchers that execute their program again read the description twice.
    pool.job().np(1).program(sh("true")).run().is_quiet_success();
    for _ in 0..3 {
        let outcome = pool.job().np(2).arg("--dead-time").arg("3").shell("ulimit -f 1").program(sh("echo here")).run();
        outcome.is_quiet_success().wrote("here\nhere\n");
    }
}

#[test]
fn the_demo_runs_after_the_file_of_the_program_was_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::unstarted();
    let path = |name: &str| directory.path().join(name);
    let install = |name: &str| {
        // By another process: while this one has the copy open to write, a child of another test could keep it open.
        let copied = Command::new("cp").arg(scela_run().with_file_name(name)).arg(path("new")).status().unwrap();
        assert!(copied.success());
        fs::rename(path("new"), path(name)).unwrap();
    };
    let run = |name: &str, words: &[&str]| {
        let output = Command::new(path(name)).args(words).env("SCELA_POOL_DIR", pool.directory()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    };
    ["scela", "scela-run"].into_iter().for_each(install);
    run("scela", &["pool", "start"]);
    ["scela", "scela-run"].into_iter().for_each(install);
    run("scela-run", &["--pool", "--demo", "-np", "2"]);
}

#[test]
fn a_detached_job_whose_output_cannot_be_stored_keeps_its_code_and_its_reason() {
    let pool = Pool::unstarted();
    let scela = scela_run().with_file_name("scela");
    // The pool's files, not the job's, can have 8 KiB.
    let start = format!("ulimit -f 8; exec {} pool start", scela.display());
    let started = Command::new("bash").args(["-c", &start]).env("SCELA_POOL_DIR", pool.directory()).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let fill = "head -c 20000 /dev/zero | tr '\\0' x";
    let script = format!("trap '' XFSZ; {fill} >&2; {fill}; sleep 1000");
    let output = pool.scela(&["run", "--pool", "--detach", "-np", "1", "sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    for _ in 0..2 {
        let attached = pool.scela(&["attach", "1"]);
        let text = String::from_utf8_lossy(&attached.stderr).into_owned();
        assert!(text.contains("scela-run: error: standard output cannot be written: "), "{text}");
        assert_eq!(attached.status.code(), Some(1), "{text}");
    }
}
