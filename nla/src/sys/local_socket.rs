//! Unix sockets with abstract names: streams between processes of one machine, without a file that could be left behind.
//!
//! Every process in the same network namespace can see such a name and connect to it, whoever its user is. So both ends ask the
//! kernel for the other one ([`peer_of`]).

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket, sockopt,
};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::survivors::machine;

/// The random bytes in the name of a socket.
pub type LocalName = [u8; 16];

/// The part of a machine that a process sees, and its user. Processes with equal surroundings find each other's sockets by their
/// names, and mean the same user by a number.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Surroundings {
    /// The number of the boot and the pid namespace ([`machine`]).
    pub machine: u64,
    /// The user namespace.
    pub users: u64,
    /// The network namespace, to which abstract names belong.
    pub network: u64,
    /// The effective user.
    pub user: u32,
}

impl Surroundings {
    /// Returns those of this process. `None` if /proc does not show them, or if its user has the number that the kernel shows for
    /// all users without a number in this user namespace.
    pub fn of_this_process() -> Option<Self> {
        static OWN: OnceLock<Option<Surroundings>> = OnceLock::new();
        *OWN.get_or_init(Self::find)
    }

    fn find() -> Option<Self> {
        let namespace = |name| Some(fs::metadata(format!("/proc/self/ns/{name}")).ok()?.ino());
        let nobody: u32 = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()?;
        let user = geteuid().as_raw();
        (user != nobody).then_some(())?;
        Some(Self { machine: machine()?, users: namespace("user")?, network: namespace("net")?, user })
    }
}

/// The process at the other end of a socket: the one that has connected, or has begun to listen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LocalPeer {
    /// Its pid; 0 if it is in another pid namespace.
    pub pid: i32,
    /// Its effective user at that time.
    pub user: u32,
}

impl LocalPeer {
    /// Returns whether it belongs to the user of this process.
    pub fn is_own(&self) -> bool {
        self.user == geteuid().as_raw()
    }
}

/// Returns the process at the other end of a Unix socket.
pub fn peer_of(socket: impl AsFd) -> io::Result<LocalPeer> {
    let peer = getsockopt(&socket.as_fd(), sockopt::PeerCredentials)?;
    Ok(LocalPeer { pid: peer.pid(), user: peer.uid() })
}

/// Draws the name of a new socket, which nobody can foresee.
pub fn new_local_name() -> io::Result<LocalName> {
    let mut name = LocalName::default();
    super::kernel_files::random_source()?.read_exact(&mut name)?;
    Ok(name)
}

/// Listens at the socket of this name, which no other process uses, nonblocking. The kernel stores as many connections as
/// `net.core.somaxconn` and `backlog` allow until they are accepted.
pub fn listen_at_name(name: &LocalName, backlog: u32) -> io::Result<UnixListener> {
    let socket = new_socket()?;
    bind(socket.as_raw_fd(), &address(name)?)?;
    listen(&socket, Backlog::new(i32::try_from(backlog).unwrap_or(i32::MAX))?)?;
    Ok(socket.into())
}

/// Connects to the socket of this name, nonblocking. Never waits: fails with EAGAIN if the listener has no room.
pub fn connect_to_name(name: &LocalName) -> io::Result<UnixStream> {
    let socket = new_socket()?;
    connect(socket.as_raw_fd(), &address(name)?)?;
    Ok(socket.into())
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::Stream, flags, None)?)
}

fn address(name: &LocalName) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new_abstract(local_name(name).as_bytes())?)
}

/// Returns the name as the kernel's tables show it, without the `@` in front.
pub fn local_name(name: &LocalName) -> String {
    format!("scela-{:032x}", u128::from_be_bytes(*name))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::sys::users::{as_user, is_root};

    #[test]
    fn a_name_is_found_while_its_socket_listens() {
        let name = new_local_name().expect("the kernel has random bytes");
        assert_eq!(connect_to_name(&name).expect_err("nothing listens").kind(), ErrorKind::ConnectionRefused);
        let listener = listen_at_name(&name, 8).expect("the name is free");
        assert_eq!(listen_at_name(&name, 8).expect_err("it is taken").kind(), ErrorKind::AddrInUse);
        let near = connect_to_name(&name).expect("it listens");
        let (far, _) = listener.accept().expect("a connection waits");
        let own = LocalPeer { pid: std::process::id().cast_signed(), user: geteuid().as_raw() };
        assert_eq!([peer_of(&near), peer_of(&far)].map(|peer| peer.expect("the kernel knows it")), [own; 2]);
        assert!(own.is_own());
        drop(listener);
        assert_eq!(connect_to_name(&name).expect_err("nothing listens").kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_full_listener_makes_nobody_wait() {
        let name = new_local_name().expect("the kernel has random bytes");
        let _listener = listen_at_name(&name, 1).expect("the name is free");
        let waiting: Vec<_> = (0..9).map(|_| connect_to_name(&name)).collect();
        let full = waiting.into_iter().find_map(Result::err).expect("it has no room for all of them");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn the_users_of_both_ends_are_known() {
        if !is_root() {
            return;
        }
        let [name, taken] = [(); 2].map(|()| new_local_name().expect("the kernel has random bytes"));
        let listener = listen_at_name(&name, 8).expect("the name is free");
        let _stranger = as_user(65_505, || connect_to_name(&name).expect("any user can connect"));
        let (far, _) = listener.accept().expect("a connection waits");
        let stranger = peer_of(&far).expect("the kernel knows it");
        assert_eq!((stranger.user, stranger.is_own()), (65_505, false));
        let _trap = as_user(65_505, || listen_at_name(&taken, 8).expect("the name is free"));
        let near = connect_to_name(&taken).expect("it listens");
        assert!(!peer_of(&near).expect("the kernel knows it").is_own());
    }

    #[test]
    fn this_process_has_surroundings() {
        let own = Surroundings::of_this_process().expect("/proc is there, and this is no unknown user");
        assert_eq!(Some(own), Surroundings::find());
        assert_eq!((Some(own.machine), own.user), (machine(), geteuid().as_raw()));
    }
}
