//! The hello over a real connection: a child that connects, a parent that lets in.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::clock::Clock;
use super::listener as reach;
use super::stream::Stream;
use crate::core::limits::{HELLO_TIME, RECORD_BYTES_MAX, STRANGERS_MAX};
use crate::core::{AgentId, Time};
use crate::wire::{
    Assembler, Content, Established, Hello, HelloError, Initiator, Lane, RecordError, Responder, Seen, SessionId,
    SessionKey, Welcome, decode, encode, framed,
};

/// Why a connection did not become a link.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// One end has no reason to trust the other.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// What came after the handshake does not open.
    #[error("after the handshake came {0}")]
    Record(#[from] RecordError),
    /// The machine failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It took too long.
    #[error("the hello took longer than {} s", HELLO_TIME.as_secs())]
    Late,
    /// It proved to be of the session, but is not awaited here.
    #[error("agent {0} is not awaited here, or is here already")]
    NotExpected(AgentId),
}

impl HandshakeError {
    /// The connection broke, and nothing was wrong before.
    fn went_away(&self) -> bool {
        matches!(self, Self::Io(_))
    }
}

/// A connection whose other end has proved who it is.
pub struct Accepted {
    /// The other end.
    pub peer: AgentId,
    pub(crate) stream: Stream,
    pub(crate) established: Established,
    pub(crate) leftover: BytesMut,
}

impl Accepted {
    /// Sends a message of at most a record's size, before this is a link or where it never becomes one.
    pub(crate) async fn send<M: serde::Serialize>(&mut self, message: &M) -> Result<(), HandshakeError> {
        send(&mut self.stream, &mut self.established, message).await
    }

    /// The next such message of the other end. Nothing is lost if it is dropped before it is done.
    pub(crate) async fn receive<M: serde::de::DeserializeOwned>(&mut self) -> Result<M, HandshakeError> {
        receive(&mut self.stream, &mut self.established, &mut self.leftover).await
    }
}

/// Connects to the parent at `address` as `agent`: the connection, and the session's time.
pub async fn connect(
    address: SocketAddr,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    timeout(HELLO_TIME, greet(address, parent, agent, session, key)).await.map_err(|_| HandshakeError::Late)?
}

/// The same over the agent's own session, from whose opener `leftover` has come already.
pub(crate) async fn connect_over(
    stream: Stream,
    leftover: BytesMut,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let greeting = introduce(stream, leftover, parent, agent, session, key);
    timeout(HELLO_TIME, greeting).await.map_err(|_| HandshakeError::Late)?
}

async fn greet(
    address: SocketAddr,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let stream = Stream::connection(TcpStream::connect(address).await?);
    introduce(stream, BytesMut::new(), parent, agent, session, key).await
}

/// Says hello over a stream to the parent, from which `leftover` has come already.
async fn introduce(
    mut stream: Stream,
    mut leftover: BytesMut,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let (initiator, request) = Initiator::new(session, key)?;
    stream.write.write_all(&request).await?;
    let mut verdict = [0; Initiator::VERDICT_BYTES];
    read(&mut stream, &mut leftover, &mut verdict).await?;
    initiator.verdict(&verdict)?;
    let mut message = [0; Initiator::ANSWER_BYTES - Initiator::VERDICT_BYTES];
    read(&mut stream, &mut leftover, &mut message).await?;
    let mut established = initiator.finish(&message)?;
    send(&mut stream, &mut established, &Hello { agent }).await?;
    let Welcome { now } = receive(&mut stream, &mut established, &mut leftover).await?;
    Ok((Accepted { peer: parent, stream, established, leftover }, now))
}

/// Fills `bytes` with what has come already, and what comes next.
async fn read(stream: &mut Stream, leftover: &mut BytesMut, bytes: &mut [u8]) -> Result<(), HandshakeError> {
    let (here, to_come) = bytes.split_at_mut(leftover.len().min(bytes.len()));
    leftover.copy_to_slice(here);
    match stream.read.read_exact(to_come).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(HelloError::Truncated.into()),
        Err(error) => Err(error.into()),
    }
}

async fn send<M: serde::Serialize>(
    stream: &mut Stream,
    established: &mut Established,
    message: &M,
) -> Result<(), HandshakeError> {
    let framed = framed(&encode(message));
    let mut out = Vec::new();
    established.sealer.seal(&Content::Piece(Lane::Control, &framed), &mut out);
    Ok(stream.write.write_all(&out).await?)
}

async fn receive<M: serde::de::DeserializeOwned>(
    stream: &mut Stream,
    established: &mut Established,
    buffer: &mut BytesMut,
) -> Result<M, HandshakeError> {
    loop {
        if let Some((content, length)) = established.opener.open(buffer)? {
            let Content::Piece(Lane::Control, piece) = content else { return Err(HelloError::Unexpected.into()) };
            let mut assembler = Assembler::new(Lane::Control);
            assembler.push(piece);
            let message = assembler.next_message().ok().flatten().ok_or(HelloError::Unexpected)?;
            buffer.advance(length);
            return Ok(decode(&message).map_err(|_| HelloError::Unexpected)?);
        }
        buffer.reserve(RECORD_BYTES_MAX);
        if stream.read.read_buf(buffer).await? == 0 {
            return Err(HelloError::Truncated.into());
        }
    }
}

/// Lets children in: knows the session, its key, who is awaited, and which handshakes were seen.
pub struct Authenticator {
    session: SessionId,
    key: SessionKey,
    awaited: BTreeSet<AgentId>,
    seen: Seen,
}

impl Authenticator {
    /// Awaits `children`, each once.
    pub fn new(session: SessionId, key: SessionKey, children: impl IntoIterator<Item = AgentId>) -> Self {
        Self { session, key, awaited: children.into_iter().collect(), seen: Seen::default() }
    }

    /// Whether all have come.
    pub fn is_done(&self) -> bool {
        self.awaited.is_empty()
    }
}

/// Lets children in until all have come: each that has proved who it is goes to `joined`. A stranger
/// holds up nobody, and at most [`STRANGERS_MAX`] are heard at a time. When this is dropped, whoever is
/// being let in is not, and nothing is said of it.
pub async fn accept_children(
    listener: TcpListener,
    authenticator: Authenticator,
    clock: Clock,
    joined: mpsc::Sender<Accepted>,
) {
    let authenticator = Rc::new(RefCell::new(authenticator));
    let mut greetings = JoinSet::new();
    while !authenticator.borrow().is_done() {
        let (stream, peer) = tokio::select! {
            connection = reach::next_connection(&listener), if greetings.len() < STRANGERS_MAX => connection,
            Some(_) = greetings.join_next() => continue,
        };
        let (authenticator, joined) = (Rc::clone(&authenticator), joined.clone());
        greetings.spawn_local(async move {
            match accept(stream, &authenticator, || clock.now()).await {
                Ok(accepted) => drop(joined.send(accepted).await),
                // An agent that ends meanwhile.
                Err(error) if error.went_away() => tracing::debug!(%peer, %error, "who was being let in is gone"),
                Err(error) => tracing::warn!(%peer, %error, "a connection was refused"),
            }
        });
    }
    drop(listener);
    // The last child is still to be welcomed.
    while greetings.join_next().await.is_some() {}
}

/// Judges a connection. Nothing that it sends is parsed before it has proved that it knows the key.
/// `authenticator` is borrowed only between two waits, so that a silent stranger delays nobody.
pub async fn accept(
    stream: TcpStream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    let stream = Stream::connection(stream);
    timeout(HELLO_TIME, admit(stream, BytesMut::new(), authenticator, now)).await.map_err(|_| HandshakeError::Late)?
}

/// The same for who was started over a session, from which `leftover` has come already.
pub(crate) async fn accept_over(
    stream: Stream,
    leftover: BytesMut,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    timeout(HELLO_TIME, admit(stream, leftover, authenticator, now)).await.map_err(|_| HandshakeError::Late)?
}

async fn admit(
    mut stream: Stream,
    mut leftover: BytesMut,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    let mut request = [0; Responder::REQUEST_BYTES];
    read(&mut stream, &mut leftover, &mut request).await?;
    let (result, answer) = {
        let authenticator = &mut *authenticator.borrow_mut();
        Responder::answer(&request, authenticator.session, &authenticator.key, &mut authenticator.seen)
    };
    stream.write.write_all(&answer).await?;
    let mut established = result?;
    let Hello { agent } = receive(&mut stream, &mut established, &mut leftover).await?;
    if !authenticator.borrow_mut().awaited.remove(&agent) {
        return Err(HandshakeError::NotExpected(agent));
    }
    send(&mut stream, &mut established, &Welcome { now: now() }).await?;
    Ok(Accepted { peer: agent, stream, established, leftover })
}
