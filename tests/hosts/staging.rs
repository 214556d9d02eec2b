//! Programs and files that hosts do not see are staged there, through the tree.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::{Cluster, Greeting, Host, Outcome, Pool, Run, scela, scela_run, sh, skip};

use crate::mpich::{VENV, assert_all_right, mpich, venv_of, world};

/// Builds the program where only the front end sees it.
fn hidden_from_hosts(cluster: &Cluster) -> Greeting {
    let greeting = Greeting::build(&cluster.shared());
    cluster.hosts().iter().for_each(|host| host.hide(greeting.directory()));
    greeting
}

/// Returns what is left of staged files on a host.
fn left(host: &Host) -> Vec<PathBuf> {
    let inside = |place: &str| fs::read_dir(host.path(place)).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_staged =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("scela-stage"));
    inside("/tmp").chain(inside("/dev/shm")).filter(is_staged).collect()
}

#[track_caller]
fn assert_nothing_left(cluster: &Cluster) {
    for host in cluster.hosts() {
        let left = tests::eventually(|| left(host).is_empty().then_some(()));
        assert!(left.is_some(), "staged files are left on {}: {:?}", host.name(), self::left(host));
    }
}

fn run(cluster: &Cluster, program: &Path) -> Run {
    let hosts = cluster.hosts().len() as u32;
    // The run's own one is on all hosts.
    let run = scela().on(cluster).env("TMPDIR", "/none");
    run.np(hosts).args(["-hosts", &cluster.names()]).program(vec![program.into()])
}

#[test]
fn a_program_that_hosts_do_not_see_runs_there() {
    let Some(cluster) = Cluster::new_or_skip(5) else { return };
    let greeting = hidden_from_hosts(&cluster);
    run(&cluster, &greeting.program()).run().has_code(251).says("was not found");
    for options in [&["--fanout", "2"][..], &["--no-ports"], &["--launch", "tree", "--fanout", "2"]] {
        let outcome = run(&cluster, &greeting.program()).args(options).arg("--stage").run();
        outcome.is_quiet_success();
        let out = outcome.out();
        assert_eq!(out.matches("greeting 42\n").count(), 5, "{out}");
        assert_eq!(out.matches("library /tmp/scela-stage-").count(), 5, "{out}");
        assert_nothing_left(&cluster);
    }
}

#[test]
fn a_job_of_a_pool_stages_files_on_hosts() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let greeting = hidden_from_hosts(&cluster);
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    for _ in 0..2 {
        let outcome =
            pool.job().env("TMPDIR", "/none").np(2).arg("--stage").program(vec![greeting.program().into()]).run();
        outcome.is_quiet_success();
        assert_eq!(outcome.out().matches("greeting 42\n").count(), 2, "{}", outcome.out());
        assert_nothing_left(&cluster);
    }
}

/// Mounts a file system with these options on a new directory of the host.
#[track_caller]
fn mount(host: &Host, place: &str, options: &str) {
    let script = format!("mkdir -p {place} && mount -t tmpfs -o {options} tmpfs {place}");
    let output = host.run(["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_host_without_room_is_named() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let greeting = hidden_from_hosts(&cluster);
    let last = cluster.host(2);
    let staged =
        |place: &str| run(&cluster, &greeting.program()).env("TMPDIR", place).args(["--fanout", "2", "--stage"]).run();
    let check = |place: &str, expected: &[&str]| {
        let outcome = staged(place);
        outcome.has_code(251).says(&format!("error: staging failed on {}: ", last.name())).wrote("");
        for text in expected {
            outcome.says(text);
        }
        outcome.says("hint: free some space there, or name another directory in TMPDIR");
        assert_nothing_left(&cluster);
    };
    // There are bytes, but no inodes for all files. The other hosts do not have the directory, and use /tmp.
    mount(last, "/run/few", "nr_inodes=4");
    check("/run/few", &["' cannot be written to /run/few/scela-stage-", "No space left on device"]);
    assert_eq!(fs::read_dir(last.path("/run/few")).unwrap().count(), 0);
    mount(last, "/run/inert", "noexec");
    staged("/run/inert").is_quiet_success();
    mount(last, "/dev/shm", "size=16k");
    assert!(last.run(["chmod", "777", "/tmp"]).status.success());
    let refusals =
        ["/run/inert is mounted noexec; /tmp may be changed by other users; /dev/shm has 16.4 kB free, and "];
    check("/run/inert", &[&["no directory can have the files: ", refusals[0]].concat()]);
}

#[test]
fn a_staged_file_is_the_same_on_all_hosts_and_the_launcher_sends_it_once_to_each_child() {
    const BYTES: u32 = 20_000_000;
    let Some(cluster) = Cluster::new_or_skip(6) else { return };
    let [file, stats] = ["data", "stats.json"].map(|name| cluster.shared().join(name));
    fs::write(&file, (0..BYTES).map(|number| (number.wrapping_mul(number) >> 9) as u8).collect::<Vec<_>>()).unwrap();
    let check = format!("cmp \"$SCELA_STAGE_DIR/data\" {}", file.display());
    let options = ["--fanout".into(), "2".into(), format!("--stats={}", stats.display())];
    let run = run(&cluster, Path::new("sh")).args(options).args([Path::new("--stage-file"), &file]);
    run.program(sh(&check)[1..].to_vec()).run().is_quiet_success();
    assert_nothing_left(&cluster);
    let statistics: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let sent = |level: usize| statistics["levels"][level]["link_bytes"].as_u64().unwrap_or_default();
    // 0 (1 (2, 3), 4 (5, 6))
    for level in [0, 1] {
        let copies = [2, 4][level] * u64::from(BYTES);
        assert!((copies..copies + copies / 50).contains(&sent(level)), "{statistics}");
    }
}

/// Returns the number of hosts. `TESTS_STAGED_HOSTS=32` sets more than a test usually has time for.
fn hosts() -> usize {
    std::env::var("TESTS_STAGED_HOSTS").map_or(3, |typed| typed.parse().unwrap())
}

/// A program, its libmpi, libfabric and all that they need are sent.
#[test]
fn an_mpi_program_runs_with_its_own_libmpi_where_hosts_have_neither() {
    let Some(cluster) = Cluster::new_or_skip(hosts()) else { return };
    let Some(program) = world(&cluster) else { return };
    for host in cluster.hosts() {
        host.hide(&program);
        host.hide(venv_of(VENV));
    }
    let np = cluster.hosts().len();
    let run = || {
        let run = mpich().on(&cluster).env("TMPDIR", "/none").np(np as u32).args(["-hosts", &cluster.names()]);
        run.program(vec![program.clone().into()])
    };
    run().run().has_code(251);
    assert_all_right(&run().arg("--stage").run(), np);
    assert_nothing_left(&cluster);
}

/// Neither the program's directory nor ScELA is on the hosts: the library that counts messages is sent, too.
#[test]
fn ranks_are_profiled_where_hosts_do_not_have_the_library() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let Some(program) = world(&cluster) else { return };
    let directory = scela_run().parent().expect("a directory of programs");
    for host in cluster.hosts() {
        ["scela-run", "libscela_trace.so"].into_iter().for_each(|file| host.hide(directory.join(file)));
    }
    let profile = cluster.shared().join("p.comm");
    for options in [&["--fanout", "2"][..], &["--no-ports"], &["--stage"]] {
        let run = mpich().on(&cluster).env("TMPDIR", "/none").np(3).args(["-hosts", &cluster.names()]).args(options);
        let outcome = run.arg("--profile-comm").arg(&profile).program(vec![program.clone().into()]).run();
        assert_all_right(&outcome, 3);
        outcome.never_says("profile").never_says("LD_PRELOAD");
        let text = fs::read_to_string(&profile).expect("the profile is written");
        assert!(text.starts_with("scela-comm 1 ranks 3 pairs 5\n"), "{text}");
        assert_nothing_left(&cluster);
    }
}

/// The interpreter, its library and the environment are sent.
#[test]
fn a_python_environment_runs_where_hosts_have_no_python() {
    let environment = venv_of(VENV);
    let python = environment.join("bin/python");
    if !python.exists() {
        return skip("the virtual environment is not installed; ./tests/run installs it");
    }
    let Some(cluster) = Cluster::new_or_skip(hosts()) else { return };
    let interpreter = python.canonicalize().unwrap();
    let version = interpreter.file_name().unwrap();
    let library = interpreter.parent().and_then(Path::parent).unwrap().join("lib").join(version);
    for host in cluster.hosts() {
        [&environment, &interpreter, &library].into_iter().for_each(|path| host.hide(path));
    }
    let code = "import numpy, ssl, sqlite3, json; print('sum', int(numpy.arange(10).sum()), numpy.__file__)";
    let np = cluster.hosts().len();
    let run = |words: Vec<std::ffi::OsString>, options: &[&str]| -> Outcome {
        let run = scela().on(&cluster).env("TMPDIR", "/none").np(np as u32).args(["-hosts", &cluster.names()]);
        run.args(options).program(words).deadline(std::time::Duration::from_secs(300)).run()
    };
    let staged = ["--stage-dir", environment.to_str().unwrap()];
    let words = |program: &Path| vec![program.into(), "-c".into(), code.into()];
    run(words(&python), &[]).has_code(251);
    let outcome = run(words(&python), &staged);
    outcome.is_quiet_success();
    assert_eq!(outcome.out().matches("sum 45 /tmp/scela-stage-").count(), np, "{}", outcome.out());
    assert_nothing_left(&cluster);
    // A script of the environment names the interpreter's copy.
    let outcome = run(vec![environment.join("bin/f2py").into(), "-v".into()], &staged);
    outcome.has_code(0);
    assert_eq!(outcome.out().lines().count(), np, "{}", outcome.out());
    assert_nothing_left(&cluster);
}

#[test]
fn files_of_hosts_are_brought_back() {
    let Some(cluster) = Cluster::new_or_skip(5) else { return };
    let to = cluster.shared().join("to");
    let option = format!("*.dat={}", to.display());
    let script = "echo $PMI_RANK > r$PMI_RANK.dat; hostname > host.dat; [ $PMI_RANK != 2 ] || { rm r2.dat; ln -s /etc/passwd r2.dat; }";
    let run = || {
        let run = scela().on(&cluster).np(5).args(["-hosts", &cluster.names(), "--fanout", "2"]);
        run.args(["-wdir", "/run", "--collect", &option]).program(sh(script))
    };
    run().run().is_quiet_success();
    let mut names: Vec<_> =
        fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected =
        ["host.dat.0", "host.dat.1", "host.dat.2", "host.dat.3", "host.dat.4", "r0.dat", "r1.dat", "r3.dat", "r4.dat"];
    assert_eq!(names, expected);
    assert_eq!(fs::read_to_string(to.join("host.dat.4")).unwrap().trim(), cluster.host(4).name());
}
