//! Shows the root's notices to the user.

use nla::core::{Cause, NamespaceId, Notice, Survey, SurveyCause, Wait};

use super::Session;
use crate::run::report::{
    dropped_text, goes_on_text, killed_text, left_text, leftovers_text, moved_text, no_spare_text, restart_text,
    revival_text, second_joiner_text, silent_text, step_text, stopped_text,
};
use crate::run::survey_text::{silence_text, survey_lines, wait_line};

impl Session {
    fn on_surveyed(&mut self, at: nla::core::Time, survey: &Survey, waits: &[Wait], cause: SurveyCause) {
        let is_wanted = std::mem::take(&mut self.wants_survey);
        let may_hang = match cause {
            SurveyCause::Asked | SurveyCause::Stuck => survey.has_open_fence() || !survey.silent.is_empty(),
            SurveyCause::Quiet => survey.has_ranks(),
            SurveyCause::Silent => false,
        };
        if is_wanted || may_hang {
            let line = |wait: &Wait| wait_line(wait, at, self.root.agents_progress(), &self.locations);
            let waits = waits.iter().map(line).collect();
            self.reporter.notes(&survey_lines(survey, waits, &self.locations, self.plan.pmix.is_some()));
        }
        if cause != SurveyCause::Asked {
            let users = self.mpi_users.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
            let commands: Vec<_> = self.first.commands.iter().zip(users).collect();
            if let Some(text) = silence_text(survey, &commands, &self.locations) {
                self.reporter.note(&text);
            }
        }
    }

    pub(super) fn on_notice(&mut self, at: nla::core::Time, notice: &Notice) {
        self.phases.on_notice(at, notice);
        self.own.milestones.on_notice(at, notice, |agent| self.locations.of_agent(agent));
        self.own.trace.iter_mut().for_each(|trace| trace.on_notice(at, notice));
        self.own.report.iter_mut().for_each(|report| report.on_notice(notice));
        self.progress.on_notice(notice);
        if let Some(text) = step_text(notice, |agent| self.locations.of_agent(agent).to_owned()) {
            self.reporter.step(at, &text);
        }
        match notice {
            Notice::Joined => {
                self.has_joined = true;
            }
            Notice::Busy(..) => self.files_stall = true,
            Notice::SecondJoiner(agent, rank, text) => {
                self.second_joiners += 1;
                if let Some(text) =
                    second_joiner_text(self.second_joiners, *rank, self.locations.of_agent(*agent), text)
                {
                    self.reporter.note(&text);
                }
            }
            Notice::Bound(agent, report) => self.bindings.add(self.locations.of_agent(*agent), report),
            Notice::Started(NamespaceId::FIRST, _) => {
                self.has_started = true;
                self.tell_staged_memory(at);
                let lines = std::mem::take(&mut self.bindings).lines();
                self.reporter.notes(&lines);
                self.warn_of_limits();
            }
            Notice::LowLimits(limits) => {
                self.low_limits.add(limits);
                // One warning, printed at the start, covers the agents that have ranks by then.
                if self.has_started {
                    self.warn_of_limits();
                }
            }
            Notice::Surveyed(survey, waits, cause) => self.on_surveyed(at, survey, waits, *cause),
            Notice::RanksLeft { namespace, left, running, time } => {
                let is_first = *namespace == NamespaceId::FIRST;
                let hosts = if is_first { self.locations.hosts_of(running) } else { Vec::new() };
                self.reporter.note(&left_text(*namespace, left, running, *time, &hosts));
            }
            Notice::GoesOn(failure) => {
                self.reporter.note(&goes_on_text(failure, self.locations.of_agent(failure.agent)));
            }
            Notice::WentOn(outcome) => self.report_outcome(outcome),
            Notice::Restarting { first, others, number, of, wait } => {
                let host = self.locations.of_agent(first.agent);
                self.reporter.note(&restart_text(first, *others, (*number, *of), *wait, host));
            }
            Notice::Reviving { failure, number, of, wait } => {
                let host = self.locations.of_agent(failure.agent);
                self.reporter.note(&revival_text(failure, (*number, *of), *wait, host));
            }
            Notice::Failure(failure) if matches!(failure.cause, Cause::Lost { .. }) => {
                self.own.lost.insert(self.locations.of_agent(failure.agent).to_owned());
            }
            Notice::Failure(failure) if matches!(failure.cause, Cause::Code(_)) => {
                self.first_exit.get_or_insert_with(|| failure.clone());
            }
            Notice::Restarted(namespace) => {
                self.first_exit = None;
                self.locations.note_restart(*namespace);
            }
            Notice::Stopped(time) => self.reporter.note(&stopped_text(*time, self.liveness)),
            Notice::Silent(agents) => {
                let host = |agent| self.locations.of_agent(agent);
                self.reporter.note(&silent_text(agents, host, self.liveness));
            }
            Notice::NoSpare => self.reporter.note(&no_spare_text(self.spares)),
            Notice::NoRestartLeft(max) => self.restarts_used = Some(*max),
            Notice::Moved(placement) => {
                for (agent, ranks) in self.locations.move_to(placement) {
                    self.reporter.note(&moved_text(&ranks, self.locations.of_agent(agent)));
                }
            }
            Notice::Ending(outcome, ..) => {
                self.plan_next_launch(outcome);
                if !self.sequel.is_launch() {
                    self.report_outcome(outcome);
                    self.is_outcome_reported = true;
                }
            }
            Notice::OutputDropped(time) => {
                let bytes = self.out.unwritten() + self.err.unwritten();
                self.reporter.note(&dropped_text(bytes, *time, self.out.is_pending()));
            }
            Notice::Killed(killed) => self.reporter.note(&killed_text(killed)),
            Notice::Leftovers(count, left, grace) => {
                let host = |agent| self.locations.of_agent(agent).to_owned();
                self.reporter.note(&leftovers_text(*count, left, *grace, host));
            }
            _ => {}
        }
    }
}
