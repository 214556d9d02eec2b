//! The session goes on after the death of a rank.

use super::*;
use crate::core::failure_policy::FailurePolicy;
use crate::core::heritage::Heritage;
use crate::core::limits::LEFT_TIME;
use crate::core::reason::Violation;

const SEGV: Cause = Cause::Signal { signal: 11, core: false, out_of_memory: String::new() };

impl World {
    /// Two agents below the root with two ranks each, all started, in a session that goes on.
    fn going_on() -> Self {
        let mut world = Self::running();
        world.root.session.on_failure = FailurePolicy::Continue;
        world
    }

    fn died(&mut self, now: Time, child: u32, set: &str) -> Vec<RootAction> {
        self.up(now, child, Up::Died { namespace: NS, ranks: ranks(set) })
    }
}

fn died(set: &str) -> Down {
    Down::Died { namespace: NS, ranks: ranks(set) }
}

fn releases(actions: &[RootAction], child: u32) -> Vec<&ReleaseContent> {
    let mut contents = Vec::new();
    for message in sent(actions, child) {
        if let Down::Release { content, .. } = message {
            contents.push(content);
        }
    }
    contents
}

#[test]
fn all_agents_learn_of_a_death_and_the_session_goes_on() {
    let mut world = World::going_on();
    let failed = world.fails(at(5), 1, 0, SEGV);
    let is_noted =
        matches!(failed[..], [RootAction::Notice(Notice::Failure(_)), RootAction::Notice(Notice::GoesOn(_))]);
    assert!(is_noted, "{failed:?}");
    let actions = world.died(at(5), 1, "0");
    for child in [1, 2] {
        assert_eq!(sent(&actions, child), [&died("0")]);
    }
    assert_eq!(world.died(at(6), 1, "0"), [], "a repeated report changes nothing");
    assert!(are_wakes(&world.after(at(1000), RootInput::Timeout)));
}

#[test]
fn the_end_code_is_that_of_the_first_cause() {
    let mut world = World::going_on();
    world.fails(at(5), 1, 0, Cause::Code(3));
    world.died(at(5), 1, "0");
    // Not a consequence of the first failure, but one of its own: the first one still counts.
    world.fails(at(5000), 2, 2, SEGV);
    world.died(at(5000), 2, "2");
    world.exited(1, 0, "1");
    let actions = world.exited(2, 0, "3");
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    for child in [1, 2] {
        world.up(at(6000), child, Up::Ended { leftovers: 0, timing: Box::default() });
    }
    let actions = world.after(at(6000), RootInput::OutputDone);
    let Some(Outcome::Survived { first, others: 1, dead }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!((&first.cause, &first.ranks), (&Cause::Code(3), &ranks("0")));
    assert_eq!(dead, &ranks("0,2"));
}

#[test]
fn deaths_are_reported_when_a_signal_or_a_time_limit_ends_the_session() {
    for end in [RootInput::Interrupt(15), RootInput::TimeLimit(at(50)), RootInput::OutputLost] {
        let mut world = World::going_on();
        world.fails(at(5), 1, 0, SEGV);
        world.died(at(5), 1, "0");
        world.fails(at(500), 2, 2, Cause::Code(3));
        let actions = world.after(at(1000), end);
        let RootAction::Notice(Notice::WentOn(Outcome::Survived { first, others: 1, dead })) = &actions[0] else {
            panic!("{actions:?}")
        };
        assert_eq!((&first.cause, dead), (&SEGV, &ranks("0")));
    }
    let actions = World::going_on().after(T, RootInput::Interrupt(15));
    assert!(!actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::WentOn(_)))), "{actions:?}");
}

#[test]
fn no_other_rank_goes_on_when_the_last_one_has_died() {
    let mut world = World::going_on();
    let is_noted =
        |actions: &[RootAction]| actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::GoesOn(_))));
    world.exited(1, 0, "0-1");
    assert!(is_noted(&world.fails(at(5), 2, 2, SEGV)));
    world.died(at(5), 2, "2");
    assert!(!is_noted(&world.fails(at(6), 2, 3, SEGV)));
    let mut world = World::going_on();
    world.exited(1, 0, "0-1");
    assert!(!is_noted(&world.after(at(5), RootInput::ChildLost(AgentId(2), LossReason::Closed))));
}

#[test]
fn a_consequence_reported_first_is_not_the_first_cause() {
    let mut world = World::going_on();
    world.fails(at(5), 1, 0, Cause::Code(1));
    world.fails(at(30), 2, 3, SEGV);
    let Outcome::Failed { first, .. } = world.root.elected() else { panic!() };
    assert_eq!(first.cause, SEGV);
}

#[test]
fn a_fence_fails_if_a_rank_died_before_its_first_one() {
    let mut world = World::going_on();
    assert!(are_wakes(&world.gather(1, 0, "0-1", &[(0, "k", "v")])));
    assert_eq!(releases(&world.died(T, 2, "3"), 1).len(), 0, "rank 2 is missing");
    let actions = world.gather(2, 0, "2", &[]);
    for child in [1, 2] {
        let [ReleaseContent::Failed(Update::Epoch(epoch))] = releases(&actions, child)[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(epoch.len(), 1, "the entries of the others are visible");
    }
    world.gather(1, 1, "0-1", &[]);
    let actions = world.gather(2, 1, "2", &[]);
    assert!(matches!(releases(&actions, 1)[..], [ReleaseContent::Update(_)]), "later a death counts as arrival");
}

#[test]
fn a_death_in_a_later_fence_counts_as_arrival() {
    let mut world = World::going_on();
    world.gather(1, 0, "0-1", &[]);
    world.gather(2, 0, "2-3", &[]);
    world.gather(1, 1, "0-1", &[]);
    let actions = world.died(T, 2, "2-3");
    assert_eq!(sent(&actions, 2)[0], &died("2-3"), "the release is behind the report");
    assert!(matches!(releases(&actions, 2)[..], [ReleaseContent::Update(_)]), "{actions:?}");
}

#[test]
fn agents_learn_of_a_death_before_the_release_of_a_contribution_without_the_rank() {
    let mut world = World::going_on();
    world.gather(1, 0, "0-1", &[]);
    let actions = world.gather(2, 0, "2", &[]);
    assert!(matches!(sent(&actions, 1)[..], [Down::Died { .. }, Down::Release { .. }]), "{actions:?}");
    assert_eq!(world.died(T, 2, "3"), []);
}

#[test]
fn a_ring_with_a_gap_fails() {
    let mut world = World::going_on();
    world.gather(1, 0, "0-1", &[]);
    world.gather(2, 0, "2-3", &[]);
    world.died(T, 2, "3");
    let part = |count| Contribution::Ring(RingSegment { count, to_left: Vec::new(), to_right: Vec::new() });
    let gathered = |set, contribution| Up::Gathered { namespace: NS, number: 1, ranks: ranks(set), contribution };
    world.up(T, 1, gathered("0-1", part(2)));
    let actions = world.up(T, 2, gathered("2", part(1)));
    assert!(matches!(releases(&actions, 1)[..], [ReleaseContent::Failed(_)]), "{actions:?}");
}

#[test]
fn a_rank_that_exited_early_counts_as_dead() {
    let mut world = World::going_on();
    world.exited(1, 0, "0");
    let actions = world.gather(2, 0, "2-3", &[]);
    assert!(matches!(actions[0], RootAction::Notice(Notice::Failure(_))), "{actions:?}");
    assert_eq!(sent(&actions, 2), [&died("0")]);
    let actions = world.gather(1, 0, "1", &[]);
    assert!(matches!(releases(&actions, 1)[..], [ReleaseContent::Failed(_)]), "{actions:?}");
    world.exited(1, 1, "1");
    assert!(matches!(sent(&world.exited(2, 1, "2-3"), 1)[..], [Down::End { .. }]));
}

#[test]
fn a_repeated_report_of_an_early_exit_sets_no_deadline() {
    let mut world = World::going_on();
    let exited = || Up::Exited { namespace: NS, fences: 0, unfinished: true, ranks: ranks("0") };
    world.up(at(50), 1, exited());
    let actions = world.after(at(2050), RootInput::Timeout);
    assert_eq!(sent(&actions, 2), [&died("0")]);
    // Its agent has joined again.
    assert_eq!(world.up(at(3000), 1, exited()), []);
    let note_at = RootAction::WakeAt(at(50) + LEFT_TIME);
    assert_eq!(world.after(at(5000), RootInput::Timeout), [note_at], "the launcher would wake up again and again");
}

#[test]
fn some_failures_end_every_session() {
    let aborted = Cause::Abort { code: 3, message: String::new() };
    let not_started = Cause::NotStarted { why: not_found() };
    for cause in [aborted, not_started, Cause::Terminated { signal: 15 }] {
        let mut world = World::going_on();
        let actions = world.fails(T, 1, 0, cause.clone());
        assert!(
            matches!(actions[1..], [RootAction::WakeAt(crate::core::limits::GATHER_WINDOW)]),
            "{cause:?}: {actions:?}"
        );
    }
}

#[test]
fn an_interrupt_after_a_death_is_an_interrupt() {
    let mut world = World::going_on();
    world.fails(T, 1, 0, SEGV);
    world.died(T, 1, "0");
    world.after(at(1), RootInput::Interrupt(2));
    for child in [1, 2] {
        world.up(at(2), child, Up::Ended { leftovers: 0, timing: Box::default() });
    }
    let actions = world.after(at(2), RootInput::OutputDone);
    assert_eq!(outcome(&actions), Some(&Outcome::Interrupted { signal: 2 }));
}

#[test]
fn a_child_that_reports_a_death_it_may_not_report_is_cut_off() {
    for (policy, set) in [(FailurePolicy::Continue, "0,2"), (FailurePolicy::Abort, "0")] {
        let mut world = World::running();
        world.root.session.on_failure = policy;
        let actions = world.died(T, 1, set);
        let RootAction::CloseChild(AgentId(1), why) = &actions[0] else { panic!("{actions:?}") };
        assert!(why.to_string().contains("which is not allowed"), "{why}");
    }
}

#[test]
fn an_agent_that_joins_after_it_was_given_up_ends_its_ranks() {
    // 0 - 1 (2)
    let mut world = World::new(4, 2, 1);
    world.root.session.on_failure = FailurePolicy::Continue;
    world.up(T, 1, Up::Ready);
    world.up(T, 1, Up::Started { namespace: NS });
    world.after(T, RootInput::ChildLost(AgentId(1), LossReason::Closed));
    world.after(world.root.session.adoption_time(), RootInput::Timeout);
    let late = world.root.session.adoption_time() + at(1000);
    assert_eq!(world.after(late, RootInput::ChildJoined(AgentId(2))), []);
    let actions = world.up(late, 2, Up::Rejoined { has_plan: true, fences: open(&[(NS, 0)]) });
    assert_eq!(actions, [RootAction::ToChild(AgentId(2), Down::End { signal: SIGKILL, grace: Duration::ZERO })]);
    for report in [Up::Ready, Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("2-3") }] {
        assert_eq!(world.up(late, 2, report), [], "its ranks count as dead");
    }
    let actions = world.up(late, 2, Up::Ended { leftovers: 0, timing: Box::default() });
    assert_eq!(actions, [RootAction::CloseChild(AgentId(2), Violation::Late.into())]);
}

#[test]
fn agents_below_several_lost_ones_join_and_the_loss_of_those_between_is_known_by_that() {
    // 0 - 1 - 2 - 3 - 4
    let mut world = World::new(5, 4, 1);
    world.root.session.on_failure = FailurePolicy::Continue;
    world.up(T, 1, Up::Ready);
    world.up(T, 1, Up::Started { namespace: NS });
    let tree = world.root.tree;
    let below = |agent: u32| tree.of(AgentId(agent)).unwrap();
    let actions = world.after(T, RootInput::ChildLost(AgentId(1), LossReason::Closed));
    assert!(actions.contains(&RootAction::Adopt(vec![below(1).head_alone(), below(2)])), "{actions:?}");
    let actions = world.after(T, RootInput::ChildJoined(AgentId(4)));
    let lost: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            RootAction::Notice(Notice::Failure(Failure { agent, cause: Cause::Lost { why }, .. })) => {
                Some((*agent, why))
            }
            _ => None,
        })
        .collect();
    let why = LossReason::LostBy(AgentId(4));
    assert_eq!(lost, [(AgentId(2), &why), (AgentId(3), &why)]);
    assert!(!world.root.children.is_lost(AgentId(4)) && world.root.children.reachable().eq([AgentId(4)]));
    // Agent 2 was only slow. It ends its ranks.
    world.after(T, RootInput::ChildJoined(AgentId(2)));
    let actions = world.up(T, 2, Up::Rejoined { has_plan: true, fences: open(&[(NS, 0)]) });
    assert!(matches!(actions[..], [RootAction::ToChild(AgentId(2), Down::End { signal: SIGKILL, .. })]), "{actions:?}");
}

#[test]
fn an_agent_below_one_that_is_not_lost_cannot_join() {
    // 0 - 1 - 2
    let mut world = World::new(3, 2, 1);
    world.root.session.on_failure = FailurePolicy::Continue;
    world.up(T, 1, Up::Ready);
    let actions = world.after(T, RootInput::ChildJoined(AgentId(2)));
    assert_eq!(actions, [RootAction::CloseChild(AgentId(2), Violation::Unawaited.into())]);
}

#[test]
fn a_launcher_that_was_stopped_does_not_wait_for_agents_that_have_given_it_up() {
    const LOST_AT: Duration = Duration::from_secs(50);
    let lost = |child: AgentId| RootInput::ChildLost(child, LossReason::Closed);
    for (stopped, is_first) in [(false, true), (true, true), (true, false)] {
        // 0 - 1 (2), 3 (4)
        let mut world = World::new(8, 4, 2);
        world.root.session.on_failure = FailurePolicy::Continue;
        let children: Vec<_> = world.root.tree.children().map(|child| child.head()).collect();
        assert_eq!(children, [AgentId(1), AgentId(3)]);
        children.iter().for_each(|child| drop(world.up(T, child.0, Up::Ready)));
        children.iter().for_each(|child| drop(world.up(T, child.0, Up::Started { namespace: NS })));
        // The launcher may notice the losses before or after it notices that it was stopped.
        let mut inputs: Vec<_> = children.iter().map(|child| lost(*child)).collect();
        if stopped {
            inputs.insert(if is_first { 0 } else { 2 }, RootInput::Stopped(LOST_AT));
        }
        inputs.into_iter().for_each(|input| drop(world.after(LOST_AT, input)));
        let SessionPlan { dead_time, .. } = world.root.session;
        let wait = if stopped { dead_time } else { world.root.session.adoption_time() };
        assert_eq!(world.root.children.orphan_deadline(), Some(LOST_AT + wait), "{stopped} {is_first}");
        // Later losses have other causes.
        assert_eq!(world.root.heritage(LOST_AT + wait), Heritage::of(&world.root.session));
    }
}

#[test]
fn agents_below_a_lost_one_whose_processes_have_ended_are_not_waited_for() {
    for is_known_before in [false, true] {
        // 0 - 1 - 2 - 3
        let mut world = World::new(4, 3, 1);
        world.root.session.on_failure = FailurePolicy::Continue;
        world.up(T, 1, Up::Ready);
        world.up(T, 1, Up::Started { namespace: NS });
        let mut inputs: Vec<_> = [2, 3].map(|agent| RootInput::AgentEnded(AgentId(agent))).into();
        let at_which = if is_known_before { 2 } else { 0 };
        inputs.insert(at_which, RootInput::ChildLost(AgentId(1), LossReason::Closed));
        let actions = inputs.into_iter().flat_map(|input| world.after(at(1000), input)).collect::<Vec<_>>();
        assert!(matches!(world.root.phase, Phase::Flushing { .. }), "{is_known_before}: {actions:?}");
        let actions = world.after(at(1000), RootInput::OutputDone);
        assert!(matches!(outcome(&actions), Some(Outcome::Survived { others: 2, .. })), "{actions:?}");
    }
}

fn guardian() -> GuardianAt {
    GuardianAt { machine: 1, guardian: (4711, 5), agent: (4712, 6) }
}

fn ended_guardians(actions: &[RootAction]) -> Vec<u32> {
    let ended = |action: &RootAction| if let RootAction::EndGuardian(agent) = action { Some(agent.0) } else { None };
    actions.iter().filter_map(ended).collect()
}

/// The agents below a lost one may join another; only when they are late, they are lost too.
#[test]
fn the_guardian_of_a_lost_agent_is_ended_once_and_those_of_agents_that_may_join_again_are_not() {
    for policy in [FailurePolicy::Continue, FailurePolicy::Restart, FailurePolicy::RestartRank] {
        let mut world = World::new(7, 7, 2);
        world.root.session.on_failure = policy;
        for child in [1, 4] {
            world.up(T, child, Up::Ready);
        }
        for child in [1, 4] {
            world.up(T, child, Up::Started { namespace: NS });
        }
        let lost = |world: &mut World| world.after(at(5), RootInput::ChildLost(AgentId(1), LossReason::Closed));
        assert_eq!(ended_guardians(&lost(&mut world)), [1], "{policy:?}");
        assert_eq!(ended_guardians(&lost(&mut world)), [], "{policy:?}");
        let again = at(5) + world.root.session.rejoin_time();
        world.after(at(6), RootInput::ChildJoined(AgentId(2)));
        assert_eq!(ended_guardians(&world.after(again, RootInput::Timeout)), [1], "others may have joined: {policy:?}");
        let late = world.after(at(100_000), RootInput::Timeout);
        assert_eq!(ended_guardians(&late), [3], "{policy:?}");
    }
}

#[test]
fn the_guardian_of_a_lost_agent_is_ended_if_the_session_ends() {
    let mut world = World::running();
    let actions = world.after(at(5), RootInput::ChildLost(AgentId(2), LossReason::Closed));
    assert_eq!(ended_guardians(&actions), [2]);
}

#[test]
fn an_agent_without_a_guardian_gives_its_ranks_their_grace_before_they_are_ended_from_outside() {
    let reported = |world: &mut World| {
        // As the message is decoded.
        let cause = Cause::Lost { why: LossReason::Reported(LossReason::GuardianLost.to_string()) };
        world.up(at(5), 1, Up::Failed(Failure::of_agent(at(5), AgentId(1), cause)))
    };
    let mut world = World::running();
    assert_eq!(ended_guardians(&reported(&mut world)), []);
    world.after(at(200), RootInput::Timeout);
    let late = world.after(at(5) + GRACE + crate::core::limits::END_MARGIN, RootInput::Timeout);
    assert_eq!(ended_guardians(&late), [1]);
    let mut world = World::running();
    reported(&mut world);
    let lost = world.after(at(6), RootInput::ChildLost(AgentId(1), LossReason::Closed));
    assert_eq!(ended_guardians(&lost), [1], "it was killed as well");
    // If the session goes on, the agent kills its ranks at once.
    let mut world = World::going_on();
    assert_eq!(ended_guardians(&reported(&mut world)), [1]);
}

#[test]
fn without_ports_the_guardians_below_a_lost_agent_are_ended_too() {
    let mut world = World::new(7, 7, 2);
    world.root.session.has_ports = false;
    for child in [1, 4] {
        world.up(T, child, Up::Ready);
    }
    let actions = world.after(at(5), RootInput::ChildLost(AgentId(1), LossReason::Closed));
    assert_eq!(ended_guardians(&actions), [1, 2, 3]);
}

#[test]
fn agents_on_the_machine_of_a_lost_one_end_its_guardian() {
    let mut world = World::new(20, 20, 20);
    world.root.session.on_failure = FailurePolicy::Continue;
    for child in 1..=20 {
        world.up(T, child, Up::Ready);
    }
    for lost in [3, 4] {
        world.after(at(5), RootInput::ChildLost(AgentId(lost), LossReason::Closed));
    }
    let neighbours = (1..=20).filter(|agent| *agent != 3).map(AgentId).collect();
    let actions = world.after(at(6), RootInput::Neighbours { lost: AgentId(3), guardian: guardian(), neighbours });
    let order = |agent| Down::EndNeighbour { agent: AgentId(agent), lost: AgentId(3), guardian: guardian() };
    let told: Vec<u32> = (1..=20).filter(|agent| sent(&actions, *agent).contains(&&order(*agent))).collect();
    assert_eq!(told, [1, 2, 5, 6, 7, 8, 9, 10], "as many as may be told, and no lost one");
    assert_eq!(told.len(), crate::core::limits::NEIGHBOURS_MAX);
}
