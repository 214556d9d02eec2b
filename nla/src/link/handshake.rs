//! The handshake on a stream: a child connects, a parent authenticates it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::clock::Clock;
use super::listener::next_connection;
use super::stream::Stream;
use crate::core::limits::{HELLO_TIME, RECORD_BYTES_MAX, UNAUTHENTICATED_MAX};
use crate::core::{AgentId, Time};
use crate::wire::{
    Assembler, Content, Established, Hello, HelloError, Initiator, Lane, RecordError, Responder, Seen, SessionId,
    SessionKey, Welcome, decode, encode, framed,
};

/// Why a connection did not become a link.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The ends do not trust each other, or their versions differ.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// A record after the handshake could not be decrypted.
    #[error("after the handshake came {0}")]
    Record(#[from] RecordError),
    /// The machine failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The handshake took longer than [`HELLO_TIME`].
    #[error("the hello took longer than {} s", HELLO_TIME.as_secs())]
    Late,
    /// The agent proved to be of the session, but is no expected child, or has joined already.
    #[error("agent {0} is not awaited here, or is here already")]
    NotExpected(AgentId),
}

impl HandshakeError {
    /// Returns whether the connection broke, so that nothing is wrong with the handshake itself.
    fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Io(_))
    }
}

/// A stream whose other end is authenticated.
pub struct Accepted {
    /// The agent at the other end.
    pub peer: AgentId,
    pub(crate) stream: Stream,
    pub(crate) established: Established,
    pub(crate) leftover: BytesMut,
}

impl Accepted {
    /// Sends a message of at most a record's size. For streams that are no link, or not yet.
    pub(crate) async fn send<M: serde::Serialize>(&mut self, message: &M) -> Result<(), HandshakeError> {
        send(&mut self.stream, &mut self.established, message).await
    }

    /// Receives the next such message. Cancel safe.
    pub(crate) async fn receive<M: serde::de::DeserializeOwned>(&mut self) -> Result<M, HandshakeError> {
        receive(&mut self.stream, &mut self.established, &mut self.leftover).await
    }
}

/// Connects to the parent at `address` as `agent`. Returns the stream and the session's time.
pub async fn connect(
    address: SocketAddr,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    timeout(HELLO_TIME, connect_untimed(address, parent, agent, session, key))
        .await
        .map_err(|_| HandshakeError::Late)?
}

/// Does the same over the pipes of a remote shell, from which `leftover` was read before.
pub(crate) async fn connect_over(
    stream: Stream,
    leftover: BytesMut,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let handshake = initiate(stream, leftover, parent, agent, session, key);
    timeout(HELLO_TIME, handshake).await.map_err(|_| HandshakeError::Late)?
}

async fn connect_untimed(
    address: SocketAddr,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let stream = Stream::connection(TcpStream::connect(address).await?);
    initiate(stream, BytesMut::new(), parent, agent, session, key).await
}

/// Runs the child's part of the handshake on a stream from which `leftover` was read before.
async fn initiate(
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

/// Fills `bytes` from `leftover`, then from the stream.
async fn read(stream: &mut Stream, leftover: &mut BytesMut, bytes: &mut [u8]) -> Result<(), HandshakeError> {
    let (first, rest) = bytes.split_at_mut(leftover.len().min(bytes.len()));
    leftover.copy_to_slice(first);
    match stream.read.read_exact(rest).await {
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

/// Decides who may join: knows the session, its key, the expected children, and the handshakes seen so far.
pub struct Authenticator {
    session: SessionId,
    key: SessionKey,
    expected: BTreeSet<AgentId>,
    seen: Seen,
}

impl Authenticator {
    /// Creates an authenticator that admits each of `children` once.
    pub fn new(session: SessionId, key: SessionKey, children: impl IntoIterator<Item = AgentId>) -> Self {
        Self { session, key, expected: children.into_iter().collect(), seen: Seen::default() }
    }

    /// Returns whether all expected children have joined.
    pub fn is_done(&self) -> bool {
        self.expected.is_empty()
    }
}

/// Accepts connections until all expected children have joined; each authenticated stream goes to `joined`. At most
/// [`UNAUTHENTICATED_MAX`] connections are in the handshake at a time, and none of them delays another. Dropping this drops
/// these connections without a message.
pub async fn accept_children(
    listener: TcpListener,
    authenticator: Authenticator,
    clock: Clock,
    joined: mpsc::Sender<Accepted>,
) {
    let authenticator = Rc::new(RefCell::new(authenticator));
    let mut handshakes = JoinSet::new();
    while !authenticator.borrow().is_done() {
        let (stream, peer) = tokio::select! {
            connection = next_connection(&listener), if handshakes.len() < UNAUTHENTICATED_MAX => connection,
            Some(ended) = handshakes.join_next() => {
                pass_on_panic(ended);
                continue;
            }
        };
        let (authenticator, joined) = (Rc::clone(&authenticator), joined.clone());
        handshakes.spawn_local(async move {
            match accept(stream, &authenticator, || clock.now()).await {
                Ok(accepted) => drop(joined.send(accepted).await),
                // An agent that exits during its handshake is no reason to warn.
                Err(error) if error.is_broken_connection() => {
                    tracing::debug!(%peer, %error, "a connection broke during its handshake")
                }
                Err(error) => tracing::warn!(%peer, %error, "a connection was refused"),
            }
        });
    }
    drop(listener);
    // The last child may not have been sent its welcome yet.
    while let Some(ended) = handshakes.join_next().await {
        pass_on_panic(ended);
    }
}

/// Continues the panic of a handshake in the listener's task, which reports it.
fn pass_on_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(payload) = error.try_into_panic()
    {
        std::panic::resume_unwind(payload);
    }
}

/// Authenticates a connection. Nothing that it sends is parsed before it has proved that it knows the key.
/// `authenticator` is never borrowed across a wait, so that a silent peer delays no other connection.
pub async fn accept(
    stream: TcpStream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    let stream = Stream::connection(stream);
    timeout(HELLO_TIME, admit(stream, BytesMut::new(), authenticator, now)).await.map_err(|_| HandshakeError::Late)?
}

/// Does the same over the pipes of a remote shell, from which `leftover` was read before.
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
    if !authenticator.borrow_mut().expected.remove(&agent) {
        return Err(HandshakeError::NotExpected(agent));
    }
    send(&mut stream, &mut established, &Welcome { now: now() }).await?;
    Ok(Accepted { peer: agent, stream, established, leftover })
}
