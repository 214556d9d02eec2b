//! The agent as a value: each input leads to exactly these actions and no others.

mod adopting;
mod clearing;
mod deaths;
mod ends;
mod fences;
mod inquiries;
mod launching;
mod pieces;
mod rejoining;
mod reports;
mod staging;
mod stats;

use super::*;
use crate::core::accelerators::AcceleratorPlan;
use crate::core::binding::BindingPolicy;
use crate::core::cause::Exit;
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::limits::{FAILURES_SINGLE_MAX, FILE_NAMES_MAX};
use crate::core::message::{Contribution, OpenFence, ReleaseContent, Reply, Requester, Update};
use crate::core::plan::DirectOutput;
use crate::core::tests::{NS, T, at, open, plan, plan_of, ranks};
use crate::core::timing::TimedPhase;
use bytes::Bytes;
use pmi::{Answer, Epoch, Puts, Request, RootRequest};

struct World {
    agent: Agent,
    actions: Vec<Action>,
}

/// Returns the leftovers of the report of the end, which must be the only action.
#[track_caller]
fn leftovers(actions: &[Action]) -> u64 {
    let [Action::ToParent(Up::Ended { leftovers, timing })] = actions else { panic!("{actions:?}") };
    assert!(timing.phases.contains_key(&TimedPhase::Teardown), "{timing:?}");
    *leftovers
}

impl World {
    /// The agent gets the session's plan.
    fn configure(&mut self, stats: bool) {
        self.after(T, Input::FromParent(Down::Session(Box::new(Self::session(stats)))));
    }

    fn session(stats: bool) -> SessionPlan {
        SessionPlan {
            environment: Vec::new(),
            shell: Bytes::new(),
            hold_lines: true,
            direct: [DirectOutput::Never; 2],
            pmi_port: false,
            kill_grace: Duration::ZERO,
            cache: CachePolicy::default(),
            clean_shm: crate::core::CleanShm::default(),
            on_failure: FailurePolicy::default(),
            dead_time: Duration::from_secs(5),
            has_ports: true,
            rank_sessions: crate::core::RankSessions::All,
            stats,
            trace: None,
            pmix: None,
            binding: BindingPolicy::default(),
            accelerators: AcceleratorPlan::default(),
            piece_bytes: std::num::NonZeroU32::new(100),
            stage: crate::core::StagePlan::default(),
            profile: false,
            collect: crate::core::CollectPlan::default(),
            sent: Duration::ZERO,
        }
    }

    /// Agent `id` of a tree. All of its children are ready, and it has reported so.
    fn joined(id: u32, agents: u32, fanout: u32) -> Self {
        let here = Subtree::whole(agents, fanout).of(AgentId(id)).unwrap();
        let mut world = Self { agent: Agent::new(here), actions: Vec::new() };
        world.after(T, Input::Timeout);
        for child in here.children() {
            world.after(T, Input::ChildJoined(child.head()));
            world.after(T, Input::FromChild(child.head(), Up::Ready));
        }
        world
    }

    /// A leaf with the ranks `set` of `size`, all running.
    fn leaf(size: u32, set: &str) -> Self {
        let mut world = Self::joined(1, 1, 2);
        world.after(T, Input::FromParent(Down::Launch(Box::new(plan(size, &[(1, set)])))));
        world.after(T, Input::Started(NS, ranks(set)));
        world
    }

    fn after(&mut self, now: Time, input: Input) -> Vec<Action> {
        self.agent.handle(now, input, &mut self.actions);
        self.agent.check_invariants();
        std::mem::take(&mut self.actions)
    }

    /// An agent with two running ranks. Its child has two ranks, and the child's child has one.
    fn inner() -> Self {
        let mut world = Self::joined(1, 3, 1); // 1 - 2 - 3
        world.configure(false);
        let plan = plan(5, &[(1, "0-1"), (2, "2-3"), (3, "4")]);
        world.after(T, Input::FromParent(Down::Launch(Box::new(NamespacePlan { owners: owned(&[(3, 1)]), ..plan }))));
        world.after(T, Input::Started(NS, ranks("0-1")));
        world
    }

    /// A leaf with ranks 2-3 of 4. Agent 1 owns the attributes of its node.
    fn on_node_of_agent_1() -> Self {
        let mut world = Self::joined(2, 2, 2);
        let plan = NamespacePlan { owners: owned(&[(2, 1)]), ..plan(4, &[(2, "2-3")]) };
        world.after(T, Input::FromParent(Down::Launch(Box::new(plan))));
        world.after(T, Input::Started(NS, ranks("2-3")));
        world
    }

    fn asks(&mut self, rank: u32, request: Request) -> Vec<Action> {
        self.after(T, Input::FromRank(NS, Rank(rank), request))
    }

    fn ring(&mut self, rank: u32) -> Vec<Action> {
        let (to_left, to_right) = (format!("{rank}<").into_bytes(), format!(">{rank}").into_bytes());
        self.asks(rank, Request::Ring { to_left, to_right })
    }

    fn fence(&mut self, now: Time, rank: u32, key: &str) -> Vec<Action> {
        let mut puts = Puts::new();
        puts.push(Rank(rank), key.as_bytes(), b"v");
        self.after(now, Input::FromRank(NS, Rank(rank), Request::Fence { puts, in_segment: false }))
    }
}

fn owned(owners: &[(u32, u32)]) -> Vec<(AgentId, AgentId)> {
    owners.iter().map(|(agent, owner)| (AgentId(*agent), AgentId(*owner))).collect()
}

fn requester(agent: u32, rank: u32) -> Requester {
    Requester { agent: AgentId(agent), namespace: NS, rank: Rank(rank), number: 0 }
}

fn gathered(actions: &[Action]) -> Option<(&Ranks, usize)> {
    actions.iter().find_map(|action| match action {
        Action::ToParent(Up::Gathered { ranks, contribution: Contribution::Puts(puts), .. }) => {
            Some((ranks, puts.validate().unwrap()))
        }
        _ => None,
    })
}

fn failures(actions: &[Action]) -> Vec<&Cause> {
    let failed = |action| match action {
        &Action::ToParent(Up::Failed(Failure { ref cause, .. })) => Some(cause),
        _ => None,
    };
    actions.iter().filter_map(failed).collect()
}

#[test]
fn a_leaf_reports_ready_at_once_and_only_once() {
    let mut agent = Agent::new(Subtree::whole(1, 2).of(AgentId(1)).unwrap());
    let mut actions = Vec::new();
    agent.handle(T, Input::Timeout, &mut actions);
    agent.handle(T, Input::Timeout, &mut actions);
    assert_eq!(actions, [Action::ToParent(Up::Ready)]);
}

#[test]
fn an_inner_agent_reports_ready_when_its_subtree_is() {
    let here = Subtree::whole(3, 1).of(AgentId(1)).unwrap();
    let mut world = World { agent: Agent::new(here), actions: Vec::new() };
    assert_eq!(world.after(T, Input::ChildJoined(AgentId(2))), []);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), Up::Ready)), [Action::ToParent(Up::Ready)]);
}

#[test]
fn each_child_gets_its_share_of_a_launch() {
    let mut world = World::joined(1, 3, 1); // 1 - 2 - 3
    let actions = world.after(T, Input::FromParent(Down::Launch(Box::new(plan(4, &[(1, "0-1"), (3, "2-3")])))));
    let [Action::ToChild(AgentId(2), Down::Launch(share)), Action::Start(_, own, _)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(share.placement, [(AgentId(3), ranks("2-3"))]);
    assert_eq!(*own, ranks("0-1"));
}

#[test]
fn an_inconsistent_plan_is_refused() {
    let mut world = World::joined(1, 1, 2);
    let elsewhere = NamespacePlan { owners: vec![(AgentId(2), AgentId(1))], ..plan(2, &[(1, "0-1")]) };
    let beyond = plan(2, &[(1, "0"), (2, "1")]);
    for broken in [plan(2, &[(1, "0-2")]), plan(2, &[(1, "0"), (1, "0")]), elsewhere, beyond] {
        let actions = world.after(T, Input::FromParent(Down::Launch(Box::new(broken))));
        assert!(matches!(failures(&actions)[..], [Cause::NotStarted { .. }]) && actions.len() == 1, "{actions:?}");
    }
}

#[test]
fn started_is_reported_once_for_the_whole_subtree() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(4, &[(1, "0-1"), (2, "2-3")])))));
    assert_eq!(world.after(T, Input::Started(NS, ranks("0"))), []);
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), Up::Started { namespace: NS })), []);
    assert_eq!(world.after(T, Input::Started(NS, ranks("1"))), [Action::ToParent(Up::Started { namespace: NS })]);
}

#[test]
fn a_fence_goes_up_as_one_message_and_down_children_first() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-1"), (2, "2")])))));
    world.after(T, Input::Started(NS, ranks("0-1")));
    assert_eq!(gathered(&world.fence(T, 0, "a")), None);
    let mut puts = Puts::new();
    puts.push(Rank(2), b"c", b"v");
    let child = Up::Gathered { namespace: NS, number: 0, ranks: ranks("2"), contribution: Contribution::Puts(puts) };
    assert_eq!(gathered(&world.after(T, Input::FromChild(AgentId(2), child))), None);
    assert_eq!(gathered(&world.fence(T, 1, "b")), Some((&ranks("0-2"), 3)));

    let epoch = Epoch::from_entries([(&b"a"[..], &b"v"[..])]);
    let release =
        Down::Release { namespace: NS, number: 0, content: ReleaseContent::Update(Update::Epoch(epoch.clone())) };
    let actions = world.after(T, Input::FromParent(release.clone()));
    assert_eq!(
        actions,
        [Action::ToChild(AgentId(2), release), Action::Publish(NS, epoch), Action::Release(NS, ranks("0-1"))]
    );
}

#[test]
fn a_release_out_of_turn_releases_no_rank() {
    let mut world = World::leaf(2, "0-1");
    world.fence(T, 0, "a");
    for number in [0, 1, 7] {
        let release =
            Down::Release { namespace: NS, number, content: ReleaseContent::Update(Update::Epoch(Epoch::default())) };
        assert_eq!(world.after(T, Input::FromParent(release)), [], "fence {number}");
    }
}

#[test]
fn an_agent_that_was_stopped_and_has_lost_its_parent_kills_its_ranks_at_once() {
    let (dead_time, short) = (World::session(false).dead_time, Duration::from_nanos(1));
    for (stopped, is_killed) in [(None, false), (Some(dead_time - short), false), (Some(dead_time), true)] {
        let mut world = World::joined(1, 1, 1);
        let session = SessionPlan { on_failure: FailurePolicy::RestartRank, ..World::session(false) };
        world.after(T, Input::FromParent(Down::Session(Box::new(session))));
        world.after(T, Input::FromParent(Down::Launch(Box::new(plan(1, &[(1, "0")])))));
        world.after(T, Input::Started(NS, ranks("0")));
        if let Some(time) = stopped {
            assert_eq!(world.after(at(9000), Input::Stopped(time)), []);
        }
        let actions = world.after(at(9001), Input::ParentLost { why: LossReason::Closed });
        assert_eq!(actions.contains(&Action::Signal(NS, ranks("0"), SIGKILL)), is_killed, "{actions:?}");
        assert_eq!(actions.iter().any(|action| matches!(action, Action::Rejoin(_))), !is_killed, "{actions:?}");
    }
}

#[test]
fn an_agent_that_loses_its_parent_a_dead_time_after_it_was_stopped_joins_an_ancestor() {
    let mut world = World::joined(1, 1, 1);
    let session = SessionPlan { on_failure: FailurePolicy::Continue, ..World::session(false) };
    let dead_time = session.dead_time;
    world.after(T, Input::FromParent(Down::Session(Box::new(session))));
    world.after(T, Input::Stopped(dead_time));
    let actions = world.after(T + dead_time, Input::ParentLost { why: LossReason::Closed });
    assert!(matches!(actions[..], [Action::Rejoin(_)]), "{actions:?}");
}

#[test]
fn a_child_that_is_lost_before_the_plan_has_arrived_has_not_started() {
    let mut world = World::joined(1, 2, 1);
    let actions = world.after(T, Input::ChildLost(AgentId(2), LossReason::Closed));
    let why = NotStartedReason::Lost(LossReason::Closed);
    let failure = Failure::of_agent(T, AgentId(2), Cause::NotStarted { why });
    assert_eq!(actions, [Action::ToParent(Up::Failed(failure))]);
}

#[test]
fn a_child_that_reports_ranks_of_others_is_cut_off() {
    let mut world = World::joined(1, 2, 1);
    world.configure(false);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-1"), (2, "2")])))));
    let lie =
        Up::Gathered { namespace: NS, number: 0, ranks: ranks("1-2"), contribution: Contribution::Puts(Puts::new()) };
    let actions = world.after(T, Input::FromChild(AgentId(2), lie));
    assert!(
        matches!(&actions[0], Action::CloseChild(AgentId(2), why) if why.to_string().contains("not the sender's")),
        "{actions:?}"
    );
    assert!(matches!(failures(&actions)[..], [Cause::Lost { .. }]));
}

#[test]
fn a_slow_fence_is_reported_once() {
    let mut world = World::leaf(2, "0-1");
    assert_eq!(world.fence(T, 0, "a"), [Action::WakeAt(at(250))]);
    assert_eq!(world.after(at(250), Input::Timeout), [Action::ToParent(Up::Waiting { namespace: NS, number: 0 })]);
    assert_eq!(world.after(at(900), Input::Timeout), []);
}

#[test]
fn exits_with_code_0_are_reported_together() {
    let mut world = World::leaf(3, "0-2");
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(1), Exit::Code(0))), [Action::WakeAt(at(20))]);
    assert_eq!(world.after(at(1), Input::RankEnded(NS, Rank(0), Exit::Code(0))), []);
    let actions = world.after(at(2), Input::RankEnded(NS, Rank(2), Exit::Code(0)));
    assert_eq!(
        actions,
        [Action::ToParent(Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("0-2") })]
    );
}

#[test]
fn the_last_exit_of_a_subtree_is_reported_at_once() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-1"), (2, "2")])))));
    world.after(T, Input::Started(NS, ranks("0-1")));
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    world.after(T, Input::RankEnded(NS, Rank(1), Exit::Code(0)));
    let below = Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("2") };
    assert_eq!(
        world.after(T, Input::FromChild(AgentId(2), below)),
        [Action::ToParent(Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("0-2") })]
    );
}

#[test]
fn a_failure_is_reported_at_once_and_once_per_rank() {
    let mut world = World::leaf(3, "0-2");
    let actions = world.after(at(3), Input::FromRank(NS, Rank(1), Request::Abort { code: 7, message: "oops".into() }));
    assert_eq!(failures(&actions), [&Cause::Abort { code: 7, message: "oops".into() }]);
    assert_eq!(world.after(at(4), Input::RankEnded(NS, Rank(1), Exit::Code(7))), [], "its failure was reported");
    let actions = world.after(at(5), Input::RankEnded(NS, Rank(2), Exit::Code(9)));
    assert_eq!(failures(&actions), [&Cause::Code(9)]);
}

#[test]
fn failures_beyond_the_bound_are_only_counted() {
    let mut world = World::leaf(70, "0-69");
    let mut reported = 0;
    for rank in 0..70 {
        reported += failures(&world.after(T, Input::RankEnded(NS, Rank(rank), Exit::Code(1)))).len();
    }
    assert_eq!(reported, FAILURES_SINGLE_MAX as usize);
    let actions = world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert!(actions.contains(&Action::ToParent(Up::FailedMore { count: 6 })), "{actions:?}");
}

#[test]
fn a_rank_that_breaks_the_protocol_is_killed_and_named() {
    let mut world = World::leaf(1, "0");
    let actions = world.after(T, Input::FromRank(NS, Rank(0), Request::Broken { why: "rubbish".into() }));
    assert_eq!(actions[0], Action::Signal(NS, ranks("0"), SIGKILL));
    assert_eq!(failures(&actions), [&Cause::Broken { why: "rubbish".into() }]);
    let killed = Exit::Signal { signal: 9, core: false, out_of_memory: String::new() };
    assert_eq!(failures(&world.after(T, Input::RankEnded(NS, Rank(0), killed))), [] as [&Cause; 0]);
}

#[test]
fn the_end_is_term_grace_kill_and_sweep() {
    let mut world = World::leaf(2, "0-1");
    let end = Down::End { signal: 15, grace: Duration::from_secs(5) };
    assert_eq!(
        world.after(at(100), Input::FromParent(end)),
        [
            Action::CancelStarts,
            Action::Signal(NS, ranks("0-1"), 15),
            Action::Signal(NS, ranks("0-1"), SIGCONT),
            Action::WakeAt(at(5100)),
        ]
    );
    let term = Exit::Signal { signal: 15, core: false, out_of_memory: String::new() };
    assert_eq!(world.after(at(200), Input::RankEnded(NS, Rank(0), term.clone())), [], "our own signal is no failure");
    let killed = Killed { namespace: NS, ranks: ranks("1"), signal: 15, after: Duration::from_secs(5) };
    let kill = Action::Signal(NS, ranks("1"), SIGKILL);
    assert_eq!(world.after(at(5100), Input::Timeout), [Action::ToParent(Up::Killed(killed)), kill]);
    assert_eq!(world.after(at(5101), Input::RankEnded(NS, Rank(1), term)), [Action::Sweep]);
    assert_eq!(leftovers(&world.after(at(5102), Input::Swept { leftovers: 2 })), 2);
    assert_eq!(world.after(at(5103), Input::FromParent(Down::Leave)), [Action::Leave(0)]);
}

fn end_well() -> Input {
    Input::FromParent(Down::End { signal: NO_SIGNAL, grace: Duration::from_secs(5) })
}

/// An agent whose ranks have ended well.
fn ended_well() -> World {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    world
}

#[test]
fn processes_left_by_ranks_that_ended_well_have_a_grace_then_term_and_another_grace() {
    let mut world = ended_well();
    assert_eq!(world.after(at(100), end_well()), [Action::CancelStarts, Action::Linger, Action::WakeAt(at(5100))]);
    assert_eq!(world.after(at(200), end_well()), [], "a parent may repeat it");
    assert_eq!(world.after(at(5100), Input::Timeout), [Action::EndLeft, Action::WakeAt(at(10_100))]);
    let left = LeftProcesses { program: "x".into(), count: 1, example: (AgentId(1), 7), ranks: ranks("0") };
    let report = Action::ToParent(Up::Left(vec![left.clone()]));
    assert_eq!(world.after(at(5100), Input::Left(vec![left])), [report]);
    assert_eq!(world.after(at(10_100), Input::Timeout), [Action::Sweep]);
    assert_eq!(leftovers(&world.after(at(10_101), Input::Swept { leftovers: 1 })), 1);
}

#[test]
fn the_end_does_not_wait_longer_than_for_the_processes_that_ranks_have_left() {
    let mut world = ended_well();
    world.after(at(100), end_well());
    assert_eq!(leftovers(&world.after(at(101), Input::Swept { leftovers: 0 })), 0);
    assert_eq!(world.after(at(5100), Input::Timeout), []);
}

#[test]
fn an_end_with_a_signal_and_the_loss_of_the_parent_end_processes_that_are_left() {
    let kill = Down::End { signal: SIGKILL, grace: Duration::ZERO };
    for input in [Input::FromParent(kill), Input::ParentLost { why: LossReason::Closed }] {
        let mut world = ended_well();
        world.after(at(100), end_well());
        assert_eq!(world.after(at(101), input), [Action::Sweep]);
    }
}

#[test]
fn files_that_ranks_have_left_are_reported_before_the_end() {
    let mut world = World::joined(1, 2, 1);
    let report = || FileReport { removed: 1, removed_bytes: 7, ..FileReport::default() };
    let message = |agent| Up::FilesLeft { agent: AgentId(agent), report: report() };
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(world.after(T, Input::FilesLeft(report())), [Action::ToParent(message(1))]);
    assert_eq!(world.after(T, Input::Swept { leftovers: 0 }), []);
    // A child's report is passed on, within this agent's own bounds.
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), message(2))), [Action::ToParent(message(2))]);
    let left_names = vec![String::new(); FILE_NAMES_MAX + 1];
    let long = Up::FilesLeft { agent: AgentId(2), report: FileReport { left_names, ..report() } };
    let actions = world.after(T, Input::FromChild(AgentId(2), long));
    let [Action::ToParent(Up::FilesLeft { report, .. })] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(report.left_names.len(), FILE_NAMES_MAX);
}

#[test]
fn signals_for_ranks_are_passed_on_by_whoever_gets_them() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(2, &[(1, "0"), (2, "1")])))));
    world.after(T, Input::Started(NS, ranks("0")));
    let signal = |signal| Action::Signal(NS, ranks("0"), signal);
    assert_eq!(world.after(at(10), Input::Signalled(10, SignalWay::Guardian)), [signal(10)]);
    assert_eq!(world.after(at(11), Input::Signalled(10, SignalWay::Direct)), []);
    let forward = || Input::FromParent(Down::Signal { signal: 10 });
    let to_child = || Action::ToChild(AgentId(2), Down::Signal { signal: 10 });
    assert_eq!(world.after(at(12), forward()), [to_child()], "agents below may not have it");
    assert_eq!(world.after(at(13), forward()), [to_child(), signal(10)], "the user has sent two");
}

#[test]
fn a_term_that_a_manager_has_sent_to_the_ranks_is_not_sent_again() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::Signalled(15, SignalWay::Manager));
    world.after(T, Input::Signalled(15, SignalWay::Guardian));
    let end = Down::End { signal: 15, grace: Duration::from_secs(5) };
    let actions = world.after(T, Input::FromParent(end));
    assert!(actions.contains(&Action::Signal(NS, ranks("0"), SIGCONT)), "{actions:?}");
    assert!(!actions.contains(&Action::Signal(NS, ranks("0"), 15)), "{actions:?}");
}

#[test]
fn a_second_end_can_only_shorten_the_grace() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::from_secs(5) }));
    assert_eq!(world.after(T, Input::FromParent(Down::End { signal: 2, grace: Duration::from_secs(9) })), []);
    let at_once = Down::End { signal: SIGKILL, grace: Duration::ZERO };
    assert_eq!(world.after(T, Input::FromParent(at_once)), [Action::Signal(NS, ranks("0"), SIGKILL)]);
}

#[test]
fn an_order_to_take_over_ranks_that_the_end_has_overtaken_starts_none() {
    let mut world = World::joined(1, 1, 2);
    world.agent.on_failure = FailurePolicy::RestartRank;
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(2, &[(1, "0")])))));
    world.after(T, Input::Started(NS, ranks("0")));
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0))), [Action::Sweep]);
    let order = Down::MoveIn { agent: AgentId(1), namespace: NS, ranks: ranks("1"), incarnation: 1 };
    assert_eq!(world.after(T, Input::FromParent(order)), []);
}

#[test]
fn ranks_that_start_after_the_end_was_ordered_get_its_signal() {
    let mut world = World::joined(1, 1, 3);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-2")])))));
    world.after(T, Input::FromParent(Down::End { signal: 2, grace: Duration::from_secs(5) }));
    let actions = world.after(T, Input::Started(NS, ranks("0")));
    assert!(actions.contains(&Action::Signal(NS, ranks("0"), 2)), "{actions:?}");
    assert_eq!(world.after(T, Input::NotStarted(NS, ranks("1"), NotStartedReason::Cancelled)), []);
    let actions = world.after(at(5000), Input::Timeout);
    assert!(actions.contains(&Action::Signal(NS, ranks("0"), SIGKILL)), "{actions:?}");
    let actions = world.after(at(5001), Input::Started(NS, ranks("2")));
    assert!(actions.contains(&Action::Signal(NS, ranks("2"), SIGKILL)), "the grace is over: {actions:?}");
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0))), []);
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(2), Exit::Code(0))), [Action::Sweep]);
}

#[test]
fn without_its_parent_an_agent_kills_its_ranks_and_leaves() {
    let mut world = World::leaf(1, "0");
    let actions = world.after(T, Input::ParentLost { why: LossReason::Closed });
    assert_eq!(actions, [Action::CancelStarts, Action::Signal(NS, ranks("0"), SIGKILL)]);
    let killed = Exit::Signal { signal: 9, core: false, out_of_memory: String::new() };
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(0), killed)), [Action::Sweep]);
    assert_eq!(world.after(T, Input::Swept { leftovers: 0 }), [Action::Leave(252)]);
}

#[test]
fn an_agent_leaves_when_its_parent_is_lost_after_its_report() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    world.after(T, Input::RankEnded(NS, Rank(0), Exit::Code(0)));
    assert_eq!(leftovers(&world.after(T, Input::Swept { leftovers: 0 })), 0);
    assert_eq!(world.after(T, Input::ParentLost { why: LossReason::Closed }), [Action::Leave(252)]);
}

#[test]
fn a_lost_child_is_reported_once_and_not_awaited() {
    let mut world = World::joined(1, 2, 1);
    let actions = world.after(at(9), Input::ChildLost(AgentId(2), LossReason::Closed));
    let [Action::ToParent(Up::Failed(failure))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((failure.agent, failure.at), (AgentId(2), at(9)));
    assert_eq!(world.after(at(9), Input::ChildLost(AgentId(2), LossReason::Truncated)), []);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    let actions = world.after(T, Input::Swept { leftovers: 0 });
    assert_eq!(leftovers(&actions), 0);
}

#[test]
fn a_child_that_does_not_join_is_reported_as_not_started() {
    let here = Subtree::whole(3, 1).of(AgentId(1)).unwrap();
    let mut world = World { agent: Agent::new(here), actions: Vec::new() };
    assert_eq!(world.after(T, Input::Timeout), []);
    let cause = Cause::NotStarted { why: NotStartedReason::Reported("late".into()) };
    let failure = Failure { at: at(9), agent: AgentId(2), namespace: NS, ranks: Ranks::new(), cause };
    let report = [Action::ToParent(Up::Failed(failure))];
    assert_eq!(world.after(at(9), Input::ChildFailed(AgentId(2), NotStartedReason::Reported("late".into()))), report);
    assert_eq!(world.after(at(9), Input::ChildFailed(AgentId(2), NotStartedReason::Cancelled)), []);
    world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::ZERO }));
    assert_eq!(leftovers(&world.after(T, Input::Swept { leftovers: 0 })), 0, "the agent does not wait for it");
}

#[test]
fn an_undone_spawn_ends_silently() {
    let mut world = World::leaf(2, "0-1");
    assert_eq!(
        world.after(T, Input::FromParent(Down::Undo { namespace: NS })),
        [Action::Signal(NS, ranks("0-1"), SIGKILL)]
    );
    let killed = Exit::Signal { signal: 9, core: false, out_of_memory: String::new() };
    assert_eq!(world.after(T, Input::RankEnded(NS, Rank(0), killed)), []);
}

#[test]
fn a_stopped_rank_is_continued_so_that_it_gets_the_signal() {
    let mut world = World::leaf(1, "0");
    world.after(T, Input::FromParent(Down::Suspend));
    let actions = world.after(T, Input::FromParent(Down::End { signal: 15, grace: Duration::from_secs(1) }));
    let signals: Vec<_> = actions
        .iter()
        .filter_map(|a| if let Action::Signal(_, _, signal) = a { Some(*signal) } else { None })
        .collect();
    assert_eq!(signals, [15, SIGCONT]);
}

#[test]
fn questions_go_up_and_replies_reach_their_rank() {
    let mut world = World::joined(1, 2, 1);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-1"), (2, "2")])))));
    let actions =
        world.after(T, Input::FromRank(NS, Rank(0), Request::Ask(RootRequest::Lookup { service: b"s".to_vec() })));
    let request = RootRequest::Lookup { service: b"s".to_vec() };
    assert_eq!(actions, [Action::ToParent(Up::Ask { requester: requester(1, 0), request })]);
    let reply = |agent, rank| Down::Reply { requester: requester(agent, rank), reply: Reply::Found(Ok(b"p".to_vec())) };
    assert_eq!(
        world.after(T, Input::FromParent(reply(1, 0))),
        [Action::Answer(NS, Rank(0), Answer::Found(Ok(b"p".to_vec())))]
    );
    assert_eq!(world.after(T, Input::FromParent(reply(2, 2))), [Action::ToChild(AgentId(2), reply(2, 2))]);
}

#[test]
fn sigterm_is_reported_once_and_leaves_the_ranks_to_the_root() {
    let mut world = World::leaf(2, "0-1");
    let actions = world.after(T, Input::Signalled(15, SignalWay::Guardian));
    assert_eq!(failures(&actions), [&Cause::Terminated { signal: 15 }]);
    assert_eq!(actions.len(), 1, "no rank is signalled before the root ends the session: {actions:?}");
    assert_eq!(world.after(T, Input::Signalled(15, SignalWay::Guardian)), []);
}

#[test]
fn the_order_to_end_a_neighbour_reaches_its_agent() {
    use crate::core::ids::GuardianAt;
    let guardian = GuardianAt { machine: 1, guardian: (4711, 5), agent: (4712, 6) };
    let order = |agent| Down::EndNeighbour { agent: AgentId(agent), lost: AgentId(9), guardian };
    let mut world = World::joined(1, 3, 1);
    let mut down = |order| world.after(T, Input::FromParent(order));
    assert_eq!(down(order(1)), [Action::EndNeighbour(AgentId(9), guardian)]);
    assert_eq!(down(order(3)), [Action::ToChild(AgentId(2), order(3))]);
    assert_eq!(down(order(1000)), [], "it is not below this agent");
}
