//! Tests of [`Client`] against [`Conversation`](crate::v1::Conversation), without sockets.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::v1::{Conversation, Facts};
use crate::{Answer, Board, Epoch, NameError, Puts, Request, SpawnCommand};

/// A server for one rank that is alone: what is written is served at once, reads give the replies,
/// a few bytes at a time.
struct Server {
    conversation: Conversation,
    board: Board,
    names: Vec<(Vec<u8>, Vec<u8>)>,
    requests: Vec<Request>,
    replies: VecDeque<u8>,
}

impl Server {
    fn new() -> Self {
        let facts = Facts {
            kvsname: "kvs_1".into(),
            size: 1,
            universe_size: 4,
            mapping: Some("(vector,(0,1,1))".into()),
            preputs: Epoch::default(),
            spawned: false,
        };
        Self {
            conversation: Conversation::new(Arc::new(facts), Rank(0), 2),
            board: Board::new(),
            names: Vec::new(),
            requests: Vec::new(),
            replies: VecDeque::new(),
        }
    }

    fn serve(&mut self) {
        let mut out = Vec::new();
        while let Some(request) = self.conversation.advance(&self.board, &mut out) {
            if let Some(answer) = self.answer_to(&request) {
                self.conversation.answer(answer, &mut out);
            }
            self.requests.push(request);
        }
        self.replies.extend(out);
    }

    fn answer_to(&mut self, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::Fence { puts } => {
                self.board.publish(Epoch::merge(puts).unwrap());
                Answer::Released
            }
            Request::Publish { service, port } => {
                let taken = self.names.iter().any(|(name, _)| name == service);
                self.names.push((service.clone(), port.clone()));
                Answer::Published(if taken { Err(NameError::Taken) } else { Ok(()) })
            }
            Request::Lookup { service } => {
                let found = self.names.iter().find(|(name, _)| name == service);
                Answer::Found(found.map(|(_, port)| port.clone()).ok_or(NameError::Unknown))
            }
            Request::Unpublish { service } => {
                self.names.retain(|(name, _)| name != service);
                Answer::Unpublished(Ok(()))
            }
            Request::Spawn(order) if order.commands[0].program == b"missing" => {
                Answer::Spawned(Err("no such file or directory".into()))
            }
            Request::Spawn(order) => Answer::Spawned(Ok(vec![0; order.ranks() as usize])),
            Request::Joined | Request::Abort { .. } | Request::Finalized | Request::Broken { .. } => return None,
        })
    }
}

impl Write for Server {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = bytes.len().min(7);
        self.conversation.receive(&bytes[..written]);
        self.serve();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Server {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = buffer.len().min(7).min(self.replies.len());
        for (place, byte) in buffer.iter_mut().zip(self.replies.drain(..read)) {
            *place = byte;
        }
        Ok(read)
    }
}

#[test]
fn a_whole_life() {
    let mut client = Client::init(Server::new()).unwrap();
    assert_eq!(client.kvsname().unwrap(), "kvs_1");
    assert_eq!(client.maxes().unwrap(), Maxes { kvsname: 64, key: 64, value: 1024 });
    assert_eq!(client.universe_size().unwrap(), 4);
    assert_eq!(client.appnum().unwrap(), 2);
    assert_eq!(client.get(b"a").unwrap(), None);
    client.put(b"a", b"one two =").unwrap();
    client.barrier().unwrap();
    assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"one two ="[..]));
    assert_eq!(client.get(b"PMI_process_mapping").unwrap().as_deref(), Some(&b"(vector,(0,1,1))"[..]));
    client.finalize().unwrap();
    client.join().unwrap();
    client.abort(-7).unwrap();
    let mut puts = Puts::new();
    puts.push(Rank(0), b"a", b"one two =");
    let server = client.into_stream();
    let expected = [
        Request::Joined,
        Request::Fence { puts },
        Request::Finalized,
        Request::Joined,
        Request::Abort { code: -7, message: String::new() },
    ];
    assert_eq!(server.requests, expected);
    assert!(server.replies.is_empty(), "an abort has no reply");
}

#[test]
fn names_are_published_looked_up_and_withdrawn() {
    let mut client = Client::init(Server::new()).unwrap();
    assert_eq!(client.lookup(b"svc two").unwrap(), None);
    client.publish(b"svc two", b"tag#0$").unwrap();
    assert_eq!(client.lookup(b"svc two").unwrap().as_deref(), Some(&b"tag#0$"[..]));
    let error = client.publish(b"svc two", b"x").unwrap_err();
    assert_eq!(error.to_string(), "publish_result: refused with rc=-1: key_already_present");
    client.unpublish(b"svc two").unwrap();
    assert_eq!(client.lookup(b"svc two").unwrap(), None);
}

#[test]
fn a_spawn_arrives_as_it_was_ordered() {
    let order = |program: &[u8]| SpawnOrder {
        commands: vec![SpawnCommand {
            program: program.to_vec(),
            args: vec![b"two words".to_vec(), Vec::new()],
            nprocs: 3,
            info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
        }],
        preputs: vec![(b"k".to_vec(), b"v w".to_vec())],
    };
    let mut client = Client::init(Server::new()).unwrap();
    client.spawn(&order(b"child")).unwrap();
    let error = client.spawn(&order(b"missing")).unwrap_err();
    assert_eq!(error.to_string(), "spawn_result: refused with rc=-1: no_such_file_or_directory");
    let requests = client.into_stream().requests;
    assert_eq!(requests[1..], [Request::Spawn(order(b"child")), Request::Spawn(order(b"missing"))]);
}

#[test]
fn what_would_tear_a_line_is_not_sent() {
    let mut client = Client::init(Server::new()).unwrap();
    for key in [&b""[..], b"a b", b"a\n"] {
        assert!(matches!(client.put(key, b"v"), Err(ClientError::Unsendable("key"))));
        assert!(matches!(client.get(key), Err(ClientError::Unsendable("key"))));
    }
    assert!(matches!(client.put(b"k", b"a\nb"), Err(ClientError::Unsendable("value"))));
    assert!(matches!(client.publish(b"s", b"\n"), Err(ClientError::Unsendable("port"))));
    assert_eq!(client.get(b"k").unwrap(), None, "the conversation is still in step");
}

/// Replies that were written beforehand; whatever is sent is ignored.
#[derive(Debug)]
struct Canned(&'static [u8]);

impl Write for Canned {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Canned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

#[test]
fn servers_that_misbehave_are_told_apart() {
    let error = |replies| Client::init(Canned(replies)).unwrap_err().to_string();
    assert_eq!(error(b""), "PMI server closed the connection");
    assert_eq!(
        error(b"cmd=barrier_out rc=0\n"),
        "PMI server answered \"cmd=barrier_out rc=0\" where response_to_init was due"
    );
    assert_eq!(
        error(b"cmd=response_to_init rc=-1 pmi_version=1\n"),
        "response_to_init: refused with rc=-1: no_reason_given"
    );
}

#[test]
fn a_port_tells_size_and_rank() {
    let replies = b"cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n\
        cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    let (_, size, rank) = Client::init_on_port(Canned(replies), Rank(3)).unwrap();
    assert_eq!((size, rank), (4, Rank(3)));
}
