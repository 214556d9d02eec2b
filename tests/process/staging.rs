//! Staged programs and files: ranks run the copies, and nothing of them is left, however the session ends.
//!
//! Each run has a TMPDIR of its own, which must be empty at its end: that is where its files are staged.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tests::{Greeting, Pool, Process, Run, Running, scela, scela_run, sh, skip};

use crate::host;
use crate::key::as_user;

fn staged(run: Run, program: &Path) -> Run {
    run.arg("--stage").program(vec![program.into()])
}

/// Returns the value that each rank has printed after this word.
fn values(text: &str, word: &str) -> Vec<String> {
    text.lines().filter_map(|line| Some(line.strip_prefix(word)?.strip_prefix(' ')?.to_owned())).collect()
}

/// Checks what four ranks of two agents have printed.
#[track_caller]
fn check_greetings(text: &str, program: &Path, temporary: &Path) {
    assert_eq!(values(text, "greeting"), ["42"; 4]);
    assert_eq!(values(text, "name"), [program.to_str().unwrap(); 4], "the program's own name stays");
    let directories = values(text, "directory");
    for ((exe, library), directory) in values(text, "exe").iter().zip(values(text, "library")).zip(&directories) {
        assert_eq!(Path::new(directory).parent(), Some(temporary));
        assert_eq!((exe, library), (&format!("{directory}/bin/greeting"), format!("{directory}/lib/libgreeting.so")));
    }
    let different: std::collections::BTreeSet<_> = directories.iter().collect();
    assert_eq!(different.len(), 2, "each agent has a directory");
}

#[test]
fn ranks_run_the_staged_program_with_the_staged_libraries() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    for options in [&[][..], &["--agents-as-nodes", "--fanout", "2"], &["--on-failure", "continue"]] {
        let run = scela().np(4).agents(2).args(options);
        let temporary = run.world().temporary();
        let outcome = staged(run, &greeting.program()).run();
        outcome.is_quiet_success();
        check_greetings(&outcome.out(), &greeting.program(), &temporary);
    }
}

#[test]
fn a_job_of_a_pool_stages_files() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    let pool = Pool::start(&["--slots", "4"]);
    // The agent stands by after the first job.
    for _ in 0..2 {
        let run = pool.job().np(2);
        let temporary = run.world().temporary();
        let outcome = staged(run, &greeting.program()).run();
        outcome.is_quiet_success();
        assert_eq!(values(&outcome.out(), "greeting"), ["42"; 2]);
        assert!(values(&outcome.out(), "directory").iter().all(|path| Path::new(path).parent() == Some(&temporary)));
    }
}

#[test]
fn staged_files_have_the_names_that_the_user_gives() {
    let place = tempfile::tempdir().unwrap();
    let (data, script) = (place.path().join("data"), place.path().join("run.sh"));
    // More than the window of a link.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    fs::write(&data, &bytes).unwrap();
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mesh = format!("{}=mesh=1", data.display());
    // The last '=' precedes the name, so this is a file called `data=mesh`.
    let outcome = scela().np(1).args(["--stage-file", &mesh]).program(sh("true")).run();
    outcome.has_code(251).says("cannot be read: No such file or directory");
    let mesh = format!("{}=mesh", data.display());
    let empty = place.path().join("empty");
    fs::write(&empty, "").unwrap();
    let check = "cmp \"$SCELA_STAGE_DIR/mesh\" \"$1\" && stat -c %a:%s \"$SCELA_STAGE_DIR/empty\" \"$SCELA_STAGE_DIR/run.sh\"; \
                 stat -c %a \"$SCELA_STAGE_DIR\"; echo \"$LD_LIBRARY_PATH\"";
    let mut program = sh(check);
    program.push(data.into());
    let files = [mesh, empty.to_str().unwrap().to_owned(), script.to_str().unwrap().to_owned()];
    let run = files.iter().fold(scela().np(1), |run, file| run.args(["--stage-file", file]));
    let outcome = run.env("LD_LIBRARY_PATH", "/own").program(program).run();
    let length = fs::metadata(&script).unwrap().len();
    outcome.is_quiet_success().wrote(&format!("600:0\n700:{length}\n700\n/own\n"));
}

/// Starts a staged program on four agents that stays, and returns it once all ranks run.
fn staying(greeting: &Greeting, options: &[&str]) -> Running {
    let program = vec![greeting.program().into(), "stay".into()];
    let running = scela().np(4).agents(4).fanout(2).args(options).arg("--stage").program(program).spawn();
    running.wait_for_times("greeting 42", 4);
    running
}

#[test]
fn nothing_is_left_after_kills() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    let kill = |running: &Running, is_guardian: bool| {
        let agent = Process::of(running.rank(3).parent).unwrap();
        let killed = if is_guardian { Process::of(agent.parent).unwrap() } else { agent };
        killed.signal(Signal::SIGKILL);
    };
    // The harness checks that TMPDIR is empty.
    for is_guardian in [false, true] {
        let running = staying(&greeting, &[]);
        kill(&running, is_guardian);
        running.finish().has_code(252);
    }
    let running = staying(&greeting, &["--on-failure", "continue"]);
    kill(&running, false);
    running.wait_for_error("the other ranks go on");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
    let running = staying(&greeting, &[]);
    running.launcher().signal(Signal::SIGKILL);
    running.finish_killed();
}

#[test]
fn nothing_is_left_after_a_signal_or_a_failed_rank() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    let running = staying(&greeting, &[]);
    running.signal(Signal::SIGINT);
    running.finish().has_code(130);
    let running = staying(&greeting, &[]);
    running.rank(0).signal(Signal::SIGKILL);
    running.finish().has_code(137);
}

#[test]
fn ranks_start_again_with_the_same_files() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    for policy in ["restart", "restart=rank"] {
        let running = staying(&greeting, &["--on-failure", policy]);
        running.rank(0).signal(Signal::SIGKILL);
        running.wait_for_times("greeting 42", if policy == "restart" { 8 } else { 5 });
        running.signal(Signal::SIGTERM);
        running.finish().has_code(143);
    }
}

#[test]
fn what_cannot_be_staged_is_refused_before_anything_starts() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    let run = || staged(scela().np(2), &greeting.program());
    fs::rename(greeting.library("libinner.so"), greeting.library("libhidden.so")).unwrap();
    let outcome = run().run();
    outcome
        .has_code(251)
        .says("option '--stage': 'libinner.so', which '")
        .says("' needs, was not found on this machine");
    outcome.says("hint: name its directory in LD_LIBRARY_PATH, or leave '--stage' out");
    let outcome = scela().np(1).arg("--stage").program(vec!["./missing".into()]).run();
    outcome.has_code(251).says("option '--stage': program './missing' was not found");
    let outcome = scela().np(1).args(["--stage-file", "/etc/hostname=../x"]).program(sh("true")).run();
    outcome.has_code(2).says("files cannot be staged: a staged file cannot be called '../x'");
    let outcome = scela().np(1).args(["--stage-file", "/etc"]).program(sh("true")).run();
    outcome.has_code(251).says("option '--stage-file': '/etc' cannot be read: it is not a regular file");
}

/// Returns the number of agents' threads that write staged files.
fn writers(running: &Running) -> usize {
    let threads = |agent: &Process| {
        let tasks = fs::read_dir(agent.file("task")).into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name == "stage\n").count()
    };
    running.world().agents().iter().map(threads).sum()
}

/// While an agent is stopped, the stream of a large file stands still.
#[test]
fn a_file_that_changes_and_an_agent_that_dies_while_files_travel_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let large = place.path().join("large");
    for changes in [true, false] {
        fs::File::create(&large).unwrap().set_len(2 << 30).unwrap();
        let file = large.to_str().unwrap();
        let run = scela().np(2).agents(2).args(["--dead-time", "5", "--stage-file", file]).program(sh("echo started"));
        let running = run.spawn();
        running.wait_until("both agents write", || (writers(&running) == 2).then_some(()));
        if changes {
            fs::OpenOptions::new().write(true).open(&large).unwrap().set_len(1000).unwrap();
            let outcome = running.finish();
            outcome.has_code(251).says(&format!("error: staging failed on {}: '{file}' cannot be staged: ", host()));
            outcome.says("it has changed since scela-run began").says("no rank was left running").wrote("");
        } else {
            running.world().agents()[1].signal(Signal::SIGKILL);
            running.finish().has_code(252).says(" was lost: ").wrote("").took_less_than(Duration::from_secs(30));
        }
    }
}

#[test]
fn steps_and_times_of_staging_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let greeting = Greeting::build(place.path());
    let outcome = staged(scela().np(1).args(["-v", "--timing"]), &greeting.program()).run();
    outcome.has_code(0).says("every node gets 3 files, ").says("all nodes have the files");
    let line = |name: &str| outcome.err().lines().any(|line| line.starts_with(name));
    outcome.check(line("staging "), "a line of the table");
    let without = scela().np(1).arg("--timing").program(sh("true")).run();
    without.check(!without.err().contains("staging"), "no line without files");
}

#[test]
fn directories_that_ranks_have_locked_are_removed() {
    if !geteuid().is_root() {
        return skip("only root may start a program as another user");
    }
    for is_killed in [false, true] {
        let (_program, prelude) = as_user();
        let run = scela().np(1).args(["--stage-file", "/etc/hostname"]);
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let lock =
            "cd $SCELA_STAGE_DIR && mkdir -p a/b c && touch a/b/f c/f && chmod 0 a/b a && chmod a-w c . && echo locked";
        let program = sh(&format!("{lock}{}", if is_killed { "; exec sleep 1000" } else { "" }));
        let running = run.shell(&prelude).env("TMPDIR", place.path()).program(program).spawn();
        running.wait_for("locked");
        if is_killed {
            running.world().agents()[0].signal(Signal::SIGKILL);
        }
        let outcome = running.finish();
        outcome.has_code(if is_killed { 252 } else { 0 });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "killed: {is_killed}");
    }
}

#[test]
fn staged_files_that_cannot_be_removed_are_reported() {
    let lock = "cd $SCELA_STAGE_DIR && for n in $(seq 300); do mkdir d && cd d || exit; done; echo ready";
    for is_killed in [false, true] {
        let program = sh(&format!("{lock}{}", if is_killed { "; exec sleep 1000" } else { "" }));
        let place = tempfile::tempdir().unwrap();
        let run = scela().np(1).args(["--stage-file", "/etc/hostname"]).env("TMPDIR", place.path());
        let running = run.program(program).spawn();
        running.wait_for("ready");
        if is_killed {
            running.world().agents()[0].signal(Signal::SIGKILL);
        }
        let outcome = running.finish();
        let left = format!("{}/scela-stage-", place.path().display());
        let text = if is_killed { "guardian on {host}: files are left: " } else { "staged files are left on {host}: " };
        outcome.has_code(if is_killed { 252 } else { 0 }).says(&(text.replace("{host}", &host()) + &left));
        outcome.says("/d: more than 256 levels of directories");
    }
}

/// The files of a session that a rank has started are removed by its own guardian, which is below the agent of that rank.
#[test]
fn a_session_below_a_rank_leaves_no_staged_files() {
    let program = scela_run();
    let place = tempfile::tempdir().unwrap();
    for kills_agent in [false, true] {
        let go = place.path().join(format!("go-{kills_agent}"));
        let rank = format!(
            "{} -np 2 --agents-per-node 2 --stage-file /etc/hostname sh -c 'echo ready; exec sleep 1000' &
            while [ ! -e {} ]; do sleep 0.02; done; kill -KILL $!; exit 3",
            program.display(),
            go.display()
        );
        let running = scela().np(1).program(sh(&rank)).spawn();
        running.wait_for_times("ready", 2);
        if kills_agent {
            let launcher = running.launcher();
            let mut agents = running.world().agents();
            agents.retain(|agent| Process::of(agent.parent).is_some_and(|guardian| guardian.parent == launcher.pid));
            Process::signal_all(&agents, Signal::SIGKILL);
        } else {
            fs::write(go, "").unwrap();
        }
        // The run's TMPDIR is empty.
        running.finish().has_code(if kills_agent { 252 } else { 3 });
    }
}
