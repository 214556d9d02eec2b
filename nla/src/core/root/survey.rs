//! The root's part in a survey: it asks, and reports the answer with what the session itself waits for.

use super::{Notice, Phase, Root, RootAction, Turn};
use crate::core::cause::Outcome;
use crate::core::ids::{NamespaceId, Time};
use crate::core::message::Down;
use crate::core::parent::Parent;
use crate::core::survey::{Collecting, SURVEY_TIME, Survey, SurveyCause, Wait, time_below};

impl Root {
    /// The user asks how far the ranks are. If no rank runs, the answer is what the session waits for.
    pub(super) fn on_survey(&mut self, turn: &mut Turn<'_>) {
        if self.has_ranks() {
            self.begin_survey(SurveyCause::Asked, turn);
        } else {
            turn.push(self.surveyed(Survey::default(), SurveyCause::Asked, turn.now));
        }
    }

    fn has_ranks(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Gathering { .. } | Phase::Ending { .. }) && self.first.is_none()
    }

    /// Asks all agents how far their ranks are. Does nothing before the launch, after the end, or if a survey is under way.
    pub(super) fn begin_survey(&mut self, cause: SurveyCause, turn: &mut Turn<'_>) {
        if self.survey.is_some() || !self.has_ranks() {
            return;
        }
        self.surveys = self.surveys.wrapping_add(1);
        let children = self.children.reachable();
        let survey = Collecting::begin(self.surveys, children, Vec::new(), false, turn.now + SURVEY_TIME);
        self.survey = Some((survey, cause));
        self.to_children(&Down::Survey { number: self.surveys, within: time_below(SURVEY_TIME) }, turn);
    }

    /// Reports a survey once all agents have answered, or its time is over.
    pub(super) fn finish_survey(&mut self, turn: &mut Turn<'_>) {
        if let Some((done, cause)) = self.survey.take_if(|(survey, _)| survey.is_done(turn.now)) {
            turn.push(self.surveyed(done.finish(), cause, turn.now));
        }
    }

    fn surveyed(&self, survey: Survey, cause: SurveyCause, now: Time) -> RootAction {
        RootAction::Notice(Notice::Surveyed(Box::new(survey), self.waits(now), cause))
    }

    /// The events that the session waits for, besides those of ranks.
    fn waits(&self, now: Time) -> Vec<Wait> {
        let mut waits = Vec::new();
        match &self.phase {
            Phase::Joining { .. } => waits.push(Wait::Agents),
            Phase::Staging => waits.push(Wait::Files(self.children.not_staged().collect())),
            Phase::Restarting { awaited, .. } if awaited.is_empty() => {
                waits.push(Wait::Restart(self.restarts.ending_after(now).collect(), self.restarts.not_before()));
            }
            Phase::Restarting { awaited, .. } => waits.push(Wait::Clearing(awaited.clone())),
            Phase::Flushing { .. } => waits.push(Wait::Output),
            Phase::Running | Phase::Gathering { .. } | Phase::Ending { .. } | Phase::Over => {}
        }
        let homeless = self.restarts.homeless.iter();
        waits.extend(homeless.map(|homeless| Wait::Revival(homeless.agent, homeless.ranks.clone(), homeless.until)));
        let dead = self.namespaces.get(&NamespaceId::FIRST).map(|ns| ns.dead()).filter(|dead| !dead.is_empty());
        if let Some(dead) = dead.filter(|_| self.has_ranks()) {
            let first = match self.elected() {
                Outcome::Failed { first, .. } => Some(first),
                _ => None,
            };
            waits.push(Wait::Dead(dead.clone(), first));
        }
        waits
    }
}
