//! One run: bootstraps the agents, drives the root of the tree, carries input and output.

mod ending;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::{Signal, raise};
use nla::bootstrap::{BootOrder, Bootstrap, Links};
use nla::core::limits::DEAD_TIME;
use nla::core::{
    AgentId, CachePolicy, Down, DurationHistogram, LossReason, NotStartedReason, Notice, Outcome, Root, RootAction,
    RootInput, Subtree, Time, Timing, Traffic,
};
use nla::link::Reach;
use nla::link::{Accepted, Authenticator, Clock, Link, LinkEvent, Meter, Receipt, StreamSink, accept_children, listen};
use nla::sys;
use nla::wire::{DownEncoder, Lane, SessionId, SessionKey, decode};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use self::ending::Asides;
use crate::plan::Plan;
use crate::plan::launch::AgentHosts;
use crate::plan::remote_launch::RemoteLaunch;
use crate::run::assemble::{addresses, assemble};
use crate::run::input::Reader;
use crate::run::output::{OutputEvent, Stream, Style, Writer};
use crate::run::progress::{Counts, PAUSE, Progress};
use crate::run::rank_locations::RankLocations;
use crate::run::report::{Reporter, leftovers_text, step_text};
use crate::run::signals::{Asked, Signals};
use crate::run::stats::Sink;
use crate::run::timing::{Names, Phases};

/// Bound of the queues between tasks.
const QUEUE: usize = 1024;
/// Descriptors for which there is room from the beginning.
const DESCRIPTORS_AT_ONCE: u64 = 1024;
/// Events taken from a queue before the others get a turn.
const TURN: usize = 256;
/// How long agents and guardians may take to leave once the session is over.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// How long messages may take to be on their way before the launcher stops itself.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Random numbers of a session.
pub struct Secrets {
    /// The key that all links are secured with.
    pub key: SessionKey,
    /// What agents say first on a bootstrap channel.
    pub marker: [u8; 16],
}

impl Secrets {
    /// Draws the public number and the secrets of a new session from the kernel.
    pub fn random() -> io::Result<(u64, Self)> {
        let mut source = File::open("/dev/urandom")?;
        let (mut session, mut key, mut marker) = ([0; 8], [0; 32], [0; 16]);
        source.read_exact(&mut session)?;
        source.read_exact(&mut key)?;
        source.read_exact(&mut marker)?;
        Ok((u64::from_le_bytes(session), Self { key: SessionKey(key), marker }))
    }
}

/// How a session has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The launcher's exit code.
    pub code: u8,
    /// When what was over, by the launcher's own notes.
    pub phases: Phases,
    /// By those of its agents.
    pub timing: Timing,
}

/// Runs `plan` on its agent_hosts to its end. `clock` is the session's, which began before the plan was made.
pub fn run(plan: Plan, agent_hosts: AgentHosts, session: u64, secrets: Secrets, clock: Clock) -> io::Result<Ended> {
    if let AgentHosts::Remote(_) = agent_hosts {
        // Until they have joined, there is a channel to each agent.
        sys::raise_limit()?;
    }
    sys::make_room(DESCRIPTORS_AT_ONCE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = LocalSet::new().block_on(&runtime, live(plan, agent_hosts, SessionId(session), secrets, clock));
    runtime.shutdown_background();
    ended
}

struct ChildLink {
    link: Link,
    /// Lanes of output that have not ended.
    open: Rc<RefCell<BTreeSet<Lane>>>,
}

struct Session {
    root: Root,
    clock: Clock,
    tree: Subtree,
    reporter: Reporter,
    locations: Arc<RankLocations>,
    size: u32,
    children: BTreeMap<AgentId, ChildLink>,
    /// Children whose links have ended.
    gone: BTreeSet<AgentId>,
    suspended: Rc<Cell<bool>>,
    stream_ends: Rc<Notify>,
    out: Writer,
    err: Writer,
    output_ended: bool,
    writers_done: u8,
    reader: Reader,
    plan_input: Option<crate::plan::InputSource>,
    first: nla::core::NamespacePlan,
    session: nla::core::SessionPlan,
    link_events: mpsc::Sender<(AgentId, LinkEvent)>,
    wake_at: Option<Instant>,
    actions: Vec<RootAction>,
    encoder: DownEncoder,
    /// Long epochs, which agents on this machine read there.
    log: Option<sys::Segment>,
    outcome: Option<Outcome>,
    phases: Phases,
    progress: Rc<Progress>,
    flushes: Vec<oneshot::Receiver<()>>,
    ending_told: bool,
    meter: Meter,
    down: Traffic,
    fences: DurationHistogram,
    /// When the input came that is being handled.
    handling: Time,
}

async fn live(
    mut plan: Plan,
    mut agent_hosts: AgentHosts,
    session: SessionId,
    secrets: Secrets,
    clock: Clock,
) -> io::Result<Ended> {
    let options = plan.options.clone();
    let reporter = Reporter::of(&plan.options);
    reporter.notes(&std::mem::take(&mut plan.remarks));

    let progress = Rc::new(Progress::new(reporter));
    // All that can fail is set up before the first process is started.
    let stats = options.stats.as_ref().map(Sink::open).transpose()?;
    let mut signals = Signals::new()?;
    let (reach, links) = match &agent_hosts {
        AgentHosts::Local => (Reach::Here, Links::Connections),
        AgentHosts::Remote(expedition) if expedition.links == Links::RemoteShells => {
            (Reach::Nobody, Links::RemoteShells)
        }
        AgentHosts::Remote(_) => (Reach::Network(options.launch.port_range), Links::Connections),
    };
    let (own, listener) = listen(reach).await?.map_or((Vec::new(), None), |door| (door.addresses, Some(door.listener)));
    let log = shares_log(&plan, &agent_hosts).then(sys::Segment::new).and_then(Result::ok);
    let order = BootOrder {
        session,
        key: secrets.key.clone(),
        marker: secrets.marker,
        target: 0,
        callback: Vec::new(),
        reach,
        links,
        label: plan.label.clone(),
        dead_time: DEAD_TIME,
        below: None,
        log: log.as_ref().map(sys::Segment::place),
    };
    let (joining, mut joined) = mpsc::channel(QUEUE);
    let (mut bootstrap, locations) = match &mut agent_hosts {
        AgentHosts::Local => {
            let bootstrap = Bootstrap::local(order, clock, plan.settings.tree, options.fanout(), own);
            (bootstrap, RankLocations::here(sys::host_name()))
        }
        AgentHosts::Remote(expedition) => {
            let root = match links {
                Links::Connections => addresses(&options.launch, own)?,
                Links::RemoteShells => Vec::new(),
            };
            let start = |expedition: &RemoteLaunch, timeout| {
                let bootstrap = Bootstrap::remote(order.clone(), clock, expedition.targets(), root.clone(), timeout);
                bootstrap.take_links(joining.clone());
                bootstrap
            };
            // The targets of one tree change when it begins again.
            let targets = if expedition.choice.is_one_tree { 0 } else { expedition.choice.targets.len() as u32 };
            let names: Vec<String> = (1..=targets).map(|target| expedition.name(target).to_owned()).collect();
            let timeout = expedition.timeout;
            let began = clock.now();
            let look = |bootstrap: &Bootstrap| {
                let (agents, agents_all) = bootstrap.progress();
                let missing = bootstrap.unsettled().into_iter();
                let waiting_for = missing.filter_map(|target| names.get(target as usize - 1).cloned()).collect();
                let time = clock.now().saturating_sub(began);
                progress.show(
                    clock.now(),
                    &Counts { agents, agents_all, assembly: Some((time, timeout)), waiting_for, ..Counts::default() },
                );
            };
            match assemble(expedition, start, &mut plan, &mut signals, reporter, look).await {
                (bootstrap, Ok(places)) => (bootstrap, places),
                (mut bootstrap, Err(code)) => {
                    progress.end();
                    bootstrap.wait(LEAVE_TIME).await;
                    let phases = Phases::of_launch(bootstrap.arrivals().clone(), clock.now());
                    if options.timing {
                        let target = |target: u32| expedition.name(target).to_owned();
                        let table = phases.table(&Timing::default(), 0, &Names { target: &target, agents: None });
                        reporter.note(&format!("phases of the launch:\n{table}"));
                    }
                    return Ok(Ended { code, phases, timing: Timing::default() });
                }
            }
        }
    };
    let Plan { settings, label, input, demo, .. } = plan;
    let tree = settings.tree;
    let locations = Arc::new(locations);
    // Bounded by the few things that two writers have to tell.
    let (output_events, mut output_incoming) = mpsc::unbounded_channel();
    let terminal = |stream: Stream| match stream {
        Stream::Out => io::IsTerminal::is_terminal(&io::stdout()),
        Stream::Err => io::IsTerminal::is_terminal(&io::stderr()),
    };
    let style = |stream: Stream| Style {
        labels: options.prepend_rank,
        fresh_lines: options.prepend_rank || terminal(stream),
        pattern: if stream == Stream::Out { options.outfile_pattern.clone() } else { options.errfile_pattern.clone() },
        locations: Arc::clone(&locations),
        session: label.clone(),
    };
    let out = Writer::start(Stream::Out, style(Stream::Out), output_events.clone())?;
    let err = Writer::start(Stream::Err, style(Stream::Err), output_events.clone())?;

    let door = listener.map(|listener| {
        let authenticator = Authenticator::new(session, secrets.key, tree.children().map(|child| child.head()));
        tokio::task::spawn_local(accept_children(listener, authenticator, clock, joining.clone()))
    });
    drop(joining);
    let (link_events, mut link_incoming) = mpsc::channel(QUEUE);

    let mut session = Session {
        clock,
        tree,
        reporter,
        locations,
        size: settings.first.size,
        children: BTreeMap::new(),
        gone: BTreeSet::new(),
        suspended: Rc::new(Cell::new(false)),
        stream_ends: Rc::new(Notify::new()),
        out,
        err,
        output_ended: false,
        writers_done: 0,
        reader: Reader::none(),
        plan_input: input,
        first: settings.first.clone(),
        session: settings.session.clone(),
        link_events,
        wake_at: None,
        actions: Vec::new(),
        encoder: DownEncoder::default(),
        log,
        outcome: None,
        phases: Phases::default(),
        progress,
        flushes: Vec::new(),
        ending_told: false,
        meter: Meter::default(),
        down: Traffic::default(),
        fences: DurationHistogram::default(),
        handling: Time::ZERO,
        root: Root::new(settings),
    };
    session.handle(RootInput::Timeout);
    let limit = options.timeout.map(|limit| (limit, Instant::now() + limit));
    let idle = Instant::now() + Duration::from_secs(1 << 30);
    let mut limited = limit.is_some();
    let mut glances = tokio::time::interval(PAUSE);
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);

    let outcome = loop {
        if let Some(outcome) = session.outcome.take() {
            break outcome;
        }
        tokio::select! {
            biased;
            Some(asked) = signals.next() => session.on_signal(asked).await,
            Some((peer, event)) = link_incoming.recv() => {
                session.on_link(peer, event);
                for _ in 1..TURN {
                    let Ok((peer, event)) = link_incoming.try_recv() else { break };
                    session.on_link(peer, event);
                }
            }
            Some(accepted) = joined.recv() => session.on_joined(accepted),
            Some(report) = bootstrap.next() => {
                if let Some((agent, failure)) = bootstrap.on_report(report) {
                    session.handle(RootInput::AgentFailed(agent, NotStartedReason::Reported(failure.words)));
                }
                // No rank starts before all have come.
                if !bootstrap.reads_log() {
                    session.log = None;
                }
            }
            Some(event) = output_incoming.recv() => session.on_output(event),
            () = session.stream_ends.notified() => session.check_output(),
            () = tokio::time::sleep_until(session.wake_at.unwrap_or(idle)), if session.wake_at.is_some() => {
                session.wake_at = None;
                session.handle(RootInput::Timeout);
            }
            _ = glances.tick(), if session.progress.is_wanted() => {
                let (agents, agents_all) = bootstrap.progress();
                let nla::core::RankProgress { started, arrived } = session.root.progress();
                let ranks_all = u64::from(session.size);
                session.progress.show(clock.now(), &Counts { agents, agents_all, started, arrived, ranks_all, ..Counts::default() });
            }
            () = tokio::time::sleep_until(limit.map_or(idle, |(_, at)| at)), if limited => {
                limited = false;
                session.handle(RootInput::TimeLimit(limit.map(|(limit, _)| limit).unwrap_or_default()));
            }
        }
    };
    door.inspect(|door| door.abort());
    // Who is just being let in is to leave as well: its link is dropped.
    tokio::task::spawn_local(async move { while joined.recv().await.is_some() {} });
    session.leave(&mut link_incoming, &mut bootstrap, links).await;
    let asides = Asides { demo, timing: options.timing, stats, fanout: options.fanout() };
    session.phases.arrivals = bootstrap.arrivals().clone();
    let target = |target: u32| match &agent_hosts {
        AgentHosts::Local => sys::host_name(),
        AgentHosts::Remote(expedition) => expedition.name(target).to_owned(),
    };
    let code = session.conclude(outcome, asides, &target);
    Ok(Ended { code, phases: session.phases, timing: session.root.timing().clone() })
}

/// Whether agents are to read long epochs in a log of the launcher's: there are several, all are here, each
/// keeps all of the board, and none plays a node of its own.
fn shares_log(plan: &Plan, agent_hosts: &AgentHosts) -> bool {
    matches!(agent_hosts, AgentHosts::Local)
        && plan.agents() > 1
        && plan.settings.session.cache == CachePolicy::Hcmab
        && !plan.options.agents_as_nodes
}

impl Session {
    fn handle(&mut self, input: RootInput) {
        tracing::debug!(?input, "in");
        self.handling = self.clock.now();
        self.root.handle(self.handling, input, &mut self.actions);
        for action in std::mem::take(&mut self.actions) {
            tracing::debug!(?action, "out");
            self.act(action);
        }
        self.encoder.forget();
    }

    fn act(&mut self, action: RootAction) {
        match action {
            RootAction::ToChild(child, message) => {
                if let Some(child) = self.children.get(&child) {
                    let lane = if message.is_board() { Lane::Board } else { Lane::Control };
                    let receipt = if message == Down::Suspend {
                        let (written, flush) = oneshot::channel::<()>();
                        self.flushes.push(flush);
                        Receipt::holding(written)
                    } else {
                        Receipt::default()
                    };
                    let in_log = |bytes: &Bytes| {
                        let log = self.log.as_mut()?;
                        let there = log.append(bytes).ok()?;
                        log.offset_of(&there)
                    };
                    let bytes = self.encoder.encode(&message, in_log);
                    self.down.note(message.is_board(), bytes.len());
                    child.link.send(lane, bytes, receipt);
                }
            }
            RootAction::CloseChild(child, why) => {
                tracing::warn!(%child, %why, "a child is cut off");
                self.drop_child(child);
            }
            RootAction::Notice(notice) => self.on_notice(&notice),
            RootAction::WakeAt(at) => self.wake_at = Some(self.clock.instant(at)),
            RootAction::Over(outcome) => self.outcome = Some(outcome),
        }
    }

    fn on_notice(&mut self, notice: &Notice) {
        let now = self.clock.now();
        self.phases.on_notice(notice);
        self.progress.on_notice(notice);
        if let Some(text) = step_text(notice, |failure| self.locations.of_agent(failure.agent).to_owned()) {
            self.reporter.step(now, &text);
        }
        match notice {
            Notice::Joined => self.start_input(),
            // The last to arrive was what is being handled.
            Notice::Released { .. } => self.fences.note(now.saturating_sub(self.handling)),
            Notice::Leftovers(count) => {
                self.reporter.note(&leftovers_text(*count));
            }
            _ => {}
        }
    }

    fn start_input(&mut self) {
        let Some(source) = self.plan_input.take() else { return };
        let takes = |child: &Subtree| self.first.takes_input(*child);
        let takers = self.tree.children().filter(takes).filter_map(|child| self.children.get(&child.head()));
        match Reader::start(source.clone(), takers.map(|child| child.link.clone()).collect()) {
            Ok(reader) => self.reader = reader,
            Err(error) => {
                self.reporter.error(&format!("standard input cannot be read from {source:?}: {error}"));
                self.handle(RootInput::Interrupt(15));
            }
        }
    }

    fn on_joined(&mut self, accepted: Accepted) {
        let child = accepted.peer;
        let open = Rc::new(RefCell::new(BTreeSet::from([Lane::Stdout, Lane::Stderr])));
        let (ends, still_open) = (Rc::clone(&self.stream_ends), Rc::clone(&open));
        let (out, err, progress) = (self.out.clone(), self.err.clone(), Rc::clone(&self.progress));
        let streams: StreamSink = Box::new(move |lane, bytes: Bytes, receipt| {
            if bytes.is_empty() {
                still_open.borrow_mut().remove(&lane);
                ends.notify_one();
            } else {
                progress.end();
                let writer = if lane == Lane::Stdout { &out } else { &err };
                writer.write(bytes, receipt);
            }
        });
        let (events, suspended) = (self.link_events.clone(), Rc::clone(&self.suspended));
        let link = Link::start(accepted, events, streams, DEAD_TIME, suspended, self.meter.clone());
        self.children.insert(child, ChildLink { link, open });
    }

    fn on_link(&mut self, peer: AgentId, event: LinkEvent) {
        match event {
            LinkEvent::Message(bytes) => match decode(&bytes) {
                Ok(message) => self.handle(RootInput::FromChild(peer, message)),
                Err(error) => {
                    self.drop_child(peer);
                    self.handle(RootInput::ChildLost(peer, LossReason::Undecodable(error.to_string())));
                }
            },
            LinkEvent::Lost(why) => {
                self.drop_child(peer);
                self.gone.insert(peer);
                self.handle(RootInput::ChildLost(peer, why));
            }
        }
    }

    fn drop_child(&mut self, child: AgentId) {
        if let Some(child) = self.children.get(&child) {
            child.link.close();
            child.open.borrow_mut().clear();
        }
        self.stream_ends.notify_one();
    }

    /// When no child has output left, the writers are told to come to an end.
    fn check_output(&mut self) {
        let all = self.children.len() == self.tree.children().count();
        if all && !self.output_ended && self.children.values().all(|child| child.open.borrow().is_empty()) {
            self.output_ended = true;
            self.out.end();
            self.err.end();
        }
    }

    fn on_output(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Closed(Stream::Out, why) => {
                self.handle(match why {
                    None => RootInput::OutputClosed,
                    Some(why) => {
                        self.reporter.error(&format!("standard output cannot be written: {why}"));
                        RootInput::OutputLost
                    }
                });
            }
            OutputEvent::Closed(Stream::Err, _) => {}
            OutputEvent::Done => {
                self.writers_done += 1;
                if self.writers_done == 2 {
                    self.handle(RootInput::OutputDone);
                }
            }
            OutputEvent::FileFailed(text) => {
                self.reporter.error(&text);
                self.handle(RootInput::OutputLost);
            }
        }
    }

    async fn on_signal(&mut self, asked: Asked) {
        match asked {
            Asked::End(signal) => {
                if !std::mem::replace(&mut self.ending_told, true) && !self.root.is_ending() {
                    let name = sys::signal_name(signal);
                    let again = if signal == 2 { "; Ctrl-C again ends it at once" } else { "" };
                    self.reporter.note(&format!("{name}: the job is being ended{again}"));
                }
                self.handle(RootInput::Interrupt(signal));
            }
            Asked::Forward(signal) => self.handle(RootInput::Forward(signal)),
            Asked::Stop => {
                self.suspended.set(true);
                self.handle(RootInput::Suspend(true));
                for flush in self.flushes.drain(..) {
                    let _ = timeout(FLUSH_TIME, flush).await;
                }
                // Stops here, until somebody continues this process.
                let _ = raise(Signal::SIGSTOP);
            }
            Asked::Continue => {
                self.suspended.set(false);
                self.handle(RootInput::Suspend(false));
                self.reader.wake();
            }
        }
    }
}
