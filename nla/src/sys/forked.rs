//! Guardians that the launcher forks on its own machine.
//!
//! They run this program without an exec: the dynamic linker has done its work, and the pages of program and data are shared.
//! That saves a third of the time in which an agent starts. The launcher forks them before it starts any thread and before
//! it opens anything that a guardian must not have.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::cgroup;
use super::descriptors;
use super::guardian::fork_alone;

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
pub fn fork_guardians(count: u32) -> io::Result<Forked> {
    let mut guardians = Vec::new();
    // Two descriptors for each guardian.
    descriptors::raise_limit()?;
    // The guardians have this process's copy of the answer.
    let _ = cgroup::delegated();
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
