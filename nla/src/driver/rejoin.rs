//! An agent whose parent was lost looks for an ancestor that accepts it.
//!
//! The agent tries its ancestors in turn, the nearest first. An ancestor accepts the agent once it has noticed the loss
//! of the agent's parent too. Until then it closes the connection, and the agent retries. The agent skips an ancestor
//! only if it cannot reach it; the next ancestor then counts the skipped one as lost. If the launcher's port is closed,
//! the session is over.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::core::AgentId;
use crate::link::{Accepted, HandshakeError, SessionKey, connect};
use crate::wire::{Role, SessionId};

/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// Later rounds pause for longer.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long one attempt may take: other ancestors may be reachable.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// The data with which an agent joins an ancestor.
#[derive(Clone)]
pub(super) struct Rejoining {
    pub(super) session: SessionId,
    pub(super) key: SessionKey,
    /// This agent.
    pub(super) agent: AgentId,
    /// The ancestors above the parent, and their addresses; the nearest first.
    pub(super) ancestors: Vec<(AgentId, Vec<SocketAddr>)>,
}

impl Rejoining {
    /// Joins the first ancestor that accepts this agent. Returns `None` at `until`, or if none will.
    pub(super) async fn run(self, until: Instant) -> Option<Accepted> {
        let mut pause = PAUSE;
        while !self.ancestors.is_empty() {
            for (ancestor, addresses) in &self.ancestors {
                let role = Role::Link { parent: *ancestor };
                let (mut closed, mut refused) = (0, false);
                for address in addresses {
                    let attempt = connect(*address, role, self.agent, self.session, &self.key);
                    let deadline = until.min(Instant::now() + ATTEMPT_MAX);
                    match timeout_at(deadline, attempt).await {
                        Ok(Ok((accepted, _))) => return Some(accepted),
                        Ok(Err(error)) => {
                            tracing::debug!(%ancestor, %address, %error, "the ancestor did not accept this agent");
                            closed += usize::from(is_closed(&error));
                            refused |= error.is_passing();
                        }
                        Err(_) => tracing::debug!(%ancestor, %address, "the ancestor did not answer"),
                    }
                }
                if *ancestor == AgentId::ROOT && closed == addresses.len() {
                    return None;
                }
                if refused {
                    break;
                }
            }
            if Instant::now() + pause >= until {
                return None;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        None
    }
}

/// Whether no process listens at the address.
fn is_closed(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}
