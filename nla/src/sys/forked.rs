//! Guardians that the launcher forks on its own machine.
//!
//! They run this program without an exec: the dynamic linker has done its work, and the pages of program and data are shared.
//! That saves a third of the time in which an agent starts. The launcher forks them before it starts any thread and before
//! it opens anything that a guardian must not have.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;

use super::cgroup;
use super::descriptors;
use super::guardian::{GuardianLink, fork_alone};
use super::identity;
use super::launcher_streams;
use super::packet::{Packet, Packets};
use super::reap;
use super::spawn::{let_kernel_reap, reset_sigchld};

/// How long the processes of a fork server may take to exit once the other end has closed the connection.
pub const FORKED_EXIT_TIME: Duration = Duration::from_secs(2);
/// The pause between two looks at processes that are to exit.
const EXIT_PAUSE: Duration = Duration::from_micros(200);
/// How long guardians that are not needed may take to exit.
const DISMISS_TIME: Duration = Duration::from_secs(1);

/// A guardian that was forked and waits for its order.
#[derive(Debug)]
pub struct ForkedGuardian {
    /// The pid. The process is a child of this one, and no other code reaps it.
    pub pid: u32,
    /// Leads to the agent's standard input.
    pub input: OwnedFd,
    /// Yields the agent's standard output.
    pub output: OwnedFd,
    /// The report of an agent that has joined its session already. Such a guardian does not exit when the session is over: its agent
    /// stands by for the next one.
    pub report: Option<Vec<u8>>,
}

/// The guardians that a launcher has forked.
#[derive(Debug, Default)]
pub struct ForkedGuardians {
    /// All of them.
    pub guardians: Vec<ForkedGuardian>,
    /// The launcher adopts orphaned descendants; see [`adopt_orphans`](super::reap::adopt_orphans).
    pub adopts_orphans: bool,
    /// Signals wait until this is dropped. Otherwise one that ends the launcher before it handles signals would end it before its
    /// guardians.
    pub signals_held: Option<SignalsHeld>,
}

/// Blocks all signals of this thread until it is dropped.
#[derive(Debug)]
pub struct SignalsHeld(SigSet);

impl SignalsHeld {
    fn new() -> io::Result<Self> {
        Ok(Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?))
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // It does not fail for a valid set.
        let _ = self.0.thread_set_mask();
    }
}

/// The guardian of an agent that stands by for one session after the other.
#[derive(Debug)]
pub struct StandingGuardian {
    pid: u32,
    /// Leads to the agent. For each session, the agent gets a message with its pipes, reports once it has joined, and gets a message
    /// when the session begins.
    control: Packets,
    adopts_orphans: bool,
}

impl ForkedGuardians {
    /// Ends guardians that get no order, and waits for them, at most for 1 s. To be called while nothing else reaps children.
    pub fn dismiss(self) {
        // Their agents exit when their inputs end.
        let pids: Vec<u32> = self.guardians.into_iter().map(|guardian| guardian.pid).collect();
        wait_for_exits(&pids, DISMISS_TIME);
    }
}

/// Waits for a child that [`fork_alone`] has made, at most for `limit`.
pub fn await_exit(child: Pid, limit: Duration) {
    wait_for_exits(&[child.as_raw().unsigned_abs()], limit);
}

/// Waits for children, at most for `limit`.
fn wait_for_exits(pids: &[u32], limit: Duration) {
    let until = Instant::now() + limit;
    for pid in pids {
        while reap::reap_ended(*pid).is_none() && Instant::now() < until {
            thread::sleep(EXIT_PAUSE);
        }
    }
}

impl AsFd for StandingGuardian {
    /// Returns a descriptor that is readable once the agent, which stands by, has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl StandingGuardian {
    /// Gives the agent the pipes of its next session. Returns the other ends: of its standard input, and of its standard output.
    pub fn open_session(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (theirs_in, input) = descriptors::input_pipe()?;
        let (output, theirs_out) = descriptors::pipe()?;
        self.control.send(b"session", &[theirs_in.as_fd(), theirs_out.as_fd()], true)?;
        Ok((input, output))
    }

    /// Waits until the agent has joined the session, and returns its report. `None` if it has ended, or does not join within `limit`.
    pub fn report(&self, limit: Duration) -> Option<Vec<u8>> {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let is_ready = poll(&mut [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)], timeout) == Ok(1);
        self.control.receive(false).ok().flatten().filter(|_| is_ready).map(|packet| packet.bytes)
    }

    /// Returns whether the agent and its guardian still live. To be called while nothing else reaps children.
    pub fn lives(&self) -> bool {
        let mut control = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
        poll(&mut control, PollTimeout::ZERO) == Ok(0) && reap::reap_ended(self.pid).is_none()
    }

    /// Tells the agent, which has joined, that its session has begun when this time had passed on the clock that it has inherited.
    pub fn begin_session(&self, began: Duration) -> io::Result<()> {
        self.control.send(&began.as_nanos().to_le_bytes(), &[], true)
    }

    /// Returns the guardian for the session that has begun, with the other ends of the pipes and the report of its agent.
    pub fn lend(&self, (input, output): (OwnedFd, OwnedFd), report: Vec<u8>) -> ForkedGuardians {
        let guardian = ForkedGuardian { pid: self.pid, input, output, report: Some(report) };
        ForkedGuardians { guardians: vec![guardian], adopts_orphans: self.adopts_orphans, signals_held: None }
    }

    /// Ends the agent and the guardian, and waits for them, at most for 1 s. To be called while nothing else reaps children.
    pub fn dismiss(self) {
        drop(self.control);
        wait_for_exits(&[self.pid], DISMISS_TIME);
    }
}

/// The agent's end of its connection to the launcher, as [`StandingGuardian`] has the other one.
#[derive(Debug)]
pub struct Standby(Packets);

impl Standby {
    /// Takes the connection from standard input, in the agent that [`fork_standing`] has made.
    pub fn of_stdin() -> io::Result<Self> {
        let control = descriptors::duplicate_above(io::stdin().as_fd(), descriptors::LOW_MAX + 1)?;
        Ok(Self(Packets::of(control)))
    }

    /// Waits for a session, whose pipes become standard input and output. Returns false if the launcher has ended, or needs this
    /// agent no more, or if the guardian has ended.
    pub fn next_session(&self, guardian: &GuardianLink) -> io::Result<bool> {
        let Some(packet) = self.next(guardian)? else { return Ok(false) };
        let [input, output] = <[OwnedFd; 2]>::try_from(packet.descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
        descriptors::overwrite(io::stdin().as_fd(), input.as_fd())?;
        descriptors::overwrite(io::stdout().as_fd(), output.as_fd())?;
        Ok(true)
    }

    /// Reports that this agent has joined the session, and waits until that begins. Returns when it has begun, on the clock that both
    /// processes have inherited; `None` if it does not begin.
    pub fn stand_by(&self, report: &[u8], guardian: &GuardianLink) -> io::Result<Option<Duration>> {
        self.0.send(report, &[], true)?;
        let Some(packet) = self.next(guardian)? else { return Ok(None) };
        let nanos = <[u8; 16]>::try_from(packet.bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Some(Duration::from_nanos(u64::try_from(u128::from_le_bytes(nanos)).unwrap_or(u64::MAX))))
    }

    /// Waits for the next message; `None` if the launcher or the guardian has ended.
    fn next(&self, guardian: &GuardianLink) -> io::Result<Option<Packet>> {
        if self.0.wait_until(guardian.as_fd()) { self.0.receive(true) } else { Ok(None) }
    }
}

/// The process in which [`fork_standing`] has returned.
#[derive(Debug)]
pub enum ForkedStanding {
    /// The launcher, with the guardian.
    Launcher(StandingGuardian),
    /// A child of it. It calls [`guarded`](super::guardian::guarded) next.
    Guardian,
}

/// Forks this process, which must have one thread, for an agent that stands by. As [`fork_guardians`] otherwise.
pub fn fork_standing(label: &str) -> io::Result<ForkedStanding> {
    prepare()?;
    let [control, theirs] = Packets::pair()?;
    let adopts_orphans = reap::adopt_orphans().unwrap_or(false);
    let held = SignalsHeld::new()?;
    let Some(pid) = fork_alone()? else {
        descriptors::overwrite(io::stdin().as_fd(), theirs.as_fd())?;
        become_guardian(held, label);
        return Ok(ForkedStanding::Guardian);
    };
    Ok(ForkedStanding::Launcher(StandingGuardian { pid: pid.as_raw().unsigned_abs(), control, adopts_orphans }))
}

/// Forks this process, which must have one thread, for an agent with these streams. Returns true in the child, which calls
/// [`guarded`](super::guardian::guarded) next. As [`fork_guardians`] otherwise.
pub fn fork_guardian(streams: &[OwnedFd; 3], label: &str) -> io::Result<bool> {
    prepare()?;
    let held = SignalsHeld::new()?;
    if fork_alone()?.is_some() {
        return Ok(false);
    }
    let [input, output, errors] = streams;
    descriptors::overwrite(io::stdin().as_fd(), input.as_fd())?;
    descriptors::overwrite(io::stdout().as_fd(), output.as_fd())?;
    descriptors::overwrite(io::stderr().as_fd(), errors.as_fd())?;
    become_guardian(held, label);
    Ok(true)
}

/// Forks processes on request, in a process that has one thread, until the other end closes the connection. Returns `None` then, once
/// all processes have exited, those included that they have left, or [`FORKED_EXIT_TIME`] is over. `fork` gets each request, and returns a value in a process that it has forked. That process gets the value, and is no child that
/// anything waits for.
pub fn serve_forks<T>(requests: &Packets, mut fork: impl FnMut(Packet) -> Option<T>) -> io::Result<Option<T>> {
    let_kernel_reap();
    identity::become_subreaper()?;
    loop {
        let Some(packet) = requests.receive(true)? else {
            let until = Instant::now() + FORKED_EXIT_TIME;
            while reap::has_children() && Instant::now() < until {
                thread::sleep(EXIT_PAUSE);
            }
            return Ok(None);
        };
        if let Some(forked) = fork(packet) {
            reset_sigchld();
            return Ok(Some(forked));
        }
    }
}

/// Names this process in `ps`: the process, whose name the kernel cuts to 15 bytes, and its arguments, as which the name and `words`
/// are shown, cut to their length. If that fails, `ps` shows what it showed before. The process must have one thread.
pub fn name_process(name: &CStr, words: &str) {
    let _ = identity::set_process_name(name);
    let shown = name.to_string_lossy();
    let _ = show_as(if words.is_empty() { shown.into_owned() } else { format!("{shown} {words}") }.as_str());
}

/// The process in which [`fork_guardians`] has returned.
#[derive(Debug)]
pub enum Forked {
    /// The launcher, with its guardians.
    Launcher(ForkedGuardians),
    /// A child of it. It calls [`guarded`](super::guardian::guarded) next.
    Guardian,
}

/// Forks this process, which must have one thread, until there are `count` guardians with those that it has `forked` before. A
/// guardian that is dropped exits: its input has ended. Raises the soft limit of open files.
///
/// A signal to the process group is the launcher's alone, even if it arrives at this time: a guardian leads a session of its own
/// when it first can be interrupted.
///
/// The guardians' command line becomes `scela-guard LABEL`, cut to the length of the launcher's: otherwise a `pkill` that finds the
/// launcher by its arguments would end the agents and their guardians with it, and nobody would clean up.
pub fn fork_guardians(mut forked: ForkedGuardians, count: u32, label: &str) -> io::Result<Forked> {
    if forked.guardians.is_empty() {
        // Two descriptors for each guardian.
        descriptors::raise_limit()?;
    }
    if count > 1 {
        // Looked up once for all of them. A single one does it while the launcher makes the plan.
        cgroup::look_up_cgroup();
    }
    let held = forked.signals_held.take().map_or_else(SignalsHeld::new, Ok)?;
    Ok(match fork_until(count, forked)? {
        Some(guardians) => Forked::Launcher(ForkedGuardians { signals_held: Some(held), ..guardians }),
        None => {
            become_guardian(held, label);
            Forked::Guardian
        }
    })
}

/// Prepares this process before it forks for other sessions than its own.
fn prepare() -> io::Result<()> {
    descriptors::raise_limit()?;
    // Looked up once, before the forks, which inherit the answer.
    cgroup::look_up_cgroup();
    Ok(())
}

/// Leaves the launcher's session in a process that was forked while signals were held.
fn become_guardian(held: SignalsHeld, label: &str) {
    // EPERM: see `guarded`.
    let _ = identity::new_session();
    // If this fails, `ps` shows the launcher's arguments.
    let _ = show_as(&format!("scela-guard {label}"));
    drop_pending_signals();
    drop(held);
}

fn fork_until(count: u32, mut forked: ForkedGuardians) -> io::Result<Option<ForkedGuardians>> {
    if forked.guardians.is_empty() {
        // Before the forks: it is refused to a process that has children.
        forked.adopts_orphans = reap::adopt_orphans().unwrap_or(false);
    }
    while forked.guardians.len() < count as usize {
        let (theirs_in, input) = descriptors::input_pipe()?;
        let (output, theirs_out) = descriptors::pipe()?;
        let Some(pid) = fork_alone()? else {
            launcher_streams::keep();
            descriptors::overwrite(io::stdin().as_fd(), theirs_in.as_fd())?;
            descriptors::overwrite(io::stdout().as_fd(), theirs_out.as_fd())?;
            // `guarded` closes the inherited pipes of the other guardians.
            return Ok(None);
        };
        forked.guardians.push(ForkedGuardian { pid: pid.as_raw().unsigned_abs(), input, output, report: None });
    }
    Ok(Some(forked))
}

/// Replaces the arguments of this process, as `ps` shows them, by `text`, cut to their length. The process must have one thread.
fn show_as(text: &str) -> io::Result<()> {
    let arguments = match recorded::arguments() {
        Some(recorded) => Some(recorded),
        None => arguments_at(&fs::read_to_string("/proc/self/stat")?),
    };
    let Some((from, to)) = arguments.filter(|(from, to)| from < to) else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    // The last byte stays zero: otherwise the kernel would show the environment, too.
    let (length, text) = (to - from, text.as_bytes());
    let shown = text.len().min(length - 1);
    // SAFETY: the range holds the arguments of this process. It is writable, and exists as long as the process. No thread
    // reads it: `main` has copied its arguments, and this process has one thread.
    let arguments =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(from), length) };
    arguments.fill(0);
    arguments[..shown].copy_from_slice(&text[..shown]);
    Ok(())
}

/// The arguments as the C library has passed them to a constructor before `main`. That is faster than /proc: guardians show their
/// session before they fork their agents.
#[cfg(target_env = "gnu")]
mod recorded {
    use std::ffi::{CStr, c_char, c_int};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    static FROM: AtomicUsize = AtomicUsize::new(0);
    static TO: AtomicUsize = AtomicUsize::new(0);

    // SAFETY (of the section): .init_array holds pointers to functions that glibc calls before main with argc, argv and envp.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static RECORD: extern "C" fn(c_int, *const *const c_char) = record;

    extern "C" fn record(argc: c_int, argv: *const *const c_char) {
        let Some(last) = usize::try_from(argc).ok().and_then(|argc| argc.checked_sub(1)) else { return };
        // SAFETY: argv has argc pointers to strings, which the kernel has stored one after the other.
        let (first, last) = unsafe { (*argv, CStr::from_ptr(*argv.add(last))) };
        FROM.store(first.expose_provenance(), Relaxed);
        TO.store(last.as_ptr().expose_provenance() + last.to_bytes_with_nul().len(), Relaxed);
    }

    pub(super) fn arguments() -> Option<(usize, usize)> {
        Some((FROM.load(Relaxed), TO.load(Relaxed))).filter(|(from, _)| *from > 0)
    }
}

#[cfg(not(target_env = "gnu"))]
mod recorded {
    pub(super) fn arguments() -> Option<(usize, usize)> {
        None
    }
}

/// Returns the addresses of the first byte of the arguments and of the one behind the last, from /proc/PID/stat.
fn arguments_at(stat: &str) -> Option<(usize, usize)> {
    // The name, which may contain blanks and brackets, is the second field; the addresses are the 48th and the 49th.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(48 - 3);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
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
    fn the_arguments_of_this_process_are_found() {
        let (from, to) = arguments_at(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(to - from, fs::read("/proc/self/cmdline").unwrap().len());
        #[cfg(target_env = "gnu")]
        assert_eq!(recorded::arguments(), Some((from, to)));
        let others = (4..48).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(arguments_at(&format!("1 (a) b) (c) S {others} 100 200 300")), Some((100, 200)));
        assert_eq!(arguments_at("1 (a) S 2"), None);
    }

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
