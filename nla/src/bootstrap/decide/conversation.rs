//! Interprets the reports of a started agent until it has joined the tree or is lost.

use super::failure::{StartFailure, StartPhase};
use crate::bootstrap::protocol::{BootReport, Links, TargetReport};
use crate::core::limits::REPORTS_PER_AGENT_MAX;

/// An event on an agent's bootstrap channel.
#[derive(Clone, Debug)]
pub(in crate::bootstrap) enum Heard {
    /// The agent reported.
    Report(BootReport),
    /// The channel ended.
    Ended,
    /// The channel broke, or carried something that no agent says.
    Broken(StartFailure),
}

/// The next step of the process at the upper end of the channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::bootstrap) enum Next {
    /// Wait for the next report.
    Wait,
    /// Find out why the channel ended, report it as [`BootReport::NotStarted`], and stop.
    ReportEnd,
    /// Stop. `joined` says that the agent has joined the tree, or joins over this channel.
    Stop { joined: bool },
}

/// The reports of one agent and of the agents that it has started. The agent may report on its own target and on those
/// below it, and makes a bounded number of reports.
pub(in crate::bootstrap) struct Conversation {
    target: u32,
    /// The number of targets below this one, at which the agent starts agents. Their reports arrive after its own.
    below: u32,
    links: Links,
    has_joined: bool,
    /// How many more reports the agent may make.
    reports_left: u64,
}

impl Conversation {
    pub(in crate::bootstrap) fn new(target: u32, below: u32, links: Links) -> Self {
        let reports_left = (u64::from(below) + 1) * u64::from(REPORTS_PER_AGENT_MAX);
        Self { target, below, links, has_joined: false, reports_left }
    }

    /// Returns a failure if this program's agents never send such a report.
    fn violation(&mut self, report: &BootReport) -> Option<StartFailure> {
        let broken = |words| Some(StartFailure::new(StartPhase::Answer, words));
        let Some(left) = self.reports_left.checked_sub(1) else {
            return broken("its agent makes more reports than an agent has");
        };
        self.reports_left = left;
        match report {
            BootReport::Below(target, report) => {
                let is_below = target.checked_sub(self.target).is_some_and(|offset| (1..=self.below).contains(&offset));
                let is_nested = matches!(**report, BootReport::Below(..));
                if is_below && !is_nested {
                    None
                } else {
                    broken("its agent reports on a target that it did not start")
                }
            }
            _ => None,
        }
    }

    /// Takes what happened. Adds to `reports` what is to be passed on.
    pub(in crate::bootstrap) fn handle(&mut self, heard: Heard, reports: &mut Vec<TargetReport>) -> Next {
        let heard = match heard {
            Heard::Report(report) => self.violation(&report).map_or(Heard::Report(report), Heard::Broken),
            heard => heard,
        };
        match heard {
            Heard::Report(BootReport::Below(target, report)) => {
                reports.push((target, *report));
                Next::Wait
            }
            Heard::Report(BootReport::Joining) if self.links.take_over_channels() => Next::Stop { joined: true },
            Heard::Report(report @ BootReport::NotStarted(_)) => {
                reports.push((self.target, report));
                Next::Stop { joined: false }
            }
            Heard::Report(report) => {
                self.has_joined |= matches!(report, BootReport::Joined { .. });
                reports.push((self.target, report));
                // An agent without others below it reports nothing more.
                if self.has_joined && self.below == 0 { Next::Stop { joined: true } } else { Next::Wait }
            }
            Heard::Ended if self.has_joined => Next::Stop { joined: true },
            Heard::Ended => Next::ReportEnd,
            Heard::Broken(failure) => {
                reports.push((self.target, BootReport::NotStarted(failure)));
                Next::Stop { joined: self.has_joined }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bootstrap::StartPhase;
    use crate::link::ListensAt;

    const JOINED: BootReport = BootReport::Joined { took: Duration::ZERO };

    fn check(conversation: &mut Conversation, heard: Heard, next: Next, reports: &[TargetReport]) {
        let mut passed_on = Vec::new();
        assert_eq!((conversation.handle(heard, &mut passed_on), &passed_on[..]), (next, reports));
    }

    fn lost() -> BootReport {
        BootReport::NotStarted(StartFailure::new(StartPhase::Ended, "it ended"))
    }

    #[test]
    fn an_agent_alone_is_done_once_it_has_joined() {
        let mut agent = Conversation::new(3, 0, Links::Connections);
        check(&mut agent, Heard::Report(JOINED), Next::Stop { joined: true }, &[(3, JOINED)]);
    }

    #[test]
    fn an_agent_that_starts_others_passes_on_their_reports_until_its_channel_ends() {
        let mut agent = Conversation::new(3, 2, Links::Connections);
        check(&mut agent, Heard::Report(JOINED), Next::Wait, &[(3, JOINED)]);
        let below = BootReport::Below(4, Box::new(lost()));
        check(&mut agent, Heard::Report(below), Next::Wait, &[(4, lost())]);
        check(&mut agent, Heard::Ended, Next::Stop { joined: true }, &[]);
    }

    #[test]
    fn an_agent_whose_channel_ends_before_it_joined_is_lost() {
        check(&mut Conversation::new(3, 0, Links::Connections), Heard::Ended, Next::ReportEnd, &[]);
        let mut agent = Conversation::new(3, 2, Links::Connections);
        check(&mut agent, Heard::Report(lost()), Next::Stop { joined: false }, &[(3, lost())]);
        let broken = Heard::Broken(StartFailure::new(StartPhase::Ended, "it ended"));
        check(&mut Conversation::new(3, 2, Links::Connections), broken, Next::Stop { joined: false }, &[(3, lost())]);
    }

    #[test]
    fn a_channel_becomes_the_link_only_over_remote_shells() {
        let joining = || Heard::Report(BootReport::Joining);
        check(&mut Conversation::new(3, 2, Links::RemoteShells), joining(), Next::Stop { joined: true }, &[]);
        let mut agent = Conversation::new(3, 0, Links::Connections);
        check(&mut agent, joining(), Next::Wait, &[(3, BootReport::Joining)]);
    }

    /// Passes `report` to an agent at target 3 with two targets below it. Returns whether it was passed on.
    fn is_passed_on(report: BootReport) -> bool {
        let (mut agent, mut reports) = (Conversation::new(3, 2, Links::Connections), Vec::new());
        match agent.handle(Heard::Report(report), &mut reports) {
            Next::Wait => reports.len() == 1,
            next => {
                assert_eq!(next, Next::Stop { joined: false });
                assert!(matches!(&reports[..], [(3, BootReport::NotStarted(_))]), "{reports:?}");
                false
            }
        }
    }

    #[test]
    fn an_agent_reports_only_on_targets_below_it() {
        let below = |target| BootReport::Below(target, Box::new(JOINED));
        assert_eq!([4, 5].map(|target| is_passed_on(below(target))), [true; 2]);
        assert_eq!([0, 2, 3, 6, u32::MAX].map(|target| is_passed_on(below(target))), [false; 5]);
        assert!(!is_passed_on(BootReport::Below(4, Box::new(below(5)))), "a report about a report");
        let (mut last, mut reports) = (Conversation::new(u32::MAX, 0, Links::Connections), Vec::new());
        assert_eq!(last.handle(Heard::Report(below(0)), &mut reports), Next::Stop { joined: false });
    }

    #[test]
    fn the_number_of_reports_is_bounded() {
        let (mut agent, mut reports) = (Conversation::new(3, 2, Links::Connections), Vec::new());
        let here = || BootReport::Here {
            listens: ListensAt::default(),
            host: String::new(),
            descriptors: 9,
            reads_log: true,
            guardian: None,
        };
        for report in 0..3 * REPORTS_PER_AGENT_MAX {
            assert_eq!(agent.handle(Heard::Report(here()), &mut reports), Next::Wait, "report {report}");
        }
        assert_eq!(agent.handle(Heard::Report(here()), &mut reports), Next::Stop { joined: false });
        assert!(matches!(reports.pop(), Some((3, BootReport::NotStarted(_)))));
    }
}
