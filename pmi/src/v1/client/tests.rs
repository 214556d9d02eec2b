//! Tests of [`Client`] against [`Conversation`](crate::Conversation), without sockets.

use super::*;
use crate::client::server::{ScriptedStream, Server};
use crate::limits::PENDING_BYTES_MAX;
use crate::{Puts, Request, RootRequest, SpawnCommand};

#[test]
fn a_client_joins_puts_gets_finalizes_and_joins_again() {
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
        Request::Fence { puts, in_segment: false },
        Request::Finalized,
        Request::Joined,
        Request::Abort { code: -7, message: String::new() },
    ];
    assert_eq!(server.requests, expected);
    assert!(server.replies.is_empty(), "an abort has no reply");
}

#[test]
fn names_are_published_looked_up_and_unpublished() {
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
fn a_spawn_arrives_as_it_was_sent() {
    let spawn = |program: &[u8]| SpawnRequest {
        commands: vec![SpawnCommand {
            program: program.to_vec(),
            args: vec![b"two words".to_vec(), Vec::new()],
            nprocs: 3,
            info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
        }],
        preputs: vec![(b"k".to_vec(), b"v w".to_vec())],
    };
    let mut client = Client::init(Server::new()).unwrap();
    client.spawn(&spawn(b"child")).unwrap();
    let error = client.spawn(&spawn(b"missing")).unwrap_err();
    assert_eq!(error.to_string(), "spawn_result: refused with rc=-1: no_such_file_or_directory");
    let requests = client.into_stream().requests;
    assert_eq!(
        requests[1..],
        [Request::Ask(RootRequest::Spawn(spawn(b"child"))), Request::Ask(RootRequest::Spawn(spawn(b"missing")))]
    );
}

#[test]
fn arguments_that_would_break_a_line_are_not_sent() {
    let mut client = Client::init(Server::new()).unwrap();
    for key in [&b""[..], b"a b", b"a\n"] {
        assert!(matches!(client.put(key, b"v"), Err(ClientError::Unsendable("key"))));
        assert!(matches!(client.get(key), Err(ClientError::Unsendable("key"))));
    }
    assert!(matches!(client.put(b"k", b"a\nb"), Err(ClientError::Unsendable("value"))));
    assert!(matches!(client.publish(b"s", b"\n"), Err(ClientError::Unsendable("port"))));
    assert_eq!(client.get(b"k").unwrap(), None, "the conversation must still be in step");
}

#[test]
fn misbehaving_servers_are_reported_by_what_they_did() {
    let error = |replies: &[u8]| Client::init(ScriptedStream::new(replies)).unwrap_err().to_string();
    assert_eq!(error(b""), "PMI server closed the connection");
    assert_eq!(
        error(b"cmd=barrier_out rc=0\n"),
        "PMI server answered \"cmd=barrier_out rc=0\" where response_to_init was expected"
    );
    assert_eq!(
        error(b"cmd=response_to_init rc=-1 pmi_version=1\n"),
        "response_to_init: refused with rc=-1: no_reason_given"
    );
}

#[test]
fn a_client_on_a_port_learns_its_size_and_rank() {
    let replies = b"cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n\
        cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    let (_, size, rank) = Client::init_on_port(ScriptedStream::new(*replies), Rank(3)).unwrap();
    assert_eq!((size, rank), (4, Rank(3)));
}

#[test]
fn init_requests_the_segment_in_one_round_trip() {
    let (mut client, given) = Client::init_with_segment(Server::with_segment()).unwrap();
    assert!(given);
    let written = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=scela_segment\n";
    assert_eq!(client.stream_mut().writes, [written]);
    assert_eq!(client.stream_mut().requests, [Request::Joined, Request::Segment]);
    client.put(b"a", b"1").unwrap();
    let (mut client, given) = Client::init_with_segment(Server::new()).unwrap();
    assert!(!given, "the server has none");
    client.put(b"a", b"1").unwrap();
    let refused = Client::init_with_segment(ScriptedStream::new("cmd=response_to_init rc=-1\n")).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { reply: "response_to_init", .. }));
}

#[test]
fn a_fence_in_the_segment_is_one_write_without_a_reply() {
    let mut puts = Puts::new();
    puts.push(Rank(0), b"a", b"one two");
    let (mut client, _) = Client::init_with_segment(Server::with_segment()).unwrap();
    client.fence_in_segment(puts.bytes()).unwrap();
    client.fence_in_segment(b"").unwrap();
    let written = [format!("cmd=scela_fence puts={}\n", puts.bytes_len()).as_bytes(), puts.bytes()].concat();
    assert_eq!(client.stream_mut().writes[1..], [written, b"cmd=scela_fence puts=0\n".to_vec()]);
    assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"one two"[..]));
    let fence = |puts: Puts| Request::Fence { puts, in_segment: true };
    assert_eq!(client.into_stream().requests[2..], [fence(puts), fence(Puts::new())]);
}

#[test]
fn a_batch_beyond_the_bound_is_not_sent() {
    let granted = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    let mut client = Client::init(ScriptedStream::new(granted)).unwrap();
    let before = client.stream_mut().sent.len();
    client.fence_in_segment(&vec![0; PENDING_BYTES_MAX]).unwrap();
    let sent = client.stream_mut().sent.len();
    assert_eq!(sent - before, "cmd=scela_fence puts=16777216\n".len() + PENDING_BYTES_MAX);
    let error = client.fence_in_segment(&vec![0; PENDING_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error.to_string(), "batch of puts is too long to be sent");
    assert_eq!(client.stream_mut().sent.len(), sent);
}
