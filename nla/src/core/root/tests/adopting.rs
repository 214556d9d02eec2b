//! The children of a lost agent join the root.

use super::*;
use crate::core::failure_policy::FailurePolicy;
use crate::core::heritage::Heritage;
use crate::core::limits::{GATHER_WINDOW, REJOIN_MARGIN};
use crate::core::message::NODE_REQUESTS_FROM;

const LOST: RootInput = RootInput::ChildLost(AgentId(1), LossReason::Closed);

impl World {
    /// A chain of two agents with two ranks each, all running, in a session with this policy.
    fn chain(policy: FailurePolicy) -> Self {
        let mut settings = settings(4, 2, 1);
        settings.session.on_failure = policy;
        let mut world = Self { root: Root::new(settings) };
        world.up(T, 1, Up::Ready);
        world
    }

    /// Agent 1 is lost, and agent 2 joins. Returns what it gets.
    fn adopts(&mut self, has_plan: bool, fences: &[(NamespaceId, u32)]) -> Vec<Down> {
        self.after(T, LOST);
        self.after(T, RootInput::ChildJoined(AgentId(2)));
        let actions = self.up(T, 2, Up::Rejoined { has_plan, fences: open(fences) });
        sent(&actions, 2).into_iter().cloned().collect()
    }
}

#[test]
fn ranks_of_a_lost_agents_children_still_have_to_start() {
    let mut world = World::chain(FailurePolicy::Continue);
    assert!(!world.root.awaits_agents());
    let actions = world.after(T, LOST);
    assert!(world.root.awaits_agents());
    let is_started = |actions: &[RootAction]| actions.contains(&RootAction::Notice(Notice::Started(NS, 4)));
    assert!(!is_started(&actions), "{actions:?}");
    world.after(T, RootInput::ChildJoined(AgentId(2)));
    assert!(!world.root.awaits_agents());
    assert!(is_started(&world.up(T, 2, Up::Started { namespace: NS })));
}

#[test]
fn an_adopted_agent_without_plans_gets_them() {
    let mut world = World::chain(FailurePolicy::Continue);
    let sent = world.adopts(false, &[]);
    assert!(matches!(sent[..], [Down::Session(_), Down::Resume, Down::Launch(_), Down::Died { .. }]), "{sent:?}");
    let mut world = World::chain(FailurePolicy::Continue);
    let sent = world.adopts(true, &[(NS, 0)]);
    assert!(matches!(sent[..], [Down::Resume, Down::Died { .. }]), "{sent:?}");
}

#[test]
fn the_heirs_of_a_lost_agent_are_awaited_before_ranks_start_again() {
    let mut world = World::chain(FailurePolicy::Restart);
    world.fails(T, 1, 0, Cause::Code(3));
    world.after(GATHER_WINDOW, RootInput::Timeout);
    assert_eq!(world.adopts(true, &[(NS, 0)]), [Down::Clear { signal: 15, grace: GRACE }]);
    world.up(T, 2, Up::Cleared { leftovers: 0 });
    let Phase::Restarting { awaited, .. } = &world.root.phase else { panic!("{:?}", world.root.phase) };
    assert_eq!(*awaited, []);
    let mut world = World::chain(FailurePolicy::Restart);
    world.fails(T, 1, 0, Cause::Code(3));
    world.after(GATHER_WINDOW, RootInput::Timeout);
    world.up(T, 1, Up::Cleared { leftovers: 0 });
    assert_ne!(world.adopts(true, &[(NS, 0)]), [Down::Clear { signal: 15, grace: GRACE }]);
}

#[test]
fn after_a_failure_agents_are_adopted_only_if_all_ranks_may_start_again() {
    for policy in [FailurePolicy::Continue, FailurePolicy::Restart, FailurePolicy::RestartRank] {
        let mut world = World::chain(policy);
        let within = world.root.session.adoption_time();
        assert_eq!(world.root.heritage(T), Heritage::Adopted { within });
        world.fails(T, 1, 0, Cause::Abort { code: 1, message: String::new() });
        let is_adopted = policy == FailurePolicy::Restart;
        let heritage = if is_adopted { Heritage::Adopted { within } } else { Heritage::End };
        assert_eq!(world.root.heritage(T), heritage, "{policy:?}");
    }
}

#[test]
fn agents_below_a_lost_one_are_lost_with_it_if_they_can_join_no_other() {
    for (has_ports, lost) in [(true, vec![AgentId(1)]), (false, vec![AgentId(1), AgentId(2)])] {
        let mut world = World::chain(FailurePolicy::Continue);
        world.root.session.has_ports = has_ports;
        world.after(T, LOST);
        assert_eq!(world.root.lost.iter().copied().collect::<Vec<_>>(), lost);
    }
}

#[test]
fn a_loss_while_ranks_are_ended_gives_the_others_more_time() {
    let mut world = World::chain(FailurePolicy::Restart);
    world.fails(T, 1, 0, Cause::Code(3));
    let actions = world.after(GATHER_WINDOW, RootInput::Timeout);
    let until = GATHER_WINDOW + GRACE + END_MARGIN;
    assert_eq!(actions.last(), Some(&RootAction::WakeAt(until)));
    let lost_at = Duration::from_secs(10);
    world.after(lost_at, LOST);
    let ended_by = lost_at + world.root.session.adoption_time();
    let Phase::Restarting { until, .. } = world.root.phase else { panic!("{:?}", world.root.phase) };
    assert_eq!((world.root.restarts.not_before(), until), (ended_by, ended_by + GRACE + END_MARGIN));
}

#[test]
fn orphans_have_less_time_once_the_session_ends() {
    let mut world = World::chain(FailurePolicy::Continue);
    world.after(T, LOST);
    world.after(at(1000), RootInput::Interrupt(2));
    let until = at(1000) + world.root.session.dead_time + REJOIN_MARGIN;
    assert_eq!(world.root.children.orphan_deadline(), Some(until));
}

#[test]
fn a_failure_that_an_adopted_agent_repeats_counts_once() {
    let mut world = World::chain(FailurePolicy::Continue);
    let actions = world.fails(T, 1, 2, Cause::Code(3));
    assert!(
        matches!(actions[..], [RootAction::Notice(Notice::Failure(_)), RootAction::Notice(Notice::GoesOn(_))]),
        "{actions:?}"
    );
    assert_eq!(world.fails(T, 1, 2, Cause::Code(3)), []);
}

#[test]
fn a_request_that_an_adopted_agent_repeats_is_answered_as_before() {
    let mut world = World::chain(FailurePolicy::Continue);
    let mut publish = |number| {
        let request = RootRequest::Publish { service: b"s".to_vec(), port: b"p".to_vec() };
        let requester = Requester { number, ..requester(1, 0) };
        let actions = world.up(T, 1, Up::Ask { requester, request });
        match sent(&actions, 1)[..] {
            [Down::Reply { reply, .. }] => reply.clone(),
            _ => panic!("{actions:?}"),
        }
    };
    let published = |result| Reply::Published(result);
    assert_eq!([publish(0), publish(0)], [published(Ok(())), published(Ok(()))]);
    assert_eq!(publish(1), published(Err(NameError::Taken)), "it is another request");
}

#[test]
fn requests_of_two_nodes_under_the_same_number_are_two_requests() {
    let mut world = World::chain(FailurePolicy::Continue);
    let publish = RootRequest::Publish { service: b"s".to_vec(), port: b"p".to_vec() };
    let replies = [(1, Ok(())), (2, Err(NameError::Taken))].map(|(agent, expected)| {
        let requester = requester(agent, NODE_REQUESTS_FROM);
        let actions = world.up(T, 1, Up::Ask { requester, request: publish.clone() });
        let reply = Down::Reply { requester, reply: Reply::Published(expected) };
        (sent(&actions, 1) == [&reply], actions)
    });
    assert!(replies.iter().all(|(is_expected, _)| *is_expected), "{replies:?}");
}
