//! The processes that sessions consist of on this machine.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::sys::Ended;

struct Process {
    child: Child,
    /// It was waited for, here or by somebody else: nobody may signal its pid any more.
    ended: Option<Ended>,
    /// It is an agent's guardian, which ends by itself; else it is only a way to one.
    is_guardian: bool,
}

/// All that were started and have not been seen to end.
#[derive(Default)]
pub(super) struct Children(RefCell<Vec<Process>>);

impl Children {
    pub(super) fn add(&self, child: Child, is_guardian: bool) {
        self.0.borrow_mut().push(Process { child, ended: None, is_guardian });
        // Those that were told to end have done so by now.
        self.reap();
    }

    /// Those that have not been seen to end.
    pub(super) fn pids(&self) -> BTreeSet<u32> {
        self.0.borrow().iter().filter(|process| process.ended.is_none()).map(|process| process.child.id()).collect()
    }

    /// Somebody who waits for all children of this process has waited for this one. False if it is not one of these.
    pub(super) fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        let mut all = self.0.borrow_mut();
        let process = all.iter_mut().find(|process| process.child.id() == pid && process.ended.is_none());
        process.map(|process| process.ended = Some(ended)).is_some()
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
                    if let Some(ended) = process.ended {
                        return code_of(ended);
                    }
                    let status = process.child.try_wait();
                    if let Ok(Some(status)) = status {
                        process.ended = Some(ended_of(status));
                    }
                    status
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
        // A number that was waited for may be another process's by now.
        all.retain_mut(|process| process.ended.is_none() && is_running(&mut process.child));
        all.len()
    }
}

fn is_running(child: &mut Child) -> bool {
    match child.try_wait() {
        Ok(None) => true,
        Ok(Some(status)) => {
            tracing::debug!(code = status.code(), signal = status.signal(), "a started process has ended");
            false
        }
        // Somebody else has waited for it.
        Err(_) => false,
    }
}

fn ended_of(status: ExitStatus) -> Ended {
    match status.code() {
        Some(code) => Ended::Exited(code),
        None => Ended::Killed { signal: status.signal().unwrap_or_default(), core: status.core_dumped() },
    }
}

fn code_of(ended: Ended) -> Option<i32> {
    match ended {
        Ended::Exited(status) => Some(status),
        Ended::Killed { .. } => None,
    }
}

fn terminate(process: &Process) {
    if process.ended.is_some() {
        return;
    }
    let _ = kill(Pid::from_raw(process.child.id() as i32), Signal::SIGTERM);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn who_was_waited_for_here_is_not_signalled_either() {
        let children = Children::default();
        for (script, code) in [("exit 7", Some(7)), ("kill -9 $$", None)] {
            let child = Command::new("sh").args(["-c", script]).spawn().expect("sh exists");
            let pid = child.id();
            children.add(child, false);
            for _ in 0..2 {
                assert_eq!(children.exit_code(pid, Duration::from_secs(60)).await, code);
                assert!(children.pids().is_empty());
            }
        }
        assert_eq!(children.wait(Duration::ZERO).await, 0);
    }

    #[tokio::test]
    async fn who_was_waited_for_elsewhere_is_not_signalled() {
        let children = Children::default();
        let child = Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let pid = child.id();
        children.add(child, false);
        assert_eq!(children.pids(), BTreeSet::from([pid]));
        // As if it had ended, and its pid were another's by now.
        assert!(children.note_ended(pid, Ended::Exited(7)));
        assert!(!children.note_ended(pid, Ended::Exited(7)) && !children.note_ended(pid + 1, Ended::Exited(0)));
        assert!(children.pids().is_empty());
        children.end(pid);
        children.end_sessions();
        children.end_all();
        assert_eq!(children.exit_code(pid, Duration::from_secs(1)).await, Some(7));
        let mut process = children.0.borrow_mut().pop().expect("it is still known");
        assert_eq!(process.child.try_wait().expect("it is our child"), None, "it runs");
        process.child.kill().expect("it is our child");
        process.child.wait().expect("it is our child");
        assert_eq!(children.wait(Duration::ZERO).await, 0);
    }
}
