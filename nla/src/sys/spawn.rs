//! Starts ranks without copying memory or descriptor tables.
//!
//! clone(CLONE_VM | CLONE_VFORK | CLONE_FILES) copies neither memory nor descriptor table. The child then gets a
//! table of its own with only the low descriptors (close_range with CLOSE_RANGE_UNSHARE), so the cost of a rank does
//! not depend on the number of the agent's open descriptors. Before the clone the parent puts the rank's descriptors
//! into low slots (see [`reserve_low`](super::descriptors::reserve_low)); afterwards it clears the slots.
//!
//! Until its exec the child runs in the parent's memory, on a stack of its own, with all signals blocked, while the
//! thread that started it waits. It makes system calls only: no allocation, no lock, no panic, no logging. It reports
//! failures through the shared memory.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{c_char, c_int};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::child::{Order, Progress, Stack};
use super::descriptors;
use super::identity::{affinity, set_affinity};
use super::image::Image;
use super::launching::{LaunchSlot, Launching, STEP_SETUP};
use super::memory::rank_oom_score;
use super::profile_file::{PROFILE_FD, ProfileFile};
use super::rank_file::RankFile;
use super::reap;
use super::shell::{KernelAction, SIGNAL_MAX, ShellState, disposition, limit};

/// The descriptor of a rank's PMI socket: 10, because shell scripts use 3 to 9.
pub const PMI_FD: i32 = 10;

/// The size of the child's stack. The child needs a few hundred bytes, more in a build without optimization.
pub(super) const STACK_BYTES: usize = 64 * 1024;

/// A rank's descriptors 0, 1, 2 and, if it uses PMI, [`PMI_FD`]. With PMI it also gets the file of [`Spawner::share`].
///
/// They are borrowed for the call. The caller closes its copies, so that readers get end of file.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// Becomes descriptor 0.
    pub stdin: BorrowedFd<'a>,
    /// Becomes descriptor 1.
    pub stdout: BorrowedFd<'a>,
    /// Becomes descriptor 2.
    pub stderr: BorrowedFd<'a>,
    /// Becomes [`PMI_FD`].
    pub pmi: Option<BorrowedFd<'a>>,
}

/// The processors and memory nodes that a rank may use, as words of bits: number 0 is the lowest bit of the first word.
/// An empty one stays as inherited.
#[derive(Clone, Copy, Default, Debug)]
pub struct Masks<'a> {
    /// The processors.
    pub cpus: &'a [u64],
    /// The memory nodes.
    pub memory: &'a [u64],
}

/// A started process, the leader of its own session or process group: the only way to signal a rank.
///
/// Drop it when [`reap`](super::reap::reap) returns its pid. Dropping it does not affect the process. It cannot express
/// pid 0, pid -1 or the pid of a process that was never our child.
#[derive(Debug)]
pub struct Child {
    pid: NonZeroU32,
}

impl Child {
    /// Returns the pid.
    pub fn pid(&self) -> u32 {
        self.pid.get()
    }

    /// Sends the signal to this process only. Call it only before the child is reaped.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match i32::try_from(self.pid()) {
            Ok(pid) if pid > 1 => reap::kill(pid, signal),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Sends the signal to every process of the group. Fails with ESRCH if the group has no process left, with EPERM
    /// if all of them belong to another user.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        match i32::try_from(self.pid()) {
            Ok(leader) if leader > 1 => reap::kill(-leader, signal),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

/// The step of a spawn that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnStep {
    /// Creating the process.
    Clone,
    /// Creating its session or process group.
    Group,
    /// Setting up its descriptors.
    Descriptors,
    /// Entering its working directory.
    Directory,
    /// Setting its resource limits.
    Limits,
    /// Binding it to processors.
    Processors,
    /// Binding its memory.
    Memory,
    /// Executing the program.
    Exec,
}

/// A spawn that failed. No process is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct SpawnError {
    /// The step that failed.
    pub step: SpawnStep,
    /// The kernel's error number.
    pub errno: i32,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.step {
            SpawnStep::Clone => "no process could be created",
            SpawnStep::Group => "no session could be created",
            SpawnStep::Descriptors => "the descriptors could not be set up",
            SpawnStep::Directory => "the working directory could not be entered",
            SpawnStep::Limits => "the limits of the user's shell could not be set",
            SpawnStep::Processors => "it could not be bound to its processors",
            SpawnStep::Memory => "its memory could not be bound",
            SpawnStep::Exec => "the program could not be executed",
        };
        let why = match Errno::from_raw(self.errno) {
            Errno::UnknownErrno => "error",
            error => error.desc(),
        };
        write!(f, "{what}: {why} (errno {})", self.errno)?;
        let hint = match (self.step, self.errno) {
            (SpawnStep::Processors, libc::EINVAL) | (SpawnStep::Memory, libc::EINVAL) => {
                "none of them may be used any more; the cpuset of this process may have changed since the agent started"
            }
            (SpawnStep::Memory, libc::ENOSYS) => "this kernel knows no NUMA nodes",
            (SpawnStep::Exec, libc::ENOENT) => {
                "the interpreter that its first line names, or its dynamic loader, is missing on this node"
            }
            (SpawnStep::Exec, libc::ENOEXEC) => "it may have been built for another machine",
            (SpawnStep::Exec, libc::E2BIG) => "arguments and environment are too long",
            (SpawnStep::Exec, libc::ETXTBSY) => "the file is still open for writing",
            _ => return Ok(()),
        };
        write!(f, "; {hint}")
    }
}

/// Starts ranks. An agent has up to [`SPAWNERS_MAX`](super::launching::SPAWNERS_MAX), each used by one thread.
///
/// That thread is bound to the processors of the rank that it starts, and stays so until it starts a rank with other
/// processors. It must live as long as the agent: when it ends, the kernel kills the ranks that it has started
/// (PR_SET_PDEATHSIG follows the thread). So ranks end even if agent and guardian are killed together.
#[derive(Debug)]
pub struct Spawner {
    shell: ShellState,
    /// See [`dispositions_to_set`].
    dispositions: Vec<(c_int, libc::sighandler_t)>,
    stack: Stack,
    null: OwnedFd,
    /// The low descriptors that the child moves to 0, 1, 2 and [`PMI_FD`].
    slots: Option<[OwnedFd; 4]>,
    /// The file that ranks with PMI inherit.
    shared: Option<Arc<RankFile>>,
    /// The file to which all ranks append their profiles.
    profile: Option<Arc<ProfileFile>>,
    table: Table,
    leads_session: bool,
    scratch: Scratch,
    /// The oom_score_adj of ranks.
    oom_score: Vec<u8>,
    /// The processors of this process.
    own_cpus: Vec<u64>,
    /// Those that the thread is bound to.
    bound_to: Vec<u64>,
    launching: LaunchSlot,
}

/// How the child gets a descriptor table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// The child shares ours, then unshares the low part (Linux 5.9).
    Unshared,
    /// The kernel copies our whole table at clone.
    Copied,
}

impl Spawner {
    /// Creates a spawner whose children get the attributes of `shell`, as far as this node permits. From then on this process
    /// must install no handler for a further signal, and change no limit.
    ///
    /// Call [`reserve_low`](super::descriptors::reserve_low) before; without it spawning works but may cost more.
    /// Resets an ignored SIGCHLD to its default, since the kernel would otherwise discard the statuses of our
    /// children.
    ///
    /// Fails if `launching` has as many spawners as it can have.
    pub fn new(shell: ShellState, launching: &Arc<Launching>) -> io::Result<Self> {
        reset_sigchld();
        let launching = launching.take_slot().ok_or_else(|| io::Error::other("there are too many spawners"))?;
        let own_cpus = affinity();
        let slots = [
            descriptors::claim(None)?,
            descriptors::claim(None)?,
            descriptors::claim(None)?,
            descriptors::claim(Some(PMI_FD))?,
        ];
        let spawner = Self {
            dispositions: dispositions_to_set(shell.ignored),
            shell: unlike_own(shell.fitted().0),
            stack: Stack::new()?,
            null: descriptors::dev_null_rw()?,
            slots: Some(slots),
            shared: None,
            profile: None,
            table: Table::Unshared,
            leads_session: true,
            scratch: Scratch::default(),
            oom_score: rank_oom_score(),
            bound_to: own_cpus.clone(),
            own_cpus,
            launching,
        };
        Ok(if close_range_works() { spawner } else { spawner.copying() })
    }

    /// Chooses whether each later child leads a session of its own, which is the default, or only a process group.
    ///
    /// The kernel's autogroups (sched_autogroup) share the processor out among sessions. Children in one session have the
    /// share of one program on a machine with other load.
    pub fn lead_sessions(&mut self, leads_session: bool) {
        self.leads_session = leads_session;
    }

    /// Lets later children that use PMI inherit `file`, as [`RANK_FILE_FD`](super::RANK_FILE_FD).
    pub fn share(&mut self, file: Arc<RankFile>) {
        self.shared = Some(file);
    }

    /// Lets later children inherit `file`, as [`PROFILE_FD`].
    pub fn share_profile(&mut self, file: Arc<ProfileFile>) {
        self.profile = Some(file);
    }

    /// Returns the slot of the child in launch, for the thread that reaps.
    pub fn slot(&self) -> LaunchSlot {
        self.launching.clone()
    }

    /// Falls back to copied tables, for kernels without close_range. Marks inherited descriptors close-on-exec, so
    /// that children do not get them.
    fn copying(mut self) -> Self {
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            for entry in open.flatten() {
                if let Some(fd @ 3..) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
                    // SAFETY: numbers only; at worst the descriptor has been closed meanwhile.
                    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
                }
            }
        }
        self.table = Table::Copied;
        self
    }

    /// Starts the program in a session, or a process group, of its own. Returns once the program runs.
    ///
    /// Blocks as long as chdir and exec do: without bound if the file system stalls. Another thread can see the child
    /// and kill it meanwhile (see [`Launching`]). If there is one, call [`LaunchSlot::settle`] after each spawn.
    ///
    /// `extra_env` has the rank's own variables, as `NAME=value`. They replace variables of the same name in the
    /// image. The error is the reason why the program does not run. A program may still end at once, which
    /// [`reap`](super::reap::reap) reports.
    pub fn spawn(
        &mut self,
        image: &Image,
        extra_env: &[CString],
        descriptors: Descriptors<'_>,
        masks: Masks<'_>,
    ) -> Result<Child, SpawnError> {
        let result = match self.attempt(image, extra_env, descriptors, masks) {
            // The probe was wrong: a sandbox permits the call but not the flag.
            Err(Refusal::Unshare) => {
                self.table = Table::Copied;
                self.attempt(image, extra_env, descriptors, masks)
            }
            result => result,
        };
        result.map_err(|refusal| match refusal {
            Refusal::Step(error) => error,
            Refusal::Unshare => SpawnError { step: SpawnStep::Descriptors, errno: libc::ENOSYS },
        })
    }

    fn attempt(
        &mut self,
        image: &Image,
        extra_env: &[CString],
        descriptors: Descriptors<'_>,
        masks: Masks<'_>,
    ) -> Result<Child, Refusal> {
        let Some(slots) = &self.slots else {
            return Err(Refusal::Step(SpawnError { step: SpawnStep::Descriptors, errno: libc::EBADF }));
        };
        let filled = Filled::fill(slots, &self.null, descriptors)?;
        self.scratch.fill(image, extra_env);
        bind_thread(&self.own_cpus, &mut self.bound_to, masks.cpus)?;
        let numbers = slots.each_ref().map(AsRawFd::as_raw_fd);
        let shared = self.shared.as_ref().filter(|_| descriptors.pmi.is_some()).map(|file| file.as_fd().as_raw_fd());
        let profile = self.profile.as_ref().map(|file| file.as_fd().as_raw_fd());
        let highest = numbers.into_iter().chain(shared).chain(profile).fold(PROFILE_FD, i32::max);
        let order = Order {
            // SAFETY: getpid takes nothing.
            parent: unsafe { libc::getpid() },
            path: image.path.as_ptr(),
            argv: self.scratch.argv.as_ptr(),
            shell_argv: if image.script { self.scratch.shell_argv.as_ptr() } else { ptr::null() },
            envp: self.scratch.envp.as_ptr(),
            wdir: image.wdir.as_ptr(),
            leads_session: self.leads_session,
            limits: &self.shell.limits,
            umask: self.shell.umask,
            blocked: self.shell.blocked,
            dispositions: &self.dispositions,
            memory: masks.memory,
            oom_score: &self.oom_score,
            slots: [numbers[0], numbers[1], numbers[2]],
            kept: [descriptors.pmi.map(|_| numbers[3]), shared, profile],
            highest,
            table: self.table,
            step: &self.launching.slot().step,
            outcome: UnsafeCell::new((Progress::Started, 0)),
        };
        self.launching.slot().step.store(STEP_SETUP, Ordering::Relaxed);
        let cloned = {
            let _blocked = SignalsBlocked::all();
            self.stack.clone_child(&order, &self.launching.slot().pid)
        };
        drop(filled);
        self.scratch.clear();
        let pid = cloned?;
        // SAFETY: the child has exec'ed or ended (CLONE_VFORK), so it writes no more. It wrote through
        // the pointer in its order. The read is volatile because the compiler cannot know that clone ran the child.
        let (progress, errno) = unsafe { order.outcome.get().read_volatile() };
        let refusal = match progress {
            // The program runs, or the child was killed before exec, which `reap` will report.
            Progress::Started => return Ok(Child { pid }),
            Progress::Unshare => Refusal::Unshare,
            Progress::Failed(step) => Refusal::Step(SpawnError { step, errno }),
        };
        // The child has called _exit, so this does not block.
        self.launching.reap_failed(pid.get());
        Err(refusal)
    }
}

/// Returns the shell's state without the limits that children inherit anyway.
fn unlike_own(mut shell: ShellState) -> ShellState {
    shell.limits.retain(|(resource, soft, hard)| limit(*resource) != Some((*soft, *hard)));
    shell
}

/// The signals for which glibc installs its own handlers, at the start of a process's first thread or later.
const LIBRARY_SIGNALS: RangeInclusive<c_int> = 32..=33;

/// Returns the signals that this process does not handle as a program shall that ignores `ignored` (bit 0 is signal 1), or will
/// not, and the way in which the program does.
fn dispositions_to_set(ignored: u64) -> Vec<(c_int, libc::sighandler_t)> {
    let wanted = |signal: c_int| if ignored >> (signal - 1) & 1 == 1 { libc::SIG_IGN } else { libc::SIG_DFL };
    let all = (1..=SIGNAL_MAX).map(|signal| (signal, wanted(signal)));
    let is_lost = |signal, wanted| LIBRARY_SIGNALS.contains(&signal) && wanted == libc::SIG_IGN;
    let differs = |signal, wanted| disposition(signal).is_some_and(|own| own != wanted);
    all.filter(|(signal, wanted)| is_lost(*signal, *wanted) || differs(*signal, *wanted)).collect()
}

/// Binds this thread to the processors of the next child, which inherits them. The kernel would have to stop a running child
/// to move it.
fn bind_thread(own_cpus: &[u64], bound_to: &mut Vec<u64>, cpus: &[u64]) -> Result<(), Refusal> {
    let wanted = if cpus.is_empty() { own_cpus } else { cpus };
    if bound_to != wanted {
        set_affinity(wanted).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            Refusal::Step(SpawnError { step: SpawnStep::Processors, errno })
        })?;
        wanted.clone_into(bound_to);
    }
    Ok(())
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.slots.take().into_iter().flatten().for_each(descriptors::keep);
    }
}

pub(super) enum Refusal {
    /// close_range refused CLOSE_RANGE_UNSHARE.
    Unshare,
    Step(SpawnError),
}

/// The slots while they refer to a rank's descriptors. Drop resets them: a pipe that stayed open here would never
/// reach end of file.
struct Filled<'a> {
    slots: &'a [OwnedFd; 4],
    null: &'a OwnedFd,
}

impl<'a> Filled<'a> {
    fn fill(slots: &'a [OwnedFd; 4], null: &'a OwnedFd, descriptors: Descriptors<'_>) -> Result<Self, Refusal> {
        let filled = Self { slots, null };
        let sources = [Some(descriptors.stdin), Some(descriptors.stdout), Some(descriptors.stderr), descriptors.pmi];
        for (slot, source) in slots.iter().zip(sources) {
            if let Some(source) = source {
                descriptors::overwrite(slot.as_fd(), source).map_err(|error| {
                    let errno = error.raw_os_error().unwrap_or(libc::EBADF);
                    Refusal::Step(SpawnError { step: SpawnStep::Descriptors, errno })
                })?;
            }
        }
        Ok(filled)
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        for slot in self.slots {
            // This cannot fail, since both are open, and drop could not report it.
            let _ = descriptors::overwrite(slot.as_fd(), self.null.as_fd());
        }
    }
}

/// The arrays of pointers that exec reads. They are filled only during a spawn; their memory is reused.
#[derive(Debug, Default)]
struct Scratch {
    argv: Vec<*const c_char>,
    shell_argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
}

// SAFETY: between two calls of `attempt` the vectors are empty, so no pointer moves to another thread.
unsafe impl Send for Scratch {}

impl Scratch {
    fn fill(&mut self, image: &Image, extra_env: &[CString]) {
        self.clear();
        self.argv.extend(image.argv.iter().map(|argument| argument.as_ptr()));
        self.argv.push(ptr::null());
        if image.script {
            self.shell_argv.extend([c"/bin/sh".as_ptr(), image.path.as_ptr()]);
            self.shell_argv.extend(image.argv.iter().skip(1).map(|argument| argument.as_ptr()));
            self.shell_argv.push(ptr::null());
        }
        let replaced = |entry: &CString| extra_env.iter().any(|extra| same_name(entry, extra));
        let kept = image.env.iter().filter(|entry| !replaced(entry));
        self.envp.extend(kept.map(|entry| entry.as_ptr()));
        self.envp.extend(extra_env.iter().map(|entry| entry.as_ptr()));
        self.envp.push(ptr::null());
    }

    fn clear(&mut self) {
        self.argv.clear();
        self.shell_argv.clear();
        self.envp.clear();
    }
}

/// Returns whether two entries `NAME=value` have the same name.
fn same_name(one: &CStr, other: &CStr) -> bool {
    let mut pairs = one.to_bytes().iter().zip(other.to_bytes());
    loop {
        match pairs.next() {
            Some((b'=', b'=')) => return true,
            Some((a, b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Blocks all signals while it exists, so that no handler runs on this thread or in a child that shares our memory.
struct SignalsBlocked(u64);

impl SignalsBlocked {
    fn all() -> Self {
        Self(swap_signal_mask(u64::MAX))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        swap_signal_mask(self.0);
    }
}

/// Resets an ignored SIGCHLD to its default. Otherwise the kernel would discard the statuses of our children.
pub fn reset_sigchld() {
    if disposition(libc::SIGCHLD) == Some(libc::SIG_IGN) {
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Ignores SIGCHLD: the kernel discards the statuses of children. [`reset_sigchld`] undoes that.
pub fn let_kernel_reap() {
    set_disposition(libc::SIGCHLD, libc::SIG_IGN);
}

/// Ignores SIGXFSZ, so that a write beyond the limit on a file's size is an error that can be reported. Ranks get the action of
/// the user's shell.
pub fn ignore_file_size_signal() {
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Gives SIGHUP, SIGINT and SIGTERM their default action again, unless the user's shell ignores them: each then ends this
/// process.
pub fn restore_termination_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        if disposition(signal) != Some(libc::SIG_IGN) {
            set_disposition(signal, libc::SIG_DFL);
        }
    }
}

/// Sets the signal mask by a system call. libc's function refuses to block the two signals that it uses itself.
pub(super) fn swap_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: reads and writes one u64 each, the size of the kernel's signal set.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size_of::<u64>());
    }
    before
}

/// Sets a signal's disposition to default or ignored. Failures (KILL, STOP) are ignored.
pub(super) fn set_disposition(signal: c_int, handler: libc::sighandler_t) {
    let action: KernelAction = [handler as u64, 0, 0, 0];
    // SAFETY: reads one kernel sigaction with no flags, no restorer and an empty mask. The
    // handler is SIG_DFL or SIG_IGN, so no code of ours will run.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            ptr::null_mut::<KernelAction>(),
            size_of::<u64>(),
        );
    }
}

/// Returns whether close_range exists. CLOSE_RANGE_UNSHARE is as old as the call, so testing the call is enough;
/// testing the flag would unshare our own table.
fn close_range_works() -> bool {
    // SAFETY: numbers only; no descriptor has the highest possible number, so none is closed.
    unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::super::rank_file::{RANK_FILE_PATH, RankFile};
    use super::*;
    use nix::fcntl::OFlag;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::unistd::pipe2;
    use std::io::Read;

    /// Returns the output of a spawned shell.
    fn output_of(spawner: &mut Spawner, text: &str) -> String {
        let argv = ["sh", "-c", text].map(|argument| argument.as_bytes().to_vec());
        let image = Image::prepare(b"sh", &argv, &[], b"/").expect("sh exists");
        let null = descriptors::dev_null_rw().expect("descriptors are left");
        let (stdout, output) = pipe2(OFlag::O_CLOEXEC).expect("descriptors are left");
        let (_ours, theirs) = descriptors::socket_pair().expect("descriptors are left");
        let child = spawner.spawn(
            &image,
            &[],
            Descriptors {
                stdin: null.as_fd(),
                stdout: output.as_fd(),
                stderr: null.as_fd(),
                pmi: Some(theirs.as_fd()),
            },
            Masks::default(),
        );
        drop(output);
        let mut stdout = std::fs::File::from(stdout);
        let mut text = Vec::new();
        loop {
            let mut ready = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
            let count = poll(&mut ready, PollTimeout::from(30_000u16));
            assert_eq!(count, Ok(1), "another process has the pipe open");
            let mut bytes = [0; 256];
            match stdout.read(&mut bytes).expect("a pipe can be read") {
                0 => break,
                count => text.extend_from_slice(&bytes[..count]),
            }
        }
        // Not reap(): other tests have children too.
        assert_eq!(reap::reap_one(child.expect("the shell runs").pid()), Some(reap::Ended::Exited(0)));
        String::from_utf8(text).expect("ASCII")
    }

    #[test]
    fn without_close_range_ranks_have_the_same_descriptors() {
        let _alone = descriptors::SLOTS_IN_TEST.lock();
        let inherited = nix::unistd::dup(io::stderr()).expect("descriptors are left");
        let mut spawner = Spawner::new(ShellState::recorded(), &Arc::default()).expect("descriptors are left");
        let show = "fd=0; while [ $fd -lt 64 ]; do
            if [ -e /proc/$$/fd/$fd ]; then echo $fd; fi; fd=$((fd + 1)); done";
        assert_eq!(spawner.table, Table::Unshared, "the tests need Linux 5.9 or later");
        assert_eq!(output_of(&mut spawner, show), "0\n1\n2\n10\n");
        let mut spawner = spawner.copying();
        assert_eq!(output_of(&mut spawner, show), "0\n1\n2\n10\n");
        let file = RankFile::new().expect("descriptors are left");
        file.fill(b"shared").expect("it is filled once");
        spawner.share(Arc::new(file));
        let read = format!("{show}; cat {RANK_FILE_PATH}");
        for table in [Table::Copied, Table::Unshared] {
            spawner.table = table;
            assert_eq!(output_of(&mut spawner, &read), "0\n1\n2\n10\n11\nshared", "{table:?}");
        }
        drop(inherited);
    }

    #[test]
    fn variable_names_end_at_the_equals_sign() {
        for (one, other, same) in [
            (c"A=1", c"A=2", true),
            (c"A=", c"A=x", true),
            (c"A=1", c"AB=1", false),
            (c"AB=1", c"A=1", false),
            (c"A", c"A", false),
            (c"", c"=", false),
        ] {
            assert_eq!(same_name(one, other), same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn spawners_and_images_can_move_between_threads() {
        fn movable<T: Send>() {}
        movable::<Spawner>();
        movable::<Image>();
    }
}
