//! Reports about a session on standard error, as text. The first cause of a failure is reported first.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nla::core::{
    AgentId, Cause, Failure, FileReport, Killed, LeftProcesses, NamespaceId, NotStartedReason, Notice, Outcome, Subtree,
};
use nla::figures;
use nla::link::Liveness;
use nla::sys::signal_name;
use pmi::{Rank, Ranks};

use crate::cluster::hosts::fold_within;
use crate::plan::accelerators::remedy_text;
use crate::plan::needs::agent_files;
use crate::plan::request::Options;
use crate::refusal::{counted, shown};
use crate::run::stderr::{self, Kind};

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

/// Queues lines for standard error, without control characters. Never blocks, and ignores errors of the stream.
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
        stderr::line(Kind::Error, &format!("scela-run: error: {text}"));
    }

    /// Reports a note, unless only errors are wanted.
    pub fn note(&self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            stderr::line(Kind::Report, &format!("scela-run: {text}"));
        }
    }

    /// Reports several notes, one line each.
    pub fn notes(&self, texts: &[String]) {
        texts.iter().for_each(|text| self.note(text));
    }

    /// Reports a step of the session and its time since the start, if steps are wanted.
    pub fn step(&self, at: Duration, text: &str) {
        if self.verbosity >= Verbosity::Verbose {
            stderr::line(Kind::Log, &format!("scela-run: {:8.3} s  {text}", at.as_secs_f64()));
        }
    }
}

/// Returns the line about a notice for `-v`; `None` if the notice is reported elsewhere.
pub fn step_text(notice: &Notice, host: impl Fn(AgentId) -> String) -> Option<String> {
    Some(match notice {
        Notice::Joined => "all agents have joined".to_owned(),
        Notice::Staged => "all nodes have the files".to_owned(),
        Notice::Started(namespace, size) => {
            let (ranks, were) = if *size == 1 { ("rank", "was") } else { ("ranks", "were") };
            format!("{size} {ranks}{} {were} started", of(*namespace))
        }
        Notice::Contact(namespace) => format!("the first rank{} has spoken PMI", of(*namespace)),
        Notice::Released { namespace, number, entries, bytes, .. } => {
            format!("fence {number}{}: {entries} new entries, {bytes} bytes", of(*namespace))
        }
        Notice::RanksEnded => "all ranks have ended".to_owned(),
        Notice::Failure(failure) => format!("reported: {}", what_happened(failure, &host(failure.agent))),
        Notice::GoesOn(_) | Notice::WentOn(_) | Notice::Restarting { .. } | Notice::Reviving { .. } => return None,
        Notice::NoRestartLeft(_) | Notice::NoSpare | Notice::Moved(_) => return None,
        Notice::Restarted(_) => "no rank is left; all ranks start again".to_owned(),
        Notice::Ending(_, signal, grace) => {
            format!("ending the ranks: {}, then KILL after {} s", signal_name(*signal), grace.as_secs_f64())
        }
        Notice::FilesLeft(agent, report) => files_text(&host(*agent), report),
        Notice::Busy(agent, text) => format!("{text} on {}", host(*agent)),
        Notice::Bound(..) | Notice::LowLimits(_) | Notice::SecondJoiner(..) => return None,
        Notice::RanksLeft { .. } | Notice::Leftovers(..) | Notice::Surveyed(..) | Notice::OutputDropped(..) => {
            return None;
        }
        Notice::Killed(_) | Notice::Stopped(..) | Notice::Silent(_) => return None,
    })
}

/// Upper bound on the ranks whose second joiners are reported.
const SECOND_JOINERS_SHOWN_MAX: u64 = 8;

/// Returns the report about the `number`th rank as which a second process has joined.
pub fn second_joiner_text(number: u64, rank: Rank, host: &str, text: &str) -> Option<String> {
    match number {
        1 => Some(format!(
            "warning: rank {rank} on {host}: {text}\n  hint: a process that a rank starts inherits its place; start MPI \
             programs from ranks by MPI_Comm_spawn, or without the variables PMI_* and PMIX_*"
        )),
        2..=SECOND_JOINERS_SHOWN_MAX => Some(format!("warning: rank {rank} on {host}: {text}")),
        _ if number == SECOND_JOINERS_SHOWN_MAX + 1 => {
            Some("warning: second processes of more ranks tried to join and were refused".to_owned())
        }
        _ => None,
    }
}

/// Returns the line about files that the ranks of an agent on `host` have left in /dev/shm.
fn files_text(host: &str, report: &FileReport) -> String {
    let FileReport { removed, removed_bytes, left, left_names } = report;
    let files = |count: u64| if count == 1 { "file" } else { "files" };
    let mut parts = Vec::new();
    if *removed > 0 {
        let size = figures::bytes(*removed_bytes);
        parts.push(format!("{removed} {} of ended ranks removed from /dev/shm, {size}", files(*removed)));
    }
    if *left > 0 {
        let more = left.saturating_sub(left_names.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        parts.push(format!(
            "{left} {} left in /dev/shm: {}{more}",
            files(*left),
            shown(&left_names.join(", "), WORDS_MAX)
        ));
    }
    format!("{host}: {}", parts.join("; "))
}

/// Returns the note about a launcher that did not run for `time` before an agent was lost.
pub fn stopped_text(time: Duration, liveness: Liveness) -> String {
    let (time, dead_time) = (time.as_secs_f64(), liveness.dead_time.as_secs_f64());
    format!(
        "scela-run itself did not run for {time:.1} s; if its machine was suspended, other hosts have given it up after \
         {dead_time} s (--dead-time)"
    )
}

/// Returns the note about silent agents, of which there is at least one.
pub fn silent_text<'a>(
    agents: &[(AgentId, Duration)],
    host: impl Fn(AgentId) -> &'a str,
    liveness: Liveness,
) -> String {
    let numbers: Ranks = agents.iter().map(|(agent, _)| Rank(agent.0)).collect();
    let hosts: BTreeSet<&str> = agents.iter().map(|(agent, _)| host(*agent)).collect();
    let (noun, their, are, count) = match agents {
        [_] => ("agent", "its machine answers", "it is", "it counts"),
        _ => ("agents", "their machines answer", "they are", "they count"),
    };
    let time = agents.iter().map(|(_, time)| time.as_secs_f64()).fold(0.0, f64::max);
    format!(
        "nothing was heard from {noun} {numbers} on {} for {time:.0} s, although {their}: {are} stopped or starved; \
         {count} as lost after {} s (--dead-time)",
        fold_within(&hosts, NAMES_BYTES_MAX),
        liveness.stop_time.as_secs_f64()
    )
}

/// Returns the note about a failure after which all ranks start again.
pub fn restart_text(first: &Failure, others: u64, (number, of): (u32, u32), wait: Duration, host: &str) -> String {
    let what = shown(&what_happened(first, host), WORDS_MAX);
    let more = match others {
        0 => String::new(),
        others => format!(" ({} reported)", counted(others, "more failure was", "more failures were")),
    };
    format!("{what}{more}; all ranks start again: restart {number} of at most {of}{}", once_ended(wait))
}

/// Returns the note about a rank that has failed, or an agent that was lost, and ranks that start again while the others go
/// on.
pub fn revival_text(failure: &Failure, (number, of): (u32, u32), wait: Duration, host: &str) -> String {
    let what = shown(&what_happened(failure, host), WORDS_MAX);
    let starts = if failure.ranks.is_empty() { "its ranks start again on another one" } else { "it starts again" };
    format!("{what}; {starts}: restart {number} of at most {of}{}", once_ended(wait))
}

/// Returns how long a restart waits at most until a lost agent has ended its ranks; empty if it need not wait.
fn once_ended(wait: Duration) -> String {
    if wait.is_zero() {
        return String::new();
    }
    format!(", as soon as the lost agent has ended its ranks ({} s at most)", wait.as_secs_f64().ceil())
}

/// Returns the note about a failure after which the other ranks go on.
pub fn goes_on_text(failure: &Failure, host: &str) -> String {
    format!("{}; the other ranks go on", shown(&what_happened(failure, host), WORDS_MAX))
}

/// Says why ranks cannot start again after the loss of an agent. `spares` is the number of hosts that were kept in reserve.
pub fn no_spare_text(spares: u32) -> String {
    const WHY: &str = "the job cannot go on: no other host can take over the ranks of the lost one";
    match spares {
        0 => format!("{WHY}\n  hint: name more hosts, and keep some in reserve with --spares"),
        1 => format!("{WHY}; the spare host is in use or lost\n  hint: reserve more hosts, for example --spares 2"),
        _ => format!(
            "{WHY}; all {spares} spare hosts are in use or lost\n  hint: reserve more hosts, for example --spares {}",
            spares.saturating_add(1)
        ),
    }
}

/// Returns the note about ranks that start again on other hosts.
pub fn moved_text(ranks: &Ranks, host: &str) -> String {
    format!(
        "{} {ranks} {} on {host} now",
        if ranks.len() == 1 { "rank" } else { "ranks" },
        if ranks.len() == 1 { "is" } else { "are" }
    )
}

/// Returns the note about ranks that were killed when their grace was over.
pub fn killed_text(Killed { namespace, ranks, signal, after }: &Killed) -> String {
    let were = if ranks.len() == 1 { "was" } else { "were" };
    let seconds = (after.as_secs_f64() * 10.0).round() / 10.0;
    format!("{} {were} killed {seconds} s after {}", name_ranks(ranks, *namespace), signal_name(*signal))
}

/// Returns the note about `count` processes that outlived their ranks. Those that had the `grace` to end by themselves are named.
pub fn leftovers_text(count: u64, left: &[LeftProcesses], grace: Duration, host: impl Fn(AgentId) -> String) -> String {
    let were = if count == 1 { "was" } else { "were" };
    let text = format!("{} that the ranks had left running {were} ended", counted(count, "process", "processes"));
    if left.is_empty() {
        return text;
    }
    let named = left.iter().map(|LeftProcesses { program, count, example: (agent, pid), ranks }| {
        let of = match ranks.len() {
            0 => String::new(),
            1 => format!(" of rank {ranks}"),
            _ => format!(" of ranks {ranks}"),
        };
        let one = if *count > 1 { format!("{count} processes, one is ") } else { String::new() };
        format!("{program}{of} ({one}pid {pid} on {})", host(*agent))
    });
    let named: Vec<_> = named.collect();
    format!("{text}, {} s after the last rank (--kill-grace): {}", grace.as_secs_f64(), named.join(", "))
}

/// Returns the warning about output that was not read for `time` and was dropped: `bytes`, and what agents have not
/// passed on.
pub fn dropped_text(bytes: u64, time: Duration, is_stdout: bool) -> String {
    let stream = if is_stdout { "standard output" } else { "standard error" };
    let least = if bytes == 0 { String::new() } else { format!(", at least {}", counted(bytes, "byte", "bytes")) };
    format!("warning: {stream} was not read for {} s: output was dropped{least}", time.as_secs_f64())
}

/// Returns ` of namespace N`, or nothing for the first namespace.
fn of(namespace: NamespaceId) -> String {
    if namespace == NamespaceId::FIRST { String::new() } else { format!(" of namespace {namespace}") }
}

pub(super) fn name_ranks(ranks: &Ranks, namespace: NamespaceId) -> String {
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
        Cause::NotStaged { why } => format!("staging failed on {host}: {why}"),
        Cause::Lost { why } => format!("agent {} on {host} was lost: {why}", failure.agent),
        Cause::Terminated { signal } => {
            format!("agent {} on {host} was asked to end by signal {signal} ({})", failure.agent, signal_name(*signal))
        }
        Cause::Signal { signal, core, out_of_memory } => {
            let core = if *core { ", core dumped" } else { "" };
            let memory = match out_of_memory.as_str() {
                "" => String::new(),
                where_to => format!("; the kernel ended it because memory ran out: {where_to}"),
            };
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
            format!("{ranks} on {host} ended while others wait for it in a fence")
        }
        Cause::ExitedEarly { in_fence: false } => {
            format!("{ranks} on {host} ended without MPI_Finalize while others still run")
        }
        Cause::Unjoined => {
            format!(
                "{ranks} on {host} ended without joining PMIx while ranks of the same node that have joined it still run"
            )
        }
    }
}

/// The needs of a job on the host where ranks could not be started.
#[derive(Clone, Debug)]
pub struct HostNeeds {
    /// The number of processes and threads there.
    pub tasks: u64,
    /// The most ranks that an agent there has.
    pub ranks: u32,
    /// The host.
    pub host: NeedyHost,
    /// Whether the job runs in a pool.
    pub in_pool: bool,
}

/// A host that may have too low limits.
#[derive(Clone, Debug)]
pub enum NeedyHost {
    /// The launcher's machine, as for all agents of the job.
    Here {
        /// The hard limit on open files.
        files_max: u64,
        /// The limits to raise so that the job gets its processes and threads, as commands; `None` if no limit is known.
        raise: Option<String>,
    },
    /// Another one.
    Remote(String),
}

/// The words before the place where memory ran out, in the reason of an agent's loss.
pub(super) const MEMORY_RAN_OUT: &str = "; the kernel has killed a process there because memory ran out: ";

const MORE_MEMORY: &str = "give the job more memory, or start fewer ranks on the node";

/// Returns what the user may try after a failure, if anything. `needs` are those at the host of the failure, if ranks could not be
/// started.
fn hint(failure: &Failure, needs: Option<&HostNeeds>) -> Option<String> {
    Some(match &failure.cause {
        Cause::Signal { out_of_memory, .. } if !out_of_memory.is_empty() => MORE_MEMORY.to_owned(),
        Cause::Signal { signal: 4 | 6 | 7 | 8 | 11, core: false, .. } => {
            "for a core dump, run 'ulimit -c unlimited' before scela-run".to_owned()
        }
        Cause::Broken { .. } => {
            "was the program's MPI library built for another process manager? SCELA_LOG=trace shows its messages"
                .to_owned()
        }
        Cause::ExitedEarly { .. } | Cause::Unjoined => {
            "does each rank call MPI_Init and MPI_Finalize, and as many barriers as the others?".to_owned()
        }
        Cause::Lost { why } if why.to_string().contains(MEMORY_RAN_OUT) => MORE_MEMORY.to_owned(),
        Cause::Lost { .. } => {
            "unless it was killed on purpose, run again with SCELA_LOG=debug and report the log".to_owned()
        }
        Cause::NotStarted { why: NotStartedReason::LackOfDevices(lack) } => {
            remedy_text(lack.remedy, needs.is_some_and(|needs| needs.in_pool))
        }
        Cause::NotStarted { why } if why.to_string().contains("Too many open files") => {
            let HostNeeds { ranks, host, .. } = needs?;
            let files = agent_files(*ranks);
            match host {
                NeedyHost::Here { files_max, .. } => format!(
                    "allow an agent some {files} open files: 'ulimit -n {files}' before scela-run; the hard limit here is {files_max}"
                ),
                NeedyHost::Remote(name) => format!(
                    "allow an agent on {name} some {files} open files: a hard limit there (limits.conf, or LimitNOFILE= of the \
                     service that starts remote shells)"
                ),
            }
        }
        Cause::NotStarted { why } if is_lack_of_tasks(&why.to_string(), needs) => {
            let HostNeeds { tasks, host, .. } = needs?;
            match host {
                NeedyHost::Here { raise: Some(raise), .. } => {
                    format!("raise the limit: {raise}; the job then starts, with {tasks} processes and threads")
                }
                NeedyHost::Here { raise: None, .. } => format!(
                    "allow {tasks} processes and threads for the job, beside those of others ('ulimit -u', pids.max of its cgroups)"
                ),
                NeedyHost::Remote(name) => format!(
                    "raise that limit on {name}: the job needs {tasks} processes and threads there, beside those of others"
                ),
            }
        }
        Cause::NotStarted { why } if why.to_string().contains(nla::sys::pmix::NO_DIRECTORY) => {
            "name another directory in TMPDIR".to_owned()
        }
        Cause::NotStaged { why }
            if why.contains("no directory can have the files") || why.contains("No space left") =>
        {
            "free some space there, or name another directory in TMPDIR".to_owned()
        }
        Cause::NotStaged { .. } => return None,
        Cause::Terminated { .. } => "did a resource manager end the job, for example at its time limit?".to_owned(),
        Cause::NotStarted { .. } | Cause::Signal { .. } | Cause::Abort { .. } | Cause::Code(_) => return None,
    })
}

/// Returns whether no process or thread could be created, by these words on ranks that were not started.
fn is_lack_of_tasks(words: &str, needs: Option<&HostNeeds>) -> bool {
    let eagain = io::Error::from_raw_os_error(Errno::EAGAIN as i32).to_string();
    // A guardian that cannot create its agent says so on standard error.
    let is_too_low = matches!(needs, Some(HostNeeds { host: NeedyHost::Here { raise: Some(_), .. }, .. }));
    words.contains("no process could be created")
        || words.contains(&eagain)
        || is_too_low && words.contains("it ended before it wrote anything")
}

/// The longest list of ranks in a line, in bytes.
const RANKS_BYTES_MAX: usize = 200;

/// Returns ranks as the subject of a sentence, with the verb for one or several.
fn ranks_that(ranks: &Ranks, one: &str, many: &str) -> String {
    let (rank, verb) = if ranks.len() == 1 { ("rank", one) } else { ("ranks", many) };
    format!("{rank} {} {verb}", shown(&ranks.to_string(), RANKS_BYTES_MAX))
}

/// Returns the note about ranks that run on since `time`, when the first of the others left. `hosts` are those of the running ones.
pub fn left_text(namespace: NamespaceId, left: &Ranks, running: &Ranks, time: Duration, hosts: &[&str]) -> String {
    let on = if hosts.is_empty() { String::new() } else { format!(" on {}", fold_within(hosts, NAMES_BYTES_MAX)) };
    let (one, many) = (format!("{on} runs on"), format!("{on} run on"));
    format!(
        "{}{}, and {} {} s after the first exit\n  hint: --exit-timeout TIME ends a job then; \
         Ctrl-\\ or SIGQUIT shows what its ranks do",
        ranks_that(left, "has left", "have left"),
        of(namespace),
        ranks_that(running, one.trim_start(), many.trim_start()),
        time.as_secs()
    )
}

/// Characters of the words on a failure.
const WORDS_MAX: usize = 4096;
/// Bytes of a list of hosts; of a longer one only the first is named.
const NAMES_BYTES_MAX: usize = 200;

/// Returns the report on the end of a session; `None` if none is needed. `size` is the number of ranks of the first
/// namespace, `needs` are those of ranks that could not be started, `restarts` the number of restarts if more
/// would have been needed, `alike` the hosts of the other failures with the same reason, one for each failure.
pub fn epilogue(
    outcome: &Outcome,
    size: u32,
    needs: Option<&HostNeeds>,
    restarts: Option<u32>,
    host: impl Fn(&Failure) -> String,
    alike: &[&str],
) -> Option<String> {
    match outcome {
        Outcome::Success | Outcome::Interrupted { .. } | Outcome::OutputLost => None,
        Outcome::TimedOut { limit } => {
            Some(format!("the job ran longer than {} s (--timeout) and was ended", limit.as_secs_f64()))
        }
        Outcome::LeftBehind { limit, left, running } => {
            let running = ranks_that(running, "was still running", "were still running");
            let (left, limit) = (ranks_that(left, "had left", "had left"), limit.as_secs_f64());
            Some(format!("{left}, and {running} {limit} s after the first exit (--exit-timeout): the job was ended"))
        }
        Outcome::Survived { first, dead, .. } => Some(survived(first, dead, host)),
        Outcome::Failed { first, others } => {
            // Agents and ranks wrote some of these words.
            let there = host(first);
            let mut text = shown(&what_happened(first, &there), WORDS_MAX);
            let mut elsewhere: Vec<&str> = alike.iter().copied().filter(|name| *name != there).collect();
            let others = others.saturating_sub(elsewhere.len() as u64);
            elsewhere.sort_unstable();
            elsewhere.dedup();
            if !elsewhere.is_empty() {
                let _ = write!(text, "\n  {} reported the same", fold_within(&elsewhere, NAMES_BYTES_MAX));
            }
            let at = first.at.as_secs_f64();
            let launched = !matches!(first.cause, Cause::NotStarted { .. } | Cause::NotStaged { .. });
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
            if others > 0 {
                let _ = write!(text, "\n  {} reported", counted(others, "more failure was", "more failures were"));
            }
            if let Some(restarts) = restarts {
                let again = if restarts == 1 { "once" } else { &format!("{restarts} times") };
                let _ = write!(text, "\n  ranks had started again {again}, as often as --max-restarts allows");
            }
            if let Some(hint) = hint(first, needs) {
                let _ = write!(text, "\n  hint: {hint}");
            }
            Some(text)
        }
    }
}

/// Returns a line about `exit`, the first rank that exited with a code and had not aborted, if the session ended by an abort. An
/// MPI library may abort because the connection to a rank has ended, and an agent learns of that abort before it can reap
/// the rank.
pub fn doubt(outcome: &Outcome, exit: &Failure, host: &str) -> Option<String> {
    let Outcome::Failed { first: Failure { cause: Cause::Abort { .. }, .. }, .. } = outcome else { return None };
    let what = shown(&what_happened(exit, host), WORDS_MAX);
    Some(format!("{what} and did not abort; this exit may have caused the abort"))
}

/// Returns the report of a session that went on without the ranks `dead`.
fn survived(first: &Failure, dead: &Ranks, host: impl Fn(&Failure) -> String) -> String {
    let what = shown(&what_happened(first, &host(first)), WORDS_MAX);
    let at = first.at.as_secs_f64();
    let without = match dead.len() {
        0 => String::new(),
        _ => format!(" without {}", name_ranks(dead, NamespaceId::FIRST)),
    };
    format!("{what}\n  the job went on{without}; first failure at {at:.3} s")
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
