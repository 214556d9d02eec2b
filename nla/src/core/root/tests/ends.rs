//! The end of the session: reports of it, signals, and the loss of agents meanwhile.

use super::*;
use crate::core::failure_policy::FailurePolicy;
use crate::core::reason::Violation;

fn ended() -> Up {
    Up::Ended { leftovers: 0, timing: Box::default() }
}

fn is_cut_off(actions: &[RootAction], child: u32) -> bool {
    actions.contains(&RootAction::CloseChild(AgentId(child), Violation::Ended.into()))
}

#[test]
fn a_child_that_reports_its_end_before_it_was_told_to_end_is_lost() {
    for policy in FailurePolicy::ALL {
        let mut world = World::running();
        world.root.session.on_failure = policy;
        let actions = world.up(T, 2, ended());
        assert!(is_cut_off(&actions, 2), "{policy:?}: {actions:?}");
        assert!(world.root.children.is_lost(AgentId(2)));
        // The link closes after the end of its output.
        world.after(at(1), RootInput::ChildLost(AgentId(2), LossReason::Closed));
        assert!(world.root.wake_at.is_some(), "{policy:?}: the session ends, or waits until the ranks have ended");
    }
}

#[test]
fn a_child_that_reports_its_end_before_the_launch_is_lost() {
    let mut world = World::new(4, 2, 2);
    assert!(is_cut_off(&world.up(T, 1, ended()), 1));
    assert_eq!(sent(&world.up(T, 2, Up::Ready), 2), [] as [&Down; 0]);
}

#[test]
fn a_child_that_breaks_the_protocol_after_its_end_is_no_success() {
    let mut world = World::flushing();
    assert!(is_cut_off(&world.up(T, 2, ended()), 2), "it had reported its end before");
    let actions = world.after(T, RootInput::OutputDone);
    assert!(matches!(outcome(&actions), Some(Outcome::Failed { others: 0, .. })), "{actions:?}");
}

#[test]
fn only_ctrl_c_drops_the_output_of_a_session_that_has_failed() {
    for (signal, drops) in [(15, false), (1, false), (2, true)] {
        let mut world = World::running();
        world.after(T, RootInput::Interrupt(15));
        for child in [1, 2] {
            world.up(T, child, ended());
        }
        assert!(matches!(world.root.phase, Phase::Flushing { .. }));
        let actions = world.after(T, RootInput::Interrupt(signal));
        assert_eq!(outcome(&actions), drops.then_some(&Outcome::Interrupted { signal: 15 }), "{signal}");
    }
    let actions = World::flushing().after(T, RootInput::Interrupt(15));
    assert_eq!(outcome(&actions), Some(&Outcome::Interrupted { signal: 15 }), "after a success, nothing else ends it");
}

/// The launcher ends the processes of a lost agent, so a child may report only the loss of agents below it.
#[test]
fn a_child_cannot_have_agents_ended_that_are_not_below_it() {
    for policy in FailurePolicy::ALL {
        let mut world = World::running();
        world.root.session.on_failure = policy;
        let lost = |agent| Failure::of_agent(T, AgentId(agent), Cause::Lost { why: LossReason::Closed });
        for agent in [0, 2, 99] {
            assert_eq!(world.up(T, 1, Up::Failed(lost(agent))), [], "{policy:?}: {agent}");
        }
        let ends = |actions: &[RootAction]| actions.contains(&RootAction::EndGuardian(AgentId(1)));
        assert!(ends(&world.up(T, 1, Up::Failed(lost(1)))), "{policy:?}");
        assert!(!ends(&world.up(T, 1, Up::Failed(lost(1)))), "{policy:?}: once");
    }
}

#[test]
fn a_repeated_request_to_end_leaves_the_ranks_their_grace() {
    const INT: i32 = 2;
    const TERM: i32 = 15;
    const HUP: i32 = 1;
    let is_kill = |actions: &[RootAction]| matches!(sent(actions, 1)[..], [Down::End { signal: SIGKILL, .. }]);
    for (signals, kills) in [
        (&[TERM, TERM][..], false),
        (&[TERM, HUP, HUP], false),
        (&[INT, TERM, HUP], false),
        (&[TERM, INT], false),
        (&[TERM, INT, INT], true),
        (&[INT, TERM, INT], true),
    ] {
        let mut world = World::running();
        let mut last = Vec::new();
        for signal in signals {
            last = world.after(T, RootInput::Interrupt(*signal));
        }
        assert_eq!(is_kill(&last), kills, "{signals:?}: {last:?}");
        let Phase::Ending { until, .. } = world.root.phase else { panic!("{signals:?}") };
        assert_eq!(until, if kills { END_MARGIN } else { GRACE + END_MARGIN });
    }
}
