//! The controller's end of its connections to keepers.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::Span;
use zeroize::Zeroizing;

use super::message::{AgentSpec, ChannelNumber, FromKeeper, KeeperOrder, NodeState, StreamName, ToKeeper};
use super::relay::{Ends, Relay};
use crate::core::AgentId;
use crate::link::{
    Accepted, Authenticator, BoundListener, Clock, HandshakeError, Reach, SessionKey, accept_children, listen,
};
use crate::tasks::Tasks;
use crate::wire::{HelloError, Role, SessionId, secret_frame};

/// A number that the controller gives a keeper.
pub type KeeperNumber = u32;

/// Keepers whose handshakes have succeeded and that were not taken.
const QUEUE: usize = 64;
/// Messages to a keeper that wait for its connection. A stream with more waits.
const OUTGOING: usize = 64;

/// The role of a keeper's connection.
pub(super) const ROLE: Role = Role::Callback { starter: 0 };

/// Opens a port for these keepers, which are the ranks of one session, in order. It is closed once all of them have connected.
/// `reached_at` turns the addresses of this host into those that keepers try. Returns the order for the keepers, which they read from
/// standard input, and their connections.
pub async fn await_keepers(
    keepers: Range<KeeperNumber>,
    reach: Reach,
    dead_time: Duration,
    reached_at: impl FnOnce(Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>>,
    tasks: &Tasks,
) -> io::Result<(Zeroizing<Vec<u8>>, mpsc::Receiver<Accepted>)> {
    let mut random = crate::sys::random_source()?;
    let key = SessionKey::read_from(&mut random)?;
    let mut number = [0; 8];
    io::Read::read_exact(&mut random, &mut number)?;
    let session = SessionId(u64::from_le_bytes(number));
    let BoundListener { at, listener } = listen(reach).await?;
    let listener = listener.ok_or(io::ErrorKind::Unsupported)?;
    let authenticator = Authenticator::new(session, key.clone(), ROLE, keepers.clone().map(AgentId));
    let (arrived, arrivals) = mpsc::channel(QUEUE);
    let accepting = accept_children(listener, authenticator, Clock::start(), arrived);
    tasks.spawn("keeper listener", Span::current(), accepting);
    let order = KeeperOrder { session, key, controller: reached_at(at.addresses)?, first: keepers.start, dead_time };
    Ok((secret_frame(&order), arrivals))
}

/// Something that a keeper has reported.
#[derive(Debug)]
pub enum KeeperEvent {
    /// The state of its node. A keeper that was silent answers again.
    State(KeeperNumber, NodeState),
    /// It has not answered for the dead time, although its connection stands: it may be stopped.
    Silent(KeeperNumber, Duration),
    /// Its connection has ended, for this reason.
    Lost(KeeperNumber, String),
}

/// The streams of an agent, at the process that has asked for it.
pub struct AgentStreams {
    /// Yields standard input. A pipe, as the others.
    pub input: OwnedFd,
    /// Takes standard output.
    pub output: OwnedFd,
    /// Takes standard error.
    pub errors: OwnedFd,
}

/// A keeper that has connected.
pub struct Keeper {
    relay: Rc<Relay>,
    outgoing: mpsc::UnboundedSender<ToKeeper>,
    next_channel: ChannelNumber,
}

/// How often a keeper is asked for its state in a dead time.
const QUESTIONS: u32 = 4;

/// Follows a keeper that has connected, and sends its reports to `events`, until the connection ends. A keeper that is silent for the
/// dead time starts no agents: those that it was to start fail.
pub fn follow_keeper(
    accepted: Accepted,
    dead_time: Duration,
    events: mpsc::Sender<KeeperEvent>,
    tasks: &Tasks,
) -> (KeeperNumber, Keeper) {
    let number = accepted.peer.0;
    // Only keep-alive detects the loss of the other host.
    let _ = accepted.keep_alive(dead_time);
    let (mut sender, mut receiver) = accepted.into_halves();
    let (parcels, mut outgoing_parcels) = mpsc::channel(OUTGOING);
    // Bounded by the agents that sessions ask for, and the questions of users.
    let (outgoing, mut commands) = mpsc::unbounded_channel::<ToKeeper>();
    let relay = Rc::new(Relay::new(parcels, tasks.clone()));
    tasks.spawn("to keeper", Span::current(), async move {
        loop {
            let message = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(command) => command,
                    None => return,
                },
                Some(parcel) = outgoing_parcels.recv() => ToKeeper::Parcel(parcel),
            };
            if sender.send(&message).await.is_err() {
                return;
            }
        }
    });
    // Weak: the connection ends when the keeper is dropped.
    let (to_relay, questions) = (Rc::clone(&relay), outgoing.downgrade());
    tasks.spawn("from keeper", Span::current(), async move {
        let (mut is_silent, mut unanswered) = (false, 0);
        let period = dead_time / (QUESTIONS + 1);
        let mut due = interval_at(Instant::now() + period, period);
        // Time in which this process did not run does not count.
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let why = loop {
            let received = tokio::select! {
                biased;
                received = receiver.receive() => received,
                _ = due.tick() => {
                    if unanswered == QUESTIONS && !is_silent {
                        is_silent = true;
                        let why = format!("the keeper of this node was silent for {} s", dead_time.as_secs_f32());
                        for channel in to_relay.lose(&why) {
                            let _ = questions.upgrade().map(|questions| questions.send(ToKeeper::Close(channel)));
                        }
                        let _ = events.send(KeeperEvent::Silent(number, dead_time)).await;
                    }
                    // One more question would wait in the connection.
                    if unanswered < QUESTIONS {
                        unanswered += 1;
                        let _ = questions.upgrade().map(|questions| questions.send(ToKeeper::Report));
                    }
                    continue;
                }
            };
            (is_silent, unanswered) = (false, 0);
            match received {
                Ok(FromKeeper::State(state)) => drop(events.send(KeeperEvent::State(number, state)).await),
                Ok(FromKeeper::Parcel(parcel)) => {
                    if let Err(excess) = to_relay.on_parcel(parcel) {
                        break excess.to_string();
                    }
                }
                Err(HandshakeError::Hello(HelloError::Truncated)) => break "its connection was closed".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        to_relay.lose(&format!("the keeper of this node was lost: {why}"));
        let _ = events.send(KeeperEvent::Lost(number, why)).await;
    });
    (number, Keeper { relay, outgoing, next_channel: 1 })
}

impl Keeper {
    /// Starts an agent on the keeper's node. If that fails, its streams end, and standard error says why.
    /// Returns the number of its channel.
    pub fn start_agent(&mut self, agent: AgentSpec, streams: AgentStreams) -> io::Result<ChannelNumber> {
        let channel = self.next_channel;
        self.next_channel += 1;
        let AgentStreams { input, output, errors } = streams;
        // The keeper opens its end first.
        let _ = self.outgoing.send(ToKeeper::Open(channel, agent));
        let ends = Ends {
            sources: vec![(StreamName::Input, input)],
            sinks: vec![(StreamName::Output, output), (StreamName::Errors, errors)],
        };
        self.relay.open(channel, ends).inspect_err(|_| self.close(channel))?;
        Ok(channel)
    }

    /// Drops the channel to an agent. An agent that has not joined its session exits then.
    pub fn close(&self, channel: ChannelNumber) {
        self.relay.close(channel);
        let _ = self.outgoing.send(ToKeeper::Close(channel));
    }

    /// Asks for the state of the node.
    pub fn ask_for_state(&self) {
        let _ = self.outgoing.send(ToKeeper::Report);
    }
}
