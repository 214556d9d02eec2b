//! Links over bootstrap channels, at the process that started the agents: over remote shells (`--no-ports`), or over pipes
//! between the launcher and the agents on its machine.
//!
//! The process that started an agent is its parent. Once the agent knows its position and has reported that it joins, the
//! pipes to it are no bootstrap channel any more: over remote shells a handshake follows, and then the link. A remote shell lasts as
//! long as its link. A position whose agent has not joined after
//! [`HELLO_TIME`] stays empty, and is reported.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use super::decide::pending_joins::{failure, is_late, late};
use super::processes::Started;
use super::protocol::{BootReport, Links};
use super::shell::Shell;
use super::starter::{END_TIME, Shared};
use crate::core::AgentId;
use crate::core::limits::HELLO_TIME;
use crate::link::{Accepted, Authenticator, accept_over};
use crate::wire::Role;

/// Reports the agent at a target as late if it has not joined after [`HELLO_TIME`].
pub(super) async fn time_out(shared: Rc<Shared>, target: u32) {
    sleep(HELLO_TIME).await;
    if shared.settle(target).is_some() {
        shared.report(target, BootReport::NotStarted(late()));
    }
}

/// Makes the link over the channel of an agent that joins, and reads its standard error until it ends.
pub(super) async fn take_over(shared: &Shared, target: u32, shell: Shell) {
    let process = shell.process.clone();
    let end = || process.iter().for_each(Started::end);
    let agent = match shared.order.links {
        Links::Pipes => Some(shared.admitted(target).await),
        Links::RemoteShells | Links::Connections => shared.pending_joins.borrow().agent(target),
    };
    let (stream, mut errors) = shell.into_parts();
    let (Some(agent), Some((clock, joined))) = (agent, shared.links.get()) else {
        // No `Join` was sent for this agent, so it does not belong to this session.
        return end();
    };
    let accepted = match shared.order.links {
        Links::Pipes => Ok(Accepted::over_inherited(stream, agent)),
        Links::RemoteShells | Links::Connections => {
            // If links take over channels, a starter's number is its target.
            let role = Role::Link { parent: AgentId(shared.order.starter) };
            let authenticator = Authenticator::new(shared.order.session, shared.order.key.clone(), role, [agent]);
            accept_over(stream, &RefCell::new(authenticator), || clock.now()).await
        }
    };
    let Some(took) = shared.settle(target) else { return end() };
    match accepted {
        Ok(accepted) => {
            shared.report(target, BootReport::Joined { took });
            let _ = joined.send(accepted).await;
        }
        Err(_) if is_late(took) => {
            end();
            return shared.report(target, BootReport::NotStarted(late()));
        }
        Err(error) => {
            let code = match &process {
                Some(process) => process.exit_code(END_TIME).await,
                None => None,
            };
            end();
            let said = match &mut errors {
                Some(errors) => errors.last_words(END_TIME).await,
                None => String::new(),
            };
            return shared.report(target, BootReport::NotStarted(failure(&error.to_string(), code, &said)));
        }
    }
    if let Some(errors) = &mut errors {
        // No process at the other end may ever block on a full pipe.
        let said = errors.last_words(Duration::MAX).await;
        tracing::debug!(target, ?said, "a remote shell with a link has ended");
    }
}
