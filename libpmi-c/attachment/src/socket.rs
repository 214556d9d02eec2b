//! [`Socket`]: the connection to the PMI server, as a blocking stream.

use std::io::{self, IoSlice, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use crate::replies::Replies;

/// A connected stream socket, inherited or opened by this process.
///
/// Calls block whatever the descriptor's flags are, since other processes share those flags. Writing to
/// a server that has closed the connection is an error and raises no SIGPIPE. A descriptor that arrives
/// with the data is stored for [`Socket::take_descriptor`].
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: RawFd,
    /// Closes the descriptor on drop if this process opened it. An inherited one stays open: later
    /// programs in the same script use it.
    _own: Option<OwnedFd>,
    received: Option<OwnedFd>,
    /// Set once threads wait for ends of fences while others make requests.
    shared: Option<Arc<Replies>>,
}

/// Room for the one descriptor that ScELA sends, and one more.
const DESCRIPTORS_MAX: usize = 2;

/// A buffer for control messages, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Socket {
    /// Uses a socket that this process was started with.
    pub(crate) fn inherited(descriptor: RawFd) -> io::Result<Self> {
        if option(descriptor, libc::SO_TYPE)? != libc::SOCK_STREAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { descriptor, _own: None, received: None, shared: None })
    }

    /// Connects to the server's port.
    pub(crate) fn connect(host: &str, port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port))?;
        // Small requests, each followed by a wait for its reply: Nagle's algorithm would delay them.
        stream.set_nodelay(true)?;
        let own = OwnedFd::from(stream);
        Ok(Self { descriptor: own.as_raw_fd(), _own: Some(own), received: None, shared: None })
    }

    /// Returns the descriptor, which is valid while this socket lives.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Returns whether the socket can pass descriptors (AF_UNIX).
    pub(crate) fn is_local(&self) -> bool {
        option(self.descriptor, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX)
    }

    /// Returns the inode number of the socket.
    pub(crate) fn inode(&self) -> io::Result<u64> {
        Ok(status(self.descriptor)?.st_ino)
    }

    /// Takes the descriptor that arrived with the data.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.received.take()
    }

    /// Lets other threads read from this socket too. Must be called while no reply is outstanding.
    pub(crate) fn share(&mut self) -> &Arc<Replies> {
        self.shared.get_or_insert_with(|| Arc::new(Replies::new(self.descriptor)))
    }

    fn store_descriptors(&mut self, message: &libc::msghdr) {
        // SAFETY: the kernel has filled in `message`, whose control buffer still exists. Each number in
        // an SCM_RIGHTS message is a descriptor that is new in this process, so no other code owns it.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
                    for at in 0..bytes / mem::size_of::<RawFd>() {
                        let descriptor = OwnedFd::from_raw_fd(ptr::read_unaligned(numbers.add(at)));
                        // A second descriptor, which was not requested, is closed here.
                        self.received.get_or_insert(descriptor);
                    }
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(replies) = &self.shared {
            return replies.read(buffer);
        }
        const { assert!(mem::size_of::<Control>() >= 16 + DESCRIPTORS_MAX * mem::size_of::<RawFd>()) };
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        loop {
            // SAFETY: all zeros are a valid header: null pointers and lengths of 0.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = mem::size_of::<Control>() as _;
            // SAFETY: the header points to buffers of the given lengths, which outlive the call.
            let read = unsafe { libc::recvmsg(self.descriptor, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
            match usize::try_from(read) {
                Ok(read) => {
                    self.store_descriptors(&message);
                    return Ok(read);
                }
                Err(_) => wait_after_failure(self.descriptor, libc::POLLIN)?,
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            // SAFETY: all zeros are a valid header: null pointers and lengths of 0.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            // IoSlice documents that it has the layout of an iovec.
            message.msg_iov = parts.as_ptr().cast_mut().cast();
            message.msg_iovlen = parts.len() as _;
            // SAFETY: the kernel reads the parts, which outlive the call.
            let sent = unsafe { libc::sendmsg(self.descriptor, &raw const message, libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(sent) => return Ok(sent),
                Err(_) => wait_after_failure(self.descriptor, libc::POLLOUT)?,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Handles a failed call on a socket. Returns for a retry after EINTR, or, on a socket that another
/// process made non-blocking, once it is ready; any other error is final.
fn wait_after_failure(descriptor: RawFd, events: i16) -> io::Result<()> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => poll(descriptor, events, -1).map(drop),
        _ => Err(error),
    }
}

/// Reads what has arrived, and waits for the first byte. The socket passes no descriptors.
pub(crate) fn receive(descriptor: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let read = unsafe { libc::recv(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match usize::try_from(read) {
            Ok(read) => return Ok(read),
            Err(_) => wait_after_failure(descriptor, libc::POLLIN)?,
        }
    }
}

/// Returns whether the peer has closed the connection.
pub(crate) fn is_hung_up(descriptor: RawFd) -> bool {
    let closed = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR | libc::POLLNVAL;
    poll(descriptor, libc::POLLRDHUP, 0).is_ok_and(|events| events & closed != 0)
}

/// Sends as much as it can without waiting, and ignores errors: the caller is about to exit.
pub(crate) fn send_without_waiting(descriptor: RawFd, bytes: &[u8]) {
    // SAFETY: the kernel reads `bytes`, which outlive the call.
    unsafe { libc::send(descriptor, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
}

/// Returns the `fstat` of a descriptor.
pub(crate) fn status(descriptor: RawFd) -> io::Result<libc::stat> {
    let mut status = mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes a whole `stat`, or returns an error.
    unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(status.assume_init())
    }
}

/// Waits up to `timeout_ms` for events and returns them; negative means no timeout.
fn poll(descriptor: RawFd, events: i16, timeout_ms: i32) -> io::Result<i16> {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    loop {
        // SAFETY: one entry, which outlives the call.
        if unsafe { libc::poll(&raw mut entry, 1, timeout_ms) } >= 0 {
            return Ok(entry.revents);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Returns a socket option that is a number; fails if the descriptor is no socket.
fn option(descriptor: RawFd, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut bytes = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes.
    let done = unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut bytes) };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn pair() -> (UnixStream, Socket) {
        let (server, rank) = UnixStream::pair().unwrap();
        let own = OwnedFd::from(rank);
        (server, Socket { descriptor: own.as_raw_fd(), _own: Some(own), received: None, shared: None })
    }

    #[test]
    fn only_stream_sockets_are_accepted() {
        let file = File::open("/dev/null").unwrap();
        assert!(Socket::inherited(file.as_raw_fd()).is_err());
        assert!(Socket::inherited(-1).is_err());
        let (server, _rank) = pair();
        let socket = Socket::inherited(server.as_raw_fd()).unwrap();
        assert!(socket.is_local());
        drop(socket);
        // Dropping an inherited socket does not close it.
        assert!(Socket::inherited(server.as_raw_fd()).is_ok());
    }

    #[test]
    fn writing_to_a_closed_server_is_an_error_and_no_signal() {
        let (server, mut rank) = pair();
        assert!(!is_hung_up(rank.descriptor()));
        drop(server);
        assert!(is_hung_up(rank.descriptor()));
        // SAFETY: no other test of this process depends on SIGPIPE, which Rust's runtime ignores.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        assert_eq!(rank.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        send_without_waiting(rank.descriptor(), b"x");
        assert_eq!(rank.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_non_blocking_socket_is_polled_until_ready() {
        let (mut server, mut rank) = pair();
        // SAFETY: changes a flag of this test's own socket.
        unsafe { libc::fcntl(rank.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
        let large = vec![b'x'; 4 << 20];
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut got = vec![0; large.len()];
                server.read_exact(&mut got).unwrap();
                server.write_all(b"done").unwrap();
            });
            rank.write_all(&large).unwrap();
            let mut reply = [0; 4];
            rank.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"done");
        });
    }
}
