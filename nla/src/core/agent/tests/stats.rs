//! Statistics are reported once, as the last message, and only if the session's plan asks for them.

use pmi::Request;

use super::*;
use crate::core::message::Update;
use crate::core::reason::Violation;
use crate::core::stats::{DriverCounts, LevelStats, Stats};

fn counted(link_bytes: u64) -> Box<DriverCounts> {
    Box::new(DriverCounts { link_bytes, ..DriverCounts::default() })
}

fn stats_of_leaf() -> Box<Stats> {
    let leaf = LevelStats { members: 1, ..LevelStats::default() };
    Box::new(Stats { levels: vec![leaf], spans: Vec::new() })
}

/// Agent 1, which has no ranks and has ended. Its child, agent 2, has not reported its end.
fn ended(stats: bool) -> World {
    let mut world = World::joined(1, 2, 1);
    world.configure(stats);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    world.after(T, Input::Swept { leftovers: 0 });
    assert_eq!(
        world.after(T, Input::Drained { counted: counted(7), spans: Vec::new() }),
        [],
        "nothing is sent before Ended"
    );
    world
}

fn reported(actions: &[Action]) -> &Stats {
    let [Action::ToParent(Up::Stats(stats))] = actions else { panic!("{actions:?}") };
    stats
}

const CHILD: AgentId = AgentId(2);

#[test]
fn statistics_are_sent_after_those_of_each_child() {
    let mut world = ended(true);
    let actions = world.after(T, Input::FromChild(CHILD, Up::Ended { leftovers: 0, timing: Box::default() }));
    assert_eq!(leftovers(&actions), 0);
    let actions = world.after(T, Input::FromChild(CHILD, Up::Stats(stats_of_leaf())));
    let stats = reported(&actions);
    assert_eq!(stats.levels.iter().map(|level| level.members).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(stats.levels[0].counted, *counted(7));
    assert_eq!(world.after(T, Input::Timeout), [], "once");
    assert_eq!(world.after(T, Input::ChildLost(CHILD, LossReason::Closed)), []);
}

#[test]
fn statistics_are_sent_after_the_report_of_the_end() {
    let mut world = World::joined(1, 1, 2);
    world.configure(true);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(world.after(T, Input::Drained { counted: counted(7), spans: Vec::new() }), []);
    let actions = world.after(T, Input::Swept { leftovers: 0 });
    assert!(matches!(actions[..], [Action::ToParent(Up::Ended { .. }), Action::ToParent(Up::Stats(_))]), "{actions:?}");
}

#[test]
fn statistics_of_a_lost_child_are_not_awaited() {
    let mut world = ended(true);
    world.after(T, Input::FromChild(CHILD, Up::Ended { leftovers: 0, timing: Box::default() }));
    let actions = world.after(T, Input::ChildLost(CHILD, LossReason::Closed));
    assert_eq!(reported(&actions).members(), 1);
}

#[test]
fn statistics_are_sent_only_if_asked_for() {
    let mut world = ended(false);
    world.after(T, Input::FromChild(CHILD, Up::Ended { leftovers: 0, timing: Box::default() }));
    assert_eq!(world.after(T, Input::ChildLost(CHILD, LossReason::Closed)), []);
    // Nor are they sent after Leave.
    let mut world = ended(true);
    world.after(T, Input::FromChild(CHILD, Up::Ended { leftovers: 0, timing: Box::default() }));
    world.after(T, Input::FromParent(Down::Leave));
    assert_eq!(world.after(T, Input::FromChild(CHILD, Up::Stats(stats_of_leaf()))), []);
}

#[test]
fn a_child_with_invalid_statistics_is_cut_off() {
    for twice in [false, true] {
        let mut world = ended(true);
        world.after(T, Input::FromChild(CHILD, Up::Ended { leftovers: 0, timing: Box::default() }));
        let stats = if twice {
            world.agent.counted = None;
            world.after(T, Input::FromChild(CHILD, Up::Stats(stats_of_leaf())));
            stats_of_leaf()
        } else {
            Box::default()
        };
        let actions = world.after(T, Input::FromChild(CHILD, Up::Stats(stats)));
        assert!(
            matches!(&actions[0], Action::CloseChild(CHILD, why) if *why == Violation::Stats.into()),
            "{twice}: {actions:?}"
        );
    }
}

#[test]
fn a_fence_is_timed_from_the_last_arrival_to_the_release() {
    let mut world = World::leaf(2, "0-1");
    let fence = || Request::Fence { puts: Puts::new(), in_segment: false };
    world.after(at(1), Input::FromRank(NS, Rank(0), fence()));
    world.after(at(20), Input::FromRank(NS, Rank(1), fence()));
    let content = || ReleaseContent::Update(Update::Epoch(Epoch::default()));
    let out_of_turn = Down::Release { namespace: NS, number: 9, content: content() };
    world.after(at(25), Input::FromParent(out_of_turn));
    world.after(at(50), Input::FromParent(Down::Release { namespace: NS, number: 0, content: content() }));
    let times = world.agent.fences();
    assert_eq!((times.count(), times.min(), times.max()), (1, Some(at(30)), Some(at(30))));
}
