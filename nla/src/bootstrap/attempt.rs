//! One session: it is opened, its agent calls or answers, and both say what there is to say until the agent has joined
//! or there is none.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::callback::Member;
use super::decide::failure::StartFailure;
use super::processes::Children;
use super::protocol::{BootCommand, BootOrder, BootReport, Method};
use super::shell::Session;
use super::shell_links as carried;
use super::starter::{END_TIME, Shared, Task, Way};

/// How a session has begun.
pub(super) enum Beginning {
    Well(Duration),
    Badly(Box<Task>, StartFailure),
}

/// Why a session came to nothing.
struct Obstacle {
    failure: StartFailure,
    /// A program that had not been looked at did not show that it is an agent. Never where there is a look at it.
    was_trusted: bool,
}

/// A session up to its agent's first report, and what that is.
async fn begin(shared: &Shared, task: &Task, order: &BootOrder) -> Result<(Channel, BootReport), Obstacle> {
    let (mut session, child) = Session::open(&shared.method, task.host.as_ref(), order, task.looks)
        .map_err(|failure| Obstacle { failure, was_trusted: false })?;
    let pid = child.id();
    shared.children.add(child, shared.method == Method::Fork);
    let call = async {
        match shared.callers.get() {
            Some(callers) => callers.call_of(task.target).await,
            None => std::future::pending().await,
        }
    };
    let (member, said) = tokio::select! {
        biased;
        (member, report) = call => (Some(member), Ok(Some(report))),
        said = session.begin(order, &shared.deadline) => (None, said),
    };
    let was_trusted = session.was_trusted && !matches!(said, Ok(Some(_)));
    let failure = match said {
        Ok(Some(BootReport::NotStarted(failure))) | Err(failure) => failure,
        Ok(Some(report)) => {
            let channel = match member {
                Some(member) => {
                    shared.close(session, pid, true);
                    Channel::Member(member)
                }
                None => Channel::Session(Box::new(session), pid),
            };
            return Ok((channel, report));
        }
        Ok(None) => session.ended(shared.children.exit_code(pid, END_TIME).await).await,
    };
    shared.close(session, pid, true);
    Err(Obstacle { failure, was_trusted })
}

/// One session from its beginning until it is over.
pub(super) async fn attend(shared: Rc<Shared>, mut task: Task, begun: mpsc::UnboundedSender<Beginning>) {
    let began = Instant::now();
    let target = task.target;
    let callers = shared.callers.get();
    let callback = callers.map_or_else(Vec::new, |callers| callers.addresses.clone());
    let order = BootOrder { target, callback, reach: task.reach, below: task.below.clone(), ..shared.order.clone() };
    let (mut channel, report) = loop {
        match begin(&shared, &task, &order).await {
            Ok(begun) => break begun,
            // What was there did not become an agent: is it one at all?
            Err(Obstacle { was_trusted: true, .. }) => task.looks = true,
            Err(Obstacle { failure, .. }) => return drop(begun.send(Beginning::Badly(Box::new(task), failure))),
        }
    };
    let _ = begun.send(Beginning::Well(began.elapsed()));
    let below = task.below.as_ref().map_or(0, |below| below.hosts.len() as u32);
    let has_joined = converse(&shared, target, below, report, &mut channel).await;
    if let Channel::Session(session, pid) = channel {
        match has_joined && shared.carries_links() {
            true => carried::take_over(&shared, target, *session, pid).await,
            false => shared.close(*session, pid, !has_joined),
        }
    }
}

/// What an agent that is there speaks over.
pub(super) enum Channel {
    /// The input and output of a process of this machine.
    Session(Box<Session>, u32),
    /// A connection of its own.
    Member(Member),
}

impl Channel {
    async fn next_of(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<BootCommand>,
    ) -> Result<Option<BootReport>, StartFailure> {
        match self {
            Self::Session(session, _) => session.next_of(commands).await,
            Self::Member(member) => Ok(member.next_of(commands).await),
        }
    }

    /// Why it has ended, as far as anybody knows.
    async fn ended(&mut self, children: &Children) -> StartFailure {
        match self {
            Self::Session(session, pid) => session.ended(children.exit_code(*pid, END_TIME).await).await,
            Self::Member(member) => member.ended(),
        }
    }
}

/// All that an agent says from its `first` report on, and all that it and the `below` targets behind it are told,
/// until it is over. Returns whether it has joined the tree, or joins it over this channel.
pub(super) async fn converse(
    shared: &Shared,
    target: u32,
    below: u32,
    first: BootReport,
    channel: &mut Channel,
) -> bool {
    // Bounded by the targets behind this one: each is told one thing.
    let (commands, mut incoming) = mpsc::unbounded_channel();
    shared.ways.borrow_mut().insert(target, Way { commands, targets: 1 + below });
    let mut has_joined = false;
    let mut next = Ok(Some(first));
    loop {
        match next {
            Ok(Some(BootReport::Below(target, report))) => shared.report(target, *report),
            Ok(Some(report @ BootReport::NotStarted(_))) => {
                shared.report(target, report);
                return false;
            }
            Ok(Some(BootReport::Joining)) if shared.carries_links() => return true,
            Ok(Some(report)) => {
                has_joined |= matches!(report, BootReport::Joined { .. });
                shared.report(target, report);
                // Nothing follows; who waits for its end waits for nothing.
                if has_joined && below == 0 {
                    return true;
                }
            }
            Ok(None) if has_joined => return true,
            Ok(None) => {
                let failure = channel.ended(&shared.children).await;
                shared.report(target, BootReport::NotStarted(failure));
                return false;
            }
            Err(failure) => {
                shared.report(target, BootReport::NotStarted(failure));
                return has_joined;
            }
        }
        next = channel.next_of(&mut incoming).await;
    }
}
