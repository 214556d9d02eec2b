//! Agents that were ordered to join over their remote shells and have not joined, and the meaning of their failures.

use std::time::Duration;

use litemap::LiteMap;

use super::failure::{StartFailure, StartPhase};
use super::ssh::judge;
use crate::core::limits::HELLO_TIME;
use crate::core::{AgentId, Time};

/// The agents that were ordered to join, by target.
#[derive(Default)]
pub(in crate::bootstrap) struct PendingJoins(LiteMap<u32, (AgentId, Time)>);

impl PendingJoins {
    /// Notes that the agent at `target` was ordered to join as `agent`.
    pub(in crate::bootstrap) fn expect(&mut self, now: Time, target: u32, agent: AgentId) {
        self.0.insert(target, (agent, now));
    }

    /// Returns the number that the agent at `target` is expected to join with.
    pub(in crate::bootstrap) fn agent(&self, target: u32) -> Option<AgentId> {
        self.0.get(&target).map(|(agent, _)| *agent)
    }

    /// Stops waiting for the agent at `target`. Returns how long it was waited for; `None` if it was not.
    pub(in crate::bootstrap) fn settle(&mut self, now: Time, target: u32) -> Option<Duration> {
        self.0.remove(&target).map(|(_, since)| now.saturating_sub(since))
    }
}

/// Returns the failure of an agent that did not join within [`HELLO_TIME`].
pub(in crate::bootstrap) fn late() -> StartFailure {
    let words = format!("it started but did not join the tree within {} s", HELLO_TIME.as_secs());
    StartFailure::new(StartPhase::Join, words)
}

/// Returns whether a handshake that failed `took` after the agent was told to join counts as late: the agent gives up
/// after the same time, sometimes a moment before this end does.
pub(in crate::bootstrap) fn is_late(took: Duration) -> bool {
    took >= HELLO_TIME
}

/// Returns the failure of a handshake over a remote shell that ended with `code` and wrote `said` to standard error.
pub(in crate::bootstrap) fn failure(error: &str, code: Option<i32>, said: &str) -> StartFailure {
    let words = match said.trim() {
        "" => format!("the link over its remote shell failed: {error}"),
        said => {
            format!("the link over its remote shell failed: {error}; its last message: {}", judge(code, said).words)
        }
    };
    StartFailure::new(StartPhase::Join, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_settled_once() {
        let s = Duration::from_secs;
        let mut joins = PendingJoins::default();
        joins.expect(s(3), 7, AgentId(2));
        assert_eq!((joins.agent(7), joins.agent(8)), (Some(AgentId(2)), None));
        assert_eq!(joins.settle(s(5), 7), Some(s(2)));
        assert_eq!((joins.settle(s(5), 7), joins.agent(7)), (None, None));
    }

    #[test]
    fn a_failure_after_the_timeout_is_late() {
        assert!(is_late(HELLO_TIME) && !is_late(HELLO_TIME - Duration::from_millis(1)));
        assert_eq!(late().words, "it started but did not join the tree within 10 s");
    }

    #[test]
    fn a_failed_handshake_has_the_last_words_of_its_remote_shell() {
        assert_eq!(failure("it hung up", None, " \n").words, "the link over its remote shell failed: it hung up");
        let said = "Welcome\nssh: connect to host n3 port 22: No route to host\n";
        assert_eq!(
            failure("it hung up", Some(255), said).words,
            "the link over its remote shell failed: it hung up; its last message: No route to host"
        );
    }
}
