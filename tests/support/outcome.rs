//! How a run ended, and assertions about it.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The launcher's exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that killed the launcher, if one did.
    pub signal: Option<i32>,
    /// The run's standard output.
    pub stdout: Vec<u8>,
    /// The run's standard error.
    pub stderr: Vec<u8>,
    /// The duration of the run.
    pub took: Duration,
    /// The command line, for failure messages.
    pub command: String,
}

impl Outcome {
    pub(crate) fn new(status: ExitStatus, stdout: Vec<u8>, stderr: Vec<u8>, took: Duration, command: String) -> Self {
        Self { code: status.code(), signal: status.signal(), stdout, stderr, took, command }
    }

    /// Returns standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Returns the lines of standard output, sorted: ranks write in any order.
    pub fn sorted_lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.out().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Asserts that the launcher exited with `code`.
    #[track_caller]
    pub fn has_code(&self, code: i32) -> &Self {
        self.check(self.code == Some(code), &format!("the exit code should be {code}"))
    }

    /// Asserts that the launcher exited with 0 and wrote nothing to standard error.
    #[track_caller]
    pub fn is_quiet_success(&self) -> &Self {
        self.has_code(0).check(self.stderr.is_empty(), "standard error should be empty")
    }

    /// Asserts that standard error contains `text`.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        self.check(self.err().contains(text), &format!("standard error should contain {text:?}"))
    }

    /// Asserts that standard error does not contain `text`.
    #[track_caller]
    pub fn never_says(&self, text: &str) -> &Self {
        self.check(!self.err().contains(text), &format!("standard error should not contain {text:?}"))
    }

    /// Asserts that standard error is exactly `text`.
    #[track_caller]
    pub fn says_only(&self, text: &str) -> &Self {
        self.check(self.err() == text, &format!("standard error should be {text:?}"))
    }

    /// Asserts that standard output is exactly `text`.
    #[track_caller]
    pub fn wrote(&self, text: &str) -> &Self {
        self.check(self.out() == text, &format!("standard output should be {text:?}"))
    }

    /// Asserts that standard output contains `text`.
    #[track_caller]
    pub fn wrote_among_others(&self, text: &str) -> &Self {
        self.check(self.out().contains(text), &format!("standard output should contain {text:?}"))
    }

    /// Asserts that standard output has exactly these lines, in any order.
    #[track_caller]
    pub fn wrote_lines<T: ToString>(&self, lines: impl IntoIterator<Item = T>) -> &Self {
        let mut lines: Vec<_> = lines.into_iter().map(|line| line.to_string()).collect();
        lines.sort();
        self.check(self.sorted_lines() == lines, &format!("standard output should have the lines {lines:?}"))
    }

    /// Asserts that the run took less than `limit`.
    #[track_caller]
    pub fn took_less_than(&self, limit: Duration) -> &Self {
        self.check(self.took < limit, &format!("the run should have taken less than {limit:?}"))
    }

    /// Panics with everything known about the run unless `holds`.
    #[track_caller]
    pub fn check(&self, holds: bool, expected: &str) -> &Self {
        assert!(holds, "{expected}\n{self}");
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "--- {}", self.command)?;
        match (self.code, self.signal) {
            (Some(code), _) => writeln!(f, "--- code {code} after {:?}", self.took)?,
            (None, signal) => writeln!(f, "--- signal {} after {:?}", signal.unwrap_or_default(), self.took)?,
        }
        for (name, stream) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            writeln!(f, "--- {name}, {} bytes\n{}", stream.len(), excerpt(stream))?;
        }
        Ok(())
    }
}

/// Returns an excerpt of a stream for failure messages.
pub(crate) fn excerpt(stream: &[u8]) -> String {
    const SHOWN: usize = 16 * 1024;
    if stream.len() <= 2 * SHOWN {
        return String::from_utf8_lossy(stream).into_owned();
    }
    let (head, tail) = (&stream[..SHOWN], &stream[stream.len() - SHOWN..]);
    format!("{}\n[...]\n{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
}
