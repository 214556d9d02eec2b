//! Signals to ranks, and the agent's end: TERM, the grace, KILL, the sweep, and the last reports.

use std::time::Duration;

use super::{Action, Agent, Phase, SIGCONT, SIGKILL, SIGSTOP, Stage, Turn};
use crate::core::ids::Time;
use crate::core::limits::REJOIN_MARGIN;
use crate::core::message::{NO_SIGNAL, Up};
use crate::core::stats::{DriverCounts, LevelStats, Stats};
use crate::core::trace::TraceSpan;

impl Agent {
    /// Ends all ranks: `signal` first, SIGKILL after `grace`. A second call can only shorten the grace.
    pub(super) fn end(&mut self, signal: i32, grace: Duration, why: &'static str, turn: &mut Turn<'_>) {
        self.times.ending.get_or_insert(turn.now);
        if let Some(plan) = &self.plan {
            self.children.hurry(turn.now + plan.dead_time + REJOIN_MARGIN);
        }
        let kill_at = (signal != SIGKILL).then(|| turn.now + grace);
        match self.phase {
            Phase::Serving => {
                turn.push(Action::CancelStarts);
                if signal != NO_SIGNAL {
                    self.end_all(signal, turn);
                }
                self.enter(Phase::Ending { signal, kill_at }, why);
            }
            Phase::Lingering { .. } if signal != NO_SIGNAL => self.sweep(why, turn),
            Phase::Ending { kill_at: Some(before), .. } => {
                if kill_at.is_none_or(|at| at < before) {
                    self.end_all(signal, turn);
                    self.enter(Phase::Ending { signal, kill_at }, why);
                }
            }
            Phase::Ending { kill_at: None, .. }
            | Phase::Lingering { .. }
            | Phase::Sweeping
            | Phase::Swept
            | Phase::Over => {}
        }
    }

    /// Kills all processes that are left.
    pub(super) fn sweep(&mut self, why: &'static str, turn: &mut Turn<'_>) {
        self.enter(Phase::Sweeping, why);
        turn.push(Action::Sweep);
    }

    /// Returns the signal for a rank whose start could not be cancelled any more.
    pub(super) fn signal_of_late_rank(&self) -> i32 {
        match (self.phase, &self.clearing) {
            (Phase::Ending { signal, .. }, _) => signal,
            (Phase::Serving, Some(clearing)) => clearing.signal(),
            (Phase::Serving | Phase::Lingering { .. } | Phase::Sweeping | Phase::Swept | Phase::Over, _) => SIGKILL,
        }
    }

    /// No process is left here.
    pub(super) fn on_swept(&mut self, now: Time, leftovers: u64) {
        if matches!(self.phase, Phase::Lingering { .. } | Phase::Sweeping) {
            self.enter(Phase::Swept, "no process is left here");
            self.leftovers = self.leftovers.saturating_add(leftovers);
            self.times.swept = Some(now);
        }
    }

    pub(super) fn signal_all(&self, signal: i32, turn: &mut Turn<'_>) {
        for ns in self.namespaces.values() {
            let ranks = ns.at(Stage::Running);
            if ranks.is_empty() {
                continue;
            }
            turn.push(Action::Signal(ns.id, ranks.clone(), signal));
            if self.suspended && signal != SIGSTOP && signal != SIGCONT && signal != SIGKILL {
                // A stopped process acts on a signal only when it is continued.
                turn.push(Action::Signal(ns.id, ranks, SIGCONT));
            }
        }
    }

    /// The driver has passed on all output, and counted.
    pub(super) fn on_drained(&mut self, now: Time, counted: Box<DriverCounts>, spans: Vec<TraceSpan>) {
        self.counted = Some(counted);
        if let Some(tracer) = &mut self.tracer {
            (tracer.drained, tracer.driver) = (Some(now), spans);
        }
    }

    /// Reports the subtree's statistics and spans to the parent, once, as the last message of all: after the end was reported,
    /// the driver has counted, and each child has reported its own or never will.
    pub(super) fn report_stats(&mut self, turn: &mut Turn<'_>) {
        let is_due = self.reports_stats && self.phase == Phase::Over && !self.parent_lost;
        if !is_due || !self.children.all_reported_stats() {
            return;
        }
        if let Some(counted) = self.counted.take() {
            let here = LevelStats::of_member(*counted, self.gets(), self.cache_peaks(), self.fences());
            let (phases, swept) = (self.times.phases(), self.times.swept);
            let spans = self.tracer.take().map(|tracer| tracer.report(phases, swept)).unwrap_or_default();
            let stats = Stats::of(here, spans, self.children.stats());
            turn.push(Action::ToParent(Up::Stats(Box::new(stats))));
        }
    }
}
