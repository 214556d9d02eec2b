//! Errors in a command line: the problem, its place, and a hint.

use std::error::Error;
use std::fmt;
use std::io;

use super::text::shown;
use crate::plan::request::TypedAt;

/// Stands in hints for the name that scela-run was called by. No text from outside contains it: messages escape
/// control characters.
pub(super) const CALLED: &str = "\u{1}";

impl fmt::Display for TypedAt {
    /// `FILE, line 3, column 7`, or `the command line`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("the command line"),
            Self::File { path, line, column } => {
                write!(f, "{}, line {line}, column {column}", shown(path.as_os_str()))
            }
        }
    }
}

/// An error in the command line. Displays the problem, after its place if that is in a file. Names of options are as
/// typed, dashes included; text from outside is fit for printing. The exit code is 2.
#[derive(Debug)]
pub struct UsageError {
    place: TypedAt,
    text: String,
    hint: String,
    source: Option<io::Error>,
}

impl UsageError {
    pub(super) fn new(place: &TypedAt, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { place: place.clone(), text: text.into(), hint: hint.into(), source: None }
    }

    /// Returns the error with its cause.
    pub(super) fn caused_by(self, source: io::Error) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Returns the error with the name of the call in place of [`CALLED`].
    pub(super) fn for_call(self, called: &str) -> Self {
        Self { hint: self.hint.replace(CALLED, called), ..self }
    }

    /// Returns the place of the error.
    pub fn place(&self) -> &TypedAt {
        &self.place
    }

    /// Returns the next step to try, a fragment without full stop.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Returns the error with its cause, and the hint on a line of its own.
    pub fn with_hint(&self) -> String {
        let cause = self.source.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{self}{cause}\n  hint: {}", self.hint)
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            TypedAt::CommandLine => f.write_str(&self.text),
            place @ TypedAt::File { .. } => write!(f, "{place}: {}", self.text),
        }
    }
}

impl Error for UsageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref()?)
    }
}
