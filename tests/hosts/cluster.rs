//! The hosts that the tests use: they behave as hosts, fail as requested and leave nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tests::{Broken, Cluster, Host, Process, eventually, scela, scela_run, sh};

use crate::out;

/// Runs a command on a host by ssh from the front end. The timeout is long because a busy machine connects slowly.
fn ssh(cluster: &Cluster, host: &Host, words: &[&str]) -> Output {
    ssh_within(cluster, host, words, "ConnectTimeout=30")
}

/// Runs a command on a host that does not answer. A timeout of one second is enough.
fn ssh_without_answer(cluster: &Cluster, host: &Host, words: &[&str]) -> Output {
    ssh_within(cluster, host, words, "ConnectTimeout=1")
}

fn ssh_within(cluster: &Cluster, host: &Host, words: &[&str], timeout: &str) -> Output {
    cluster.front_end().run([&["ssh", "-o", timeout, host.name()], words].concat())
}

/// Asserts that ssh failed with its own exit code, 255, and wrote the text to standard error.
#[track_caller]
fn fails(output: &Output, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(255) && said.contains(text),
        "ssh should exit with 255 and print {text:?}: {output:?}"
    );
}

#[test]
fn hosts_have_names_addresses_processes_and_directories_of_their_own() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let (first, second) = (cluster.host(0), cluster.host(1));
    for host in cluster.everywhere() {
        assert_eq!(out(host.run(["hostname"])).trim(), host.name());
        assert!(out(host.run(["ip", "-brief", "address"])).contains(&host.address().to_string()));
    }
    let home = out(first.run(["sh", "-c", "echo ~"]));
    for place in ["/tmp", "/dev/shm", "/run", home.trim()] {
        let file = Path::new(place).join("a-file-of-the-first-host");
        out(first.run([Path::new("touch"), &file]));
        assert!(first.path(&file).exists() && !second.path(&file).exists() && !file.exists(), "{}", file.display());
    }
    // `ps` lists itself, the command that precedes it, sshd and the first process. It lists no process of another
    // host or of this machine.
    assert!(out(first.run(["ps", "-e", "--no-headers"])).lines().count() <= 3);
}

#[test]
fn orphans_on_a_host_are_reaped() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    out(cluster.host(0).run(["sh", "-c", "sh -c 'true & exec setsid --fork true' &"]));
    let states = || out(cluster.host(0).run(["ps", "-e", "--no-headers", "-o", "stat"]));
    assert!(eventually(|| (!states().contains('Z')).then_some(())).is_some(), "{}", states());
}

#[test]
fn all_hosts_know_each_others_addresses_and_share_files() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    assert_eq!(cluster.names(), "node001,node002,node003");
    fs::write(cluster.shared().join("word"), "seen").unwrap();
    for host in cluster.everywhere() {
        for other in cluster.everywhere() {
            let found = out(host.run(["getent", "ahostsv4", other.name()]));
            assert!(found.starts_with(&other.address().to_string()), "{found}");
        }
        assert_eq!(out(host.run([Path::new("cat"), &cluster.host_file()])), "node001\nnode002\nnode003\n");
        assert_eq!(out(host.run([Path::new("cat"), &cluster.shared().join("word")])), "seen");
        assert!(out(host.run([scela_run().as_path(), Path::new("--version")])).starts_with("scela-run"));
    }
}

#[test]
fn ssh_between_any_two_hosts_needs_no_prompt() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    for host in cluster.hosts() {
        for onward in cluster.hosts() {
            let said = ssh(&cluster, host, &["ssh", onward.name(), "hostname"]);
            assert!(said.stderr.is_empty(), "{said:?}");
            assert_eq!(out(said).trim(), onward.name());
        }
    }
}

#[test]
fn hosts_and_front_end_have_the_requested_names() {
    if Cluster::new_or_skip(0).is_none() {
        return;
    }
    let cluster = Cluster::builder(0).names(["first", "a-name.with.dots"]).front_end("head").start();
    assert_eq!(out(ssh(&cluster, cluster.host(1), &["hostname"])).trim(), "a-name.with.dots");
    assert_eq!(out(cluster.front_end().run(["hostname"])).trim(), "head");
}

#[test]
fn many_hosts_are_created_and_removed_within_seconds() {
    let since = Instant::now();
    let Some(cluster) = Cluster::new_or_skip(32) else { return };
    assert_eq!(out(ssh(&cluster, cluster.host(31), &["hostname"])).trim(), "node032");
    drop(cluster);
    // This takes one second if the cores are idle.
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
}

#[test]
fn a_host_without_a_name_cannot_be_resolved() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::NameUnknown);
    fails(&ssh(&cluster, cluster.host(1), &["true"]), "Could not resolve hostname node002: Name or service not known");
    out(ssh(&cluster, cluster.host(0), &["true"]));
}

#[test]
fn a_host_without_sshd_refuses_connections() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::Refused);
    fails(&ssh(&cluster, cluster.host(1), &["true"]), "connect to host node002 port 22: Connection refused");
    out(ssh(&cluster, cluster.host(0), &["true"]));
}

#[test]
fn a_host_without_the_users_key_denies_logins() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::NoLogin);
    fails(&ssh(&cluster, cluster.host(1), &["true"]), "Permission denied (publickey)");
    out(ssh(&cluster, cluster.host(0), &["true"]));
}

#[test]
fn a_host_can_accept_connections_without_answering() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::Silent);
    fails(&ssh_without_answer(&cluster, cluster.host(1), &["true"]), "Connection timed out during banner exchange");
    out(ssh(&cluster, cluster.host(0), &["true"]));
}

#[test]
fn a_host_can_forbid_to_execute_new_files() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(Broken::NoExec);
    let script = "for place in / ~ /tmp /dev/shm /run /dev /var/tmp /usr/bin \"$OLDPWD\"; do
        # The host shares some of these directories with this machine.
        copy=$(mktemp \"$place/scela-test-XXXXXX\" 2>/dev/null) || continue
        cp --preserve=mode /bin/true \"$copy\" 2>/dev/null && \"$copy\" 2>/dev/null && echo $place
        rm -f \"$copy\"
    done
    command -v perl python3; echo done";
    assert_eq!(out(ssh(&cluster, cluster.host(1), &[script])), "done\n");
    assert!(out(ssh(&cluster, cluster.host(0), &[script])).contains("/tmp\n"));
}

#[test]
fn a_home_directory_can_be_read_only() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let host = cluster.host(0);
    out(ssh(&cluster, host, &["touch ~/before"]));
    host.make_home_read_only();
    assert_eq!(ssh(&cluster, host, &["touch ~/after"]).status.code(), Some(1));
    assert!(host.home().join("before").exists() && !host.home().join("after").exists());
}

#[test]
fn a_program_can_be_absent_from_a_host() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let words = [scela_run().to_str().unwrap(), "--version"];
    cluster.host(1).hide(scela_run());
    let said = ssh(&cluster, cluster.host(1), &words);
    assert_eq!(said.status.code(), Some(127), "{said:?}");
    out(ssh(&cluster, cluster.host(0), &words));
    // Hiding the program does not hide the other files of its directory.
    out(ssh(&cluster, cluster.host(1), &["ls", env!("CARGO_BIN_EXE_rank")]));
    assert!(scela_run().exists());
}

#[test]
fn all_tcp_ports_but_one_can_be_closed() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let host = cluster.host(0);
    host.restart_sshd(&["Port 22", "Port 2200"]);
    out(ssh(&cluster, host, &["-p2200", "true"]));
    host.drop_all_tcp_but(22);
    fails(&ssh_without_answer(&cluster, host, &["-p2200", "true"]), "port 2200: Connection timed out");
    out(ssh(&cluster, host, &["true"]));
}

#[test]
fn logins_can_be_slow() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let delay = Duration::from_millis(300);
    cluster.host(0).delay_logins(delay);
    let since = Instant::now();
    assert_eq!(out(ssh(&cluster, cluster.host(0), &["echo said"])), "said\n");
    assert!(since.elapsed() >= delay);
}

#[test]
fn ssh_connections_can_be_limited() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    cluster.limit_ssh(2);
    let logged_in = [cluster.host(0), cluster.host(1)].map(|host| {
        let mut ssh = cluster.front_end().command("ssh");
        let ssh = ssh.args([host.name(), "echo in; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut ssh = ssh.unwrap();
        let mut said = String::new();
        BufReader::new(ssh.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "in\n");
        ssh
    });
    fails(&ssh(&cluster, cluster.host(2), &["true"]), "Connection refused");
    for mut ssh in logged_in {
        drop(ssh.stdin.take());
        assert!(ssh.wait().unwrap().success());
    }
    out(ssh(&cluster, cluster.host(2), &["true"]));
}

#[test]
fn a_host_can_be_disconnected_and_reconnected() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.cut(cluster.host(1));
    fails(&ssh_without_answer(&cluster, cluster.host(1), &["true"]), "port 22: ");
    out(ssh(&cluster, cluster.host(0), &["true"]));
    cluster.mend(cluster.host(1));
    eventually(|| ssh(&cluster, cluster.host(1), &["true"]).status.success().then_some(())).unwrap();
}

#[test]
fn a_host_can_freeze_and_thaw() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).freeze();
    fails(&ssh_without_answer(&cluster, cluster.host(1), &["true"]), "Connection timed out during banner exchange");
    cluster.host(1).thaw();
    out(ssh(&cluster, cluster.host(1), &["true"]));
}

#[test]
fn a_session_can_run_on_the_front_end() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let run = scela().on(&cluster).np(2).directory(cluster.shared());
    let outcome = run.program(sh("hostname; pwd; ssh node001 hostname")).run();
    let shared = cluster.shared();
    outcome.is_quiet_success();
    outcome.wrote_lines(
        ["login", "login", "node001", "node001"]
            .map(String::from)
            .into_iter()
            .chain([shared.display().to_string(), shared.display().to_string()]),
    );
}

#[test]
fn processes_and_files_left_on_a_host_are_found() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    let leaving = ["touch /tmp/left", "touch /dev/shm/left", "SCELA_TEST_WORLD=$1 setsid sleep 1000 >/dev/null 2>&1 &"];
    for command in leaving {
        let run = scela()
            .on(&cluster)
            .np(1)
            .program(sh(&format!("set -- \"$SCELA_TEST_WORLD\"; ssh node001 \"sh -c '{command}' sh $1\"")));
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.run()));
        let said = left.expect_err(command);
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.starts_with("processes or files were left behind"), "{said}");
    }
}

/// Returns the namespaces of a process, as the targets of the links in `/proc/PID/ns`.
fn namespaces(pid: i32) -> BTreeSet<PathBuf> {
    ["net", "uts", "ipc", "mnt", "pid"]
        .into_iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .collect()
}

fn interfaces() -> String {
    out(Command::new("ip").args(["-oneline", "link"]).output().unwrap())
}

#[test]
fn a_dropped_cluster_leaves_nothing() {
    let interfaces_before = interfaces();
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let own = namespaces(std::process::id() as i32);
    let of_cluster: BTreeSet<_> = cluster.everywhere().flat_map(|host| namespaces(host.pid())).collect();
    let of_cluster: BTreeSet<_> = of_cluster.difference(&own).cloned().collect();
    assert_eq!(of_cluster.len(), 3 * 5 + 4);
    // Start a process that would stay on two hosts, one of which is then frozen, and on the front end.
    let stays = "setsid sleep 1000 >/dev/null 2>&1 & echo stays";
    for host in [cluster.host(0), cluster.host(1), cluster.front_end()] {
        out(host.run(["sh", "-c", stays]));
    }
    cluster.host(1).freeze();
    assert_eq!(interfaces(), interfaces_before);
    let directory = cluster.shared();
    let directory = directory.ancestors().nth(2).unwrap();
    assert!(directory.exists());

    let is_inside = |process: &Process| process.state != 'Z' && !namespaces(process.pid).is_disjoint(&of_cluster);
    let inside: BTreeSet<i32> = Process::all().iter().filter(|process| is_inside(process)).map(|it| it.pid).collect();

    drop(cluster);
    assert!(!directory.exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(directory.to_str().unwrap()), "{mounts}");
    assert_eq!(interfaces(), interfaces_before);
    // Another test's cluster may be given the numbers of namespaces that no longer exist. The processes of the
    // front end have only been signalled, so wait for them.
    let is_left = |process: &Process| inside.contains(&process.pid) && is_inside(process);
    let left = || Process::all().into_iter().filter(is_left).collect::<Vec<_>>();
    assert!(eventually(|| left().is_empty().then_some(())).is_some(), "{:?}", left());
}
