//! Reports of children that are passed on, and the times at which reports are due.

use super::*;
use crate::core::limits::UNFINALIZED_TIME;
use crate::core::low_limits::{LowLimit, LowLimits};
use crate::core::plan::PmixPlan;

#[test]
fn a_look_up_at_or_after_a_deadline_does_not_delay_what_is_due() {
    for late in [250, 251] {
        let mut world = World::leaf(2, "0-1");
        assert_eq!(world.fence(T, 0, "a"), [Action::WakeAt(at(250))]);
        let get = Input::FromRank(NS, Rank(1), Request::Get { key: Bytes::from_static(b"k") });
        let actions = world.after(at(late), get);
        assert!(actions.contains(&Action::ToParent(Up::Waiting { namespace: NS, number: 0 })), "{actions:?}");
    }
}

#[test]
fn an_earlier_deadline_replaces_a_later_one() {
    let mut world = World::leaf(3, "0-2");
    assert_eq!(world.fence(T, 0, "a"), [Action::WakeAt(at(250))]);
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(1), Exit::Code(0))), [Action::WakeAt(at(20))]);
}

#[test]
fn a_childs_message_for_the_launcher_is_passed_on() {
    let mut world = World::inner();
    let ask = Up::Ask { requester: requester(2, 2), request: RootRequest::Lookup { service: b"s".to_vec() } };
    let busy = Up::Busy { agent: AgentId(3), text: "exec".into() };
    let bound = Up::Bound { agent: AgentId(3), report: Box::default() };
    let silent = Up::Silent { agent: AgentId(3), time: Duration::from_secs(20) };
    let second = Up::SecondJoiner { agent: AgentId(3), rank: Rank(2), text: "process 7".into() };
    for message in [ask, busy, bound, silent, second] {
        assert_eq!(world.after(T, Input::FromChild(AgentId(2), message.clone())), [Action::ToParent(message)]);
    }
}

#[test]
fn a_silent_child_is_reported() {
    let time = Duration::from_secs(20);
    let report = Action::ToParent(Up::Silent { agent: AgentId(2), time });
    assert_eq!(World::inner().after(T, Input::ChildSilent(AgentId(2), time)), [report]);
}

fn low(kind: u32, limit: u64, agents: &str) -> LowLimits {
    vec![LowLimit { kind, least: limit, most: limit, agents: ranks(agents) }].try_into().unwrap()
}

#[test]
fn low_limits_of_a_subtree_are_reported_together_when_its_ranks_have_started() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(2, &[(1, "0"), (2, "1")])))));
    assert_eq!(world.after(T, Input::LowLimits(vec![(7, 500)])), []);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), Up::LowLimits(low(7, 500, "2-9")))), []);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), Up::Started { namespace: NS })), []);
    let limits = Action::ToParent(Up::LowLimits(low(7, 500, "1-2")));
    let started = Action::ToParent(Up::Started { namespace: NS });
    assert_eq!(world.after(T, Input::Started(NS, ranks("0"))), [limits, started]);
    // An agent that starts its first ranks later.
    let late = Up::LowLimits(low(3, 8, "2"));
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), late.clone())), [Action::ToParent(late)]);
    let elsewhere = Up::LowLimits(low(3, 8, "1"));
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), elsewhere)), [], "the child has no such agent");
}

#[test]
fn low_limits_are_repeated_to_another_parent() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    world.after(T, Input::LowLimits(vec![(7, 500)]));
    world.agent.is_orphaned = true;
    let actions = world.after(T, Input::Rejoined);
    assert!(actions.contains(&Action::ToParent(Up::LowLimits(low(7, 500, "1")))), "{actions:?}");
}

#[test]
fn the_first_contact_and_a_slow_fence_of_a_subtree_are_reported_once() {
    for message in [Up::Contact { namespace: NS }, Up::Waiting { namespace: NS, number: 0 }] {
        let mut world = World::inner();
        let input = || Input::FromChild(AgentId(2), message.clone());
        assert_eq!(world.after(T, input()), [Action::ToParent(message.clone())]);
        assert_eq!(world.after(T, input()), []);
    }
    let mut world = World::inner();
    assert_eq!(world.asks(0, Request::Joined), [Action::ToParent(Up::Contact { namespace: NS })]);
    assert_eq!(world.asks(1, Request::Joined), []);
}

#[test]
fn an_end_without_finalize_is_reported_as_unfinished() {
    for is_finalized in [false, true] {
        let mut world = World::leaf(1, "0");
        world.asks(0, Request::Joined);
        if is_finalized {
            world.asks(0, Request::Finalized);
        }
        let exited = Up::Exited { namespace: NS, fences: 0, unfinished: !is_finalized, ranks: ranks("0") };
        let actions = world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
        assert_eq!(actions, [Action::ToParent(exited)]);
    }
}

impl World {
    /// An agent with three ranks that PMIx serves.
    fn by_pmix(on_failure: FailurePolicy) -> Self {
        let mut world = Self::joined(1, 1, 2);
        let pmix = Some(PmixPlan { library: Vec::new(), secret: String::new(), hosts: vec!["n".to_owned()] });
        let session = SessionPlan { pmix, on_failure, ..Self::session(false) };
        world.after(T, Input::FromParent(Down::Session(Box::new(session))));
        world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-2")])))));
        world.after(T, Input::Started(NS, ranks("0-2")));
        world
    }
}

/// libpmix lets no rank of the node pass a fence without it, and reports no such fence.
#[test]
fn an_end_without_joining_pmix_is_reported_while_others_are_in_it() {
    const LATE: u64 = UNFINALIZED_TIME.as_millis() as u64;
    let is_reported = |actions: &[Action]| {
        let cause = Cause::Unjoined;
        let failure = Failure { at: at(LATE), agent: AgentId(1), namespace: NS, ranks: ranks("1"), cause };
        actions.contains(&Action::ToParent(Up::Failed(failure)))
    };
    for exit in [Exit::Code(0), Exit::Signal { signal: 9, core: false, out_of_memory: String::new() }] {
        let mut world = World::by_pmix(FailurePolicy::Continue);
        world.after(T, Input::RankEnded(NS, Rank(1), exit));
        assert!(!is_reported(&world.after(at(LATE), Input::Timeout)), "none has joined PMIx");
        world.asks(0, Request::Joined);
        world.asks(0, Request::Finalized);
        assert!(!is_reported(&world.after(at(LATE), Input::Timeout)), "the only one has finalized it");
        world.asks(2, Request::Joined);
        assert!(!is_reported(&world.after(at(LATE - 1), Input::Timeout)), "it is early");
        assert!(is_reported(&world.after(at(LATE), Input::Timeout)));
        assert!(!is_reported(&world.after(at(LATE), Input::Timeout)), "once");
    }
}

/// The agent may reap a process before it reads that the rank has joined.
#[test]
fn a_rank_that_has_joined_pmix_just_before_its_end_is_not_missing() {
    let mut world = World::by_pmix(FailurePolicy::Continue);
    world.asks(0, Request::Joined);
    world
        .after(T, Input::RankEnded(NS, Rank(1), Exit::Signal { signal: 9, core: false, out_of_memory: String::new() }));
    world.asks(1, Request::Joined);
    let actions = world.after(T + 2 * UNFINALIZED_TIME, Input::Timeout);
    let is_failure = |action: &Action| matches!(action, Action::ToParent(Up::Failed(_)));
    assert!(!actions.iter().any(is_failure), "{actions:?}");
}

/// A time in the past would wake the agent again and again.
#[test]
fn an_agent_that_ends_its_ranks_waits_for_no_rank_to_join_pmix() {
    let mut world = World::by_pmix(FailurePolicy::Abort);
    world.asks(0, Request::Joined);
    world.after(T, Input::RankEnded(NS, Rank(1), Exit::Code(3)));
    let grace = 2 * UNFINALIZED_TIME;
    world.after(at(1), Input::FromParent(Down::End { signal: 15, grace }));
    let due = T + UNFINALIZED_TIME + Duration::from_millis(1);
    let actions = world.after(due, Input::Timeout);
    let is_past = |action: &Action| matches!(action, Action::WakeAt(at) if *at <= due);
    assert!(!actions.iter().any(is_past), "{actions:?}");
}

#[test]
fn failures_and_leftovers_of_a_child_are_added_to_the_own_ones() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromChild(AgentId(2), Up::FailedMore { count: 3 }));
    let actions = world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert!(actions.contains(&Action::ToParent(Up::FailedMore { count: 3 })), "{actions:?}");
    let mut timing = crate::core::timing::AgentTimes::new(AgentId(2)).report();
    timing.phases.clear();
    world.after(T, Input::FromChild(AgentId(2), Up::Ended { leftovers: 2, timing: Box::new(timing) }));
    assert_eq!(leftovers(&world.after(T, Input::Swept { leftovers: 1 })), 3);
}

#[test]
fn a_repeated_end_signals_no_rank_again_but_a_shorter_grace_does() {
    let mut world = World::leaf(1, "0");
    let end = |grace| Input::FromParent(Down::End { signal: 15, grace: Duration::from_secs(grace) });
    world.after(T, end(5));
    assert_eq!(world.after(T, end(5)), []);
    assert_eq!(world.after(T, end(4))[0], Action::Signal(NS, ranks("0"), 15));
}

#[test]
fn an_order_to_end_all_ranks_counts_once_and_not_while_the_session_ends() {
    let clear = || Input::FromParent(Down::Clear { signal: 15, grace: Duration::from_secs(5) });
    let mut world = World::leaf(1, "0");
    assert!(world.after(T, clear()).contains(&Action::CancelStarts));
    assert_eq!(world.after(T, clear()), []);
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::from_secs(5) }));
    assert_eq!(world.after(T, clear()), []);
}

#[test]
fn only_what_concerns_a_forgotten_namespace_is_forgotten_with_it() {
    let mut world = World::leaf(1, "0");
    let failure = |namespace| Failure::of_rank(T, AgentId(1), NamespaceId(namespace), Rank(0), Cause::Code(1));
    world.agent.failures = vec![failure(0), failure(1)];
    for namespace in [0, 1] {
        let requester = Requester { namespace: NamespaceId(namespace), ..requester(1, 0) };
        let ask = Up::Ask { requester, request: RootRequest::Lookup { service: b"s".to_vec() } };
        world.agent.requests.insert((AgentId(1), NamespaceId(namespace), Rank(0)), ask);
    }
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    let actions = world.after(T, Input::FromParent(Down::Forget { namespace: NS }));
    assert_eq!(actions.last(), Some(&Action::Forget(NS)), "{actions:?}");
    assert_eq!(world.agent.failures, [failure(1)]);
    assert_eq!(world.agent.requests.keys().map(|(_, namespace, _)| namespace.0).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_survey_is_answered_with_its_number() {
    let mut world = World::joined(1, 1, 1);
    let actions = world.after(T, Input::FromParent(Down::Survey { number: 7, within: Duration::from_secs(1) }));
    assert_eq!(actions, [Action::ToParent(Up::Surveyed { number: 7, survey: Box::default() })]);
}

#[test]
fn an_inquiry_of_a_child_about_a_forgotten_namespace_is_ignored() {
    let mut world = World::inner();
    let inquire = |namespace| {
        let requester = Requester { namespace, ..requester(3, 4) };
        let kind = crate::core::message::InquiryKind::NodeForget;
        Up::Inquire(crate::core::message::Inquiry { to: AgentId(1), requester, kind })
    };
    [0, 1].into_iter().for_each(|rank| drop(world.after(T, Input::RankEnded(NS, Rank(rank), Exit::Code(0)))));
    world.after(T, Input::FromParent(Down::Forget { namespace: NS }));
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), inquire(NS))), []);
    let actions = world.after(T, Input::FromChild(AgentId(2), inquire(NamespaceId(1))));
    assert!(matches!(actions[0], Action::CloseChild(AgentId(2), _)), "it was not launched yet: {actions:?}");
}
