//! The progress of a slow launch: one line on a terminal, which is rewritten, and cleared when the ranks write output
//! or the launch is over.
//!
//! The line takes one short write at a time, so a library for progress bars would add nothing.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use nla::core::{NamespaceId, Notice, Time};

use crate::cluster::hosts::fold_within;
use crate::run::report::{Reporter, Verbosity};
use crate::run::stderr::{clear_progress, show_progress};

/// The time from the start until the line is first shown. Shorter launches show nothing.
const BEGIN: Duration = Duration::from_secs(2);
/// The least time between two updates of the line.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// The most bytes of the line that names of hosts take.
const HOSTS_BYTES_MAX: usize = 32;

/// The state of a launch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    /// Agents and ranks are being started, or ranks that speak PMI are on their way to the first fence.
    Launching,
    /// All ranks run, but none has spoken PMI yet. They may be no PMI programs.
    Started,
    /// The launch is over, or progress is not shown.
    Over,
}

/// The agents and ranks of a session that is being launched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Agents that have reported.
    pub(crate) agents: u32,
    /// All agents.
    pub(crate) agents_all: u32,
    /// Agents that could not be started, or have failed since.
    pub(crate) failed: usize,
    /// The time since the first agent of another node was started, and the time that all of them may take.
    pub(crate) assembly: Option<(Duration, Duration)>,
    /// The hosts whose agents have neither reported nor failed.
    pub(crate) waiting_for: Vec<String>,
    /// Ranks that were started.
    pub(crate) started: u64,
    /// Ranks that have arrived at the first fence.
    pub(crate) arrived: u64,
    /// All ranks.
    pub(crate) ranks_all: u64,
}

/// Decides when the progress line is shown, and writes it.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Cell<State>,
    contacted: Cell<bool>,
    next: Cell<Time>,
    /// The most agents that were shown to have reported, and of how many.
    shown: Cell<(u32, u32)>,
}

impl Progress {
    /// Returns the progress of a new session. Nothing is shown with `-q`, or if stderr is not a terminal.
    pub(crate) fn new(reporter: Reporter) -> Self {
        Self::shown(reporter.verbosity > Verbosity::Quiet && stderr().is_terminal())
    }

    fn shown(is_shown: bool) -> Self {
        let state = Cell::new(if is_shown { State::Launching } else { State::Over });
        Self { state, contacted: Cell::new(false), next: Cell::new(BEGIN), shown: Cell::default() }
    }

    /// Returns whether progress may have to be shown. Then the caller calls [`show`](Self::show) every [`PAUSE`].
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.get() == State::Launching
    }

    /// Shows the progress line if it is due.
    pub(crate) fn show(&self, now: Time, counts: &Counts) {
        if self.is_wanted() && now >= self.next.get() {
            self.next.set(now + PAUSE);
            show_progress(&line(&Counts { agents: self.agents(counts), ..counts.clone() }));
        }
    }

    /// Returns the number of agents that have reported. It includes those that failed later, so it never falls.
    fn agents(&self, counts: &Counts) -> u32 {
        let (most, all) = self.shown.get();
        let agents = if all == counts.agents_all { counts.agents.max(most) } else { counts.agents };
        self.shown.set((agents, counts.agents_all));
        agents
    }

    /// Follows a notice from the root.
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

    /// Ends progress and clears the line: the launch is over, or other output follows.
    pub(crate) fn end(&self) {
        if self.state.replace(State::Over) == State::Launching {
            clear_progress();
        }
    }
}

/// Formats the progress line.
fn line(counts: &Counts) -> String {
    let Counts { agents, agents_all, failed, assembly, waiting_for, started, arrived, ranks_all } = counts;
    if agents < agents_all {
        let mut text = format!("scela-run: {agents} of {agents_all} agents");
        if *failed > 0 {
            text.push_str(&format!(", {failed} failed"));
        }
        if let Some((time, timeout)) = assembly {
            text.push_str(&format!(", {} of {} s", time.as_secs(), timeout.as_secs()));
        }
        if !waiting_for.is_empty() {
            text.push_str(&format!(", waiting for {}", fold_within(waiting_for, HOSTS_BYTES_MAX)));
        }
        return text;
    }
    match arrived {
        0 => format!("scela-run: {agents} agents, {started} of {ranks_all} ranks started"),
        _ => format!("scela-run: {started} ranks started, {arrived} of {ranks_all} in the fence"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_counts_and_missing_hosts() {
        let counts = Counts { agents: 3, agents_all: 32, ranks_all: 512, ..Counts::default() };
        assert_eq!(line(&counts), "scela-run: 3 of 32 agents");
        let assembly = Some((Duration::from_millis(16_400), Duration::from_secs(30)));
        let remote = |hosts: &[&str]| Counts {
            assembly,
            waiting_for: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..counts.clone()
        };
        assert_eq!(line(&remote(&["node003"])), "scela-run: 3 of 32 agents, 16 of 30 s, waiting for node003");
        let many = "scela-run: 3 of 32 agents, 16 of 30 s, waiting for n[1-3]";
        assert_eq!(line(&remote(&["n1", "n2", "n3"])), many);
        let names: Vec<String> = ('a'..='z').map(|letter| format!("{letter}-host")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let failed = Counts { failed: 1, ..remote(&names) };
        let many = "scela-run: 3 of 32 agents, 1 failed, 16 of 30 s, waiting for a-host and 25 more";
        assert_eq!(line(&failed), many);
        let joined = Counts { agents: 32, started: 64, ..counts };
        assert_eq!(line(&joined), "scela-run: 32 agents, 64 of 512 ranks started");
        let fence = Counts { started: 512, arrived: 500, ..joined };
        assert_eq!(line(&fence), "scela-run: 512 ranks started, 500 of 512 in the fence");
    }

    #[test]
    fn the_number_of_agents_never_falls() {
        let progress = Progress::shown(true);
        let agents = |agents, agents_all| progress.agents(&Counts { agents, agents_all, ..Counts::default() });
        assert_eq!([agents(1, 6), agents(0, 6), agents(2, 6)], [1, 1, 2]);
        assert_eq!(agents(0, 5), 0, "the launch began again with fewer agents");
    }

    #[test]
    fn progress_ends_with_the_launch() {
        let started = Notice::Started(NamespaceId::FIRST, 4);
        let contact = Notice::Contact(NamespaceId::FIRST);
        assert!(!Progress::shown(false).is_wanted());
        let silent = Progress::shown(true);
        silent.on_notice(&started);
        assert!(!silent.is_wanted(), "the ranks may never speak PMI");
        silent.on_notice(&contact);
        assert!(silent.is_wanted(), "the ranks speak PMI");
        let quick = Progress::shown(true);
        [&contact, &started].into_iter().for_each(|notice| quick.on_notice(notice));
        assert!(quick.is_wanted(), "the first fence is not over");
        quick.on_notice(&Notice::RanksEnded);
        quick.on_notice(&contact);
        assert!(!quick.is_wanted());
    }
}
