//! The end of a session: waits for the agents, writes the reports and decides the exit code.

use std::io;
use std::pin::pin;

use nla::core::{AgentId, Cause, Failure, LossReason, Outcome, Time, printable};
use nla::sys::{MemoryWatch, ShellState};

use super::{Ended, Session, host_name};
use crate::cluster::fault_history;
use crate::exit;
use crate::plan::agent_layout::open_files_max;
use crate::plan::checks::missing_program_hint;
use crate::plan::library::{explain_silence, possible_user};
use crate::plan::needs;
use crate::plan::process_limits::raises_after_failure;
use crate::run::assemble::given_up_text;
use crate::run::collect::CollectionEnd;
use crate::run::end_report::SessionEnd;
use crate::run::last_lines::quoted_text;
use crate::run::milestones::log_over;
use crate::run::output::{OutputEvent, print};
use crate::run::report::{HostNeeds, MEMORY_RAN_OUT, NeedyHost, Verbosity, demo_text, doubt, epilogue};
use crate::run::report_file::{FifoReport, Unwritten};
use crate::run::signals::Asked;
use crate::run::stats::Statistics;
use crate::run::timing::{HostNames, columns};
use crate::run::trace::Traced;

/// The reports that the user asked for.
pub(super) struct Reports {
    pub(super) demo: bool,
    pub(super) timing: bool,
    pub(super) fanout: u32,
    /// Whether ranks of MPI programs are to find scela-run (no `--mpi none`).
    pub(super) serves_mpi: bool,
    /// Whether the job runs in a pool.
    pub(super) in_pool: bool,
    /// Whether the last lines of the rank that failed first are quoted: there are other ranks, and it does not write to a file.
    pub(super) quotes: bool,
    /// Whether the first program may be meant as the name of a pool.
    pub(super) follows_pool: bool,
}

/// Whether several ranks ran and none spoke PMI.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Silent {
    /// A rank spoke PMI, or there was one rank only.
    No,
    /// They may have had no reason to speak PMI.
    Yes,
    /// They were to be ranks of one MPI job.
    Copies,
}

/// Returns why a session with this outcome was over before the files of ranks had arrived.
pub(super) fn collection_cut_by(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Interrupted { .. } => "interrupted",
        _ => "the session has ended before they had arrived",
    }
}

impl Session {
    /// Waits for the agents and their guardians to exit. When this returns, no process of the session is left, or a message
    /// has reported the guardians that are. A signal meanwhile ends the launch that was to follow.
    pub(super) async fn leave(&mut self) {
        let Self { root, own, sequel, reporter, .. } = self;
        let mut leaving = pin!(root.leave());
        let late = loop {
            let asked = tokio::select! {
                late = &mut leaving => break late,
                Some(asked) = own.signals.next(), if sequel.is_launch() => asked,
            };
            if let Asked::End(signal) = asked {
                reporter.note(&given_up_text(signal));
                sequel.prevent(Outcome::Interrupted { signal });
            }
        };
        if late > 0 {
            let guardians = if late == 1 { "guardian" } else { "guardians" };
            let text = format!("{late} {guardians} did not end; look for processes named scela-guard");
            if sequel.is_launch() { reporter.note(&text) } else { reporter.error(&text) }
        }
    }

    /// Removes partly collected files if the session ends before all have arrived, and reports that they are missing, and why.
    pub(super) async fn end_collection(&mut self, why: &str) {
        let Some(collector) = &self.collector else { return };
        let ended = collector.abandon().await;
        while let Ok(event) = self.output.try_recv() {
            match event {
                OutputEvent::Failed(text) => self.reporter.error(&text),
                OutputEvent::Noted(text) => self.reporter.note(&text),
                OutputEvent::Done | OutputEvent::Closed(..) => {}
            }
        }
        let left = match ended {
            CollectionEnd::Finished => return,
            // There are no files of ranks that have not run.
            CollectionEnd::NotBegun if !self.has_started => return,
            CollectionEnd::NotBegun | CollectionEnd::Removed => "",
            CollectionEnd::Left => {
                "; a directory .scela-collect-* may be left, because its file system does not answer"
            }
        };
        self.reporter.error(&format!("files were not collected: {why}{left}"));
    }

    /// Writes the reports.
    pub(super) async fn conclude(&mut self, mut outcome: Outcome) -> Ended {
        let now = self.clock.now();
        // An agent's message may arrive after its ranks have started.
        self.tell_staged_memory(now);
        self.phases.on_end(now);
        self.phases.arrivals = self.root.arrivals().clone();
        if !self.is_outcome_reported {
            self.report_outcome(&outcome);
        }
        let last_lines = self.quote(&outcome);
        if self.agent_hosts.is_remote()
            && let Some(note) = fault_history::remember(&self.hosts, &self.own.lost)
        {
            self.reporter.note(&note);
        }
        let silent = self.report_silence(&outcome);
        let stats_table = self.write_stats(&mut outcome).await;
        self.write_phases(&mut outcome);
        self.write_trace(now, &mut outcome).await;
        self.write_profile(&mut outcome).await;
        self.write_report(&mut outcome, silent, last_lines).await;
        let code = exit::code(&outcome, silent == Silent::Copies);
        let silent = if silent == Silent::No { "" } else { "; no rank spoke PMI" };
        self.reporter.step(now, &format!("the session is over, code {code}{silent}"));
        log_over(now, code);
        if let Some(table) = stats_table.filter(|_| code != exit::NOT_LAUNCHED) {
            self.reporter.note(&table);
        }
        Ended { code, phases: std::mem::take(&mut self.phases), timing: self.root.timing().clone() }
    }

    /// Reports the outcome if it is no success.
    pub(super) fn report_outcome(&self, outcome: &Outcome) {
        let outcome = &self.with_shortage(outcome);
        let host = |failure: &Failure| self.locations.of_agent(failure.agent).to_owned();
        let needs = self.needs_after(outcome);
        let alike = match outcome {
            Outcome::Failed { first, .. } => self.root.failed_alike(first),
            _ => Vec::new(),
        };
        let alike: Vec<&str> = alike.into_iter().map(|agent| self.locations.of_agent(agent)).collect();
        if let Some(mut text) = epilogue(outcome, self.first.size, needs.as_ref(), self.restarts_used, host, &alike) {
            if let Some(exit) = &self.first_exit
                && let Some(doubt) = doubt(outcome, exit, self.locations.of_agent(exit.agent))
            {
                text.push_str(&format!("\n  {doubt}"));
            }
            let shows_path = self.reporter.verbosity == Verbosity::Verbose;
            let follows_pool = self.reports.follows_pool;
            let hint = missing_program_hint(&text, &self.plan, &self.first.commands, shows_path, follows_pool);
            if let Some(hint) = hint {
                text.push_str(&format!("\n  hint: {hint}"));
            }
            self.reporter.error(&text);
        }
    }

    /// Adds to the loss of an agent on this machine that memory ran out, if the kernel has killed a process for that.
    fn with_shortage(&self, outcome: &Outcome) -> Outcome {
        let mut outcome = outcome.clone();
        if let Outcome::Failed { first, .. } | Outcome::Survived { first, .. } = &mut outcome
            && let Cause::Lost { why } = &mut first.cause
            && self.locations.of_agent(first.agent) == self.locations.of_agent(AgentId::ROOT)
            && let Some(shortage) = self.memory.as_ref().and_then(MemoryWatch::shortage)
        {
            *why = LossReason::Reported(format!("{why}{MEMORY_RAN_OUT}{shortage}"));
        }
        outcome
    }

    /// Quotes the last lines that the rank that failed first has written to standard error, unless the user has just read them. Returns
    /// them.
    fn quote(&self, outcome: &Outcome) -> Vec<String> {
        let (Outcome::Failed { first, .. } | Outcome::Survived { first, .. }) = outcome else { return Vec::new() };
        let (lines, is_last) = self.last_lines.borrow().of(first, &self.locations);
        if self.reports.quotes && !is_last && !lines.is_empty() {
            self.reporter.note(&quoted_text(first, &lines));
        }
        lines
    }

    /// Writes the file of `--report`. If that fails, an otherwise successful session counts as failed.
    async fn write_report(&mut self, outcome: &mut Outcome, silent: Silent, last_lines: Vec<String>) {
        let Some(report) = self.own.report.take() else { return };
        let reported = self.with_shortage(outcome);
        let end = SessionEnd {
            job: Some(&self.first),
            outcome: Some(&reported),
            code: exit::code(outcome, silent == Silent::Copies),
            locations: Some(&self.locations),
            last_lines,
        };
        let written = report.write(end);
        self.finish_report(written, outcome).await;
    }

    /// Returns the needs at the host where ranks could not be started, if that was the first failure.
    fn needs_after(&self, outcome: &Outcome) -> Option<HostNeeds> {
        let Outcome::Failed { first: Failure { agent, cause: Cause::NotStarted { .. }, .. }, .. } = outcome else {
            return None;
        };
        let host = self.locations.of_agent(*agent);
        let there = self.first.placement.iter().filter(|(other, _)| self.locations.of_agent(*other) == host);
        let counts: Vec<u32> = there.map(|(_, ranks)| ranks.len() as u32).collect();
        let tasks = needs::tasks(counts.iter().sum(), counts.len() as u32);
        let host = match self.agent_hosts.is_remote() {
            true => NeedyHost::Remote(host.to_owned()),
            false => NeedyHost::Here {
                files_max: open_files_max(&ShellState::recorded()),
                raise: raises_after_failure(tasks),
            },
        };
        let (ranks, in_pool) = (counts.into_iter().max().unwrap_or_default(), self.reports.in_pool);
        Some(HostNeeds { tasks, ranks, host, in_pool })
    }

    /// Reports that several ranks ran and none spoke PMI in a successful job: as an error if the program is an MPI program and
    /// `--mpi none` is not typed, else as a warning if a library explains it or a script may have started an MPI program.
    fn report_silence(&self, outcome: &Outcome) -> Silent {
        let size = self.first.size;
        if size == 1 || !self.root.is_silent() {
            return Silent::No;
        }
        // The explanation reads the programs' files, which may be in the file system that does not answer. Ranks that were ended
        // early may not have reached MPI_Init.
        if *outcome != Outcome::Success || self.files_stall {
            return Silent::Yes;
        }
        let commands = &self.first.commands;
        let users = &self.mpi_users;
        let mut both = commands.iter().zip(users);
        let Some(why) = both.find_map(|(command, users)| explain_silence(&self.plan, command, users)) else {
            let possible = users.iter().find_map(|users| possible_user(users));
            if let Some(file) = possible.filter(|_| self.reports.serves_mpi) {
                self.reporter.note(&format!(
                    "warning: no rank has spoken PMI: if the ranks used '{}', they ran as {size} copies of rank 0 of 1\n  \
                     hint: if they did, try '--mpi pmix' or '--mpi openmpi'; '--mpi none' silences this warning",
                    printable(&file.to_string_lossy())
                ));
            }
            return Silent::Yes;
        };
        let are_copies = why.is_mpi && self.reports.serves_mpi;
        let text = format!(
            "no rank has spoken PMI: if these were MPI ranks, they ran as {size} copies of rank 0 of 1\n  {}\n  hint: {}",
            why.text, why.hint
        );
        if are_copies {
            self.reporter.error(&text);
            return Silent::Copies;
        }
        if why.is_explained {
            self.reporter.note(&format!("warning: {text}"));
        }
        Silent::Yes
    }

    /// Writes the statistics of `--stats`. If that fails, an otherwise successful session counts as failed. Returns the table for the
    /// terminal.
    async fn write_stats(&mut self, outcome: &mut Outcome) -> Option<String> {
        let sink = self.own.stats.take()?;
        let (table, fifo) =
            sink.take(&self.statistics()).map_or_else(|text| (None, Err(text)), |(table, fifo)| (table, Ok(fifo)));
        self.finish_report(fifo, outcome).await;
        table
    }

    /// Waits until a report was written. If that fails, or a signal ends the wait, an otherwise successful session counts as failed, or
    /// interrupted.
    async fn finish_report(&mut self, written: Result<Option<FifoReport>, String>, outcome: &mut Outcome) {
        let unwritten = match written {
            Ok(None) => return,
            Ok(Some(fifo)) => match fifo.write(&mut self.own.signals).await {
                Ok(()) => return,
                Err(unwritten) => unwritten,
            },
            Err(text) => Unwritten { text, signal: None },
        };
        self.reporter.error(&unwritten.text);
        if *outcome == Outcome::Success {
            *outcome = unwritten.signal.map_or(Outcome::OutputLost, |signal| Outcome::Interrupted { signal });
        }
    }

    /// Writes the trace of `--trace`. If that fails, an otherwise successful session counts as failed.
    async fn write_trace(&mut self, now: Time, outcome: &mut Outcome) {
        let (Some(trace), Some(scope)) = (self.own.trace.take(), self.plan.trace) else { return };
        let traced = Traced {
            scope,
            agents: self.tree.size() - 1,
            job: Some(&self.first),
            host: &|place| self.locations.of_agent(place).to_owned(),
            starts: self.root.start_spans(scope),
            reported: self.root.stats().spans,
        };
        let written = trace.write(&traced, &self.phases.arrivals, now);
        self.finish_report(written, outcome).await;
    }

    /// Writes the profile of `--profile-comm`, and names the ranks that it lacks, unless the job has not started. If it cannot be
    /// written, an otherwise successful session counts as failed.
    async fn write_profile(&mut self, outcome: &mut Outcome) {
        let Some(profile) = self.own.profile.take() else { return };
        let written = profile.borrow_mut().write();
        let (remark, fifo) = written.map_or_else(|text| (None, Err(text)), |(remark, fifo)| (remark, Ok(fifo)));
        // Otherwise, the error that kept the job from starting has been reported.
        if exit::code(outcome, false) != exit::NOT_LAUNCHED {
            remark.into_iter().for_each(|remark| self.reporter.note(&remark));
        }
        self.finish_report(fifo, outcome).await;
    }

    /// Prints the demo's summary, or the table of the phases if the user asked for it. If the summary cannot be
    /// written, the session has failed.
    fn write_phases(&self, outcome: &mut Outcome) {
        let target = |target: u32| host_name(&self.agent_hosts, target);
        let names = HostNames { target: &target, agents: Some(&self.locations) };
        let phases = |columns| self.phases.table(self.root.timing(), self.tree.size() - 1, &names, columns);
        if self.reports.demo && *outcome == Outcome::Success {
            if let Err(error) =
                print(&format!("{}\n", demo_text(self.first.size, self.tree, &phases(columns(io::stdout())))))
            {
                self.reporter.error(&format!("standard output cannot be written: {error}"));
                *outcome = Outcome::OutputLost;
            }
        } else if self.reports.timing {
            self.reporter.note(&format!("phases:\n{}", phases(columns(io::stderr()))));
        }
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            policy: self.plan.cache,
            ranks: self.first.size,
            agents: self.tree.size() - 1,
            fanout: self.reports.fanout,
            stats: self.root.stats(),
        }
    }
}
