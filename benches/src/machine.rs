//! The machine, and the preparation of this process before measurements.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::utsname::uname;

use crate::family;

/// Locked while a launcher is started, so that the clean-up on a signal misses none.
pub static STARTING: Mutex<()> = Mutex::new(());

/// A description of the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The soft limit of open files, which ranks should inherit.
    pub nofile: u64,
    kernel: String,
    memory_gib: u64,
}

impl Machine {
    /// Reads the properties of this machine.
    ///
    /// # Errors
    /// If uname or getrlimit fails.
    pub fn ask() -> nix::Result<Self> {
        let system = uname()?;
        let (nofile, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            nofile,
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            memory_gib: memory_gib(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, nofile, kernel, memory_gib } = self;
        write!(f, "{cores} cores, {memory_gib} GiB, {kernel}, {nofile} open files")
    }
}

/// Prepares this process so that launchers start as from a fresh shell and no process of theirs is
/// missed: inherited descriptors are closed on exec, and orphans are reparented to the bench.
///
/// # Errors
/// If a system call fails.
pub fn isolate() -> nix::Result<()> {
    prctl::set_child_subreaper(true)?;
    close_descriptors_on_exec()
}

/// Installs a handler for SIGINT, SIGTERM and SIGHUP that kills all descendants, removes `leftovers`
/// and exits.
///
/// Must be called before any other thread is started. std's Command gives children an empty signal
/// mask, so launchers do not inherit the blocked signals.
///
/// # Errors
/// If a system call fails.
pub fn clean_up_on_signals(leftovers: [PathBuf; 2]) -> nix::Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    thread::spawn(move || {
        let signal = signals.wait().map_or(0, |signal| signal as i32);
        let _no_launcher_starts_now = STARTING.lock();
        family::end_all();
        for directory in leftovers {
            let _ = fs::remove_dir_all(directory);
        }
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// Sets close-on-exec on every descriptor from 3 on.
#[expect(unsafe_code, reason = "nix has no close_range")]
fn close_descriptors_on_exec() -> nix::Result<()> {
    // SAFETY: closes no descriptor and touches no memory; it sets a flag that std's own descriptors
    // have anyway.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    nix::errno::Errno::result(result).map(drop)
}

fn memory_gib() -> u64 {
    let kib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim();
        line.strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0).div_ceil(1024 * 1024)
}
