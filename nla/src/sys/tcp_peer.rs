//! The owner of the other end of a loopback TCP connection, as the kernel knows it.
//!
//! [`SocketDiag`] asks for one socket, which takes the same time however many sockets there are. [`uid_in_table`] reads
//! /proc/net/tcp, which any user can make long: tens of thousands of sockets take hundreds of milliseconds. It is for kernels
//! that answer no such questions.
//!
//! Both accept only sockets that are ESTABLISHED or CLOSE_WAIT and have an inode. The kernel reports others (TIME_WAIT,
//! orphans) with uid 0, so any user would count as root.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, socket,
};

/// The states of the kernel's `tcp_states.h` in which a socket may have an owner.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

/// The type of a question and its answer, from linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The length of `struct nlmsghdr`, of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = 56;
const ANSWER_BYTES: usize = 72;
/// The index of the loopback interface in every network namespace. A question with it finds sockets that are bound to this
/// interface, and those that are bound to none.
const LOOPBACK: u32 = 1;

/// Asks the kernel whose a TCP socket is: a netlink socket for NETLINK_SOCK_DIAG.
///
/// It covers only this node (this network namespace). Needs no descriptor for a question.
pub struct SocketDiag {
    netlink: OwnedFd,
    /// The number of the last question.
    asked: Cell<u32>,
}

/// The kernel's answer about a socket.
struct Found {
    state: u8,
    uid: u32,
    inode: u32,
}

impl SocketDiag {
    /// Opens the netlink socket. `listener` is the address of an open TCP listener. Fails if the kernel does not find it:
    /// a kernel without tcp_diag says of every socket that it does not exist.
    pub fn open(listener: SocketAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let netlink = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
        // Port 0 is the kernel. A connected socket receives from no other process.
        connect(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let diag = Self { netlink, asked: Cell::new(0) };
        let nowhere = match listener {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
        };
        match diag.find(listener, nowhere)? {
            Some(Found { state: LISTEN, .. }) => Ok(diag),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the user ID of the peer of an accepted loopback connection; `None` if the peer is not an open socket.
    ///
    /// `local` and `peer` are the addresses as our end of the connection sees them.
    pub fn uid_of_tcp_peer(&self, local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
        let found = self.find(peer, local)?;
        let open = found.filter(|found| matches!(found.state, ESTABLISHED | CLOSE_WAIT) && found.inode != 0);
        Ok(open.map(|found| found.uid))
    }

    /// Returns the socket from `near` to `far`, if there is one.
    fn find(&self, near: SocketAddr, far: SocketAddr) -> io::Result<Option<Found>> {
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        send(self.netlink.as_raw_fd(), &question(number, near, far), MsgFlags::empty())?;
        // The kernel has queued the answer when send returns.
        let mut buffer = [0; 1024];
        loop {
            let count = recv(self.netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            if let Some(answer) = parse(&buffer[..count], number, near, far) {
                return answer;
            }
        }
    }
}

/// Returns the question number `number`, for the socket from `near` to `far`, as linux/inet_diag.h lays it out.
fn question(number: u32, near: SocketAddr, far: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    bytes.extend_from_slice(&((HEADER_BYTES + QUESTION_BYTES) as u32).to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend_from_slice(&number.to_ne_bytes());
    bytes.extend_from_slice(&0u32.to_ne_bytes());
    let family = if near.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // No extensions, and all states.
    bytes.extend_from_slice(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&near.port().to_be_bytes());
    bytes.extend_from_slice(&far.port().to_be_bytes());
    for address in [near, far] {
        match address.ip() {
            IpAddr::V4(v4) => {
                bytes.extend_from_slice(&v4.octets());
                bytes.extend_from_slice(&[0; 12]);
            }
            IpAddr::V6(v6) => bytes.extend_from_slice(&v6.octets()),
        }
    }
    bytes.extend_from_slice(&LOOPBACK.to_ne_bytes());
    // Any cookie.
    bytes.extend_from_slice(&[0xff; 8]);
    bytes
}

/// Parses the answer to the question `number`. Returns `None` for another message.
fn parse(bytes: &[u8], number: u32, near: SocketAddr, far: SocketAddr) -> Option<io::Result<Option<Found>>> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some([*bytes.get(at)?, *bytes.get(at + 1)?]);
    if word(8)? != number {
        return None;
    }
    match u16::from_ne_bytes(half(4)?) {
        SOCK_DIAG_BY_FAMILY if bytes.len() >= HEADER_BYTES + ANSWER_BYTES => {}
        kind if i32::from(kind) == libc::NLMSG_ERROR => {
            let errno = word(HEADER_BYTES)?.cast_signed().checked_neg()?;
            return Some(match errno {
                libc::ENOENT => Ok(None),
                errno => Err(io::Error::from_raw_os_error(errno)),
            });
        }
        _ => return None,
    }
    let answer = &bytes[HEADER_BYTES..];
    let is_v6 = i32::from(answer[0]) == libc::AF_INET6;
    let address = |port: usize, host: usize| {
        let port = u16::from_be_bytes([answer[port], answer[port + 1]]);
        let octets = <[u8; 16]>::try_from(&answer[host..host + 16]).unwrap_or_default();
        let ip = if is_v6 {
            Ipv6Addr::from(octets).into()
        } else {
            let [a, b, c, d, ..] = octets;
            IpAddr::from([a, b, c, d])
        };
        SocketAddr::new(ip, port)
    };
    // If no socket has both addresses, the kernel may answer with a listener.
    if !is_same(address(4, 8), near) || !is_same(address(6, 24), far) {
        return Some(Ok(None));
    }
    Some(Ok(Some(Found { state: answer[1], uid: word(HEADER_BYTES + 64)?, inode: word(HEADER_BYTES + 68)? })))
}

/// Returns whether two addresses are the same. An IPv6 socket may have an IPv4 peer: ::ffff:127.0.0.1.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

/// Does the same as [`SocketDiag::uid_of_tcp_peer`] by reading /proc/net/tcp and tcp6, up to the socket's line. Takes the
/// longer the more sockets there are.
pub fn uid_in_table(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    Ok(peer_in_tables(local, peer)?.map(|(uid, _)| uid))
}

/// Returns a process of this user that has the peer's end of an accepted loopback connection open. Looks at all processes.
pub fn process_of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let (_, inode) = peer_in_tables(local, peer).ok()??;
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let has_it = |pid: &u32| {
        let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|found| found == link))
    };
    super::processes().into_iter().find(has_it)
}

/// Returns the user and the inode of the peer's socket.
fn peer_in_tables(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<(u32, u64)>> {
    let mut denied = None;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match File::open(table).and_then(|table| socket_in_table(BufReader::new(table), peer, local)) {
            Ok(None) => {}
            Ok(owner) => return Ok(owner),
            // A kernel without IPv6 has no tcp6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => denied = Some(error),
        }
    }
    denied.map_or(Ok(None), Err)
}

/// Finds the owner and the inode of the socket from `near` to `far` in the text of /proc/net/tcp or tcp6.
fn socket_in_table(mut table: impl BufRead, near: SocketAddr, far: SocketAddr) -> io::Result<Option<(u32, u64)>> {
    let mut line = String::new();
    while table.read_line(&mut line)? > 0 {
        if let Some(found) = socket_in_line(&line, near, far) {
            return Ok(Some(found));
        }
        line.clear();
    }
    Ok(None)
}

fn socket_in_line(line: &str, near: SocketAddr, far: SocketAddr) -> Option<(u32, u64)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    if !matches!(u8::from_str_radix(state, 16), Ok(ESTABLISHED | CLOSE_WAIT)) {
        return None;
    }
    let (uid, inode) = (fields.nth(3)?, fields.nth(1)?);
    if inode == "0" || !is_address(local, near) || !is_address(remote, far) {
        return None;
    }
    Some((uid.parse().ok()?, inode.parse().ok()?))
}

/// Returns whether `text` ("0100007F:1F90") is the address. Its words are in the machine's byte order, the port is
/// big-endian.
fn is_address(text: &str, address: SocketAddr) -> bool {
    let Some((host, port)) = text.split_once(':') else {
        return false;
    };
    if u16::from_str_radix(port, 16) != Ok(address.port()) {
        return false;
    }
    let mut bytes = Vec::with_capacity(16);
    for word in host.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok().and_then(|w| u32::from_str_radix(w, 16).ok());
        let Some(word) = word else {
            return false;
        };
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let listed = match (<[u8; 4]>::try_from(&bytes[..]), <[u8; 16]>::try_from(&bytes[..])) {
        (Ok(v4), _) => IpAddr::from(v4),
        (_, Ok(v6)) => IpAddr::from(v6),
        _ => return false,
    };
    is_same(SocketAddr::new(listed, address.port()), address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::time::Instant;

    use crate::sys::users::{as_user, is_root};

    /// A listener, and the two ways to learn whose its peers are.
    struct Place {
        listener: TcpListener,
        address: SocketAddr,
        diag: SocketDiag,
    }

    impl Place {
        /// Listens at `address`. Returns `None` without IPv6.
        fn at(address: &str) -> Option<Self> {
            let listener = TcpListener::bind(address).ok()?;
            let address = listener.local_addr().unwrap();
            let diag = SocketDiag::open(address).expect("this kernel answers questions about single sockets");
            Some(Self { listener, address, diag })
        }

        fn local() -> Self {
            Self::at("127.0.0.1:0").unwrap()
        }

        /// Connects, and returns the accepted end as well.
        fn connect(&self) -> (TcpStream, TcpStream, SocketAddr) {
            let client = TcpStream::connect(self.address).unwrap();
            let (server, peer) = self.listener.accept().unwrap();
            (client, server, peer)
        }

        /// Returns whose the socket from `peer` to `local` is. Both ways give the same answer.
        fn uid_of(&self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
            let uid = self.diag.uid_of_tcp_peer(local, peer).unwrap();
            assert_eq!(uid_in_table(local, peer).unwrap(), uid, "{peer} -> {local}");
            uid
        }

        /// Waits until the socket from `peer` to the listener is in one of these states and has no descriptor: a process
        /// that another test is starting may have a copy until its exec.
        fn wait_for(&self, peer: SocketAddr, states: &[u8]) {
            let start = Instant::now();
            loop {
                let found = self.diag.find(peer, self.address).unwrap();
                if found.is_some_and(|found| states.contains(&found.state) && found.inode == 0) {
                    return;
                }
                assert!(start.elapsed().as_secs() < 30, "the socket is not in the states {states:?}");
            }
        }
    }

    fn own() -> Option<u32> {
        Some(nix::unistd::geteuid().as_raw())
    }

    #[test]
    fn the_peer_of_a_connection_is_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Some(place) = Place::at(address) else { continue };
            let (client, server, peer) = place.connect();
            assert_eq!(place.uid_of(place.address, peer), own());
            // It is still open after the other end was closed (CLOSE_WAIT).
            drop(server);
            assert_eq!(place.uid_of(place.address, peer), own());
            drop(client);
            // A client that will send nothing (FIN_WAIT) is none, although it has a descriptor.
            let (client, _server, peer) = place.connect();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(place.uid_of(place.address, peer), None);
        }
    }

    #[test]
    fn an_ipv6_socket_is_the_peer_of_an_ipv4_connection() {
        let place = Place::local();
        let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), place.address.port());
        let Ok(_client) = TcpStream::connect(mapped) else { return };
        let (_server, peer) = place.listener.accept().unwrap();
        assert_eq!(place.uid_of(place.address, peer), own());
    }

    #[test]
    fn the_peer_of_another_user_is_known() {
        const OTHER: u32 = 65_503;
        if !is_root() {
            return;
        }
        let place = Place::local();
        let client = as_user(OTHER, || TcpStream::connect(place.address).unwrap());
        let (_server, peer) = place.listener.accept().unwrap();
        assert_eq!(client.local_addr().unwrap(), peer);
        assert_eq!(place.uid_of(place.address, peer), Some(OTHER));
        // Whoever asks.
        let seen = as_user(OTHER, || {
            let diag = SocketDiag::open(place.address).unwrap();
            diag.uid_of_tcp_peer(place.address, peer).unwrap()
        });
        assert_eq!(seen, Some(OTHER));
    }

    #[test]
    fn sockets_without_an_owner_are_not_roots() {
        let place = Place::local();
        // Connected, and not accepted yet.
        let waiting = TcpStream::connect(place.address).unwrap();
        let client = waiting.local_addr().unwrap();
        let found = place.diag.find(place.address, client).unwrap().expect("the end of the listener");
        assert_eq!((found.state, found.inode), (ESTABLISHED, 0));
        assert_eq!(place.uid_of(client, place.address), None);
        drop((waiting, place.listener.accept()));

        // An orphan: closed with data that the other end does not read.
        let (mut client, server, peer) = place.connect();
        client.set_nonblocking(true).unwrap();
        while client.write(&[0; 1 << 16]).is_ok() {}
        drop(client);
        const FIN_WAITS: [u8; 2] = [4, 5];
        place.wait_for(peer, &FIN_WAITS);
        assert_eq!(place.uid_of(place.address, peer), None);
        drop(server);

        // TIME_WAIT: closed by both ends, by this one first.
        let (client, server, peer) = place.connect();
        drop(client);
        place.wait_for(peer, &FIN_WAITS);
        drop(server);
        const TIME_WAIT: u8 = 6;
        place.wait_for(peer, &[TIME_WAIT]);
        assert_eq!(place.uid_of(place.address, peer), None);
    }

    #[test]
    fn a_listener_is_nobodys_peer() {
        let place = Place::local();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(place.uid_of(place.address, nobody), None);
        // The kernel answers this question with the listener.
        assert_eq!(place.uid_of(nobody, place.address), None);
        assert!(place.diag.find(place.address, nobody).unwrap().is_none());
        assert!(SocketDiag::open(nobody).is_err(), "no socket listens there");
    }

    #[test]
    fn a_question_reads_no_table() {
        if !is_root() {
            return;
        }
        let place = Place::local();
        let (_client, _server, peer) = place.connect();
        let nothing = tempfile::tempdir().unwrap();
        let (address, diag, root) = (place.address, place.diag, nothing.path());
        let answers = std::thread::scope(|threads| {
            let without_proc = move || {
                // Only this thread gets another root directory.
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
                nix::unistd::chroot(root).unwrap();
                let answer = diag.uid_of_tcp_peer(address, peer).unwrap();
                (answer, uid_in_table(address, peer).unwrap())
            };
            threads.spawn(without_proc).join().unwrap()
        });
        assert_eq!(answers, (own(), None));
    }

    #[test]
    fn only_the_answer_to_the_last_question_is_used() {
        let (near, far) = (SocketAddr::from(([127, 0, 0, 1], 8080)), SocketAddr::from(([127, 0, 0, 1], 49152)));
        let refused = |number: u32, errno: i32| {
            let mut bytes = 36u32.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend_from_slice(&[0; 2]);
            bytes.extend_from_slice(&number.to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&(-errno).to_ne_bytes());
            bytes
        };
        assert!(parse(&refused(6, libc::ENOENT), 7, near, far).is_none());
        assert!(matches!(parse(&refused(7, libc::ENOENT), 7, near, far), Some(Ok(None))));
        assert!(matches!(parse(&refused(7, libc::EPERM), 7, near, far), Some(Err(_))));
        for length in 0..20 {
            assert!(parse(&refused(7, libc::EPERM)[..length], 7, near, far).is_none());
        }
    }

    #[test]
    fn only_open_sockets_in_the_table_have_owners() {
        let line = |state: &str, inode: &str| {
            let host = u32::from_ne_bytes([127, 0, 0, 1]);
            format!(
                "header\n   0: {host:08X}:1F90 {host:08X}:C000 {state} 00000000:00000000 \
                 00:00000000 00000000  1000        0 {inode} 1 0\n"
            )
        };
        let near: SocketAddr = "127.0.0.1:8080".parse().expect("an address");
        let far: SocketAddr = "127.0.0.1:49152".parse().expect("an address");
        let owner =
            |text: &str, near, far| socket_in_table(text.as_bytes(), near, far).expect("text").map(|(uid, _)| uid);
        assert_eq!(owner(&line("01", "77"), near, far), Some(1000));
        assert_eq!(owner(&line("01", "77"), far, near), None);
        assert_eq!(owner(&line("06", "77"), near, far), None);
        assert_eq!(owner(&line("01", "0"), near, far), None);
        assert_eq!(owner("header\n garbage : 01\n1 é:é é:é 01\n", near, far), None);
    }
}
