//! Decides which job of a pool starts when. A value without clocks, processes and sockets.
//!
//! Jobs start in the order of their priorities, then of their arrivals. While the first of them waits for slots, later ones that
//! fit into the free slots start before it (backfill), for at most [`BACKFILL_TIME`]: then the slots that become free are
//! kept for it. None are kept for a job that could not start if all others had ended, because nodes are drained or down. [`Nodes`]
//! decides which slots a job gets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use placement::topology::Topology;

use super::absences::{Absences, Absent, Lacking, Telling, Told};
use super::message::{Ask, JobNumber, JobRefusal};
use super::nodes::{Health, Node, NodeNumber, Nodes, Shares};
use super::waits::{Wait, Why};
use crate::run::signals::Asked;

#[cfg(test)]
mod tests;

/// How long jobs may overtake one that waits for slots.
pub const BACKFILL_TIME: Duration = Duration::from_secs(60);
/// The least number of launchers that stand by for the next jobs.
const STANDBYS: usize = 2;
/// The most launchers that stand by after their jobs.
const STANDBYS_MAX: usize = 16;
/// The pause after the start of a launcher has failed.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The failures to start a launcher, one after the other, after which waiting jobs are refused.
const FAILURES_MAX: u32 = 10;

/// How long all nodes of an allocation may be down before the pool ends: the allocation has ended, and no keeper can be started.
const ALLOCATION_LOST_TIME: Duration = Duration::from_secs(60);

/// The events after which a pool ends by itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lifetime {
    /// The pool ends when it has had no job for this time.
    pub idle: Option<Duration>,
    /// The resource manager's job that its nodes are from, as messages name it. The pool ends when all nodes have been down for a
    /// minute.
    pub allocation: Option<String>,
}

/// A time since the pool began.
pub type Time = Duration;

/// Something that has happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// A client has submitted a job.
    Submitted(JobNumber, Ask),
    /// The client of a job that had not started has left.
    Withdrawn(JobNumber),
    /// A signal for jobs has arrived; for all of them if the list is empty. One that ends jobs withdraws those that wait.
    Signal(Vec<JobNumber>, i32),
    /// A running job has ended.
    Ended(JobNumber),
    /// The client of this job, which was to be started, has left. The launcher still stands by.
    NotWanted(JobNumber),
    /// A launcher has not taken this job, which waits again. The launcher has exited.
    NotTaken(JobNumber),
    /// A launcher stands by again after its job.
    StandbyBack,
    /// A launcher stands by.
    StandbyReady,
    /// A launcher has exited before it stood by (false), or while it did (true).
    StandbyLost {
        /// It had reported that it stood by.
        was_ready: bool,
    },
    /// A node was added.
    NodeAdded(NodeNumber, Node),
    /// A node was removed.
    NodeRemoved(NodeNumber),
    /// The keeper of a node answers. The node has this many cores.
    NodeUp(NodeNumber, u32),
    /// The keeper of a node is lost, or is being started.
    NodeHealth(NodeNumber, Health),
    /// The user has drained a node (true), or wants it to be used again.
    NodeDrained(NodeNumber, bool),
    /// A stop was requested.
    Stop,
    /// The alarm of [`Action::WakeAt`] has expired.
    Timeout,
}

/// Something to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Start the job on these slots, by a launcher that stands by.
    Start(JobNumber, Shares),
    /// Tell the client why the job waits, and which nodes it lacks.
    TellWaits(JobNumber, Wait, Absent),
    /// Tell the client that the job is refused, or has ended before it started.
    Refuse(JobNumber, JobRefusal),
    /// Send a signal to a running job.
    Signal(JobNumber, i32),
    /// Start another launcher.
    AddStandby,
    /// Let a launcher that stands by exit.
    Dismiss,
    /// Pass [`Input::Timeout`] at this time. Replaces an earlier one.
    WakeAt(Time),
    /// All jobs have ended, and the pool ends.
    Over,
}

/// A job that waits.
#[derive(Debug)]
struct Waiting {
    job: JobNumber,
    ask: Ask,
    since: Time,
    /// When slots were first missing for it although it was the first.
    blocked: Option<Time>,
    /// The reason for its wait.
    waits_for: WaitsFor,
    /// The nodes of which its client was told.
    told: Option<Told>,
    /// A launcher was given it, and has not taken it.
    is_returned: bool,
}

/// The reason for the wait of a job.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum WaitsFor {
    /// More room than there is.
    Room,
    /// The start of this job, for which room is kept.
    Job(JobNumber),
    /// A launcher.
    Launcher,
}

impl Waiting {
    fn new(job: JobNumber, ask: Ask, since: Time) -> Self {
        Self { job, ask, since, blocked: None, waits_for: WaitsFor::Launcher, told: None, is_returned: false }
    }

    /// Returns why it waits.
    fn why(&self, nodes: &Nodes) -> Why {
        match self.waits_for {
            WaitsFor::Job(job) => Why::Kept(job),
            WaitsFor::Launcher if self.is_returned => Why::Again,
            WaitsFor::Launcher => Why::Launcher,
            WaitsFor::Room => match nodes.room(&self.ask) {
                // Of jobs before it, for which launchers are being started.
                room if room.suffices() => Why::Launcher,
                room => Why::Room(room),
            },
        }
    }
}

/// A job that runs.
#[derive(Debug)]
struct Running {
    shares: Shares,
    since: Time,
    ask: Ask,
}

/// A job, as a report shows it.
#[derive(Debug)]
pub struct Shown<'a> {
    /// Its number.
    pub job: JobNumber,
    /// The slots that it has or needs.
    pub slots: u32,
    /// Since when it runs or waits.
    pub since: Time,
    /// Why it waits, if it does.
    pub wait: Option<Wait>,
    /// It waits again: a launcher was given it, and has not taken it.
    pub is_returned: bool,
    /// Its demands.
    pub ask: &'a Ask,
}

/// The jobs of a pool and its nodes.
#[derive(Debug)]
pub struct Schedule {
    nodes: Nodes,
    absences: Absences,
    lifetime: Lifetime,
    waiting_max: usize,
    /// In the order in which they start.
    waiting: BTreeMap<(Reverse<i32>, JobNumber), Waiting>,
    running: BTreeMap<JobNumber, Running>,
    /// Launchers that stand by, and those that are being started.
    standbys: usize,
    starting: usize,
    /// Failures to start a launcher since the last success, and when to try again.
    failures: u32,
    retry: Option<Time>,
    ended: u64,
    /// Since when the pool has had no job.
    idle_since: Option<Time>,
    /// Since when no node has been up, after all were down.
    down_since: Option<Time>,
    is_stopping: bool,
    is_over: bool,
}

impl Schedule {
    /// Begins with no jobs. At most `waiting_max` jobs wait.
    pub fn new(nodes: Vec<Node>, lifetime: Lifetime, waiting_max: usize) -> Self {
        let (nodes, mut absences) = (Nodes::new(nodes), Absences::default());
        nodes.all().for_each(|(at, node)| absences.note(Time::ZERO, at, Some(node)));
        Self {
            nodes,
            absences,
            lifetime,
            waiting_max,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            standbys: 0,
            starting: 0,
            failures: 0,
            retry: None,
            ended: 0,
            idle_since: None,
            down_since: None,
            is_stopping: false,
            is_over: false,
        }
    }

    /// Notes the network between the nodes, which has places for all of them.
    pub fn set_network(&mut self, network: Topology) {
        self.nodes.set_network(network);
    }

    /// Handles an input and appends what is to be done.
    pub fn handle(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        match input {
            Input::Submitted(job, ask) => self.submit(now, job, ask, actions),
            Input::Withdrawn(job) => drop(self.remove(job)),
            Input::Signal(jobs, signal) => self.signal(jobs, signal, actions),
            Input::Ended(job) => {
                if let Some(Running { shares, .. }) = self.running.remove(&job) {
                    self.nodes.give_back(job, &shares);
                    self.ended += 1;
                }
            }
            Input::NotWanted(job) => {
                if let Some(Running { shares, .. }) = self.running.remove(&job) {
                    self.nodes.give_back(job, &shares);
                    self.standbys += 1;
                }
            }
            Input::NotTaken(job) => self.wait_again(now, job, actions),
            Input::NodeAdded(at, node) => {
                self.change_node(now, at, |nodes| nodes.add(at, node));
                // It has its own time to start.
                self.down_since = None;
            }
            Input::NodeRemoved(at) => self.change_node(now, at, |nodes| nodes.remove(at)),
            Input::NodeUp(at, cores) => self.change_node(now, at, |nodes| nodes.set_up(at, cores)),
            Input::NodeHealth(at, health) => self.change_node(now, at, |nodes| nodes.set_health(at, health)),
            Input::NodeDrained(at, is_drained) => self.change_node(now, at, |nodes| nodes.set_drained(at, is_drained)),
            Input::StandbyBack => self.standbys += 1,
            Input::StandbyReady => {
                self.starting = self.starting.saturating_sub(1);
                self.standbys += 1;
                self.failures = 0;
            }
            Input::StandbyLost { was_ready: true } => self.standbys = self.standbys.saturating_sub(1),
            Input::StandbyLost { was_ready: false } => {
                self.starting = self.starting.saturating_sub(1);
                self.failures += 1;
                self.retry = Some(now + RETRY_PAUSE);
                if self.failures >= FAILURES_MAX && self.standbys == 0 {
                    self.refuse_all(JobRefusal::NoLauncher, actions);
                }
            }
            Input::Stop => self.stop(JobRefusal::Stopping, actions),
            Input::Timeout => {}
        }
        self.go_on(now, actions);
    }

    fn change_node(&mut self, now: Time, at: NodeNumber, change: impl FnOnce(&mut Nodes)) {
        change(&mut self.nodes);
        self.absences.note(now, at, self.nodes.node(at));
    }

    fn submit(&mut self, now: Time, job: JobNumber, ask: Ask, actions: &mut Vec<Action>) {
        if self.is_stopping {
            return actions.push(Action::Refuse(job, JobRefusal::Stopping));
        }
        let has = self.nodes.count() as u32;
        if let Some(asks) = ask.nodes.filter(|asks| *asks > has) {
            return actions.push(Action::Refuse(job, JobRefusal::TooFewNodes { asks, has }));
        }
        if !self.nodes.may_have(&ask.devices) {
            return actions.push(Action::Refuse(job, JobRefusal::NoDevices(ask.devices)));
        }
        if self.waiting.len() >= self.waiting_max {
            return actions.push(Action::Refuse(job, JobRefusal::Full));
        }
        let waiting = Waiting::new(job, ask, now);
        self.waiting.insert((Reverse(waiting.ask.priority), job), waiting);
    }

    fn wait_again(&mut self, now: Time, job: JobNumber, actions: &mut Vec<Action>) {
        let Some(Running { shares, ask, .. }) = self.running.remove(&job) else { return };
        self.nodes.give_back(job, &shares);
        if self.is_stopping {
            return actions.push(Action::Refuse(job, JobRefusal::Stopping));
        }
        // In its old place: before all that were submitted later.
        let waiting = Waiting { is_returned: true, ..Waiting::new(job, ask, now) };
        self.waiting.insert((Reverse(waiting.ask.priority), job), waiting);
    }

    fn remove(&mut self, job: JobNumber) -> Option<Waiting> {
        let place = self.waiting.iter().find(|(_, waiting)| waiting.job == job).map(|(place, _)| *place)?;
        self.waiting.remove(&place)
    }

    fn signal(&mut self, jobs: Vec<JobNumber>, signal: i32, actions: &mut Vec<Action>) {
        let all = || self.waiting.values().map(|waiting| waiting.job).chain(self.running.keys().copied()).collect();
        let jobs: Vec<JobNumber> = if jobs.is_empty() { all() } else { jobs };
        for job in jobs {
            if self.running.contains_key(&job) {
                actions.push(Action::Signal(job, signal));
            } else if matches!(Asked::of_signal(signal), Some(Asked::End(_))) && self.remove(job).is_some() {
                // It has no ranks that another signal could reach.
                actions.push(Action::Refuse(job, JobRefusal::Signalled(signal)));
            }
        }
    }

    fn refuse_all(&mut self, why: JobRefusal, actions: &mut Vec<Action>) {
        let waiting = std::mem::take(&mut self.waiting);
        actions.extend(waiting.into_values().map(|waiting| Action::Refuse(waiting.job, why.clone())));
    }

    /// Lets no further job start, for this reason, and ends those that run.
    fn stop(&mut self, why: JobRefusal, actions: &mut Vec<Action>) {
        self.is_stopping = true;
        self.refuse_all(why, actions);
        let end = |job: &JobNumber| Action::Signal(*job, Signal::SIGTERM as i32);
        actions.extend(self.running.keys().map(end));
    }

    /// Stops the pool if its allocation has ended. Returns the time at which the pool is to be stopped, if no node is up before.
    fn end_with_allocation(&mut self, now: Time, actions: &mut Vec<Action>) -> Option<Time> {
        let allocation = self.lifetime.allocation.as_ref().filter(|_| !self.is_stopping)?;
        let all = |is: fn(&Health) -> bool| self.nodes.all().all(|(_, node)| is(&node.health));
        if self.nodes.count() == 0 || !all(|health| *health != Health::Up) {
            self.down_since = None;
        } else if all(|health| matches!(health, Health::Down(_))) {
            // Until one is up: nodes that are tried again count as started meanwhile.
            self.down_since = self.down_since.or(Some(now));
        }
        let end = self.down_since? + ALLOCATION_LOST_TIME;
        if end > now {
            return Some(end);
        }
        let lost = JobRefusal::AllocationLost(allocation.clone());
        self.stop(lost, actions);
        None
    }

    /// Starts what can start, and decides when to look again.
    fn go_on(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.is_over {
            return;
        }
        let allocation_end = self.end_with_allocation(now, actions);
        let mut wake = self.start_jobs(now, actions);
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
        }
        // Before the idle time is looked at: a pool that ends needs no launchers.
        let has_jobs = !self.running.is_empty() || !self.waiting.is_empty();
        self.idle_since = if has_jobs { None } else { self.idle_since.or(Some(now)) };
        let idle_end = self.lifetime.idle.zip(self.idle_since).map(|(idle, since)| since + idle);
        if !has_jobs && (self.is_stopping || idle_end.is_some_and(|end| end <= now)) {
            self.is_over = true;
            return actions.push(Action::Over);
        }
        if self.standbys > STANDBYS_MAX {
            self.standbys -= 1;
            actions.push(Action::Dismiss);
        }
        if !self.is_stopping && self.retry.is_none() {
            let missing = STANDBYS.saturating_sub(self.standbys + self.starting);
            self.starting += missing;
            actions.extend((0..missing).map(|_| Action::AddStandby));
        }
        for time in [self.retry, idle_end, allocation_end].into_iter().flatten() {
            wake = Some(wake.map_or(time, |wake| wake.min(time)));
        }
        actions.extend(wake.map(Action::WakeAt));
    }

    /// Returns the events after which the pool ends by itself.
    pub fn lifetime(&self) -> &Lifetime {
        &self.lifetime
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Starts jobs while launchers stand by. Returns the time of the next decision: backfill ends, or a client is due to hear which nodes
    /// its job lacks.
    fn start_jobs(&mut self, now: Time, actions: &mut Vec<Action>) -> Option<Time> {
        // The slots of jobs that wait only for a launcher: later jobs must not take them.
        let mut kept = Vec::new();
        let (mut started, mut told, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tellings, mut refusals) = (Vec::new(), Vec::new());
        // The first job that waits for running jobs, and the end of its backfill time.
        let mut blocked: Option<(JobNumber, Time)> = None;
        let mut tell_at: Option<Time> = None;
        for (ahead, (place, waiting)) in self.waiting.iter_mut().enumerate() {
            let has_room = self.nodes.choose(&waiting.ask);
            // The job for which room is kept, once it was overtaken for long enough.
            let first = blocked.filter(|(_, end)| *end <= now);
            waiting.waits_for = match (has_room, first) {
                (Some(shares), None) => {
                    self.nodes.take(waiting.job, &shares, &waiting.ask.devices);
                    if started.len() < self.standbys {
                        started.push((*place, shares));
                    } else {
                        kept.push((waiting.job, shares));
                    }
                    waiting.waits_for = WaitsFor::Launcher;
                    continue;
                }
                (Some(_), Some((first, _))) => WaitsFor::Job(first),
                (None, _) => WaitsFor::Room,
            };
            // A job that waits for nodes would stop all others until they are used again.
            if blocked.is_none() && self.nodes.may_suffice(&waiting.ask) {
                blocked = Some((waiting.job, *waiting.blocked.get_or_insert(now) + BACKFILL_TIME));
            }
            let lacks = || self.absences.of(self.nodes.lacking(&waiting.ask));
            if !waiting.ask.waits {
                refused.push((*place, lacks()));
                continue;
            }
            match Told::telling(waiting.told.as_mut(), now, &self.absences, lacks) {
                Telling::Now(lacking) => told.push((*place, (ahead - started.len()) as u32, lacking)),
                Telling::At(time) => tell_at = Some(tell_at.map_or(time, |at| at.min(time))),
                Telling::No => {}
            }
        }
        // As long as the slots of all jobs that start are taken.
        let absent = |lacking: &Lacking| self.absences.describe(now, lacking, &self.nodes);
        for (place, ahead, lacking) in told {
            if let Some(waiting) = self.waiting.get_mut(&place) {
                let wait = Wait { why: waiting.why(&self.nodes), ahead };
                tellings.push(Action::TellWaits(waiting.job, wait, absent(&lacking)));
                waiting.told = Some(Told::new(now, &self.absences, lacking));
            }
        }
        for (place, lacking) in refused {
            if let Some(waiting) = self.waiting.remove(&place) {
                let busy = JobRefusal::Busy(waiting.why(&self.nodes), absent(&lacking));
                refusals.push(Action::Refuse(waiting.job, busy));
            }
        }
        kept.iter().for_each(|(job, shares)| self.nodes.give_back(*job, shares));
        for (place, shares) in started {
            if let Some(Waiting { job, ask, .. }) = self.waiting.remove(&place) {
                self.standbys -= 1;
                actions.push(Action::Start(job, shares.clone()));
                self.running.insert(job, Running { shares, since: now, ask });
            }
        }
        actions.extend(refusals.into_iter().chain(tellings));
        let backfill_end = blocked.map(|(_, end)| end).filter(|end| *end > now);
        backfill_end.into_iter().chain(tell_at).min()
    }

    /// Returns the jobs that have slots of a node.
    pub fn jobs_on(&self, node: NodeNumber) -> impl Iterator<Item = JobNumber> {
        self.running.iter().filter(move |(_, running)| running.shares.contains_key(&node)).map(|(job, _)| *job)
    }

    /// Returns whether the job waits or runs.
    pub fn knows(&self, job: JobNumber) -> bool {
        self.running.contains_key(&job) || self.waiting.values().any(|waiting| waiting.job == job)
    }

    /// Returns how many jobs have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns whether the pool is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Returns why a job waits, and the nodes that it lacks; `None` if it lacks none.
    pub fn lack(&self, now: Time, job: JobNumber) -> Option<(Wait, Absent)> {
        let (ahead, waiting) = self.waiting.values().enumerate().find(|(_, waiting)| waiting.job == job)?;
        let lacking = self.absences.of(self.nodes.lacking(&waiting.ask));
        let wait = Wait { why: waiting.why(&self.nodes), ahead: ahead as u32 };
        (!lacking.is_empty()).then(|| (wait, self.absences.describe(now, &lacking, &self.nodes)))
    }

    /// Returns the running jobs, then those that wait, in the order in which they start.
    pub fn jobs(&self) -> impl Iterator<Item = Shown<'_>> {
        let running = self.running.iter().map(|(job, running)| Shown {
            job: *job,
            slots: running.shares.values().sum(),
            since: running.since,
            wait: None,
            is_returned: false,
            ask: &running.ask,
        });
        let waiting = self.waiting.values().enumerate().map(|(ahead, waiting)| Shown {
            job: waiting.job,
            slots: self.nodes.need(&waiting.ask),
            since: waiting.since,
            wait: Some(Wait { why: waiting.why(&self.nodes), ahead: ahead as u32 }),
            is_returned: waiting.is_returned,
            ask: &waiting.ask,
        });
        running.chain(waiting)
    }

    /// Checks what always holds.
    #[cfg(test)]
    fn check_invariants(&self) {
        for (at, node) in self.nodes.all() {
            let taken: u32 = self.running.values().filter_map(|running| running.shares.get(&at)).sum();
            assert!(taken == node.busy && taken <= node.slots, "{taken} slots are taken: {node:?}");
        }
        assert!(self.running.keys().all(|job| !self.waiting.values().any(|waiting| waiting.job == *job)));
        assert!(
            self.standbys <= STANDBYS_MAX && self.standbys + self.starting <= STANDBYS.max(self.standbys),
            "{self:?}"
        );
    }
}
