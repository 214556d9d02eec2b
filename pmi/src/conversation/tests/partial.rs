//! Partial boards, and puts that are handed on at once, in both versions.

use bytes::Bytes;

use super::frames::{INIT_2, framed};
use super::*;
use crate::NodeCache;
use crate::board::Entry;

/// The requests and replies of a version.
#[derive(Copy, Clone)]
struct Spoken {
    put: fn(&str, &str) -> String,
    taken: &'static str,
    get: fn(&str) -> String,
    got: fn(&str) -> String,
    absent: fn(&str) -> String,
    fence: &'static str,
    released: &'static str,
}

const ONE: Spoken = Spoken {
    put: |key, value| format!("cmd=put kvsname=kvs_1 key={key} value={value}\n"),
    taken: "cmd=put_result rc=0 msg=success\n",
    get: |key| format!("cmd=get kvsname=kvs_1 key={key}\n"),
    got: |value| format!("cmd=get_result rc=0 value={value}\n"),
    absent: |key| format!("cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown\n"),
    fence: "cmd=barrier_in\n",
    released: "cmd=barrier_out rc=0\n",
};

const TWO: Spoken = Spoken {
    put: |key, value| framed(&format!("cmd=kvs-put;key={key};value={value};")),
    taken: "26    cmd=kvs-put-response;rc=0;",
    get: |key| framed(&format!("cmd=kvs-get;jobid=;srcid=-1;key={key};")),
    got: |value| framed(&format!("cmd=kvs-get-response;found=TRUE;value={value};rc=0;")),
    absent: |_| framed("cmd=kvs-get-response;found=FALSE;rc=0;"),
    fence: "14    cmd=kvs-fence;",
    released: "28    cmd=kvs-fence-response;rc=0;",
};

/// PMI-2 with the namespace's own name.
const TWO_NAMED: Spoken = Spoken { get: |key| framed(&format!("cmd=kvs-get;jobid=kvs_1;srcid=-1;key={key};")), ..TWO };

/// Returns an initialised rank of each version on this board.
fn each(board: &Board, change: fn(&mut JobAttributes)) -> [(World, Spoken); 3] {
    [ONE, TWO, TWO_NAMED].map(|spoken| {
        let mut world = World::with(change);
        match spoken.fence.starts_with("cmd=") {
            true => assert_eq!(world.say(INIT).0, [Request::Joined]),
            false => assert_eq!(world.say([INIT_2, &framed("cmd=fullinit;pmirank=3;")].concat()).0, [Request::Joined]),
        }
        world.board = board.clone();
        (world, spoken)
    })
}

fn on(board: &Board) -> [(World, Spoken); 3] {
    each(board, |_| {})
}

fn at_once() -> [(World, Spoken); 3] {
    each(&Board::partial(None), |attributes| attributes.puts_at_once = true)
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned().into() }
}

fn puts(entries: &[(&str, &str)]) -> Puts {
    let mut puts = Puts::new();
    entries.iter().for_each(|(key, value)| puts.push(Rank(3), key.as_bytes(), value.as_bytes()));
    puts
}

fn put(key: &str, value: &str) -> Request {
    Request::Put { puts: puts(&[(key, value)]) }
}

fn got(value: Option<&str>) -> Answer {
    Answer::Got(value.map(|value| Bytes::copy_from_slice(value.as_bytes())))
}

impl World {
    /// Answers a request and checks the whole reply.
    #[track_caller]
    fn answer_whole(&mut self, answer: Answer, reply: &str) {
        let mut out = Vec::new();
        self.conversation.answer(answer, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), reply);
        assert!(!self.conversation.is_waiting());
    }

    /// Checks that bytes lead to exactly this reply and no request.
    #[track_caller]
    fn check_whole(&mut self, said: &str, reply: &str) {
        assert_eq!(self.say(said), (vec![], reply.to_owned()), "{said}");
    }
}

#[test]
fn the_agent_is_asked_for_unknown_keys() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        assert_eq!(world.ask(&(spoken.get)("a")), get("a"));
        world.answer_whole(got(Some("1")), &(spoken.got)("1"));
        assert_eq!(world.ask(&(spoken.get)("a")), get("a"), "the conversation must not cache");
        world.answer_whole(got(Some("")), &(spoken.got)(""));
        world.ask(&(spoken.get)("a"));
        world.answer_whole(got(None), &(spoken.absent)("a"));
    }
}

#[test]
fn an_absent_key_has_the_same_reply_as_on_a_whole_board() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        for (key, value) in [("PARENT_ROOT_PORT_NAME", "tag#0$ x"), ("universeSize", "8")] {
            assert_eq!(world.ask(&(spoken.get)(key)), get(key));
            world.answer_whole(got(None), &(spoken.got)(value));
            world.ask(&(spoken.get)(key));
            world.answer_whole(got(Some("put")), &(spoken.got)("put"));
        }
    }
    let hidden = |attributes: &mut JobAttributes| attributes.universe_size = -1;
    for (mut world, spoken) in each(&Board::partial(None), hidden) {
        world.ask(&(spoken.get)("universeSize"));
        world.answer_whole(got(None), &(spoken.absent)("universeSize"));
    }
}

#[test]
fn cached_keys_are_found_without_the_agent() {
    let cache = Arc::new(NodeCache::new());
    for (mut world, spoken) in on(&Board::partial(Some(Arc::clone(&cache)))) {
        cache.insert(Entry::new(b"a", b"1"));
        cache.insert(Entry::new(b"universeSize", b"put"));
        ["b", "PARENT_ROOT_PORT_NAME"].iter().for_each(|key| cache.insert_absent(key.as_bytes()));
        world.check_whole(&(spoken.get)("a"), &(spoken.got)("1"));
        world.check_whole(&(spoken.get)("universeSize"), &(spoken.got)("put"));
        world.check_whole(&(spoken.get)("b"), &(spoken.absent)("b"));
        world.check_whole(&(spoken.get)("PARENT_ROOT_PORT_NAME"), &(spoken.got)("tag#0$ x"));
        assert_eq!(world.board.answered(), 4);
        // The rank's own puts come first, whether the cache knows the key or not.
        for key in ["a", "b", "c"] {
            world.check_whole(&(spoken.put)(key, "own"), spoken.taken);
            world.check_whole(&(spoken.get)(key), &(spoken.got)("own"));
        }
        assert_eq!(world.board.answered(), 4);
        cache.remove([&b"a"[..]].into_iter());
        let request = Request::Fence { puts: puts(&[("a", "own"), ("b", "own"), ("c", "own")]), in_segment: false };
        assert_eq!(world.ask(spoken.fence), request);
        world.answer_whole(Answer::Released, spoken.released);
        assert_eq!(world.ask(&(spoken.get)("a")), get("a"));
    }
}

#[test]
fn the_agent_is_not_asked_for_keys_that_no_rank_can_put() {
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for (mut world, spoken) in on(&Board::partial(None)) {
        world.check_whole(&(spoken.get)("PMI_process_mapping"), &(spoken.got)("(vector,(0,2,2))"));
        world.check_whole(&(spoken.get)("PMI_x"), &(spoken.absent)("PMI_x"));
        world.check_whole(&(spoken.get)(&long), &(spoken.absent)(&long[..ECHO_BYTES_MAX]));
        let longest = &long[1..];
        assert_eq!(world.ask(&(spoken.get)(longest)), get(longest));
    }
    // They are not looked up in the cache either.
    let cache = Arc::new(NodeCache::new());
    cache.insert(Entry::new(b"PMI_x", b"1"));
    for (mut world, spoken) in on(&Board::partial(Some(Arc::clone(&cache)))) {
        world.check_whole(&(spoken.get)("PMI_x"), &(spoken.absent)("PMI_x"));
    }
}

#[test]
fn a_value_that_would_break_a_line_is_refused_only_in_version_1() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        world.ask(&(spoken.get)("a"));
        let reply = match spoken.fence.starts_with("cmd=") {
            true => "cmd=get_result rc=-1 msg=value_has_newline\n".to_owned(),
            false => (spoken.got)("1\n2"),
        };
        world.answer_whole(got(Some("1\n2")), &reply);
    }
}

#[test]
fn a_reply_has_the_thread_of_its_request() {
    let mut world = World::joined_2();
    world.board = Board::partial(None);
    for (value, reply) in [(Some("x;"), "found=TRUE;value=x;;;"), (None, "found=FALSE;")] {
        assert_eq!(world.ask_2("cmd=kvs-get;jobid=kvs_1;srcid=-1;key=a;thrid=7;"), get("a"));
        world.answer_2(got(value), &format!("cmd=kvs-get-response;thrid=7;{reply}rc=0;"));
    }
}

#[test]
fn requests_after_a_get_wait_for_its_answer() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        let said = [&(spoken.get)("a"), &(spoken.put)("b", "2"), &(spoken.get)("b"), &(spoken.get)("c")];
        assert_eq!(world.ask(&said.map(String::as_str).concat()), get("a"));
        world.check_whole("", "");
        world.answer_whole(got(Some("1")), &(spoken.got)("1"));
        let replies = [spoken.taken, &(spoken.got)("2")].concat();
        assert_eq!(world.say(""), (vec![get("c")], replies));
        world.answer_whole(got(None), &(spoken.absent)("c"));
    }
}

#[test]
fn an_answer_to_another_request_is_dropped() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        let mut out = Vec::new();
        world.conversation.answer(got(Some("early")), &mut out);
        world.ask(&(spoken.get)("a"));
        for answer in [Answer::Released, Answer::NodeGot(None), Answer::GotFromJob(None), Answer::Found(Ok(vec![b'p']))]
        {
            world.conversation.answer(answer, &mut out);
        }
        assert!(out.is_empty() && world.conversation.is_waiting());
        world.answer_whole(got(Some("1")), &(spoken.got)("1"));
        world.conversation.answer(got(Some("again")), &mut out);
        world.ask(spoken.fence);
        world.conversation.answer(got(Some("again")), &mut out);
        assert!(out.is_empty() && world.conversation.is_waiting());
    }
}

#[test]
fn a_partial_board_refuses_to_list_entries() {
    let cache = Arc::new(NodeCache::new());
    cache.insert(Entry::new(b"a", b"1"));
    let mut world = World::joined();
    for board in [Board::partial(Some(cache)), Board::partial(None)] {
        world.board = board;
        let refused = "cmd=getbyidx_results rc=-1 msg=the_board_is_not_held_whole_here";
        world.check("cmd=getbyidx kvsname=k idx=0", refused);
        world.check("cmd=getbyidx kvsname=k idx=7", refused);
    }
}

#[test]
fn each_put_is_handed_on_once_when_it_is_made() {
    for (mut world, spoken) in at_once() {
        assert_eq!(world.say((spoken.put)("a", "1")), (vec![put("a", "1")], spoken.taken.to_owned()));
        assert_eq!(world.say((spoken.put)("a", "2")), (vec![put("a", "2")], spoken.taken.to_owned()));
        world.check_whole(&(spoken.get)("a"), &(spoken.got)("2"));
        assert_eq!(world.ask(&(spoken.get)("b")), get("b"));
        world.answer_whole(got(None), &(spoken.absent)("b"));
        assert_eq!(world.ask(spoken.fence), FENCE, "the puts were handed on already");
        world.answer_whole(Answer::Released, spoken.released);
        assert_eq!(world.ask(&(spoken.get)("a")), get("a"), "the fence has taken the put");
        world.answer_whole(got(Some("of another")), &(spoken.got)("of another"));
    }
}

#[test]
fn puts_wait_for_the_fence_unless_they_are_handed_on_at_once() {
    for (mut world, spoken) in on(&Board::partial(None)) {
        world.check_whole(&(spoken.put)("a", "1"), spoken.taken);
        assert_eq!(world.ask(spoken.fence), Request::Fence { puts: puts(&[("a", "1")]), in_segment: false });
    }
    for (mut world, spoken) in each(&Board::new(), |attributes| attributes.puts_at_once = true) {
        // This does not depend on whether the board is whole.
        assert_eq!(world.say((spoken.put)("a", "1")).0, [put("a", "1")]);
        world.check_whole(&(spoken.get)("a"), &(spoken.got)("1"));
        world.check_whole(&(spoken.get)("b"), &(spoken.absent)("b"));
    }
}

#[test]
fn a_refused_put_is_not_handed_on() {
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for (mut world, spoken) in at_once() {
        for key in ["", "PMI_x", &long] {
            let (requests, out) = world.say((spoken.put)(key, "1"));
            assert_eq!(requests, [], "{key}");
            assert!(!out.contains("rc=0"), "{out}");
        }
        let value = "v".repeat(VALUE_BYTES_MAX);
        for _ in 0..PENDING_BYTES_MAX / Puts::cost(b"k", value.as_bytes()) {
            assert_eq!(world.say((spoken.put)("k", &value)).0, [put("k", &value)]);
        }
        let (requests, out) = world.say((spoken.put)("k", &value));
        assert_eq!(requests, []);
        assert!(out.contains("too_many_bytes_put_between"), "{out}");
        assert_eq!(world.ask(spoken.fence), FENCE);
        world.answer_whole(Answer::Released, spoken.released);
        assert_eq!(world.say((spoken.put)("k", &value)).0, [put("k", &value)]);
    }
}

#[test]
fn pipelined_puts_are_handed_on_one_by_one() {
    for (mut world, spoken) in at_once() {
        let said = [&(spoken.put)("a", "1"), &(spoken.put)("b", "2"), spoken.fence].map(str::to_owned).concat();
        let (requests, out) = world.say(said);
        assert_eq!(requests, [put("a", "1"), put("b", "2"), FENCE]);
        assert_eq!(out, spoken.taken.repeat(2));
    }
}

#[test]
fn a_fence_in_the_segment_has_only_the_puts_that_were_not_handed_on() {
    for (mut world, spoken) in at_once() {
        assert_eq!(world.say((spoken.put)("a", "1")).0, [put("a", "1")]);
        let own = puts(&[("b", "2")]);
        let said = match spoken.fence.starts_with("cmd=") {
            true => format!("cmd=scela_fence puts={}\n", own.bytes_len()),
            false => framed(&format!("cmd=scela-fence;puts={};", own.bytes_len())),
        };
        let fence = Request::Fence { puts: own.clone(), in_segment: true };
        assert_eq!(world.say([said.as_bytes(), own.bytes()].concat()), (vec![fence], String::new()));
        assert_eq!(world.ask(&(spoken.get)("a")), get("a"), "the fence has taken the put");
    }
}
