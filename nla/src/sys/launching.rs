//! The children that spawner threads are starting, as another thread sees them.
//!
//! A thread that calls clone(CLONE_VFORK) is suspended until the child has exec'ed or ended: for minutes, if the file
//! system stalls. Another thread reaps and signals children meanwhile. [`Launching`] makes that safe:
//!
//! - the kernel stores a child's pid before the child runs (CLONE_PARENT_SETTID), so the other thread can signal it;
//! - a spawner thread reaps a child that could not exec while it holds the lock, and forgets its pid before it
//!   unlocks. The other thread signals under the same lock, so it never signals a pid that was reaped;
//! - [`Launching::reap`] leaves children in launch alone. Their results are not known yet, and their pids belong to no rank.

use std::fs;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reap::{self, Ended};

/// The child has not reached chdir.
pub(super) const STEP_SETUP: u8 = 0;
/// The child is about to call chdir.
pub(super) const STEP_DIRECTORY: u8 = 1;
/// The child is about to call execve.
pub(super) const STEP_EXEC: u8 = 2;

/// The maximum number of spawner threads of a process.
pub const SPAWNERS_MAX: usize = 4;

/// The children in launch, shared by the spawner threads and the thread that reaps.
#[derive(Debug, Default)]
pub struct Launching {
    children: [InSlot; SPAWNERS_MAX],
    /// The number of slots that spawners have taken.
    taken: AtomicUsize,
    lock: Mutex<()>,
}

/// The child that one spawner starts.
#[derive(Debug, Default)]
pub(super) struct InSlot {
    /// The child's pid; 0 if there is none.
    pub(super) pid: AtomicI32,
    /// The system call that the child makes.
    pub(super) step: AtomicU8,
}

impl InSlot {
    fn current(&self) -> Option<InLaunch> {
        let pid = u32::try_from(self.pid.load(Ordering::Acquire)).ok().filter(|pid| *pid > 0)?;
        Some(InLaunch { pid, is_in_exec: self.step.load(Ordering::Relaxed) == STEP_EXEC })
    }
}

/// One spawner's slot in [`Launching`].
#[derive(Clone, Debug)]
pub struct LaunchSlot {
    launching: Arc<Launching>,
    /// Below [`SPAWNERS_MAX`].
    at: usize,
}

/// A child in launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLaunch {
    /// Its pid.
    pub pid: u32,
    /// It executes its program; otherwise it enters its working directory, or has not reached that.
    pub is_in_exec: bool,
}

impl Launching {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a spawner; `None` if [`SPAWNERS_MAX`] spawners have theirs.
    pub(super) fn take_slot(self: &Arc<Self>) -> Option<LaunchSlot> {
        let at = self.taken.fetch_add(1, Ordering::Relaxed);
        (at < SPAWNERS_MAX).then(|| LaunchSlot { launching: Arc::clone(self), at })
    }

    fn has(&self, pid: u32) -> bool {
        self.children.iter().filter_map(InSlot::current).any(|child| child.pid == pid)
    }

    /// Reaps one ended child that is not in launch; `None` if there is none. Never blocks.
    ///
    /// Calls `step` with the child before it is reaped, while its pid, and that of its process group, cannot be used again.
    /// Calls `step` with `None` afterwards, before a launch can be settled: the results that it takes then are those of
    /// launches before this child's pid could be used again. Returns `None` also while a child in launch has ended and its
    /// result was not published: its spawner thread publishes it soon.
    pub fn reap(&self, mut step: impl FnMut(Option<(u32, Ended)>)) -> Option<(u32, Ended)> {
        let _lock = self.lock();
        let ended = reap::ended_child().filter(|(pid, _)| !self.has(*pid));
        let reaped = ended.and_then(|(pid, ended)| {
            step(Some((pid, ended)));
            Some((pid, reap::reap_ended(pid)?))
        });
        step(None);
        reaped
    }

    /// Calls `signal` while no child can be reaped by a spawner thread.
    pub fn while_unreaped<T>(&self, signal: impl FnOnce() -> T) -> T {
        let _lock = self.lock();
        signal()
    }
}

impl LaunchSlot {
    pub(super) fn slot(&self) -> &InSlot {
        &self.launching.children[self.at]
    }

    /// Returns the child in launch.
    pub fn current(&self) -> Option<InLaunch> {
        self.slot().current()
    }

    /// Calls `post`, which publishes the result of a launch, and forgets the child. The spawner's thread calls this.
    pub fn settle<T>(&self, post: impl FnOnce() -> T) -> T {
        let _lock = self.launching.lock();
        let result = post();
        self.slot().pid.store(0, Ordering::Release);
        result
    }

    /// Reaps the child in launch, which has ended, and forgets it. Only the spawner's thread calls this.
    pub(super) fn reap_failed(&self, pid: u32) {
        let _lock = self.launching.lock();
        reap::reap_one(pid);
        self.slot().pid.store(0, Ordering::Release);
    }

    /// Kills the child in launch, if it is still `pid`. Its process group is its own, so no other process is signalled.
    pub fn kill(&self, pid: u32) {
        let _lock = self.launching.lock();
        if self.current().is_some_and(|child| child.pid == pid)
            && let Ok(pid) = i32::try_from(pid)
        {
            // ESRCH cannot happen: the child was not reaped.
            let _ = reap::kill(pid, libc::SIGKILL);
        }
    }
}

/// Returns the kernel function in which a process of this user sleeps; `None` if it runs, or if the kernel hides it.
pub fn wait_channel(pid: u32) -> Option<String> {
    let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
    let is_plausible = (2..=64).contains(&channel.len()) && channel.bytes().all(is_name);
    is_plausible.then_some(channel)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_child_in_launch_is_signalled_only_until_it_is_reaped() {
        let launching = Arc::new(Launching::default()).take_slot().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        launching.slot().pid.store(child.id() as i32, Ordering::Release);
        launching.slot().step.store(STEP_EXEC, Ordering::Relaxed);
        assert_eq!(launching.current(), Some(InLaunch { pid: child.id(), is_in_exec: true }));
        launching.kill(child.id() + 1);
        assert_eq!(child.try_wait().unwrap(), None, "another pid is not signalled");
        launching.kill(child.id());
        launching.reap_failed(child.id());
        assert_eq!(launching.current(), None);
        assert!(child.wait().is_err(), "it was reaped");
        // The pid may be another process's now: nothing is signalled.
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        launching.kill(other.id());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_settled_child_is_no_longer_in_launch() {
        let launching = Arc::new(Launching::default());
        let (one, other) = (launching.take_slot().unwrap(), launching.take_slot().unwrap());
        one.slot().pid.store(7, Ordering::Release);
        other.slot().pid.store(8, Ordering::Release);
        assert_eq!(one.settle(|| one.slot().pid.load(Ordering::Acquire)), 7, "published before it is forgotten");
        assert_eq!(one.current(), None);
        assert!(launching.has(8) && !launching.has(7), "the other spawner's child is still in launch");
    }

    #[test]
    fn there_are_slots_for_so_many_spawners() {
        let launching = Arc::new(Launching::default());
        let slots: Vec<LaunchSlot> = std::iter::from_fn(|| launching.take_slot()).collect();
        assert_eq!(slots.len(), SPAWNERS_MAX);
    }
}
