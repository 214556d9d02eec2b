//! Records the inputs and actions of an agent's core if SCELA_RECORD is set.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::core::Action;
use crate::sys::{OutputMode, open_output};
use crate::wire::{TreePosition, TurnFrame};

/// The environment variable that names the directory for recordings, one file for each agent.
const VARIABLE: &str = "SCELA_RECORD";

/// The recording of one agent, for [`crate::wire::replay`]. Each turn is written immediately, so the recording of a
/// killed agent is complete.
pub(super) struct Recorder(File);

impl Recorder {
    /// Begins a recording if SCELA_RECORD is set. The file is private: it contains the environments of ranks.
    pub(super) fn begin(place: TreePosition) -> io::Result<Option<Self>> {
        let Some(directory) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let path = Path::new(&directory).join(format!("agent-{}.recording", place.agent));
        let mut recording = open_output(&path, OutputMode::Private)
            .map_err(|error| io::Error::other(format!("{VARIABLE}: {}: {error}", path.display())))?;
        recording.write_all(&place.frame())?;
        Ok(Some(Self(recording)))
    }

    /// Records an input and its actions.
    pub(super) fn done(&mut self, turn: TurnFrame, actions: &[Action]) {
        // A truncated recording can still be replayed.
        let _ = self.0.write_all(&turn.with(actions));
    }
}
