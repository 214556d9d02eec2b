//! The owner of the other end of a loopback TCP connection, as the kernel knows it.

use std::io;
use std::net::{IpAddr, SocketAddr};

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
