//! The spans that an agent's driver notes for `--trace`.

use crate::core::{AgentId, SpanKind, SpanLane, Time, TraceScope, TraceSpan};
use crate::link::Clock;

/// Notes how long steps of the driver take.
pub(super) struct DriverTrace {
    pub(super) publish: SpanLane,
    pub(super) release: SpanLane,
}

impl DriverTrace {
    /// Begins to trace `agent`, if the scope says so.
    pub(super) fn begin(scope: Option<TraceScope>, agent: AgentId) -> Option<Self> {
        let scope = scope.filter(|scope| scope.traces(agent))?;
        let lane = |kind| SpanLane::new(agent, kind, scope);
        Some(Self { publish: lane(SpanKind::Publish), release: lane(SpanKind::Release) })
    }

    /// Returns the spans so far.
    pub(super) fn spans(&self) -> Vec<TraceSpan> {
        [&self.publish, &self.release].into_iter().flat_map(SpanLane::spans).copied().collect()
    }
}

/// Notes the starts of ranks by a spawner thread.
pub(super) struct StartTrace {
    pub(super) clock: Clock,
    lane: SpanLane,
}

impl StartTrace {
    /// Begins to trace the agent's thread of this number.
    pub(super) fn begin(scope: TraceScope, agent: AgentId, thread: u8, clock: Clock) -> Self {
        Self { clock, lane: SpanLane::new(agent, SpanKind::Start { thread }, scope) }
    }

    /// Notes a start that began at `from` and is over now.
    pub(super) fn note(&mut self, from: Time) {
        self.lane.note(from, self.clock.now(), 1);
    }

    /// Returns the spans so far.
    pub(super) fn spans(&self) -> &[TraceSpan] {
        self.lane.spans()
    }
}
