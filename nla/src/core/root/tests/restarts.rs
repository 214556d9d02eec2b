//! All ranks start again after a failure.

use super::*;
use crate::core::failure_policy::FailurePolicy;

impl World {
    /// Two agents below the root with two ranks each, all started, in a session that may restart them so often. Each
    /// agent is on a node of its own.
    fn restarting(max: u32) -> Self {
        let mut settings = settings(4, 2, 2);
        settings.nodes = [(AgentId(1), 0), (AgentId(2), 1)].into_iter().collect();
        settings.session.on_failure = FailurePolicy::Restart;
        settings.max_restarts = max;
        let mut world = Self { root: Root::new(settings) };
        for child in [1, 2] {
            world.up(T, child, Up::Ready);
        }
        world
    }

    /// A rank of namespace `id` fails, and the window for further failures ends.
    fn fails_in(&mut self, id: u32, cause: Cause) -> Vec<RootAction> {
        let failure = Failure { namespace: NamespaceId(id), ..Failure::of_rank(T, AgentId(1), NS, Rank(0), cause) };
        self.up(T, 1, Up::Failed(failure));
        self.after(crate::core::limits::GATHER_WINDOW, RootInput::Timeout)
    }

    /// All agents report that no rank is left. Returns the actions after the last report.
    fn cleared(&mut self) -> Vec<RootAction> {
        assert_eq!(self.up(T, 1, Up::Cleared { leftovers: 1 }), []);
        self.up(T, 2, Up::Cleared { leftovers: 0 })
    }
}

fn launched(actions: &[RootAction], child: u32) -> &NamespacePlan {
    match sent(actions, child)[..] {
        [Down::Launch(plan)] => plan,
        _ => panic!("{actions:?}"),
    }
}

#[test]
fn all_ranks_start_again_once_none_is_left() {
    let mut world = World::restarting(2);
    for restart in 1..=2 {
        let actions = world.fails_in(restart - 1, Cause::Code(3));
        for child in [1, 2] {
            assert_eq!(sent(&actions, child), [&Down::Clear { signal: 15, grace: GRACE }]);
        }
        let RootAction::Notice(Notice::Restarting { first, number, of: 2, .. }) = &actions[0] else {
            panic!("{actions:?}")
        };
        assert_eq!((first.namespace, *number), (NS, restart), "the user knows one job");
        let actions = world.cleared();
        let plan = launched(&actions, 1);
        assert_eq!((plan.id, plan.kvsname.as_str()), (NamespaceId(restart), format!("scela-77_{restart}").as_str()));
        let variable = (b"SCELA_INCARNATION".to_vec(), restart.to_string().into_bytes());
        assert_eq!(plan.commands[0].set, [variable]);
    }
    let actions = world.fails_in(2, Cause::Code(3));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "no restart is left: {actions:?}");
    assert!(actions.contains(&RootAction::Notice(Notice::NoRestartLeft(2))), "{actions:?}");
}

#[test]
fn a_job_that_succeeds_after_a_restart_is_a_success() {
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Abort { code: 1, message: String::new() });
    // Consequences of the failure.
    assert_eq!(world.fails(T, 2, 2, Cause::Signal { signal: 15, core: false, out_of_memory: String::new() }), []);
    world.cleared();
    for (child, set) in [(1, "0-1"), (2, "2-3")] {
        let exited = Up::Exited { namespace: NamespaceId(1), fences: 0, unfinished: false, ranks: ranks(set) };
        world.up(T, child, exited);
    }
    for child in [1, 2] {
        world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() });
    }
    let actions = world.after(T, RootInput::OutputDone);
    assert_eq!(outcome(&actions), Some(&Outcome::Success));
    assert!(actions.contains(&RootAction::Notice(Notice::Leftovers(1, Vec::new(), GRACE))));
}

#[test]
fn failures_that_are_not_of_ranks_end_the_session() {
    for cause in [Cause::NotStarted { why: not_found() }, Cause::Terminated { signal: 15 }] {
        let mut world = World::restarting(1);
        let actions = world.fails_in(0, cause);
        assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
        assert!(!actions.contains(&RootAction::Notice(Notice::NoRestartLeft(1))), "{actions:?}");
    }
}

#[test]
fn the_loss_of_an_agent_ends_the_session_if_no_other_can_take_over_its_ranks() {
    let lost = || RootInput::ChildLost(AgentId(2), LossReason::Closed);
    let is_refused = |actions: &[RootAction]| {
        assert!(matches!(sent(actions, 1)[..], [Down::End { .. }]), "{actions:?}");
        assert!(actions.contains(&RootAction::Notice(Notice::NoSpare)), "{actions:?}");
    };
    let mut world = World::restarting(1);
    world.after(T, lost());
    is_refused(&world.after(crate::core::limits::GATHER_WINDOW, RootInput::Timeout));
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Code(3));
    world.up(T, 1, Up::Cleared { leftovers: 0 });
    is_refused(&world.after(at(200), lost()));
    assert_eq!(world.up(at(500), 2, Up::Cleared { leftovers: 0 }), [], "it is too late");
}

impl World {
    /// Three agents, each on a node of its own, of which the first two have ranks. None is ready.
    fn three_agents(policy: FailurePolicy, fanout: u32) -> Self {
        let mut settings = settings(4, 2, 2);
        settings.tree = Subtree::whole(3, fanout);
        settings.nodes = (1..=3).map(|agent| (AgentId(agent), agent)).collect();
        settings.session.on_failure = policy;
        Self { root: Root::new(settings) }
    }

    /// The same, all below the root and ready.
    fn with_spare(policy: FailurePolicy) -> Self {
        let mut world = Self::three_agents(policy, 3);
        for child in 1..=3 {
            world.up(T, child, Up::Ready);
        }
        world
    }
}

#[test]
fn a_spare_takes_over_the_ranks_of_a_lost_agent_once_these_have_ended() {
    const DEAD_TIME: Duration = Duration::from_secs(5);
    let mut world = World::with_spare(FailurePolicy::Restart);
    let lost_at = Duration::from_secs(50);
    world.after(lost_at, RootInput::ChildLost(AgentId(2), LossReason::Closed));
    let actions = world.after(lost_at + crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    for (child, messages) in [(1, 1), (2, 0), (3, 1)] {
        assert_eq!(sent(&actions, child).len(), messages, "{actions:?}");
    }
    let cleared_at = lost_at + Duration::from_secs(1);
    world.up(cleared_at, 1, Up::Cleared { leftovers: 0 });
    let actions = world.up(cleared_at, 3, Up::Cleared { leftovers: 0 });
    assert_eq!(actions, [], "the ranks of the lost agent may still run");
    let limit = lost_at + world.root.session.adoption_time();
    assert!(limit > lost_at + 3 * DEAD_TIME, "the agent tries to join, gives up, and kills its ranks");
    let early = world.after(limit - at(1), RootInput::Timeout);
    assert!(matches!(early[..], [RootAction::EndGuardian(AgentId(2)), RootAction::WakeAt(_)]), "it may still run them");
    let actions = world.after(limit, RootInput::Timeout);
    let placement = vec![(AgentId(1), ranks("0-1")), (AgentId(3), ranks("2-3"))];
    assert!(actions.contains(&RootAction::Notice(Notice::Moved(placement))), "{actions:?}");
    assert_eq!(launched(&actions, 1).placement, [(AgentId(1), ranks("0-1"))]);
    assert_eq!(launched(&actions, 3).placement, [(AgentId(3), ranks("2-3"))]);
    assert_eq!(sent(&actions, 2).len(), 0);
}

/// It gets the order with what it has missed. A second one would meet the ranks of the restart.
#[test]
fn an_agent_that_has_just_joined_again_is_ordered_once_to_end_its_ranks() {
    let mut world = World::three_agents(FailurePolicy::Restart, 1);
    world.up(T, 1, Up::Ready);
    world.after(T, RootInput::ChildLost(AgentId(1), LossReason::Closed));
    world.after(T, RootInput::ChildJoined(AgentId(2)));
    let actions = world.after(T + crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    assert!(matches!(world.root.phase, Phase::Restarting { .. }));
    assert_eq!(sent(&actions, 2), [] as [&Down; 0]);
    let actions = world.up(at(200), 2, Up::Rejoined { has_plan: true, fences: Vec::new() });
    assert!(matches!(sent(&actions, 2)[..], [Down::Clear { .. }]), "{actions:?}");
}

/// The longest time that the ranks of a lost agent may run on, as the user reads it.
fn announced(actions: &[RootAction]) -> Option<Duration> {
    actions.iter().find_map(|action| match action {
        RootAction::Notice(Notice::Restarting { wait, .. } | Notice::Reviving { wait, .. }) => Some(*wait),
        _ => None,
    })
}

#[test]
fn ranks_that_have_ended_for_certain_are_not_waited_for() {
    let lost_at = Duration::from_secs(50);
    let gathered = lost_at + crate::core::limits::GATHER_WINDOW;
    let lost = || RootInput::ChildLost(AgentId(2), LossReason::Closed);
    let ended = || RootInput::AgentEnded(AgentId(2));
    for inputs in [vec![lost(), ended()], vec![ended(), lost()], vec![lost()]] {
        let is_known = inputs.len() == 2;
        let mut world = World::with_spare(FailurePolicy::Restart);
        inputs.into_iter().for_each(|input| drop(world.after(lost_at, input)));
        let actions = world.after(gathered, RootInput::Timeout);
        let wait = world.root.session.adoption_time() - crate::core::limits::GATHER_WINDOW;
        assert_eq!(announced(&actions), Some(if is_known { Duration::ZERO } else { wait }));
        world.up(gathered, 1, Up::Cleared { leftovers: 0 });
        let actions = world.up(gathered, 3, Up::Cleared { leftovers: 0 });
        assert_eq!(sent(&actions, 3).len(), usize::from(is_known), "{actions:?}");
    }
}

#[test]
fn a_guardian_reaped_during_the_wait_ends_the_wait() {
    let lost_at = Duration::from_secs(50);
    let mut world = World::with_spare(FailurePolicy::Restart);
    world.after(lost_at, RootInput::ChildLost(AgentId(2), LossReason::Closed));
    world.after(lost_at + crate::core::limits::GATHER_WINDOW, RootInput::Timeout);
    let cleared_at = lost_at + Duration::from_secs(1);
    world.up(cleared_at, 1, Up::Cleared { leftovers: 0 });
    world.up(cleared_at, 3, Up::Cleared { leftovers: 0 });
    assert_eq!(sent(&world.after(cleared_at, RootInput::AgentEnded(AgentId(3))), 3).len(), 0, "another one");
    assert_eq!(sent(&world.after(cleared_at, RootInput::AgentEnded(AgentId(2))), 3).len(), 1);
}

#[test]
fn ranks_move_as_soon_as_their_agent_has_ended_for_certain() {
    let lost_at = Duration::from_secs(50);
    let lost = || RootInput::ChildLost(AgentId(2), LossReason::Closed);
    let ended = || RootInput::AgentEnded(AgentId(2));
    let moves = |actions: &[RootAction]| matches!(sent(actions, 3)[..], [Down::MoveIn { agent: AgentId(3), .. }]);
    let mut world = World::with_spare(FailurePolicy::RestartRank);
    let actions = world.after(lost_at, lost());
    assert_eq!(announced(&actions), Some(world.root.session.adoption_time()));
    assert!(!moves(&actions), "it may still run them: {actions:?}");
    assert!(moves(&world.after(lost_at + at(1), ended())));
    let mut world = World::with_spare(FailurePolicy::RestartRank);
    world.after(lost_at, ended());
    let actions = world.after(lost_at, lost());
    assert_eq!((announced(&actions), moves(&actions)), (Some(Duration::ZERO), true), "{actions:?}");
}

#[test]
fn the_loss_of_a_spare_ends_nothing() {
    for policy in [FailurePolicy::Restart, FailurePolicy::RestartRank] {
        for ends_first in [false, true] {
            let mut world = World::with_spare(policy);
            let end = |world: &mut World| {
                world.exited(1, 0, "0-1");
                world.exited(2, 0, "2-3");
            };
            if ends_first {
                end(&mut world);
            }
            let actions = world.after(T, RootInput::ChildLost(AgentId(3), LossReason::Closed));
            let is_notice = |action: &RootAction| matches!(action, RootAction::Notice(Notice::Failure(_)));
            assert!(actions.iter().any(is_notice), "{actions:?}");
            if !ends_first {
                assert!(matches!(world.after(at(500), RootInput::Timeout)[..], [RootAction::WakeAt(_)]));
                end(&mut world);
            }
            for child in [1, 2] {
                world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() });
            }
            let actions = world.after(T, RootInput::OutputDone);
            assert_eq!(outcome(&actions), Some(&Outcome::Success), "{policy:?}, {ends_first}");
        }
    }
}

#[test]
fn an_agent_that_does_not_end_its_ranks_for_a_restart_is_lost() {
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Code(3));
    world.up(T, 1, Up::Cleared { leftovers: 0 });
    let late = crate::core::limits::GATHER_WINDOW + GRACE + END_MARGIN;
    let actions = world.after(late, RootInput::Timeout);
    assert!(
        actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(f)) if f.agent == AgentId(2))),
        "{actions:?}"
    );
}

#[test]
fn an_interrupt_while_ranks_are_ended_ends_the_session() {
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Code(3));
    let actions = world.after(at(150), RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: 2, .. }]), "{actions:?}");
}
