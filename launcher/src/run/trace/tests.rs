//! The launcher's steps, and a whole file.

use std::time::Duration;

use nla::core::{Cause, Failure, NamespaceId, Outcome};
use pmi::Ranks;

use super::*;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn arrivals() -> ArrivalTimes {
    let mut arrivals = ArrivalTimes::from(ms(2));
    arrivals.on_here(ms(5), 1);
    arrivals
}

fn released(number: u32, took: u64) -> Notice {
    Notice::Released { namespace: NamespaceId::FIRST, number, entries: 0, bytes: 0, took: ms(took) }
}

/// The kinds and times of the launcher's spans.
fn steps(notices: &[(u64, Notice)], over: u64, end: u64) -> Vec<(SpanKind, u64, u64)> {
    let mut steps = Steps::default();
    notices.iter().for_each(|(at, notice)| steps.on_notice(ms(*at), notice));
    steps.enter(SpanKind::Leave, ms(over));
    let spans = steps.spans(&arrivals(), ms(end));
    spans.iter().map(|span| (span.kind, span.from.as_millis() as u64, span.to.as_millis() as u64)).collect()
}

#[test]
fn the_phases_of_the_launcher_follow_each_other() {
    let notices = [
        (7, Notice::Joined),
        (8, Notice::Contact(NamespaceId::FIRST)),
        (9, Notice::Started(NamespaceId::FIRST, 4)),
        (15, released(0, 4)),
        (20, Notice::RanksEnded),
    ];
    let expected = [
        (SpanKind::Plan, 0, 2),
        (SpanKind::Bootstrap, 2, 5),
        (SpanKind::Join, 5, 7),
        (SpanKind::Spawn, 7, 9),
        (SpanKind::Run, 9, 20),
        (SpanKind::End, 20, 22),
        (SpanKind::Leave, 22, 25),
        (SpanKind::Contacts, 8, 8),
        (SpanKind::Fence { number: 0 }, 11, 15),
    ];
    assert_eq!(steps(&notices, 22, 25), expected);
}

#[test]
fn a_failure_and_a_restart_end_phases_early() {
    let first = Failure {
        at: ms(9),
        agent: AgentId(1),
        namespace: NamespaceId::FIRST,
        ranks: Ranks::range(0..1),
        cause: Cause::Code(3),
    };
    let restarting = Notice::Restarting { first: first.clone(), others: 0, number: 1, of: 3, wait: Duration::ZERO };
    let notices = [
        (7, Notice::Joined),
        (9, Notice::Started(NamespaceId::FIRST, 4)),
        (10, restarting),
        (12, Notice::Restarted(NamespaceId(1))),
        (13, Notice::Ending(Outcome::Failed { first, others: 0 }, 15, Duration::ZERO)),
    ];
    let expected = [
        (SpanKind::Spawn, 7, 9),
        (SpanKind::Run, 9, 10),
        (SpanKind::End, 10, 12),
        (SpanKind::Spawn, 12, 13),
        (SpanKind::End, 13, 22),
        (SpanKind::Leave, 22, 25),
    ];
    assert_eq!(steps(&notices, 22, 25)[3..], expected);
}

#[test]
fn a_file_has_a_line_for_each_event() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("trace.json");
    let agent = AgentId(5);
    let us = Duration::from_micros;
    let mut fence = TraceSpan::new(agent, SpanKind::Fence { number: 8 }, us(30), us(34));
    (fence.count, fence.busy) = (4, us(3));
    let contacts = TraceSpan { count: 2, ..TraceSpan::new(agent, SpanKind::Contacts, us(20), us(21)) };
    let starts = TraceSpan::new(agent, SpanKind::Start { thread: 1 }, us(10), Duration::from_nanos(12_345));
    let traced = Traced {
        scope: TraceScope { every: 4, row_spans: 0 },
        agents: 9,
        job: None,
        host: &|place| format!("n{place}"),
        starts: vec![TraceSpan::new(agent, SpanKind::Bootstrap, us(1), us(2))],
        reported: vec![starts, contacts, fence],
    };
    assert!(TraceFile::open(&path).unwrap().write(&traced, &arrivals(), ms(9)).unwrap().is_none());
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"agents\":9,\"agents_reported\":1,\"agents_traced\":3,\
         \"clock\":\"microseconds since scela-run began\",\"detail\":\"one of 4 agents, only phases\",\
         \"ranks\":null,\"row_spans_max\":0,\"version\":1},\"traceEvents\":["
    );
    for line in [
        r#"{"name":"process_name","ph":"M","pid":0,"args":{"name":"launcher on n0"}},"#,
        r#"{"name":"process_name","ph":"M","pid":5,"args":{"name":"agent 5 on n5"}},"#,
        r#"{"name":"thread_name","ph":"M","pid":5,"tid":11,"args":{"name":"spawner 1"}},"#,
        r#"{"name":"plan","ph":"X","ts":0.0,"dur":2000.0,"pid":0,"tid":2},"#,
        r#"{"name":"bootstrap","ph":"X","ts":1.0,"dur":1.0,"pid":5,"tid":1},"#,
        r#"{"name":"start 1 rank","ph":"X","ts":10.0,"dur":2.345,"pid":5,"tid":11,"args":{"busy_us":2.345,"ranks":1}},"#,
        r#"{"name":"contact of 2 ranks","ph":"X","ts":20.0,"dur":1.0,"pid":5,"tid":3,"args":{"ranks":2}},"#,
        r#"{"name":"4 fences from 8","ph":"X","ts":30.0,"dur":4.0,"pid":5,"tid":4,"args":{"busy_us":3.0,"fences":4,"number":8}}"#,
    ] {
        assert!(lines.contains(&line), "{line} in\n{text}");
    }
    assert_eq!(lines.last(), Some(&"]}"));
}
