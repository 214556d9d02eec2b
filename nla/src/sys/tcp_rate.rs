//! The rate of a TCP connection, as the kernel measures it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

/// Returns the bytes per second that have reached the peer lately (TCP_INFO); 0 before the first measurement. A connection that had
/// little to send has a low rate, too. Fails if the socket has no TCP connection.
pub fn delivery_rate(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: all bytes of the structure may be zero.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`. An older kernel writes fewer.
    let returned = unsafe {
        let (info, length) = ((&raw mut info).cast(), &raw mut length);
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    Errno::result(returned)?;
    Ok(info.tcpi_delivery_rate)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_that_has_sent_has_a_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        for _ in 0..4 {
            near.write_all(&bytes).unwrap();
            far.read_exact(&mut bytes).unwrap();
            far.write_all(b"x").unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        assert!(delivery_rate(&near).unwrap() > 0);
        let (other, _end) = UnixStream::pair().unwrap();
        delivery_rate(&other).unwrap_err();
    }
}
