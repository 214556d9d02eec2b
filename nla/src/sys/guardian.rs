//! The guardian: the small parent process of an agent. It outlives the agent until all of the agent's processes are
//! dead.
//!
//! **Agent and guardian watch each other.** Each records in shared memory when it last ran (`signs.rs`). A signal may
//! stop one of them. If it stays stopped for a second in which the other runs, the other ends the ranks, because a
//! stopped guardian cleans nothing up. The kernel tells the guardian that its agent is stopped. The agent looks at its
//! guardian every second. A process that is not stopped and does not run is starved, or it hangs. It is lost
//! after the session's stop time.
//!
//! When the guardian dies, the kernel sends SIGCONT to the agent (PR_SET_PDEATHSIG). A stopped agent then runs on and
//! notices. An agent that exits continues its guardian, which may have been stopped shortly before. When the agent dies,
//! the kernel kills its ranks, even if the guardian is dead.
//!
//! That leaves gaps. The kernel does not kill setuid programs, which clear the setting, nor processes that ranks have
//! started: these survive if the agent and the guardian are killed together. If both are stopped, the ranks run on. So
//! when an agent is lost, the launcher, or another agent on the same machine, continues the guardian, kills it if it does
//! not exit, and kills the processes whose environment names the lost agent (`survivors.rs`). Where all agents are on the
//! launcher's machine, the launcher also adopts and ends other orphans
//! ([`end_orphans`](super::reap::end_orphans)). Where the user may create a cgroup, the launcher also kills the processes
//! that agents and guardians on its machine have left (`cgroup.rs`).
//!
//! The agent and the guardian each lead a session, and both are child subreapers: an orphaned descendant of a rank
//! becomes a child of the agent, or of the guardian if the agent is dead. The guardian acts when the agent exits,
//! stays stopped, or has not noted for the stop time that it runs. A socket pair links them: the agent gets end of file on
//! it when the guardian dies.
//!
//! The guardian forks the agent without an exec. That saves the start of a program, and each of them knows the
//! other's pid.
//!
//! **Silence** is measured in time during which the guardian itself was running: a wait that took longer than
//! requested counts as the requested time. A suspended or overloaded machine therefore does not kill a healthy job.
//!
//! The guardian has no threads, no async runtime, and only small buffers.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork};

use super::announced_directory::DirectoryNote;
use super::cgroup::AgentGroup;
use super::cpu_marks::remove_unused_marks;
use super::descriptors;
use super::identity;
use super::launcher_streams;
use super::memory::{MemoryWatch, largest_child_bytes};
use super::nested::{NestedGuardians, has_guardians_below};
use super::reap::{self, Ended};
use super::shared_files::ProcessFiles;
use super::shell::ShellState;
use super::shm_note::ShmNote;
use super::signs::{LOOK_PAUSE, Signs, Silence, Stop};
use super::spawn::reset_sigchld;
use super::task_limits::reached_limit;
use super::told_signals;
use crate::figures;

/// The exit code of a guardian that has left processes which it could not kill.
pub const CODE_ABANDONED: i32 = 102;
/// The exit code if the agent cannot be started: "could not launch".
const EXIT_NOT_STARTED: i32 = 251;

/// The wait while killed processes are dying.
const TICK_CLOSE: Duration = Duration::from_millis(50);

/// The additional time for the first sign of life: the agent first waits for its order and connects to its starter.
const FIRST_SIGN_MAX: Duration = Duration::from_secs(90);

/// How long a resource manager may take to signal all processes of a node.
const MANAGER_TIME: Duration = Duration::from_millis(20);

/// The number of consecutive rounds in which no child accepts SIGKILL before the guardian gives up: the remaining
/// children belong to another user (setuid).
const REFUSALS_MAX: u32 = 20;

/// How long the kernel may list a thread that was joined.
const JOINED_TIME: Duration = Duration::from_millis(200);

/// Makes this process the guardian of an agent. Returns in the agent, a child of this process.
///
/// Call it while the process has one thread: from `main` before anything else, or right after
/// [`fork_guardians`](super::forked::fork_guardians). The guardian keeps only standard error of the standard streams; the
/// agent keeps all of them.
///
/// The guardian exits with the agent's exit code (128+n for signal n), or with 251 if the agent cannot be started. It always exits
/// after all processes of the agent have ended. `dead_time` is how long an agent may be silent after its first sign of life, unless
/// it announces another time.
///
/// The guardian passes on to the agent SIGTERM and SIGINT, as SIGTERM: the agent ends the session and gives the ranks their grace;
/// and SIGUSR1 and SIGUSR2, which are for the ranks. No other signal ends either of them. Meanwhile the guardian watches the agent as
/// before.
pub fn guarded(dead_time: Duration) -> GuardianLink {
    let code = match Guardian::start(dead_time) {
        Ok(Side::Agent(link)) => return link,
        Ok(Side::Guardian(guardian)) => guardian.watch(),
        Err(error) => {
            let limit = error.raw_os_error().and_then(reached_limit).map(|limit| format!("; {limit}"));
            print_line(format_args!("failed to start the agent: {error}{}", limit.unwrap_or_default()));
            EXIT_NOT_STARTED
        }
    };
    // SAFETY: takes no pointer. Nothing is left to flush or to remove, and the launcher waits for this exit.
    unsafe { libc::_exit(code) }
}

/// Shared memory in which the agent names the files that its guardian must remove. [`Signs`] has the directory of staged files.
#[derive(Copy, Clone, Debug)]
struct Notes {
    pmix: DirectoryNote,
    shm: ShmNote,
}

/// The role of this process after the fork.
enum Side {
    Agent(GuardianLink),
    Guardian(Guardian),
}

struct Guardian {
    agent: u32,
    /// The agent notices that it is closed.
    link: Option<UnixStream>,
    signs: Signs,
    notes: Notes,
    signals: SignalFd,
    /// How long the agent may be silent after its first sign of life.
    limit: Duration,
    /// The cgroup of the agent and its processes, where one may be created.
    group: Option<AgentGroup>,
    memory: MemoryWatch,
}

/// Why the guardian kills the agent's processes.
enum Cause {
    Ended(Ended),
    Stopped,
    Silent,
}

impl Cause {
    /// Whether the agent was killed, by the kernel or a user.
    fn is_kill(&self) -> bool {
        matches!(self, Self::Ended(Ended::Killed { signal: libc::SIGKILL, .. }))
    }
}

impl Guardian {
    fn start(dead_time: Duration) -> io::Result<Side> {
        // EPERM: this process already leads a group or a session, which is as good unless it has a controlling
        // terminal. In that case SIGINT of the terminal ends the job, as it would have done anyway.
        let _ = identity::new_session();
        // Close inherited descriptors: one could be a pipe whose reader waits for end of file.
        descriptors::close_all_but(launcher_streams::kept_descriptors());
        identity::outlive_parent()?;
        identity::become_subreaper()?;
        identity::forbid_dump()?;
        let _ = identity::set_process_name(c"scela-guard");
        reset_sigchld();
        let (signals, mask) = block_signals()?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let signs = Signs::new()?;
        let notes = Notes { pmix: DirectoryNote::new()?, shm: ShmNote::new()? };
        let guardian = Target::this();
        let group = AgentGroup::create();
        let Some(agent) = fork_alone()? else {
            // Without the cgroup, the guardian kills the agent's processes one by one.
            let _ = group.map(|group| group.enter());
            return Ok(Side::Agent(become_agent(theirs, signs, notes, guardian, &mask)?));
        };
        drop(guardian);
        drop(launcher_streams::take_launcher_streams());
        // Close our copies of the agent's streams, so that their peers see the agent's end.
        let null = descriptors::dev_null_rw()?;
        descriptors::overwrite(io::stdin().as_fd(), null.as_fd())?;
        descriptors::overwrite(io::stdout().as_fd(), null.as_fd())?;
        let agent = agent.as_raw().unsigned_abs();
        Ok(Side::Guardian(Self {
            agent,
            link: Some(ours),
            signs,
            notes,
            signals,
            limit: dead_time,
            group,
            memory: MemoryWatch::begin(),
        }))
    }

    /// Waits for a reason to end, kills all processes, and returns the exit code.
    fn watch(mut self) -> i32 {
        let cause = self.wait_for_cause();
        let shortage = if cause.is_kill() { self.memory.take_kill() } else { None };
        // Measure the ranks' memory before they are killed. The agent's death has already ended some of them.
        let remaining = if shortage.is_some() { reap::memory_of_children() } else { 0 };
        let (killed, abandoned) = self.kill_all();
        // An agent that has failed or was killed has left its directories.
        let left = [DirectoryNote(self.signs), self.notes.pmix].map(DirectoryNote::remove_announced);
        remove_unused_marks();
        if !matches!(&cause, Cause::Ended(ended) if ended.code() == 0) {
            self.notes.shm.remove_announced();
        }
        let code = match (&cause, &killed) {
            (Cause::Ended(ended), _) | (_, Some(ended)) => ended.code(),
            (_, None) => 128 + libc::SIGKILL,
        };
        match cause {
            Cause::Ended(_) => {
                if let Some(shortage) = shortage {
                    let [largest, remaining] = [largest_child_bytes(), remaining].map(figures::bytes);
                    print_line(format_args!(
                        "the kernel killed the agent because memory ran out: {shortage}; of its processes, the largest had {largest}, and \
                         those that were left when it ended had {remaining}"
                    ));
                }
            }
            Cause::Stopped => print_line("the agent was stopped by a signal; it and its ranks were killed"),
            Cause::Silent => print_line(format_args!(
                "the agent was silent for {} s; it and its ranks were killed",
                self.limit.as_secs_f32()
            )),
        }
        for left in left.into_iter().filter_map(Result::err) {
            print_line(format_args!("files are left: {left}"));
        }
        if abandoned {
            print_line("processes of another user (setuid?) could not be killed and are left");
            return CODE_ABANDONED;
        }
        code
    }

    fn wait_for_cause(&mut self) -> Cause {
        // Until it reports, the agent gives no sign.
        let first = self.limit.saturating_add(FIRST_SIGN_MAX);
        let mut silence = Silence::new(self.limit, first, self.signs.began());
        let mut stop = Stop::default();
        loop {
            self.signs.guardian().note();
            let wait = silence.next_check(Instant::now());
            let wait = if stop.is_stopped() { wait.min(LOOK_PAUSE) } else { wait };
            let before = Instant::now();
            self.wait(wait);
            let elapsed = before.elapsed();
            silence.on_waited(elapsed.saturating_sub(wait));
            self.pass_on_signals();
            if let Some(limit) = self.signs.limit() {
                self.limit = limit;
                silence.set_later(limit);
            }
            let agent = self.signs.agent();
            if agent.rests() {
                silence = Silence::new(self.limit, Duration::MAX, Instant::now());
                // Kills in an earlier session do not explain the end of the next one.
                self.memory = MemoryWatch::begin();
            } else if let Some(at) = agent.last() {
                silence.on_sign(at);
            }
            // Reap the agent, and orphans that became our children before the agent was a subreaper.
            while let Some((pid, ended)) = reap::reap() {
                if pid == self.agent {
                    return Cause::Ended(ended);
                }
            }
            if stop.is_over(reap::is_stopped(self.agent), elapsed) {
                return Cause::Stopped;
            }
            if silence.is_over(Instant::now()) {
                return Cause::Silent;
            }
        }
    }

    /// Kills and reaps children until none is left. Nested guardians get the time to clean up. Returns how the agent ended if
    /// it was still running, and whether some processes had to be abandoned.
    ///
    /// There is no deadline: a process in an uninterruptible wait ends when it can, and an earlier exit would only
    /// hide it.
    fn kill_all(&mut self) -> (Option<Ended>, bool) {
        let mut agent = None;
        let mut refusals = 0;
        let group = self.group.take();
        let remove_group = || group.iter().for_each(AgentGroup::remove);
        let mut nested = NestedGuardians::default();
        loop {
            let (killed, awaited) = nested.kill_children_but(libc::SIGKILL, &BTreeSet::new());
            if let Some(group) =
                group.as_ref().filter(|_| awaited == 0 && reap::has_children() && !has_guardians_below())
            {
                // One write reaches every process, also one that forks meanwhile or belongs to another user (setuid).
                group.kill();
            }
            while let Some((pid, ended)) = reap::reap() {
                if pid == self.agent {
                    agent = Some(ended);
                }
            }
            if !reap::has_children() {
                remove_group();
                return (agent, false);
            }
            refusals = if killed == 0 && awaited == 0 { refusals + 1 } else { 0 };
            if refusals == REFUSALS_MAX {
                remove_group();
                return (agent, true);
            }
            self.link = None;
            self.wait(TICK_CLOSE);
            self.take_signals();
        }
    }

    /// Waits for a signal, at most for `time`.
    fn wait(&self, time: Duration) {
        // In whole milliseconds: shorter waits would not end.
        let timeout = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Passes all pending signals except SIGCHLD on to the agent, which has not been reaped.
    fn pass_on_signals(&self) {
        let agent = i32::try_from(self.agent).unwrap_or_default();
        for signal in self.take_signals() {
            if signal != libc::SIGTERM {
                // A manager that sends the signal to each process reaches the agent first, which then knows that its ranks have it.
                std::thread::sleep(MANAGER_TIME);
            }
            // A refusal changes nothing: the guardian goes on watching the agent.
            let _ = reap::kill(agent, signal);
        }
    }

    /// Takes all pending signals except SIGCHLD.
    fn take_signals(&self) -> BTreeSet<i32> {
        let mut taken = BTreeSet::new();
        while let Ok(Some(info)) = self.signals.read_signal() {
            match i32::try_from(info.ssi_signo) {
                Ok(libc::SIGCHLD) | Err(_) => {}
                Ok(libc::SIGINT) => drop(taken.insert(libc::SIGTERM)),
                Ok(signal) => drop(taken.insert(signal)),
            }
        }
        taken
    }
}

/// Forks this process. Returns the child's pid; `None` in the child. Fails if the process has several threads.
pub fn fork_alone() -> io::Result<Option<Pid>> {
    if !identity::has_one_thread_within(JOINED_TIME) {
        let text = "a thread of this process is still busy, as with a file system that does not answer";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    // SAFETY: without other threads, no lock is taken and no value is half-written in the child.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Gives the agent a session, a name and the original signal mask.
fn become_agent(
    link: UnixStream,
    signs: Signs,
    notes: Notes,
    guardian: Target,
    mask: &SigSet,
) -> io::Result<GuardianLink> {
    identity::new_session()?;
    // A guardian that has died before is noticed on the link.
    identity::continue_when_parent_dies()?;
    let _ = identity::set_process_name(c"scela-agent");
    told_signals::begin_to_note()?;
    mask.thread_set_mask()?;
    told_signals::block_deadly_signals();
    let (link, seen) = (descriptors::move_up(link.into())?, Cell::new(None));
    Ok(GuardianLink { link, signs, notes, seen, guardian: guardian.moved_up()? })
}

/// Blocks the signals of a guardian and returns a descriptor that receives them. Signals that the user's shell
/// ignores (nohup) stay ignored. Also returns the previous signal mask.
fn block_signals() -> io::Result<(SignalFd, SigSet)> {
    let shell = ShellState::recorded();
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2] {
        if shell.ignored >> (signal as i32 - 1) & 1 == 0 {
            set.add(signal);
        }
    }
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    told_signals::block_deadly_signals();
    Ok((SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?, before))
}

/// Writes a line to standard error, unless that would block: its reader may be stuck.
fn print_line(message: impl Display) {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::ZERO) == Ok(1) {
        let line = format!("scela-run: guardian on {}: {message}\n", identity::host_name());
        let _ = stderr.lock().write_all(line.as_bytes());
    }
}

/// The agent's end of the link to its guardian, returned by [`guarded`]. An agent that drops it is killed after the
/// time that it has announced.
#[derive(Debug)]
pub struct GuardianLink {
    link: OwnedFd,
    signs: Signs,
    notes: Notes,
    /// When the guardian last ran, as [`has_run`](Self::has_run) has seen it.
    seen: Cell<Option<Instant>>,
    guardian: Target,
}

/// The guardian, as its agent signals it.
#[derive(Debug)]
enum Target {
    /// A pidfd never refers to a later process with the same pid (Linux 5.3).
    Descriptor(OwnedFd),
    /// A pid, for kernels and sandboxes without pidfds.
    Pid(Pid),
}

impl Target {
    /// Refers to this process.
    fn this() -> Self {
        reap::pidfd_of_this().map_or_else(|_| Self::Pid(Pid::this()), Self::Descriptor)
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Descriptor(fd) => Self::Descriptor(fd.try_clone()?),
            Self::Pid(pid) => Self::Pid(*pid),
        })
    }

    /// Frees the low descriptor.
    fn moved_up(self) -> io::Result<Self> {
        Ok(match self {
            Self::Descriptor(fd) => Self::Descriptor(descriptors::move_up(fd)?),
            Self::Pid(_) => self,
        })
    }

    /// Sends a signal, unless the guardian has ended. Called by the agent, its child.
    fn signal(&self, signal: i32) -> io::Result<()> {
        match self {
            Self::Descriptor(fd) => reap::signal_by(fd.as_fd(), signal),
            // An orphan has another parent. The guardian may still end, and be reaped, between the check and the signal.
            Self::Pid(pid) if Pid::parent() == *pid => reap::kill(pid.as_raw(), signal),
            Self::Pid(_) => Ok(()),
        }
    }
}

impl GuardianLink {
    /// Notes that this process runs. Fails if the guardian is dead.
    pub fn alive(&self) -> io::Result<()> {
        self.signs.agent().note();
        match nix::unistd::read(&self.link, &mut [0; 1]) {
            // The guardian never writes to the link.
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Announces how long this process may be silent in its session.
    pub fn announce_limit(&self, time: Duration) {
        self.signs.announce_limit(time);
    }

    /// Notes that this process rests: until [`alive`](Self::alive) is called again, the guardian waits for no sign of life.
    pub fn rest(&self) {
        self.signs.agent().rest();
    }

    /// Returns another owner of the link.
    pub fn try_clone(&self) -> io::Result<Self> {
        let Self { link, signs, notes, seen, guardian } = self;
        let (link, guardian) = (link.try_clone()?, guardian.try_clone()?);
        Ok(Self { link, signs: *signs, notes: *notes, seen: seen.clone(), guardian })
    }

    /// Returns where this process announces its directory of staged files.
    pub fn stage_note(&self) -> DirectoryNote {
        DirectoryNote(self.signs)
    }

    /// Returns where this process announces the directory of its `scela-pmix`.
    pub fn pmix_note(&self) -> DirectoryNote {
        self.notes.pmix
    }

    /// Returns where this process announces the files of its ranks in /dev/shm.
    pub fn shm_note(&self) -> ShmNote {
        self.notes.shm
    }

    /// Whether a signal has stopped the guardian. It has not if it waits for a processor, nor if the kernel does not tell.
    pub fn is_stopped(&self) -> bool {
        let state =
            ProcessFiles::open(Pid::parent().as_raw().unsigned_abs()).ok().and_then(|files| files.stat_field(0));
        state.is_some_and(|state| state == "T")
    }

    /// Whether the guardian has run since the last call. It does at least once in three quarters of the time that this process
    /// has announced.
    pub fn has_run(&self) -> bool {
        let last = self.signs.guardian().last();
        self.seen.replace(last) != last
    }

    /// Kills the guardian, which no longer answers, so that it does not stay behind.
    pub fn kill(&self) {
        // ESRCH: it has ended.
        let _ = self.guardian.signal(libc::SIGKILL);
    }

    /// Returns the descriptor, which becomes readable when the guardian dies.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Drop for GuardianLink {
    /// Continues the guardian: one that was stopped shortly before would not notice the agent's end.
    fn drop(&mut self) {
        let _ = self.guardian.signal(libc::SIGCONT);
    }
}
