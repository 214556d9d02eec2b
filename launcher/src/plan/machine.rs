//! The properties of this machine and process that the plan depends on.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use nix::unistd::{getpgrp, tcgetpgrp};
use nla::core::Level;
use nla::driver::this_node;
use nla::sys::{self, ShellState, TaskLimit};

use super::environment::environment_of_process;
use super::process_limits::{MemoryLimit, memory_limits, task_limits};

/// The machine and the process that the launcher runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The launcher's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The launcher's working directory.
    pub wdir: PathBuf,
    /// The launcher's program file.
    pub program: PathBuf,
    /// The number of cores that the launcher may use, as [`sys::usable_cores`] counts them.
    pub cores: u32,
    /// Counts the parts of this machine that the launcher may use, by their level.
    pub parts: fn(Level) -> u32,
    /// The process state that the launcher inherited from its shell.
    pub shell: ShellState,
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard input is a terminal and the launcher runs in its background.
    pub stdin_in_background: bool,
    /// Reads the limits that so many processes and threads may exceed.
    pub task_limits: fn(u64) -> Vec<TaskLimit>,
    /// Reads how much memory is left for so many processes and threads.
    pub memory_limits: fn(u64) -> Vec<MemoryLimit>,
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
            cores: u32::try_from(sys::usable_cores()).unwrap_or(1).max(1),
            parts: usable_parts,
            shell: ShellState::recorded(),
            stdout_is_terminal: io::stdout().is_terminal(),
            stdin_in_background: is_background(stdin.as_fd()),
            task_limits,
            memory_limits,
            session,
        })
    }
}

fn usable_parts(level: Level) -> u32 {
    let (topology, allowed) = this_node();
    topology.parts(level).iter().filter(|part| !part.is_disjoint(&allowed.cpus)).count() as u32
}

/// Returns whether `terminal` is a terminal and this process runs in its background.
pub fn is_background(terminal: BorrowedFd<'_>) -> bool {
    tcgetpgrp(terminal).is_ok_and(|foreground| foreground != getpgrp())
}
