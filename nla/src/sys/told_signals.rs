//! The signals that others send to an agent and its guardian. A resource manager may send one to all processes of a job, or to those
//! that it has started. No such signal may end an agent or a guardian: the ranks would end with it.

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::c_int;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::descriptors;
use super::reap::{parent_of, program_of};
use super::spawn::swap_signal_mask;

/// The signals that agents act on.
const TOLD: [Signal; 3] = [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// Real-time signals begin here: the two before are glibc's.
const REAL_TIME: c_int = 34;

/// The name of Slurm's step daemon, which starts agents and sends signals to them.
const MANAGER: &str = "slurmstepd";

/// The number of ancestors that are looked at.
const ANCESTORS_MAX: usize = 16;

/// Blocks the signals that would end this process and that its program does not handle, except those that report an error of the
/// program. Ranks and remote shells get the mask of the user's shell. Call it while the process
/// has one thread.
pub(super) fn block_deadly_signals() {
    block_deadly_signals_and(&[]);
}

/// Also blocks TERM, USR1 and USR2, for a helper process that the agent ends by other means.
pub fn block_all_deadly_signals() {
    block_deadly_signals_and(&TOLD);
}

/// Blocks the deadly signals that the launcher gives no meaning. Call it while the process has one thread.
pub fn block_signals_without_meaning() {
    block([]);
}

fn block_deadly_signals_and(more: &[Signal]) {
    let of_terminal = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGPIPE];
    block(of_terminal.iter().chain(more).copied());
}

fn block(more: impl IntoIterator<Item = Signal>) {
    let timers = [Signal::SIGALRM, Signal::SIGVTALRM, Signal::SIGPROF, Signal::SIGXCPU, Signal::SIGXFSZ];
    let others = [Signal::SIGSTKFLT, Signal::SIGIO, Signal::SIGPWR];
    let deadly = timers.into_iter().chain(others).chain(more).map(|signal| signal as c_int).chain(REAL_TIME..=64);
    let before = swap_signal_mask(u64::MAX);
    swap_signal_mask(deadly.fold(before, |mask, signal| mask | 1 << (signal - 1)));
}

/// Who has sent a signal to an agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SignalSender {
    /// Its guardian, which has received the same signal.
    Guardian,
    /// slurmstepd, an ancestor of the guardian. It signals all its descendants, or only the guardian.
    Manager,
    /// Another process.
    Other,
}

/// What the handler has noted about a signal.
struct Noted {
    from_guardian: AtomicBool,
    from_other: AtomicBool,
    /// The last of the others.
    other: AtomicU32,
}

static NOTED: [Noted; TOLD.len()] = [const {
    Noted { from_guardian: AtomicBool::new(false), from_other: AtomicBool::new(false), other: AtomicU32::new(0) }
}; TOLD.len()];
static GUARDIAN: AtomicI32 = AtomicI32::new(0);
static EVENT: AtomicI32 = AtomicI32::new(-1);

extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel passes a valid siginfo. For a signal without a sender the field is some number: it is compared only.
    let sender = unsafe { (*info).si_pid() };
    if let Some(at) = TOLD.iter().position(|told| *told as c_int == signal) {
        let noted = &NOTED[at];
        if sender == GUARDIAN.load(Ordering::Relaxed) {
            noted.from_guardian.store(true, Ordering::Release);
        } else {
            noted.other.store(sender.unsigned_abs(), Ordering::Relaxed);
            noted.from_other.store(true, Ordering::Release);
        }
    }
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes eight bytes to an event counter that is never closed. Only system calls and atomics in a handler.
    unsafe { libc::write(EVENT.load(Ordering::Relaxed), one.as_ptr().cast(), one.len()) };
    Errno::set_raw(errno);
}

/// Installs the handlers of USR1 and USR2 in a newly forked agent. [`ToldSignals`] returns what arrives before it is made.
pub(super) fn begin_to_note() -> io::Result<()> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    EVENT.store(descriptors::move_up(OwnedFd::from(event))?.into_raw_fd(), Ordering::Relaxed);
    GUARDIAN.store(Pid::parent().as_raw(), Ordering::Relaxed);
    handle(Signal::SIGUSR1)?;
    handle(Signal::SIGUSR2)
}

fn handle(signal: Signal) -> io::Result<()> {
    let action = SigAction::new(SigHandler::SigAction(note), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler makes one system call, changes atomics only, and preserves errno.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

/// The signals TERM, USR1 and USR2 that this agent receives.
#[derive(Debug)]
pub struct ToldSignals(AsyncFd<BorrowedFd<'static>>);

impl ToldSignals {
    /// Handles TERM from now on, and watches for all of them. Call it inside a tokio runtime.
    pub fn new() -> io::Result<Self> {
        handle(Signal::SIGTERM)?;
        // SAFETY: the descriptor is open: it is never closed.
        let event = unsafe { BorrowedFd::borrow_raw(EVENT.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        Ok(Self(unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?))
    }

    /// Waits for signals. Cancel safe.
    pub async fn next(&self) -> Vec<(i32, SignalSender)> {
        loop {
            let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
            let mut count = [0; 8];
            let _ = nix::unistd::read(*self.0.get_ref(), &mut count);
            ready.clear_ready();
            let taken = taken();
            if !taken.is_empty() {
                return taken;
            }
        }
    }
}

/// Takes what the handler has noted.
fn taken() -> Vec<(i32, SignalSender)> {
    let mut all = Vec::new();
    for (signal, noted) in TOLD.into_iter().zip(&NOTED) {
        if noted.from_other.swap(false, Ordering::Acquire) {
            let is_manager = is_manager(noted.other.load(Ordering::Relaxed), MANAGER);
            all.push((signal as i32, if is_manager { SignalSender::Manager } else { SignalSender::Other }));
        }
        if noted.from_guardian.swap(false, Ordering::Acquire) {
            all.push((signal as i32, SignalSender::Guardian));
        }
    }
    all
}

/// Whether a process is an ancestor of this one and runs this program.
fn is_manager(pid: u32, program: &str) -> bool {
    let mut ancestors = std::iter::successors(Some(std::process::id()), |pid| parent_of(*pid));
    program_of(pid).is_some_and(|name| name == program)
        && ancestors.by_ref().skip(1).take(ANCESTORS_MAX).any(|ancestor| ancestor == pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_an_ancestor_of_that_name() {
        let (parent, own) = (Pid::parent().as_raw().unsigned_abs(), std::process::id());
        let [of_parent, of_own] = [parent, own].map(|pid| program_of(pid).unwrap());
        assert!(is_manager(parent, &of_parent) && !is_manager(parent, MANAGER));
        assert!(!is_manager(own, &of_own) && !is_manager(0, ""));
    }
}
