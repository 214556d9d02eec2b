//! The root as a value: each input leads to exactly these actions and no others.

mod adopting;
mod deaths;
mod ends;
mod flushing;
mod hostile;
mod inquiries;
mod limits;
mod meetings;
mod moving;
mod notices;
mod restarts;
mod staging;
mod stats;
mod surveys;
mod watching;

use super::*;
use crate::core::accelerators::AcceleratorPlan;
use crate::core::binding::BindingPolicy;
use crate::core::cache::CachePolicy;
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::limits::GATHER_WINDOW;
use crate::core::message::{Contribution, Inquiry, InquiryKind, ReleaseContent, Reply, Requester, Update};
use crate::core::placement::place;
use crate::core::plan::DirectOutput;
use crate::core::ring::{RingPosition, RingSegment};
use crate::core::survey::{SURVEY_TIME, Survey, Wait};
use crate::core::tests::{NS, T, at, open, plan_of, ranks};
use bytes::Bytes;
use pmi::{NameError, Puts, RootRequest, SpawnCommand, SpawnRequest};

const GRACE: Duration = Duration::from_secs(5);

fn settings(size: u32, agents: u32, fanout: u32) -> RootSettings {
    let ids: Vec<_> = (1..=agents).map(AgentId).collect();
    RootSettings {
        tree: Subtree::whole(agents, fanout),
        session: SessionPlan {
            environment: Vec::new(),
            shell: Bytes::new(),
            hold_lines: true,
            direct: [DirectOutput::Never; 2],
            pmi_port: false,
            kill_grace: GRACE,
            cache: CachePolicy::default(),
            clean_shm: crate::core::CleanShm::default(),
            on_failure: crate::core::FailurePolicy::default(),
            dead_time: std::time::Duration::from_secs(5),
            has_ports: true,
            rank_sessions: crate::core::RankSessions::All,
            stats: false,
            trace: None,
            pmix: None,
            binding: BindingPolicy::default(),
            accelerators: AcceleratorPlan::default(),
            piece_bytes: None,
            stage: crate::core::StagePlan::default(),
            profile: false,
            collect: crate::core::CollectPlan::default(),
            sent: Duration::ZERO,
        },
        first: plan_of(size, place(size, &ids)),
        nodes: ids.into_iter().map(|id| (id, 0)).collect(),
        stuck_after: None,
        exit_timeout: None,
        expects_pmi: false,
        max_restarts: 3,
        packs: true,
    }
}

struct World {
    root: Root,
}

/// Whether the root only wakes up later, for what the user is told unasked.
fn are_wakes(actions: &[RootAction]) -> bool {
    actions.iter().all(|action| matches!(action, RootAction::WakeAt(_)))
}

impl World {
    fn new(size: u32, agents: u32, fanout: u32) -> Self {
        Self { root: Root::new(settings(size, agents, fanout)) }
    }

    /// Two agents below the root with two ranks each, all started.
    fn running() -> Self {
        let mut world = Self::new(4, 2, 2);
        for child in [1, 2] {
            world.up(T, child, Up::Ready);
        }
        for child in [1, 2] {
            world.up(T, child, Up::Started { namespace: NS });
        }
        world
    }

    /// All ranks have exited with 0 and all agents have ended, but output is unread.
    fn flushing() -> Self {
        let mut world = Self::running();
        for (child, ranks) in [(1, "0-1"), (2, "2-3")] {
            world.exited(child, 0, ranks);
        }
        for child in [1, 2] {
            world.up(T, child, Up::Ended { leftovers: 0, timing: Box::default() });
        }
        world
    }

    fn after(&mut self, now: Time, input: RootInput) -> Vec<RootAction> {
        let mut actions = Vec::new();
        self.root.handle(now, input, &mut actions);
        self.root.check_invariants();
        actions
    }

    fn up(&mut self, now: Time, child: u32, message: Up) -> Vec<RootAction> {
        self.after(now, RootInput::FromChild(AgentId(child), message))
    }

    fn gather(&mut self, child: u32, number: u32, set: &str, entries: &[(u32, &str, &str)]) -> Vec<RootAction> {
        let mut puts = Puts::new();
        for (rank, key, value) in entries {
            puts.push(Rank(*rank), key.as_bytes(), value.as_bytes());
        }
        self.up(
            T,
            child,
            Up::Gathered { namespace: NS, number, ranks: ranks(set), contribution: Contribution::Puts(puts) },
        )
    }

    fn exited(&mut self, child: u32, fences: u32, set: &str) -> Vec<RootAction> {
        self.up(at(50), child, Up::Exited { namespace: NS, fences, unfinished: false, ranks: ranks(set) })
    }

    fn fails(&mut self, now: Time, child: u32, rank: u32, cause: Cause) -> Vec<RootAction> {
        self.up(now, child, Up::Failed(Failure::of_rank(now, AgentId(child), NS, Rank(rank), cause)))
    }
}

#[test]
fn a_childs_number_of_failures_does_not_overflow() {
    let mut world = World::running();
    for rank in [0, 1] {
        world.fails(T, 1, rank, Cause::Code(3));
    }
    for _ in 0..2 {
        world.up(T, 1, Up::FailedMore { count: u64::MAX });
    }
    let elected = world.root.elected();
    assert!(matches!(elected, Outcome::Failed { others: u64::MAX, .. }), "{elected:?}");
}

fn requester(agent: u32, rank: u32) -> Requester {
    Requester { agent: AgentId(agent), namespace: NS, rank: Rank(rank), number: 0 }
}

fn outcome(actions: &[RootAction]) -> Option<&Outcome> {
    actions.iter().find_map(|action| if let RootAction::Over(outcome) = action { Some(outcome) } else { None })
}

fn sent(actions: &[RootAction], child: u32) -> Vec<&Down> {
    let to = |action| match action {
        &RootAction::ToChild(id, ref message) if id == AgentId(child) => Some(message),
        _ => None,
    };
    actions.iter().filter_map(to).collect()
}

#[test]
fn no_rank_starts_before_all_agents_have_joined() {
    let mut world = World::new(4, 2, 2);
    assert_eq!(world.up(T, 1, Up::Ready), [RootAction::WakeAt(JOIN_TIME)]);
    let actions = world.up(T, 2, Up::Ready);
    for child in [1, 2] {
        assert!(matches!(sent(&actions, child)[..], [Down::Session(_), Down::Launch(_)]), "{actions:?}");
    }
}

#[test]
fn a_fence_is_released_with_one_winner_per_key() {
    let mut world = World::running();
    assert!(are_wakes(&world.gather(1, 0, "0-1", &[(1, "k", "low"), (0, "a", "x")])));
    let actions = world.gather(2, 0, "2-3", &[(2, "k", "high")]);
    let [Down::Release { number: 0, content: ReleaseContent::Update(Update::Epoch(epoch)), .. }] =
        sent(&actions, 1)[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(sent(&actions, 1), sent(&actions, 2), "all children get the same bytes");
    assert_eq!((epoch.len(), epoch.get(b"k"), epoch.get(b"a")), (2, Some(&b"high"[..]), Some(&b"x"[..])));
    world.gather(1, 1, "0-1", &[]);
    let actions = world.gather(2, 1, "2-3", &[]);
    assert!(
        matches!(sent(&actions, 1)[..], [Down::Release { number: 1, content: ReleaseContent::Update(Update::Epoch(epoch)), .. }] if epoch.is_empty())
    );
}

#[test]
fn a_session_without_failures_ends_by_itself() {
    let mut world = World::running();
    assert_eq!(world.exited(1, 0, "0-1"), []);
    let actions = world.exited(2, 0, "2-3");
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    world.up(T, 1, Up::Ended { leftovers: 0, timing: Box::default() });
    assert_eq!(
        outcome(&world.up(T, 2, Up::Ended { leftovers: 1, timing: Box::default() })),
        None,
        "output may still be unread"
    );
    let actions = world.after(T, RootInput::OutputDone);
    assert_eq!(outcome(&actions), Some(&Outcome::Success));
    assert!(actions.contains(&RootAction::Notice(Notice::Leftovers(1, Vec::new(), GRACE))));
    assert!(sent(&actions, 1).contains(&&Down::Leave));
}

#[test]
fn after_a_term_ranks_have_the_grace_of_the_resource_manager() {
    let wait = Duration::from_secs(30);
    let terminated = Failure::of_agent(T, AgentId(1), Cause::Terminated { signal: 15 });
    let others = [
        (RootInput::Interrupt(15), 15, wait),
        (RootInput::FromChild(AgentId(1), Up::Failed(terminated)), 15, wait),
        (RootInput::Interrupt(2), 2, GRACE),
        (RootInput::TimeLimit(wait), 15, GRACE),
    ];
    for (input, signal, grace) in others {
        let mut world = World::running();
        world.after(T, RootInput::KillWait(wait));
        let mut actions = world.after(T, input);
        actions.extend(world.after(T + GATHER_WINDOW, RootInput::Timeout));
        assert!(sent(&actions, 1).contains(&&Down::End { signal, grace }), "{actions:?}");
    }
}

#[test]
fn processes_that_ranks_have_left_are_named_at_the_end_and_a_signal_ends_them_at_once() {
    let mut world = World::running();
    world.exited(1, 0, "0-1");
    let end = Down::End { signal: NO_SIGNAL, grace: GRACE };
    assert!(sent(&world.exited(2, 0, "2-3"), 1).contains(&&end));
    let left = |agent, set| LeftProcesses {
        program: "sleep".into(),
        count: 1,
        example: (AgentId(agent), 7),
        ranks: ranks(set),
    };
    for (child, set) in [(1, "0"), (2, "2")] {
        assert_eq!(world.up(T, child, Up::Left(vec![left(child, set)])), []);
    }
    for input in [RootInput::Interrupt(15), RootInput::Interrupt(2), RootInput::TimeLimit(GRACE)] {
        let kill = Down::End { signal: 9, grace: Duration::ZERO };
        assert_eq!(sent(&world.after(T, input), 2), [&kill]);
    }
    // Two graces later the agents may still report.
    let actions = world.after(T + 2 * GRACE, RootInput::Timeout);
    assert!(!actions.iter().any(|action| matches!(action, RootAction::CloseChild(..))) && outcome(&actions).is_none());
    for child in [1, 2] {
        world.up(T, child, Up::Ended { leftovers: 1, timing: Box::default() });
    }
    let actions = world.after(T, RootInput::OutputDone);
    assert_eq!(outcome(&actions), Some(&Outcome::Success));
    let both = LeftProcesses { count: 2, ..left(1, "0,2") };
    assert!(actions.contains(&RootAction::Notice(Notice::Leftovers(2, vec![both], GRACE))), "{actions:?}");
}

#[test]
fn files_that_ranks_have_left_are_shown_to_the_user() {
    let mut world = World::running();
    let report = || FileReport { removed: 1, removed_bytes: 7, ..FileReport::default() };
    let actions = world.up(T, 1, Up::FilesLeft { agent: AgentId(1), report: report() });
    assert_eq!(actions, [RootAction::Notice(Notice::FilesLeft(AgentId(1), report()))]);
}

#[test]
fn a_slow_reader_of_output_has_no_time_limit() {
    let mut world = World::flushing();
    assert_eq!(world.after(at(100_000_000), RootInput::Timeout), []);
    assert_eq!(outcome(&world.after(at(100_000_001), RootInput::OutputDone)), Some(&Outcome::Success));
}

#[test]
fn output_lost_at_the_end_is_no_success() {
    let mut world = World::running();
    world.exited(1, 0, "0-1");
    world.exited(2, 0, "2-3");
    world.after(T, RootInput::OutputLost);
    world.up(T, 1, Up::Ended { leftovers: 0, timing: Box::default() });
    world.up(T, 2, Up::Ended { leftovers: 0, timing: Box::default() });
    assert_eq!(outcome(&world.after(T, RootInput::OutputDone)), Some(&Outcome::OutputLost));
}

#[test]
fn an_agent_lost_while_output_is_unread_is_no_success() {
    let mut world = World::flushing();
    world.fails(T, 2, 2, Cause::Lost { why: LossReason::Closed });
    let actions = world.after(T, RootInput::OutputDone);
    assert!(matches!(outcome(&actions), Some(Outcome::Failed { others: 0, .. })), "{actions:?}");
}

#[test]
fn a_child_lost_before_its_output_has_arrived_is_no_success() {
    let mut world = World::flushing();
    world.after(T, RootInput::ChildOutputLost(AgentId(2), LossReason::Closed));
    let actions = world.after(T, RootInput::OutputDone);
    assert!(matches!(outcome(&actions), Some(Outcome::Failed { others: 0, .. })), "{actions:?}");
}

#[test]
fn the_first_cause_is_elected_after_a_short_wait() {
    let mut world = World::running();
    let actions = world.fails(at(10), 1, 0, Cause::Code(1));
    assert!(actions.contains(&RootAction::WakeAt(at(110))), "{actions:?}");
    world.fails(at(40), 2, 3, Cause::Signal { signal: 11, core: true, out_of_memory: String::new() });
    let actions = world.after(at(110), RootInput::Timeout);
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: 15, grace: GRACE }]), "{actions:?}");
    world.up(at(120), 1, Up::Ended { leftovers: 0, timing: Box::default() });
    world.up(at(120), 2, Up::Ended { leftovers: 0, timing: Box::default() });
    let actions = world.after(at(121), RootInput::OutputDone);
    let Some(Outcome::Failed { first, others: 1 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(
        (&first.ranks, &first.cause),
        (&ranks("3"), &Cause::Signal { signal: 11, core: true, out_of_memory: String::new() })
    );
}

#[test]
fn a_rank_that_exited_while_others_wait_is_named_for_either_order_of_reports() {
    for exit_first in [true, false] {
        let mut world = World::running();
        let mut actions = Vec::new();
        if exit_first {
            actions.extend(world.exited(1, 0, "0"));
        }
        actions.extend(world.gather(2, 0, "2-3", &[]));
        if !exit_first {
            actions.extend(world.exited(1, 0, "0"));
        }
        let notice = actions.iter().find_map(|action| match action {
            RootAction::Notice(Notice::Failure(failure)) => Some(failure),
            _ => None,
        });
        let failure = notice.unwrap_or_else(|| panic!("{actions:?}"));
        assert_eq!(
            (&failure.ranks, &failure.cause, failure.agent),
            (&ranks("0"), &Cause::ExitedEarly { in_fence: true }, AgentId(1))
        );
    }
}

#[test]
fn ranks_that_wait_in_an_incomplete_subtree_count_too() {
    let mut world = World::running();
    world.exited(1, 0, "0");
    let actions = world.up(T, 2, Up::Waiting { namespace: NS, number: 0 });
    assert!(actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(_)))), "{actions:?}");
}

#[test]
fn a_rank_that_never_finalized_fails_the_session_if_others_run_on() {
    let mut world = World::running();
    let exited = Up::Exited { namespace: NS, fences: 3, unfinished: true, ranks: ranks("1") };
    let actions = world.up(at(50), 1, exited);
    assert_eq!(actions, [RootAction::WakeAt(at(2050))], "perhaps all ranks end that way");
    let actions = world.after(at(2050), RootInput::Timeout);
    let RootAction::Notice(Notice::Failure(failure)) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!((&failure.ranks, &failure.cause), (&ranks("1"), &Cause::ExitedEarly { in_fence: false }));
}

#[test]
fn ranks_that_all_end_without_finalizing_are_no_failure() {
    let mut world = World::running();
    for (child, set) in [(1, "0-1"), (2, "2-3")] {
        world.up(at(50), child, Up::Exited { namespace: NS, fences: 0, unfinished: true, ranks: ranks(set) });
    }
    let actions = world.after(at(5000), RootInput::Timeout);
    assert!(!actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(_)))), "{actions:?}");
}

#[test]
fn ranks_may_exit_after_the_last_fence_in_any_order() {
    let mut world = World::running();
    world.gather(1, 0, "0-1", &[]);
    world.exited(1, 1, "0");
    // This report is about a fence that rank 0 has passed.
    world.up(T, 2, Up::Waiting { namespace: NS, number: 0 });
    let actions = world.gather(2, 0, "2-3", &[]);
    assert!(!actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(_)))), "{actions:?}");
}

#[test]
fn a_lost_child_is_a_lost_agent() {
    let mut world = World::running();
    world.after(at(5), RootInput::ChildLost(AgentId(2), LossReason::Closed));
    world.after(at(105), RootInput::Timeout);
    world.up(at(106), 1, Up::Ended { leftovers: 0, timing: Box::default() });
    let actions = world.after(at(107), RootInput::OutputDone);
    let Some(Outcome::Failed { first, .. }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!((first.agent, &first.cause), (AgentId(2), &Cause::Lost { why: LossReason::Closed }));
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let mut world = World::running();
    let actions = world.after(T, RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: 2, grace: GRACE }]), "{actions:?}");
    let actions = world.after(T, RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: SIGKILL, grace: Duration::ZERO }]), "{actions:?}");
    world.up(T, 1, Up::Ended { leftovers: 0, timing: Box::default() });
    world.up(T, 2, Up::Ended { leftovers: 0, timing: Box::default() });
    assert_eq!(outcome(&world.after(T, RootInput::OutputDone)), Some(&Outcome::Interrupted { signal: 2 }));
}

#[test]
fn an_interrupt_before_the_launch_ends_at_once() {
    let mut world = World::new(4, 2, 2);
    world.up(T, 1, Up::Ready);
    assert_eq!(outcome(&world.after(T, RootInput::Interrupt(15))), Some(&Outcome::Interrupted { signal: 15 }));
}

#[test]
fn an_agent_that_cannot_be_started_is_a_launch_that_failed() {
    let no_memory = || NotStartedReason::Reported("no memory".into());
    let mut world = World::new(4, 2, 2);
    world.after(at(1), RootInput::AgentFailed(AgentId(2), no_memory()));
    let actions = world.after(at(101), RootInput::Timeout);
    let Some(Outcome::Failed { first, others: 0 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(first.cause, Cause::NotStarted { why: no_memory() });
}

#[test]
fn agents_that_never_join_are_named_at_the_time_limit() {
    let mut world = World::new(4, 2, 2);
    world.up(T, 1, Up::Ready);
    let actions = world.after(JOIN_TIME, RootInput::Timeout);
    let Some(Outcome::Failed { first, others: 0 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(first.agent, AgentId(2));
}

#[test]
fn an_agent_that_does_not_end_its_ranks_is_lost() {
    let mut world = World::running();
    world.after(T, RootInput::Interrupt(2));
    world.up(T, 1, Up::Ended { leftovers: 0, timing: Box::default() });
    let actions = world.after(GRACE + END_MARGIN, RootInput::Timeout);
    assert!(
        actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(f)) if f.agent == AgentId(2)))
    );
    assert!(outcome(&world.after(T, RootInput::OutputDone)).is_some());
}

fn is_survey(message: &Down) -> bool {
    matches!(message, Down::Survey { .. })
}

fn answer(number: u32) -> Up {
    Up::Surveyed { number, survey: Box::default() }
}

#[test]
fn a_fence_that_does_not_complete_is_surveyed_once() {
    let mut world = World::running();
    world.root.stuck_after = Some(Duration::from_secs(10));
    world.up(at(1000), 1, Up::Contact { namespace: NS });
    let actions = world.up(at(1000), 1, Up::Waiting { namespace: NS, number: 0 });
    assert!(actions.contains(&RootAction::WakeAt(at(11_000))), "{actions:?}");
    // A second report about the same fence changes nothing.
    world.up(at(5000), 2, Up::Waiting { namespace: NS, number: 0 });
    let actions = world.after(at(11_000), RootInput::Timeout);
    assert!(matches!(sent(&actions, 2)[..], [Down::Survey { number: 1, .. }]), "{actions:?}");
    assert_eq!(world.up(at(11_001), 1, answer(1)), []);
    let actions = world.up(at(11_002), 2, answer(1));
    assert_eq!(actions, [RootAction::Notice(Notice::Surveyed(Box::default(), Vec::new(), SurveyCause::Stuck))]);
    assert!(!sent(&world.after(at(60_000), RootInput::Timeout), 1).into_iter().any(is_survey));
}

#[test]
fn agents_that_do_not_answer_a_survey_are_named_when_its_time_is_over() {
    let mut world = World::running();
    let actions = world.after(at(1000), RootInput::Survey);
    assert!(actions.contains(&RootAction::WakeAt(at(1000) + SURVEY_TIME)), "{actions:?}");
    assert_eq!(world.after(at(1001), RootInput::Survey), [], "one survey at a time");
    world.up(at(1002), 2, answer(1));
    let actions = world.after(at(1000) + SURVEY_TIME, RootInput::Timeout);
    let survey = Survey { namespaces: Vec::new(), silent: vec![AgentId(1)] };
    assert_eq!(actions, [RootAction::Notice(Notice::Surveyed(Box::new(survey), Vec::new(), SurveyCause::Asked))]);
    assert_eq!(world.up(at(9000), 1, answer(1)), [], "a late answer is dropped");
}

#[test]
fn an_interrupt_surveys_an_open_fence_before_the_ranks_are_signalled() {
    let mut world = World::running();
    world.up(T, 1, Up::Waiting { namespace: NS, number: 0 });
    let actions = world.after(at(1), RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::Survey { .. }, Down::End { .. }]), "{actions:?}");
    let mut world = World::running();
    let actions = world.after(at(1), RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "no fence is open: {actions:?}");
}

fn not_found() -> NotStartedReason {
    NotStartedReason::Reported("not found".into())
}

fn spawn(world: &mut World, nprocs: u32) -> Vec<RootAction> {
    let command = SpawnCommand {
        program: b"child".to_vec(),
        args: Vec::new(),
        nprocs,
        info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
    };
    let request = SpawnRequest { commands: vec![command], preputs: vec![(b"k".to_vec(), b"v".to_vec())] };
    world.up(T, 2, Up::Ask { requester: requester(2, 3), request: RootRequest::Spawn(request) })
}

#[test]
fn a_spawn_is_answered_when_all_its_ranks_are_started() {
    let mut world = World::running();
    let actions = spawn(&mut world, 5);
    let [Down::Launch(share)] = sent(&actions, 1)[..] else { panic!("{actions:?}") };
    assert_eq!((share.id, share.size, share.kvsname.as_str()), (NamespaceId(1), 5, "scela-77_1"));
    assert_eq!((share.commands[0].wdir.as_slice(), share.preputs.len()), (&b"/tmp"[..], 1));
    let started = Up::Started { namespace: NamespaceId(1) };
    assert_eq!(sent(&world.up(T, 1, started.clone()), 2), [] as [&Down; 0]);
    let actions = world.up(T, 2, started);
    assert!(
        matches!(
            sent(&actions, 2)[..],
            [Down::Reply { requester: Requester { rank: Rank(3), .. }, reply: Reply::Spawned(Ok((_, 5))) }]
        ),
        "{actions:?}"
    );
    // The session lasts as long as its last namespace.
    world.exited(1, 0, "0-1");
    assert_eq!(sent(&world.exited(2, 0, "2-3"), 1), [] as [&Down; 0]);
    let all = Up::Exited { namespace: NamespaceId(1), fences: 0, unfinished: false, ranks: ranks("0-4") };
    assert!(matches!(sent(&world.up(T, 1, all), 1)[..], [Down::End { .. }]));
}

#[test]
fn a_failed_spawn_is_undone_and_fails_only_the_request() {
    let mut world = World::running();
    spawn(&mut world, 2);
    let failure = Failure {
        at: T,
        agent: AgentId(1),
        namespace: NamespaceId(1),
        ranks: ranks("0"),
        cause: Cause::NotStarted { why: not_found() },
    };
    let actions = world.up(T, 1, Up::Failed(failure.clone()));
    assert!(sent(&actions, 1).contains(&&Down::Undo { namespace: NamespaceId(1) }), "{actions:?}");
    let reply = Down::Reply { requester: requester(2, 3), reply: Reply::Spawned(Err("not found".into())) };
    assert!(sent(&actions, 2).contains(&&reply), "{actions:?}");
    assert_eq!(world.up(T, 2, Up::Failed(failure)), [], "the request is answered once");
}

#[test]
fn names_belong_to_the_session() {
    let mut world = World::running();
    let mut ask = |request| {
        let actions = world.up(T, 1, Up::Ask { requester: requester(1, 0), request });
        match sent(&actions, 1)[..] {
            [Down::Reply { reply, .. }] => reply.clone(),
            _ => panic!("{actions:?}"),
        }
    };
    let service = || b"s".to_vec();
    assert_eq!(ask(RootRequest::Lookup { service: service() }), Reply::Found(Err(NameError::Unknown)));
    assert_eq!(ask(RootRequest::Publish { service: service(), port: b"p".to_vec() }), Reply::Published(Ok(())));
    assert_eq!(
        ask(RootRequest::Publish { service: service(), port: b"q".to_vec() }),
        Reply::Published(Err(NameError::Taken))
    );
    assert_eq!(ask(RootRequest::Lookup { service: service() }), Reply::Found(Ok(b"p".to_vec())));
    assert_eq!(ask(RootRequest::Unpublish { service: service() }), Reply::Unpublished(Ok(())));
    assert_eq!(ask(RootRequest::Unpublish { service: service() }), Reply::Unpublished(Err(NameError::Unknown)));
}

fn segment(count: u32, to_left: &str, to_right: &str) -> Contribution {
    Contribution::Ring(RingSegment { count, to_left: to_left.into(), to_right: to_right.into() })
}

impl World {
    fn ring(&mut self, child: u32, set: &str, segment: Contribution) -> Vec<RootAction> {
        self.up(T, child, Up::Gathered { namespace: NS, number: 0, ranks: ranks(set), contribution: segment })
    }

    fn asks(&mut self, request: RootRequest) -> Vec<RootAction> {
        self.up(T, 1, Up::Ask { requester: requester(1, 0), request })
    }

    /// Three agents with two ranks each, the first two on one node.
    fn on_one_node() -> Self {
        let mut settings = settings(6, 3, 3);
        settings.first.owners = vec![(AgentId(2), AgentId(1))];
        let mut world = Self { root: Root::new(settings) };
        for child in [1, 2, 3] {
            world.up(T, child, Up::Ready);
        }
        world
    }
}

#[test]
fn the_root_closes_a_ring() {
    let mut world = World::running();
    assert!(are_wakes(&world.ring(2, "2-3", segment(2, "c<", ">d"))));
    let released = |position, from_left: &str, from_right: &str| Down::Release {
        namespace: NS,
        number: 0,
        content: ReleaseContent::Ring(RingPosition {
            position,
            from_left: from_left.into(),
            from_right: from_right.into(),
        }),
    };
    assert_eq!(
        world.ring(1, "0-1", segment(2, "a<", ">b")),
        [
            RootAction::ToChild(AgentId(1), released(0, ">d", "c<")),
            RootAction::ToChild(AgentId(2), released(2, ">b", "a<")),
            RootAction::Notice(Notice::Released { namespace: NS, number: 0, entries: 0, bytes: 0, took: T }),
        ]
    );
    world.gather(1, 1, "0-1", &[]);
    assert!(!world.gather(2, 1, "2-3", &[]).is_empty(), "the next one may be a fence");
}

#[test]
fn a_rank_that_exited_before_a_ring_is_named() {
    let mut world = World::running();
    world.exited(1, 0, "0");
    let actions = world.ring(2, "2-3", segment(2, "", ""));
    let [RootAction::Notice(Notice::Failure(failure)), RootAction::WakeAt(_)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((&failure.ranks, &failure.cause), (&ranks("0"), &Cause::ExitedEarly { in_fence: true }));
}

#[test]
fn ranks_that_mix_fence_and_ring_fail_the_session() {
    let mut world = World::running();
    world.ring(1, "0-1", segment(2, "", ""));
    let actions = world.gather(2, 0, "2-3", &[]);
    let [RootAction::Notice(Notice::Failure(failure)), RootAction::WakeAt(_)] = &actions[..] else {
        panic!("{actions:?}")
    };
    let cause = Cause::Broken { why: "entered a fence where others called PMIX_Ring".into() };
    assert_eq!((failure.agent, &failure.ranks, &failure.cause), (AgentId(2), &ranks("2-3"), &cause));
}

#[test]
fn a_child_with_an_invalid_ring_segment_is_cut_off() {
    let mut world = World::running();
    let actions = world.ring(1, "0-1", segment(3, "", ""));
    let RootAction::CloseChild(AgentId(1), why) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(
        why.to_string(),
        "it broke the protocol: fence 0 of namespace 0: its part of the ring has 3 ranks, those that arrived are 0-1, \
         the sender's are 0-1"
    );
}
