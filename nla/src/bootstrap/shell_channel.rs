//! Reads a bootstrap channel of pipes: lines of greetings, the remote script's words, the agent's marker, and frames.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{BootMessage, MARKER};
use crate::core::limits::SHELL_GREETING_BYTES_MAX;
use crate::wire::decode;

/// The reading end of a bootstrap channel. All methods are cancel safe.
pub(in crate::bootstrap) struct Reader {
    output: Receiver,
    unread: Unread,
}

impl Reader {
    pub(in crate::bootstrap) fn new(output: Receiver) -> Self {
        Self { output, unread: Unread::default() }
    }

    /// Returns the word behind `mark`, as [`Unread::word_behind`] does. `None` at the end of the channel.
    pub(crate) async fn word_behind(&mut self, mark: &str) -> Result<Option<String>, StartFailure> {
        loop {
            if let Some(word) = self.unread.word_behind(mark)? {
                return Ok(Some(word));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Skips everything up to the agent's marker. Returns false at the end of the channel.
    pub(crate) async fn skip_to(&mut self, marker: &[u8; MARKER]) -> Result<bool, StartFailure> {
        loop {
            if self.unread.skip_to(marker)? {
                return Ok(true);
            }
            if !self.read_more().await? {
                return Ok(false);
            }
        }
    }

    /// Returns the next message. `None` at the end of the channel.
    pub(in crate::bootstrap) async fn next<M: BootMessage>(&mut self) -> Result<Option<M>, StartFailure> {
        loop {
            if let Some(message) = self.unread.next_message()? {
                return Ok(Some(message));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Returns the pipe, and the bytes that were read from it and not used.
    pub(in crate::bootstrap) fn into_parts(self) -> (Receiver, Vec<u8>) {
        (self.output, self.unread.0)
    }

    /// Returns the bytes that were read and not used, as text.
    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.unread.0).trim().to_owned()
    }

    async fn read_more(&mut self) -> Result<bool, StartFailure> {
        let broken = |error: io::Error| StartFailure::new(StartPhase::Ended, format!("its channel broke: {error}"));
        Ok(self.output.read_buf(&mut self.unread.0).await.map_err(broken)? > 0)
    }
}

/// The bytes of a bootstrap channel that were read and not used yet. Each method takes what it finds, and returns
/// nothing while more bytes are needed.
#[derive(Debug, Default)]
pub struct Unread(Vec<u8>);

impl Unread {
    /// Appends bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the first line that contains `mark`, and everything before it: lines before it are greetings. Returns the
    /// word behind the mark. Fails if more than [`SHELL_GREETING_BYTES_MAX`] bytes precede the mark, or follow it on its
    /// line.
    pub fn word_behind(&mut self, mark: &str) -> Result<Option<String>, StartFailure> {
        let Some(at) = position(&self.0, mark.as_bytes()) else {
            let is_possible = self.0.len() < SHELL_GREETING_BYTES_MAX + mark.len();
            return if is_possible { Ok(None) } else { Err(not_an_agent()) };
        };
        let start = at + mark.len();
        let mut line = self.0[start..].iter().take(SHELL_GREETING_BYTES_MAX + 1);
        let Some(length) = line.position(|&byte| byte == b'\n') else {
            let is_possible = self.0.len() - start <= SHELL_GREETING_BYTES_MAX;
            return if is_possible { Ok(None) } else { Err(not_an_agent()) };
        };
        let word = String::from_utf8_lossy(&self.0[start..start + length]).trim().to_owned();
        self.0.drain(..=start + length);
        Ok(Some(word))
    }

    /// Takes everything up to the end of the agent's marker. Returns whether the marker was found.
    pub fn skip_to(&mut self, marker: &[u8; MARKER]) -> Result<bool, StartFailure> {
        let start = marked(&self.0, marker)?;
        self.0.drain(..start.unwrap_or(0));
        Ok(start.is_some())
    }

    /// Takes the next message of at most `BootMessage::BYTES_MAX` bytes.
    pub fn next_message<M: BootMessage>(&mut self) -> Result<Option<M>, StartFailure> {
        let Some(length) = self.0.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > M::BYTES_MAX {
            return Err(not_an_agent());
        }
        let Some(bytes) = self.0.get(4..4 + length) else { return Ok(None) };
        let message = decode(bytes).map_err(|_| not_an_agent())?;
        self.0.drain(..4 + length);
        Ok(Some(message))
    }
}

fn not_an_agent() -> StartFailure {
    StartFailure::new(StartPhase::Answer, "what it says is not what an agent says")
}

/// Returns the position of `mark` behind at most [`SHELL_GREETING_BYTES_MAX`] bytes.
fn position(said: &[u8], mark: &[u8]) -> Option<usize> {
    said.windows(mark.len()).take(SHELL_GREETING_BYTES_MAX + 1).position(|window| window == mark)
}

/// Returns where the bytes after `marker` begin in what a channel has carried so far; `None` while the marker may still
/// follow.
fn marked(said: &[u8], marker: &[u8; MARKER]) -> Result<Option<usize>, StartFailure> {
    match position(said, marker) {
        Some(at) => Ok(Some(at + MARKER)),
        None if said.len() >= SHELL_GREETING_BYTES_MAX + MARKER => {
            let words = format!("its channel said {SHELL_GREETING_BYTES_MAX} bytes, none of them from an agent");
            Err(StartFailure::new(StartPhase::Answer, words))
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::protocol::{BootCommand, BootReport};
    use crate::core::limits::{BOOT_BYTES_MAX, REPORT_BYTES_MAX};

    const MARK: &str = "mark:";

    /// Returns the bytes of a channel.
    fn unread(parts: &[&[u8]]) -> Unread {
        let mut unread = Unread::default();
        parts.iter().for_each(|part| unread.push(part));
        unread
    }

    #[test]
    fn greetings_are_skipped_up_to_their_bound() {
        let marker = [9; MARKER];
        let mut said = b"Welcome to the cluster!\r\n".to_vec();
        assert_eq!(marked(&said, &marker), Ok(None));
        said.extend_from_slice(&marker);
        assert_eq!(marked(&said, &marker), Ok(Some(said.len())));
        let most = vec![b'x'; SHELL_GREETING_BYTES_MAX];
        assert_eq!(unread(&[&most, &marker]).skip_to(&marker), Ok(true));
        for more in [&marker[..], b""] {
            // Wherever the channel is split, a marker beyond the bound is not found.
            let failure = unread(&[&most, b"x", more, &[b'x'; MARKER]]).skip_to(&marker).unwrap_err();
            assert_eq!(failure.phase, StartPhase::Answer);
        }
        assert_eq!(unread(&[&most, b"x"]).skip_to(&marker), Ok(false));
    }

    #[test]
    fn a_word_is_read_behind_its_mark_up_to_the_bounds() {
        let most = vec![b'x'; SHELL_GREETING_BYTES_MAX];
        let word = |parts: &[&[u8]]| unread(parts).word_behind(MARK);
        assert_eq!(word(&[b"Welcome\n", MARK.as_bytes(), b" here \r\n"]), Ok(Some("here".to_owned())));
        assert_eq!(word(&[&most, MARK.as_bytes(), b"here\n"]), Ok(Some("here".to_owned())));
        assert_eq!(word(&[&most, b"x", MARK.as_bytes(), b"here\n"]), Err(not_an_agent()));
        assert_eq!(word(&[MARK.as_bytes(), &most]), Ok(None));
        assert_eq!(
            word(&[MARK.as_bytes(), &most, b"\n"]).map(|word| word.map(|word| word.len())),
            Ok(Some(most.len()))
        );
        assert_eq!(word(&[MARK.as_bytes(), &most, b"x"]), Err(not_an_agent()));
        assert_eq!(word(&[MARK.as_bytes(), &most, b"x\n"]), Err(not_an_agent()));
    }

    #[test]
    fn a_message_is_refused_by_its_length_alone() {
        let report = |bytes: usize| unread(&[&(bytes as u32).to_le_bytes()]).next_message::<BootReport>();
        assert_eq!(report(REPORT_BYTES_MAX), Ok(None));
        assert_eq!(report(REPORT_BYTES_MAX + 1), Err(not_an_agent()));
        let command = |bytes: usize| unread(&[&(bytes as u32).to_le_bytes()]).next_message::<BootCommand>();
        assert_eq!(command(BOOT_BYTES_MAX), Ok(None));
        assert_eq!(command(BOOT_BYTES_MAX + 1), Err(not_an_agent()));
    }
}
