//! [`BenchError`]: why a bench cannot run.

use std::fmt::Display;
use std::io;

use thiserror::Error;

/// Why the bench cannot run: the text for the user, with its causes. No caller distinguishes the reasons.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BenchError(String);

impl BenchError {
    /// Creates an error from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns a function that puts `failure`, what could not be done, before a cause.
    pub fn because<E: Display>(failure: impl Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("{failure}: {cause}"))
    }
}

impl From<nix::Error> for BenchError {
    fn from(cause: nix::Error) -> Self {
        Self::because("cannot prepare this process")(cause)
    }
}

/// Other operations than output say what they could not do.
impl From<io::Error> for BenchError {
    fn from(cause: io::Error) -> Self {
        Self::because("cannot print the results")(cause)
    }
}
