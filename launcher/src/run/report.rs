//! What the user reads about a session: on standard error, in words, the first cause first.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nla::core::limits::RANKS_PER_AGENT;
use nla::core::{Cause, Failure, NamespaceId, Notice, Outcome, Subtree};
use nla::sys::signal_name;
use pmi::Ranks;

use crate::plan::request::Options;

/// Descriptors that an agent opens for a rank: its output, its errors, PMI and, at times, input.
const FILES_PER_RANK: u64 = 4;
/// Descriptors that an agent opens for itself.
const FILES_OF_AGENT: u64 = 128;

/// How much is said.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// What a user should know.
    Normal,
    /// Each step of the session.
    Verbose,
}

/// Writes lines to standard error, each in one piece, and never fails.
#[derive(Copy, Clone, Debug)]
pub struct Reporter {
    /// How much is said.
    pub verbosity: Verbosity,
}

impl Reporter {
    /// As loud as these options say.
    pub fn of(options: &Options) -> Self {
        let verbosity = match (options.quiet, options.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        };
        Self { verbosity }
    }

    /// An error and, on further lines, what belongs to it.
    pub fn error(&self, text: &str) {
        say(&format!("scela-run: error: {text}"));
    }

    /// Something that the user should know.
    pub fn note(&self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            say(&format!("scela-run: {text}"));
        }
    }

    /// Several such things, one line each.
    pub fn notes(&self, texts: &[String]) {
        texts.iter().for_each(|text| self.note(text));
    }

    /// A step of the session.
    pub fn step(&self, at: Duration, text: &str) {
        if self.verbosity >= Verbosity::Verbose {
            say(&format!("scela-run: {:8.3} s  {text}", at.as_secs_f64()));
        }
    }
}

/// A line of progress stands on the terminal.
static PROGRESS: AtomicBool = AtomicBool::new(false);
/// What takes it away again.
const CLEAR: &str = "\r\x1b[K";

/// Writes a line of progress in place of the one before, if there is one. What is said next takes its place.
pub(crate) fn show_progress(text: &str) {
    PROGRESS.store(true, Ordering::Relaxed);
    write(&format!("{CLEAR}{text}"));
}

/// Takes the line of progress away.
pub(crate) fn clear_progress() {
    if PROGRESS.swap(false, Ordering::Relaxed) {
        write(CLEAR);
    }
}

fn say(text: &str) {
    let clear = if PROGRESS.swap(false, Ordering::Relaxed) { CLEAR } else { "" };
    write(&format!("{clear}{text}\n"));
}

fn write(text: &str) {
    // One write, so that lines of ranks do not come in between; a closed stream is no error here.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// What a notice says in one line, for -v. `None` for what is reported elsewhere.
pub fn step_text(notice: &Notice, host: impl Fn(&Failure) -> String) -> Option<String> {
    Some(match notice {
        Notice::Joined => "all agents have joined".to_owned(),
        Notice::Started(namespace, size) => format!("{size} ranks{} were started", of(*namespace)),
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

/// What is said of processes that outlived their ranks.
pub fn leftovers_text(count: u64) -> String {
    format!(
        "{} that the ranks had left running {} ended",
        counted(count, "process", "processes"),
        if count == 1 { "was" } else { "were" }
    )
}

fn of(namespace: NamespaceId) -> String {
    if namespace == NamespaceId::FIRST { String::new() } else { format!(" of namespace {namespace}") }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn name_ranks(ranks: &Ranks, namespace: NamespaceId) -> String {
    format!("{} {ranks}{}", if ranks.len() == 1 { "rank" } else { "ranks" }, of(namespace))
}

/// One line: who, where, what.
pub fn what_happened(failure: &Failure, host: &str) -> String {
    let who = name_ranks(&failure.ranks, failure.namespace);
    match &failure.cause {
        Cause::NotStarted { why } if failure.ranks.is_empty() => {
            format!("agent {} on {host} could not be started: {why}", failure.agent)
        }
        Cause::NotStarted { why } => format!("{who} on {host} could not be started: {why}"),
        Cause::Lost { why } => format!("agent {} on {host} was lost: {why}", failure.agent),
        Cause::Signal { signal, core, out_of_memory } => {
            let core = if *core { ", core dumped" } else { "" };
            let memory = if *out_of_memory { "; the kernel ended it because memory ran out" } else { "" };
            format!("{who} on {host} was killed by signal {signal} ({}{core}){memory}", signal_name(*signal))
        }
        Cause::Abort { code, message } if message.is_empty() => format!("{who} on {host} called MPI_Abort({code})"),
        Cause::Abort { code, message } => format!("{who} on {host} called MPI_Abort({code}): {message}"),
        Cause::Code(code) => format!("{who} on {host} exited with code {code}"),
        Cause::Broken { why } => {
            let were = if failure.ranks.len() == 1 { "was" } else { "were" };
            format!("{who} on {host} broke the PMI protocol and {were} killed: {why}")
        }
        Cause::ExitedEarly { in_fence: true } => {
            format!("{who} on {host} ended without MPI_Finalize while others wait for it in a fence")
        }
        Cause::ExitedEarly { in_fence: false } => {
            format!("{who} on {host} ended without MPI_Finalize while others still run")
        }
    }
}

/// What to try, where there is something.
fn hint(failure: &Failure, size: u32) -> Option<String> {
    Some(match &failure.cause {
        Cause::Signal { out_of_memory: true, .. } => {
            "give the job more memory, or start fewer ranks on the node".to_owned()
        }
        Cause::Signal { signal: 4 | 6 | 7 | 8 | 11, core: false, .. } => {
            "for a core dump, say 'ulimit -c unlimited' before scela-run".to_owned()
        }
        Cause::Broken { .. } => {
            "was the program's MPI library built for another process manager? SCELA_LOG=trace shows what it says"
                .to_owned()
        }
        Cause::ExitedEarly { .. } => {
            "does each rank call MPI_Init and MPI_Finalize, and as many barriers as the others?".to_owned()
        }
        Cause::Lost { .. } => "if nobody killed it, run again with SCELA_LOG=debug and report what it says".to_owned(),
        Cause::NotStarted { why } if why.to_string().contains("Too many open files") => {
            let files = u64::from(size.min(RANKS_PER_AGENT)) * FILES_PER_RANK + FILES_OF_AGENT;
            format!("allow an agent some {files} open files: 'ulimit -n {files}' before scela-run")
        }
        Cause::NotStarted { .. } | Cause::Signal { .. } | Cause::Abort { .. } | Cause::Code(_) => return None,
    })
}

/// The end of the session in words; `None` where there is nothing to say. `size` counts the ranks
/// of the first namespace.
pub fn epilogue(outcome: &Outcome, size: u32, host: impl Fn(&Failure) -> String) -> Option<String> {
    match outcome {
        Outcome::Success | Outcome::Interrupted { .. } | Outcome::OutputLost => None,
        Outcome::TimedOut { limit } => {
            Some(format!("the job ran longer than {} s (--timeout) and was ended", limit.as_secs_f64()))
        }
        Outcome::Failed { first, others } => {
            let mut text = what_happened(first, &host(first));
            let at = first.at.as_secs_f64();
            let launched = !matches!(first.cause, Cause::NotStarted { .. });
            let rest = u64::from(size).saturating_sub(first.ranks.len());
            let first_namespace = first.namespace == NamespaceId::FIRST;
            if launched && rest > 0 && first_namespace && !first.ranks.is_empty() {
                let _ = write!(
                    text,
                    "\n  the job's {} ended; first failure at {at:.3} s",
                    counted(rest, "other rank was", "other ranks were")
                );
            } else if launched {
                let _ = write!(text, "\n  the job was ended; first failure at {at:.3} s");
            } else {
                let _ = write!(text, "\n  no rank was left running");
            }
            if *others > 0 {
                let _ = write!(text, "\n  {} reported beside it", counted(*others, "failure was", "failures were"));
            }
            if let Some(hint) = hint(first, size) {
                let _ = write!(text, "\n  hint: {hint}");
            }
            Some(text)
        }
    }
}

/// What the demo says at its end; `phases` is a table of when each was over.
pub fn demo_text(size: u32, tree: Subtree, phases: &str) -> String {
    let agents = tree.size() - 1;
    format!(
        "{} said hello through {}, {} deep: each published a card, met the others in a fence,\nread the cards of its two neighbours and found them right.\n\n{phases}",
        counted(u64::from(size), "rank", "ranks"),
        counted(u64::from(agents), "agent", "agents"),
        counted(u64::from(tree.depth()), "level", "levels"),
    )
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
