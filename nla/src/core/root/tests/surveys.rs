//! Each survey is answered, whatever the session waits for.

use super::*;
use crate::core::failure_policy::FailurePolicy;
use crate::core::limits::GATHER_WINDOW;
use crate::core::survey::Wait;

/// Asks for a survey of a session without running ranks. Returns what it waits for.
fn waits(world: &mut World, now: Time) -> Vec<Wait> {
    match &world.after(now, RootInput::Survey)[..] {
        [RootAction::Notice(Notice::Surveyed(survey, waits, _))] if **survey == Survey::default() => waits.clone(),
        actions => panic!("{actions:?}"),
    }
}

/// Asks for a survey of a session with two agents. Returns what the session waits for besides its ranks.
fn waits_beside_ranks(world: &mut World, now: Time) -> Vec<Wait> {
    world.after(now, RootInput::Survey);
    let number = world.root.surveys;
    let mut actions = world.up(now, 1, answer(number));
    actions.extend(world.up(now, 2, answer(number)));
    actions.extend(world.after(now + SURVEY_TIME, RootInput::Timeout));
    let found = actions.into_iter().find_map(|action| match action {
        RootAction::Notice(Notice::Surveyed(_, waits, _)) => Some(waits),
        _ => None,
    });
    found.expect("an answer")
}

#[test]
fn agents_that_join_and_output_that_is_written_are_waited_for() {
    let mut world = World::new(4, 2, 2);
    world.up(T, 1, Up::Ready);
    assert_eq!(waits(&mut world, T), [Wait::Agents]);
    assert_eq!(waits(&mut World::flushing(), at(60)), [Wait::Output]);
}

#[test]
fn a_restart_waits_for_agents_and_for_the_end_of_lost_ones() {
    let mut settings = settings(4, 2, 2);
    settings.tree = Subtree::whole(3, 3);
    settings.nodes = (1..=3).map(|agent| (AgentId(agent), agent)).collect();
    settings.session.on_failure = FailurePolicy::Restart;
    let mut world = World { root: Root::new(settings) };
    for child in 1..=3 {
        world.up(T, child, Up::Ready);
    }
    world.after(T, RootInput::ChildLost(AgentId(2), LossReason::Closed));
    world.after(GATHER_WINDOW, RootInput::Timeout);
    assert_eq!(waits(&mut world, GATHER_WINDOW), [Wait::Clearing(vec![AgentId(1), AgentId(3)])]);
    for child in [1, 3] {
        world.up(at(200), child, Up::Cleared { leftovers: 0 });
    }
    let until = T + world.root.session.adoption_time();
    assert_eq!(waits(&mut world, at(200)), [Wait::Restart(vec![AgentId(2)], until)]);
}

#[test]
fn ranks_that_wait_for_the_end_of_a_lost_agent_are_named() {
    let mut settings = settings(4, 2, 2);
    settings.tree = Subtree::whole(3, 3);
    settings.nodes = (1..=3).map(|agent| (AgentId(agent), agent)).collect();
    settings.session.on_failure = FailurePolicy::RestartRank;
    let mut world = World { root: Root::new(settings) };
    for child in 1..=3 {
        world.up(T, child, Up::Ready);
    }
    world.after(at(100), RootInput::ChildLost(AgentId(2), LossReason::Closed));
    let until = at(100) + world.root.session.adoption_time();
    assert_eq!(waits_beside_ranks(&mut world, at(200)), [Wait::Revival(AgentId(2), ranks("2-3"), until)]);
}

#[test]
fn dead_ranks_are_named_while_the_others_go_on() {
    let mut world = World::running();
    world.root.session.on_failure = FailurePolicy::Continue;
    assert_eq!(waits_beside_ranks(&mut world, at(3)), []);
    world.fails(at(5000), 1, 1, Cause::Code(3));
    world.up(at(5000), 1, Up::Died { namespace: NS, ranks: ranks("1") });
    let first = Failure::of_rank(at(5000), AgentId(1), NS, Rank(1), Cause::Code(3));
    assert_eq!(waits_beside_ranks(&mut world, at(6000)), [Wait::Dead(ranks("1"), Some(first))]);
}
