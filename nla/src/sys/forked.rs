//! Guardians that the launcher forks on its own machine.
//!
//! They run this program without an exec: the dynamic linker has done its work, and the pages of program and data are shared.
//! That saves a third of the time in which an agent starts. The launcher forks them before it starts any thread and before
//! it opens anything that a guardian must not have.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow};

use super::cgroup;
use super::descriptors;
use super::guardian::fork_alone;
use super::identity;

/// A guardian that was forked and waits for its order.
#[derive(Debug)]
pub struct ForkedGuardian {
    /// The pid. The process is a child of this one, and no other code reaps it.
    pub pid: u32,
    /// Leads to the agent's standard input.
    pub input: OwnedFd,
    /// Yields the agent's standard output.
    pub output: OwnedFd,
}

/// The process in which [`fork_guardians`] has returned.
#[derive(Debug)]
pub enum Forked {
    /// The launcher, with its guardians.
    Launcher(Vec<ForkedGuardian>),
    /// A child of it. It calls [`guarded`](super::guardian::guarded) next.
    Guardian,
}

/// Forks this process, which must have one thread, `count` times. A guardian that is dropped exits: its input has ended. Raises the
/// soft limit of open files.
///
/// A signal to the process group is the launcher's alone, even if it arrives at this time: a guardian leads a session of its own
/// when it first can be interrupted.
pub fn fork_guardians(count: u32) -> io::Result<Forked> {
    // Two descriptors for each guardian.
    descriptors::raise_limit()?;
    // The guardians have this process's copy of the answer.
    let _ = cgroup::delegated();
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let forked = fork_all(count);
    if let Ok(Forked::Guardian) = forked {
        // EPERM: see `guarded`.
        let _ = identity::new_session();
        drop_pending_signals();
    }
    mask.thread_set_mask()?;
    forked
}

fn fork_all(count: u32) -> io::Result<Forked> {
    let mut guardians = Vec::new();
    for _ in 0..count {
        let (theirs_in, input) = descriptors::input_pipe()?;
        let (output, theirs_out) = descriptors::pipe()?;
        let Some(pid) = fork_alone()? else {
            descriptors::overwrite(io::stdin().as_fd(), theirs_in.as_fd())?;
            descriptors::overwrite(io::stdout().as_fd(), theirs_out.as_fd())?;
            // `guarded` closes the pipes of the others.
            return Ok(Forked::Guardian);
        };
        guardians.push(ForkedGuardian { pid: pid.as_raw().unsigned_abs(), input, output });
    }
    Ok(Forked::Launcher(guardians))
}

/// Takes the signals that have arrived while all were blocked.
fn drop_pending_signals() {
    let all = SigSet::all();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a set and a time, which the kernel reads; no information about the signal is asked for.
    while unsafe { libc::sigtimedwait(all.as_ref(), std::ptr::null_mut(), &now) } > 0 {}
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[test]
    fn pending_signals_are_dropped() {
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).unwrap();
        raise(Signal::SIGUSR1).unwrap();
        raise(Signal::SIGQUIT).unwrap();
        drop_pending_signals();
        // Either one would end this process.
        mask.thread_set_mask().unwrap();
    }
}
