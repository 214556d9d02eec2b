//! Interprets the reports of a started agent until it has joined the tree or is lost.

use super::failure::StartFailure;
use crate::bootstrap::protocol::{BootReport, Links, TargetReport};

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

/// The reports of one agent and of the agents that it has started.
pub(in crate::bootstrap) struct Conversation {
    target: u32,
    /// Whether the agent starts others, whose reports arrive after its own.
    has_below: bool,
    links: Links,
    has_joined: bool,
}

impl Conversation {
    pub(in crate::bootstrap) fn new(target: u32, has_below: bool, links: Links) -> Self {
        Self { target, has_below, links, has_joined: false }
    }

    /// Takes what happened. Adds to `reports` what is to be passed on.
    pub(in crate::bootstrap) fn handle(&mut self, heard: Heard, reports: &mut Vec<TargetReport>) -> Next {
        match heard {
            Heard::Report(BootReport::Below(target, report)) => {
                reports.push((target, *report));
                Next::Wait
            }
            Heard::Report(BootReport::Joining) if self.links == Links::RemoteShells => Next::Stop { joined: true },
            Heard::Report(report @ BootReport::NotStarted(_)) => {
                reports.push((self.target, report));
                Next::Stop { joined: false }
            }
            Heard::Report(report) => {
                self.has_joined |= matches!(report, BootReport::Joined { .. });
                reports.push((self.target, report));
                // An agent without others below it reports nothing more.
                if self.has_joined && !self.has_below { Next::Stop { joined: true } } else { Next::Wait }
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
        let mut agent = Conversation::new(3, false, Links::Connections);
        check(&mut agent, Heard::Report(JOINED), Next::Stop { joined: true }, &[(3, JOINED)]);
    }

    #[test]
    fn an_agent_that_starts_others_passes_on_their_reports_until_its_channel_ends() {
        let mut agent = Conversation::new(3, true, Links::Connections);
        check(&mut agent, Heard::Report(JOINED), Next::Wait, &[(3, JOINED)]);
        let below = BootReport::Below(4, Box::new(lost()));
        check(&mut agent, Heard::Report(below), Next::Wait, &[(4, lost())]);
        check(&mut agent, Heard::Ended, Next::Stop { joined: true }, &[]);
    }

    #[test]
    fn an_agent_whose_channel_ends_before_it_joined_is_lost() {
        check(&mut Conversation::new(3, false, Links::Connections), Heard::Ended, Next::ReportEnd, &[]);
        let mut agent = Conversation::new(3, true, Links::Connections);
        check(&mut agent, Heard::Report(lost()), Next::Stop { joined: false }, &[(3, lost())]);
        let broken = Heard::Broken(StartFailure::new(StartPhase::Ended, "it ended"));
        check(
            &mut Conversation::new(3, true, Links::Connections),
            broken,
            Next::Stop { joined: false },
            &[(3, lost())],
        );
    }

    #[test]
    fn a_channel_becomes_the_link_only_over_remote_shells() {
        let joining = || Heard::Report(BootReport::Joining);
        check(&mut Conversation::new(3, true, Links::RemoteShells), joining(), Next::Stop { joined: true }, &[]);
        let mut agent = Conversation::new(3, false, Links::Connections);
        check(&mut agent, joining(), Next::Wait, &[(3, BootReport::Joining)]);
    }
}
