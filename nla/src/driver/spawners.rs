//! The spawner threads of an agent, and the orders that each has not completed.
//!
//! One start takes a fraction of a millisecond, in which its thread is suspended. So an agent with many ranks has a thread
//! for each of some processors.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmi::Rank;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::spawning::{Command, Done, Order, Program, Programs, RESULTS_AT_ONCE, SpawnerThread, StartOrder};
use super::stall::{Stall, StallStep};
use super::trace::StartTrace;
use crate::core::{AgentId, CpuSet, Input, NamespaceId, NotStartedReason, TraceScope, TraceSpan};
use crate::link::Clock;
use crate::sys::{
    self, ExitSignalsHeld, InLaunch, Launching, ProfileFile, RankFile, SPAWNERS_MAX, ShellState, Spawner,
};
use crate::tasks::Tasks;

/// The maximum number of orders that the spawner threads have not completed: each has four descriptors or more.
pub const ORDERS_MAX: usize = 32;
/// The number of ranks that make a thread worth its own start.
const RANKS_PER_THREAD: usize = 8;

/// Returns how many threads an agent has to start `ranks` ranks on a machine with so many usable cores.
pub fn spawner_threads(ranks: usize, cores: usize) -> usize {
    (ranks / RANKS_PER_THREAD).min(cores).clamp(1, SPAWNERS_MAX)
}

/// A thread that must rebind itself is chosen only if it has at least this many fewer orders than one that need not.
const REBINDING_COST: usize = 4;

/// An order that a spawner thread has not completed. `T` is what the agent keeps for a rank.
pub(super) enum Pending<T> {
    Prepare { programs: String },
    Start { namespace: NamespaceId, rank: Rank, program: Program, kept: T },
}

/// A completed order.
pub(super) struct Completed<T> {
    pub(super) order: Pending<T>,
    pub(super) result: Done,
    /// The rank was reported as not started before.
    pub(super) is_given_up: bool,
}

/// A thread with its orders.
struct Worker<T> {
    thread: SpawnerThread,
    /// In the order in which the thread carries them out.
    pending: VecDeque<Pending<T>>,
    /// The first of `pending`.
    stall: Option<Stall>,
    /// The processors of the last rank that was ordered.
    cpus: CpuSet,
}

impl<T> Worker<T> {
    fn child(&self) -> Option<InLaunch> {
        self.thread.slot.current()
    }
}

/// The spawner threads of an agent.
pub(super) struct Spawners<T> {
    shell: ShellState,
    /// The file that all ranks inherit.
    file: Option<Arc<RankFile>>,
    /// The file to which all ranks append their profiles.
    profile: Option<Arc<ProfileFile>>,
    launching: Arc<Launching>,
    /// Notified when a thread has results.
    finished: Arc<Notify>,
    /// At least one.
    workers: Vec<Worker<T>>,
    /// Present while ranks are started and none has stalled: ended ranks are then reaped with the results of the next
    /// starts. A wake-up of this thread per ended rank would slow the starts.
    signals_held: Option<ExitSignalsHeld>,
    /// The starts were cancelled, so none is ordered any more.
    is_cancelled: bool,
    /// Set if starts are traced.
    trace: Option<(TraceScope, AgentId, Clock)>,
    tasks: Tasks,
}

impl<T> Spawners<T> {
    /// Starts one thread, whose ranks get the attributes of `shell` and inherit `file` and `profile`.
    pub(super) fn start(
        shell: ShellState,
        file: Option<Arc<RankFile>>,
        profile: Option<Arc<ProfileFile>>,
        tasks: Tasks,
    ) -> io::Result<Self> {
        let mut spawners = Self {
            shell,
            file,
            profile,
            launching: Arc::default(),
            finished: Arc::default(),
            workers: Vec::new(),
            signals_held: None,
            is_cancelled: false,
            trace: None,
            tasks,
        };
        spawners.add_thread()?;
        Ok(spawners)
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let mut spawner = Spawner::new(self.shell.clone(), &self.launching)?;
        self.file.iter().for_each(|file| spawner.share(Arc::clone(file)));
        self.profile.iter().for_each(|file| spawner.share_profile(Arc::clone(file)));
        let thread = SpawnerThread::start(spawner, Arc::clone(&self.finished), &self.tasks)?;
        if let Some((scope, agent, clock)) = self.trace {
            thread.trace(StartTrace::begin(scope, agent, self.workers.len() as u8, clock));
        }
        self.workers.push(Worker { thread, pending: VecDeque::new(), stall: None, cpus: CpuSet::default() });
        Ok(())
    }

    /// Notes all starts of `agent` from now on. To be called before the first start.
    pub(super) fn trace(&mut self, scope: TraceScope, agent: AgentId, clock: Clock) {
        self.trace = Some((scope, agent, clock));
        for (worker, number) in self.workers.iter().zip(0..) {
            worker.thread.trace(StartTrace::begin(scope, agent, number, clock));
        }
    }

    /// Returns the starts that were noted.
    pub(super) fn spans(&self) -> Vec<TraceSpan> {
        self.workers.iter().flat_map(|worker| worker.thread.spans()).collect()
    }

    /// Starts as many threads as are useful for `ranks` ranks on this machine. Goes on with fewer if one cannot be started.
    pub(super) fn grow(&mut self, ranks: usize) {
        let wanted = spawner_threads(ranks, sys::cores());
        while self.workers.len() < wanted {
            if let Err(error) = self.add_thread() {
                tracing::warn!(%error, "ranks are started by fewer threads");
                break;
            }
        }
    }

    /// Returns the children in launch, for the thread that reaps.
    pub(super) fn launching(&self) -> Arc<Launching> {
        Arc::clone(&self.launching)
    }

    fn pending(&self) -> usize {
        self.workers.iter().map(|worker| worker.pending.len()).sum()
    }

    /// Returns whether another rank can be ordered.
    pub(super) fn has_room(&self) -> bool {
        self.pending() < ORDERS_MAX
    }

    /// Returns whether a whole batch of results fits among the orders.
    pub(super) fn has_room_for_batch(&self) -> bool {
        self.pending() + RESULTS_AT_ONCE <= ORDERS_MAX
    }

    /// Returns whether one thread carries out all orders: ranks may then be ordered right after their programs.
    pub(super) fn is_one_thread(&self) -> bool {
        self.workers.len() == 1
    }

    /// Lets a thread find programs.
    pub(super) fn order_programs(&mut self, order: Pending<T>, commands: Vec<Command>, programs: Programs) {
        self.order(0, order, Order::Prepare(commands, programs));
    }

    /// Lets a thread start a rank: the one with the fewest orders, which need not be bound anew if possible.
    pub(super) fn order_start(&mut self, order: Pending<T>, start: Box<StartOrder>) {
        let at = chosen(self.workers.iter().map(|worker| (worker.pending.len(), worker.cpus == start.seat.cpus)));
        self.workers[at].cpus.clone_from(&start.seat.cpus);
        self.order(at, order, Order::Start(start));
    }

    fn order(&mut self, at: usize, pending: Pending<T>, order: Order) {
        let worker = &mut self.workers[at];
        worker.pending.push_back(pending);
        worker.thread.order(order);
        worker.stall.get_or_insert_with(|| Stall::begin(Instant::now()));
        self.signals_held.get_or_insert_with(ExitSignalsHeld::begin);
    }

    /// Takes the orders that the threads have completed.
    pub(super) fn take(&mut self) -> Vec<Completed<T>> {
        let mut completed = Vec::new();
        for worker in &mut self.workers {
            let results = worker.thread.take();
            if results.is_empty() {
                continue;
            }
            for result in results {
                let is_given_up = worker.stall.take().is_some_and(|stall| stall.is_given_up());
                let Some(order) = worker.pending.pop_front() else {
                    tracing::error!("a result of a spawner thread has no order");
                    continue;
                };
                completed.push(Completed { order, result, is_given_up });
            }
            worker.stall = (!worker.pending.is_empty()).then(|| {
                let mut stall = Stall::begin(Instant::now());
                if self.is_cancelled {
                    stall.cancel(Instant::now());
                }
                stall
            });
        }
        if self.pending() == 0 {
            self.signals_held = None;
        }
        completed
    }

    /// Takes back the ranks that no thread has begun to start.
    pub(super) fn cancel(&mut self) -> Vec<(NamespaceId, Rank)> {
        self.is_cancelled = true;
        let mut cancelled = Vec::new();
        for worker in &mut self.workers {
            for _ in 0..worker.thread.withdraw() {
                if let Some(Pending::Start { namespace, rank, .. }) = worker.pending.pop_back() {
                    cancelled.push((namespace, rank));
                }
            }
            if let Some(stall) = &mut worker.stall {
                stall.cancel(Instant::now());
            }
        }
        cancelled
    }

    /// Lets ranks start again after a cancel.
    pub(super) fn resume(&mut self) {
        self.is_cancelled = false;
    }

    /// Waits until a thread has results. Cancel-safe.
    pub(super) async fn finished(&self) {
        self.finished.notified().await;
    }

    /// Waits until a start that a thread makes needs attention. Cancel-safe.
    pub(super) async fn stalled(&self) {
        match self.workers.iter().filter_map(|worker| worker.stall.as_ref()?.next_at()).min() {
            Some(at) => sleep_until(at.into()).await,
            None => pending().await,
        }
    }

    /// Takes the steps that are due for the starts that the threads make, and returns the inputs for the core.
    pub(super) fn on_stalled(&mut self) -> Vec<Input> {
        let mut inputs = Vec::new();
        for worker in &mut self.workers {
            let child = worker.child();
            let (Some(stall), Some(order)) = (&mut worker.stall, worker.pending.front()) else { continue };
            match stall.step(Instant::now()) {
                None => {}
                Some(StallStep::Look) => self.signals_held = None,
                Some(StallStep::Report(time)) => inputs.push(Input::Busy(stalled_text(order, child, time))),
                Some(StallStep::Kill) => {
                    child.inspect(|child| worker.thread.slot.kill(child.pid));
                }
                Some(StallStep::GiveUp) => match order {
                    Pending::Prepare { .. } => {}
                    Pending::Start { namespace, rank, .. } => {
                        let ranks = std::iter::once(*rank).collect();
                        inputs.push(Input::NotStarted(*namespace, ranks, NotStartedReason::Cancelled));
                    }
                },
            }
        }
        inputs
    }

    /// Describes a process that SIGKILL has not ended.
    pub(super) fn left_text(&self, pid: u32) -> String {
        let worker = self.workers.iter().find(|worker| worker.child().is_some_and(|child| child.pid == pid));
        let what = match worker.and_then(|worker| worker.pending.front()) {
            Some(Pending::Start { rank, program, .. }) => format!(" of rank {rank} in exec of {}", program.path()),
            _ => String::new(),
        };
        format!("process {pid}{what}{} cannot be killed: it is in uninterruptible sleep", waits_in(pid))
    }
}

/// Returns the thread for the next rank, given the orders of each, and whether the last of them is for the same processors.
fn chosen(threads: impl Iterator<Item = (usize, bool)>) -> usize {
    let load = |(_, (orders, is_same)): &(usize, (usize, bool))| orders + if *is_same { 0 } else { REBINDING_COST };
    threads.enumerate().min_by_key(load).map_or(0, |(at, _)| at)
}

/// Describes the system call that a spawner thread or its child has not completed for `time`.
fn stalled_text<T>(order: &Pending<T>, child: Option<InLaunch>, time: Duration) -> String {
    let seconds = time.as_secs();
    match (order, child) {
        (Pending::Prepare { programs, .. }, _) => format!("busy in the search for '{programs}' for {seconds} s"),
        (Pending::Start { rank, program, .. }, Some(InLaunch { pid, is_in_exec })) => {
            let call = match is_in_exec {
                true => format!("exec of {}", program.path()),
                false => format!("chdir to {}", program.wdir()),
            };
            format!("rank {rank}, process {pid}{}: busy in {call} for {seconds} s", waits_in(pid))
        }
        (Pending::Start { rank, .. }, None) => format!("rank {rank}: busy in its start for {seconds} s"),
    }
}

/// Names the kernel function in which a process sleeps.
fn waits_in(pid: u32) -> String {
    sys::wait_channel(pid).map(|channel| format!(" (wait channel {channel})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_to_the_thread_with_the_fewest_orders() {
        assert_eq!(chosen([(0, true), (0, true)].into_iter()), 0);
        assert_eq!(chosen([(1, true), (0, true)].into_iter()), 1);
        assert_eq!(chosen([(16, true), (3, true), (2, true)].into_iter()), 2, "the first one has stalled");
    }

    #[test]
    fn ranks_with_the_same_processors_stay_together_while_no_thread_idles() {
        assert_eq!(chosen([(3, false), (3, true)].into_iter()), 1);
        assert_eq!(chosen([(0, false), (3, true)].into_iter()), 1);
        assert_eq!(chosen([(0, false), (5, true)].into_iter()), 0);
    }
}
