//! The exit code: decided here and nowhere else. The table is in `--help` and in the README.

use nla::core::{Cause, Outcome};

/// All ranks ended with 0.
pub const SUCCESS: u8 = 0;
/// Standard output could not be written.
pub const OUTPUT_LOST: u8 = 1;
/// The command line could not be understood.
pub const USAGE: u8 = 2;
/// `--timeout` ran out.
pub const TIMED_OUT: u8 = 124;
/// The job could not be launched.
pub const NOT_LAUNCHED: u8 = 251;
/// A node or an agent was lost.
pub const LOST: u8 = 252;
/// A bug of ScELA's own.
pub const BUG: u8 = 253;

/// What `outcome` makes the launcher end with.
pub fn code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Success => SUCCESS,
        Outcome::TimedOut { .. } => TIMED_OUT,
        Outcome::OutputLost => OUTPUT_LOST,
        Outcome::Interrupted { signal } => signalled(*signal),
        Outcome::Failed { first, .. } => match &first.cause {
            Cause::NotStarted { .. } => NOT_LAUNCHED,
            Cause::Lost { .. } => LOST,
            Cause::Signal { signal, .. } => signalled(*signal),
            Cause::Abort { code, .. } | Cause::Code(code) => low_byte(*code),
            Cause::Broken { .. } | Cause::ExitedEarly { .. } => 1,
        },
    }
}

/// Whether it was an agent that failed, by not coming or by getting lost; not a rank.
pub fn is_of_agents(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Failed { first, .. } => match first.cause {
            Cause::NotStarted { .. } => first.ranks.is_empty(),
            Cause::Lost { .. } => true,
            _ => false,
        },
        _ => false,
    }
}

/// Ended by this signal.
pub fn signalled(signal: i32) -> u8 {
    128u8.saturating_add(u8::try_from(signal).unwrap_or(127))
}

/// A failure never looks like success, whatever its low byte.
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
        code(&Outcome::Failed { first, others: 3 })
    }

    #[test]
    fn agents_fail_or_ranks_do() {
        let of = |ranks: pmi::Ranks, cause| {
            let (agent, namespace) = (AgentId(1), NamespaceId::FIRST);
            let first = Failure { at: Duration::ZERO, agent, namespace, ranks, cause };
            is_of_agents(&Outcome::Failed { first, others: 0 })
        };
        let (nobody, one) = (pmi::Ranks::new, || pmi::Ranks::range(0..1));
        assert!(of(nobody(), Cause::NotStarted { why: NotStartedReason::Cancelled }));
        assert!(of(nobody(), Cause::Lost { why: LossReason::Closed }));
        assert!(!of(one(), Cause::NotStarted { why: NotStartedReason::Cancelled }), "a program that is not there");
        assert!(!of(one(), Cause::Code(3)) && !is_of_agents(&Outcome::Success));
    }

    #[test]
    fn the_table() {
        assert_eq!(code(&Outcome::Success), 0);
        assert_eq!(code(&Outcome::TimedOut { limit: Duration::from_secs(1) }), 124);
        assert_eq!(code(&Outcome::Interrupted { signal: 2 }), 130);
        assert_eq!(code(&Outcome::OutputLost), 1);
        assert_eq!(failed(Cause::Code(3)), 3);
        assert_eq!(failed(Cause::Code(512)), 1, "256 times anything is still a failure");
        assert_eq!(failed(Cause::Abort { code: 7, message: String::new() }), 7);
        assert_eq!(failed(Cause::Abort { code: -1, message: String::new() }), 255);
        assert_eq!(failed(Cause::Abort { code: 68_770_831, message: String::new() }), 15);
        assert_eq!(failed(Cause::Abort { code: 0, message: String::new() }), 1);
        assert_eq!(failed(Cause::Signal { signal: 11, core: true, out_of_memory: false }), 139);
        assert_eq!(failed(Cause::ExitedEarly { in_fence: true }), 1);
        assert_eq!(failed(Cause::Broken { why: String::new() }), 1);
        assert_eq!(failed(Cause::Lost { why: LossReason::Closed }), 252);
        assert_eq!(failed(Cause::NotStarted { why: NotStartedReason::Cancelled }), 251);
    }
}
