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
    /// The fork server, at its end.
    ForkServer,
    /// A launcher, with its connection to the controller.
    Launcher(Packets),
}

/// Starts a pool. Takes over the process, which must have one thread and no descriptors but the standard ones.
pub fn start(options: &Options) -> Result<Role, Refusal> {
    sys::close_inherited();
    let directories = directory::directories(|name| std::env::var_os(name));
    directory::prepare(&directories[0])?;
    let place = Place::take(&directories[0], &options.name)?;
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
    become_controller(options, slots, place, write).map_err(failed)
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
            return Err(error);
        }
    };
    if sys::fork_alone()?.is_none() {
        // Keeps the lock: the name is taken as long as a process of the pool lives.
        place.leave();
        drop((forks, starter));
        return Ok(match fork_server::serve(&options.name, requests)? {
            None => Role::ForkServer,
            Some(controller) => Role::Launcher(controller),
        });
    }
    drop(requests);
    let controller = Controller::new(Setup { place, forks, slots, idle: options.idle });
    // A starter that was killed has left a pool behind, as it was told to.
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
