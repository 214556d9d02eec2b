//! The two requests of our own libpmi, in both versions.

use super::frames::{INIT_2, framed};
use super::*;

/// Formats a fence that announces this number of bytes of puts.
type Announcement = fn(usize) -> String;

/// Returns an initialised rank of each version and how it announces puts.
fn both() -> [(World, Announcement); 2] {
    [(World::joined(), fence_1), (World::joined_2(), fence_2)]
}

fn fence_1(bytes: usize) -> String {
    format!("cmd=scela_fence puts={bytes}\n")
}

fn fence_2(bytes: usize) -> String {
    framed(&format!("cmd=scela-fence;puts={bytes};"))
}

fn puts(rank: u32, entries: &[(&str, &str)]) -> Puts {
    let mut puts = Puts::new();
    entries.iter().for_each(|(key, value)| puts.push(Rank(rank), key.as_bytes(), value.as_bytes()));
    puts
}

fn fence(puts: Puts) -> Request {
    Request::Fence { puts, in_segment: true }
}

#[test]
fn the_segment_can_be_requested_at_any_time() {
    let mut world = World::new();
    assert_eq!(world.ask("cmd=scela_segment\n"), Request::Segment);
    world.answer(Answer::Segment(true), "cmd=scela_segment_result rc=0");
    world.ask("cmd=scela_segment\n");
    world.answer(Answer::Segment(false), "cmd=scela_segment_result rc=-1 msg=no_segment_here");
    world.say(INIT_2);
    assert_eq!(world.ask_2("cmd=scela-segment;"), Request::Segment);
    world.answer_2(Answer::Segment(true), "cmd=scela-segment-response;rc=0;");
    world.ask_2("cmd=scela-segment;");
    world.answer_2(Answer::Segment(false), "cmd=scela-segment-response;rc=1;errmsg=no_segment_here;");
}

/// MPICH asks for it right after `init`, in PMI-2 as an attribute of the job.
#[test]
fn the_host_names_the_file_with_the_topology() {
    let mut world = World::joined();
    assert_eq!(world.ask("cmd=get kvsname=kvs_0 key=PMI_hwloc_xmlfile\n"), Request::TopologyFile);
    world.answer(Answer::Got(Some("/x".into())), "cmd=get_result rc=0 value=/x");
    world.ask("cmd=get kvsname=kvs_0 key=PMI_hwloc_xmlfile\n");
    world.answer(Answer::Got(None), "cmd=get_result rc=-1 msg=key_PMI_hwloc_xmlfile_not_found value=unknown");
    let mut world = World::joined_2();
    assert_eq!(world.ask_2("cmd=info-getjobattr;key=PMI_hwloc_xmlfile;"), Request::TopologyFile);
    world.answer_2(Answer::Got(Some("/x".into())), "cmd=info-getjobattr-response;found=TRUE;value=/x;rc=0;");
    world.ask_2("cmd=info-getjobattr;key=PMI_hwloc_xmlfile;");
    world.answer_2(Answer::Got(None), "cmd=info-getjobattr-response;found=FALSE;rc=0;");
}

#[test]
fn init_and_segment_are_one_round_trip() {
    let mut world = World::new();
    let (requests, out) = world.say([INIT, "cmd=scela_segment\n"].concat());
    assert_eq!(requests, [Request::Joined, Request::Segment]);
    assert_eq!(out, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    world.answer(Answer::Segment(true), "cmd=scela_segment_result rc=0");
    let mut world = World::new();
    let said = [INIT_2, &framed("cmd=fullinit;pmirank=3;"), &framed("cmd=scela-segment;")].concat();
    assert_eq!(world.say(said).0, [Request::Joined, Request::Segment]);
    world.answer_2(Answer::Segment(true), "cmd=scela-segment-response;rc=0;");
}

#[test]
fn puts_may_arrive_in_parts_and_look_like_requests() {
    for (mut world, said) in both() {
        let own = puts(3, &[("a", "cmd=finalize\n"), ("b", "14    cmd=job-getid;"), ("c", "")]);
        let bytes = [said(own.bytes_len()).as_bytes(), own.bytes()].concat();
        assert_eq!(world.say(&bytes), (vec![fence(own.clone())], String::new()), "whole");
        let (last, most) = bytes.split_last().unwrap();
        for byte in most {
            assert_eq!(world.say([*byte]), (vec![], String::new()));
        }
        assert_eq!(world.say([*last]), (vec![fence(own.clone())], String::new()), "byte by byte");
        // The rank waits in the segment, so the requests that follow are handled.
        let (requests, out) = world.say([&bytes[..], said(0).as_bytes()].concat());
        assert_eq!((requests, out.as_str()), (vec![fence(own), fence(Puts::new())], ""));
        assert!(world.conversation.is_active());
    }
}

#[test]
fn earlier_puts_come_first() {
    let expected = puts(3, &[("a", "early"), ("a", "late")]);
    let own = puts(3, &[("a", "late")]);
    for (mut world, said) in both() {
        match said(0).starts_with("cmd=") {
            true => world.check("cmd=put kvsname=k key=a value=early", "cmd=put_result rc=0 msg=success"),
            false => world.check_2("cmd=kvs-put;key=a;value=early;", "cmd=kvs-put-response;rc=0;"),
        }
        let bytes = [said(own.bytes_len()).as_bytes(), own.bytes()].concat();
        assert_eq!(world.say(bytes).0, [fence(expected.clone())]);
        assert_eq!(world.say(said(0)).0, [fence(Puts::new())], "they must be sent only once");
    }
}

#[test]
fn puts_of_the_bound_are_accepted_and_more_are_refused() {
    let mut most = Puts::new();
    let value = [b'v'; VALUE_BYTES_MAX];
    while most.bytes_len() + Puts::cost(b"k", &value) <= PENDING_BYTES_MAX {
        most.push(Rank(3), b"k", &value);
    }
    let left = PENDING_BYTES_MAX - most.bytes_len() - Puts::cost(b"k", b"");
    most.push(Rank(3), b"k", &value[..left]);
    assert_eq!(most.bytes_len(), PENDING_BYTES_MAX);
    for (mut world, said) in both() {
        assert_eq!(world.say(said(PENDING_BYTES_MAX)), (vec![], String::new()));
        let (last, parts) = most.bytes().split_at(PENDING_BYTES_MAX - 1);
        for part in last.chunks(1 << 20) {
            assert_eq!(world.say(part), (vec![], String::new()));
        }
        assert_eq!(world.say(parts).0, [fence(most.clone())]);
        let why = world.why_broken(said(PENDING_BYTES_MAX + 1));
        assert_eq!(why, "put more than 16777216 bytes at once");
    }
}

#[test]
fn refused_puts_break_the_conversation() {
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    let mut torn = puts(3, &[("a", "b")]).bytes().to_vec();
    torn.pop();
    for (bytes, why) in [
        (puts(2, &[("a", "b")]).bytes().to_vec(), "sent puts that are refused: a put on behalf of rank 2"),
        (puts(3, &[("PMI_a", "b")]).bytes().to_vec(), "sent puts that are refused: key_reserved"),
        (puts(3, &[("a", ""), (&long, "b")]).bytes().to_vec(), "sent puts that are refused: key_longer_than_63_bytes"),
        (torn, "sent puts that are refused: batch of puts ends inside the put at byte 0"),
    ] {
        for (mut world, said) in both() {
            assert_eq!(world.why_broken([said(bytes.len()).as_bytes(), &bytes].concat()), why);
        }
    }
}

#[test]
fn a_fence_before_init_breaks_the_conversation() {
    let why = "entered a fence without having initialised";
    assert_eq!(World::new().why_broken(fence_1(0)), why);
    let mut world = World::new();
    world.say(INIT_2);
    assert_eq!(world.why_broken(fence_2(0)), why);
    let mut world = World::joined_2();
    world.say(framed("cmd=finalize;"));
    assert_eq!(world.why_broken(fence_2(0)), why);
}

#[test]
fn a_fence_without_a_length_is_refused() {
    let mut world = World::joined();
    world.check("cmd=scela_fence", "cmd=scela_fence_result rc=-1 msg=puts_missing");
    world.check("cmd=scela_fence puts=-1", "cmd=scela_fence_result rc=-1 msg=puts_missing");
    let mut world = World::joined_2();
    world.check_2("cmd=scela-fence;", "cmd=scela-fence-response;rc=1;errmsg=puts_missing;");
}
