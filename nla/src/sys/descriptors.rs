//! Descriptors: pipes, sockets, and the numbers that are kept free for the spawner.
//!
//! Everything made here is close-on-exec from birth.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use nix::sys::stat::Mode;

/// The highest descriptor that [`reserve_low`] occupies; the agent's own are above.
pub const LOW_MAX: RawFd = 15;

/// What [`raise_limit`] asks for at most; the kernel's default ceiling (fs.nr_open).
pub const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Which of 0..=LOW_MAX hold our own /dev/null and are free to be claimed.
static RESERVED: AtomicU32 = AtomicU32::new(0);

/// Occupies every free descriptor up to [`LOW_MAX`] with /dev/null.
///
/// Descriptors that the process opens later are then above, and a
/// [`Spawner`](super::spawn::Spawner) made later copies only the few low ones into a child.
/// To be called once, before anything is opened; a second call does no harm.
pub fn reserve_low() -> io::Result<()> {
    loop {
        let null = dev_null_rw()?;
        if null.as_raw_fd() > LOW_MAX {
            return Ok(());
        }
        keep(null);
    }
}

/// Raises the soft limit of open descriptors to the hard one and returns it.
///
/// Bounded at [`DESCRIPTORS_MAX`]; never lowers it. Ranks do not see it: they get the limits of
/// the user's shell.
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(DESCRIPTORS_MAX);
    if wanted <= soft {
        return Ok(soft);
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    Ok(wanted)
}

/// A pipe for a rank's output: (read end, nonblocking; write end, blocking).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    set_nonblocking(read.as_fd())?;
    Ok((read, write))
}

/// A pipe for a rank's input: (read end, blocking; write end, nonblocking).
pub fn input_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    set_nonblocking(write.as_fd())?;
    Ok((read, write))
}

/// A connected pair of stream sockets: (ours, nonblocking; the rank's, blocking).
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    set_nonblocking(ours.as_fd())?;
    Ok((ours, theirs))
}

/// Makes reads and writes on `fd` return instead of waiting.
///
/// This is a property of the open file: whoever shares it (the user's terminal!) sees it too.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// /dev/null, for writing or else for reading.
pub fn dev_null(write: bool) -> io::Result<OwnedFd> {
    let access = if write { OFlag::O_WRONLY } else { OFlag::O_RDONLY };
    Ok(open("/dev/null", access | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Is `fd` a terminal?
pub fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    std::io::IsTerminal::is_terminal(&fd)
}

/// How many bytes could be read from a pipe or socket at once (FIONREAD).
pub fn unread_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, to which we give a pointer.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// The inode number of the open file: of two sockets that exist at a time, never the same.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(fd)?.st_ino)
}

/// Sends bytes, at least one, over a socket of this machine, and a descriptor with the first of
/// them. Returns how many bytes went; the descriptor goes with those.
pub fn send_descriptor(socket: impl AsFd, bytes: &[u8], descriptor: impl AsFd) -> Result<usize, Errno> {
    let descriptors = [descriptor.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)
}

/// Closes every descriptor from `first` on. Only for a process that has opened none of them itself.
pub(super) fn close_from(first: RawFd) {
    // SAFETY: numbers only. What is closed was inherited and has no owner in this process: the
    // caller has opened nothing yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if closed < 0 {
        for fd in first..1024 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// /dev/null for both directions.
pub(super) fn dev_null_rw() -> io::Result<OwnedFd> {
    Ok(open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Makes the descriptor table large enough for `count` descriptors, or as many as the limit allows.
///
/// To be called before the first thread is started: when the table of a process with threads
/// grows, the kernel waits for a grace period of RCU (`expand_fdtable`), 8 to 20 ms at each doubling
/// on a machine that is otherwise idle. A place costs 8 bytes.
pub fn make_room(count: u64) -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let last = RawFd::try_from(count.min(soft).saturating_sub(1)).unwrap_or(RawFd::MAX);
    // Not the descriptor matters but its number: the table never shrinks.
    duplicate_above(dev_null(false)?.as_fd(), last).map(drop)
}

/// A second descriptor of the same file, numbered `lowest` or above, close-on-exec.
pub(super) fn duplicate_above(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    let new = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(lowest))?;
    // SAFETY: F_DUPFD_CLOEXEC has just made `new`; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// Takes a slot for the spawner: `preferred` if that is reserved, else the lowest one reserved,
/// else (without [`reserve_low`]) the lowest free descriptor. It holds /dev/null; 0, 1, 2 are
/// never given.
pub(super) fn claim(preferred: Option<RawFd>) -> io::Result<OwnedFd> {
    let mut reserved = RESERVED.load(SeqCst);
    loop {
        let usable = reserved & !0b111;
        let slot = preferred
            .filter(|&fd| usable & bit(fd) != 0)
            .or_else(|| (usable != 0).then(|| usable.trailing_zeros() as RawFd));
        let Some(slot) = slot else {
            return duplicate_above(dev_null_rw()?.as_fd(), 3);
        };
        match RESERVED.compare_exchange(reserved, reserved & !bit(slot), SeqCst, SeqCst) {
            // SAFETY: a set bit says that `keep` gave up a descriptor of this number, open and
            // owned by nobody else; clearing the bit makes it ours alone.
            Ok(_) => return Ok(unsafe { OwnedFd::from_raw_fd(slot) }),
            Err(current) => reserved = current,
        }
    }
}

/// Gives a descriptor that holds /dev/null (back) to the reserve; one above [`LOW_MAX`] is closed.
pub(super) fn keep(null: OwnedFd) {
    if null.as_raw_fd() <= LOW_MAX {
        RESERVED.fetch_or(bit(null.into_raw_fd()), SeqCst);
    }
}

/// Moves a descriptor above [`LOW_MAX`]; its old number joins the reserve.
pub(super) fn move_up(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > LOW_MAX {
        return Ok(fd);
    }
    let moved = duplicate_above(fd.as_fd(), LOW_MAX + 1)?;
    overwrite(fd.as_fd(), dev_null_rw()?.as_fd())?;
    keep(fd);
    Ok(moved)
}

/// Makes the number of `slot` refer to the file of `source`, close-on-exec.
pub(super) fn overwrite(slot: BorrowedFd<'_>, source: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        // SAFETY: dup3 takes two numbers. Whoever lent us `slot` keeps an open descriptor of the
        // same number, of another file: that is what was asked for.
        let new = unsafe { libc::dup3(source.as_raw_fd(), slot.as_raw_fd(), libc::O_CLOEXEC) };
        if new >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // EBUSY: another thread is in the middle of an open that will use this number.
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
            return Err(error);
        }
    }
}

fn bit(fd: RawFd) -> u32 {
    u32::try_from(fd).ok().and_then(|fd| 1u32.checked_shl(fd)).unwrap_or(0)
}

/// Tests that count on particular slots take turns.
#[cfg(test)]
pub(super) static SLOTS_IN_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn nonblocking(fd: BorrowedFd<'_>) -> bool {
        let flags = fcntl(fd, FcntlArg::F_GETFL).expect("an open descriptor has flags");
        OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
    }

    fn close_on_exec(fd: BorrowedFd<'_>) -> bool {
        fcntl(fd, FcntlArg::F_GETFD).expect("an open descriptor has flags") & libc::FD_CLOEXEC != 0
    }

    #[test]
    fn only_our_end_is_nonblocking_and_both_close_on_exec() {
        let (read, write) = pipe().expect("descriptors are left");
        let (input, feed) = input_pipe().expect("descriptors are left");
        let (ours, theirs) = socket_pair().expect("descriptors are left");
        for (fd, expected) in
            [(&read, true), (&write, false), (&input, false), (&feed, true), (&ours, true), (&theirs, false)]
        {
            assert_eq!(nonblocking(fd.as_fd()), expected);
            assert!(close_on_exec(fd.as_fd()));
            assert!(!is_terminal(fd.as_fd()));
        }
    }

    #[test]
    fn unread_bytes_are_counted() {
        let (read, write) = pipe().expect("descriptors are left");
        assert_eq!(unread_bytes(read.as_fd()).expect("a pipe can be asked"), 0);
        std::fs::File::from(write).write_all(b"abc").expect("it fits");
        assert_eq!(unread_bytes(read.as_fd()).expect("a pipe can be asked"), 3);
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).expect("end of file follows");
        assert_eq!(text, "abc");
    }

    #[test]
    fn slots_are_claimed_once_and_come_back() {
        let _alone = SLOTS_IN_TEST.lock();
        reserve_low().expect("/dev/null opens");
        let first = claim(None).expect("some are reserved");
        let second = claim(None).expect("some are reserved");
        assert_ne!(first.as_raw_fd(), second.as_raw_fd());
        assert!(first.as_raw_fd() > 2);
        let number = first.as_raw_fd();
        keep(first);
        if number <= LOW_MAX {
            let again = claim(Some(number)).expect("it came back");
            assert_eq!(again.as_raw_fd(), number);
            keep(again);
        }
        keep(second);
    }
}
