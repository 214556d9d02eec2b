//! Starts the processes of a pool.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout, pipe2};
use nla::core::Resources;
use nla::figures::counted;
use nla::sys::{self, Packets};
use placement::topology::Topology;

use super::controller::{Controller, Setup};
use super::devices::Devices;
use super::directory::{self, Place};
use super::fleet::{FleetOptions, Host};
use super::fork_server;
use super::message::ToController;
use super::nodes::{Health, Node, Nodes};
use super::schedule::Lifetime;
use super::{client, commands, succession};
use crate::cli::{self, Typed};
use crate::cluster::allocation::Allocation;
use crate::cluster::node_list::{self as cluster, NodeList};
use crate::cluster::system::Process;
use crate::plan::launch;
use crate::plan::machine::Machine;
use crate::plan::placing;
use crate::plan::request::LaunchOptions;
use crate::refusal::Refusal;
use crate::run::signals::Asked;
use crate::run::suspension::Suspension;

/// The least limit on open files of a pool: a job that waits takes eight.
const OPEN_FILES_MIN: u64 = 128;
/// Precedes the report of a controller that has begun.
const READY: &str = "+";

/// The options of `scela pool start`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The pool's name, which was checked.
    pub name: String,
    /// How many ranks each node runs at a time. If `None`, as many as its entry in the list of hosts says, else as it has cores.
    /// At least 1.
    pub slots: Option<u32>,
    /// After how long without a job it ends.
    pub idle: Option<Duration>,
    /// The options of scela-run that name hosts.
    pub hosts: Vec<OsString>,
    /// The options of scela-run that say how agents are started.
    pub launch: Vec<OsString>,
    /// The network between the hosts, as words or a file.
    pub topology: Option<OsString>,
    /// The accelerators and other devices of each node for which the list of hosts names none.
    pub gres: Resources,
}

/// The process in which [`start`] has returned.
pub enum Role {
    /// The process that was typed: the pool runs, and this is the text about it.
    Starter(String),
    /// The process that was typed: this signal has interrupted it, and the pool is being ended.
    Interrupted(i32),
    /// The controller, to be run.
    Controller(Box<Controller>),
    /// A process that exits now: the fork server at its end, or a controller that could not begin.
    Done,
    /// A launcher, with its connection to the controller.
    Launcher {
        /// The connection.
        controller: Packets,
        /// The settings that its jobs have from the pool.
        shared: SharedOptions,
    },
}

/// The options of a pool that its jobs have, too.
#[derive(Clone, Debug, Default)]
pub struct SharedOptions {
    /// How agents are started, if the nodes are other hosts. Otherwise an agent stands by with each launcher.
    pub launch: Option<LaunchOptions>,
}

/// The process that was typed, as the controller sees it. It waits for a report.
pub struct Starter(File);

impl Starter {
    /// Reports that the pool has begun.
    pub fn ready(mut self, nodes: &Nodes) {
        let slots = counted(nodes.slots().into(), "slot");
        let on = match nodes.count() {
            1 => String::new(),
            nodes => format!(" on {nodes} nodes"),
        };
        // The pool stays if the starter was killed meanwhile.
        let _ = self.0.write_all(format!("{READY}{slots}{on}").as_bytes());
    }

    /// Reports that the pool cannot begin.
    pub fn failed(mut self, error: &io::Error) {
        let _ = self.0.write_all(error.to_string().as_bytes());
    }
}

/// The nodes of a pool that begins.
struct Members {
    nodes: Vec<Node>,
    /// How keepers are started, if the nodes are other hosts.
    fleet: Option<(FleetOptions, Vec<Host>)>,
    network: Option<Topology>,
    /// The resource manager's job that they are from.
    allocation: Option<String>,
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
    let members = members(options)?;
    let failed = |error: io::Error| {
        Refusal::new(format!("the pool '{}' cannot be started: {error}", options.name), "").of_system()
    };
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(error.into()))?;
    let (place, held) = succession::take(&directories, &options.name)?;
    let forked = match sys::fork_alone() {
        Ok(forked) => forked,
        Err(error) => {
            place.listen().0.remove(true);
            return Err(failed(error));
        }
    };
    if forked.is_some() {
        // The lock and the listener belong to the controller now.
        place.leave();
        drop(write);
        return match wait_until_ready(read, &held.descriptor).map_err(failed)? {
            Begun::Ready(slots) => Ok(Role::Starter(format!("pool {}: {slots}\n", options.name))),
            Begun::Interrupted(signal) => {
                // It may have ended meanwhile.
                let _ = commands::asked(&options.name, &ToController::Stop { kills: true });
                Ok(Role::Interrupted(signal))
            }
        };
    }
    drop(read);
    held.release().map_err(failed)?;
    // The starter reports an error.
    Ok(become_controller(options, members, place, write).unwrap_or(Role::Done))
}

/// Finds the nodes of a pool.
fn members(options: &Options) -> Result<Members, Refusal> {
    let failed = |error: io::Error| Refusal::new(format!("the pool cannot be started: {error}"), "").of_system();
    let usage = |error: cli::UsageError| Refusal::new(error.with_hint(), "");
    let words = options.hosts.iter().chain(&options.launch).cloned().chain(["true".into()]);
    let no_configfile = |_: &Path| Err(io::ErrorKind::Unsupported.into());
    let Typed::Run(mut request) = cli::parse("scela".as_ref(), words.collect(), &no_configfile).map_err(usage)? else {
        return Err(Refusal::new("only options for hosts and for the start of agents have a meaning here", ""));
    };
    let machine = Machine::of_process(0).map_err(failed)?;
    cli::apply_variables(&mut request.options, &machine.environment).map_err(usage)?;
    let launch_options = request.options.launch.clone();
    let located = launch::locate(*request, &machine)?;
    let nodes = match located.nodes() {
        NodeList::Named { nodes, .. } => nodes,
        NodeList::Local { gres, .. } => {
            if options.topology.is_some() {
                let text = "option '--topology' has no effect: the pool is on this machine only";
                return Err(Refusal::new(text, "leave it out, or name hosts with --hosts"));
            }
            let slots = options.slots.unwrap_or(u32::try_from(sys::cores()).unwrap_or(1)).max(1);
            let node = Node {
                devices: Devices::of(first_of(gres, &options.gres)),
                ..Node::new(sys::host_name(), slots, Health::Up)
            };
            return Ok(Members { nodes: vec![node], fleet: None, network: None, allocation: None });
        }
    };
    let system = Process { environment: &machine.environment };
    let allocation = located.nodes().allocation().map(Allocation::job);
    let of_manager = located.nodes().allocation().map(|job| job.devices_of_each(&system)).unwrap_or_default();
    let gres = first_of(&options.gres, &of_manager);
    let node = |node: &cluster::Node| {
        let slots = options.slots.or(node.slots).unwrap_or_default();
        let devices = Devices::of(first_of(&node.gres, gres));
        Node { devices, ..Node::new(node.name.clone(), slots, Health::Starts) }
    };
    let host = |node: &cluster::Node| Host { name: node.name.clone(), user: node.user.clone() };
    let network = options.topology.as_ref().map(|typed| network(typed, &machine, nodes)).transpose()?;
    let hosts = nodes.iter().map(host).collect();
    let fleet = FleetOptions { words: options.launch.clone(), launch: launch_options };
    Ok(Members { nodes: nodes.iter().map(node).collect(), fleet: Some((fleet, hosts)), network, allocation })
}

/// Returns the first of two lists of devices, unless it is empty.
fn first_of<'a>(one: &'a Resources, other: &'a Resources) -> &'a Resources {
    if one.is_empty() { other } else { one }
}

/// Returns the network, which has places for these nodes.
fn network(typed: &OsString, machine: &Machine, nodes: &[cluster::Node]) -> Result<Topology, Refusal> {
    let network = placing::topology(typed, machine, &Process { environment: &machine.environment })?;
    network.places_of(nodes.iter().map(|node| node.name.as_str())).map_err(|error| {
        Refusal::new(format!("option '--topology': {error}"), "describe all hosts of the pool in the topology")
    })?;
    Ok(network)
}

/// How the wait for a pool has ended.
enum Begun {
    /// The pool has begun, with these slots.
    Ready(String),
    /// A signal has interrupted it.
    Interrupted(i32),
}

/// Waits until the pool has begun. Fails with the reason if it cannot begin. SIGTSTP stops this process, and no other one of the pool.
fn wait_until_ready(ready: OwnedFd, signals: &SignalFd) -> io::Result<Begun> {
    let mut suspension = Suspension::default();
    loop {
        let mut waited = [ready.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut waited, PollTimeout::NONE);
        if waited[0].any() == Some(true) {
            break;
        }
        while let Ok(Some(info)) = signals.read_signal() {
            let signal = info.ssi_signo.cast_signed();
            if client::ENDING.iter().any(|end| *end as i32 == signal) {
                return Ok(Begun::Interrupted(signal));
            }
            Asked::of_signal(signal).into_iter().for_each(|asked| suspension.on_asked(asked));
            if signal == Signal::SIGTSTP as i32 {
                suspension.on_suspended();
            }
        }
        suspension.act();
    }
    let mut report = String::new();
    File::from(ready).take(64 * 1024).read_to_string(&mut report)?;
    match report.strip_prefix(READY) {
        Some(slots) => Ok(Begun::Ready(slots.to_owned())),
        None if report.is_empty() => Err(io::Error::other("the controller was killed")),
        None => Err(io::Error::other(report)),
    }
}

/// Begins the controller and the fork server.
fn become_controller(options: &Options, members: Members, place: Place, starter: OwnedFd) -> io::Result<Role> {
    let starter = Starter(starter.into());
    let begin = || {
        leave_shell(&options.name, &place)?;
        let pair = Packets::pair()?;
        Ok((pair, sys::fork_alone()?))
    };
    let ([forks, requests], forked) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            starter.failed(&error);
            place.listen().0.remove(true);
            return Err(error);
        }
    };
    let Members { nodes, fleet, network, allocation } = members;
    if forked.is_none() {
        // Keeps the lock: the name is taken as long as a process of the pool lives.
        place.leave();
        drop((forks, starter));
        return Ok(match fork_server::serve(&options.name, requests)? {
            None => Role::Done,
            Some(controller) => {
                let launch = fleet.map(|(options, _)| options.launch);
                Role::Launcher { controller, shared: SharedOptions { launch } }
            }
        });
    }
    drop(requests);
    // The keys of jobs pass through this process, on their way to keepers.
    if let Err(error) = sys::forbid_dump() {
        starter.failed(&error);
        place.listen().0.remove(true);
        return Err(error);
    }
    let lifetime = Lifetime { idle: options.idle, allocation };
    let setup = Setup { place, forks, nodes, network, fleet, starter, lifetime };
    Ok(Role::Controller(Box::new(Controller::new(setup))))
}

/// Leaves the session, the streams and the directory of the shell.
fn leave_shell(name: &str, place: &Place) -> io::Result<()> {
    sys::new_session()?;
    sys::name_process(c"scela-pool", name);
    let log = place.log()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&log)?;
    chdir("/")?;
    sys::raise_limit().map(drop)
}

#[cfg(test)]
mod lost_files;
