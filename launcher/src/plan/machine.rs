//! The properties of this machine and process that the plan depends on.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{geteuid, getpgrp, tcgetpgrp};
use nla::core::Level;
use nla::driver::this_node;
use nla::sys::{self, ShellState};

use super::environment::environment_of_process;

/// The machine and the process that the launcher runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The launcher's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The launcher's working directory.
    pub wdir: PathBuf,
    /// The launcher's program file.
    pub program: PathBuf,
    /// The number of cores that the launcher may use.
    pub cores: u32,
    /// Counts the parts of this machine that the launcher may use, by their level.
    pub parts: fn(Level) -> u32,
    /// The process state that the launcher inherited from its shell.
    pub shell: ShellState,
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard input is a terminal and the launcher runs in its background.
    pub stdin_in_background: bool,
    /// Reads the limits on the number of processes: where each is set, and how many it allows.
    pub process_limits: fn() -> Vec<(String, u64)>,
    /// Reads how many bytes of memory are left for processes, and the file that says so.
    pub memory_left: fn() -> Option<(String, u64)>,
    /// The session's public number.
    pub session: u64,
}

impl Machine {
    /// Returns the path in a variable of the launcher's environment; `None` if it is unset or empty.
    pub(super) fn path_in(&self, variable: &str) -> Option<PathBuf> {
        let (_, path) = self.environment.iter().find(|(name, _)| name == variable)?;
        (!path.is_empty()).then(|| self.wdir.join(path))
    }

    /// Reads the properties of this process and its machine, for the session with this number.
    pub fn of_process(session: u64) -> io::Result<Self> {
        let stdin = io::stdin();
        Ok(Self {
            environment: environment_of_process(),
            wdir: std::env::current_dir().map_err(|error| {
                io::Error::new(error.kind(), format!("the working directory cannot be determined: {error}"))
            })?,
            program: std::env::current_exe()?,
            cores: u32::try_from(sys::cores()).unwrap_or(1).max(1),
            parts: usable_parts,
            shell: ShellState::recorded(),
            stdout_is_terminal: io::stdout().is_terminal(),
            stdin_in_background: is_background(stdin.as_fd()),
            process_limits,
            memory_left,
            session,
        })
    }
}

fn usable_parts(level: Level) -> u32 {
    let (topology, allowed) = this_node();
    topology.parts(level).iter().filter(|part| !part.is_disjoint(&allowed.cpus)).count() as u32
}

/// All of these count threads, too. RLIMIT_NPROC does not apply to root, and counts the user's other processes too.
fn process_limits() -> Vec<(String, u64)> {
    let of_kernel = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        Some((path.to_owned(), text.trim().parse().ok()?))
    });
    let of_user = getrlimit(Resource::RLIMIT_NPROC).ok().filter(|_| !geteuid().is_root());
    let of_cgroup = sys::processes_left().map(|(file, left)| (format!("{} still", file.display()), left));
    of_kernel.chain(of_user.map(|(soft, _)| ("ulimit -u".to_owned(), soft))).chain(of_cgroup).collect()
}

fn memory_left() -> Option<(String, u64)> {
    let of_kernel = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"))?;
        Some(("MemAvailable in /proc/meminfo".to_owned(), kib.parse::<u64>().ok()?.saturating_mul(1024)))
    };
    let of_cgroup = sys::memory_left().map(|(file, left)| (file.display().to_string(), left));
    of_kernel().into_iter().chain(of_cgroup).min_by_key(|(_, left)| *left)
}

/// Returns whether `terminal` is a terminal and this process runs in its background.
pub fn is_background(terminal: BorrowedFd<'_>) -> bool {
    tcgetpgrp(terminal).is_ok_and(|foreground| foreground != getpgrp())
}
