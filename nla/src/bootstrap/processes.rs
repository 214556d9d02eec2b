//! The processes of this machine that starts consist of: remote shells, steps, and guardians of local agents.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::sys::{self, Ended};

struct Process {
    child: Child,
    /// It was reaped, here or elsewhere. Its pid may be another process's now and must not be signalled.
    has_ended: bool,
    /// The exit code, if it has ended by itself.
    code: Option<i32>,
    /// It is an agent's guardian or a step, which exits by itself; otherwise a remote shell.
    is_guardian: bool,
}

impl Process {
    /// Reaps the process if it has exited. Returns whether it has ended.
    fn has_ended(&mut self) -> bool {
        // Never ask for a process that was reaped: its pid may be another's.
        if !self.has_ended {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    tracing::debug!(%status, "a started process has ended");
                    (self.has_ended, self.code) = (true, status.code());
                }
                // It was reaped elsewhere.
                Err(_) => self.has_ended = true,
            }
        }
        self.has_ended
    }

    /// Sends SIGTERM; to a remote shell with its process group, because a script may run the command that connects.
    /// The group is also continued: nsenter stops itself when the process that it has started is stopped, and a stopped
    /// process does not act on SIGTERM. A stopped guardian gets SIGKILL. The kernel then continues its agent.
    fn terminate(&self) {
        if !self.has_ended {
            let pid = Pid::from_raw(self.child.id() as i32);
            let _ = if !self.is_guardian {
                killpg(pid, Signal::SIGTERM).and_then(|()| killpg(pid, Signal::SIGCONT))
            } else if sys::is_stopped(self.child.id()) {
                kill(pid, Signal::SIGKILL)
            } else {
                kill(pid, Signal::SIGTERM)
            };
        }
    }
}

/// All started processes that have not been reaped.
#[derive(Default)]
pub(super) struct Processes(RefCell<Vec<Process>>);

impl Processes {
    pub(super) fn add(&self, child: Child, is_guardian: bool) {
        // Keeps the list short. Before the push: the exit code of a process that has exited already is still wanted.
        self.reap();
        self.0.borrow_mut().push(Process { child, has_ended: false, code: None, is_guardian });
    }

    /// Returns the pids of the processes that have not been reaped.
    pub(super) fn pids(&self) -> BTreeSet<u32> {
        self.0.borrow().iter().filter(|process| !process.has_ended).map(|process| process.child.id()).collect()
    }

    /// Notes that `waitid(P_ALL)` elsewhere has reaped this process. Returns whether it is one of these.
    pub(super) fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        let mut all = self.0.borrow_mut();
        let Some(process) = all.iter_mut().find(|process| process.child.id() == pid && !process.has_ended) else {
            return false;
        };
        process.has_ended = true;
        if let Ended::Exited(code) = ended {
            process.code = Some(code);
        }
        true
    }

    /// Sends SIGTERM to one process.
    pub(super) fn end(&self, pid: u32) {
        self.0.borrow().iter().filter(|process| process.child.id() == pid).for_each(Process::terminate);
    }

    /// Sends SIGTERM to all remote shells.
    pub(super) fn end_shells(&self) {
        self.0.borrow().iter().filter(|process| !process.is_guardian).for_each(Process::terminate);
    }

    /// Continues stopped guardians, which would not notice that their agents have ended.
    pub(super) fn continue_guardians(&self) {
        for process in self.0.borrow().iter().filter(|process| process.is_guardian && !process.has_ended) {
            let _ = kill(Pid::from_raw(process.child.id() as i32), Signal::SIGCONT);
        }
    }

    /// Sends SIGTERM to all processes.
    pub(super) fn end_all(&self) {
        self.0.borrow().iter().for_each(Process::terminate);
    }

    /// Waits up to `limit` for the exit code of a process; `None` if a signal killed it, if its code is unknown since
    /// it was reaped elsewhere, or if it takes longer.
    pub(super) async fn exit_code(&self, pid: u32, limit: Duration) -> Option<i32> {
        let mut exits = signal(SignalKind::child()).ok()?;
        let code = async {
            loop {
                {
                    let mut all = self.0.borrow_mut();
                    let process = all.iter_mut().find(|process| process.child.id() == pid)?;
                    if process.has_ended() {
                        return process.code;
                    }
                }
                exits.recv().await;
            }
        };
        timeout(limit, code).await.ok().flatten()
    }

    /// Waits up to `limit` until all processes have exited. Returns how many have not.
    pub(super) async fn wait(&self, limit: Duration) -> usize {
        let Ok(mut exits) = signal(SignalKind::child()) else { return self.reap() };
        let all = async {
            while self.reap() > 0 {
                exits.recv().await;
            }
        };
        let _ = timeout(limit, all).await;
        self.reap()
    }

    /// Removes the processes that have exited. Returns how many are left.
    fn reap(&self) -> usize {
        let mut all = self.0.borrow_mut();
        all.retain_mut(|process| !process.has_ended());
        all.len()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use nix::poll::{PollFd, PollFlags, poll};

    use super::*;

    #[tokio::test]
    async fn a_process_reaped_here_keeps_its_code_and_is_not_signalled() {
        let processes = Processes::default();
        for (script, code) in [("exit 7", Some(7)), ("kill -9 $$", None)] {
            let child = Command::new("sh").args(["-c", script]).spawn().expect("sh exists");
            let pid = child.id();
            processes.add(child, false);
            for _ in 0..2 {
                assert_eq!(processes.exit_code(pid, Duration::from_secs(60)).await, code);
                assert!(processes.pids().is_empty());
            }
        }
        assert_eq!(processes.wait(Duration::ZERO).await, 0);
    }

    /// A wrapper script may wait for the command that connects.
    #[tokio::test]
    async fn the_commands_of_a_remote_shell_end_with_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        let output = child.stdout.take().expect("it is a pipe");
        let processes = Processes::default();
        processes.add(child, false);
        processes.end_all();
        // Both processes hold the pipe open.
        let mut end = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut end, 10_000u16).expect("poll"), 1, "the pipe ends with the last of them");
        assert_eq!(processes.wait(Duration::from_secs(10)).await, 0);
    }

    #[tokio::test]
    async fn a_stopped_remote_shell_ends() {
        let child = Command::new("sleep").arg("1000").process_group(0).spawn().expect("sleep exists");
        let pid = child.id();
        kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).expect("it is our child");
        while !sys::is_stopped(pid) {
            tokio::task::yield_now().await;
        }
        let processes = Processes::default();
        processes.add(child, false);
        processes.end_all();
        assert_eq!(processes.wait(Duration::from_secs(10)).await, 0);
    }

    #[tokio::test]
    async fn a_stopped_guardian_is_continued() {
        let child = Command::new("sh").args(["-c", "kill -STOP $$; exit 5"]).spawn().expect("sh exists");
        let pid = child.id();
        while !sys::is_stopped(pid) {
            tokio::task::yield_now().await;
        }
        let processes = Processes::default();
        processes.add(child, true);
        processes.continue_guardians();
        assert_eq!(processes.exit_code(pid, Duration::from_secs(60)).await, Some(5));
    }

    #[tokio::test]
    async fn a_process_reaped_elsewhere_is_not_signalled() {
        let processes = Processes::default();
        let child = Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let pid = child.id();
        processes.add(child, false);
        assert_eq!(processes.pids(), BTreeSet::from([pid]));
        // As if it had been reaped elsewhere, and its pid belonged to another process.
        assert!(processes.note_ended(pid, Ended::Exited(7)));
        assert!(!processes.note_ended(pid, Ended::Exited(7)) && !processes.note_ended(pid + 1, Ended::Exited(0)));
        assert!(processes.pids().is_empty());
        processes.end(pid);
        processes.end_shells();
        processes.end_all();
        assert_eq!(processes.exit_code(pid, Duration::from_secs(1)).await, Some(7));
        let mut process = processes.0.borrow_mut().pop().expect("it is still known");
        assert_eq!(process.child.try_wait().expect("it is our child"), None, "it runs");
        process.child.kill().expect("it is our child");
        process.child.wait().expect("it is our child");
        assert_eq!(processes.wait(Duration::ZERO).await, 0);
    }
}
