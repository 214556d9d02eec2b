//! The trace of a session, for `--trace`: the times of its steps at each agent, in a bounded number of spans.
//!
//! A place notes spans only if the session's plan has a [`TraceScope`], and reports them at the end with its statistics.
//! Spans of one kind are in a [`SpanRow`]. A row that is full merges its neighbours two by two, so a longer session or more
//! ranks make spans coarser, not more. The scope's bounds follow from the number of agents, so the whole trace is bounded,
//! too.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ids::{AgentId, Time};
use super::limits::{TRACE_ROW_SPANS_MAX, TRACE_SPANS_MAX, TRACED_AGENTS_MAX};
use super::topology::Subtree;

/// The most spans of phases at one agent: those of the first start of all ranks, and those of the last.
const PHASES_MAX: u32 = 16;
/// The most rows of an agent: one for each of four spawner threads, contacts, exits, publishing and releasing, and the
/// fences, each of which has up to four spans for as long as it is not merged with others.
const ROWS_MAX: u32 = 4 + 4 + 3;

/// The step of the session that a span is about.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum SpanKind {
    /// At the launcher: from the start of scela-run to the start of the first agent.
    Plan,
    /// From the beginning of the launch until the launcher had the agent's first report.
    Bootstrap,
    /// From the sending of the agent's position in the tree until its link to its parent worked.
    Join,
    /// From the launcher's sending of the job's description to its arrival.
    Description,
    /// From that arrival to the start of the last rank. At the launcher: from the last join to the report of that start.
    Spawn,
    /// From the start of the last rank to the end of the last one, or to the order to end them.
    Run,
    /// From the order to end the ranks to the end of the last one. At the launcher: from the end of all ranks, or that
    /// order, until the session was over.
    End,
    /// From the end of the last rank until no process was left.
    Sweep,
    /// From then until all output of the subtree was passed on.
    Output,
    /// At the launcher: until agents and guardians had exited.
    Leave,
    /// A spawner thread started ranks.
    Start {
        /// The thread's number.
        thread: u8,
    },
    /// Ranks sent their first PMI messages.
    Contacts,
    /// Ranks ended.
    Exits,
    /// A fence or ring, from the first arrival to the release. At the launcher: from the first report of an arrival.
    Fence {
        /// Its number; that of the first one if the span is about several.
        number: u32,
    },
    /// The part of the fence from the first rank's arrival to the last one's.
    Arrivals {
        /// The fence's number.
        number: u32,
    },
    /// The part from then until the whole subtree had arrived.
    Gathering {
        /// The fence's number.
        number: u32,
    },
    /// The part from then to the release.
    Waiting {
        /// The fence's number.
        number: u32,
    },
    /// Entries were added to the board.
    Publish,
    /// Ranks were released.
    Release,
}

impl SpanKind {
    /// Whether an agent may report it. The launcher notes the others.
    fn is_of_agent(self) -> bool {
        !matches!(self, Self::Plan | Self::Bootstrap | Self::Join | Self::Leave)
    }
}

/// A part of the session's time at one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceSpan {
    /// The place.
    pub agent: AgentId,
    /// The step.
    pub kind: SpanKind,
    /// The beginning, in session time.
    pub from: Time,
    /// The end.
    pub to: Time,
    /// The number of ranks, fences or epochs that it is about; 1 for a phase.
    pub count: u32,
    /// The sum of the durations of the spans that were merged into this one.
    pub busy: Duration,
}

impl TraceSpan {
    /// A span about one event. A `from` after `to`, by clocks of different hosts, counts as `to`.
    pub fn new(agent: AgentId, kind: SpanKind, from: Time, to: Time) -> Self {
        let from = from.min(to);
        Self { agent, kind, from, to, count: 1, busy: to - from }
    }

    fn merge(&mut self, later: &Self) {
        self.from = self.from.min(later.from);
        self.to = self.to.max(later.to);
        self.count = self.count.saturating_add(later.count);
        self.busy = self.busy.saturating_add(later.busy);
    }
}

/// The bounds of a session's trace.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceScope {
    /// Every this many agents, beginning with the first, one is traced.
    pub every: u32,
    /// The most spans in each row of an agent. With 0, only phases are traced.
    pub row_spans: u32,
}

impl TraceScope {
    /// The scope of a session with this number of agents, such that all agents together have at most [`TRACE_SPANS_MAX`]
    /// spans.
    pub fn of(agents: u32) -> Self {
        let every = agents.div_ceil(TRACED_AGENTS_MAX).max(1);
        let share = TRACE_SPANS_MAX as u32 / agents.div_ceil(every).max(1);
        let row_spans = (share.saturating_sub(PHASES_MAX) / ROWS_MAX).min(TRACE_ROW_SPANS_MAX);
        Self { every, row_spans }
    }

    /// Whether the agent is traced.
    pub fn traces(&self, agent: AgentId) -> bool {
        agent != AgentId::ROOT && (agent.0 - 1).is_multiple_of(self.every.max(1))
    }

    /// The most spans that an agent reports.
    pub fn agent_spans_max(&self) -> u32 {
        PHASES_MAX + ROWS_MAX * self.row_spans.min(TRACE_ROW_SPANS_MAX)
    }

    /// Whether these spans can be a report of `subtree`. Reports of peers are checked with it.
    pub fn allows(&self, spans: &[TraceSpan], subtree: Subtree) -> bool {
        let mut counts: BTreeMap<AgentId, u32> = BTreeMap::new();
        spans.iter().all(|span| {
            let count = counts.entry(span.agent).or_default();
            *count += 1;
            *count <= self.agent_spans_max()
                && self.traces(span.agent)
                && subtree.contains(span.agent)
                && span.kind.is_of_agent()
                && span.from <= span.to
        })
    }
}

/// Events without a duration that follow each other within this time are one span.
const BURST: Duration = Duration::from_micros(100);

/// Spans of one kind at one place, in the order of their ends.
#[derive(Clone, Debug)]
pub struct SpanRow {
    agent: AgentId,
    kind: SpanKind,
    spans_max: usize,
    /// The events that make a span full.
    span_events: u32,
    spans: Vec<TraceSpan>,
}

impl SpanRow {
    /// An empty row.
    pub fn new(agent: AgentId, kind: SpanKind, scope: TraceScope) -> Self {
        Self { agent, kind, spans_max: scope.row_spans as usize, span_events: 1, spans: Vec::new() }
    }

    /// Notes something that concerned `count` ranks or epochs.
    pub fn note(&mut self, from: Time, to: Time, count: u32) {
        self.push(TraceSpan { count, ..TraceSpan::new(self.agent, self.kind, from, to) });
    }

    fn push(&mut self, span: TraceSpan) {
        if self.spans_max == 0 {
            return;
        }
        let is_event = matches!(self.kind, SpanKind::Contacts | SpanKind::Exits);
        let belongs = |last: &TraceSpan| last.count < self.span_events || is_event && span.to <= last.to + BURST;
        match self.spans.last_mut().filter(|last| belongs(last)) {
            Some(last) => last.merge(&span),
            None => self.spans.push(span),
        }
        if self.spans.len() > self.spans_max {
            self.span_events = self.span_events.saturating_mul(2);
            self.spans = self.spans.chunks(2).map(merged).collect();
        }
    }

    /// Returns its spans.
    pub fn spans(&self) -> &[TraceSpan] {
        &self.spans
    }
}

/// Merges neighbours, at least one.
fn merged(neighbours: &[TraceSpan]) -> TraceSpan {
    let mut sum = neighbours[0];
    neighbours[1..].iter().for_each(|later| sum.merge(later));
    sum
}

/// The fences of one place. The first ones, for half of a row's spans, are noted with their parts; later ones share a row.
#[derive(Clone, Debug)]
pub struct FenceSpans {
    agent: AgentId,
    detailed_max: u32,
    detailed: u32,
    first: Vec<TraceSpan>,
    later: SpanRow,
}

impl FenceSpans {
    /// No fences.
    pub fn new(agent: AgentId, scope: TraceScope) -> Self {
        let detailed_max = scope.row_spans / 2;
        let later = SpanRow::new(agent, SpanKind::Fence { number: 0 }, scope);
        Self { agent, detailed_max, detailed: 0, first: Vec::new(), later }
    }

    /// Notes a fence from `times[0]` to the last of `times`, and the parts between each two of them.
    pub fn note(&mut self, number: u32, times: &[Time], parts: &[fn(u32) -> SpanKind]) {
        let [from, .., to] = times else { return };
        let fence = TraceSpan::new(self.agent, SpanKind::Fence { number }, *from, *to);
        if self.detailed == self.detailed_max {
            return self.later.push(fence);
        }
        self.detailed += 1;
        self.first.push(fence);
        let parts = times
            .windows(2)
            .zip(parts)
            .map(|(times, part)| TraceSpan::new(self.agent, part(number), times[0], times[1]));
        self.first.extend(parts);
    }

    /// Returns all spans.
    pub fn spans(&self) -> impl Iterator<Item = &TraceSpan> {
        self.first.iter().chain(self.later.spans())
    }
}

/// The fence that is open at an agent.
#[derive(Copy, Clone, Debug)]
struct OpenFence {
    /// When the first and the last of the agent's own ranks arrived; without any, when the subtree had arrived.
    arrivals: (Time, Time),
    /// When the subtree had arrived.
    gathered: Option<Time>,
}

/// Notes the spans of an agent's core.
#[derive(Debug)]
pub(super) struct Tracer {
    agent: AgentId,
    phases: Vec<TraceSpan>,
    /// Ranks of any namespace.
    pub(super) contacts: SpanRow,
    pub(super) exits: SpanRow,
    /// Fences of the job's own namespace.
    fences: FenceSpans,
    open: Option<OpenFence>,
    /// The spans of the driver, once it has counted.
    pub(super) driver: Vec<TraceSpan>,
    /// When the driver had passed on all output.
    pub(super) drained: Option<Time>,
}

impl Tracer {
    /// Begins to trace `agent`, if the scope says so.
    pub(super) fn begin(scope: Option<TraceScope>, agent: AgentId) -> Option<Box<Self>> {
        let scope = scope.filter(|scope| scope.traces(agent))?;
        let row = |kind| SpanRow::new(agent, kind, scope);
        Some(Box::new(Self {
            agent,
            phases: Vec::new(),
            contacts: row(SpanKind::Contacts),
            exits: row(SpanKind::Exits),
            fences: FenceSpans::new(agent, scope),
            open: None,
            driver: Vec::new(),
            drained: None,
        }))
    }

    /// One of the agent's ranks has arrived at the open fence.
    pub(super) fn on_arrived(&mut self, now: Time) {
        let open = self.open.get_or_insert(OpenFence { arrivals: (now, now), gathered: None });
        open.arrivals.1 = now;
    }

    /// The subtree has arrived at the open fence.
    pub(super) fn on_gathered(&mut self, now: Time) {
        self.open.get_or_insert(OpenFence { arrivals: (now, now), gathered: None }).gathered = Some(now);
    }

    /// The open fence was released.
    pub(super) fn on_released(&mut self, now: Time, number: u32) {
        let Some(OpenFence { arrivals: (first, last), gathered }) = self.open.take() else { return };
        let times = [first, last, gathered.unwrap_or(last), now];
        let parts: [fn(u32) -> SpanKind; 3] = [
            |number| SpanKind::Arrivals { number },
            |number| SpanKind::Gathering { number },
            |number| SpanKind::Waiting { number },
        ];
        self.fences.note(number, &times, &parts);
    }

    /// All ranks start again: keeps the phases of the previous start if it was the first one.
    pub(super) fn on_restarted(&mut self, phases: Vec<(SpanKind, Time, Time)>) {
        self.open = None;
        // Of many starts, the first and the last are traced.
        if self.phases.is_empty() {
            self.add_phases(phases);
        }
    }

    fn add_phases(&mut self, phases: Vec<(SpanKind, Time, Time)>) {
        self.phases.extend(phases.into_iter().map(|(kind, from, to)| TraceSpan::new(self.agent, kind, from, to)));
    }

    /// Returns the report to the parent. `phases` are those of the last start.
    pub(super) fn report(mut self, mut phases: Vec<(SpanKind, Time, Time)>, swept: Option<Time>) -> Vec<TraceSpan> {
        phases.extend(swept.zip(self.drained).map(|(swept, drained)| (SpanKind::Output, swept, drained)));
        self.add_phases(phases);
        let mut spans = self.phases;
        spans.extend([&self.contacts, &self.exits].into_iter().flat_map(SpanRow::spans));
        spans.extend(self.fences.spans());
        spans.append(&mut self.driver);
        spans
    }
}

/// Decodes at most [`TRACE_SPANS_MAX`] spans.
pub(super) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TraceSpan>, D::Error> {
    struct Bounded;

    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<TraceSpan>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {TRACE_SPANS_MAX} spans")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut spans = Vec::new();
            while let Some(span) = sequence.next_element()? {
                if spans.len() == TRACE_SPANS_MAX {
                    return Err(serde::de::Error::invalid_length(TRACE_SPANS_MAX + 1, &self));
                }
                spans.push(span);
            }
            Ok(spans)
        }
    }

    deserializer.deserialize_seq(Bounded)
}

#[cfg(test)]
mod tests;
