//! The machine's TCP sockets, as the kernel lists them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::process::Process;

/// A TCP socket over IPv4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpSocket {
    /// Its own end.
    pub local: SocketAddrV4,
    /// The other end.
    pub remote: SocketAddrV4,
    /// It waits for connections.
    pub listens: bool,
    /// It is connected, from both sides.
    pub established: bool,
    inode: u64,
}

/// The sockets that `process` holds.
pub fn tcp_sockets(process: &Process) -> Vec<TcpSocket> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let inodes = process.socket_inodes();
    let mut sockets: Vec<_> =
        table.lines().skip(1).filter_map(socket).filter(|socket| inodes.contains(&socket.inode)).collect();
    // Of a table that changes while it is read, the kernel may give a line twice.
    sockets.sort_unstable_by_key(|socket| socket.inode);
    sockets.dedup_by_key(|socket| socket.inode);
    sockets
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

/// An address as the table writes it: in the machine's byte order, in hexadecimal.
fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip.to_ne_bytes()), u16::from_str_radix(port, 16).ok()?))
}
