//! Records what the core is handed and does, where the environment asks for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::core::Action;
use crate::wire::{StepFrame, TreePosition};

/// The variable that names the directory for recordings: one file for each agent in it.
const VARIABLE: &str = "SCELA_RECORD";

/// One agent's recording under way: [`crate::wire::replay`] reads it. Written at each step, since it is
/// wanted most where an agent was killed.
pub(super) struct Recorder(File);

impl Recorder {
    /// A recording, if one is asked for. Readable by its owner only: it holds the environment of ranks.
    pub(super) fn begin(place: TreePosition) -> io::Result<Option<Self>> {
        let Some(directory) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let path = Path::new(&directory).join(format!("agent-{}.recording", place.agent));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let mut recording =
            file.map_err(|error| io::Error::other(format!("{VARIABLE}: {}: {error}", path.display())))?;
        recording.write_all(&place.frame())?;
        Ok(Some(Self(recording)))
    }

    /// What came of an input.
    pub(super) fn done(&mut self, step: StepFrame, actions: &[Action]) {
        // A recording that ends early is one all the same.
        let _ = self.0.write_all(&step.with(actions));
    }
}
