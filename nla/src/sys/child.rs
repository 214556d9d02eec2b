//! The child of a spawn, from clone to exec, in its parent's memory.
//!
//! This code runs while the parent thread is suspended in clone: no allocation, no lock, no logging, only system
//! calls with numbers and with pointers that the parent has prepared.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::{io, ptr};

use nix::errno::Errno;

use super::launching::{STEP_DIRECTORY, STEP_EXEC};
use super::profile_file::PROFILE_FD;
use super::rank_file::RANK_FILE_FD;
use super::spawn::{PMI_FD, Refusal, STACK_BYTES, SpawnError, SpawnStep, Table, set_disposition, swap_signal_mask};

/// The child's stack, with a guard page below it.
#[derive(Debug)]
pub(super) struct Stack {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread.
unsafe impl Send for Stack {}

impl Stack {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: sysconf takes a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096);
        let bytes = STACK_BYTES.next_multiple_of(page) + page;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base, bytes };
        // SAFETY: the first page of the mapping just made, which is still unused.
        if unsafe { libc::mprotect(base, page, libc::PROT_NONE) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// Runs [`child`] with `order`. Returns when the child has exec'ed or ended. The kernel stores the child's pid in
    /// `pid` before the child runs.
    pub(super) fn clone_child(&mut self, order: &Order<'_>, pid: &AtomicI32) -> Result<NonZeroU32, Refusal> {
        let share = match order.table {
            Table::Unshared => libc::CLONE_FILES,
            Table::Copied => 0,
        };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | share | libc::SIGCHLD;
        // SAFETY: the stack grows down from one past the end of the mapping, which is page-aligned.
        // `child` has the required signature; `order` and all that it points to outlive the
        // call, as CLONE_VFORK suspends us until the child no longer uses our memory. Our stack
        // is not the child's, and signals are blocked, so nothing else of ours runs in it. The
        // child writes only to `outcome`, an UnsafeCell, to `step`, an atomic, and to errno, which it
        // shares with this suspended thread. The kernel writes the pid to an atomic of the same size.
        let pid = unsafe {
            let top = self.base.byte_add(self.bytes);
            libc::clone(child, top, flags, ptr::from_ref(order).cast_mut().cast(), pid.as_ptr())
        };
        match u32::try_from(pid).ok().and_then(NonZeroU32::new) {
            Some(pid) => Ok(pid),
            None => {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
                Err(Refusal::Step(SpawnError { step: SpawnStep::Clone, errno }))
            }
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no child runs on it any more.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

/// The child's parameters. The pointers refer to memory that outlives the child's use of it.
pub(super) struct Order<'a> {
    /// The pid of the process that clones the child.
    pub(super) parent: libc::pid_t,
    pub(super) path: *const c_char,
    pub(super) argv: *const *const c_char,
    /// Null if the program is no script.
    pub(super) shell_argv: *const *const c_char,
    pub(super) envp: *const *const c_char,
    pub(super) wdir: *const c_char,
    /// It leads a session; otherwise only a process group.
    pub(super) leads_session: bool,
    /// The limits that this process has with other values.
    pub(super) limits: &'a [(u32, u64, u64)],
    pub(super) umask: u32,
    pub(super) blocked: u64,
    /// The signals that this process handles in another way than the program shall, and that way.
    pub(super) dispositions: &'a [(c_int, libc::sighandler_t)],
    /// The memory nodes that it may use, as in [`Masks`](super::spawn::Masks).
    pub(super) memory: &'a [u64],
    /// Its oom_score_adj; empty if it keeps that of its parent.
    pub(super) oom_score: &'a [u8],
    pub(super) slots: [c_int; 3],
    /// The slots that become [`KEPT`].
    pub(super) kept: [Option<c_int>; 3],
    /// The highest slot, or the highest of [`KEPT`] if that is higher.
    pub(super) highest: c_int,
    pub(super) table: Table,
    /// The child notes here which system call it is about to make.
    pub(super) step: &'a AtomicU8,
    pub(super) outcome: UnsafeCell<(Progress, c_int)>,
}

#[derive(Clone, Copy)]
pub(super) enum Progress {
    /// Nothing has failed yet.
    Started,
    Unshare,
    Failed(SpawnStep),
}

/// Runs the child from clone to exec, in the parent's memory.
extern "C" fn child(order: *mut c_void) -> c_int {
    // SAFETY: `clone_child` passed a pointer to an Order, which is only read, but for its cell.
    let order = unsafe { &*order.cast::<Order<'_>>() };
    let failed = become_program(order);
    let errno = Errno::last_raw();
    // SAFETY: the parent reads the cell only after the child's end; no other thread has a pointer to it.
    unsafe { order.outcome.get().write_volatile((failed, errno)) };
    // SAFETY: ends this process at once, without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Executes the program. Returns only on failure, with errno set. Makes system calls only.
fn become_program(order: &Order<'_>) -> Progress {
    // SAFETY: all blocks below make system calls with numbers, or with pointers from the order to
    // NUL-terminated strings and null-terminated arrays that outlive this process's use of them.
    // A new session has a new process group. The child leads no group yet, so this cannot fail.
    let led = if order.leads_session { unsafe { libc::setsid() } } else { unsafe { libc::setpgid(0, 0) } };
    if led < 0 {
        return Progress::Failed(SpawnStep::Group);
    }
    // The kernel sends SIGKILL when the thread that called clone ends. Credentials do not change before exec, so the
    // setting stays; exec of a setuid program clears it.
    // SAFETY: numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
        return Progress::Failed(SpawnStep::Group);
    }
    // SAFETY: getppid takes nothing.
    if unsafe { libc::getppid() } != order.parent {
        // The parent died before the setting; no process reads this failure.
        return Progress::Failed(SpawnStep::Group);
    }
    if let Err(progress) = arrange_descriptors(order) {
        return progress;
    }
    set_oom_score(order.oom_score);
    order.step.store(STEP_DIRECTORY, Ordering::Relaxed);
    // SAFETY: as above.
    if unsafe { libc::chdir(order.wdir) } < 0 {
        return Progress::Failed(SpawnStep::Directory);
    }
    // SAFETY: as above.
    unsafe { libc::umask(order.umask as libc::mode_t) };
    for (resource, soft, hard) in order.limits {
        let new = [*soft, *hard];
        // SAFETY: reads one struct rlimit64, which is two u64; a null old limit is not written.
        let set =
            unsafe { libc::syscall(libc::SYS_prlimit64, 0, *resource, new.as_ptr(), ptr::null_mut::<[u64; 2]>()) };
        if set < 0 {
            return Progress::Failed(SpawnStep::Limits);
        }
    }
    if let Err(progress) = bind_memory(order.memory) {
        return progress;
    }
    // The table of signal handlers is a copy of the parent's. Reset it before unblocking signals: exec would reset it
    // too, but a signal before exec would run a handler in the parent's memory.
    for (signal, handler) in order.dispositions {
        set_disposition(*signal, *handler);
    }
    swap_signal_mask(order.blocked);
    order.step.store(STEP_EXEC, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { libc::execve(order.path, order.argv, order.envp) };
    let errno = Errno::last_raw();
    if errno == libc::ENOEXEC && !order.shell_argv.is_null() {
        // execvp does the same with a script that has no #! line.
        // SAFETY: as above; the first argument is the shell itself.
        unsafe { libc::execve(c"/bin/sh".as_ptr(), order.shell_argv, order.envp) };
        Errno::set_raw(errno);
    }
    Progress::Failed(SpawnStep::Exec)
}

/// Sets the oom_score_adj of this process, which its program keeps. A rank runs as well without it. The kernel does not change that of
/// the parent, whose memory this process has, because it waits for this process as after vfork.
fn set_oom_score(score: &[u8]) {
    if !score.is_empty() {
        // exec closes the descriptor.
        // SAFETY: a string that ends with NUL, and numbers.
        let file = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
        // SAFETY: reads as many bytes as the slice has. Without a file, EBADF.
        unsafe { libc::write(file, score.as_ptr().cast(), score.len()) };
    }
}

/// Binds this process to its memory nodes. exec keeps them.
fn bind_memory(memory: &[u64]) -> Result<(), Progress> {
    if !memory.is_empty() {
        // The kernel reads one bit less than it is told.
        let bits = memory.len() * u64::BITS as usize + 1;
        // SAFETY: the kernel reads as many bits as the slice has.
        let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, memory.as_ptr(), bits) };
        if set < 0 {
            return Err(Progress::Failed(SpawnStep::Memory));
        }
    }
    Ok(())
}

/// The descriptors that a rank gets beyond 0, 1 and 2. They follow each other.
pub(super) const KEPT: [c_int; 3] = [PMI_FD, RANK_FILE_FD, PROFILE_FD];

/// Moves the slots to 0, 1, 2 and [`KEPT`], and closes all other descriptors.
fn arrange_descriptors(order: &Order<'_>) -> Result<(), Progress> {
    const FAILED: Progress = Progress::Failed(SpawnStep::Descriptors);
    if order.table == Table::Unshared {
        let above = order.highest as libc::c_uint + 1;
        if !close_range(above, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) {
            return Err(Progress::Unshare);
        }
    }
    // From here on the descriptor table is the child's own.
    for (fd, slot) in (0..).zip(order.slots) {
        // SAFETY: numbers only.
        if unsafe { libc::dup3(slot, fd, 0) } < 0 {
            return Err(FAILED);
        }
    }
    for (fd, slot) in KEPT.into_iter().zip(order.kept) {
        let kept = match slot {
            // The slot already has the right number. dup3 onto itself is an error, so only clear close-on-exec.
            // SAFETY: numbers only.
            Some(slot) if slot == fd => unsafe { libc::fcntl(fd, libc::F_SETFD, 0) },
            // SAFETY: numbers only.
            Some(slot) => unsafe { libc::dup3(slot, fd, 0) },
            None => 0,
        };
        if kept < 0 {
            return Err(FAILED);
        }
    }
    let [first, .., last] = KEPT;
    for (fd, _) in KEPT.into_iter().zip(order.kept).filter(|(_, slot)| slot.is_none()) {
        // SAFETY: numbers only; a closed descriptor is no problem.
        unsafe { libc::close(fd) };
    }
    if order.table == Table::Unshared {
        let (above, highest) = (last as libc::c_uint + 1, order.highest as libc::c_uint);
        let closed =
            close_range(3, first as libc::c_uint - 1, 0) && (highest < above || close_range(above, highest, 0));
        return if closed { Ok(()) } else { Err(FAILED) };
    }
    for fd in (3..first).chain(last + 1..=order.highest) {
        // SAFETY: numbers only; a closed descriptor is no problem. All higher descriptors are close-on-exec.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> bool {
    // SAFETY: numbers only; the caller owns the descriptors that it closes.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}
