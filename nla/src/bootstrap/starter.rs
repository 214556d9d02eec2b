//! Starts agents: from the launcher, and from agents that start others.
//!
//! A [`Starter`] runs the tasks around a [`Schedule`]: it opens remote shells as the schedule says, and passes the
//! reports of all agents on, each with its target. Commands for a target go to the agent there, or to the agent on the
//! route to it. An agent calls back as soon as it runs ([`Callbacks`]); the remote shell is then closed, so that only
//! those are open whose agents have not answered. A remote shell that must last as long as its agent stays the
//! bootstrap channel. One command may also start many agents ([`Step`]); each of them calls back.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use litemap::LiteMap;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::sleep_until;
use tracing::Span;

use super::attempt;
use super::callback::Callbacks;
use super::channel_links;
use super::decide::deadline::Deadline;
use super::decide::pending_joins::PendingJoins;
use super::decide::roster::steps;
use super::decide::schedule::{Schedule, ScheduleAction, ScheduleInput, Task, tasks_below};
use super::decide::start_limit::StartLimit;
use super::processes::{Processes, Started};
use super::protocol::{
    Below, BootCommand, BootOrder, BootReport, HostAt, Joining, Links, Method, StartTimes, TargetReport,
};
use super::shell::Shell;
use super::step::Step;
use crate::core::{AgentId, Subtree, Time};
use crate::link::{Accepted, Clock, Reach};
use crate::sys::{self, ForkedGuardian};
use crate::tasks::Tasks;
use crate::wire::TreePosition;

/// How long a process may take to exit once its channel has ended, and how long its last words may take to arrive.
pub(super) const END_TIME: Duration = Duration::from_secs(1);

/// The exit code of a Rust program that has panicked.
const CODE_PANIC: i32 = 101;

/// Asks the keeper of a host for an agent: its session's label, its dead time, and the other ends of its standard input, output and
/// error.
type AskKeeper = dyn Fn(&str, &str, Duration, [OwnedFd; 3]) -> io::Result<()>;

/// The [keepers](crate::keeper) of a pool, as its launchers see them.
#[derive(Clone)]
pub struct Keepers(Rc<AskKeeper>);

impl Keepers {
    /// Asks for agents by `ask`. An error means that no keeper can be asked. If an agent cannot be started, its output ends, and its
    /// standard error says why.
    pub fn new(ask: impl Fn(&str, &str, Duration, [OwnedFd; 3]) -> io::Result<()> + 'static) -> Self {
        Self(Rc::new(ask))
    }

    pub(super) fn ask(&self, host: &str, label: &str, dead_time: Duration, streams: [OwnedFd; 3]) -> io::Result<()> {
        (self.0)(host, label, dead_time, streams)
    }
}

impl fmt::Debug for Keepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keepers(..)")
    }
}

/// Starts the agents of some targets. Dropping it ends all starts that are under way.
pub(crate) struct Starter {
    shared: Rc<Shared>,
    reports: mpsc::UnboundedReceiver<TargetReport>,
    scheduler: AbortHandle,
}

/// The state that the tasks of a starter share.
pub(super) struct Shared {
    pub(super) order: BootOrder,
    pub(super) method: Method,
    /// Starts agents for [`Method::Keeper`].
    pub(super) keepers: Option<Keepers>,
    /// Spawns the tasks of this starter.
    pub(super) spawner: Tasks,
    pub(super) deadline: Deadline,
    /// The time since this starter was created: an agent that starts others may not know the session's time yet.
    clock: Clock,
    inputs: mpsc::UnboundedSender<ScheduleInput>,
    reports: mpsc::UnboundedSender<TargetReport>,
    /// The channels to targets, each by the first target that it leads to.
    routes: RefCell<LiteMap<u32, Route>>,
    pub(super) processes: Processes,
    /// Forked guardians without an order, and their processes. A start takes the last one.
    pub(super) forked: RefCell<Vec<(ForkedGuardian, Started)>>,
    /// The guardians that were forked here and have not been reaped, by target.
    pub(super) guardians: RefCell<Vec<(u32, Started)>>,
    /// The address that started agents call back, if they do.
    pub(super) callbacks: OnceCell<Callbacks>,
    /// The session's clock, and the queue for links over channels. Set before any agent is told to join.
    pub(super) links: OnceCell<(Clock, mpsc::Sender<Accepted>)>,
    pub(super) pending_joins: RefCell<PendingJoins>,
    /// Notified of each agent that may join.
    admits: Notify,
    tasks: RefCell<Vec<AbortHandle>>,
}

/// The channel to an agent, and the targets behind it.
struct Route {
    commands: mpsc::UnboundedSender<BootCommand>,
    /// How many targets it leads to, its own among them.
    targets: u32,
}

impl Starter {
    /// Creates a starter that starts nothing yet. `order` is the order for each agent, without its target. `keepers` is for
    /// [`Method::Keeper`]. `batch` fixes how many remote shells open at a time. After `times` each agent has reported or has failed.
    pub(crate) fn new(
        order: BootOrder,
        method: Method,
        keepers: Option<Keepers>,
        batch: Option<u32>,
        times: StartTimes,
        spawner: Tasks,
    ) -> Self {
        let start_limit = match method {
            // A fork never waits for another host, and a keeper never for a login.
            Method::Fork | Method::Keeper => StartLimit::new(Some(u32::MAX)),
            Method::RemoteShell { .. } | Method::Step { .. } => StartLimit::new(batch),
        };
        // Bounded by the number of targets: each is in it once at a time, and makes at most seven reports.
        let (inputs, incoming) = mpsc::unbounded_channel();
        let (reporting, reports) = mpsc::unbounded_channel();
        let clock = Clock::start();
        let deadline = Deadline::after(clock.now(), times);
        let schedule = Schedule::new(start_limit, deadline, order.marker);
        let shared = Rc::new(Shared {
            order,
            method,
            keepers,
            spawner,
            deadline,
            clock,
            inputs,
            reports: reporting,
            routes: RefCell::default(),
            processes: Processes::default(),
            forked: RefCell::default(),
            guardians: RefCell::default(),
            callbacks: OnceCell::new(),
            links: OnceCell::new(),
            pending_joins: RefCell::default(),
            admits: Notify::new(),
            tasks: RefCell::default(),
        });
        let scheduling = run_schedule(Rc::clone(&shared), schedule, incoming);
        let scheduler = shared.spawner.spawn("starter", Span::current(), scheduling);
        Self { shared, reports, scheduler: scheduler.abort_handle() }
    }

    /// Adds guardians that were forked. Each [`start`](Self::start) on this machine takes the next one.
    pub(super) fn add_forked(&self, guardians: Vec<ForkedGuardian>) {
        let known = |guardian: ForkedGuardian| {
            let process = self.shared.processes.add(guardian.pid, true);
            (guardian, process)
        };
        self.shared.forked.borrow_mut().extend(guardians.into_iter().rev().map(known));
    }

    /// Adds the guardian of an agent that has joined before the session began.
    pub(super) fn add_standing(&self, target: u32, pid: u32) {
        let process = self.shared.processes.add_staying(pid);
        self.shared.guardians.borrow_mut().push((target, process));
    }

    /// Starts the agents of the targets below the agent that got `order`; `None` if the order names none.
    pub(super) fn below(order: &BootOrder, spawner: Tasks) -> Option<Self> {
        let below = order.below.as_ref()?;
        let own = BootOrder { starter: order.target, below: None, callback: Vec::new(), ..order.clone() };
        let starter = Self::new(own, below.method.clone(), None, below.batch, below.times, spawner);
        starter.start_tree(order.target, below, Vec::new());
        Some(starter)
    }

    /// Waits for the next report. Cancel safe.
    pub(super) async fn next(&mut self) -> TargetReport {
        match self.reports.recv().await {
            Some(report) => report,
            // Unreachable: `shared` has a sender.
            None => pending().await,
        }
    }

    /// Waits for an agent that does not join, and the reason. For agents with the numbers of their targets. Cancel safe.
    pub(crate) async fn next_failure(&mut self) -> (AgentId, String) {
        loop {
            if let (target, BootReport::NotStarted(failure)) = self.next().await {
                return (AgentId(target), failure.words);
            }
        }
    }

    /// Starts an agent at a target on `host`, or on this machine. It must be reachable from `reach`.
    pub(crate) fn start(&self, target: u32, host: Option<HostAt>, reach: Reach) {
        self.shared.schedule(ScheduleInput::Start(Box::new(Task::new(target, host, reach, None))));
    }

    /// Starts agents at all targets of `below`: the children of `here` from this process, the others from there. They
    /// call back at the `own` addresses, the likeliest first; without any, at those that this process finds itself.
    pub(crate) fn start_tree(&self, here: u32, below: &Below, own: Vec<IpAddr>) {
        let children = tasks_below(here, below, self.shared.order.reach);
        let lasts = !matches!(self.shared.method, Method::RemoteShell { lasts: false, .. });
        if lasts || self.shared.order.links == Links::RemoteShells {
            return children.into_iter().for_each(|task| self.shared.schedule(ScheduleInput::Start(Box::new(task))));
        }
        let targets = here + 1..=here + below.hosts.len() as u32;
        let shared = Rc::clone(&self.shared);
        self.shared.spawn(async move {
            match Callbacks::listen(&shared, targets.clone(), &own).await {
                Ok(callbacks) => {
                    let _ = shared.callbacks.set(callbacks);
                    children.into_iter().for_each(|task| shared.schedule(ScheduleInput::Start(Box::new(task))));
                }
                Err(failure) => {
                    targets.for_each(|target| shared.report(target, BootReport::NotStarted(failure.clone())));
                }
            }
        });
    }

    /// Starts agents on all of `hosts`, the targets from 1 on, by steps of a resource manager: one step, unless a host
    /// is listed several times. They call back at the `own` addresses, the likeliest first. `fold` writes names of
    /// hosts as a host list. For [`Method::Step`] only.
    pub(crate) fn start_steps(&self, hosts: &[HostAt], own: &[IpAddr], fold: fn(&[&str]) -> String) {
        for targets in steps(hosts) {
            let step = Step { shared: Rc::clone(&self.shared), own: own.to_vec(), fold };
            self.shared.spawn(step.run(targets));
        }
    }

    /// Sends a command to the agent at a target, through the agents on the route to it.
    pub(crate) fn tell(&self, target: u32, command: BootCommand) {
        let routes = self.shared.routes.borrow();
        let at = routes.find_index(&target).or_else(|after| after.checked_sub(1).ok_or(()));
        if let Ok(at) = at
            && let Some((first, route)) = routes.get_indexed(at)
            && target - first < route.targets
        {
            let command = if *first == target { command } else { BootCommand::Below(target, Box::new(command)) };
            // The loss of the agent is reported by the task that reads its channel.
            let _ = route.commands.send(command);
        }
    }

    /// Sends the links over channels to `joined`. `clock` is the session's. To be called before
    /// [`admit`](Self::admit).
    pub(crate) fn take_links(&self, clock: Clock, joined: mpsc::Sender<Accepted>) {
        let _ = self.shared.links.set((clock, joined));
    }

    /// Lets the agent at a target, which was started from here, join over its channel with this process as its parent.
    pub(crate) fn admit(&self, target: u32, position: TreePosition) {
        self.shared.pending_joins.borrow_mut().expect(self.shared.now(), target, position.agent);
        self.shared.spawn(channel_links::time_out(Rc::clone(&self.shared), target));
        if self.shared.order.links == Links::Pipes {
            // Its order has its position.
            return self.shared.admits.notify_waiters();
        }
        let (parent, opener_port, ancestors) = Default::default();
        self.tell(target, BootCommand::Join(Joining { position, parent, opener_port, ancestors }));
    }

    /// Tells the children of `here` to join over their remote shells. Their links go to `joined`. In their tree each
    /// agent has the number of its target.
    pub(crate) fn admit_children(
        &self,
        position: TreePosition,
        here: Subtree,
        clock: Clock,
        joined: mpsc::Sender<Accepted>,
    ) {
        self.take_links(clock, joined);
        for child in here.children() {
            self.admit(child.head().0, TreePosition { agent: child.head(), ..position });
        }
    }

    /// Returns the started processes. Each of them that is reaped elsewhere must be reported to them.
    pub(crate) fn processes(&self) -> Processes {
        self.shared.processes.clone()
    }

    /// Ends orphans that this process adopts, whenever a child exits, until the starter is dropped or waited for. The exit
    /// of a guardian or of an agent without a guardian comes after the adoption of its children.
    pub(super) fn end_orphans(&self) {
        let shared = Rc::clone(&self.shared);
        self.shared.spawn(async move {
            let Ok(mut exits) = signal(SignalKind::child()) else { return };
            while exits.recv().await.is_some() {
                sys::end_orphans(&shared.processes.pids(), true);
            }
        });
    }

    /// Returns the targets whose guardians were forked here and have ended since the last call, after all processes of
    /// their agents. A guardian that was killed, or that could not kill some of these, is left out.
    pub(super) fn take_ended(&self) -> Vec<u32> {
        let mut ended = Vec::new();
        self.shared.guardians.borrow_mut().retain(|(target, guardian)| match guardian.ended() {
            None => true,
            Some(code) => {
                let is_normal = code.is_some_and(|code| ![CODE_PANIC, sys::CODE_ABANDONED].contains(&code));
                ended.extend(is_normal.then_some(*target));
                false
            }
        });
        ended
    }

    /// Ends all starts that are under way, sends SIGTERM to remote shells, and waits up to `timeout` for them and for the guardians
    /// that were started here. Then sends SIGKILL to the shells that are left and SIGTERM to the guardians, and waits once more.
    /// Returns how many have not exited.
    pub(crate) async fn wait(&mut self, timeout: Duration) -> usize {
        self.stop();
        let processes = &self.shared.processes;
        // A remote shell that carries a link exits by itself, after all processes at its other end.
        if self.shared.order.links == Links::RemoteShells {
            processes.wait(END_TIME.min(timeout)).await;
        }
        processes.end_shells();
        processes.continue_guardians();
        match processes.wait(timeout).await {
            0 => 0,
            _ => {
                processes.kill_shells();
                processes.end_all();
                processes.wait(timeout).await
            }
        }
    }

    /// Aborts all tasks. An agent that has not joined exits when its channel ends.
    fn stop(&self) {
        self.scheduler.abort();
        self.shared.tasks.borrow_mut().drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.stop();
        self.shared.processes.end_shells();
    }
}

/// Carries out what the schedule decides.
async fn run_schedule(shared: Rc<Shared>, mut schedule: Schedule, mut inputs: mpsc::UnboundedReceiver<ScheduleInput>) {
    let (mut actions, mut wake_at) = (Vec::new(), Time::ZERO);
    let mut wakes = false;
    loop {
        let input = tokio::select! {
            Some(input) = inputs.recv() => input,
            () = sleep_until(shared.clock.instant(wake_at)), if wakes => ScheduleInput::Timeout,
        };
        if let ScheduleInput::Failed(task, failure) = &input {
            tracing::debug!(target = task.target, ?failure, limit = schedule.limit(), "an agent was not started");
        }
        schedule.handle(shared.now(), input, &mut actions);
        wakes = false;
        for action in actions.drain(..) {
            match action {
                ScheduleAction::Open(task) => shared.spawn(attempt::run(Rc::clone(&shared), *task)),
                ScheduleAction::NotReached(target, failure) => {
                    shared.report(target, BootReport::NotReached(failure));
                }
                ScheduleAction::GiveUp(target, failure) => shared.report(target, BootReport::NotStarted(failure)),
                ScheduleAction::WakeAt(at) => (wake_at, wakes) = (at, true),
            }
        }
    }
}

impl Shared {
    /// Runs a task that ends with the starter.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let running = self.spawner.spawn("shell", Span::current(), task);
        self.tasks.borrow_mut().push(running.abort_handle());
    }

    pub(super) fn schedule(&self, input: ScheduleInput) {
        // The scheduler receives as long as any task of this starter runs.
        let _ = self.inputs.send(input);
    }

    /// Returns the time since the starter was created.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn report(&self, target: u32, report: BootReport) {
        if let BootReport::NotStarted(_) = report {
            self.settle(target);
        }
        // At the end of the session nothing receives reports any more.
        let _ = self.reports.send((target, report));
    }

    /// Waits until the agent at `target` may join, and returns its number. An agent that knows its position may join before its
    /// start is reported. Cancel safe.
    pub(super) async fn admitted(&self, target: u32) -> AgentId {
        loop {
            let agent = self.pending_joins.borrow().agent(target);
            match agent {
                Some(agent) => return agent,
                None => self.admits.notified().await,
            }
        }
    }

    /// Stops waiting for the agent at a target to join. Returns how long it was waited for; `None` if it was not.
    pub(super) fn settle(&self, target: u32) -> Option<Duration> {
        self.pending_joins.borrow_mut().settle(self.now(), target)
    }

    /// Makes the channel to `target` the route to it and to the `below` targets behind it. Returns the commands that
    /// are to be sent over the channel.
    pub(super) fn add_route(&self, target: u32, below: u32) -> mpsc::UnboundedReceiver<BootCommand> {
        // Bounded by the targets behind this one: each is sent one command.
        let (commands, incoming) = mpsc::unbounded_channel();
        self.routes.borrow_mut().insert(target, Route { commands, targets: 1 + below });
        incoming
    }

    /// Closes the descriptors of a remote shell. Ends its process as well, unless an agent needs it.
    pub(super) fn close(&self, shell: Shell, is_over: bool) {
        if self.method != Method::Fork && (is_over || !shell.lasts) {
            shell.process.iter().for_each(Started::end);
        }
    }
}

#[cfg(test)]
mod tests;
