//! Links over remote shells (`--no-ports`), at the process that opened the shells.
//!
//! The process that opened a remote shell is the parent of the agent at its other end. Once the agent was told its
//! position and answered that it joins, the shell's pipes are no bootstrap channel any more: the handshake goes over
//! them, and then the link. The remote shell lasts as long as the link. A position whose agent has not joined after
//! [`HELLO_TIME`] stays empty, and is reported.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::decide::pending_joins::{PendingJoins, failure, is_late, late};
use super::protocol::BootReport;
use super::shell::Shell;
use super::starter::{END_TIME, Shared};
use crate::core::limits::HELLO_TIME;
use crate::link::{Accepted, Authenticator, Clock, accept_over};

/// The links over the remote shells of a starter.
#[derive(Default)]
pub(super) struct ShellLinks {
    /// The session's clock, and the queue for links. Set before any agent is told to join.
    taker: RefCell<Option<(Clock, mpsc::Sender<Accepted>)>>,
    pub(super) pending: RefCell<PendingJoins>,
}

impl ShellLinks {
    pub(super) fn take_links(&self, clock: Clock, joined: mpsc::Sender<Accepted>) {
        self.taker.replace(Some((clock, joined)));
    }
}

/// Reports the agent at a target as late if it has not joined after [`HELLO_TIME`].
pub(super) async fn time_out(shared: Rc<Shared>, target: u32) {
    sleep(HELLO_TIME).await;
    if settle(&shared, target).is_some() {
        shared.report(target, BootReport::NotStarted(late()));
    }
}

fn settle(shared: &Shared, target: u32) -> Option<std::time::Duration> {
    shared.links.pending.borrow_mut().settle(shared.now(), target)
}

/// Makes the link over a remote shell whose agent joins, and reads its standard error until it ends.
pub(super) async fn take_over(shared: &Shared, target: u32, shell: Shell, pid: u32) {
    let agent = shared.links.pending.borrow().agent(target);
    let taker = shared.links.taker.borrow().clone();
    let (stream, unread, mut errors) = shell.into_parts();
    let (Some(agent), Some((clock, joined))) = (agent, taker) else {
        // It joins without having been told to, so it is no agent of this session.
        return shared.processes.end(pid);
    };
    let authenticator = Authenticator::new(shared.order.session, shared.order.key.clone(), [agent]);
    let accepted = accept_over(stream, unread, &RefCell::new(authenticator), || clock.now()).await;
    let Some(took) = settle(shared, target) else { return shared.processes.end(pid) };
    match accepted {
        Ok(accepted) => {
            shared.report(target, BootReport::Joined { took });
            let _ = joined.send(accepted).await;
        }
        Err(_) if is_late(took) => {
            shared.processes.end(pid);
            return shared.report(target, BootReport::NotStarted(late()));
        }
        Err(error) => {
            let code = shared.processes.exit_code(pid, END_TIME).await;
            shared.processes.end(pid);
            let said = match &mut errors {
                Some(errors) => errors.last_words().await,
                None => String::new(),
            };
            return shared.report(target, BootReport::NotStarted(failure(&error.to_string(), code, &said)));
        }
    }
    if let Some(errors) = &mut errors {
        let said = errors.read_to_end().await;
        tracing::debug!(target, %said, "a remote shell with a link has ended");
    }
}
