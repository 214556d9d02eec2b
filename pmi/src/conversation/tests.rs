//! Tests of [`Conversation`]: each checks all requests and replies of its input. Those of PMI-2's frames are in files of
//! their own.

mod frames;
mod frames_and_the_agent;
mod names_and_spawn;
mod partial;
mod properties;
mod segment;
mod versions;

use super::*;
use crate::limits::{
    ABORT_MESSAGE_BYTES_MAX, ECHO_BYTES_MAX, FENCES_BESIDE_MAX, KEY_BYTES_MAX, PENDING_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::v1::initack;
use crate::{Epoch, Puts, Ranks, RootRequest, SpawnedJob};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";
/// The fence of a rank without puts, which waits for a reply.
const FENCE: Request = Request::Fence { puts: Puts::new(), in_segment: false };
const SPAWN: &str = "mcmd=spawn\nnprocs=2\nexecname=a\nendcmd\n";

/// One rank's conversation and its node's board.
struct World {
    conversation: Conversation,
    board: Board,
}

impl World {
    /// A rank before `init`.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut JobAttributes)) -> Self {
        let mut attributes = JobAttributes {
            kvsname: "kvs_1".into(),
            size: 4,
            universe_size: 8,
            mapping: Some("(vector,(0,2,2))".into()),
            preputs: epoch(&[("PARENT_ROOT_PORT_NAME", "tag#0$ x")]),
            spawner: Some("kvs_0".into()),
            puts_at_once: false,
        };
        change(&mut attributes);
        Self { conversation: Conversation::new(Arc::new(attributes), Rank(3), 1), board: Board::new() }
    }

    /// A rank after `init`.
    fn joined() -> Self {
        let mut world = Self::new();
        assert_eq!(world.say(INIT).0, [Request::Joined]);
        world
    }

    /// Receives bytes. Returns the requests, without answering them, and the replies.
    fn say(&mut self, bytes: impl AsRef<[u8]>) -> (Vec<Request>, String) {
        let mut out = Vec::new();
        self.conversation.receive(bytes.as_ref());
        let mut requests = Vec::new();
        while let Some(request) = self.conversation.advance(&self.board, &mut out) {
            assert_eq!(self.conversation.is_waiting(), wants_answer(&request));
            requests.push(request);
        }
        (requests, String::from_utf8_lossy(&out).into_owned())
    }

    /// Checks that a line leads to exactly this reply and no request.
    #[track_caller]
    fn check(&mut self, line: &str, reply: &str) {
        let expected = if reply.is_empty() { String::new() } else { format!("{reply}\n") };
        assert_eq!(self.say(format!("{line}\n")), (vec![], expected), "{line}");
    }

    /// Checks that lines lead to exactly one request and no reply, and returns the request.
    #[track_caller]
    fn ask(&mut self, lines: &str) -> Request {
        let (mut requests, out) = self.say(lines);
        assert_eq!((requests.len(), out.as_str()), (1, ""), "{lines} {requests:?}");
        requests.remove(0)
    }

    /// Answers a request and checks the reply.
    #[track_caller]
    fn answer(&mut self, answer: Answer, reply: &str) {
        let mut out = Vec::new();
        self.conversation.answer(answer, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), format!("{reply}\n"));
        assert!(!self.conversation.is_waiting());
    }

    #[track_caller]
    fn why_broken(&mut self, bytes: impl AsRef<[u8]>) -> String {
        let (mut requests, out) = self.say(bytes);
        assert_eq!(out, "");
        assert!(!self.conversation.is_active() && !self.conversation.is_waiting());
        assert_eq!(self.say(INIT), (vec![], String::new()), "nothing is handled any more");
        match (requests.pop(), requests.is_empty()) {
            (Some(Request::Broken { why }), true) => why,
            other => panic!("not broken: {other:?}"),
        }
    }
}

/// Whether the rank waits for an [`Answer`] to this request.
fn wants_answer(request: &Request) -> bool {
    match request {
        Request::Fence { in_segment, .. } => !in_segment,
        Request::Ring { .. } | Request::NodePut { .. } | Request::NodeGet { .. } => true,
        Request::Get { .. } | Request::TopologyFile | Request::Segment | Request::Ask(_) => true,
        Request::Put { .. } | Request::GroupFence { .. } | Request::Joined | Request::Abort { .. } => false,
        Request::Finalized | Request::Broken { .. } => false,
    }
}

fn epoch(entries: &[(&str, &str)]) -> Epoch {
    Epoch::from_entries(entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())))
}

#[test]
fn a_rank_that_passes_completed_fences_keeps_its_puts() {
    for puts_at_once in [false, true] {
        let mut world = World::with(|attributes| attributes.puts_at_once = puts_at_once);
        world.conversation = Conversation::of_restarted(Arc::clone(&world.conversation.state.attributes), Rank(3), 1);
        world.say(INIT);
        world.board.publish(epoch(&[("address", "of its former process")]));
        for value in ["1", "2"] {
            world.say(format!("cmd=put kvsname=kvs_1 key=address value={value}\n"));
            let mut puts = Puts::new();
            if !puts_at_once {
                puts.push(Rank(3), b"address", value.as_bytes());
            }
            assert_eq!(world.ask("cmd=barrier_in\n"), Request::Fence { puts, in_segment: false }, "only the new put");
            world.answer(Answer::Passed, "cmd=barrier_out rc=0");
            world.check("cmd=get kvsname=kvs_1 key=address", &format!("cmd=get_result rc=0 value={value}"));
        }
        assert_eq!(world.ask("cmd=barrier_in\n"), FENCE);
        world.answer(Answer::Released, "cmd=barrier_out rc=0");
        let board = "cmd=get_result rc=0 value=of its former process";
        world.check("cmd=get kvsname=kvs_1 key=address", board);
        world.say("cmd=put kvsname=kvs_1 key=address value=3\n");
        world.ask("cmd=barrier_in\n");
        world.answer(Answer::Released, "cmd=barrier_out rc=0");
        world.check("cmd=get kvsname=kvs_1 key=address", board);
    }
}

#[test]
fn a_session_of_mpich_2_ranks_1_node() {
    let mut world = World::new();
    let init = world.say(INIT);
    let granted = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    assert_eq!(init, (vec![Request::Joined], granted.into()));
    assert!(world.conversation.is_active());
    world.check("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024");
    world.check("cmd=get_appnum", "cmd=appnum rc=0 appnum=1");
    world.check("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=kvs_1");
    world.check("cmd=get kvsname=kvs_1 key=PMI_process_mapping", "cmd=get_result rc=0 value=(vector,(0,2,2))");
    assert_eq!(world.ask("cmd=barrier_in\n"), FENCE);
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    world.check("cmd=put kvsname=kvs_1 key=-bcast-1-0 value=2F64", "cmd=put_result rc=0 msg=success");
    let mut puts = Puts::new();
    puts.push(Rank(3), b"-bcast-1-0", b"2F64");
    assert_eq!(world.ask("cmd=barrier_in\n"), Request::Fence { puts: puts.clone(), in_segment: false });
    world.board.publish(Epoch::merge(&puts).unwrap());
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    world.check("cmd=get kvsname=kvs_1 key=-bcast-1-0", "cmd=get_result rc=0 value=2F64");
    world.check("cmd=get_universe_size", "cmd=universe_size rc=0 size=8");
    assert_eq!(world.ask("cmd=barrier_in\n"), FENCE);
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    let finalized = world.say("cmd=finalize\n");
    assert_eq!(finalized, (vec![Request::Finalized], "cmd=finalize_ack rc=0\n".into()));
    assert!(!world.conversation.is_active());
}

#[test]
fn every_version_1_is_granted_as_1_1_and_unsupported_ones_are_refused() {
    for subversion in [0, 1, 2, 9] {
        let mut world = World::new();
        let (requests, out) = world.say(format!("cmd=init pmi_version=1 pmi_subversion={subversion}\n"));
        assert_eq!(requests, [Request::Joined]);
        assert_eq!(out, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    }
    let mut world = World::new();
    for version in [0, 3] {
        world.check(
            &format!("cmd=init pmi_version={version} pmi_subversion=0"),
            "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 \
             msg=only_pmi_versions_1_and_2_are_spoken",
        );
    }
    assert!(!world.conversation.is_active());
    world.check("cmd=init", "cmd=response_to_init rc=-1 msg=pmi_version_missing");
    assert_eq!(world.say(INIT).0, [Request::Joined], "it may still request version 1");
}

#[test]
fn a_rank_may_initialise_more_than_once() {
    let mut world = World::joined();
    let granted = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1";
    world.check(INIT.trim_end(), granted); // Intel MPI does, without finalising.
    assert_eq!(world.say("cmd=finalize\n").0, [Request::Finalized]);
    world.check("cmd=finalize", "cmd=finalize_ack rc=0");
    world.check("cmd=put kvsname=k key=a value=b", "cmd=put_result rc=-1 msg=not_initialized");
    assert_eq!(world.say(INIT), (vec![Request::Joined], format!("{granted}\n")));
    world.check("cmd=put kvsname=k key=a value=b", "cmd=put_result rc=0 msg=success");
}

#[test]
fn requests_before_init_are_refused() {
    let mut world = World::new();
    for (line, reply) in [
        ("cmd=put kvsname=k key=a value=b", "put_result"),
        ("cmd=get kvsname=k key=PMI_process_mapping", "get_result"),
        ("cmd=getbyidx kvsname=k idx=0", "getbyidx_results"),
        ("cmd=publish_name service=a port=b", "publish_result"),
        ("cmd=lookup_name service=a", "lookup_result"),
        ("cmd=unpublish_name service=a", "unpublish_result"),
        ("cmd=finalize", "finalize_ack"),
        (SPAWN.trim_end(), "spawn_result"),
    ] {
        world.check(line, &format!("cmd={reply} rc=-1 msg=not_initialized"));
    }
    // Queries of the job's attributes are accepted.
    world.check("cmd=get_appnum", "cmd=appnum rc=0 appnum=1");
    // Legacy clients take any barrier_out as a release, whatever its rc is.
    let why = world.why_broken("cmd=barrier_in\n");
    assert_eq!(why, "entered a barrier without having initialised");
}

#[test]
fn a_rank_sees_its_own_puts_first() {
    let mut world = World::joined();
    world.board.publish(epoch(&[("a", "old"), ("b", "board")]));
    world.check("cmd=get kvsname=k key=a", "cmd=get_result rc=0 value=old");
    world.check("cmd=put kvsname=k key=a value=1", "cmd=put_result rc=0 msg=success");
    world.check("cmd=put kvsname=k key=a value=2", "cmd=put_result rc=0 msg=success");
    world.check("cmd=put kvsname=other key=c value=", "cmd=put_result rc=0 msg=success");
    world.check("cmd=get kvsname=k key=a", "cmd=get_result rc=0 value=2");
    world.check("cmd=get kvsname=foreign key=b", "cmd=get_result rc=0 value=board");
    world.check("cmd=get kvsname=k key=c", "cmd=get_result rc=0 value=");
    let Request::Fence { puts, in_segment: false } = world.ask("cmd=barrier_in\n") else { panic!() };
    assert_eq!(puts.validate(), Ok(3));
    // The fence has taken the put, so the board's value is found.
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    world.check("cmd=get kvsname=k key=a", "cmd=get_result rc=0 value=old");
}

#[test]
fn an_absent_key_is_refused_immediately_and_found_after_its_fence() {
    // Open MPI gets its peers' keys before the first barrier, and again after it.
    let mut world = World::joined();
    let absent = "cmd=get_result rc=-1 msg=key_1-0-key0_not_found value=unknown";
    world.check("cmd=get kvsname=k key=1-0-key0", absent);
    world.board.publish(epoch(&[("1-0-key0", "MAAx -")]));
    world.check("cmd=get kvsname=k key=1-0-key0", "cmd=get_result rc=0 value=MAAx -");
}

#[test]
fn preputs_and_attributes_are_found() {
    let mut world = World::joined();
    world.check("cmd=get kvsname=k key=PARENT_ROOT_PORT_NAME", "cmd=get_result rc=0 value=tag#0$ x");
    world.check("cmd=get kvsname=k key=universeSize", "cmd=get_result rc=0 value=8");
    let absent = |key| format!("cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown");
    for key in ["PMI_dead_processes", "PMI_process_mappin", "PMI_"] {
        world.check(&format!("cmd=get kvsname=k key={key}"), &absent(key));
    }
    let mut world = World::with(|attributes| {
        attributes.mapping = None;
        attributes.universe_size = -1;
    });
    world.say(INIT);
    // Never an empty mapping: MPICH 4.0.2 aborts on it.
    world.check("cmd=get kvsname=k key=PMI_process_mapping", &absent("PMI_process_mapping"));
    world.check("cmd=get kvsname=k key=universeSize", &absent("universeSize"));
    world.check("cmd=get_universe_size", "cmd=universe_size rc=0 size=-1");
}

#[test]
fn puts_beyond_the_bounds_are_refused() {
    let mut world = World::joined();
    let put =
        |key: usize, value: usize| format!("cmd=put kvsname=k key={} value={}", "k".repeat(key), "v".repeat(value));
    let refused = |why| format!("cmd=put_result rc=-1 msg={why}");
    let taken = "cmd=put_result rc=0 msg=success";
    world.check(&put(KEY_BYTES_MAX, VALUE_BYTES_MAX), taken);
    world.check(&put(KEY_BYTES_MAX + 1, 1), &refused("key_longer_than_63_bytes"));
    world.check(&put(1, VALUE_BYTES_MAX + 1), &refused("value_longer_than_1023_bytes"));
    world.check(&put(0, 1), &refused("key_empty"));
    world.check("cmd=put kvsname=k key=a b value=c", &refused("key_has_blank"));
    world.check("cmd=put kvsname=k key=PMI_process_mapping value=x", &refused("key_reserved"));
    world.check("cmd=put kvsname=k key=a", &refused("value_missing"));
    world.check("cmd=put key=a value=b", &refused("kvsname_missing"));
    world.check("cmd=get kvsname=k key=", "cmd=get_result rc=-1 msg=key_empty");
    let long = format!("cmd=get kvsname=k key={}", "k".repeat(5000));
    let echoed = "k".repeat(ECHO_BYTES_MAX);
    world.check(&long, &format!("cmd=get_result rc=-1 msg=key_{echoed}_not_found value=unknown"));
}

#[test]
fn pending_puts_are_bounded() {
    let mut world = World::joined();
    let cost = Puts::cost(b"key", &[0; VALUE_BYTES_MAX]);
    let line = format!("cmd=put kvsname=k key=key value={}\n", "v".repeat(VALUE_BYTES_MAX));
    for _ in 0..PENDING_BYTES_MAX / cost {
        assert_eq!(world.say(&line).1, "cmd=put_result rc=0 msg=success\n");
    }
    let full = "cmd=put_result rc=-1 msg=too_many_bytes_put_between_barriers";
    world.check(line.trim_end(), full);
    // The bound is exact to the byte.
    let left = PENDING_BYTES_MAX % cost - Puts::cost(b"key", b"");
    world.check(&format!("cmd=put kvsname=k key=key value={}", "w".repeat(left + 1)), full);
    let exact = format!("cmd=put kvsname=k key=key value={}", "w".repeat(left));
    world.check(&exact, "cmd=put_result rc=0 msg=success");
    let Request::Fence { puts, in_segment: false } = world.ask("cmd=barrier_in\n") else { panic!() };
    assert_eq!(puts.bytes_len(), PENDING_BYTES_MAX);
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    world.check(line.trim_end(), "cmd=put_result rc=0 msg=success");
}

#[test]
fn many_own_puts_are_found() {
    let mut world = World::joined();
    for number in 0..2000 {
        world.say(format!("cmd=put kvsname=k key=k{number} value={number}\n"));
    }
    for number in (0..2000).rev() {
        let reply = format!("cmd=get_result rc=0 value={number}");
        world.check(&format!("cmd=get kvsname=k key=k{number}"), &reply);
    }
}

#[test]
fn pipelined_requests_are_served_in_order() {
    let mut world = World::joined();
    let (requests, out) = world.say(
        "cmd=put kvsname=k key=a value=1\ncmd=barrier_in\ncmd=get kvsname=k key=a\n\
         cmd=barrier_in\ncmd=get_appnum\n",
    );
    assert_eq!((requests.len(), out.as_str()), (1, "cmd=put_result rc=0 msg=success\n"));
    assert_eq!(world.say(""), (vec![], String::new()), "it waits");
    world.board.publish(epoch(&[("a", "1")]));
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    let (requests, out) = world.say("");
    assert_eq!(requests, [FENCE]);
    assert_eq!(out, "cmd=get_result rc=0 value=1\n");
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    assert_eq!(world.say("").1, "cmd=appnum rc=0 appnum=1\n");
}

#[test]
fn fences_of_several_threads_end_in_any_order_beside_other_requests() {
    let mut world = World::joined();
    world.say("cmd=put kvsname=k key=a value=1\n");
    let pair = Ranks::range(0..2);
    let fenced = |ranks: &Ranks, tag, payload: Option<&Puts>| Answer::GroupFenced {
        ranks: ranks.clone(),
        tag,
        payload: payload.map(|puts| puts.bytes().to_vec().into()),
    };
    let (requests, out) = world.say("cmd=barrier_in group=0,1:7 thrid=1\ncmd=barrier_in group=0,1:8 thrid=2\n");
    assert!(matches!(&requests[..], [Request::GroupFence { tag: 7, .. }, Request::GroupFence { tag: 8, .. }]));
    assert_eq!((out.as_str(), world.conversation.is_waiting()), ("", false));
    world.conversation.receive(b"cmd=barrier_in thrid=3\n");
    let request = world.conversation.advance(&world.board, &mut Vec::new());
    assert!(matches!(request, Some(Request::Fence { in_segment: false, .. })) && !world.conversation.is_waiting());
    let again = "cmd=barrier_out rc=-1 thrid=4 msg=the_process_is_in_this_fence_already";
    world.check("cmd=barrier_in thrid=4", again);
    world.check("cmd=barrier_in group=0-1:8 thrid=4", again);
    world.check("cmd=get kvsname=k key=b", "cmd=get_result rc=-1 msg=key_b_not_found value=unknown");
    let mut puts = Puts::new();
    puts.push(Rank(1), b"b", b"2");
    world.answer(fenced(&pair, 8, Some(&puts)), "cmd=barrier_out rc=0 thrid=2");
    world.check("cmd=get kvsname=k key=b", "cmd=get_result rc=0 value=2");
    world.answer(Answer::FenceFailed, "cmd=barrier_out rc=-1 thrid=3 msg=a_process_has_died");
    let failed = "cmd=barrier_out rc=-1 thrid=1 msg=a_process_of_the_group_has_died_or_does_not_exist";
    world.answer(fenced(&pair, 7, None), failed);
    // An answer to a fence that the rank has left.
    let mut out = Vec::new();
    world.conversation.answer(fenced(&pair, 7, Some(&puts)), &mut out);
    assert!(out.is_empty());
    // A request without thrid is one of an earlier libpmi.
    world.say("cmd=barrier_in group=0,1:7\n");
    world.answer(fenced(&pair, 7, Some(&puts)), "cmd=barrier_out rc=0");
}

#[test]
fn the_fences_beside_other_requests_are_bounded() {
    let mut world = World::joined();
    for tag in 0..FENCES_BESIDE_MAX {
        let (requests, out) = world.say(format!("cmd=barrier_in group=0,1:{tag} thrid={tag}\n"));
        assert_eq!((requests.len(), out.as_str()), (1, ""));
    }
    world.check("cmd=barrier_in thrid=9999", "cmd=barrier_out rc=-1 thrid=9999 msg=too_many_fences_at_once");
    world.say("cmd=finalize\n");
    world.say(INIT);
    assert_eq!(world.say("cmd=barrier_in group=0,1:0 thrid=1\n").0.len(), 1, "they ended with the program");
}

#[test]
fn unexpected_answers_are_dropped() {
    let mut world = World::joined();
    let mut out = Vec::new();
    world.conversation.answer(Answer::Released, &mut out);
    world.ask("cmd=barrier_in\n");
    world.conversation.answer(Answer::Found(Ok(b"p".to_vec())), &mut out);
    assert!(out.is_empty() && world.conversation.is_waiting());
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
}

#[test]
fn an_abort_has_no_reply() {
    let abort = |line: &str| {
        let mut world = World::new();
        let request = world.ask(line);
        assert!(!world.conversation.is_waiting());
        request
    };
    let expected = |code, message: &str| Request::Abort { code, message: message.into() };
    assert_eq!(abort("cmd=abort exitcode=204066320\n"), expected(204_066_320, ""));
    assert_eq!(abort("cmd=abort exit_code=-1 error_msg=a b\n"), expected(-1, "a b"));
    assert_eq!(abort("cmd=abort\n"), expected(1, ""));
    assert_eq!(abort("cmd=abort exitcode=2 message=\x1b[31m\n"), expected(2, "\u{fffd}[31m"));
    let long = format!("cmd=abort exitcode=2 message={}\n", "m".repeat(5000));
    assert_eq!(abort(&long), expected(2, &"m".repeat(ABORT_MESSAGE_BYTES_MAX)));
}

#[test]
fn unknown_and_obsolete_commands_do_not_kill_the_job() {
    let mut world = World::joined();
    world.check("cmd=tv_ready x", "cmd=tv_ready_result rc=-1 msg=unsupported");
    world.check("cmd=a\tb", "cmd=a_b_result rc=-1 msg=unsupported");
    world.check("cmd=initack pmiid=1", "cmd=initack_result rc=-1 msg=unsupported");
    world.check("cmd=create_kvs", "cmd=newkvs rc=0 kvsname=kvs_1");
    world.check("cmd=destroy_kvs kvsname=x", "cmd=kvs_destroyed rc=0 msg=success");
    for group in ["NODE:7", "0-4:7", ":7", "0,1", "1-0:7", "0:x"] {
        world.check(&format!("cmd=barrier_in group={group}"), "cmd=barrier_out rc=-1 msg=group_invalid");
    }
    world.check("", "");
    world.check("   ", "");
}

#[test]
fn entries_are_listed_by_number() {
    let mut world = World::joined();
    world.board.publish(epoch(&[("a", "1"), ("b", "two words")]));
    for (index, reply) in [
        "rc=0 nextidx=1 key=a val=1",
        "rc=0 nextidx=2 key=b val=two words",
        "rc=0 nextidx=3 key=PARENT_ROOT_PORT_NAME val=tag#0$ x",
        "rc=-1 reason=no_more_keyvals",
    ]
    .iter()
    .enumerate()
    {
        let reply = format!("cmd=getbyidx_results {reply}");
        world.check(&format!("cmd=getbyidx kvsname=k idx={index}"), &reply);
    }
    let none = "cmd=getbyidx_results rc=-1 reason=no_more_keyvals";
    world.check(&format!("cmd=getbyidx kvsname=k idx={}", usize::MAX), none);
}

#[test]
fn lines_without_a_command_break_the_conversation() {
    for line in ["hello\n", "cmd=\n", "kvsname=k cmd=get key=a\n", "52    cmd=fullinit;\n", "\u{1}\n"] {
        assert_eq!(World::joined().why_broken(line), "sent a line without a command", "{line:?}");
    }
}

#[test]
fn a_line_of_the_limit_is_handled_and_a_longer_one_breaks_the_conversation() {
    let mut line = b"cmd=get_appnum ".to_vec();
    line.resize(LINE_BYTES_MAX, b'x');
    let mut world = World::joined();
    assert_eq!(world.say(&line), (vec![], String::new()));
    assert_eq!(world.say("\n").1, "cmd=appnum rc=0 appnum=1\n");
    line.push(b'x');
    assert_eq!(world.why_broken(&line), "sent a line longer than 1048576 bytes");
}

#[test]
fn bytes_received_during_a_barrier_are_bounded() {
    let mut world = World::joined();
    world.ask("cmd=barrier_in\n");
    let flood = "cmd=get_appnum\n".repeat(100_000);
    for _ in 0..10 {
        world.conversation.receive(flood.as_bytes());
        assert!(world.conversation.received.len() <= BACKLOG_BYTES_MAX);
    }
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
    let why = world.why_broken("");
    assert_eq!(why, "sent more than 4194304 bytes without waiting for replies");
}

#[test]
fn the_handshake_on_a_port_is_four_lines() {
    assert_eq!(initack::parse(b"cmd=initack pmiid=3"), Ok(Rank(3)));
    for (line, words) in [
        (
            &b"cmd=initack"[..],
            "failed to read the first line on the PMI port: peer sent a request that lacks a field (pmiid_missing)",
        ),
        (b"GET / HTTP/1.1", "failed to read the first line on the PMI port: peer sent a line without a command"),
        (b"cmd=init pmi_version=1", "first line on the PMI port is not initack"),
    ] {
        assert_eq!(initack::parse(line).unwrap_err().to_string(), words);
    }
    let world = World::new();
    assert_eq!(
        initack::reply(&world.conversation.state.attributes, Rank(3)),
        b"cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n"
    );
}

#[test]
fn ranks_that_have_died_are_listed_where_the_session_goes_on() {
    let mut world = World::joined();
    let get = "cmd=get kvsname=kvs_1 key=PMI_dead_processes";
    let (_, reply) = world.say(format!("{get}\n"));
    assert!(reply.starts_with("cmd=get_result rc=-1 "), "{reply}");
    world.board.set_dead(&Ranks::new());
    world.check(get, "cmd=get_result rc=0 value=");
    world.board.set_dead(&"1,4-6".parse().unwrap());
    world.check(get, "cmd=get_result rc=0 value=1,4-6");
}

#[test]
fn a_failed_fence_is_answered_and_the_next_one_begins() {
    let mut world = World::joined();
    assert_eq!(world.ask("cmd=barrier_in\n"), FENCE);
    world.answer(Answer::FenceFailed, "cmd=barrier_out rc=-1 msg=a_process_has_died");
    assert_eq!(world.ask("cmd=barrier_in\n"), FENCE);
    world.answer(Answer::Released, "cmd=barrier_out rc=0");
}
