//! A process that takes the place of another one, which has asked for its service: its streams, directory and environment.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::unistd::{chdir, fchdir};

use super::descriptors;
use super::shell::{STDOUT_CLOSED, ShellState};

/// The streams and attributes that a process takes over from the one that it serves.
#[derive(Debug)]
pub struct Served {
    /// Standard input, output and error.
    pub streams: [OwnedFd; 3],
    /// Whether that process was started without standard output. `streams` has /dev/null in its place then.
    pub stdout_is_closed: bool,
    /// The working directory.
    pub directory: OwnedFd,
    /// The environment. Names are not empty; neither names nor values contain a zero byte, and no name a `=`.
    pub environment: Vec<(OsString, OsString)>,
    /// The attributes that ranks get.
    pub shell: ShellState,
}

impl Served {
    /// Takes over everything. The process must have one thread, and hold no reference to its environment.
    pub fn take_over(self) -> io::Result<()> {
        let Self { streams: [input, output, error], stdout_is_closed, directory, environment, shell } = self;
        descriptors::overwrite(io::stdin().as_fd(), input.as_fd())?;
        descriptors::overwrite(io::stdout().as_fd(), output.as_fd())?;
        descriptors::overwrite(io::stderr().as_fd(), error.as_fd())?;
        fchdir(&directory)?;
        adopt_shell(&shell, stdout_is_closed);
        keep_variables(&[]);
        // SAFETY: the process has one thread, so none reads the environment meanwhile.
        environment.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
        Ok(())
    }
}

/// Takes over the attributes that ranks get, and whether standard output is closed for them. The process must have one thread.
pub fn adopt_shell(shell: &ShellState, stdout_is_closed: bool) {
    STDOUT_CLOSED.store(stdout_is_closed, Relaxed);
    shell.adopt();
}

/// Removes all variables but these from the environment. The process must have one thread, and hold no reference to its environment.
pub fn keep_variables(kept: &[&str]) {
    let mut removed: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    removed.retain(|name| !name.is_empty() && !kept.iter().any(|kept| name == kept));
    // SAFETY: the process has one thread, so none reads the environment meanwhile.
    removed.iter().for_each(|name| unsafe { std::env::remove_var(name) });
}

/// Gives up the streams and the directory of the process that this one has served.
pub fn leave_served() -> io::Result<()> {
    let null = descriptors::dev_null_rw()?;
    for stream in [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()] {
        descriptors::overwrite(stream, null.as_fd())?;
    }
    chdir("/")?;
    Ok(())
}
