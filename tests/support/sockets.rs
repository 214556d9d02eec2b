//! The machine's TCP sockets, as the kernel lists them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::process::Process;

/// A TCP socket over IPv4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpSocket {
    /// The local address.
    pub local: SocketAddrV4,
    /// The remote address.
    pub remote: SocketAddrV4,
    /// Whether it listens for connections.
    pub listens: bool,
    /// Whether it is connected.
    pub established: bool,
    inode: u64,
}

/// Returns the TCP sockets of `process`.
pub fn tcp_sockets(process: &Process) -> Vec<TcpSocket> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let inodes = process.socket_inodes();
    let mut sockets: Vec<_> =
        table.lines().skip(1).filter_map(socket).filter(|socket| inodes.contains(&socket.inode)).collect();
    // The kernel may list a line twice if the table changes while it is read.
    sockets.sort_unstable_by_key(|socket| socket.inode);
    sockets.dedup_by_key(|socket| socket.inode);
    sockets
}

/// Returns the ports on which processes listen in the network of the calling thread, sshd's excepted. Each accepts
/// connections to 127.0.0.1.
pub(crate) fn ports_of_thread() -> Vec<u16> {
    const SSH: u16 = 22;
    // A socket that listens at all addresses of both families is in the second table.
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    let lines: String = tables.into_iter().flatten().collect();
    let port = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (_, port) = fields.next()?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (fields.nth(1)? == "0A" && port != SSH).then_some(port)
    };
    lines.lines().filter_map(port).collect()
}

fn socket(line: &str) -> Option<TcpSocket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
    Some(TcpSocket {
        local: address(fields.get(1)?)?,
        remote: address(fields.get(2)?)?,
        listens: state == 10,
        established: state == 1,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Parses an address of the table: in the machine's byte order, in hexadecimal.
fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip.to_ne_bytes()), u16::from_str_radix(port, 16).ok()?))
}
