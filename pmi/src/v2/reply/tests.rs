//! Tests of [`Reply`] and [`ReplyFrame`].

use super::*;
use crate::limits::{MAPPING_BYTES_MAX, PORT_BYTES_MAX, SPAWN_RANKS_MAX, VALUE_BYTES_MAX};

fn written(reply: Reply<'_>, thread: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    reply.write(thread, &mut out);
    out
}

#[track_caller]
fn check(reply: Reply<'_>, payload: &str) {
    let expected = format!("{:<6}{payload}", payload.len());
    assert_eq!(String::from_utf8_lossy(&written(reply, None)), expected);
    // Repeat with the thread after the name.
    let (name, fields) = payload.split_once(';').unwrap();
    let payload = format!("{name};thrid=0x7ffd;{fields}");
    let expected = format!("{:<6}{payload}", payload.len());
    assert_eq!(String::from_utf8_lossy(&written(reply, Some(b"0x7ffd"))), expected);
}

/// All replies, with the longest and strangest contents.
fn all() -> Vec<Reply<'static>> {
    let odd: &[u8] = b" a=b;c\\c\td\x00\xff\n";
    let value: &[u8] = &[b'v'; VALUE_BYTES_MAX];
    vec![
        Reply::FullInit { rank: u32::MAX, size: u32::MAX, appnum: i32::MIN, spawner: Some("kvs_0") },
        Reply::JobId("kvs_9121_0_1201685559_vm"),
        Reply::JobAttribute(Some(&[b'm'; MAPPING_BYTES_MAX])),
        Reply::JobAttribute(None),
        Reply::NodePut,
        Reply::NodeGot(Some(value)),
        Reply::NodeGot(None),
        Reply::Put,
        Reply::Fenced,
        Reply::Got(Some(odd)),
        Reply::Got(None),
        Reply::Finalized,
        Reply::Spawned { job: "kvs_2", codes: &[0, 0] },
        Reply::Spawned { job: "kvs_2", codes: &[0, i32::MIN] },
        Reply::Published,
        Reply::Port(&[b'p'; PORT_BYTES_MAX]),
        Reply::NoPort,
        Reply::Unpublished,
        Reply::Connected,
        Reply::Disconnected,
        Reply::Ring { position: u32::MAX, from_left: value, from_right: value },
        Reply::Segment,
        Reply::Refused("kvs-put", ""),
        Reply::Refused("spawn", "no such file; or\n dir\u{e9}ctory = \\"),
        Reply::Unsupported(odd),
        Reply::Unsupported(&[b'x'; 100_000]),
    ]
}

#[test]
fn every_reply_satisfies_what_clients_require() {
    for reply in all() {
        let frame = written(reply, Some(b"0x1"));
        let shown = String::from_utf8_lossy(&frame).into_owned();
        let payload = &frame[frame::HEADER_BYTES..];
        assert_eq!(frame::length(&frame), Ok(Some(payload.len())), "{shown}");
        let pairs: Vec<_> = Pairs::of(payload).iter().collect();
        assert!(pairs[0].0 == b"cmd" && pairs[0].1.ends_with(b"-response"), "{shown}");
        assert_eq!((pairs[1].0, &*pairs[1].1), (&b"thrid"[..], &b"0x1"[..]), "{shown}");
        let mut names: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), pairs.len(), "a name twice: {shown}");
        let parsed = ReplyFrame::parse(payload).unwrap();
        assert_eq!(pairs.iter().filter(|pair| pair.0 == b"rc").count(), 1, "{shown}");
        assert_eq!(parsed.rc != 0, parsed.get("errmsg").is_some(), "{shown}");
        for (name, value) in pairs {
            assert!(!value.is_empty() && value.len() <= 1024, "{shown}");
            assert!(name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-'), "{shown}");
            if name == b"errmsg" || name == b"cmd" {
                assert!(value.iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b';'), "{shown}");
            }
        }
    }
}

#[test]
fn replies_are_written_as_documented() {
    let full_init = |spawner| Reply::FullInit { rank: 0, size: 2, appnum: 0, spawner };
    check(
        full_init(None),
        "cmd=fullinit-response;pmi-version=2;pmi-subversion=0;rank=0;size=2;appnum=0;\
         debugged=FALSE;pmiverbose=FALSE;rc=0;",
    );
    check(
        full_init(Some("kvs_0")),
        "cmd=fullinit-response;pmi-version=2;pmi-subversion=0;rank=0;size=2;appnum=0;spawner-jobid=kvs_0;\
         debugged=FALSE;pmiverbose=FALSE;rc=0;",
    );
    check(Reply::JobId("77.0"), "cmd=job-getid-response;jobid=77.0;rc=0;");
    check(Reply::JobAttribute(Some(b"8")), "cmd=info-getjobattr-response;found=TRUE;value=8;rc=0;");
    check(Reply::JobAttribute(None), "cmd=info-getjobattr-response;found=FALSE;rc=0;");
    check(Reply::NodePut, "cmd=info-putnodeattr-response;rc=0;");
    check(Reply::NodeGot(Some(b"")), "cmd=info-getnodeattr-response;found=TRUE;value=;rc=0;");
    check(Reply::NodeGot(None), "cmd=info-getnodeattr-response;found=FALSE;rc=0;");
    check(Reply::Put, "cmd=kvs-put-response;rc=0;");
    check(Reply::Fenced, "cmd=kvs-fence-response;rc=0;");
    check(Reply::Got(Some(b"42\n")), "cmd=kvs-get-response;found=TRUE;value=42\n;rc=0;");
    check(Reply::Got(Some(b"a;b;;c")), "cmd=kvs-get-response;found=TRUE;value=a;;b;;;;c;rc=0;");
    check(Reply::Got(None), "cmd=kvs-get-response;found=FALSE;rc=0;");
    check(Reply::Finalized, "cmd=finalize-response;rc=0;");
    check(Reply::Spawned { job: "k", codes: &[0, 0] }, "cmd=spawn-response;jobid=k;rc=0;");
    let codes = &[0, 13, -1];
    check(Reply::Spawned { job: "k", codes }, "cmd=spawn-response;jobid=k;nerrs=2;errcodes=0,13,-1;rc=0;");
    check(Reply::Published, "cmd=name-publish-response;rc=0;");
    check(Reply::Port(b"tag#0$"), "cmd=name-lookup-response;port=tag#0$;value=tag#0$;rc=0;");
    check(Reply::NoPort, "cmd=name-lookup-response;found=FALSE;rc=1;errmsg=name is not published;");
    check(Reply::Unpublished, "cmd=name-unpublish-response;rc=0;");
    check(Reply::Connected, "cmd=job-connect-response;kvscopy=FALSE;rc=0;");
    check(Reply::Disconnected, "cmd=job-disconnect-response;rc=0;");
    let ring = Reply::Ring { position: 3, from_left: b"l", from_right: b"r" };
    check(ring, "cmd=ring-response;ring-count=3;ring-left=l;ring-right=r;rc=0;");
    check(Reply::Segment, "cmd=scela-segment-response;rc=0;");
    check(Reply::Refused("kvs-put", "key_empty"), "cmd=kvs-put-response;rc=1;errmsg=key_empty;");
    check(Reply::Refused("spawn", "no; such\nfile"), "cmd=spawn-response;rc=1;errmsg=no, such_file;");
    check(Reply::Refused("spawn", ""), "cmd=spawn-response;rc=1;errmsg=_;");
    check(Reply::Unsupported(b"tv ready;"), "cmd=tv_ready_-response;rc=1;errmsg=unsupported;");
}

#[test]
fn long_texts_are_cut() {
    let payload = |reply: Reply<'_>| written(reply, None).len() - frame::HEADER_BYTES;
    let name = payload(Reply::Unsupported(b"x"));
    assert_eq!(payload(Reply::Unsupported(&[b'x'; ECHO_BYTES_MAX])), name + ECHO_BYTES_MAX - 1);
    assert_eq!(payload(Reply::Unsupported(&[b'x'; ECHO_BYTES_MAX + 1])), name + ECHO_BYTES_MAX - 1);
    let why = |bytes| payload(Reply::Refused("spawn", &"w".repeat(bytes)));
    assert_eq!(why(ATTRIBUTE_BYTES_MAX), why(1) + ATTRIBUTE_BYTES_MAX - 1);
    assert_eq!(why(ATTRIBUTE_BYTES_MAX + 1), why(ATTRIBUTE_BYTES_MAX));
}

#[test]
fn a_reply_that_exceeds_a_frame_becomes_a_refusal() {
    let value = |bytes: usize| vec![b'v'; bytes];
    let most = frame::PAYLOAD_BYTES_MAX - "cmd=kvs-get-response;found=TRUE;value=;rc=0;".len();
    let fits = written(Reply::Got(Some(&value(most))), None);
    assert_eq!(fits.len(), frame::HEADER_BYTES + frame::PAYLOAD_BYTES_MAX);
    let refused = |command: &str| {
        let payload = format!("cmd={command}-response;rc=1;errmsg=reply too long;");
        format!("{:<6}{payload}", payload.len()).into_bytes()
    };
    assert_eq!(written(Reply::Got(Some(&value(most + 1))), None), refused("kvs-get"));
    let codes = vec![-1; SPAWN_RANKS_MAX as usize];
    assert_eq!(written(Reply::Spawned { job: "k", codes: &codes }, None), refused("spawn"));
}

#[test]
fn replies_of_other_servers_are_parsed() {
    // Slurm's plug-in sends `rc` first and no `found` in a lookup.
    let reply = ReplyFrame::parse(b"cmd=name-lookup-response;rc=0;value=p;").unwrap();
    assert_eq!((reply.rc, reply.found("port"), reply.found("value")), (0, None, Some(Some(b"p".to_vec()))));
    let reply = ReplyFrame::parse(b"cmd=kvs-get-response;rc=0;found=FALSE;").unwrap();
    assert_eq!(reply.found("value"), Some(None));
    let reply = ReplyFrame::parse(b"cmd=fullinit-response;rc=0;rank= 3;appnum=-1;").unwrap();
    assert_eq!((reply.number("rank"), reply.number("appnum"), reply.number::<u32>("size")), (Some(3), Some(-1), None));
    let reply = ReplyFrame::parse(b"cmd=spawn-response;rc=14;errmsg=spawn failed;").unwrap();
    assert_eq!((reply.rc, reply.reason().as_str()), (14, "spawn failed"));
    assert_eq!(ReplyFrame::parse(b"cmd=x;rc=1;").unwrap().reason(), "no_reason_given");
    for payload in ["", "rc=0;", "cmd=x;rc=;", "cmd=x;rc=y;"] {
        assert_eq!(ReplyFrame::parse(payload.as_bytes()), None, "{payload}");
    }
}

mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::*;

    proptest! {
        #[test]
        fn a_client_parses_a_written_reply(
            value in vec(prop_oneof![Just(b';'), any::<u8>()], 0..40),
            thread in proptest::option::of(vec(any::<u8>(), 1..20)),
        ) {
            let mut out = Vec::new();
            Reply::Got(Some(&value)).write(thread.as_deref(), &mut out);
            let reply = ReplyFrame::parse(&out[frame::HEADER_BYTES..]).unwrap();
            prop_assert_eq!((&*reply.name, reply.rc), (&b"kvs-get-response"[..], 0));
            prop_assert_eq!(reply.get("thrid").map(Cow::into_owned), thread);
            prop_assert_eq!(reply.found("value"), Some(Some(value)));
        }

        #[test]
        fn no_payload_panics(payload in vec(any::<u8>(), 0..40), words in "(;|=|rc|cmd|found|FALSE|value|1){0,9}") {
            for payload in [payload.as_slice(), words.as_bytes()] {
                if let Some(reply) = ReplyFrame::parse(payload) {
                    reply.reason();
                    reply.found("value");
                }
            }
        }
    }
}
