//! When agents reported and when they joined the tree, for `--timing` and `--calibrate`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::{AgentId, PhaseTimes, Time};

/// The times of a launch, by target.
#[derive(Clone, Debug, Default)]
pub struct ArrivalTimes {
    began: Time,
    bootstrap: PhaseTimes,
    join: PhaseTimes,
    /// When each target reported, and when its agent was sent its position and joined.
    targets: BTreeMap<u32, TargetTimes>,
}

/// The times of one target.
#[derive(Copy, Clone, Debug, Default)]
pub struct TargetTimes {
    /// When the launcher had its agent's first report.
    pub here: Option<Time>,
    /// When its agent was sent its position, and when it had joined.
    pub join: Option<(Time, Time)>,
}

impl ArrivalTimes {
    /// Starts the measurement: the plan is made, and the first agent is about to be started.
    pub fn from(now: Time) -> Self {
        Self { began: now, ..Self::default() }
    }

    /// Notes the first report of the agent at `target`.
    pub fn on_here(&mut self, now: Time, target: u32) {
        self.bootstrap.note(AgentId(target), now.saturating_sub(self.began), now);
        self.targets.entry(target).or_default().here = Some(now);
    }

    /// Notes that the agent at `target` joined `took` after its position was sent at `sent_at`.
    pub fn on_joined(&mut self, sent_at: Time, target: u32, took: Duration) {
        let joined = sent_at.saturating_add(took);
        self.join.note(AgentId(target), took, joined);
        self.targets.entry(target).or_default().join = Some((sent_at, joined));
    }

    /// Returns the times of each target that has reported.
    pub fn targets(&self) -> &BTreeMap<u32, TargetTimes> {
        &self.targets
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
