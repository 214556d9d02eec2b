//! The root as a value.

use super::*;
use crate::core::placement::place;
use crate::core::plan::{CommandPlan, Inherit};
use pmi::{Mapping, Puts, SpawnCommand};

const T: Time = Time::ZERO;
const NS: NamespaceId = NamespaceId::FIRST;
const GRACE: Duration = Duration::from_secs(5);

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn ranks(text: &str) -> Ranks {
    text.parse().unwrap()
}

fn settings(size: u32, agents: u32, fanout: u32) -> RootSettings {
    let ids: Vec<_> = (1..=agents).map(AgentId).collect();
    RootSettings {
        tree: Subtree::whole(agents, fanout),
        session: SessionPlan {
            environment: Vec::new(),
            shell: Bytes::new(),
            hold_lines: true,
            pmi_port: false,
            kill_grace: GRACE,
        },
        first: NamespacePlan {
            id: NS,
            kvsname: "scela-77_0".into(),
            size,
            universe: 1,
            spawned: false,
            commands: vec![CommandPlan {
                nprocs: size,
                program: b"p".to_vec(),
                args: Vec::new(),
                inherit: Inherit::All,
                set: Vec::new(),
                wdir: b"/home".to_vec(),
            }],
            mapping: Mapping::single_node(size),
            placement: place(size, &ids),
            preputs: Vec::new(),
            stdin: Ranks::new(),
        },
        nodes: ids.into_iter().map(|id| (id, 0)).collect(),
    }
}

struct World {
    root: Root,
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

    fn after(&mut self, now: Time, input: RootInput) -> Vec<RootAction> {
        let mut actions = Vec::new();
        self.root.handle(now, input, &mut actions);
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
        self.up(T, child, Up::Gathered { namespace: NS, number, ranks: ranks(set), puts })
    }

    fn exited(&mut self, child: u32, fences: u32, set: &str) -> Vec<RootAction> {
        self.up(at(50), child, Up::Exited { namespace: NS, fences, unfinished: false, ranks: ranks(set) })
    }

    fn fails(&mut self, now: Time, child: u32, rank: u32, cause: Cause) -> Vec<RootAction> {
        self.up(now, child, Up::failed(now, AgentId(child), NS, Rank(rank), cause))
    }
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
    assert_eq!(world.gather(1, 0, "0-1", &[(1, "k", "low"), (0, "a", "x")]), []);
    let actions = world.gather(2, 0, "2-3", &[(2, "k", "high")]);
    let [Down::Release { number: 0, epoch, .. }] = sent(&actions, 1)[..] else { panic!("{actions:?}") };
    assert_eq!(sent(&actions, 1), sent(&actions, 2), "the same bytes for all");
    let epoch = Epoch::from_bytes(epoch.clone()).unwrap();
    assert_eq!((epoch.len(), epoch.get(b"k"), epoch.get(b"a")), (2, Some(&b"high"[..]), Some(&b"x"[..])));
    world.gather(1, 1, "0-1", &[]);
    let actions = world.gather(2, 1, "2-3", &[]);
    assert!(matches!(sent(&actions, 1)[..], [Down::Release { number: 1, epoch, .. }] if epoch.is_empty()));
}

#[test]
fn a_session_without_failures_ends_by_itself() {
    let mut world = World::running();
    assert_eq!(world.exited(1, 0, "0-1"), []);
    let actions = world.exited(2, 0, "2-3");
    assert!(matches!(sent(&actions, 1)[..], [Down::End { .. }]), "{actions:?}");
    world.up(T, 1, Up::Ended { leftovers: 0 });
    assert_eq!(outcome(&world.up(T, 2, Up::Ended { leftovers: 1 })), None, "output may still be on its way");
    let actions = world.after(T, RootInput::OutputDone);
    assert_eq!(outcome(&actions), Some(&Outcome::Success));
    assert!(actions.contains(&RootAction::Notice(Notice::Leftovers(1))));
    assert!(sent(&actions, 1).contains(&&Down::Leave));
}

#[test]
fn a_slow_reader_of_output_never_runs_out_of_time() {
    let mut world = World::running();
    world.exited(1, 0, "0-1");
    world.exited(2, 0, "2-3");
    world.up(T, 1, Up::Ended { leftovers: 0 });
    world.up(T, 2, Up::Ended { leftovers: 0 });
    assert_eq!(world.after(at(100_000_000), RootInput::Timeout), []);
    assert_eq!(outcome(&world.after(at(100_000_001), RootInput::OutputDone)), Some(&Outcome::Success));
}

#[test]
fn output_that_is_lost_at_the_end_is_no_success() {
    let mut world = World::running();
    world.exited(1, 0, "0-1");
    world.exited(2, 0, "2-3");
    world.after(T, RootInput::OutputLost);
    world.up(T, 1, Up::Ended { leftovers: 0 });
    world.up(T, 2, Up::Ended { leftovers: 0 });
    assert_eq!(outcome(&world.after(T, RootInput::OutputDone)), Some(&Outcome::OutputLost));
}

#[test]
fn the_first_cause_is_elected_after_a_short_wait() {
    let mut world = World::running();
    let actions = world.fails(at(10), 1, 0, Cause::Code(1));
    assert!(actions.contains(&RootAction::WakeAt(at(110))), "{actions:?}");
    world.fails(at(40), 2, 3, Cause::Signal { signal: 11, core: true, out_of_memory: false });
    let actions = world.after(at(110), RootInput::Timeout);
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: 15, grace: GRACE }]), "{actions:?}");
    world.up(at(120), 1, Up::Ended { leftovers: 0 });
    world.up(at(120), 2, Up::Ended { leftovers: 0 });
    let actions = world.after(at(121), RootInput::OutputDone);
    let Some(Outcome::Failed { first, others: 1 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(
        (&first.ranks, &first.cause),
        (&ranks("3"), &Cause::Signal { signal: 11, core: true, out_of_memory: false })
    );
}

#[test]
fn a_rank_that_left_while_others_wait_is_named_whichever_news_comes_first() {
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
            (&ranks("0"), &Cause::Left { in_fence: true }, AgentId(1))
        );
    }
}

#[test]
fn waiting_deep_in_a_subtree_counts_too() {
    let mut world = World::running();
    world.exited(1, 0, "0");
    let actions = world.up(T, 2, Up::Waiting { namespace: NS, number: 0 });
    assert!(actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(_)))), "{actions:?}");
}

#[test]
fn a_rank_that_never_finalized_is_missed_if_others_go_on() {
    let mut world = World::running();
    let left = Up::Exited { namespace: NS, fences: 3, unfinished: true, ranks: ranks("1") };
    let actions = world.up(at(50), 1, left);
    assert_eq!(actions, [RootAction::WakeAt(at(2050))], "it may be that all do so");
    let actions = world.after(at(2050), RootInput::Timeout);
    let RootAction::Notice(Notice::Failure(failure)) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!((&failure.ranks, &failure.cause), (&ranks("1"), &Cause::Left { in_fence: false }));
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
fn ranks_may_leave_after_the_last_fence_in_any_order() {
    let mut world = World::running();
    world.gather(1, 0, "0-1", &[]);
    world.exited(1, 1, "0");
    // Its news is about a fence that is over by now.
    world.up(T, 2, Up::Waiting { namespace: NS, number: 0 });
    let actions = world.gather(2, 0, "2-3", &[]);
    assert!(!actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(_)))), "{actions:?}");
}

#[test]
fn a_lost_child_is_a_lost_agent() {
    let mut world = World::running();
    world.after(at(5), RootInput::ChildLost(AgentId(2), "cut".into()));
    world.after(at(105), RootInput::Timeout);
    world.up(at(106), 1, Up::Ended { leftovers: 0 });
    let actions = world.after(at(107), RootInput::OutputDone);
    let Some(Outcome::Failed { first, .. }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!((first.agent, &first.cause), (AgentId(2), &Cause::Lost { why: "cut".into() }));
}

#[test]
fn the_second_interrupt_kills() {
    let mut world = World::running();
    let actions = world.after(T, RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: 2, grace: GRACE }]), "{actions:?}");
    let actions = world.after(T, RootInput::Interrupt(2));
    assert!(matches!(sent(&actions, 1)[..], [Down::End { signal: SIGKILL, grace: Duration::ZERO }]), "{actions:?}");
    world.up(T, 1, Up::Ended { leftovers: 0 });
    world.up(T, 2, Up::Ended { leftovers: 0 });
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
    let mut world = World::new(4, 2, 2);
    world.after(at(1), RootInput::AgentFailed(AgentId(2), "no memory".into()));
    let actions = world.after(at(101), RootInput::Timeout);
    let Some(Outcome::Failed { first, others: 0 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(first.cause, Cause::NotStarted { why: "no memory".into() });
}

#[test]
fn agents_that_never_join_are_named_when_time_is_up() {
    let mut world = World::new(4, 2, 2);
    world.up(T, 1, Up::Ready);
    let actions = world.after(JOIN_TIME, RootInput::Timeout);
    let Some(Outcome::Failed { first, others: 0 }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(first.agent, AgentId(2));
}

#[test]
fn an_agent_that_does_not_end_its_ranks_is_given_up() {
    let mut world = World::running();
    world.after(T, RootInput::Interrupt(2));
    world.up(T, 1, Up::Ended { leftovers: 0 });
    let actions = world.after(GRACE + END_MARGIN, RootInput::Timeout);
    assert!(
        actions.iter().any(|action| matches!(action, RootAction::Notice(Notice::Failure(f)) if f.agent == AgentId(2)))
    );
    assert!(outcome(&world.after(T, RootInput::OutputDone)).is_some());
}

fn spawn(world: &mut World, nprocs: u32) -> Vec<RootAction> {
    let command = SpawnCommand {
        program: b"child".to_vec(),
        args: Vec::new(),
        nprocs,
        info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
    };
    let order = SpawnOrder { commands: vec![command], preputs: vec![(b"k".to_vec(), b"v".to_vec())] };
    world.up(T, 2, Up::Ask { agent: AgentId(2), namespace: NS, rank: Rank(3), question: Question::Spawn(order) })
}

#[test]
fn a_spawn_is_answered_when_all_its_ranks_run() {
    let mut world = World::running();
    let actions = spawn(&mut world, 5);
    let [Down::Launch(share)] = sent(&actions, 1)[..] else { panic!("{actions:?}") };
    assert_eq!((share.id, share.size, share.spawned, share.kvsname.as_str()), (NamespaceId(1), 5, true, "scela-77_1"));
    assert_eq!((share.commands[0].wdir.as_slice(), share.preputs.len()), (&b"/tmp"[..], 1));
    let started = Up::Started { namespace: NamespaceId(1) };
    assert_eq!(sent(&world.up(T, 1, started.clone()), 2), [] as [&Down; 0]);
    let actions = world.up(T, 2, started);
    assert!(
        matches!(sent(&actions, 2)[..], [Down::Reply { rank: Rank(3), reply: Reply::Spawned(Ok(5)), .. }]),
        "{actions:?}"
    );
    // The session lasts as long as its last namespace.
    world.exited(1, 0, "0-1");
    assert_eq!(sent(&world.exited(2, 0, "2-3"), 1), [] as [&Down; 0]);
    let all = Up::Exited { namespace: NamespaceId(1), fences: 0, unfinished: false, ranks: ranks("0-4") };
    assert!(matches!(sent(&world.up(T, 1, all), 1)[..], [Down::End { .. }]));
}

#[test]
fn a_spawn_that_fails_is_undone_and_concerns_only_who_asked() {
    let mut world = World::running();
    spawn(&mut world, 2);
    let failure = Failure {
        at: T,
        agent: AgentId(1),
        namespace: NamespaceId(1),
        ranks: ranks("0"),
        cause: Cause::NotStarted { why: "not found".into() },
    };
    let actions = world.up(T, 1, Up::Failed(failure.clone()));
    assert!(sent(&actions, 1).contains(&&Down::Undo { namespace: NamespaceId(1) }), "{actions:?}");
    let reply =
        Down::Reply { agent: AgentId(2), namespace: NS, rank: Rank(3), reply: Reply::Spawned(Err("not found".into())) };
    assert!(sent(&actions, 2).contains(&&reply), "{actions:?}");
    assert_eq!(world.up(T, 2, Up::Failed(failure)), [], "answered once");
}

#[test]
fn names_belong_to_the_session() {
    let mut world = World::running();
    let mut ask = |question| {
        let actions = world.up(T, 1, Up::Ask { agent: AgentId(1), namespace: NS, rank: Rank(0), question });
        match sent(&actions, 1)[..] {
            [Down::Reply { reply, .. }] => reply.clone(),
            _ => panic!("{actions:?}"),
        }
    };
    let service = || b"s".to_vec();
    assert_eq!(ask(Question::Lookup { service: service() }), Reply::Found(Err(NameError::Unknown)));
    assert_eq!(ask(Question::Publish { service: service(), port: b"p".to_vec() }), Reply::Published(Ok(())));
    assert_eq!(
        ask(Question::Publish { service: service(), port: b"q".to_vec() }),
        Reply::Published(Err(NameError::Taken))
    );
    assert_eq!(ask(Question::Lookup { service: service() }), Reply::Found(Ok(b"p".to_vec())));
    assert_eq!(ask(Question::Unpublish { service: service() }), Reply::Unpublished(Ok(())));
    assert_eq!(ask(Question::Unpublish { service: service() }), Reply::Unpublished(Err(NameError::Unknown)));
}
