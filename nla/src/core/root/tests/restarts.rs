//! All ranks start again after a failure.

use super::*;
use crate::core::failure_policy::FailurePolicy;

impl World {
    /// Two agents below the root with two ranks each, all started, in a session that may restart them so often.
    fn restarting(max: u32) -> Self {
        let mut settings = settings(4, 2, 2);
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
}

#[test]
fn a_job_that_succeeds_after_a_restart_is_a_success() {
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Abort { code: 1, message: String::new() });
    // Consequences of the failure.
    assert_eq!(world.fails(T, 2, 2, Cause::Signal { signal: 15, core: false, out_of_memory: false }), []);
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
    assert!(actions.contains(&RootAction::Notice(Notice::Leftovers(1))));
}

#[test]
fn failures_that_are_not_of_ranks_end_the_session() {
    for cause in [Cause::NotStarted { why: not_found() }, Cause::Terminated { signal: 15 }] {
        let mut world = World::restarting(1);
        let actions = world.fails_in(0, cause);
        assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    }
}

#[test]
fn an_agent_lost_while_ranks_are_ended_ends_the_session() {
    let mut world = World::restarting(1);
    world.fails_in(0, Cause::Code(3));
    world.up(T, 1, Up::Cleared { leftovers: 0 });
    world.after(at(200), RootInput::ChildLost(AgentId(2), LossReason::Closed));
    let actions = world.after(at(400), RootInput::Timeout);
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    assert_eq!(world.up(at(500), 2, Up::Cleared { leftovers: 0 }), [], "it is too late");
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
