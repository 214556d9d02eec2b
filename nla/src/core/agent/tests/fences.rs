//! Rings, and ranks that mix fences and rings.

use super::*;
use crate::core::ring::{RingPosition, RingSegment};

fn segment(count: u32, to_left: &str, to_right: &str) -> Contribution {
    Contribution::Ring(RingSegment { count, to_left: to_left.into(), to_right: to_right.into() })
}

fn gathered_message(set: &str, contribution: Contribution) -> Up {
    Up::Gathered { namespace: NS, number: 0, ranks: ranks(set), contribution }
}

fn position(position: u32, from_left: &str, from_right: &str) -> RingPosition {
    RingPosition { position, from_left: from_left.into(), from_right: from_right.into() }
}

fn ring_release(number: u32, position: RingPosition) -> Down {
    Down::Release { namespace: NS, number, content: ReleaseContent::Ring(position) }
}

fn ring_answer(rank: u32, position: u32, from_left: &str, from_right: &str) -> Action {
    let (from_left, from_right) = (from_left.into(), from_right.into());
    Action::Answer(NS, Rank(rank), Answer::Ring { position, from_left, from_right })
}

#[test]
fn a_ring_goes_up_as_one_segment_and_down_as_positions() {
    let mut world = World::inner();
    assert_eq!(world.ring(1), [Action::WakeAt(at(250))]);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), gathered_message("2-4", segment(3, "c<", ">c")))), []);
    assert_eq!(world.ring(0), [Action::ToParent(gathered_message("0-4", segment(5, "0<", ">c")))]);
    assert_eq!(
        world.after(T, Input::FromParent(ring_release(0, position(0, "left", "right")))),
        [
            Action::ToChild(AgentId(2), ring_release(0, position(2, ">1", "right"))),
            ring_answer(0, 0, "left", "1<"),
            ring_answer(1, 1, ">0", "c<"),
        ]
    );
    assert_eq!(gathered(&world.fence(T, 0, "a")), None);
    assert_eq!(world.agent.namespaces[&NS].exchange.fence.number(), 1, "the next one may be a fence");
}

#[test]
fn a_rank_that_ended_in_a_ring_gets_no_answer() {
    let mut world = World::leaf(2, "0-1");
    world.ring(0);
    world.ring(1);
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    let actions = world.after(T, Input::FromParent(ring_release(0, position(0, ">1", "0<"))));
    assert_eq!(actions, [ring_answer(1, 1, ">0", "0<")]);
}

#[test]
fn a_slow_ring_is_reported_as_a_fence_is() {
    let mut world = World::leaf(2, "0-1");
    world.ring(0);
    assert_eq!(world.after(at(250), Input::Timeout), [Action::ToParent(Up::Waiting { namespace: NS, number: 0 })]);
}

#[test]
fn a_rank_that_mixes_fence_and_ring_is_killed_and_reported() {
    let mut world = World::leaf(2, "0-1");
    world.fence(T, 0, "a");
    let actions = world.ring(1);
    assert_eq!(actions[0], Action::Signal(NS, ranks("1"), SIGKILL));
    let why = "called PMIX_Ring where others are in a fence".to_owned();
    assert_eq!(failures(&actions), [&Cause::Broken { why }]);

    let mut world = World::leaf(2, "0-1");
    world.ring(0);
    let actions = world.fence(T, 1, "a");
    assert_eq!(actions[0], Action::Signal(NS, ranks("1"), SIGKILL));
    let why = "entered a fence where others called PMIX_Ring".to_owned();
    assert_eq!(failures(&actions), [&Cause::Broken { why }]);
}

#[test]
fn a_childs_ranks_that_mix_fence_and_ring_fail_and_the_child_is_kept() {
    let mut world = World::inner();
    world.ring(0);
    let actions =
        world.after(at(7), Input::FromChild(AgentId(2), gathered_message("2-4", Contribution::Puts(Puts::new()))));
    let cause = Cause::Broken { why: "entered a fence where others called PMIX_Ring".into() };
    let failure = Failure { at: at(7), agent: AgentId(2), namespace: NS, ranks: ranks("2-4"), cause };
    assert_eq!(actions, [Action::ToParent(Up::Failed(failure))]);
}

#[test]
fn a_child_with_an_invalid_ring_segment_is_cut_off() {
    let long = "x".repeat(pmi::limits::ATTRIBUTE_BYTES_MAX + 1);
    for (set, segment, why) in [
        ("2-4", segment(2, "", ""), "its part of the ring has 2 ranks"),
        ("2-3", segment(2, "", ""), "the sender's are 2-4"),
        ("0-4", segment(5, "", ""), "not the sender's"),
        ("2-4", segment(3, &long, ""), "a value in the ring exceeds 1023 bytes"),
        ("2-4", segment(3, "", &long), "a value in the ring exceeds 1023 bytes"),
    ] {
        let mut world = World::inner();
        let actions = world.after(T, Input::FromChild(AgentId(2), gathered_message(set, segment)));
        assert!(
            matches!(&actions[0], Action::CloseChild(AgentId(2), why_closed) if why_closed.to_string().contains(why)),
            "{actions:?}"
        );
        assert!(matches!(failures(&actions)[..], [Cause::Lost { .. }]) && actions.len() == 2, "{actions:?}");
    }
}

#[test]
fn an_agent_that_gets_an_invalid_ring_release_reports_itself_lost() {
    let long = "x".repeat(pmi::limits::ATTRIBUTE_BYTES_MAX + 1);
    let epoch =
        Down::Release { namespace: NS, number: 0, content: ReleaseContent::Update(Update::Epoch(Epoch::default())) };
    for (release, expected) in [
        (ring_release(0, position(1, "", "")), "position 1 is beyond the end of the ring"),
        (ring_release(0, position(0, &long, "")), "position 0 is beyond"),
        (ring_release(1, position(0, "", "")), "it is for fence 1, the open one is 0"),
        (epoch, "it received a fence's release while its ranks wait in a ring"),
    ] {
        let mut world = World::leaf(2, "0-1");
        world.ring(0);
        world.ring(1);
        let actions = world.after(T, Input::FromParent(release));
        let [Cause::Lost { why }] = failures(&actions)[..] else { panic!("{actions:?}") };
        assert!(why.to_string().contains(expected) && actions.len() == 1, "{why}");
    }
    let mut world = World::leaf(2, "0-1");
    world.fence(T, 0, "a");
    world.fence(T, 1, "b");
    let actions = world.after(T, Input::FromParent(ring_release(0, position(0, "", ""))));
    assert!(
        matches!(failures(&actions)[..], [Cause::Lost { why }] if why.to_string().contains("no ring is complete here"))
    );
}
