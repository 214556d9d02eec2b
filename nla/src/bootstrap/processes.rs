//! The processes of this machine that starts consist of: remote shells, steps, and guardians of local agents.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::sys::{self, Ended};

struct Process {
    pid: u32,
    /// It was reaped, here or elsewhere. Its pid may be another process's now and must not be signalled.
    has_ended: bool,
    /// The exit code, if it has ended by itself.
    code: Option<i32>,
    /// It is an agent's guardian or a step, which exits by itself; otherwise a remote shell.
    is_guardian: bool,
    /// It is a guardian that outlives the session.
    stays: bool,
}

impl Process {
    fn as_pid(&self) -> Pid {
        Pid::from_raw(self.pid.cast_signed())
    }

    /// Reaps the process if it has exited. Returns whether it has ended.
    fn has_ended(&mut self) -> bool {
        // Never ask for a process that was reaped: its pid may be another's.
        if !self.has_ended {
            let ended = match waitpid(self.as_pid(), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => Some(Some(code)),
                Ok(WaitStatus::Signaled(..)) => Some(None),
                Ok(_) | Err(Errno::EINTR) => None,
                // It was reaped elsewhere.
                Err(_) => {
                    self.has_ended = true;
                    None
                }
            };
            if let Some(code) = ended {
                tracing::debug!(pid = self.pid, ?code, "a started process has ended");
                (self.has_ended, self.code) = (true, code);
                if self.is_guardian {
                    // A guardian that was killed has left its agent's cgroup.
                    sys::end_group_of(self.pid);
                }
            }
        }
        self.has_ended
    }

    /// Sends SIGTERM; to a remote shell with its process group, because a script may run the command that connects.
    /// The group is also continued: nsenter stops itself when the process that it has started is stopped, and a stopped
    /// process does not act on SIGTERM. A stopped guardian gets SIGKILL. The kernel then continues its agent.
    fn terminate(&self) {
        if !self.has_ended {
            let pid = self.as_pid();
            let _ = if !self.is_guardian {
                killpg(pid, Signal::SIGTERM).and_then(|()| killpg(pid, Signal::SIGCONT))
            } else if sys::is_stopped(self.pid) {
                kill(pid, Signal::SIGKILL)
            } else {
                kill(pid, Signal::SIGTERM)
            };
        }
    }
}

/// A process that was started. It is never mistaken for a later process with the same pid.
#[derive(Clone)]
pub(crate) struct Started(Rc<RefCell<Process>>);

impl Started {
    /// Returns the pid, which is another process's once this one was reaped.
    pub(crate) fn pid(&self) -> u32 {
        self.0.borrow().pid
    }

    /// Sends SIGTERM, unless the process was reaped.
    pub(crate) fn end(&self) {
        self.0.borrow().terminate();
    }

    /// Reaps the process if it has exited. Returns `None` while it runs, then the exit code as [`Started::exit_code`] does.
    pub(super) fn ended(&self) -> Option<Option<i32>> {
        let mut process = self.0.borrow_mut();
        process.has_ended().then_some(process.code)
    }

    /// Waits up to `limit` for the exit code; `None` if a signal killed the process, if its code is unknown since it was
    /// reaped elsewhere, or if it takes longer.
    pub(crate) async fn exit_code(&self, limit: Duration) -> Option<i32> {
        let mut exits = signal(SignalKind::child()).ok()?;
        let code = async {
            while !self.0.borrow_mut().has_ended() {
                exits.recv().await;
            }
            self.0.borrow().code
        };
        timeout(limit, code).await.ok().flatten()
    }
}

/// All started processes that have not been reaped. The clones share them.
///
/// An agent reaps all its children (`waitid(P_ALL)`), and reports each to these, so that no pid is signalled afterwards.
#[derive(Clone, Default)]
pub(crate) struct Processes(Rc<RefCell<Vec<Started>>>);

impl Processes {
    /// Adds a child of this process, which nothing else reaps without reporting it.
    pub(crate) fn add(&self, pid: u32, is_guardian: bool) -> Started {
        self.insert(Process { pid, has_ended: false, code: None, is_guardian, stays: false })
    }

    /// As [`add`](Self::add), for a guardian whose agent stands by for another session after this one.
    pub(super) fn add_staying(&self, pid: u32) -> Started {
        self.insert(Process { pid, has_ended: false, code: None, is_guardian: true, stays: true })
    }

    fn insert(&self, process: Process) -> Started {
        // Keeps the list short.
        self.reap();
        let started = Started(Rc::new(RefCell::new(process)));
        self.0.borrow_mut().push(started.clone());
        started
    }

    /// Returns the pids of the processes that have not been reaped.
    pub(crate) fn pids(&self) -> BTreeSet<u32> {
        let all = self.0.borrow();
        let left = all.iter().map(|started| started.0.borrow()).filter(|process| !process.has_ended);
        left.map(|process| process.pid).collect()
    }

    /// Notes that `waitid(P_ALL)` elsewhere has reaped this process. Returns whether it is one of these.
    pub(crate) fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        let all = self.0.borrow();
        let mut processes = all.iter().map(|started| started.0.borrow_mut());
        let Some(mut process) = processes.find(|process| process.pid == pid && !process.has_ended) else {
            return false;
        };
        process.has_ended = true;
        if let Ended::Exited(code) = ended {
            process.code = Some(code);
        }
        true
    }

    /// Sends SIGTERM to all remote shells.
    pub(super) fn end_shells(&self) {
        let all = self.0.borrow();
        all.iter().filter(|started| !started.0.borrow().is_guardian).for_each(Started::end);
    }

    /// Continues stopped guardians, which would not notice that their agents have ended.
    pub(super) fn continue_guardians(&self) {
        let all = self.0.borrow();
        let processes = all.iter().map(|started| started.0.borrow());
        for process in processes.filter(|process| process.is_guardian && !process.has_ended) {
            let _ = kill(process.as_pid(), Signal::SIGCONT);
        }
    }

    /// Sends SIGKILL to the process groups of the remote shells that SIGTERM has not ended. An ssh does not act on it while it has
    /// bytes for a host that is cut off.
    pub(super) fn kill_shells(&self) {
        let all = self.0.borrow();
        let processes = all.iter().map(|started| started.0.borrow());
        for process in processes.filter(|process| !process.is_guardian && !process.has_ended) {
            let _ = killpg(process.as_pid(), Signal::SIGKILL);
        }
    }

    /// Sends SIGTERM to all processes but those that stay.
    pub(super) fn end_all(&self) {
        self.0.borrow().iter().filter(|started| !started.0.borrow().stays).for_each(Started::end);
    }

    /// Waits up to `limit` until all processes have exited but those that stay. Returns how many have not.
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

    /// Returns whether one of them is a guardian that outlives the session.
    pub(crate) fn has_staying(&self) -> bool {
        self.0.borrow().iter().any(|started| started.0.borrow().stays)
    }

    /// Removes the processes that have exited. Returns how many are left, without those that stay.
    fn reap(&self) -> usize {
        let mut all = self.0.borrow_mut();
        all.retain(|started| !started.0.borrow_mut().has_ended());
        all.iter().filter(|started| !started.0.borrow().stays).count()
    }
}

#[cfg(test)]
#[expect(clippy::zombie_processes, reason = "`Processes` reaps them")]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use tokio::io::AsyncReadExt;
    use tokio::net::unix::pipe::Receiver;

    use super::*;

    #[tokio::test]
    async fn a_process_reaped_here_keeps_its_code_and_is_not_signalled() {
        let processes = Processes::default();
        for (script, code) in [("exit 7", Some(7)), ("kill -9 $$", None)] {
            let child = Command::new("sh").args(["-c", script]).spawn().expect("sh exists");
            let started = processes.add(child.id(), false);
            for _ in 0..2 {
                assert_eq!(started.exit_code(Duration::from_secs(60)).await, code);
                assert_eq!(started.ended(), Some(code));
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
        processes.add(child.id(), false);
        processes.end_all();
        // Both processes hold the pipe open.
        let mut output = Receiver::from_owned_fd(output.into()).expect("it is a pipe");
        let end = timeout(Duration::from_secs(10), output.read_u8()).await;
        assert!(end.is_ok_and(|read| read.is_err()), "the pipe ends with the last of them");
        assert_eq!(processes.wait(Duration::from_secs(10)).await, 0);
    }

    /// Starts a guardian that exits with 7 on SIGTERM. Returns when it would.
    fn guardian(processes: &Processes) -> Started {
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        let mut output = child.stdout.take().expect("it is a pipe");
        std::io::Read::read_exact(&mut output, &mut [0]).expect("it writes");
        processes.add(child.id(), true)
    }

    #[tokio::test]
    async fn a_running_guardian_is_asked_to_end() {
        let processes = Processes::default();
        let started = guardian(&processes);
        processes.end_shells();
        assert_eq!(processes.wait(Duration::ZERO).await, 1, "it is no remote shell");
        processes.end_all();
        assert_eq!(started.exit_code(Duration::from_secs(60)).await, Some(7));
    }

    #[tokio::test]
    async fn a_stopped_guardian_is_killed() {
        let processes = Processes::default();
        let started = guardian(&processes);
        let pid = started.0.borrow().pid;
        kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).expect("it is our child");
        let began = std::time::Instant::now();
        while !sys::is_stopped(pid) {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not stop");
            tokio::task::yield_now().await;
        }
        processes.end_all();
        assert_eq!(processes.wait(Duration::from_secs(60)).await, 0);
        assert_eq!(started.exit_code(Duration::from_secs(60)).await, None, "it was killed");
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
        processes.add(child.id(), false);
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
        let started = processes.add(child.id(), true);
        processes.continue_guardians();
        assert_eq!(started.exit_code(Duration::from_secs(60)).await, Some(5));
    }

    #[tokio::test]
    async fn a_process_reaped_elsewhere_is_not_signalled() {
        let (processes, mut child) =
            (Processes::default(), Command::new("sleep").arg("60").spawn().expect("sleep exists"));
        let pid = child.id();
        // An agent has a clone of the list, and its relay has the starter.
        let of_agent = processes.clone();
        let started = processes.add(child.id(), false);
        assert_eq!(of_agent.pids(), BTreeSet::from([pid]));
        // As if it had been reaped elsewhere, and its pid belonged to another process.
        assert!(of_agent.note_ended(pid, Ended::Exited(7)));
        assert!(!of_agent.note_ended(pid, Ended::Exited(7)) && !of_agent.note_ended(pid + 1, Ended::Exited(0)));
        assert!(processes.pids().is_empty());
        started.end();
        processes.end_shells();
        processes.end_all();
        assert_eq!(processes.wait(Duration::ZERO).await, 0);
        assert_eq!(started.exit_code(Duration::from_secs(1)).await, Some(7), "the code outlives the entry");
        assert_eq!(child.try_wait().expect("it is our child"), None, "it runs");
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    #[tokio::test]
    async fn a_remote_shell_that_ignores_sigterm_is_killed_with_its_group() {
        let script = "trap '' TERM; echo; sleep 1000; :";
        let mut shell =
            Command::new("sh").args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().expect("sh");
        let mut output = Receiver::from_owned_fd(shell.stdout.take().expect("a pipe").into()).expect("a pipe");
        assert_eq!(output.read_u8().await.expect("the trap is set"), b'\n');
        let processes = Processes::default();
        processes.add(shell.id(), false);
        processes.end_shells();
        processes.kill_shells();
        assert_eq!(processes.wait(Duration::from_secs(60)).await, 0);
        assert_eq!(output.read(&mut [0]).await.expect("a pipe"), 0, "its child was killed, too");
    }

    #[test]
    fn a_remote_shell_ends_with_the_thread_that_has_started_it() {
        use std::os::unix::process::ExitStatusExt;
        let start = || super::super::shell::remote_command(&["sleep", "1000"].map(str::to_owned)).spawn();
        let mut child = std::thread::scope(|scope| scope.spawn(start).join()).expect("no panic").expect("sleep exists");
        assert_eq!(child.wait().expect("it was not reaped").signal(), Some(Signal::SIGTERM as i32));
    }
}
