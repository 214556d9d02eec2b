//! The handshake over real connections: which peers are accepted, and with which errors the others are refused.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use nla::core::limits::{FIRST_MESSAGE_TIME, HELLO_TIME, UNAUTHENTICATED_MAX};
use nla::core::{AgentId, Time};
use nla::link::{Admission, Authenticator, Clock, SessionKey, accept, accept_children, accept_early, connect};
use nla::wire::{
    Content, Hello, HelloError, Initiator, Lane, PREAMBLE_BYTES, Responder, Role, SessionId, VERSION, Welcome, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::timeout;

const SESSION: SessionId = SessionId(0x5ce1a);
const ROLE: Role = Role::Link { parent: AgentId::ROOT };
const NOW: Time = Duration::from_secs(77);
const REPLAYED: &str = "the first message of this handshake was seen before: it was replayed";
const TRUNCATED: &str = "the connection ended in the middle of the hello";
const LEFT: &str = "the agent closed the connection in the middle of its hello";
const WRONG_KEY: &str = "the other end does not know this session's key";

fn key(byte: u8) -> SessionKey {
    SessionKey::read_from(&mut &[byte; 32][..]).unwrap()
}

/// Runs `test` as an agent runs: on one thread, with local tasks.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A parent that expects agents 1 and 2.
struct Parent {
    listener: TcpListener,
    address: SocketAddr,
    authenticator: RefCell<Authenticator>,
}

impl Parent {
    async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        Self {
            listener,
            address,
            authenticator: RefCell::new(Authenticator::new(SESSION, key(1), ROLE, [1, 2].map(AgentId))),
        }
    }

    /// Accepts the next connection and closes it. Returns the agent, or the reason why it is refused.
    async fn accept_one(&self) -> Result<AgentId, String> {
        let (stream, _) = self.listener.accept().await.unwrap();
        let accepted = accept(stream, &self.authenticator, || NOW).await;
        accepted.map(|accepted| accepted.peer).map_err(|error| error.to_string())
    }

    /// Accepts a connection on which only `bytes` are sent. Returns the reason why it is refused, and the parent's
    /// reply.
    async fn refuse_bytes(&self, bytes: &[u8]) -> (String, Vec<u8>) {
        let peer = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut reply = Vec::new();
            // A parent that has not read everything resets the connection. Its reply may then be lost.
            let _ = stream.read_to_end(&mut reply).await;
            reply
        };
        let (accepted, reply) = tokio::join!(self.accept_one(), peer);
        (accepted.unwrap_err(), reply)
    }

    /// Accepts a peer that completes the handshake and then sends the bytes from `records`. Returns the reason why it
    /// is refused.
    async fn refuse_records(&self, records: impl FnOnce(&mut nla::wire::Established) -> Vec<u8>) -> String {
        let peer = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let (initiator, request) = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap();
            stream.write_all(&request).await.unwrap();
            let mut answer = [0; Initiator::ANSWER_BYTES];
            stream.read_exact(&mut answer).await.unwrap();
            let mut established = initiator.finish(&answer[Initiator::VERDICT_BYTES..]).unwrap();
            stream.write_all(&records(&mut established)).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        tokio::join!(self.accept_one(), peer).0.unwrap_err()
    }
}

/// Connects as a child. Returns the session's time, or the error that the child reports.
async fn child(address: SocketAddr, agent: u32, session: SessionId, key: SessionKey) -> Result<Time, String> {
    let connected = connect(address, ROLE, AgentId(agent), session, &key).await;
    connected.map(|(_, now)| now).map_err(|error| error.to_string())
}

/// Forwards all bytes and returns a copy of them.
async fn record(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Vec<u8> {
    let mut recorded = Vec::new();
    let mut block = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut block).await {
        recorded.extend_from_slice(&block[..count]);
        let _ = to.write_all(&block[..count]).await;
    }
    recorded
}

fn hello(agent: u32) -> Vec<u8> {
    let message = encode(&Hello { agent: AgentId(agent) });
    [&(message.len() as u32).to_le_bytes(), &message[..]].concat()
}

fn sealed(established: &mut nla::wire::Established, content: &Content<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    established.sealer.seal(content, &mut out);
    out
}

#[test]
fn expected_agents_are_accepted_once() {
    on_one_thread(async {
        let parent = Parent::new().await;
        for agent in [2, 1] {
            let (accepted, now) = tokio::join!(parent.accept_one(), child(parent.address, agent, SESSION, key(1)));
            assert_eq!((accepted, now), (Ok(AgentId(agent)), Ok(NOW)));
        }
        assert!(parent.authenticator.borrow().is_done());
        for agent in [1, 3] {
            let (accepted, now) = tokio::join!(parent.accept_one(), child(parent.address, agent, SESSION, key(1)));
            let refused = format!("agent {} is not expected here, or has already joined", AgentId(agent));
            assert_eq!((accepted, now), (Err(refused), Err(TRUNCATED.to_owned())));
        }
    });
}

#[test]
fn a_repeated_first_message_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let (initiator, request) = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap();
        let (refused, reply) = parent.refuse_bytes(&request).await;
        assert_eq!((refused.as_str(), reply.len()), (LEFT, Initiator::ANSWER_BYTES), "the child never sends its hello");
        let (refused, reply) = parent.refuse_bytes(&request).await;
        assert_eq!(refused, REPLAYED);
        assert_eq!(initiator.verdict(reply[..].try_into().unwrap()), Err(HelloError::Replayed));
    });
}

#[test]
fn a_recorded_handshake_cannot_be_replayed() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = between.local_addr().unwrap();
        let recorder = async {
            let (from_child, to_child) = between.accept().await.unwrap().0.into_split();
            let (from_parent, to_parent) = TcpStream::connect(parent.address).await.unwrap().into_split();
            tokio::join!(record(from_child, to_parent), record(from_parent, to_child)).0
        };
        let (accepted, now, recorded) = tokio::join!(parent.accept_one(), child(address, 1, SESSION, key(1)), recorder);
        assert_eq!((accepted, now), (Ok(AgentId(1)), Ok(NOW)), "a passive listener changes nothing");
        assert!(recorded.len() > Responder::REQUEST_BYTES, "the recording contains the hello");
        assert_eq!(parent.refuse_bytes(&recorded).await.0, REPLAYED);
        // A parent that has not seen it refuses it too: its hello was sealed for another handshake.
        let other = Parent::new().await;
        let refused = other.refuse_bytes(&recorded).await.0;
        assert!(refused.starts_with("unexpected data after the handshake: a record that does not open"), "{refused}");
        assert!(!other.authenticator.borrow().is_done());
    });
}

#[test]
fn another_protocol_version_is_named_in_the_refusal() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let mut request = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap().1;
        request[8..10].copy_from_slice(&(VERSION + 1).to_be_bytes());
        request[10..26].copy_from_slice(b"9.9.9\0\0\0\0\0\0\0\0\0\0\0");
        let (refused, reply) = parent.refuse_bytes(&request).await;
        let here = env!("CARGO_PKG_VERSION");
        let other = VERSION + 1;
        assert_eq!(
            refused,
            format!("the other end is ScELA 9.9.9 (protocol {other}), this is {here} (protocol {VERSION})")
        );
        assert_eq!(reply.len(), PREAMBLE_BYTES + 1, "the reply ends with the verdict, without a handshake message");
    });
}

#[test]
fn another_key_or_session_is_refused_at_both_ends() {
    let other_session = "the other end belongs to another session";
    on_one_thread(async {
        let parent = Parent::new().await;
        for (session, key, error) in [(SESSION, key(2), WRONG_KEY), (SessionId(1), key(1), other_session)] {
            let (accepted, now) = tokio::join!(parent.accept_one(), child(parent.address, 1, session, key));
            assert_eq!((accepted, now), (Err(error.to_owned()), Err(error.to_owned())));
        }
    });
}

#[test]
fn a_changed_preamble_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let mut request = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap().1;
        request[PREAMBLE_BYTES - 9] ^= 1; // a byte of the product's name, which is not compared
        assert_eq!(parent.refuse_bytes(&request).await.0, WRONG_KEY);
    });
}

#[test]
fn another_protocol_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let web = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that sent this to a wrong port\r\n\r\n";
        let (refused, _) = parent.refuse_bytes(&web[..Responder::REQUEST_BYTES]).await;
        assert_eq!(refused, "the other end does not speak ScELA's protocol");
    });
}

#[test]
fn a_truncated_handshake_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        for length in [0, 1, PREAMBLE_BYTES, Responder::REQUEST_BYTES - 1] {
            let (_, request) = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap();
            let (refused, reply) = parent.refuse_bytes(&request[..length]).await;
            assert_eq!((refused.as_str(), reply.len()), (TRUNCATED, 0), "after {length} bytes");
        }
        let length = hello_record_length();
        for length in [1, length - 1] {
            let refused = parent.refuse_records(|established| {
                let record = sealed(established, &Content::Piece(Lane::Control, &hello(1)));
                record[..length].to_vec()
            });
            assert_eq!(refused.await, LEFT, "after {length} bytes of the record");
        }
        let (accepted, now) = tokio::join!(parent.accept_one(), child(parent.address, 1, SESSION, key(1)));
        assert_eq!((accepted, now), (Ok(AgentId(1)), Ok(NOW)), "later agents are still accepted");
    });
}

/// Returns the length of the record of a hello: its length, its kind, the message and the tag.
fn hello_record_length() -> usize {
    2 + 1 + hello(1).len() + 16
}

#[test]
fn only_a_hello_may_follow_the_handshake() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let damaged = parent.refuse_records(|established| {
            let mut record = sealed(established, &Content::Piece(Lane::Control, &hello(1)));
            record[7] ^= 1;
            record
        });
        assert!(damaged.await.starts_with("unexpected data after the handshake: a record that does not open"));
        let oversized = parent.refuse_records(|_| vec![0xff; 2]).await;
        assert!(oversized.starts_with("unexpected data after the handshake: a record of 65535 bytes"), "{oversized}");
        let unexpected = "the other end proved that it knows the key, but then sent an unexpected message";
        let welcome = encode(&Welcome { now: NOW });
        let welcome = [&(welcome.len() as u32).to_le_bytes(), &welcome[..]].concat();
        for content in [
            Content::Alive,
            Content::Piece(Lane::Board, &hello(1)),
            Content::Piece(Lane::Control, &welcome),
            Content::Piece(Lane::Control, &[0xff; 8]),
            Content::Piece(Lane::Control, &[]),
        ] {
            let refused = parent.refuse_records(|established| sealed(established, &content)).await;
            assert_eq!(refused, unexpected, "{content:?}");
        }
    });
}

/// At the end of a session the listener stops: unfinished handshakes end without an error.
#[test]
fn an_unfinished_handshake_ends_with_the_listener() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, _never) = mpsc::channel(1);
        let mut listening = Box::pin(accept_children(listener, authenticator.into_inner(), Clock::start(), joined));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (_initiator, request) = Initiator::new(SESSION, key(1).bytes(), ROLE).unwrap();
        stream.write_all(&request).await.unwrap();
        let mut answer = [0; Initiator::ANSWER_BYTES];
        tokio::select! {
            () = &mut listening => panic!("agents are still expected"),
            read = stream.read_exact(&mut answer) => drop(read.unwrap()),
        }
        drop(listening);
        let end = timeout(HELLO_TIME / 2, stream.read(&mut answer)).await;
        assert_eq!(end.expect("the connection is closed before the timeout").unwrap_or(0), 0);
    });
}

#[test]
fn the_listener_closes_when_all_agents_joined() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, mut children) = mpsc::channel(2);
        let listening =
            tokio::task::spawn_local(accept_children(listener, authenticator.into_inner(), Clock::start(), joined));
        for agent in [1, 2] {
            child(address, agent, SESSION, key(1)).await.unwrap();
            assert_eq!(children.recv().await.unwrap().peer, AgentId(agent));
        }
        timeout(HELLO_TIME / 2, listening).await.expect("the listener ends once all agents joined").unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    });
}

/// Strangers take all places that a listener has for connections that have proved nothing. Each of them would keep its
/// place for seconds.
#[test]
fn strangers_keep_no_agent_out() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, mut children) = mpsc::channel(2);
        let listening = accept_children(listener, authenticator.into_inner(), Clock::start(), joined);
        let listening = tokio::task::spawn_local(listening);
        let (_, replay) = Initiator::new(SESSION, key(2).bytes(), ROLE).unwrap();
        let mut strangers = Vec::new();
        for number in 0..2 * UNAUTHENTICATED_MAX {
            let mut stranger = TcpStream::connect(address).await.unwrap();
            match number % 4 {
                0 => stranger.write_all(b"some bytes").await.unwrap(),
                1 => stranger.write_all(&replay).await.unwrap(),
                2 => stranger.write_all(&replay[..PREAMBLE_BYTES]).await.unwrap(),
                _ => {}
            }
            strangers.push(stranger);
        }
        for agent in [1, 2] {
            let joins = timeout(FIRST_MESSAGE_TIME / 2, child(address, agent, SESSION, key(1)));
            joins.await.expect("no stranger delays an agent").unwrap();
            assert_eq!(children.recv().await.unwrap().peer, AgentId(agent));
        }
        timeout(HELLO_TIME, listening).await.expect("the listener ends once all agents joined").unwrap();
    });
}

/// The kernel's queue is shorter than the strangers are many, so the listener must accept before the agent knows its
/// children. These connect before that too.
#[test]
fn connections_are_accepted_before_the_children_are_known() {
    on_one_thread(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(8).unwrap();
        let address = listener.local_addr().unwrap();
        let (admit, admission) = oneshot::channel();
        let listening = tokio::task::spawn_local(accept_early(listener, admission));
        let mut strangers = Vec::new();
        for _ in 0..2 * UNAUTHENTICATED_MAX {
            let stranger = timeout(HELLO_TIME, TcpStream::connect(address)).await;
            strangers.push(stranger.expect("the queue is emptied").unwrap());
        }
        // The oldest made room for the newest.
        let end = timeout(HELLO_TIME, strangers[0].read(&mut [0; 1])).await;
        assert_eq!(end.expect("it is closed").unwrap_or(0), 0);
        let early = [1, 2].map(|agent| tokio::task::spawn_local(child(address, agent, SESSION, key(1))));
        let (joined, mut children) = mpsc::channel(2);
        let authenticator = Authenticator::new(SESSION, key(1), ROLE, [AgentId(1), AgentId(2)]);
        assert!(admit.send(Admission { authenticator, clock: Clock::start(), joined, adopted: None }).is_ok());
        for early in early {
            early.await.unwrap().unwrap();
            children.recv().await.unwrap();
        }
        timeout(HELLO_TIME, listening).await.expect("the listener ends once all agents joined").unwrap();
    });
}

#[test]
fn a_port_closes_if_its_agent_will_have_no_children() {
    on_one_thread(async {
        let Parent { listener, address, .. } = Parent::new().await;
        let (admit, admission) = oneshot::channel();
        let listening = tokio::task::spawn_local(accept_early(listener, admission));
        drop(admit);
        timeout(HELLO_TIME, listening).await.expect("the listener ends").unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn a_connection_without_a_first_message_is_closed_early() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, _children) = mpsc::channel(2);
        let listening = accept_children(listener, authenticator.into_inner(), Clock::start(), joined);
        let listening = tokio::task::spawn_local(listening);
        let mut silent = TcpStream::connect(address).await.unwrap();
        let closed = timeout(HELLO_TIME / 2, silent.read(&mut [0; 1])).await;
        assert_eq!(closed.expect("it is closed long before the time for a hello has passed").unwrap_or(0), 0);
        listening.abort();
    });
}

#[test]
fn a_silent_peer_is_refused_after_the_timeout() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let _silent = TcpStream::connect(parent.address).await.unwrap();
        let (stream, _) = parent.listener.accept().await.unwrap();
        // The kernel queues the child's connection. The parent never accepts it.
        let child = pin!(child(parent.address, 1, SESSION, key(1)));
        let late = "the hello took longer than 10 s";
        let refused = accept(stream, &parent.authenticator, || NOW).await.err().unwrap();
        assert_eq!((refused.to_string().as_str(), child.await), (late, Err(late.to_owned())));
    });
}
