//! Finds several processes that are connected as the same rank. libpmix accepts every process that inherits the rank's
//! variables, and does not say which process connects.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::Process;
use crate::sys::{processes, start_of};

/// Returns the first and the last of the processes that are connected to this one as a rank, if there are several. Looks at
/// all processes.
pub(super) fn both_processes(process: &Process) -> Option<(u32, u32)> {
    let rank = process.rank?;
    let variables = [format!("PMIX_NAMESPACE={}", process.namespace), format!("PMIX_RANK={rank}")];
    let peers = peers_of_this();
    let is_connected = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |variable: &String| environment.split(|byte| *byte == 0).any(|found| found == variable.as_bytes());
        variables.iter().all(has) && !sockets_of(&pid.to_string()).is_disjoint(&peers)
    };
    let mut found: Vec<(u64, u32)> =
        processes().into_iter().filter(is_connected).filter_map(|pid| Some((start_of(pid)?, pid))).collect();
    found.sort_unstable();
    let (first, last) = (found.first()?.1, found.last()?.1);
    (first != last).then_some((first, last))
}

/// Returns the sockets at the other ends of this process's TCP connections, which are on this machine.
fn peers_of_this() -> BTreeSet<PathBuf> {
    let (own, mut peers) = (sockets_of("self"), BTreeSet::new());
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
        let rows: Vec<(&str, &str, PathBuf)> = text
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                Some((*fields.get(1)?, *fields.get(2)?, PathBuf::from(format!("socket:[{}]", fields.get(9)?))))
            })
            .collect();
        let ends: BTreeSet<(&str, &str)> =
            rows.iter().filter(|(_, _, inode)| own.contains(inode)).map(|(near, far, _)| (*far, *near)).collect();
        peers.extend(rows.into_iter().filter(|(near, far, _)| ends.contains(&(*near, *far))).map(|row| row.2));
    }
    peers
}

/// Returns the links of a process's descriptors, those of sockets among them.
fn sockets_of(pid: &str) -> BTreeSet<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Connects as a rank, and ends with its standard input.
    fn connected(listener: &TcpListener, rank: &str) -> (Child, std::net::TcpStream) {
        let port = listener.local_addr().unwrap().port();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo >&3; read line");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env("PMIX_NAMESPACE", "ns").env("PMIX_RANK", rank);
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        (child, stream)
    }

    #[test]
    fn two_connected_processes_of_a_rank_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let process = Process { namespace: "ns".to_owned(), rank: Some(3) };
        let (mut other, _other) = connected(&listener, "4");
        let (mut first, _first) = connected(&listener, "3");
        assert_eq!(both_processes(&process), None);
        let (mut second, _second) = connected(&listener, "3");
        let found = both_processes(&process).expect("two");
        assert_eq!(BTreeSet::from([found.0, found.1]), BTreeSet::from([first.id(), second.id()]));
        for child in [&mut other, &mut first, &mut second] {
            child.stdin.take().unwrap().write_all(b"\n").unwrap();
            child.wait().unwrap();
        }
    }
}
