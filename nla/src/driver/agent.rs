//! The agent's actor: owns its core, from joining the tree to its exit code.
//!
//! Tasks own the descriptors and send to bounded queues. The actor waits for one [`Event`] at a time, turns it into
//! inputs of the core, and carries out the core's actions (`actions.rs`). `shutdown.rs` holds the order of the end.

mod actions;
mod collecting;
mod events;
mod pmix;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pmi::{Answer, Request};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use self::events::Event;
use super::children::{Children, LinkContext, Received};
use super::guarding::Guarding;
use super::input::InputHub;
use super::leftovers::SharedFiles;
use super::pmix::Pmix;
use super::pulse::Pulse;
use super::queue::{Alarm, QUEUE_EVENTS_MAX, Queue};
use super::recorder::Recorder;
use super::rejoin::Rejoining;
use super::serving::{RankEvent, Waiter};
use super::shutdown::Sweep;
use super::staging::{StageHub, Staging};
use super::startup::{Local, Startup};
use super::survivors::Survivors;
use super::table::{Key, RankTable};
use super::trace::DriverTrace;
use super::uplink::Uplink;
use crate::bootstrap::{BootOrder, ChildLinks, Joined, Processes, Starter};
use crate::core::{
    Action, Agent, AgentId, Cause, DriverCounts, Exit, Failure, Input, LossReason, NamespaceId, NotStartedReason,
    RankGroup, SignalWay, Subtree, TraceSpan, Traffic, Up,
};
use crate::link::{Accepted, Admission, Authenticator, Clock, LinkEvent, Receipt, StreamSink};
use crate::sys::{self, Ended, GuardianLink, NestedGuardians, SegmentReader, SignalSender, ToldSignals};
use crate::tasks::{Panic, Panics, Tasks};
use crate::wire::{Lane, Role, TurnFrame, decode_down};

/// From this many ranks on, an agent pauses after each pass of reaping: the kernel looks at each child to find the ended
/// ones, which takes some 30 ns per child. The pause bounds that to a thirtieth of the time, with 1,000 ranks.
const REAPED_TOGETHER: usize = 256;
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// The exit code of a process in which a task panicked.
pub(super) const PANICKED: u8 = 253;

/// The process of an agent after its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Afterwards {
    /// It exits.
    Exit,
    /// It stands by for another session.
    Stay,
}

/// The actor of one agent process.
pub(super) struct AgentDriver {
    pub(super) core: Agent,
    recorder: Option<Recorder>,
    clock: Clock,
    /// The launcher is on another node.
    is_remote: bool,
    pub(super) here: Subtree,
    guarding: Guarding,
    pub(super) links: LinkContext,
    pub(super) parent: Uplink,
    parent_id: AgentId,
    rejoining: Rejoining,
    /// Yields the link to an ancestor, or `None` if no ancestor accepts this agent.
    rejoined: Option<oneshot::Receiver<Option<Accepted>>>,
    pulse: Pulse,
    /// Takes agents that may join although they are no children in the tree.
    adopted: Option<mpsc::Sender<Vec<Subtree>>>,
    parent_lost: bool,
    pub(super) children: Children,
    /// Opened the remote shells that carry the links to the children, if links are piped.
    pub(super) child_starter: Option<Starter>,
    /// The processes that the bootstrap has started. They are children of this process, like the ranks.
    started: Processes,
    joined: mpsc::Receiver<Accepted>,
    input: Rc<RefCell<InputHub>>,
    /// The session's files.
    pub(super) staging: Staging,
    table: RankTable,
    pub(super) startup: Option<Startup>,
    pub(super) startup_failure: Option<NotStartedReason>,
    /// Serves PMIx, once a namespace needs it.
    pub(super) pmix: Option<Pmix>,
    pub(super) namespaces: HashMap<NamespaceId, Local>,
    /// The counts of namespaces that were forgotten.
    forgotten: DriverCounts,
    /// Ranks that wait for an answer of the core.
    waiting: HashMap<Key, oneshot::Sender<Answer>>,
    /// The ranks in fences beside other requests: of a group, or with `None` of all ranks.
    fences: BTreeMap<(Key, Option<RankGroup>), oneshot::Sender<Answer>>,
    /// Ranks to be released from a fence, in this order.
    releases: VecDeque<(Key, Answer)>,
    /// The processors that this process may use.
    processors: usize,
    ranks: Queue<RankEvent>,
    reaped: Signal,
    /// SIGCHLD waits until then, so that ranks that end at about the same time are reaped together.
    next_reap: Instant,
    /// Signals from the guardian, a resource manager or a user.
    told: ToldSignals,
    pub(super) sweep: Sweep,
    pub(super) nested: NestedGuardians,
    pub(super) shared_files: SharedFiles,
    survivors: Survivors,
    alarm: Alarm,
    actions: Vec<Action>,
    log: Option<SegmentReader>,
    trace: Option<DriverTrace>,
    exit_code: Option<u8>,
    sent_up: Traffic,
    /// The first of the failures of this agent's ranks, in the order in which the root elects it.
    first_failure: Option<Failure>,
}

/// Passes the launcher's input and files to the hubs.
fn streams_down(input: &Rc<RefCell<InputHub>>, files: &Rc<RefCell<StageHub>>) -> StreamSink {
    let (input, files) = (Rc::clone(input), Rc::clone(files));
    Box::new(move |lane, bytes, receipt| match lane {
        Lane::Stdin => input.borrow_mut().push(bytes, receipt),
        Lane::Stage => files.borrow_mut().push(bytes, receipt),
        // The other lanes lead up, or have no window.
        Lane::Control | Lane::Board | Lane::Stdout | Lane::Stderr | Lane::Profile => {}
    })
}

impl AgentDriver {
    /// Prepares the actor of an agent that has joined, and lets its children join.
    pub(super) fn new(joined: Joined, guardian: GuardianLink, order: &BootOrder, tasks: &Tasks) -> io::Result<Self> {
        let Joined { position, here, parent, clock, children, started, ancestors, log } = joined;
        let input = Rc::new(RefCell::new(InputHub::new()));
        let staging = Staging::new();
        let streams = streams_down(&input, &staging.hub);
        let parent_id = parent.peer;
        let links = LinkContext::new(here.head(), order.liveness(), tasks.clone());
        let parent = Uplink::new(links.start(parent, streams));
        let (joining, joined) = mpsc::channel(QUEUE_EVENTS_MAX);
        let (adopted, may_join) = order.rejoins.then(|| mpsc::channel(QUEUE_EVENTS_MAX)).unzip();
        let child_starter = match children {
            ChildLinks::None => None,
            ChildLinks::Listener(admit) => {
                let expected = here.children().map(|child| child.head());
                let role = Role::Link { parent: here.head() };
                let authenticator = Authenticator::new(order.session, order.key.clone(), role, expected);
                // If the task has panicked, its panic is reported.
                let _ = admit.send(Admission { authenticator, clock, joined: joining, adopted: may_join });
                None
            }
            ChildLinks::Shells(starter) => {
                starter.admit_children(position, here, clock, joining);
                Some(starter)
            }
        };
        Ok(Self {
            core: Agent::new(here),
            recorder: Recorder::begin(position)?,
            clock,
            is_remote: order.is_remote(),
            here,
            guarding: Guarding::new(guardian)?,
            pulse: Pulse::new(&links.ticks),
            links,
            parent,
            parent_id,
            rejoining: Rejoining { session: order.session, key: order.key.clone(), agent: here.head(), ancestors },
            rejoined: None,
            adopted,
            parent_lost: false,
            children: Children::default(),
            child_starter,
            started,
            joined,
            input,
            staging,
            table: RankTable::default(),
            startup: None,
            startup_failure: None,
            pmix: None,
            namespaces: HashMap::new(),
            forgotten: DriverCounts::default(),
            waiting: HashMap::new(),
            fences: BTreeMap::new(),
            releases: VecDeque::new(),
            processors: sys::cores(),
            ranks: Queue::new(),
            reaped: signal(SignalKind::child())?,
            next_reap: Instant::now(),
            told: ToldSignals::new()?,
            sweep: Sweep::No,
            nested: NestedGuardians::default(),
            shared_files: SharedFiles::default(),
            survivors: Survivors::new(order.session, tasks.clone()),
            alarm: Alarm::default(),
            actions: Vec::new(),
            log,
            trace: None,
            exit_code: None,
            sent_up: Traffic::default(),
            first_failure: None,
        })
    }

    /// Runs until the session is over. Returns the exit code: 253 after a panic in a task, of which the parent is informed.
    pub(super) async fn run(mut self: Box<Self>, panics: &mut Panics, afterwards: Afterwards) -> u8 {
        let span = tracing::error_span!("agent", id = %self.here.head());
        async {
            let mut code = panics.watch("agent", self.live()).await.unwrap_or_else(|panic| {
                self.report_panic(panic);
                PANICKED
            });
            if let Some(pmix) = self.pmix.take() {
                pmix.leave().await;
            }
            // A session that ends while files travel has no sweep.
            self.staging.end().await;
            self.leave_children().await;
            self.end_survivors().await;
            // The link to the parent is the only way to report a panic.
            if let Some(panic) = panics.late().await {
                self.report_panic(panic);
                code = PANICKED;
            }
            self.leave_parent().await;
            if afterwards == Afterwards::Exit {
                // The exit ends the threads that start ranks. To end themselves, they would compete with it for a processor.
                std::mem::forget(self.startup.take());
            }
            code
        }
        .instrument(span)
        .await
    }

    /// Waits until what lost neighbours have left has ended. The guardian is kept alive meanwhile.
    async fn end_survivors(&mut self) {
        let Self { survivors, guarding, pulse, .. } = self;
        let beats = async {
            loop {
                pulse.beat().await;
                let _ = guarding.alive();
            }
        };
        tokio::select! {
            () = survivors.ended() => {}
            () = beats => {}
        }
    }

    /// Reports this agent as lost, on behalf of a core that can no longer do so.
    fn report_panic(&mut self, Panic { task, text }: Panic) {
        let cause = Cause::Lost { why: LossReason::Panicked { task, text } };
        let failure = Failure::of_agent(self.clock.now(), self.here.head(), cause);
        self.send_up(&Up::Failed(failure));
    }

    async fn live(&mut self) -> u8 {
        // A leaf reports itself as ready without any event.
        self.handle(Input::Timeout);
        // After the report is sent, the parent's answer takes a while.
        yield_now().await;
        self.shared_files.look_ahead();
        loop {
            if let Some(code) = self.exit_code {
                return code;
            }
            let event = self.next_event().await;
            let has_started = matches!(event, Event::StartDue);
            self.on_event(event);
            // At each event: ranks that never stop asking do not keep others in the fence.
            let has_released = self.release_group();
            if has_started || has_released {
                // Serve the running ranks before the next group is started or released.
                yield_now().await;
            }
            if has_released {
                // Ranks that share this processor run now, while their memory is still in its caches.
                thread::yield_now();
            }
            self.continue_sweep();
            self.flush_pump();
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Links(mut events) => {
                events.drain(..).for_each(|(peer, event)| self.on_link(peer, event));
                self.links.events.recycle(events);
            }
            Event::Ranks(mut events) => {
                events.drain(..).for_each(|event| self.on_rank(event));
                self.ranks.recycle(events);
            }
            Event::Reaped => self.reap(),
            Event::Told(signals) => {
                for (signal, sender) in signals {
                    let way = match sender {
                        SignalSender::Guardian => SignalWay::Guardian,
                        SignalSender::Manager => SignalWay::Manager,
                        SignalSender::Other => SignalWay::Direct,
                    };
                    self.handle(Input::Signalled(signal, way));
                }
            }
            Event::Joined(accepted) => self.on_joined(accepted),
            Event::Rejoined(found) => self.on_rejoined(found),
            Event::Staged(staged) => self.on_staged(staged),
            Event::ChildFailed(child, why) => self.handle(Input::ChildFailed(child, NotStartedReason::Reported(why))),
            Event::Sweep(next) => {
                self.sweep = next;
                if let Sweep::Announced = self.sweep {
                    self.handle(Input::Drained { counted: Box::new(self.counted()), spans: self.spans() });
                }
            }
            Event::GuardianDue => self.watch_guardian(),
            Event::Tick(stop) => {
                if let Some(time) = stop {
                    self.on_stopped(time);
                }
                self.watch_guardian();
                let ticks = &self.links.ticks;
                let lost =
                    self.pmix.as_mut().and_then(|pmix| pmix.beat(ticks.per_dead_time(), ticks.liveness().dead_time));
                lost.into_iter().for_each(|event| self.on_pmix(event));
            }
            Event::Alarm => self.handle(Input::Timeout),
            Event::StartDue => {
                self.start_ranks();
                self.reap();
            }
            // Reaping takes the results.
            Event::Spawned => self.reap(),
            Event::Stalled => {
                let inputs = self.startup.as_mut().map(Startup::on_stalled).unwrap_or_default();
                inputs.into_iter().for_each(|input| self.handle(input));
                self.reap();
            }
            Event::Pmix(event) => self.on_pmix(event),
            // The sweep and releases continue after each event.
            Event::OutputEnded | Event::SweepDue | Event::ReleaseDue | Event::ReapDue => {}
        }
    }

    fn watch_guardian(&mut self) {
        let loss = self.guarding.look(&self.links.ticks);
        loss.into_iter().for_each(|loss| self.handle(loss));
    }

    fn flush_pump(&self) {
        if let Some(startup) = &self.startup {
            let in_segment = self.namespaces.values().any(|local| local.in_segment > 0);
            // Ranks that are being released do not wait. Otherwise a new wait could begin before the last one has ended.
            let waits = self.waiting.len() > self.releases.len() || !self.fences.is_empty() || in_segment;
            startup.pump.set_pmi_waits(waits);
            startup.pump.flush();
        }
    }

    pub(super) fn handle(&mut self, input: Input) {
        tracing::debug!(?input, "in");
        let now = self.clock.now();
        let turn = self.recorder.is_some().then(|| TurnFrame::of(now, &input));
        let before = self.actions.len();
        self.core.handle(now, input, &mut self.actions);
        if let (Some(recorder), Some(turn)) = (&mut self.recorder, turn) {
            recorder.done(turn, &self.actions[before..]);
        }
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            tracing::debug!(?action, "out");
            self.act(action);
        }
        self.children.forget_release();
        // An action may produce another input. That input's actions have been carried out by now.
        if self.actions.is_empty() {
            self.actions = actions;
        }
    }

    fn on_joined(&mut self, accepted: Accepted) {
        let (child, parent, files) = (accepted.peer, self.parent.clone(), Rc::clone(&self.staging.hub));
        let forward = move |lane, bytes, receipt| match lane {
            Lane::Stage => {
                let taken = files.borrow_mut().take_from_child(child, bytes, receipt);
                taken.into_iter().for_each(|(bytes, receipt)| parent.send(lane, bytes, receipt));
            }
            _ => parent.send(lane, bytes, receipt),
        };
        self.children.join(accepted, &self.links, forward);
        self.handle(Input::ChildJoined(child));
    }

    /// Looks for an ancestor that accepts this agent, until the time `until`.
    pub(super) fn rejoin(&mut self, until: Instant) {
        self.parent.wait();
        // The launcher's input passes the lost parent, and some of it may be lost.
        self.input.borrow_mut().push(Bytes::new(), Receipt::default());
        let (found, rejoined) = oneshot::channel();
        let search = self.rejoining.clone().run(until);
        self.links.tasks.spawn("rejoin", Span::current(), async move { drop(found.send(search.await)) });
        self.rejoined = Some(rejoined);
    }

    fn on_rejoined(&mut self, found: Option<Accepted>) {
        self.rejoined = None;
        let Some(accepted) = found else {
            self.parent_lost = true;
            return self.handle(Input::NotRejoined);
        };
        self.parent_id = accepted.peer;
        tracing::debug!(ancestor = %self.parent_id, "this agent has joined an ancestor");
        self.rejoining.ancestors.retain(|(ancestor, _)| *ancestor < accepted.peer);
        self.parent_lost = false;
        let streams = streams_down(&self.input, &self.staging.hub);
        self.parent.replace(self.links.start(accepted, streams));
        self.handle(Input::Rejoined);
    }

    /// This process did not run for this time.
    fn on_stopped(&mut self, time: Duration) {
        tracing::warn!(?time, "this agent did not run");
        if self.rejoined.is_some() && time >= self.links.ticks.liveness().dead_time {
            // Its parent was not lost, but has given this agent up.
            self.on_rejoined(None);
        }
        self.handle(Input::Stopped(time));
    }

    /// Lets the agents of these subtrees join.
    pub(super) fn adopt(&mut self, orphans: Vec<Subtree>) {
        if let Some(adopted) = &self.adopted
            && let Err(error) = adopted.try_send(orphans)
        {
            tracing::error!(%error, "agents that have lost their parent cannot join");
        }
    }

    fn on_link(&mut self, peer: AgentId, event: LinkEvent) {
        if peer == self.parent_id {
            return self.on_parent(event);
        }
        match self.children.receive(peer, event) {
            Some(Received::Message(message)) => self.handle(Input::FromChild(peer, message)),
            Some(Received::Silent(time)) => self.handle(Input::ChildSilent(peer, time)),
            Some(Received::Lost(why)) => self.handle(Input::ChildLost(peer, why)),
            Some(Received::OutputLost(why)) => self.handle(Input::ChildOutputLost(peer, why)),
            None => {}
        }
    }

    fn on_parent(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Message(bytes) => {
                let in_log = |offset, length| self.log.as_ref()?.bytes(offset, length);
                match decode_down(&bytes, in_log) {
                    Ok(message) => self.handle(Input::FromParent(message)),
                    Err(error) => self.handle(Input::ParentLost { why: LossReason::Undecodable(error.to_string()) }),
                }
            }
            LinkEvent::Silent(time) => tracing::debug!(?time, "the parent is silent"),
            LinkEvent::Lost(why) => {
                tracing::debug!(%why, "the link to the parent has ended");
                self.parent_lost = true;
                self.handle(Input::ParentLost { why });
            }
        }
    }

    fn on_rank(&mut self, event: RankEvent) {
        match event {
            RankEvent::Asked { key, request, answer } => {
                match answer {
                    None => {}
                    Some(Waiter::Alone(answer)) => drop(self.waiting.insert(key, answer)),
                    Some(Waiter::Beside(answer)) => {
                        let group = match &request {
                            Request::GroupFence { ranks, tag, .. } => {
                                Some(RankGroup { ranks: ranks.clone(), tag: *tag })
                            }
                            _ => None,
                        };
                        self.fences.insert((key, group), answer);
                    }
                }
                if let (Request::Fence { in_segment: true, .. }, Some(local)) =
                    (&request, self.namespaces.get_mut(&key.0))
                {
                    local.in_segment += 1;
                }
                self.take_request(key, request);
            }
            RankEvent::SecondJoiner { key, text } => self.handle(Input::SecondJoiner(key.1, text)),
            RankEvent::Ended { key, exit } => {
                self.waiting.remove(&key);
                self.fences.retain(|(waiting, _), _| *waiting != key);
                if let Some(startup) = &self.startup {
                    startup.pump.on_ended(key.0, key.1, exit != Exit::Code(0));
                }
                self.shared_files.on_ended(key.0, key.1, &exit, || self.table.pids());
                self.handle(Input::RankEnded(key.0, key.1, exit));
                if let Some(pmix) = &mut self.pmix {
                    let mut steps = Vec::new();
                    pmix.relay.on_ended(key.0, key.1, &mut steps);
                    self.take_steps(steps);
                }
            }
        }
    }

    /// Hands a request of a rank to the core.
    fn take_request(&mut self, key: Key, request: Request) {
        match &request {
            Request::Joined => self.shared_files.on_initialized(key.0, key.1),
            Request::Finalized => self.shared_files.on_finalized(key.0, key.1),
            _ => {}
        }
        self.handle(Input::FromRank(key.0, key.1, request));
    }

    /// Forgets all namespaces: none of their ranks is left, and others will start.
    pub(super) fn forget_namespaces(&mut self) {
        let all: Vec<_> = self.namespaces.keys().copied().collect();
        all.into_iter().for_each(|namespace| self.forget(namespace));
        self.waiting.clear();
        self.fences.clear();
        self.releases.clear();
        self.first_failure = None;
        if let Some(startup) = &mut self.startup {
            startup.resume();
        }
    }

    fn start_ranks(&mut self) {
        let Some(startup) = &mut self.startup else { return };
        startup.start_batch().into_iter().for_each(|input| self.handle(input));
    }

    /// Takes the results of the spawner thread, and reaps all children of this process that have exited. Never blocks.
    pub(super) fn reap(&mut self) {
        let launching = self.startup.as_ref().map(Startup::launching);
        let ends_former = self.startup.as_ref().is_some_and(Startup::ends_former);
        loop {
            let mut inputs = Vec::new();
            let step = |ended: Option<(u32, Ended)>| {
                let Some(startup) = &mut self.startup else { return };
                // A rank that starts again must not meet processes of its former start, and those of a dead rank must not
                // run on beside the others.
                let may_be_failed = ended.filter(|(_, ended)| ends_former && *ended != Ended::Exited(0));
                if ended.is_none() || may_be_failed.is_some() {
                    inputs.extend(startup.take_results(&mut self.table));
                }
                if let Some((pid, _)) = may_be_failed.filter(|(pid, _)| self.table.is_rank(*pid)) {
                    startup.kill_former(pid);
                }
            };
            // The results of starts are taken before the pid of a reaped rank is looked up.
            let reaped = match &launching {
                Some(launching) => launching.reap(step),
                None => sys::reap(),
            };
            // Before the inputs, whose actions may signal ranks: the pid may be another process's by then.
            if let Some((pid, ended)) = reaped {
                self.on_reaped(pid, ended);
            }
            inputs.into_iter().for_each(|input| self.handle(input));
            if reaped.is_none() {
                break;
            }
        }
        if self.table.len() >= REAPED_TOGETHER {
            self.next_reap = Instant::now() + REAP_PAUSE;
        }
        if let Some(startup) = &mut self.startup {
            startup.check_former();
        }
    }

    /// Reports a reaped child to the part of this agent that may still signal it.
    fn on_reaped(&mut self, pid: u32, ended: Ended) {
        let is_known = self.started.note_ended(pid, ended) || self.table.on_reaped(pid, ended);
        if !is_known && let Ended::Killed { signal: 9, .. } = ended {
            self.sweep.note_killed(pid);
        }
    }

    /// Waits until the links have ended: to the children, and to the parent too with `and_parent`.
    pub(super) async fn await_farewells(&mut self, and_parent: bool) {
        while !(self.children.is_empty() && (self.parent_lost || !and_parent)) {
            let lost = self.links.next_lost().await;
            if lost == self.parent_id {
                self.parent_lost = true;
            } else {
                self.children.remove(lost);
            }
        }
    }

    /// Returns the spans of the agent's driver.
    fn spans(&self) -> Vec<TraceSpan> {
        let Some(trace) = &self.trace else { return Vec::new() };
        let starts = self.startup.as_ref().map(|startup| startup.spans()).unwrap_or_default();
        [starts, trace.spans()].concat()
    }

    /// Returns the statistics of the agent's driver.
    fn counted(&self) -> DriverCounts {
        let boards = || self.namespaces.values().map(|local| local.board.borrow());
        DriverCounts {
            up: self.sent_up,
            down: self.children.sent,
            link_bytes: self.links.meter.link_bytes(),
            stream_bytes: self.links.meter.stream_bytes(),
            board_gets: boards().map(|board| board.board().answered()).sum::<u64>() + self.forgotten.board_gets,
            segments: boards().map(|board| board.readers).sum::<u64>() + self.forgotten.segments,
        }
    }
}
