//! Requests of PMIx at the root.

use pmi::{Meeting, Met, PmixAnswer, PmixRequest};

use super::*;
use crate::core::limits::POSTS_BYTES_MAX;

const JOB: &str = "scela-77_0";

impl World {
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
    PmixRequest::Post { entries: vec![(key.into(), b"v".to_vec())], once }
}

fn read(key: &str, wait: bool) -> PmixRequest {
    PmixRequest::Read { keys: vec![key.into()], wait }
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
    assert_eq!(world.pmix(2, 2, PmixRequest::Unpost { keys: vec![b"k".to_vec()] }), [(2, posted)]);
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
    };
    assert_eq!(world.pmix(1, 0, post("a", POSTS_BYTES_MAX)), [(1, PmixAnswer::Posted(Ok(())))]);
    assert_eq!(world.pmix(1, 0, post("b", 1)), [(1, PmixAnswer::Posted(Err(NameError::Full)))]);
    world.pmix(1, 0, PmixRequest::Unpost { keys: vec![b"a".to_vec()] });
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
