//! Descriptors: pipes, sockets, and the low numbers that are reserved for the spawner.
//!
//! Every descriptor made here is close-on-exec from birth.

use bytes::BytesMut;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt, socketpair, sockopt,
};
use nix::sys::stat::Mode;

use super::child::KEPT;

/// The highest descriptor that [`reserve_low`] occupies: above 0, 1 and 2, each spawner takes four, and their
/// [`RankFile`](super::RankFile) and [`ProfileFile`](super::ProfileFile) one each. The agent's own descriptors are higher.
pub const LOW_MAX: RawFd = 4 + 4 * super::launching::SPAWNERS_MAX as RawFd;

/// The bound of [`raise_limit`]: the kernel's default maximum (fs.nr_open).
pub const DESCRIPTORS_MAX: u64 = 1 << 20;

/// A bit for each of 0..=LOW_MAX: set if the descriptor is our own /dev/null and can be claimed.
static RESERVED: AtomicU32 = AtomicU32::new(0);

/// Occupies every free descriptor up to [`LOW_MAX`] with /dev/null.
///
/// Descriptors that the process opens later then have higher numbers, and a
/// [`Spawner`](super::spawn::Spawner) made later copies only the few low ones into a child.
/// Call it once, before any other descriptor is opened. A second call is harmless.
pub fn reserve_low() -> io::Result<()> {
    let mut null = dev_null_rw()?;
    while null.as_raw_fd() <= LOW_MAX {
        let next = null.try_clone()?;
        keep(null);
        null = next;
    }
    Ok(())
}

/// Raises the soft limit of open descriptors to the hard one and returns it.
///
/// Raises it at most to [`DESCRIPTORS_MAX`], and never lowers it. Ranks are not affected: they get the limits of the
/// user's shell.
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(DESCRIPTORS_MAX);
    if wanted <= soft {
        return Ok(soft);
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    Ok(wanted)
}

/// Creates a pipe for a rank's output: (nonblocking read end, blocking write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    set_flags(read.as_fd(), OFlag::O_NONBLOCK)?;
    Ok((read, write))
}

/// Creates a pipe for a rank's input: (blocking read end, nonblocking write end).
pub fn input_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    set_flags(write.as_fd(), OFlag::O_NONBLOCK)?;
    Ok((read, write))
}

/// Creates a connected pair of stream sockets: (ours, nonblocking; the rank's, blocking).
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    set_flags(ours.as_fd(), OFlag::O_NONBLOCK)?;
    Ok((ours, theirs))
}

/// Like [`socket_pair`], for [`read_with_sender`] from our end.
pub fn socket_pair_with_senders() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socket_pair()?;
    setsockopt(&ours, sockopt::PassCred, &true)?;
    Ok((ours, theirs))
}

/// Reads bytes that one process has sent, and returns their number and its pid. The pid is `None` on other sockets than
/// those of [`socket_pair_with_senders`], and for a process outside of this pid namespace.
pub fn read_with_sender(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Option<u32>), Errno> {
    /// Room for the credentials, and for no descriptor.
    #[repr(C, align(8))]
    struct Control([u8; 32]);
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros are a valid header: null pointers and lengths of 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the header points to buffers of the given lengths, which outlive the call.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let read = usize::try_from(Errno::result(read)?).unwrap_or(0);
    // SAFETY: the kernel has filled in the header and the buffer, which holds a whole `ucred` if it says so.
    let sender = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_ucred = !header.is_null()
            && ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
        is_ucred.then(|| libc::CMSG_DATA(header).cast::<libc::ucred>().read_unaligned().pid)
    };
    Ok((read, sender.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)))
}

/// Sets the flags of a new file.
fn set_flags(fd: BorrowedFd<'_>, flags: OFlag) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Leaves `fd` open in a program that this process executes. Returns its number for [`take_inherited`].
pub fn leave_to_program(fd: BorrowedFd<'_>) -> io::Result<RawFd> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(fd.as_raw_fd())
}

/// Takes a descriptor that was left to this program. To be called once for each number, before this process opens anything.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is only used to ask whether the descriptor is open.
    let flags = fcntl(unsafe { BorrowedFd::borrow_raw(number) }, FcntlArg::F_GETFD)?;
    // SAFETY: it is open, and the caller takes it once, so it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::from_bits_retain(flags) | FdFlag::FD_CLOEXEC))?;
    Ok(fd)
}

/// Sets O_NONBLOCK on `fd`.
///
/// The flag belongs to the open file description: other processes that share it (the user's terminal!) are affected
/// too.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    set_flags(fd, flags | OFlag::O_NONBLOCK)
}

/// Opens /dev/null for writing or for reading.
pub fn dev_null(write: bool) -> io::Result<OwnedFd> {
    let access = if write { OFlag::O_WRONLY } else { OFlag::O_RDONLY };
    Ok(open("/dev/null", access | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Returns how many columns the terminal has (TIOCGWINSZ); `None` if `fd` is no terminal or does not know.
pub fn terminal_columns(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, through the pointer given.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (status == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Returns how many bytes can be read from a pipe or socket without blocking (FIONREAD).
pub fn unread_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, through the pointer given.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Reads at most `bytes_max` bytes and appends them to `buffer`. Returns their number; 0 is the end.
pub fn read_more(fd: BorrowedFd<'_>, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
    buffer.reserve(bytes_max);
    let room = buffer.spare_capacity_mut();
    // SAFETY: the kernel writes at most as many bytes as the spare capacity has, and reads none of them.
    let count = unsafe { libc::read(fd.as_raw_fd(), room.as_mut_ptr().cast(), bytes_max.min(room.len())) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has initialized so many bytes after the length.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// Writes as many bytes as can be written without waiting, whether or not the file is nonblocking. Fails with EAGAIN
/// if no byte can be written, and with EOPNOTSUPP for files without RWF_NOWAIT: pipes have it since Linux 6.5.
pub fn write_ready(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel reads one vector, and the bytes that it names. -1 is the file's own position.
    let written = unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const piece, 1, -1, libc::RWF_NOWAIT) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Gives a pipe room for `bytes` bytes, if it has less and the kernel permits it (pipe-user-pages-soft). Does nothing to other
/// files.
pub fn widen_pipe(fd: BorrowedFd<'_>, bytes: u32) {
    // A failure costs speed, not correctness.
    if let (Ok(room), Ok(bytes)) = (fcntl(fd, FcntlArg::F_GETPIPE_SZ), i32::try_from(bytes))
        && room < bytes
    {
        let _ = fcntl(fd, FcntlArg::F_SETPIPE_SZ(bytes));
    }
}

/// Returns the inode number of the open file. Two sockets that exist at the same time never share one.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(fd)?.st_ino)
}

/// Sends bytes over a Unix socket, and a descriptor with the first of them. `bytes` must not be empty. Returns how
/// many bytes were sent; the descriptor was sent with those.
pub fn send_descriptor(socket: impl AsFd, bytes: &[u8], descriptor: impl AsFd) -> Result<usize, Errno> {
    let descriptors = [descriptor.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)
}

/// Returns how many descriptors this process has open.
pub fn open_descriptors() -> io::Result<usize> {
    // Without the one that reads the directory.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// Closes all descriptors but the standard streams. To be called before this process has opened any.
pub fn close_inherited() {
    close_all_but(Vec::new());
}

/// Closes all descriptors but the standard streams and these. The process must not have opened any of the others itself.
pub(super) fn close_all_but(mut kept: Vec<RawFd>) {
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        close_between(first, fd - 1);
        first = fd + 1;
    }
    close_between(first, RawFd::MAX);
}

/// Closes the descriptors from `first` to `last`. The process must not have opened any of them itself.
fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: numbers only. The closed descriptors were inherited and have no owner in this process: the caller has
    // not opened any yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed < 0 {
        for fd in first..=last.min(1023) {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Opens /dev/null for reading and writing.
pub(super) fn dev_null_rw() -> io::Result<OwnedFd> {
    Ok(open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Returns how many files this process may have open.
pub fn open_files_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Returns how many files this process may have open at most: the hard limit.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(_, hard)| hard)
}

/// Makes the descriptor table large enough for `count` descriptors, or as many as the limit allows.
///
/// Call it before the first thread is started: when the table of a process with threads
/// grows, the kernel waits for a grace period of RCU (`expand_fdtable`), 8 to 20 ms at each doubling
/// on an otherwise idle machine. Each entry of the table takes 8 bytes.
pub fn make_room(count: u64) -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let last = RawFd::try_from(count.min(soft).saturating_sub(1)).unwrap_or(RawFd::MAX);
    // The table grows to the highest number in use and never shrinks, so the descriptor itself can be closed at once.
    duplicate_above(dev_null(false)?.as_fd(), last).map(drop)
}

/// Duplicates a descriptor to a number of at least `lowest`, close-on-exec.
pub(super) fn duplicate_above(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // EINVAL: the limit on open files allows no such number.
    let new = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(lowest))
        .map_err(|errno| if errno == Errno::EINVAL { Errno::EMFILE } else { errno })?;
    // SAFETY: F_DUPFD_CLOEXEC has just made `new`, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// A low descriptor whose file all children get. Drop gives its number back to the reserve: an agent may serve many sessions.
#[derive(Debug)]
pub(super) struct Slot(Option<OwnedFd>);

impl Slot {
    /// Claims `preferred`, as [`claim`] does, for the file of `source`.
    pub(super) fn of(preferred: RawFd, source: BorrowedFd<'_>) -> io::Result<Self> {
        let slot = Self(Some(claim(Some(preferred))?));
        overwrite(slot.as_fd(), source)?;
        Ok(slot)
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until drop").as_fd()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else { return };
        // If this fails, the number is closed, and not reserved any more.
        if dev_null_rw().and_then(|null| overwrite(fd.as_fd(), null.as_fd())).is_ok() {
            keep(fd);
        }
    }
}

/// Takes a slot for the spawner: `preferred` if it is reserved, else the lowest reserved one, else (without
/// [`reserve_low`]) the lowest free descriptor. The slot is open on /dev/null. 0, 1 and 2 are never returned, and numbers that
/// ranks know ([`KEPT`]) only to those that prefer them: moving another one there would overwrite the slot.
pub(super) fn claim(preferred: Option<RawFd>) -> io::Result<OwnedFd> {
    let known = KEPT.into_iter().fold(0, |bits, fd| bits | bit(fd));
    let mut reserved = RESERVED.load(SeqCst);
    loop {
        let usable = reserved & !0b111;
        let others = usable & !known;
        let slot = preferred
            .filter(|&fd| usable & bit(fd) != 0)
            .or_else(|| (others != 0).then(|| others.trailing_zeros() as RawFd));
        let Some(slot) = slot else {
            return duplicate_above(dev_null_rw()?.as_fd(), 3);
        };
        match RESERVED.compare_exchange(reserved, reserved & !bit(slot), SeqCst, SeqCst) {
            // SAFETY: a set bit means that `keep` gave up a descriptor of this number, which is open
            // and has no other owner. Clearing the bit makes this the only owner.
            Ok(_) => return Ok(unsafe { OwnedFd::from_raw_fd(slot) }),
            Err(current) => reserved = current,
        }
    }
}

/// Adds a descriptor of /dev/null to the reserve. Closes it if it is above [`LOW_MAX`].
pub(super) fn keep(null: OwnedFd) {
    if null.as_raw_fd() <= LOW_MAX {
        RESERVED.fetch_or(bit(null.into_raw_fd()), SeqCst);
    }
}

/// Moves a descriptor above [`LOW_MAX`] and adds its old number to the reserve.
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
        // SAFETY: dup3 takes two numbers. The owner of `slot` keeps an open descriptor of the same
        // number, now of another file, as documented.
        let new = unsafe { libc::dup3(source.as_raw_fd(), slot.as_raw_fd(), libc::O_CLOEXEC) };
        if new >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // EBUSY: another thread is in an open call that will use this number.
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
            return Err(error);
        }
    }
}

fn bit(fd: RawFd) -> u32 {
    u32::try_from(fd).ok().and_then(|fd| 1u32.checked_shl(fd)).unwrap_or(0)
}

/// Serializes the tests that depend on particular slots.
#[cfg(test)]
pub(crate) static SLOTS_IN_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IsTerminal, Read, Write};

    fn nonblocking(fd: BorrowedFd<'_>) -> bool {
        let flags = fcntl(fd, FcntlArg::F_GETFL).expect("an open descriptor has flags");
        OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
    }

    fn close_on_exec(fd: BorrowedFd<'_>) -> bool {
        fcntl(fd, FcntlArg::F_GETFD).expect("an open descriptor has flags") & libc::FD_CLOEXEC != 0
    }

    #[test]
    fn only_our_end_is_nonblocking_and_both_ends_are_close_on_exec() {
        let (read, write) = pipe().expect("descriptors are left");
        let (input, feed) = input_pipe().expect("descriptors are left");
        let (ours, theirs) = socket_pair().expect("descriptors are left");
        for (fd, expected) in
            [(&read, true), (&write, false), (&input, false), (&feed, true), (&ours, true), (&theirs, false)]
        {
            assert_eq!(nonblocking(fd.as_fd()), expected);
            assert!(close_on_exec(fd.as_fd()));
            assert!(!fd.is_terminal());
        }
    }

    #[test]
    fn unread_bytes_are_counted() {
        let (read, write) = pipe().expect("descriptors are left");
        assert_eq!(unread_bytes(read.as_fd()).expect("FIONREAD works on a pipe"), 0);
        std::fs::File::from(write).write_all(b"abc").expect("the pipe has room");
        assert_eq!(unread_bytes(read.as_fd()).expect("FIONREAD works on a pipe"), 3);
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).expect("end of file follows");
        assert_eq!(text, "abc");
    }

    #[test]
    fn a_slot_can_be_claimed_again_after_its_return() {
        let _alone = SLOTS_IN_TEST.lock();
        reserve_low().expect("/dev/null opens");
        let first = claim(None).expect("slots are reserved");
        let second = claim(None).expect("slots are reserved");
        assert_ne!(first.as_raw_fd(), second.as_raw_fd());
        assert!(first.as_raw_fd() > 2);
        let number = first.as_raw_fd();
        keep(first);
        if number <= LOW_MAX {
            let again = claim(Some(number)).expect("the slot was returned");
            assert_eq!(again.as_raw_fd(), number);
            keep(again);
        }
        keep(second);
    }
}
