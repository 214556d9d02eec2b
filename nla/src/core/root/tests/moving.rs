//! The ranks of a lost agent start on another one, while the others go on.

use super::*;
use crate::core::failure_policy::FailurePolicy;

impl World {
    /// A chain of three agents, each on a node of its own: the first two have two ranks each, the last one is a spare.
    fn chain_with_spare(max: u32) -> Self {
        let mut settings = settings(4, 2, 1);
        settings.tree = Subtree::whole(3, 1);
        settings.nodes = (1..=3).map(|agent| (AgentId(agent), agent)).collect();
        settings.session.on_failure = FailurePolicy::RestartRank;
        settings.max_restarts = max;
        let mut world = Self { root: Root::new(settings) };
        world.up(T, 1, Up::Ready);
        world.up(T, 1, Up::Started { namespace: NS });
        world
    }

    /// Agent 1 reports the loss of another one.
    fn loses(&mut self, agent: u32, why: LossReason) -> Vec<RootAction> {
        self.up(T, 1, Up::Failed(Failure::of_agent(T, AgentId(agent), Cause::Lost { why })))
    }

    fn moves_out(&mut self, agent: u32, set: &str) -> Vec<RootAction> {
        self.up(T, 1, Up::MovedOut { namespace: NS, agent: AgentId(agent), ranks: ranks(set) })
    }

    /// Waits until the guardians of agents that were lost at the beginning are ended once more.
    fn ends_again(&mut self) -> Vec<RootAction> {
        self.after(self.root.session.rejoin_time(), RootInput::Timeout)
    }
}

fn is_revived(actions: &[RootAction], count: u32) -> bool {
    let is_it =
        |action: &RootAction| matches!(action, RootAction::Notice(Notice::Reviving { number, .. }) if *number == count);
    actions.iter().any(is_it)
}

fn is_unsheltered(actions: &[RootAction]) -> bool {
    actions.contains(&RootAction::Notice(Notice::NoSpare))
}

#[test]
fn ranks_move_to_a_spare_agent_once_the_lost_one_has_ended_them() {
    let mut world = World::chain_with_spare(1);
    assert!(is_revived(&world.loses(2, LossReason::Closed), 1));
    let until = world.root.session.adoption_time();
    assert_eq!(world.moves_out(2, "2-3"), []);
    assert_eq!(world.ends_again(), [RootAction::EndGuardian(AgentId(2)), RootAction::WakeAt(until)]);
    assert_eq!(world.after(until - at(1), RootInput::Timeout), [RootAction::WakeAt(until)]);
    let actions = world.after(until, RootInput::Timeout);
    let order = Down::MoveIn { agent: AgentId(3), namespace: NS, ranks: ranks("2-3"), incarnation: 1 };
    assert_eq!(sent(&actions, 1), [&order]);
    let placement = vec![(AgentId(1), ranks("0-1")), (AgentId(3), ranks("2-3"))];
    assert!(actions.contains(&RootAction::Notice(Notice::Moved(placement))), "{actions:?}");
    assert!(!world.root.is_spare(AgentId(3)) && world.root.is_spare(AgentId(2)));
}

#[test]
fn ranks_are_reported_as_moved_out_before_the_loss_of_their_agent() {
    let mut world = World::chain_with_spare(3);
    world.moves_out(2, "2-3");
    assert!(is_revived(&world.loses(2, LossReason::Closed), 1));
    let until = world.root.session.adoption_time();
    world.ends_again();
    assert_eq!(world.after(until - at(1), RootInput::Timeout), [RootAction::WakeAt(until)]);
}

#[test]
fn an_agent_below_another_lost_one_has_twice_the_time_to_end_its_ranks() {
    for (why, times) in [(LossReason::Closed, 1), (LossReason::LostBy(AgentId(3)), 2)] {
        let mut world = World::chain_with_spare(1);
        world.loses(2, why);
        let until = times * world.root.session.adoption_time();
        assert_eq!(world.moves_out(2, "2-3"), []);
        assert_eq!(world.ends_again(), [RootAction::EndGuardian(AgentId(2)), RootAction::WakeAt(until)]);
    }
}

#[test]
fn the_session_ends_if_no_agent_is_left_for_the_ranks_or_no_restart() {
    let mut world = World::chain_with_spare(0);
    let actions = world.loses(2, LossReason::Closed);
    assert!(!is_revived(&actions, 1) && !is_unsheltered(&actions), "{actions:?}");
    let mut world = World::chain_with_spare(3);
    world.loses(3, LossReason::Closed);
    let actions = world.loses(2, LossReason::Closed);
    assert!(!is_revived(&actions, 1) && is_unsheltered(&actions), "{actions:?}");
}

#[test]
fn the_session_ends_as_soon_as_no_agent_is_left_for_ranks_that_wait() {
    let mut world = World::chain_with_spare(3);
    world.loses(2, LossReason::Truncated);
    world.moves_out(2, "2-3");
    let actions = world.loses(3, LossReason::Closed);
    assert!(is_unsheltered(&actions), "{actions:?}");
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    let Outcome::Failed { first, .. } = world.root.elected() else { panic!() };
    assert_eq!((first.agent, first.cause), (AgentId(2), Cause::Lost { why: LossReason::Truncated }));
}

#[test]
fn single_ranks_start_again_as_often_as_the_user_allows() {
    let mut world = World::chain_with_spare(1);
    let actions = world.fails(T, 1, 0, Cause::Code(1));
    let order = Down::Revive { agent: AgentId(1), namespace: NS, rank: Rank(0), incarnation: 1 };
    assert_eq!(sent(&actions, 1), [&order]);
    assert_eq!(sent(&world.fails(T, 1, 1, Cause::Code(1)), 1), [] as [&Down; 0]);
}

#[test]
fn spawned_ranks_start_on_no_spare_and_no_lost_agent() {
    let mut world = World::chain_with_spare(3);
    let plan = |actions: &[RootAction]| match sent(actions, 1)[..] {
        [Down::Launch(plan)] => plan.placement.clone(),
        _ => panic!("{actions:?}"),
    };
    let spare = (AgentId(3), Ranks::new());
    let spawns = |world: &mut World, number| {
        let command = SpawnCommand { program: b"c".to_vec(), args: Vec::new(), nprocs: 3, info: Vec::new() };
        let request = RootRequest::Spawn(SpawnRequest { commands: vec![command], preputs: Vec::new() });
        world.up(T, 1, Up::Ask { requester: Requester { number, ..requester(1, 0) }, request })
    };
    let placement = plan(&spawns(&mut world, 0));
    assert_eq!(placement.iter().map(|(agent, _)| agent.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(placement.last(), Some(&spare), "it may take over ranks");
    world.loses(3, LossReason::Closed);
    let placement = plan(&spawns(&mut world, 1));
    assert_eq!(placement.iter().map(|(agent, _)| agent.0).collect::<Vec<_>>(), [1, 2]);
}
