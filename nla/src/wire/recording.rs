//! Recordings: what an agent's core was handed and what it answered, to be replayed into another one.
//!
//! A recording is frames, each with its length in front (u32 LE): the [`TreePosition`] of the agent in its
//! tree, then a step for each input. It ends where the agent did, maybe in the middle of a frame. It
//! holds what ranks were given and have put, environments included: who asks for one keeps it to
//! himself.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::coding::{CodingError, decode, encode, framed};
use crate::core::{Action, Agent, AgentId, Input, Subtree, Time};

/// Where the recorded agent is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreePosition {
    /// How many agents the session has.
    pub agents: u32,
    /// The fan-out of its tree.
    pub fanout: u32,
    /// Which one this is.
    pub agent: AgentId,
}

impl TreePosition {
    /// The agent's part of the tree, unless there is no such agent.
    pub fn subtree(&self) -> Option<Subtree> {
        Subtree::whole(self.agents, self.fanout).of(self.agent)
    }

    /// The first frame of a recording.
    pub fn frame(&self) -> Vec<u8> {
        framed(&encode(self))
    }
}

/// The frame of a step: the input, before it is handed in, and the actions that came of it. In two
/// halves, since the input is gone by then.
#[derive(Debug)]
pub struct StepFrame(Vec<u8>);

impl StepFrame {
    /// Of an input that is about to be handed in.
    pub fn of(now: Time, input: &Input) -> Self {
        Self(framed(&encode(&(now, input))))
    }

    /// With the actions that came of it.
    pub fn with(mut self, actions: &[Action]) -> Vec<u8> {
        self.0.extend_from_slice(&framed(&encode(actions)));
        self.0
    }
}

/// A recording cannot be replayed, or a core does something else.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// Something in it cannot be read.
    #[error("frame {frame} of the recording cannot be read: {source}")]
    Unreadable {
        /// Which one, from 0.
        frame: usize,
        /// Why.
        source: CodingError,
    },
    /// It has no place, or one that there cannot be.
    #[error("the recording does not say where its agent was")]
    Placeless,
    /// After this input the core does something else than the recorded one did.
    #[error("step {step}: after {input} the core does {done}, which is not what was recorded")]
    Differs {
        /// Which step, from 0.
        step: usize,
        /// The input, as it is shown in a log.
        input: String,
        /// The actions, likewise.
        done: String,
    },
}

/// Hands the recorded inputs to a new core: after each it must do what was recorded. How many steps
/// there were. Invariants are checked after each.
pub fn replay(recording: &[u8]) -> Result<usize, ReplayError> {
    let mut frames = Frames { rest: recording, frame: 0 };
    let place: TreePosition = frames.next_as()?.ok_or(ReplayError::Placeless)?;
    let mut core = Agent::new(place.subtree().ok_or(ReplayError::Placeless)?);
    let mut steps = 0;
    while let Some((now, input)) = frames.next_as::<(Time, Input)>()? {
        let Some(recorded) = frames.next() else { break };
        let shown = format!("{input:?}");
        let mut actions = Vec::new();
        core.handle(now, input, &mut actions);
        core.check_invariants();
        if encode(&actions) != recorded {
            return Err(ReplayError::Differs { step: steps, input: shown, done: format!("{actions:?}") });
        }
        steps += 1;
    }
    Ok(steps)
}

struct Frames<'a> {
    rest: &'a [u8],
    frame: usize,
}

impl<'a> Frames<'a> {
    /// The next whole frame.
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

    const PLACE: TreePosition = TreePosition { agents: 2, fanout: 1, agent: AgentId(1) };

    /// What an inner agent is handed while its child joins.
    fn recorded(forged: &[Action]) -> Vec<u8> {
        let mut recording = PLACE.frame();
        let mut core = Agent::new(PLACE.subtree().unwrap());
        let ready = Input::FromChild(AgentId(2), crate::core::Up::Ready);
        for input in [Input::Timeout, Input::ChildJoined(AgentId(2)), ready] {
            let step = StepFrame::of(Time::from_millis(5), &input);
            let mut actions = Vec::new();
            core.handle(Time::from_millis(5), input, &mut actions);
            let told = !actions.is_empty();
            recording.extend(step.with(if told && !forged.is_empty() { forged } else { &actions }));
        }
        recording
    }

    #[test]
    fn the_same_inputs_give_the_same_actions() {
        assert_eq!(replay(&recorded(&[])).unwrap(), 3);
    }

    #[test]
    fn another_action_is_noticed() {
        let error = replay(&recorded(&[Action::Sweep])).unwrap_err();
        assert!(matches!(error, ReplayError::Differs { step: 2, .. }), "{error}");
    }

    #[test]
    fn a_recording_may_end_anywhere_and_hold_anything() {
        let whole = recorded(&[]);
        for end in 0..whole.len() {
            match replay(&whole[..end]) {
                Ok(steps) => assert!(steps < 3),
                Err(error) => assert!(matches!(error, ReplayError::Placeless), "{error}"),
            }
            let mut damaged = whole.clone();
            damaged[end] ^= 0x40;
            let _ = replay(&damaged);
        }
    }
}
