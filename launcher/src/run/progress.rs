//! How far a launch that takes long has come: one line on a terminal that is rewritten, and gone when ranks speak
//! or the launch is over.
//!
//! It is one write of a short line now and then; a library for bars has nothing to add to that.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use nla::core::{NamespaceId, Notice, Time};

use crate::run::report::{Reporter, Verbosity, clear_progress, show_progress};

/// Launches that are over sooner show nothing.
const BEGIN: Duration = Duration::from_secs(2);
/// The line is rewritten no more often.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// Where a launch is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    /// On its way.
    Launching,
    /// All ranks run; whether they will speak PMI is not known yet.
    Started,
    /// It is over, or nobody wants to see it.
    Over,
}

/// How far the agents and ranks of a session have come.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Come {
    /// Agents that are there.
    pub(crate) agents: u32,
    /// Of so many.
    pub(crate) agents_all: u32,
    /// Ranks that were started.
    pub(crate) started: u64,
    /// Ranks that have arrived at the first fence.
    pub(crate) arrived: u64,
    /// Of so many.
    pub(crate) ranks_all: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Cell<State>,
    contacted: Cell<bool>,
    next: Cell<Time>,
}

impl Progress {
    /// For a session that is reported so.
    pub(crate) fn new(reporter: Reporter) -> Self {
        Self::shown(reporter.verbosity > Verbosity::Quiet && stderr().is_terminal())
    }

    fn shown(is_shown: bool) -> Self {
        let state = Cell::new(if is_shown { State::Launching } else { State::Over });
        Self { state, contacted: Cell::new(false), next: Cell::new(BEGIN) }
    }

    /// Whether there may be something to show: then [`show`](Self::show) wants to be called each [`PAUSE`].
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.get() == State::Launching
    }

    /// Shows how far it has come, if it is time to.
    pub(crate) fn show(&self, now: Time, come: Come) {
        if self.is_wanted() && now >= self.next.get() {
            self.next.set(now + PAUSE);
            show_progress(&line(come));
        }
    }

    /// The root has told this.
    pub(crate) fn on_notice(&self, notice: &Notice) {
        match notice {
            Notice::Contact(NamespaceId::FIRST) => {
                self.contacted.set(true);
                if self.state.get() == State::Started {
                    self.state.set(State::Launching);
                }
            }
            Notice::Started(NamespaceId::FIRST, _) if !self.contacted.get() && self.is_wanted() => {
                self.state.set(State::Started);
                clear_progress();
            }
            Notice::Released { .. } | Notice::RanksEnded | Notice::Failure(_) | Notice::Ending(..) => self.end(),
            _ => {}
        }
    }

    /// It is over, or something else is to be seen.
    pub(crate) fn end(&self) {
        if self.state.replace(State::Over) == State::Launching {
            clear_progress();
        }
    }
}

fn line(come: Come) -> String {
    let Come { agents, agents_all, started, arrived, ranks_all } = come;
    match (agents < agents_all, arrived) {
        (true, _) => format!("scela-run: {agents} of {agents_all} agents are there"),
        (false, 0) => format!("scela-run: {agents} agents are there, {started} of {ranks_all} ranks started"),
        (false, _) => format!("scela-run: {started} ranks started, {arrived} of {ranks_all} in the fence"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_waited_for() {
        let come = Come { agents: 3, agents_all: 32, started: 0, arrived: 0, ranks_all: 512 };
        assert_eq!(line(come), "scela-run: 3 of 32 agents are there");
        let come = Come { agents: 32, started: 64, ..come };
        assert_eq!(line(come), "scela-run: 32 agents are there, 64 of 512 ranks started");
        let come = Come { started: 512, arrived: 500, ..come };
        assert_eq!(line(come), "scela-run: 512 ranks started, 500 of 512 in the fence");
    }

    #[test]
    fn it_is_over_with_the_launch() {
        let started = Notice::Started(NamespaceId::FIRST, 4);
        let contact = Notice::Contact(NamespaceId::FIRST);
        assert!(!Progress::shown(false).is_wanted());
        let silent = Progress::shown(true);
        silent.on_notice(&started);
        assert!(!silent.is_wanted(), "they need not speak PMI");
        silent.on_notice(&contact);
        assert!(silent.is_wanted(), "but now they do");
        let quick = Progress::shown(true);
        [&contact, &started].into_iter().for_each(|notice| quick.on_notice(notice));
        assert!(quick.is_wanted(), "the fence is to come");
        quick.on_notice(&Notice::RanksEnded);
        quick.on_notice(&contact);
        assert!(!quick.is_wanted());
    }
}
