//! Reasons why a peer was lost, or why ranks and agents were not started.
//!
//! Each reason has one [`Display`](std::fmt::Display): the text that the user reads behind "was lost:" or "could not be
//! started:". In messages and recordings a reason travels as that text, on one line and cut to
//! [`TEXT_BYTES_MAX`](super::limits::TEXT_BYTES_MAX), so that the receiver needs no list of the sender's reasons: it
//! reads the text back as `Reported`. Only a lack of devices travels as a value: the launcher adds what may help.

use std::time::Duration;

use pmi::{Rank, Ranks};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::accelerators::LackOfDevices;
use super::fence::FenceError;
use super::group::GroupError;
use super::ids::{AgentId, NamespaceId};
use super::pieces::PieceError;
use super::words::{deserialize_one_line, one_line};

/// The reason why an agent, or the link to it, was lost.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LossReason {
    /// The peer closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// The connection ended inside a record.
    #[error("the connection ended in the middle of a record")]
    Truncated,
    /// Reading or writing failed with this error of the system.
    #[error("the connection broke: {0}")]
    ConnectionFailed(String),
    /// No byte arrived for this long.
    #[error("nothing was heard from it for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The same, although its machine answers.
    #[error("nothing was heard from it for {} s, although its machine answers; was it stopped?", .0.as_secs_f64())]
    Stopped(Duration),
    /// More than [`LINK_QUEUE_BYTES_MAX`](super::limits::LINK_QUEUE_BYTES_MAX) bytes waited to be written.
    #[error("it does not read what it is sent")]
    NotReading,
    /// This process is leaving, and with it the link.
    #[error("this side is leaving")]
    Leaving,
    /// The peer sent a message that the decoder refused with this error.
    #[error("it sent {0}")]
    Undecodable(String),
    /// The peer broke the protocol, and its link was closed for that.
    #[error("it broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The agent's guardian process ended: nothing would clean up after the agent.
    #[error("its guardian process ended; was it killed?")]
    GuardianLost,
    /// The agent's guardian process has not answered heartbeats for the dead time.
    #[error("its guardian process does not answer; was it stopped?")]
    GuardianSilent,
    /// The agent received a fence's release while its ranks wait in a ring.
    #[error("it received a fence's release while its ranks wait in a ring")]
    ReleaseOfFence,
    /// The agent received the release of a ring that does not fit the ring that is open there.
    #[error("it received a ring's release that does not fit its own ring: {0}")]
    ReleaseOfRing(FenceError),
    /// The epoch of a fence did not arrive as the launcher has sent it.
    #[error("the entries of fence {number} that it received from the place above it cannot be used: {error}")]
    Epoch {
        /// The fence's number.
        number: u32,
        /// Why the epoch was refused.
        error: PieceError,
    },
    /// The subtree did not report the end of its processes in this time after KILL.
    #[error("it, or an agent below it, had not ended its ranks {} s after KILL", .0.as_secs())]
    NotEnded(Duration),
    /// The agent above it was lost, and it has not joined an ancestor in this time.
    #[error("the agent above it was lost, and it did not reach another one within {} s", .0.as_secs_f64())]
    NotRejoined(Duration),
    /// The agent above it was lost, and so was this agent: one below it has lost it and joined an ancestor.
    #[error("the agent above it was lost, and agent {0} below it has lost it too")]
    LostBy(AgentId),
    /// The agent above it was lost, and then all processes of this agent ended.
    #[error("the agent above it was lost, and its own processes have ended")]
    ProcessesEnded,
    /// Processes of ranks that have ended cannot be killed, so no rank may start again on this agent.
    #[error("processes of the ranks that were ended cannot be killed, so no rank may start again there")]
    NotCleared,
    /// A task of the agent panicked, and the agent reported that itself.
    #[error("its task '{task}' panicked{text}")]
    Panicked {
        /// The name of the task.
        task: &'static str,
        /// The source location and the message.
        text: String,
    },
    /// Another process reported the loss in these words.
    #[error("{0}")]
    Reported(String),
}

impl LossReason {
    /// Whether only the guardian was lost: the agent has reported that, lives, and ends its ranks. The report may be text.
    pub(super) fn is_of_guardian(&self) -> bool {
        let text = self.to_string();
        [Self::GuardianLost, Self::GuardianSilent].iter().any(|reason| reason.to_string() == text)
    }
}

/// A way in which a peer broke the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// The peer's contribution to a fence or a ring was refused.
    #[error("fence {number} of namespace {namespace}: {error}")]
    Fence {
        /// The fence's namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// Why the contribution was refused.
        error: FenceError,
    },
    /// The peer's contribution to a fence of a group was refused.
    #[error("a group fence of namespace {namespace}: {error}")]
    Group {
        /// The fence's namespace.
        namespace: NamespaceId,
        /// Why the contribution was refused.
        error: GroupError,
    },
    /// The peer's put ahead of its fence was refused.
    #[error("a put for fence {number} of namespace {namespace}: {error}")]
    Put {
        /// The fence's namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// Why the put was refused.
        error: FenceError,
    },
    /// The peer reported the death of ranks that are not below it, or in a session that ends with the first failure.
    #[error("it reported the death of ranks {0}, which is not allowed")]
    Died(Ranks),
    /// The peer reported a lost agent's ranks that are not below the peer, or reported them in a session that does not
    /// move ranks.
    #[error("it reported that ranks {0} have lost their agent, which is not allowed")]
    MovedOut(Ranks),
    /// The peer has joined again, and others have completed fences of which it knows nothing.
    #[error("it has missed the end of fence {0}")]
    Behind(u32),
    /// The peer has joined an ancestor while an agent between the two is not lost.
    #[error("it joined here although an agent between the two is not lost")]
    Unawaited,
    /// The peer has joined again after it had been given up, and has ended its ranks.
    #[error("it joined after it had been given up")]
    Late,
    /// The peer asked for an entry of a namespace of which it has no ranks, or for more than its ranks can.
    #[error("it asked for an entry that it may not ask for")]
    Get,
    /// The peer passed on an inquiry that no rank of its subtree can make.
    #[error("it asked agent {to} on behalf of rank {rank}, which is not allowed")]
    Inquiry {
        /// The agent that was asked.
        to: AgentId,
        /// The rank on whose behalf it was asked.
        rank: Rank,
    },
    /// The peer passed on a reply that no agent of its subtree can give.
    #[error("it answered rank {rank}, which is not allowed")]
    Reply {
        /// The rank that is answered.
        rank: Rank,
    },
    /// The peer's report of its end was not asked for, contradicts what is known of its subtree, or is its second one.
    #[error("the report of its end is inconsistent")]
    Ended,
    /// The peer's statistics contradict what is known of its subtree, were not asked for, or arrived twice.
    #[error("its statistics are inconsistent")]
    Stats,
    /// The peer sent more bytes of a lane than it was granted.
    #[error("it sent more than it was granted")]
    Window,
    /// The peer sent a record, or a piece of a lane, that was refused with this error.
    #[error("{0}")]
    Framing(String),
}

/// The reason why ranks, or an agent, were not started.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotStartedReason {
    /// The plan that the parent sent is inconsistent.
    #[error("its plan is inconsistent; that is a bug of ScELA")]
    InvalidPlan,
    /// The agent cannot start ranks: the system refused a resource that it needs for that.
    #[error("its agent could not set itself up; see SCELA_LOG=debug")]
    SetupFailed,
    /// The session, or the namespace, ended before the ranks were started.
    #[error("cancelled")]
    Cancelled,
    /// The subtree did not join within this time.
    #[error("it, or an agent below it, had not joined after {} s", .0.as_secs())]
    NotJoined(Duration),
    /// The agent was lost before its parent had received the session's plan.
    #[error("it was lost before the session began: {0}")]
    Lost(LossReason),
    /// The node has too few devices for its ranks.
    #[error("{}", .0.text)]
    LackOfDevices(LackOfDevices),
    /// The program that was to start them, or another process, reported the failure in these words.
    #[error("{0}")]
    Reported(String),
}

impl Serialize for LossReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&one_line(self.to_string()))
    }
}

impl<'de> Deserialize<'de> for LossReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_one_line(deserializer).map(Self::Reported)
    }
}

/// A [`NotStartedReason`] on its way.
#[derive(Serialize, Deserialize)]
enum SentReason {
    Text(#[serde(deserialize_with = "deserialize_one_line")] String),
    LackOfDevices(LackOfDevices),
}

impl Serialize for NotStartedReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sent = match self {
            Self::LackOfDevices(lack) => {
                SentReason::LackOfDevices(LackOfDevices { text: one_line(lack.text.clone()), remedy: lack.remedy })
            }
            other => SentReason::Text(one_line(other.to_string())),
        };
        sent.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NotStartedReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match SentReason::deserialize(deserializer)? {
            SentReason::Text(text) => Self::Reported(text),
            SentReason::LackOfDevices(lack) => Self::LackOfDevices(lack),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::accelerators::DeviceRemedy;
    use crate::core::limits::TEXT_BYTES_MAX;
    use crate::wire::{decode, encode};

    #[test]
    fn a_reason_travels_as_its_text() {
        let reason = LossReason::from(Violation::Inquiry { to: AgentId(3), rank: Rank(7) });
        let text = "it broke the protocol: it asked agent 3 on behalf of rank 7, which is not allowed";
        assert_eq!(encode(&reason), encode(text), "the bytes are those of a string");
        assert_eq!(decode::<LossReason>(&encode(&reason)).unwrap(), LossReason::Reported(text.to_owned()));
        let reason = NotStartedReason::NotJoined(Duration::from_secs(60));
        let read: NotStartedReason = decode(&encode(&reason)).unwrap();
        assert_eq!(read.to_string(), "it, or an agent below it, had not joined after 60 s");
    }

    #[test]
    fn a_lack_of_devices_travels_as_a_value() {
        let lack = |text: &str| {
            let text = text.to_owned();
            NotStartedReason::LackOfDevices(LackOfDevices { text, remedy: DeviceRemedy::Declare })
        };
        let read: NotStartedReason = decode(&encode(&lack("rank 3 needs 1 gpu"))).unwrap();
        assert_eq!((read.to_string().as_str(), &read), ("rank 3 needs 1 gpu", &lack("rank 3 needs 1 gpu")));
        let read: NotStartedReason = decode(&encode(&lack(&"\n".repeat(TEXT_BYTES_MAX)))).unwrap();
        let text = read.to_string();
        assert!(matches!(read, NotStartedReason::LackOfDevices(_)) && text.len() <= TEXT_BYTES_MAX, "{}", text.len());
        assert!(!text.contains('\n'));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let reason = LossReason::Undecodable("x".repeat(TEXT_BYTES_MAX));
        let LossReason::Reported(text) = decode(&encode(&reason)).unwrap() else { panic!("it is text") };
        assert_eq!(text.len(), TEXT_BYTES_MAX);
    }
}
