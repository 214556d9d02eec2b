//! The notices that the launcher shows to the user, and its requests to the root.

use super::*;
use crate::core::binding::{BindingNote, BindingReport, CpuSet};
use crate::core::failure_policy::FailurePolicy;
use crate::core::limits::{NAMESPACES_ENDED_MAX, SILENCE_TOLD, SILENCE_WINDOW};
use crate::core::low_limits::{LowLimit, LowLimits};

pub(super) fn notices(actions: &[RootAction]) -> Vec<&Notice> {
    let mut notices = Vec::new();
    for action in actions {
        if let RootAction::Notice(notice) = action {
            notices.push(notice);
        }
    }
    notices
}

#[test]
fn a_namespace_is_started_when_each_child_has_reported_it_once() {
    let mut world = World::new(4, 2, 2);
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Ready)));
    let started = || Up::Started { namespace: NS };
    assert_eq!(world.up(T, 2, started()), []);
    assert_eq!(world.up(T, 2, started()), []);
    assert_eq!(world.root.progress().started, 2);
    assert_eq!(world.up(T, 1, started()), [RootAction::Notice(Notice::Started(NS, 4))]);
    let mut world = World::new(6, 3, 3);
    (1..=3).for_each(|child| drop(world.up(T, child, Up::Ready)));
    for child in [3, 3, 1] {
        assert_eq!(world.up(T, child, started()), [], "child 2 has not started");
    }
}

#[test]
fn the_first_contact_is_shown_and_ends_the_silence_of_the_job() {
    let mut world = World::new(4, 2, 2);
    assert!(!world.root.is_silent(), "there is no rank yet");
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Ready)));
    assert!(world.root.is_silent());
    let contact = || Up::Contact { namespace: NS };
    assert_eq!(world.up(T, 1, contact()), [RootAction::Notice(Notice::Contact(NS))]);
    assert_eq!(world.up(T, 2, contact()), []);
    assert!(!world.root.is_silent());
}

#[test]
fn a_later_start_of_the_job_is_shown_as_the_job_and_spawned_jobs_as_what_they_are() {
    let mut settings = settings(4, 2, 2);
    settings.session.on_failure = FailurePolicy::Restart;
    let mut world = World { root: Root::new(settings) };
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Ready)));
    assert!(world.root.is_job(NS) && !world.root.is_job(NamespaceId(1)));
    world.fails(T, 1, 0, Cause::Code(3));
    world.after(crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Cleared { leftovers: 0 })));
    let job = NamespaceId(1);
    assert!(!world.root.is_job(NS) && world.root.is_job(job));
    let contact = |namespace| Up::Contact { namespace };
    assert_eq!(notices(&world.up(T, 1, contact(job))), [&Notice::Contact(NS)]);
    let command = SpawnCommand { program: b"c".to_vec(), args: Vec::new(), nprocs: 1, info: Vec::new() };
    let request = SpawnRequest { commands: vec![command], preputs: Vec::new() };
    let requester = Requester { namespace: job, ..requester(1, 0) };
    world.up(T, 1, Up::Ask { requester, request: RootRequest::Spawn(request) });
    let spawned = NamespaceId(2);
    assert_eq!(notices(&world.up(T, 2, contact(spawned))), [&Notice::Contact(spawned)]);
    // The outcome is not a notice.
    let aborted = Cause::Terminated { signal: 15 };
    let failure = Failure { namespace: job, ..Failure::of_rank(T, AgentId(1), NS, Rank(0), aborted) };
    world.up(T, 1, Up::Failed(failure));
    let Outcome::Failed { first, .. } = world.root.elected() else { panic!() };
    assert_eq!(first.namespace, NS);
}

#[test]
fn low_limits_of_agents_below_the_child_are_shown() {
    let mut world = World::running();
    let low = |agents: &str| -> LowLimits {
        vec![LowLimit { kind: 7, least: 500, most: 600, agents: ranks(agents) }].try_into().unwrap()
    };
    let actions = world.up(T, 1, Up::LowLimits(low("1-2")));
    assert_eq!(actions, [RootAction::Notice(Notice::LowLimits(low("1")))]);
    assert_eq!(world.up(T, 1, Up::LowLimits(low("2"))), []);
}

#[test]
fn an_agent_that_waits_for_the_kernel_is_named() {
    let mut world = World::running();
    let actions = world.up(T, 1, Up::Busy { agent: AgentId(1), text: "exec".into() });
    assert_eq!(actions, [RootAction::Notice(Notice::Busy(AgentId(1), "exec".into()))]);
    let second = || (AgentId(1), Rank(0), "process 7".to_owned());
    let (agent, rank, text) = second();
    let actions = world.up(T, 1, Up::SecondJoiner { agent, rank, text });
    let (agent, rank, text) = second();
    assert_eq!(actions, [RootAction::Notice(Notice::SecondJoiner(agent, rank, text))]);
}

#[test]
fn bindings_are_shown() {
    let mut world = World::running();
    let report = Box::new(BindingReport {
        note: Some(BindingNote::Shared { cpus: CpuSet::from_iter([3]) }),
        ..Default::default()
    });
    let actions = world.up(T, 1, Up::Bound { agent: AgentId(1), report: report.clone() });
    assert_eq!(actions, [RootAction::Notice(Notice::Bound(AgentId(1), report))]);
}

#[test]
fn a_stop_of_the_launcher_is_shown_if_an_agent_is_lost_soon_afterwards() {
    let long = Duration::from_secs(60);
    for (stopped, lost_after, is_shown) in [(long, 0, true), (long, 5, false), (Duration::from_secs(4), 0, false)] {
        let mut world = World::running();
        assert_eq!(notices(&world.after(long, RootInput::Stopped(stopped))), [] as [&Notice; 0]);
        let at = long + Duration::from_secs(lost_after);
        let actions = world.after(at, RootInput::ChildLost(AgentId(1), LossReason::Closed));
        let shown = notices(&actions).contains(&&Notice::Stopped(stopped));
        assert_eq!(shown, is_shown, "{stopped:?} {lost_after}: {actions:?}");
        let actions = world.after(at, RootInput::ChildLost(AgentId(2), LossReason::Closed));
        assert!(!notices(&actions).iter().any(|notice| matches!(notice, Notice::Stopped(_))), "once: {actions:?}");
    }
}

#[test]
fn silent_agents_are_shown_together_once_a_minute() {
    let s = Duration::from_secs;
    let mut world = World::new(8, 4, 2);
    for child in [1, 3] {
        world.up(T, child, Up::Ready);
    }
    for child in [1, 3] {
        world.up(T, child, Up::Started { namespace: NS });
    }
    let silent = |world: &mut World, now, child: u32| world.after(now, RootInput::ChildSilent(AgentId(child), s(20)));
    assert_eq!(notices(&silent(&mut world, s(20), 1)), [] as [&Notice; 0]);
    let deeper = world.up(s(20), 3, Up::Silent { agent: AgentId(4), time: s(21) });
    let elsewhere = world.up(s(20), 3, Up::Silent { agent: AgentId(2), time: s(21) });
    assert_eq!((notices(&deeper).len(), notices(&elsewhere).len()), (0, 0), "agent 2 is not below agent 3");
    let all = Notice::Silent(vec![(AgentId(1), s(20)), (AgentId(4), s(21))]);
    assert_eq!(notices(&world.after(s(20) + SILENCE_WINDOW, RootInput::Timeout)), [&all]);
    assert_eq!(notices(&silent(&mut world, s(30), 3)), [] as [&Notice; 0]);
    let again = s(20) + SILENCE_WINDOW + SILENCE_TOLD;
    assert_eq!(notices(&world.after(again - s(1), RootInput::Timeout)), [] as [&Notice; 0]);
    assert_eq!(notices(&world.after(again, RootInput::Timeout)), [&Notice::Silent(vec![(AgentId(3), s(20))])]);
}

#[test]
fn a_silent_agent_whose_machine_answers_may_take_longer_to_end() {
    let s = Duration::from_secs;
    for is_silent in [false, true] {
        let mut world = World::running();
        for (child, ranks) in [(1, "0-1"), (2, "2-3")] {
            world.exited(child, 0, ranks);
        }
        world.up(at(60), 1, Up::Ended { leftovers: 0, timing: Box::default() });
        if is_silent {
            world.after(s(20), RootInput::ChildSilent(AgentId(2), s(20)));
        }
        let actions = world.after(s(80), RootInput::Timeout);
        let is_lost = notices(&actions).iter().any(|notice| matches!(notice, Notice::Failure(_)));
        assert_eq!(is_lost, !is_silent, "{actions:?}");
        if is_silent {
            world.up(s(81), 2, Up::Ended { leftovers: 0, timing: Box::default() });
            assert!(matches!(world.root.phase, Phase::Flushing { outcome: Outcome::Success }));
        }
    }
}

#[test]
fn no_deadline_counts_time_in_which_the_launcher_did_not_run() {
    let stop = Duration::from_secs(100);
    for (stopped, is_lost) in [(false, true), (true, false)] {
        let mut world = World::running();
        world.after(T, RootInput::Interrupt(2));
        if stopped {
            world.after(T + stop, RootInput::Stopped(stop));
        }
        let actions = world.after(T + stop, RootInput::Timeout);
        let lost =
            notices(&actions).iter().any(|notice| matches!(notice, Notice::Failure(failure) if failure.is_loss()));
        assert_eq!(lost, is_lost, "{actions:?}");
    }
}

#[test]
fn only_the_end_of_a_failed_session_is_announced_and_no_leftovers_are_not() {
    let mut world = World::running();
    let ended = |actions: &[RootAction]| {
        notices(actions).iter().any(|notice| matches!(notice, Notice::Ending(Outcome::Interrupted { .. }, 2, GRACE)))
    };
    assert!(ended(&world.after(T, RootInput::Interrupt(2))));
    let mut world = World::running();
    world.exited(1, 0, "0-1");
    assert_eq!(notices(&world.exited(2, 0, "2-3")), [&Notice::RanksEnded]);
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() })));
    assert_eq!(notices(&world.after(T, RootInput::OutputDone)), [] as [&Notice; 0]);
}

#[test]
fn output_lost_while_ranks_run_ends_the_session() {
    let mut world = World::running();
    assert!(matches!(sent(&world.after(T, RootInput::OutputLost), 1)[..], [Down::End { .. }]));
    let mut world = World::flushing();
    assert_eq!(world.after(T, RootInput::OutputLost), [], "it is ending already");
}

#[test]
fn the_end_of_an_agent_while_ranks_are_ended_ends_the_session() {
    let mut settings = settings(4, 2, 2);
    settings.session.on_failure = FailurePolicy::Restart;
    let mut world = World { root: Root::new(settings) };
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Ready)));
    world.fails(T, 1, 0, Cause::Code(3));
    world.after(crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    world.up(at(200), 2, Up::Failed(Failure::of_agent(at(200), AgentId(2), Cause::Terminated { signal: 15 })));
    assert!(matches!(sent(&world.after(at(300), RootInput::Timeout), 1)[..], [Down::End { .. }]));
}

#[test]
fn a_lost_spare_ends_a_session_that_cannot_do_without_its_agents() {
    let mut settings = settings(4, 2, 2);
    settings.tree = Subtree::whole(3, 3);
    settings.nodes = (1..=3).map(|agent| (AgentId(agent), agent)).collect();
    settings.session.on_failure = FailurePolicy::Restart;
    settings.session.has_ports = false;
    let mut world = World { root: Root::new(settings) };
    (1..=3).for_each(|child| drop(world.up(T, child, Up::Ready)));
    world.after(T, RootInput::ChildLost(AgentId(3), LossReason::Closed));
    let actions = world.after(crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
}

#[test]
fn a_fence_is_not_surveyed_while_a_survey_is_under_way() {
    let mut world = World::running();
    world.root.stuck_after = Some(Duration::from_secs(10));
    world.up(T, 1, Up::Contact { namespace: NS });
    world.up(at(1000), 1, Up::Waiting { namespace: NS, number: 0 });
    assert_eq!(world.root.next_survey(), Some((at(11_000), SurveyCause::Stuck)));
    world.after(at(2000), RootInput::Survey);
    assert_eq!(world.root.next_survey(), None);
    let mut world = World::running();
    world.root.stuck_after = Some(Duration::from_secs(10));
    world.up(T, 1, Up::Contact { namespace: NS });
    world.up(at(1000), 1, Up::Waiting { namespace: NS, number: 0 });
    world.after(at(2000), RootInput::TimeLimit(at(2000)));
    assert_eq!(world.root.next_survey(), None, "the session ends");
}

#[test]
fn a_rank_that_ends_unfinished_after_another_was_reported_has_its_own_time() {
    let mut world = World::running();
    world.root.session.on_failure = FailurePolicy::Continue;
    let exited = |set| Up::Exited { namespace: NS, fences: 0, unfinished: true, ranks: ranks(set) };
    world.up(T, 1, exited("0"));
    let is_shown = |actions: &[RootAction]| matches!(notices(actions)[..], [Notice::Failure(_), Notice::GoesOn(_)]);
    assert!(is_shown(&world.after(at(2000), RootInput::Timeout)));
    assert_eq!(world.up(at(3000), 1, exited("1")), [RootAction::WakeAt(at(5000))]);
    assert!(is_shown(&world.after(at(5000), RootInput::Timeout)));
}

#[test]
fn the_first_of_many_spawned_jobs_that_have_ended_is_forgotten() {
    let mut world = World::running();
    let ends = |world: &mut World, id: u32| {
        let namespace = NamespaceId(id);
        // Both agents have ranks.
        spawn(world, 2);
        for (child, set) in [(1, "0"), (2, "1")] {
            world.up(T, child, Up::Started { namespace });
            world.up(T, child, Up::Exited { namespace, fences: 0, unfinished: false, ranks: ranks(set) });
        }
        world.root.namespaces.contains_key(&NamespaceId(1))
    };
    for id in 1..=NAMESPACES_ENDED_MAX as u32 {
        assert!(ends(&mut world, id), "namespace {id}");
    }
    assert!(!ends(&mut world, NAMESPACES_ENDED_MAX as u32 + 1));
    assert_eq!(world.root.namespaces.len(), 1 + NAMESPACES_ENDED_MAX);
    assert!(world.root.is_forgotten(NamespaceId(1)) && !world.root.is_forgotten(NamespaceId(2)));
    assert!(!world.root.is_forgotten(NamespaceId(world.root.made)), "it was not launched yet");
}

#[test]
fn spawned_jobs_that_run_are_not_forgotten() {
    let mut world = World::running();
    for count in 1..=NAMESPACES_ENDED_MAX + 1 {
        spawn(&mut world, 2);
        assert_eq!(world.root.namespaces.len(), 1 + count);
    }
}

#[test]
fn only_the_replies_to_a_forgotten_job_are_forgotten_with_it() {
    let mut world = World::running();
    for namespace in [0, 1] {
        world.root.answered.insert((AgentId(1), NamespaceId(namespace), Rank(0)), (0, None));
    }
    spawn(&mut world, 2);
    world.root.forget(NamespaceId(1));
    assert_eq!(world.root.answered.keys().collect::<Vec<_>>(), [&(AgentId(1), NS, Rank(0))]);
}

#[test]
fn a_spawned_job_ends_when_it_was_answered_and_all_its_ranks_have_ended() {
    let mut world = World::running();
    spawn(&mut world, 2);
    let namespace = NamespaceId(1);
    let has_ended = |world: &World| world.root.namespaces[&namespace].has_ended();
    let exited = |set| Up::Exited { namespace, fences: 0, unfinished: false, ranks: ranks(set) };
    world.up(T, 1, exited("0"));
    world.up(T, 2, exited("1"));
    assert!(!has_ended(&world), "the spawn was not answered");
    [1, 2].into_iter().for_each(|child| drop(world.up(T, child, Up::Started { namespace })));
    assert!(has_ended(&world));
    assert!(!world.root.namespaces[&NS].has_ended(), "its ranks run");
}

#[test]
fn no_agent_is_asked_how_far_its_ranks_are_when_none_is_left() {
    let actions = World::flushing().after(T, RootInput::Survey);
    assert!(matches!(actions[..], [RootAction::Notice(Notice::Surveyed(..))]), "{actions:?}");
}

#[test]
fn agents_with_ranks_that_do_not_start_for_the_same_reason_are_found() {
    let mut world = World::running();
    let low = |max: u32| Cause::NotStarted { why: NotStartedReason::Reported(format!("ulimit -u allows {max}")) };
    world.fails(at(10), 1, 0, low(9));
    world.fails(at(11), 2, 2, low(9));
    world.fails(at(12), 2, 3, low(8));
    let actions = world.after(at(110), RootInput::Timeout);
    let elected = actions.iter().find_map(|action| match action {
        RootAction::Notice(Notice::Ending(Outcome::Failed { first, others: 2 }, ..)) => Some(first),
        _ => None,
    });
    let first = elected.unwrap_or_else(|| panic!("{actions:?}"));
    assert_eq!((first.agent, world.root.failed_alike(first)), (AgentId(1), vec![AgentId(2)]));
    let mut world = World::running();
    world.fails(at(10), 1, 0, Cause::Code(1));
    world.fails(at(11), 2, 2, Cause::Code(1));
    let first = Failure::of_rank(at(10), AgentId(1), NS, Rank(0), Cause::Code(1));
    assert_eq!(world.root.failed_alike(&first), [], "a consequence may look like its cause");
}
