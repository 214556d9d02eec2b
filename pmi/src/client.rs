//! [`ClientError`] and the connection that the clients of both versions use.

use std::io::{self, IoSlice, Read, Write};

use thiserror::Error;

use crate::limits::{LINE_BYTES_MAX, PENDING_BYTES_MAX};
use crate::request::SpawnRequestError;
use crate::wire::{LineBuffer, LineTooLong, frame};

/// The capacity that a connection keeps for its next request.
const KEEP_BYTES_MAX: usize = 64 * 1024;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The stream failed.
    #[error("connection to the PMI server failed")]
    Io(#[from] io::Error),
    /// The server closed the connection.
    #[error("PMI server closed the connection")]
    Closed,
    /// The server sent a line without end.
    #[error("PMI server broke the protocol")]
    Line(#[from] LineTooLong),
    /// The server sent something other than a frame.
    #[error("PMI server broke the protocol")]
    Frame(#[from] frame::InvalidLength),
    /// The server sent another reply than the expected one.
    #[error("PMI server answered {got:?} where {expected} was expected")]
    Unexpected {
        /// The name of the expected reply.
        expected: &'static str,
        /// The reply, cut at 1024 bytes.
        got: String,
    },
    /// The server refused the request.
    #[error("{reply}: refused with rc={rc}: {reason}")]
    Refused {
        /// The name of the reply.
        reply: &'static str,
        /// Its return code, which is not 0.
        rc: i32,
        /// The server's reason.
        reason: String,
    },
    /// An argument cannot be written as one line; nothing was sent.
    #[error("{0} contains a blank or a newline, or is empty")]
    Unsendable(&'static str),
    /// A request does not fit the protocol; nothing was sent.
    #[error("{0} is too long to be sent")]
    TooLong(&'static str),
    /// A spawn exceeds a bound; nothing was sent.
    #[error("spawn is refused")]
    Spawn(#[from] SpawnRequestError),
}

/// The error for a reply that is not the expected one.
pub(crate) fn unexpected(expected: &'static str, reply: &[u8]) -> ClientError {
    let shown = &reply[..reply.len().min(SHOWN_BYTES_MAX)];
    ClientError::Unexpected { expected, got: String::from_utf8_lossy(shown).into_owned() }
}

/// The bytes of an unexpected reply that are shown.
pub(crate) const SHOWN_BYTES_MAX: usize = 1024;

/// Turns a refusal into `None`.
pub(crate) fn none_if_refused<T>(result: Result<Option<T>, ClientError>) -> Result<Option<T>, ClientError> {
    match result {
        Err(ClientError::Refused { .. }) => Ok(None),
        result => result,
    }
}

/// A stream, the bytes that were read from it and not used yet, and the request that is being written.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    received: LineBuffer,
    /// Written with the next flush.
    pub(crate) request: Vec<u8>,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, received: LineBuffer::new(LINE_BYTES_MAX), request: Vec::new() }
    }

    /// Writes and clears the request.
    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        self.flush_with(b"")
    }

    /// Writes the request and `rest` with one call if the stream accepts both, and clears the request.
    ///
    /// Does not copy `rest`: most ranks would touch new memory for it.
    pub(crate) fn flush_with(&mut self, rest: &[u8]) -> Result<(), ClientError> {
        let mut parts = [IoSlice::new(&self.request), IoSlice::new(rest)];
        let written = write_all(&mut self.stream, &mut parts).and_then(|()| self.stream.flush());
        self.request.clear();
        self.request.shrink_to(KEEP_BYTES_MAX);
        Ok(written?)
    }

    /// Checks that a server accepts this many bytes of encoded puts at a fence.
    pub(crate) fn check_puts(puts: &[u8]) -> Result<(), ClientError> {
        if puts.len() > PENDING_BYTES_MAX { Err(ClientError::TooLong("batch of puts")) } else { Ok(()) }
    }

    /// Waits for a line and passes it to `read`.
    pub(crate) fn line<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T, ClientError> {
        loop {
            if let Some(line) = self.received.next_line()? {
                return Ok(read(line));
            }
            self.fill()?;
        }
    }

    /// Waits for a frame and passes its payload to `read`.
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

/// Writes all of the parts in order.
fn write_all(stream: &mut impl Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Skip empty parts at the front.
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
