//! The processes and the links of a session form a tree.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use tests::{Outcome, Process, Tree, link_sockets, scela, sh, tcp_sockets};

fn connections(process: &Process) -> usize {
    tcp_sockets(process).iter().filter(|socket| socket.established).count()
}

/// Returns how many links a process has accepted from its machine.
fn accepted(process: &Process) -> usize {
    link_sockets(process).iter().filter(|socket| !socket.listens).count()
}

/// Checks the links of 64 agents. `links` counts those of a process. It finds `of_agent` of them for an agent of this number, the
/// launcher being 0. No process has another connection over TCP with `only_local`.
fn check_tree(option: &[&str], links: fn(&Process) -> usize, of_agent: impl Fn(&Tree, u32) -> usize, only_local: bool) {
    let running = scela().args(option).np(64).agents(64).fanout(2).program(sh("sleep 1000 & echo here; wait")).spawn();
    running.wait_for_times("here", 64);
    let world = running.world();
    let parents: BTreeSet<i32> = running.ranks(64).iter().map(|rank| rank.parent).collect();
    assert_eq!(parents.len(), 64, "each rank has an agent of its own");
    let agents = world.agents();
    assert_eq!((agents.len(), world.guardians().len()), (64, 64));
    let tree = Tree::new(64, 2);
    assert_eq!((links(&running.launcher()), of_agent(&tree, 0)), (2, 2), "the launcher has two children");
    if only_local {
        let connections: usize = agents.iter().chain(&[running.launcher()]).map(connections).sum();
        assert_eq!(connections, 0, "connections over TCP");
    }
    let mut found: Vec<_> = agents.iter().map(links).collect();
    let mut expected: Vec<_> = (1..=64).map(|agent| of_agent(&tree, agent)).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert!(expected.iter().all(|links| *links <= 3));
    assert_eq!(found, expected, "links of agents");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn the_links_of_64_agents_of_a_machine_form_the_planned_tree_without_tcp() {
    // Each link is seen at its upper end.
    check_tree(&[], accepted, |tree, agent| tree.links(agent) - usize::from(agent != 0), true);
}

#[test]
fn the_links_of_64_agents_that_play_nodes_form_the_planned_tree() {
    check_tree(&["--agents-as-nodes"], connections, Tree::links, false);
}

#[test]
fn agents_of_a_node_are_siblings() {
    let running = scela().np(8).agents(8).fanout(2).program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", 8);
    let launcher = running.launcher().pid;
    for agent in running.world().agents() {
        let guardian = Process::of(agent.parent).unwrap();
        assert_eq!((guardian.name.as_str(), guardian.parent), ("scela-guard", launcher), "{agent:?}");
    }
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn on_one_machine_no_ports_works() {
    scela().np(8).agents(4).fanout(2).arg("--no-ports").program(sh("true")).run().is_quiet_success();
}

/// A job of two ranks on the hosts h1 to h4, of which `bad` cannot be reached, with a rank map. The rank of this number exits
/// with 5.
fn mapped(map: &str, options: &[&str], bad: &str, rank: u32) -> Outcome {
    let run = scela().np(2).args(["-hosts", "h1,h2,h3,h4", "-rankmap", map]).args(options);
    let shell = run.world().file("remote-shell");
    std::fs::write(&shell, format!("[ $1 = {bad} ] && exit 9\nshift\nexec \"$@\"\n")).unwrap();
    let run = run.arg("--bootstrap").arg(format!("exec:sh {} {{host}}", shell.display()));
    run.program(sh(&format!("[ $PMI_RANK != {rank} ] || exit 5"))).run()
}

#[test]
fn a_rank_map_may_pass_over_hosts() {
    for options in [&[][..], &["--launch", "tree"], &["--no-ports"], &["--agents-per-node", "2"]] {
        // h1 cannot be reached, and is not needed.
        mapped("2,1", options, "h1", 0).has_code(5).says("rank 0 on h3 exited with code 5");
        mapped("2,1", options, "h1", 1).has_code(5).says("rank 1 on h2 exited with code 5");
        mapped("3,3", options, "h1", 1).has_code(5).says("rank 1 on h4 exited with code 5");
    }
}

#[test]
fn a_spare_moves_up_in_a_rank_map_that_passes_over_hosts() {
    for options in [&["--spares", "1"][..], &["--spares", "1", "--no-ports", "--launch", "tree"]] {
        mapped("1,2", options, "h2", 0).has_code(5).says("continuing without").says("rank 0 on h3 exited with code 5");
        mapped("1,2", options, "h2", 1).has_code(5).says("rank 1 on h4 exited with code 5");
    }
}

/// A list with another host, which gets no rank. No ssh works.
#[test]
fn no_remote_shell_is_opened_to_this_machine() {
    for options in [&[][..], &["--launch", "tree"], &["--agents-per-node", "2"]] {
        let run = scela().np(2).arg("-hosts").arg(format!("{},h2", nla::sys::host_name())).args(options);
        let place = run.world().file("bin");
        std::fs::create_dir(&place).unwrap();
        let shell = place.join("ssh");
        std::fs::write(&shell, "#!/bin/sh\nexit 9\n").unwrap();
        std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
        let outcome = run.env("PATH", path).args(["-ppn", "2"]).program(sh("echo $PMI_RANK")).run();
        outcome.is_quiet_success().wrote_lines(["0", "1"]);
    }
}
