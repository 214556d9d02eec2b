//! Handles pauses of the launcher, and agents that are silent although their machines answer.

use std::time::Duration;

use litemap::LiteMap;

use super::{Notice, Phase, Root, RootAction, Turn};
use crate::core::cause::Outcome;
use crate::core::ids::{AgentId, Time};
use crate::core::limits::{END_MARGIN, SILENCE_TOLD, SILENCE_WINDOW};

/// A time in which the launcher did not run for a dead time or longer.
#[derive(Debug)]
pub(super) struct Stop {
    /// How long it did not run.
    time: Duration,
    /// An agent lost before this time may have counted the launcher as lost during the stop.
    given_up_until: Time,
    is_told: bool,
}

/// Collects silent agents, to report them to the user in one line.
#[derive(Default, Debug)]
pub(super) struct Silences {
    agents: LiteMap<AgentId, Duration>,
    /// When the user is told.
    tell_at: Option<Time>,
    told: Option<Time>,
}

impl Silences {
    /// Adds an agent.
    pub(super) fn add(&mut self, now: Time, agent: AgentId, time: Duration) {
        self.agents.insert(agent, time);
        let again = self.told.map_or(Time::ZERO, |told| told + SILENCE_TOLD);
        self.tell_at.get_or_insert(again.max(now + SILENCE_WINDOW));
    }

    /// Returns when [`take`](Self::take) is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.tell_at
    }

    fn take(&mut self, now: Time) -> Option<Vec<(AgentId, Duration)>> {
        self.tell_at.take_if(|at| now >= *at)?;
        self.told = Some(now);
        Some(std::mem::take(&mut self.agents).into_iter().collect())
    }
}

impl Root {
    /// The launcher did not run for this time, so none of its deadlines counts it.
    pub(super) fn on_stopped(&mut self, time: Duration, turn: &mut Turn<'_>) {
        self.flow.on_continued(turn.now);
        match &mut self.phase {
            Phase::Joining { until: Some(until) }
            | Phase::Gathering { until }
            | Phase::Restarting { until, .. }
            | Phase::Ending { until, .. } => *until += time,
            Phase::Joining { until: None } | Phase::Staging | Phase::Running | Phase::Flushing { .. } | Phase::Over => {
            }
        }
        if time >= self.session.dead_time {
            let given_up_until = turn.now + self.session.dead_time;
            self.stop = Some(Stop { time, given_up_until, is_told: false });
            self.children.hurry(given_up_until);
        }
    }

    /// Records a silent agent whose machine answers. While the session has not failed, extends its deadlines so that they do not
    /// end before the next report of its silence.
    pub(super) fn await_silent(&mut self, agent: AgentId, time: Duration, now: Time) {
        self.silences.add(now, agent, time);
        if let Phase::Joining { until: Some(until) }
        | Phase::Restarting { until, .. }
        | Phase::Ending { outcome: Outcome::Success, until, .. } = &mut self.phase
        {
            *until = (*until).max(now + SILENCE_TOLD + END_MARGIN);
        }
    }

    /// Returns how long agents may take to report the end of their ranks after KILL. If nothing has failed, that is long enough for
    /// a report of their silence.
    pub(super) fn end_margin(&self, outcome: &Outcome) -> Duration {
        if *outcome == Outcome::Success { self.session.dead_time.saturating_add(END_MARGIN) } else { END_MARGIN }
    }

    /// Returns how long agents below a lost one may take to join, if both may have given the launcher up.
    pub(super) fn time_after_stop(&self, now: Time) -> Option<Duration> {
        let until = self.stop.as_ref()?.given_up_until;
        (now < until).then(|| until.saturating_sub(now))
    }

    /// Reports a pause of the launcher, once: it may have caused the loss of an agent.
    pub(super) fn tell_stop(&mut self, turn: &mut Turn<'_>) {
        let Some(stop) = self.stop.as_mut().filter(|stop| turn.now < stop.given_up_until && !stop.is_told) else {
            return;
        };
        stop.is_told = true;
        turn.push(RootAction::Notice(Notice::Stopped(stop.time)));
    }

    /// Reports the collected silent agents, if due. Leaves out agents that were lost meanwhile.
    pub(super) fn tell_silences(&mut self, turn: &mut Turn<'_>) {
        let Some(mut agents) = self.silences.take(turn.now) else { return };
        agents.retain(|(agent, _)| !self.lost.contains(agent));
        if !agents.is_empty() {
            turn.push(RootAction::Notice(Notice::Silent(agents)));
        }
    }
}
