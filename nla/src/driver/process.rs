//! A whole agent process: from its first instruction until it has joined the tree and its actor runs.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval};

use super::agent::Driver;
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
    let limits = |error: io::Error| StartFailure::new(StartPhase::Limits, error.to_string());
    sys::reserve_low().map_err(limits)?;
    let descriptors = sys::raise_limit().map_err(limits)?;
    sys::make_room(DESCRIPTORS_AT_ONCE).map_err(limits)?;
    sys::forbid_dump().map_err(limits)?;
    sys::become_subreaper().map_err(limits)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(limits)?;
    let result = LocalSet::new().block_on(&runtime, live(order, guardian, descriptors));
    // Nothing that still runs is worth waiting for.
    runtime.shutdown_background();
    result
}

/// What an agent is told when its place in the tree is known.
struct Joining {
    place: TreePosition,
    parent: Vec<std::net::SocketAddr>,
    opener_port: Option<u16>,
}

/// Joins the tree and stays in it until the session is over.
async fn live(order: &BootOrder, guardian: GuardianLink, descriptors: u64) -> Result<u8, StartFailure> {
    if order.links == Links::RemoteShells {
        return live_in_session(order, guardian, descriptors).await;
    }
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
    let channel = Channel::open(order).await?;
    let mut relay = tokio::task::spawn_local(Relay::new(order, channel).run(here, placed, on_joined));
    let Some(joining) = wait(&mut place, &guardian, order.dead_time).await else {
        // It was told to leave, or nobody is left to tell it anything.
        return Ok(0);
    };
    let told = Instant::now();
    let attempt = tokio::select! {
        attempt = join(order, joining) => attempt,
        // Who has started this has given it up, or is gone: no parent will answer.
        _ = &mut relay => return Ok(0),
    };
    let done = attempt.as_ref().map(|_| told.elapsed()).map_err(Clone::clone);
    let _ = joined.send(done);
    let (place, accepted, clock) = match attempt {
        Ok(joined) => joined,
        Err(_) => {
            // It has been told.
            let _ = relay.await;
            return Ok(251);
        }
    };
    let here = place.subtree().unwrap_or(Subtree::whole(0, 1));
    let children: Vec<AgentId> = here.children().map(|child| child.head()).collect();
    let mut driver = Driver::new(place, here, accepted, clock, guardian, order.dead_time, order.is_remote())
        .map_err(|error| StartFailure::new(StartPhase::Limits, error.to_string()))?;
    driver.log = log;
    if let Some(listener) = listener
        && !children.is_empty()
    {
        let authenticator = Authenticator::new(order.session, order.key.clone(), children);
        tokio::task::spawn_local(accept_children(listener, authenticator, clock, driver.joining.clone()));
    }
    Ok(driver.run().await)
}

/// The same where links go over sessions.
async fn live_in_session(order: &BootOrder, guardian: GuardianLink, descriptors: u64) -> Result<u8, StartFailure> {
    let here = BootReport::Here { addresses: Vec::new(), host: sys::host_name(), descriptors, reads_log: false };
    let joined = match sessions::join(order, here, &guardian).await? {
        Way::Joined(joined) => *joined,
        Way::Left => return Ok(0),
        Way::Failed => return Ok(251),
    };
    let Joined { place, here, accepted, clock, sessions } = joined;
    let mut driver = Driver::new(place, here, accepted, clock, guardian, order.dead_time, order.is_remote())
        .map_err(|error| StartFailure::new(StartPhase::Limits, error.to_string()))?;
    if let Some(sessions) = sessions {
        sessions.admit(place, here, clock, driver.joining.clone());
        driver.sessions = Some(sessions);
    }
    Ok(driver.run().await)
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
    fn new(order: &BootOrder, channel: Channel) -> Self {
        // Bounded by the targets below: each has three things to report.
        let (events, reports) = mpsc::unbounded_channel();
        let starter = Starter::below(order, events);
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
