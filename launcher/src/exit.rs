//! The exit codes of scela-run: every code is decided here, for sessions and for early ends.

use nla::core::{Cause, Outcome};

/// Every rank ended with 0.
pub const SUCCESS: u8 = 0;
/// Standard output or a file of output could not be written, or the input could not be read.
pub const OUTPUT_LOST: u8 = 1;
/// Ranks of an MPI program ran as copies of rank 0 of 1.
pub const COPIES: u8 = 1;
/// The command line cannot be followed.
pub const USAGE: u8 = 2;
/// The time of `--timeout` or `--exit-timeout` was over.
pub const TIMED_OUT: u8 = 124;
/// The programs could not be started.
pub const NOT_LAUNCHED: u8 = 251;
/// A node or an agent was lost.
pub const LOST: u8 = 252;
/// A bug in scela-run.
pub const BUG: u8 = 253;

/// The exit codes and their meanings, as `--help` lists them. README has the same table.
pub const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "every rank ended with 0"),
    ("1-255", "the code of the rank that failed first (1 for a multiple of 256)"),
    ("1", "the ranks of an MPI program ended with 0, and none used PMI or PMIx"),
    ("1", "output could not be written"),
    ("128+n", "signal n killed the rank that failed first, or ended scela-run or an agent"),
    ("124", "--timeout or --exit-timeout expired"),
    ("2", "the command line is invalid, or asks for the impossible"),
    ("251", "the programs could not be started"),
    ("252", "a node or an agent was lost"),
    ("253", "a bug in scela-run; please report it"),
];

/// How scela-run ends without an outcome of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyEnd {
    /// A text, a simulation or a calibration was completed.
    Done,
    /// The text on standard output could not be written.
    OutputLost,
    /// The command line cannot be followed.
    Usage,
    /// The programs could not be started.
    NotLaunched,
    /// A signal ended the launch.
    Signalled(i32),
    /// A bug in scela-run.
    Bug,
}

impl EarlyEnd {
    /// Returns the exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => SUCCESS,
            Self::OutputLost => OUTPUT_LOST,
            Self::Usage => USAGE,
            Self::NotLaunched => NOT_LAUNCHED,
            Self::Signalled(signal) => signalled(signal),
            Self::Bug => BUG,
        }
    }
}

/// Returns the exit code for the outcome of a session. `are_copies` is whether the ranks of an MPI program did not find
/// scela-run.
pub fn code(outcome: &Outcome, are_copies: bool) -> u8 {
    match outcome {
        Outcome::Success if are_copies => COPIES,
        Outcome::Success => SUCCESS,
        Outcome::TimedOut { .. } | Outcome::LeftBehind { .. } => TIMED_OUT,
        Outcome::OutputLost => OUTPUT_LOST,
        Outcome::Interrupted { signal } => signalled(*signal),
        Outcome::Failed { first, .. } | Outcome::Survived { first, .. } => match &first.cause {
            Cause::NotStarted { .. } | Cause::NotStaged { .. } => NOT_LAUNCHED,
            Cause::Lost { .. } => LOST,
            Cause::Signal { signal, .. } | Cause::Terminated { signal } => signalled(*signal),
            Cause::Abort { code, .. } | Cause::Code(code) => low_byte(*code),
            Cause::Broken { .. } | Cause::ExitedEarly { .. } | Cause::Unjoined => 1,
        },
    }
}

/// Returns the exit code for an end by this signal.
pub fn signalled(signal: i32) -> u8 {
    128u8.saturating_add(u8::try_from(signal).unwrap_or(127))
}

/// The most failed commands of a list that have a code of their own. More of them have the next one, as under GNU parallel.
const FAILED_COMMANDS_MAX: usize = 100;

/// Returns the exit code for a list of commands of which so many have failed.
pub fn failed_commands(count: usize) -> u8 {
    count.min(FAILED_COMMANDS_MAX + 1) as u8
}

/// Returns the low byte of a code, or 1 if that is 0: a failure never looks like success.
fn low_byte(code: i32) -> u8 {
    match (code & 255) as u8 {
        0 => 1,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nla::core::{AgentId, Failure, LossReason, NamespaceId, NotStartedReason};
    use std::time::Duration;

    fn failed(cause: Cause) -> u8 {
        let first = Failure {
            at: Duration::ZERO,
            agent: AgentId(1),
            namespace: NamespaceId::FIRST,
            ranks: pmi::Ranks::range(0..1),
            cause,
        };
        code(&Outcome::Failed { first, others: 3 }, true)
    }

    #[test]
    fn early_ends_have_codes_of_the_table() {
        let ends = [EarlyEnd::Done, EarlyEnd::OutputLost, EarlyEnd::Usage, EarlyEnd::NotLaunched, EarlyEnd::Bug];
        assert_eq!(ends.map(EarlyEnd::code), [0, 1, 2, 251, 253]);
        assert_eq!(EarlyEnd::Signalled(15).code(), 143);
    }

    #[test]
    fn the_table() {
        assert_eq!(code(&Outcome::Success, false), 0);
        assert_eq!(code(&Outcome::Success, true), 1);
        let limit = Duration::from_secs(1);
        assert_eq!(code(&Outcome::TimedOut { limit }, false), 124);
        let (left, running) = (pmi::Ranks::range(0..1), pmi::Ranks::range(1..2));
        assert_eq!(code(&Outcome::LeftBehind { limit, left, running }, false), 124);
        assert_eq!(code(&Outcome::Interrupted { signal: 2 }, false), 130);
        assert_eq!(code(&Outcome::OutputLost, false), 1);
        assert_eq!(failed(Cause::Code(3)), 3);
        assert_eq!(failed(Cause::Code(512)), 1, "256 times anything is still a failure");
        assert_eq!(failed(Cause::Abort { code: 7, message: String::new() }), 7);
        assert_eq!(failed(Cause::Abort { code: -1, message: String::new() }), 255);
        assert_eq!(failed(Cause::Abort { code: 68_770_831, message: String::new() }), 15);
        assert_eq!(failed(Cause::Abort { code: 0, message: String::new() }), 1);
        assert_eq!(failed(Cause::Signal { signal: 11, core: true, out_of_memory: String::new() }), 139);
        assert_eq!(failed(Cause::ExitedEarly { in_fence: true }), 1);
        assert_eq!(failed(Cause::Broken { why: String::new() }), 1);
        assert_eq!(failed(Cause::Lost { why: LossReason::Closed }), 252);
        assert_eq!(failed(Cause::Terminated { signal: 15 }), 143);
        assert_eq!(failed(Cause::NotStaged { why: String::new() }), 251);
        assert_eq!(failed(Cause::NotStarted { why: NotStartedReason::Cancelled }), 251);
    }
}
