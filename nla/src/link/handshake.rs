//! The handshake on a stream: a child connects, a parent authenticates it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use litemap::LiteMap;
use nix::sys::socket::{setsockopt, sockopt};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::timeout;

use super::address::{Address, LocalSocket};
use super::clock::Clock;
use super::key::SessionKey;
use super::listener::{Listener, Peer};
use super::stream::{ReadHalf, Stream, Witness, WriteHalf};
use super::unproven::{RefusalLog, Source, Unproven};
use crate::core::limits::{FIRST_MESSAGE_TIME, HELLO_TIME, RECORD_BYTES_MAX};
use crate::core::{AgentId, Subtree, Time};
use crate::sys::{connect_to_name, peer_of};
use crate::wire::{
    Assembler, Content, Established, Hello, HelloError, Initiator, Lane, Opener, RecordError, Responder, Role, Sealer,
    Seen, SessionId, Welcome, decode, encode, framed,
};

/// Why a connection did not become a link.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The ends do not trust each other, or their versions differ.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// A record after the handshake could not be decrypted.
    #[error("unexpected data after the handshake: {0}")]
    Record(#[from] RecordError),
    /// The process at the other end of a Unix socket belongs to another user.
    #[error("the other end belongs to another user")]
    OtherUser,
    /// The machine failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The handshake took longer than [`HELLO_TIME`].
    #[error("the hello took longer than {} s", HELLO_TIME.as_secs())]
    Late,
    /// The first message took longer than [`FIRST_MESSAGE_TIME`].
    #[error("no hello arrived within {} s", FIRST_MESSAGE_TIME.as_secs())]
    Silent,
    /// A peer that knows the key closed the connection before it had said which agent it is: the agent has given up a parent
    /// that did not answer in time, or has exited.
    #[error("the agent closed the connection in the middle of its hello")]
    Left,
    /// The agent proved to be of the session, but is no expected child, or has joined already.
    #[error("agent {0} is not expected here, or has already joined")]
    NotExpected(AgentId),
}

impl HandshakeError {
    /// Returns whether another connection may succeed: the peer accepted this one and then closed it.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            // A Unix socket whose listener has no room refuses at once.
            Self::Io(error) => {
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::WouldBlock)
            }
            Self::Hello(error) => matches!(error, HelloError::Truncated),
            Self::OtherUser | Self::Record(_) | Self::Late | Self::Silent | Self::Left | Self::NotExpected(_) => false,
        }
    }
}

/// A stream whose other end is known.
pub struct Accepted {
    /// The agent at the other end.
    pub peer: AgentId,
    pub(crate) stream: Stream,
    pub(crate) established: Established,
}

impl Accepted {
    /// A link over pipes that the launcher has made and one forked agent has inherited. No other process keeps their ends open, and
    /// the key arrives over the same pipes: such a link needs neither a handshake nor encryption.
    pub(crate) fn over_inherited(mut stream: Stream, peer: AgentId) -> Self {
        stream.widen_pipes();
        stream.witness = Witness::Stream;
        Self { peer, stream, established: Established::unencrypted() }
    }

    /// Ends the encryption of a Unix socket, once the handshake on it has ended: the kernel passes the bytes from one of this user's
    /// processes to the other, and shows them to nobody else. Both ends do so at the same place, after the welcome.
    fn without_needless_encryption(mut self) -> Self {
        if self.stream.is_local() {
            self.established = Established::unencrypted();
        }
        self
    }

    /// Sends a message of at most a record's size. For streams that are no link, or not yet.
    pub(crate) async fn send<M: serde::Serialize>(&mut self, message: &M) -> Result<(), HandshakeError> {
        send(&mut self.stream.write, &mut self.established.sealer, &framed(&encode(message))).await
    }

    /// Receives the next such message. Cancel safe.
    pub(crate) async fn receive<M: serde::de::DeserializeOwned>(&mut self) -> Result<M, HandshakeError> {
        let Stream { read, unread, .. } = &mut self.stream;
        decoded(&receive(read, unread, &mut self.established.opener).await?)
    }

    /// Sets TCP keep-alive: the connection may be silent for long, and ends when the other host has not answered for about
    /// `dead_time`. A stopped process counts as alive.
    pub(crate) fn keep_alive(&self, dead_time: Duration) -> nix::Result<()> {
        const PROBES: u32 = 4;
        let Some(connection) = self.stream.as_connection() else { return Ok(()) };
        let pause = (dead_time.as_secs() as u32 / PROBES).max(1);
        setsockopt(connection, sockopt::TcpKeepIdle, &pause)?;
        setsockopt(connection, sockopt::TcpKeepInterval, &pause)?;
        setsockopt(connection, sockopt::TcpKeepCount, &(PROBES - 1))?;
        setsockopt(connection, sockopt::KeepAlive, &true)?;
        // The same bound for sent bytes that are not acknowledged.
        setsockopt(connection, sockopt::TcpUserTimeout, &(dead_time.as_millis() as u32))
    }

    /// Splits a stream that does not become a link into its two directions.
    pub(crate) fn into_halves(self) -> (MessageSender, MessageReceiver) {
        let (Stream { read, write, unread, .. }, Established { sealer, opener }) = (self.stream, self.established);
        (MessageSender { write, sealer }, MessageReceiver { read, unread, opener })
    }
}

/// The sending direction of a stream that is no link.
pub(crate) struct MessageSender {
    write: WriteHalf,
    sealer: Sealer,
}

impl MessageSender {
    /// Sends a message of at most a record's size.
    pub(crate) async fn send<M: serde::Serialize>(&mut self, message: &M) -> Result<(), HandshakeError> {
        send(&mut self.write, &mut self.sealer, &framed(&encode(message))).await
    }
}

/// The receiving direction of a stream that is no link.
pub(crate) struct MessageReceiver {
    read: ReadHalf,
    unread: BytesMut,
    opener: Opener,
}

impl MessageReceiver {
    /// Receives the next message. Cancel safe.
    pub(crate) async fn receive<M: serde::de::DeserializeOwned>(&mut self) -> Result<M, HandshakeError> {
        decoded(&receive(&mut self.read, &mut self.unread, &mut self.opener).await?)
    }
}

async fn send(write: &mut WriteHalf, sealer: &mut Sealer, framed: &[u8]) -> Result<(), HandshakeError> {
    let mut out = Vec::new();
    sealer.seal(&Content::Piece(Lane::Control, framed), &mut out);
    Ok(write.write_all(&out).await?)
}

async fn receive(read: &mut ReadHalf, unread: &mut BytesMut, opener: &mut Opener) -> Result<Bytes, HandshakeError> {
    loop {
        if let Some((content, length)) = opener.open(unread)? {
            let Content::Piece(Lane::Control, piece) = content else { return Err(HelloError::Unexpected.into()) };
            let mut assembler = Assembler::new(Lane::Control);
            assembler.push(piece);
            let message = assembler.next_message().ok().flatten().ok_or(HelloError::Unexpected)?;
            unread.advance(length);
            return Ok(message);
        }
        unread.reserve(RECORD_BYTES_MAX);
        if read.read_buf(unread).await? == 0 {
            return Err(HelloError::Truncated.into());
        }
    }
}

fn decoded<M: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<M, HandshakeError> {
    Ok(decode(bytes).map_err(|_| HelloError::Unexpected)?)
}

/// Runs a handshake within [`HELLO_TIME`].
async fn in_time<T>(handshake: impl Future<Output = Result<T, HandshakeError>>) -> Result<T, HandshakeError> {
    timeout(HELLO_TIME, handshake).await.unwrap_or(Err(HandshakeError::Late))
}

/// Connects as `agent` to the process at `address`, for the purpose of `role`. Returns the stream and the session's time.
pub async fn connect(
    address: impl Into<Address>,
    role: Role,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let address = address.into();
    let handshake = async {
        let stream = match &address {
            Address::Local(socket) => Stream::local(connect_here(socket)?),
            Address::Network(address) => Stream::connection(TcpStream::connect(address).await?),
        };
        initiate(stream, role, agent, session, key).await
    };
    in_time(handshake).await
}

/// Connects to a socket of this user.
fn connect_here(socket: &LocalSocket) -> Result<UnixStream, HandshakeError> {
    let stream = connect_to_name(&socket.name)?;
    if !peer_of(&stream)?.is_own() {
        return Err(HandshakeError::OtherUser);
    }
    Ok(UnixStream::from_std(stream)?)
}

/// Does the same over the pipes of a remote shell.
pub(crate) async fn connect_over(
    stream: Stream,
    role: Role,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    in_time(initiate(stream, role, agent, session, key)).await
}

/// Runs the child's part of the handshake.
async fn initiate(
    mut stream: Stream,
    role: Role,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let (initiator, request) = Initiator::new(session, key.bytes(), role)?;
    stream.write.write_all(&request).await?;
    let mut verdict = [0; Initiator::VERDICT_BYTES];
    read(&mut stream, &mut verdict).await?;
    initiator.verdict(&verdict)?;
    let mut message = [0; Initiator::ANSWER_BYTES - Initiator::VERDICT_BYTES];
    read(&mut stream, &mut message).await?;
    let mut accepted = Accepted { peer: role.acceptor(), stream, established: initiator.finish(&message)? };
    accepted.send(&Hello { agent }).await?;
    let Welcome { now } = accepted.receive().await?;
    Ok((accepted.without_needless_encryption(), now))
}

/// Fills `bytes` from the unread bytes, then from the stream.
async fn read(stream: &mut Stream, bytes: &mut [u8]) -> Result<(), HandshakeError> {
    let (first, rest) = bytes.split_at_mut(stream.unread.len().min(bytes.len()));
    stream.unread.copy_to_slice(first);
    match stream.read.read_exact(rest).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(HelloError::Truncated.into()),
        Err(error) => Err(error.into()),
    }
}

/// Decides who may join: knows the session, its key, the expected children, and the handshakes seen so far.
pub struct Authenticator {
    session: SessionId,
    key: SessionKey,
    role: Role,
    /// The children that have not joined.
    expected: LiteMap<AgentId, ()>,
    /// Subtrees whose agents may join in addition.
    orphans: Vec<Subtree>,
    /// The agents of these subtrees that have joined.
    adopted: LiteMap<AgentId, ()>,
    seen: Seen,
    unproven: Unproven,
}

impl Authenticator {
    /// Creates an authenticator that admits each of `children` once, for the purpose of `role` only.
    pub fn new(session: SessionId, key: SessionKey, role: Role, children: impl IntoIterator<Item = AgentId>) -> Self {
        let mut expected = LiteMap::new();
        for child in children {
            expected.insert(child, ());
        }
        let (orphans, adopted, seen) = Default::default();
        Self { session, key, role, expected, orphans, adopted, seen, unproven: Unproven::of_this_process() }
    }

    /// From now on, also admits each agent of these subtrees once.
    fn adopt(&mut self, orphans: Vec<Subtree>) {
        self.orphans = orphans;
    }

    /// Returns whether this agent may join now. It may do so once.
    fn admits(&mut self, agent: AgentId) -> bool {
        if self.expected.remove(&agent).is_some() {
            return true;
        }
        let Some(at) = self.orphans.iter().position(|orphan| orphan.contains(agent)) else { return false };
        let is_first = self.adopted.insert(agent, ()).is_none();
        if is_first {
            // Agents below this one belong to it now.
            self.orphans.swap_remove(at);
        }
        is_first
    }

    /// Adds an unproven connection. Returns its number, and that of the connection that is closed for it.
    fn add_connection(&mut self, source: Source) -> (u64, Option<u64>) {
        self.unproven.add(source, self.expected.len() + self.orphans.len())
    }

    /// Returns whether all expected children have joined.
    pub fn is_done(&self) -> bool {
        self.expected.is_empty()
    }
}

/// The means by which a listener answers its connections.
pub struct Admission {
    /// Admits the children.
    pub authenticator: Authenticator,
    /// The session's clock.
    pub clock: Clock,
    /// Takes each authenticated stream.
    pub joined: mpsc::Sender<Accepted>,
    /// Yields the subtrees whose agents may join in addition; they replace those before. The listener stays open as long as
    /// the other end exists.
    pub adopted: Option<mpsc::Receiver<Vec<Subtree>>>,
}

/// Accepts connections and holds them until `admission` arrives, then calls [`accept_children`] with them. Ends if the
/// other end of `admission` is dropped.
///
/// A port is open before its agent knows its children. If no connection were accepted until then, strangers could fill
/// the kernel's queue, and a child's first packet would be dropped and sent again only a second later.
pub async fn accept_early(listener: impl Into<Listener>, mut admission: oneshot::Receiver<Admission>) {
    let listener = listener.into();
    let mut held = Held::new();
    let admission = loop {
        let connection = tokio::select! {
            biased;
            admission = &mut admission => break admission,
            connection = listener.next() => connection,
        };
        match connection {
            Ok((stream, peer)) if peer.may_speak() => held.add(stream, peer),
            Ok(_) => tracing::debug!("a process of another user has connected"),
            // No descriptor is left.
            Err(_) => held.close_oldest(),
        }
    };
    if let Ok(admission) = admission {
        answer_connections(listener, held, admission).await;
    }
}

/// Accepts connections until all expected children have joined; each authenticated stream goes to `joined`. None of
/// them delays another, and the oldest is closed for a new one if too many are unproven. Dropping this drops these
/// connections without a message.
pub async fn accept_children(
    listener: impl Into<Listener>,
    authenticator: Authenticator,
    clock: Clock,
    joined: mpsc::Sender<Accepted>,
) {
    answer_connections(listener.into(), Held::new(), Admission { authenticator, clock, joined, adopted: None }).await;
}

async fn answer_connections(listener: Listener, held: Held, admission: Admission) {
    let Admission { authenticator, clock, joined, mut adopted } = admission;
    let authenticator = Rc::new(RefCell::new(authenticator));
    let mut handshakes = Handshakes::default();
    let answer = |handshakes: &mut Handshakes, stream: Stream, peer: Peer| {
        let (number, closed) = authenticator.borrow_mut().add_connection(peer.source());
        handshakes.close(closed);
        let (authenticator, refusals, joined) =
            (Rc::clone(&authenticator), Rc::clone(&handshakes.refusals), joined.clone());
        let handshake = async move {
            let accepted = in_time(admit(stream, &authenticator, || clock.now(), Some(number))).await;
            authenticator.borrow_mut().unproven.remove(number);
            match accepted {
                Ok(accepted) => drop(joined.send(accepted).await),
                Err(error) => log_refusal(&refusals, clock.now(), peer, &error),
            }
            number
        };
        handshakes.spawn(number, handshake);
    };
    for (_, stream, peer) in held.connections {
        answer(&mut handshakes, stream, peer);
    }
    while !authenticator.borrow().is_done() || adopted.is_some() {
        let connection = tokio::select! {
            connection = listener.next() => connection,
            more = async { adopted.as_mut()?.recv().await }, if adopted.is_some() => {
                match more {
                    Some(orphans) => authenticator.borrow_mut().adopt(orphans),
                    None => adopted = None,
                }
                continue;
            }
            Some(ended) = handshakes.tasks.join_next() => {
                handshakes.on_end(ended);
                continue;
            }
        };
        let Ok((stream, peer)) = connection else {
            // No descriptor is left.
            let oldest = authenticator.borrow_mut().unproven.remove_oldest();
            handshakes.close(oldest);
            continue;
        };
        if !peer.may_speak() {
            log_refusal(&handshakes.refusals, clock.now(), peer, &HandshakeError::OtherUser);
            continue;
        }
        answer(&mut handshakes, stream, peer);
    }
    drop(listener);
    // The last child may not have been sent its welcome yet.
    while let Some(ended) = handshakes.tasks.join_next().await {
        handshakes.on_end(ended);
    }
    log_omitted(handshakes.refusals.borrow_mut().take_omitted());
}

/// Connections that wait until their listener can answer them, oldest first.
struct Held {
    connections: VecDeque<(u64, Stream, Peer)>,
    unproven: Unproven,
}

impl Held {
    fn new() -> Self {
        Self { connections: VecDeque::new(), unproven: Unproven::of_this_process() }
    }

    fn add(&mut self, stream: Stream, peer: Peer) {
        // All of an agent's children may have one address and be here before it knows how many they are. More than the
        // bound connect again.
        let (number, closed) = self.unproven.add(peer.source(), self.unproven.max);
        self.connections.retain(|(number, ..)| Some(*number) != closed);
        self.connections.push_back((number, stream, peer));
    }

    fn close_oldest(&mut self) {
        self.unproven.remove_oldest();
        self.connections.pop_front();
    }
}

/// The handshakes under way at a listener, by the numbers of their connections.
#[derive(Default)]
struct Handshakes {
    tasks: JoinSet<u64>,
    running: LiteMap<u64, AbortHandle>,
    refusals: Rc<RefCell<RefusalLog>>,
}

impl Handshakes {
    fn spawn(&mut self, number: u64, handshake: impl Future<Output = u64> + 'static) {
        let handle = self.tasks.spawn_local(handshake);
        self.running.insert(number, handle);
    }

    /// Closes a connection.
    fn close(&mut self, number: Option<u64>) {
        if let Some(handshake) = number.and_then(|number| self.running.remove(&number)) {
            handshake.abort();
        }
    }

    /// Notes that a handshake has ended. Continues its panic in the listener's task, which reports it.
    fn on_end(&mut self, ended: Result<u64, JoinError>) {
        match ended.map_err(JoinError::try_into_panic) {
            Ok(number) => drop(self.running.remove(&number)),
            Err(Ok(payload)) => std::panic::resume_unwind(payload),
            // The connection was closed.
            Err(Err(_)) => {}
        }
    }
}

fn log_refusal(refusals: &RefCell<RefusalLog>, now: Time, peer: Peer, error: &HandshakeError) {
    match error {
        // An agent that exits during its handshake is no reason to warn.
        HandshakeError::Io(error) => tracing::debug!(%peer, %error, "a connection broke during its handshake"),
        // A launcher that was stopped answers agents that have given it up.
        error @ HandshakeError::Left => tracing::debug!(%peer, %error, "a connection broke during its handshake"),
        // An agent that has lost its parent may notice that before its ancestor does. It tries again.
        error @ HandshakeError::NotExpected(_) => tracing::debug!(%peer, %error, "a connection was refused"),
        error => {
            let mut refusals = refusals.borrow_mut();
            let Some(omitted) = refusals.note(now) else { return };
            log_omitted(omitted);
            // Other users of the machine find the socket in /proc/net/unix, and must not write to this user's terminal.
            if !matches!(error, HandshakeError::OtherUser) && refusals.warns() {
                tracing::warn!(%peer, %error, "a connection was refused");
            } else {
                tracing::debug!(%peer, %error, "a connection was refused");
            }
        }
    }
}

fn log_omitted(omitted: u64) {
    if omitted > 0 {
        tracing::debug!(omitted, "more connections were refused");
    }
}

/// Authenticates a connection. Nothing that it sends is parsed before it has proved that it knows the key.
/// `authenticator` is never borrowed across a wait, so that a silent peer delays no other connection.
pub async fn accept(
    stream: TcpStream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    accept_over(Stream::connection(stream), authenticator, now).await
}

/// Does the same over the pipes of a remote shell.
pub(crate) async fn accept_over(
    stream: Stream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    in_time(admit(stream, authenticator, now, None)).await
}

/// `number` is that of an unproven connection.
async fn admit(
    mut stream: Stream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
    number: Option<u64>,
) -> Result<Accepted, HandshakeError> {
    let mut request = [0; Responder::REQUEST_BYTES];
    let first = read(&mut stream, &mut request);
    if number.is_some() {
        timeout(FIRST_MESSAGE_TIME, first).await.unwrap_or(Err(HandshakeError::Silent))?;
    } else {
        first.await?;
    }
    let (result, answer) = {
        let Authenticator { session, key, role, seen, .. } = &mut *authenticator.borrow_mut();
        Responder::answer(&request, *session, key.bytes(), *role, seen)
    };
    stream.write.write_all(&answer).await?;
    // The hello says which agent it is.
    let mut accepted = Accepted { peer: AgentId::ROOT, stream, established: result? };
    Hello { agent: accepted.peer } = match accepted.receive().await {
        Err(HandshakeError::Hello(HelloError::Truncated)) => return Err(HandshakeError::Left),
        received => received?,
    };
    // Its request alone may be a replay. A record cannot be.
    if let Some(number) = number {
        authenticator.borrow_mut().unproven.remove(number);
    }
    if !authenticator.borrow_mut().admits(accepted.peer) {
        return Err(HandshakeError::NotExpected(accepted.peer));
    }
    accepted.send(&Welcome { now: now() }).await?;
    Ok(accepted.without_needless_encryption())
}
