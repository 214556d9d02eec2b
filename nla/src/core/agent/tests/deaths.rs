//! The session goes on after the death of a rank.

use super::*;

impl World {
    /// As [`World::inner`], in a session that goes on.
    fn going_on() -> Self {
        let mut world = Self::inner();
        world.agent.on_failure = FailurePolicy::Continue;
        world
    }

    fn dies(&mut self, rank: u32) -> Vec<Action> {
        self.after(T, Input::RankEnded(NS, Rank(rank), Exit::Code(3)))
    }
}

fn died(set: &str) -> Up {
    Up::Died { namespace: NS, ranks: ranks(set) }
}

fn arrival(number: u32, set: &str) -> Input {
    let contribution = Contribution::Puts(Puts::new());
    Input::FromChild(AgentId(2), Up::Gathered { namespace: NS, number, ranks: ranks(set), contribution })
}

#[test]
fn a_death_is_reported_behind_the_contribution_without_it() {
    let mut world = World::going_on();
    world.fence(T, 0, "a");
    assert_eq!(world.after(T, arrival(0, "2-4")), []);
    let actions = world.dies(1);
    let [Action::ToParent(Up::Failed(_)), Action::ToParent(Up::Gathered { ranks: set, .. }), Action::ToParent(dead)] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((dead, set), (&died("1"), &ranks("0,2-4")));
}

#[test]
fn a_contribution_without_some_ranks_says_that_they_have_died() {
    let mut world = World::going_on();
    world.fence(T, 0, "a");
    world.fence(T, 1, "b");
    let actions = world.after(T, arrival(0, "2,4"));
    assert_eq!(gathered(&actions), Some((&ranks("0-2,4"), 2)));
    assert_eq!(actions[1], Action::ToParent(died("3")));
    // The child's own report of the death is behind its contribution.
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), died("3"))), [Action::ToParent(died("3"))]);
}

#[test]
fn a_session_that_ends_with_the_first_failure_hears_of_no_death() {
    let mut world = World::inner();
    assert!(matches!(world.dies(1)[..], [Action::ToParent(Up::Failed(_))]));
}

#[test]
fn a_childs_report_of_a_death_is_passed_on() {
    let mut world = World::going_on();
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), died("3"))), [Action::ToParent(died("3"))]);
    let actions = world.after(T, Input::FromChild(AgentId(2), died("1")));
    assert!(matches!(actions[0], Action::CloseChild(AgentId(2), _)), "rank 1 is not the child's: {actions:?}");
}

#[test]
fn the_ranks_are_shown_all_deaths() {
    let mut world = World::going_on();
    let down = |set: &str| Down::Died { namespace: NS, ranks: ranks(set) };
    assert_eq!(
        world.after(T, Input::FromParent(down("7"))),
        [Action::ToChild(AgentId(2), down("7")), Action::ShowDead(NS, ranks("7"))]
    );
    assert_eq!(world.after(T, Input::FromParent(down("5"))).last(), Some(&Action::ShowDead(NS, ranks("5,7"))));
}

#[test]
fn a_rank_that_the_launcher_declares_dead_is_not_waited_for() {
    let mut world = World::going_on();
    world.fence(T, 0, "a");
    world.after(T, arrival(0, "2-4"));
    world.after(T, Input::RankEnded(NS, Rank(1), Exit::Code(0)));
    let actions = world.after(T, Input::FromParent(Down::Died { namespace: NS, ranks: ranks("1") }));
    assert_eq!(gathered(&actions), Some((&ranks("0,2-4"), 1)), "{actions:?}");
}

#[test]
fn a_subtree_of_dead_ranks_contributes_nothing_and_follows_releases() {
    let mut world = World::going_on();
    world.after(T, Input::FromChild(AgentId(2), died("2-4")));
    world.dies(0);
    assert_eq!(gathered(&world.dies(1)), None);
    let content = ReleaseContent::Update(Update::Epoch(Epoch::default()));
    let release = Down::Release { namespace: NS, number: 0, content };
    let actions = world.after(T, Input::FromParent(release.clone()));
    assert_eq!(actions[0], Action::ToChild(AgentId(2), release));
    assert_eq!(world.agent.namespaces[&NS].exchange.fence.number(), 1);
}

#[test]
fn a_failed_release_of_fence_or_ring_is_passed_on() {
    for is_ring in [false, true] {
        let mut world = World::going_on();
        if is_ring {
            world.ring(0);
        } else {
            world.fence(T, 0, "a");
        }
        world.after(T, Input::FromChild(AgentId(2), died("2-4")));
        world.dies(1);
        let content = ReleaseContent::Failed(Update::Epoch(Epoch::default()));
        let release = Down::Release { namespace: NS, number: 0, content };
        let actions = world.after(T, Input::FromParent(release.clone()));
        assert_eq!(actions[0], Action::ToChild(AgentId(2), release));
        assert_eq!(actions.last(), Some(&Action::FailFence(NS, ranks("0"))));
    }
}
