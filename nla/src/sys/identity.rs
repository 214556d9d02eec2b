//! The identity of this process: its host, addresses and cores, and the attributes that it sets on itself.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::sys::prctl;
use nix::sys::signal::Signal;

/// Returns the node's name as the kernel reports it: never shortened, never resolved.
pub fn host_name() -> String {
    match nix::unistd::gethostname() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

/// Returns the addresses of this node's interfaces that are up, in the kernel's order, IPv4 first. Leaves out
/// link-local IPv6 addresses. Empty if the kernel reports an error.
pub fn addresses() -> Vec<IpAddr> {
    addresses_of(None)
}

/// Returns the addresses of one interface, given by its name, or of all interfaces; see [`addresses`].
pub fn addresses_of(interface: Option<&str>) -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let found: Vec<IpAddr> = interfaces
        .filter(|one| one.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
        .filter(|one| interface.is_none_or(|name| one.interface_name == name))
        .filter_map(|one| {
            let address = one.address?;
            match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
                (_, Some(v6)) => Some(IpAddr::V6(v6.ip())).filter(|_| !v6.ip().is_unicast_link_local()),
                _ => None,
            }
        })
        .collect();
    let (mut all, v6): (Vec<_>, Vec<_>) = found.into_iter().partition(IpAddr::is_ipv4);
    all.extend(v6);
    all
}

/// Makes this process a child subreaper: orphaned descendants, even double-forked ones, become its children.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Forbids core dumps and debuggers of the same user, because the memory contains the session's key.
///
/// The setting is not inherited through exec, so ranks can be debugged.
pub fn forbid_dump() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Makes the kernel send SIGCONT to this process when its parent dies, in case it is stopped then.
pub(super) fn continue_when_parent_dies() -> io::Result<()> {
    Ok(prctl::set_pdeathsig(Some(Signal::SIGCONT))?)
}

/// Creates a new session (setsid), without a controlling terminal. Fails with EPERM in the leader of a process group.
pub fn new_session() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// Sets the name of the calling thread in `ps` and `top`. The kernel truncates it to 15 bytes.
pub fn set_process_name(name: &CStr) -> io::Result<()> {
    Ok(prctl::set_name(name)?)
}

/// Sets the calling thread's nice value, -20 to 19, if the kernel permits it.
///
/// Never call it on the thread that starts ranks: they would inherit the value, and an unprivileged process cannot
/// lower it again.
pub fn set_thread_nice(nice: i32) {
    // SAFETY: takes three numbers. 0 is the calling thread on Linux (POSIX says process).
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Returns how many cores this process may run on, by its affinity mask; at least 1.
pub fn cores() -> usize {
    // Room for 65,536 cores. The kernel refuses a set smaller than its own with EINVAL.
    let mut set = vec![0u64; 1024];
    // SAFETY: the kernel writes at most the given number of bytes, which is the vector's size.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(set.as_slice()), set.as_mut_ptr()) };
    if bytes <= 0 {
        return 1;
    }
    set.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1)
}

/// Returns the user ID of the peer of an accepted loopback connection; `None` if the kernel lists no open socket
/// there.
///
/// `local` and `peer` are the addresses as our end of the connection sees them. Reads /proc/net/tcp and tcp6, so it
/// covers only this node (this network namespace).
pub fn uid_of_tcp_peer(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let mut denied = None;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match std::fs::read_to_string(table) {
            Ok(text) => {
                if let Some(uid) = owner_in_table(&text, peer, local) {
                    return Ok(Some(uid));
                }
            }
            // A kernel without IPv6 has no tcp6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => denied = Some(error),
        }
    }
    denied.map_or(Ok(None), Err)
}

/// Finds the owner of the socket from `near` to `far` in the text of /proc/net/tcp or tcp6.
fn owner_in_table(text: &str, near: SocketAddr, far: SocketAddr) -> Option<u32> {
    text.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        // Accept only ESTABLISHED or CLOSE_WAIT sockets with an inode. The kernel lists others (TIME_WAIT, orphans)
        // with uid 0, so any user would count as root.
        if !matches!(state, "01" | "08") {
            return None;
        }
        let (uid, inode) = (fields.nth(3)?, fields.nth(1)?);
        if inode == "0" || !is_address(local, near) || !is_address(remote, far) {
            return None;
        }
        uid.parse().ok()
    })
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
    // An IPv6 socket may have an IPv4 peer: ::ffff:127.0.0.1.
    listed.to_canonical() == address.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn this_process_has_a_name_and_cores() {
        assert!(!host_name().is_empty());
        assert!(cores() >= 1);
    }

    fn check_peer(address: &str) {
        let Ok(listener) = TcpListener::bind(address) else {
            return; // no IPv6 here
        };
        let port = listener.local_addr().expect("the listener is bound");
        let client = TcpStream::connect(port).expect("the listener accepts connections");
        let (_server, peer) = listener.accept().expect("the client has connected");
        let uid = uid_of_tcp_peer(port, peer).expect("/proc is readable");
        assert_eq!(uid, Some(nix::unistd::getuid().as_raw()));
        drop(client);
        // A closed socket has no owner, and certainly not root. Retry: a process that another test is starting may
        // have a copy of it until its exec.
        let start = std::time::Instant::now();
        while uid_of_tcp_peer(port, peer).expect("/proc is readable").is_some() {
            assert!(start.elapsed().as_secs() < 30, "a closed socket still has an owner");
        }
    }

    #[test]
    fn the_peer_of_a_connection_is_known() {
        check_peer("127.0.0.1:0");
        check_peer("[::1]:0");
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
        assert_eq!(owner_in_table(&line("01", "77"), near, far), Some(1000));
        assert_eq!(owner_in_table(&line("01", "77"), far, near), None);
        assert_eq!(owner_in_table(&line("06", "77"), near, far), None);
        assert_eq!(owner_in_table(&line("01", "0"), near, far), None);
        assert_eq!(owner_in_table("header\n garbage : 01\n1 é:é é:é 01\n", near, far), None);
    }
}
