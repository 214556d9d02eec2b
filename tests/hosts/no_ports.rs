//! Links over the remote shells that started the agents, in a network that passes nothing but ssh.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Broken, Cluster, Process, Run, eventually, scela, scela_run, sh};

use crate::{mpich, out, rank};

/// Starts eight hosts and a front end, between which all TCP packets except those to port 22 are dropped.
fn closed_cluster() -> Option<Cluster> {
    let cluster = Cluster::new_or_skip(8)?;
    cluster.everywhere().for_each(|host| host.drop_all_tcp_but(22));
    Some(cluster)
}

/// Begins a run with a long timeout: a busy machine needs time for the successive logins of a tree.
fn on(cluster: &Cluster) -> Run {
    let run = scela().on(cluster).args(["-hosts", &cluster.names(), "--no-ports", "--start-timeout", "60"]);
    run.deadline(Duration::from_secs(120))
}

/// A flat launch, and trees of different depths.
const SHAPES: [&[&str]; 4] = [
    &["--launch", "flat"],
    &["--launch", "tree", "--fanout", "3"],
    &["--launch", "tree", "--fanout", "2"],
    &["--launch", "tree", "--fanout", "8"],
];

#[test]
fn only_ssh_passes_the_firewall() {
    let Some(cluster) = closed_cluster() else { return };
    // Only the host itself can reach its sshd on a second port.
    let host = cluster.host(0);
    host.restart_sshd(&["Port 22", "Port 2200"]);
    let reaches = |from: &tests::Host, timeout: u32| {
        let words = ["ssh", "-o", &format!("ConnectTimeout={timeout}"), "-p", "2200", host.name(), "true"];
        from.run(words).status.success()
    };
    assert!(reaches(host, 30));
    for other in [cluster.front_end(), cluster.host(1)] {
        assert!(!reaches(other, 1));
        out(other.run(["ssh", host.name(), "true"]));
    }
    // Without `--no-ports`, no agent can call back.
    let hosts = [cluster.host(0).name(), cluster.host(1).name()].join(",");
    let run = scela().on(&cluster).args(["-hosts", &hosts]).np(2).program(sh("true"));
    run.run().has_code(251).says("cannot be reached");
}

#[test]
fn sessions_run_flat_and_in_trees() {
    let Some(cluster) = closed_cluster() else { return };
    for options in SHAPES {
        on(&cluster).np(16).args(options).program(rank(["neighbours", "2"])).run().is_quiet_success();
    }
    let run = on(&cluster).np(16).args(["--launch", "tree", "--fanout", "3", "--agents-per-node", "2"]);
    run.program(rank(["neighbours", "2"])).run().is_quiet_success();
}

#[test]
fn no_process_listens_except_sshd() {
    let Some(cluster) = closed_cluster() else { return };
    let run = on(&cluster).np(8).args(["--launch", "tree", "--fanout", "2"]).program(sh("echo up; sleep 60"));
    let run = run.spawn();
    run.wait_for_times("up", 8);
    for host in cluster.everywhere() {
        let listening = out(host.run(["ss", "-Hltn"]));
        let others: Vec<&str> = listening.lines().filter(|line| !line.contains(":22 ")).collect();
        assert!(others.is_empty(), "{}: {others:?}", host.name());
    }
    run.signal(Signal::SIGTERM);
    run.finish().has_code(143);
}

#[test]
fn output_input_signals_and_codes_are_forwarded() {
    let Some(cluster) = closed_cluster() else { return };
    for options in SHAPES {
        // The rank that exits with a code is the one that reads the input: when a rank fails, the launcher does not
        // wait for the output of the others.
        let script = sh("cat; echo err $PMI_RANK >&2; test $PMI_RANK != 5 || exit 7");
        let run = on(&cluster).np(8).args(options).args(["-l", "--stdin", "5"]).stdin("a line\n").program(script);
        let outcome = run.run();
        outcome.has_code(7).wrote("[5] a line\n").says("rank 5 on node006 exited with code 7").says("err 5");
        let run =
            on(&cluster).np(8).args(options).program(sh("trap 'echo ended; exit 0' TERM; echo up; sleep 60 & wait"));
        let run = run.spawn();
        run.wait_for_times("up", 8).signal(Signal::SIGTERM);
        run.wait_for_times("ended", 8);
        run.finish().has_code(143);
    }
}

/// The data exceeds the buffers of pipes and ssh's windows, in both directions at once.
#[test]
fn large_output_and_input_arrive_whole() {
    let Some(cluster) = closed_cluster() else { return };
    let input = vec![b'x'; 2 << 20];
    for options in [SHAPES[0], SHAPES[2]] {
        let script = sh("cat | wc -c; head -c 262144 /dev/zero | tr '\\0' '\\n' | sed s/^/yyyyyyy/");
        let run = on(&cluster).np(8).args(options).args(["--stdin", "all"]).stdin(input.clone()).program(script);
        let outcome = run.run();
        outcome.has_code(0);
        let out = outcome.out();
        let count = |line: &str| out.lines().filter(|found| *found == line).count();
        outcome.check(count("2097152") == 8, "each rank should have read the whole input");
        outcome.check(count("yyyyyyy") == 8 * (256 << 10), "all lines should arrive");
    }
}

fn agent_of(host: &tests::Host) -> Process {
    let agent = || host.processes().into_iter().find(|process| process.name == "scela-agent");
    eventually(agent).unwrap_or_else(|| panic!("no agent runs on {}", host.name()))
}

fn guardian_of(host: &tests::Host) -> Process {
    let guardian = || host.processes().into_iter().find(|process| process.name == "scela-guard");
    eventually(guardian).unwrap_or_else(|| panic!("no guardian runs on {}", host.name()))
}

/// Asserts that no process of the session is left on any host. Processes of sshd may still be ending.
#[track_caller]
fn assert_nothing_is_left(cluster: &Cluster) {
    let is_ours = |process: &Process| {
        process.state != 'Z' && (process.name.starts_with("scela-") || matches!(process.name.as_str(), "ssh" | "sleep"))
    };
    let left = || -> Vec<Process> {
        cluster.hosts().iter().flat_map(tests::Host::processes).filter(|process| is_ours(process)).collect()
    };
    assert!(eventually(|| left().is_empty().then_some(())).is_some(), "{:?}", left());
}

#[test]
fn lost_agents_are_reported_by_host_and_leave_nothing() {
    let Some(cluster) = closed_cluster() else { return };
    // In the tree, node001 has opened remote shells to others, and node008 has not.
    for (options, host) in [(SHAPES[0], 2), (SHAPES[2], 0), (SHAPES[2], 7)] {
        for process_on in [agent_of, guardian_of] {
            let run = on(&cluster).np(8).args(options).program(sh("echo up; sleep 60")).spawn();
            run.wait_for_times("up", 8);
            process_on(cluster.host(host)).signal(Signal::SIGKILL);
            let outcome = run.finish();
            outcome.has_code(252).says(&format!("on {} was lost", cluster.host(host).name()));
            assert_nothing_is_left(&cluster);
        }
    }
}

#[test]
fn a_killed_remote_shell_is_reported_as_a_lost_agent() {
    let Some(cluster) = closed_cluster() else { return };
    let run = on(&cluster).np(8).args(SHAPES[2]).program(sh("echo up; sleep 60")).spawn();
    run.wait_for_times("up", 8);
    let is_remote_shell =
        |process: &Process| process.name == "ssh" && process.argv.iter().any(|word| word == "node002");
    let remote_shell = cluster.host(0).processes().into_iter().find(is_remote_shell);
    remote_shell.expect("node001 has a remote shell to node002").signal(Signal::SIGKILL);
    run.finish().has_code(252).says("on node002 was lost: it closed the connection");
    assert_nothing_is_left(&cluster);
}

/// One host keeps the launch waiting, and another is cut off. Its sshd does not notice, so only the launcher's signs of life
/// tell the agent that it is cut off.
#[test]
fn an_agent_that_is_cut_off_during_the_launch_ends() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::Silent);
    let run = on(&cluster).np(2).args(["--dead-time", "2"]).program(sh("true")).spawn();
    let is_there = || cluster.host(0).processes().iter().any(|process| process.name == "scela-agent");
    run.wait_until("an agent", || is_there().then_some(()));
    cluster.cut(cluster.host(0));
    let cut_at = Instant::now();
    run.wait_until("the agent exits", || (!is_there()).then_some(()));
    assert!(
        cut_at.elapsed() < Duration::from_secs(30),
        "the agent exited only with its guardian, after {:?}",
        cut_at.elapsed()
    );
    run.signal(Signal::SIGINT);
    run.finish().has_code(130);
}

/// Agents that wait for a slow host receive `Alive` from their starter, and so wait for longer than the dead time. The time
/// limit of the job begins when all agents have reported.
#[test]
fn agents_wait_for_a_slow_host() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let (script, go) = (cluster.shared().join("slow"), cluster.shared().join("go"));
    let words =
        "h=$1; shift; test $h != node002 || until test -e ${0%slow}go; do sleep 0.1; done; exec ssh $h \"$@\"\n";
    std::fs::write(&script, words).unwrap();
    let bootstrap = format!("exec:sh {} {{host}}", script.display());
    for options in [SHAPES[0], SHAPES[2]] {
        let run = on(&cluster).np(4).args(["--dead-time", "3", "--timeout", "8"]).args(options);
        let run = run.args(["--bootstrap", &bootstrap]).program(rank(["neighbours", "1"])).spawn();
        let has_agent = |host: &&tests::Host| host.processes().iter().any(|process| process.name == "scela-agent");
        let waiting = run.wait_until("three agents, or two below node001", || {
            let waiting = cluster.hosts().iter().filter(has_agent).count();
            (waiting >= 2).then_some(Instant::now())
        });
        run.wait_until("three dead times", || (waiting.elapsed() >= Duration::from_secs(9)).then_some(()));
        std::fs::write(&go, "").unwrap();
        run.finish().is_quiet_success();
        std::fs::remove_file(&go).unwrap();
    }
}

/// Neither end of a remote shell is notified of the cut.
#[test]
fn a_host_that_is_cut_off_is_reported_as_lost() {
    let Some(cluster) = closed_cluster() else { return };
    let run = on(&cluster).np(8).args(SHAPES[2]).program(sh("echo up; sleep 60")).spawn();
    run.wait_for_times("up", 8);
    // node003 has a parent, node001, and a child, node004.
    cluster.cut(cluster.host(2));
    let outcome = run.finish();
    outcome.has_code(252).says("on node003 was lost: nothing was heard from it for 20 s");
    assert_nothing_is_left(&cluster);
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let Some(cluster) = closed_cluster() else { return };
    for options in [SHAPES[0], SHAPES[2]] {
        let run = on(&cluster).np(8).args(options).program(sh("echo up; sleep 60")).spawn();
        run.wait_for_times("up", 8).signal(Signal::SIGKILL);
        run.finish_killed();
        assert_nothing_is_left(&cluster);
    }
}

/// Processes that ranks leave behind are ended and counted. The remote shells to agents below are not among them.
#[test]
fn leftovers_of_ranks_are_distinguished_from_remote_shells() {
    let Some(cluster) = closed_cluster() else { return };
    // The other ranks start no process: one that has only just been started would also count as left behind.
    let script = sh("if test $PMI_RANK = 0; then setsid sleep 60 >/dev/null 2>&1 & fi; exit 0");
    let outcome = on(&cluster).np(8).args(["--launch", "tree", "--fanout", "2"]).program(script).run();
    outcome.has_code(0).says("1 process that the ranks had left running was ended");
    assert_nothing_is_left(&cluster);
}

#[test]
fn hosts_that_fail_are_named_and_the_others_continue() {
    let Some(cluster) = closed_cluster() else { return };
    cluster.host(0).break_as(Broken::NoLogin);
    cluster.host(2).break_as(Broken::Refused);
    cluster.host(5).break_as(Broken::NoExec);
    cluster.host(5).hide(scela_run());
    for options in [SHAPES[0], SHAPES[2]] {
        for (fewer, code) in [(&[][..], 251), (&["--min-nodes", "5"], 0)] {
            let run = on(&cluster).np(8).args(options).args(fewer).program(rank(["neighbours", "1"]));
            let outcome = run.run();
            outcome.has_code(code);
            for text in [
                "3 of 8 hosts could not be started",
                "node001: Permission denied",
                "node003: Connection refused",
                "node006: no place",
            ] {
                outcome.says(text);
            }
        }
    }
    // A host that does not answer uses up half of the timeout. The rest of the launch begins again in the other half.
    cluster.host(6).break_as(Broken::Silent);
    let run = on(&cluster).np(8).args(SHAPES[2]).args(["--min-nodes", "4", "--start-timeout", "40"]);
    let outcome = run.program(rank(["neighbours", "1"])).run();
    outcome.has_code(0).says("4 of 8 hosts could not be started");
    outcome.says("node007: no answer in time (--start-timeout)");
    assert_nothing_is_left(&cluster);
}

#[test]
fn spares_replace_bad_hosts() {
    let Some(cluster) = closed_cluster() else { return };
    cluster.host(1).break_as(Broken::Refused);
    cluster.host(6).break_as(Broken::NoLogin);
    let script = || sh("echo $PMI_RANK $(hostname)");
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        // A spare that replaces a bad host may itself be bad.
        let outcome = on(&cluster).np(5).args(["-ppn", "1", "--spares", "3"]).args(options).program(script()).run();
        outcome.has_code(0).says("node002: Connection refused");
        outcome.wrote_lines(["0 node001", "1 node003", "2 node004", "3 node005", "4 node006"]);
    }
    let options = ["-ppn", "1", "--spares", "2", "--launch", "tree", "--fanout", "2"];
    let outcome = on(&cluster).np(6).args(options).program(script()).run();
    outcome.has_code(0).says("node002: Connection refused").says("node007: Permission denied");
    outcome.wrote_lines(["0 node001", "1 node003", "2 node004", "3 node005", "4 node006", "5 node008"]);
    assert_nothing_is_left(&cluster);
}

/// Returns a bootstrap command with which the agent on node003 reports but does not join the tree.
fn without_join(cluster: &Cluster) -> String {
    // The command stands in for a remote shell that closes its output too early, when the agent is about to send
    // its hello.
    let (script, filter) = (cluster.shared().join("cut"), cluster.shared().join("filter"));
    let words =
        format!("h=$1; shift; test $h = node003 || exec ssh $h \"$@\"\nssh $h \"$@\" | python3 {}\n", filter.display());
    std::fs::write(&script, words).unwrap();
    let filter_text = "import os\nword = b'Joining'\nwhile piece := os.read(0, 65536):\n    \
        at = piece.find(word)\n    os.write(1, piece[:at + len(word)] if at >= 0 else piece)\n    \
        if at >= 0: break\n";
    std::fs::write(&filter, filter_text).unwrap();
    format!("exec:sh {} {{host}}", script.display())
}

/// All agents were started, and one does not join the tree.
#[test]
fn a_host_that_does_not_join_is_named() {
    let Some(cluster) = closed_cluster() else { return };
    let bootstrap = without_join(&cluster);
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        let run = on(&cluster).np(8).args(["--bootstrap", &bootstrap]).args(options).program(sh("true"));
        let outcome = run.run();
        outcome.has_code(251).says("node003").says("it started but did not join the tree within 10 s");
        assert_nothing_is_left(&cluster);
    }
}

#[test]
fn a_spare_replaces_a_host_that_does_not_join() {
    let Some(cluster) = closed_cluster() else { return };
    let bootstrap = without_join(&cluster);
    for options in [SHAPES[0], SHAPES[2]] {
        let run = on(&cluster).np(7).args(["--spares", "1", "--bootstrap", &bootstrap]).args(options).stdin("a line\n");
        let outcome = run.program(sh("read line; test $(hostname) != node003 && echo \"$PMI_RANK $line\"")).run();
        outcome
            .has_code(0)
            .says("launching again without node003, which was lost before all agents had joined the tree: ");
        outcome.says(": it started but did not join the tree within 10 s").never_says("error:");
        let lines = [0, 1, 2, 3, 4, 5, 6].map(|rank| format!("{rank} {}", if rank == 0 { "a line" } else { "" }));
        outcome.wrote_lines(lines);
        assert_nothing_is_left(&cluster);
    }
}

#[test]
fn any_command_can_serve_as_remote_shell() {
    let Some(cluster) = closed_cluster() else { return };
    for options in [&[][..], &["--launch", "tree", "--fanout", "2"]] {
        let run = on(&cluster).np(8).args(["--bootstrap", "exec:ssh {host} env FOUND=it"]).args(options);
        run.program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
}

#[test]
fn the_program_is_sent() {
    let Some(cluster) = closed_cluster() else { return };
    for host in cluster.hosts() {
        host.hide(scela_run());
    }
    for options in [SHAPES[0], SHAPES[2]] {
        on(&cluster).np(8).args(options).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
}

#[test]
fn a_fanout_for_a_flat_launch_is_refused() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let run = || on(&cluster).np(1).program(sh("true"));
    let outcome = run().args(["--launch", "flat", "--fanout", "2"]).run();
    outcome.has_code(2).says("--fanout 2 means nothing");
}

/// MPI's own traffic needs ports between hosts. ScELA's needs none.
#[test]
fn mpich_with_its_own_ports_only() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let Some(program) = mpich::world(&cluster) else { return };
    // libfabric draws a port and fails if another rank of the host has it, so there are many.
    cluster.everywhere().for_each(|host| host.drop_all_tcp_but("{ 22, 23000-32767 }"));
    for options in SHAPES {
        let run = mpich::on(&cluster, &program).np(16).arg("--no-ports").args(options);
        let run = run.env("FI_TCP_PORT_LOW_RANGE", "23000").env("FI_TCP_PORT_HIGH_RANGE", "32767");
        mpich::assert_all_right(&run.run(), 16);
    }
}

/// Ranks of one node communicate in shared memory, so MPI needs no port either.
#[test]
fn mpich_on_one_host_needs_no_port() {
    let Some(cluster) = closed_cluster() else { return };
    let Some(program) = mpich::world(&cluster) else { return };
    let run = mpich::on(&cluster, &program).np(4).args(["--no-ports", "--select", "3", "--agents-per-node", "2"]);
    mpich::assert_all_right(&run.run(), 4);
}
