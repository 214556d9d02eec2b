//! PMI-2: recorded conversations of real clients, and requests that need no agent.

use super::*;
use crate::limits::ATTRIBUTE_BYTES_MAX;

pub(super) const INIT_2: &str = "cmd=init pmi_version=2 pmi_subversion=0\n";
pub(super) const GRANTED_2: &str = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";

/// Returns a frame as MPICH <= 4.0, Slurm and we write it.
pub(super) fn framed(payload: &str) -> String {
    format!("{:<6}{payload}", payload.len())
}

impl World {
    /// A rank after `fullinit`.
    pub(super) fn joined_2() -> Self {
        let mut world = Self::new();
        assert_eq!(world.say(INIT_2), (vec![], GRANTED_2.into()));
        assert_eq!(world.say(framed("cmd=fullinit;pmirank=3;")).0, [Request::Joined]);
        world
    }

    /// Checks that a frame leads to exactly this reply and no request.
    #[track_caller]
    pub(super) fn check_2(&mut self, payload: &str, reply: &str) {
        assert_eq!(self.say(framed(payload)), (vec![], framed(reply)), "{payload}");
    }

    /// Checks that a frame leads to exactly one request and no reply, and returns the request.
    #[track_caller]
    pub(super) fn ask_2(&mut self, payload: &str) -> Request {
        self.ask(&framed(payload))
    }

    /// Answers a request and checks the reply.
    #[track_caller]
    pub(super) fn answer_2(&mut self, answer: Answer, reply: &str) {
        let mut out = Vec::new();
        self.conversation.answer(answer, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), framed(reply));
        assert!(!self.conversation.is_waiting());
    }
}

/// Rank 0 of 2, as in the recorded conversations.
fn observed() -> World {
    let mut world = World::with(|attributes| {
        attributes.kvsname = "77.0".into();
        attributes.size = 2;
        attributes.spawner = None;
    });
    let attributes = Arc::clone(&world.conversation.state.attributes);
    world.conversation = Conversation::new(attributes, Rank(0), 0);
    world
}

#[test]
fn a_conversation_of_slurms_client_byte_for_byte() {
    let mut world = observed();
    let mut check = |said: &str, replied: &str| assert_eq!(world.say(said).1, replied, "{said}");
    check(INIT_2, GRANTED_2);
    check(
        "52    cmd=fullinit;pmijobid=77.0;pmirank=0;threaded=FALSE;",
        "113   cmd=fullinit-response;pmi-version=2;pmi-subversion=0;rank=0;size=2;appnum=0;\
         debugged=FALSE;pmiverbose=FALSE;rc=0;",
    );
    check("14    cmd=job-getid;", "39    cmd=job-getid-response;jobid=77.0;rc=0;");
    assert_eq!(world.ask("14    cmd=kvs-fence;"), FENCE);
    let mut out = Vec::new();
    world.conversation.answer(Answer::Released, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "28    cmd=kvs-fence-response;rc=0;");
    let (requests, out) = world.say("30    cmd=kvs-put;key=msg;value=42\n;");
    assert_eq!((requests, out.as_str()), (vec![], "26    cmd=kvs-put-response;rc=0;"));
    let mut puts = Puts::new();
    puts.push(Rank(0), b"msg", b"42\n");
    assert_eq!(world.ask("14    cmd=kvs-fence;"), Request::Fence { puts: puts.clone(), in_segment: false });
    world.board.publish(Epoch::merge(&puts).unwrap());
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;rc=0;");
    let (requests, out) = world.say("40    cmd=kvs-get;jobid=77.0;srcid=-1;key=msg;");
    assert_eq!((requests, out.as_str()), (vec![], "47    cmd=kvs-get-response;found=TRUE;value=42\n;rc=0;"));
    let (requests, out) = world.say("13    cmd=finalize;");
    assert_eq!((requests, out.as_str()), (vec![Request::Finalized], "27    cmd=finalize-response;rc=0;"));
    assert!(!world.conversation.is_active());
}

#[test]
fn a_conversation_of_mpich_from_4_1_on() {
    // Lengths are padded on the left, the thread comes last, and only `pmirank` is sent. A barrier is a fence and a get of a
    // key that no rank puts.
    let mut world = observed();
    let head = |payload: &str| format!("{:>6}{payload}", payload.len());
    world.say(INIT_2);
    assert_eq!(world.say(head("cmd=fullinit;pmirank=0;")).0, [Request::Joined]);
    let mut check = |payload: &str, reply: &str| assert_eq!(world.say(head(payload)), (vec![], framed(reply)));
    check("cmd=job-getid;thrid=0x7f00;", "cmd=job-getid-response;thrid=0x7f00;jobid=77.0;rc=0;");
    check(
        "cmd=info-getjobattr;key=PMI_process_mapping;thrid=0x7f01;",
        "cmd=info-getjobattr-response;thrid=0x7f01;found=TRUE;value=(vector,(0,2,2));rc=0;",
    );
    check("cmd=kvs-put;key=-bcast-1-0;value=2F64;thrid=0x7f02;", "cmd=kvs-put-response;thrid=0x7f02;rc=0;");
    assert!(matches!(world.ask(&head("cmd=kvs-fence;thrid=0x7f03;")), Request::Fence { .. }));
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;thrid=0x7f03;rc=0;");
    let get = head("cmd=kvs-get;jobid=77.0;srcid=-1;key=-NONEXIST-KEY;thrid=0x7f04;");
    assert_eq!(world.say(get), (vec![], framed("cmd=kvs-get-response;thrid=0x7f04;found=FALSE;rc=0;")));
    assert_eq!(world.say(head("cmd=finalize;")).0, [Request::Finalized]);
}

#[test]
fn a_conversation_of_mpich_3_3_to_4_0() {
    // Each length is 6 too long, and bytes of the stack follow.
    let mut world = observed();
    let long = |payload: &str, junk: &str| format!("{:<6}{payload}{junk}", payload.len() + 6);
    assert_eq!(world.say(INIT_2).1, GRANTED_2);
    let full_init = long("cmd=fullinit;pmijobid=77.0;pmirank=0;threaded=FALSE;", "\0\0\0\0\0\0");
    assert_eq!(world.say(full_init).0, [Request::Joined]);
    let mut check = |said: String, reply: &str| assert_eq!(world.say(said), (vec![], framed(reply)));
    check(long("cmd=job-getid;", "\0id=77"), "cmd=job-getid-response;jobid=77.0;rc=0;");
    check(long("cmd=kvs-put;key=a;value=b;;c;", ";value"), "cmd=kvs-put-response;rc=0;");
    check(long("cmd=kvs-put;key=d;value=;", "=FALSE"), "cmd=kvs-put-response;rc=0;");
    check(long("cmd=kvs-get;jobid=77.0;srcid=-1;key=a;", "key=d;"), "cmd=kvs-get-response;found=TRUE;value=b;;c;rc=0;");
    check(long("cmd=kvs-get;jobid=;srcid=-1;key=d;", ";\n\n\n\n\n"), "cmd=kvs-get-response;found=TRUE;value=;rc=0;");
    assert!(matches!(world.ask(&long("cmd=kvs-fence;", "\u{1}23456")), Request::Fence { .. }));
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;rc=0;");
    let abort = world.ask(&long("cmd=abort;isworld=TRUE;msg=out of luck;", "\0\0\0\0\0\0"));
    assert_eq!(abort, Request::Abort { code: 1, message: "out of luck".into() });
}

#[test]
fn a_spawned_rank_learns_its_spawner() {
    let mut world = World::new();
    world.say(INIT_2);
    let (requests, out) = world.say(framed("cmd=fullinit;pmirank=3;thrid=0x1;"));
    assert_eq!(requests, [Request::Joined]);
    let reply = "cmd=fullinit-response;thrid=0x1;pmi-version=2;pmi-subversion=0;rank=3;size=4;appnum=1;\
                 spawner-jobid=kvs_0;debugged=FALSE;pmiverbose=FALSE;rc=0;";
    assert_eq!(out, framed(reply));
}

#[test]
fn requests_before_fullinit_are_refused() {
    let mut world = World::new();
    world.say(INIT_2);
    let check_all = |world: &mut World| {
        for payload in [
            "cmd=kvs-put;key=a;value=b;",
            "cmd=kvs-get;jobid=;srcid=-1;key=a;",
            "cmd=kvs-get;jobid=other;srcid=-1;key=a;",
            "cmd=info-putnodeattr;key=a;value=b;",
            "cmd=info-getnodeattr;key=a;wait=TRUE;",
            "cmd=name-publish;name=a;port=b;",
            "cmd=name-publish;name=a;port=;",
            "cmd=name-lookup;name=a;",
            "cmd=name-unpublish;name=a;",
            "cmd=job-connect;jobid=a;",
            "cmd=job-disconnect;jobid=a;",
            "cmd=ring;ring-count=1;ring-left=a;ring-right=b;",
            "cmd=spawn;subcmd=a;maxprocs=1;",
            "cmd=spawn;",
        ] {
            let name = payload.split(['=', ';']).nth(1).unwrap();
            world.check_2(payload, &format!("cmd={name}-response;rc=1;errmsg=not_initialized;"));
        }
        // Queries of the job's attributes are accepted.
        world.check_2("cmd=job-getid;", "cmd=job-getid-response;jobid=kvs_1;rc=0;");
        world.check_2("cmd=info-getjobattr;key=universeSize;", "cmd=info-getjobattr-response;found=TRUE;value=8;rc=0;");
    };
    check_all(&mut world);
    world.check_2("cmd=finalize;", "cmd=finalize-response;rc=1;errmsg=not_initialized;");
    assert_eq!(world.say(framed("cmd=fullinit;")).0, [Request::Joined]);
    assert_eq!(world.say(framed("cmd=finalize;")).0, [Request::Finalized]);
    check_all(&mut world);
    world.check_2("cmd=finalize;", "cmd=finalize-response;rc=0;");
    assert_eq!(world.why_broken(framed("cmd=kvs-fence;")), "entered a fence without having initialised");
}

#[test]
fn a_rank_sees_its_own_puts_first() {
    let mut world = World::joined_2();
    world.board.publish(epoch(&[("a", "old"), ("b", "board")]));
    let get = |key| format!("cmd=kvs-get;jobid=kvs_1;srcid=3;key={key};");
    let found = |value| format!("cmd=kvs-get-response;found=TRUE;value={value};rc=0;");
    let put = "cmd=kvs-put-response;rc=0;";
    world.check_2(&get("a"), &found("old"));
    world.check_2("cmd=kvs-put;key=a;value=1;", put);
    world.check_2("cmd=kvs-put;key=a;value=2;", put);
    world.check_2("cmd=kvs-put;key=c;value=;", put);
    world.check_2("cmd=kvs-put;key=two words;;;value= a;;b=\n;", put);
    world.check_2(&get("a"), &found("2"));
    world.check_2(&get("b"), &found("board"));
    world.check_2(&get("c"), &found(""));
    world.check_2(&get("two words;;"), &found(" a;;b=\n"));
    world.check_2(&get("PARENT_ROOT_PORT_NAME"), &found("tag#0$ x"));
    world.check_2(&get("absent"), "cmd=kvs-get-response;found=FALSE;rc=0;");
    world.check_2(&get(""), "cmd=kvs-get-response;rc=1;errmsg=key_empty;");
    let Request::Fence { puts, in_segment: false } = world.ask_2("cmd=kvs-fence;") else { panic!() };
    assert_eq!(puts.validate(), Ok(4));
    // The fence has taken the put, so the board's value is found.
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;rc=0;");
    world.check_2(&get("a"), &found("old"));
}

#[test]
fn puts_beyond_the_bounds_are_refused() {
    let mut world = World::joined_2();
    let put = |key: usize, value: usize| format!("cmd=kvs-put;key={};value={};", "k".repeat(key), ";;".repeat(value));
    let refused = |why| format!("cmd=kvs-put-response;rc=1;errmsg={why};");
    world.check_2(&put(KEY_BYTES_MAX, VALUE_BYTES_MAX), "cmd=kvs-put-response;rc=0;");
    world.check_2(&put(KEY_BYTES_MAX + 1, 1), &refused("key_longer_than_63_bytes"));
    world.check_2(&put(1, VALUE_BYTES_MAX + 1), &refused("value_longer_than_1023_bytes"));
    world.check_2(&put(0, 1), &refused("key_empty"));
    world.check_2("cmd=kvs-put;key=PMI_process_mapping;value=x;", &refused("key_reserved"));
    world.check_2("cmd=kvs-put;key=a;", &refused("value_missing"));
    world.check_2("cmd=kvs-put;value=a;", &refused("key_missing"));
    let long = format!("cmd=kvs-get;jobid=;srcid=-1;key={};", "k".repeat(5000));
    world.check_2(&long, "cmd=kvs-get-response;found=FALSE;rc=0;");
}

#[test]
fn pending_puts_are_bounded() {
    let mut world = World::joined_2();
    let cost = Puts::cost(b"key", &[0; VALUE_BYTES_MAX]);
    let put = |bytes| format!("cmd=kvs-put;key=key;value={};", "v".repeat(bytes));
    let (taken, full) =
        ("cmd=kvs-put-response;rc=0;", "cmd=kvs-put-response;rc=1;errmsg=too_many_bytes_put_between_fences;");
    for _ in 0..PENDING_BYTES_MAX / cost {
        world.check_2(&put(VALUE_BYTES_MAX), taken);
    }
    let left = PENDING_BYTES_MAX % cost - Puts::cost(b"key", b"");
    world.check_2(&put(left + 1), full);
    world.check_2(&put(left), taken);
    let Request::Fence { puts, in_segment: false } = world.ask_2("cmd=kvs-fence;") else { panic!() };
    assert_eq!(puts.bytes_len(), PENDING_BYTES_MAX);
}

#[test]
fn a_query_of_a_job_attribute_does_not_look_at_the_board() {
    let mut world = World::joined_2();
    let get = |key| format!("cmd=info-getjobattr;key={key};");
    let found = |value| format!("cmd=info-getjobattr-response;found=TRUE;value={value};rc=0;");
    let none = "cmd=info-getjobattr-response;found=FALSE;rc=0;";
    world.board.publish(epoch(&[("a", "1"), ("universeSize", "1")]));
    world.check_2(&get("PMI_process_mapping"), &found("(vector,(0,2,2))"));
    world.check_2(&get("universeSize"), &found("8"));
    for key in ["", "a", "PMI_dead_processes", "mpi_reserved_ports", "PARENT_ROOT_PORT_NAME"] {
        world.check_2(&get(key), none);
    }
    world.check_2("cmd=info-getjobattr;", "cmd=info-getjobattr-response;rc=1;errmsg=key_missing;");
    world.board.set_dead(&"0-1".parse().unwrap());
    world.check_2(&get("PMI_dead_processes"), &found("0-1"));
    let mut world = World::with(|attributes| {
        attributes.mapping = None;
        attributes.universe_size = -1;
    });
    world.say(INIT_2);
    world.say(framed("cmd=fullinit;"));
    world.check_2(&get("PMI_process_mapping"), none);
    world.check_2(&get("universeSize"), &found("-1"));
}

#[test]
fn a_failed_fence_or_ring_is_answered() {
    let mut world = World::joined_2();
    assert_eq!(world.ask_2("cmd=kvs-fence;"), FENCE);
    world.answer_2(Answer::FenceFailed, "cmd=kvs-fence-response;rc=1;errmsg=a_process_has_died;");
    assert!(matches!(world.ask_2("cmd=ring;ring-count=1;ring-left=a;ring-right=b;"), Request::Ring { .. }));
    world.answer_2(Answer::FenceFailed, "cmd=ring-response;rc=1;errmsg=a_process_has_died;");
}

#[test]
fn an_abort_has_no_reply() {
    let abort = |payload: &str| {
        let mut world = World::new();
        world.say(INIT_2);
        let request = world.ask_2(payload);
        assert!(!world.conversation.is_waiting());
        request
    };
    let expected = |code, message: &str| Request::Abort { code, message: message.into() };
    assert_eq!(abort("cmd=abort;isworld=TRUE;msg=out of; luck;"), expected(1, "out of"));
    assert_eq!(abort("cmd=abort;isworld=FALSE;msg=;"), expected(1, ""));
    assert_eq!(abort("cmd=abort;exitcode=-1;message=a;;b;"), expected(-1, "a;b"));
    assert_eq!(abort("cmd=abort;exitcode=204066320;"), expected(204_066_320, ""));
    assert_eq!(abort("cmd=abort;msg=\x1b[31m\n;"), expected(1, "\u{fffd}[31m\u{fffd}"));
    let long = format!("cmd=abort;msg={};", "m".repeat(5000));
    assert_eq!(abort(&long), expected(1, &"m".repeat(ABORT_MESSAGE_BYTES_MAX)));
}

#[test]
fn unknown_commands_do_not_kill_the_job() {
    let mut world = World::joined_2();
    world.check_2("cmd=tv-ready;", "cmd=tv-ready-response;rc=1;errmsg=unsupported;");
    world.check_2("cmd=a b\n;thrid=7;", "cmd=a_b_-response;thrid=7;rc=1;errmsg=unsupported;");
    let echoed = "x".repeat(ECHO_BYTES_MAX);
    let reply = format!("cmd={echoed}-response;rc=1;errmsg=unsupported;");
    world.check_2(&format!("cmd={echoed};"), &reply);
    world.check_2(&format!("cmd={echoed}x;"), &reply);
}

#[test]
fn a_valid_thread_is_echoed_unchanged() {
    let mut world = World::joined_2();
    let long = "t".repeat(ECHO_BYTES_MAX);
    world.check_2(
        &format!("cmd=kvs-put;thrid={long};key=a;value=b;"),
        &format!("cmd=kvs-put-response;thrid={long};rc=0;"),
    );
    world.check_2(&format!("cmd=kvs-put;thrid={long}t;key=a;value=b;"), "cmd=kvs-put-response;rc=0;");
    world.check_2("cmd=kvs-put;thrid=;key=a;value=b;", "cmd=kvs-put-response;rc=0;");
    world.check_2("cmd=kvs-put;thrid=a;;b;key=a;value=b;", "cmd=kvs-put-response;thrid=a;;b;rc=0;");
    world.check_2("cmd=kvs-put;key=a;value=b;", "cmd=kvs-put-response;rc=0;");
}

#[test]
fn pipelined_requests_are_served_in_order() {
    let mut world = World::joined_2();
    let requests = ["cmd=kvs-put;key=a;value=1;", "cmd=kvs-fence;thrid=1;", "cmd=kvs-get;key=a;thrid=2;"];
    let (requests, out) = world.say(requests.map(framed).concat());
    assert_eq!((requests.len(), out), (1, framed("cmd=kvs-put-response;rc=0;")));
    assert_eq!(world.say(""), (vec![], String::new()), "it waits");
    world.board.publish(epoch(&[("a", "1")]));
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;thrid=1;rc=0;");
    assert_eq!(world.say(""), (vec![], framed("cmd=kvs-get-response;thrid=2;found=TRUE;value=1;rc=0;")));
}

#[test]
fn invalid_frames_break_the_conversation() {
    for payload in ["", ";", "key=a;", "cmd=;", "kvs-fence;"] {
        assert_eq!(World::joined_2().why_broken(framed(payload)), "sent a frame without a command", "{payload:?}");
    }
    for bytes in ["      ", "hello ", "1 2   ", "-1    ", "mcmd=spawn\n"] {
        assert_eq!(World::joined_2().why_broken(bytes), "sent a frame without a length", "{bytes:?}");
    }
}

#[test]
fn frames_of_any_length_are_handled() {
    let mut world = World::joined_2();
    let longest = frame::PAYLOAD_BYTES_MAX - "cmd=tv;x=;".len();
    let frame = framed(&format!("cmd=tv;x={};", "v".repeat(longest)));
    assert!(frame.starts_with("999999"));
    let (last, most) = frame.as_bytes().split_last().unwrap();
    assert_eq!(world.say(most), (vec![], String::new()));
    assert_eq!(world.say([*last]).1, framed("cmd=tv-response;rc=1;errmsg=unsupported;"));
    let attribute = "v".repeat(ATTRIBUTE_BYTES_MAX);
    world.board.publish(epoch(&[("a", &attribute)]));
    world.check_2("cmd=kvs-get;key=a;", &format!("cmd=kvs-get-response;found=TRUE;value={attribute};rc=0;"));
}
