//! The agent's side of bootstrap: from the order on standard input to the link to its parent.
//!
//! An agent reports that it runs, starts the agents below it, and relays commands and reports between them and the
//! process above ([`Relay`]). Once it is given its position it connects to its parent. If links take over
//! channels, its standard input and output are its bootstrap channel until then, and its link from then on.

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use tracing::Span;

use super::agent_channel::{self, AgentChannel, close_standard_streams, connect_to_any, last_words};
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::relay::{Relay, RelayAction, RelayInput};
use super::processes::Processes;
use super::protocol::{BootOrder, BootReport, Joining, Links, Place};
use super::starter::Starter;
use crate::core::limits::AGENTS_MAX;
use crate::core::{AgentId, GuardianAt, Subtree};
use crate::link::{
    Accepted, Address, Admission, BoundListener, Clock, ListensAt, accept_early, candidates, connect_over, listen,
};
use crate::sys::{self, GuardianLink, SegmentReader, Standby};
use crate::tasks::Tasks;
use crate::wire::{Role, TreePosition, encode};

/// The exit code of an agent that could not start or join.
const NOT_STARTED: u8 = 251;

/// Reads the order from standard input and runs the agent with it. Reports a failure to the process that started this
/// one. Returns the exit code. Without a `dead_time` the order may take any time, as the plan does for which a forked agent waits.
pub(crate) fn with_order(
    dead_time: Option<Duration>,
    guardian: GuardianLink,
    run: impl FnOnce(&BootOrder, GuardianLink) -> Result<u8, StartFailure>,
) -> u8 {
    if dead_time.is_none() {
        guardian.rest();
    }
    // Nothing can be reported without the order.
    let order = match agent_channel::take_order(dead_time, &guardian) {
        Ok(order) => order,
        // The plan was refused, or the starter has ended.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return NOT_STARTED,
        Err(error) => {
            tracing::error!(%error, "the agent gets no order");
            if error.kind() == io::ErrorKind::TimedOut {
                last_words(&sys::host_name(), &error);
            }
            return NOT_STARTED;
        }
    };
    if dead_time.is_none() && guardian.alive().is_err() {
        return NOT_STARTED;
    }
    run(&order, guardian).unwrap_or_else(|failure| {
        tracing::error!(?failure, "the agent cannot start");
        agent_channel::report_failure(&order, failure);
        NOT_STARTED
    })
}

/// An agent's process, as it is before its order arrives.
#[derive(Clone, Copy)]
pub(crate) struct OwnProcess {
    /// How many files it may open.
    descriptors: u64,
    /// The pids and start times of its guardian and itself.
    pids: Option<((u32, u64), (u32, u64))>,
}

impl OwnProcess {
    /// Describes this process, which may open at most `descriptors` files.
    pub(crate) fn new(descriptors: u64) -> Self {
        let known = |pid| Some((pid, sys::start_of(pid)?));
        let pids = known(std::os::unix::process::parent_id()).zip(known(std::process::id()));
        Self { descriptors, pids }
    }
}

/// The result of an agent's attempt to join the tree.
pub(crate) enum JoinOutcome {
    /// The agent is in the tree.
    Joined(Box<Joined>),
    /// The agent exits with this code: it is not needed (0), or has reported why it cannot join.
    Exit(u8),
}

/// An agent in the tree, whose children have not joined.
pub(crate) struct Joined {
    pub(crate) position: TreePosition,
    /// The agent's subtree.
    pub(crate) here: Subtree,
    /// The connection to its parent.
    pub(crate) parent: Accepted,
    /// The session's clock.
    pub(crate) clock: Clock,
    pub(crate) children: ChildLinks,
    /// The processes that this agent has started. The relay may signal them until all agents below have joined.
    pub(crate) started: Processes,
    /// The ancestors above the parent and the addresses to try for each, the nearest ancestor first.
    pub(crate) ancestors: Vec<(AgentId, Vec<Address>)>,
    /// The launcher's log of long epochs, if this agent can read it.
    pub(crate) log: Option<SegmentReader>,
}

/// How an agent's children reach it.
pub(crate) enum ChildLinks {
    /// It has no children, or they have no way to it.
    None,
    /// They connect to this agent's port, whose task holds their connections until it can admit them.
    Listener(oneshot::Sender<Admission>),
    /// This agent opened the remote shells to them.
    Shells(Starter),
}

/// Reports this agent, starts the agents below it, and joins the tree. The guardian is kept alive meanwhile.
/// `clock` is the session's, if the launcher has forked it.
pub(crate) async fn join(
    order: &BootOrder,
    clock: Option<Clock>,
    own: OwnProcess,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    match order.links {
        Links::Connections => Box::pin(join_by_connection(order, own, guardian, tasks)).await,
        Links::RemoteShells | Links::Pipes => join_over_channel(order, clock, own, guardian, tasks).await,
    }
}

/// Joins before the session begins, over pipes that this agent has inherited, and waits until it begins. Blocks: the agent has
/// nothing else to do. `clock` is the one that both processes have inherited.
pub(crate) fn join_and_stand_by(
    order: &BootOrder,
    clock: Clock,
    own: OwnProcess,
    guardian: &GuardianLink,
    standby: &Standby,
) -> Result<JoinOutcome, StartFailure> {
    let failed = |error: io::Error| StartFailure::new(StartPhase::Join, error.to_string());
    let position = order.place.map(|place| place.position);
    let position =
        position.filter(|position| subtree_of_channels(order, *position).is_some_and(|here| here.size() == 1));
    let position = position.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let here = here(order, ListensAt::default(), &own, guardian, false);
    let parent = Accepted::over_inherited(AgentChannel::own().map_err(failed)?.into_stream(), AgentId::ROOT);
    close_channel(order.is_remote());
    // The report has shown a sign of life.
    guardian.rest();
    let Some(began) = standby.stand_by(&encode(&here), guardian).map_err(failed)? else {
        return Ok(JoinOutcome::Exit(0));
    };
    if guardian.alive().is_err() {
        return Ok(JoinOutcome::Exit(0));
    }
    Ok(JoinOutcome::Joined(Box::new(Joined {
        position,
        here: Subtree::whole(position.agents, position.fanout).of(position.agent).unwrap_or(Subtree::whole(0, 1)),
        parent,
        clock: clock.begun_at(began),
        children: ChildLinks::None,
        started: Processes::default(),
        ancestors: Vec::new(),
        log: None,
    })))
}

/// Returns the report of an agent that runs.
fn here(
    order: &BootOrder,
    listens: ListensAt,
    own: &OwnProcess,
    guardian: &GuardianLink,
    reads_log: bool,
) -> BootReport {
    BootReport::Here {
        listens,
        host: sys::host_name(),
        descriptors: own.descriptors,
        reads_log,
        guardian: guardian_of(own, order, guardian),
    }
}

async fn join_by_connection(
    order: &BootOrder,
    own: OwnProcess,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    let bound = listen(order.reach).await.map_err(|error| {
        StartFailure::new(StartPhase::ConnectBack, format!("it cannot listen for its children: {error}"))
    })?;
    let bound = if order.uses_local_sockets { bound.with_local_socket() } else { bound };
    let BoundListener { at, listener } = bound;
    let listener = listener.map(|listener| {
        let (admit, admission) = oneshot::channel();
        tasks.spawn("listener", Span::current(), accept_early(listener, admission));
        admit
    });
    let log = open_log(order);
    let here = here(order, at, &own, guardian, log.is_some());
    let mut relaying = Relaying::open(order, tasks).await?;
    let Some(joining) = relaying.position(here, guardian, order).await else {
        return Ok(JoinOutcome::Exit(0));
    };
    let started = relaying.starter.as_ref().map(Starter::processes).unwrap_or_default();
    let (joined, on_joined) = mpsc::channel(1);
    let mut relay = tasks.spawn("relay", Span::current(), relaying.finish(on_joined, order.is_remote()));
    let ancestors = ancestors(joining.position, joining.ancestors.clone());
    let ordered_at = Instant::now();
    let attempt = tokio::select! {
        attempt = connect_to_parent(order, joining) => attempt,
        // The process above has given this agent up or has exited, so no parent will answer.
        _ = &mut relay => return Ok(JoinOutcome::Exit(0)),
        // The parent may take longer than the dead time until it has joined.
        () = keep_alive(guardian, order.dead_time) => return Ok(JoinOutcome::Exit(0)),
    };
    let _ = joined.try_send(attempt.as_ref().map(|_| ordered_at.elapsed()).map_err(Clone::clone));
    let Ok((position, parent, clock)) = attempt else {
        // The relay reports the failure and stops.
        let _ = relay.await;
        return Ok(JoinOutcome::Exit(NOT_STARTED));
    };
    let here = position.subtree().unwrap_or(Subtree::whole(0, 1));
    let children = listener.filter(|_| here.size() > 1).map_or(ChildLinks::None, ChildLinks::Listener);
    Ok(JoinOutcome::Joined(Box::new(Joined { position, here, parent, clock, children, started, ancestors, log })))
}

/// Opens the launcher's log of long epochs, if the order names it.
fn open_log(order: &BootOrder) -> Option<SegmentReader> {
    let log = SegmentReader::open(order.log?);
    log.inspect_err(|error| tracing::warn!(%error, "the launcher's log cannot be read")).ok()
}

/// Returns where this process and its guardian are, as others on this machine find them.
fn guardian_of(own: &OwnProcess, order: &BootOrder, link: &GuardianLink) -> Option<GuardianAt> {
    let (guardian, agent) = own.pids?;
    let machine = match order.place {
        Some(Place { machine, .. }) => machine?,
        None => sys::machine()?,
    };
    // A guardian that lives has been the parent all the time.
    link.alive().is_ok().then_some(GuardianAt { machine, guardian, agent })
}

/// Pairs the ancestors above the parent with the addresses to try for each.
fn ancestors(position: TreePosition, listen: Vec<ListensAt>) -> Vec<(AgentId, Vec<Address>)> {
    let tree = Subtree::whole(position.agents, position.fanout);
    let parents = std::iter::successors(tree.parent_of(position.agent), |above| tree.parent_of(*above));
    parents.skip(1).zip(listen.into_iter().map(|listens| candidates(None, listens))).collect()
}

/// Tells the guardian four times per `dead_time` that this agent is alive. Returns if the guardian has exited.
async fn keep_alive(guardian: &GuardianLink, dead_time: Duration) {
    let mut beat = interval(dead_time / 4);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        if guardian.alive().is_err() {
            return;
        }
    }
}

/// Connects to the parent, at the first of its addresses that answers.
async fn connect_to_parent(
    order: &BootOrder,
    joining: Joining,
) -> Result<(TreePosition, Accepted, Clock), StartFailure> {
    let Joining { position, parent, opener_port, .. } = joining;
    if position.agents > AGENTS_MAX || position.subtree().is_none() {
        return Err(StartFailure::new(StartPhase::Ended, "its position is not in the tree"));
    }
    let addresses = candidates(opener_port, parent);
    let above = (Role::Link { parent: parent_of(position) }, "its parent");
    let (parent, now) = connect_to_any(order, addresses, above, position.agent).await?;
    Ok((position, parent, Clock::joined(now)))
}

fn parent_of(position: TreePosition) -> AgentId {
    Subtree::whole(position.agents, position.fanout).parent_of(position.agent).unwrap_or(AgentId::ROOT)
}

/// Runs a [`Relay`]: the bootstrap channel, and the agents that this agent starts.
struct Relaying {
    relay: Relay,
    channel: AgentChannel,
    starter: Option<Starter>,
}

impl Relaying {
    /// Opens the channel, and starts the agents below.
    async fn open(order: &BootOrder, tasks: &Tasks) -> Result<Self, StartFailure> {
        let channel = AgentChannel::open(order).await?;
        let below = order.below.as_ref().map_or(0, |below| below.hosts.len() as u32);
        Ok(Self { relay: Relay::new(order.target, below), channel, starter: Starter::below(order, tasks.clone()) })
    }

    /// Reports this agent, and relays until it is given its position. Keeps its guardian alive meanwhile: other agents
    /// may take their time. `None` if the agent is not needed, if the channel or the guardian has ended, or if a remote
    /// shell from another host is silent.
    async fn position(&mut self, here: BootReport, guardian: &GuardianLink, order: &BootOrder) -> Option<Joining> {
        self.channel.report(&here).await.ok()?;
        // The last sign of life may have been sent one heartbeat before the other host was lost, or the process stopped.
        let time = order.dead_time + 2 * order.heartbeat;
        let silence = self.channel.silence(time);
        // The agent has no position yet, so it cannot join while this waits.
        let (_, mut joined) = mpsc::channel(1);
        tokio::select! {
            // Polled first, so that commands that arrived while this process was stopped count before the silence does.
            biased;
            action = self.run(&mut joined) => if let RelayAction::Join(joining) = action { Some(joining) } else { None },
            () = silence, if order.is_remote() => {
                last_words(&sys::host_name(), format_args!("the process that has started this agent was silent for {} s", time.as_secs_f32()));
                None
            }
            () = keep_alive(guardian, order.dead_time) => None,
        }
    }

    /// Relays until this agent and all below have joined, or the channel ends.
    async fn finish(mut self, mut joined: mpsc::Receiver<Result<Duration, StartFailure>>, is_remote: bool) {
        if let RelayAction::Close = self.run(&mut joined).await {
            close_channel(is_remote);
        }
    }

    /// Relays until an event that the relay does not handle, and returns that event. `joined` yields whether this agent has joined.
    async fn run(&mut self, joined: &mut mpsc::Receiver<Result<Duration, StartFailure>>) -> RelayAction {
        let Self { relay, channel, starter } = self;
        let mut actions = Vec::new();
        loop {
            let input = tokio::select! {
                Some(result) = joined.recv() => RelayInput::Joined(result),
                Some(report) = async { Some(starter.as_mut()?.next().await) } => RelayInput::Report(report),
                command = channel.next() => RelayInput::Command(command),
            };
            relay.handle(input, &mut actions);
            for action in actions.drain(..) {
                match action {
                    RelayAction::Report(report) => {
                        if channel.report(&report).await.is_err() {
                            return RelayAction::Stop;
                        }
                    }
                    RelayAction::Pass(target, command) => {
                        starter.iter().for_each(|starter| starter.tell(target, command.clone()));
                    }
                    RelayAction::Join(_) | RelayAction::Close | RelayAction::Stop => return action,
                }
            }
        }
    }
}

fn close_channel(is_remote: bool) {
    if let Err(error) = close_standard_streams(is_remote) {
        tracing::warn!(%error, "the bootstrap channel cannot be closed");
    }
}

async fn join_over_channel(
    order: &BootOrder,
    clock: Option<Clock>,
    own: OwnProcess,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    let log = open_log(order);
    let here = here(order, ListensAt::default(), &own, guardian, log.is_some());
    let mut relaying = Relaying::open(order, tasks).await?;
    let inherited = order.place.zip(clock);
    let position = match inherited {
        Some((place, _)) => relaying.channel.report(&here).await.ok().map(|()| place.position),
        None => relaying.position(here, guardian, order).await.map(|joining| joining.position),
    };
    let Some(position) = position else {
        return Ok(JoinOutcome::Exit(0));
    };
    let Relaying { mut channel, starter, .. } = relaying;
    let Some(here) = subtree_of_channels(order, position) else {
        let words = "its position in the tree does not match the agents that it has started";
        let _ = channel.report(&BootReport::NotStarted(StartFailure::new(StartPhase::Join, words))).await;
        return Ok(JoinOutcome::Exit(NOT_STARTED));
    };
    if channel.report(&BootReport::Joining).await.is_err() {
        return Ok(JoinOutcome::Exit(0));
    }
    let stream = channel.into_stream();
    let connected = match inherited {
        Some((_, clock)) => Ok((Accepted::over_inherited(stream, AgentId::ROOT), clock)),
        None => {
            let role = Role::Link { parent: parent_of(position) };
            tokio::select! {
                connected = connect_over(stream, role, position.agent, order.session, &order.key) =>
                    connected.map(|(parent, now)| (parent, Clock::joined(now))),
                // The parent may be stopped for longer than the dead time.
                () = keep_alive(guardian, order.dead_time) => return Ok(JoinOutcome::Exit(0)),
            }
        }
    };
    match connected {
        Ok((parent, clock)) => {
            close_channel(order.is_remote());
            let started = starter.as_ref().map(Starter::processes).unwrap_or_default();
            let children = starter.map_or(ChildLinks::None, ChildLinks::Shells);
            Ok(JoinOutcome::Joined(Box::new(Joined {
                position,
                here,
                parent,
                clock,
                children,
                started,
                ancestors: Vec::new(),
                log,
            })))
        }
        Err(error) => {
            // The link has taken both pipes; only standard error remains.
            last_words(&sys::host_name(), format_args!("it cannot join the tree: {error}"));
            Ok(JoinOutcome::Exit(NOT_STARTED))
        }
    }
}

/// Returns the subtree at a position, if that position is in the tree and this agent has started exactly its agents.
fn subtree_of_channels(order: &BootOrder, position: TreePosition) -> Option<Subtree> {
    let here = position.subtree().filter(|_| position.agents <= AGENTS_MAX)?;
    let Some(below) = &order.below else { return (here.size() == 1).then_some(here) };
    let is_same = (below.targets, below.fanout, order.target) == (position.agents, position.fanout, position.agent.0);
    is_same.then_some(here)
}
