//! The guardian: the tiny parent of an agent, which outlives it by as much as it takes to leave
//! nothing behind.
//!
//! Agent and guardian are both sessions of their own and both child subreapers: what a rank
//! starts becomes a child of the agent while that lives, else of the guardian. The guardian acts
//! when the agent ends, stays stopped, or has not been heard on their link for the dead-time; the
//! agent sees the link hang up when the guardian is gone.
//!
//! **The link** is a pair of sockets, both ends nonblocking. The agent inherits its end as
//! descriptor [`PMI_FD`] and is told by the environment, `SCELA_GUARDIAN=<descriptor>:<pid of the
//! guardian>`. A heartbeat is any byte; what does not fit is dropped, as a full link says that
//! the agent is well and the guardian is late.
//!
//! **Silence** is counted in time that the guardian has itself lived through: a wait that took
//! longer than asked for counts as what was asked for. So a suspended or overloaded machine does
//! not kill a healthy job.
//!
//! No threads, no runtime, no buffers to speak of.

use std::ffi::{CString, OsString};
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, getsockopt, send, sockopt};

use super::descriptors;
use super::identity;
use super::reap::{self, Ended};
use super::shell::ShellState;
use super::spawn::{Child, Descriptors, Image, Leader, PMI_FD, Spawner};

/// The variable that tells an agent about its link.
const LINK_VARIABLE: &str = "SCELA_GUARDIAN";

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

/// Runs the guardian over an agent; never returns.
///
/// To be called from `main` before anything else is set up. `agent_argv` is the agent's, its
/// first word as it likes; the program is this one (/proc/self/exe), the environment ours.
/// Standard streams are passed through; the guardian keeps only standard error.
///
/// It exits as the agent did (128+n for signal n), with 128+n if signal n (TERM, INT, HUP, QUIT)
/// told itself to leave, with 251 if the agent cannot be started; and in every case only after
/// all that the agent left has ended. `dead_time` is how long an agent may be silent.
pub fn run(agent_argv: Vec<CString>, dead_time: Duration) -> ! {
    let code = match Guardian::start(agent_argv, dead_time) {
        Ok(guardian) => guardian.watch(),
        Err(error) => {
            say(format_args!("failed to start the agent: {error}"));
            EXIT_NOT_STARTED
        }
    };
    std::process::exit(code)
}

struct Guardian {
    agent: Child,
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
    fn start(agent_argv: Vec<CString>, dead_time: Duration) -> io::Result<Self> {
        // EPERM: we lead a group or a session already, which is as good unless a terminal is
        // near; then its INT and HUP end the job, as they would have done anyway.
        let _ = identity::new_session();
        // What the launcher had open, a pipe of the user's maybe, is not for us to hold.
        descriptors::close_from(3);
        identity::become_subreaper()?;
        identity::forbid_dump()?;
        let _ = identity::set_process_name("scela-guard");
        let shell = ShellState::recorded();
        let signals = take_signals(&shell)?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let image = Image::exact(c"/proc/self/exe".to_owned(), agent_argv, environment()?);
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        // Also makes an ignored SIGCHLD arrive again.
        let agent = Spawner::new(shell)?
            .spawn_as(
                Leader::Session,
                &image,
                &[],
                Descriptors {
                    stdin: stdin.as_fd(),
                    stdout: stdout.as_fd(),
                    stderr: stderr.as_fd(),
                    pmi: Some(theirs.as_fd()),
                },
            )
            .map_err(io::Error::other)?;
        // Who reads the agent's output, or writes its input, must see the agent's end.
        let null = descriptors::dev_null_rw()?;
        descriptors::overwrite(stdin.as_fd(), null.as_fd())?;
        descriptors::overwrite(stdout.as_fd(), null.as_fd())?;
        Ok(Self { agent, link: Some(ours), signals, dead_time })
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
                if pid == self.agent.pid() {
                    return Cause::AgentEnded(ended);
                }
            }
            stopped = if is_stopped { stopped + lived } else { Duration::ZERO };
            is_stopped = reap::is_stopped(self.agent.pid());
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
                if pid == self.agent.pid() {
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

/// From now on the signals that concern a guardian wait in a descriptor. Those that the user's
/// shell has ignored (nohup) stay without effect.
fn take_signals(shell: &ShellState) -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        if shell.ignored >> (signal as i32 - 1) & 1 == 0 {
            set.add(signal);
        }
    }
    set.add(Signal::SIGCHLD);
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Our environment, with the link in place of any that we were told about ourselves.
fn environment() -> io::Result<Vec<CString>> {
    let link = OsString::from(format!("{PMI_FD}:{}", std::process::id()));
    let ours = std::env::vars_os().filter(|(name, _)| name != LINK_VARIABLE);
    ours.chain([(OsString::from(LINK_VARIABLE), link)])
        .map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            CString::new(entry.into_vec()).map_err(io::Error::other)
        })
        .collect()
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

/// The agent's end of the link to its guardian. Dropping it makes the agent silent for ever.
#[derive(Debug)]
pub struct GuardianLink(OwnedFd);

impl GuardianLink {
    /// The link that this process was started with; `None` if it has no guardian.
    ///
    /// Only the first call returns it. It is close-on-exec from then on, and above
    /// [`LOW_MAX`](descriptors::LOW_MAX). An error means that the environment promises a link
    /// which is not there.
    pub fn inherited() -> io::Result<Option<Self>> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let Some(told) = std::env::var_os(LINK_VARIABLE) else {
            return Ok(None);
        };
        if TAKEN.swap(true, SeqCst) {
            return Ok(None);
        }
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, format!("{LINK_VARIABLE} {what}"));
        let parsed = std::str::from_utf8(told.as_bytes())
            .ok()
            .and_then(|told| told.split_once(':'))
            .and_then(|(fd, pid)| Some((fd.parse::<i32>().ok()?, pid.parse::<i32>().ok()?)));
        let Some((fd @ 3.., guardian)) = parsed else {
            return Err(wrong("is not <descriptor>:<pid>"));
        };
        // SAFETY: used only to ask whether it is open and whose it is; nothing else has run in
        // this process that could close it in between.
        let lent = unsafe { BorrowedFd::borrow_raw(fd) };
        match getsockopt(&lent, sockopt::PeerCredentials) {
            // Of a pair, the peer is whoever made it. Another one is a stranger's descriptor: an
            // agent's child that has inherited the variable, say.
            Ok(peer) if peer.pid() == guardian => {}
            Ok(_) | Err(Errno::EBADF | Errno::ENOTSOCK) => {
                return Err(wrong("names a descriptor that is not a guardian's"));
            }
            Err(error) => return Err(error.into()),
        }
        // SAFETY: the guardian gave us this descriptor to own, as its pid on it proves, and only
        // the first call comes here.
        let owned = unsafe { OwnedFd::from_raw_fd(lent.as_raw_fd()) };
        nix::fcntl::fcntl(&owned, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        Ok(Some(Self(descriptors::move_up(owned)?)))
    }

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
