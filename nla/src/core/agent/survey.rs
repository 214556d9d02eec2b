//! The agent's part in a survey.

use std::time::Duration;

use pmi::Ranks;

use super::namespace::Stage;
use super::{Action, Agent, Turn};
use crate::core::message::{Down, Up};
use crate::core::parent::Parent;
use crate::core::survey::{Activity, Collecting, Group, LastCall, NamespaceSurvey, ProcessState, time_below};

const NOT_STARTED: Activity = Activity { call: LastCall::None, process: ProcessState::NotStarted };

impl Agent {
    /// The parent asks how far the ranks of the subtree are. A survey under way is dropped.
    pub(super) fn on_survey(&mut self, number: u32, within: Duration, turn: &mut Turn<'_>) {
        // The parent chose the time: bound it.
        let within = within.min(crate::core::survey::SURVEY_TIME);
        let (mut own, mut to_inspect) = (Vec::new(), Vec::new());
        for (namespace, ns) in self.namespaces.iter() {
            let fence = &ns.exchange.fence;
            let running = ns.at(Stage::Running);
            let (arrived, missing): (Vec<_>, Vec<_>) = running.iter().partition(|rank| fence.arrived().contains(*rank));
            let (fence, arrived) = (fence.number(), arrived.len() as u64);
            let starting = Group { activity: NOT_STARTED, ranks: ns.at(Stage::Starting), more: 0 };
            let unstarted = Some(starting).filter(|group| !group.ranks.is_empty()).into_iter().collect();
            own.push(NamespaceSurvey { namespace: *namespace, fence, arrived, missing: unstarted });
            if !missing.is_empty() {
                to_inspect.push((*namespace, missing.into_iter().collect::<Ranks>()));
            }
        }
        let children = self.children.reachable();
        let survey = Collecting::begin(number, children, own, !to_inspect.is_empty(), turn.now + within);
        self.survey = Some(survey);
        self.to_children(&Down::Survey { number, within: time_below(within) }, turn);
        if !to_inspect.is_empty() {
            turn.push(Action::Inspect(number, to_inspect));
        }
    }

    /// Answers the parent once all below have answered, or the time is over.
    pub(super) fn finish_survey(&mut self, turn: &mut Turn<'_>) {
        if let Some(done) = self.survey.take_if(|survey| survey.is_done(turn.now)) {
            let number = done.number();
            turn.push(Action::ToParent(Up::Surveyed { number, survey: Box::new(done.finish()) }));
        }
    }
}
