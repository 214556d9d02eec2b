//! The loss of the parent in a session that goes on, and ranks that start again.

use super::*;
use crate::core::message::{Inquiry, InquiryKind};
use pmi::{Entry, LookUpResult};

const LOST: Input = Input::ParentLost { why: LossReason::Closed };

impl World {
    /// The parent is lost, and an ancestor accepts this agent. Returns the repeated reports.
    fn rejoins(&mut self) -> Vec<Up> {
        let actions = self.after(at(1), LOST);
        assert!(matches!(actions[..], [Action::Rejoin(_)]), "{actions:?}");
        let report = |action| if let Action::ToParent(message) = action { Some(message) } else { None };
        self.after(at(2), Input::Rejoined).into_iter().filter_map(report).collect()
    }
}

fn look_up(service: &str) -> Request {
    Request::Ask(RootRequest::Lookup { service: service.into() })
}

#[test]
fn an_orphaned_agent_sends_its_gets_when_it_has_joined_again() {
    let mut world = World::surviving_with(CachePolicy::Hcma, FailurePolicy::Continue, 1);
    world.after(T, LOST);
    let key = Bytes::from_static(b"k");
    assert_eq!(world.asks(0, Request::Get { key: key.clone() }), []);
    let actions = world.after(T, Input::Rejoined);
    assert_eq!(actions.last(), Some(&Action::ToParent(Up::Get { namespace: NS, key })), "{actions:?}");
}

#[test]
fn requests_are_repeated_until_they_are_answered() {
    let mut world = World::surviving(FailurePolicy::Continue, 1);
    world.asks(0, look_up("s"));
    let asked = Up::Ask { requester: requester(1, 0), request: RootRequest::Lookup { service: b"s".to_vec() } };
    assert_eq!(world.rejoins().last(), Some(&asked));
    let reply = Down::Reply { requester: requester(1, 0), reply: Reply::Found(Ok(b"p".to_vec())) };
    let answer = Action::Answer(NS, Rank(0), Answer::Found(Ok(b"p".to_vec())));
    assert_eq!(world.after(T, Input::FromParent(reply.clone())), [answer]);
    assert_eq!(world.after(T, Input::FromParent(reply)), [], "the repeated request has two replies");
    assert!(!world.rejoins().contains(&asked));
}

#[test]
fn inquiries_are_repeated_until_they_are_withdrawn() {
    let mut world = World::joined(2, 2, 2);
    let session = SessionPlan { on_failure: FailurePolicy::Continue, ..World::session(false) };
    world.after(T, Input::FromParent(Down::Session(Box::new(session))));
    let plan = NamespacePlan { owners: owned(&[(2, 1)]), ..plan(4, &[(2, "2-3")]) };
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan))));
    world.after(T, Input::Started(NS, ranks("2-3")));
    world.asks(3, Request::NodeGet { key: b"k".to_vec(), wait: true });
    let kind = InquiryKind::NodeGet { key: b"k".to_vec(), wait: true };
    let inquired = Up::Inquire(Inquiry { to: AgentId(1), requester: requester(2, 3), kind });
    assert_eq!(world.rejoins().last(), Some(&inquired));
    world.after(T, Input::RankEnded(NS, Rank(3), Exit::Code(0)));
    assert!(!world.rejoins().iter().any(|message| matches!(message, Up::Inquire(_))));
}

#[test]
fn a_slow_fence_is_reported_again() {
    let mut world = World::surviving(FailurePolicy::Continue, 2);
    world.fence(T, 0, "a");
    let waiting = Up::Waiting { namespace: NS, number: 0 };
    assert!(!world.rejoins().contains(&waiting), "it is not slow yet");
    assert_eq!(world.after(at(250), Input::Timeout), [Action::ToParent(waiting.clone())]);
    assert!(world.rejoins().contains(&waiting));
}

#[test]
fn a_contribution_of_ranks_that_have_moved_out_is_not_repeated() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 2);
    world.fence(T, 0, "a");
    let contribution = Contribution::Puts(Puts::new());
    let arrival = Up::Gathered { namespace: NS, number: 0, ranks: ranks("1"), contribution };
    assert_eq!(gathered(&world.after(T, Input::FromChild(AgentId(2), arrival))), Some((&ranks("0-1"), 1)));
    world.after(T, Input::ChildLost(AgentId(2), LossReason::Closed));
    let repeated = world.rejoins();
    let sets: Vec<_> = repeated
        .iter()
        .filter_map(|message| if let Up::Gathered { ranks, .. } = message { Some(ranks) } else { None })
        .collect();
    assert_eq!(sets, [&ranks("0")]);
}

#[test]
fn requests_of_a_later_start_have_numbers_of_their_own() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    let number = |actions: &[Action]| match actions {
        [Action::ToParent(Up::Ask { requester, .. })] => requester.number,
        _ => panic!("{actions:?}"),
    };
    assert_eq!(number(&world.asks(0, look_up("s"))), 0);
    let order = Down::Revive { agent: AgentId(1), namespace: NS, rank: Rank(0), incarnation: 1 };
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(1)));
    assert_eq!(world.after(T, Input::FromParent(order)), [Action::Restart(NS, Rank(0), 1)]);
    assert_eq!(number(&world.asks(0, look_up("s"))), 1, "the reply to the first one may be under way");
    let order = Down::MoveIn { agent: AgentId(1), namespace: NS, ranks: ranks("7"), incarnation: 2 };
    assert_eq!(world.after(T, Input::FromParent(order)), [Action::Restart(NS, Rank(7), 2)]);
    assert_eq!(number(&world.asks(7, look_up("s"))), 2 << 20, "its former agent has counted them");
}

#[test]
fn the_answer_to_a_get_does_not_reach_a_later_process_of_the_rank() {
    for cache in [CachePolicy::Hcs, CachePolicy::Hcma, CachePolicy::HcmabLru { entries: 1 }] {
        let mut world = World::surviving_with(cache, FailurePolicy::RestartRank, 1);
        let get = |key: &'static str| Request::Get { key: key.into() };
        let got = |key: &str| {
            Input::FromParent(Down::Got {
                namespace: NS,
                result: LookUpResult::Entry(Entry::new(key.as_bytes(), b"v")),
            })
        };
        let asked = |key: &'static str| Action::ToParent(Up::Get { namespace: NS, key: key.into() });
        let answer = Action::Answer(NS, Rank(0), Answer::Got(Some(Bytes::from_static(b"v"))));
        assert_eq!(world.asks(0, get("a")), [asked("a")], "{cache}");
        world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(1)));
        let order = Down::Revive { agent: AgentId(1), namespace: NS, rank: Rank(0), incarnation: 1 };
        world.after(T, Input::FromParent(order));
        world.after(T, Input::Started(NS, ranks("0")));
        assert_eq!(world.asks(0, get("b")), [asked("b")], "{cache}");
        assert_eq!(world.after(T, got("a")), [], "{cache}: the former process asked for it");
        assert_eq!(world.after(T, got("b")), [answer], "{cache}");
    }
}

#[test]
fn only_the_failure_that_is_mended_is_forgotten() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    let failure = |namespace, rank| Failure::of_rank(T, AgentId(1), NamespaceId(namespace), Rank(rank), Cause::Code(1));
    world.agent.failures = vec![failure(0, 0), failure(0, 1), failure(1, 0)];
    let order = Down::Revive { agent: AgentId(1), namespace: NS, rank: Rank(0), incarnation: 1 };
    world.after(T, Input::FromParent(order));
    assert_eq!(world.agent.failures, [failure(0, 1), failure(1, 0)]);
}

#[test]
fn puts_of_a_rank_that_catches_up_are_sent_with_its_first_common_fence() {
    for (cache, is_ahead) in [(CachePolicy::Hcs, true), (CachePolicy::Hcma, false)] {
        let mut world = World::surviving_with(cache, FailurePolicy::RestartRank, 1);
        world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(1)));
        let order = Down::Revive { agent: AgentId(1), namespace: NS, rank: Rank(0), incarnation: 1 };
        world.after(T, Input::FromParent(order));
        world.after(T, Input::Started(NS, ranks("0")));
        let mut puts = Puts::new();
        puts.push(Rank(0), b"a", b"1");
        assert_eq!(world.asks(0, Request::Put { puts: puts.clone() }), [], "{cache}");
        let actions = world.asks(0, Request::Fence { puts: Puts::new(), in_segment: false });
        let ahead = Action::ToParent(Up::Put { namespace: NS, number: 0, puts });
        assert_eq!(actions.contains(&ahead), is_ahead, "{cache}: {actions:?}");
        assert_eq!(gathered(&actions), Some((&ranks("0"), usize::from(!is_ahead))), "{cache}: {actions:?}");
    }
}
