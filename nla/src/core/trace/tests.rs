//! Traces are bounded whatever a session does, and reports that an agent cannot have made are refused.

use super::*;
use crate::core::limits::AGENTS_MAX;
use crate::wire::{decode, encode};

const AGENT: AgentId = AgentId(1);
const FULL: TraceScope = TraceScope { every: 1, row_spans: TRACE_ROW_SPANS_MAX };

fn us(count: u64) -> Time {
    Duration::from_micros(count)
}

/// The report of an agent with this many ranks and fences, whose ranks have started again this often.
fn reported(scope: TraceScope, ranks: u64, fences: u32, restarts: u64) -> Vec<TraceSpan> {
    let mut tracer = Tracer::begin(Some(scope), AGENT).unwrap();
    let all = [SpanKind::Description, SpanKind::Spawn, SpanKind::Run, SpanKind::End, SpanKind::Sweep];
    let phases = |from: u64| all.into_iter().zip(from..).map(|(kind, at)| (kind, us(at), us(at + 1))).collect();
    (0..restarts).for_each(|restart| tracer.on_restarted(phases(10 * restart)));
    let ms = |count: u64| us(1000 * count);
    (0..ranks).for_each(|rank| tracer.contacts.note(ms(rank), ms(rank), 1));
    for number in 0..fences {
        let at = u64::from(number) * 10;
        [1, 2].iter().for_each(|after| tracer.on_arrived(us(at + after)));
        tracer.on_gathered(us(at + 3));
        tracer.on_released(us(at + 5), number);
    }
    (0..ranks).for_each(|rank| tracer.exits.note(ms(rank), ms(rank), 1));
    for kind in (0..4).map(|thread| SpanKind::Start { thread }).chain([SpanKind::Publish, SpanKind::Release]) {
        let mut row = SpanRow::new(AGENT, kind, scope);
        (0..ranks).for_each(|rank| row.note(us(rank), us(rank + 1), 1));
        tracer.driver.extend(row.spans());
    }
    tracer.drained = Some(us(99));
    tracer.report(phases(1000), Some(us(98)))
}

#[test]
fn all_agents_together_stay_within_the_bound() {
    for agents in [1, 2, 17, 700, 1024, 16_384, 32_768, 32_769, 100_000, AGENTS_MAX] {
        let scope = TraceScope::of(agents);
        let traced = (1..=agents).filter(|agent| scope.traces(AgentId(*agent))).count();
        assert!(traced as u32 <= TRACED_AGENTS_MAX && traced * scope.agent_spans_max() as usize <= TRACE_SPANS_MAX);
        assert!(scope.traces(AGENT) && !scope.traces(AgentId::ROOT));
        let spans = reported(scope, 1000, 1000, 9);
        assert!(spans.len() <= scope.agent_spans_max() as usize, "{agents} agents: {}", spans.len());
        assert!(scope.allows(&spans, Subtree::whole(1, 2)));
    }
    assert_eq!(TraceScope::of(700), FULL);
    assert_eq!(TraceScope::of(16_384), TraceScope { every: 1, row_spans: 1 });
    assert_eq!(TraceScope::of(100_000), TraceScope { every: 4, row_spans: 0 });
    assert!(reported(TraceScope::of(100_000), 5, 5, 0).iter().all(|span| span.count == 1), "only phases are left");
}

#[test]
fn a_full_row_becomes_coarser_and_loses_nothing() {
    let mut row = SpanRow::new(AGENT, SpanKind::Start { thread: 2 }, FULL);
    for rank in 0..10_000 {
        row.note(us(10 * rank), us(10 * rank + 4), 1);
        let spans = row.spans();
        assert!(spans.len() <= TRACE_ROW_SPANS_MAX as usize);
        assert_eq!(spans.iter().map(|span| u64::from(span.count)).sum::<u64>(), rank + 1);
        assert!(spans.windows(2).all(|two| two[0].to < two[1].from), "spans of a row do not overlap");
    }
    let spans = row.spans();
    assert!(spans.len() > TRACE_ROW_SPANS_MAX as usize / 2);
    assert_eq!((spans[0].from, spans.last().unwrap().to), (us(0), us(99_994)));
    assert_eq!(spans.iter().map(|span| span.busy).sum::<Duration>(), us(40_000));
}

#[test]
fn contacts_of_one_burst_are_one_span() {
    let mut row = SpanRow::new(AGENT, SpanKind::Contacts, FULL);
    [10, 50, 149, 250].iter().for_each(|at| row.note(us(*at), us(*at), 1));
    let spans: Vec<_> = row.spans().iter().map(|span| (span.from, span.to, span.count)).collect();
    assert_eq!(spans, [(us(10), us(149), 3), (us(250), us(250), 1)]);
}

#[test]
fn the_first_fences_have_parts_and_the_later_ones_share_spans() {
    let spans = reported(FULL, 0, 100, 0);
    let fence = |number: u32| {
        let at = 10 * u64::from(number);
        let span = |kind, from, to| TraceSpan::new(AGENT, kind, us(at + from), us(at + to));
        [
            span(SpanKind::Fence { number }, 1, 5),
            span(SpanKind::Arrivals { number }, 1, 2),
            span(SpanKind::Gathering { number }, 2, 3),
            span(SpanKind::Waiting { number }, 3, 5),
        ]
    };
    let fences: Vec<_> =
        spans.iter().filter(|span| span.from < us(990) && span.kind >= SpanKind::Fence { number: 0 }).collect();
    let expected: Vec<_> = (0..32).flat_map(fence).collect();
    assert!(fences.iter().copied().take(128).eq(&expected), "{fences:?}");
    let later = &fences[128..];
    assert_eq!(later.iter().map(|span| span.count).sum::<u32>(), 68);
    assert!(matches!(later[0].kind, SpanKind::Fence { number: 32 }) && later[0].count == 2, "{later:?}");
}

#[test]
fn of_many_starts_the_first_and_the_last_are_traced() {
    let spans = reported(FULL, 0, 0, 3);
    let begins: Vec<_> = spans.iter().filter(|span| span.kind == SpanKind::Spawn).map(|span| span.from).collect();
    assert_eq!(begins, [us(1), us(1001)]);
}

#[test]
fn only_agents_of_the_scope_are_traced() {
    assert!(Tracer::begin(None, AGENT).is_none());
    let scope = TraceScope { every: 4, row_spans: 0 };
    let traced: Vec<_> = (1..=9).filter(|agent| Tracer::begin(Some(scope), AgentId(*agent)).is_some()).collect();
    assert_eq!(traced, [1, 5, 9]);
}

#[test]
fn a_report_that_cannot_be_of_its_subtree_is_refused() {
    let tree = Subtree::whole(4, 2); // 1 - 2, 3 - 4
    let below = tree.of(AGENT).unwrap();
    let good = reported(FULL, 100, 50, 1);
    assert!(FULL.allows(&good, below) && FULL.allows(&[], below));
    let changes: [fn(&mut Vec<TraceSpan>); 5] = [
        |spans| spans[0].agent = AgentId(3),
        |spans| spans[0].kind = SpanKind::Leave,
        |spans| (spans[0].from, spans[0].to) = (us(2), us(1)),
        |spans| spans.extend(vec![spans[0]; FULL.agent_spans_max() as usize]),
        |spans| spans[0].agent = AgentId::ROOT,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(!FULL.allows(&bad, below), "change {at}");
    }
    let some = TraceScope { every: 2, ..FULL };
    let of_second = good.iter().map(|span| TraceSpan { agent: AgentId(2), ..*span }).collect::<Vec<_>>();
    assert!(FULL.allows(&of_second, below) && !some.allows(&of_second, below), "this agent is not traced");
    let hostile = TraceScope { every: 0, row_spans: u32::MAX };
    assert!(hostile.traces(AGENT) && hostile.agent_spans_max() == FULL.agent_spans_max());
}

#[test]
fn a_message_has_a_bounded_number_of_spans() {
    use crate::core::stats::Stats;
    let of = |count: usize| {
        let spans = vec![TraceSpan::new(AGENT, SpanKind::Run, us(1), us(2)); count];
        encode(&Stats { levels: Vec::new(), spans })
    };
    assert_eq!(decode::<Stats>(&of(TRACE_SPANS_MAX)).unwrap().spans.len(), TRACE_SPANS_MAX);
    let error = decode::<Stats>(&of(TRACE_SPANS_MAX + 1)).unwrap_err().to_string();
    assert!(error.contains("524289"), "{error}");
}
