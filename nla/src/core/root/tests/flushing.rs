//! Output that is not read at the end.

use super::*;
use crate::core::limits::{GATHER_WINDOW, UNREAD_MARGIN};

const UNREAD_TIME: Duration = GRACE.saturating_add(UNREAD_MARGIN);

impl World {
    /// A rank has failed, and all agents have ended. The launcher has output that it cannot write.
    fn stuck() -> Self {
        let mut world = Self::running();
        world.fails(T, 1, 0, Cause::Code(3));
        world.after(GATHER_WINDOW, RootInput::Timeout);
        world.flows(at(200), 1000);
        for child in [1, 2] {
            world.up(at(300), child, Up::Ended { leftovers: 0, timing: Box::default() });
        }
        world
    }

    fn flows(&mut self, now: Time, progress: u64) -> Vec<RootAction> {
        self.after(now, RootInput::OutputFlow { progress, is_pending: true })
    }
}

#[test]
fn output_that_is_not_read_after_a_failure_is_dropped() {
    let mut world = World::stuck();
    assert_eq!(outcome(&world.after(at(199) + UNREAD_TIME, RootInput::Timeout)), None);
    let actions = world.after(at(200) + UNREAD_TIME, RootInput::Timeout);
    assert!(matches!(outcome(&actions), Some(Outcome::Failed { .. })), "{actions:?}");
    assert!(actions.contains(&RootAction::Notice(Notice::OutputDropped(UNREAD_TIME))), "{actions:?}");
    assert!(sent(&actions, 1).contains(&&Down::Leave));
}

#[test]
fn output_that_moves_slowly_after_a_failure_is_not_dropped() {
    let mut world = World::stuck();
    for turn in 1..100 {
        let now = turn * UNREAD_TIME;
        assert_eq!(outcome(&world.flows(now, 1000 + u64::from(turn))), None);
        assert_eq!(outcome(&world.after(now + UNREAD_TIME - at(1), RootInput::Timeout)), None);
    }
    world.after(at(1_000_000), RootInput::OutputFlow { progress: 2000, is_pending: false });
    assert_eq!(outcome(&world.after(at(2_000_000), RootInput::Timeout)), None, "the launcher waits for agents");
}

#[test]
fn a_reader_that_was_stopped_with_the_launcher_gets_its_time() {
    for input in [RootInput::Suspend(false), RootInput::Stopped(at(60_000))] {
        let mut world = World::stuck();
        let actions = world.after(at(60_000), input);
        assert_eq!(outcome(&actions), None);
        assert!(outcome(&world.after(at(60_000) + UNREAD_TIME, RootInput::Timeout)).is_some());
    }
}

#[test]
fn output_is_dropped_after_a_signal_and_a_time_limit() {
    for end in [RootInput::Interrupt(2), RootInput::TimeLimit(at(50))] {
        let mut world = World::running();
        world.after(T, end);
        world.flows(T, 1000);
        for child in [1, 2] {
            world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() });
        }
        assert!(outcome(&world.after(UNREAD_TIME, RootInput::Timeout)).is_some());
    }
}

#[test]
fn output_of_a_success_waits_for_its_reader() {
    let mut world = World::flushing();
    world.flows(T, 1000);
    assert_eq!(world.after(at(100_000_000), RootInput::Timeout), []);
}

#[test]
fn the_outcome_is_known_when_the_ranks_are_being_ended() {
    let mut world = World::running();
    world.fails(T, 1, 0, Cause::Code(3));
    let actions = world.after(GATHER_WINDOW, RootInput::Timeout);
    let is_known = |action: &RootAction| {
        matches!(action, RootAction::Notice(Notice::Ending(Outcome::Failed { others: 0, .. }, SIGTERM, GRACE)))
    };
    assert!(actions.iter().any(is_known), "{actions:?}");
}
