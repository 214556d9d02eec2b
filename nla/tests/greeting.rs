//! The hello over real connections: who is let in, and in which words everybody else is not.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use nla::core::limits::HELLO_TIME;
use nla::core::{AgentId, Time};
use nla::link::{Authenticator, Clock, accept, accept_children, connect};
use nla::wire::{
    Content, Hello, HelloError, Initiator, Lane, PREAMBLE_BYTES, Responder, SessionId, SessionKey, VERSION, Welcome,
    encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::timeout;

const SESSION: SessionId = SessionId(0x5ce1a);
const NOW: Time = Duration::from_secs(77);
const REPLAYED: &str = "the first message of this handshake was seen before: it was replayed";
const CUT: &str = "the connection ended in the middle of the hello";
const NO_KEY: &str = "the other end does not know this session's key";

fn key(byte: u8) -> SessionKey {
    SessionKey([byte; 32])
}

/// Runs `test` as an agent runs: on one thread, with tasks of its own.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A parent that awaits agents 1 and 2.
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
            authenticator: RefCell::new(Authenticator::new(SESSION, key(1), [1, 2].map(AgentId))),
        }
    }

    /// Judges the next connection: who it is, or why it is refused. Closes it.
    async fn judge(&self) -> Result<AgentId, String> {
        let (stream, _) = self.listener.accept().await.unwrap();
        let judged = accept(stream, &self.authenticator, || NOW).await;
        judged.map(|accepted| accepted.peer).map_err(|error| error.to_string())
    }

    /// Judges somebody who says `bytes` and nothing else: why it is refused, and what it hears.
    async fn judge_one_who_says(&self, bytes: &[u8]) -> (String, Vec<u8>) {
        let stranger = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut heard = Vec::new();
            // A parent that has not read all resets the connection; what it said first may be lost.
            let _ = stream.read_to_end(&mut heard).await;
            heard
        };
        let (judged, heard) = tokio::join!(self.judge(), stranger);
        (judged.unwrap_err(), heard)
    }

    /// Judges somebody who finishes the handshake and then sends what `records` makes.
    async fn judge_one_whose_records(&self, records: impl FnOnce(&mut nla::wire::Established) -> Vec<u8>) -> String {
        let stranger = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let (initiator, request) = Initiator::new(SESSION, &key(1)).unwrap();
            stream.write_all(&request).await.unwrap();
            let mut answer = [0; Initiator::ANSWER_BYTES];
            stream.read_exact(&mut answer).await.unwrap();
            let mut established = initiator.finish(&answer[Initiator::VERDICT_BYTES..]).unwrap();
            stream.write_all(&records(&mut established)).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        tokio::join!(self.judge(), stranger).0.unwrap_err()
    }
}

/// What a child says: its own account of how it ended.
async fn child(address: SocketAddr, agent: u32, session: SessionId, key: SessionKey) -> Result<Time, String> {
    let connected = connect(address, AgentId::ROOT, AgentId(agent), session, &key).await;
    connected.map(|(_, now)| now).map_err(|error| error.to_string())
}

/// Passes on all that comes, and keeps it.
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
fn those_awaited_are_let_in_once() {
    on_one_thread(async {
        let parent = Parent::new().await;
        for agent in [2, 1] {
            let (judged, now) = tokio::join!(parent.judge(), child(parent.address, agent, SESSION, key(1)));
            assert_eq!((judged, now), (Ok(AgentId(agent)), Ok(NOW)));
        }
        assert!(parent.authenticator.borrow().is_done());
        for agent in [1, 3] {
            let (judged, now) = tokio::join!(parent.judge(), child(parent.address, agent, SESSION, key(1)));
            let refused = format!("agent {} is not awaited here, or is here already", AgentId(agent));
            assert_eq!((judged, now), (Err(refused), Err(CUT.to_owned())));
        }
    });
}

#[test]
fn a_first_message_counts_once() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let (initiator, request) = Initiator::new(SESSION, &key(1)).unwrap();
        let (refused, heard) = parent.judge_one_who_says(&request).await;
        assert_eq!((refused.as_str(), heard.len()), (CUT, Initiator::ANSWER_BYTES), "it never says who it is");
        let (refused, heard) = parent.judge_one_who_says(&request).await;
        assert_eq!(refused, REPLAYED);
        assert_eq!(initiator.verdict(heard[..].try_into().unwrap()), Err(HelloError::Replayed));
    });
}

#[test]
fn a_recorded_child_cannot_be_played_back() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = between.local_addr().unwrap();
        let recorder = async {
            let (from_child, to_child) = between.accept().await.unwrap().0.into_split();
            let (from_parent, to_parent) = TcpStream::connect(parent.address).await.unwrap().into_split();
            tokio::join!(record(from_child, to_parent), record(from_parent, to_child)).0
        };
        let (judged, now, recorded) = tokio::join!(parent.judge(), child(address, 1, SESSION, key(1)), recorder);
        assert_eq!((judged, now), (Ok(AgentId(1)), Ok(NOW)), "who only listens is in nobody's way");
        assert!(recorded.len() > Responder::REQUEST_BYTES, "it said who it is");
        assert_eq!(parent.judge_one_who_says(&recorded).await.0, REPLAYED);
        // To a parent that has not seen it, it is worth nothing either: its second message is for another handshake.
        let other = Parent::new().await;
        let refused = other.judge_one_who_says(&recorded).await.0;
        assert!(refused.starts_with("after the handshake came a record that does not open"), "{refused}");
        assert!(!other.authenticator.borrow().is_done());
    });
}

#[test]
fn another_version_is_refused_by_name() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let mut request = Initiator::new(SESSION, &key(1)).unwrap().1;
        request[8..10].copy_from_slice(&7u16.to_be_bytes());
        request[10..26].copy_from_slice(b"9.9.9\0\0\0\0\0\0\0\0\0\0\0");
        let (refused, heard) = parent.judge_one_who_says(&request).await;
        let here = env!("CARGO_PKG_VERSION");
        assert_eq!(refused, format!("the other end is ScELA 9.9.9 (protocol 7), this is {here} (protocol {VERSION})"));
        assert_eq!(heard.len(), PREAMBLE_BYTES + 1, "a verdict, and nothing that needs the key");
    });
}

#[test]
fn other_keys_and_sessions_are_refused_at_both_ends() {
    let other_session = "the other end belongs to another session";
    on_one_thread(async {
        let parent = Parent::new().await;
        for (session, key, words) in [(SESSION, key(2), NO_KEY), (SessionId(1), key(1), other_session)] {
            let (judged, now) = tokio::join!(parent.judge(), child(parent.address, 1, session, key));
            assert_eq!((judged, now), (Err(words.to_owned()), Err(words.to_owned())));
        }
    });
}

#[test]
fn a_changed_preamble_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let mut request = Initiator::new(SESSION, &key(1)).unwrap().1;
        request[PREAMBLE_BYTES - 9] ^= 1; // a byte of the product's name: judged by nobody
        assert_eq!(parent.judge_one_who_says(&request).await.0, NO_KEY);
    });
}

#[test]
fn who_does_not_speak_the_protocol_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let web = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody who is lost, and talks on\r\n\r\n";
        let (refused, _) = parent.judge_one_who_says(&web[..Responder::REQUEST_BYTES]).await;
        assert_eq!(refused, "the other end does not speak ScELA's protocol");
    });
}

#[test]
fn a_hello_cut_anywhere_is_refused() {
    on_one_thread(async {
        let parent = Parent::new().await;
        for length in [0, 1, PREAMBLE_BYTES, Responder::REQUEST_BYTES - 1] {
            let (_, request) = Initiator::new(SESSION, &key(1)).unwrap();
            let (refused, heard) = parent.judge_one_who_says(&request[..length]).await;
            assert_eq!((refused.as_str(), heard.len()), (CUT, 0), "after {length} bytes");
        }
        let length = parent_hello_length();
        for length in [1, length - 1] {
            let refused = parent.judge_one_whose_records(|established| {
                let record = sealed(established, &Content::Piece(Lane::Control, &hello(1)));
                record[..length].to_vec()
            });
            assert_eq!(refused.await, CUT, "after {length} bytes of the record");
        }
        let (judged, now) = tokio::join!(parent.judge(), child(parent.address, 1, SESSION, key(1)));
        assert_eq!((judged, now), (Ok(AgentId(1)), Ok(NOW)), "nobody else suffers");
    });
}

/// Bytes of a hello's record: its length, what it is, the message, a tag.
fn parent_hello_length() -> usize {
    2 + 1 + hello(1).len() + 16
}

#[test]
fn what_follows_the_handshake_must_be_the_childs_own_hello() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let damaged = parent.judge_one_whose_records(|established| {
            let mut record = sealed(established, &Content::Piece(Lane::Control, &hello(1)));
            record[7] ^= 1;
            record
        });
        assert!(damaged.await.starts_with("after the handshake came a record that does not open"));
        let endless = parent.judge_one_whose_records(|_| vec![0xff; 2]).await;
        assert!(endless.starts_with("after the handshake came a record of 65535 bytes"), "{endless}");
        let unexpected = "the other end proved itself but then said something unexpected";
        let welcome = encode(&Welcome { now: NOW });
        let welcome = [&(welcome.len() as u32).to_le_bytes(), &welcome[..]].concat();
        for content in [
            Content::Alive,
            Content::Piece(Lane::Board, &hello(1)),
            Content::Piece(Lane::Control, &welcome),
            Content::Piece(Lane::Control, &[0xff; 8]),
            Content::Piece(Lane::Control, &[]),
        ] {
            let refused = parent.judge_one_whose_records(|established| sealed(established, &content)).await;
            assert_eq!(refused, unexpected, "{content:?}");
        }
    });
}

/// As at the end of a session, which is not to say that its agents went away.
#[test]
fn who_is_being_let_in_ends_with_who_lets_in() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, _never) = mpsc::channel(1);
        let mut door = Box::pin(accept_children(listener, authenticator.into_inner(), Clock::start(), joined));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (_initiator, request) = Initiator::new(SESSION, &key(1)).unwrap();
        stream.write_all(&request).await.unwrap();
        let mut answer = [0; Initiator::ANSWER_BYTES];
        tokio::select! {
            () = &mut door => panic!("agents are awaited"),
            heard = stream.read_exact(&mut answer) => drop(heard.unwrap()),
        }
        drop(door);
        let end = timeout(HELLO_TIME / 2, stream.read(&mut answer)).await;
        assert_eq!(end.expect("nobody waits for the rest of the hello").unwrap_or(0), 0);
    });
}

#[test]
fn all_have_come_and_nobody_listens() {
    on_one_thread(async {
        let Parent { listener, address, authenticator } = Parent::new().await;
        let (joined, mut children) = mpsc::channel(2);
        let door =
            tokio::task::spawn_local(accept_children(listener, authenticator.into_inner(), Clock::start(), joined));
        for agent in [1, 2] {
            child(address, agent, SESSION, key(1)).await.unwrap();
            assert_eq!(children.recv().await.unwrap().peer, AgentId(agent));
        }
        timeout(HELLO_TIME / 2, door).await.expect("nobody else is awaited").unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn who_is_silent_is_not_waited_for() {
    on_one_thread(async {
        let parent = Parent::new().await;
        let _silent = TcpStream::connect(parent.address).await.unwrap();
        let (stream, _) = parent.listener.accept().await.unwrap();
        // The listener's queue takes the child's connection; nobody answers it.
        let child = pin!(child(parent.address, 1, SESSION, key(1)));
        // From here on nothing comes, so that time passes as fast as it is looked at.
        tokio::time::pause();
        let late = "the hello took longer than 10 s";
        let refused = accept(stream, &parent.authenticator, || NOW).await.err().unwrap();
        assert_eq!((refused.to_string().as_str(), child.await), (late, Err(late.to_owned())));
    });
}
