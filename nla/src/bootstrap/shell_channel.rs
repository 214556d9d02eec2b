//! Reads a bootstrap channel of pipes: lines of greetings, the remote script's words, the agent's marker, and frames.

use std::io;

use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::MARKER;
use crate::core::limits::{BOOT_BYTES_MAX, SHELL_GREETING_BYTES_MAX};
use crate::wire::decode;

/// The reading end of a bootstrap channel. All methods are cancel safe.
pub(in crate::bootstrap) struct Reader {
    output: Receiver,
    unread: Vec<u8>,
}

impl Reader {
    pub(in crate::bootstrap) fn new(output: Receiver) -> Self {
        Self { output, unread: Vec::new() }
    }

    /// Returns the word behind `mark` in the first line that contains it; lines before it are greetings. `None` at the
    /// end of the channel.
    pub(crate) async fn word_behind(&mut self, mark: &str) -> Result<Option<String>, StartFailure> {
        loop {
            let at = self.unread.windows(mark.len()).position(|window| window == mark.as_bytes());
            if let Some(at) = at
                && let Some(length) = self.unread[at..].iter().position(|&byte| byte == b'\n')
            {
                let word = String::from_utf8_lossy(&self.unread[at + mark.len()..at + length]).trim().to_owned();
                self.unread.drain(..=at + length);
                return Ok(Some(word));
            }
            if self.unread.len() > SHELL_GREETING_BYTES_MAX {
                return Err(not_an_agent());
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Skips everything up to the agent's marker. Returns false at the end of the channel.
    pub(crate) async fn skip_to(&mut self, marker: &[u8; MARKER]) -> Result<bool, StartFailure> {
        loop {
            if let Some(start) = marked(&self.unread, marker)? {
                self.unread.drain(..start);
                return Ok(true);
            }
            if !self.read_more().await? {
                return Ok(false);
            }
        }
    }

    /// Returns the next message of at most [`BOOT_BYTES_MAX`] bytes. `None` at the end of the channel.
    pub(in crate::bootstrap) async fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, StartFailure> {
        loop {
            if let Some(length) = self.unread.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > BOOT_BYTES_MAX {
                    return Err(not_an_agent());
                }
                if let Some(bytes) = self.unread.get(4..4 + length) {
                    let message = decode(bytes).map_err(|_| not_an_agent())?;
                    self.unread.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Returns the pipe, and the bytes that were read from it and not used.
    pub(in crate::bootstrap) fn into_parts(self) -> (Receiver, Vec<u8>) {
        (self.output, self.unread)
    }

    /// Returns the bytes that were read and not used, as text.
    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.unread).trim().to_owned()
    }

    async fn read_more(&mut self) -> Result<bool, StartFailure> {
        let broken = |error: io::Error| StartFailure::new(StartPhase::Ended, format!("its channel broke: {error}"));
        Ok(self.output.read_buf(&mut self.unread).await.map_err(broken)? > 0)
    }
}

fn not_an_agent() -> StartFailure {
    StartFailure::new(StartPhase::Answer, "what it says is not what an agent says")
}

/// Returns where the bytes after `marker` begin in what a channel has carried so far; `None` while the marker may still
/// follow.
fn marked(said: &[u8], marker: &[u8; MARKER]) -> Result<Option<usize>, StartFailure> {
    match said.windows(MARKER).position(|window| window == marker) {
        Some(at) => Ok(Some(at + MARKER)),
        None if said.len() > SHELL_GREETING_BYTES_MAX + MARKER => {
            let words = format!("its channel said {SHELL_GREETING_BYTES_MAX} bytes, none of them from an agent");
            Err(StartFailure::new(StartPhase::Answer, words))
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_skipped_up_to_their_bound() {
        let marker = [9; MARKER];
        let mut said = b"Welcome to the cluster!\r\n".to_vec();
        assert_eq!(marked(&said, &marker), Ok(None));
        said.extend_from_slice(&marker);
        assert_eq!(marked(&said, &marker), Ok(Some(said.len())));
        let failure = marked(&vec![b'x'; SHELL_GREETING_BYTES_MAX + MARKER + 1], &marker).unwrap_err();
        assert_eq!(failure.phase, StartPhase::Answer);
    }
}
