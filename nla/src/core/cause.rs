//! Why a session failed: the facts that agents report, and the election of the first cause.

use std::time::Duration;

use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::ids::{AgentId, NamespaceId, Time};
use super::limits::TEXT_BYTES_MAX;
use super::reason::{LossReason, NotStartedReason};

/// What went wrong with ranks or an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// Ranks could not be started.
    NotStarted {
        /// The reason, and what to try.
        why: NotStartedReason,
    },
    /// An agent is gone, with all its ranks.
    Lost {
        /// How the loss was noticed.
        why: LossReason,
    },
    /// A rank was ended by a signal that the session did not send.
    Signal {
        /// The signal's number.
        signal: i32,
        /// A core dump was written.
        core: bool,
        /// The kernel ended it because memory ran out.
        out_of_memory: bool,
    },
    /// A rank asked for the end of the job.
    Abort {
        /// The code that it gave, as it gave it.
        code: i32,
        /// What it said, where its library passes that on.
        message: String,
    },
    /// A rank ended with a code other than 0.
    Code(i32),
    /// A rank broke the PMI protocol beyond repair and was killed for it.
    Broken {
        /// What was wrong.
        why: String,
    },
    /// A rank ended, with 0, where it should not have.
    #[serde(rename = "Left")]
    ExitedEarly {
        /// Others wait for it in a fence; else it had spoken PMI, never finalized, and the others
        /// went on without it for [`UNFINALIZED_TIME`](super::limits::UNFINALIZED_TIME).
        in_fence: bool,
    },
}

const SIGPIPE: i32 = 13;

impl Cause {
    /// Lower is likelier to be the cause, higher to be a consequence.
    fn class(&self) -> u8 {
        match self {
            Self::NotStarted { .. } => 0,
            Self::Lost { .. } => 1,
            // Who writes to a peer that is gone is the next one, not the first.
            Self::Signal { signal: SIGPIPE, .. } => 5,
            Self::Signal { .. } => 2,
            Self::Abort { .. } => 3,
            Self::Code(_) | Self::Broken { .. } => 4,
            Self::ExitedEarly { .. } => 6,
        }
    }
}

/// How a rank's process ended, as the kernel told its parent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Exit {
    /// It ended by itself, with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// A core dump was written.
        core: bool,
        /// The kernel ended it because memory ran out.
        out_of_memory: bool,
    },
}

/// A cause with its place and time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// When, by the session's clock.
    pub at: Time,
    /// On which agent: the ranks' own, or the lost one.
    pub agent: AgentId,
    /// The namespace of `ranks`.
    pub namespace: NamespaceId,
    /// The ranks that it is about; empty where it is about an agent.
    pub ranks: Ranks,
    /// What happened.
    pub cause: Cause,
}

impl Failure {
    /// The failure of an agent.
    pub(super) fn of_agent(at: Time, agent: AgentId, cause: Cause) -> Self {
        Self { at, agent, namespace: NamespaceId::FIRST, ranks: Ranks::new(), cause }
    }

    /// The failure of one rank.
    pub(super) fn of_rank(at: Time, agent: AgentId, namespace: NamespaceId, rank: Rank, cause: Cause) -> Self {
        Self { at, agent, namespace, ranks: std::iter::once(rank).collect(), cause }
    }
}

/// How a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All ranks of all namespaces ended with 0.
    Success,
    /// The first cause, and how many failures were reported beside it.
    Failed {
        /// The elected first cause.
        first: Failure,
        /// Failures other than the first.
        others: u64,
    },
    /// `--timeout` ran out.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The launcher's standard output could not be written.
    OutputLost,
    /// The launcher was asked to end by a signal (or lost its standard output, which counts as
    /// SIGPIPE).
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

/// Picks the first cause: the lowest class (an end by signal before an abort, before a code other
/// than 0, before SIGPIPE, before a rank that merely left), then the earliest, then the lowest agent.
pub fn elect(failures: &[Failure]) -> Option<&Failure> {
    failures.iter().min_by_key(|failure| (failure.cause.class(), failure.at, failure.agent))
}

/// Cuts text from outside to [`TEXT_BYTES_MAX`], at a character's boundary.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(at_ms: u64, cause: Cause) -> Failure {
        Failure {
            at: Duration::from_millis(at_ms),
            agent: AgentId(1),
            namespace: NamespaceId::FIRST,
            ranks: Ranks::range(0..1),
            cause,
        }
    }

    #[test]
    fn a_crash_goes_before_the_exits_that_it_led_to() {
        let signal = failure(30, Cause::Signal { signal: 11, core: false, out_of_memory: false });
        let failures = [
            failure(10, Cause::Code(1)),
            failure(5, Cause::ExitedEarly { in_fence: true }),
            signal.clone(),
            failure(1, Cause::Abort { code: 1, message: String::new() }),
        ];
        assert_eq!(elect(&failures), Some(&signal));
    }

    #[test]
    fn a_broken_pipe_is_the_consequence_of_an_abort() {
        let pipe = failure(1, Cause::Signal { signal: SIGPIPE, core: false, out_of_memory: false });
        let abort = failure(2, Cause::Abort { code: 7, message: String::new() });
        assert_eq!(elect(&[pipe.clone(), abort.clone()]), Some(&abort));
        assert_eq!(elect(&[pipe.clone(), failure(0, Cause::ExitedEarly { in_fence: true })]), Some(&pipe));
    }

    #[test]
    fn among_equals_the_earliest_wins() {
        let failures = [failure(10, Cause::Code(1)), failure(9, Cause::Code(2)), failure(11, Cause::Code(3))];
        assert_eq!(elect(&failures), Some(&failures[1]));
        assert_eq!(elect(&[]), None);
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let cut = bounded("é".repeat(TEXT_BYTES_MAX));
        assert!(cut.len() <= TEXT_BYTES_MAX && cut.chars().all(|c| c == 'é'));
        assert_eq!(bounded("short".into()), "short");
    }
}
