//! What the kernel knows of a TCP connection: what has reached the peer, whether its machine answers; and a limit on what is sent.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::time::Duration;

use nix::errno::Errno;

/// The state of a connection's delivery.
#[derive(Copy, Clone, Debug)]
pub struct Delivery {
    /// The bytes that the peer has acknowledged since the connection began.
    pub acknowledged: u64,
    /// The time of the shortest round trip of the last minutes.
    pub round_trip_min: Duration,
    /// The time that packets wait on their way: what a round trip takes lately beyond the shortest one.
    pub waiting: Duration,
    /// The time since the connection began in which it had bytes to send and the peer's window had room.
    pub sending: Duration,
    /// The bytes of a full packet.
    pub segment_bytes: usize,
}

/// Returns the state of a connection's delivery (TCP_INFO). Fails if the socket has no TCP connection. Kernels before 4.10 do not
/// tell all of it.
pub fn delivery(socket: impl AsFd) -> io::Result<Delivery> {
    let info = info(socket.as_fd().as_raw_fd())?;
    Ok(Delivery {
        acknowledged: info.tcpi_bytes_acked,
        round_trip_min: Duration::from_micros(info.tcpi_min_rtt.into()),
        waiting: Duration::from_micros(info.tcpi_rtt.saturating_sub(info.tcpi_min_rtt).into()),
        sending: Duration::from_micros(info.tcpi_busy_time.saturating_sub(info.tcpi_rwnd_limited)),
        segment_bytes: info.tcpi_snd_mss as usize,
    })
}

/// The acknowledgements of the machine at the other end of a connection.
#[derive(Copy, Clone, Debug)]
pub struct Acks {
    /// The time since the last one.
    pub last: Duration,
    /// Something was sent that is not acknowledged: bytes, or the question whether there is room for more.
    pub is_asked: bool,
}

/// Returns the state of the acknowledgements of the connection with this descriptor. Fails if it is none.
pub fn acks(socket: RawFd) -> io::Result<Acks> {
    let info = info(socket)?;
    Ok(Acks {
        last: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        is_asked: info.tcpi_unacked > 0 || info.tcpi_probes > 0,
    })
}

fn info(socket: RawFd) -> io::Result<libc::tcp_info> {
    // SAFETY: all bytes of the structure may be zero.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`. An older kernel writes fewer.
    let returned = unsafe {
        let (info, length) = ((&raw mut info).cast(), &raw mut length);
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    Errno::result(returned)?;
    Ok(info)
}

/// Limits the bytes per second that a connection sends, packets' headers not counted (SO_MAX_PACING_RATE). The kernel spreads them
/// evenly over time. `None` removes the limit. Kernels before 4.13 need the queueing discipline `fq` for it.
pub fn limit_rate(socket: impl AsFd, limit: Option<u64>) -> io::Result<()> {
    let rate = limit.map_or(libc::c_ulong::MAX, |limit| libc::c_ulong::try_from(limit).unwrap_or(libc::c_ulong::MAX));
    let length = size_of_val(&rate) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes from `rate`.
    let returned = unsafe {
        let (fd, rate) = (socket.as_fd().as_raw_fd(), (&raw const rate).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate, length)
    };
    Errno::result(returned)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_limited_connection_takes_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        limit_rate(&near, Some(4_000_000)).unwrap();
        let content = vec![7; 1 << 20];
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_all(&content).unwrap());
            far.read_exact(&mut vec![0; content.len()]).unwrap();
        });
        // 262 ms. A connection begins with a few packets at once.
        assert!(began.elapsed() > Duration::from_millis(130), "{:?}", began.elapsed());
        limit_rate(&near, None).unwrap();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        // The peer's answer carries the acknowledgement of all that it has read.
        far.write_all(b"y").unwrap();
        near.read_exact(&mut [0]).unwrap();
        let Delivery { acknowledged, sending, segment_bytes, .. } = delivery(&near).unwrap();
        assert!((1 << 20..=(1 << 20) + 2).contains(&acknowledged), "{acknowledged}");
        assert!(
            sending > Duration::from_millis(100) && sending <= began.elapsed() + Duration::from_millis(50),
            "{sending:?}"
        );
        assert!(segment_bytes >= 500, "{segment_bytes}");
        let (other, _end) = UnixStream::pair().unwrap();
        delivery(&other).unwrap_err();
    }
}
