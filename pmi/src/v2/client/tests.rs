//! Tests of [`Client`] against [`Conversation`](crate::Conversation), and against the prepared replies of other servers.

use super::*;
use crate::client::server::{ScriptedStream, Server};
use crate::limits::{PENDING_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Puts, Request, RootRequest, SpawnCommand};

fn joined() -> Client<Server> {
    Client::init(Server::new(), None, Rank(0), false).unwrap()
}

fn framed(payload: &str) -> String {
    format!("{:<6}{payload}", payload.len())
}

const GRANTED: &str = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";
/// The reply of Slurm's plug-in.
const FULL_INIT: &str = "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=3;size=4;appnum=-1;\
                         debugged=FALSE;pmiverbose=FALSE;";

/// An initialised client that will read these replies.
fn scripted(replies: &[&str]) -> Client<ScriptedStream> {
    let replies: String = replies.iter().map(|payload| framed(payload)).collect();
    let stream = ScriptedStream::new([GRANTED, &framed(FULL_INIT), &replies].concat());
    let mut client = Client::init(stream, Some(b"77.0"), Rank(3), false).unwrap();
    client.stream_mut().sent.clear();
    client
}

fn spawn(program: &str) -> SpawnRequest {
    SpawnRequest {
        commands: vec![SpawnCommand {
            program: program.into(),
            args: vec![b"two words".to_vec(), Vec::new(), b"a;b\n".to_vec()],
            nprocs: 3,
            info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
        }],
        preputs: vec![(b"k".to_vec(), b"v;w".to_vec())],
    }
}

#[test]
fn a_client_joins_puts_gets_finalizes_and_joins_again() {
    let mut client = joined();
    let rank_info = RankInfo { rank: Rank(0), size: 1, appnum: 2, spawner: Some(b"kvs_0".to_vec()) };
    assert_eq!(client.rank_info(), &rank_info);
    assert_eq!(client.job_id().unwrap(), b"kvs_1");
    assert_eq!(client.get(b"", -1, b"a").unwrap(), None);
    client.put(b"a", b"one;two\nthree ").unwrap();
    client.put(b"empty", b"").unwrap();
    client.fence().unwrap();
    assert_eq!(client.get(b"kvs_1", 0, b"a").unwrap().as_deref(), Some(&b"one;two\nthree "[..]));
    assert_eq!(client.get(b"", -1, b"empty").unwrap().as_deref(), Some(&b""[..]));
    assert_eq!(client.get(b"kvs_0", -1, b"a").unwrap().as_deref(), Some(&b"one;two\nthree "[..]));
    assert_eq!(client.get(b"kvs_9", -1, b"a").unwrap(), None);
    assert_eq!(client.job_attribute(b"PMI_process_mapping").unwrap().as_deref(), Some(&b"(vector,(0,1,1))"[..]));
    assert_eq!(client.job_attribute(b"universeSize").unwrap().as_deref(), Some(&b"4"[..]));
    assert_eq!(client.job_attribute(b"PMI_hwloc_xmlfile").unwrap(), None);
    client.finalize().unwrap();
    client.join().unwrap();
    client.abort(-7, b"out of; luck").unwrap();
    let mut puts = Puts::new();
    puts.push(Rank(0), b"a", b"one;two\nthree ");
    puts.push(Rank(0), b"empty", b"");
    let server = client.into_stream();
    let get_from_job = |job: &[u8]| Request::Ask(RootRequest::GetFromJob { job: job.into(), key: b"a".into() });
    let expected = [
        Request::Joined,
        Request::Fence { puts, in_segment: false },
        get_from_job(b"kvs_0"),
        get_from_job(b"kvs_9"),
        Request::TopologyFile,
        Request::Finalized,
        Request::Joined,
        Request::Abort { code: -7, message: "out of; luck".into() },
    ];
    assert_eq!(server.requests, expected);
    assert!(server.replies.is_empty(), "an abort has no reply");
}

#[test]
fn node_attributes_are_put_and_got() {
    let mut client = joined();
    assert_eq!(client.node_get(b"a", false).unwrap(), None);
    client.node_put(b"a", b"/dev/shm/x;y").unwrap();
    assert_eq!(client.node_get(b"a", true).unwrap().as_deref(), Some(&b"/dev/shm/x;y"[..]));
    let error = client.node_put(b"PMI_a", b"").unwrap_err();
    assert_eq!(error.to_string(), "info-putnodeattr-response: refused with rc=1: key_reserved");
    let get = |wait| Request::NodeGet { key: b"a".into(), wait };
    let put = Request::NodePut { key: b"a".into(), value: b"/dev/shm/x;y".into() };
    assert_eq!(client.into_stream().requests[1..], [get(false), put, get(true)]);
}

#[test]
fn names_are_published_looked_up_and_unpublished() {
    let mut client = joined();
    assert_eq!(client.lookup(b"svc two").unwrap(), None);
    client.publish(b"svc two", b"tag#0$;").unwrap();
    assert_eq!(client.lookup(b"svc two").unwrap().as_deref(), Some(&b"tag#0$;"[..]));
    let error = client.publish(b"svc two", b"x").unwrap_err();
    assert_eq!(error.to_string(), "name-publish-response: refused with rc=1: name is already published");
    client.unpublish(b"svc two").unwrap();
    assert_eq!(client.lookup(b"svc two").unwrap(), None);
}

#[test]
fn jobs_connect_and_ranks_form_a_ring() {
    let mut client = joined();
    client.connect(b"kvs_0").unwrap();
    client.disconnect(b"kvs_0").unwrap();
    let error = client.connect(b"kvs_9").unwrap_err();
    assert_eq!(error.to_string(), "job-connect-response: refused with rc=1: no_such_job");
    let ring = client.ring(b"to;left", b"").unwrap();
    assert_eq!(ring, Ring { position: 0, from_left: b"".to_vec(), from_right: b"to;left".to_vec() });
}

#[test]
fn a_spawn_arrives_as_it_was_sent() {
    let mut client = joined();
    assert_eq!(client.spawn(&spawn("child")).unwrap(), SpawnedJob { job: "kvs_2".into(), codes: vec![0; 3] });
    assert_eq!(client.spawn(&spawn("partly")).unwrap().codes, [0, 13, 0]);
    let error = client.spawn(&spawn("missing")).unwrap_err();
    assert_eq!(error.to_string(), "spawn-response: refused with rc=1: no such file or directory");
    let requests = ["child", "partly", "missing"].map(|program| Request::Ask(RootRequest::Spawn(spawn(program))));
    assert_eq!(client.into_stream().requests[1..], requests);
}

#[test]
fn init_requests_the_segment_in_one_round_trip() {
    let mut client = Client::init(Server::with_segment(), Some(b"kvs_1"), Rank(0), true).unwrap();
    assert!(client.has_segment());
    let written = [
        "cmd=init pmi_version=2 pmi_subversion=0\n",
        &framed("cmd=fullinit;pmijobid=kvs_1;pmirank=0;threaded=FALSE;"),
        &framed("cmd=scela-segment;"),
    ];
    assert_eq!(client.stream_mut().writes, [written.concat().as_bytes()]);
    assert_eq!(client.stream_mut().requests, [Request::Joined, Request::Segment]);
    assert_eq!(client.rank_info().size, 1);
    assert!(client.segment().unwrap(), "it may be requested again");
    let mut client = Client::init(Server::new(), None, Rank(0), true).unwrap();
    assert!(!client.has_segment() && !client.segment().unwrap(), "the server has none");
    assert_eq!(client.job_id().unwrap(), b"kvs_1", "the conversation must still be in step");
}

#[test]
fn a_fence_in_the_segment_is_one_write_without_a_reply() {
    let mut puts = Puts::new();
    puts.push(Rank(0), b"a", b"two\nlines;");
    let mut client = Client::init(Server::with_segment(), None, Rank(0), true).unwrap();
    client.fence_in_segment(puts.bytes()).unwrap();
    client.fence_in_segment(b"").unwrap();
    let head = framed(&format!("cmd=scela-fence;puts={};", puts.bytes_len()));
    let written = [head.as_bytes(), puts.bytes()].concat();
    assert_eq!(client.stream_mut().writes[1..], [written, framed("cmd=scela-fence;puts=0;").into_bytes()]);
    assert_eq!(client.get(b"", -1, b"a").unwrap().as_deref(), Some(&b"two\nlines;"[..]));
    let fence = |puts: Puts| Request::Fence { puts, in_segment: true };
    assert_eq!(client.into_stream().requests[2..], [fence(puts), fence(Puts::new())]);
}

#[test]
fn a_client_can_fall_back_to_pmi_1() {
    let refused = "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n";
    let granted = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    for first in [refused, granted] {
        let error = Client::init(ScriptedStream::new([first, granted].concat()), None, Rank(0), false).unwrap_err();
        assert_eq!(error.to_string(), "PMI server does not speak version 2");
        let InitError::VersionRefused(stream) = error else { panic!("{error:?}") };
        let mut client = v1::Client::init(stream).unwrap();
        let sent = "cmd=init pmi_version=2 pmi_subversion=0\ncmd=init pmi_version=1 pmi_subversion=1\n";
        assert_eq!(client.stream_mut().sent, sent.as_bytes());
        // Too late to fall back: more than the first line was sent.
        let error = Client::init(ScriptedStream::new(first), None, Rank(0), true).unwrap_err();
        assert!(matches!(error, InitError::Failed(ClientError::Refused { .. })), "{error:?}");
    }
}

#[test]
fn fullinit_has_the_fields_that_slurms_plug_in_requires() {
    let stream = ScriptedStream::new([GRANTED, &framed(FULL_INIT)].concat());
    let mut client = Client::init(stream, Some(b"77.0"), Rank(3), false).unwrap();
    assert_eq!(client.rank_info(), &RankInfo { rank: Rank(3), size: 4, appnum: -1, spawner: None });
    let sent =
        ["cmd=init pmi_version=2 pmi_subversion=0\n", "52    cmd=fullinit;pmijobid=77.0;pmirank=3;threaded=FALSE;"];
    assert_eq!(client.stream_mut().sent, sent.concat().as_bytes());
}

#[test]
fn replies_of_other_servers_are_understood() {
    // Slurm's plug-in.
    let mut client = scripted(&[
        "cmd=kvs-get-response;rc=0;found=TRUE;value=v w;",
        "cmd=kvs-get-response;rc=0;found=FALSE;",
        "cmd=name-lookup-response;rc=0;value=p;",
        "cmd=name-lookup-response;rc=1;",
        "cmd=spawn-response;rc=0;jobid=77.0-1;errcodes=0,13,-1;",
        "cmd=spawn-response;rc=14;jobid=(null);errcodes=14;",
        "cmd=ring-response;rc=0;ring-count=2;ring-left=l;ring-right=r;",
    ]);
    assert_eq!(client.get(b"77.0", -1, b"k").unwrap().as_deref(), Some(&b"v w"[..]));
    assert_eq!(client.get(b"77.0", -1, b"k").unwrap(), None);
    assert_eq!(client.lookup(b"s").unwrap().as_deref(), Some(&b"p"[..]));
    assert_eq!(client.lookup(b"s").unwrap(), None);
    assert_eq!(client.spawn(&spawn("a")).unwrap(), SpawnedJob { job: "77.0-1".into(), codes: vec![0, 13, -1] });
    let error = client.spawn(&spawn("a")).unwrap_err();
    assert_eq!(error.to_string(), "spawn-response: refused with rc=14: no_reason_given");
    let ring = client.ring(b"", b"").unwrap();
    assert_eq!(ring, Ring { position: 2, from_left: b"l".to_vec(), from_right: b"r".to_vec() });
    // Hydra pads lengths in front and replies to a get of an absent key with an error.
    let replies = "    38cmd=kvs-get-response;rc=1;errmsg=none;    60cmd=name-lookup-response;rc=0;port=tag#0$desc#host;found=TRUE;";
    let mut client =
        Client::init(ScriptedStream::new([GRANTED, &framed(FULL_INIT), replies].concat()), None, Rank(3), false)
            .unwrap();
    assert_eq!(client.get(b"", -1, b"k").unwrap(), None);
    assert_eq!(client.lookup(b"s").unwrap().as_deref(), Some(&b"tag#0$desc#host"[..]));
}

#[test]
fn misbehaving_servers_are_reported_by_what_they_did() {
    let init =
        |replies: &str| Client::init(ScriptedStream::new(replies), None, Rank(0), false).unwrap_err().to_string();
    assert_eq!(init(""), "PMI server closed the connection");
    assert_eq!(init("cmd=x\n"), "PMI server answered \"cmd=x\" where response_to_init was expected");
    let full_init = |rest: &str| init(&[GRANTED, rest].concat());
    assert_eq!(full_init(""), "PMI server closed the connection");
    assert_eq!(full_init("cmd=finalize;"), "PMI server broke the protocol");
    assert_eq!(full_init(&framed(FULL_INIT)[..60]), "PMI server closed the connection");
    assert_eq!(
        full_init(&framed("cmd=fullinit-response;rank=0;rc=0;")),
        "PMI server answered \"cmd=fullinit-response;rank=0;rc=0;\" where fullinit-response was expected"
    );
    assert_eq!(
        full_init(&framed("cmd=fullinit-response;rc=3;errmsg=no thanks;")),
        "fullinit-response: refused with rc=3: no thanks"
    );
    let mut client = scripted(&[
        "cmd=kvs-fence-response;rc=0;",
        "rc=0;",
        "cmd=kvs-get-response;found=TRUE;rc=0;",
        "cmd=spawn-response;jobid=k;errcodes=0,0;rc=0;",
        "cmd=spawn-response;jobid=k;errcodes=0,0,0,0;rc=0;",
        "cmd=spawn-response;jobid=k;errcodes=0,x,0;rc=0;",
    ]);
    let unexpected = |result: Result<(), ClientError>, expected: &str| match result {
        Err(ClientError::Unexpected { expected: found, .. }) => assert_eq!(found, expected),
        other => panic!("{other:?}"),
    };
    unexpected(client.put(b"a", b"b"), "kvs-put-response");
    unexpected(client.put(b"a", b"b"), "kvs-put-response");
    unexpected(client.get(b"", -1, b"a").map(drop), "kvs-get-response");
    for _ in 0..3 {
        unexpected(client.spawn(&spawn("a")).map(drop), "spawn-response");
    }
    let long = format!("cmd=x;y={};", "y".repeat(5000));
    let ClientError::Unexpected { got, .. } = scripted(&[&long]).fence().unwrap_err() else { panic!() };
    assert_eq!(got.len(), crate::client::SHOWN_BYTES_MAX);
}

#[test]
fn requests_that_exceed_a_frame_are_not_sent() {
    let long = vec![b'v'; 1_000_000];
    let error = Client::init(Server::with_segment(), Some(&long), Rank(0), true).unwrap_err();
    assert_eq!(error.to_string(), "job is too long to be sent");
    let mut client = joined();
    let error = client.put(b"a", &long).unwrap_err();
    assert_eq!(error.to_string(), "put is too long to be sent");
    let error = client.spawn(&SpawnRequest { preputs: vec![(b"a".to_vec(), long)], ..spawn("a") }).unwrap_err();
    assert_eq!(error.to_string(), "spawn is too long to be sent");
    let mut many = spawn("a");
    many.commands[0].nprocs = SPAWN_RANKS_MAX + 1;
    let error = client.spawn(&many).unwrap_err();
    assert!(matches!(error, ClientError::Spawn(SpawnRequestError::Ranks)));
    client.put(b"a", &[b';'; VALUE_BYTES_MAX]).unwrap();
    assert_eq!(
        client.get(b"", -1, b"a").unwrap().as_deref(),
        Some(&[b';'; VALUE_BYTES_MAX][..]),
        "the conversation must still be in step"
    );
    assert_eq!(client.into_stream().requests, [Request::Joined]);

    let mut client = scripted(&[]);
    client.fence_in_segment(&vec![0; PENDING_BYTES_MAX]).unwrap();
    let sent = std::mem::take(&mut client.stream_mut().sent).len();
    assert_eq!(sent, "      cmd=scela-fence;puts=16777216;".len() + PENDING_BYTES_MAX);
    let error = client.fence_in_segment(&vec![0; PENDING_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error.to_string(), "batch of puts is too long to be sent");
    client.abort(1, &[b'm'; ABORT_MESSAGE_BYTES_MAX + 1]).unwrap();
    let sent = String::from_utf8(std::mem::take(&mut client.stream_mut().sent)).unwrap();
    let message = "m".repeat(ABORT_MESSAGE_BYTES_MAX);
    assert_eq!(sent, framed(&format!("cmd=abort;isworld=TRUE;exitcode=1;message={message};")));
}

mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn text(bytes_max: usize) -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 1..bytes_max)
    }

    proptest! {
        #[test]
        fn every_put_can_be_got(
            entries in vec((text(20).prop_filter("reserved", |key| !key.starts_with(b"PMI_")), text(200)), 1..6),
            bytes_at_once in 1_usize..300,
        ) {
            let mut server = Server::new();
            server.bytes_at_once = bytes_at_once;
            let mut client = Client::init(server, Some(b"kvs_1"), Rank(0), false).unwrap();
            for (key, value) in &entries {
                client.put(key, value).unwrap();
                client.node_put(key, value).unwrap();
            }
            client.fence().unwrap();
            for (key, _) in &entries {
                let last = entries.iter().rev().find(|entry| entry.0 == *key).map(|entry| entry.1.clone());
                prop_assert_eq!(&client.get(b"", -1, key).unwrap(), &last);
                prop_assert_eq!(client.node_get(key, true).unwrap(), last);
            }
        }

        #[test]
        fn no_replies_panic(bytes in vec(any::<u8>(), 0..200), payload in "(;|=|rc|cmd|found|value|jobid|errcodes|,|1){0,9}") {
            for replies in [bytes, framed(&format!("cmd=spawn-response;{payload}")).into_bytes()] {
                let replies = [GRANTED.as_bytes(), framed(FULL_INIT).as_bytes(), &replies].concat();
                let mut client = Client::init(ScriptedStream::new(replies), None, Rank(3), false).unwrap();
                let _ = client.spawn(&spawn("a"));
                let _ = client.get(b"", -1, b"a");
            }
        }
    }
}
