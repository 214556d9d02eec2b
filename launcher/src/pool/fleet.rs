//! The keepers of a pool's nodes: starts them, and asks them for agents.
//!
//! Keepers are the ranks of sessions that the controller runs. So all ways to start agents start keepers too, and their nodes are
//! cleaned up as those of any session. The first session has a keeper on each node. Nodes whose keepers are lost are tried by further
//! sessions until they answer; `retries` decides when.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nla::core::limits::DEAD_TIME;
use nla::keeper::{
    AgentSpec, AgentStreams, Keeper, KeeperEvent, KeeperNumber, NodeState, await_keepers, follow_keeper,
};
use nla::link::{Accepted, Reach};
use nla::sys;
use nla::tasks::Tasks;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Span;

use self::retries::Retries;
use super::controller::Event;
use super::nodes::{Health, NodeNumber};
use crate::cluster::hosts::fold;
use crate::plan::remote_launch;
use crate::plan::request::LaunchOptions;
use crate::run::assemble::{NO_RANK, addresses};

mod retries;

/// The argument that makes this program a keeper.
pub const KEEPER_ARGUMENT: &str = "--keeper";
/// How long keepers may take to connect, besides the time in which agents start.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// How long the sessions of keepers may take to end by themselves, and then on request.
pub(super) const END_TIME: Duration = Duration::from_secs(10);
/// The prefix of a session's error, removed when it is quoted.
const REPORT: &str = "scela-run: error: ";
/// How many bytes of a session's messages are kept: the last ones.
const WORDS_MAX: usize = 16 * 1024;

/// How sessions of keepers are started.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The options of scela-run that say how agents are started, as typed.
    pub words: Vec<OsString>,
    /// The same, parsed.
    pub launch: LaunchOptions,
}

/// The number of a session of keepers.
type SessionNumber = u64;

/// Something that has happened to keepers.
pub enum FleetEvent {
    /// A keeper has connected.
    Connected(Accepted),
    /// A keeper has reported.
    Keeper(KeeperEvent),
    /// Keepers of a session have not connected in time.
    Late(SessionNumber),
    /// A session has ended, with these last words.
    Ended(SessionNumber, String),
    /// Lost nodes may be due.
    Retry,
}

/// A session that has not ended.
struct Session {
    /// The nodes of its keepers, in the order of its ranks.
    nodes: Vec<NodeNumber>,
    first: KeeperNumber,
    /// The nodes whose keepers have not connected, and are still waited for.
    pending: BTreeSet<NodeNumber>,
    /// Ends the session when it is dropped.
    end: Option<oneshot::Sender<()>>,
}

/// A host of the fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name, as jobs name it.
    pub name: String,
    /// The user to log in as.
    pub user: Option<String>,
}

/// The keepers of all nodes.
pub struct Fleet {
    options: FleetOptions,
    /// The time of `retries` counts from here.
    began: Instant,
    hosts: BTreeMap<NodeNumber, Host>,
    next_node: NodeNumber,
    events: mpsc::Sender<Event>,
    tasks: Tasks,
    sessions: BTreeMap<SessionNumber, Session>,
    next_session: SessionNumber,
    next_keeper: KeeperNumber,
    keepers: BTreeMap<NodeNumber, (KeeperNumber, Keeper)>,
    states: BTreeMap<NodeNumber, NodeState>,
    retries: Retries,
    /// A task waits until this time, and then passes [`FleetEvent::Retry`].
    alarm: Option<Duration>,
}

impl Host {
    fn login(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.name),
            None => self.name.clone(),
        }
    }
}

impl Fleet {
    /// Begins without keepers. What happens to them goes to `events`.
    pub(super) fn new(options: FleetOptions, events: mpsc::Sender<Event>, tasks: Tasks) -> Self {
        Self {
            options,
            began: Instant::now(),
            hosts: BTreeMap::new(),
            next_node: 0,
            events,
            tasks,
            sessions: BTreeMap::new(),
            next_session: 1,
            next_keeper: 1,
            keepers: BTreeMap::new(),
            states: BTreeMap::new(),
            retries: Retries::default(),
            alarm: None,
        }
    }

    /// Starts keepers on further nodes. Returns their numbers, which follow those before.
    pub async fn add(&mut self, hosts: Vec<Host>) -> io::Result<Range<NodeNumber>> {
        let nodes = self.next_node..self.next_node + hosts.len();
        self.next_node = nodes.end;
        self.hosts.extend(nodes.clone().zip(hosts));
        if let Err(error) = self.start(nodes.clone().collect()).await {
            nodes.for_each(|node| drop(self.hosts.remove(&node)));
            return Err(error);
        }
        Ok(nodes)
    }

    /// Returns the number of the next node.
    pub fn next_node(&self) -> NodeNumber {
        self.next_node
    }

    /// Removes a node. If it has a keeper, that exits.
    pub fn remove(&mut self, node: NodeNumber) {
        self.hosts.remove(&node);
        self.keepers.remove(&node);
        self.states.remove(&node);
        self.retries.forget(node);
        for session in self.sessions.values_mut() {
            session.pending.remove(&node);
            if session.nodes.iter().all(|node| !self.hosts.contains_key(node)) {
                // It may still start agents.
                session.end = None;
            }
        }
    }

    async fn start(&mut self, nodes: Vec<NodeNumber>) -> io::Result<()> {
        let (number, first) = (self.next_session, self.next_keeper);
        self.next_session += 1;
        self.next_keeper += nodes.len() as u32;
        let launch = &self.options.launch;
        let own = |own: Vec<SocketAddr>| addresses(launch, own);
        let reach = Reach::Network(launch.port_range);
        let (order, arrivals) = await_keepers(first..self.next_keeper, reach, DEAD_TIME, own, &self.tasks).await?;
        let mut child = self.command(&nodes).spawn()?;
        let (end, ended) = oneshot::channel();
        let missing = nodes.len();
        self.sessions
            .insert(number, Session { pending: nodes.iter().copied().collect(), nodes, first, end: Some(end) });
        if let Some(mut input) = child.stdin.take() {
            // A session that has ended by now says why.
            let _ = input.write_all(&order);
        }
        let deadline = Instant::now() + remote_launch::timeout(launch) + CONNECT_TIME;
        let watch = Watch { number, missing, deadline, events: self.events.clone() };
        self.tasks.spawn("keepers", Span::current(), watch.run(child, arrivals, ended));
        Ok(())
    }

    /// Returns the command of a session with one keeper on each of these nodes.
    fn command(&self, nodes: &[NodeNumber]) -> Command {
        let hosts = || nodes.iter().filter_map(|node| self.hosts.get(node));
        let list = match hosts().any(|host| host.user.is_some()) {
            false => fold(hosts().map(|host| host.name.as_str())),
            true => hosts().map(Host::login).collect::<Vec<_>>().join(","),
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg0("scela").arg("run").args(&self.options.words).arg("-hosts").arg(list);
        command.args(["-np", &nodes.len().to_string(), "-ppn", "1", "-s", "all", "--bind-to", "none", "--mpi", "none"]);
        // On each node this is the program of its agent.
        // The pool itself tries lost nodes again.
        command.args(["--wait-for-hosts", "0", "--on-failure", "continue", "/proc/self/exe", KEEPER_ARGUMENT]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        sys::end_with_this_thread(&mut command);
        command
    }

    /// Takes an event. Returns the nodes whose health has changed, in the order of the changes.
    pub async fn on_event(&mut self, event: FleetEvent) -> Vec<(NodeNumber, Health)> {
        let mut changed = self.changes(event);
        changed.extend(self.try_again().await);
        changed
    }

    fn changes(&mut self, event: FleetEvent) -> Vec<(NodeNumber, Health)> {
        match event {
            FleetEvent::Connected(accepted) => {
                let events = self.events.clone();
                let (reports, mut reported) = mpsc::channel(1);
                let (number, keeper) = follow_keeper(accepted, DEAD_TIME, reports, &self.tasks);
                self.tasks.spawn("keeper", Span::current(), async move {
                    while let Some(event) = reported.recv().await {
                        let _ = events.send(Event::Fleet(FleetEvent::Keeper(event))).await;
                    }
                });
                for session in self.sessions.values_mut() {
                    let at = number.checked_sub(session.first).map(|at| at as usize);
                    if let Some(node) =
                        at.and_then(|at| session.nodes.get(at)).filter(|node| session.pending.remove(node))
                    {
                        self.keepers.insert(*node, (number, keeper));
                        self.retries.connected(*node);
                        break;
                    }
                }
                Vec::new()
            }
            FleetEvent::Keeper(KeeperEvent::State(number, state)) => {
                let Some(node) = self.node_with(number) else { return Vec::new() };
                let is_first = self.states.insert(node, state).is_none();
                self.retries.forget(node);
                if is_first { vec![(node, Health::Up)] } else { Vec::new() }
            }
            FleetEvent::Keeper(KeeperEvent::Silent(number, time)) => {
                let Some(node) = self.node_with(number) else { return Vec::new() };
                // The next state that it reports makes the node usable again.
                self.states.remove(&node);
                let why = format!("the keeper has not answered for {} s; is it stopped?", time.as_secs_f32());
                vec![(node, Health::Down(why))]
            }
            FleetEvent::Keeper(KeeperEvent::Lost(number, why)) => {
                let Some(node) = self.node_with(number) else { return Vec::new() };
                self.keepers.remove(&node);
                vec![self.lost(node, format!("the keeper was lost: {why}"))]
            }
            FleetEvent::Late(number) => {
                let Some(session) = self.sessions.get_mut(&number) else { return Vec::new() };
                if session.pending.len() == session.nodes.len() {
                    session.end = None;
                }
                let missing = std::mem::take(&mut session.pending).into_iter();
                let why = "the keeper has not connected; does a firewall stop it?";
                missing.map(|node| self.lost(node, why.to_owned())).collect()
            }
            FleetEvent::Ended(number, words) => {
                // The end of its connection reports a keeper that had connected.
                let missing = self.sessions.remove(&number).map(|session| session.pending).unwrap_or_default();
                missing.into_iter().map(|node| self.lost(node, words.clone())).collect()
            }
            FleetEvent::Retry => {
                self.alarm = None;
                Vec::new()
            }
        }
    }

    /// Returns the node that this keeper keeps.
    fn node_with(&self, keeper: KeeperNumber) -> Option<NodeNumber> {
        self.keepers.iter().find(|(_, (number, _))| *number == keeper).map(|(node, _)| *node)
    }

    /// Lets a node be tried again.
    fn lost(&mut self, node: NodeNumber, why: String) -> (NodeNumber, Health) {
        self.states.remove(&node);
        self.retries.lost(self.began.elapsed(), node);
        (node, Health::Down(why))
    }

    /// Tries lost nodes at once.
    pub async fn retry(&mut self, nodes: &[NodeNumber]) -> Vec<(NodeNumber, Health)> {
        let now = self.began.elapsed();
        nodes.iter().for_each(|node| self.retries.hurry(now, *node));
        self.try_again().await
    }

    /// Starts sessions for the nodes that are due, and sets the timer for the next ones.
    async fn try_again(&mut self) -> Vec<(NodeNumber, Health)> {
        let mut changed = Vec::new();
        while let Some(nodes) = self.retries.next(self.began.elapsed()) {
            match self.start(nodes.clone()).await {
                Ok(()) => changed.extend(nodes.into_iter().map(|node| (node, Health::Starts))),
                Err(error) => changed.extend(nodes.into_iter().map(|node| self.lost(node, error.to_string()))),
            }
        }
        if let Some(wake) = self.retries.wake().filter(|wake| self.alarm.is_none_or(|alarm| *wake < alarm)) {
            self.alarm = Some(wake);
            let (at, events) = (self.began + wake, self.events.clone());
            self.tasks.spawn("retry", Span::current(), async move {
                sleep_until(at).await;
                let _ = events.send(Event::Fleet(FleetEvent::Retry)).await;
            });
        }
        changed
    }

    /// Returns the state of a node, if its keeper has reported it.
    pub fn state(&self, node: NodeNumber) -> Option<NodeState> {
        self.states.get(&node).copied()
    }

    /// Asks all keepers for the states of their nodes.
    pub fn ask_for_states(&self) {
        self.keepers.values().for_each(|(_, keeper)| keeper.ask_for_state());
    }

    /// Starts an agent on a node, for a launcher. If that cannot be done, tells the launcher by the agent's standard error.
    pub fn start_agent(&mut self, name: &str, agent: AgentSpec, streams: [OwnedFd; 3]) -> Option<Channel> {
        let [input, output, errors] = streams;
        let node = self.hosts.iter().find(|(_, host)| host.name == name).map(|(node, _)| *node);
        let keeper = node.and_then(|node| self.keepers.get_mut(&node));
        let Some((number, keeper)) = keeper else {
            // Its reader may be gone.
            let _ = nix::unistd::write(&errors, format!("scela: the keeper of {name} is lost\n").as_bytes());
            return None;
        };
        let streams = AgentStreams { input, output, errors };
        let channel = keeper.start_agent(agent, streams).ok()?;
        Some(Channel { keeper: *number, channel })
    }

    /// Drops the channel to an agent, whose launcher has exited.
    pub fn close(&self, channel: Channel) {
        if let Some((_, keeper)) = self.keepers.values().find(|(number, _)| *number == channel.keeper) {
            keeper.close(channel.channel);
        }
    }

    /// Begins to end all keepers and their sessions. Keepers that have connected end by themselves, and their sessions with them. A
    /// session that still starts agents is asked to end at once: a host may not answer.
    pub fn begin_end(&mut self) {
        self.keepers.clear();
        for session in self.sessions.values_mut().filter(|session| !session.pending.is_empty()) {
            session.end = None;
        }
    }

    /// Asks all sessions to end.
    pub fn end_sessions(&mut self) {
        self.sessions.values_mut().for_each(|session| session.end = None);
    }

    /// Takes an event while the fleet ends.
    pub fn end_on(&mut self, event: &FleetEvent) {
        if let FleetEvent::Ended(number, _) = event {
            self.sessions.remove(number);
        }
    }

    /// Returns whether all sessions have ended.
    pub fn has_ended(&self) -> bool {
        self.sessions.is_empty()
    }
}

/// A channel to an agent.
#[derive(Copy, Clone, Debug)]
pub struct Channel {
    keeper: KeeperNumber,
    channel: u64,
}

/// Watches a session of keepers.
struct Watch {
    number: SessionNumber,
    /// The keepers that have not connected.
    missing: usize,
    deadline: Instant,
    events: mpsc::Sender<Event>,
}

impl Watch {
    async fn run(mut self, mut child: Child, mut arrivals: mpsc::Receiver<Accepted>, mut end: oneshot::Receiver<()>) {
        let errors = child.stderr.take().and_then(|errors| Receiver::from_owned_fd(OwnedFd::from(errors)).ok());
        let mut words = Vec::new();
        if let Some(mut errors) = errors {
            let mut piece = [0; 4096];
            let (mut is_late, mut kill_at) = (false, None);
            loop {
                tokio::select! {
                    Some(accepted) = arrivals.recv(), if self.missing > 0 => {
                        self.missing -= 1;
                        self.send(FleetEvent::Connected(accepted)).await;
                    }
                    length = errors.read(&mut piece) => match length {
                        Ok(length @ 1..) => {
                            words.extend_from_slice(&piece[..length]);
                            words.drain(..words.len().saturating_sub(WORDS_MAX));
                        }
                        _ => break,
                    },
                    () = sleep_until(self.deadline), if self.missing > 0 && !is_late => {
                        is_late = true;
                        self.send(FleetEvent::Late(self.number)).await;
                    }
                    _ = &mut end, if kill_at.is_none() => {
                        kill_at = Some(Instant::now() + END_TIME);
                        // It was not reaped.
                        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
                    }
                    // It may be stopped. Its agents end by themselves.
                    () = sleep_until(kill_at.unwrap_or(self.deadline)), if kill_at.is_some() => {
                        let _ = child.kill();
                        break;
                    }
                }
            }
        }
        let status = exit_of(&mut child).await;
        let words = quoted(&words);
        let words = match (words.is_empty(), status) {
            (false, _) => words,
            (true, Some(status)) => format!("the session of the keeper has ended ({status})"),
            (true, None) => "the session of the keeper has ended".to_owned(),
        };
        self.send(FleetEvent::Ended(self.number, words)).await;
    }

    async fn send(&self, event: FleetEvent) {
        let _ = self.events.send(Event::Fleet(event)).await;
    }
}

/// Returns the error of a session as a part of another one.
fn quoted(words: &[u8]) -> String {
    // Its ranks are keepers.
    String::from_utf8_lossy(words).trim().trim_start_matches(REPORT).replace(NO_RANK, "")
}

/// Waits until a process has exited, whose output has ended, and returns how.
async fn exit_of(child: &mut Child) -> Option<ExitStatus> {
    let mut exits = signal(SignalKind::child()).ok()?;
    let ended = async {
        loop {
            match child.try_wait() {
                Ok(None) => drop(exits.recv().await),
                ended => return ended.ok().flatten(),
            }
        }
    };
    timeout(END_TIME, ended).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_session_is_quoted_as_one_of_a_pool() {
        let words = b"scela-run: error: 1 of 3 hosts could not be started\n  n2: no answer\n  no rank was started\n";
        assert_eq!(quoted(words), "1 of 3 hosts could not be started\n  n2: no answer");
        assert_eq!(quoted(b" \n"), "");
    }
}
