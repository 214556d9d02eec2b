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
fn attached_clients_have_the_code_of_a_job_that_ends_with_its_pool() {
    let pool = Pool::start(&[]);
    let job = detach(&pool, "sleep 1000");
    pool.wait_for_jobs(1, 0);
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
