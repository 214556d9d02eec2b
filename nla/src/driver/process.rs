//! A whole agent process: from its first instruction until it has joined the tree and its actor runs.

use std::io;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::Span;

use super::agent::{AgentDriver, AgentSetup, PANICKED};
use crate::bootstrap::agent_channel::{self as channel, Channel, connect_to_any};
use crate::bootstrap::agent_shell::{self as sessions, Joined, Way};
use crate::bootstrap::{BootCommand, BootOrder, BootReport, Links};
use crate::bootstrap::{StartFailure, StartPhase};
use crate::bootstrap::{Starter, TargetReport};
use crate::core::limits::{AGENTS_MAX, RANKS_PER_AGENT};
use crate::core::{AgentId, Subtree};
use crate::link::Clock;
use crate::link::listener::{self as reach, BoundListener};
use crate::link::{Accepted, Authenticator, accept_children};
use crate::sys::{self, GuardianLink, SegmentReader};
use crate::tasks::{Panics, Tasks};
use crate::wire::TreePosition;

/// Descriptors for which there is room from the beginning: those of as many ranks as an agent has by
/// default.
const DESCRIPTORS_AT_ONCE: u64 = 4 * RANKS_PER_AGENT as u64 + 128;

/// Runs an agent whose order comes over standard input; the result is its exit code. To be called as soon as
/// [`guarded`](sys::guarded) has returned: it takes over the process.
pub fn run_agent(guardian: GuardianLink) -> ExitCode {
    // First of all: only with its order can anything be told.
    let order = match channel::take_order() {
        Ok(order) => order,
        Err(error) => {
            tracing::error!(%error, "the agent gets no order");
            return ExitCode::from(251);
        }
    };
    match begin(&order, guardian) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            tracing::error!(?failure, "the agent cannot start");
            channel::tell_failure(&order, failure);
            ExitCode::from(251)
        }
    }
}

fn begin(order: &BootOrder, guardian: GuardianLink) -> Result<u8, StartFailure> {
    sys::reserve_low().map_err(limits)?;
    let descriptors = sys::raise_limit().map_err(limits)?;
    sys::make_room(DESCRIPTORS_AT_ONCE).map_err(limits)?;
    sys::forbid_dump().map_err(limits)?;
    sys::become_subreaper().map_err(limits)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(limits)?;
    let result = LocalSet::new().block_on(&runtime, live(order, guardian, descriptors, Panics::new("agent")));
    // Nothing that still runs is worth waiting for.
    runtime.shutdown_background();
    result
}

fn limits(error: io::Error) -> StartFailure {
    StartFailure::new(StartPhase::Limits, error.to_string())
}

/// What an agent is told when its place in the tree is known.
struct Joining {
    place: TreePosition,
    parent: Vec<std::net::SocketAddr>,
    opener_port: Option<u16>,
}

/// Joins the tree and stays in it until the session is over. Returns the exit code.
async fn live(
    order: &BootOrder,
    guardian: GuardianLink,
    descriptors: u64,
    mut panics: Panics,
) -> Result<u8, StartFailure> {
    let tasks = panics.tasks();
    let entered = match order.links {
        Links::Connections => panics.watch("bootstrap", enter(order, guardian, descriptors, tasks)).await,
        Links::RemoteShells => panics.watch("bootstrap", enter_over_shell(order, guardian, descriptors, tasks)).await,
    };
    match entered {
        Ok(Ok(ControlFlow::Continue(driver))) => Ok(driver.run(&mut panics).await),
        Ok(Ok(ControlFlow::Break(code))) => Ok(code),
        Ok(Err(failure)) => Err(failure),
        Err(panic) => {
            channel::tell_failure(order, StartFailure::new(StartPhase::Ended, panic.to_string()));
            Ok(PANICKED)
        }
    }
}

/// An agent that has joined the tree, or the exit code of one that has not.
type Entered = Result<ControlFlow<u8, Box<AgentDriver>>, StartFailure>;

/// Joins the tree over connections.
async fn enter(order: &BootOrder, guardian: GuardianLink, descriptors: u64, tasks: Tasks) -> Entered {
    let door = reach::listen(order.reach).await.map_err(|error| {
        StartFailure::new(StartPhase::ConnectBack, format!("it cannot listen for its children: {error}"))
    })?;
    let (addresses, listener) =
        door.map_or((Vec::new(), None), |BoundListener { addresses, listener }| (addresses, Some(listener)));

    let (placed, mut place) = oneshot::channel();
    let (joined, on_joined) = oneshot::channel();
    let log = order.log.and_then(|place| {
        let log = SegmentReader::open(place);
        log.inspect_err(|error| tracing::warn!(%error, "the launcher's log cannot be read")).ok()
    });
    let here = BootReport::Here { addresses, host: sys::host_name(), descriptors, reads_log: log.is_some() };
    let channel = Channel::open(order, &tasks).await?;
    let relaying = Relay::new(order, channel, tasks.clone()).run(here, placed, on_joined);
    let mut relay = tasks.spawn("relay", Span::current(), relaying);
    let Some(joining) = wait(&mut place, &guardian, order.dead_time).await else {
        // It was told to leave, or the starter's channel has ended.
        return Ok(ControlFlow::Break(0));
    };
    let told = Instant::now();
    let attempt = tokio::select! {
        attempt = join(order, joining) => attempt,
        // The starter has given this agent up, or has exited: no parent will answer.
        _ = &mut relay => return Ok(ControlFlow::Break(0)),
    };
    let done = attempt.as_ref().map(|_| told.elapsed()).map_err(Clone::clone);
    let _ = joined.send(done);
    let (place, accepted, clock) = match attempt {
        Ok(joined) => joined,
        Err(_) => {
            // The relay reports the failure before it ends.
            let _ = relay.await;
            return Ok(ControlFlow::Break(251));
        }
    };
    let here = place.subtree().unwrap_or(Subtree::whole(0, 1));
    let children: Vec<AgentId> = here.children().map(|child| child.head()).collect();
    let setup = AgentSetup { position: place, here, parent: accepted, clock, guardian, log };
    let driver = AgentDriver::new(setup, order, &tasks).map_err(limits)?;
    if let Some(listener) = listener
        && !children.is_empty()
    {
        let authenticator = Authenticator::new(order.session, order.key.clone(), children);
        let accepting = accept_children(listener, authenticator, clock, driver.joining());
        tasks.spawn("listener", Span::current(), accepting);
    }
    Ok(ControlFlow::Continue(Box::new(driver)))
}

/// Joins the tree over the pipes of the remote shell that has started this agent.
async fn enter_over_shell(order: &BootOrder, guardian: GuardianLink, descriptors: u64, tasks: Tasks) -> Entered {
    let here = BootReport::Here { addresses: Vec::new(), host: sys::host_name(), descriptors, reads_log: false };
    let joined = match sessions::join(order, here, &guardian, tasks.clone()).await? {
        Way::Joined(joined) => *joined,
        Way::Left => return Ok(ControlFlow::Break(0)),
        Way::Failed => return Ok(ControlFlow::Break(251)),
    };
    let Joined { place, here, accepted, clock, sessions } = joined;
    let setup = AgentSetup { position: place, here, parent: accepted, clock, guardian, log: None };
    let mut driver = AgentDriver::new(setup, order, &tasks).map_err(limits)?;
    if let Some(shells) = sessions {
        shells.admit(place, here, clock, driver.joining());
        driver.child_shells = Some(shells);
    }
    Ok(ControlFlow::Continue(Box::new(driver)))
}

/// Waits for the agent's place, and keeps its guardian calm meanwhile: others may take their time.
async fn wait(place: &mut oneshot::Receiver<Joining>, guardian: &GuardianLink, dead_time: Duration) -> Option<Joining> {
    let mut beat = interval(dead_time / 4);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            place = &mut *place => return place.ok(),
            _ = beat.tick() => {
                if guardian.alive().is_err() {
                    return None;
                }
            }
        }
    }
}

/// Connects to the parent, at the first of its addresses where it is.
async fn join(order: &BootOrder, joining: Joining) -> Result<(TreePosition, Accepted, Clock), StartFailure> {
    let Joining { place, parent, opener_port } = joining;
    let wrong = |what: &str| StartFailure::new(StartPhase::Ended, what);
    if place.agents > AGENTS_MAX || place.subtree().is_none() {
        return Err(wrong("the tree that it was told of has no such agent"));
    }
    let tree = Subtree::whole(place.agents, place.fanout);
    let above = tree.parent_of(place.agent).unwrap_or(AgentId::ROOT);
    let parent = reach::candidates(opener_port, parent);
    let (accepted, now) = connect_to_any(order, parent, (above, "its parent"), place.agent).await?;
    Ok((place, accepted, Clock::joined(now)))
}

/// What goes on over the bootstrap channel beside the agent's own way into the tree: it starts other
/// agents, and passes on what they and the launcher say to each other.
struct Relay {
    channel: Channel,
    starter: Option<Starter>,
    reports: mpsc::UnboundedReceiver<TargetReport>,
    /// Stations below of which more is to come.
    unsettled: std::collections::BTreeSet<u32>,
    is_remote: bool,
}

impl Relay {
    fn new(order: &BootOrder, channel: Channel, tasks: Tasks) -> Self {
        // Bounded by the targets below: each has three things to report.
        let (events, reports) = mpsc::unbounded_channel();
        let starter = Starter::below(order, events, tasks);
        let count = order.below.as_ref().map_or(0, |below| below.hosts.len() as u32);
        let unsettled = (order.target + 1..=order.target + count).collect();
        Self { channel, starter, reports, unsettled, is_remote: order.is_remote() }
    }

    /// Until the agent and all below have joined, or the channel ends.
    async fn run(
        mut self,
        here: BootReport,
        placed: oneshot::Sender<Joining>,
        joined: oneshot::Receiver<Result<Duration, StartFailure>>,
    ) {
        let mut placed = Some(placed);
        let mut joined = Some(joined);
        if self.channel.tell(&here).await.is_err() {
            return;
        }
        while joined.is_some() || !self.unsettled.is_empty() {
            let own = async {
                match &mut joined {
                    Some(joined) => joined.await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                result = own => {
                    joined = None;
                    match result {
                        Ok(Ok(took)) => BootReport::Joined { took },
                        Ok(Err(failure)) => {
                            let _ = self.channel.tell(&BootReport::NotStarted(failure)).await;
                            return;
                        }
                        // The process is about to end.
                        Err(_) => return,
                    }
                }
                Some((target, what)) = self.reports.recv() => {
                    if matches!(what, BootReport::Joined { .. } | BootReport::NotStarted(_)) {
                        self.unsettled.remove(&target);
                    }
                    BootReport::Below(target, Box::new(what))
                }
                command = self.channel.next() => {
                    match command {
                        Some(BootCommand::Join { place, parent, opener_port }) => {
                            if let Some(placed) = placed.take() {
                                let _ = placed.send(Joining { place, parent, opener_port });
                            }
                        }
                        Some(BootCommand::Below(target, command)) => {
                            if let Some(starter) = &self.starter {
                                starter.tell(target, *command);
                            }
                        }
                        // Those below leave when their channels end.
                        Some(BootCommand::Leave) | None => return,
                    }
                    continue;
                }
            };
            if self.channel.tell(&report).await.is_err() {
                return;
            }
        }
        // The channel is not needed any more.
        if let Err(error) = channel::close_own(self.is_remote) {
            tracing::warn!(%error, "the bootstrap channel cannot be closed");
        }
    }
}
