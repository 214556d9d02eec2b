//! Standing pools: a job in one is what it is without, jobs wait for slots, and kills of any process leave nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Pool, Process, Random, Terminal, eventually, scela_run, sh};

use crate::{host, rank};

/// A rank that says that it is here, and stays.
const STAYS: &str = "exec 2>/dev/null\necho here\nwhile :; do sleep 0.02; done";

#[test]
fn a_job_has_the_streams_directory_environment_and_limits_of_its_client() {
    let pool = Pool::start(&[]);
    let script =
        "read line; echo \"$line $PWD $VALUE $(umask) $(ulimit -n) $(ulimit -Hn) $# $1\"; echo error >&2; exit 7";
    let directory = tempfile::tempdir().unwrap();
    let run = pool.job().np(1).directory(directory.path()).env("VALUE", "of the client").stdin("typed\n");
    let outcome = run.shell("umask 027; ulimit -n 777").program(sh(script)).program(vec!["a b".into()]).run();
    outcome.has_code(7).says("error\n").says(&format!("rank 0 on {} exited with code 7", host()));
    outcome.wrote(&format!("typed {} of the client 0027 777 777 1 a b\n", directory.path().display()));
}

#[test]
fn a_job_without_a_number_of_ranks_has_the_slots_of_the_pool() {
    let pool = Pool::start(&["--slots", "3"]);
    pool.job().program(sh("echo $PMI_SIZE")).run().is_quiet_success().wrote("3\n3\n3\n");
    pool.job().np(5).program(sh("echo $PMI_SIZE")).run().is_quiet_success().wrote("5\n5\n5\n5\n5\n");
}

#[test]
fn jobs_of_one_pool_have_boards_of_their_own() {
    let pool = Pool::start(&["--slots", "16"]);
    let jobs: Vec<_> = (0..4).map(|_| pool.job().np(4).program(rank(["everybody", "3"])).spawn()).collect();
    for job in jobs {
        job.finish().is_quiet_success();
    }
}

#[test]
fn several_agents_and_other_dead_times_start_afresh() {
    let pool = Pool::start(&["--slots", "4"]);
    for options in
        [&["--agents-per-node", "3", "--fanout", "2"][..], &["--dead-time", "3"], &["--on-failure", "continue"]]
    {
        // Launchers that have run a session must not fork: they start again.
        for _ in 0..3 {
            pool.job().np(1).program(sh("true")).run().is_quiet_success();
        }
        let outcome = pool.job().np(4).args(options).program(sh("echo $PMI_RANK")).run();
        outcome.is_quiet_success().wrote_lines(0..4);
    }
}

#[test]
fn the_configfile_is_what_the_client_has_read() {
    let pool = Pool::start(&["--slots", "4"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "-np 1 echo a\n-np 1 echo b\n").unwrap();
    pool.job().args(["-configfile", file.to_str().unwrap()]).run().is_quiet_success().wrote_lines(["a", "b"]);
}

#[test]
fn signals_to_the_client_reach_the_job() {
    let pool = Pool::start(&["--slots", "2"]);
    let script = format!("trap 'echo got 1' USR1; trap 'echo got 2; exit 0' USR2\n{STAYS}");
    let running = pool.job().np(2).program(sh(&script)).spawn();
    running.wait_for_times("here", 2).signal(Signal::SIGUSR1);
    running.wait_for_times("got 1", 2).signal(Signal::SIGUSR2);
    running.finish().is_quiet_success();
    let running = pool.job().np(2).program(sh(STAYS)).spawn();
    running.wait_for_times("here", 2).signal(Signal::SIGINT);
    running.finish().has_code(130).says_only("scela-run: INT: the job is being ended; Ctrl-C again ends it at once\n");
}

#[test]
fn a_terminal_works_as_without_a_pool() {
    let pool = Pool::start(&[]);
    // A shell that starts commands may be stopped inside a vfork, which is no state T.
    let script = "trap '' INT; read line; echo \"got $line\"; exec sleep 1000";
    let mut terminal = Terminal::open(pool.job().np(1).program(sh(script)));
    terminal.enter("").type_in("some words\n");
    terminal.wait_for("got some words");
    let sleeps = || terminal.world().processes().into_iter().find(|process| process.name == "sleep");
    let rank = eventually(sleeps).expect("the rank sleeps");
    // Ctrl-Z stops the ranks and the client; the shell continues them.
    terminal.type_in("\x1a").wait_for("Stopped").wait_for_prompt();
    assert!(eventually(|| (rank.state_now() == Some('T')).then_some(())).is_some(), "{rank:?}");
    terminal.enter("fg");
    assert!(eventually(|| (rank.state_now() != Some('T')).then_some(())).is_some(), "{rank:?}");
    terminal.type_in("\x03").wait_for("Ctrl-C again ends it at once");
    terminal.type_in("\x03").wait_for_prompt();
    assert_eq!(terminal.code(), 130);
    terminal.close();
}

#[test]
fn a_launcher_that_is_killed_after_its_report_gets_no_second_one() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    // Rank 1 has begun when rank 0 fails, and ignores the end.
    let script = "case $PMI_RANK in 1) trap '' TERM; touch here; until [ -e go ]; do sleep 0.02; done; echo late >&2; exec sleep 1000;; esac
         until [ -e here ]; do sleep 0.02; done; exit 3";
    let running =
        pool.job().np(2).args(["--kill-grace", "1000"]).directory(directory.path()).program(sh(script)).spawn();
    running.wait_for_error("scela-run: error: rank 0 on ");
    let launcher = pool.state()["jobs"][0]["launcher_pid"].as_i64().unwrap();
    // The standard error of ranks waits until the client knows of the report before it.
    fs::write(directory.path().join("go"), "").unwrap();
    running.wait_for_error("late\n");
    Process::of(launcher as i32).unwrap().signal(Signal::SIGKILL);
    let outcome = running.finish_killed();
    outcome
        .has_code(252)
        .says("scela-run: the launcher of job 1 in the pool 'default' was killed; its ranks were ended\n");
    assert_eq!(outcome.err().matches("scela-run: error: ").count(), 1, "{outcome}");
    pool.wait_for_jobs(0, 0);
}

#[test]
fn jobs_wait_for_slots_in_order() {
    let pool = Pool::start(&["--slots", "2"]);
    let first = pool.job().np(2).program(sh(STAYS)).spawn();
    first.wait_for_times("here", 2);
    let second = pool.job().np(2).program(sh("echo second")).spawn();
    second.wait_for_error("job 2 waits in the pool 'default': it needs 2 slots, and 0 are free\n");
    let third = pool.job().args(["--priority", "5"]).np(1).program(sh("echo third")).spawn();
    third.wait_for_error("job 3 waits in the pool 'default': it needs 1 slot, and 0 are free\n");
    let refused = pool.job().arg("--no-wait").np(1).program(sh("true")).run();
    refused.has_code(251).says("the job cannot start at once in the pool 'default': it needs 1 slot, and 0 are free");
    pool.wait_for_jobs(1, 2);
    let order: Vec<_> =
        pool.state()["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_u64().unwrap()).collect();
    assert_eq!(order, [1, 3, 2]);
    let jobs = pool.scela(&["jobs"]).stdout;
    let jobs = String::from_utf8_lossy(&jobs);
    assert!(jobs.contains("\n          it needs 1 slot, and 0 are free\n"), "{jobs}");
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143);
    third.finish().has_code(0).wrote("third\n");
    second.finish().has_code(0).wrote("second\nsecond\n");
}

#[test]
fn jobs_that_use_accelerators_share_none() {
    let pool = Pool::start(&["--slots", "4"]);
    let job = |script| {
        let job = pool.job().env("CUDA_VISIBLE_DEVICES", "7").args(["--gpus-per-rank", "1"]).np(1);
        job.program(sh(script))
    };
    let first = job(STAYS).spawn();
    first.wait_for("here");
    let second = job("echo $CUDA_VISIBLE_DEVICES").spawn();
    second.wait_for_error("it needs 1 slot on nodes whose devices no other job uses, and 0 are free\n");
    pool.job().np(1).program(sh("echo other")).run().is_quiet_success();
    let absent = pool.job().args(["--gres", "fpga"]).np(1).program(sh("true")).spawn();
    absent.wait_for_error("waits in the pool");
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143);
    second.finish().has_code(0).wrote("7\n");
    absent.finish().has_code(251).says("with gres= in the file of 'scela pool start -f'");
}

#[test]
fn each_job_gets_devices_of_its_own_where_the_list_of_hosts_has_them() {
    let place = tempfile::tempdir().unwrap();
    let list = place.path().join("hosts");
    std::fs::write(&list, "localhost gres=fpga:x:1,fpga:y:1,gpu:1@3\n").unwrap();
    let pool = Pool::start(&["--slots", "4", "-f", list.to_str().unwrap()]);
    let job = |gres, script: &str| pool.job().args(["--gres", gres]).np(1).program(sh(script));
    let more = pool.job().args(["--gres", "gpu"]).np(2).program(sh("true")).run();
    more.has_code(2).says("2 ranks need gpu:1 each, and there is room for 1").says("--gres of 'scela pool start' and ");
    let stays = "exec 2>/dev/null\necho here $SCELA_GRES_FPGA\nwhile :; do sleep 0.02; done";
    let first = job("fpga", stays).spawn();
    first.wait_for("here 0\n");
    let second = job("fpga", stays).spawn();
    second.wait_for("here 1\n");
    let third = job("fpga:y", "echo here $SCELA_GRES_FPGA").spawn();
    third.wait_for_error("it needs 1 slot with the devices that its ranks ask for, and 0 are free\n");
    job("gpu", "echo $SCELA_GRES_GPU").run().is_quiet_success().wrote("3\n");
    job("fpga:z", "true").run().has_code(251).says("no node of the pool 'default' has fpga:z:1");
    second.signal(Signal::SIGTERM);
    second.finish().has_code(143);
    third.finish().has_code(0).wrote("here 1\n");
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143);
}

#[test]
fn a_word_after_the_option_may_be_meant_as_a_pool() {
    let pool = Pool::start(&["--slots", "1"]);
    let job = |word: &str| pool.job().program(vec![word.into(), "-np".into(), "1".into(), "true".into()]);
    job("night")
        .run()
        .has_code(251)
        .says("program 'night' was not found")
        .says("hint: a pool is named by '--pool=night'\n");
    assert!(pool.scela(&["pool", "start", "night"]).status.success());
    assert!(pool.scela(&["pool", "stop"]).status.success());
    let none = "there is no pool 'default' on this host\n  hint: ";
    job("night").run().has_code(251).says(&format!("{none}a pool is named by '--pool=night'\n"));
    job("evening").run().has_code(251).says(&format!("{none}'scela pool start' starts it"));
    assert!(pool.scela(&["pool", "stop", "night"]).status.success());
}

#[test]
fn a_client_that_waits_withdraws_its_job() {
    let pool = Pool::start(&["--slots", "1"]);
    let first = pool.job().np(1).program(sh(STAYS)).spawn();
    first.wait_for("here");
    let interrupted = pool.job().np(1).program(sh("echo never")).spawn();
    interrupted.wait_for_error("waits in the pool").signal(Signal::SIGINT);
    interrupted.finish().has_code(130).says("INT: the job is withdrawn\n").wrote("");
    let killed = pool.job().np(1).program(sh("echo never")).spawn();
    killed.wait_for_error("waits in the pool").signal(Signal::SIGKILL);
    killed.finish_killed().wrote("");
    pool.wait_for_jobs(1, 0);
    first.signal(Signal::SIGTERM);
    first.finish().has_code(143);
}

#[test]
fn scela_kill_ends_jobs_that_wait_and_jobs_that_run() {
    let pool = Pool::start(&["--slots", "1"]);
    let runs = pool.job().np(1).program(sh(STAYS)).spawn();
    runs.wait_for("here");
    let waits = pool.job().np(1).program(sh("echo never")).spawn();
    waits.wait_for_error("waits in the pool");
    assert!(pool.scela(&["kill", "1", "2"]).status.success());
    waits.finish().has_code(143).says("TERM: the job was ended before it started\n");
    runs.finish().has_code(143);
    let unknown = pool.scela(&["kill", "1", "77"]);
    assert_eq!(unknown.status.code(), Some(251));
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.contains("there is no job 1, 77 in the pool 'default'"), "{text}");
}

#[test]
fn a_job_ends_with_its_client() {
    let pool = Pool::start(&[]);
    let running = pool.job().np(1).program(sh(STAYS)).spawn();
    running.wait_for("here").signal(Signal::SIGKILL);
    running.finish_killed();
    pool.wait_for_jobs(0, 0);
    pool.job().np(1).program(sh("echo next")).run().is_quiet_success().wrote("next\n");
}

#[test]
fn a_killed_launcher_ends_its_job_and_no_other() {
    let pool = Pool::start(&["--slots", "2"]);
    let [killed, other] = [0, 1].map(|_| pool.job().np(1).program(sh(STAYS)).spawn());
    killed.wait_for("here");
    other.wait_for("here");
    pool.wait_for_jobs(2, 0);
    let state = pool.state();
    let pid = state["jobs"][0]["launcher_pid"].as_i64().unwrap();
    Process::of(pid as i32).unwrap().signal(Signal::SIGKILL);
    let text = "the launcher of job 1 in the pool 'default' was killed; its ranks were ended";
    // Either of them may have become job 1.
    let is_killed = |job: &tests::Running| job.stderr().text().contains(text);
    eventually(|| (is_killed(&killed) || is_killed(&other)).then_some(())).expect("a client reports it");
    let (killed, other) = if is_killed(&killed) { (killed, other) } else { (other, killed) };
    killed.finish_killed().has_code(252);
    pool.wait_for_jobs(1, 0);
    other.signal(Signal::SIGTERM);
    other.finish().has_code(143);
}

#[test]
fn all_jobs_end_with_the_controller() {
    let pool = Pool::start(&["--slots", "1"]);
    let runs = pool.job().np(1).program(sh(STAYS)).spawn();
    runs.wait_for("here");
    let waits = pool.job().np(1).program(sh("echo never")).spawn();
    waits.wait_for_error("waits in the pool");
    pool.controller().signal(Signal::SIGKILL);
    runs.finish_killed().has_code(252).says("the controller of the pool has ended");
    waits.finish_killed().has_code(251).says("the pool 'default' has ended before the job started");
    pool.wait_for_end();
    // Its socket is left, and its name is free.
    assert!(pool.scela(&["pool", "start"]).status.success());
    pool.job().np(1).program(sh("echo again")).run().is_quiet_success().wrote("again\n");
}

#[test]
fn a_killed_fork_server_ends_the_pool() {
    let pool = Pool::start(&[]);
    pool.wait_for_jobs(0, 0);
    let controller = pool.controller().pid;
    let forks = pool.processes().into_iter().find(|process| process.parent == controller).unwrap();
    forks.signal(Signal::SIGKILL);
    pool.wait_for_end();
    let log = fs::read_to_string(pool.directory().join("default.log")).unwrap();
    assert!(log.contains("the process that forks launchers was killed"), "{log}");
}

#[test]
fn stop_ends_jobs_and_leaves_nothing() {
    let pool = Pool::start(&["--slots", "1"]);
    let runs = pool.job().np(1).program(sh(STAYS)).spawn();
    runs.wait_for("here");
    let waits = pool.job().np(1).program(sh("echo never")).spawn();
    waits.wait_for_error("waits in the pool");
    assert!(pool.scela(&["pool", "stop"]).status.success());
    runs.finish().has_code(143);
    waits.finish().has_code(251).says("the pool 'default' is being stopped");
    pool.wait_for_end();
    assert!(!pool.directory().exists());
    let outcome = pool.job().np(1).program(sh("true")).run();
    outcome.has_code(251).says("there is no pool 'default' on this host\n  hint: 'scela pool start' starts it");
}

#[test]
fn no_launcher_outlives_the_stop_of_its_pool() {
    let pool = Pool::start(&["--slots", "8"]);
    let jobs: Vec<_> = (0..8).map(|_| pool.job().np(1).program(sh(STAYS)).spawn()).collect();
    for job in &jobs {
        job.wait_for("here");
    }
    let state = pool.state();
    let pids = state["jobs"].as_array().unwrap().iter().map(|job| job["launcher_pid"].as_i64().unwrap() as i32);
    let launchers: Vec<Process> = pids.map(|pid| Process::of(pid).unwrap()).collect();
    assert_eq!(launchers.len(), 8);
    assert!(pool.scela(&["pool", "stop"]).status.success());
    let left: Vec<_> = launchers.iter().filter_map(Process::state_now).filter(|state| *state != 'Z').collect();
    assert_eq!(left, []);
    for job in jobs {
        job.finish().has_code(143);
    }
}

#[test]
fn a_second_stop_may_kill_what_does_not_end() {
    let pool = Pool::start(&[]);
    let runs = pool.job().np(1).args(["--kill-grace", "3600"]).program(sh(&format!("trap '' TERM\n{STAYS}"))).spawn();
    runs.wait_for("here");
    let launcher = pool.state()["jobs"][0]["launcher_pid"].as_i64().unwrap();
    Process::of(launcher as i32).unwrap().signal(Signal::SIGSTOP);
    let mut first = pool.command(&["pool", "stop"]).spawn().unwrap();
    let stops = || (pool.state()["is_stopping"] == true).then_some(());
    assert!(eventually(stops).is_some(), "{:?}", pool.state());
    assert!(pool.scela(&["pool", "stop", "--kill"]).status.success());
    assert!(first.wait().unwrap().success());
    runs.finish_killed().has_code(252);
    pool.wait_for_end();
}

#[test]
fn a_stop_whose_controller_is_stopped_says_so_and_waits() {
    let pool = Pool::start(&[]);
    let runs = pool.job().np(1).args(["--kill-grace", "3600"]).program(sh(&format!("trap '' TERM\n{STAYS}"))).spawn();
    runs.wait_for("here");
    let controller = pool.controller();
    let stop = pool.stop().spawn();
    let stops = || (pool.state()["is_stopping"] == true).then_some(());
    assert!(eventually(stops).is_some(), "{:?}", pool.state());
    controller.signal(Signal::SIGSTOP);
    let text = format!(
        "scela: the controller of the pool 'default', process {0}, is stopped, and this command waits for it: 'kill -CONT {0}' \
         continues it\n",
        controller.pid
    );
    stop.wait_for_error(&text);
    controller.signal(Signal::SIGCONT);
    assert!(pool.scela(&["pool", "stop", "--kill"]).status.success());
    stop.finish().has_code(0).says_only(&text);
    runs.finish_killed().has_code(252);
    pool.wait_for_end();
}

#[test]
fn a_launcher_that_does_not_answer_keeps_no_client() {
    let pool = Pool::start(&[]);
    let runs = pool.job().np(1).program(sh(STAYS)).spawn();
    runs.wait_for("here");
    let launcher = Process::of(pool.state()["jobs"][0]["launcher_pid"].as_i64().unwrap() as i32).unwrap();
    launcher.signal(Signal::SIGSTOP);
    // Signals that are pending at the same time count once.
    let text = "the launcher of the job does not answer";
    let asked = || {
        runs.signal(Signal::SIGINT);
        runs.stderr().text().contains(text).then_some(())
    };
    assert!(eventually(asked).is_some(), "{:?}", runs.stderr());
    launcher.signal(Signal::SIGCONT);
    runs.finish_killed().has_code(130);
    pool.wait_for_jobs(0, 0);
}

#[test]
fn a_client_that_is_continued_at_once_goes_on() {
    let pool = Pool::start(&[]);
    let runs = pool.job().np(1).program(sh(&format!("trap 'echo got 1' USR1\n{STAYS}"))).spawn();
    runs.wait_for("here");
    for round in 1..=20 {
        runs.signal(Signal::SIGTSTP).signal(Signal::SIGCONT).signal(Signal::SIGUSR1);
        runs.wait_for_times("got 1", round);
    }
    runs.signal(Signal::SIGTERM);
    runs.finish().has_code(143);
}

#[test]
fn the_next_job_does_without_agents_that_were_killed() {
    let pool = Pool::start(&[]);
    pool.job().np(1).program(sh("true")).run().is_quiet_success();
    let guardians = || {
        let mut found = pool.processes();
        found.retain(|process| process.name == "scela-guard");
        (found.len() >= 2).then_some(found)
    };
    let killed = eventually(guardians).unwrap();
    Process::signal_all(&killed, Signal::SIGKILL);
    // One that is still being killed would take the next job with it.
    let have_ended =
        || killed.iter().all(|guardian| guardian.state_now().is_none_or(|state| state == 'Z')).then_some(());
    assert!(eventually(have_ended).is_some());
    for _ in 0..3 {
        pool.job().np(1).program(sh("echo here")).run().is_quiet_success().wrote("here\n");
    }
}

#[test]
fn pools_that_start_and_stop_at_the_same_time_leave_nothing() {
    let pool = Pool::unstarted();
    let rounds = || {
        for _ in 0..20 {
            let _ = pool.scela(&["pool", "start"]);
            let _ = pool.scela(&["pool", "stop"]);
        }
    };
    std::thread::scope(|threads| (0..4).for_each(|_| drop(threads.spawn(rounds))));
    let _ = pool.scela(&["pool", "stop"]);
    pool.wait_for_end();
    assert!(!pool.directory().exists());
}

#[test]
fn a_pool_without_jobs_ends_after_its_idle_time() {
    let pool = Pool::start(&["--idle", "0.2s"]);
    pool.wait_for_end();
    assert!(!pool.directory().exists());
}

/// Returns the command that starts a pool on other hosts by a remote shell that makes the file `begun` in `directory` and hangs.
fn start_that_hangs(pool: &Pool<'_>, directory: &Path) -> Command {
    let (shell, begun) = (directory.join("remote-shell"), directory.join("begun"));
    fs::write(&shell, format!(">{}\nexec sleep 1000\n", begun.display())).unwrap();
    let bootstrap = format!("exec:sh {} {{host}}", shell.display());
    let mut start = pool.command(&["pool", "start", "--hosts", "n[1-2]", "--connect-back", "127.0.0.1"]);
    start.args(["--bootstrap", &bootstrap]);
    start
}

#[test]
fn a_pool_whose_start_is_interrupted_while_a_host_hangs_ends_at_once() {
    let (pool, directory) = (Pool::unstarted(), tempfile::tempdir().unwrap());
    let mut starter = start_that_hangs(&pool, directory.path()).spawn().unwrap();
    eventually(|| directory.path().join("begun").exists().then_some(())).expect("the remote shell is opened");
    let interrupted = Instant::now();
    Process::of(starter.id().cast_signed()).unwrap().signal(Signal::SIGINT);
    assert_eq!(starter.wait().unwrap().code(), Some(130));
    pool.wait_for_end();
    // Sessions that end by themselves have 10 s.
    let took = interrupted.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[test]
fn the_start_of_a_pool_can_be_suspended() {
    let (pool, directory) = (Pool::unstarted(), tempfile::tempdir().unwrap());
    let mut starter = start_that_hangs(&pool, directory.path()).spawn().unwrap();
    eventually(|| directory.path().join("begun").exists().then_some(())).expect("the remote shell is opened");
    let process = Process::of(starter.id().cast_signed()).unwrap();
    process.signal(Signal::SIGTSTP);
    eventually(|| (process.state_now() == Some('T')).then_some(())).expect("it stops");
    process.signal(Signal::SIGCONT);
    eventually(|| (process.state_now() != Some('T')).then_some(())).expect("it goes on");
    process.signal(Signal::SIGINT);
    assert_eq!(starter.wait().unwrap().code(), Some(130));
    pool.wait_for_end();
}

#[test]
fn a_pool_that_ends_can_be_seen_and_stopped() {
    let (pool, directory) = (Pool::unstarted(), tempfile::tempdir().unwrap());
    let mut starter = start_that_hangs(&pool, directory.path()).spawn().unwrap();
    eventually(|| directory.path().join("begun").exists().then_some(())).expect("the remote shell is opened");
    // The session that starts keepers: the pool waits for its end.
    let session =
        pool.processes().into_iter().find(|process| process.argv.iter().any(|word| word == "--keeper")).unwrap();
    session.signal(Signal::SIGSTOP);
    eventually(|| session.has_stopped().then_some(())).expect("it stops");
    Process::of(starter.id().cast_signed()).unwrap().signal(Signal::SIGINT);
    assert_eq!(starter.wait().unwrap().code(), Some(130));
    for words in [&["pool", "status", "default"][..], &["pool", "status"], &["status"]] {
        let output = pool.scela(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("pool default on ") && text.contains(", is being stopped\n"), "{output:?}");
    }
    let refused = |words: &[&str], why: &str| {
        let output = pool.scela(words);
        assert_eq!(output.status.code(), Some(251), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    };
    refused(&["pool", "add", "n3"], "the pool 'default' is being stopped");
    pool.job().np(1).program(sh("true")).run().has_code(251).says("the pool 'default' is being stopped");
    // It waits until the session is killed.
    let stopped = pool.scela(&["pool", "stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    pool.wait_for_end();
}

#[test]
fn a_pool_starts_after_the_end_of_the_one_that_has_its_name() {
    let pool = Pool::start(&[]);
    let runs = pool.job().np(1).program(sh(STAYS)).spawn();
    runs.wait_for("here");
    let former = pool.state();
    // The job does not end before its launcher is killed.
    Process::of(former["jobs"][0]["launcher_pid"].as_i64().unwrap() as i32).unwrap().signal(Signal::SIGSTOP);
    let mut stop = pool.command(&["pool", "stop"]).spawn().unwrap();
    let stops = || (pool.state()["is_stopping"] == true).then_some(());
    assert!(eventually(stops).is_some(), "{:?}", pool.state());
    let place = tempfile::tempdir().unwrap();
    let told = place.path().join("told");
    let mut start = pool.command(&["pool", "start"]);
    start.stdout(Stdio::null()).stderr(fs::File::create(&told).unwrap());
    let mut start = start.spawn().unwrap();
    let pid = former["controller_pid"].as_i64().unwrap();
    let text = format!("the pool 'default' is ending (its controller is process {pid}); waiting for its end");
    let waits = || fs::read_to_string(&told).unwrap().contains(&text).then_some(());
    assert!(eventually(waits).is_some(), "{:?}", fs::read_to_string(&told));
    assert!(pool.scela(&["pool", "stop", "--kill"]).status.success());
    assert!(stop.wait().unwrap().success());
    assert!(start.wait().unwrap().success(), "{:?}", fs::read_to_string(&told));
    runs.finish_killed().has_code(252);
    assert_ne!(pool.controller().pid, pid as i32);
    pool.job().np(1).program(sh("echo next")).run().is_quiet_success().wrote("next\n");
}

#[test]
fn a_name_is_taken_once() {
    let pool = Pool::start(&[]);
    let second = pool.scela(&["pool", "start"]);
    assert_eq!(second.status.code(), Some(251));
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains("the pool 'default' exists already\n  hint: 'scela pool status default'"), "{text}");
    assert!(pool.scela(&["pool", "start", "other"]).status.success());
    let outcome = pool.job().arg("--pool=other").np(1).program(sh("echo other")).run();
    outcome.is_quiet_success().wrote("other\n");
    let status = String::from_utf8(pool.scela(&["pool", "status"]).stdout).unwrap();
    assert_eq!(status.lines().map(|line| line.split(' ').nth(1).unwrap()).collect::<Vec<_>>(), ["default", "other"]);
    assert!(pool.scela(&["pool", "stop", "other"]).status.success());
}

#[test]
fn a_directory_that_others_can_reach_is_refused() {
    let pool = Pool::unstarted();
    fs::create_dir(pool.directory()).unwrap();
    fs::set_permissions(pool.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    for words in [&["pool", "start"][..], &["pool", "status", "default"]] {
        let output = pool.scela(words);
        assert_eq!(output.status.code(), Some(251), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("its mode is 755, so other users can reach it"), "{text}");
    }
}

#[test]
fn the_starter_leaves_no_stream_open() {
    let pool = Pool::unstarted();
    let mut starter = pool.command(&["pool", "start"]);
    // Ends only when the controller has none of the starter's streams.
    let output = starter.output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"pool default: "), "{output:?}");
}

#[test]
fn scela_run_is_a_subcommand() {
    let pool = Pool::unstarted();
    let output = pool.scela(&["run", "-np", "2", "echo", "a"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"a\na\n"[..]));
    let help = pool.scela(&["--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("'scela run' is scela-run"));
    assert_eq!(pool.scela(&["pool", "fly"]).status.code(), Some(2));
    assert!(scela_run().with_file_name("scela").is_file());
}

#[test]
fn a_pool_runs_hundreds_of_jobs() {
    let pool = Pool::start(&["--slots", "4"]);
    for round in 0..25 {
        let jobs: Vec<_> =
            (0..8).map(|job| (job, pool.job().np(1).program(sh(&format!("exit {job}"))).spawn())).collect();
        for (job, running) in jobs {
            running.finish().has_code(job).took_less_than(Duration::from_secs(60));
        }
        assert_eq!(pool.state()["jobs_ended"], 8 * (round + 1));
    }
}

/// Launchers, agents, guardians and clients are killed at random. Each job has one end, and nothing is left.
#[test]
fn random_kills_leave_every_job_one_end() {
    let pool = Pool::start(&["--slots", "6"]);
    let mut random = Random::of_session(17, 1);
    for _ in 0..12 {
        let before = pool.state()["jobs_ended"].as_u64().unwrap();
        // Half of the jobs use the agents that stand by.
        let dead_time = |job| if job % 2 == 0 { &["--dead-time", "5"][..] } else { &[] };
        let jobs: Vec<_> =
            (0..10).map(|job| pool.job().np(2).args(dead_time(job)).program(sh(STAYS)).spawn()).collect();
        pool.wait_for_jobs(3, 7);
        let have_begun = || jobs.iter().filter(|job| job.stdout().text() == "here\nhere\n").count() == 3;
        assert!(eventually(|| have_begun().then_some(())).is_some(), "{:?}", pool.state());
        let state = pool.state();
        let launchers: Vec<i32> = state["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|job| job["launcher_pid"].as_i64())
            .map(|pid| pid as i32)
            .collect();
        // One victim of each job that runs; what remains is asked to end, in the order of the queue.
        for launcher in launchers {
            let launcher = Process::of(launcher).unwrap();
            let guardian =
                eventually(|| launcher.children().into_iter().find(|child| child.name == "scela-guard")).unwrap();
            let agent = eventually(|| guardian.children().into_iter().next()).unwrap();
            match random.of(0..=3) {
                0 => launcher.signal(Signal::SIGKILL),
                1 => agent.signal(Signal::SIGKILL),
                2 => guardian.signal(Signal::SIGKILL),
                _ => launcher.signal(Signal::SIGTERM),
            }
        }
        let has_ended = || (pool.state()["jobs_ended"] == before + 3).then_some(());
        assert!(eventually(has_ended).is_some(), "{:?}", pool.state());
        // Those that ended have made room for others.
        pool.wait_for_jobs(3, 4);
        let is_empty = || {
            assert!(pool.scela(&["kill", "--all"]).status.success());
            pool.state()["jobs"].as_array().unwrap().is_empty().then_some(())
        };
        assert!(eventually(is_empty).is_some(), "{:?}", pool.state());
        for job in jobs {
            let outcome = job.finish_killed();
            let is_known = [143, 252].iter().any(|code| outcome.code == Some(*code));
            outcome.check(is_known, "the code should be 143 or 252");
        }
    }
    pool.wait_for_jobs(0, 0);
}
