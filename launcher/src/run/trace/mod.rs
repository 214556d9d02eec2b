//! The trace of a session, for `--trace`: a JSON file for Perfetto and chrome://tracing. docs/performance.md says how to
//! read it.

mod json;
mod steps;

use std::io;
use std::path::Path;

use nla::bootstrap::ArrivalTimes;
use nla::core::{AgentId, NamespacePlan, Notice, SpanKind, Time, TraceScope, TraceSpan};

use self::steps::Steps;
use super::report_file::{FifoReport, ReportFile};

/// The file of a trace, and the launcher's own steps.
#[derive(Debug)]
pub struct TraceFile {
    file: ReportFile,
    steps: Steps,
}

/// The session that a trace is about, and what its agents have reported.
pub struct Traced<'a> {
    /// The agents that were to report.
    pub scope: TraceScope,
    /// The number of agents.
    pub agents: u32,
    /// The job, if it was launched.
    pub job: Option<&'a NamespacePlan>,
    /// Returns the host of a place. Before agents have places, their targets' numbers stand for them.
    pub host: &'a dyn Fn(AgentId) -> String,
    /// When agents were started and joined, as the launcher noted it.
    pub starts: Vec<TraceSpan>,
    /// The spans that agents have reported.
    pub reported: Vec<TraceSpan>,
}

impl TraceFile {
    /// Creates the file. This happens before anything starts, so that an error ends scela-run early.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: ReportFile::open("the trace", path)?, steps: Steps::default() })
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

    /// Writes the file, or returns what a FIFO is to get. `end` is now. An error is a sentence for the user.
    pub fn write(self, traced: &Traced<'_>, arrivals: &ArrivalTimes, end: Time) -> Result<Option<FifoReport>, String> {
        let own = self.steps.spans(arrivals, end);
        self.file.write(|mut out| json::write(&mut out, traced, &own))
    }
}

#[cfg(test)]
mod tests;
