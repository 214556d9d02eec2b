//! For tests: threads that run as another user.

use std::io::{self, Write as _};

/// Does something in a thread whose effective user and group are `id`.
pub(crate) fn as_user<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> T {
    let in_thread = || {
        // SAFETY: the calls have no pointers. Without the wrappers of the C library they concern this thread only.
        let changed = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, 0, 0),
                libc::syscall(libc::SYS_setresgid, id, id, id),
                libc::syscall(libc::SYS_setresuid, id, id, id),
            ]
        };
        assert_eq!(changed, [0; 3], "root may become any user");
        work()
    };
    std::thread::scope(|threads| threads.spawn(in_thread).join().unwrap())
}

/// Returns whether this process may use [`as_user`]. Says so if not.
pub(crate) fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("TESTS_STRICT").is_none(), "root is needed");
        let _ = io::stderr().write_all(b"skipped: only root can be two other users\n");
    }
    is_root
}
