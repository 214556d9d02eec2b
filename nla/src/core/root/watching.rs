//! Reports jobs that may hang, and ends a job whose last ranks exceed `--exit-timeout`.

use std::time::Duration;

use pmi::Ranks;

use super::namespace::Namespace;
use super::{Notice, Phase, Root, RootAction, SIGTERM, Turn};
use crate::core::cause::Outcome;
use crate::core::ids::Time;
use crate::core::limits::{LEFT_TIME, SILENT_TIME};
use crate::core::survey::SurveyCause;

/// What was last heard of the ranks of a namespace, and what the user was told about it.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// When all ranks had been started.
    pub(super) started: Option<Time>,
    /// When a fence was last released.
    pub(super) released: Option<Time>,
    /// When the first rank ended.
    pub(super) left: Option<Time>,
    /// The user has read which ranks exited.
    is_left_told: bool,
    /// Ranks that may not have spoken PMI were looked for.
    is_silence_surveyed: bool,
    /// The last fence for which there was a survey because ranks waited in it for long.
    fence_surveyed: Option<u32>,
    /// The beginning of the quiet time for which there was a survey.
    quiet_surveyed: Option<Time>,
}

impl Namespace {
    /// When the first rank ended, if others run.
    fn left_since(&self) -> Option<Time> {
        self.watched.left.filter(|_| !self.is_over())
    }

    /// Returns when a rank last showed activity, if waits are invisible: no rank has used PMI, or PMIx serves all ranks on one node,
    /// where libpmix reports a fence only once all have arrived.
    fn quiet_since(&self, by_pmix: bool) -> Option<Time> {
        let hides_waits = !self.contacted || by_pmix && self.plan.placement.len() == 1;
        let started = self.watched.started.filter(|_| hides_waits && !self.is_over())?;
        [self.watched.released, self.watched.left].into_iter().flatten().chain([started]).max()
    }

    /// Returns since when some ranks are overdue with PMI: since the start if PMI `is_expected`, else since others have waited
    /// for them in the first fence.
    fn silent_since(&self, is_expected: bool) -> Option<Time> {
        let started = self.watched.started.filter(|_| !self.is_over())?;
        if is_expected && !self.contacted {
            return Some(started);
        }
        let others_wait = self.waiting_since().filter(|_| self.exchange.fence.number() == 0);
        others_wait.map(|since| since.max(started))
    }

    fn note_survey(&mut self, cause: SurveyCause, by_pmix: bool) {
        let is_waiting = self.waiting_since().is_some();
        match cause {
            SurveyCause::Stuck if is_waiting => self.watched.fence_surveyed = Some(self.exchange.fence.number()),
            SurveyCause::Quiet => self.watched.quiet_surveyed = self.quiet_since(by_pmix),
            SurveyCause::Asked | SurveyCause::Stuck | SurveyCause::Silent => {}
        }
        // Each survey shows which ranks have not spoken PMI.
        self.watched.is_silence_surveyed |= self.watched.started.is_some();
    }
}

impl Root {
    /// Ends the job if `--exit-timeout` has expired. Reports, once, ranks that have exited before others, wait in a
    /// fence, or have not spoken PMI.
    pub(super) fn watch(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if let Some(limit) = self.exit_timeout
            && let Some(ns) =
                self.namespaces.values().find(|ns| ns.left_since().is_some_and(|at| turn.now >= at + limit))
        {
            let outcome = Outcome::LeftBehind { limit, left: ns.gone().clone(), running: running(ns) };
            return self.end(outcome, SIGTERM, "ranks have run on for too long after the first one", turn);
        }
        let after = self.told_after(LEFT_TIME);
        for (id, ns) in self.namespaces.iter_mut() {
            if let Some(at) = ns.left_since().filter(|at| !ns.watched.is_left_told && turn.now >= *at + after) {
                ns.watched.is_left_told = true;
                let (left, running) = (ns.gone().clone(), running(ns));
                turn.push(RootAction::Notice(Notice::RanksLeft { namespace: *id, left, running, time: turn.now - at }));
            }
        }
        if let Some((_, cause)) = self.next_survey().filter(|(at, _)| turn.now >= *at) {
            self.begin_survey(cause, turn);
            let by_pmix = self.serves_pmix();
            self.namespaces.iter_mut().for_each(|(_, ns)| ns.note_survey(cause, by_pmix));
        }
    }

    /// When [`watch`](Self::watch) is due.
    pub(super) fn watch_deadline(&self) -> Option<Time> {
        if !matches!(self.phase, Phase::Running) {
            return None;
        }
        let left = |ns: &Namespace| {
            let at = ns.left_since()?;
            let note = Some(at + self.told_after(LEFT_TIME)).filter(|_| !ns.watched.is_left_told);
            note.into_iter().chain(self.exit_timeout.map(|limit| at + limit)).min()
        };
        let survey = self.next_survey().map(|(at, _)| at);
        self.namespaces.values().filter_map(left).chain(survey).min()
    }

    /// The next survey that nobody has asked for, and its time.
    pub(super) fn next_survey(&self) -> Option<(Time, SurveyCause)> {
        if !matches!(self.phase, Phase::Running) || self.survey.is_some() {
            return None;
        }
        let of = |(id, ns): (_, &Namespace)| {
            let watched = &ns.watched;
            let stuck = ns.waiting_since().filter(|_| watched.fence_surveyed != Some(ns.exchange.fence.number()));
            let quiet = ns.quiet_since(self.serves_pmix()).filter(|at| watched.quiet_surveyed != Some(*at));
            let silent = ns.silent_since(self.expects_pmi && self.is_job(id)).filter(|_| !watched.is_silence_surveyed);
            [
                stuck.zip(self.stuck_after).map(|(at, after)| (at + after, SurveyCause::Stuck)),
                quiet.zip(self.stuck_after).map(|(at, after)| (at + after, SurveyCause::Quiet)),
                silent.map(|at| (at + self.told_after(SILENT_TIME), SurveyCause::Silent)),
            ]
        };
        self.namespaces.iter().flat_map(|(id, ns)| of((*id, ns))).flatten().min()
    }

    /// Returns the delay of a report: `time`, or `--stuck-after` if that is shorter.
    fn told_after(&self, time: Duration) -> Duration {
        self.stuck_after.map_or(time, |after| after.min(time))
    }
}

/// The ranks that have not ended.
fn running(ns: &Namespace) -> Ranks {
    ns.not_gone(&Ranks::range(0..ns.plan.size))
}
