//! Agents that call back: as soon as an agent has its order, it connects to a port of the process that started it.
//! After the handshake, in which both ends prove that they know the session's key, that connection is the agent's
//! bootstrap channel.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;

use litemap::LiteMap;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::Span;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::BootReport;
use super::starter::Shared;
use crate::core::AgentId;
use crate::core::limits::HELLO_TIME;
use crate::link::{Accepted, Authenticator, BoundListener, Clock, accept_children, listen};
use crate::wire::Role;

/// Bound of the queue of authenticated connections.
const QUEUE: usize = 64;

/// A port for callbacks. It is closed once all expected agents have connected, or when this is dropped.
pub(super) struct CallbackListener {
    /// The addresses at which agents find it, the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
    /// The connections whose other ends have proved that they know the key.
    pub(super) arrivals: mpsc::Receiver<Accepted>,
    accepting: JoinHandle<()>,
}

impl CallbackListener {
    /// Opens a port for agents that identify themselves by these numbers. They find this process at the `own`
    /// addresses; without any, at those of its interfaces.
    pub(super) async fn open(
        Shared { order, spawner, .. }: &Shared,
        numbers: RangeInclusive<u32>,
        own: &[IpAddr],
    ) -> Result<Self, StartFailure> {
        let no_port = |error| StartFailure::new(StartPhase::ConnectBack, format!("no port to listen on: {error}"));
        let BoundListener { at, listener } = listen(order.reach).await.map_err(no_port)?;
        let mut addresses = at.addresses;
        let listener = listener.ok_or_else(|| no_port(io::ErrorKind::Unsupported.into()))?;
        if !own.is_empty() {
            let port = addresses.first().map_or(0, SocketAddr::port);
            addresses = own.iter().map(|address| SocketAddr::new(*address, port)).collect();
        }
        let (arrived, arrivals) = mpsc::channel(QUEUE);
        let role = Role::Callback { starter: order.starter };
        let authenticator = Authenticator::new(order.session, order.key.clone(), role, numbers.map(AgentId));
        // The agents ignore the time in this welcome: they take the session's time from their parents.
        let accepting = accept_children(listener, authenticator, Clock::start(), arrived);
        let accepting = spawner.spawn("callback listener", Span::current(), accepting);
        Ok(Self { addresses, arrivals, accepting })
    }

    /// Closes the port, so that another step can listen on it.
    pub(super) async fn close(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for CallbackListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Expected = LiteMap<u32, oneshot::Sender<Accepted>>;

/// The callbacks of the agents that remote shells start.
pub(super) struct Callbacks {
    /// The addresses at which agents find this process, the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
    expected: Rc<RefCell<Expected>>,
}

impl Callbacks {
    /// Opens a port for the agents at these targets, as [`CallbackListener::open`] does. It is closed with the starter.
    pub(super) async fn listen(
        shared: &Shared,
        targets: RangeInclusive<u32>,
        own: &[IpAddr],
    ) -> Result<Self, StartFailure> {
        let mut listener = CallbackListener::open(shared, targets, own).await?;
        let (addresses, expected) = (listener.addresses.clone(), Rc::<RefCell<Expected>>::default());
        let waiting = Rc::clone(&expected);
        shared.spawn(async move {
            while let Some(accepted) = listener.arrivals.recv().await {
                // An agent whose start was given up is dropped here; it exits when its connection ends.
                if let Some(waiter) = waiting.borrow_mut().remove(&accepted.peer.0) {
                    let _ = waiter.send(accepted);
                }
            }
        });
        Ok(Self { addresses, expected })
    }

    /// Waits for the callback of the agent at a target, and its first report. Pending for ever if it does not call.
    pub(super) async fn call_of(&self, target: u32) -> (Accepted, BootReport) {
        let (waiter, call) = oneshot::channel();
        self.expected.borrow_mut().insert(target, waiter);
        if let Ok(mut accepted) = call.await {
            match timeout(HELLO_TIME, accepted.receive()).await {
                Ok(Ok(report)) => return (accepted, report),
                other => tracing::warn!(target, ?other, "an agent called back and sent no valid report"),
            }
        }
        std::future::pending().await
    }
}
