//! The failure policy: how a session goes on after the failure of a rank or an agent.

use serde::{Deserialize, Serialize};

use super::cause::Cause;

/// How a session goes on after the failure of a rank or an agent: `--on-failure`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FailurePolicy {
    /// The first failure ends all ranks.
    #[default]
    Abort,
    /// The other ranks go on. They can ask which ranks have died, and a fence does not wait for these.
    Continue,
    /// All ranks are ended and start again, a limited number of times. The agents stay.
    Restart,
    /// A rank that fails starts again, and the others go on: for programs that recover by themselves.
    RestartRank,
}

impl FailurePolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Abort, Self::Continue, Self::Restart, Self::RestartRank];

    /// The name as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Continue => "continue",
            Self::Restart => "restart",
            Self::RestartRank => "restart=rank",
        }
    }

    /// Whether the other ranks go on after the death of a rank or the loss of an agent.
    pub fn goes_on(self) -> bool {
        self == Self::Continue
    }

    /// Whether the children of a lost agent join an ancestor, if agents can connect to each other.
    pub fn adopts(self) -> bool {
        self != Self::Abort
    }

    /// Whether ranks start again after failures, one or all.
    pub fn starts_again(self) -> bool {
        matches!(self, Self::Restart | Self::RestartRank)
    }

    /// Whether a rank that failed from this cause starts again while the others go on.
    pub(super) fn revives(self, cause: &Cause) -> bool {
        let can_be_repeated = matches!(cause, Cause::Signal { .. } | Cause::Code(_) | Cause::Broken { .. });
        can_be_repeated && self == Self::RestartRank
    }

    /// Whether all ranks start again after a failure with this cause. `adopts` says whether the children of a lost agent
    /// have joined an ancestor.
    pub(super) fn restarts(self, cause: &Cause, adopts: bool) -> bool {
        let can_be_repeated = match cause {
            Cause::Signal { .. }
            | Cause::Code(_)
            | Cause::Broken { .. }
            | Cause::ExitedEarly { .. }
            | Cause::Unjoined
            // MPI libraries abort when another rank dies.
            | Cause::Abort { .. } => true,
            Cause::Lost { .. } => adopts,
            Cause::NotStarted { .. } | Cause::NotStaged { .. } | Cause::Terminated { .. } => false,
        };
        can_be_repeated && self == Self::Restart
    }

    /// Whether the other ranks go on after a failure with this cause. Under any policy, a rank that aborts the job, a
    /// rank that could not be started or ended without joining PMIx, and a resource manager that ends an agent end the
    /// session.
    pub(super) fn survives(self, cause: &Cause) -> bool {
        match cause {
            Cause::Signal { .. }
            | Cause::Code(_)
            | Cause::Broken { .. }
            | Cause::ExitedEarly { .. }
            | Cause::Lost { .. } => self == Self::Continue,
            Cause::NotStarted { .. }
            | Cause::NotStaged { .. }
            | Cause::Terminated { .. }
            | Cause::Abort { .. }
            | Cause::Unjoined => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_the_names_that_users_type() {
        assert_eq!(FailurePolicy::ALL.map(FailurePolicy::name), ["abort", "continue", "restart", "restart=rank"]);
    }
}
