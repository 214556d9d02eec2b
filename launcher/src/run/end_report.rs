//! The file of `--report`: how the session ended, as JSON. A change here also changes docs/report.md, and the version if a field is
//! removed or gets another meaning.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nla::core::{Cause, Failure, NamespacePlan, Notice, Outcome};
use nla::sys::signal_name;
use serde::Serialize;

use super::rank_locations::RankLocations;
use super::report::{MEMORY_RAN_OUT, what_happened};
use super::report_file::{FifoReport, ReportFile};
use crate::plan::Plan;

/// The version of the schema.
const VERSION: u32 = 1;
/// The failures that are listed. Others are counted.
const FAILURES_MAX: usize = 100;

/// The file, and what is collected for it.
#[derive(Debug)]
pub(super) struct EndReport {
    file: ReportFile,
    began: f64,
    session: String,
    commands: Vec<Vec<String>>,
    failures: Vec<Failure>,
    failures_more: u64,
}

/// The end of a session.
pub(super) struct SessionEnd<'a> {
    /// The job; `None` if its agents could not be started.
    pub(super) job: Option<&'a NamespacePlan>,
    pub(super) outcome: Option<&'a Outcome>,
    pub(super) code: u8,
    pub(super) locations: Option<&'a RankLocations>,
    /// The last lines of the rank that failed first.
    pub(super) last_lines: Vec<String>,
}

impl SessionEnd<'_> {
    /// The end of a session whose agents could not be started.
    pub(super) fn not_started(code: u8) -> Self {
        Self { job: None, outcome: None, code, locations: None, last_lines: Vec::new() }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    session: &'a str,
    commands: &'a [Vec<String>],
    began: f64,
    ended: f64,
    exit_code: u8,
    outcome: &'static str,
    signal: Option<i32>,
    cause: Option<FailureRow>,
    last_lines: Vec<String>,
    dead_ranks: Option<String>,
    failures: Vec<FailureRow>,
    failures_more: u64,
    memory_kills: Vec<MemoryRow>,
    ranks: u32,
    hosts: Vec<HostRow>,
}

#[derive(Serialize)]
struct FailureRow {
    kind: &'static str,
    at_s: f64,
    host: String,
    agent: u32,
    namespace: u32,
    ranks: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    signal_name: Option<String>,
    text: String,
}

#[derive(Serialize)]
struct MemoryRow {
    host: String,
    ranks: String,
    text: String,
}

#[derive(Serialize)]
struct HostRow {
    host: String,
    ranks: String,
}

impl EndReport {
    /// Opens the file. This happens before anything starts, so that an error ends scela-run early.
    pub(super) fn open(path: &Path, plan: &Plan) -> io::Result<Self> {
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        let commands = plan.settings.first.commands.iter();
        let commands = commands.map(|command| {
            let args = command.args.iter().map(|word| text(word));
            std::iter::once(text(&command.program)).chain(args).collect()
        });
        Ok(Self {
            file: ReportFile::open("the report", path)?,
            began: now(),
            session: plan.label.clone(),
            commands: commands.collect(),
            failures: Vec::new(),
            failures_more: 0,
        })
    }

    /// Notes a failure, if the notice is about one.
    pub(super) fn on_notice(&mut self, notice: &Notice) {
        let (Notice::Failure(failure) | Notice::Reviving { failure, .. }) = notice else { return };
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure.clone());
        } else {
            self.failures_more += 1;
        }
    }

    /// Writes the file, or returns what a FIFO is to get. An error is a sentence for the user.
    pub(super) fn write(self, end: SessionEnd<'_>) -> Result<Option<FifoReport>, String> {
        let Self { file, began, session, commands, failures, failures_more } = self;
        let host = |failure: &Failure| {
            end.locations.map(|locations| locations.of_agent(failure.agent).to_owned()).unwrap_or_default()
        };
        let (first, others) = match end.outcome {
            Some(Outcome::Failed { first, others } | Outcome::Survived { first, others, .. }) => (Some(first), *others),
            _ => (None, 0),
        };
        // Agents report some of many failures as a number.
        let failures_more =
            failures_more.max((others + u64::from(first.is_some())).saturating_sub(failures.len() as u64));
        let memory_kill = |failure: &Failure| {
            let text = match &failure.cause {
                Cause::Signal { out_of_memory, .. } if !out_of_memory.is_empty() => out_of_memory.clone(),
                Cause::Lost { why } => why.to_string().split_once(MEMORY_RAN_OUT)?.1.to_owned(),
                _ => return None,
            };
            Some(MemoryRow { host: host(failure), ranks: failure.ranks.to_string(), text })
        };
        // The text about a lost agent is in the first cause only.
        let lost = first.filter(|first| matches!(first.cause, Cause::Lost { .. }));
        let document = Document {
            version: VERSION,
            session: &session,
            commands: &commands,
            began,
            ended: now(),
            exit_code: end.code,
            outcome: end.outcome.map_or("not_started", outcome_name),
            signal: match end.outcome {
                Some(Outcome::Interrupted { signal }) => Some(*signal),
                _ => None,
            },
            cause: first.map(|first| row(first, host(first))),
            last_lines: end.last_lines,
            dead_ranks: match end.outcome {
                Some(Outcome::Survived { dead, .. }) => Some(dead.to_string()),
                _ => None,
            },
            memory_kills: failures.iter().chain(lost).filter_map(memory_kill).collect(),
            failures: failures.iter().map(|failure| row(failure, host(failure))).collect(),
            failures_more,
            ranks: end.job.map_or(0, |job| job.size),
            hosts: end.job.zip(end.locations).map(|(job, locations)| hosts(job, locations)).unwrap_or_default(),
        };
        let mut text =
            serde_json::to_string_pretty(&document).expect("numbers and texts can always be written as JSON");
        text.push('\n');
        file.write(|out| out.write_all(text.as_bytes()))
    }
}

/// Returns the hosts of the job in the order of their first ranks.
fn hosts(job: &NamespacePlan, locations: &RankLocations) -> Vec<HostRow> {
    let mut hosts: Vec<(&str, pmi::Ranks)> = Vec::new();
    for (agent, ranks) in job.placement.iter().filter(|(_, ranks)| !ranks.is_empty()) {
        let name = locations.of_agent(*agent);
        match hosts.iter_mut().find(|(host, _)| *host == name) {
            Some((_, all)) => all.union_with(ranks),
            None => hosts.push((name, ranks.clone())),
        }
    }
    hosts.into_iter().map(|(host, ranks)| HostRow { host: host.to_owned(), ranks: ranks.to_string() }).collect()
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failed { .. } => "failed",
        Outcome::Survived { .. } => "survived",
        Outcome::TimedOut { .. } => "timed_out",
        Outcome::LeftBehind { .. } => "exit_timeout",
        Outcome::OutputLost => "output_lost",
        Outcome::Interrupted { .. } => "interrupted",
    }
}

fn row(failure: &Failure, host: String) -> FailureRow {
    let (kind, exit_code, signal) = match &failure.cause {
        Cause::NotStarted { .. } => ("not_started", None, None),
        Cause::NotStaged { .. } => ("not_staged", None, None),
        Cause::Lost { .. } => ("agent_lost", None, None),
        Cause::Terminated { signal } => ("agent_terminated", None, Some(*signal)),
        Cause::Signal { signal, .. } => ("signal", None, Some(*signal)),
        Cause::Abort { code, .. } => ("abort", Some(*code), None),
        Cause::Code(code) => ("exit_code", Some(*code), None),
        Cause::Broken { .. } => ("broken_pmi", None, None),
        Cause::ExitedEarly { .. } => ("exited_early", None, None),
        Cause::Unjoined => ("not_joined", None, None),
    };
    FailureRow {
        kind,
        at_s: failure.at.as_secs_f64(),
        agent: failure.agent.0,
        namespace: failure.namespace.0,
        ranks: failure.ranks.to_string(),
        exit_code,
        signal,
        signal_name: signal.map(signal_name),
        text: what_happened(failure, &host),
        host,
    }
}

/// Returns the time in seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
