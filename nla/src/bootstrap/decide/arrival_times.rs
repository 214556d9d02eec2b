//! When agents reported and when they joined the tree, for `--timing` and `--calibrate`.

use std::time::Duration;

use crate::core::{AgentId, PhaseTimes, Time};

/// The times of a launch, by target.
#[derive(Clone, Debug, Default)]
pub struct ArrivalTimes {
    began: Time,
    bootstrap: PhaseTimes,
    join: PhaseTimes,
}

impl ArrivalTimes {
    /// Starts the measurement: the plan is made, and the first agent is about to be started.
    pub fn from(now: Time) -> Self {
        Self { began: now, ..Self::default() }
    }

    /// Notes the first report of the agent at `target`.
    pub fn on_here(&mut self, now: Time, target: u32) {
        self.bootstrap.note(AgentId(target), now.saturating_sub(self.began), now);
    }

    /// Notes that the agent at `target` joined `took` after its position was sent at `sent_at`.
    pub fn on_joined(&mut self, sent_at: Time, target: u32, took: Duration) {
        self.join.note(AgentId(target), took, sent_at.saturating_add(took));
    }

    /// Returns when the launch began.
    pub fn began(&self) -> Time {
        self.began
    }

    /// Returns the times from the beginning of the launch to each agent's first report.
    pub fn bootstrap(&self) -> &PhaseTimes {
        &self.bootstrap
    }

    /// Returns the times from the position given to each agent until that agent joined.
    pub fn join(&self) -> &PhaseTimes {
        &self.join
    }
}
