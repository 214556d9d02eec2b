//! One start of an agent: opens the remote shell, waits until the agent calls back or answers, and carries the
//! conversation until the agent has joined the tree or is lost.

use std::future::pending;
use std::rc::Rc;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{Interval, interval};

use super::channel_links;
use super::decide::conversation::{Conversation, Heard, Next};
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::schedule::{ScheduleInput, Task};
use super::protocol::{BootCommand, BootOrder, BootReport, Method, Place};
use super::shell::Shell;
use super::starter::Shared;
use crate::core::AgentId;
use crate::link::Accepted;
use crate::wire::{TreePosition, encode, framed};

/// Why a start failed.
struct Failed {
    failure: StartFailure,
    /// The remote script executed a program without checking its version, and the program did not answer as an agent. Never
    /// set if the script checks the version.
    was_unchecked: bool,
}

/// Opens a remote shell and waits for its agent's first report.
async fn open(shared: &Shared, task: &Task, order: &BootOrder) -> Result<(Channel, BootReport), Failed> {
    let mut shell = Shell::open(shared, task, order).map_err(|failure| Failed { failure, was_unchecked: false })?;
    let call = async {
        match shared.callbacks.get() {
            Some(callbacks) => callbacks.call_of(task.target).await,
            None => pending().await,
        }
    };
    let timeout = shared.deadline.timeout(shared.now(), order.below.is_some());
    let (callback, heard) = tokio::select! {
        biased;
        (accepted, report) = call => (Some(accepted), Ok(Some(report))),
        heard = shell.first_report(timeout, || shared.deadline.passed_on(shared.now(), order)) => (None, heard),
    };
    let was_unchecked = shell.was_unchecked && !matches!(heard, Ok(Some(_)));
    let failure = match heard {
        Ok(Some(BootReport::NotStarted(failure))) | Err(failure) => failure,
        Ok(Some(report)) => {
            let channel = match callback {
                Some(accepted) => {
                    shared.close(shell, false);
                    Channel::Callback(Box::new(accepted), StartPhase::Ended)
                }
                None => Channel::Shell(Box::new(shell)),
            };
            return Ok((channel, report));
        }
        Ok(None) => shell.end_reason().await,
    };
    shared.close(shell, true);
    Err(Failed { failure, was_unchecked })
}

/// Runs one start from its beginning until its channel is not needed any more.
pub(super) async fn run(shared: Rc<Shared>, mut task: Task) {
    let began = shared.now();
    let target = task.target;
    let callback = shared.callbacks.get().map_or_else(Vec::new, |callbacks| callbacks.addresses.clone());
    let place = |place: Place| Place { position: TreePosition { agent: AgentId(target), ..place.position }, ..place };
    let place = shared.order.place.map(place);
    let (reach, below) = (task.reach, task.below.clone());
    let order = BootOrder { target, callback, reach, below, place, ..shared.order.clone() };
    let (mut channel, report) = loop {
        match open(&shared, &task, &order).await {
            Ok(opened) => break opened,
            // The program on the node did not answer as an agent. Retry with a script that checks its version first.
            Err(Failed { was_unchecked: true, .. }) => task.checks_version = true,
            Err(Failed { failure, .. }) => {
                let failure = if shared.method == Method::Keeper { failure.of_keeper() } else { failure };
                return shared.schedule(ScheduleInput::Failed(Box::new(task), failure));
            }
        }
    };
    shared.schedule(ScheduleInput::Answered { took: shared.now().saturating_sub(began) });
    let below = task.below.as_ref().map_or(0, |below| below.hosts.len() as u32);
    let has_joined = converse(&shared, target, below, report, &mut channel).await;
    if let Channel::Shell(shell) = channel {
        match has_joined && shared.order.links.take_over_channels() {
            true => channel_links::take_over(&shared, target, *shell).await,
            false => shared.close(*shell, !has_joined),
        }
    }
}

/// A bootstrap channel, as the process above the agent sees it.
pub(super) enum Channel {
    /// The input and output of a process of this machine.
    Shell(Box<Shell>),
    /// A connection that the agent opened, and the phase that has failed if it is lost.
    Callback(Box<Accepted>, StartPhase),
}

impl Channel {
    /// Sends commands, and [`BootCommand::Alive`] by the timer, until the agent is heard.
    async fn next(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<BootCommand>,
        alive_timer: &mut Option<Interval>,
    ) -> Heard {
        loop {
            let command = tokio::select! {
                heard = self.receive() => return heard,
                Some(command) = commands.recv() => command,
                () = tick(alive_timer) => {
                    self.send_alive();
                    continue;
                }
            };
            if let BootCommand::Join(_) = command {
                // The link's bytes follow.
                *alive_timer = None;
            }
            // If the agent does not read any more, its last report or the end of the channel says why.
            match self {
                Self::Shell(shell) => drop(shell.input.write_all(&framed(&encode(&command))).await),
                Self::Callback(accepted, _) => drop(accepted.send(&command).await),
            }
        }
    }

    /// Sends [`BootCommand::Alive`] over a remote shell. Drops it if the pipe is full.
    fn send_alive(&self) {
        if let Self::Shell(shell) = self {
            // A write of at most PIPE_BUF bytes is never partial.
            let _ = shell.input.try_write(&framed(&encode(&BootCommand::Alive)));
        }
    }

    /// Cancel safe.
    async fn receive(&mut self) -> Heard {
        match self {
            Self::Shell(shell) => match shell.reader.next().await {
                Ok(Some(report)) => Heard::Report(report),
                Ok(None) => Heard::Ended,
                Err(failure) => Heard::Broken(failure),
            },
            Self::Callback(accepted, _) => accepted.receive().await.map_or(Heard::Ended, Heard::Report),
        }
    }

    /// Returns why the channel ended, as far as that can be known.
    async fn end_reason(&mut self) -> StartFailure {
        match self {
            Self::Shell(shell) => shell.end_reason().await,
            Self::Callback(_, lost) => StartFailure::new(*lost, "its agent ended before it was part of the tree"),
        }
    }
}

/// Passes on all reports of an agent from its `first` on, and all commands for it and for the `below` targets behind
/// it. Returns whether the agent has joined the tree, or joins over this channel.
pub(super) async fn converse(
    shared: &Shared,
    target: u32,
    below: u32,
    first: BootReport,
    channel: &mut Channel,
) -> bool {
    let mut commands = shared.add_route(target, below);
    let mut conversation = Conversation::new(target, below, shared.order.links);
    let sends_alive = matches!(channel, Channel::Shell(_)) && shared.method != Method::Fork;
    let mut alive_timer = sends_alive.then(|| interval(shared.order.heartbeat));
    let (mut heard, mut reports) = (Heard::Report(first), Vec::new());
    loop {
        let next = conversation.handle(heard, &mut reports);
        reports.drain(..).for_each(|(target, report)| shared.report(target, report));
        heard = match next {
            Next::Wait => channel.next(&mut commands, &mut alive_timer).await,
            Next::ReportEnd => {
                let failure = channel.end_reason().await;
                let failure = if shared.method == Method::Keeper { failure.of_keeper() } else { failure };
                shared.report(target, BootReport::NotStarted(failure));
                return false;
            }
            Next::Stop { joined } => return joined,
        };
    }
}

/// Waits for the next tick. Cancel safe.
async fn tick(alive_timer: &mut Option<Interval>) {
    match alive_timer {
        Some(alive_timer) => drop(alive_timer.tick().await),
        None => pending().await,
    }
}
