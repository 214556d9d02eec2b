//! Descriptors that tokio watches and that the caller reads and writes with its own system calls.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// A descriptor with known readiness. It is nonblocking, or is read only after it became ready.
pub type Watched = AsyncFd<OwnedFd>;

/// Watches `fd` until the result is dropped. Call it inside a tokio runtime.
pub fn watch(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: an OwnedFd is open, refers to one file description as long as it lives, and always returns the same
    // number.
    unsafe { AsyncFd::register(fd) }.map_err(AsyncFdRegisterError::into_parts).map_err(|(_, error)| error)
}

/// Like [`watch`], but only the end of the connection makes it ready, for [`Interest::PRIORITY`]. Arriving bytes do not.
pub fn watch_end(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: as above.
    unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }
        .map_err(AsyncFdRegisterError::into_parts)
        .map_err(|(_, error)| error)
}
