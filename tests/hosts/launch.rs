//! Agents on several hosts: they connect, form a tree, run ranks and leave nothing behind.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Broken, Cluster, Host, Outcome, Run, Tree, link_sockets, scela, scela_run, sh};

use crate::{break_five, out, rank, reports_five};

/// Begins a run on the hosts of `cluster`, started from its front end.
fn on(cluster: &Cluster) -> Run {
    scela().on(cluster).args(["-hosts", &cluster.names()])
}

#[test]
fn sessions_run_flat_and_in_trees() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    for options in [
        &["--launch", "flat"][..],
        &["--launch", "flat", "--fanout", "2"],
        &["--launch", "tree"],
        &["--launch", "tree", "--fanout", "2"],
        &["--launch", "tree", "--fanout", "2", "--batch", "1"],
        &["--launch", "tree", "--agents-per-node", "2"],
    ] {
        let run = on(&cluster).np(16).args(options).program(rank(["neighbours", "2"]));
        run.run().is_quiet_success();
    }
}

/// All hosts are on one machine, and each has a network of its own.
#[test]
fn agents_of_a_host_link_by_a_socket_and_those_of_different_hosts_over_tcp() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let run = on(&cluster).np(4).args(["-ppn", "2", "--agents-per-node", "2", "--fanout", "2"]);
    let running = run.program(sh("echo start; exec sleep 1000")).spawn();
    running.wait_for_times("start", 4);
    let accepted = |host: &Host| {
        let sockets = host.processes().iter().flat_map(link_sockets).filter(|socket| !socket.listens).count();
        let agents = host.processes().iter().filter(|process| process.name == "scela-agent").count();
        (sockets, agents)
    };
    // One agent of each host is the other's parent, and the launcher's child.
    assert_eq!([0, 1].map(|host| accepted(cluster.host(host))), [(1, 2); 2]);
    assert!(link_sockets(&running.launcher()).iter().all(|socket| socket.listens));
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn ranks_run_on_the_hosts_where_they_were_placed() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let place = |options: &[&str]| {
        let script = sh("echo $PMI_RANK $(hostname)");
        let outcome = scela().on(&cluster).args(["-f"]).arg(cluster.host_file()).args(options).program(script).run();
        outcome.is_quiet_success();
        outcome.sorted_lines().join(",")
    };
    assert_eq!(place(&["-np", "6"]), "0 node001,1 node001,2 node002,3 node002,4 node003,5 node003");
    assert_eq!(place(&["-np", "4", "--map-by", "node"]), "0 node001,1 node002,2 node003,3 node001");
    assert_eq!(place(&["-ppn", "1"]), "0 node001,1 node002,2 node003");
    assert_eq!(place(&["-np", "2", "--exclude", "node002"]), "0 node001,1 node003");
}

#[test]
fn a_rank_has_the_callers_environment_directory_and_limits() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let script = sh("echo $MINE; echo ${SSH_CONNECTION-none}; ulimit -n; umask; pwd");
    let run = on(&cluster).np(1).env("MINE", "a b").directory("/").shell("umask 027; ulimit -Sn 777");
    run.program(script).run().is_quiet_success().wrote("a b\nnone\n777\n0027\n/\n");
}

#[test]
fn input_output_and_codes_are_forwarded() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let outcome =
        on(&cluster).np(2).stdin("a line\n").args(["-l", "--stdin", "1"]).program(sh("cat; exit $PMI_RANK")).run();
    outcome.has_code(1).wrote("[1] a line\n").says("rank 1 on node002 exited with code 1");
}

/// A remote shell closes when its agent has called back. If all stayed open until the last agent called back, a
/// launch on more hosts than the limit on connections would never complete.
#[test]
fn remote_shells_do_not_wait_for_each_other() {
    let (hosts, limit) = (12, 3);
    let Some(cluster) = Cluster::new_or_skip(hosts) else { return };
    cluster.limit_ssh(limit);
    cluster.hosts().iter().for_each(|host| host.delay_logins(Duration::from_millis(100)));
    for options in
        [&["--launch", "flat"][..], &["--launch", "flat", "--batch", "3"], &["--launch", "tree", "--fanout", "3"]]
    {
        on(&cluster).np(hosts as u32).args(options).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
}

/// The program is not installed on the hosts, and the home directories are read-only.
#[test]
fn the_program_is_sent() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    for host in cluster.hosts() {
        host.hide(scela_run());
        host.make_home_read_only();
    }
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        on(&cluster).np(8).args(options).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
}

/// The program is also sent to hosts that have another version of it. A `--launch-agent` command that runs another
/// version is reported.
#[test]
fn another_version_is_not_used() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let script = |name: &str, text: String| {
        let path = cluster.shared().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = scela_run().to_str().unwrap();
    let older = script("older", "test $1 = --agent-id && echo scela-0.0.0-1 || echo what is $1? >&2".into());
    // This command writes more than a greeting may contain.
    let other = script("other", "test $1 = --agent-id || seq 100000".into());
    out(cluster.host(1).run(["mount", "--bind", &older, own]));
    out(cluster.host(2).run(["mount", "--bind", &other, own]));
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        on(&cluster).np(6).args(options).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
    let newer = script("newer", format!("shift 2; exec {own} --guard scela-9.9.9-9 \"$@\""));
    let outcome = on(&cluster).np(3).arg("--launch-agent").arg(newer).program(rank(["neighbours", "1"])).run();
    outcome.has_code(251).says("node001: this is scela-").says(", and scela-9.9.9-9 is needed");
}

/// The hosts also refuse to execute new files, so an interpreter loads the program into memory.
#[test]
fn the_program_is_loaded_into_memory_where_files_cannot_be_executed() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    for (at, host) in cluster.hosts().iter().enumerate() {
        host.hide(scela_run());
        // Of the hosts that start others in the tree, one has only python3 and one has only perl.
        host.hide(["/usr/bin/perl", "/usr/bin/python3"][at / 2]);
        host.forbid_new_programs();
    }
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        on(&cluster).np(8).args(options).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
    let programs = |host: &tests::Host| {
        let agents = host.processes().into_iter().filter(|process| process.name == "scela-agent");
        agents.map(|agent| std::fs::read_link(format!("/proc/{}/exe", agent.pid)).unwrap()).collect::<Vec<_>>()
    };
    let run = on(&cluster).np(4).program(sh("echo up; sleep 60")).spawn();
    run.wait_for_times("up", 4);
    for host in cluster.hosts() {
        assert_eq!(programs(host), [std::path::Path::new("/memfd:scela-run (deleted)")], "{}", host.name());
    }
    run.signal(nix::sys::signal::Signal::SIGTERM);
    run.finish().has_code(143);
}

#[test]
fn hosts_that_fail_are_named_with_their_reasons() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    break_five(&cluster);
    // In a tree, an agent that starts others has half of the timeout.
    let run = |options: &[&str]| -> Outcome {
        let timeout = if options.contains(&"tree") { "24" } else { "12" };
        on(&cluster).np(8).args(["--start-timeout", timeout]).args(options).program(rank(["neighbours", "1"])).run()
    };
    for shape in ["flat", "tree"] {
        let outcome = run(&["--launch", shape, "--fanout", "2"]);
        outcome.has_code(251).says("no rank was started").wrote("");
        reports_five(&outcome, 8);
        assert!(outcome.took < Duration::from_secs(60));
        let outcome = run(&["--launch", shape, "--fanout", "2", "--min-nodes", "3"]);
        outcome.has_code(0).says("continuing without the failed hosts");
        reports_five(&outcome, 8);
    }
}

#[test]
fn spares_replace_bad_hosts() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    cluster.host(1).break_as(Broken::Refused);
    let script = sh("echo $PMI_RANK $(hostname)");
    let outcome = on(&cluster).np(2).args(["-ppn", "1", "--spares", "2"]).program(script).run();
    outcome.has_code(0).says("node002: Connection refused").wrote_lines(["0 node001", "1 node003"]);
}

/// One host has no name yet, and another no sshd. Both come while the launch waits, which says for whom; a host that never comes is
/// named at the end.
#[test]
fn hosts_that_come_late_are_waited_for() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    cluster.host(1).break_as(Broken::NameUnknown);
    cluster.host(2).break_as(Broken::Refused);
    let job = |time| on(&cluster).np(3).args(["-ppn", "1", "--wait-for-hosts", time]).program(sh("echo $(hostname)"));
    let run = job("60").spawn();
    run.wait_for_error("waiting for 2 of 3 hosts: 3 s of 60 s (--wait-for-hosts)");
    run.wait_for_error("node003: Connection refused");
    cluster.host(1).name_again();
    cluster.host(2).restart_sshd(&[]);
    let outcome = run.finish();
    outcome.has_code(0).says("all hosts can be reached").wrote_lines(["node001", "node002", "node003"]);
    cluster.host(2).break_as(Broken::Refused);
    job("1").run().has_code(251).says("1 of 3 hosts could not be started\n  node003: Connection refused");
}

#[test]
fn lost_agents_are_reported_by_host() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let run = on(&cluster).np(3).program(sh("echo up; sleep 60")).spawn();
    run.wait_for_times("up", 3);
    let agent = cluster.host(1).processes().into_iter().find(|process| process.name == "scela-agent").unwrap();
    agent.signal(nix::sys::signal::Signal::SIGKILL);
    let outcome = run.finish();
    outcome.has_code(252).says("on node002 was lost");
}

/// One host keeps the launch waiting, and another is cut off. The agent of the host that was cut off does not wait
/// forever.
#[test]
fn an_agent_that_is_cut_off_during_the_launch_ends() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::Silent);
    let run = on(&cluster).np(2).args(["--start-timeout", "60"]).program(sh("true")).spawn();
    let is_there = || cluster.host(0).processes().iter().any(|process| process.name == "scela-agent");
    run.wait_until("an agent that has called back and whose remote shell has closed", || {
        let said = cluster.host(0).run(["ss", "-Htn", "state", "established"]).stdout;
        let connections = String::from_utf8_lossy(&said);
        (is_there() && !connections.is_empty() && !connections.contains(":22 ")).then_some(())
    });
    cluster.cut(cluster.host(0));
    run.wait_until("the agent exits", || (!is_there()).then_some(()));
    run.signal(Signal::SIGINT);
    run.finish().has_code(130);
}

/// Returns a bootstrap command that runs Python `when_joining`, which may end the input, when the agent on `host` is told to
/// join the tree.
fn with_filter(cluster: &Cluster, host: &str, when_joining: &str) -> String {
    let (script, filter) = (cluster.shared().join("shell"), cluster.shared().join("filter"));
    let filter_text = format!(
        "import os, time\nwhile piece := os.read(0, 65536):\n    if b'Join' in piece: {when_joining}\n    os.write(1, piece)\n"
    );
    let words =
        format!("h=$1; shift; test $h = {host} || exec ssh $h \"$@\"\npython3 {} | ssh $h \"$@\"\n", filter.display());
    std::fs::write(&script, words).unwrap();
    std::fs::write(&filter, filter_text).unwrap();
    format!("exec:sh {} {{host}}", script.display())
}

/// The order to join reaches an agent late, but before the agent gives up: it gives up when it has heard nothing for 10 s, and the
/// last sign of life before the order may be 2 s older than the order. The agent below it waits meanwhile.
#[test]
fn an_agent_waits_longer_than_the_dead_time_for_its_parent() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let parent = cluster.host(Tree::new(3, 2).inner() as usize - 1).name();
    let bootstrap = with_filter(&cluster, parent, "time.sleep(6.3)");
    let run = on(&cluster).np(3).args(["--dead-time", "6", "--fanout", "2", "--bootstrap", &bootstrap]);
    run.program(rank(["neighbours", "1"])).run().is_quiet_success();
}

/// The channel to an agent ends when the agent is told to join the tree.
#[test]
fn a_host_that_is_lost_before_all_have_joined_is_replaced() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let bootstrap = with_filter(&cluster, "node002", "break");
    let job_of = |program: &str, options: &[&str]| {
        let run = on(&cluster).np(3).args(["--bootstrap", &bootstrap]).args(options);
        run.program(sh(program)).spawn()
    };
    let job = |options: &[&str]| job_of("echo $PMI_RANK on $(hostname)", options).finish();
    for policy in ["abort", "restart"] {
        let outcome = job(&["--spares", "1", "--on-failure", policy]);
        outcome
            .has_code(0)
            .says("launching again without node002, which was lost before all agents had joined the tree: ");
        outcome.never_says("error:").wrote_lines(["0 on node001", "1 on node003", "2 on node004"]);
    }
    let outcome = job(&["--exclude", "node004"]);
    outcome.has_code(251).says("node002").never_says("launching again");
    // The signal finds the first launch at its end, or the second one at its beginning.
    let interrupted = job_of("sleep 1000", &["--spares", "1"]);
    interrupted.wait_for_error("launching again").signal(Signal::SIGINT);
    interrupted.finish().has_code(130).says("INT: the ");
}

#[test]
fn any_command_can_serve_as_remote_shell() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let bootstrap = "exec:ssh {host} env FOUND=it";
    let run = on(&cluster).np(2).args(["--bootstrap", bootstrap, "--launch-agent"]).arg(scela_run());
    run.program(rank(["neighbours", "1"])).run().is_quiet_success();
}
