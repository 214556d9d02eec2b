//! Plans, and messages that overtake them in another lane.

use super::*;
use crate::core::limits::EARLY_MOVES_MAX;

fn launch(plan: NamespacePlan) -> Input {
    Input::FromParent(Down::Launch(Box::new(plan)))
}

fn move_in(namespace: u32, set: &str) -> Input {
    Input::FromParent(Down::MoveIn {
        agent: AgentId(1),
        namespace: NamespaceId(namespace),
        ranks: ranks(set),
        incarnation: 1,
    })
}

fn started_again(actions: &[Action]) -> Vec<(u32, u32)> {
    let started = |action: &Action| match action {
        Action::Restart(namespace, rank, 1) => Some((namespace.0, rank.0)),
        _ => None,
    };
    actions.iter().filter_map(started).collect()
}

#[test]
fn ranks_that_move_here_before_the_plan_arrives_start_with_it() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    for (namespace, set) in [(1, "1"), (2, "2")] {
        assert_eq!(world.after(T, move_in(namespace, set)), []);
    }
    for (namespace, rank) in [(1, 1), (2, 2)] {
        let plan = NamespacePlan { id: NamespaceId(namespace), ..plan(3, &[(1, "0")]) };
        let actions = world.after(T, launch(plan));
        assert_eq!(started_again(&actions), [(namespace, rank)], "{actions:?}");
    }
}

#[test]
fn orders_for_plans_that_have_not_arrived_are_bounded() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    for number in 1..=EARLY_MOVES_MAX + 1 {
        world.after(T, move_in(1, &number.to_string()));
        assert_eq!(world.agent.early_moves.len(), number.min(EARLY_MOVES_MAX));
    }
}

#[test]
fn an_order_for_a_forgotten_namespace_is_not_stored() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 1);
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    let actions = world.after(T, Input::FromParent(Down::Forget { namespace: NS }));
    assert_eq!(actions.last(), Some(&Action::Forget(NS)), "{actions:?}");
    assert_eq!(world.after(T, move_in(NS.0, "1")), []);
    assert_eq!(world.agent.early_moves, []);
}

#[test]
fn deaths_that_overtake_the_plan_are_shown_with_it() {
    let mut world = World::surviving(FailurePolicy::Continue, 1);
    let later = NamespaceId(1);
    let died = |namespace, set| Input::FromParent(Down::Died { namespace, ranks: ranks(set) });
    assert_eq!(world.after(T, died(later, "0")), []);
    let actions = world.after(T, launch(NamespacePlan { id: later, ..plan(2, &[(1, "1")]) }));
    assert_eq!(actions.last(), Some(&Action::ShowDead(later, ranks("0"))), "{actions:?}");
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    world.after(T, Input::FromParent(Down::Forget { namespace: NS }));
    assert_eq!(world.after(T, died(NS, "0")), []);
    assert!(world.agent.early_deaths.is_empty(), "the namespace was forgotten");
}

#[test]
fn a_plan_that_the_end_has_overtaken_starts_no_rank() {
    let mut world = World::joined(1, 1, 2);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(world.after(T, launch(plan(1, &[(1, "0")]))), []);
}

#[test]
fn a_plan_that_an_ancestor_repeats_is_ignored() {
    let mut world = World::surviving(FailurePolicy::Continue, 1);
    assert_eq!(world.after(T, launch(plan(1, &[(1, "0")]))), []);
}

#[test]
fn ranks_whose_agent_was_lost_before_the_plan_arrives_are_dead_or_move() {
    let moved = Up::MovedOut { namespace: NamespaceId(1), agent: AgentId(2), ranks: ranks("1") };
    let died = Up::Died { namespace: NamespaceId(1), ranks: ranks("1") };
    for (policy, report) in [(FailurePolicy::RestartRank, moved), (FailurePolicy::Continue, died)] {
        let mut world = World::surviving(policy, 2);
        world.after(T, Input::ChildLost(AgentId(2), LossReason::Closed));
        let plan = NamespacePlan { id: NamespaceId(1), ..plan(2, &[(1, "0"), (2, "1")]) };
        let actions = world.after(T, launch(plan));
        let reports: Vec<_> = actions.iter().filter(|action| matches!(action, Action::ToParent(_))).collect();
        assert_eq!(reports, [&Action::ToParent(report)]);
    }
}

#[test]
fn without_a_loss_a_plan_brings_no_death() {
    let mut world = World::surviving(FailurePolicy::Continue, 1);
    let actions = world.after(T, launch(NamespacePlan { id: NamespaceId(1), ..plan(1, &[(1, "0")]) }));
    assert!(matches!(actions[..], [Action::Start(..)]), "{actions:?}");
}
