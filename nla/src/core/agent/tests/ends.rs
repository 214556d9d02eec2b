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
