//! Pools on several hosts.

use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::{Capture, Cluster, Pool, Process, event_timeout, eventually, sh};

use crate::rank;

/// Returns the state of a node.
fn node(pool: &Pool<'_>, name: &str) -> Value {
    let state = pool.state();
    let nodes = state["nodes"].as_array().expect("the pool has nodes");
    nodes.iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("{name} is one of them: {state}")).clone()
}

#[track_caller]
fn wait_for_state(pool: &Pool<'_>, name: &str, state: &str) {
    let is_so = || (node(pool, name)["state"] == state).then_some(());
    assert!(eventually(is_so).is_some(), "{}", node(pool, name));
}

/// Returns the hosts that a job with these options runs on, in order.
#[track_caller]
fn hosts(pool: &Pool<'_>, np: u32, options: &[&str]) -> Vec<String> {
    let outcome = pool.job().args(options).np(np).program(sh("hostname")).run();
    let text = String::from_utf8_lossy(&outcome.is_quiet_success().stdout).into_owned();
    let mut hosts: Vec<String> = text.lines().map(str::to_owned).collect();
    hosts.sort_unstable();
    hosts
}

/// Returns the host of each rank of a job that asks for these devices, and their numbers, in order.
#[track_caller]
fn devices(pool: &Pool<'_>, np: u32, gres: &str) -> Vec<String> {
    let script = sh("echo $(hostname) $SCELA_GRES_FPGA$SCELA_GRES_GPU");
    let outcome = pool.job().args(["--gres", gres]).np(np).program(script).run();
    let text = String::from_utf8_lossy(&outcome.is_quiet_success().stdout).into_owned();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn jobs_run_on_the_nodes_of_a_pool() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "2"]);
    assert_eq!(hosts(&pool, 6, &[]), ["node001", "node001", "node002", "node002", "node003", "node003"]);
    assert_eq!(hosts(&pool, 2, &[]), ["node001", "node001"], "as few nodes as possible");
    assert_eq!(hosts(&pool, 2, &["--nodes", "2"]), ["node001", "node002"]);
    assert_eq!(hosts(&pool, 3, &["-ppn", "1"]), ["node001", "node002", "node003"]);
    pool.job().np(6).program(rank(["neighbours", "2"])).run().is_quiet_success();
    pool.job().np(1).program(sh("exit 7")).run().has_code(7);
}

#[test]
fn ranks_per_node_without_a_number_of_ranks_are_on_all_nodes_or_on_some() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "4"]);
    let ranks = |options: &[&str]| {
        let outcome = pool.job().args(options).program(sh("hostname")).run();
        String::from_utf8_lossy(&outcome.is_quiet_success().stdout).lines().count()
    };
    assert_eq!([ranks(&["-ppn", "2"]), ranks(&["--nodes", "1"]), ranks(&["--nodes", "2", "-ppn", "3"])], [4, 4, 6]);
    pool.job()
        .args(["--nodes", "3"])
        .np(3)
        .program(sh("true"))
        .run()
        .has_code(251)
        .says("asks for 3 nodes, and the pool");
}

#[test]
fn drained_nodes_get_no_jobs() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    let change = |words: [&str; 2]| {
        let output = pool.scela(&["pool", words[0], words[1]]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(change(["drain", "node[001,003]"]), (Some(0), String::new()));
    assert_eq!(node(&pool, "node003")["state"], "drained");
    assert_eq!(hosts(&pool, 1, &[]), ["node002"]);
    assert_eq!(change(["resume", "node003"]), (Some(0), String::new()));
    assert_eq!(hosts(&pool, 2, &[]), ["node002", "node003"]);
    let (code, text) = change(["drain", "node[002,009]"]);
    assert!(code == Some(251) && text.contains("the pool has no node node009"), "{text}");
}

/// Begins a job that goes on until it is ended. Returns when all of its ranks run.
fn begin(pool: &Pool<'_>, ranks: usize, options: &[&str]) -> Child {
    let number = ranks.to_string();
    let words = [&["run", "--pool", "-np", &number], options, &["sh", "-c", "echo up; exec sleep 1000"]].concat();
    let mut child = pool.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("scela starts");
    let output = Capture::of(child.stdout.take().expect("a pipe"));
    assert!(output.wait(event_timeout(), |text| text.matches("up").count() == ranks), "{}", output.text());
    child
}

/// Ends all jobs of a pool, among them the one of this client. Returns the client's exit code.
fn end(pool: &Pool<'_>, mut child: Child) -> Option<i32> {
    assert!(pool.scela(&["kill", "--all"]).status.success());
    child.wait().expect("it was not reaped").code()
}

#[test]
fn an_exclusive_job_shares_no_node() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "2"]);
    let alone = begin(&pool, 1, &["--exclusive"]);
    assert_eq!(hosts(&pool, 2, &[]), ["node002", "node002"]);
    pool.job().args(["--exclusive", "--no-wait"]).np(3).program(sh("true")).run().has_code(251).says("2 are free");
    assert_eq!(end(&pool, alone), Some(143));
}

#[test]
fn a_host_can_be_added() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let pool = Pool::start_on_hosts(&cluster, "node001", &["--slots", "1"]);
    let add = |list| pool.scela(&["pool", "add", list]);
    assert!(add("node[002-003]:2").status.success());
    assert_eq!(hosts(&pool, 5, &[]), ["node001", "node002", "node002", "node003", "node003"]);
    let text = String::from_utf8_lossy(&add("node003").stderr).into_owned();
    assert!(text.contains("the pool has node003 already"), "{text}");
    let text = String::from_utf8_lossy(&add("node009").stderr).into_owned();
    assert!(text.contains("node009 was not added: 1 of 1 host could not be started"), "{text}");
    let names = pool.state()["nodes"].as_array().map(|nodes| nodes.iter().map(|node| node["node"].clone()).collect());
    assert_eq!(names, Some(vec!["node001".into(), "node002".into(), "node003".into()]), "it was not kept");
    // Its number is not used again.
    let all = pool.scela(&["pool", "drain", "node[001-003]"]);
    assert!(all.status.success(), "{all:?}");
}

#[test]
fn nodes_are_near_to_each_other_and_sound() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let network = cluster.shared().join("topology.conf");
    let text = "SwitchName=s0 Nodes=node[001,003]\nSwitchName=s1 Nodes=node[002,004]\nSwitchName=top Switches=s[0-1]\n";
    std::fs::write(&network, text).expect("it can be written");
    let path = network.to_str().expect("it is text");
    let pool = Pool::start_on(&cluster, &["--slots", "1", "--topology", path]);
    assert_eq!(hosts(&pool, 2, &[]), ["node001", "node003"]);
    let faults = cluster.shared().join("faults");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs();
    std::fs::write(&faults, format!("scela-faults 1\n{now} node003\n")).expect("it can be written");
    let history = ["--avoid-faults", "--fault-history", faults.to_str().expect("it is text")];
    assert_eq!(hosts(&pool, 2, &history), ["node002", "node004"]);
    let told = pool.job().args(history).arg("-v").np(1).program(sh("hostname")).run();
    told.has_code(0).says("--avoid-faults: the pool uses hosts that may fail last: node003 (63 %, lost once, 0 h ago)");
    let all = pool.job().args(history).np(4).program(sh("hostname")).run();
    all.has_code(0).says("hosts that may fail are used last: node003");
}

#[test]
fn jobs_get_the_devices_of_the_list_of_hosts() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let list = cluster.shared().join("hosts");
    std::fs::write(&list, "node001 gres=fpga:2\nnode002 gres=fpga:3@1+4+6\n").expect("it can be written");
    let pool = Pool::unstarted_on(&cluster);
    let output = pool.scela(&["pool", "start", "--slots", "4", "-f", list.to_str().expect("it is text")]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(devices(&pool, 2, "fpga"), ["node001 0", "node001 1"]);
    assert_eq!(devices(&pool, 2, "fpga:2"), ["node001 0,1", "node002 1,4"]);
    assert_eq!(devices(&pool, 3, "fpga"), ["node002 1", "node002 4", "node002 6"]);
}

#[test]
fn jobs_get_the_devices_that_are_given_for_all_nodes_of_a_start_or_an_addition() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let pool = Pool::start_on_hosts(&cluster, "node001", &["--slots", "2", "--gres", "fpga:1@3"]);
    assert_eq!(devices(&pool, 1, "fpga"), ["node001 3"]);
    for words in [&["pool", "add", "node002:2"][..], &["pool", "add", "node003:2", "--gres", "fpga:x:2"]] {
        let added = pool.scela(words);
        assert!(added.status.success(), "{added:?}");
    }
    assert_eq!(devices(&pool, 3, "fpga"), ["node001 3", "node003 0", "node003 1"]);
    assert_eq!(devices(&pool, 1, "fpga:x:2"), ["node003 0,1"]);
}

#[test]
fn a_pool_in_a_job_of_slurm_has_the_devices_that_its_user_has_asked_for() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::unstarted_on(&cluster);
    let mut start = pool.command(&["pool", "start", "--bootstrap", "ssh"]);
    start.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "node[001-002]"), ("SLURM_TASKS_PER_NODE", "4(x2)")]);
    let output = start.env("SLURM_GPUS_PER_NODE", "a100:2").output().expect("scela is there");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(devices(&pool, 2, "gpu"), ["node001 0", "node001 1"]);
    assert_eq!(devices(&pool, 2, "gpu:a100:2"), ["node001 0,1", "node002 0,1"]);
    pool.job().args(["--gpus-per-rank", "3"]).np(1).program(sh("true")).run().has_code(251).says("has gpu:3");
}

#[test]
fn a_host_that_cannot_be_reached_prevents_the_start() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let pool = Pool::unstarted_on(&cluster);
    let output = pool.scela(&["pool", "start", "--hosts", "node001,node009"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(251) && text.contains("node009"), "{text}");
    pool.wait_for_end();
    assert!(!pool.directory().exists());
}

#[test]
fn a_node_whose_keeper_was_killed_comes_back_and_its_job_goes_on() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "2"]);
    let job = begin(&pool, 2, &["-ppn", "1"]);
    let mut keepers = cluster.host(1).processes();
    keepers.retain(|process| process.name == "scela-keeper");
    assert!(!keepers.is_empty());
    Process::signal_all(&keepers, Signal::SIGKILL);
    wait_for_state(&pool, "node002", "down");
    wait_for_state(&pool, "node002", "mixed");
    assert_eq!(hosts(&pool, 2, &["-ppn", "1"]), ["node001", "node002"]);
    assert_eq!(end(&pool, job), Some(143));
}

#[test]
fn a_node_whose_fork_server_was_killed_comes_back() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    let of_name = |name: &str| {
        let mut processes = cluster.host(1).processes();
        processes.retain(|process| process.name == name);
        processes
    };
    let (keepers, servers) = (of_name("scela-keeper"), of_name("scela-forks"));
    assert_eq!((keepers.len(), servers.len()), (1, 1));
    Process::signal_all(&servers, Signal::SIGKILL);
    // The next keeper is started after the node was down.
    let is_new = || of_name("scela-keeper").iter().any(|keeper| keeper.pid != keepers[0].pid).then_some(());
    assert!(eventually(is_new).is_some(), "{}", node(&pool, "node002"));
    wait_for_state(&pool, "node002", "idle");
    assert_eq!(hosts(&pool, 2, &[]), ["node001", "node002"]);
}

#[test]
fn a_node_whose_keeper_is_stopped_gets_no_jobs_until_it_answers() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    let mut keepers = cluster.host(1).processes();
    keepers.retain(|process| process.name == "scela-keeper");
    assert!(!keepers.is_empty());
    Process::signal_all(&keepers, Signal::SIGSTOP);
    wait_for_state(&pool, "node002", "down");
    let why = node(&pool, "node002")["why"].to_string();
    assert!(why.contains("the keeper has not answered for 20 s"), "{why}");
    assert_eq!(hosts(&pool, 1, &[]), ["node001"]);
    Process::signal_all(&keepers, Signal::SIGCONT);
    wait_for_state(&pool, "node002", "idle");
    assert_eq!(hosts(&pool, 2, &[]), ["node001", "node002"]);
}

#[test]
fn a_lost_host_comes_back() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    let mut job = begin(&pool, 2, &[]);
    cluster.cut(cluster.host(1));
    assert_eq!(job.wait().expect("it was not reaped").code(), Some(252));
    wait_for_state(&pool, "node002", "down");
    assert_eq!(hosts(&pool, 1, &[]), ["node001"]);
    cluster.mend(cluster.host(1));
    wait_for_state(&pool, "node002", "idle");
    assert_eq!(hosts(&pool, 2, &[]), ["node001", "node002"]);
}

#[test]
fn nothing_is_left_after_the_controller_was_killed() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "1"]);
    let mut job = begin(&pool, 2, &[]);
    pool.controller().signal(Signal::SIGKILL);
    assert_eq!(job.wait().expect("it was not reaped").code(), Some(252));
    pool.wait_for_end();
}
