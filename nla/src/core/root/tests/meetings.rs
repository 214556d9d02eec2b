//! Requests of PMIx at the root.

use pmi::{Meeting, Met, PmixAnswer, PmixRequest, PostRange};

use super::*;
use crate::core::limits::POSTS_BYTES_MAX;

const JOB: &str = "scela-77_0";

impl World {
    /// Time passes. Returns the answers as [`World::pmix`] does.
    fn pmix_at(&mut self, now: Time) -> Vec<(u32, PmixAnswer)> {
        answers(&self.after(now, RootInput::Timeout))
    }

    /// Rank `rank` asks through child `child`. Returns the answers that are sent to each child.
    fn pmix(&mut self, child: u32, rank: u32, request: PmixRequest) -> Vec<(u32, PmixAnswer)> {
        let request = RootRequest::Pmix(request);
        let actions = self.up(T, child, Up::Ask { requester: requester(child, rank), request });
        answers(&actions)
    }
}

fn answers(actions: &[RootAction]) -> Vec<(u32, PmixAnswer)> {
    let answer = |action: &RootAction| match action {
        RootAction::ToChild(child, Down::Reply { reply: Reply::Pmix(answer), .. }) => Some((child.0, answer.clone())),
        _ => None,
    };
    actions.iter().filter_map(answer).collect()
}

fn meeting(members: &str, here: &str, data: &'static str) -> PmixRequest {
    PmixRequest::Meet(Meeting {
        name: b"m".to_vec(),
        members: vec![(JOB.to_owned(), Some(ranks(members)))],
        here: vec![(JOB.to_owned(), ranks(here))],
        data: Bytes::from_static(data.as_bytes()),
        timeout_s: 0,
    })
}

fn met(number: u64, data: &[&'static str]) -> PmixAnswer {
    let data = data.iter().map(|data| Bytes::from_static(data.as_bytes())).collect();
    PmixAnswer::Met(Some(Met { number, data }))
}

#[test]
fn ranks_meet_when_all_have_come_and_each_meeting_has_a_number() {
    let mut world = World::running();
    for number in [1, 2] {
        assert_eq!(world.pmix(1, 0, meeting("0,2", "0", "a")), []);
        let both = met(number, &["a", "b"]);
        assert_eq!(world.pmix(2, 2, meeting("0,2", "2", "b")), [(1, both.clone()), (2, both)]);
    }
    // Others may meet at the same time.
    assert_eq!(world.pmix(1, 0, meeting("0,2", "0", "")), []);
    assert_eq!(world.pmix(1, 1, meeting("1", "1", "c")), [(1, met(3, &["c"]))]);
}

#[test]
fn a_meeting_of_all_ranks_needs_no_list() {
    let mut world = World::running();
    let all = |here: &str| {
        PmixRequest::Meet(Meeting {
            name: Vec::new(),
            members: vec![(JOB.to_owned(), None)],
            here: vec![(JOB.to_owned(), ranks(here))],
            data: Bytes::new(),
            timeout_s: 0,
        })
    };
    assert_eq!(world.pmix(1, 0, all("0-1")), []);
    assert_eq!(world.pmix(2, 2, all("2-3")).len(), 2);
}

#[test]
fn a_rank_that_is_not_expected_or_unknown_fails_the_meeting() {
    let mut world = World::running();
    let failed = PmixAnswer::Met(None);
    assert_eq!(world.pmix(1, 0, meeting("0-9", "0", "")), [(1, failed.clone())], "there are fewer ranks");
    assert_eq!(world.pmix(1, 0, meeting("0,2", "0", "")), []);
    let answers = world.pmix(2, 3, meeting("0,2", "3", ""));
    assert_eq!(answers, [(2, failed.clone()), (1, failed)]);
}

#[test]
fn a_meeting_does_not_wait_for_a_rank_that_has_ended() {
    let mut world = World::running();
    assert_eq!(world.pmix(1, 0, meeting("0,2", "0", "")), []);
    let ended = Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("2") };
    assert_eq!(answers(&world.up(T, 2, ended)), [(1, PmixAnswer::Met(None))]);
}

fn post(key: &str, once: bool) -> PmixRequest {
    post_to(PostRange::Session, 2, key, once)
}

fn post_to(range: PostRange, rank: u32, key: &str, once: bool) -> PmixRequest {
    PmixRequest::Post { entries: vec![(key.into(), b"v".to_vec())], once, range, rank: Rank(rank) }
}

fn read(key: &str, wait: bool) -> PmixRequest {
    read_within(0, 0, key, wait)
}

/// Rank `rank` looks up a key, within so many seconds if it waits.
fn read_within(timeout_s: u32, rank: u32, key: &str, wait: bool) -> PmixRequest {
    PmixRequest::Read { keys: vec![key.into()], wait, timeout_s, rank: Rank(rank) }
}

fn found(key: &str) -> PmixAnswer {
    PmixAnswer::Read(vec![(key.into(), b"v".to_vec())])
}

#[test]
fn a_reader_waits_for_what_is_published() {
    let mut world = World::running();
    let posted = PmixAnswer::Posted(Ok(()));
    assert_eq!(world.pmix(1, 0, read("k", false)), [(1, PmixAnswer::Read(Vec::new()))]);
    assert_eq!(world.pmix(1, 0, read("k", true)), []);
    assert_eq!(world.pmix(2, 2, post("other", false)), [(2, posted.clone())]);
    assert_eq!(world.pmix(2, 2, post("k", false)), [(1, found("k")), (2, posted.clone())]);
    assert_eq!(world.pmix(2, 3, post("k", false)), [(2, PmixAnswer::Posted(Err(NameError::Taken)))]);
    assert_eq!(world.pmix(1, 1, read("k", true)), [(1, found("k"))]);
    assert_eq!(world.pmix(2, 2, PmixRequest::Unpost { keys: vec![b"k".to_vec()], rank: Rank(2) }), [(2, posted)]);
    assert_eq!(world.pmix(1, 1, read("k", false)), [(1, PmixAnswer::Read(Vec::new()))]);
}

#[test]
fn what_is_to_be_read_once_is_read_once() {
    let mut world = World::running();
    world.pmix(2, 2, post("k", true));
    assert_eq!(world.pmix(1, 0, read("k", true)), [(1, found("k"))]);
    assert_eq!(world.pmix(1, 0, read("k", true)), []);
    assert_eq!(world.pmix(1, 1, read("k", true)), []);
    let posted = PmixAnswer::Posted(Ok(()));
    assert_eq!(world.pmix(2, 2, post("k", true)), [(1, found("k")), (2, posted)], "one reader waits on");
}

#[test]
fn what_is_published_is_bounded() {
    let mut world = World::running();
    let post = |key: &str, bytes: usize| PmixRequest::Post {
        entries: vec![(key.into(), vec![b'v'; bytes - key.len()])],
        once: false,
        range: PostRange::Session,
        rank: Rank(0),
    };
    assert_eq!(world.pmix(1, 0, post("a", POSTS_BYTES_MAX)), [(1, PmixAnswer::Posted(Ok(())))]);
    assert_eq!(world.pmix(1, 0, post("b", 1)), [(1, PmixAnswer::Posted(Err(NameError::Full)))]);
    world.pmix(1, 0, PmixRequest::Unpost { keys: vec![b"a".to_vec()], rank: Rank(0) });
    assert_eq!(world.pmix(1, 0, post("b", 1)), [(1, PmixAnswer::Posted(Ok(())))]);
}

#[test]
fn the_agent_of_a_rank_is_asked_for_its_data() {
    let mut world = World::running();
    let modex = |rank| PmixRequest::Modex { job: JOB.into(), rank: Rank(rank) };
    let request = RootRequest::Pmix(modex(2));
    let actions = world.up(T, 1, Up::Ask { requester: requester(1, 0), request });
    let inquiries: Vec<_> = sent(&actions, 2).into_iter().collect();
    assert!(
        matches!(&inquiries[..], [Down::Inquire(Inquiry { kind: InquiryKind::Modex { rank: Rank(2), .. }, .. })]),
        "{inquiries:?}"
    );
    assert_eq!(world.pmix(1, 0, modex(99)), [(1, PmixAnswer::Modex(None))]);
    let unknown = PmixRequest::Modex { job: b"other".to_vec(), rank: Rank(0) };
    assert_eq!(world.pmix(1, 0, unknown), [(1, PmixAnswer::Modex(None))]);
    let described = world.pmix(1, 0, PmixRequest::Describe { job: JOB.into() });
    assert!(matches!(&described[..], [(1, PmixAnswer::Described(Some(job)))] if job.kvsname == JOB));
}

#[test]
fn jobs_are_listed_while_they_run_and_described_with_what_has_ended() {
    let mut world = World::running();
    let jobs = |world: &mut World| {
        let request = PmixRequest::Jobs { described: vec![JOB.to_owned(), "unknown".to_owned()] };
        match &world.pmix(1, 0, request)[..] {
            [(1, PmixAnswer::Jobs { names, described })] => {
                (names.clone(), described.iter().map(|(job, ended)| (job.size, ended.clone())).collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(jobs(&mut world), (vec![JOB.to_owned()], vec![(4, Ranks::new())]));
    world.up(T, 2, Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("2") });
    assert_eq!(jobs(&mut world).1, [(4, ranks("2"))]);
}

#[test]
fn a_value_is_found_by_the_ranks_of_its_range_and_the_narrowest_first() {
    let mut world = World::running();
    let (posted, nothing) = (PmixAnswer::Posted(Ok(())), PmixAnswer::Read(Vec::new()));
    let check = |world: &mut World, child, rank, answer: &PmixAnswer| {
        assert_eq!(world.pmix(child, 9, read_within(0, rank, "k", false)), [(child, answer.clone())], "rank {rank}");
    };
    assert_eq!(world.pmix(1, 9, post_to(PostRange::Rank, 0, "k", true)), [(1, posted.clone())]);
    check(&mut world, 1, 1, &nothing);
    check(&mut world, 1, 0, &found("k"));
    assert_eq!(world.pmix(1, 9, post_to(PostRange::Node, 0, "k", false)), [(1, posted.clone())]);
    check(&mut world, 1, 1, &found("k"));
    check(&mut world, 2, 2, &nothing);
    assert_eq!(world.pmix(2, 9, post_to(PostRange::Namespace, 2, "k", true)), [(2, posted.clone())]);
    let taken = PmixAnswer::Posted(Err(NameError::Taken));
    assert_eq!(world.pmix(1, 9, post_to(PostRange::Namespace, 0, "k", true)), [(1, taken)]);
    // Each finds its node's value first, which does not use up that of the namespace.
    check(&mut world, 1, 1, &found("k"));
    check(&mut world, 2, 3, &found("k"));
    check(&mut world, 2, 3, &nothing);
    let unpost = PmixRequest::Unpost { keys: vec![b"k".to_vec()], rank: Rank(1) };
    assert_eq!(world.pmix(1, 9, unpost), [(1, posted)]);
    check(&mut world, 1, 0, &nothing);
}

#[test]
fn a_reader_waits_as_long_as_it_wants_to() {
    let mut world = World::running();
    assert_eq!(world.pmix(1, 0, read_within(2, 0, "k", true)), []);
    assert_eq!(world.pmix(1, 1, read_within(0, 1, "k", true)), []);
    assert_eq!(world.pmix_at(T + Duration::from_millis(1999)), []);
    assert_eq!(world.pmix_at(T + Duration::from_secs(2)), [(1, PmixAnswer::TimedOut)]);
    assert_eq!(world.pmix_at(T + Duration::from_secs(9999)), []);
    assert_eq!(world.pmix(2, 2, post("k", true)), [(1, found("k")), (2, PmixAnswer::Posted(Ok(())))]);
}

#[test]
fn a_reader_that_has_ended_takes_no_value() {
    let mut world = World::running();
    assert_eq!(world.pmix(2, 9, read_within(0, 3, "k", true)), []);
    let ended = Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("3") };
    assert_eq!(answers(&world.up(T, 2, ended)), [(2, PmixAnswer::TimedOut)], "its number is free again");
    assert_eq!(world.pmix(1, 9, post_to(PostRange::Session, 0, "k", true)), [(1, PmixAnswer::Posted(Ok(())))]);
    assert_eq!(world.pmix(1, 9, read("k", false)), [(1, found("k"))]);
}

#[test]
fn a_meeting_fails_when_the_shortest_time_is_over() {
    let mut world = World::running();
    let meeting = |here, timeout_s| {
        let PmixRequest::Meet(meeting) = meeting("0-2", here, "d") else { unreachable!() };
        PmixRequest::Meet(Meeting { timeout_s, ..meeting })
    };
    assert_eq!(world.pmix(1, 0, meeting("0", 5)), []);
    let request = RootRequest::Pmix(meeting("1", 3));
    let actions = world.up(T, 1, Up::Ask { requester: requester(1, 1), request });
    assert_eq!(actions, [RootAction::WakeAt(T + Duration::from_secs(3))]);
    let failed = vec![(1, PmixAnswer::TimedOut); 2];
    assert_eq!(world.pmix_at(T + Duration::from_secs(3)), failed);
    assert_eq!(world.pmix(2, 2, meeting("2", 0)), [], "it is another meeting");
    assert_eq!(world.pmix_at(T + Duration::from_secs(9999)), []);
}
