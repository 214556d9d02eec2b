//! Launches inside a job of PBS, LSF, Grid Engine or Flux without options. Agents are started by the manager's own
//! command if it is suitable, otherwise by ssh.

use tests::{Cluster, Manager, Mock, Run, scela, scela_run};

use crate::rank;

/// Begins a run inside the job, on its front end.
fn within(cluster: &tests::Cluster, mock: &Mock) -> Run {
    scela().on(cluster).envs(mock.environment())
}

#[test]
fn agents_are_started_by_the_managers_command_or_by_ssh() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    for (manager, by) in [
        (Manager::Pbs, None),
        (Manager::Lsf, Some(["blaunch"].as_slice())),
        (Manager::Sge, Some(["qrsh", "-inherit"].as_slice())),
        (Manager::Flux, None),
    ] {
        let mock = Mock::new(manager, &cluster, 2);
        within(&cluster, &mock).program(rank(["neighbours", "1"])).run().is_quiet_success();
        let mut calls = mock.calls();
        calls.retain(|call| call[0] != "flux" || call[1] == "exec");
        calls.sort();
        let expected: Vec<Vec<&str>> = match by {
            Some(words) => {
                ["node001", "node002", "node003"].map(|host| [words, &[host, "/bin/sh", "-s"]].concat()).to_vec()
            }
            None => Vec::new(),
        };
        assert_eq!(calls, expected, "{manager:?}");
    }
}

#[test]
fn the_program_is_sent_through_the_managers_command() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    for host in cluster.hosts() {
        host.hide(scela_run());
        host.make_home_read_only();
    }
    for manager in [Manager::Lsf, Manager::Sge] {
        let mock = Mock::new(manager, &cluster, 1);
        within(&cluster, &mock).program(rank(["neighbours", "1"])).run().is_quiet_success();
    }
}

#[test]
fn an_unsuitable_command_is_refused_with_its_reason() {
    let Some(cluster) = Cluster::new_or_skip(1) else { return };
    for (manager, word, why) in [
        (Manager::Pbs, "pbs", "pbs_tmrsh passes neither input nor output on"),
        (Manager::Flux, "flux", "flux exec passes output on as text only"),
    ] {
        let mock = Mock::new(manager, &cluster, 1);
        let run = || within(&cluster, &mock).program(rank(["neighbours", "1"]));
        run().args(["--bootstrap", word]).run().has_code(2).says(why).says("hint: leave it out");
        run().arg("-v").run().has_code(0).says(&format!("agents are started by ssh: {why}"));
        run().arg("--explain").run().is_quiet_success().wrote_among_others("bootstrap: ssh, as the nodes are");
    }
}
