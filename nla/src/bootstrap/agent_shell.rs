//! An agent where links go over sessions (`--no-ports`): its way into the tree, and the sessions that it has opened.
//!
//! Its standard input and output are its bootstrap channel until it is told its place, and its link from then on. It
//! tells its own children theirs when it has joined: they are the agents that it has started, so that sessions and
//! links are one tree. What it is told and tells before that is as over any bootstrap channel.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::agent_channel::close_own;
use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{BootCommand, BootOrder, BootReport};
use super::shell_channel::Reader;
use super::starter::{Starter, TargetReport};
use crate::core::limits::AGENTS_MAX;
use crate::core::{AgentId, Subtree};
use crate::link::Clock;
use crate::link::Stream;
use crate::link::{Accepted, connect_over};
use crate::sys::{self, Ended, GuardianLink};
use crate::wire::{TreePosition, encode, framed};

/// The sessions that an agent has opened, each of which carries the link to a child.
pub(crate) struct ChildShells {
    starter: Starter,
    reports: mpsc::UnboundedReceiver<TargetReport>,
}

impl ChildShells {
    fn open(order: &BootOrder) -> Option<Self> {
        // Bounded by the targets below: each has three things to report.
        let (events, reports) = mpsc::unbounded_channel();
        let starter = Starter::below(order, events)?;
        Some(Self { starter, reports })
    }

    /// Tells the agents at the other ends their places, which are those of the children of `here`.
    pub(crate) fn admit(&self, place: TreePosition, here: Subtree, clock: Clock, joined: mpsc::Sender<Accepted>) {
        self.starter.take_links(clock, joined);
        for child in here.children() {
            // Stations are numbered as agents are.
            self.starter.admit(child.head().0, TreePosition { agent: child.head(), ..place });
        }
    }

    /// A child that does not come into the tree, and why.
    pub(crate) async fn next_failure(&mut self) -> (AgentId, String) {
        loop {
            match self.reports.recv().await {
                Some((target, BootReport::NotStarted(failure))) => return (AgentId(target), failure.words),
                Some(_) => {}
                // The starter lives as long as this.
                None => std::future::pending().await,
            }
        }
    }

    /// The processes of this machine that they consist of, as far as these have not been seen to end.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        self.starter.processes()
    }

    /// See [`Starter::note_ended`].
    pub(crate) fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        self.starter.note_ended(pid, ended)
    }

    /// Waits until they have ended, and ends those that have not.
    pub(crate) async fn wait(&mut self, patience: std::time::Duration) {
        let left = self.starter.wait(patience).await;
        if left > 0 {
            tracing::warn!(left, "sessions do not end");
        }
    }
}

/// What has come of an agent that was to join.
pub(crate) enum Way {
    /// It is in the tree.
    Joined(Box<Joined>),
    /// It is not needed, or nobody is left to tell it anything.
    Left,
    /// It could not go on. Whoever is to know has been told.
    Failed,
}

/// An agent in the tree, whose children are not.
pub(crate) struct Joined {
    pub(crate) place: TreePosition,
    pub(crate) here: Subtree,
    pub(crate) accepted: Accepted,
    pub(crate) clock: Clock,
    pub(crate) sessions: Option<ChildShells>,
}

/// Standard input and output, as the way to who has opened this session.
struct Own {
    reader: Reader,
    output: Sender,
}

impl Own {
    /// Takes them over: nobody else in this process finds them any more. They may be pipes or sockets, but something
    /// that can be waited for.
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

    async fn tell(&mut self, report: &BootReport) -> io::Result<()> {
        self.output.write_all(&framed(&encode(report))).await
    }
}

/// Begins what the order says of targets below, and waits to be told a place; then says hello from there. The
/// guardian is kept calm meanwhile: others may take their time.
pub(crate) async fn join(order: &BootOrder, here: BootReport, guardian: &GuardianLink) -> Result<Way, StartFailure> {
    let mut own = Own::take().map_err(|error| {
        let words = format!("its standard input and output cannot carry a link: {error}");
        StartFailure::new(StartPhase::Join, words)
    })?;
    let mut sessions = ChildShells::open(order);
    if own.tell(&here).await.is_err() {
        return Ok(Way::Left);
    }
    let Some(place) = wait(order, &mut own, sessions.as_mut(), guardian).await else { return Ok(Way::Left) };
    let Some(here) = subtree(order, place) else {
        let words = "the tree that it was told of is not that of the sessions";
        let _ = own.tell(&BootReport::NotStarted(StartFailure::new(StartPhase::Join, words))).await;
        return Ok(Way::Failed);
    };
    if own.tell(&BootReport::Joining).await.is_err() {
        return Ok(Way::Left);
    }
    let above = Subtree::whole(place.agents, place.fanout).parent_of(place.agent).unwrap_or(AgentId::ROOT);
    let (input, said) = own.reader.into_parts();
    let stream = Stream::pipes(input, own.output);
    let joined = connect_over(stream, BytesMut::from(&said[..]), above, place.agent, order.session, &order.key).await;
    match joined {
        Ok((accepted, now)) => {
            if let Err(error) = close_own(order.is_remote()) {
                tracing::warn!(%error, "standard error cannot be closed");
            }
            Ok(Way::Joined(Box::new(Joined { place, here, accepted, clock: Clock::joined(now), sessions })))
        }
        Err(error) => {
            // What is left to say something with are the session's errors.
            let line = format!("scela: {}: it cannot join the tree: {error}\n", sys::host_name());
            let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
            Ok(Way::Failed)
        }
    }
}

/// What is below a place, if the tree has it and what was started from here is just that.
fn subtree(order: &BootOrder, place: TreePosition) -> Option<Subtree> {
    let here = place.subtree().filter(|_| place.agents <= AGENTS_MAX)?;
    let Some(below) = &order.below else { return (here.size() == 1).then_some(here) };
    let is_same = (below.targets, below.fanout, order.target) == (place.agents, place.fanout, place.agent.0);
    is_same.then_some(here)
}

/// Passes on what is said from above and below, until it is told its place. `None` if it is not needed.
async fn wait(
    order: &BootOrder,
    own: &mut Own,
    mut sessions: Option<&mut ChildShells>,
    guardian: &GuardianLink,
) -> Option<TreePosition> {
    let mut beat = interval(order.dead_time / 4);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let below = async {
            match &mut sessions {
                Some(sessions) => sessions.reports.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = own.reader.next() => match command {
                Ok(Some(BootCommand::Join { place, .. })) => return Some(place),
                Ok(Some(BootCommand::Below(target, command))) => {
                    if let Some(sessions) = &sessions {
                        sessions.starter.tell(target, *command);
                    }
                }
                // Those below leave when their channels end.
                Ok(Some(BootCommand::Leave) | None) | Err(_) => return None,
            },
            Some((target, report)) = below => {
                own.tell(&BootReport::Below(target, Box::new(report))).await.ok()?;
            }
            _ = beat.tick() => {
                if guardian.alive().is_err() {
                    return None;
                }
            }
        }
    }
}
