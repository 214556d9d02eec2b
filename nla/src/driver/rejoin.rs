//! An agent whose parent was lost looks for an ancestor that accepts it.
//!
//! The agent tries its ancestors in turn, the nearest first. An ancestor accepts the agent once it has noticed the loss
//! of the agent's parent too. Until then it closes the connection, and the agent retries. The agent skips an ancestor
//! only if it cannot reach it; the next ancestor then counts the skipped one as lost. If the launcher's port is closed,
//! the session is over.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::core::AgentId;
use crate::link::{Accepted, Address, HandshakeError, SessionKey, connect};
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
    /// The ancestors above the parent, and the addresses to try for each; the nearest ancestor first.
    pub(super) ancestors: Vec<(AgentId, Vec<Address>)>,
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
                    let reached = match timeout_at(deadline, attempt).await {
                        Ok(Ok((accepted, _))) => return Some(accepted),
                        Ok(Err(error)) => {
                            tracing::debug!(%ancestor, %address, %error, "the ancestor did not accept this agent");
                            closed += usize::from(is_closed(&error));
                            refused |= error.is_passing();
                            is_reached(&error)
                        }
                        Err(_) => {
                            tracing::debug!(%ancestor, %address, "the ancestor did not answer");
                            true
                        }
                    };
                    if reached && matches!(address, Address::Local(_)) {
                        // The other addresses lead to the same process.
                        break;
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

/// Whether a process of this user has taken the connection, if it was made at a Unix socket.
fn is_reached(error: &HandshakeError) -> bool {
    match error {
        // Others say that no connection was made: connecting to a Unix socket may be forbidden.
        HandshakeError::Io(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        error => !matches!(error, HandshakeError::OtherUser),
    }
}

/// Whether no process listens at the address, or one of another user does, which has taken the name of a socket.
fn is_closed(error: &HandshakeError) -> bool {
    match error {
        HandshakeError::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        error => matches!(error, HandshakeError::OtherUser),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::net::{TcpListener, UnixListener};
    use tokio::time::timeout;

    use super::*;
    use crate::core::Time;
    use crate::link::{Authenticator, BoundListener, LocalSocket, Reach, Stream, accept_over, candidates, listen};
    use crate::sys::{Surroundings, listen_at_name, new_local_name};
    use crate::wire::HelloError;

    const LONG: Duration = Duration::from_secs(30);

    fn rejoining(ancestors: Vec<(AgentId, Vec<Address>)>) -> Rejoining {
        let key = SessionKey::read_from(&mut &[1; 32][..]).expect("a page");
        Rejoining { session: SessionId(7), key, agent: AgentId(3), ancestors }
    }

    /// An ancestor that has not noticed the loss of the parent closes the connection. The agent tries its socket again, and not the
    /// port, where it might be accepted meanwhile, with an encrypted link.
    #[tokio::test]
    async fn an_ancestor_of_this_machine_is_joined_at_its_socket() {
        let name = new_local_name().expect("the kernel has random bytes");
        let at = Surroundings::of_this_process().expect("/proc is there");
        let listener = listen_at_name(&name, 8).expect("the name is free");
        let listener = UnixListener::from_std(listener).expect("it can be waited for");
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = port.local_addr().expect("an address");
        let Rejoining { session, key, agent, .. } = rejoining(Vec::new());
        let ancestor = async {
            drop(listener.accept().await.expect("a connection"));
            let (stream, _) = listener.accept().await.expect("a connection");
            let authenticator = Authenticator::new(session, key, Role::Link { parent: AgentId::ROOT }, [agent]);
            accept_over(Stream::local(stream), &RefCell::new(authenticator), || Time::ZERO).await
        };
        let addresses = vec![Address::Local(LocalSocket { name, at }), Address::Network(address)];
        let rejoins = rejoining(vec![(AgentId::ROOT, addresses)]).run(Instant::now() + LONG);
        let (rejoined, accepted) = tokio::join!(rejoins, ancestor);
        assert!(rejoined.is_some());
        assert_eq!(accepted.expect("the agent knows the key").peer, agent);
        assert!(timeout(Duration::ZERO, port.accept()).await.is_err(), "the port was not tried");
    }

    #[test]
    fn the_port_is_tried_only_if_nothing_of_this_user_has_taken_the_connection_at_the_socket() {
        let io = |kind: ErrorKind| HandshakeError::Io(kind.into());
        let closed = [io(ErrorKind::ConnectionRefused), HandshakeError::OtherUser];
        let (full, forbidden) = (io(ErrorKind::WouldBlock), io(ErrorKind::PermissionDenied));
        let reached =
            [io(ErrorKind::ConnectionReset), HandshakeError::Hello(HelloError::Truncated), HandshakeError::Late];
        assert!(closed.iter().all(|error| is_closed(error) && !is_reached(error) && !error.is_passing()));
        assert!(!is_closed(&full) && !is_reached(&full) && full.is_passing());
        assert!(!is_closed(&forbidden) && !is_reached(&forbidden));
        assert!(reached.iter().all(|error| !is_closed(error) && is_reached(error)));
    }

    /// The name of an ancestor that has exited may be free again, or be taken by another user.
    #[tokio::test]
    async fn the_session_is_over_if_the_launcher_listens_nowhere() {
        let BoundListener { at, listener } = listen(Reach::Here).await.expect("a port").with_local_socket();
        drop(listener);
        let addresses = candidates(None, at);
        assert_eq!(addresses.len(), 2);
        let began = Instant::now();
        assert!(rejoining(vec![(AgentId::ROOT, addresses)]).run(began + LONG).await.is_none());
        assert!(began.elapsed() < LONG / 2, "it does not wait for the deadline");
    }
}
