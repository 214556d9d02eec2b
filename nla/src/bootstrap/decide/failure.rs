//! Why an agent could not be started: the phase that failed, and one line of words.

use serde::{Deserialize, Serialize};

use crate::core::{deserialize_one_line, one_line};

/// The phase of an agent's start that failed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum StartPhase {
    /// The command that opens remote shells, or starts the step, could not be executed here.
    Command,
    /// The host's name could not be resolved.
    Name,
    /// The host's address is unreachable or does not answer.
    Connect,
    /// The host refused the connection: no process listens, or too many connections arrived at once.
    Refused,
    /// The host accepted the connection and closed it, as sshd does when too many clients are unauthenticated.
    Busy,
    /// The host's key is unknown or has changed.
    HostKey,
    /// The host refused to log the user in.
    Login,
    /// The remote shell ran, but the agent's program could not be found, sent or executed.
    Program,
    /// No answer of an agent arrived in time.
    Answer,
    /// The agent could not connect to its parent, or to the process that started it.
    ConnectBack,
    /// The agent ran, but did not join the tree over its remote shell.
    Join,
    /// The node lacks descriptors, memory or processes for an agent.
    Limits,
    /// The resource manager did not start the agent's task, or ended it.
    Step,
    /// The keeper of the node was lost, or has started no agent that answers.
    Keeper,
    /// The agent, or the remote shell to it, ended for another reason.
    Ended,
}

/// Why an agent could not be started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartFailure {
    /// The phase that failed.
    pub phase: StartPhase,
    /// One line: the last relevant words of the command, the remote shell or the agent. Without control characters,
    /// also if the peer that reported the failure sent some.
    #[serde(deserialize_with = "deserialize_one_line")]
    pub words: String,
}

impl StartFailure {
    /// Returns the failure of an agent that did not report before its deadline.
    pub fn late() -> Self {
        Self::new(StartPhase::Answer, "no answer in time (--start-timeout)")
    }

    /// Returns the failure of a start by a keeper. No remote shell is involved.
    pub(in crate::bootstrap) fn of_keeper(self) -> Self {
        let phase = match self.phase {
            StartPhase::Program | StartPhase::Answer | StartPhase::Ended => StartPhase::Keeper,
            phase => phase,
        };
        Self { phase, ..self }
    }

    /// Returns a failure with these words, on one line and cut to
    /// [`TEXT_BYTES_MAX`](crate::core::limits::TEXT_BYTES_MAX) bytes.
    pub fn new(phase: StartPhase, words: impl Into<String>) -> Self {
        Self { phase, words: one_line(words.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::TEXT_BYTES_MAX;
    use crate::wire::{decode, encode};

    #[test]
    fn words_of_a_peer_are_one_line_without_control_characters() {
        let hostile = StartFailure { phase: StartPhase::Login, words: "no\x1b[2J\nscela-run: done".to_owned() };
        let read: StartFailure = decode(&encode(&hostile)).unwrap();
        assert_eq!(read.words, "no\\u{1b}[2J\\nscela-run: done");
        assert_eq!(StartFailure::new(StartPhase::Login, hostile.words), read);
        let long = StartFailure { phase: StartPhase::Login, words: "x".repeat(TEXT_BYTES_MAX + 1) };
        assert_eq!(decode::<StartFailure>(&encode(&long)).unwrap().words.len(), TEXT_BYTES_MAX);
    }
}
