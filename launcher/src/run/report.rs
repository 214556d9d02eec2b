//! Reports about a session on standard error, as text. The first cause of a failure is reported first.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nla::core::limits::RANKS_PER_AGENT;
use nla::core::{Cause, Failure, NamespaceId, Notice, Outcome, Subtree, printable};
use nla::sys::signal_name;
use pmi::Ranks;

use crate::colour;
use crate::plan::agent_layout::{DESCRIPTORS_OF_AGENT, DESCRIPTORS_PER_RANK};
use crate::plan::request::Options;
use crate::refusal::shown;

/// The amount of reports.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors and notes.
    Normal,
    /// Errors, notes and each step of the session.
    Verbose,
}

/// Writes lines to standard error, each with one write and without control characters. Ignores errors.
#[derive(Copy, Clone, Debug)]
pub struct Reporter {
    /// The amount of reports.
    pub verbosity: Verbosity,
}

impl Reporter {
    /// Returns the reporter for the `-q` and `-v` among these options.
    pub fn of(options: &Options) -> Self {
        let verbosity = match (options.quiet, options.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        };
        Self { verbosity }
    }

    /// Reports an error. Further lines of `text` give its details.
    pub fn error(&self, text: &str) {
        write_line(&format!("scela-run: error: {text}"));
    }

    /// Reports a note, unless only errors are wanted.
    pub fn note(&self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            write_line(&format!("scela-run: {text}"));
        }
    }

    /// Reports several notes, one line each.
    pub fn notes(&self, texts: &[String]) {
        texts.iter().for_each(|text| self.note(text));
    }

    /// Reports a step of the session and its time since the start, if steps are wanted.
    pub fn step(&self, at: Duration, text: &str) {
        if self.verbosity >= Verbosity::Verbose {
            write_line(&format!("scela-run: {:8.3} s  {text}", at.as_secs_f64()));
        }
    }
}

/// Whether the cursor is on a progress line.
static PROGRESS: AtomicBool = AtomicBool::new(false);
/// The characters that clear a progress line: carriage return, erase to the end of the line.
const CLEAR: &str = "\r\x1b[K";

/// Writes a progress line, which replaces the previous one. The next report replaces it in turn.
pub(crate) fn show_progress(text: &str) {
    PROGRESS.store(true, Ordering::Relaxed);
    write(&format!("{CLEAR}{}", printable(text)));
}

/// Clears the progress line, if one is shown.
pub(crate) fn clear_progress() {
    if PROGRESS.swap(false, Ordering::Relaxed) {
        write(CLEAR);
    }
}

/// Writes a line of a report in place of the progress line.
fn write_line(text: &str) {
    let clear = if PROGRESS.swap(false, Ordering::Relaxed) { CLEAR } else { "" };
    write(&format!("{clear}{}\n", colour::for_stream(&std::io::stderr(), text)));
}

fn write(text: &str) {
    // A single write keeps the ranks' output from splitting a line. A closed stderr is not an error here.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Returns the line about a notice for `-v`; `None` if the notice is reported elsewhere.
pub fn step_text(notice: &Notice, host: impl Fn(&Failure) -> String) -> Option<String> {
    Some(match notice {
        Notice::Joined => "all agents have joined".to_owned(),
        Notice::Started(namespace, size) => {
            let (ranks, were) = if *size == 1 { ("rank", "was") } else { ("ranks", "were") };
            format!("{size} {ranks}{} {were} started", of(*namespace))
        }
        Notice::Contact(namespace) => format!("the first rank{} has spoken PMI", of(*namespace)),
        Notice::Released { namespace, number, entries, bytes, .. } => {
            format!("fence {number}{}: {entries} new entries, {bytes} bytes", of(*namespace))
        }
        Notice::RanksEnded => "all ranks have ended".to_owned(),
        Notice::Failure(failure) => format!("reported: {}", what_happened(failure, &host(failure))),
        Notice::Ending(signal, grace) => {
            format!("ending the ranks: {}, then KILL after {} s", signal_name(*signal), grace.as_secs_f64())
        }
        Notice::Leftovers(_) => return None,
    })
}

/// Returns the note about `count` processes that outlived their ranks.
pub fn leftovers_text(count: u64) -> String {
    format!(
        "{} that the ranks had left running {} ended",
        counted(count, "process", "processes"),
        if count == 1 { "was" } else { "were" }
    )
}

/// Returns ` of namespace N`, or nothing for the first namespace.
fn of(namespace: NamespaceId) -> String {
    if namespace == NamespaceId::FIRST { String::new() } else { format!(" of namespace {namespace}") }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn name_ranks(ranks: &Ranks, namespace: NamespaceId) -> String {
    format!("{} {ranks}{}", if ranks.len() == 1 { "rank" } else { "ranks" }, of(namespace))
}

/// Describes a failure in one line: the ranks or the agent, the host, and the cause.
pub fn what_happened(failure: &Failure, host: &str) -> String {
    let ranks = name_ranks(&failure.ranks, failure.namespace);
    match &failure.cause {
        Cause::NotStarted { why } if failure.ranks.is_empty() => {
            format!("agent {} on {host} could not be started: {why}", failure.agent)
        }
        Cause::NotStarted { why } => format!("{ranks} on {host} could not be started: {why}"),
        Cause::Lost { why } => format!("agent {} on {host} was lost: {why}", failure.agent),
        Cause::Signal { signal, core, out_of_memory } => {
            let core = if *core { ", core dumped" } else { "" };
            let memory = if *out_of_memory { "; the kernel ended it because memory ran out" } else { "" };
            format!("{ranks} on {host} was killed by signal {signal} ({}{core}){memory}", signal_name(*signal))
        }
        Cause::Abort { code, message } if message.is_empty() => format!("{ranks} on {host} called MPI_Abort({code})"),
        Cause::Abort { code, message } => format!("{ranks} on {host} called MPI_Abort({code}): {message}"),
        Cause::Code(code) => format!("{ranks} on {host} exited with code {code}"),
        Cause::Broken { why } => {
            let were = if failure.ranks.len() == 1 { "was" } else { "were" };
            format!("{ranks} on {host} broke the PMI protocol and {were} killed: {why}")
        }
        Cause::ExitedEarly { in_fence: true } => {
            format!("{ranks} on {host} ended without MPI_Finalize while others wait for it in a fence")
        }
        Cause::ExitedEarly { in_fence: false } => {
            format!("{ranks} on {host} ended without MPI_Finalize while others still run")
        }
    }
}

/// Returns what the user may try after a failure, if anything. `size` is the number of ranks of the first namespace,
/// `files_max` the hard limit on open files if agents run on this machine.
fn hint(failure: &Failure, size: u32, files_max: Option<u64>) -> Option<String> {
    Some(match &failure.cause {
        Cause::Signal { out_of_memory: true, .. } => {
            "give the job more memory, or start fewer ranks on the node".to_owned()
        }
        Cause::Signal { signal: 4 | 6 | 7 | 8 | 11, core: false, .. } => {
            "for a core dump, run 'ulimit -c unlimited' before scela-run".to_owned()
        }
        Cause::Broken { .. } => {
            "was the program's MPI library built for another process manager? SCELA_LOG=trace shows its messages"
                .to_owned()
        }
        Cause::ExitedEarly { .. } => {
            "does each rank call MPI_Init and MPI_Finalize, and as many barriers as the others?".to_owned()
        }
        Cause::Lost { .. } => {
            "unless it was killed on purpose, run again with SCELA_LOG=debug and report the log".to_owned()
        }
        Cause::NotStarted { why } if why.to_string().contains("Too many open files") => {
            let files = u64::from(size.min(RANKS_PER_AGENT)) * DESCRIPTORS_PER_RANK + DESCRIPTORS_OF_AGENT;
            let limit = files_max.map(|limit| format!("; the hard limit here is {limit}")).unwrap_or_default();
            format!("allow an agent some {files} open files: 'ulimit -n {files}' before scela-run{limit}")
        }
        Cause::NotStarted { .. } | Cause::Signal { .. } | Cause::Abort { .. } | Cause::Code(_) => return None,
    })
}

/// Characters of the words on a failure.
const WORDS_MAX: usize = 4096;

/// Returns the report on the end of a session; `None` if none is needed. `size` is the number of ranks of the first
/// namespace, `files_max` the hard limit on open files if agents run on this machine.
pub fn epilogue(
    outcome: &Outcome,
    size: u32,
    files_max: Option<u64>,
    host: impl Fn(&Failure) -> String,
) -> Option<String> {
    match outcome {
        Outcome::Success | Outcome::Interrupted { .. } | Outcome::OutputLost => None,
        Outcome::TimedOut { limit } => {
            Some(format!("the job ran longer than {} s (--timeout) and was ended", limit.as_secs_f64()))
        }
        Outcome::Failed { first, others } => {
            // Agents and ranks wrote some of these words.
            let mut text = shown(&what_happened(first, &host(first)), WORDS_MAX);
            let at = first.at.as_secs_f64();
            let launched = !matches!(first.cause, Cause::NotStarted { .. });
            let rest = u64::from(size).saturating_sub(first.ranks.len());
            let first_namespace = first.namespace == NamespaceId::FIRST;
            if launched && rest > 0 && first_namespace && !first.ranks.is_empty() {
                let _ = write!(
                    text,
                    "\n  the job's {} ended; first failure at {at:.3} s",
                    if rest == 1 { "other rank was".to_owned() } else { format!("{rest} other ranks were") }
                );
            } else if launched {
                let _ = write!(text, "\n  the job was ended; first failure at {at:.3} s");
            } else {
                let _ = write!(text, "\n  no rank was left running");
            }
            if *others > 0 {
                let _ = write!(text, "\n  {} reported", counted(*others, "more failure was", "more failures were"));
            }
            if let Some(hint) = hint(first, size, files_max) {
                let _ = write!(text, "\n  hint: {hint}");
            }
            Some(text)
        }
    }
}

/// Returns the demo's final text. `phases` is the table of the session's phases.
pub fn demo_text(size: u32, tree: Subtree, phases: &str) -> String {
    let agents = tree.size() - 1;
    format!(
        "{} said hello through {}, {} deep: each stored a value, waited for the others in a fence,\nread the values of its two neighbours and found them right.\n\nphases:\n{phases}",
        counted(u64::from(size), "rank", "ranks"),
        counted(u64::from(agents), "agent", "agents"),
        counted(u64::from(tree.depth()), "level", "levels"),
    )
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
