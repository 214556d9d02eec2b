//! The machine: what it is, and what the bench arranges on it before anything is timed.

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

/// Held while a launcher is being started, so that none slips past the cleaning up.
pub static STARTING: Mutex<()> = Mutex::new(());

/// What the tables were made on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// How many cores this process may use.
    pub cores: usize,
    /// The soft limit of open files, which every rank should find too.
    pub nofile: u64,
    kernel: String,
    memory_gib: u64,
}

impl Machine {
    /// Asks the machine.
    ///
    /// # Errors
    /// Where the kernel does not tell its name or the limit.
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

/// Makes this process one from which a launcher starts as from a fresh shell, and from which nothing gets lost:
/// descriptors that the bench inherited are not handed on, orphans come to the bench.
///
/// # Errors
/// Where the kernel refuses.
pub fn isolate() -> nix::Result<()> {
    prctl::set_child_subreaper(true)?;
    keep_descriptors()
}

/// From now on INT, TERM and HUP end the descendants, remove `leftovers` and end the bench.
///
/// To be called before any other thread is started. std's Command gives children an empty signal mask, so that
/// launchers do not inherit this one.
///
/// # Errors
/// Where the kernel refuses.
pub fn clean_up_on_signals(leftovers: [PathBuf; 2]) -> nix::Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    thread::spawn(move || {
        let signal = signals.wait().map_or(0, |signal| signal as i32);
        let _nothing_starts_now = STARTING.lock();
        family::end_all();
        for directory in leftovers {
            let _ = fs::remove_dir_all(directory);
        }
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// Marks every descriptor from 3 on as closed on exec.
#[expect(unsafe_code, reason = "nix has no close_range")]
fn keep_descriptors() -> nix::Result<()> {
    // SAFETY: closes nothing now and touches no memory; it only sets a flag, which std's own descriptors have anyway.
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
