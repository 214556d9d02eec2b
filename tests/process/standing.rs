//! Agents that stand by for the jobs of a pool, and processes of a pool that are stopped or whose files cannot be written.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::{Child, Command};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::{Pool, Process, event_timeout, eventually, scela_run, sh};

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
fn agents_log_as_the_environment_of_their_job_says() {
    let pool = Pool::start(&["--slots", "5"]);
    for _ in 0..2 {
        let job = pool.job().np(1).env("SCELA_LOG", "debug");
        let file = job.world().file("go on");
        let wait = format!("until [ -e '{}' ]; do sleep 0.02; done", file.display());
        let job = job.program(sh(&wait)).spawn();
        job.wait_for_error(": nla::driver::root: in ").wait_for_error("agent{id=1}: nla::driver::agent: in ");
        fs::write(&file, "").unwrap();
        job.finish().has_code(0);
        // The next job may get a launcher that has run one of these.
        for _ in 0..3 {
            pool.job().np(1).program(sh("true")).run().has_code(0);
        }
    }
}

#[test]
fn launchers_that_are_stopped_get_no_jobs() {
    let pool = Pool::start(&["--slots", "2"]);
    // Some may not stand by yet.
    let stopped = wait_for(&pool, "scela-standby", 2);
    Process::signal_all(&stopped, Signal::SIGSTOP);
    let runs = pool.job().np(1).program(sh("echo here; exec sleep 1000")).spawn();
    runs.wait_for("here");
    // The job has another launcher now, which is named after it and gets its signals.
    wait_for(&pool, "scela-job", 1);
    assert!(pool.scela(&["kill", "1"]).status.success());
    runs.finish().has_code(143);
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
fn a_pool_that_cannot_be_asked_is_named_beside_the_others() {
    let pool = Pool::start(&[]);
    assert!(pool.scela(&["pool", "start", "other"]).status.success());
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    for words in [&["status"][..], &["jobs"], &["pool", "status"], &["status", "--json"]] {
        let output = pool.scela(words);
        let [shown, told] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(shown.contains("other") && !shown.contains("default"), "{words:?}: {output:?}");
        assert!(told.starts_with("scela: error: the pool 'default' does not answer: "), "{words:?}: {output:?}");
        assert_eq!(output.status.code(), Some(251), "{words:?}: {output:?}");
    }
    controller.signal(Signal::SIGCONT);
    assert!(pool.scela(&["pool", "stop", "other"]).status.success());
}

#[test]
fn a_selected_job_that_does_not_exist_is_named() {
    let pool = Pool::start(&[]);
    let output = pool.scela(&["jobs", "--job", "0"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("scela: error: there is no job 0 in a pool on this host\n"), "{output:?}");
    assert!(output.status.code() == Some(251) && output.stdout.starts_with(b"pool default "), "{output:?}");
}

#[test]
fn a_start_whose_report_cannot_be_written_says_that_the_pool_runs() {
    let pool = Pool::unstarted();
    let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
    let output = pool.command(&["pool", "start"]).stdout(full).output().expect("scela is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.starts_with("scela: error: the pool 'default' runs, but standard output cannot be written: "),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    pool.job().np(1).program(sh("true")).run().is_quiet_success();
}

/// Starts a live view on a terminal that is not its controlling one, and waits until it is drawn.
fn live_view(pool: &Pool<'_>) -> (Child, PtyMaster) {
    // The terminal hangs up only if no process of another test has this end, too.
    let mut master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).expect("a pseudo-terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it belongs to this process");
    let path = ptsname_r(&master).expect("it has a name");
    let slave = File::options().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(path);
    let slave = slave.expect("it was unlocked");
    let [size, input, errors] = [(); 3].map(|()| slave.try_clone().expect("a descriptor"));
    let sized = Command::new("stty").args(["rows", "24", "cols", "80"]).stdin(size).status();
    assert!(sized.expect("stty is installed").success());
    // A session of its own: the controlling terminal of the test would have another size.
    let mut view = Command::new("setsid");
    view.arg(scela_run().with_file_name("scela")).args(["status", "--live"]).env("SCELA_POOL_DIR", pool.directory());
    view.stdin(input).stdout(slave).stderr(errors).env("TERM", "xterm");
    let view = view.spawn().expect("scela is there");
    let mut screen = Vec::new();
    while !screen.windows(7).any(|text| text == b"q: quit") {
        let mut piece = [0; 4096];
        let limit = PollTimeout::try_from(event_timeout()).expect("it is short");
        let drawn = poll(&mut [PollFd::new(master.as_fd(), PollFlags::POLLIN)], limit);
        assert_eq!(drawn, Ok(1), "{:?}", String::from_utf8_lossy(&screen));
        let length = master.read(&mut piece).expect("the view goes on");
        screen.extend_from_slice(&piece[..length]);
    }
    (view, master)
}

#[test]
fn a_live_view_ends_with_its_terminal_and_by_a_signal() {
    let pool = Pool::unstarted();
    let ended =
        |mut view: Child| eventually(|| view.try_wait().expect("it was not reaped")).map(|status| status.code());
    let (view, terminal) = live_view(&pool);
    drop(terminal);
    assert_eq!(ended(view), Some(Some(0)), "its terminal has hung up");
    let (view, _terminal) = live_view(&pool);
    kill(Pid::from_raw(view.id() as i32), Signal::SIGTERM).expect("it was not reaped");
    assert_eq!(ended(view), Some(Some(0)));
    let (view, mut terminal) = live_view(&pool);
    terminal.write_all(b"q").expect("the terminal takes it");
    assert_eq!(ended(view), Some(Some(0)));
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
