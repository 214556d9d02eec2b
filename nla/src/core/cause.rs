//! Failures of ranks and agents, and the election of the first cause among them.

use std::time::Duration;

use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::ids::{AgentId, NamespaceId, Time};
use super::reason::{LossReason, NotStartedReason};
use super::words::deserialize_one_line;

/// The cause of a failure of ranks or of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// Ranks could not be started.
    NotStarted {
        /// The reason, and what to try.
        why: NotStartedReason,
    },
    /// A file that every node must have before ranks start could not be sent or stored.
    NotStaged {
        /// The file, and the reason.
        #[serde(deserialize_with = "deserialize_one_line")]
        why: String,
    },
    /// An agent was lost, with all its ranks.
    Lost {
        /// How the loss was noticed.
        why: LossReason,
    },
    /// An agent received a signal that asks it to end, such as SIGTERM of a resource manager. It still serves its ranks.
    Terminated {
        /// The signal's number.
        signal: i32,
    },
    /// A rank was ended by a signal that the session did not send.
    Signal {
        /// The signal's number.
        signal: i32,
        /// The kernel wrote a core dump.
        core: bool,
        /// Where memory ran out and how much the ranks had, if the kernel ended it for that; else empty.
        #[serde(deserialize_with = "deserialize_one_line")]
        out_of_memory: String,
    },
    /// A rank aborted the job.
    Abort {
        /// The code as the rank gave it.
        code: i32,
        /// The rank's message, if its MPI library passes one on.
        #[serde(deserialize_with = "deserialize_one_line")]
        message: String,
    },
    /// A rank ended with a code other than 0.
    Code(i32),
    /// A rank broke the PMI protocol and was killed for it.
    Broken {
        /// The fault.
        #[serde(deserialize_with = "deserialize_one_line")]
        why: String,
    },
    /// A rank ended with code 0 while others still needed it.
    #[serde(rename = "Left")]
    ExitedEarly {
        /// Other ranks wait for it in a fence. Otherwise it had spoken PMI and never finalized it, and others were
        /// still running after [`UNFINALIZED_TIME`](super::limits::UNFINALIZED_TIME).
        in_fence: bool,
    },
    /// A rank ended without having joined PMIx, and others of its node that have joined it were still running after
    /// [`UNFINALIZED_TIME`](super::limits::UNFINALIZED_TIME). libpmix lets none of them pass a fence without it, so the session
    /// ends under any failure policy that does not start ranks again.
    Unjoined,
}

const SIGPIPE: i32 = 13;

impl Cause {
    /// The lower the class, the likelier this is a cause and not a consequence.
    fn class(&self) -> u8 {
        match self {
            Self::NotStarted { .. } | Self::NotStaged { .. } => 0,
            Self::Lost { .. } | Self::Terminated { .. } => 1,
            // SIGPIPE: the process wrote to a peer that had ended before.
            Self::Signal { signal: SIGPIPE, .. } => 5,
            Self::Signal { .. } => 2,
            Self::Abort { .. } => 3,
            Self::Code(_) | Self::Broken { .. } => 4,
            Self::ExitedEarly { .. } | Self::Unjoined => 6,
        }
    }
}

/// How a rank's process ended, as waitid reported it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// The kernel wrote a core dump.
        core: bool,
        /// As in [`Cause::Signal`].
        #[serde(deserialize_with = "deserialize_one_line")]
        out_of_memory: String,
    },
}

/// A failure of ranks or of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// When, in session time.
    pub at: Time,
    /// The agent of the ranks, or the agent that failed itself.
    pub agent: AgentId,
    /// The namespace of `ranks`.
    pub namespace: NamespaceId,
    /// The ranks that failed; none if it is the agent that failed.
    pub ranks: Ranks,
    /// The cause.
    pub cause: Cause,
}

impl Failure {
    /// The failure of an agent.
    pub(crate) fn of_agent(at: Time, agent: AgentId, cause: Cause) -> Self {
        Self { at, agent, namespace: NamespaceId::FIRST, ranks: Ranks::new(), cause }
    }

    /// Whether it is the loss of an agent.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self.cause, Cause::Lost { .. }) && self.ranks.is_empty()
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
    /// Ranks or agents failed.
    Failed {
        /// The elected first cause.
        first: Failure,
        /// The number of other failures.
        others: u64,
    },
    /// Ranks failed, and the session went on until all others had ended with 0.
    Survived {
        /// The elected first cause.
        first: Failure,
        /// The number of other failures.
        others: u64,
        /// The ranks of the first namespace that have died.
        dead: Ranks,
    },
    /// `--timeout` expired.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// `--exit-timeout` expired.
    LeftBehind {
        /// The limit.
        limit: Duration,
        /// The ranks that had ended by then.
        left: Ranks,
        /// The ranks that ran on.
        running: Ranks,
    },
    /// The launcher's standard output could not be written, or its input could not be read.
    OutputLost,
    /// A signal asked the launcher to end. A closed standard output counts as SIGPIPE.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

/// Picks the first cause: the failure of the lowest class (a signal before an abort, before a code other than 0, before
/// SIGPIPE, before an early exit with code 0), then the earliest, then the one of the lowest agent.
pub fn elect<'a>(failures: impl IntoIterator<Item = &'a Failure>) -> Option<&'a Failure> {
    failures.into_iter().min_by_key(|failure| (failure.cause.class(), failure.at, failure.agent))
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
    fn a_crash_precedes_the_exits_that_follow_from_it() {
        let signal = failure(30, Cause::Signal { signal: 11, core: false, out_of_memory: String::new() });
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
        let pipe = failure(1, Cause::Signal { signal: SIGPIPE, core: false, out_of_memory: String::new() });
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
    fn only_the_loss_of_an_agent_is_a_loss() {
        let lost = || Cause::Lost { why: LossReason::Closed };
        assert!(Failure::of_agent(Time::ZERO, AgentId(1), lost()).is_loss());
        assert!(!Failure::of_agent(Time::ZERO, AgentId(1), Cause::Terminated { signal: 15 }).is_loss());
        assert!(!Failure::of_rank(Time::ZERO, AgentId(1), NamespaceId::FIRST, Rank(0), lost()).is_loss());
    }
}
