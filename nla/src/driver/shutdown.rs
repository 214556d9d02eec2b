//! The shutdown sequence of the agent and of the launcher.
//!
//! The core decides that the session ends, and signals the ranks: SIGTERM, the grace, SIGKILL. The phases after that:
//!
//! | phase | the agent | the launcher | deadline |
//! |---|---|---|---|
//! | linger | after a success, waits for the descendants that are left | | the grace, then SIGTERM, and the grace again |
//! | sweep | kills the descendants that are left; guardians among them may clean up first | | [`SWEEP_TIME`] if the kernel refuses, or for processes in uninterruptible sleep |
//! | clean | removes files that killed ranks left in /dev/shm | | `CLEAN_DEADLINE` |
//! | drain | reads the ranks' pipes to their end | | `DRAIN_TIME` for a pipe that is held open |
//! | profile | sends what ranks have appended to their profiles (`--profile-comm`) | | none: the parent takes it |
//! | collect | sends files of ranks, then removes the staged files | writes them | as for output |
//! | announce | sends the ends of both output lanes, of collected files and of profiles | writes all output | after a success none: the reader may be slow; else the grace and `UNREAD_MARGIN` without a byte written |
//! | accept | | closes the listener, drops late children | at once |
//! | children | closes its links to them | closes its links to them | [`FAREWELL_TIME`], [`FLUSH_TIME`] |
//! | shells | waits for the remote shells of piped links | waits for remote shells and guardians | [`FAREWELL_TIME`], [`LEAVE_TIME`] |
//! | parent | closes its link to the parent | | [`FAREWELL_TIME`] |
//!
//! When a phase misses its deadline, the log names what is late, and the next phase begins. An agent's parent sees the
//! link end after all agents below have ended, so the launcher ends last. After a panic, an agent goes through the last
//! three phases only; its guardian kills the ranks.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi::Rank;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::agent::AgentDriver;
use super::leftovers::CLEAN_DEADLINE;
use super::pmix::Pmix;
use super::profile;
use super::root::RootDriver;
use crate::bootstrap::Links;
use crate::core::{FileReport, Input, LeftProcesses, NamespaceId};
use crate::link::Receipt;
use crate::sys::{self, NestedGuardians};
use crate::wire::Lane;

const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;

/// The pause between two searches for descendants that are left.
pub(super) const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// How long an agent tries to kill descendants that it may not signal (setuid programs).
const SWEEP_TIME: Duration = Duration::from_secs(3);
/// The maximum number of processes in uninterruptible sleep that an agent names.
const BLOCKED_MAX: usize = 8;
/// How long an agent waits for the links to its children to end, and to its parent.
const FAREWELL_TIME: Duration = Duration::from_secs(2);
/// How long the launcher waits for queued messages to be written.
pub(super) const FLUSH_TIME: Duration = Duration::from_secs(1);
/// How long agents and guardians may take to exit once the session is over.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// The root goes on waiting for guardians while processes of the session keep ending within this time,
const PROGRESS_TIME: Duration = Duration::from_secs(1);
/// and at most this long.
const PROGRESS_TIME_MAX: Duration = Duration::from_secs(60);

/// Logs what has not ended by a phase's deadline.
fn log_late(phase: &'static str, deadline: Duration, late: impl Debug) {
    tracing::info!(phase, ?deadline, ?late, "a phase of the end is late");
}

/// An agent's progress from the exit of its last rank to the end of its links.
pub(super) enum Sweep {
    /// The session goes on.
    No,
    /// The ranks are to start again. Descendants of the old ones that are left are being killed.
    Clearing { since: Instant, left: BTreeSet<u32> },
    /// All ranks have ended well. Descendants that are left may end by themselves, until they get SIGTERM.
    Lingering { signalled: Option<BTreeSet<u32>> },
    /// Descendants that are left are being killed: these were, or had got SIGTERM.
    Killing { since: Instant, left: BTreeSet<u32> },
    /// No process is left. Files that killed ranks left are being removed.
    Cleaning { report: oneshot::Receiver<FileReport>, until: Instant, leftovers: u64 },
    /// No process is left. The directory of staged files is being removed; the channel closes when it is.
    Unstaging { removed: oneshot::Receiver<()>, until: Instant, report: FileReport, leftovers: u64 },
    /// These files were removed or found.
    Cleaned { report: FileReport, leftovers: u64 },
    /// No process is left; the output pump reads the pipes to their end.
    Draining(oneshot::Receiver<usize>),
    /// All of this agent's own output has been read; the profiles of its ranks are being sent. The channel closes when they are.
    Profiling(oneshot::Receiver<()>),
    /// All of this agent's own output has been read.
    Read,
    /// Files of ranks are being sent. The channel closes when they are.
    Collecting(oneshot::Receiver<()>),
    /// Files of ranks were sent.
    Collected,
    /// The directory of staged files, which had files of ranks, is being removed; the channel closes when it is.
    Releasing { removed: oneshot::Receiver<()>, until: Instant },
    /// Nothing but ends of lanes is left to be sent.
    Drained,
    /// The ends of the output lanes are queued for the parent. The channel closes when they have been written.
    Announcing(oneshot::Receiver<()>),
    /// The ends of the output lanes have been written.
    Announced,
}

impl Sweep {
    /// Begins to kill the descendants that are left.
    pub(super) fn begin(&mut self) {
        let left = match self {
            Self::Lingering { signalled } => signalled.take().unwrap_or_default(),
            _ => BTreeSet::new(),
        };
        *self = Self::Killing { since: Instant::now(), left };
    }

    pub(super) fn is_killing(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Clearing { .. })
    }

    /// Notes a descendant, not a rank, that SIGKILL has ended.
    pub(super) fn note_killed(&mut self, pid: u32) {
        if let Self::Killing { left, .. } | Self::Clearing { left, .. } = self {
            left.insert(pid);
        }
    }

    /// Waits for the task that the current step depends on, and returns the next step. Cancel-safe.
    pub(super) async fn next(&mut self) -> Self {
        match self {
            Self::Cleaning { report, until, leftovers } => {
                let report = timeout_at(*until, report).await.unwrap_or_else(|_| {
                    log_late("clean", CLEAN_DEADLINE, "files in /dev/shm");
                    Ok(FileReport::default())
                });
                // The channel closes without a report if the thread has panicked. Its report ends this agent.
                Self::Cleaned { report: report.unwrap_or_default(), leftovers: *leftovers }
            }
            Self::Unstaging { removed, until, report, leftovers } => {
                if timeout_at(*until, removed).await.is_err() {
                    log_late("clean", CLEAN_DEADLINE, "staged files");
                }
                Self::Cleaned { report: std::mem::take(report), leftovers: *leftovers }
            }
            Self::Draining(drained) => {
                // The channel closes without a value if the thread has panicked. Its report ends this agent.
                let Ok(pipes) = drained.await else { return pending().await };
                if pipes > 0 {
                    tracing::warn!(pipes, "processes out of reach hold pipes of ranks open");
                }
                Self::Read
            }
            Self::Collecting(sent) => {
                // No value is sent: the channel closes when its sender is dropped.
                let _ = sent.await;
                Self::Collected
            }
            Self::Releasing { removed, until } => {
                if timeout_at(*until, removed).await.is_err() {
                    log_late("collect", CLEAN_DEADLINE, "staged files");
                }
                Self::Drained
            }
            Self::Profiling(sent) => {
                // No value is sent: the channel closes when its sender is dropped.
                let _ = sent.await;
                Self::Read
            }
            Self::Announcing(written) => {
                // No value is sent: the channel closes when its senders are dropped.
                let _ = written.await;
                Self::Announced
            }
            Self::No
            | Self::Clearing { .. }
            | Self::Lingering { .. }
            | Self::Killing { .. }
            | Self::Cleaned { .. }
            | Self::Read
            | Self::Collected
            | Self::Drained
            | Self::Announced => pending().await,
        }
    }
}

impl AgentDriver {
    /// Continues the sweep as far as possible without waiting.
    pub(super) fn continue_sweep(&mut self) {
        match self.sweep {
            Sweep::Killing { since, .. } | Sweep::Clearing { since, .. } => self.kill_leftovers(since),
            Sweep::Lingering { .. } => self.await_leftovers(),
            _ => {}
        }
        if let Sweep::Cleaned { report, leftovers } = &mut self.sweep {
            let (report, leftovers) = (std::mem::take(report), *leftovers);
            self.end_sweep(leftovers, report);
        }
        if matches!(self.sweep, Sweep::Read)
            && let Some(file) = self.startup.as_mut().and_then(|startup| startup.profile.take())
        {
            self.sweep = Sweep::Profiling(profile::send(file, self.parent.clone(), &self.links.tasks));
        } else if let Sweep::Read = self.sweep {
            self.sweep = match self.collect() {
                Some(sent) => Sweep::Collecting(sent),
                None => Sweep::Collected,
            };
        }
        if let Sweep::Collected = self.sweep {
            self.sweep = match self.staging.close() {
                Some(removed) => Sweep::Releasing { removed, until: Instant::now() + CLEAN_DEADLINE },
                None => Sweep::Drained,
            };
        }
        if matches!(self.sweep, Sweep::Drained) && self.children.have_ended_output() && !self.core.awaits_agents() {
            let (queued, written) = oneshot::channel::<()>();
            let queued = Arc::new(queued);
            let profile = self.children.sends_profiles.then_some(Lane::Profile);
            for lane in [Lane::Stdout, Lane::Stderr, Lane::Stage].into_iter().chain(profile) {
                self.parent.send(lane, Bytes::new(), Receipt::holding(Arc::clone(&queued)));
            }
            self.sweep = Sweep::Announcing(written);
        }
    }

    /// Remote shells that carry links, and the process that serves PMIx, are children of this process too.
    fn spared(&self) -> BTreeSet<u32> {
        let shells = self.child_starter.as_ref().map(|starter| starter.processes().pids());
        let mut pids = shells.unwrap_or_default();
        pids.extend(self.pmix.as_ref().map(Pmix::pid));
        pids
    }

    /// Sends SIGTERM to all descendants that are left, and reports them.
    pub(super) fn end_left(&mut self) {
        let left = sys::descendants_but(&self.spared());
        let deeper: BTreeSet<u32> = left.difference(&sys::children_but(&BTreeSet::new())).copied().collect();
        // The environment does not name the namespace.
        let is_job = self.namespaces.keys().all(|id| *id == NamespaceId::FIRST);
        let rank_of = |pid| sys::variable_of(pid, "PMI_RANK").or_else(|| sys::variable_of(pid, "PMI_ID"));
        let mut all = Vec::new();
        for pid in left {
            let Some(program) = sys::program_of(pid) else { continue };
            let rank = is_job.then(|| rank_of(pid)?.parse().ok()).flatten();
            let (example, ranks) = ((self.here.head(), pid), rank.map(Rank).into_iter().collect());
            LeftProcesses { program, count: 1, example, ranks }.add_to(&mut all);
        }
        // The others are signalled as children, also those that are forked meanwhile.
        [SIGTERM, SIGCONT].into_iter().for_each(|signal| sys::signal_all(&deeper, signal));
        self.sweep = Sweep::Lingering { signalled: Some(deeper) };
        if !all.is_empty() {
            self.handle(Input::Left(all));
        }
    }

    /// Goes on if no descendant is left. Until then, the kernel reports the end of each with SIGCHLD.
    fn await_leftovers(&mut self) {
        // A process that is found later has lost its parent, which the signal has ended.
        let spared = self.spared();
        if let Sweep::Lingering { signalled: Some(signalled) } = &mut self.sweep {
            let skipped = spared.union(signalled).copied().collect();
            let end = || {
                let new = sys::children_but(&skipped);
                // A stopped process acts on a signal only when it is continued.
                for signal in [SIGTERM, SIGCONT] {
                    sys::kill_children_but(signal, &skipped);
                }
                new
            };
            signalled.extend(self.startup.as_ref().map_or_else(end, |startup| startup.launching().while_unreaped(end)));
        }
        if !sys::has_children_but(&spared) {
            let left = match &mut self.sweep {
                Sweep::Lingering { signalled } => signalled.take().unwrap_or_default(),
                _ => BTreeSet::new(),
            };
            self.clean(left.len() as u64);
        }
    }

    fn kill_leftovers(&mut self, since: Instant) {
        let spared = Self::spared;
        // The children of a killed process become children of this agent, a subreaper; the next turn kills them.
        let is_late = since.elapsed() > SWEEP_TIME;
        let (has_children, spared_now) = (sys::has_children_but(&spared(self)), spared(self));
        let mut kill = || self.nested.kill_children_but(9, &spared_now);
        let mut refused = has_children
            && match &self.startup {
                Some(startup) => startup.launching().while_unreaped(kill),
                None => kill(),
            } == (0, 0)
            && is_late;
        self.reap();
        if refused {
            tracing::warn!("processes are left that cannot be killed");
        } else if is_late && let Some(blocked) = sys::blocked_children_but(&spared(self)) {
            for pid in blocked.into_iter().take(BLOCKED_MAX) {
                let text = self.startup.as_ref().map(|startup| startup.left_text(pid));
                text.into_iter().for_each(|text| self.handle(Input::Busy(text)));
            }
            refused = true;
        }
        let is_done = refused || !sys::has_children_but(&spared(self));
        if is_done {
            self.nested = NestedGuardians::default();
        }
        if let Sweep::Clearing { left, .. } = &self.sweep
            && is_done
        {
            let leftovers = left.len() as u64;
            self.sweep = Sweep::No;
            if refused {
                self.handle(Input::NotCleared);
            } else {
                self.forget_namespaces();
                if let Some(file) = self.startup.as_ref().and_then(|startup| startup.profile.as_ref())
                    && let Err(error) = file.clear()
                {
                    tracing::warn!(%error, "profiles of ranks that start again cannot be removed");
                }
                self.handle(Input::Cleared { leftovers });
            }
        }
        if let Sweep::Killing { left, .. } = &self.sweep
            && is_done
        {
            self.clean(left.len() as u64);
        }
    }

    /// No process is left. Removes the files that killed ranks left.
    fn clean(&mut self, leftovers: u64) {
        match self.shared_files.clean() {
            Some(report) => {
                let until = Instant::now() + CLEAN_DEADLINE;
                self.sweep = Sweep::Cleaning { report, until, leftovers };
            }
            None => self.end_sweep(leftovers, FileReport::default()),
        }
    }

    /// Reports that no process is left, and which files were, and goes on to the drain.
    fn end_sweep(&mut self, leftovers: u64, report: FileReport) {
        // Before the end is reported: a launcher that does not wait for guardians exits soon afterwards.
        // A directory whose files are collected stays until then.
        if self.collects().is_none()
            && let Some(removed) = self.staging.close()
        {
            let until = Instant::now() + CLEAN_DEADLINE;
            self.sweep = Sweep::Unstaging { removed, until, report, leftovers };
            return;
        }
        self.sweep = match &self.startup {
            Some(startup) => Sweep::Draining(startup.pump.finish(self.quoted())),
            None => Sweep::Read,
        };
        if !report.is_empty() {
            self.handle(Input::FilesLeft(report));
        }
        self.handle(Input::Swept { leftovers });
    }

    /// Ends the links to the children.
    pub(super) async fn leave_children(&mut self) {
        self.children.close();
        if timeout(FAREWELL_TIME, self.await_farewells(false)).await.is_err() {
            log_late("children", FAREWELL_TIME, self.children.left());
        }
        if let Some(starter) = &mut self.child_starter {
            let left = starter.wait(FAREWELL_TIME).await;
            if left > 0 {
                log_late("shells", FAREWELL_TIME, left);
            }
        }
    }

    /// Ends the link to the parent.
    pub(super) async fn leave_parent(&mut self) {
        self.parent.close();
        if timeout(FAREWELL_TIME, self.await_farewells(true)).await.is_err() {
            log_late("parent", FAREWELL_TIME, "the link to the parent");
        }
    }
}

impl RootDriver {
    /// Ends the links, and waits for the processes that the launcher has started. Returns how many guardians have not
    /// exited. Call this when the session is over, or after a panic.
    pub async fn leave(&mut self) -> usize {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        // A child that is about to join leaves when its connection is dropped.
        self.joined.close();
        while self.joined.try_recv().is_ok() {}
        self.children.close();
        let (children, links) = (&mut self.children, &mut self.links);
        let farewells = async {
            while !children.is_empty() {
                children.remove(links.next_lost().await);
            }
        };
        let guardians_left = match self.transport {
            Links::Connections | Links::Pipes => {
                tokio::join!(timeout(FLUSH_TIME, farewells), self.bootstrap.wait(LEAVE_TIME)).1
            }
            // Ending the remote shells would cut off the last messages of the links over their pipes.
            Links::RemoteShells => {
                let _ = timeout(LEAVE_TIME, farewells).await;
                self.bootstrap.wait(LEAVE_TIME).await
            }
        };
        let guardians_left = self.await_guardians(guardians_left).await;
        self.survivors.ended().await;
        if !self.children.is_empty() {
            log_late("children", FLUSH_TIME, self.children.left());
        }
        if guardians_left > 0 {
            log_late("shells", LEAVE_TIME, guardians_left);
        }
        guardians_left
    }

    /// Waits for the guardians that are late as long as processes of the session end: under a lack of memory, that takes its time.
    /// Returns how many have not exited.
    async fn await_guardians(&mut self, mut left: usize) -> usize {
        let began = Instant::now();
        let mut processes = if left > 0 { sys::processes_of_session() } else { 0 };
        while left > 0 && began.elapsed() < PROGRESS_TIME_MAX {
            left = self.bootstrap.wait(PROGRESS_TIME).await;
            let before = std::mem::replace(&mut processes, sys::processes_of_session());
            if processes >= before {
                break;
            }
        }
        left
    }
}
