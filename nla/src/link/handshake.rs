//! The handshake on a stream: a child connects, a parent authenticates it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use litemap::LiteMap;
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
    #[error("unexpected data after the handshake: {0}")]
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

/// A stream whose other end is authenticated.
pub struct Accepted {
    /// The agent at the other end.
    pub peer: AgentId,
    pub(crate) stream: Stream,
    pub(crate) established: Established,
}

impl Accepted {
    /// Sends a message of at most a record's size. For streams that are no link, or not yet.
    pub(crate) async fn send<M: serde::Serialize>(&mut self, message: &M) -> Result<(), HandshakeError> {
        self.send_bytes(framed(&encode(message))).await
    }

    async fn send_bytes(&mut self, framed: Vec<u8>) -> Result<(), HandshakeError> {
        let mut out = Vec::new();
        self.established.sealer.seal(&Content::Piece(Lane::Control, &framed), &mut out);
        Ok(self.stream.write.write_all(&out).await?)
    }

    /// Receives the next such message. Cancel safe.
    pub(crate) async fn receive<M: serde::de::DeserializeOwned>(&mut self) -> Result<M, HandshakeError> {
        Ok(decode(&self.receive_bytes().await?).map_err(|_| HelloError::Unexpected)?)
    }

    async fn receive_bytes(&mut self) -> Result<Bytes, HandshakeError> {
        let Stream { read, unread, .. } = &mut self.stream;
        loop {
            if let Some((content, length)) = self.established.opener.open(unread)? {
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
}

/// Runs a handshake within [`HELLO_TIME`].
async fn in_time<T>(handshake: impl Future<Output = Result<T, HandshakeError>>) -> Result<T, HandshakeError> {
    timeout(HELLO_TIME, handshake).await.unwrap_or(Err(HandshakeError::Late))
}

/// Connects to the parent at `address` as `agent`. Returns the stream and the session's time.
pub async fn connect(
    address: SocketAddr,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let handshake = async {
        let stream = Stream::connection(TcpStream::connect(address).await?);
        initiate(stream, parent, agent, session, key).await
    };
    in_time(handshake).await
}

/// Does the same over the pipes of a remote shell.
pub(crate) async fn connect_over(
    stream: Stream,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    in_time(initiate(stream, parent, agent, session, key)).await
}

/// Runs the child's part of the handshake.
async fn initiate(
    mut stream: Stream,
    parent: AgentId,
    agent: AgentId,
    session: SessionId,
    key: &SessionKey,
) -> Result<(Accepted, Time), HandshakeError> {
    let (initiator, request) = Initiator::new(session, key)?;
    stream.write.write_all(&request).await?;
    let mut verdict = [0; Initiator::VERDICT_BYTES];
    read(&mut stream, &mut verdict).await?;
    initiator.verdict(&verdict)?;
    let mut message = [0; Initiator::ANSWER_BYTES - Initiator::VERDICT_BYTES];
    read(&mut stream, &mut message).await?;
    let mut accepted = Accepted { peer: parent, stream, established: initiator.finish(&message)? };
    accepted.send(&Hello { agent }).await?;
    let Welcome { now } = accepted.receive().await?;
    Ok((accepted, now))
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
    /// The children that have not joined.
    expected: LiteMap<AgentId, ()>,
    seen: Seen,
}

impl Authenticator {
    /// Creates an authenticator that admits each of `children` once.
    pub fn new(session: SessionId, key: SessionKey, children: impl IntoIterator<Item = AgentId>) -> Self {
        let mut expected = LiteMap::new();
        for child in children {
            expected.insert(child, ());
        }
        Self { session, key, expected, seen: Seen::default() }
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
                Err(HandshakeError::Io(error)) => {
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
    accept_over(Stream::connection(stream), authenticator, now).await
}

/// Does the same over the pipes of a remote shell.
pub(crate) async fn accept_over(
    stream: Stream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    in_time(admit(stream, authenticator, now)).await
}

async fn admit(
    mut stream: Stream,
    authenticator: &RefCell<Authenticator>,
    now: impl Fn() -> Time,
) -> Result<Accepted, HandshakeError> {
    let mut request = [0; Responder::REQUEST_BYTES];
    read(&mut stream, &mut request).await?;
    let (result, answer) = {
        let authenticator = &mut *authenticator.borrow_mut();
        Responder::answer(&request, authenticator.session, &authenticator.key, &mut authenticator.seen)
    };
    stream.write.write_all(&answer).await?;
    // The hello says which agent it is.
    let mut accepted = Accepted { peer: AgentId::ROOT, stream, established: result? };
    Hello { agent: accepted.peer } = accepted.receive().await?;
    if authenticator.borrow_mut().expected.remove(&accepted.peer).is_none() {
        return Err(HandshakeError::NotExpected(accepted.peer));
    }
    accepted.send(&Welcome { now: now() }).await?;
    Ok(accepted)
}
