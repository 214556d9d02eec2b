//! The end of the session at an agent: signals to its ranks, and the reports of its children.

use super::*;
use crate::core::reason::Violation;

#[test]
fn a_child_that_reports_its_end_before_it_was_told_to_end_is_lost() {
    for policy in FailurePolicy::ALL {
        let mut world = World::inner();
        world.agent.on_failure = policy;
        let actions = world.after(T, Input::FromChild(AgentId(2), Up::Ended { leftovers: 0, timing: Box::default() }));
        let close = Action::CloseChild(AgentId(2), Violation::Ended.into());
        let loss = Cause::Lost { why: Violation::Ended.into() };
        assert_eq!(actions[0], close, "{policy:?}");
        assert_eq!(failures(&actions), [&loss], "{policy:?}");
        assert!(world.agent.children.is_lost(AgentId(2)));
    }
}

/// The signals to the ranks, in order.
fn signals(actions: &[Action]) -> Vec<i32> {
    let signal = |action: &Action| if let Action::Signal(_, _, signal) = action { Some(*signal) } else { None };
    actions.iter().filter_map(signal).collect()
}

#[test]
fn ranks_that_something_else_has_stopped_are_continued_when_they_are_to_end() {
    const TERM: i32 = 15;
    let end = |signal| Input::FromParent(Down::End { signal, grace: at(1000) });
    let clear = Input::FromParent(Down::Clear { signal: TERM, grace: at(1000) });
    for order in [end(TERM), clear] {
        let mut world = World::leaf(2, "0-1");
        assert_eq!(signals(&world.after(T, order)), [TERM, SIGCONT]);
        assert_eq!(signals(&world.after(at(1000), Input::Timeout)), [SIGKILL]);
    }
    let mut world = World::leaf(2, "0-1");
    assert_eq!(signals(&world.after(T, end(SIGKILL))), [SIGKILL]);
    let mut world = World::leaf(2, "0-1");
    world.after(T, Input::FromParent(Down::Suspend));
    assert_eq!(signals(&world.after(T, end(TERM))), [TERM, SIGCONT], "once");
    // The debugger that has stopped a rank may want it to stay stopped.
    let mut world = World::leaf(2, "0-1");
    assert_eq!(signals(&world.after(T, Input::FromParent(Down::Signal { signal: 10 }))), [10]);
}
