//! Links over sessions, at who has opened these (`--no-ports`).
//!
//! Who has opened a session is the parent of the agent at its other end. Once the agent was told its place, and has
//! said that it joins, the session's input and output are no bootstrap channel any more: the hello goes over them, and
//! then the link does. The session lasts as long as that. A place that nobody has taken after [`HELLO_TIME`] stays
//! empty, and is reported.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::decide::failure::{StartFailure, StartPhase, judge};
use super::protocol::BootReport;
use super::shell::Session;
use super::starter::{END_TIME, Shared};
use crate::core::AgentId;
use crate::core::limits::HELLO_TIME;
use crate::link::Clock;
use crate::link::{Accepted, Authenticator, HandshakeError, accept_over};

/// What a starter needs to make links of its sessions.
#[derive(Default)]
pub(super) struct ShellLinks {
    /// The session's time, and where links go; not before both are there.
    taker: RefCell<Option<(Clock, mpsc::Sender<Accepted>)>>,
    /// Who was told to join, by target, and when.
    told: RefCell<BTreeMap<u32, (AgentId, Instant)>>,
}

impl ShellLinks {
    pub(super) fn take_links(&self, clock: Clock, joined: mpsc::Sender<Accepted>) {
        self.taker.replace(Some((clock, joined)));
    }

    /// The agent at this target is being told to join.
    pub(super) fn expect(&self, target: u32, agent: AgentId) {
        self.told.borrow_mut().insert(target, (agent, Instant::now()));
    }

    /// It is not waited for any more: who it is to be, and since when it was.
    pub(super) fn settle(&self, target: u32) -> Option<(AgentId, Duration)> {
        self.told.borrow_mut().remove(&target).map(|(agent, since)| (agent, since.elapsed()))
    }
}

/// Reports the agent of a target that was told to join and has not when this ends.
pub(super) async fn wait_for(shared: Rc<Shared>, target: u32) {
    sleep(HELLO_TIME).await;
    if shared.carried.settle(target).is_some() {
        shared.report(target, BootReport::NotStarted(late()));
    }
}

/// No hello came in time.
fn late() -> StartFailure {
    let words = format!("it was there, and did not join the tree within {} s", HELLO_TIME.as_secs());
    StartFailure::new(StartPhase::Join, words)
}

/// Makes a link of a session whose agent joins, and stays until the session is over.
pub(super) async fn take_over(shared: &Shared, target: u32, session: Session, pid: u32) {
    let agent = shared.carried.told.borrow().get(&target).map(|(agent, _)| *agent);
    let taker = shared.carried.taker.borrow().clone();
    let (stream, said, mut errors) = session.into_parts();
    let (Some(agent), Some((clock, joined))) = (agent, taker) else {
        // It joins without having been told to: whatever it is, it is not ours.
        return shared.children.end(pid);
    };
    let authenticator = Authenticator::new(shared.order.session, shared.order.key.clone(), [agent]);
    let accepted = accept_over(stream, said, &RefCell::new(authenticator), || clock.now()).await;
    let Some((_, took)) = shared.carried.settle(target) else {
        return shared.children.end(pid);
    };
    match accepted {
        Ok(accepted) => {
            shared.report(target, BootReport::Joined { took });
            let _ = joined.send(accepted).await;
        }
        // It has given up after the same time, in the moment before this end does.
        Err(_) if took >= HELLO_TIME => {
            shared.children.end(pid);
            return shared.report(target, BootReport::NotStarted(late()));
        }
        Err(error) => {
            let code = shared.children.exit_code(pid, END_TIME).await;
            shared.children.end(pid);
            let said = match &mut errors {
                Some(errors) => errors.last_words().await,
                None => String::new(),
            };
            return shared.report(target, BootReport::NotStarted(failure(&error, code, &said)));
        }
    }
    if let Some(errors) = &mut errors {
        let said = errors.follow_to_end().await;
        tracing::debug!(target, %said, "a session with a link is over");
    }
}

/// Why there is no link over a session.
fn failure(error: &HandshakeError, code: Option<i32>, said: &str) -> StartFailure {
    let words = match said.trim() {
        "" => format!("no link came about over its session: {error}"),
        said => format!("no link came about over its session: {error}; its last words: {}", judge(code, said).words),
    };
    StartFailure::new(StartPhase::Join, words)
}
