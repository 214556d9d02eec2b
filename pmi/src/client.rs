//! What the clients of both versions share: [`ClientError`], and the connection underneath.

use std::io::{self, IoSlice, Read, Write};

use thiserror::Error;

use crate::limits::LINE_BYTES_MAX;
use crate::request::SpawnRequestError;
use crate::wire::{LineBuffer, LineTooLong, frame};

/// Memory kept for the next request.
const KEEP_BYTES_MAX: usize = 64 * 1024;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The stream failed.
    #[error("connection to the PMI server failed")]
    Io(#[from] io::Error),
    /// The server has closed the connection.
    #[error("PMI server closed the connection")]
    Closed,
    /// The server sent a line without end.
    #[error("PMI server broke the protocol")]
    Line(#[from] LineTooLong),
    /// The server sent something else than a frame.
    #[error("PMI server broke the protocol")]
    Frame(#[from] frame::InvalidLength),
    /// The server answered something else than what was asked.
    #[error("PMI server answered {got:?} where {expected} was due")]
    Unexpected {
        /// The name of the reply that was due.
        expected: &'static str,
        /// What came.
        got: String,
    },
    /// The server refused the request.
    #[error("{reply}: refused with rc={rc}: {reason}")]
    Refused {
        /// The name of the reply.
        reply: &'static str,
        /// Its return code, not 0.
        rc: i32,
        /// Its words.
        reason: String,
    },
    /// An argument cannot be written as one line; nothing was sent.
    #[error("{0} holds a blank or a newline, or is empty")]
    Unsendable(&'static str),
    /// A request does not fit the protocol; nothing was sent.
    #[error("{0} is too long to be sent")]
    TooLong(&'static str),
    /// A spawn asks for what no server may be asked; nothing was sent.
    #[error("spawn order is refused")]
    Spawn(#[from] SpawnRequestError),
}

/// A refusal as "there is none".
pub(crate) fn none_if_refused<T>(result: Result<Option<T>, ClientError>) -> Result<Option<T>, ClientError> {
    match result {
        Err(ClientError::Refused { .. }) => Ok(None),
        result => result,
    }
}

/// A stream, what was read from it and not asked for yet, and the request being written.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    received: LineBuffer,
    /// Written together, as one request.
    pub(crate) request: Vec<u8>,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, received: LineBuffer::new(LINE_BYTES_MAX), request: Vec::new() }
    }

    /// Writes the request, as one, and forgets it.
    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        self.flush_with(b"")
    }

    /// Writes the request and what goes behind it, as one, and forgets it. `rest` is not copied: most
    /// ranks would touch new memory for it.
    pub(crate) fn flush_with(&mut self, rest: &[u8]) -> Result<(), ClientError> {
        let mut parts = [IoSlice::new(&self.request), IoSlice::new(rest)];
        let written = write_all(&mut self.stream, &mut parts).and_then(|()| self.stream.flush());
        self.request.clear();
        self.request.shrink_to(KEEP_BYTES_MAX);
        Ok(written?)
    }

    /// Waits for a line, and reads it.
    pub(crate) fn line<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T, ClientError> {
        loop {
            if let Some(line) = self.received.next_line()? {
                return Ok(read(line));
            }
            self.fill()?;
        }
    }

    /// Waits for a frame, and reads its payload.
    pub(crate) fn frame<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T, ClientError> {
        loop {
            if let Some(length) = frame::length(self.received.peek())?
                && let Some(bytes) = self.received.take(frame::HEADER_BYTES + length)
            {
                return Ok(read(&bytes[frame::HEADER_BYTES..]));
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(read) => {
                    self.received.extend_from_slice(&chunk[..read]);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Writes all of the parts, one behind the other.
fn write_all(stream: &mut impl Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Empty ones in front go.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod server;
