//! The choice of a protocol version by a rank's first bytes and by each `init`.

use super::frames::{GRANTED_2, INIT_2, framed};
use super::*;

const GRANTED_1: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
const FULL_INIT: &str = "cmd=fullinit;pmijobid=kvs_1;pmirank=3;threaded=FALSE;";

#[test]
fn the_first_line_chooses_the_version_and_only_fullinit_joins() {
    for subversion in ["", " pmi_subversion=0", " pmi_subversion=9"] {
        let mut world = World::new();
        assert_eq!(world.say(format!("cmd=init pmi_version=2{subversion}\n")), (vec![], GRANTED_2.into()));
        assert!(!world.conversation.is_active());
        assert_eq!(world.say(framed(FULL_INIT)).0, [Request::Joined]);
        assert!(world.conversation.is_active());
    }
}

#[test]
fn a_line_and_frames_may_arrive_together() {
    let mut world = World::new();
    let said = [INIT_2, &framed(FULL_INIT), &framed("cmd=job-getid;")].concat();
    let (requests, out) = world.say(said);
    assert_eq!(requests, [Request::Joined]);
    assert!(out.starts_with(GRANTED_2) && out.ends_with(&framed("cmd=job-getid-response;jobid=kvs_1;rc=0;")), "{out}");
}

#[test]
fn a_library_that_is_initialised_again_begins_with_a_line() {
    let mut world = World::joined_2();
    assert_eq!(world.say(INIT_2), (vec![], GRANTED_2.into()), "it has not finalised");
    let (requests, out) = world.say(framed(FULL_INIT));
    assert!(requests.is_empty() && out.contains("rc=0;"), "it joins only once");
    world.check_2("cmd=kvs-put;key=a;value=b;", "cmd=kvs-put-response;rc=0;");
    assert_eq!(world.say(framed("cmd=finalize;")).0, [Request::Finalized]);
    assert_eq!(world.say(INIT_2), (vec![], GRANTED_2.into()));
    world.check_2("cmd=kvs-put;key=a;value=b;", "cmd=kvs-put-response;rc=1;errmsg=not_initialized;");
    assert_eq!(world.say(framed(FULL_INIT)).0, [Request::Joined]);
    world.check_2("cmd=kvs-put;key=a;value=b;", "cmd=kvs-put-response;rc=0;");
}

#[test]
fn a_rank_may_change_from_one_version_to_the_other_and_back() {
    let mut world = World::joined_2();
    world.check_2("cmd=kvs-put;key=a;value=two;", "cmd=kvs-put-response;rc=0;");
    assert_eq!(world.say(INIT), (vec![], GRANTED_1.into()), "it has already joined");
    world.check("cmd=get kvsname=k key=a", "cmd=get_result rc=0 value=two");
    world.check("cmd=put kvsname=k key=b value=one", "cmd=put_result rc=0 msg=success");
    assert_eq!(world.say(INIT_2), (vec![], GRANTED_2.into()));
    world.check_2("cmd=kvs-get;key=b;", "cmd=kvs-get-response;found=TRUE;value=one;rc=0;");
    let Request::Fence { puts, .. } = world.ask_2("cmd=kvs-fence;") else { panic!() };
    assert_eq!(puts.validate(), Ok(2));
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;rc=0;");
    // It joined in one version and finalises in the other.
    assert_eq!(world.say(INIT), (vec![], GRANTED_1.into()));
    assert_eq!(world.say("cmd=finalize\n").0, [Request::Finalized]);
    assert_eq!(world.say(INIT_2), (vec![], GRANTED_2.into()));
    world.check_2("cmd=finalize;", "cmd=finalize-response;rc=0;");
}

#[test]
fn an_unsupported_version_changes_nothing() {
    let mut world = World::joined_2();
    let refused = "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 msg=only_pmi_versions_1_and_2_are_spoken";
    world.check("cmd=init pmi_version=3 pmi_subversion=0", refused);
    world.check_2("cmd=job-getid;", "cmd=job-getid-response;jobid=kvs_1;rc=0;");
}

#[test]
fn a_line_between_frames_is_handled() {
    let mut world = World::joined_2();
    world.check("", "");
    world.check("cmd=get_appnum", "cmd=appnum rc=0 appnum=1");
    world.check_2("cmd=job-getid;", "cmd=job-getid-response;jobid=kvs_1;rc=0;");
    // Each request waits for its own answer.
    assert_eq!(world.ask("cmd=lookup_name service=a\n"), Request::Ask(RootRequest::Lookup { service: b"a".into() }));
    assert_eq!(world.say(framed("cmd=job-getid;")), (vec![], String::new()));
    world.answer(Answer::Found(Ok(b"p".into())), "cmd=lookup_result rc=0 info=ok msg=success port=p");
    assert_eq!(world.say("").1, framed("cmd=job-getid-response;jobid=kvs_1;rc=0;"));
}

#[test]
fn frames_received_during_a_fence_are_bounded() {
    let mut world = World::joined_2();
    world.ask_2("cmd=kvs-fence;");
    let flood = framed("cmd=job-getid;").repeat(50_000);
    for _ in 0..10 {
        world.conversation.receive(flood.as_bytes());
        assert!(world.conversation.received.len() <= BACKLOG_BYTES_MAX);
    }
    world.answer_2(Answer::Released, "cmd=kvs-fence-response;rc=0;");
    assert_eq!(world.why_broken(""), "sent more than 4194304 bytes without waiting for replies");
}
