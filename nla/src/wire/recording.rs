//! Recordings of an agent's core: its inputs and its actions, to be replayed into a new core.
//!
//! A recording consists of frames, each after its length (u32, little-endian): the [`TreePosition`] of the agent,
//! then the input and the actions of each turn. It ends when the agent ends, possibly in the middle of a frame. It
//! contains the environment and the entries of ranks, so the user must keep it confidential.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::coding::{CodingError, decode, encode, framed};
use crate::core::limits::AGENTS_MAX;
use crate::core::{Action, Agent, AgentId, Input, Subtree, Time};

/// The position of the recorded agent in the tree.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreePosition {
    /// The number of agents of the session.
    pub agents: u32,
    /// The fan-out of its tree.
    pub fanout: u32,
    /// The number of this agent.
    pub agent: AgentId,
}

impl TreePosition {
    /// Returns the agent's subtree; `None` if the tree has no such agent, or more than [`AGENTS_MAX`].
    pub fn subtree(&self) -> Option<Subtree> {
        // A false number of agents must not cost the time to look at so many children.
        if self.agents > AGENTS_MAX {
            return None;
        }
        Subtree::whole(self.agents, self.fanout).of(self.agent)
    }

    /// Returns the first frame of a recording.
    pub fn frame(&self) -> Vec<u8> {
        framed(&encode(self))
    }
}

/// The frames of a turn: its input and its actions. The input is encoded first, because the core consumes it.
#[derive(Debug)]
pub struct TurnFrame(Vec<u8>);

impl TurnFrame {
    /// Encodes an input that the core is about to handle.
    pub fn of(now: Time, input: &Input) -> Self {
        Self(framed(&encode(&(now, input))))
    }

    /// Adds the actions that the core returned.
    pub fn with(mut self, actions: &[Action]) -> Vec<u8> {
        self.0.extend_from_slice(&framed(&encode(actions)));
        self.0
    }
}

/// The reason why a recording cannot be replayed, or how the replay differs from it.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A frame cannot be decoded.
    #[error("frame {frame} of the recording cannot be decoded: {source}")]
    Unreadable {
        /// The number of the frame, from 0.
        frame: usize,
        /// The decoder's error.
        source: CodingError,
    },
    /// The position in the tree is missing or impossible.
    #[error("the recording does not contain a valid position of its agent in the tree")]
    NoPosition,
    /// The core's actions differ from the recorded ones.
    #[error("turn {turn}: after {input} the core's actions are {actions}, which differ from the recording")]
    Differs {
        /// The number of the turn, from 0.
        turn: usize,
        /// The input, as in a log.
        input: String,
        /// The core's actions, as in a log.
        actions: String,
    },
}

/// Replays a recording into a new core. Checks after each input that the core returns the recorded actions and keeps
/// its invariants. Returns the number of turns.
// Only tests replay. Inline functions are compiled where they are called, so the program is built without the decoders
// of all inputs.
#[inline]
pub fn replay(recording: &[u8]) -> Result<usize, ReplayError> {
    let mut frames = Frames { rest: recording, frame: 0 };
    let position: TreePosition = frames.next_as()?.ok_or(ReplayError::NoPosition)?;
    let mut core = Agent::new(position.subtree().ok_or(ReplayError::NoPosition)?);
    let mut turns = 0;
    while let Some((now, input)) = frames.next_as::<(Time, Input)>()? {
        let Some(recorded) = frames.next() else { break };
        let shown = format!("{input:?}");
        let mut actions = Vec::new();
        core.handle(now, input, &mut actions);
        core.check_invariants();
        if encode(&actions) != recorded {
            return Err(ReplayError::Differs { turn: turns, input: shown, actions: format!("{actions:?}") });
        }
        turns += 1;
    }
    Ok(turns)
}

struct Frames<'a> {
    rest: &'a [u8],
    frame: usize,
}

impl<'a> Frames<'a> {
    /// Returns the next complete frame.
    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let (frame, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.rest = rest;
        self.frame += 1;
        Some(frame)
    }

    fn next_as<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ReplayError> {
        let frame = self.frame;
        let read = self.next().map(decode);
        read.transpose().map_err(|source| ReplayError::Unreadable { frame, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITION: TreePosition = TreePosition { agents: 2, fanout: 1, agent: AgentId(1) };

    /// Records an agent whose child joins. Replaces the actions by `forged` ones if given.
    fn recorded(forged: &[Action]) -> Vec<u8> {
        let mut recording = POSITION.frame();
        let mut core = Agent::new(POSITION.subtree().unwrap());
        let ready = Input::FromChild(AgentId(2), crate::core::Up::Ready);
        for input in [Input::Timeout, Input::ChildJoined(AgentId(2)), ready] {
            let turn = TurnFrame::of(Time::from_millis(5), &input);
            let mut actions = Vec::new();
            core.handle(Time::from_millis(5), input, &mut actions);
            let is_forged = !actions.is_empty() && !forged.is_empty();
            recording.extend(turn.with(if is_forged { forged } else { &actions }));
        }
        recording
    }

    #[test]
    fn a_tree_has_as_many_agents_as_the_bound_at_most() {
        let last = |agents| TreePosition { agents, fanout: u32::MAX, agent: AgentId(agents) }.subtree();
        assert_eq!(last(AGENTS_MAX).map(|here| here.head()), Some(AgentId(AGENTS_MAX)));
        assert_eq!(last(AGENTS_MAX + 1), None);
        assert_eq!(last(u32::MAX), None);
    }

    #[test]
    fn a_recording_can_be_replayed() {
        assert_eq!(replay(&recorded(&[])).unwrap(), 3);
    }

    #[test]
    fn another_action_is_detected() {
        let error = replay(&recorded(&[Action::Sweep])).unwrap_err();
        assert!(matches!(error, ReplayError::Differs { turn: 2, .. }), "{error}");
    }

    #[test]
    fn truncated_and_damaged_recordings_never_panic() {
        let whole = recorded(&[]);
        for end in 0..whole.len() {
            match replay(&whole[..end]) {
                Ok(turns) => assert!(turns < 3),
                Err(error) => assert!(matches!(error, ReplayError::NoPosition), "{error}"),
            }
            let mut damaged = whole.clone();
            damaged[end] ^= 0x40;
            let _ = replay(&damaged);
        }
    }
}
