//! The root's actor: owns the launcher's core from the first agent to the end of the session.
//!
//! The launcher asks for one [`RootEvent`] at a time with [`RootDriver::next`], passes its own observations (signals,
//! the time limit, whether output was written) to [`RootDriver::handle`], and calls [`RootDriver::leave`] after
//! [`RootEvent::Over`] or a panic. This module never writes to a terminal: the ranks' output goes to the launcher's
//! [`OutputSink`], and everything else is an event.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use super::children::{Children, LinkContext, Received};
use super::pulse::Pulse;
use super::queue::{Alarm, QUEUE_EVENTS_MAX};
use super::shutdown::FLUSH_TIME;
use super::stage_source::{Sending, StageSource};
use super::survivors::Survivors;
use crate::bootstrap::{ArrivalTimes, Bootstrap, Links, TargetReport, TargetTimes};
use crate::core::{
    AgentId, Down, DriverCounts, DurationHistogram, Failure, NamespacePlan, NotStartedReason, Notice, Outcome,
    RankProgress, Root, RootAction, RootInput, RootSettings, SpanKind, StagePlan, StageUp, Stats, Subtree, Time,
    Timing, TraceScope, TraceSpan,
};
use crate::link::{
    Accepted, Admission, Authenticator, BoundListener, Clock, Link, LinkEvent, ListensAt, Liveness, Reach, Receipt,
    SessionKey, accept_early, listen,
};
use crate::sys::Segment;
use crate::tasks::Tasks;
use crate::wire::{Lane, Role, SessionId};

/// Takes the ranks' output and profiles: the lane, the bytes (see [`split_stream_message`](super::split_stream_message)), and
/// a receipt that is dropped when they have been written. Agents send more as receipts are dropped.
pub type OutputSink = Rc<dyn Fn(Lane, Bytes, Receipt)>;

/// The port to which the root's children connect, before the tree is known.
pub struct RootPort {
    /// The launcher's addresses; none if links are piped.
    pub at: ListensAt,
    /// The task that holds connections until the tree is known.
    listener: Option<(oneshot::Sender<Admission>, JoinHandle<()>)>,
    joining: mpsc::Sender<Accepted>,
    joined: mpsc::Receiver<Accepted>,
}

impl RootPort {
    /// Listens for connections from the machines of `reach`; with `uses_local_sockets` also at a Unix socket, for this machine.
    pub async fn open(reach: Reach, uses_local_sockets: bool, tasks: &Tasks) -> io::Result<Self> {
        let (joining, joined) = mpsc::channel(QUEUE_EVENTS_MAX);
        let bound = listen(reach).await?;
        let bound = if uses_local_sockets { bound.with_local_socket() } else { bound };
        let BoundListener { at, listener } = bound;
        let listener = listener.map(|listener| {
            let (admit, admission) = oneshot::channel();
            (admit, tasks.spawn("listener", Span::current(), accept_early(listener, admission)))
        });
        Ok(Self { at, listener, joining, joined })
    }

    /// Returns the queue for children that have authenticated themselves.
    pub fn joining(&self) -> mpsc::Sender<Accepted> {
        self.joining.clone()
    }
}

/// The parts of a session's root.
pub struct RootSetup {
    /// The plan and the tree.
    pub settings: RootSettings,
    /// The session that agents must name, and its key.
    pub session: (SessionId, SessionKey),
    /// The session's clock.
    pub clock: Clock,
    /// The port that the agents of `bootstrap` connect to.
    pub port: RootPort,
    /// The agents that are being started.
    pub bootstrap: Bootstrap,
    /// How links reach their agents.
    pub links: Links,
    /// When a link to an agent counts as lost.
    pub liveness: Liveness,
    /// The log of long epochs that agents on this machine read.
    pub log: Option<Segment>,
    /// Takes the ranks' output.
    pub output: OutputSink,
    /// The session's files, in the order of its plan.
    pub files: Vec<StageSource>,
}

/// An event for the launcher.
#[derive(Debug)]
pub enum RootEvent {
    /// A step of the session, and its time.
    Notice(Time, Notice),
    /// No agent will send more output, and the sink has received all of it. Once it is written, the launcher passes
    /// [`RootInput::OutputDone`].
    OutputEnded,
    /// The agents have been sent `Suspend`: the launcher may stop itself.
    Suspended,
    /// The session is over.
    Over(Outcome),
}

/// See the module.
pub struct RootDriver {
    core: Root,
    clock: Clock,
    tree: Subtree,
    first: NamespacePlan,
    pub(super) transport: Links,
    pub(super) links: LinkContext,
    pub(super) children: Children,
    output: OutputSink,
    /// The session's files, until they are being sent.
    files: Vec<StageSource>,
    stage: StagePlan,
    sending: Sending,
    has_output_ended: bool,
    pub(super) joined: mpsc::Receiver<Accepted>,
    pub(super) accepting: Option<JoinHandle<()>>,
    /// Takes agents that may join although they are no children in the tree.
    adopted: Option<mpsc::Sender<Vec<Subtree>>>,
    pub(super) bootstrap: Bootstrap,
    pub(super) survivors: Survivors,
    log: Option<Segment>,
    alarm: Alarm,
    actions: Vec<RootAction>,
    /// Bounded by the notices of one turn: the launcher takes them before the next.
    events: VecDeque<RootEvent>,
    suspending: Option<Suspending>,
    pulse: Pulse,
    /// The exits of guardians, if the session goes on after the loss of an agent.
    exits: Option<Signal>,
    /// The time from the last arrival to the release, for each fence.
    release_times: DurationHistogram,
    /// The arrival time of the input that is being handled.
    handling: Time,
}

/// `Suspend` messages that have not been written.
struct Suspending {
    /// Receivers that close when their messages have been written.
    written: Vec<oneshot::Receiver<()>>,
    until: Instant,
}

/// Everything that the root waits for.
enum Event {
    /// Messages and losses of links, in order.
    Links(Vec<(AgentId, LinkEvent)>),
    /// A child has authenticated itself.
    Joined(Accepted),
    /// A report of an agent that is being started.
    Report(TargetReport),
    /// A child's output has ended, or a child is lost.
    OutputEnded,
    /// All `Suspend` messages have been written, or their deadline has expired.
    SuspendWritten,
    /// The launcher did not run for this time.
    Stopped(Duration),
    /// A file of the session cannot be sent.
    NotStaged(String),
    /// Child processes have exited.
    Exits,
    /// The core's alarm has expired.
    Alarm,
}

impl RootDriver {
    /// Begins to accept the children of the root and to run the root's core.
    pub fn start(setup: RootSetup, tasks: &Tasks) -> Self {
        let RootSetup { settings, session: (id, key), clock, port, bootstrap, liveness, log, output, .. } = setup;
        let (transport, files) = (setup.links, setup.files);
        let RootPort { listener, joining, joined, .. } = port;
        let (tree, first) = (settings.tree, settings.first.clone());
        let mut children = Children::default();
        if settings.session.profile {
            children.expect_profiles();
        }
        let stage = settings.session.stage.clone();
        let adopts = settings.session.on_failure.adopts();
        let (adopted, may_join) = adopts.then(|| mpsc::channel(QUEUE_EVENTS_MAX)).unzip();
        let accepting = listener.map(|(admit, accepting)| {
            let role = Role::Link { parent: AgentId::ROOT };
            let authenticator = Authenticator::new(id, key, role, tree.children().map(|child| child.head()));
            // If the task has panicked, its panic is reported.
            let _ = admit.send(Admission { authenticator, clock, joined: joining, adopted: may_join });
            accepting
        });
        let links = LinkContext::new(AgentId::ROOT, liveness, tasks.clone());
        let mut root = Self {
            core: Root::new(settings),
            clock,
            tree,
            first,
            transport,
            pulse: Pulse::new(&links.ticks),
            links,
            children,
            output,
            files,
            stage,
            sending: Sending::default(),
            has_output_ended: false,
            joined,
            accepting,
            adopted,
            bootstrap,
            survivors: Survivors::new(id, tasks.clone()),
            log,
            alarm: Alarm::default(),
            actions: Vec::new(),
            events: VecDeque::new(),
            suspending: None,
            exits: adopts.then(|| signal(SignalKind::child()).ok()).flatten(),
            release_times: DurationHistogram::default(),
            handling: Time::ZERO,
        };
        root.handle(RootInput::Timeout);
        root
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> RootEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let event = self.next_event().await;
            self.on_event(event);
        }
    }

    async fn next_event(&mut self) -> Event {
        tokio::select! {
            biased;
            // First: it would take other events for a stop.
            time = self.pulse.stopped() => Event::Stopped(time),
            events = self.links.events.next_turn() => Event::Links(events),
            Some(accepted) = self.joined.recv() => Event::Joined(accepted),
            report = self.bootstrap.next() => Event::Report(report),
            () = self.children.output_ended.notified() => Event::OutputEnded,
            () = Suspending::written(&mut self.suspending) => Event::SuspendWritten,
            why = self.sending.failed() => Event::NotStaged(why),
            Some(()) = next_exit(&mut self.exits) => Event::Exits,
            () = self.alarm.due() => Event::Alarm,
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Links(mut events) => {
                events.drain(..).for_each(|(peer, event)| self.on_link(peer, event));
                self.links.events.recycle(events);
            }
            Event::Joined(accepted) => {
                let (output, needs_hub) = (Rc::clone(&self.output), Rc::clone(&self.sending.needs));
                let child = accepted.peer;
                self.children.join(accepted, &self.links, move |lane, bytes, receipt| {
                    match (lane, StageUp::parse(&bytes)) {
                        (Lane::Stage, Some(StageUp::Needs(needs))) => needs_hub.take(child, needs),
                        _ => output(lane, bytes, receipt),
                    }
                });
                self.handle(RootInput::ChildJoined(child));
            }
            Event::Report(report) => self.on_report(report),
            Event::OutputEnded => self.check_output(),
            Event::SuspendWritten => {
                self.suspending = None;
                self.events.push_back(RootEvent::Suspended);
            }
            Event::Stopped(_) if self.links.suspended.get() => {}
            Event::Stopped(time) => self.handle(RootInput::Stopped(time)),
            Event::Exits => {
                for agent in self.bootstrap.take_ended() {
                    self.handle(RootInput::AgentEnded(agent));
                }
            }
            Event::NotStaged(why) => self.handle(RootInput::NotStaged(why)),
            Event::Alarm => self.handle(RootInput::Timeout),
        }
    }

    /// Handles an input from the launcher.
    pub fn handle(&mut self, input: RootInput) {
        if let RootInput::Suspend(suspends) = input {
            self.links.suspended.set(suspends);
            self.suspending = suspends.then(|| Suspending { written: Vec::new(), until: Instant::now() + FLUSH_TIME });
        }
        tracing::debug!(?input, "in");
        self.handling = self.clock.now();
        self.core.handle(self.handling, input, &mut self.actions);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            tracing::debug!(?action, "out");
            self.act(action);
        }
        self.children.forget_release();
        self.actions = actions;
        if self.adopted.is_some() && self.core.is_ending() {
            // The last agent for which it waited may be lost.
            self.check_output();
        }
    }

    fn act(&mut self, action: RootAction) {
        match action {
            RootAction::ToChild(child, message) => self.send(child, &message),
            RootAction::CloseChild(child, why) => {
                tracing::warn!(%child, %why, "the link to a child is closed");
                self.children.cut_off(child);
            }
            RootAction::Adopt(orphans) => {
                if let Some(adopted) = &self.adopted
                    && let Err(error) = adopted.try_send(orphans)
                {
                    tracing::error!(%error, "agents that have lost their parent cannot join");
                }
            }
            RootAction::EndGuardian(lost) => self.end_guardian(lost),
            RootAction::Notice(notice) => {
                let now = self.clock.now();
                if notice == Notice::Joined && !self.files.is_empty() {
                    // Before the last join, some children have no links.
                    let files = std::mem::take(&mut self.files);
                    let plan = std::mem::take(&mut self.stage);
                    self.sending.begin(&plan, files, self.children.links(), &self.links.tasks);
                }
                if let Notice::Released { .. } = notice {
                    // The input that is being handled was the last arrival.
                    self.release_times.note(now.saturating_sub(self.handling));
                }
                self.events.push_back(RootEvent::Notice(now, notice));
            }
            RootAction::WakeAt(at) => self.alarm.set(self.clock.instant(at)),
            RootAction::Over(outcome) => self.events.push_back(RootEvent::Over(outcome)),
        }
    }

    /// Ends what a lost agent has left on this machine, or finds the agents that can.
    fn end_guardian(&mut self, lost: AgentId) {
        if let Some(guardian) = self.bootstrap.guardian_of(lost)
            && !self.survivors.end(lost, guardian)
        {
            let neighbours = self.bootstrap.neighbours_of(lost);
            self.handle(RootInput::Neighbours { lost, guardian, neighbours });
        }
    }

    fn send(&mut self, child: AgentId, message: &Down) {
        let receipt = match &mut self.suspending {
            Some(suspending) if *message == Down::Suspend => suspending.expect(),
            _ => Receipt::default(),
        };
        // The log never shrinks, and spawned namespaces come and go.
        let is_logged = matches!(message, Down::Release { namespace, .. } if self.core.is_job(*namespace));
        let in_log = |bytes: &Bytes| {
            let log = self.log.as_mut().filter(|_| is_logged)?;
            let stored = log.append(bytes).ok()?;
            log.offset_of(&stored)
        };
        self.children.send(child, message, receipt, in_log);
    }

    fn on_link(&mut self, peer: AgentId, event: LinkEvent) {
        match self.children.receive(peer, event) {
            Some(Received::Message(message)) => self.handle(RootInput::FromChild(peer, message)),
            Some(Received::Silent(time)) => self.handle(RootInput::ChildSilent(peer, time)),
            Some(Received::Lost(why)) => self.handle(RootInput::ChildLost(peer, why)),
            Some(Received::OutputLost(why)) => self.handle(RootInput::ChildOutputLost(peer, why)),
            None => {}
        }
    }

    fn on_report(&mut self, report: TargetReport) {
        if let Some((agent, failure)) = self.bootstrap.on_report(report) {
            self.handle(RootInput::AgentFailed(agent, NotStartedReason::Reported(failure.words)));
        }
        // All agents report before the first rank starts, so no epoch is in the log yet.
        if !self.bootstrap.reads_log() {
            self.log = None;
        }
    }

    fn check_output(&mut self) {
        let all_joined = self.children.joined >= self.tree.children().count();
        // Before the end, other agents may take the place of a lost one.
        let is_final = self.adopted.is_none() || self.core.is_ending() && !self.core.awaits_agents();
        if all_joined && is_final && !self.has_output_ended && self.children.have_ended_output() {
            self.has_output_ended = true;
            self.events.push_back(RootEvent::OutputEnded);
        }
    }

    /// Returns the links to the children whose ranks read standard input.
    pub fn input_takers(&self) -> Vec<Link> {
        let takes = |child: &Subtree| self.first.takes_input(*child);
        let takers = self.tree.children().filter(takes).filter_map(|child| self.children.link(child.head()));
        takers.cloned().collect()
    }

    /// Returns how many agents have reported, and how many are expected.
    pub fn agents_progress(&self) -> (u32, u32) {
        self.bootstrap.progress()
    }

    /// Returns the progress of the first namespace's ranks.
    pub fn ranks_progress(&self) -> RankProgress {
        self.core.progress()
    }

    /// Returns the target to blame for an agent that was lost before all had joined.
    pub fn culprit(&self, lost: AgentId) -> Option<u32> {
        self.bootstrap.culprit(lost)
    }

    /// Returns the times at which agents reported and joined.
    pub fn arrivals(&self) -> &ArrivalTimes {
        self.bootstrap.arrivals()
    }

    /// Returns when the traced agents were started and joined, as spans. Agents have no other spans of these kinds.
    pub fn start_spans(&self, scope: TraceScope) -> Vec<TraceSpan> {
        let began = self.bootstrap.arrivals().began();
        let spans = self.bootstrap.arrivals().targets().iter().filter_map(|(target, times)| {
            let agent = self.bootstrap.agent_at(*target).filter(|agent| scope.traces(*agent))?;
            Some((agent, *times))
        });
        let spans = spans.flat_map(|(agent, TargetTimes { here, join })| {
            let bootstrap = here.map(|here| TraceSpan::new(agent, SpanKind::Bootstrap, began, here));
            let join = join.map(|(sent_at, joined)| TraceSpan::new(agent, SpanKind::Join, sent_at, joined));
            bootstrap.into_iter().chain(join)
        });
        spans.collect()
    }

    /// Returns the phases of the agents that have ended in order.
    pub fn timing(&self) -> &Timing {
        self.core.timing()
    }

    /// Whether the ranks are being ended or have ended.
    pub fn is_ending(&self) -> bool {
        self.core.is_ending()
    }

    /// Returns whether nothing of the session is left but an agent that is to stand by again: it has reported its end, no process that
    /// it has started is left, and no file of PMIx.
    pub fn may_stand_by(&self) -> bool {
        self.bootstrap.has_standing() && !self.core.serves_pmix() && self.core.has_ended_in_order()
    }

    /// Returns the agents of the other failures with which ranks did not start for the same reason as in `first`.
    pub fn failed_alike(&self, first: &Failure) -> Vec<AgentId> {
        self.core.failed_alike(first)
    }

    /// Whether no rank of the first namespace has spoken PMI.
    pub fn is_silent(&self) -> bool {
        self.core.is_silent()
    }

    /// Returns the statistics of the session.
    pub fn stats(&self) -> Stats {
        let counted = DriverCounts {
            down: self.children.sent,
            link_bytes: self.links.meter.link_bytes(),
            stream_bytes: self.links.meter.stream_bytes(),
            ..DriverCounts::default()
        };
        self.core.stats(counted, self.release_times.clone())
    }
}

/// Waits until child processes have exited. Cancel-safe.
async fn next_exit(exits: &mut Option<Signal>) -> Option<()> {
    match exits {
        Some(exits) => exits.recv().await,
        None => pending().await,
    }
}

impl Suspending {
    /// Returns the receipt of one more message.
    fn expect(&mut self) -> Receipt {
        let (queued, written) = oneshot::channel::<()>();
        self.written.push(written);
        Receipt::holding(queued)
    }

    /// Waits until all messages have been written or their deadline has expired. Cancel-safe.
    async fn written(suspending: &mut Option<Self>) {
        let Some(Self { written, until }) = suspending else { return pending().await };
        while let Some(next) = written.last_mut() {
            // No value is sent: the channel closes when its sender is dropped.
            let _ = timeout_at(*until, next).await;
            written.pop();
        }
    }
}
