//! `accept` for libpmix: it gets no byte of a connection of another user.
//!
//! libpmix (up to 5.0 at least) waits for the first bytes of a new connection on the thread that serves all ranks. Any user of
//! the node may connect to its port, so a stranger who sends nothing would stop the job. libpmix has no option against this.
//! The dynamic linker looks for `accept` in the program before it looks in libc, so the program exports the function below
//! (`launcher/build.rs`).

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use nix::unistd::geteuid;

use crate::sys::tcp_peer::{SocketDiag, uid_in_table};

/// Asks the kernel which user owns a socket. Opened for the first connection.
static DIAG: Mutex<Option<SocketDiag>> = Mutex::new(None);

/// Accepts a connection as accept(2) does. In place of one of another user, it returns a connection that has ended.
///
/// # Safety
///
/// The contract is that of accept(2).
#[unsafe(export_name = "accept")]
unsafe extern "C" fn accept_own(listener: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
    // SAFETY: the contract of accept4(2) is that of accept(2), which the caller keeps.
    let accepted = unsafe { libc::accept4(listener, address, length, 0) };
    if accepted >= 0 {
        // SAFETY: both are open, and the caller's: they are not closed here.
        let (listener, stream) = unsafe { (TcpListener::from_raw_fd(listener), TcpStream::from_raw_fd(accepted)) };
        let (listener, stream) = (ManuallyDrop::new(listener), ManuallyDrop::new(stream));
        if !is_own(&listener, &stream).unwrap_or(false) {
            // A shutdown alone would leave what the stranger has sent.
            let ended = UnixStream::pair().map(|(ended, _)| ended);
            // SAFETY: both are open descriptors. The stranger's connection is closed by this.
            if !ended.is_ok_and(|ended| unsafe { libc::dup2(ended.as_raw_fd(), accepted) } >= 0) {
                // No descriptor is left.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
    accepted
}

/// Returns whether the peer of a connection belongs to this user.
fn is_own(listener: &TcpListener, stream: &TcpStream) -> io::Result<bool> {
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let mut diag = DIAG.lock().unwrap_or_else(PoisonError::into_inner);
    if diag.is_none() {
        *diag = SocketDiag::open(listener.local_addr()?).ok();
    }
    let answer = diag.as_ref().and_then(|diag| diag.uid_of_tcp_peer(local, peer).ok());
    let uid = answer.map_or_else(|| uid_in_table(local, peer), Ok)?;
    Ok(uid == Some(geteuid().as_raw()))
}

/// Returns whether libraries that are loaded now call the function above.
pub(super) fn is_exported() -> bool {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"accept".as_ptr()) };
    found == accept_own as *mut c_void
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::ptr;

    use super::*;
    use crate::sys::users::{as_user, is_root};

    fn accept(listener: &TcpListener) -> TcpStream {
        // SAFETY: an address may be null. The descriptor that is returned is new.
        unsafe { TcpStream::from_raw_fd(accept_own(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut())) }
    }

    #[test]
    fn connections_of_other_users_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let mut own = accept(&listener);
        client.write_all(b"hello").unwrap();
        own.read_exact(&mut [0; 5]).unwrap();
        if is_root() {
            let mut stranger = as_user(65_504, || TcpStream::connect(address).unwrap());
            stranger.write_all(b"a part").unwrap();
            let mut refused = accept(&listener);
            let mut bytes = Vec::new();
            // It ends, although the stranger keeps it open.
            refused.read_to_end(&mut bytes).unwrap();
            assert!(bytes.is_empty());
            drop(stranger);
        }
    }

    #[test]
    fn an_error_is_that_of_accept() {
        let no_listener = std::os::unix::net::UnixStream::pair().unwrap().0;
        // SAFETY: an address may be null.
        let result = unsafe { accept_own(no_listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut()) };
        assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINVAL)));
    }
}
