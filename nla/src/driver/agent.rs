//! The actor that owns an agent's core, from when it has joined the tree to its exit code.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi::{Answer, Ranks, Request};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::input::InputHub;
use super::output::OutputPump;
use super::recorder::Recorder;
use super::serving::RankEvent;
use super::startup::{Local, Startup};
use super::table::{Key, RankTable};
use crate::bootstrap::ChildShells;
use crate::core::{
    Action, Agent, AgentId, DriverCounts, Input, LossReason, NamespaceId, NotStartedReason, Subtree, Traffic, Up,
};
use crate::link::Accepted;
use crate::link::Clock;
use crate::link::{Link, LinkEvent, Meter, Receipt, StreamSink};
use crate::sys::{self, Ended, GuardianLink, SegmentReader, Watched};
use crate::wire::{DownEncoder, Lane, StepFrame, TreePosition, decode, decode_down, encode};

/// Events taken from a queue before the others get a turn.
const TURN: usize = 256;
/// How long the last words to parent and children may take.
const FAREWELL_TIME: Duration = Duration::from_secs(2);
/// Bound of the queues between tasks; who meets a full one waits.
const QUEUE: usize = 1024;
/// While descendants are being killed, how often is looked for new ones.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// Descendants that nobody may kill (setuid programs) are given up after so long.
const SWEEP_TIME: Duration = Duration::from_secs(3);

struct ChildLink {
    link: Link,
    /// Lanes of output that have not ended yet, counted down by the stream sink.
    streams_open: Rc<Cell<u8>>,
}

pub(super) struct Driver {
    core: Agent,
    recorder: Option<Recorder>,
    clock: Clock,
    guardian: GuardianLink,
    /// Readable once the guardian is gone.
    guardian_end: Watched,
    dead_time: Duration,
    suspended: Rc<Cell<bool>>,
    parent: Link,
    children: BTreeMap<AgentId, ChildLink>,
    input: Rc<RefCell<InputHub>>,
    here: Subtree,
    table: RankTable,
    startup: Option<Startup>,
    namespaces: HashMap<NamespaceId, Local>,
    waiting: HashMap<Key, oneshot::Sender<Answer>>,
    /// Brings children that have said hello.
    pub(super) joining: mpsc::Sender<Accepted>,
    joined: mpsc::Receiver<Accepted>,
    /// Where links go over sessions: those to the children.
    pub(super) sessions: Option<ChildShells>,
    link_events: mpsc::Sender<(AgentId, LinkEvent)>,
    link_incoming: mpsc::Receiver<(AgentId, LinkEvent)>,
    rank_events: mpsc::Sender<RankEvent>,
    rank_incoming: mpsc::Receiver<RankEvent>,
    reaped: Signal,
    sweep: Sweep,
    wake_at: Option<Instant>,
    actions: Vec<Action>,
    encoder: DownEncoder,
    /// The launcher's, if it is on this machine.
    pub(super) log: Option<SegmentReader>,
    leaving: Option<u8>,
    parent_id: AgentId,
    parent_gone: bool,
    /// The launcher is on another node.
    is_remote: bool,
    stream_ends: Rc<tokio::sync::Notify>,
    meter: Meter,
    up: Traffic,
    down: Traffic,
}

/// The end of all processes here, and then of their output.
enum Sweep {
    /// Not yet.
    No,
    /// Descendants that are left are being killed.
    Killing { since: Instant, leftovers: u64 },
    /// No process is left; its output is being read to the end.
    Draining(oneshot::Receiver<usize>),
    /// Own output has been read.
    Drained,
    /// The parent is being told that no output follows; the channel ends when that is written.
    Telling(oneshot::Receiver<()>),
    /// It has been told.
    Told,
}

impl Sweep {
    /// Waits for what the driver does not do itself, and says what comes next.
    async fn next(&mut self) -> Self {
        match self {
            Self::Draining(drained) => {
                let held = drained.await.unwrap_or_default();
                if held > 0 {
                    tracing::warn!(held, "pipes of ranks are held open by processes out of reach");
                }
                Self::Drained
            }
            Self::Telling(written) => {
                // Nothing is ever sent: it ends with its senders.
                let _ = written.await;
                Self::Told
            }
            Self::No | Self::Killing { .. } | Self::Drained | Self::Told => std::future::pending().await,
        }
    }
}

impl Driver {
    pub(super) fn new(
        place: TreePosition,
        here: Subtree,
        accepted: Accepted,
        clock: Clock,
        guardian: GuardianLink,
        dead_time: Duration,
        is_remote: bool,
    ) -> io::Result<Self> {
        let (joining, joined) = mpsc::channel(QUEUE);
        let (link_events, link_incoming) = mpsc::channel(QUEUE);
        let (rank_events, rank_incoming) = mpsc::channel(QUEUE);
        let suspended = Rc::new(Cell::new(false));
        let input = Rc::new(RefCell::new(InputHub::new()));
        let hub = Rc::clone(&input);
        let streams: StreamSink = Box::new(move |lane, bytes, receipt| {
            if lane == Lane::Stdin {
                hub.borrow_mut().push(bytes, receipt);
            }
        });
        let parent_id = accepted.peer;
        let meter = Meter::default();
        let (events, still) = (link_events.clone(), Rc::clone(&suspended));
        let parent = Link::start(accepted, events, streams, dead_time, still, meter.clone());
        Ok(Self {
            core: Agent::new(here),
            recorder: Recorder::begin(place)?,
            clock,
            guardian_end: sys::watch(guardian.as_fd().try_clone_to_owned()?)?,
            guardian,
            dead_time,
            suspended,
            parent,
            children: BTreeMap::new(),
            input,
            here,
            table: RankTable::default(),
            startup: None,
            namespaces: HashMap::new(),
            waiting: HashMap::new(),
            joining,
            joined,
            sessions: None,
            link_events,
            link_incoming,
            rank_events,
            rank_incoming,
            reaped: signal(SignalKind::child())?,
            sweep: Sweep::No,
            wake_at: None,
            actions: Vec::new(),
            encoder: DownEncoder::default(),
            log: None,
            leaving: None,
            parent_id,
            parent_gone: false,
            is_remote,
            stream_ends: Rc::new(tokio::sync::Notify::new()),
            meter,
            up: Traffic::default(),
            down: Traffic::default(),
        })
    }

    pub(super) async fn run(&mut self) -> u8 {
        // A leaf is ready at once: nothing has to happen first.
        self.handle(Input::Timeout);
        let mut guarded = true;
        let mut heartbeat = tokio::time::interval(self.dead_time / 8);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(code) = self.leaving {
                self.part().await;
                return code;
            }
            let idle = Instant::now() + Duration::from_secs(3600);
            let starting = self.startup.as_ref().is_some_and(Startup::is_busy);
            tokio::select! {
                biased;
                Some((peer, event)) = self.link_incoming.recv() => {
                    self.on_link(peer, event);
                    for _ in 1..TURN {
                        let Ok((peer, event)) = self.link_incoming.try_recv() else { break };
                        self.on_link(peer, event);
                    }
                }
                Some(event) = self.rank_incoming.recv() => {
                    self.on_rank(event);
                    for _ in 1..TURN {
                        let Ok(event) = self.rank_incoming.try_recv() else { break };
                        self.on_rank(event);
                    }
                }
                _ = self.reaped.recv() => self.reap(),
                Some(accepted) = self.joined.recv() => self.on_joined(accepted),
                (child, why) = async {
                    match &mut self.sessions {
                        Some(sessions) => sessions.next_failure().await,
                        None => std::future::pending().await,
                    }
                } => self.handle(Input::ChildFailed(child, NotStartedReason::Reported(why))),
                () = self.stream_ends.notified() => {}
                next = self.sweep.next() => {
                    self.sweep = next;
                    if let Sweep::Told = self.sweep {
                        self.handle(Input::Drained { counted: Box::new(self.counted()) });
                    }
                }
                _ = self.guardian_end.readable(), if guarded => {
                    guarded = false;
                    self.handle(Input::GuardianLost);
                }
                _ = heartbeat.tick() => {
                    // Its loss shows on the same descriptor; nothing to be done here.
                    let _ = self.guardian.alive();
                }
                () = tokio::time::sleep_until(self.wake_at.unwrap_or(idle)), if self.wake_at.is_some() => {
                    self.wake_at = None;
                    self.handle(Input::Timeout);
                }
                () = std::future::ready(()), if starting => {
                    self.start_ranks();
                    self.reap();
                    // Those that run already are served before the next batch.
                    tokio::task::yield_now().await;
                }
                () = tokio::time::sleep(SWEEP_PAUSE), if matches!(self.sweep, Sweep::Killing { .. }) => {}
            }
            self.go_on_sweeping();
            if let Some(startup) = &self.startup {
                let in_segment = self.namespaces.values().any(|local| local.in_segment > 0);
                startup.pump().set_pmi_waits(!self.waiting.is_empty() || in_segment);
                startup.pump().flush();
            }
        }
    }

    /// The last words to children and parent are written before the process ends. The parent hears of this
    /// end when all below have ended: then the launcher's own is that of all.
    async fn part(&mut self) {
        for child in self.children.values() {
            child.link.close();
        }
        let _ = timeout(FAREWELL_TIME, self.await_farewells(false)).await;
        if let Some(sessions) = &mut self.sessions {
            sessions.wait(FAREWELL_TIME).await;
        }
        self.parent.close();
        let _ = timeout(FAREWELL_TIME, self.await_farewells(true)).await;
    }

    async fn await_farewells(&mut self, of_parent: bool) {
        while !(self.children.is_empty() && (self.parent_gone || !of_parent)) {
            match self.link_incoming.recv().await {
                Some((peer, LinkEvent::Lost(_))) if peer == self.parent_id => self.parent_gone = true,
                Some((peer, LinkEvent::Lost(_))) => drop(self.children.remove(&peer)),
                Some(_) => {}
                None => return,
            }
        }
    }

    fn handle(&mut self, input: Input) {
        tracing::debug!(?input, "in");
        let now = self.clock.now();
        let step = self.recorder.is_some().then(|| StepFrame::of(now, &input));
        let before = self.actions.len();
        self.core.handle(now, input, &mut self.actions);
        if let (Some(recorder), Some(step)) = (&mut self.recorder, step) {
            recorder.done(step, &self.actions[before..]);
        }
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            tracing::debug!(?action, "out");
            self.act(action);
        }
        self.encoder.forget();
        // Acting hands in inputs of its own now and then; their actions are done by then.
        if self.actions.is_empty() {
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ToParent(message) => {
                let lane = if message.is_board() { Lane::Board } else { Lane::Control };
                let bytes = Bytes::from(encode(&message));
                self.up.note(message.is_board(), bytes.len());
                self.parent.send(lane, bytes, Receipt::default());
            }
            Action::ToChild(child, message) => {
                if let Some(child) = self.children.get(&child) {
                    let lane = if message.is_board() { Lane::Board } else { Lane::Control };
                    // What came by the log goes on by it: who is below is on this machine as well.
                    let in_log = |bytes: &Bytes| self.log.as_ref()?.offset_of(bytes);
                    let bytes = self.encoder.encode(&message, in_log);
                    self.down.note(message.is_board(), bytes.len());
                    child.link.send(lane, bytes, Receipt::default());
                }
            }
            Action::CloseChild(child, why) => {
                tracing::warn!(%child, %why, "a child is cut off");
                if let Some(child) = self.children.remove(&child) {
                    child.link.close();
                }
            }
            Action::Configure(session) => {
                self.table.note_oom_kills();
                let pump = OutputPump::start(self.parent.clone(), session.hold_lines);
                let session = match (self.is_remote, std::env::var_os("SLURM_STEP_ID")) {
                    (false, _) => *session,
                    (true, None) => session.for_other_node(),
                    // The step has started this agent, and its environment is the step's.
                    (true, Some(_)) => {
                        let own = |name: &str| std::env::var_os(name).map(OsStringExt::into_vec);
                        session.for_other_node().with_devices(own)
                    }
                };
                let startup =
                    pump.and_then(|pump| Startup::new(session, pump, Rc::clone(&self.input), self.rank_events.clone()));
                match startup {
                    Ok(startup) => self.startup = Some(startup),
                    Err(error) => tracing::error!(%error, "no rank can be started here"),
                }
            }
            Action::Start(plan, ranks, board) => {
                let (id, stdin) = (plan.id, plan.stdin.clone());
                let takers: Ranks = ranks.iter().filter(|rank| stdin.contains(*rank)).collect();
                self.open_input(&plan, &takers);
                match &mut self.startup {
                    _ if ranks.is_empty() => {}
                    Some(startup) => {
                        let local = startup.enqueue(plan, &ranks, board);
                        self.namespaces.insert(id, local);
                    }
                    None => self.handle(Input::NotStarted(id, ranks, NotStartedReason::SetupFailed)),
                }
            }
            Action::CancelStarts => {
                let cancelled = self.startup.as_mut().map(Startup::cancel).unwrap_or_default();
                for (namespace, ranks) in cancelled {
                    self.handle(Input::NotStarted(namespace, ranks, NotStartedReason::Cancelled));
                }
            }
            Action::Publish(namespace, epoch) => {
                if let Some(local) = self.namespaces.get(&namespace) {
                    local.board.borrow_mut().publish(epoch);
                }
            }
            Action::Release(namespace, ranks) => {
                // One call for all that wait in the segment; the others are answered one by one.
                if let Some(local) = self.namespaces.get_mut(&namespace) {
                    local.board.borrow_mut().release();
                    local.in_segment = 0;
                }
                for rank in ranks.iter() {
                    self.answer((namespace, rank), Answer::Released);
                }
            }
            Action::Answer(namespace, rank, answer) => self.answer((namespace, rank), answer),
            Action::LookUp { namespace, key, requester } => {
                let local = self.namespaces.get(&namespace);
                let value = local.and_then(|local| local.board.borrow().board().get(&key).map(<[u8]>::to_vec));
                self.handle(Input::LookedUp { namespace, key, requester, value });
            }
            Action::Signal(namespace, ranks, signal) => self.table.signal(namespace, &ranks, signal),
            Action::Suspended(suspended) => self.suspended.set(suspended),
            Action::Sweep => self.sweep = Sweep::Killing { since: Instant::now(), leftovers: 0 },
            Action::WakeAt(at) => self.wake_at = Some(self.clock.instant(at)),
            Action::Leave(code) => drop(self.leaving.get_or_insert(code)),
        }
    }

    fn open_input(&mut self, plan: &crate::core::NamespacePlan, own: &Ranks) {
        if plan.id != NamespaceId::FIRST {
            return;
        }
        let takes = |child: &Subtree| plan.takes_input(*child);
        let children = self.here.children().filter(takes).filter_map(|child| self.children.get(&child.head()));
        self.input.borrow_mut().open(own, children.map(|child| child.link.clone()).collect());
    }

    fn answer(&mut self, key: Key, answer: Answer) {
        if let Some(waiting) = self.waiting.remove(&key) {
            // A rank that has died meanwhile needs no answer.
            let _ = waiting.send(answer);
        }
    }

    fn on_joined(&mut self, accepted: Accepted) {
        let child = accepted.peer;
        let streams_open = Rc::new(Cell::new(2u8));
        let (parent, open, ends) = (self.parent.clone(), Rc::clone(&streams_open), Rc::clone(&self.stream_ends));
        let streams: StreamSink = Box::new(move |lane, bytes, receipt| {
            if bytes.is_empty() {
                open.set(open.get().saturating_sub(1));
                ends.notify_one();
            } else if lane != Lane::Stdin {
                parent.send(lane, bytes, receipt);
            }
        });
        let (events, still, meter) = (self.link_events.clone(), Rc::clone(&self.suspended), self.meter.clone());
        let link = Link::start(accepted, events, streams, self.dead_time, still, meter);
        self.children.insert(child, ChildLink { link, streams_open });
        self.handle(Input::ChildJoined(child));
    }

    fn on_link(&mut self, peer: AgentId, event: LinkEvent) {
        match event {
            LinkEvent::Message(bytes) if peer == self.parent_id => {
                let in_log = |offset, length| self.log.as_ref()?.bytes(offset, length);
                match decode_down(&bytes, in_log) {
                    Ok(message) => self.handle(Input::FromParent(message)),
                    Err(error) => self.handle(Input::ParentLost { why: LossReason::Undecodable(error.to_string()) }),
                }
            }
            LinkEvent::Lost(why) if peer == self.parent_id => {
                tracing::debug!(%why, "the parent is gone");
                self.parent_gone = true;
                self.handle(Input::ParentLost { why });
            }
            LinkEvent::Message(bytes) => match decode::<Up>(&bytes) {
                Ok(message) => self.handle(Input::FromChild(peer, message)),
                Err(error) => {
                    self.children.remove(&peer);
                    self.handle(Input::ChildLost(peer, LossReason::Undecodable(error.to_string())));
                }
            },
            LinkEvent::Lost(why) => {
                if self.children.remove(&peer).is_some() {
                    self.handle(Input::ChildLost(peer, why));
                }
            }
        }
    }

    fn on_rank(&mut self, event: RankEvent) {
        match event {
            RankEvent::Asked { key, request, answer } => {
                if let Some(answer) = answer {
                    self.waiting.insert(key, answer);
                }
                if let (Request::Fence { in_segment: true, .. }, Some(local)) =
                    (&request, self.namespaces.get_mut(&key.0))
                {
                    local.in_segment += 1;
                }
                self.handle(Input::FromRank(key.0, key.1, request));
            }
            RankEvent::Ended { key, exit } => {
                self.waiting.remove(&key);
                if let Some(startup) = &self.startup {
                    startup.pump().on_ended(key.0, key.1);
                }
                self.handle(Input::RankEnded(key.0, key.1, exit));
            }
        }
    }

    fn start_ranks(&mut self) {
        let Some(startup) = &mut self.startup else { return };
        let batch = startup.start_batch(&mut self.table);
        for (namespace, ranks) in batch.started {
            self.handle(Input::Started(namespace, ranks));
        }
        for (namespace, ranks, why) in batch.failed {
            self.handle(Input::NotStarted(namespace, ranks, NotStartedReason::Reported(why)));
        }
    }

    fn reap(&mut self) {
        while let Some((pid, ended)) = sys::reap() {
            if self.sessions.as_ref().is_some_and(|sessions| sessions.note_ended(pid, ended)) {
                continue;
            }
            let is_rank = self.table.on_reaped(pid, ended);
            if let (Sweep::Killing { leftovers, .. }, false, Ended::Killed { signal: 9, .. }) =
                (&mut self.sweep, is_rank, ended)
            {
                *leftovers += 1;
            }
        }
    }

    fn go_on_sweeping(&mut self) {
        if let Sweep::Killing { since, .. } = self.sweep {
            // Those that carry links to the children are nothing that ranks have left.
            let spared = |driver: &Self| driver.sessions.as_ref().map(ChildShells::processes).unwrap_or_default();
            // What they leave behind when they die becomes ours in turn.
            let refused = sys::has_children_but(&spared(self))
                && sys::kill_children_but(9, &spared(self)) == 0
                && since.elapsed() > SWEEP_TIME;
            self.reap();
            if refused {
                tracing::warn!("processes are left that cannot be killed");
            }
            if let Sweep::Killing { leftovers, .. } = self.sweep
                && (refused || !sys::has_children_but(&spared(self)))
            {
                self.sweep = match &self.startup {
                    Some(startup) => Sweep::Draining(startup.pump().finish()),
                    None => Sweep::Drained,
                };
                self.handle(Input::Swept { leftovers });
            }
        }
        if matches!(self.sweep, Sweep::Drained) && self.children.values().all(|child| child.streams_open.get() == 0) {
            let (told, written) = oneshot::channel::<()>();
            let told = Arc::new(told);
            for lane in [Lane::Stdout, Lane::Stderr] {
                self.parent.send(lane, Bytes::new(), Receipt::holding(Arc::clone(&told)));
            }
            self.sweep = Sweep::Telling(written);
        }
    }

    /// What was counted here so far.
    fn counted(&self) -> DriverCounts {
        let boards = || self.namespaces.values().map(|local| local.board.borrow());
        DriverCounts {
            up: self.up,
            down: self.down,
            link_bytes: self.meter.link_bytes(),
            stream_bytes: self.meter.stream_bytes(),
            board_gets: boards().map(|board| board.board().answered()).sum(),
            segments: boards().map(|board| board.readers()).sum(),
        }
    }
}
