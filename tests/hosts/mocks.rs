//! The mock commands of resource managers: what they start, where, and how they connect standard input and output.

use std::io::Write as _;
use std::process::{Output, Stdio};

use tests::{Cluster, Manager, Mock, eventually};

use crate::out;

/// Runs a command in the job, on the front end, with one line of standard input.
fn run(cluster: &Cluster, mock: &Mock, words: &[&str]) -> Output {
    let mut command = cluster.front_end().command(words[0]);
    command.args(&words[1..]).envs(mock.environment()).env("OWN", "own");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The write fails if the command closed its standard input without reading it.
    let _ = child.stdin.take().unwrap().write_all(b"read\n");
    child.wait_with_output().unwrap()
}

/// A script that prints its host, its standard input and a variable of its caller's environment.
const PRINT_HOST_AND_INPUT: &str = "echo $(hostname) $(cat) ${OWN:-}";

#[test]
fn tasks_of_pbs_have_no_input_and_write_to_the_output_of_the_job() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let mock = Mock::new(Manager::Pbs, &cluster, 2);
    assert_eq!(out(run(&cluster, &mock, &["pbs_tmrsh", "-n", "node002", "sh", "-c", PRINT_HOST_AND_INPUT])), "");
    assert_eq!(mock.output(), "node002\n");
    assert_eq!(mock.calls(), [["pbs_tmrsh", "-n", "node002", "sh", "-c", PRINT_HOST_AND_INPUT]]);
    assert_eq!(run(&cluster, &mock, &["pbs_tmrsh", "node003", "sh", "-c", "exit 3"]).status.code(), Some(3));
    let stranger = run(&cluster, &mock, &["pbs_tmrsh", "login", "true"]);
    assert_eq!(stranger.status.code(), Some(255));
    assert_eq!(
        String::from_utf8_lossy(&stranger.stderr),
        "pbs_tmrsh: host \"login\" is not a node in job <1.server>\n"
    );

    let output_of = |words: &[&str]| {
        let before = mock.output().len();
        out(run(&cluster, &mock, words));
        let said = mock.output().split_off(before);
        let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(output_of(&["pbsdsh", "-u", "--", "hostname"]), ["node001", "node002", "node003"]);
    assert_eq!(output_of(&["pbsdsh", "-n", "4", "hostname"]), ["node003"]);
    assert_eq!(output_of(&["pbsdsh", "-c", "3", "hostname"]), ["node001", "node001", "node002"]);
    assert_eq!(output_of(&["pbsdsh", "hostname"]).len(), 6);
}

#[test]
fn lsf_passes_a_command_line_to_a_shell() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let mock = Mock::new(Manager::Lsf, &cluster, 2);
    let environment: Vec<_> = mock.environment().collect();
    assert!(environment.contains(&("LSB_MCPU_HOSTS", "node001 2 node002 2")));
    assert_eq!(out(run(&cluster, &mock, &["blaunch", "node002", PRINT_HOST_AND_INPUT])), "node002 read own\n");
    assert_eq!(out(run(&cluster, &mock, &["blaunch", "-n", "node002", PRINT_HOST_AND_INPUT])), "node002 own\n");
    assert_eq!(out(run(&cluster, &mock, &["blaunch", "-no-shell", "node002", "echo", "$HOME"])), "$HOME\n");
    let said = out(run(&cluster, &mock, &["blaunch", "-z", "node001 node002", "hostname"]));
    assert!(said.contains("node001\n") && said.contains("node002\n"), "{said}");
    assert_eq!(run(&cluster, &mock, &["blaunch", "node001", "exit 4"]).status.code(), Some(4));
    assert_eq!(run(&cluster, &mock, &["blaunch", "login", "true"]).status.code(), Some(255));
}

#[test]
fn tasks_of_sge_have_the_environment_of_the_job() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let mock = Mock::new(Manager::Sge, &cluster, 2);
    assert_eq!(out(run(&cluster, &mock, &["qrsh", "-inherit", "node002", PRINT_HOST_AND_INPUT])), "node002 read\n");
    assert_eq!(
        out(run(&cluster, &mock, &["qrsh", "-inherit", "-V", "-nostdin", "node002", PRINT_HOST_AND_INPUT])),
        "node002 own\n"
    );
    assert_eq!(out(run(&cluster, &mock, &["qrsh", "-inherit", "node001", "echo $JOB_ID $NSLOTS"])), "1 4\n");
    let unknown = run(&cluster, &mock, &["qrsh", "-inherit", "-nostdin=no", "node001", "true"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("unknown option"), "{unknown:?}");
    let stranger = run(&cluster, &mock, &["qrsh", "-inherit", "login", "true"]);
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("didn't accept task"), "{stranger:?}");
}

#[test]
fn flux_runs_commands_on_ranks() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let mock = Mock::new(Manager::Flux, &cluster, 8);
    let exec =
        |ranks: &str, script: &str| out(run(&cluster, &mock, &["flux", "exec", "-r", ranks, "sh", "-c", script]));
    assert_eq!(exec("2", PRINT_HOST_AND_INPUT), "node003 read own\n");
    let said = exec("0,2-3", PRINT_HOST_AND_INPUT);
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["node001 read own", "node003 read own", "node004 read own"]);
    assert_eq!(run(&cluster, &mock, &["flux", "exec", "-n", "sh", "-c", "exit 5"]).status.code(), Some(5));
    // flux exec treats output as text: the rest of a line after a NUL byte is lost.
    assert_eq!(exec("1", r"printf 'before\0behind\n'; hostname"), "before\nnode002\n");
    let stranger = run(&cluster, &mock, &["flux", "exec", "--host=node002", "true"]);
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("unrecognized option"), "{stranger:?}");

    let says = |words: &[&str]| out(run(&cluster, &mock, words));
    assert_eq!(says(&["flux", "resource", "list", "-n", "-o", "{nnodes} {ncores} {nodelist}"]), "4 32 node[001-004]\n");
    assert_eq!(says(&["flux", "getattr", "hostlist"]), "node[001-004]\n");
    assert_eq!(says(&["flux", "hostlist", "-e", "-d", ","]), "node001,node002,node003,node004\n");
}

#[test]
fn flux_folds_host_lists() {
    if Cluster::new_or_skip(0).is_none() {
        return;
    }
    let names = ["a1", "a2", "b", "c09", "c10", "c12", "d"];
    let cluster = Cluster::builder(0).names(names).start();
    let mock = Mock::new(Manager::Flux, &cluster, 1);
    assert_eq!(out(run(&cluster, &mock, &["flux", "hostlist"])), "a[1-2],b,c[09-10,12],d\n");
}

#[test]
fn a_task_ends_with_the_command_that_started_it() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    for (manager, command) in [
        (Manager::Lsf, "blaunch node001 exec"),
        (Manager::Sge, "qrsh -inherit node001 exec"),
        (Manager::Flux, "flux exec -r 0"),
    ] {
        let mock = Mock::new(manager, &cluster, 1);
        let script = format!("exec {command} sleep 1000");
        let mut child =
            cluster.front_end().command("sh").args(["-c", &script]).envs(mock.environment()).spawn().unwrap();
        let sleeps = || cluster.host(0).processes().iter().any(|process| process.name == "sleep");
        eventually(|| sleeps().then_some(())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        eventually(|| (!sleeps()).then_some(())).unwrap();
    }
}
