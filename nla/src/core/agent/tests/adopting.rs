//! The session goes on after the loss of a child: the child's children join here.

use super::*;
use crate::core::heritage::Heritage;
use crate::core::message::{Inquiry, InquiryKind};
use crate::core::reason::Violation;

const LOST: fn(u32) -> Input = |child| Input::ChildLost(AgentId(child), LossReason::Closed);

impl World {
    /// The head of a chain of so many agents with a rank each, all running, in a session with this policy.
    pub(super) fn surviving(policy: FailurePolicy, agents: u32) -> Self {
        Self::surviving_with(CachePolicy::default(), policy, agents)
    }

    pub(super) fn surviving_with(cache: CachePolicy, policy: FailurePolicy, agents: u32) -> Self {
        let mut world = Self::joined(1, agents, 1);
        let session = SessionPlan { cache, on_failure: policy, ..Self::session(false) };
        world.after(T, Input::FromParent(Down::Session(Box::new(session))));
        let placement = (1..=agents).map(|agent| (AgentId(agent), Ranks::range(agent - 1..agent))).collect();
        world.after(T, Input::FromParent(Down::Launch(Box::new(plan_of(agents, placement)))));
        world.after(T, Input::Started(NS, ranks("0")));
        world
    }

    /// All ranks enter a fence, and the root releases it.
    fn completes(&mut self, number: u32, below: &str) {
        self.fence(T, 0, "k");
        self.after(T, arrival(number, below));
        let content = ReleaseContent::Update(Update::Epoch(Epoch::default()));
        self.after(T, Input::FromParent(Down::Release { namespace: NS, number, content }));
    }

    /// Agent 2 is lost, and agent 3 joins here. Returns what agent 3 gets, and what closes its link.
    fn adopts(&mut self, has_plan: bool, fences: &[(NamespaceId, u32)]) -> (Vec<Down>, Option<LossReason>) {
        self.after(T, LOST(2));
        self.after(T, Input::ChildJoined(AgentId(3)));
        let rejoined = Up::Rejoined { has_plan, fences: open(fences) };
        let (mut sent, mut closed) = (Vec::new(), None);
        for action in self.after(T, Input::FromChild(AgentId(3), rejoined)) {
            match action {
                Action::ToChild(AgentId(3), message) => sent.push(message),
                Action::CloseChild(AgentId(3), why) => closed = Some(why),
                _ => {}
            }
        }
        (sent, closed)
    }
}

fn arrival(number: u32, set: &str) -> Input {
    let contribution = Contribution::Puts(Puts::new());
    Input::FromChild(AgentId(2), Up::Gathered { namespace: NS, number, ranks: ranks(set), contribution })
}

fn adopted(actions: &[Action]) -> Vec<AgentId> {
    let subtrees = actions.iter().find_map(|action| match action {
        Action::Adopt(subtrees) => Some(subtrees),
        _ => None,
    });
    subtrees.into_iter().flatten().map(Subtree::head).collect()
}

#[test]
fn policy_and_ports_decide_about_the_subtree_of_a_lost_child() {
    use FailurePolicy::{Abort, Continue, Restart, RestartRank};
    let session = |on_failure, has_ports| SessionPlan { on_failure, has_ports, ..World::session(false) };
    let within = session(Continue, true).adoption_time();
    for policy in [Continue, Restart, RestartRank] {
        assert_eq!(Heritage::of(&session(policy, true)), Heritage::Adopted { within }, "{policy:?}");
    }
    assert_eq!(Heritage::of(&session(Continue, false)), Heritage::Lost);
    for (policy, has_ports) in [(Abort, true), (Abort, false), (Restart, false), (RestartRank, false)] {
        assert_eq!(Heritage::of(&session(policy, has_ports)), Heritage::End, "{policy:?} {has_ports}");
    }
}

#[test]
fn children_of_a_lost_child_are_awaited() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    assert!(!world.agent.awaits_agents());
    let actions = world.after(T, LOST(2));
    assert_eq!(adopted(&actions), [AgentId(2), AgentId(3)]);
    let deadline = World::session(false).adoption_time();
    assert_eq!(actions.last(), Some(&Action::WakeAt(deadline)));
    assert!(world.agent.awaits_agents());
    world.after(T, Input::ChildJoined(AgentId(3)));
    assert!(!world.agent.awaits_agents());
}

#[test]
fn while_the_session_ends_no_agent_is_adopted() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(adopted(&world.after(T, LOST(2))), []);
}

#[test]
fn orphans_have_less_time_once_the_session_ends() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    world.after(T, LOST(2));
    let SessionPlan { dead_time, .. } = World::session(false);
    world.after(at(1000), Input::FromParent(Down::End { signal: 15, grace: Duration::from_secs(60) }));
    let until = at(1000) + dead_time + crate::core::limits::REJOIN_MARGIN;
    assert_eq!(world.agent.children.orphan_deadline(), Some(until));
}

#[test]
fn only_lost_agents_are_left_out_of_an_adoption() {
    for (cause, heirs) in [(Cause::Lost { why: LossReason::Closed }, vec![]), (Cause::Code(1), vec![AgentId(3)])] {
        let failure = match cause {
            Cause::Lost { .. } => Failure::of_agent(T, AgentId(3), cause),
            cause => Failure::of_rank(T, AgentId(3), NS, Rank(2), cause),
        };
        let mut world = World::surviving(FailurePolicy::Continue, 3);
        world.after(T, Input::FromChild(AgentId(2), Up::Failed(failure)));
        world.after(T, LOST(2));
        let awaited: Vec<_> = world.agent.children.late(Duration::MAX);
        assert_eq!(awaited, heirs);
    }
}

#[test]
fn ranks_move_only_if_ranks_start_again_alone() {
    for (policy, is_reported) in [(FailurePolicy::Restart, false), (FailurePolicy::RestartRank, true)] {
        let mut world = World::surviving(policy, 2);
        let actions = world.after(T, LOST(2));
        let moved = Action::ToParent(Up::MovedOut { namespace: NS, agent: AgentId(2), ranks: ranks("1") });
        assert_eq!(actions.contains(&moved), is_reported, "{actions:?}");
    }
}

#[test]
fn a_child_reports_only_lost_agents_of_its_own_subtree_and_only_if_ranks_move() {
    let moved = |agent| Up::MovedOut { namespace: NS, agent: AgentId(agent), ranks: ranks("2") };
    for (policy, agent, is_allowed) in [
        (FailurePolicy::RestartRank, 3, true),
        (FailurePolicy::RestartRank, 1, false),
        (FailurePolicy::Continue, 3, false),
    ] {
        let mut world = World::surviving(policy, 3);
        let actions = world.after(T, Input::FromChild(AgentId(2), moved(agent)));
        let closed = Action::CloseChild(AgentId(2), Violation::MovedOut(ranks("2")).into());
        assert_eq!(!actions.contains(&closed), is_allowed, "{policy:?} {agent}: {actions:?}");
    }
}

#[test]
fn requests_of_ranks_that_have_moved_are_not_repeated() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 4);
    let of = |agent, namespace| Requester { namespace, ..requester(agent, agent - 1) };
    for requester in [of(3, NS), of(4, NS), of(3, NamespaceId(1))] {
        let request = RootRequest::Lookup { service: b"s".to_vec() };
        let ask = Up::Ask { requester, request };
        assert_eq!(world.after(T, Input::FromChild(AgentId(2), ask.clone())), [Action::ToParent(ask)]);
    }
    let moved = Up::MovedOut { namespace: NS, agent: AgentId(3), ranks: ranks("2") };
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), moved.clone())), [Action::ToParent(moved)]);
    let left: Vec<_> = world.agent.requests.keys().map(|(agent, namespace, _)| (agent.0, namespace.0)).collect();
    assert_eq!(left, [(3, 1), (4, 0)]);
}

#[test]
fn an_adopted_agent_gets_the_release_that_it_missed() {
    for (number, missed) in [(1, true), (2, false)] {
        let mut world = World::surviving(FailurePolicy::RestartRank, 3);
        (0..2).for_each(|number| world.completes(number, "1-2"));
        let (sent, closed) = world.adopts(true, &[(NS, number)]);
        assert_eq!(closed, None);
        let is_release = |message: &Down| matches!(message, Down::Release { number: 1, .. });
        assert_eq!(sent.iter().any(is_release), missed, "{sent:?}");
        assert!(!sent.iter().any(|message| matches!(message, Down::Died { .. } | Down::Session(_))), "{sent:?}");
    }
}

#[test]
fn an_agent_that_missed_more_fences_than_one_is_cut_off_if_ranks_move() {
    for (fences, missed) in [(vec![(NS, 0)], 0), (vec![], 0)] {
        let mut world = World::surviving(FailurePolicy::RestartRank, 3);
        (0..2).for_each(|number| world.completes(number, "1-2"));
        assert_eq!(world.adopts(true, &fences).1, Some(Violation::Behind(missed).into()), "{fences:?}");
        let mut world = World::surviving(FailurePolicy::Continue, 3);
        (0..2).for_each(|number| world.completes(number, "1-2"));
        assert_eq!(world.adopts(true, &fences).1, None, "{fences:?}");
    }
}

#[test]
fn an_adopted_agent_without_plans_gets_them() {
    let mut world = World::surviving(FailurePolicy::RestartRank, 3);
    let (sent, closed) = world.adopts(false, &[]);
    assert_eq!(closed, None);
    assert!(matches!(sent[..], [Down::Session(_), Down::Launch(_), Down::Resume]), "{sent:?}");
}

#[test]
fn an_adopted_agent_frees_namespaces_that_are_not_known_here() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    let unknown = NamespaceId(1);
    let (sent, _) = world.adopts(true, &[(NS, 0), (unknown, 3)]);
    let undone = sent.iter().filter(|message| matches!(message, Down::Undo { .. }));
    assert_eq!(undone.collect::<Vec<_>>(), [&Down::Undo { namespace: unknown }]);
}

#[test]
fn an_adopted_agent_is_suspended_with_the_others_and_learns_of_deaths() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    let died = Down::Died { namespace: NS, ranks: ranks("0") };
    world.after(T, Input::FromParent(died.clone()));
    world.after(T, Input::FromParent(Down::Suspend));
    assert_eq!(world.adopts(true, &[(NS, 0)]).0, [died, Down::Suspend]);
}

#[test]
fn an_inquiry_to_a_lost_child_is_refused() {
    let mut world = World::surviving(FailurePolicy::Continue, 2);
    world.after(T, LOST(2));
    let requester = requester(9, 9);
    let kind = InquiryKind::NodeGet { key: b"k".to_vec(), wait: true };
    let inquiry = Inquiry { to: AgentId(2), requester, kind };
    let actions = world.after(T, Input::FromParent(Down::Inquire(inquiry)));
    assert_eq!(actions, [Action::ToParent(Up::Reply { requester, reply: Reply::NodeGot(None) })]);
}

#[test]
fn the_heirs_of_a_lost_child_are_awaited_before_ranks_start_again() {
    let clear = Down::Clear { signal: 15, grace: Duration::from_secs(5) };
    let mut world = World::surviving(FailurePolicy::Restart, 3);
    world.after(T, Input::FromParent(clear.clone()));
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    world.after(T, Input::Cleared { leftovers: 0 });
    let (sent, _) = world.adopts(true, &[(NS, 0)]);
    assert_eq!(sent, [clear]);
    let cleared = Up::Cleared { leftovers: 0 };
    let actions = world.after(T, Input::FromChild(AgentId(3), cleared.clone()));
    assert_eq!(actions, [Action::ToParent(cleared)]);
}

#[test]
fn a_child_that_has_answered_a_restart_is_not_awaited_again() {
    let mut world = World::surviving(FailurePolicy::Restart, 3);
    world.after(T, Input::FromParent(Down::Clear { signal: 15, grace: Duration::from_secs(5) }));
    world.after(T, Input::FromChild(AgentId(2), Up::Cleared { leftovers: 0 }));
    assert_eq!(world.adopts(true, &[(NS, 0)]).0, [], "agent 2 had answered for agent 3");
}

#[test]
fn a_look_up_that_breaks_the_protocol_leads_to_the_adoption_deadline() {
    let mut world = World::surviving(FailurePolicy::Continue, 3);
    let key = Bytes::from(vec![b'k'; pmi::limits::KEY_BYTES_MAX + 1]);
    let actions = world.after(T, Input::FromChild(AgentId(2), Up::Get { namespace: NS, key }));
    assert_eq!(actions[0], Action::CloseChild(AgentId(2), Violation::Get.into()));
    let deadline = World::session(false).adoption_time();
    assert_eq!(actions.last(), Some(&Action::WakeAt(deadline)), "{actions:?}");
}

#[test]
fn a_child_without_ranks_may_get_nothing() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(1, &[(1, "0")])))));
    let get = Up::Get { namespace: NS, key: Bytes::from_static(b"k") };
    let actions = world.after(T, Input::FromChild(AgentId(2), get));
    assert_eq!(actions[0], Action::CloseChild(AgentId(2), Violation::Get.into()));
}
