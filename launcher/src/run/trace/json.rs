//! Writes a trace in the Trace Event Format of Chrome, which Perfetto reads as well: an object whose `traceEvents` has one
//! event per line. A process of the format is a place: the launcher is 0, an agent has its number. Its threads are rows:
//! spans of one row nest and do not overlap otherwise.

use std::collections::BTreeSet;
use std::io::{self, Write};

use nla::core::{AgentId, SpanKind, TraceSpan};
use serde::Serialize;
use serde_json::{Value, json};

use super::Traced;

/// The version of the arguments and of `otherData`.
const VERSION: u32 = 1;

/// The rows of a place. Spawner threads have the rows from `STARTS` on.
const BOOTSTRAP: u32 = 1;
const PHASES: u32 = 2;
const CONTACTS: u32 = 3;
const FENCES: u32 = 4;
const BOARD: u32 = 5;
const EXITS: u32 = 6;
const STARTS: u32 = 10;

/// A span, or with `ph` "M" the name of a place or row.
#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
}

/// Writes the trace. `own` are the launcher's spans.
pub(super) fn write(out: &mut impl Write, traced: &Traced<'_>, own: &[TraceSpan]) -> io::Result<()> {
    let spans = || own.iter().chain(&traced.starts).chain(&traced.reported);
    let rows: BTreeSet<(u32, u32)> = spans().map(|span| (span.agent.0, row(span).0)).collect();
    let places: BTreeSet<u32> = rows.iter().map(|(place, _)| *place).collect();
    let reported: BTreeSet<AgentId> = traced.reported.iter().map(|span| span.agent).collect();
    let other = json!({
        "version": VERSION,
        "clock": "microseconds since scela-run began",
        "ranks": traced.job.map(|job| job.size),
        "agents": traced.agents,
        "agents_traced": traced.agents.div_ceil(traced.scope.every),
        "agents_reported": reported.len(),
        "row_spans_max": traced.scope.row_spans,
        "detail": detail(traced),
    });
    writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[")?;
    let mut is_first = true;
    let mut event = |event: &Event| {
        let separator = if std::mem::take(&mut is_first) { "" } else { ",\n" };
        let text = serde_json::to_string(event).map_err(io::Error::other)?;
        write!(out, "{separator}{text}")
    };
    for place in places {
        event(&meta("process_name", place, None, json!({"name": place_name(traced, AgentId(place))})))?;
        event(&meta("process_sort_index", place, None, json!({"sort_index": place})))?;
    }
    event(&meta("process_labels", 0, None, json!({"labels": detail(traced)})))?;
    for (place, row) in rows {
        event(&meta("thread_name", place, Some(row), json!({"name": row_name(row)})))?;
        event(&meta("thread_sort_index", place, Some(row), json!({"sort_index": row})))?;
    }
    for span in spans() {
        event(&complete(span))?;
    }
    writeln!(out, "\n]}}")
}

/// Describes how much the trace has.
fn detail(traced: &Traced<'_>) -> String {
    let agents = match traced.scope.every {
        1 => "all agents".to_owned(),
        every => format!("one of {every} agents"),
    };
    match traced.scope.row_spans {
        0 => format!("{agents}, only phases"),
        most => format!("{agents}, spans merged beyond {most} per row"),
    }
}

fn meta(name: &str, pid: u32, tid: Option<u32>, args: Value) -> Event {
    Event { name: name.to_owned(), ph: "M", ts: None, dur: None, pid, tid, args: Some(args) }
}

fn complete(span: &TraceSpan) -> Event {
    let TraceSpan { agent, kind, from, to, count, busy } = *span;
    let (tid, name) = row(span);
    let us = |time: std::time::Duration| time.as_nanos() as f64 / 1000.0;
    let args = match kind {
        SpanKind::Start { .. } | SpanKind::Release => Some(json!({"ranks": count, "busy_us": us(busy)})),
        SpanKind::Contacts | SpanKind::Exits => Some(json!({"ranks": count})),
        SpanKind::Fence { number } => Some(json!({"number": number, "fences": count, "busy_us": us(busy)})),
        SpanKind::Arrivals { number } | SpanKind::Gathering { number } | SpanKind::Waiting { number } => {
            Some(json!({"number": number}))
        }
        SpanKind::Publish => Some(json!({"epochs": count, "busy_us": us(busy)})),
        _ => None,
    };
    Event { name, ph: "X", ts: Some(us(from)), dur: Some(us(to - from)), pid: agent.0, tid: Some(tid), args }
}

/// Returns the row of a span, and its name there.
fn row(span: &TraceSpan) -> (u32, String) {
    let several =
        |one: &str, count: u32| if count == 1 { format!("{one} 1 rank") } else { format!("{one} {count} ranks") };
    let (row, name) = match span.kind {
        SpanKind::Bootstrap if span.agent != AgentId::ROOT => (BOOTSTRAP, "bootstrap"),
        SpanKind::Join if span.agent != AgentId::ROOT => (BOOTSTRAP, "join"),
        SpanKind::Plan => (PHASES, "plan"),
        SpanKind::Bootstrap => (PHASES, "bootstrap"),
        SpanKind::Join => (PHASES, "join"),
        SpanKind::Description => (PHASES, "job description"),
        SpanKind::Spawn => (PHASES, "spawn"),
        SpanKind::Run => (PHASES, "run"),
        SpanKind::End => (PHASES, "end"),
        SpanKind::Sweep => (PHASES, "sweep"),
        SpanKind::Output => (PHASES, "output"),
        SpanKind::Leave => (PHASES, "leave"),
        SpanKind::Start { thread } => return (STARTS + u32::from(thread), several("start", span.count)),
        SpanKind::Contacts => return (CONTACTS, several("contact of", span.count)),
        SpanKind::Exits => return (EXITS, several("end of", span.count)),
        SpanKind::Fence { number } if span.count == 1 => return (FENCES, format!("fence {number}")),
        SpanKind::Fence { number } => return (FENCES, format!("{} fences from {number}", span.count)),
        SpanKind::Arrivals { .. } => (FENCES, "arrivals"),
        SpanKind::Gathering { .. } => (FENCES, "gathering"),
        SpanKind::Waiting { .. } => (FENCES, "waiting"),
        SpanKind::Publish => (BOARD, "publish"),
        SpanKind::Release => return (BOARD, several("release", span.count)),
    };
    (row, name.to_owned())
}

fn row_name(row: u32) -> String {
    let name = match row {
        BOOTSTRAP => "bootstrap",
        PHASES => "phases",
        CONTACTS => "PMI contacts",
        FENCES => "fences",
        BOARD => "board",
        EXITS => "exits",
        _ => return format!("spawner {}", row.saturating_sub(STARTS)),
    };
    name.to_owned()
}

fn place_name(traced: &Traced<'_>, place: AgentId) -> String {
    let host = (traced.host)(place);
    if place == AgentId::ROOT {
        return format!("launcher on {host}");
    }
    match traced.job.and_then(|job| job.ranks_at(place)).filter(|ranks| !ranks.is_empty()) {
        Some(ranks) if ranks.len() == 1 => format!("agent {place} on {host}, rank {ranks}"),
        Some(ranks) => format!("agent {place} on {host}, ranks {ranks}"),
        None => format!("agent {place} on {host}"),
    }
}
