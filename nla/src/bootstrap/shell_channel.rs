//! A bootstrap channel as bytes: what comes before the agent's own, and frames.

use std::io;

use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{MARKER, marked};
use crate::core::limits::{BOOT_BYTES_MAX, GREETING_BYTES_MAX};
use crate::wire::decode;

/// What the other end says.
pub(in crate::bootstrap) struct Reader {
    output: Receiver,
    said: Vec<u8>,
}

impl Reader {
    pub(in crate::bootstrap) fn new(output: Receiver) -> Self {
        Self { output, said: Vec::new() }
    }

    /// The word behind `mark` in the first line that has it; what comes before is a greeting. `None` at
    /// the end of the channel.
    pub(crate) async fn word_behind(&mut self, mark: &str) -> Result<Option<String>, StartFailure> {
        loop {
            let at = self.said.windows(mark.len()).position(|window| window == mark.as_bytes());
            if let Some(at) = at
                && let Some(length) = self.said[at..].iter().position(|&byte| byte == b'\n')
            {
                let word = String::from_utf8_lossy(&self.said[at + mark.len()..at + length]).trim().to_owned();
                self.said.drain(..=at + length);
                return Ok(Some(word));
            }
            if self.said.len() > GREETING_BYTES_MAX {
                return Err(not_an_agent());
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// Skips everything up to the agent's marker. False at the end of the channel.
    pub(crate) async fn skip_to(&mut self, marker: &[u8; MARKER]) -> Result<bool, StartFailure> {
        loop {
            match marked(&self.said, marker) {
                Ok(Some(start)) => {
                    self.said.drain(..start);
                    return Ok(true);
                }
                Ok(None) => {}
                Err(error) => return Err(StartFailure::new(StartPhase::Answer, error.to_string())),
            }
            if !self.more().await? {
                return Ok(false);
            }
        }
    }

    /// The next message. `None` at the end of the channel.
    pub(in crate::bootstrap) async fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, StartFailure> {
        loop {
            if let Some(length) = self.said.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > BOOT_BYTES_MAX {
                    return Err(not_an_agent());
                }
                if let Some(bytes) = self.said.get(4..4 + length) {
                    let message = decode(bytes).map_err(|_| not_an_agent())?;
                    self.said.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// The bare channel, and what has come and was not asked for.
    pub(in crate::bootstrap) fn into_parts(self) -> (Receiver, Vec<u8>) {
        (self.output, self.said)
    }

    /// What has come and was not understood, as text.
    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.said).trim().to_owned()
    }

    async fn more(&mut self) -> Result<bool, StartFailure> {
        let broken = |error: io::Error| StartFailure::new(StartPhase::Ended, format!("its channel broke: {error}"));
        Ok(self.output.read_buf(&mut self.said).await.map_err(broken)? > 0)
    }
}

fn not_an_agent() -> StartFailure {
    StartFailure::new(StartPhase::Answer, "what it says is not what an agent says")
}
