//! The launcher's own steps, from its notices.

use nla::bootstrap::ArrivalTimes;
use nla::core::{AgentId, FenceSpans, NamespaceId, Notice, SpanKind, Time, TraceScope, TraceSpan};

/// The most phases of the launcher: beyond that, further starts of the ranks are not told apart.
const PHASES_MAX: usize = 256;

/// The steps so far.
#[derive(Debug)]
pub(super) struct Steps {
    /// The phases that are over, from the last join on.
    phases: Vec<TraceSpan>,
    /// The phase that lasts, and its begin. Before the last join there is none.
    current: Option<(SpanKind, Time)>,
    contact: Option<Time>,
    fences: FenceSpans,
}

impl Default for Steps {
    fn default() -> Self {
        // The launcher is traced in full in every session.
        let fences = FenceSpans::new(AgentId::ROOT, TraceScope::of(1));
        Self { phases: Vec::new(), current: None, contact: None, fences }
    }
}

impl Steps {
    pub(super) fn on_notice(&mut self, at: Time, notice: &Notice) {
        match notice {
            Notice::Joined | Notice::Restarted(_) => self.enter(SpanKind::Spawn, at),
            Notice::Started(NamespaceId::FIRST, _) => self.enter(SpanKind::Run, at),
            Notice::RanksEnded | Notice::Ending(..) | Notice::Restarting { .. } => self.enter(SpanKind::End, at),
            Notice::Contact(NamespaceId::FIRST) => drop(self.contact.get_or_insert(at)),
            Notice::Released { namespace: NamespaceId::FIRST, number, took, .. } => {
                self.fences.note(*number, &[at.saturating_sub(*took), at], &[]);
            }
            _ => {}
        }
    }

    /// Ends the current phase and begins the next one.
    pub(super) fn enter(&mut self, next: SpanKind, at: Time) {
        match self.current {
            Some((current, _)) if current == next || self.phases.len() == PHASES_MAX => {}
            Some((current, from)) => {
                self.phases.push(TraceSpan::new(AgentId::ROOT, current, from, at));
                self.current = Some((next, at));
            }
            None => self.current = Some((next, at)),
        }
    }

    /// Returns all steps of a session that ends now.
    pub(super) fn spans(self, arrivals: &ArrivalTimes, end: Time) -> Vec<TraceSpan> {
        let began = arrivals.began();
        let joined = self.phases.first().map(|phase| phase.from).or(self.current.map(|(_, from)| from)).unwrap_or(end);
        let here = arrivals.bootstrap().done().unwrap_or(joined).min(joined);
        let mut spans = vec![
            TraceSpan::new(AgentId::ROOT, SpanKind::Plan, Time::ZERO, began),
            TraceSpan::new(AgentId::ROOT, SpanKind::Bootstrap, began, here),
            TraceSpan::new(AgentId::ROOT, SpanKind::Join, here, joined),
        ];
        spans.extend(self.phases);
        spans.extend(self.current.map(|(kind, from)| TraceSpan::new(AgentId::ROOT, kind, from, end)));
        spans.extend(self.contact.map(|at| TraceSpan::new(AgentId::ROOT, SpanKind::Contacts, at, at)));
        spans.extend(self.fences.spans());
        spans
    }
}
