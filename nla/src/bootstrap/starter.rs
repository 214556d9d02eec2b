//! Starting agents: from the launcher, and from agents that start others.
//!
//! A [`Starter`] opens sessions, as many at a time as its window allows, and says what comes of them:
//! each report of an agent that it has started, or of one below, with the target that it is about.
//! What it is told for a target goes to the agent there, or to the one on the way. A session's
//! agent calls back as soon as it is there (`callers`), and what they say to each other goes over that
//! connection: the session is ended, so that only those are open that have not come to anything yet. Where it
//! has to last, it is the channel. Where one command starts many agents (`step`), each calls back, too.
//!
//! All agents are to be there by one time. Who starts others that start others has to hear of them by then:
//! so each session, and each who starts agents below, is given a part of what is left (`deadline`).

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::attempt::{Beginning, attend};
use super::callback::Callers;
use super::decide::deadline::Deadline;
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::window::Window;
use super::processes::Children;
use super::protocol::{Below, BootCommand, BootOrder, BootReport, HostAt, Links, Method};
use super::shell::Session;
use super::shell_links::ShellLinks;
use super::step::Step;
use crate::core::{AgentId, Subtree};
use crate::link::Accepted;
use crate::link::Clock;
use crate::link::Reach;
use crate::sys::Ended;
use crate::wire::TreePosition;

/// The wait before a host that refuses a session is tried again; it doubles each time, up to so many times, and is
/// spread by as much again.
const RETRY_TIME: Duration = Duration::from_millis(50);
const RETRY_DOUBLINGS: u32 = 4;

/// How long the process of a session that is over may take to end, and its last words to come.
pub(super) const END_TIME: Duration = Duration::from_secs(1);

/// What becomes of a target.
pub type TargetReport = (u32, BootReport);

/// A target and what is to be started there.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) target: u32,
    pub(super) host: Option<HostAt>,
    pub(super) reach: Reach,
    pub(super) below: Option<Below>,
    pub(super) tries: u32,
    /// Why it is tried again.
    pub(super) before: Option<StartFailure>,
    /// A program that is there is asked for its version.
    pub(super) looks: bool,
}

impl Task {
    /// One that was not tried yet.
    fn new(target: u32, host: Option<HostAt>, reach: Reach, below: Option<Below>) -> Self {
        Self { target, host, reach, below, tries: 0, before: None, looks: false }
    }
}

/// See the module. Dropping it ends what was not started.
pub struct Starter {
    tasks: mpsc::UnboundedSender<Task>,
    shared: Rc<Shared>,
    scheduler: AbortHandle,
}

/// What all sessions of a starter have in common.
pub(super) struct Shared {
    pub(super) order: BootOrder,
    pub(super) method: Method,
    pub(super) deadline: Deadline,
    pub(super) reports: mpsc::UnboundedSender<TargetReport>,
    /// The way to each target: the channel of the session on the way, by the first target behind it.
    pub(super) ways: RefCell<BTreeMap<u32, Way>>,
    pub(super) children: Children,
    /// Where the agents at the other ends of sessions call, if they do.
    pub(super) callers: OnceCell<Callers>,
    /// Where links go over sessions.
    pub(super) carried: ShellLinks,
    pub(super) sessions: RefCell<Vec<AbortHandle>>,
}

pub(super) struct Way {
    pub(super) commands: mpsc::UnboundedSender<BootCommand>,
    /// The targets behind it: this many from its own on.
    pub(super) targets: u32,
}

impl Starter {
    /// Starts nothing yet. `order` is the same for all agents but for the target; `batch` fixes how many
    /// sessions are opened at a time; after `patience` all agents are there, or have failed. Reports are bounded by
    /// the number of targets.
    pub fn new(
        order: BootOrder,
        method: Method,
        batch: Option<u32>,
        patience: Duration,
        reports: mpsc::UnboundedSender<TargetReport>,
    ) -> Self {
        let window = match method {
            // Nothing is gained by waiting.
            Method::Fork => Window::new(Some(u32::MAX)),
            Method::RemoteShell { .. } | Method::Step { .. } => Window::new(batch),
        };
        let shared = Rc::new(Shared {
            order,
            method,
            deadline: Deadline::after(patience),
            reports,
            ways: RefCell::default(),
            children: Children::default(),
            callers: OnceCell::new(),
            carried: ShellLinks::default(),
            sessions: RefCell::default(),
        });
        // Bounded by the number of targets.
        let (tasks, incoming) = mpsc::unbounded_channel();
        let scheduler = tokio::task::spawn_local(schedule(Rc::clone(&shared), window, incoming, tasks.downgrade()));
        Self { tasks, shared, scheduler: scheduler.abort_handle() }
    }

    /// Starts the agents at all targets below that `order` names, as who got that order; none if it names none.
    pub fn below(order: &BootOrder, reports: mpsc::UnboundedSender<TargetReport>) -> Option<Self> {
        let below = order.below.as_ref()?;
        let own = BootOrder { below: None, callback: Vec::new(), ..order.clone() };
        let starter = Self::new(own, below.method.clone(), below.batch, below.patience, reports);
        starter.start_tree(order.target, below, Vec::new());
        Some(starter)
    }

    /// Starts an agent at a target of this host, without one of this machine, to be reached from there.
    pub fn start(&self, target: u32, host: Option<HostAt>, reach: Reach) {
        self.push(Task::new(target, host, reach, None));
    }

    /// Starts agents at all targets of `below`: the nearest ones from here, which start the others. They find
    /// this process at `own` addresses, the likeliest first; where none are given, at those that it knows itself.
    pub fn start_tree(&self, here: u32, below: &Below, own: Vec<IpAddr>) {
        let near = tasks_below(here, below, self.shared.order.reach);
        let lasts = !matches!(self.shared.method, Method::RemoteShell { lasts: false, .. });
        if lasts || self.shared.carries_links() {
            return near.into_iter().for_each(|task| self.push(task));
        }
        let targets = here + 1..=here + below.hosts.len() as u32;
        let (shared, tasks) = (Rc::clone(&self.shared), self.tasks.clone());
        self.shared.spawn(async move {
            match Callers::open(&shared, targets.clone(), &own).await {
                Ok(callers) => {
                    let _ = shared.callers.set(callers);
                    near.into_iter().for_each(|task| drop(tasks.send(task)));
                }
                Err(failure) => {
                    targets.for_each(|target| shared.report(target, BootReport::NotStarted(failure.clone())));
                }
            }
        });
    }

    /// Starts agents at all of `hosts`, the targets from 1 on, by steps: one, unless a host is there several
    /// times. They find this process at `own` addresses, the likeliest first; `fold` makes a list of hosts of
    /// their names. For [`Method::Step`] only.
    pub fn start_steps(&self, hosts: &[HostAt], own: &[IpAddr], fold: fn(&[&str]) -> String) {
        let mut steps: Vec<BTreeMap<String, u32>> = Vec::new();
        for (target, host) in (1..).zip(hosts) {
            match steps.iter_mut().find(|step| !step.contains_key(&host.name)) {
                Some(step) => drop(step.insert(host.name.clone(), target)),
                None => steps.push(BTreeMap::from([(host.name.clone(), target)])),
            }
        }
        for targets in steps {
            let step = Step { shared: Rc::clone(&self.shared), own: own.to_vec(), fold };
            self.shared.spawn(step.attend(targets));
        }
    }

    /// Tells something to the agent at a target, through those on the way.
    pub fn tell(&self, target: u32, command: BootCommand) {
        let ways = self.shared.ways.borrow();
        if let Some((first, way)) = ways.range(..=target).next_back()
            && target - first < way.targets
        {
            let command = if *first == target { command } else { BootCommand::Below(target, Box::new(command)) };
            // Who is gone is reported as that.
            let _ = way.commands.send(command);
        }
    }

    /// Where links go over sessions: those that come about go to `joined`. To be called before
    /// [`admit`](Self::admit), with the session's time.
    pub fn take_links(&self, clock: Clock, joined: mpsc::Sender<Accepted>) {
        self.shared.carried.take_links(clock, joined);
    }

    /// Tells the agent at a target, which was started from here, to join with this process as its parent, over its
    /// session.
    pub fn admit(&self, target: u32, place: TreePosition) {
        self.shared.carried.expect(target, place.agent);
        self.shared.spawn(super::shell_links::wait_for(Rc::clone(&self.shared), target));
        self.tell(target, BootCommand::Join { place, parent: Vec::new(), opener_port: None });
    }

    /// The processes of sessions that have not been seen to end.
    pub fn processes(&self) -> BTreeSet<u32> {
        self.shared.children.pids()
    }

    /// Who waits for all children of this process has waited for this one. False if it has not been started here.
    pub fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        self.shared.children.note_ended(pid, ended)
    }

    fn push(&self, task: Task) {
        // The scheduler lives as long as this.
        let _ = self.tasks.send(task);
    }

    /// Ends all sessions that are not over, and waits for the guardians that were started here, for at
    /// most `patience`; those that are left are told to end what they guard, and waited for once more.
    /// Returns how many did not.
    pub async fn wait(&mut self, patience: Duration) -> usize {
        self.scheduler.abort();
        // An agent that has not joined ends when its channel does.
        self.shared.sessions.borrow_mut().drain(..).for_each(|session| session.abort());
        let children = &self.shared.children;
        // One that carries a link ends by itself, when all at its other end has.
        if self.shared.carries_links() {
            children.wait(END_TIME.min(patience)).await;
        }
        children.end_sessions();
        match children.wait(patience).await {
            0 => 0,
            _ => {
                children.end_all();
                children.wait(patience).await
            }
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.scheduler.abort();
        self.shared.sessions.borrow_mut().drain(..).for_each(|session| session.abort());
        self.shared.children.end_sessions();
    }
}

/// The nearest targets below `here`, each with what is below it.
fn tasks_below(here: u32, below: &Below, reach: Reach) -> Vec<Task> {
    let Some(subtree) = Subtree::whole(below.targets, below.fanout).of(AgentId(here)) else { return Vec::new() };
    let host = |target: u32| below.hosts.get((target - here - 1) as usize).cloned();
    subtree
        .children()
        .map(|child| {
            let target = child.head().0;
            let hosts: Vec<HostAt> = (target + 1..target + child.size()).filter_map(host).collect();
            let below = (!hosts.is_empty()).then(|| Below { hosts, ..below.clone() });
            Task::new(target, host(target), reach, below)
        })
        .collect()
}

/// Opens sessions as the window allows.
async fn schedule(
    shared: Rc<Shared>,
    mut window: Window,
    mut incoming: mpsc::UnboundedReceiver<Task>,
    again: mpsc::WeakUnboundedSender<Task>,
) {
    // Bounded by the window.
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut waiting = VecDeque::new();
    loop {
        while !waiting.is_empty() && window.open() {
            let Some(task) = waiting.pop_front() else { break };
            if shared.deadline.is_over() {
                window.on_failure(false);
                give_up(&shared, task, StartFailure::late(), &again);
                continue;
            }
            shared.spawn(attend(Rc::clone(&shared), task, ended.clone()));
        }
        tokio::select! {
            task = incoming.recv() => match task {
                Some(task) => waiting.push_back(task),
                None => return,
            },
            Some(ending) = endings.recv() => match ending {
                Beginning::Well(took) => window.on_success(took),
                Beginning::Badly(task, failure) => {
                    let retries = failure.phase.retries();
                    window.on_failure(retries > 0);
                    tracing::debug!(target = task.target, ?failure, limit = window.limit(), "a session has failed");
                    let wait = retry_time(&task, &shared.order);
                    // There may only be so many at a time: each has to wait for its turn.
                    let is_alone = window.under_way() == 0;
                    let again_later = retries > 0 && (task.tries < retries || !is_alone);
                    if again_later && shared.deadline.allows(wait) {
                        retry(*task, failure, wait, again.clone());
                    } else {
                        give_up(&shared, *task, failure, &again);
                    }
                }
            },
        }
    }
}

/// How long to wait before a host that has refused is tried again: not the same for all.
fn retry_time(task: &Task, order: &BootOrder) -> Duration {
    let mut hasher = DefaultHasher::new();
    (order.marker, task.target, task.tries).hash(&mut hasher);
    let least = RETRY_TIME * 2_u32.pow(task.tries.min(RETRY_DOUBLINGS));
    least + least.mul_f64((hasher.finish() % 1024) as f64 / 1024.0)
}

fn retry(task: Task, failure: StartFailure, wait: Duration, again: mpsc::WeakUnboundedSender<Task>) {
    tokio::task::spawn_local(async move {
        sleep(wait).await;
        if let Some(tasks) = again.upgrade() {
            let _ = tasks.send(Task { tries: task.tries + 1, before: Some(failure), ..task });
        }
    });
}

/// A target gets no agent; what it was to start is started from here.
fn give_up(shared: &Shared, task: Task, last: StartFailure, again: &mpsc::WeakUnboundedSender<Task>) {
    let failure = reason(task.before, last);
    if let (Some(below), Some(tasks)) = (&task.below, again.upgrade()) {
        for orphan in tasks_below(task.target, below, task.reach) {
            let _ = tasks.send(orphan);
        }
    }
    let _ = shared.reports.send((task.target, BootReport::NotStarted(failure)));
}

/// What is told of a host that was tried again: that the last try had too little time is not why it has failed.
fn reason(before: Option<StartFailure>, last: StartFailure) -> StartFailure {
    before.filter(|_| last.phase == StartPhase::Answer).unwrap_or(last)
}

impl Shared {
    /// Runs something that ends with the starter.
    pub(super) fn spawn(&self, what: impl Future<Output = ()> + 'static) {
        let running = tokio::task::spawn_local(what);
        self.sessions.borrow_mut().push(running.abort_handle());
    }

    pub(super) fn carries_links(&self) -> bool {
        self.order.links == Links::RemoteShells
    }

    pub(super) fn report(&self, target: u32, report: BootReport) {
        if let BootReport::NotStarted(_) = report {
            self.carried.settle(target);
        }
        // Nobody listens when the session is over.
        let _ = self.reports.send((target, report));
    }

    /// Closes the descriptors of a session. Its process is ended too, unless an agent needs it.
    pub(super) fn close(&self, session: Session, pid: u32, is_over: bool) {
        if self.method != Method::Fork && (is_over || !session.lasts) {
            self.children.end(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(targets: u32, fanout: u32, hosts: std::ops::Range<u32>) -> Below {
        Below {
            targets,
            fanout,
            hosts: hosts.map(|host| HostAt { name: format!("n{host}"), user: None }).collect(),
            method: Method::Fork,
            batch: None,
            patience: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_host_that_has_refused_did_so_whatever_its_last_try_came_to() {
        let refused = StartFailure::new(StartPhase::Refused, "Connection refused");
        let busy = StartFailure::new(StartPhase::Busy, "not now");
        assert_eq!(reason(None, StartFailure::late()), StartFailure::late());
        assert_eq!(reason(Some(refused.clone()), StartFailure::late()), refused);
        assert_eq!(reason(Some(refused), busy.clone()), busy);
    }

    #[test]
    fn each_station_is_started_once_from_the_one_above() {
        fn walk(here: u32, below: &Below, seen: &mut Vec<u32>) {
            for task in tasks_below(here, below, Reach::Here) {
                assert_eq!(task.host.unwrap().name, format!("n{}", task.target));
                seen.push(task.target);
                task.below.iter().for_each(|below| walk(task.target, below, seen));
            }
        }
        for targets in [1, 2, 7, 32, 100] {
            for fanout in [2, 3, 8, 200] {
                let mut seen = Vec::new();
                walk(0, &below(targets, fanout, 1..targets + 1), &mut seen);
                assert_eq!(seen, (1..=targets).collect::<Vec<_>>());
            }
        }
    }
}
