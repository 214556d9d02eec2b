//! The session's files: they are reported once the whole subtree has them.

use super::*;
use crate::core::stage::{StagePlan, StagedFile, StagedKind};

impl World {
    /// Gives the agent a session's plan with a file.
    fn begin_staging(&mut self) -> Vec<Action> {
        let file = StagedFile { kind: StagedKind::File, name: b"data".to_vec(), bytes: 9, is_executable: false };
        let session =
            SessionPlan { stage: StagePlan::new(vec![file], Vec::new(), None).unwrap(), ..World::session(false) };
        self.after(T, Input::FromParent(Down::Session(Box::new(session))))
    }
}

#[test]
fn a_subtree_has_the_files_when_this_agent_and_its_children_do() {
    for own_is_first in [true, false] {
        let mut world = World::joined(1, 9, 3); // 1 (2, 3)
        let actions = world.begin_staging();
        let is_begin = |action: &Action| matches!(action, Action::ToChild(_, Down::Session(_)) | Action::Configure(_));
        assert!(actions.len() == 3 && actions.iter().all(is_begin), "{actions:?}");
        let own = || Input::Staged;
        let child = |id| Input::FromChild(AgentId(id), Up::Staged);
        let inputs = if own_is_first { [own(), child(2), child(3)] } else { [child(3), child(2), own()] };
        let [first, second, last] = inputs;
        assert_eq!(world.after(T, first), []);
        assert_eq!(world.after(T, second), []);
        assert_eq!(world.after(T, last), [Action::ToParent(Up::Staged)]);
        assert_eq!(world.after(T, Input::Staged), [], "once");
    }
}

#[test]
fn a_file_that_cannot_be_stored_is_a_failure_of_the_agent() {
    let mut world = World::joined(1, 1, 2);
    world.begin_staging();
    let actions = world.after(T, Input::NotStaged("'data' is\ndamaged".to_owned()));
    let cause = Cause::NotStaged { why: "'data' is\\ndamaged".to_owned() };
    assert_eq!(actions, [Action::ToParent(Up::Failed(Failure::of_agent(T, AgentId(1), cause)))]);
}

#[test]
fn a_session_without_files_is_not_reported() {
    let mut world = World::joined(1, 2, 2);
    world.configure(false);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), Up::Staged)), []);
    assert_eq!(world.after(T, Input::Staged), []);
}
