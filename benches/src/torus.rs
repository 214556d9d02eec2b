//! Hosts that are connected as a torus: a cable of a limited rate between neighbours, and routes through the dimensions in their
//! order, as the topology of `--topology` has them.
//!
//! Each host gets an address on an interface of its own, [`INTERFACE`], which is reachable through the cables only. The
//! cluster's switch stays: sessions start and ranks exchange their addresses over it.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ::tests::{Cluster, Host};
use placement::topology::Topology;

use crate::slow_link::limit_interface;

/// The interface with a host's address in the torus.
pub const INTERFACE: &str = "torus0";

/// Connects the hosts of a cluster, each to its neighbours, by cables of so many megabits per second in each direction. The
/// hosts' order is that of the topology's places.
///
/// # Errors
/// With the words of `ip` or `tc`, if one of them fails.
pub fn connect(cluster: &Cluster, topology: &Topology, mbit: u32) -> Result<(), String> {
    let hosts = cluster.hosts();
    let pids: Vec<i32> = hosts.iter().map(Host::pid).collect();
    let mut command = Command::new("ip");
    fed(command.args(["-batch", "-"]), &cables(topology, &pids))?;
    for (host, place) in hosts.iter().zip(0..) {
        fed(host.command("sh").arg("-eu"), &script(topology, place))?;
        neighbours(topology, place).try_for_each(|to| limit_interface(host, &cable(to), mbit))?;
    }
    Ok(())
}

/// Returns the bytes that a host has sent to each of its neighbours, with the headers of packets.
///
/// # Errors
/// If the kernel's figures cannot be read.
pub fn sent(host: &Host, topology: &Topology, place: u32) -> Result<Vec<(u32, u64)>, String> {
    let table = fs::read_to_string(format!("/proc/{}/net/dev", host.pid())).map_err(|error| error.to_string())?;
    let bytes = |to: u32| sent_in(&table, &cable(to)).ok_or_else(|| format!("{} has no cable {to}", host.name()));
    neighbours(topology, place).map(|to| Ok((to, bytes(to)?))).collect()
}

/// Returns the bytes that an interface has sent, by the text of `/proc/net/dev`.
fn sent_in(table: &str, interface: &str) -> Option<u64> {
    let figures = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    figures.split_ascii_whitespace().nth(8)?.parse().ok()
}

/// Returns the places one link away.
fn neighbours(topology: &Topology, place: u32) -> impl Iterator<Item = u32> {
    (0..topology.places()).filter(move |to| topology.distance(place, *to) == 1)
}

/// Returns the name of the interface to a neighbour.
fn cable(to: u32) -> String {
    format!("to{to}")
}

/// Returns the address of a place in the torus.
fn address(place: u32) -> String {
    format!("10.78.{}.{}", (place + 1) / 256, (place + 1) % 256)
}

/// Returns the commands of `ip` that lay all cables. `pids` has a process of each place's network namespace.
fn cables(topology: &Topology, pids: &[i32]) -> String {
    let mut text = String::new();
    for from in 0..topology.places() {
        for to in neighbours(topology, from).filter(|to| *to > from) {
            let [one, other] = [pids[from as usize], pids[to as usize]];
            let (there, back) = (cable(to), cable(from));
            let _ = writeln!(text, "link add {there} netns {one} type veth peer name {back} netns {other}");
        }
    }
    text
}

/// Returns the shell commands that give a host its address, and a route to each other place.
fn script(topology: &Topology, place: u32) -> String {
    let own = address(place);
    // The way back may lead through other hosts, so a packet may arrive over a cable to which the host sends none.
    let mut text = String::from(
        "echo 1 >/proc/sys/net/ipv4/ip_forward\n\
         for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$file; done\n\
         ip -batch - <<END\n",
    );
    let _ = writeln!(
        text,
        "link add {INTERFACE} type bridge\nlink set {INTERFACE} up\naddress add {own}/32 dev {INTERFACE}"
    );
    neighbours(topology, place).for_each(|to| {
        let _ = writeln!(text, "link set {} up", cable(to));
    });
    for to in (0..topology.places()).filter(|to| *to != place) {
        let next = next(topology, place, to);
        let _ =
            writeln!(text, "route add {}/32 via {} dev {} src {own} onlink", address(to), address(next), cable(next));
    }
    text + "END\n"
}

/// Returns the place after the first link of a route.
fn next(topology: &Topology, from: u32, to: u32) -> u32 {
    let mut route = Vec::new();
    topology.route(from, to, &mut route);
    let first = route.first().and_then(|link| topology.ends(*link)[1]);
    // A torus has no switches, and a place has a route to each other one.
    first.unwrap_or(to)
}

/// Runs a command with this standard input.
fn fed(command: &mut Command, input: &str) -> Result<(), String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|error| format!("{command:?}: {error}"))?;
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_hosts_lead_through_the_dimensions_in_their_order() {
        let topology = Topology::torus(&[4, 4]).unwrap();
        for from in 0..16 {
            for to in (0..16).filter(|to| *to != from) {
                // Each host on the way decides by itself.
                let (mut route, mut way, mut at) = (Vec::new(), vec![], from);
                topology.route(from, to, &mut route);
                while at != to {
                    at = next(&topology, at, to);
                    way.push(at);
                }
                let planned: Vec<u32> = route.iter().filter_map(|link| topology.ends(*link)[1]).collect();
                assert_eq!(way, planned, "{from} to {to}");
            }
        }
    }

    #[test]
    fn neighbours_are_connected_once() {
        let topology = Topology::torus(&[4, 4]).unwrap();
        let text = cables(&topology, &(100..116).collect::<Vec<_>>());
        assert_eq!(text.lines().count(), 32, "{text}");
        assert!(text.starts_with("link add to1 netns 100 type veth peer name to0 netns 101\n"), "{text}");
        let script = script(&topology, 0);
        // From (0, 0) to (1, 1): down the first dimension.
        assert!(script.contains("\nroute add 10.78.0.6/32 via 10.78.0.5 dev to4 src 10.78.0.1 onlink\n"), "{script}");
        assert_eq!(script.matches("route add").count(), 15, "{script}");
    }

    #[test]
    fn sent_bytes_are_read_by_interface() {
        let table = "Inter-|   Receive\n face |bytes\n    to1: 1 2 3 4 5 6 7 8 90 10 0 0 0 0 0 0\n   to12: 0 0 0 0 0 0 0 0 7 0\n";
        assert_eq!(sent_in(table, "to1"), Some(90));
        assert_eq!(sent_in(table, "to12"), Some(7));
        assert_eq!(sent_in(table, "to2"), None);
    }
}
