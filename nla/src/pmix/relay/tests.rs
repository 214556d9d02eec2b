//! The relay as a value: messages of scela-pmix and answers of the core lead to exactly these steps.

use std::collections::BTreeMap;

use pmi::{JobDescription, Mapping, Met, ProgramDescription, SpawnedJob};

use super::*;
use crate::core::{AgentId, CommandPlan, Inherit};
use crate::pmix::message::Fact;

const NS: NamespaceId = NamespaceId::FIRST;
const JOB: &str = "scela-5_0";
const NAME: &str = "c0ffee.scela-5_0";

fn plan(kvsname: &str, size: u32) -> NamespacePlan {
    NamespacePlan {
        id: NS,
        kvsname: kvsname.to_owned(),
        size,
        universe: -1,
        spawner: None,
        commands: vec![CommandPlan {
            nprocs: size,
            program: b"a.out".to_vec(),
            staged: None,
            args: vec![b"x".to_vec()],
            inherit: Inherit::All,
            set: Vec::new(),
            wdir: b"/".to_vec(),
        }],
        mapping: Mapping::from_nodes((0..size).map(|rank| rank / 2)),
        placement: Vec::new(),
        owners: Vec::new(),
        preputs: Vec::new(),
        stdin: Ranks::new(),
    }
}

fn ranks(set: &str) -> Ranks {
    set.parse().unwrap()
}

fn process(rank: impl Into<Option<u32>>) -> ProcessName {
    (NAME.to_owned(), rank.into())
}

fn fence(call: u64, members: &[ProcessName], data: &'static [u8], collect: bool) -> ToAgent {
    ToAgent::Fence { call, members: members.to_vec(), data: Bytes::from_static(data), collect, timeout_s: 0 }
}

/// Rank `rank` looks up a key and waits.
fn lookup(call: u64, rank: u32) -> ToAgent {
    ToAgent::Lookup { call, process: process(rank), keys: vec![b"key".to_vec()], wait: true, timeout_s: 7 }
}

/// The relay of node 0 with ranks 0 and 1 of four, and a board.
struct World {
    relay: Relay,
    board: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let hosts = vec!["n0".to_owned(), "n1".to_owned()];
        let mut relay = Relay::new(PmixPlan { library: b"libpmix.so.2".to_vec(), secret: "c0ffee".to_owned(), hosts });
        let ToHelper::Register(registration) = relay.register(&plan(JOB, 4), &ranks("0-1"), Vec::new()) else {
            panic!("it registers the namespace")
        };
        assert_eq!((registration.name.as_str(), registration.node), (NAME, 0));
        Self { relay, board: BTreeMap::new() }
    }

    fn after(&mut self, message: ToAgent) -> Vec<Step> {
        let mut steps = Vec::new();
        self.relay.on_message(message, &mut steps);
        steps
    }

    fn answered(&mut self, rank: u32, answer: Answer) -> Vec<Step> {
        let mut steps = Vec::new();
        let rest = self.relay.on_answer((NS, Rank(rank)), answer, &|_, rank| Some(rank.0 + 100), &mut steps);
        assert_eq!(rest, None, "it was asked for");
        steps
    }

    /// Publishes the puts of a fence, as all agents do.
    fn publish(&mut self, steps: &[Step]) {
        for step in steps {
            if let Step::Ask(_, _, Request::Fence { puts, .. }) = step {
                for put in puts.iter() {
                    let put = put.unwrap();
                    self.board.insert(put.key.to_vec(), put.value.to_vec());
                }
            }
        }
    }

    /// Releases both ranks, and answers the gets that follow from the board. Returns the answer to the call.
    fn release(&mut self) -> (u64, Outcome) {
        assert!(self.answered(0, Answer::Released).is_empty());
        let mut steps = self.answered(1, Answer::Released);
        loop {
            match steps.remove(0) {
                Step::Ask(NS, rank, Request::Get { key }) => {
                    let value = self.board.get(&key[..]).cloned().map(Bytes::from);
                    steps.extend(self.answered(rank.0, Answer::Got(value)));
                }
                Step::Send(ToHelper::Answer(call, outcome)) => return (call, outcome),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The data that the other node puts for fence `number`.
fn theirs(number: u32, data: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], data].concat()
}

#[track_caller]
fn answer(steps: &[Step]) -> (u64, Outcome) {
    match steps {
        [Step::Send(ToHelper::Answer(call, outcome))] => (*call, outcome.clone()),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn asked(steps: &[Step]) -> (Rank, PmixRequest) {
    match steps {
        [Step::Ask(NS, rank, Request::Ask(RootRequest::Pmix(request)))] => (*rank, request.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fence_of_all_collects_the_data_of_all_nodes() {
    let mut world = World::new();
    for (number, members) in [vec![process(None)], (0..4).map(process).collect()].iter().enumerate() {
        let steps = world.after(fence(7, members, b"ours", true));
        let entered: Vec<_> = steps.iter().map(|step| format!("{step:?}")).collect();
        assert_eq!(entered.len(), 2, "both ranks enter: {entered:?}");
        world.publish(&steps);
        world.board.insert(b"pmix-node-1".to_vec(), theirs(number as u32, b"-theirs"));
        assert_eq!(world.release(), (7, Outcome::Data(Bytes::from_static(b"ours-theirs"))));
    }
}

#[test]
fn data_of_an_older_fence_is_left_out() {
    let mut world = World::new();
    let steps = world.after(fence(1, &[process(None)], b"first", true));
    world.publish(&steps);
    world.board.insert(b"pmix-node-1".to_vec(), theirs(0, b"-old"));
    assert_eq!(world.release().1, Outcome::Data(Bytes::from_static(b"first-old")));
    // The other node has nothing this time.
    let steps = world.after(fence(2, &[process(None)], b"second", true));
    world.publish(&steps);
    assert_eq!(world.release(), (2, Outcome::Data(Bytes::from_static(b"second"))));
}

#[test]
fn a_fence_without_data_looks_nothing_up() {
    let mut world = World::new();
    let steps = world.after(fence(1, &[process(None)], b"unwanted", false));
    for step in &steps {
        assert!(matches!(step, Step::Ask(_, _, Request::Fence { puts, .. }) if puts.is_empty()), "{step:?}");
    }
    assert_eq!(world.release(), (1, Outcome::Data(Bytes::new())));
}

#[test]
fn a_failed_fence_fails_for_all_and_the_next_one_begins() {
    let mut world = World::new();
    world.after(fence(1, &[process(None)], b"", true));
    assert!(world.after(fence(2, &[process(None)], b"", false)).is_empty(), "one after the other");
    assert!(world.answered(0, Answer::FenceFailed).is_empty());
    let steps = world.answered(1, Answer::Released);
    assert_eq!(answer(&steps[..1]), (1, Outcome::Failed(CallError::Error)));
    assert_eq!(steps.len(), 3, "the ranks enter the second: {steps:?}");
    assert_eq!(world.release().0, 2);
}

#[test]
fn a_rank_that_ends_is_not_waited_for() {
    let mut world = World::new();
    world.after(fence(1, &[process(None)], b"", false));
    assert!(world.answered(0, Answer::Released).is_empty());
    let mut steps = Vec::new();
    world.relay.on_ended(NS, Rank(1), &mut steps);
    assert!(matches!(&steps[0], Step::Send(ToHelper::Ended((name, Some(1)))) if name == NAME), "{steps:?}");
    assert_eq!(answer(&steps[1..]), (1, Outcome::Data(Bytes::new())));
    assert_eq!(world.after(fence(2, &[process(None)], b"", false)).len(), 1, "only rank 0 is left");
}

/// libpmix would not see the end of its connection, and would wait for it in each fence.
#[test]
fn a_connected_rank_that_ends_is_not_forgotten() {
    let mut world = World::new();
    world.after(ToAgent::Joined(process(0)));
    world.after(ToAgent::Joined(process(1)));
    world.after(ToAgent::Finalized(1, process(1)));
    let mut steps = Vec::new();
    world.relay.on_ended(NS, Rank(0), &mut steps);
    assert!(steps.is_empty(), "{steps:?}");
    world.relay.on_ended(NS, Rank(1), &mut steps);
    assert!(matches!(&steps[..], [Step::Send(ToHelper::Ended((_, Some(1))))]), "{steps:?}");
}

#[test]
fn the_core_learns_of_a_rank_that_has_joined_just_before_its_end() {
    let mut world = World::new();
    world.relay.on_ended(NS, Rank(1), &mut Vec::new());
    let steps = world.after(ToAgent::Joined(process(1)));
    assert!(matches!(&steps[..], [Step::Ask(NS, Rank(1), Request::Joined)]), "{steps:?}");
    assert!(world.after(ToAgent::Abort(1, process(1), 3, String::new())).len() == 1, "only the answer");
}

#[test]
fn a_fence_of_some_ranks_is_a_meeting() {
    let mut world = World::new();
    let (rank, request) = asked(&world.after(fence(3, &[process(1), process(2)], b"d", true)));
    let meeting = Meeting {
        name: b"fence".to_vec(),
        members: vec![(JOB.to_owned(), Some(ranks("1-2")))],
        here: vec![(JOB.to_owned(), ranks("1"))],
        data: Bytes::from_static(b"d"),
        timeout_s: 0,
    };
    assert_eq!(request, PmixRequest::Meet(meeting));
    let met = Met { number: 1, data: vec![Bytes::from_static(b"d"), Bytes::from_static(b"e")] };
    let steps = world.answered(rank.0, Answer::Pmix(PmixAnswer::Met(Some(met))));
    assert_eq!(answer(&steps), (3, Outcome::Data(Bytes::from_static(b"de"))));
}

/// A lookup that waits, or a rank that ends, must not stop the calls of others.
#[test]
fn each_call_has_a_number_of_its_own_at_the_root() {
    let mut world = World::new();
    let modex = |call, rank| ToAgent::Modex(call, process(rank));
    let numbers: Vec<_> = (1..=5).map(|call| asked(&world.after(modex(call, 2))).0.0).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4].map(|number| NODE_REQUESTS_FROM + number), "no rank has these numbers");
    let mut steps = Vec::new();
    world.relay.on_ended(NS, Rank(0), &mut steps);
    world.relay.on_ended(NS, Rank(1), &mut steps);
    assert!(matches!(steps[..], [Step::Send(ToHelper::Ended(_)), Step::Send(ToHelper::Ended(_))]), "{steps:?}");
    let steps = world.answered(numbers[1], Answer::Pmix(PmixAnswer::Modex(None)));
    assert_eq!(answer(&steps), (2, Outcome::Failed(CallError::NotFound)));
    let data = Bytes::from_static(b"data");
    let steps = world.answered(numbers[0], Answer::Pmix(PmixAnswer::Modex(Some(data.clone()))));
    assert_eq!(answer(&steps), (1, Outcome::Data(data)));
    assert_eq!(asked(&world.after(modex(6, 2))).0.0, numbers[0], "it is free again");
}

#[test]
fn calls_beyond_the_bound_wait_for_a_number() {
    let mut world = World::new();
    for call in 0..u64::from(CALLS_MAX) {
        assert_eq!(world.after(ToAgent::Modex(call, process(2))).len(), 1);
    }
    assert!(world.after(ToAgent::Modex(9999, process(3))).is_empty());
    let steps = world.answered(NODE_REQUESTS_FROM + 7, Answer::Pmix(PmixAnswer::Modex(None)));
    assert_eq!(answer(&steps[..1]), (7, Outcome::Failed(CallError::NotFound)));
    assert_eq!(asked(&steps[1..]).0.0, NODE_REQUESTS_FROM + 7);
}

#[test]
fn the_calls_that_wait_for_a_number_are_bounded() {
    let mut world = World::new();
    let waiting = || (Asked::Call(1), None, PmixRequest::Jobs { described: Vec::new() });
    // The numbers themselves are in use.
    for call in 0..u64::from(CALLS_MAX) {
        world.after(ToAgent::Modex(call, process(2)));
    }
    world.relay.to_ask.extend((1..QUEUE_MAX).map(|_| waiting()));
    assert!(world.after(ToAgent::Modex(9998, process(3))).is_empty());
    assert_eq!(answer(&world.after(ToAgent::Modex(9999, process(3)))), (9999, Outcome::Failed(CallError::Exhausted)));
}

#[test]
fn a_lookup_for_which_the_root_has_no_room_is_refused() {
    let mut world = World::new();
    let (number, _) = asked(&world.after(lookup(3, 0)));
    let steps = world.answered(number.0, Answer::Pmix(PmixAnswer::Full));
    assert_eq!(answer(&steps), (3, Outcome::Failed(CallError::Exhausted)));
}

#[test]
fn the_calls_under_a_namespace_fail_when_it_is_forgotten() {
    let mut world = World::new();
    asked(&world.after(lookup(3, 0)));
    let mut steps = Vec::new();
    world.relay.forget(NS, &mut steps);
    assert!(matches!(&steps[0], Step::Send(ToHelper::Deregister(name)) if name == NAME), "{steps:?}");
    assert_eq!(answer(&steps[1..]), (3, Outcome::Failed(CallError::Error)));
}

#[test]
fn calls_that_name_no_process_of_the_session_fail() {
    let mut world = World::new();
    let stranger = ("foreign".to_owned(), Some(0));
    let meet = |purpose| ToAgent::Meet {
        call: 4,
        purpose,
        members: vec![process(0), stranger.clone()],
        data: Bytes::new(),
        timeout_s: 0,
    };
    for purpose in [Purpose::Connect, Purpose::Disconnect, Purpose::Group("g".to_owned())] {
        assert_eq!(answer(&world.after(meet(purpose))), (4, Outcome::Failed(CallError::Error)));
    }
    // As many as the namespace has ranks, but not these: the root refuses it.
    let members = [0, 1, 2, 99].map(process);
    let (_, request) = asked(&world.after(fence(5, &members, b"", false)));
    assert!(matches!(request, PmixRequest::Meet(_)), "{request:?}");
}

#[test]
fn a_stranger_is_asked_for_nothing() {
    let mut world = World::new();
    let modex = ToAgent::Modex(1, ("guessed.scela-5_0".to_owned(), Some(2)));
    assert_eq!(answer(&world.after(modex)), (1, Outcome::Failed(CallError::NotFound)));
    let joined = ToAgent::Joined(("guessed".to_owned(), Some(0)));
    assert!(world.after(joined).is_empty());
    assert!(world.after(ToAgent::Joined(process(2))).is_empty(), "rank 2 is on another node");
    assert!(matches!(world.after(ToAgent::Joined(process(1)))[..], [Step::Ask(NS, Rank(1), Request::Joined)]));
    let second = ToAgent::SecondJoiner(process(1), "text".to_owned());
    assert!(matches!(world.after(second)[..], [Step::SecondJoiner(Rank(1), _)]));
}

fn requester() -> Requester {
    Requester { agent: AgentId(2), namespace: NS, rank: Rank(2), number: 0 }
}

#[test]
fn data_of_a_rank_here_is_handed_to_another_node() {
    let mut world = World::new();
    let step = world.relay.on_asked(NS, Rank(1), requester());
    let Step::Send(ToHelper::Ask(call, name)) = step else { panic!("{step:?}") };
    assert_eq!(name, process(1));
    let data = Some(Bytes::from_static(b"data"));
    let steps = world.after(ToAgent::Got(call, data.clone()));
    assert!(matches!(&steps[..], [Step::Reply(to, got)] if *to == requester() && *got == data), "{steps:?}");
    assert!(matches!(world.relay.on_asked(NS, Rank(2), requester()), Step::Reply(_, None)), "it is not here");
}

#[test]
fn connected_ranks_know_each_others_namespaces() {
    const OTHER: &str = "c0ffee.scela-5_1";
    let mut world = World::new();
    let members = vec![process(None), (OTHER.to_owned(), None)];
    let connect = |call| ToAgent::Meet {
        call,
        purpose: Purpose::Connect,
        members: members.clone(),
        data: Bytes::new(),
        timeout_s: 0,
    };
    let met = || Answer::Pmix(PmixAnswer::Met(Some(Met { number: 1, data: Vec::new() })));
    let (rank, _) = asked(&world.after(connect(4)));
    let (rank, request) = asked(&world.answered(rank.0, met()));
    assert_eq!(request, PmixRequest::Describe { job: b"scela-5_1".to_vec() });
    let job = JobDescription {
        kvsname: "scela-5_1".to_owned(),
        size: 1,
        universe: -1,
        spawner: Some((JOB.to_owned(), Rank(1))),
        mapping: Mapping::from_nodes([1]),
        programs: vec![ProgramDescription { nprocs: 1, argv: vec![b"b".to_vec()], wdir: b"/".to_vec() }],
    };
    let steps = world.answered(rank.0, Answer::Pmix(PmixAnswer::Described(Some(Box::new(job)))));
    let [Step::Send(ToHelper::Register(registration))] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((registration.name.as_str(), &registration.spawner), (OTHER, &Some(process(1))));
    let registered = || ToAgent::Registered(OTHER.to_owned(), Ok(Vec::new()));
    assert_eq!(answer(&world.after(registered())), (4, Outcome::Done));
    // The second time it is known.
    let (rank, _) = asked(&world.after(connect(5)));
    assert_eq!(answer(&world.answered(rank.0, met())), (5, Outcome::Done));
}

#[test]
fn a_spawn_is_the_request_of_the_rank_itself() {
    let mut world = World::new();
    let command = SpawnCommand { program: b"child".to_vec(), args: Vec::new(), nprocs: 2, info: Vec::new() };
    let steps = world.after(ToAgent::Spawn(6, process(1), vec![command.clone()]));
    let [Step::Ask(NS, Rank(1), Request::Ask(RootRequest::Spawn(request)))] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(request.commands, [command]);
    let spawned = SpawnedJob { job: "scela-5_1".to_owned(), codes: vec![0, 0] };
    let steps = world.answered(1, Answer::Spawned(Ok(spawned)));
    assert_eq!(answer(&steps), (6, Outcome::Spawned("c0ffee.scela-5_1".to_owned())));
    let steps = world.after(ToAgent::Spawn(7, process(1), Vec::new()));
    assert_eq!(answer(&steps), (7, Outcome::Failed(CallError::Error)), "a spawn of nothing is refused");
}

#[test]
fn a_death_is_told_once() {
    let mut world = World::new();
    let mut steps = Vec::new();
    world.relay.on_died(NS, &ranks("3"), &mut steps);
    world.relay.on_died(NS, &ranks("2-3"), &mut steps);
    let told: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Send(ToHelper::Died((_, Some(rank)))) => *rank,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [3, 2]);
}

#[test]
fn an_answer_that_the_relay_has_not_asked_for_is_returned() {
    let mut world = World::new();
    let mut steps = Vec::new();
    for answer in [Answer::Released, Answer::Got(None), Answer::Pmix(PmixAnswer::Modex(None)), Answer::NodePut(true)] {
        assert_eq!(world.relay.on_answer((NS, Rank(0)), answer.clone(), &|_, _| None, &mut steps), Some(answer));
    }
    assert!(steps.is_empty());
}

/// A rank exits as soon as its abort or finalize is answered. Its exit must not reach the core first.
#[test]
fn aborts_and_finalizes_are_answered_after_the_core_knows_them() {
    let mut world = World::new();
    let steps = world.after(ToAgent::Abort(7, process(1), 256, "bye".to_owned()));
    let [Step::Ask(NS, Rank(1), Request::Abort { code: 256, message }), Step::Send(ToHelper::Answer(7, Outcome::Done))] =
        &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(message, "bye");
    let steps = world.after(ToAgent::Finalized(8, process(0)));
    assert!(
        matches!(
            &steps[..],
            [Step::Ask(NS, Rank(0), Request::Finalized), Step::Send(ToHelper::Answer(8, Outcome::Done))]
        ),
        "{steps:?}"
    );
}

/// libpmix must not wait for ever because of a rank that the agent does not know.
#[test]
fn an_abort_of_an_unknown_rank_is_answered() {
    let steps = World::new().after(ToAgent::Abort(7, process(3), 1, String::new()));
    assert!(matches!(&steps[..], [Step::Send(ToHelper::Answer(7, Outcome::Done))]), "{steps:?}");
}

#[test]
fn a_query_asks_the_root_only_for_what_it_must() {
    let mut world = World::new();
    let question =
        |key: &str, namespace: Option<&str>| Question { key: key.to_owned(), namespace: namespace.map(str::to_owned) };
    let sets = question("pmix.qry.psetnum", None);
    let facts = vec![("pmix.qry.psetnum".to_owned(), Fact::Size(0))];
    assert_eq!(answer(&world.after(ToAgent::Query(7, vec![sets]))), (7, Outcome::Answered(facts, true)));
    // A rank that names no namespace means the only one here.
    let table = question("pmix.qry.lptable", None);
    let (number, request) = asked(&world.after(ToAgent::Query(8, vec![table])));
    assert_eq!(request, PmixRequest::Jobs { described: vec![JOB.to_owned()] });
    let described = vec![(plan(JOB, 4).describe(), ranks("1"))];
    let jobs = PmixAnswer::Jobs { names: vec![JOB.to_owned()], described };
    let steps = world.answered(number.0, Answer::Pmix(jobs));
    let (8, Outcome::Answered(facts, true)) = answer(&steps) else { panic!("{steps:?}") };
    let [(_, Fact::Table(rows))] = &facts[..] else { panic!("{facts:?}") };
    let rows: Vec<_> = rows.iter().map(|row| (row.process.1, row.pid, row.has_ended)).collect();
    assert_eq!(rows, [(Some(0), 100, false), (Some(1), 0, true)]);
}

#[test]
fn waiting_lookups_leave_numbers_for_other_calls() {
    let mut world = World::new();
    for call in 0..LOOKUPS_MAX as u64 {
        let (_, request) = asked(&world.after(lookup(call, 1)));
        let read = PmixRequest::Read { keys: vec![b"key".to_vec()], wait: true, timeout_s: 7, rank: Rank(1) };
        assert_eq!(request, read);
    }
    assert_eq!(answer(&world.after(lookup(9998, 1))), (9998, Outcome::Failed(CallError::Exhausted)));
    asked(&world.after(ToAgent::Modex(9999, process(2))));
    let steps = world.answered(NODE_REQUESTS_FROM, Answer::Pmix(PmixAnswer::TimedOut));
    assert_eq!(answer(&steps), (0, Outcome::Failed(CallError::TimedOut)));
    asked(&world.after(lookup(9998, 1)));
}

/// The tree's fences have no time limit.
#[test]
fn a_fence_of_all_ranks_with_a_time_limit_is_a_meeting() {
    let mut world = World::new();
    let members = vec![process(None)];
    let fence = ToAgent::Fence { call: 3, members, data: Bytes::from_static(b"d"), collect: true, timeout_s: 2 };
    let (number, request) = asked(&world.after(fence));
    let PmixRequest::Meet(meeting) = request else { panic!("{request:?}") };
    assert_eq!((meeting.members, meeting.timeout_s), (vec![(JOB.to_owned(), None)], 2));
    let steps = world.answered(number.0, Answer::Pmix(PmixAnswer::TimedOut));
    assert_eq!(answer(&steps), (3, Outcome::Failed(CallError::TimedOut)));
}

/// Registers a second namespace with one rank here.
fn spawned(world: &mut World) -> NamespaceId {
    let other = NamespacePlan { id: NamespaceId(1), ..plan("scela-5_1", 1) };
    drop(world.relay.register(&other, &ranks("0"), Vec::new()));
    other.id
}

/// The root answers requests of a namespace as long as it has not ended.
#[test]
fn the_end_of_one_namespace_fails_no_call_of_another() {
    let mut world = World::new();
    let other = spawned(&mut world);
    let keys = || vec![b"key".to_vec()];
    let theirs = ("c0ffee.scela-5_1".to_owned(), Some(0));
    let steps = world.after(ToAgent::Lookup { call: 1, process: theirs, keys: keys(), wait: true, timeout_s: 0 });
    assert!(matches!(&steps[..], [Step::Ask(id, _, _)] if *id == other), "{steps:?}");
    asked(&world.after(lookup(2, 0)));
    // libpmix does not say who asks for these.
    let (_, modex) = asked(&world.after(ToAgent::Modex(3, process(2))));
    let mut steps = Vec::new();
    world.relay.forget(NS, &mut steps);
    assert!(matches!(&steps[0], Step::Send(ToHelper::Deregister(_))), "{steps:?}");
    assert_eq!(answer(&steps[1..2]), (2, Outcome::Failed(CallError::Error)));
    let again = Request::Ask(RootRequest::Pmix(modex));
    assert!(matches!(&steps[2..], [Step::Ask(id, _, request)] if *id == other && *request == again), "{steps:?}");
}
