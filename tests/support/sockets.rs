//! The machine's TCP sockets and Unix sockets, as the kernel lists them.

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

/// A Unix stream socket at the abstract name of a session's process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSocket {
    /// The name, without the `@` in front.
    pub name: String,
    /// Whether it listens. Otherwise it was accepted, and is connected or was closed at the other end.
    pub listens: bool,
    inode: u64,
}

/// Returns the sockets at which `process` accepts links from its machine, and the links that it has accepted there.
pub fn link_sockets(process: &Process) -> Vec<LinkSocket> {
    let inodes = process.socket_inodes();
    // The table of its network. The kernel may leave out a line, or list it twice, if the table changes while it is read.
    let tables = [(); 2].map(|()| fs::read_to_string(process.file("net/unix")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let mut sockets: Vec<_> = lines.filter_map(link_socket).filter(|socket| inodes.contains(&socket.inode)).collect();
    sockets.sort_unstable_by_key(|socket| socket.inode);
    sockets.dedup_by_key(|socket| socket.inode);
    sockets
}

fn link_socket(line: &str) -> Option<LinkSocket> {
    const LISTENS: u32 = 1 << 16;
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let name = fields.get(7)?.strip_prefix('@').filter(|name| name.starts_with("scela-"))?.to_owned();
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    Some(LinkSocket { name, listens: flags & LISTENS != 0, inode: fields.get(6)?.parse().ok()? })
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
