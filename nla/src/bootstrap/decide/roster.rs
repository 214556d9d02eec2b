//! Tracks the tasks of a step: which nodes have an agent, which failed, and whether the step is started again.
//!
//! A step is one command of a resource manager that starts a task on each of many nodes. A manager that cannot reach
//! one node may take the step down on all others. So no target is reported before all are settled, and a step that was
//! taken down is started again without the nodes that were the reason.

use std::collections::VecDeque;
use std::time::Duration;

use litemap::LiteMap;

use super::failure::{StartFailure, StartPhase};
use super::slurm::{is_in_list, judge_step, step_line};
use crate::bootstrap::protocol::HostAt;
use crate::core::Time;

/// How many of the command's last lines are kept to judge its end.
const LINES_KEPT: usize = 32;
/// How long after a task's end another line may still say why it ended.
const LAST_WORDS_TIME: Duration = Duration::from_millis(300);

/// The targets of a step, by node.
pub(in crate::bootstrap) type StepTargets = LiteMap<String, u32>;

/// Divides hosts, the targets from 1 on, into steps: one, unless a host is listed several times.
pub(in crate::bootstrap) fn steps(hosts: &[HostAt]) -> Vec<StepTargets> {
    let mut steps: Vec<StepTargets> = Vec::new();
    for (target, host) in (1..).zip(hosts) {
        match steps.iter_mut().find(|step| !step.contains_key(&host.name)) {
            Some(step) => drop(step.insert(host.name.clone(), target)),
            None => {
                let mut step = StepTargets::new();
                step.insert(host.name.clone(), target);
                steps.push(step);
            }
        }
    }
    steps
}

/// An event of a step.
#[derive(Clone, Debug)]
pub(in crate::bootstrap) enum RosterInput {
    /// The agent on this node has reported.
    Reported(String),
    /// The command wrote a line to standard error.
    Line(String),
    /// The command exited, and all its lines were read. `None` if a signal killed it.
    CommandEnded(Option<i32>),
    /// The time of [`Roster::wake_at`] has passed.
    Timeout,
}

/// The result of a step whose targets are all settled.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::bootstrap) struct StepOutcome {
    /// The nodes whose agents are used.
    pub started: StepTargets,
    /// The targets that have failed.
    pub failed: Vec<(u32, StartFailure)>,
    /// The nodes that only lack the program.
    pub without_program: StepTargets,
    /// Another step is to be started for these nodes at once; this one is taken down.
    pub restart: StepTargets,
}

/// The tasks of a step under way.
#[derive(Default)]
pub(in crate::bootstrap) struct Roster {
    targets: StepTargets,
    deadline: Time,
    present: LiteMap<String, ()>,
    failures: LiteMap<String, StartFailure>,
    /// Tasks that have ended, for which another line may have a better reason until `words_until`.
    ends: LiteMap<String, StartFailure>,
    words_until: Option<Time>,
    /// The command's last lines.
    said: VecDeque<String>,
    /// The manager ends all tasks because some nodes failed.
    is_taken_down: bool,
    /// Nothing more happens: the command has ended, or the deadline has passed.
    is_over: bool,
}

impl Roster {
    pub(in crate::bootstrap) fn new(targets: StepTargets, deadline: Time) -> Self {
        Self { targets, deadline, ..Self::default() }
    }

    pub(in crate::bootstrap) fn handle(&mut self, now: Time, input: RosterInput) {
        match input {
            RosterInput::Reported(node) => {
                if self.targets.contains_key(&node) && !self.failures.contains_key(&node) {
                    self.present.insert(node, ());
                }
            }
            RosterInput::Line(line) => self.on_line(now, line),
            RosterInput::CommandEnded(code) => {
                self.count_ends();
                if !self.is_taken_down || self.failures.is_empty() {
                    let failure = judge_step(code, self.said.make_contiguous());
                    self.fail_rest(&failure);
                }
                self.is_over = true;
            }
            RosterInput::Timeout => {
                if self.words_until.is_some_and(|at| at <= now) {
                    self.count_ends();
                }
                if self.deadline <= now {
                    // A step that is late is not started again, since no time remains for it.
                    self.is_taken_down = false;
                    self.fail_rest(&StartFailure { phase: StartPhase::Step, ..StartFailure::late() });
                    self.is_over = true;
                }
            }
        }
    }

    /// Returns when the next [`RosterInput::Timeout`] is due.
    pub(in crate::bootstrap) fn wake_at(&self) -> Time {
        self.words_until.map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Returns whether each target has an agent or has failed. If the step is taken down, only its end settles it.
    pub(in crate::bootstrap) fn is_settled(&self) -> bool {
        self.is_over || !self.is_taken_down && self.present.len() + self.failures.len() == self.targets.len()
    }

    /// Decides what to do with a settled step. `may_send` says that a second step may bring the program to nodes
    /// without it.
    pub(in crate::bootstrap) fn conclude(self, may_send: bool) -> StepOutcome {
        let Self { mut targets, present, failures, is_taken_down, .. } = self;
        let restarts = is_taken_down && !failures.is_empty();
        let mut outcome = StepOutcome::default();
        for (node, failure) in failures {
            let Some(target) = targets.remove(&node) else { continue };
            if may_send && failure.phase == StartPhase::Program {
                outcome.without_program.insert(node, target);
            } else {
                outcome.failed.push((target, failure));
            }
        }
        if restarts {
            // Each new step omits at least one node, so the number of steps is bounded.
            outcome.restart = targets;
        } else {
            targets.retain(|node, _| present.contains_key(node));
            outcome.started = targets;
        }
        outcome
    }

    fn on_line(&mut self, now: Time, line: String) {
        if let Some(about) = step_line(&line) {
            self.is_taken_down |= about.is_fatal;
            let into = if about.is_end { &mut self.ends } else { &mut self.failures };
            for node in self.targets.keys().filter(|node| is_in_list(node, about.nodes)) {
                if !self.present.contains_key(node) {
                    into.entry(node.clone()).or_insert_with(|| about.failure.clone());
                }
            }
        }
        if !self.ends.is_empty() {
            self.words_until.get_or_insert(now + LAST_WORDS_TIME);
        }
        if self.said.len() == LINES_KEPT {
            self.said.pop_front();
        }
        self.said.push_back(line);
    }

    /// Counts the ended tasks as failed: no better reason will follow. If the manager ends all tasks, only those count
    /// that could not execute the program.
    fn count_ends(&mut self) {
        self.words_until = None;
        for (node, failure) in std::mem::take(&mut self.ends) {
            let is_own = !self.is_taken_down || failure.phase == StartPhase::Program;
            if is_own && !self.present.contains_key(&node) {
                self.failures.entry(node).or_insert(failure);
            }
        }
    }

    fn fail_rest(&mut self, failure: &StartFailure) {
        for node in self.targets.keys().filter(|node| !self.present.contains_key(*node)) {
            self.failures.entry(node.clone()).or_insert_with(|| failure.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Duration::from_secs(1);
    const DEADLINE: Time = Duration::from_secs(30);
    const EXITED: &str = "its agent exited before its first report: Exited with exit code 1";

    fn roster() -> Roster {
        Roster::new(targets(&[("n1", 1), ("n2", 2), ("n3", 3)]), DEADLINE)
    }

    fn targets(targets: &[(&str, u32)]) -> StepTargets {
        targets.iter().map(|(node, target)| ((*node).to_owned(), *target)).collect()
    }

    fn lines(roster: &mut Roster, lines: &[&str]) {
        lines.iter().for_each(|line| roster.handle(NOW, RosterInput::Line((*line).to_owned())));
    }

    fn report(roster: &mut Roster, nodes: &[&str]) {
        nodes.iter().for_each(|node| roster.handle(NOW, RosterInput::Reported((*node).to_owned())));
    }

    fn words(outcome: &StepOutcome) -> Vec<(u32, &str)> {
        outcome.failed.iter().map(|(target, failure)| (*target, failure.words.as_str())).collect()
    }

    #[test]
    fn a_step_whose_tasks_all_report_is_started() {
        let mut roster = roster();
        report(&mut roster, &["n1", "n3", "n9"]);
        assert!(!roster.is_settled());
        report(&mut roster, &["n2"]);
        assert!(roster.is_settled());
        let outcome = roster.conclude(true);
        assert_eq!(outcome.started, targets(&[("n1", 1), ("n2", 2), ("n3", 3)]));
        assert!(outcome.failed.is_empty() && outcome.restart.is_empty() && outcome.without_program.is_empty());
    }

    #[test]
    fn a_step_that_was_taken_down_is_started_again_without_the_dead_node() {
        let mut roster = roster();
        report(&mut roster, &["n1"]);
        lines(
            &mut roster,
            &["srun: error: Task launch for StepId=1.0 failed on node n3: no", "srun: error: n2: task 0: Killed"],
        );
        assert!(!roster.is_settled(), "the command has not ended");
        roster.handle(NOW + LAST_WORDS_TIME, RosterInput::Timeout);
        roster.handle(NOW, RosterInput::CommandEnded(Some(1)));
        assert!(roster.is_settled());
        let outcome = roster.conclude(true);
        assert_eq!(words(&outcome), [(3, "its slurmd did not start the agent: no")]);
        assert_eq!(outcome.restart, targets(&[("n1", 1), ("n2", 2)]), "n2 was ended by the manager");
        assert!(outcome.started.is_empty(), "the agent on n1 is taken down with the step");
    }

    #[test]
    fn a_step_whose_connection_to_a_node_is_reset_is_started_again_for_the_tasks_that_it_ended() {
        let mut roster = roster();
        report(&mut roster, &["n1"]);
        lines(
            &mut roster,
            &[
                "srun: error: n2: task 1: Exited with exit code 126",
                "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1",
                "srun: error: n[1,3]: tasks 0,2: Killed",
            ],
        );
        roster.handle(NOW, RosterInput::CommandEnded(Some(137)));
        let outcome = roster.conclude(true);
        assert_eq!(outcome.without_program, targets(&[("n2", 2)]));
        assert_eq!(outcome.restart, targets(&[("n1", 1), ("n3", 3)]));
        assert!(outcome.failed.is_empty(), "{outcome:?}");
    }

    #[test]
    fn an_ended_task_waits_for_a_better_reason() {
        let mut roster = roster();
        report(&mut roster, &["n3"]);
        lines(&mut roster, &["srun: error: n[1-2]: tasks 0-1: Exited with exit code 1", "scela: n2: there is no it"]);
        assert!(!roster.is_settled());
        assert_eq!(roster.wake_at(), NOW + LAST_WORDS_TIME);
        roster.handle(NOW, RosterInput::Timeout);
        assert!(!roster.is_settled(), "it is too early");
        roster.handle(NOW + LAST_WORDS_TIME, RosterInput::Timeout);
        assert!(roster.is_settled());
        let outcome = roster.conclude(false);
        assert_eq!(words(&outcome), [(1, EXITED), (2, "there is no it")]);
        assert_eq!(outcome.started, targets(&[("n3", 3)]));
    }

    #[test]
    fn an_agent_that_reports_after_its_failure_is_not_used() {
        let mut roster = roster();
        lines(&mut roster, &["scela: n2: there is no it"]);
        report(&mut roster, &["n1", "n2", "n3"]);
        assert!(roster.is_settled());
        let outcome = roster.conclude(false);
        assert_eq!(words(&outcome), [(2, "there is no it")]);
        assert_eq!(outcome.started, targets(&[("n1", 1), ("n3", 3)]));
    }

    #[test]
    fn nodes_without_the_program_are_kept_for_a_step_that_sends_it() {
        let outcome = |may_send| {
            let mut roster = roster();
            report(&mut roster, &["n1", "n3"]);
            lines(&mut roster, &["scela: n2: there is no /opt/scela-run"]);
            roster.conclude(may_send)
        };
        assert_eq!(outcome(true).without_program, targets(&[("n2", 2)]));
        assert!(outcome(true).failed.is_empty());
        assert!(outcome(false).without_program.is_empty());
        assert_eq!(words(&outcome(false)), [(2, "there is no /opt/scela-run")]);
    }

    #[test]
    fn the_end_of_the_command_fails_the_rest_with_its_last_error() {
        let mut roster = roster();
        report(&mut roster, &["n1"]);
        lines(&mut roster, &["srun: error: Unable to create step for job 1: Invalid job id specified"]);
        roster.handle(NOW, RosterInput::CommandEnded(Some(1)));
        let outcome = roster.conclude(true);
        let why = "Unable to create step for job 1: Invalid job id specified";
        assert_eq!(words(&outcome), [(2, why), (3, why)]);
        assert_eq!(outcome.started, targets(&[("n1", 1)]));
    }

    #[test]
    fn the_deadline_fails_the_rest_and_starts_nothing_again() {
        let mut roster = roster();
        assert_eq!(roster.wake_at(), DEADLINE);
        report(&mut roster, &["n1"]);
        lines(&mut roster, &["srun: error: Task launch for StepId=1.0 failed on node n3: no"]);
        roster.handle(DEADLINE, RosterInput::Timeout);
        assert!(roster.is_settled());
        let outcome = roster.conclude(true);
        let late = (2, "no answer in time (--start-timeout)");
        assert_eq!(words(&outcome), [late, (3, "its slurmd did not start the agent: no")]);
        assert!(outcome.restart.is_empty());
        assert_eq!(outcome.started, targets(&[("n1", 1)]));
    }

    #[test]
    fn a_host_listed_twice_is_in_two_steps() {
        let hosts = ["a", "b", "a"].map(|name| HostAt { name: name.to_owned(), user: None, is_here: false });
        assert_eq!(steps(&hosts), [targets(&[("a", 1), ("b", 2)]), targets(&[("a", 3)])]);
        assert!(steps(&[]).is_empty());
    }
}
