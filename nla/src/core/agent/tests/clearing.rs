//! All ranks are ended, to start again.

use super::*;

const CLEAR: Down = Down::Clear { signal: 15, grace: Duration::from_secs(5) };

fn ends(world: &mut World, rank: u32) -> Vec<Action> {
    let exit = Exit::Signal { signal: 15, core: false, out_of_memory: String::new() };
    world.after(T, Input::RankEnded(NS, Rank(rank), exit))
}

#[test]
fn ranks_end_without_a_report_and_others_can_start() {
    let mut world = World::inner();
    let actions = world.after(T, Input::FromParent(CLEAR));
    assert_eq!(
        actions,
        [
            Action::ToChild(AgentId(2), CLEAR),
            Action::CancelStarts,
            Action::Signal(NS, ranks("0-1"), 15),
            Action::Signal(NS, ranks("0-1"), SIGCONT),
            Action::WakeAt(Duration::from_secs(5)),
        ]
    );
    assert_eq!(ends(&mut world, 0), []);
    assert_eq!(ends(&mut world, 1), [Action::Clear]);
    assert_eq!(world.after(T, Input::Cleared { leftovers: 2 }), [], "the child has not answered");
    let actions = world.after(T, Input::FromChild(AgentId(2), Up::Cleared { leftovers: 1 }));
    assert_eq!(actions, [Action::ToParent(Up::Cleared { leftovers: 3 })]);
    let again = NamespacePlan { id: NamespaceId(1), ..plan(2, &[(1, "0-1")]) };
    let actions = world.after(T, Input::FromParent(Down::Launch(Box::new(again))));
    assert!(matches!(&actions[..], [Action::Start(..)]), "{actions:?}");
}

#[test]
fn the_first_failure_after_many_and_a_restart_is_reported() {
    let mut world = World::leaf(1, "0");
    for rank in 0..FAILURES_SINGLE_MAX + 1 {
        let failure = Failure::of_rank(T, AgentId(1), NS, Rank(rank), Cause::Code(1));
        world.agent.report_failure(failure, &mut Turn { now: T, actions: &mut Vec::new() });
    }
    world.after(T, Input::FromParent(CLEAR));
    ends(&mut world, 0);
    let actions = world.after(T, Input::Cleared { leftovers: 0 });
    assert_eq!(actions, [Action::ToParent(Up::Cleared { leftovers: 0 })]);
    let again = NamespacePlan { id: NamespaceId(1), ..plan(1, &[(1, "0")]) };
    world.after(T, Input::FromParent(Down::Launch(Box::new(again))));
    world.after(T, Input::Started(NamespaceId(1), ranks("0")));
    let actions = world.after(T, Input::RankEnded(NamespaceId(1), Rank(0), Exit::Code(1)));
    assert_eq!(failures(&actions), [&Cause::Code(1)]);
}

#[test]
fn ranks_that_ignore_the_signal_are_killed() {
    let mut world = World::leaf(2, "0-1");
    world.after(T, Input::FromParent(CLEAR));
    ends(&mut world, 0);
    let actions = world.after(at(5000), Input::Timeout);
    assert_eq!(actions, [Action::Signal(NS, ranks("1"), SIGKILL)]);
    assert_eq!(world.after(at(6000), Input::Timeout), [], "once");
}

#[test]
fn the_end_of_the_session_replaces_a_restart() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(CLEAR));
    world.after(T, Input::FromParent(Down::End { signal: SIGKILL, grace: Duration::ZERO }));
    assert_eq!(ends(&mut world, 0), [Action::Sweep]);
    assert_eq!(leftovers(&world.after(T, Input::Swept { leftovers: 1 })), 1);
}

#[test]
fn processes_that_cannot_be_killed_prevent_a_restart() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(CLEAR));
    ends(&mut world, 0);
    let actions = world.after(T, Input::NotCleared);
    assert!(matches!(failures(&actions)[..], [Cause::Lost { why: LossReason::NotCleared }]), "{actions:?}");
}

#[test]
fn a_rank_that_starts_after_the_order_gets_its_signal() {
    let mut world = World::joined(1, 1, 2);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(2, &[(1, "0-1")])))));
    world.after(T, Input::FromParent(CLEAR));
    let actions = world.after(T, Input::Started(NS, ranks("0")));
    assert!(actions.contains(&Action::Signal(NS, ranks("0"), 15)), "{actions:?}");
    world.after(at(5000), Input::Timeout);
    let actions = world.after(at(5001), Input::Started(NS, ranks("1")));
    assert!(actions.contains(&Action::Signal(NS, ranks("1"), SIGKILL)), "the grace is over: {actions:?}");
}
