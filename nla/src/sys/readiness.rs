//! Descriptors that tokio watches, for those who read and write them by hand.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// A descriptor whose readiness is known. Nonblocking, or never read without having been ready.
pub type Watched = AsyncFd<OwnedFd>;

/// Watches `fd` from now on, until the result is dropped. To be called inside a runtime.
pub fn watch(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: an OwnedFd is open, names one file description for all its life, and always returns
    // the same number.
    unsafe { AsyncFd::register(fd) }.map_err(AsyncFdRegisterError::into_parts).map_err(|(_, error)| error)
}
