//! Tests of [`Command`]: valid and invalid requests.

use super::*;

#[track_caller]
fn check(payload: &str, expected: Result<Command<'_>, ParseError>) {
    assert_eq!(Command::parse(Pairs::of(payload.as_bytes())), expected, "{payload:?}");
}

/// Checks that a payload is parsed as this command, and the command written as this payload.
#[track_caller]
fn check_both(payload: &str, command: Command<'_>) {
    check(payload, Ok(command.clone()));
    let mut out = Vec::new();
    assert!(command.write(&mut out));
    assert_eq!(String::from_utf8_lossy(&out), format!("{:<6}{payload}", payload.len()));
}

fn borrowed(text: &str) -> Cow<'_, [u8]> {
    Cow::Borrowed(text.as_bytes())
}

#[test]
fn requests_of_slurms_client_are_parsed_and_written() {
    let (key, value) = (borrowed("k"), borrowed("v w"));
    let threaded = Some(false);
    check_both(
        "cmd=fullinit;pmijobid=77.0;pmirank=0;threaded=FALSE;",
        Command::FullInit { job: Some(borrowed("77.0")), rank: Some(0), threaded },
    );
    check_both("cmd=job-getid;", Command::JobId);
    check_both("cmd=kvs-put;key=k;value=v w;", Command::Put { key: key.clone(), value: value.clone() });
    check_both("cmd=kvs-fence;", Command::Fence);
    check_both(
        "cmd=kvs-get;jobid=77.0;srcid=-1;key=k;",
        Command::Get { job: borrowed("77.0"), source: -1, key: key.clone() },
    );
    check_both("cmd=kvs-get;srcid=3;key=k;", Command::Get { job: borrowed(""), source: 3, key: key.clone() });
    check("cmd=kvs-get;jobid=;srcid=3;key=k;", Ok(Command::Get { job: borrowed(""), source: 3, key: key.clone() }));
    check_both("cmd=info-getjobattr;key=k;", Command::JobAttribute { key: key.clone() });
    check_both("cmd=info-putnodeattr;key=k;value=v w;", Command::NodePut { key: key.clone(), value: value.clone() });
    check_both("cmd=info-getnodeattr;key=k;wait=TRUE;", Command::NodeGet { key: key.clone(), wait: true });
    check_both("cmd=info-getnodeattr;key=k;wait=FALSE;", Command::NodeGet { key: key.clone(), wait: false });
    let (service, port) = (borrowed("svc two"), borrowed("tag#0$"));
    check_both(
        "cmd=name-publish;name=svc two;port=tag#0$;infokeycount=0;",
        Command::Publish { service: service.clone(), port },
    );
    check_both("cmd=name-lookup;name=svc two;infokeycount=0;", Command::Lookup { service: service.clone() });
    check_both("cmd=name-unpublish;name=svc two;infokeycount=0;", Command::Unpublish { service });
    check_both("cmd=job-connect;jobid=k;", Command::Connect { job: key.clone() });
    check_both("cmd=job-disconnect;jobid=k;", Command::Disconnect { job: key.clone() });
    check_both("cmd=ring;ring-count=1;ring-left=k;ring-right=v w;", Command::Ring { left: key, right: value });
    check_both("cmd=finalize;", Command::Finalize);
    check(
        "cmd=abort;isworld=TRUE;msg=out of luck;",
        Ok(Command::Abort { code: None, message: borrowed("out of luck") }),
    );
    check("cmd=abort;isworld=FALSE;msg=;", Ok(Command::Abort { code: None, message: borrowed("") }));
}

#[test]
fn our_own_requests_are_parsed_and_written() {
    check_both("cmd=scela-segment;", Command::Segment);
    check_both("cmd=scela-fence;puts=0;", Command::FenceInSegment { puts_bytes: 0 });
    check_both("cmd=scela-fence;puts=16777217;", Command::FenceInSegment { puts_bytes: 16_777_217 });
    check_both("cmd=abort;isworld=TRUE;exitcode=-7;", Command::Abort { code: Some(-7), message: borrowed("") });
    let message = borrowed("out of luck");
    check_both("cmd=abort;isworld=TRUE;exitcode=3;message=out of luck;", Command::Abort { code: Some(3), message });
}

#[test]
fn requests_of_mpich_from_4_1_on_are_parsed() {
    let full_init = |rank| Command::FullInit { job: None, rank: Some(rank), threaded: None };
    check("cmd=fullinit;pmirank=3;thrid=0x7ffd;", Ok(full_init(3)));
    check("cmd=fullinit;pmirank=-1;", Ok(full_init(-1)));
    check("cmd=fullinit;srcid=3;", Ok(full_init(3)));
    check("cmd=kvs-get;key=k;", Ok(Command::Get { job: borrowed(""), source: -1, key: borrowed("k") }));
    check("cmd=info-getnodeattr;key=k;", Ok(Command::NodeGet { key: borrowed("k"), wait: false }));
    let message = borrowed("killed; by me");
    check("cmd=abort;exitcode=-1;message=killed;; by me;", Ok(Command::Abort { code: Some(-1), message }));
}

#[test]
fn fields_may_come_in_any_order_and_unknown_ones_are_ignored() {
    let put = || Ok(Command::Put { key: borrowed("k"), value: borrowed("v") });
    check("cmd=kvs-put;value=v;thrid=0x1;key=k;", put());
    check("thrid=0x1;key=k;value=v;cmd=kvs-put;", put());
    check("cmd=kvs-put;key=k;x=y;word;value=v;key=other;", put());
    check("cmd=kvs-put;thrid=0x1;key=k;value=v;\0\0stal", put());
    check("cmd=info-getnodeattr;wait=true;key=k;", Ok(Command::NodeGet { key: borrowed("k"), wait: true }));
}

#[test]
fn values_may_contain_anything_or_be_empty() {
    let put = |key: &'static str, value| Ok(Command::Put { key: borrowed(key), value: borrowed(value) });
    check("cmd=kvs-put;key=msg;value=42\n;", put("msg", "42\n"));
    check("cmd=kvs-put;key=msg;value=;", put("msg", ""));
    check("cmd=kvs-put;key=a=b c;value= x=\\ ;", put("a=b c", " x=\\ "));
    check("cmd=kvs-put;key=k;;1;value=a;;b;;;;c;", put("k;1", "a;b;;c"));
}

#[test]
fn a_missing_field_is_named() {
    for (payload, command, field) in [
        ("cmd=kvs-put;key=k;", "kvs-put", "value"),
        ("cmd=kvs-put;value=k;", "kvs-put", "key"),
        ("cmd=kvs-get;jobid=k;", "kvs-get", "key"),
        ("cmd=info-getjobattr;", "info-getjobattr", "key"),
        ("cmd=info-putnodeattr;key=k;", "info-putnodeattr", "value"),
        ("cmd=info-getnodeattr;wait=TRUE;", "info-getnodeattr", "key"),
        ("cmd=name-publish;name=a;", "name-publish", "port"),
        ("cmd=name-publish;port=a;", "name-publish", "name"),
        ("cmd=name-lookup;", "name-lookup", "name"),
        ("cmd=name-unpublish;", "name-unpublish", "name"),
        ("cmd=job-connect;", "job-connect", "jobid"),
        ("cmd=job-disconnect;", "job-disconnect", "jobid"),
        ("cmd=ring;ring-left=a;", "ring", "ring-right"),
        ("cmd=scela-fence;", "scela-fence", "puts"),
        ("cmd=scela-fence;puts=-1;", "scela-fence", "puts"),
    ] {
        check(payload, Err(ParseError::Field { command, field }));
    }
    check("cmd=spawn;subcmd=a;", Err(ParseError::Spawn(SpawnError::Missing("maxprocs"))));
}

#[test]
fn a_payload_without_a_command_is_an_error() {
    for payload in ["", " ", "cmd", "cmd=", "cmd=;", "key=k;", "kvs-fence;", "cmd=kvs-fence"] {
        check(payload, Err(ParseError::NoCommand));
    }
    check("cmd=tv-ready;", Ok(Command::Unknown { name: borrowed("tv-ready") }));
}

#[test]
fn a_command_that_exceeds_a_frame_is_not_written() {
    let put = |bytes| Command::Put { key: borrowed("k"), value: Cow::Owned(vec![b'v'; bytes]) };
    let most = frame::PAYLOAD_BYTES_MAX - "cmd=kvs-put;key=k;value=;".len();
    let mut out = b"before".to_vec();
    assert!(!put(most + 1).write(&mut out));
    assert_eq!(out, b"before");
    assert!(put(most).write(&mut out));
    assert_eq!(Command::parse(Pairs::of(&out["before".len() + frame::HEADER_BYTES..])), Ok(put(most)));
}

mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::*;

    fn text() -> impl Strategy<Value = Cow<'static, [u8]>> {
        vec(prop_oneof![Just(b';'), any::<u8>()], 0..12).prop_map(Cow::Owned)
    }

    fn command() -> impl Strategy<Value = Command<'static>> {
        (text(), text(), any::<i32>(), any::<bool>(), 0..21).prop_map(|(a, b, number, flag, pick)| match pick {
            0 => Command::FullInit { job: flag.then_some(a), rank: Some(number), threaded: Some(flag) },
            1 => Command::JobId,
            2 => Command::JobAttribute { key: a },
            3 => Command::NodePut { key: a, value: b },
            4 => Command::NodeGet { key: a, wait: flag },
            5 => Command::Put { key: a, value: b },
            6 => Command::Fence,
            7 => Command::Get { job: a, source: number, key: b },
            8 => Command::Finalize,
            9 => Command::Abort { code: flag.then_some(number), message: a },
            10 => Command::Publish { service: a, port: b },
            11 => Command::Lookup { service: a },
            12 => Command::Unpublish { service: a },
            13 => Command::Connect { job: a },
            14 => Command::Disconnect { job: a },
            15 => Command::Ring { left: a, right: b },
            16 => Command::Segment,
            17 => Command::FenceInSegment { puts_bytes: number.unsigned_abs() as usize },
            _ => Command::Unknown { name: Cow::Owned([b"x", &*a].concat()) },
        })
    }

    fn written(command: &Command<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(command.write(&mut out));
        out
    }

    proptest! {
        #[test]
        fn a_written_command_is_parsed_as_itself(command in command()) {
            let out = written(&command);
            prop_assert_eq!(frame::length(&out), Ok(Some(out.len() - frame::HEADER_BYTES)));
            let payload = &out[frame::HEADER_BYTES..];
            prop_assert_eq!(Command::parse(Pairs::of(payload)), Ok(command));
        }

        #[test]
        fn junk_after_the_last_pair_is_ignored(command in command(), junk in vec(any::<u8>(), 6..7)) {
            // A second `;` in the junk makes its first part look like the end of the value.
            let semicolons = junk.iter().filter(|&&byte| byte == b';').count();
            prop_assume!(junk[0] != b';' || semicolons == 1);
            // And junk may contain an absent field with a short name.
            prop_assume!(!junk.contains(&b'='));
            let payload = [&written(&command)[frame::HEADER_BYTES..], &junk].concat();
            prop_assert_eq!(Command::parse(Pairs::of(&payload)), Ok(command));
        }

        #[test]
        fn no_payload_panics(
            name in prop::sample::select(vec!["kvs-put", "kvs-get", "spawn", "fullinit", "abort", "ring", "x"]),
            rest in "(;|=|key|jobid|value|srcid|subcmd|maxprocs|argv|exitcode|ring-left|pmirank|1){0,12}",
        ) {
            let payload = format!("cmd={name};{rest}");
            let _ = Command::parse(Pairs::of(payload.as_bytes()));
            let _ = Command::parse(Pairs::of(rest.as_bytes()));
        }
    }
}
