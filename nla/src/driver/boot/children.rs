//! The processes that sessions consist of on this machine.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

struct Process {
    child: Child,
    /// It is an agent's guardian, which ends by itself; else it is only a way to one.
    is_guardian: bool,
}

/// All that were started and have not been seen to end.
#[derive(Default)]
pub(super) struct Children(RefCell<Vec<Process>>);

impl Children {
    pub(super) fn add(&self, child: Child, is_guardian: bool) {
        self.0.borrow_mut().push(Process { child, is_guardian });
        // Those that were told to end have done so by now.
        self.reap();
    }

    /// Tells one to end.
    pub(super) fn end(&self, pid: u32) {
        self.0.borrow().iter().filter(|process| process.child.id() == pid).for_each(terminate);
    }

    /// Tells all to end that are no guardians.
    pub(super) fn end_sessions(&self) {
        self.0.borrow().iter().filter(|process| !process.is_guardian).for_each(terminate);
    }

    /// Tells all to end.
    pub(super) fn end_all(&self) {
        self.0.borrow().iter().for_each(terminate);
    }

    /// The exit code of one that is about to end; `None` if a signal ended it, if somebody else has
    /// waited for it, or if it takes longer than `patience`.
    pub(super) async fn exit_code(&self, pid: u32, patience: Duration) -> Option<i32> {
        let mut ended = signal(SignalKind::child()).ok()?;
        let code = async {
            loop {
                let status = {
                    let mut all = self.0.borrow_mut();
                    let process = all.iter_mut().find(|process| process.child.id() == pid)?;
                    process.child.try_wait()
                };
                match status {
                    Ok(None) => drop(ended.recv().await),
                    Ok(Some(status)) => return status.code(),
                    Err(_) => return None,
                }
            }
        };
        timeout(patience, code).await.ok().flatten()
    }

    /// Waits until all have ended, for at most `patience`. Returns how many have not.
    pub(super) async fn wait(&self, patience: Duration) -> usize {
        let Ok(mut ended) = signal(SignalKind::child()) else { return self.reap() };
        let all = async {
            while self.reap() > 0 {
                ended.recv().await;
            }
        };
        let _ = timeout(patience, all).await;
        self.reap()
    }

    /// Takes out those that have ended. Returns how many are left.
    fn reap(&self) -> usize {
        let mut all = self.0.borrow_mut();
        all.retain_mut(|process| match process.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                tracing::debug!(code = status.code(), signal = status.signal(), "a started process has ended");
                false
            }
            // Somebody else has waited for it.
            Err(_) => false,
        });
        all.len()
    }
}

fn terminate(process: &Process) {
    let _ = kill(Pid::from_raw(process.child.id() as i32), Signal::SIGTERM);
}
