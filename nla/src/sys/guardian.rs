//! The guardian: the tiny parent of an agent, which outlives it by as much as it takes to leave
//! nothing behind.
//!
//! Agent and guardian are both sessions of their own and both child subreapers: what a rank
//! starts becomes a child of the agent while that lives, else of the guardian. The guardian acts
//! when the agent ends, stays stopped, or has not been heard on their link for the dead-time; the
//! agent sees the link hang up when the guardian is gone.
//!
//! The agent is forked from the guardian, and no other program: that saves a start of it, and
//! neither has to be told who the other is.
//!
//! **The link** is a pair of sockets, both ends nonblocking. A heartbeat is any byte; what does
//! not fit is dropped, as a full link says that the agent is well and the guardian is late.
//!
//! **Silence** is counted in time that the guardian has itself lived through: a wait that took
//! longer than asked for counts as what was asked for. So a suspended or overloaded machine does
//! not kill a healthy job.
//!
//! No threads, no runtime, no buffers to speak of.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::{ForkResult, Pid, fork};

use super::descriptors;
use super::identity;
use super::reap::{self, Ended};
use super::shell::ShellState;
use super::spawn::hear_of_children;

/// Exit code where the agent cannot be started: "could not launch" (ARCHITECTURE.md, section 7).
const EXIT_NOT_STARTED: i32 = 251;

/// How long the guardian waits between two looks at the clock, at most.
const TICK_MAX: Duration = Duration::from_secs(1);
/// ... and at least, however short the dead-time.
const TICK_MIN: Duration = Duration::from_millis(10);
/// ... and while the agent is stopped, or dying processes are waited for.
const TICK_CLOSE: Duration = Duration::from_millis(50);

/// How long an agent may take to its first heartbeat, beyond the dead-time: it waits for its parent
/// to be there, which has a deadline of its own.
const FIRST_WORD_MAX: Duration = Duration::from_secs(90);

/// How long an agent may stay stopped. Not none: a batch system that resumes a suspended job
/// wakes the guardian and the agent one after the other.
const STOPPED_MAX: Duration = Duration::from_secs(1);

/// How many times in a row nobody may take the guardian's KILL before it gives up: what is left
/// belongs to another user (setuid).
const REFUSALS_MAX: u32 = 20;

/// Makes this process the guardian of an agent, and returns in the agent, a child of it.
///
/// To be called from `main` before anything else is set up: while there is one thread. Of the
/// standard streams, which are the agent's, the guardian keeps only standard error.
///
/// The guardian exits as the agent did (128+n for signal n), with 128+n if signal n (TERM, INT,
/// HUP, QUIT) told itself to leave, with 251 if there can be no agent; and in every case only
/// after all that the agent left has ended. `dead_time` is how long an agent may be silent.
pub fn guarded(dead_time: Duration) -> GuardianLink {
    let code = match Guardian::start(dead_time) {
        Ok(Side::Agent(link)) => return link,
        Ok(Side::Guardian(guardian)) => guardian.watch(),
        Err(error) => {
            say(format_args!("failed to start the agent: {error}"));
            EXIT_NOT_STARTED
        }
    };
    std::process::exit(code)
}

/// Who one is behind the fork.
enum Side {
    Agent(GuardianLink),
    Guardian(Guardian),
}

struct Guardian {
    agent: u32,
    /// `None` once the agent has closed its end.
    link: Option<UnixStream>,
    signals: SignalFd,
    dead_time: Duration,
}

/// Why the guardian ends what it guards.
enum Cause {
    AgentEnded(Ended),
    AgentStopped,
    AgentSilent,
    Told(i32),
}

impl Guardian {
    fn start(dead_time: Duration) -> io::Result<Side> {
        // EPERM: we lead a group or a session already, which is as good unless a terminal is
        // near; then its INT and HUP end the job, as they would have done anyway.
        let _ = identity::new_session();
        // What the launcher had open, a pipe of the user's maybe, is not for us to hold.
        descriptors::close_from(3);
        identity::become_subreaper()?;
        identity::forbid_dump()?;
        let _ = identity::set_process_name("scela-guard");
        hear_of_children();
        let (signals, mask) = take_signals()?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let Some(agent) = fork_alone()? else {
            return Ok(Side::Agent(become_agent(theirs, &mask)?));
        };
        // Who reads the agent's output, or writes its input, must see the agent's end.
        let null = descriptors::dev_null_rw()?;
        descriptors::overwrite(io::stdin().as_fd(), null.as_fd())?;
        descriptors::overwrite(io::stdout().as_fd(), null.as_fd())?;
        let agent = agent.as_raw().unsigned_abs();
        Ok(Side::Guardian(Self { agent, link: Some(ours), signals, dead_time }))
    }

    /// Until there is a reason to end, and then to the end; returns the exit code.
    fn watch(mut self) -> i32 {
        let cause = self.wait_for_cause();
        let (killed, abandoned) = self.end_all();
        let code = match (&cause, &killed) {
            (Cause::Told(signal), _) => 128 + signal,
            (Cause::AgentEnded(ended), _) | (_, Some(ended)) => ended.code(),
            (_, None) => 128 + libc::SIGKILL,
        };
        match cause {
            Cause::AgentEnded(_) => {}
            Cause::AgentStopped => say("the agent was stopped by a signal; it and its ranks were killed"),
            Cause::AgentSilent => say(format_args!(
                "the agent was silent for {} s; it and its ranks were killed",
                self.dead_time.as_secs_f32()
            )),
            Cause::Told(signal) => say(format_args!(
                "told to end by signal {signal} ({}); the agent and its ranks were killed",
                reap::signal_name(signal)
            )),
        }
        if abandoned {
            say("processes of another user (setuid?) could not be killed and are left");
        }
        code
    }

    fn wait_for_cause(&mut self) -> Cause {
        let tick = (self.dead_time / 4).clamp(TICK_MIN, TICK_MAX);
        let (mut silent, mut stopped) = (Duration::ZERO, Duration::ZERO);
        // Until it is part of the tree the agent waits for others and says nothing here.
        let mut patience = self.dead_time.saturating_add(FIRST_WORD_MAX);
        let mut is_stopped = false;
        loop {
            let tick = if is_stopped { tick.min(TICK_CLOSE) } else { tick };
            let before = Instant::now();
            self.wait(tick);
            let lived = before.elapsed().min(tick);
            if let Some(signal) = self.told() {
                return Cause::Told(signal);
            }
            if self.heard() {
                patience = self.dead_time;
                silent = Duration::ZERO;
            } else {
                silent += lived;
            }
            // The agent, and orphans that were ours before it was a subreaper.
            while let Some((pid, ended)) = reap::reap() {
                if pid == self.agent {
                    return Cause::AgentEnded(ended);
                }
            }
            stopped = if is_stopped { stopped + lived } else { Duration::ZERO };
            is_stopped = reap::is_stopped(self.agent);
            if is_stopped && stopped >= STOPPED_MAX.min(self.dead_time) {
                return Cause::AgentStopped;
            }
            if silent >= patience {
                return Cause::AgentSilent;
            }
        }
    }

    /// Kills and reaps until there is nobody; returns how the agent ended if it was still there,
    /// and whether somebody had to be left.
    ///
    /// Without a deadline of its own: a process in an uninterruptible wait ends when it can, and
    /// leaving earlier would only hide it.
    fn end_all(&mut self) -> (Option<Ended>, bool) {
        let mut agent = None;
        let mut refusals = 0;
        loop {
            let killed = reap::kill_children(libc::SIGKILL);
            while let Some((pid, ended)) = reap::reap() {
                if pid == self.agent {
                    agent = Some(ended);
                }
            }
            if !reap::has_children() {
                return (agent, false);
            }
            refusals = if killed == 0 { refusals + 1 } else { 0 };
            if refusals == REFUSALS_MAX {
                return (agent, true);
            }
            self.link = None;
            self.wait(TICK_CLOSE);
            self.told();
        }
    }

    /// Until a signal, a heartbeat, or the time.
    fn wait(&self, time: Duration) {
        let signals = PollFd::new(self.signals.as_fd(), PollFlags::POLLIN);
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        let _ = match &self.link {
            Some(link) => poll(&mut [signals, PollFd::new(link.as_fd(), PollFlags::POLLIN)], timeout),
            None => poll(&mut [signals], timeout),
        };
    }

    /// Takes all signals that have arrived; the last one that says "leave", if any.
    fn told(&mut self) -> Option<i32> {
        let mut told = None;
        while let Ok(Some(info)) = self.signals.read_signal() {
            if info.ssi_signo != libc::SIGCHLD as u32 {
                told = i32::try_from(info.ssi_signo).ok();
            }
        }
        told
    }

    /// Takes all heartbeats; was there one?
    fn heard(&mut self) -> bool {
        let mut heard = false;
        let mut bytes = [0; 64];
        while let Some(link) = &mut self.link {
            match link.read(&mut bytes) {
                Ok(1..) => heard = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Closed: the agent is ending, or will be silent.
                Ok(0) | Err(_) => self.link = None,
            }
        }
        heard
    }
}

/// The child of the only thread of this process; `None` in that child.
fn fork_alone() -> io::Result<Option<Pid>> {
    // Two entries of its own, and one for each thread.
    if std::fs::metadata("/proc/self/task")?.nlink() > 3 {
        return Err(io::Error::other("there are several threads"));
    }
    // SAFETY: no other thread can have left a lock or a half-written value behind in the child.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// What the guardian has set for itself, the agent does not keep.
fn become_agent(link: UnixStream, mask: &SigSet) -> io::Result<GuardianLink> {
    identity::new_session()?;
    let _ = identity::set_process_name("scela-agent");
    mask.thread_set_mask()?;
    Ok(GuardianLink(descriptors::move_up(link.into())?))
}

/// From now on the signals that concern a guardian wait in a descriptor. Those that the user's
/// shell has ignored (nohup) stay without effect. Also returns the mask that there was before.
fn take_signals() -> io::Result<(SignalFd, SigSet)> {
    let shell = ShellState::recorded();
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        if shell.ignored >> (signal as i32 - 1) & 1 == 0 {
            set.add(signal);
        }
    }
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok((SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?, before))
}

/// One line to standard error, unless that would have to wait: nobody may be reading.
fn say(what: impl Display) {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::ZERO) == Ok(1) {
        let line = format!("scela-run: guardian on {}: {what}\n", identity::host_name());
        let _ = stderr.lock().write_all(line.as_bytes());
    }
}

/// The agent's end of the link to its guardian, which [`guarded`] returns. Dropping it makes the agent silent for
/// ever.
#[derive(Debug)]
pub struct GuardianLink(OwnedFd);

impl GuardianLink {
    /// One heartbeat; never waits. Fails when the guardian is gone.
    pub fn alive(&self) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.0.as_raw_fd(), b".", flags) {
            // Full: the guardian is late, and will find that we are not.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Becomes readable (end of file) when the guardian is gone, and only then.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for GuardianLink {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
