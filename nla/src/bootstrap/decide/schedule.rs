//! Decides which agent is started next, when a refused start is tried again, and when a target is given up.
//!
//! A target that is given up gets no agent. The targets below it, which its agent would have started, are then started
//! from here: see [`tasks_below`].

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use litemap::LiteMap;

use super::deadline::Deadline;
use super::failure::{StartFailure, StartPhase};
use super::start_limit::StartLimit;
use crate::bootstrap::protocol::{Below, HostAt, MARKER};
use crate::core::{AgentId, Subtree, Time};
use crate::link::Reach;

/// The least wait before the first retry. It doubles with each retry, up to [`RETRY_DOUBLINGS`] times; the actual wait
/// is up to twice as long, so that hosts refused together are not tried together again.
const RETRY_TIME: Duration = Duration::from_millis(50);
const RETRY_DOUBLINGS: u32 = 4;
/// The same for a host that may be there later, which is tried again for longer.
const HOST_DOUBLINGS: u32 = 6;

/// An agent to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) struct Task {
    pub target: u32,
    /// The target's host; `None` for this machine.
    pub host: Option<HostAt>,
    /// From where the agent must be reachable.
    pub reach: Reach,
    /// The targets that the agent is to start agents at.
    pub below: Option<Below>,
    /// How often the start was tried before.
    pub tries: u32,
    /// Why the previous try failed.
    pub previous: Option<StartFailure>,
    /// The latest phase in which its host was reported as not reached.
    pub not_reached: Option<StartPhase>,
    /// The remote script asks a program that is already on the node for its version before it becomes that program.
    pub checks_version: bool,
}

impl Task {
    /// Creates a task that was not tried before.
    pub(in crate::bootstrap) fn new(target: u32, host: Option<HostAt>, reach: Reach, below: Option<Below>) -> Self {
        Self { target, host, reach, below, tries: 0, previous: None, not_reached: None, checks_version: false }
    }
}

/// An event of the starts.
#[derive(Clone, Debug)]
pub(in crate::bootstrap) enum ScheduleInput {
    /// An agent is to be started.
    Start(Box<Task>),
    /// The agent of an opened task answered `took` after the task was opened.
    Answered { took: Duration },
    /// An opened task failed before its agent answered.
    Failed(Box<Task>, StartFailure),
    /// The time of a [`ScheduleAction::WakeAt`] has passed. Stale timeouts are harmless.
    Timeout,
}

/// A command to the starter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) enum ScheduleAction {
    /// Start this agent. The result is reported as [`ScheduleInput::Answered`] or [`ScheduleInput::Failed`].
    Open(Box<Task>),
    /// Report that the target's host cannot be reached and is tried again.
    NotReached(u32, StartFailure),
    /// Report that the target gets no agent.
    GiveUp(u32, StartFailure),
    /// Pass a [`ScheduleInput::Timeout`] at this time. Replaces an earlier one.
    WakeAt(Time),
}

/// The starts of one process.
pub(in crate::bootstrap) struct Schedule {
    start_limit: StartLimit,
    deadline: Deadline,
    seed: [u8; MARKER],
    waiting: VecDeque<Task>,
    /// Refused tasks, by the time of their retry.
    retries: LiteMap<(Time, u32), Box<Task>>,
}

impl Schedule {
    /// Creates a schedule without tasks. `seed` spreads the waits before retries.
    pub(in crate::bootstrap) fn new(start_limit: StartLimit, deadline: Deadline, seed: [u8; MARKER]) -> Self {
        Self { start_limit, deadline, seed, waiting: VecDeque::new(), retries: LiteMap::new() }
    }

    /// Returns how many starts may be under way.
    pub(in crate::bootstrap) fn limit(&self) -> u32 {
        self.start_limit.limit()
    }

    pub(in crate::bootstrap) fn handle(&mut self, now: Time, input: ScheduleInput, actions: &mut Vec<ScheduleAction>) {
        match input {
            ScheduleInput::Start(task) => self.waiting.push_back(*task),
            ScheduleInput::Answered { took } => self.start_limit.on_success(took),
            ScheduleInput::Failed(task, failure) => self.on_failure(now, *task, failure, actions),
            ScheduleInput::Timeout => {}
        }
        while let Some(key) = self.retries.first().map(|(key, _)| *key).filter(|(at, _)| *at <= now) {
            self.waiting.extend(self.retries.remove(&key).map(|task| *task));
        }
        self.open_waiting(now, actions);
        actions.extend(self.retries.keys().next().map(|(at, _)| ScheduleAction::WakeAt(*at)));
    }

    fn open_waiting(&mut self, now: Time, actions: &mut Vec<ScheduleAction>) {
        while !self.waiting.is_empty() && self.start_limit.open() {
            let Some(task) = self.waiting.pop_front() else { return };
            if self.deadline.has_passed(now) {
                self.start_limit.on_failure(false);
                self.give_up(task, StartFailure::late(), actions);
            } else {
                actions.push(ScheduleAction::Open(Box::new(task)));
            }
        }
    }

    fn on_failure(&mut self, now: Time, mut task: Task, failure: StartFailure, actions: &mut Vec<ScheduleAction>) {
        let wait = self.deadline.wait_for_host(now, self.retry_time(&task, HOST_DOUBLINGS));
        let wait_for_host = wait.filter(|_| is_unreached(failure.phase));
        let waits_for_host = wait_for_host.is_some();
        let retries = retries_after(failure.phase);
        // A host that is not there yet does not show that too many starts are under way.
        self.start_limit.on_failure(retries > 0 && (!waits_for_host || failure.phase == StartPhase::Busy));
        let wait = wait_for_host.unwrap_or_else(|| self.retry_time(&task, RETRY_DOUBLINGS));
        // Other starts may have caused this refusal, so retries are not counted while they are under way.
        let is_alone = self.start_limit.under_way() == 0;
        let may_retry = waits_for_host || retries > 0 && (task.tries < retries || !is_alone);
        if may_retry && self.deadline.allows(now, wait) {
            if waits_for_host && task.not_reached < Some(failure.phase) {
                task.not_reached = Some(failure.phase);
                actions.push(ScheduleAction::NotReached(task.target, failure.clone()));
            }
            let key = (now + wait, task.target);
            let task = Task { tries: task.tries + 1, previous: Some(failure), ..task };
            self.retries.insert(key, Box::new(task));
        } else {
            self.give_up(task, failure, actions);
        }
    }

    fn give_up(&mut self, task: Task, last: StartFailure, actions: &mut Vec<ScheduleAction>) {
        if let Some(below) = &task.below {
            self.waiting.extend(tasks_below(task.target, below, task.reach));
        }
        actions.push(ScheduleAction::GiveUp(task.target, reason(task.previous, last)));
    }

    fn retry_time(&self, task: &Task, doublings: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.seed, task.target, task.tries).hash(&mut hasher);
        let least = RETRY_TIME * 2_u32.pow(task.tries.min(doublings));
        least + least.mul_f64((hasher.finish() % 1024) as f64 / 1024.0)
    }
}

/// Returns how often a start that failed in this phase is tried again: a refusal may pass within moments.
fn retries_after(phase: StartPhase) -> u32 {
    match phase {
        StartPhase::Busy => 8,
        StartPhase::Refused => 5,
        StartPhase::Command
        | StartPhase::Name
        | StartPhase::Connect
        | StartPhase::HostKey
        | StartPhase::Login
        | StartPhase::Program
        | StartPhase::Answer
        | StartPhase::ConnectBack
        | StartPhase::Join
        | StartPhase::Limits
        | StartPhase::Step
        | StartPhase::Keeper
        | StartPhase::Ended => 0,
    }
}

/// Returns whether a start that failed in this phase has not reached its host, which may still start.
fn is_unreached(phase: StartPhase) -> bool {
    use StartPhase::{Busy, Connect, Name, Refused};
    matches!(phase, Name | Connect | Refused | Busy)
}

/// Returns the reported reason of a target that is given up: a refusal, not the timeout of a final retry that began
/// too late.
fn reason(previous: Option<StartFailure>, last: StartFailure) -> StartFailure {
    previous.filter(|_| last.phase == StartPhase::Answer).unwrap_or(last)
}

/// Returns the children of target `here` in the tree of starts, each with the targets below it.
pub(in crate::bootstrap) fn tasks_below(here: u32, below: &Below, reach: Reach) -> Vec<Task> {
    let Some(subtree) = Subtree::whole(below.targets, below.fanout).of(AgentId(here)) else { return Vec::new() };
    let host = |target: u32| below.hosts.get((target - here - 1) as usize).cloned();
    let task = |child: Subtree| {
        let target = child.head().0;
        let hosts: Vec<HostAt> = (target + 1..target + child.size()).filter_map(host).collect();
        let below = (!hosts.is_empty()).then(|| Below { hosts, ..below.clone() });
        Task::new(target, host(target), reach, below)
    };
    subtree.children().map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::protocol::{Method, StartTimes};

    const S: Duration = Duration::from_secs(1);
    const QUICK: Duration = Duration::from_millis(100);

    fn schedule(limit: Option<u32>) -> Schedule {
        waiting(Duration::ZERO, limit)
    }

    /// A schedule that waits so long for hosts.
    fn waiting(hosts: Duration, limit: Option<u32>) -> Schedule {
        let deadline = Deadline::after(Duration::ZERO, StartTimes { hosts, start: 30 * S });
        Schedule::new(StartLimit::new(limit), deadline, [7; MARKER])
    }

    fn handle(schedule: &mut Schedule, now: Time, input: ScheduleInput) -> Vec<ScheduleAction> {
        let mut actions = Vec::new();
        schedule.handle(now, input, &mut actions);
        actions
    }

    fn task(target: u32) -> Task {
        Task::new(target, None, Reach::Here, None)
    }

    fn open(task: Task) -> ScheduleAction {
        ScheduleAction::Open(Box::new(task))
    }

    fn failed(task: Task, phase: StartPhase) -> ScheduleInput {
        ScheduleInput::Failed(Box::new(task), failure(phase))
    }

    fn failure(phase: StartPhase) -> StartFailure {
        StartFailure::new(phase, format!("{phase:?}"))
    }

    fn hosts(targets: std::ops::Range<u32>) -> Vec<HostAt> {
        targets.map(|target| HostAt { name: format!("n{target}"), user: None, is_here: false }).collect()
    }

    fn below(targets: u32, fanout: u32, hosts: Vec<HostAt>) -> Below {
        Below { targets, fanout, hosts, method: Method::Fork, batch: None, times: StartTimes { hosts: S, start: S } }
    }

    /// Fails the task's every try, from its first on. Returns when each retry was opened and the reported reason.
    fn fail_always(schedule: &mut Schedule, phase: StartPhase) -> (Vec<Time>, StartFailure) {
        let (mut now, mut opened) = (Duration::ZERO, Vec::new());
        let mut actions = handle(schedule, now, ScheduleInput::Start(Box::new(task(1))));
        loop {
            match &actions[..] {
                [ScheduleAction::Open(task)] => {
                    opened.push(now);
                    let input = failed((**task).clone(), phase);
                    actions = handle(schedule, now, input);
                }
                [ScheduleAction::WakeAt(at)] | [ScheduleAction::NotReached(..), ScheduleAction::WakeAt(at)] => {
                    now = *at;
                    actions = handle(schedule, now, ScheduleInput::Timeout);
                }
                [ScheduleAction::GiveUp(1, reason)] => return (opened, reason.clone()),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn as_many_start_at_a_time_as_the_window_allows() {
        let mut schedule = schedule(Some(2));
        for target in 1..=2 {
            let actions = handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(target))));
            assert_eq!(actions, [open(task(target))]);
        }
        assert_eq!(handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(3)))), []);
        assert_eq!(handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(4)))), []);
        let next = handle(&mut schedule, S, ScheduleInput::Answered { took: QUICK });
        assert_eq!(next, [open(task(3))]);
        let next = handle(&mut schedule, S, failed(task(1), StartPhase::Login));
        assert_eq!(next, [ScheduleAction::GiveUp(1, failure(StartPhase::Login)), open(task(4))]);
    }

    #[test]
    fn a_refused_host_is_tried_again_after_growing_waits() {
        let (opened, reason) = fail_always(&mut schedule(None), StartPhase::Refused);
        assert_eq!((opened.len(), reason), (6, failure(StartPhase::Refused)), "one try and five retries");
        for (tries, pair) in opened.windows(2).enumerate() {
            let (wait, least) = (pair[1] - pair[0], RETRY_TIME * 2_u32.pow(tries.min(4) as u32));
            assert!(least <= wait && wait < 2 * least, "retry {tries} after {wait:?}");
        }
        assert_eq!(fail_always(&mut schedule(None), StartPhase::Busy).0.len(), 9);
        assert_eq!(fail_always(&mut schedule(None), StartPhase::Login).0.len(), 1, "a login fails for good");
    }

    #[test]
    fn hosts_refused_together_are_not_tried_together_again() {
        let schedule = schedule(None);
        let waits: std::collections::BTreeSet<Duration> =
            (1..=16).map(|target| schedule.retry_time(&task(target), RETRY_DOUBLINGS)).collect();
        assert!(waits.len() > 12, "{waits:?}");
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_tried_again_for_its_time() {
        for phase in [StartPhase::Name, StartPhase::Connect, StartPhase::Refused, StartPhase::Busy] {
            let (opened, reason) = fail_always(&mut waiting(60 * S, None), phase);
            assert_eq!(reason, failure(phase));
            assert!(opened.last().is_some_and(|last| *last > 50 * S), "{opened:?}");
            assert!(opened.len() < 40, "the waits grow: {opened:?}");
        }
        assert_eq!(fail_always(&mut waiting(60 * S, None), StartPhase::Login).0.len(), 1);
    }

    #[test]
    fn a_host_that_is_not_there_yet_reports_each_step_and_slows_no_other_down() {
        let mut schedule = waiting(60 * S, None);
        let first = schedule.limit();
        let mut now = Duration::ZERO;
        let mut next = task(1);
        for (phase, is_news) in [
            (StartPhase::Name, true),
            (StartPhase::Name, false),
            (StartPhase::Refused, true),
            (StartPhase::Name, false),
            (StartPhase::Refused, false),
        ] {
            handle(&mut schedule, now, ScheduleInput::Start(Box::new(next.clone())));
            let actions = handle(&mut schedule, now, failed(next, phase));
            let notice = ScheduleAction::NotReached(1, failure(phase));
            assert_eq!(actions.contains(&notice), is_news, "{phase:?}: {actions:?}");
            now += S;
            next = *schedule.retries.first().map(|(_, task)| task.clone()).expect("it is tried again");
            schedule.retries = LiteMap::new();
        }
        assert_eq!(schedule.limit(), first);
        let actions = handle(&mut schedule, now, ScheduleInput::Start(Box::new(task(2))));
        assert_eq!(actions, [open(task(2))]);
        let actions = handle(&mut schedule, now, failed(task(2), StartPhase::Login));
        assert_eq!(
            actions,
            [ScheduleAction::GiveUp(2, failure(StartPhase::Login))],
            "a refused login is not waited for"
        );
    }

    #[test]
    fn retries_are_not_counted_while_other_starts_are_under_way() {
        let mut schedule = schedule(None);
        handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(1))));
        handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(2))));
        let tired = Task { tries: 100, ..task(1) };
        let actions = handle(&mut schedule, S, failed(tired.clone(), StartPhase::Refused));
        assert!(matches!(actions[..], [ScheduleAction::WakeAt(at)] if at > S), "{actions:?}");
        handle(&mut schedule, S, ScheduleInput::Answered { took: QUICK });
        handle(&mut schedule, 20 * S, ScheduleInput::Timeout);
        let actions = handle(&mut schedule, 20 * S, failed(tired, StartPhase::Refused));
        assert_eq!(actions, [ScheduleAction::GiveUp(1, failure(StartPhase::Refused))]);
    }

    #[test]
    fn no_retry_begins_after_the_deadline_and_the_refusal_is_reported() {
        let mut schedule = schedule(None);
        handle(&mut schedule, S, ScheduleInput::Start(Box::new(task(1))));
        let late = Duration::from_millis(29_999);
        let actions = handle(&mut schedule, late, failed(task(1), StartPhase::Refused));
        assert_eq!(actions, [ScheduleAction::GiveUp(1, failure(StartPhase::Refused))]);
        // A retry that waited for other starts until after the deadline.
        let refused = Task { previous: Some(failure(StartPhase::Refused)), tries: 1, ..task(2) };
        let actions = handle(&mut schedule, 30 * S, ScheduleInput::Start(Box::new(refused)));
        assert_eq!(actions, [ScheduleAction::GiveUp(2, failure(StartPhase::Refused))]);
        let actions = handle(&mut schedule, 30 * S, ScheduleInput::Start(Box::new(task(3))));
        assert_eq!(actions, [ScheduleAction::GiveUp(3, StartFailure::late())]);
    }

    #[test]
    fn the_last_refusal_wins_over_a_late_final_try() {
        let (refused, busy) = (failure(StartPhase::Refused), failure(StartPhase::Busy));
        assert_eq!(reason(None, StartFailure::late()), StartFailure::late());
        assert_eq!(reason(Some(refused.clone()), StartFailure::late()), refused);
        assert_eq!(reason(Some(refused), busy.clone()), busy);
    }

    #[test]
    fn the_targets_below_a_failed_one_are_started_from_here() {
        let mut schedule = schedule(None);
        // Target 1 was to start 2 and 3.
        let first = tasks_below(0, &below(6, 2, hosts(1..7)), Reach::Here).remove(0);
        assert_eq!(first.below.as_ref().map(|below| below.hosts.clone()), Some(hosts(2..4)));
        handle(&mut schedule, S, ScheduleInput::Start(Box::new(first.clone())));
        let actions = handle(&mut schedule, S, failed(first, StartPhase::Login));
        let at = |target| Task::new(target, hosts(target..target + 1).pop(), Reach::Here, None);
        let opened = [2, 3].map(|target| open(at(target)));
        assert_eq!(actions[0], ScheduleAction::GiveUp(1, failure(StartPhase::Login)));
        assert_eq!(actions[1..], opened);
    }

    #[test]
    fn each_target_is_started_once_from_the_one_above() {
        fn walk(here: u32, below: &Below, seen: &mut Vec<u32>) {
            for task in tasks_below(here, below, Reach::Here) {
                assert_eq!(task.host.unwrap().name, format!("n{}", task.target));
                seen.push(task.target);
                task.below.iter().for_each(|below| walk(task.target, below, seen));
            }
        }
        for targets in [1, 2, 7, 32, 100] {
            for fanout in [2, 3, 8, 200] {
                let mut seen = Vec::new();
                walk(0, &below(targets, fanout, hosts(1..targets + 1)), &mut seen);
                assert_eq!(seen, (1..=targets).collect::<Vec<_>>());
            }
        }
    }
}
