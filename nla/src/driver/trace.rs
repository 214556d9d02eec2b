//! The spans that an agent's driver notes for `--trace`.

use crate::core::{AgentId, SpanKind, SpanRow, Time, TraceScope, TraceSpan};
use crate::link::Clock;

/// Notes how long steps of the driver take.
pub(super) struct DriverTrace {
    pub(super) publish: SpanRow,
    release: SpanRow,
    /// When the release that is under way began, and of how many ranks.
    releasing: Option<(Time, u32)>,
}

impl DriverTrace {
    /// Begins to trace `agent`, if the scope says so.
    pub(super) fn begin(scope: Option<TraceScope>, agent: AgentId) -> Option<Self> {
        let scope = scope.filter(|scope| scope.traces(agent))?;
        let row = |kind| SpanRow::new(agent, kind, scope);
        Some(Self { publish: row(SpanKind::Publish), release: row(SpanKind::Release), releasing: None })
    }

    /// A release of ranks begins, or more ranks join the one that is under way.
    pub(super) fn on_release(&mut self, now: Time, ranks: u32) {
        let (_, all) = self.releasing.get_or_insert((now, 0));
        *all = all.saturating_add(ranks);
    }

    /// All ranks of the release have been told.
    pub(super) fn on_released(&mut self, now: Time) {
        if let Some((began, ranks)) = self.releasing.take() {
            self.release.note(began, now, ranks);
        }
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
