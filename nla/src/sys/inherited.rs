//! The PMI socket that a program inherited and that its environment names.

use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{getsockopt, sockopt};

/// Returns the socket that PMI_FD names, for a rank that is this same program. Only the first call succeeds.
pub fn pmi_socket() -> io::Result<UnixStream> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let missing = || io::Error::new(io::ErrorKind::NotFound, "PMI_FD names no socket; was this started by scela-run?");
    let fd: RawFd =
        std::env::var("PMI_FD").ok().and_then(|fd| fd.parse().ok()).filter(|fd| *fd > 2).ok_or_else(missing)?;
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(missing());
    }
    // SAFETY: the descriptor was inherited, so no code of this process owns it, and the flag above makes the result its
    // only owner. The code below checks that it is an open socket before it is used.
    let socket = unsafe { UnixStream::from_raw_fd(fd) };
    match getsockopt(&socket, sockopt::SockType) {
        Ok(_) => Ok(socket),
        Err(_) => {
            // Not a socket, or not open: do not close it.
            std::mem::forget(socket);
            Err(missing())
        }
    }
}
