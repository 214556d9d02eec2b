//! Programs and files that hosts do not see are staged there, through the tree.

use std::fs;
use std::path::{Path, PathBuf};

use tests::{Cluster, Greeting, Host, Pool, Run, scela, sh};

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
    scela().on(cluster).np(hosts).args(["-hosts", &cluster.names()]).program(vec![program.into()])
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
        let outcome = pool.job().np(2).arg("--stage").program(vec![greeting.program().into()]).run();
        outcome.is_quiet_success();
        assert_eq!(outcome.out().matches("greeting 42\n").count(), 2, "{}", outcome.out());
        assert_nothing_left(&cluster);
    }
}

/// Mounts file systems with these options on /tmp and /dev/shm.
fn mount(host: &Host, options: &str) {
    for place in ["/tmp", "/dev/shm"] {
        let output = host.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_host_without_room_is_named() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let greeting = hidden_from_hosts(&cluster);
    let check = |host: usize, options: &str, expected: &str| {
        mount(cluster.host(host), options);
        let outcome = run(&cluster, &greeting.program()).args(["--fanout", "2", "--stage"]).run();
        let host = cluster.host(host).name();
        outcome.has_code(251).says(&format!("error: staging failed on {host}: ")).says(expected).wrote("");
        outcome.says("hint: free some space there, or name another directory in TMPDIR");
        assert_nothing_left(&cluster);
    };
    check(2, "size=16k,mode=1777", "no directory can have the files: ");
    // There are bytes, but no inodes for all files.
    check(2, "nr_inodes=4,mode=1777", "' cannot be written to /tmp/scela-stage-");
    check(2, "noexec,mode=1777", "/tmp is mounted noexec; /dev/shm is mounted noexec");
    mount(cluster.host(2), "mode=1777");
    run(&cluster, &greeting.program()).arg("--stage").run().is_quiet_success();
}

#[test]
fn a_staged_file_is_the_same_on_all_hosts() {
    let Some(cluster) = Cluster::new_or_skip(6) else { return };
    let file = cluster.shared().join("data");
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|number| (number.wrapping_mul(number) >> 9) as u8).collect();
    fs::write(&file, bytes).unwrap();
    let check = format!("cmp \"$SCELA_STAGE_DIR/data\" {}", file.display());
    let stage = ["--fanout", "2", "--stage-file", file.to_str().unwrap()];
    let outcome = scela().on(&cluster).np(6).args(["-hosts", &cluster.names()]).args(stage).program(sh(&check)).run();
    outcome.is_quiet_success();
    assert_nothing_left(&cluster);
}
