//! Agents that call back: to a port that is open while they come, as soon as they have their order. Such a
//! connection, whose ends have proved that they know the session's key, is the agent's bootstrap channel.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{BootCommand, BootOrder, BootReport};
use super::starter::Shared;
use crate::core::AgentId;
use crate::core::limits::HELLO_TIME;
use crate::link::Clock;
use crate::link::listener::{self as reach, BoundListener};
use crate::link::{Accepted, Authenticator, accept_children};

/// Bound of the queue of those that have called.
const QUEUE: usize = 64;

/// A port that is open until all have called that are to, or it is dropped.
pub(super) struct Port {
    /// Where they find it, the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
    /// Who has proved to be of the session.
    pub(super) arrivals: mpsc::Receiver<Accepted>,
    door: JoinHandle<()>,
}

impl Port {
    /// Opens one for those of these numbers. They find this process at `own` addresses; where none are given, at
    /// those that it knows of itself.
    pub(super) async fn open(
        order: &BootOrder,
        numbers: RangeInclusive<u32>,
        own: &[IpAddr],
    ) -> Result<Self, StartFailure> {
        let no_port = |error| StartFailure::new(StartPhase::ConnectBack, format!("no port to listen on: {error}"));
        let door = reach::listen(order.reach).await.map_err(no_port)?;
        let Some(BoundListener { mut addresses, listener }) = door else {
            return Err(no_port(io::ErrorKind::Unsupported.into()));
        };
        if !own.is_empty() {
            let port = addresses.first().map_or(0, SocketAddr::port);
            addresses = own.iter().map(|address| SocketAddr::new(*address, port)).collect();
        }
        let (arrived, arrivals) = mpsc::channel(QUEUE);
        let authenticator = Authenticator::new(order.session, order.key.clone(), numbers.map(AgentId));
        // They take the session's time from their parents.
        let door = tokio::task::spawn_local(accept_children(listener, authenticator, Clock::start(), arrived));
        Ok(Self { addresses, arrivals, door })
    }

    /// Lets nobody in any more: it is free for others then.
    pub(super) async fn close(&mut self) {
        self.door.abort();
        let _ = (&mut self.door).await;
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.door.abort();
    }
}

type Awaited = BTreeMap<u32, oneshot::Sender<Accepted>>;

/// The agents at the other ends of sessions, each of which is to call.
pub(super) struct Callers {
    /// Where they find this process, the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
    awaited: Rc<RefCell<Awaited>>,
}

impl Callers {
    /// Opens a port for the agents at these targets, as [`Port::open`] does. It is closed with the starter.
    pub(super) async fn open(
        shared: &Shared,
        targets: RangeInclusive<u32>,
        own: &[IpAddr],
    ) -> Result<Self, StartFailure> {
        let mut port = Port::open(&shared.order, targets, own).await?;
        let (addresses, awaited) = (port.addresses.clone(), Rc::<RefCell<Awaited>>::default());
        let waiting = Rc::clone(&awaited);
        shared.spawn(async move {
            while let Some(accepted) = port.arrivals.recv().await {
                // Who is not awaited any more was too late: it leaves when it hears nothing.
                if let Some(waiter) = waiting.borrow_mut().remove(&accepted.peer.0) {
                    let _ = waiter.send(accepted);
                }
            }
        });
        Ok(Self { addresses, awaited })
    }

    /// The call of the agent at a target, and what it says first. Pending for ever if it does not call.
    pub(super) async fn call_of(&self, target: u32) -> (Member, BootReport) {
        let (waiter, call) = oneshot::channel();
        self.awaited.borrow_mut().insert(target, waiter);
        if let Ok(mut accepted) = call.await {
            match timeout(HELLO_TIME, accepted.receive()).await {
                Ok(Ok(report)) => return (Member::new(accepted, StartPhase::Ended), report),
                other => tracing::warn!(target, ?other, "an agent has called and does not say what it should"),
            }
        }
        std::future::pending().await
    }
}

/// The connection of an agent that is there.
pub(super) struct Member {
    accepted: Accepted,
    /// How far its start has come when it is lost.
    lost: StartPhase,
}

impl Member {
    pub(super) fn new(accepted: Accepted, lost: StartPhase) -> Self {
        Self { accepted, lost }
    }

    /// Waits for a report, or for something to tell. `None` at the end.
    pub(super) async fn next_of(&mut self, commands: &mut mpsc::UnboundedReceiver<BootCommand>) -> Option<BootReport> {
        loop {
            let command = tokio::select! {
                report = self.accepted.receive() => return report.ok(),
                Some(command) = commands.recv() => command,
            };
            // If it does not listen any more, it says nothing more either.
            let _ = self.accepted.send(&command).await;
        }
    }

    /// Why it has ended.
    pub(super) fn ended(&self) -> StartFailure {
        StartFailure::new(self.lost, "its agent ended before it was part of the tree")
    }
}
