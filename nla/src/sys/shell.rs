//! The process attributes inherited from the user's shell: umask, limits, signal mask, ignored signals.
//!
//! A rank starts with these, never with the agent's own. A constructor in `.init_array` records them before `main`,
//! because Rust's runtime ignores SIGPIPE before `main`, and an ignored signal stays ignored through exec: `yes |
//! head` in a rank would then never end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use serde::{Deserialize, Serialize};

/// The number of resource limits of Linux. They are numbered from 0.
const RESOURCES: usize = 16;

/// The highest signal number.
pub(super) const SIGNAL_MAX: i32 = 64;

/// The process attributes that a program inherits through exec, as the user's shell had them.
///
/// Each process records it once ([`ShellState::recorded`]). The launcher sends its own to the agents in the plan.
/// They fit it to their node ([`ShellState::fitted`]) and apply it to their ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellState {
    /// The file mode creation mask.
    pub umask: u32,
    /// The resource (`RLIMIT_*`), the soft limit and the hard limit; `u64::MAX` is infinity.
    pub limits: Vec<(u32, u64, u64)>,
    /// The signal mask: bit n-1 is set if signal n is blocked.
    pub blocked: u64,
    /// Bit n-1 is set if signal n is ignored.
    pub ignored: u64,
    /// Ranks get no higher hard limits than these. Otherwise theirs are those of their node.
    pub bounds_hard: bool,
}

/// A limit that is lower on this node than in the user's shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCut {
    /// The resource (`RLIMIT_*`).
    pub resource: u32,
    /// The soft limit of the user's shell; `u64::MAX` is infinity.
    pub wanted: u64,
    /// This node's hard limit, which ranks on this node get instead.
    pub granted: u64,
}

impl ShellState {
    /// Returns the attributes with which this process was started, before Rust's runtime changed them.
    pub fn recorded() -> Self {
        if !RECORDED.load(Relaxed) {
            // The linker dropped the constructor. Recording late is better than not at all.
            record();
        }
        let limits = (0u32..)
            .zip(&LIMITS)
            .filter(|(_, limit)| limit.known.load(Relaxed))
            .map(|(resource, limit)| (resource, limit.soft.load(Relaxed), limit.hard.load(Relaxed)))
            .collect();
        Self {
            umask: UMASK.load(Relaxed),
            limits,
            blocked: BLOCKED.load(Relaxed),
            ignored: IGNORED.load(Relaxed),
            bounds_hard: BOUNDS_HARD.load(Relaxed),
        }
    }

    /// Makes these the recorded attributes of this process, which works for another one from now on, and sets its umask. Its own
    /// limits, signal mask and ignored signals stay as they are. To be called while the process has one thread.
    pub fn adopt(&self) {
        UMASK.store(self.umask, Relaxed);
        BLOCKED.store(self.blocked, Relaxed);
        IGNORED.store(self.ignored, Relaxed);
        BOUNDS_HARD.store(self.bounds_hard, Relaxed);
        for (recorded, resource) in LIMITS.iter().zip(0u32..) {
            let limit = self.limits.iter().find(|(known, ..)| *known == resource);
            recorded.known.store(limit.is_some(), Relaxed);
            if let Some((_, soft, hard)) = limit {
                recorded.soft.store(*soft, Relaxed);
                recorded.hard.store(*hard, Relaxed);
            }
        }
        RECORDED.store(true, Relaxed);
        umask(Mode::from_bits_truncate(self.umask));
    }

    /// Returns the attributes of a rank on this node, and the limits that had to be lowered.
    ///
    /// Each soft limit becomes the lower one of the user's soft limit and this node's hard limit. Hard limits are
    /// those of this node: the hard limits of a login node often do not apply to compute nodes. Limits that this
    /// kernel does not know are left out.
    pub fn fitted(&self) -> (Self, Vec<LimitCut>) {
        let mut cuts = Vec::new();
        let mut limits = Vec::with_capacity(self.limits.len());
        for &(resource, wanted, of_user) in &self.limits {
            let Some((_, of_node)) = limit(resource) else {
                continue;
            };
            let hard = if self.bounds_hard { of_node.min(of_user) } else { of_node };
            let granted = wanted.min(hard);
            if granted < wanted {
                cuts.push(LimitCut { resource, wanted, granted });
            }
            limits.push((resource, granted, hard));
        }
        (Self { limits, ..self.clone() }, cuts)
    }
}

/// Returns the soft and the hard limit of this process; `None` if the kernel does not know the resource.
pub(super) fn limit(resource: u32) -> Option<(u64, u64)> {
    let mut now = [0u64; 2];
    // SAFETY: prlimit64 on this process writes one struct rlimit64, which is two u64, and reads nothing (the new
    // limit is null).
    let status =
        unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, std::ptr::null::<[u64; 2]>(), now.as_mut_ptr()) };
    (status == 0).then_some((now[0], now[1]))
}

/// Returns the name of a limit as in limits.conf: `nofile`, `memlock`, ...
pub fn limit_name(resource: u32) -> &'static str {
    const NAMES: [&str; RESOURCES] = [
        "cpu",
        "fsize",
        "data",
        "stack",
        "core",
        "rss",
        "nproc",
        "nofile",
        "memlock",
        "as",
        "locks",
        "sigpending",
        "msgqueue",
        "nice",
        "rtprio",
        "rttime",
    ];
    usize::try_from(resource).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or("unknown")
}

struct Recorded {
    known: AtomicBool,
    soft: AtomicU64,
    hard: AtomicU64,
}

static RECORDED: AtomicBool = AtomicBool::new(false);
static UMASK: AtomicU32 = AtomicU32::new(0o022);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BOUNDS_HARD: AtomicBool = AtomicBool::new(false);
static LIMITS: [Recorded; RESOURCES] =
    [const { Recorded { known: AtomicBool::new(false), soft: AtomicU64::new(0), hard: AtomicU64::new(0) } }; RESOURCES];

// SAFETY (of the section): .init_array holds pointers to functions that the C start-up code calls
// before main, after libc is ready (glibc passes argc, argv, envp, musl nothing: an extern "C"
// function without parameters may be called either way). `record` needs no Rust runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

/// Whether descriptor 1 was closed when the process started.
pub(super) static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether standard output was closed when the process started (`>&-` in a shell). Rust's runtime then opens
/// /dev/null in its stead before `main`, so that writing to it seems to succeed.
pub fn stdout_was_closed() -> bool {
    STDOUT_CLOSED.load(Relaxed)
}

/// Records all attributes, and unblocks SIGCHLD: this process waits for children, also if its parent does not. Runs before `main`,
/// while the process has one thread.
extern "C" fn record() {
    // SAFETY: umask takes no pointer and cannot fail. The process has one thread, so no file is created between the
    // two calls.
    let umask = unsafe {
        let umask = libc::umask(0);
        libc::umask(umask);
        umask
    };
    UMASK.store(umask, Relaxed);
    // SAFETY: F_GETFD takes no pointer.
    STDOUT_CLOSED.store(unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1, Relaxed);
    let (mut mask, mut ignored) = (0u64, 0u64);
    // SAFETY: reads the mask into one u64, the size of the kernel's signal set; a null new set
    // changes nothing.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            std::ptr::null::<u64>(),
            &raw mut mask,
            size_of::<u64>(),
        );
    }
    for signal in 1..=SIGNAL_MAX {
        if disposition(signal) == Some(libc::SIG_IGN) {
            ignored |= 1 << (signal - 1);
        }
    }
    BLOCKED.store(mask, Relaxed);
    IGNORED.store(ignored, Relaxed);
    for (resource, recorded) in (0u32..).zip(&LIMITS) {
        if let Some((soft, hard)) = limit(resource) {
            recorded.soft.store(soft, Relaxed);
            recorded.hard.store(hard, Relaxed);
            recorded.known.store(true, Relaxed);
        }
    }
    RECORDED.store(true, Relaxed);
    let _ = SigSet::from(Signal::SIGCHLD).thread_unblock();
}

/// The kernel's `struct sigaction`. On all supported architectures its first word is the handler; flags, restorer and
/// mask follow. libc's own struct differs, and libc hides signals 32 and 33.
pub(super) type KernelAction = [u64; 4];

/// Returns the handler of `signal` in this process; `None` if there is no such signal.
pub(super) fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut action: KernelAction = [0; 4];
    // SAFETY: a null new action changes nothing; the old one fits into `action`.
    let status = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<KernelAction>(),
            action.as_mut_ptr(),
            size_of::<u64>(),
        )
    };
    (status == 0).then_some(action[0] as libc::sighandler_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constant is a c_int in musl and a c_uint in glibc.
    const NOFILE: u32 = libc::RLIMIT_NOFILE as _;

    #[test]
    fn the_state_is_recorded_before_the_runtime_starts() {
        // Rust's runtime has made this process ignore SIGPIPE; its shell does not ignore it.
        assert!(RECORDED.load(Relaxed), "the constructor was dropped by the linker");
        assert_eq!(disposition(libc::SIGPIPE), Some(libc::SIG_IGN));
        assert_eq!(ShellState::recorded().limits.len(), RESOURCES);
    }

    #[test]
    fn fitting_lowers_limits_to_the_hard_limit_and_reports_them() {
        let (soft, hard) = limit(NOFILE).expect("known to every Linux");
        let mut shell = ShellState::recorded();
        assert_eq!(shell.fitted().1, [], "our own limits fit");
        shell.limits = vec![(NOFILE, hard.saturating_add(1), u64::MAX)];
        let (fitted, cuts) = shell.fitted();
        if hard == u64::MAX {
            assert!(cuts.is_empty());
        } else {
            let cut = LimitCut { resource: NOFILE, wanted: hard + 1, granted: hard };
            assert_eq!(cuts, [cut]);
        }
        assert_eq!(fitted.limits, [(NOFILE, hard, hard)]);
        shell.limits = vec![(NOFILE, soft.min(64), 64), (999, 1, 1)];
        let (fitted, cuts) = shell.fitted();
        assert_eq!(fitted.limits, [(NOFILE, soft.min(64), hard)]);
        assert!(cuts.is_empty());
        assert_eq!(fitted.fitted().0, fitted, "fitting twice is fitting once");
    }
}
