//! Jobs of a pool that have no client, and clients that attach themselves.

use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::Signal;
use tests::{Pool, Process, eventually};

/// Submits a job that has no client. Returns its number.
#[track_caller]
fn detach(pool: &Pool<'_>, script: &str) -> String {
    let output = command(pool, &["--detach"], script).output().expect("scela starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let number = String::from_utf8(output.stdout).unwrap();
    number.strip_suffix('\n').expect("it is a line").to_owned()
}

fn command(pool: &Pool<'_>, options: &[&str], script: &str) -> Command {
    let mut command = pool.command(&[&["run", "--pool", "-np", "1"], options, &["sh", "-c", script]].concat());
    command.stdin(Stdio::null());
    command
}

fn attach(pool: &Pool<'_>, job: &str) -> Output {
    pool.scela(&["attach", job])
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn wait_for_end_of(client: &mut Child) -> Option<i32> {
    client.wait().expect("it was not reaped").code()
}

/// Waits until a job has written so many bytes to its standard output.
#[track_caller]
fn wait_for_output(pool: &Pool<'_>, job: &str, bytes: u64) {
    let path = pool.directory().join(format!("default.jobs/{job}.out"));
    let has_all = || std::fs::metadata(&path).is_ok_and(|found| found.len() >= bytes).then_some(());
    assert!(eventually(has_all).is_some(), "{:?}", std::fs::metadata(&path));
}

/// Waits until a client has such a file open: an instance of inotify once it follows the output of a job, a signalfd once it has
/// blocked its signals.
#[track_caller]
fn wait_for_open(client: &Child, file: &str) {
    let is_open = || {
        let process = Process::of(client.id() as i32)?;
        process.open_files().iter().any(|open| open.ends_with(file)).then_some(())
    };
    assert!(eventually(is_open).is_some(), "it has not opened {file}");
}

#[test]
fn the_output_and_the_code_of_a_detached_job_can_be_read_during_and_after_it() {
    let pool = Pool::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let go_on = directory.path().join("go");
    nix::unistd::mkfifo(&go_on, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo first; echo error >&2; read line <{}; echo $line; exit 7", go_on.display());
    let job = detach(&pool, &script);
    let attached = pool.command(&["attach", &job]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    pool.wait_for_jobs(1, 0);
    std::fs::write(&go_on, "second\n").unwrap();
    let during = attached.wait_with_output().unwrap();
    for output in [during, attach(&pool, &job)] {
        let (code, stdout, stderr) = text(&output);
        assert_eq!((code, stdout.as_str()), (Some(7), "first\nsecond\n"), "{stderr}");
        assert!(stderr.starts_with("error\n") && stderr.contains("exited with code 7"), "{stderr}");
    }
}

#[test]
fn a_job_whose_output_grows_keeps_the_end_of_it() {
    let pool = Pool::start(&[]);
    // 80 MiB, of which the last 64 are kept at least.
    let job = detach(&pool, "head -c 83886080 /dev/zero | tr '\\0' x; echo; echo end");
    let (code, stdout, stderr) = text(&attach(&pool, &job));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.ends_with("x\nend\n") && stdout.len() > 64 << 20, "{}", stdout.len());
}

#[test]
fn an_attached_client_that_reads_late_gets_what_is_left_and_zeros_that_were_written() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "head -c 10 /dev/zero; echo zeros");
    assert_eq!(text(&attach(&pool, &job)).1, "\0".repeat(10) + "zeros\n");
    let directory = tempfile::tempdir().unwrap();
    let go_on = directory.path().join("go");
    nix::unistd::mkfifo(&go_on, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script =
        format!("echo begin; head -c 83886080 /dev/zero | tr '\\0' x; read line <{}; echo end", go_on.display());
    let job = detach(&pool, &script);
    let attached = pool.command(&["attach", &job]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = pool.directory().join(format!("default.jobs/{job}.out"));
    // Until the controller has freed the beginning: the client has read no more than a pipe holds.
    let is_freed = || {
        let found = std::fs::metadata(&path).ok()?;
        (found.len() > 80 << 20 && found.blocks() * 512 < 72 << 20).then_some(())
    };
    assert!(eventually(is_freed).is_some(), "{:?}", std::fs::metadata(&path));
    std::fs::write(&go_on, "\n").unwrap();
    let (code, stdout, stderr) = text(&attached.wait_with_output().unwrap());
    assert!(code == Some(0) && stdout.starts_with("begin\n") && stdout.ends_with("xend\n"), "{code:?} {stderr}");
    assert!(!stdout.contains('\0') && stdout.len() < 80 << 20, "{}", stdout.len());
    assert!(stderr.contains("bytes of older output were freed before they were read"), "{stderr}");
}

#[test]
fn signals_of_an_attached_client_reach_the_job_and_its_end_does_not() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "trap 'echo asked; exit 9' INT; echo here; while :; do sleep 0.01; done");
    // The shell has set its trap before.
    wait_for_output(&pool, &job, "here\n".len() as u64);
    let attach = || pool.command(&["attach", &job]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_attached = |client: &Child| wait_for_open(client, "anon_inode:inotify");
    let mut killed = attach();
    is_attached(&killed);
    killed.kill().unwrap();
    assert_eq!(wait_for_end_of(&mut killed), None);
    let mut hung_up = attach();
    is_attached(&hung_up);
    Process::of(hung_up.id() as i32).unwrap().signal(Signal::SIGHUP);
    assert_eq!(wait_for_end_of(&mut hung_up), Some(129));
    let mut interrupted = attach();
    is_attached(&interrupted);
    Process::of(interrupted.id() as i32).unwrap().signal(Signal::SIGINT);
    assert_eq!(wait_for_end_of(&mut interrupted), Some(130));
    assert_eq!(text(&self::attach(&pool, &job)).1, "here\nasked\n");
}

#[test]
fn a_job_ends_after_its_orphan_time_unless_a_client_is_attached() {
    let pool = Pool::start(&[]);
    let mut lost = command(&pool, &["--orphan-time", "0.5s"], "sleep 1000").stderr(Stdio::null()).spawn().unwrap();
    pool.wait_for_jobs(1, 0);
    lost.kill().unwrap();
    wait_for_end_of(&mut lost);
    pool.wait_for_jobs(0, 0);
    let (code, _, _) = text(&attach(&pool, "1"));
    assert_eq!(code, Some(129), "as after SIGHUP");
    let kept = command(&pool, &["--orphan-time", "60s"], "echo through; exit 3").output().unwrap();
    assert_eq!(text(&kept).0, Some(3));
    assert_eq!(text(&kept).1, "through\n");
}

#[test]
fn jobs_that_were_not_detached_cannot_be_attached_to() {
    let pool = Pool::start(&[]);
    let (code, _, stderr) = text(&attach(&pool, "5"));
    assert_eq!(code, Some(251));
    assert!(stderr.contains("the pool 'default' has no job 5 that was detached"), "{stderr}");
}

#[test]
fn a_detached_job_that_waits_can_be_withdrawn() {
    let pool = Pool::start(&["--slots", "1"]);
    let first = detach(&pool, "sleep 1000");
    let second = detach(&pool, "true");
    pool.wait_for_jobs(1, 1);
    assert!(pool.scela(&["kill", &second]).status.success());
    assert_eq!(text(&attach(&pool, &second)).0, Some(143));
    assert!(pool.scela(&["kill", &first]).status.success());
    assert_eq!(text(&attach(&pool, &first)).0, Some(143));
}

#[test]
fn the_code_of_a_job_is_left_if_a_file_of_its_output_was_removed() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "echo out; echo error >&2; exit 6");
    assert_eq!(text(&attach(&pool, &job)).0, Some(6));
    std::fs::remove_file(pool.directory().join(format!("default.jobs/{job}.out"))).unwrap();
    let (code, stdout, stderr) = text(&attach(&pool, &job));
    assert_eq!((code, stdout.as_str()), (Some(6), ""));
    assert!(stderr.starts_with("error\n"), "{stderr}");
}

#[test]
fn a_reader_that_stops_delays_no_signals_of_an_attached_client() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "head -c 2000000 /dev/zero; sleep 1000");
    wait_for_output(&pool, &job, 2_000_000);
    let attach = || pool.command(&["attach", &job]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (attached, mut stopped) = (attach(), attach());
    [&attached, &stopped].iter().for_each(|client| wait_for_open(client, "anon_inode:inotify"));
    let process = |client: &Child| Process::of(client.id() as i32).unwrap();
    process(&attached).signal(Signal::SIGINT);
    pool.wait_for_jobs(0, 0);
    // After the end of the job a signal ends the client, although it has not delivered everything.
    let has_ended = || {
        process(&stopped).send(Signal::SIGTERM);
        stopped.try_wait().unwrap()
    };
    assert_eq!(eventually(has_ended).and_then(|status| status.code()), Some(143));
    let output = attached.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 2_000_000));
}

#[test]
fn attached_clients_have_the_code_of_a_job_that_ends_with_its_pool() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "echo here; sleep 1000");
    wait_for_output(&pool, &job, "here\n".len() as u64);
    let attach = || pool.command(&["attach", &job]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let clients = [(); 3].map(|()| attach());
    clients.iter().for_each(|client| wait_for_open(client, "anon_inode:inotify"));
    assert!(pool.scela(&["pool", "stop"]).status.success());
    for client in clients {
        let (code, _, stderr) = text(&client.wait_with_output().unwrap());
        assert_eq!(code, Some(143), "{stderr}");
        assert!(!stderr.contains("error"), "{stderr}");
    }
}

#[test]
fn a_job_with_an_orphan_time_goes_on_if_its_output_cannot_be_written() {
    let pool = Pool::start(&[]);
    for (redirection, why) in [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")] {
        let script = format!("exec \"$0\" \"$@\" {redirection}");
        let client = command(&pool, &["--orphan-time", "60s"], "echo a; sleep 1000");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(client.get_program()).args(client.get_args()).stdin(Stdio::null());
        shell.env("SCELA_POOL_DIR", pool.directory()).env_remove("SCELA_LOG");
        let (code, _, stderr) = text(&shell.output().unwrap());
        assert_eq!(code, Some(1), "{stderr}");
        let job = pool.state()["jobs"][0]["job"].as_u64().expect("the job goes on");
        assert!(
            stderr.starts_with(&format!("scela-run: error: standard output cannot be written: {why}"))
                && stderr.contains(&format!("; job {job} in the pool 'default' goes on\n"))
                && stderr.contains(&format!("'scela attach {job}' shows its output, 'scela kill {job}' ends it")),
            "{stderr}"
        );
        assert!(pool.scela(&["kill", &job.to_string()]).status.success());
        pool.wait_for_jobs(0, 0);
    }
}

#[test]
fn a_job_without_a_client_is_withdrawn_by_a_signal_before_the_pool_has_answered() {
    let pool = Pool::start(&[]);
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    let clients = [["--detach"].as_slice(), &["--orphan-time", "60s"]].map(|options| {
        let mut client = command(&pool, options, "sleep 1000");
        client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for client in clients {
        wait_for_open(&client, "anon_inode:[signalfd]");
        Process::of(client.id() as i32).unwrap().signal(Signal::SIGINT);
        let (code, _, stderr) = text(&client.wait_with_output().unwrap());
        assert_eq!(code, Some(130), "{stderr}");
        assert!(stderr.ends_with("scela-run: INT: the job is withdrawn\n"), "{stderr}");
    }
    controller.signal(Signal::SIGCONT);
    // A later job: the others were read before.
    let job = detach(&pool, "true");
    assert_eq!(text(&attach(&pool, &job)).0, Some(0));
    pool.wait_for_jobs(0, 0);
}

#[test]
fn a_job_with_an_orphan_time_says_that_it_waits_and_only_signals_that_end_jobs_withdraw_it() {
    let pool = Pool::start(&["--slots", "1"]);
    let first = detach(&pool, "sleep 1000");
    let waits = |options: &[&str]| {
        let mut client = command(&pool, &[&["--orphan-time", "60s"], options].concat(), "echo through");
        client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let clients = [waits(&[]), waits(&["-q"])];
    pool.wait_for_jobs(1, 2);
    for client in &clients {
        wait_for_open(client, "anon_inode:inotify");
        Process::of(client.id() as i32).unwrap().signal(Signal::SIGCONT);
    }
    assert!(pool.scela(&["kill", "--signal", "USR2", "2", "3"]).status.success());
    pool.wait_for_jobs(1, 2);
    let third = detach(&pool, "true");
    assert!(pool.scela(&["kill", &third, &first]).status.success());
    assert_eq!(text(&attach(&pool, &third)).0, Some(143));
    for (client, note) in clients.into_iter().zip(["waits in the pool 'default': ", ""]) {
        let (code, stdout, stderr) = text(&client.wait_with_output().unwrap());
        assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
        assert!(stderr.is_empty() == note.is_empty() && stderr.contains(note), "{stderr}");
    }
}

#[test]
fn a_job_that_is_refused_at_once_is_not_left_in_the_pool() {
    let pool = Pool::start(&["--slots", "1"]);
    let first = detach(&pool, "sleep 1000");
    pool.wait_for_jobs(1, 0);
    let busy = "the job cannot start at once in the pool 'default': it needs 1 slot, and 0 are free\n";
    let few = "the job asks for 4 nodes, and the pool 'default' has 1\n";
    for (options, why) in [
        (&["--detach", "--no-wait"][..], busy),
        (&["--orphan-time", "1m", "--no-wait"], busy),
        (&["--detach", "--nodes", "4", "-np", "4"], few),
    ] {
        let (code, stdout, stderr) = text(&command(&pool, options, "true").output().unwrap());
        assert_eq!((code, stdout.as_str()), (Some(251), ""), "{stderr}");
        assert!(stderr.starts_with(&format!("scela-run: error: {why}  hint: ")), "{stderr}");
    }
    let files = std::fs::read_dir(pool.directory().join("default.jobs")).unwrap();
    assert_eq!(files.count(), 2, "of the first job");
    assert!(pool.scela(&["kill", &first]).status.success());
    assert_eq!(text(&attach(&pool, &first)).0, Some(143));
}
