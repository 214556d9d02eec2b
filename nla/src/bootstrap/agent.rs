//! The agent's side of bootstrap: from the order on standard input to the link to its parent.
//!
//! An agent reports that it runs, starts the agents below it, and relays commands and reports between them and the
//! process above ([`Relay`]). Once it is given its position it connects to its parent. If links go over remote shells,
//! its standard input and output are its bootstrap channel until then, and its link from then on.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use tracing::Span;

use super::agent_channel::{self, AgentChannel, close_standard_streams, connect_to_any};
use super::child_shells::ChildShells;
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::relay::{Joining, Relay, RelayAction, RelayInput};
use super::protocol::{BootOrder, BootReport, Links, TargetReport};
use super::shell_channel::Reader;
use super::starter::Starter;
use crate::core::limits::AGENTS_MAX;
use crate::core::{AgentId, Subtree};
use crate::link::{Accepted, BoundListener, Clock, Stream, candidates, connect_over, listen};
use crate::sys::{self, GuardianLink, SegmentReader};
use crate::tasks::Tasks;
use crate::wire::{TreePosition, encode, framed};

/// The exit code of an agent that could not start or join.
const NOT_STARTED: u8 = 251;

/// Reads the order from standard input and runs the agent with it. Reports a failure to the process that started this
/// one. Returns the exit code.
pub(crate) fn with_order(run: impl FnOnce(&BootOrder) -> Result<u8, StartFailure>) -> ExitCode {
    // Nothing can be reported without the order.
    let order = match agent_channel::take_order() {
        Ok(order) => order,
        Err(error) => {
            tracing::error!(%error, "the agent gets no order");
            return ExitCode::from(NOT_STARTED);
        }
    };
    let code = run(&order).unwrap_or_else(|failure| {
        tracing::error!(?failure, "the agent cannot start");
        agent_channel::report_failure(&order, failure);
        NOT_STARTED
    });
    ExitCode::from(code)
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
    /// The launcher's log of long epochs, if this agent can read it.
    pub(crate) log: Option<SegmentReader>,
}

/// How an agent's children reach it.
pub(crate) enum ChildLinks {
    /// It has no children, or they have no way to it.
    None,
    /// They connect to this port.
    Listener(TcpListener),
    /// This agent opened the remote shells to them.
    Shells(ChildShells),
}

/// Reports this agent, starts the agents below it, and joins the tree. The guardian is kept alive meanwhile.
/// `descriptors` is how many this agent may open.
pub(crate) async fn join(
    order: &BootOrder,
    descriptors: u64,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    match order.links {
        Links::Connections => join_by_connection(order, descriptors, guardian, tasks).await,
        Links::RemoteShells => join_over_shell(order, descriptors, guardian, tasks).await,
    }
}

async fn join_by_connection(
    order: &BootOrder,
    descriptors: u64,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    let listener = listen(order.reach).await.map_err(|error| {
        StartFailure::new(StartPhase::ConnectBack, format!("it cannot listen for its children: {error}"))
    })?;
    let (addresses, listener) =
        listener.map_or((Vec::new(), None), |BoundListener { addresses, listener }| (addresses, Some(listener)));
    let log = order.log.and_then(|place| {
        let log = SegmentReader::open(place);
        log.inspect_err(|error| tracing::warn!(%error, "the launcher's log cannot be read")).ok()
    });
    let here = BootReport::Here { addresses, host: sys::host_name(), descriptors, reads_log: log.is_some() };
    let channel = AgentChannel::open(order, tasks).await?;
    let (placed, mut place) = oneshot::channel();
    let (joined, on_joined) = oneshot::channel();
    let relaying = RelayTask::new(order, channel, tasks.clone()).run(here, placed, on_joined);
    let mut relay = tasks.spawn("relay", Span::current(), relaying);

    let Some(joining) = wait_for_position(&mut place, guardian, order.dead_time).await else {
        return Ok(JoinOutcome::Exit(0));
    };
    let told = Instant::now();
    let attempt = tokio::select! {
        attempt = connect_to_parent(order, joining) => attempt,
        // The process above has given this agent up or has exited, so no parent will answer.
        _ = &mut relay => return Ok(JoinOutcome::Exit(0)),
    };
    let _ = joined.send(attempt.as_ref().map(|_| told.elapsed()).map_err(Clone::clone));
    let Ok((position, parent, clock)) = attempt else {
        // The relay reports the failure and stops.
        let _ = relay.await;
        return Ok(JoinOutcome::Exit(NOT_STARTED));
    };
    let here = position.subtree().unwrap_or(Subtree::whole(0, 1));
    let children = listener.filter(|_| here.size() > 1).map_or(ChildLinks::None, ChildLinks::Listener);
    Ok(JoinOutcome::Joined(Box::new(Joined { position, here, parent, clock, children, log })))
}

/// Waits for the agent's position, and keeps its guardian alive meanwhile: other agents may take their time. `None` if
/// the relay or the guardian has ended.
async fn wait_for_position(
    place: &mut oneshot::Receiver<Joining>,
    guardian: &GuardianLink,
    dead_time: Duration,
) -> Option<Joining> {
    tokio::select! {
        place = place => place.ok(),
        () = keep_alive(guardian, dead_time) => None,
    }
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
    let Joining { position, parent, opener_port } = joining;
    if position.agents > AGENTS_MAX || position.subtree().is_none() {
        return Err(StartFailure::new(StartPhase::Ended, "its position is not in the tree"));
    }
    let addresses = candidates(opener_port, parent);
    let (parent, now) = connect_to_any(order, addresses, (parent_of(position), "its parent"), position.agent).await?;
    Ok((position, parent, Clock::joined(now)))
}

fn parent_of(position: TreePosition) -> AgentId {
    Subtree::whole(position.agents, position.fanout).parent_of(position.agent).unwrap_or(AgentId::ROOT)
}

/// The task that runs a [`Relay`]: the bootstrap channel, and the agents that this agent starts.
struct RelayTask {
    relay: Relay,
    channel: AgentChannel,
    starter: Option<Starter>,
    reports: mpsc::UnboundedReceiver<TargetReport>,
    is_remote: bool,
}

impl RelayTask {
    fn new(order: &BootOrder, channel: AgentChannel, tasks: Tasks) -> Self {
        // Bounded by the targets below: each makes at most three reports.
        let (events, reports) = mpsc::unbounded_channel();
        let starter = Starter::below(order, events, tasks);
        Self { relay: relay(order), channel, starter, reports, is_remote: order.is_remote() }
    }

    /// Runs until the agent and all below have joined, or the channel ends.
    async fn run(
        mut self,
        here: BootReport,
        placed: oneshot::Sender<Joining>,
        joined: oneshot::Receiver<Result<Duration, StartFailure>>,
    ) {
        let (mut placed, mut joined, mut actions) = (Some(placed), Some(joined), Vec::new());
        if self.channel.report(&here).await.is_err() {
            return;
        }
        loop {
            let own = async {
                match &mut joined {
                    Some(joined) => joined.await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                result = own => {
                    joined = None;
                    match result {
                        Ok(result) => RelayInput::Joined(result),
                        // The process is about to exit.
                        Err(_) => return,
                    }
                }
                Some(report) = self.reports.recv() => RelayInput::Report(report),
                command = self.channel.next() => RelayInput::Command(command),
            };
            self.relay.handle(input, &mut actions);
            for action in actions.drain(..) {
                match action {
                    RelayAction::Report(report) => {
                        if self.channel.report(&report).await.is_err() {
                            return;
                        }
                    }
                    RelayAction::Pass(target, command) => {
                        self.starter.iter().for_each(|starter| starter.tell(target, command.clone()));
                    }
                    RelayAction::Join(joining) => drop(placed.take().map(|placed| placed.send(joining))),
                    RelayAction::Close => return close_channel(self.is_remote),
                    RelayAction::Stop => return,
                }
            }
        }
    }
}

fn relay(order: &BootOrder) -> Relay {
    Relay::new(order.target, order.below.as_ref().map_or(0, |below| below.hosts.len() as u32))
}

fn close_channel(is_remote: bool) {
    if let Err(error) = close_standard_streams(is_remote) {
        tracing::warn!(%error, "the bootstrap channel cannot be closed");
    }
}

/// Standard input and output as a channel that becomes a link.
struct OwnPipes {
    reader: Reader,
    output: Sender,
}

impl OwnPipes {
    /// Takes them over and puts /dev/null in their place for the rest of this process. They may be pipes or sockets,
    /// but must be something that epoll can wait for.
    fn take() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        for own in [&input, &output] {
            sys::set_nonblocking(own.as_fd())?;
        }
        let (input, output) = (Receiver::from_owned_fd_unchecked(input)?, Sender::from_owned_fd_unchecked(output)?);
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        nix::unistd::dup2_stdin(&null)?;
        nix::unistd::dup2_stdout(&null)?;
        Ok(Self { reader: Reader::new(input), output })
    }

    async fn report(&mut self, report: &BootReport) -> io::Result<()> {
        self.output.write_all(&framed(&encode(report))).await
    }
}

async fn join_over_shell(
    order: &BootOrder,
    descriptors: u64,
    guardian: &GuardianLink,
    tasks: &Tasks,
) -> Result<JoinOutcome, StartFailure> {
    let mut own = OwnPipes::take().map_err(|error| {
        let words = format!("its standard input and output cannot carry a link: {error}");
        StartFailure::new(StartPhase::Join, words)
    })?;
    let mut shells = ChildShells::open(order, tasks.clone());
    let here = BootReport::Here { addresses: Vec::new(), host: sys::host_name(), descriptors, reads_log: false };
    if own.report(&here).await.is_err() {
        return Ok(JoinOutcome::Exit(0));
    }
    let position = tokio::select! {
        position = relay_until_placed(order, &mut own, shells.as_mut()) => position,
        () = keep_alive(guardian, order.dead_time) => None,
    };
    let Some(position) = position else { return Ok(JoinOutcome::Exit(0)) };
    let Some(here) = subtree_of_shells(order, position) else {
        let words = "its position in the tree does not match its remote shells";
        let _ = own.report(&BootReport::NotStarted(StartFailure::new(StartPhase::Join, words))).await;
        return Ok(JoinOutcome::Exit(NOT_STARTED));
    };
    if own.report(&BootReport::Joining).await.is_err() {
        return Ok(JoinOutcome::Exit(0));
    }
    let (input, unread) = own.reader.into_parts();
    let stream = Stream::pipes(input, own.output);
    let unread = BytesMut::from(&unread[..]);
    match connect_over(stream, unread, parent_of(position), position.agent, order.session, &order.key).await {
        Ok((parent, now)) => {
            close_channel(order.is_remote());
            let children = shells.map_or(ChildLinks::None, ChildLinks::Shells);
            let clock = Clock::joined(now);
            Ok(JoinOutcome::Joined(Box::new(Joined { position, here, parent, clock, children, log: None })))
        }
        Err(error) => {
            // The pipes are used up; standard error is left.
            let line = format!("scela: {}: it cannot join the tree: {error}\n", sys::host_name());
            let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
            Ok(JoinOutcome::Exit(NOT_STARTED))
        }
    }
}

/// Relays commands and reports until this agent is told its position. `None` if it is not needed, or its channel ends.
async fn relay_until_placed(
    order: &BootOrder,
    own: &mut OwnPipes,
    mut shells: Option<&mut ChildShells>,
) -> Option<TreePosition> {
    let (mut relay, mut actions) = (relay(order), Vec::new());
    loop {
        let below = async {
            match &mut shells {
                Some(shells) => shells.next().await,
                None => std::future::pending().await,
            }
        };
        let input = tokio::select! {
            command = own.reader.next() => RelayInput::Command(command.ok().flatten()),
            report = below => RelayInput::Report(report),
        };
        relay.handle(input, &mut actions);
        for action in actions.drain(..) {
            match action {
                RelayAction::Report(report) => own.report(&report).await.ok()?,
                RelayAction::Pass(target, command) => {
                    shells.iter().for_each(|shells| shells.tell(target, command.clone()));
                }
                RelayAction::Join(Joining { position, .. }) => return Some(position),
                RelayAction::Close | RelayAction::Stop => return None,
            }
        }
    }
}

/// Returns the subtree at a position, if that position is in the tree and the remote shells opened from here lead to
/// exactly its agents.
fn subtree_of_shells(order: &BootOrder, position: TreePosition) -> Option<Subtree> {
    let here = position.subtree().filter(|_| position.agents <= AGENTS_MAX)?;
    let Some(below) = &order.below else { return (here.size() == 1).then_some(here) };
    let is_same = (below.targets, below.fanout, order.target) == (position.agents, position.fanout, position.agent.0);
    is_same.then_some(here)
}
