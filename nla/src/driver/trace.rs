//! The spans that an agent's driver notes for `--trace`.

use crate::core::{AgentId, SpanKind, SpanRow, Time, TraceScope, TraceSpan};
use crate::link::Clock;

/// Notes how long steps of the driver take.
pub(super) struct DriverTrace {
    pub(super) publish: SpanRow,
    pub(super) release: SpanRow,
}

impl DriverTrace {
    /// Begins to trace `agent`, if the scope says so.
    pub(super) fn begin(scope: Option<TraceScope>, agent: AgentId) -> Option<Self> {
        let scope = scope.filter(|scope| scope.traces(agent))?;
        let row = |kind| SpanRow::new(agent, kind, scope);
        Some(Self { publish: row(SpanKind::Publish), release: row(SpanKind::Release) })
    }

    /// Returns the spans so far.
    pub(super) fn spans(&self) -> Vec<TraceSpan> {
        [&self.publish, &self.release].into_iter().flat_map(SpanRow::spans).copied().collect()
    }
}

/// Notes the starts of ranks by a spawner thread.
pub(super) struct StartTrace {
    pub(super) clock: Clock,
    row: SpanRow,
}

impl StartTrace {
    /// Begins to trace the agent's thread of this number.
    pub(super) fn begin(scope: TraceScope, agent: AgentId, thread: u8, clock: Clock) -> Self {
        Self { clock, row: SpanRow::new(agent, SpanKind::Start { thread }, scope) }
    }

    /// Notes a start that began at `from` and is over now.
    pub(super) fn note(&mut self, from: Time) {
        self.row.note(from, self.clock.now(), 1);
    }

    /// Returns the spans so far.
    pub(super) fn spans(&self) -> &[TraceSpan] {
        self.row.spans()
    }
}
