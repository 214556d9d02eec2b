//! The trace of a session, for `--trace`: a JSON file for Perfetto and chrome://tracing. docs/performance.md says how to
//! read it.

mod json;
mod steps;

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use nla::bootstrap::ArrivalTimes;
use nla::core::{AgentId, NamespacePlan, Notice, SpanKind, Time, TraceScope, TraceSpan};
use nla::sys::{OutputMode, open_output};

use self::steps::Steps;

/// The file of a trace, and the launcher's own steps.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
    steps: Steps,
}

/// The session that a trace is about, and what its agents have reported.
pub struct Traced<'a> {
    /// Which agents were to report.
    pub scope: TraceScope,
    /// The number of agents.
    pub agents: u32,
    /// The job, if it was launched.
    pub job: Option<&'a NamespacePlan>,
    /// Returns the host of a place. Before agents have places, their targets' numbers stand for them.
    pub host: &'a dyn Fn(AgentId) -> String,
    /// When agents were started and joined, as the launcher noted it.
    pub starts: Vec<TraceSpan>,
    /// What agents have reported.
    pub reported: Vec<TraceSpan>,
}

impl TraceFile {
    /// Creates the file. This happens before anything starts, so that an error ends scela-run early.
    pub fn open(path: &Path) -> io::Result<Self> {
        match open_output(path, OutputMode::Report) {
            Ok(file) => Ok(Self { path: path.to_owned(), file, steps: Steps::default() }),
            Err(error) => Err(io::Error::new(error.kind(), cannot(path, &error))),
        }
    }

    /// Forgets the steps of a launch that failed: the next one begins.
    pub fn begin(&mut self) {
        self.steps = Steps::default();
    }

    /// Notes a step of the session.
    pub fn on_notice(&mut self, at: Time, notice: &Notice) {
        self.steps.on_notice(at, notice);
    }

    /// Notes that the session is over: agents are told to leave.
    pub fn on_over(&mut self, at: Time) {
        self.steps.enter(SpanKind::Leave, at);
    }

    /// Writes the file. `end` is now. An error is a sentence for the user.
    pub fn write(self, traced: &Traced<'_>, arrivals: &ArrivalTimes, end: Time) -> Result<(), String> {
        let Self { path, file, steps } = self;
        let own = steps.spans(arrivals, end);
        let mut out = BufWriter::new(file);
        json::write(&mut out, traced, &own).and_then(|()| out.flush()).map_err(|error| cannot(&path, &error))
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("the trace cannot be written to '{}': {error}", path.display())
}

#[cfg(test)]
mod tests;
