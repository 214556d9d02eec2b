//! Starts the processes of a pool.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout, pipe2};
use nla::sys::{self, Packets};

use super::controller::{Controller, Setup};
use super::directory::{self, Place};
use super::fork_server;
use super::status::count;
use crate::refusal::Refusal;

/// The least limit on open files of a pool: a job that waits takes eight.
const OPEN_FILES_MIN: u64 = 128;
/// The report of a controller that has begun.
const READY: &str = "+";

/// The options of `scela pool start`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The pool's name, which was checked.
    pub name: String,
    /// How many ranks it runs at a time; the cores of this machine if `None`. At least 1.
    pub slots: Option<u32>,
    /// After how long without a job it ends.
    pub idle: Option<Duration>,
}

/// Which process [`start`] has returned in.
pub enum Role {
    /// The process that was typed: the pool runs, and this is the text about it.
    Starter(String),
    /// The controller, to be run.
    Controller(Controller),
    /// A process that exits now: the fork server at its end, or a controller that could not begin.
    Done,
    /// A launcher, with its connection to the controller.
    Launcher(Packets),
}

/// Starts a pool. Takes over the process, which must have one thread and no descriptors but the standard ones.
pub fn start(options: &Options) -> Result<Role, Refusal> {
    sys::close_inherited();
    let directories = directory::directories(|name| std::env::var_os(name));
    let (most, least) = (sys::open_files_max(), OPEN_FILES_MIN);
    if most < least {
        let text = format!("the pool '{}' needs {least} open files, and the limit is {most}", options.name);
        return Err(Refusal::new(text, "raise it: 'ulimit -Hn' shows it").of_system());
    }
    let place = directory::take(&directories[0], &options.name)?;
    let failed = |error: io::Error| {
        Refusal::new(format!("the pool '{}' cannot be started: {error}", options.name), "").of_system()
    };
    let slots = options.slots.unwrap_or(u32::try_from(sys::cores()).unwrap_or(1)).max(1);
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(error.into()))?;
    if sys::fork_alone().map_err(failed)?.is_some() {
        // The lock and the listener belong to the controller now.
        place.leave();
        drop(write);
        let slots = count(slots.into(), "slot");
        return wait_until_ready(read)
            .map(|()| Role::Starter(format!("pool {}: {slots}\n", options.name)))
            .map_err(failed);
    }
    drop(read);
    // The starter reports an error.
    Ok(become_controller(options, slots, place, write).unwrap_or(Role::Done))
}

/// Waits until the controller has begun. Fails with the reason if it cannot.
fn wait_until_ready(ready: OwnedFd) -> io::Result<()> {
    let mut report = String::new();
    File::from(ready).take(64 * 1024).read_to_string(&mut report)?;
    match report.as_str() {
        READY => Ok(()),
        "" => Err(io::Error::other("the controller was killed")),
        why => Err(io::Error::other(why.to_owned())),
    }
}

/// Begins the controller and the fork server, and tells the starter.
fn become_controller(options: &Options, slots: u32, place: Place, starter: OwnedFd) -> io::Result<Role> {
    let [forks, requests] = match leave_shell(&options.name, &place).and_then(|()| Packets::pair()) {
        Ok(pair) => pair,
        Err(error) => {
            File::from(starter).write_all(error.to_string().as_bytes())?;
            place.listen().0.remove(true);
            return Err(error);
        }
    };
    if sys::fork_alone()?.is_none() {
        // Keeps the lock: the name is taken as long as a process of the pool lives.
        place.leave();
        drop((forks, starter));
        return Ok(match fork_server::serve(&options.name, requests)? {
            None => Role::Done,
            Some(controller) => Role::Launcher(controller),
        });
    }
    drop(requests);
    let controller = Controller::new(Setup { place, forks, slots, idle: options.idle });
    // The pool stays if the starter was killed meanwhile.
    let _ = File::from(starter).write_all(READY.as_bytes());
    Ok(Role::Controller(controller))
}

/// Leaves the session, the streams and the directory of the shell.
fn leave_shell(name: &str, place: &Place) -> io::Result<()> {
    sys::new_session()?;
    let _ = sys::set_process_name(c"scela-pool");
    // If it fails, `ps` shows the words that were typed.
    let _ = sys::show_as(&format!("scela-pool {name}"));
    let log = place.log()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&log)?;
    chdir("/")?;
    sys::raise_limit().map(drop)
}
