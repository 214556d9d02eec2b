//! The session's files: no rank starts before all agents have them.

use super::*;
use crate::core::stage::{StagePlan, StagedFile, StagedKind};

impl World {
    /// Two agents below the root with two ranks each, which have joined and get a file.
    fn staging() -> Self {
        Self::staging_under(crate::core::FailurePolicy::Abort)
    }

    fn staging_under(on_failure: crate::core::FailurePolicy) -> Self {
        let mut settings = settings(4, 2, 2);
        let file = StagedFile { kind: StagedKind::File, name: b"data".to_vec(), bytes: 9, is_executable: false };
        settings.session.stage = StagePlan::new(vec![file], Vec::new(), None).unwrap();
        settings.session.on_failure = on_failure;
        let mut world = Self { root: Root::new(settings) };
        world.up(T, 1, Up::Ready);
        let actions = world.up(T, 2, Up::Ready);
        let sessions = actions.iter().filter(|one| matches!(one, RootAction::ToChild(_, Down::Session(_)))).count();
        assert_eq!((sessions, launches(&actions)), (2, 0));
        assert!(actions.contains(&RootAction::Notice(Notice::Joined)));
        world
    }
}

fn launches(actions: &[RootAction]) -> usize {
    actions.iter().filter(|action| matches!(action, RootAction::ToChild(_, Down::Launch(_)))).count()
}

#[test]
fn ranks_start_when_all_agents_have_the_files() {
    let mut world = World::staging();
    // Staging takes as long as it takes.
    assert_eq!(world.after(T + 10 * JOIN_TIME, RootInput::Timeout), []);
    assert_eq!(world.up(T, 1, Up::Staged), []);
    assert_eq!(world.up(T, 1, Up::Staged), [], "one child counts once");
    let actions = world.up(T, 2, Up::Staged);
    assert_eq!(launches(&actions), 2);
    assert_eq!(actions[0], RootAction::Notice(Notice::Staged));
    assert_eq!(launches(&world.up(T, 2, Up::Staged)), 0);
}

#[test]
fn files_that_are_reported_before_the_join_do_not_count() {
    let mut world = World::new(4, 2, 2);
    assert_eq!(launches(&world.up(T, 1, Up::Staged)), 0);
    world.up(T, 2, Up::Ready);
    assert!(matches!(world.root.phase, Phase::Joining { .. }));
}

/// Checks that the session ends in failure, without a rank, under any policy.
fn check_end(input: impl Fn() -> RootInput, agent: u32, expected: &Cause) {
    use crate::core::FailurePolicy::{Abort, Continue, Restart, RestartRank};
    for policy in [Abort, Continue, Restart, RestartRank] {
        let mut world = World::staging_under(policy);
        world.up(T, 1, Up::Staged);
        let mut actions = world.after(T, input());
        actions.extend(world.after(T + GRACE, RootInput::Timeout));
        assert_eq!(launches(&actions), 0, "{policy:?}");
        assert!(actions.contains(&RootAction::ToChild(AgentId(1), Down::Leave)), "{policy:?}: {actions:?}");
        let Some(Outcome::Failed { first, others: 0 }) = outcome(&actions) else { panic!("{policy:?}: {actions:?}") };
        assert_eq!((first.agent, &first.cause), (AgentId(agent), expected), "{policy:?}");
    }
}

#[test]
fn a_file_that_cannot_be_stored_or_sent_ends_the_session_under_any_policy() {
    let cause = || Cause::NotStaged { why: "'data' is damaged".to_owned() };
    let stored = || RootInput::FromChild(AgentId(2), Up::Failed(Failure::of_agent(T, AgentId(2), cause())));
    check_end(stored, 2, &cause());
    check_end(|| RootInput::NotStaged("'data' is damaged".to_owned()), 0, &cause());
}

#[test]
fn an_agent_that_is_lost_while_files_travel_ends_the_session_under_any_policy() {
    check_end(|| RootInput::ChildLost(AgentId(2), LossReason::Closed), 2, &Cause::Lost { why: LossReason::Closed });
}

#[test]
fn a_signal_ends_staging() {
    let mut world = World::staging();
    let actions = world.after(T, RootInput::Interrupt(SIGTERM));
    assert_eq!(outcome(&actions), Some(&Outcome::Interrupted { signal: SIGTERM }));
    assert!(actions.contains(&RootAction::ToChild(AgentId(2), Down::Leave)));
}

#[test]
fn a_survey_names_the_children_that_lack_files() {
    let mut world = World::staging();
    world.up(T, 1, Up::Staged);
    let waits = vec![Wait::Files(vec![AgentId(2)])];
    let expected = RootAction::Notice(Notice::Surveyed(Box::default(), waits, SurveyCause::Asked));
    assert_eq!(world.after(T, RootInput::Survey), [expected]);
}
