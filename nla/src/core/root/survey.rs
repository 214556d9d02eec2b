//! The root's part in a survey: it asks, and reports the answer.

use super::{Notice, Phase, Root, RootAction, Turn};
use crate::core::ids::Time;
use crate::core::message::Down;
use crate::core::parent::Parent;
use crate::core::survey::{Collecting, SURVEY_TIME, time_below};

impl Root {
    /// Asks all agents how far their ranks are. Does nothing before the launch, after the end, or if a survey is under way.
    pub(super) fn begin_survey(&mut self, turn: &mut Turn<'_>) {
        let has_ranks = matches!(self.phase, Phase::Running | Phase::Gathering { .. } | Phase::Ending { .. });
        if self.survey.is_some() || !has_ranks || self.first.is_some() {
            return;
        }
        self.surveys = self.surveys.wrapping_add(1);
        let children = self.children.reachable();
        let survey = Collecting::begin(self.surveys, children, Vec::new(), false, turn.now + SURVEY_TIME);
        self.survey = Some(survey);
        self.to_children(&Down::Survey { number: self.surveys, within: time_below(SURVEY_TIME) }, turn);
    }

    /// Reports a survey once all agents have answered, or its time is over.
    pub(super) fn finish_survey(&mut self, turn: &mut Turn<'_>) {
        if let Some(done) = self.survey.take_if(|survey| survey.is_done(turn.now)) {
            turn.push(RootAction::Notice(Notice::Surveyed(Box::new(done.finish()))));
        }
    }

    /// Begins a survey, once for each fence, when ranks have waited in it for longer than the user expects.
    pub(super) fn survey_stuck_fences(&mut self, turn: &mut Turn<'_>) {
        if self.stuck_deadline().is_none_or(|at| turn.now < at) {
            return;
        }
        self.begin_survey(turn);
        for (_, ns) in self.namespaces.iter_mut() {
            if ns.waiting_since().is_some() {
                ns.surveyed = Some(ns.exchange.fence.number());
            }
        }
    }

    /// When the next survey is due because of a fence that does not complete.
    pub(super) fn stuck_deadline(&self) -> Option<Time> {
        let is_due = matches!(self.phase, Phase::Running) && self.survey.is_none();
        let stuck_after = self.stuck_after.filter(|_| is_due)?;
        let open = self.namespaces.values().filter(|ns| ns.surveyed != Some(ns.exchange.fence.number()));
        open.filter_map(|ns| ns.waiting_since()).min().map(|since| since + stuck_after)
    }
}
