//! The messages of a bootstrap channel, between an agent and the process that started it.
//!
//! The starter writes a [`BootOrder`] with the session's key, then [`BootCommand`]s; the agent answers with
//! [`BootReport`]s. An agent that has started others relays both. The channel ends once the agent and all agents that
//! it has started have joined the tree.
//!
//! A channel is one of these:
//!
//! - The standard input and output of the process that becomes the agent. A remote shell may print greetings first. So
//!   the agent's first bytes are a marker that the order named, and up to [`SHELL_GREETING_BYTES_MAX`](crate::core::limits::SHELL_GREETING_BYTES_MAX) bytes before it are
//!   skipped.
//! - A connection. The order names the callback addresses; the agent connects there as to a parent and sends all
//!   reports over that connection. On standard output it writes only its marker and, if it cannot connect, why. The
//!   remote shell is then closed.
//! - The connection of a task in a step. All tasks read one order from the command's standard input and connect in the
//!   same way. The first report of each is [`BootReport::Task`].
//!
//! If links go over remote shells or pipes, the channel becomes the link: an agent that is told to join reports
//! [`BootReport::Joining`], and both ends continue with the handshake. An agent further down is told its position by
//! its parent, once that has joined.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::decide::failure::StartFailure;
use crate::core::GuardianAt;
use crate::core::limits::{AGENTS_MAX, ANCESTORS_MAX, BOOT_BYTES_MAX, DEAD_TIME_MAX, DEAD_TIME_MIN, REPORT_BYTES_MAX};
use crate::link::{ListensAt, Liveness, Reach, SessionKey, deserialize_addresses};
use crate::wire::{SessionId, TreePosition};

/// The length of the marker in bytes.
pub const MARKER: usize = 16;

/// Everything that an agent needs to report itself and to join the tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootOrder {
    /// The session's public number.
    pub session: SessionId,
    /// The session's key.
    pub key: SessionKey,
    /// The first bytes that the agent writes to its output.
    pub marker: [u8; MARKER],
    /// The agent's target; 0 in an order for many agents.
    pub target: u32,
    /// The target of the process that starts the agent; 0 is the launcher.
    pub starter: u32,
    /// The callback addresses, the likeliest first; empty if the channel is the agent's standard input and output.
    #[serde(deserialize_with = "deserialize_addresses")]
    pub callback: Vec<SocketAddr>,
    /// From where the agent must be reachable.
    pub reach: Reach,
    /// The carrier of links.
    pub links: Links,
    /// Connections between processes of one machine are Unix sockets.
    pub uses_local_sockets: bool,
    /// The session's name in `ps` and in messages.
    pub label: String,
    /// How long a link or the agent of a guardian may be silent before it counts as lost.
    pub dead_time: Duration,
    /// How long one may be silent whose machine answers. At least the dead time.
    pub stop_time: Duration,
    /// How long a link may be idle before it carries a heartbeat.
    pub heartbeat: Duration,
    /// An agent whose parent is lost joins an ancestor, so agents listen as long as they live.
    pub rejoins: bool,
    /// The targets where this agent starts agents.
    pub below: Option<Below>,
    /// The launcher's log of long epochs, if this agent is on the same machine: the launcher's pid, and a descriptor of
    /// that process.
    pub log: Option<(u32, i32)>,
    /// The place of an agent that inherits the link to its parent, the launcher. It waits for no command, and no handshake
    /// follows.
    pub place: Option<Place>,
}

/// The place of an agent that the launcher has forked. The launcher sends it, which saves the agent a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The agent's position in the tree.
    pub position: TreePosition,
    /// The machine of both, if the launcher knows its number.
    pub machine: Option<u64>,
}

/// The carrier of a session's links.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Links {
    /// Connections: over TCP, and between processes of one machine over Unix sockets, whose records are not encrypted.
    Connections,
    /// The remote shells that start the agents. The process that opened one is the parent, and no process listens.
    RemoteShells,
    /// The pipes between the launcher and agents that it has forked. All agents are its children in the tree, and no process
    /// listens. The ends prove nothing and do not encrypt: no other process keeps the pipes open.
    Pipes,
}

impl Links {
    /// Returns whether a link takes over the bootstrap channel.
    pub fn take_over_channels(self) -> bool {
        match self {
            Self::Connections => false,
            Self::RemoteShells | Self::Pipes => true,
        }
    }
}

/// The reason why an agent refuses an order.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum OrderError {
    /// The agent's target, or one below it, is not a target of the session.
    #[error("the order is for a target that the session does not have")]
    Target,
    /// The dead time is shorter than [`DEAD_TIME_MIN`] or longer than [`DEAD_TIME_MAX`].
    #[error("the order has a dead time of {} s, which is out of range", .0.as_secs_f64())]
    DeadTime(Duration),
    /// The stop time is shorter than the dead time or longer than [`DEAD_TIME_MAX`].
    #[error("the order has a stop time of {} s, which is out of range", .0.as_secs_f64())]
    StopTime(Duration),
    /// The heartbeat is zero or longer than the dead time.
    #[error("the order has a heartbeat of {} s, which is out of range", .0.as_secs_f64())]
    Heartbeat(Duration),
    /// The command that starts agents has no words.
    #[error("the order has an empty command for the targets below")]
    NoCommand,
}

impl BootOrder {
    /// Returns when a link of this session counts as lost.
    pub fn liveness(&self) -> Liveness {
        Liveness { heartbeat: self.heartbeat, dead_time: self.dead_time, stop_time: self.stop_time }
    }

    /// Checks all numbers with which the agent computes. An agent checks each order that it reads before anything else.
    pub(super) fn check(&self) -> Result<(), OrderError> {
        if !(DEAD_TIME_MIN..=DEAD_TIME_MAX).contains(&self.dead_time) {
            return Err(OrderError::DeadTime(self.dead_time));
        }
        if !(self.dead_time..=DEAD_TIME_MAX).contains(&self.stop_time) {
            return Err(OrderError::StopTime(self.stop_time));
        }
        if self.heartbeat.is_zero() || self.heartbeat > self.dead_time {
            return Err(OrderError::Heartbeat(self.heartbeat));
        }
        if self.target > AGENTS_MAX {
            return Err(OrderError::Target);
        }
        let Some(Below { targets, hosts, method, .. }) = &self.below else { return Ok(()) };
        let is_in_session =
            (*targets as usize).checked_sub(self.target as usize).is_some_and(|rest| hosts.len() <= rest);
        if *targets > AGENTS_MAX || !is_in_session {
            return Err(OrderError::Target);
        }
        match method {
            Method::RemoteShell { words, .. } | Method::Step { words, .. } if words.is_empty() => {
                Err(OrderError::NoCommand)
            }
            Method::RemoteShell { .. } | Method::Step { .. } | Method::Fork | Method::Keeper => Ok(()),
        }
    }

    /// Returns whether many agents read this order, so that it names no target.
    pub fn is_shared(&self) -> bool {
        self.target == 0
    }

    /// Returns whether the agent is on another node than the launcher, as far as that is known.
    pub fn is_remote(&self) -> bool {
        matches!(self.reach, Reach::Network(_)) || self.links == Links::RemoteShells
    }
}

/// The targets below one, where the agent at that target starts agents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Below {
    /// The number of targets of the session. With the fan-out they form a tree, as agents do.
    pub targets: u32,
    /// The most agents that one agent starts.
    pub fanout: u32,
    /// The hosts of all targets below this one, in order.
    pub hosts: Vec<HostAt>,
    /// How agents are started there.
    pub method: Method,
    /// How many remote shells one process opens at a time; adaptive if `None`.
    pub batch: Option<u32>,
    /// How long that may take, from when this is read.
    pub times: StartTimes,
}

/// How long the starts of a session's agents may take.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartTimes {
    /// How long a host that cannot be reached is tried again.
    pub hosts: Duration,
    /// How long all agents together may then take to report.
    pub start: Duration,
}

/// A host, as remote shells are opened to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostAt {
    /// Its name, as the user or the resource manager wrote it.
    pub name: String,
    /// The user to log in as, if it is another one.
    pub user: Option<String>,
    /// Whether it is the launcher's own machine. Not sent: only the launcher is there already.
    #[serde(skip)]
    pub is_here: bool,
}

/// How the process that becomes an agent is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Method {
    /// As a child of this process.
    Fork,
    /// By a command that opens a remote shell on another node and passes its input and output on.
    RemoteShell {
        /// The words of the command. `{host}` in them stands for the host, as `user@host` if it has a user. The
        /// command that runs at the other end follows them.
        words: Vec<String>,
        /// The remote shell must last as long as the agent.
        lasts: bool,
        /// The program that runs at the other end.
        program: RemoteProgram,
    },
    /// By one command of a resource manager that starts a task on each of many nodes. It lasts as long as the agents,
    /// so only the launcher runs it.
    Step {
        /// The words of the command. `{hosts}` in them stands for the host list, `{nodes}` for its length. The command
        /// that each task runs follows them.
        words: Vec<String>,
        /// The program that each task runs.
        program: RemoteProgram,
    },
    /// By the [keeper](crate::keeper) of the node, in a pool. Only the launcher asks keepers.
    Keeper,
}

/// The program that becomes the agent at the other end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RemoteProgram {
    /// This program, if a file of this version has this path there; otherwise it is sent through the remote shell.
    Own {
        /// The path.
        path: String,
        /// The program to send; `None` if it must be there.
        sent: Option<Sent>,
        /// A program that was sent is stored there for later sessions. Otherwise it is removed before it starts, also one
        /// that an earlier session has stored.
        stores: bool,
    },
    /// A command of the user's for the shell there, which must end with a `scela-run` of this version.
    Command(String),
}

/// A program that may be sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sent {
    /// The SHA-256 of what is sent, in hexadecimal digits.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
}

/// A command to an agent that has not joined the tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum BootCommand {
    /// Join the tree.
    Join(Joining),
    /// Exit: the agent is not needed.
    Leave,
    /// Pass the command on to a target below.
    Below(u32, Box<BootCommand>),
    /// Has no content: the process above is alive. It sends this once per heartbeat over remote shells, until the agent gets
    /// its position.
    Alive,
}

/// An agent's position in the tree, and where its parent is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Joining {
    /// The agent's position.
    pub position: TreePosition,
    /// The parent's addresses; none unless links are connections.
    pub parent: ListensAt,
    /// The parent's port, if the parent opened the remote shell to this node: the address that the shell came from
    /// is then the likeliest of all.
    pub opener_port: Option<u16>,
    /// The addresses of the other ancestors, from the grandparent to the launcher, if agents join them when their parent is lost.
    #[serde(deserialize_with = "deserialize_ancestors")]
    pub ancestors: Vec<ListensAt>,
}

/// A report of an agent that has not joined the tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum BootReport {
    /// Identifies one of the agents that share an order. Always the first report of such an agent.
    Task {
        /// The agent's node, as the resource manager calls it.
        node: String,
    },
    /// The agent runs.
    Here {
        /// The addresses to which its children connect; none if it will have no children.
        listens: ListensAt,
        /// The name that its host gives itself.
        host: String,
        /// How many descriptors the agent may open.
        descriptors: u64,
        /// The agent can read the launcher's log of long epochs.
        reads_log: bool,
        /// Its guardian, if the agent can see it in /proc.
        guardian: Option<GuardianAt>,
    },
    /// The agent is about to use this channel as the link to its parent. No other report follows. A handshake does, unless the
    /// link is inherited.
    /// Only if [links take over channels](Links::take_over_channels).
    Joining,
    /// The agent is connected to its parent.
    Joined {
        /// How long that took since the agent was told its position.
        took: Duration,
    },
    /// The target's host cannot be reached, and is tried again. Reported again only for a later phase.
    NotReached(StartFailure),
    /// The agent cannot join, or was never started.
    NotStarted(StartFailure),
    /// A report of the agent at a target below.
    Below(u32, Box<BootReport>),
}

/// A message on a bootstrap channel.
pub trait BootMessage: DeserializeOwned {
    /// The most bytes of its frame. The reader stores them before it decodes them.
    const BYTES_MAX: usize;
}

impl BootMessage for BootCommand {
    const BYTES_MAX: usize = BOOT_BYTES_MAX;
}

impl BootMessage for BootReport {
    const BYTES_MAX: usize = REPORT_BYTES_MAX;
}

/// A report, and the target that it is about.
pub type TargetReport = (u32, BootReport);

/// Decodes ancestors and drops those beyond [`ANCESTORS_MAX`].
fn deserialize_ancestors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ListensAt>, D::Error> {
    let mut ancestors = Vec::deserialize(deserializer)?;
    ancestors.truncate(ANCESTORS_MAX);
    Ok(ancestors)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::limits::ADDRESSES_MAX;
    use crate::wire::{decode, encode};

    pub(in crate::bootstrap) fn order(target: u32, targets: u32, hosts: usize) -> BootOrder {
        let host = HostAt { name: "n".to_owned(), user: None, is_here: false };
        BootOrder {
            session: SessionId(1),
            key: SessionKey::read_from(&mut &[1; 32][..]).expect("a page"),
            marker: [0; MARKER],
            target,
            starter: 0,
            callback: Vec::new(),
            reach: Reach::Here,
            links: Links::Connections,
            uses_local_sockets: true,
            label: String::new(),
            dead_time: Duration::from_secs(20),
            stop_time: DEAD_TIME_MAX,
            heartbeat: Duration::from_secs(5),
            rejoins: false,
            below: Some(Below {
                targets,
                fanout: 2,
                hosts: vec![host; hosts],
                method: Method::Fork,
                batch: None,
                times: StartTimes { hosts: Duration::ZERO, start: Duration::ZERO },
            }),
            log: None,
            place: None,
        }
    }

    pub(in crate::bootstrap) fn order_with_targets_below() -> BootOrder {
        order(1, 3, 2)
    }

    #[test]
    fn addresses_beyond_the_bounds_are_dropped() {
        #[derive(Serialize, Deserialize)]
        struct Addresses {
            #[serde(deserialize_with = "deserialize_addresses")]
            own: Vec<SocketAddr>,
            #[serde(deserialize_with = "deserialize_ancestors")]
            ancestors: Vec<ListensAt>,
        }
        let address: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        for (more, addresses, ancestors) in [(0, ADDRESSES_MAX, ANCESTORS_MAX), (1, ADDRESSES_MAX, ANCESTORS_MAX)] {
            let own = vec![address; addresses + more];
            let sent = Addresses { ancestors: vec![own.clone().into(); ancestors + more], own };
            let Addresses { own, ancestors: got } = decode(&encode(&sent)).expect("it is a message");
            assert_eq!((own.len(), got.len()), (addresses, ancestors));
            assert!(got.iter().all(|one| one.addresses.len() == addresses));
        }
    }

    #[test]
    fn an_agent_is_remote_if_a_network_or_a_remote_shell_leads_to_it() {
        let is_remote = |reach, links| BootOrder { reach, links, ..order(1, 1, 0) }.is_remote();
        assert!(is_remote(Reach::Network(None), Links::Connections) && is_remote(Reach::Nowhere, Links::RemoteShells));
        for (reach, links) in [(Reach::Here, Links::Connections), (Reach::Nowhere, Links::Pipes)] {
            assert!(!is_remote(reach, links), "{reach:?} {links:?}");
        }
    }

    #[test]
    fn an_order_names_only_targets_of_the_session() {
        let max = AGENTS_MAX;
        for (target, targets, hosts) in [(0, 3, 3), (1, 3, 2), (3, 3, 0), (max - 1, max, 1), (max, max, 0)] {
            assert_eq!(order(target, targets, hosts).check(), Ok(()), "{hosts} hosts below {target} of {targets}");
        }
        for (target, targets, hosts) in
            [(0, 3, 4), (1, 3, 3), (4, 3, 0), (max, max, 1), (max + 1, max + 1, 0), (u32::MAX, u32::MAX, 1)]
        {
            let refused = Err(OrderError::Target);
            assert_eq!(order(target, targets, hosts).check(), refused, "{hosts} hosts below {target} of {targets}");
        }
        assert_eq!(BootOrder { below: None, ..order(max + 1, 0, 0) }.check(), Err(OrderError::Target));
    }

    #[test]
    fn the_dead_time_of_an_order_is_bounded() {
        let heartbeat = DEAD_TIME_MIN;
        let check = |dead_time| BootOrder { dead_time, heartbeat, ..order(1, 3, 2) }.check();
        let nanosecond = Duration::from_nanos(1);
        for good in [DEAD_TIME_MIN, DEAD_TIME_MAX] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in [Duration::ZERO, DEAD_TIME_MIN - nanosecond, DEAD_TIME_MAX + nanosecond] {
            assert_eq!(check(bad), Err(OrderError::DeadTime(bad)));
        }
    }

    #[test]
    fn the_stop_time_of_an_order_is_bounded() {
        let check = |stop_time| BootOrder { stop_time, ..order(1, 3, 2) }.check();
        let (dead_time, nanosecond) = (order(1, 3, 2).dead_time, Duration::from_nanos(1));
        assert_eq!([dead_time, DEAD_TIME_MAX].map(check), [Ok(()), Ok(())]);
        for bad in [dead_time - nanosecond, DEAD_TIME_MAX + nanosecond] {
            assert_eq!(check(bad), Err(OrderError::StopTime(bad)));
        }
    }

    #[test]
    fn the_heartbeat_of_an_order_is_bounded_by_its_dead_time() {
        let check = |heartbeat| BootOrder { heartbeat, ..order(1, 3, 2) }.check();
        let dead_time = order(1, 3, 2).dead_time;
        let nanosecond = Duration::from_nanos(1);
        assert_eq!([nanosecond, dead_time].map(check), [Ok(()), Ok(())]);
        for bad in [Duration::ZERO, dead_time + nanosecond] {
            assert_eq!(check(bad), Err(OrderError::Heartbeat(bad)));
        }
    }

    #[test]
    fn an_order_has_a_command_for_the_targets_below() {
        let with = |words: &[&str]| {
            let mut order = order(1, 3, 2);
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            let method = Method::Step { words, program: RemoteProgram::Command(String::new()) };
            order.below.as_mut().expect("there are targets below").method = method;
            order.check()
        };
        assert_eq!(with(&["srun"]), Ok(()));
        assert_eq!(with(&[]), Err(OrderError::NoCommand));
    }

    #[test]
    fn a_peer_names_a_bounded_number_of_addresses() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for count in [ADDRESSES_MAX - 1, ADDRESSES_MAX, ADDRESSES_MAX + 1] {
            let addresses: Vec<_> = (1..=count as u16).map(address).collect();
            let (listens, host) = (addresses.into(), String::new());
            let here = BootReport::Here { listens, host, descriptors: 0, reads_log: false, guardian: None };
            let BootReport::Here { listens, .. } = decode(&encode(&here)).unwrap() else { panic!("it is Here") };
            assert_eq!(listens.addresses.len(), count.min(ADDRESSES_MAX));
            assert_eq!(listens.addresses.first(), Some(&address(1)), "the likeliest are kept");
        }
    }
}
