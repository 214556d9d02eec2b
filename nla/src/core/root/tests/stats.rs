//! The root waits for the statistics of agents if the session's plan asks for them.

use super::*;
use crate::core::stats::{DriverCounts, DurationHistogram, LevelStats, Stats};

fn stats_of_leaf() -> Box<Stats> {
    Box::new(Stats { levels: vec![LevelStats { members: 1, ..LevelStats::default() }], spans: Vec::new() })
}

/// All ranks have ended; their output is not all written.
fn flushed(stats: bool) -> World {
    let mut world = World::running();
    world.root.session.stats = stats;
    world.exited(1, 0, "0-1");
    world.exited(2, 0, "2-3");
    for child in [1, 2] {
        world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() });
    }
    world
}

#[test]
fn the_session_is_over_when_all_agents_have_reported() {
    let mut world = flushed(true);
    assert_eq!(outcome(&world.after(T, RootInput::OutputDone)), None);
    assert_eq!(world.up(T, 2, Up::Stats(stats_of_leaf())), []);
    assert_eq!(outcome(&world.up(T, 1, Up::Stats(stats_of_leaf()))), Some(&Outcome::Success));
    let own = DriverCounts { link_bytes: 5, ..DriverCounts::default() };
    let stats = world.root.stats(own, DurationHistogram::default());
    assert_eq!(stats.levels.iter().map(|level| level.members).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(stats.levels[0].counted, own);
}

#[test]
fn statistics_are_awaited_only_if_asked_for() {
    let mut world = flushed(false);
    assert_eq!(outcome(&world.after(T, RootInput::OutputDone)), Some(&Outcome::Success));
}

#[test]
fn statistics_of_a_lost_child_are_not_awaited() {
    let mut world = flushed(true);
    world.after(T, RootInput::OutputDone);
    world.up(T, 1, Up::Stats(stats_of_leaf()));
    let actions = world.after(T, RootInput::ChildLost(AgentId(2), LossReason::Closed));
    assert_eq!(outcome(&actions), Some(&Outcome::Success), "its ranks had ended before");
    assert_eq!(world.root.stats(DriverCounts::default(), DurationHistogram::default()).members(), 2);
}

#[test]
fn an_interrupt_ends_the_wait_for_statistics() {
    let mut world = flushed(true);
    let actions = world.after(T, RootInput::Interrupt(2));
    assert_eq!(outcome(&actions), Some(&Outcome::Interrupted { signal: 2 }));
}

#[test]
fn a_child_with_invalid_or_unasked_statistics_is_cut_off() {
    for unasked in [false, true] {
        let mut world = flushed(!unasked);
        let stats = if unasked { stats_of_leaf() } else { Box::default() };
        let actions = world.up(T, 1, Up::Stats(stats));
        assert!(matches!(&actions[0], RootAction::CloseChild(AgentId(1), _)), "{actions:?}");
        assert_eq!(world.root.stats(DriverCounts::default(), DurationHistogram::default()).members(), 1);
    }
}

#[test]
fn a_child_with_an_invalid_report_of_its_end_is_cut_off() {
    let of_other_subtree = || Box::new(Timing { agents: 9, ..Timing::default() });
    for twice in [false, true] {
        let mut world = World::running();
        world.after(T, RootInput::Interrupt(2));
        let timing = if twice { Box::default() } else { of_other_subtree() };
        if twice {
            assert_eq!(world.up(T, 1, Up::Ended { leftovers: 0, timing: Box::default() }), []);
        }
        let actions = world.up(T, 1, Up::Ended { leftovers: 0, timing });
        assert!(matches!(&actions[0], RootAction::CloseChild(AgentId(1), _)), "{actions:?}");
    }
    let mut world = World::running();
    world.after(T, RootInput::ChildLost(AgentId(1), LossReason::Closed));
    assert_eq!(world.up(T, 1, Up::Ended { leftovers: 0, timing: of_other_subtree() }), [], "it was content up before");
}

#[test]
fn the_root_knows_the_times_and_progress_that_agents_report() {
    let mut world = World::running();
    assert_eq!(world.root.progress(), RankProgress { started: 4, arrived: 0 });
    world.gather(1, 0, "0-1", &[]);
    assert_eq!(world.root.progress(), RankProgress { started: 4, arrived: 2 });
    let timing = Timing { agents: 1, ..Timing::default() };
    world.after(T, RootInput::Interrupt(2));
    world.up(T, 2, Up::Ended { leftovers: 0, timing: Box::new(timing.clone()) });
    assert_eq!(*world.root.timing(), timing);
}
