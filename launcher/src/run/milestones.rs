//! The milestones of a session in the log, at the level `info`. Each kind is logged once, so that a job of any size logs a dozen
//! lines at most.

use std::mem::{Discriminant, discriminant};

use nla::bootstrap::Method;
use nla::core::{AgentId, NamespaceId, Notice, Outcome, Time};
use nla::sys::signal_name;
use tracing::field::{DisplayValue, display};
use tracing::{Level, info};

use crate::plan::Plan;
use crate::plan::launch::AgentHosts;
use crate::refusal::shown;
use crate::run::report::what_happened;

/// Characters of the words on a failure.
const WORDS_MAX: usize = 200;

/// The milestones that a session has logged, over all its launches.
#[derive(Debug, Default)]
pub(crate) struct Milestones {
    has_begun: bool,
    agents: u32,
    /// The notices that were logged. Bounded by their kinds.
    logged: Vec<Discriminant<Notice>>,
    has_output_ended: bool,
}

impl Milestones {
    /// Logs the beginning of the session, at its first launch.
    pub(crate) fn on_launch(&mut self, at: Time, plan: &Plan, agent_hosts: &AgentHosts) {
        let (ranks, agents) = (plan.size(), plan.agents());
        self.agents = agents;
        if !std::mem::replace(&mut self.has_begun, true) {
            let bootstrap = bootstrap_name(agent_hosts);
            info!(ranks, agents, bootstrap, seconds = seconds(at), "the session begins");
        }
    }

    /// Logs a notice if it is a milestone and the first of its kind. `host` returns the host of an agent.
    pub(crate) fn on_notice<'a>(&mut self, at: Time, notice: &Notice, host: impl Fn(AgentId) -> &'a str) {
        if !tracing::enabled!(Level::INFO) || !self.is_first(notice) {
            return;
        }
        let seconds = seconds(at);
        match notice {
            Notice::Joined => info!(agents = self.agents, seconds, "all agents have joined"),
            Notice::Staged => info!(seconds, "all nodes have the files"),
            Notice::Started(_, ranks) => info!(ranks, seconds, "all ranks were started"),
            Notice::Contact(_) => info!(seconds, "the first rank has spoken PMI"),
            Notice::Released { entries, bytes, .. } => info!(entries, bytes, seconds, "the first fence was released"),
            Notice::Failure(failure) => {
                let what = display(shown(&what_happened(failure, host(failure.agent)), WORDS_MAX));
                info!(what, seconds, "the first failure was reported");
            }
            Notice::Restarted(_) => info!(seconds, "all ranks start again, for the first time"),
            Notice::Ending(outcome, signal, _) => {
                info!(why = reason(outcome), signal = signal_name(*signal), seconds, "the ranks are being ended");
            }
            Notice::RanksEnded => info!(seconds, "all ranks have ended"),
            Notice::GoesOn(_)
            | Notice::WentOn(_)
            | Notice::Restarting { .. }
            | Notice::Reviving { .. }
            | Notice::NoRestartLeft(_)
            | Notice::NoSpare
            | Notice::Moved(_)
            | Notice::OutputDropped(_)
            | Notice::Stopped(_)
            | Notice::Silent(_)
            | Notice::Surveyed(..)
            | Notice::RanksLeft { .. }
            | Notice::FilesLeft(..)
            | Notice::Busy(..)
            | Notice::SecondJoiner(..)
            | Notice::Bound(..)
            | Notice::LowLimits(_)
            | Notice::Killed(_)
            | Notice::Leftovers(..) => {}
        }
    }

    /// Logs that all agents have ended the output of their ranks.
    pub(crate) fn on_output_ended(&mut self, at: Time) {
        if !std::mem::replace(&mut self.has_output_ended, true) {
            info!(seconds = seconds(at), "all output of the ranks has arrived");
        }
    }

    /// Returns whether a notice is the first of its kind. Those of spawned namespaces do not count.
    fn is_first(&mut self, notice: &Notice) -> bool {
        if let Notice::Started(namespace, _) | Notice::Contact(namespace) | Notice::Released { namespace, .. } = notice
            && *namespace != NamespaceId::FIRST
        {
            return false;
        }
        let kind = discriminant(notice);
        let is_first = !self.logged.contains(&kind);
        if is_first {
            self.logged.push(kind);
        }
        is_first
    }
}

/// Logs the end of a session.
pub(crate) fn log_over(at: Time, code: u8) {
    info!(code, seconds = seconds(at), "the session is over");
}

/// Returns the time since the launcher began, in seconds, as `-v` prints it.
fn seconds(at: Time) -> DisplayValue<String> {
    display(format!("{:.3}", at.as_secs_f64()))
}

/// Returns what starts the agents: the first word of a command, or `fork` or `keeper`.
fn bootstrap_name(agent_hosts: &AgentHosts) -> &str {
    match agent_hosts {
        AgentHosts::Local => "fork",
        AgentHosts::Remote(launch) => match &launch.method {
            Method::Fork => "fork",
            Method::Keeper => "keeper",
            Method::RemoteShell { words, .. } | Method::Step { words, .. } => words.first().map_or("", String::as_str),
        },
    }
}

/// Returns why ranks are being ended.
fn reason(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failed { .. } => "a failure",
        Outcome::Survived { .. } => "ranks that went on have ended",
        Outcome::TimedOut { .. } => "the time limit",
        Outcome::LeftBehind { .. } => "the time limit after the first exit",
        Outcome::OutputLost => "output or input was lost",
        Outcome::Interrupted { .. } => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(namespace: NamespaceId, number: u32) -> Notice {
        Notice::Released { namespace, number, entries: 1, bytes: 9, took: Time::ZERO }
    }

    #[test]
    fn each_kind_of_notice_is_first_once() {
        let mut milestones = Milestones::default();
        for notice in [Notice::Joined, Notice::Started(NamespaceId::FIRST, 4), released(NamespaceId::FIRST, 0)] {
            assert!(milestones.is_first(&notice), "{notice:?}");
        }
        for notice in [Notice::Joined, Notice::Started(NamespaceId::FIRST, 5), released(NamespaceId::FIRST, 1)] {
            assert!(!milestones.is_first(&notice), "{notice:?}");
        }
    }

    #[test]
    fn spawned_namespaces_are_no_milestones() {
        let mut milestones = Milestones::default();
        assert!(!milestones.is_first(&Notice::Contact(NamespaceId(1))));
        assert!(!milestones.is_first(&released(NamespaceId(1), 0)));
        assert!(milestones.is_first(&Notice::Contact(NamespaceId::FIRST)));
    }
}
