//! A descriptor that a program was started with and that its environment names.

use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};

/// The socket that PMI_FD names: for a rank that is this same program. Only the first call returns
/// it.
pub fn pmi_socket() -> io::Result<UnixStream> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let missing = || io::Error::new(io::ErrorKind::NotFound, "PMI_FD names no socket; was this started by scela-run?");
    let fd: RawFd =
        std::env::var("PMI_FD").ok().and_then(|fd| fd.parse().ok()).filter(|fd| *fd > 2).ok_or_else(missing)?;
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(missing());
    }
    // SAFETY: nothing in this process owns a descriptor that it has not opened itself; this one was
    // inherited, and the flag above makes the result its only owner. Whether it is open and a
    // socket is checked below, before it is used.
    let socket = unsafe { UnixStream::from_raw_fd(fd) };
    match getsockopt(&socket, sockopt::SockType) {
        Ok(_) => Ok(socket),
        Err(_) => {
            // Not a socket, or not open: closing it is not for us.
            std::mem::forget(socket);
            Err(missing())
        }
    }
}
