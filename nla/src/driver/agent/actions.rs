//! Carries out the actions of an agent's core.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use pmi::{Answer, Board, Ranks};

use tokio::time::Instant;

use super::AgentDriver;
use crate::core::limits::GATHER_WINDOW;
use crate::core::{
    Action, Input, NamespaceId, NamespacePlan, NotStartedReason, RankGroup, SessionPlan, Subtree, Time, Up, elect,
};
use crate::driver::accelerators::Accelerators;
use crate::driver::binder::Binder;
use crate::driver::output::OutputPump;
use crate::driver::shutdown::Sweep;
use crate::driver::startup::{Startup, with_limit};
use crate::driver::survivors;
use crate::driver::table::Key;
use crate::driver::trace::DriverTrace;
use crate::link::Receipt;
use crate::pmix::relay::Step;
use crate::sys;
use crate::wire::{Lane, encode};

/// The number of ranks that are released from a fence before they may use the processor, where ranks share processors. A rank
/// that runs at once finds its memory in the caches when its next requests are answered. With 4,096 ranks on two processors an
/// exchange took a quarter less time than with one group of all ranks, and 6 % less than with groups of 4.
const RELEASED_AT_ONCE: usize = 2;

impl AgentDriver {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::ToParent(message) => {
                self.note_failure(&message);
                self.send_up(&message);
            }
            Action::ToChild(child, message) => {
                // Log references are forwarded unchanged: all descendants share this machine's memory.
                let in_log = |bytes: &Bytes| self.log.as_ref()?.offset_of(bytes);
                self.children.send(child, &message, Receipt::default(), in_log);
            }
            Action::Rejoin(until) => self.rejoin(self.clock.instant(until)),
            Action::Adopt(orphans) => self.adopt(orphans),
            Action::CloseChild(child, why) => {
                tracing::warn!(%child, %why, "the link to a child is closed");
                self.children.cut_off(child);
            }
            Action::Configure(session) => self.configure(*session),
            Action::Start(plan, ranks, board) => self.enqueue(plan, ranks, board),
            Action::CancelStarts => {
                let cancelled = self.startup.as_mut().map(Startup::cancel).unwrap_or_default();
                cancelled.into_iter().for_each(|input| self.handle(input));
            }
            Action::Publish(namespace, epoch) => {
                let began = self.trace_time();
                if let Some(local) = self.namespaces.get(&namespace) {
                    local.board.borrow_mut().publish(epoch);
                }
                if let (Some(began), Some(trace)) = (began, &mut self.trace) {
                    trace.publish.note(began, self.clock.now(), 1);
                }
            }
            Action::Release(namespace, ranks) => {
                self.release(namespace, &ranks, false);
                self.shared_files.on_release(|| self.table.pids());
            }
            Action::FailFence(namespace, ranks) => self.release(namespace, &ranks, true),
            Action::ShowDead(namespace, dead) => {
                if let Some(local) = self.namespaces.get(&namespace) {
                    local.board.borrow_mut().set_dead(&dead);
                    self.table.notify(namespace);
                }
                if let Some(pmix) = &mut self.pmix {
                    let mut steps = Vec::new();
                    pmix.relay.on_died(namespace, &dead, &mut steps);
                    self.take_steps(steps);
                }
            }
            Action::Answer(namespace, rank, answer) => self.answer((namespace, rank), answer),
            Action::LookUp { namespace, key, requester } => {
                let local = self.namespaces.get(&namespace);
                let value = local.and_then(|local| local.board.borrow().board().get(&key).map(<[u8]>::to_vec));
                self.handle(Input::LookedUp { namespace, key, requester, value });
            }
            Action::Modex { namespace, rank, requester } => {
                let step = self.pmix.as_mut().map(|pmix| pmix.relay.on_asked(namespace, rank, requester));
                self.take_steps(vec![step.unwrap_or(Step::Reply(requester, None))]);
            }
            Action::Signal(namespace, ranks, signal) => {
                self.shared_files.before_signal(signal, || self.table.pids());
                self.table.signal(namespace, &ranks, signal);
            }
            Action::Inspect(number, ranks) => {
                let found = |(namespace, ranks)| (namespace, self.table.activities(namespace, &ranks));
                let found = ranks.into_iter().map(found).collect();
                self.handle(Input::Inspected(number, found));
            }
            Action::Forget(namespace) => self.forget(namespace),
            Action::Suspended(suspended) => self.links.suspended.set(suspended),
            Action::Restart(namespace, rank, incarnation) => {
                // The session goes on after that failure.
                drop(self.first_failure.take_if(|failure| failure.ranks.contains(rank)));
                if let (Some(startup), Some(local)) = (&mut self.startup, self.namespaces.get(&namespace)) {
                    startup.restart(local, rank, incarnation);
                    self.report_low_limits();
                }
            }
            Action::EndNeighbour(lost, guardian) => {
                if !self.survivors.end(lost, guardian) {
                    tracing::warn!(agent = %lost, "a lost agent is not on this machine");
                }
            }
            Action::Clear => self.sweep = Sweep::Clearing { since: Instant::now(), left: BTreeSet::new() },
            Action::Linger => self.sweep = Sweep::Lingering { signalled: None },
            Action::EndLeft => self.end_left(),
            Action::Sweep => self.sweep.begin(),
            Action::WakeAt(at) => self.alarm.set(self.clock.instant(at)),
            Action::Leave(code) => drop(self.exit_code.get_or_insert(code)),
        }
    }

    /// The time, if this agent is traced.
    fn trace_time(&self) -> Option<Time> {
        self.trace.is_some().then(|| self.clock.now())
    }

    /// Notes a failure of this agent's ranks that is reported.
    fn note_failure(&mut self, message: &Up) {
        if let Up::Failed(failure) = message
            && failure.agent == self.here.head()
            && !failure.ranks.is_empty()
        {
            // The root elects the first cause among the failures of this time, too.
            let is_late = self.first_failure.as_ref().is_some_and(|first| failure.at > first.at + GATHER_WINDOW);
            if !is_late {
                self.first_failure = elect(self.first_failure.iter().chain([failure])).cloned();
            }
        }
    }

    /// Returns the rank whose last lines the launcher may quote.
    pub(in crate::driver) fn quoted(&self) -> Option<Key> {
        let failure = self.first_failure.as_ref()?;
        failure.ranks.first().map(|rank| (failure.namespace, rank))
    }

    pub(super) fn send_up(&mut self, message: &Up) {
        let lane = if message.is_board() { Lane::Board } else { Lane::Control };
        let bytes = Bytes::from(encode(message));
        self.sent_up.note(message.is_board(), bytes.len());
        self.parent.send(lane, bytes, Receipt::default());
    }

    /// The session's files are in this directory, or cannot be stored.
    pub(super) fn on_staged(&mut self, staged: Result<PathBuf, String>) {
        match staged {
            Ok(directory) => {
                if let Some(startup) = &mut self.startup {
                    startup.set_stage_directory(directory);
                }
                self.handle(Input::Staged);
            }
            Err(why) => self.handle(Input::NotStaged(why)),
        }
    }

    /// Prepares to start ranks of `session`.
    fn configure(&mut self, session: SessionPlan) {
        self.shared_files.begin(session.clean_shm, self.guarding.shm_note(), &self.links.tasks);
        if session.profile {
            self.children.expect_profiles();
        }
        let mut streams = sys::take_launcher_streams();
        for (stream, direct) in streams.iter_mut().zip(session.direct) {
            drop(stream.take_if(|file| !direct.permits(sys::needs_no_reader(file.as_fd()))));
        }
        let pump = OutputPump::new(self.parent.clone(), session.hold_lines, streams);
        let session = match (self.is_remote, std::env::var_os("SLURM_STEP_ID")) {
            (false, _) => session,
            (true, None) => session.for_other_node(),
            // A job step started this agent, so its environment is that of the step.
            (true, Some(_)) => {
                let own = |name: &str| std::env::var_os(name).map(OsStringExt::into_vec);
                session.for_other_node().with_devices(own)
            }
        };
        if !session.stage.is_empty() {
            // All children have joined: the launcher sends the plan once the tree is complete.
            let (agent, children, note) = (self.here.head(), self.children.links(), self.guarding.stage_note());
            let begun = self.staging.begin(agent, &session, children, self.parent.clone(), note, &self.links.tasks);
            begun.err().into_iter().for_each(|why| self.handle(Input::NotStaged(why)));
        }
        let (input, events, tasks) = (Rc::clone(&self.input), self.ranks.sender(), self.links.tasks.clone());
        let mark = survivors::mark(self.rejoining.session, self.here.head());
        // Sessions on one machine whose numbers have the same 16 bits do not see each other's marks.
        let accelerators = Accelerators::new(session.accelerators.clone(), &session.environment);
        let binder = Binder::new(session.binding.clone(), accelerators, self.rejoining.session.0 as u16, tasks.clone());
        let (scope, agent) = (session.trace, self.here.head());
        self.trace = DriverTrace::begin(scope, agent);
        match pump.and_then(|pump| Startup::new(session, binder, mark, pump, input, events, tasks)) {
            Ok(mut startup) => {
                if let Some(scope) = scope.filter(|_| self.trace.is_some()) {
                    startup.trace(scope, agent, self.clock);
                }
                self.startup = Some(startup);
            }
            Err(error) => self.startup_failure = Some(setup_failure(&error)),
        }
    }

    /// Queues the ranks of a namespace to be started.
    fn enqueue(&mut self, plan: Box<NamespacePlan>, ranks: Ranks, board: Board) {
        let id = plan.id;
        if plan.spawner.is_none() {
            let takers: Ranks = ranks.iter().filter(|rank| plan.stdin.contains(*rank)).collect();
            let takes = |child: &Subtree| plan.takes_input(*child);
            let children = self.here.children().filter(takes).filter_map(|child| self.children.link(child.head()));
            let node = ranks.first().and_then(|rank| plan.mapping.node_of(rank));
            if node.is_some_and(|node| u64::from(plan.mapping.local_size(node)) == ranks.len()) {
                self.shared_files.set_alone();
            }
            self.input.borrow_mut().open(&takers, children.cloned().collect());
        }
        let report = self.startup.as_mut().map(|startup| startup.binder.begin(&plan, &ranks)).unwrap_or_default();
        if let Err(why) = self.register(&plan, &ranks) {
            return self.handle(Input::NotStarted(id, ranks, NotStartedReason::Reported(why)));
        }
        match &mut self.startup {
            // A spare agent may take over ranks at any time: its board is kept up to date.
            Some(startup) if !ranks.is_empty() || startup.revives_ranks() => {
                match startup.enqueue(plan, &ranks, board) {
                    Ok(local) => drop(self.namespaces.insert(id, local)),
                    Err(error) => return self.handle(Input::NotStarted(id, ranks, setup_failure(&error))),
                }
                if !ranks.is_empty() {
                    self.report_low_limits();
                }
                if !report.is_empty() {
                    self.handle(Input::Bound(Box::new(report)));
                }
            }
            _ if ranks.is_empty() => {}
            Some(_) | None => {
                let why = self.startup_failure.clone().unwrap_or(NotStartedReason::SetupFailed);
                self.handle(Input::NotStarted(id, ranks, why));
            }
        }
    }

    /// Reports the limits that ranks of this agent do not get, before it starts its first ones.
    fn report_low_limits(&mut self) {
        let granted = self.startup.as_mut().map(Startup::take_low_limits).unwrap_or_default();
        if !granted.is_empty() {
            self.handle(Input::LowLimits(granted));
        }
    }

    /// Frees the state of a namespace whose ranks have ended. Its output streams end with their pipes.
    pub(super) fn forget(&mut self, namespace: NamespaceId) {
        if let Some(local) = self.namespaces.remove(&namespace) {
            let board = local.board.borrow();
            self.forgotten.board_gets += board.board().answered();
            self.forgotten.segments += board.readers;
        }
        if let Some(pmix) = &mut self.pmix {
            let mut steps = Vec::new();
            pmix.relay.forget(namespace, &mut steps);
            self.take_steps(steps);
        }
    }

    /// Releases ranks from a fence: one wake-up for all ranks that wait in the shared segment, one answer for each
    /// other. `failed`: the fence failed.
    fn release(&mut self, namespace: NamespaceId, ranks: &Ranks, failed: bool) {
        if let Some(trace) = &mut self.trace {
            trace.on_release(self.clock.now(), ranks.len() as u32);
        }
        if let Some(local) = self.namespaces.get_mut(&namespace) {
            local.board.borrow_mut().release(failed);
            local.in_segment = 0;
        }
        let share_processors = ranks.len() > self.processors as u64;
        for rank in ranks.iter() {
            let key = (namespace, rank);
            let answer = if failed { Answer::FenceFailed } else { Answer::Released };
            // The others wait in the segment, or through PMIx.
            if share_processors && self.waiting.contains_key(&key) {
                self.releases.push_back((key, answer));
            } else {
                self.answer(key, answer);
            }
        }
        self.note_released();
    }

    /// Releases the next [`RELEASED_AT_ONCE`] ranks. Returns whether there was one.
    pub(super) fn release_group(&mut self) -> bool {
        if self.releases.is_empty() {
            return false;
        }
        for _ in 0..RELEASED_AT_ONCE {
            let Some((key, answer)) = self.releases.pop_front() else { break };
            self.answer(key, answer);
        }
        self.note_released();
        true
    }

    fn note_released(&mut self) {
        if let Some(trace) = self.trace.as_mut().filter(|_| self.releases.is_empty()) {
            trace.on_released(self.clock.now());
        }
    }

    fn answer(&mut self, key: Key, answer: Answer) {
        let Some(answer) = self.relay_answer(key, answer) else { return };
        let fence = match &answer {
            _ if self.fences.is_empty() => None,
            Answer::Released | Answer::Passed | Answer::FenceFailed => self.fences.remove(&(key, None)),
            Answer::GroupFenced { ranks, tag, .. } => {
                self.fences.remove(&(key, Some(RankGroup { ranks: ranks.clone(), tag: *tag })))
            }
            _ => None,
        };
        if let Some(waiting) = fence.or_else(|| self.waiting.remove(&key)) {
            // A rank that has exited meanwhile needs no answer.
            let _ = waiting.send(answer);
        }
    }
}

/// Returns why an agent that failed with this error can start no ranks.
fn setup_failure(error: &io::Error) -> NotStartedReason {
    tracing::error!(%error, "no rank can be started here");
    NotStartedReason::Reported(format!("its agent could not set itself up: {}", with_limit(error)))
}
