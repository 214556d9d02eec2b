//! One session: starts the agents and the root's driver, hands signals and the time limit to it, and prints its events.
//!
//! `start` prepares everything that can fail before the first process is started. `Session::live` waits for one
//! `Event` at a time until the session is over. `ending` writes the reports and decides the exit code.

mod ending;
mod notices;
mod start;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::pending;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nla::bootstrap::{Keepers, NodeChoice};
use nla::core::{
    Cause, Failure, NamespacePlan, NotStartedReason, Outcome, RankProgress, RootInput, SessionPlan, Subtree, Timing,
};
use nla::driver::{RootDriver, RootEvent};
use nla::link::{Clock, Liveness, SessionKey};
use nla::sys::{self, ForkedGuardians, MemoryWatch};
use nla::tasks::{Panic, Panics, Tasks};
use nla::wire::SessionId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, yield_now};
use tokio::time::{Instant, Interval, sleep_until};
use tracing::Instrument;

use self::ending::{Reports, collection_cut_by};
use self::start::{Start, start};
use crate::cluster::node_list::HostOptions;
use crate::exit;
use crate::plan::launch::AgentHosts;
use crate::plan::mpi_user::MpiUser;
use crate::plan::process_limits::raises_after_failure;
use crate::plan::{InputSource, Plan, needs};
use crate::run::assemble::{given_up_text, without_host};
use crate::run::binding_text::Bindings;
use crate::run::collect::Collector;
use crate::run::comm_profile::CommProfile;
use crate::run::end_report::EndReport;
use crate::run::front::Front;
use crate::run::input::{Reader, cannot_be_read};
use crate::run::last_lines::LastLines;
use crate::run::low_limit_text::{LowLimitWarnings, Place};
use crate::run::milestones::{Milestones, log_over};
use crate::run::output::{OutputEvent, Stream, Writer};
use crate::run::progress::{Counts, Progress};
use crate::run::rank_locations::RankLocations;
use crate::run::report::Reporter;
use crate::run::signals::{Asked, Signals};
use crate::run::staged_memory::StagedMemory;
use crate::run::stats::Sink;
use crate::run::stderr;
use crate::run::suspension::Suspension;
use crate::run::timing::Phases;
use crate::run::trace::TraceFile;

/// How long reports may take to be written before the launcher stops itself.
const SUSPEND_TIME: Duration = Duration::from_millis(100);
/// How often the launcher looks at what its writers have written, while the session ends.
const FLOW_PAUSE: Duration = Duration::from_millis(200);
/// The initial size of the descriptor table.
const DESCRIPTORS_AT_ONCE: u64 = 1024;

/// The random secrets of a session.
#[derive(Clone)]
pub struct Secrets {
    /// The key that secures all links.
    pub key: SessionKey,
    /// The first bytes that agents send on a bootstrap channel.
    pub marker: [u8; 16],
    /// The part of the names of namespaces that ranks need to know to speak PMIx.
    pub pmix: [u8; 16],
}

impl Secrets {
    /// Draws the public number and the secrets of a new session from the kernel.
    pub fn random() -> io::Result<(u64, Self)> {
        let mut source = sys::random_source()?;
        let (mut session, mut marker, mut pmix) = ([0; 8], [0; 16], [0; 16]);
        source.read_exact(&mut session)?;
        let key = SessionKey::read_from(&mut source)?;
        source.read_exact(&mut marker)?;
        source.read_exact(&mut pmix)?;
        Ok((u64::from_le_bytes(session), Self { key, marker, pmix }))
    }
}

/// Returns the name of a target's host.
fn host_name(agent_hosts: &AgentHosts, target: u32) -> String {
    match agent_hosts {
        AgentHosts::Local => sys::host_name(),
        AgentHosts::Remote(remote_launch) => remote_launch.name(target).to_owned(),
    }
}

/// The result of a session.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The launcher's exit code.
    pub code: u8,
    /// The times of the phases on the launcher's clock.
    pub phases: Phases,
    /// The times of the phases on the agents' clocks.
    pub timing: Timing,
}

impl Ended {
    /// Returns the result of a session that a panic has ended.
    fn panicked(phases: Phases) -> Self {
        Self { code: exit::BUG, phases, timing: Timing::default() }
    }
}

/// A session that is ready to run.
pub struct Planned {
    /// Its plan.
    pub plan: Plan,
    /// The hosts of its agents.
    pub agent_hosts: AgentHosts,
    /// Its public number.
    pub session: u64,
    /// Its secrets.
    pub secrets: Secrets,
}

/// Runs a session on its hosts to its end. `guardians` were forked for the agents on this machine, if they are to run here.
/// `clock` was started before the plan was made. `front` is the process that the user waits for.
/// If the process exits then, `is_last`, nothing is freed: the kernel is faster.
pub fn run(
    planned: Planned,
    guardians: ForkedGuardians,
    clock: Clock,
    front: &Front,
    is_last: bool,
) -> io::Result<Ended> {
    if let AgentHosts::Remote(_) = planned.agent_hosts {
        // Each agent has a bootstrap channel until all have joined.
        sys::raise_limit()?;
    }
    sys::make_room(DESCRIPTORS_AT_ONCE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let span = tracing::info_span!("session", id = %planned.plan.label);
    let tasks = LocalSet::new();
    let ended = tasks.block_on(&runtime, live(planned, guardians, clock, front).instrument(span.clone()));
    if let Ok((ended, None)) = &ended {
        // `conclude` has logged the end of other sessions.
        span.in_scope(|| log_over(clock.now(), ended.code));
    }
    let ended = ended.map(|(ended, session)| {
        if is_last {
            std::mem::forget(session);
        }
        ended
    });
    if is_last {
        std::mem::forget((tasks, runtime));
    } else {
        // Before the runtime, whose descriptors its tasks use.
        drop(tasks);
        runtime.shutdown_background();
    }
    ended
}

async fn live(
    planned: Planned,
    mut guardians: ForkedGuardians,
    clock: Clock,
    front: &Front,
) -> io::Result<(Ended, Option<Box<Session>>)> {
    let Planned { plan, agent_hosts, session, secrets } = planned;
    let reporter = Reporter::of(&plan.options);
    let mut panics = Panics::new("launcher");
    let tasks = panics.tasks();
    let signals = Signals::new(front, &tasks)?;
    guardians.signals_held = None;
    let own = LauncherParts {
        signals,
        stats: plan.options.stats.as_ref().map(Sink::open).transpose()?,
        trace: plan.options.trace.as_deref().map(TraceFile::open).transpose()?,
        profile: CommProfile::open(&plan)?,
        report: plan.options.report.as_deref().map(|path| EndReport::open(path, &plan)).transpose()?,
        limit: None,
        early_signal: None,
        kill_wait: None,
        remarks: Vec::new(),
        milestones: Milestones::default(),
        guardians,
        keepers: front.keepers()?,
        lost: BTreeSet::new(),
    };
    let mut launch = LaunchInput { plan, agent_hosts, id: SessionId(session), secrets, own };
    // Each launch has fewer hosts than the one before.
    loop {
        // Futures of this size would be copied from frame to frame, and each page of a stack costs a page fault.
        let starting = Box::pin(start(launch, clock, tasks.clone()));
        let mut session = match panics.watch("start", starting).await {
            Ok(Ok(Start::Running(session))) => session,
            Ok(Ok(Start::Ended(ended))) => return Ok((*ended, None)),
            Ok(Err(error)) => return Err(error),
            Err(panic) => {
                // Dropping the starter has closed the agents' channels, so they leave.
                report_panic(reporter, &panic);
                return Ok((Ended::panicked(Phases::default()), None));
            }
        };
        let outcome = match panics.watch("session", Box::pin(session.live(front))).await {
            Ok(outcome) => outcome,
            Err(panic) => {
                session.progress.end();
                report_panic(reporter, &panic);
                session.end_collection("the launcher failed").await;
                // The agents end their ranks and leave when their links are closed.
                session.leave().await;
                return Ok((Ended::panicked(session.phases), None));
            }
        };
        if let Some(trace) = &mut session.own.trace {
            trace.on_over(clock.now());
        }
        session.end_collection(collection_cut_by(&outcome)).await;
        if session.root.may_stand_by() && front.is_client() {
            // No process of the job is left. The client need not wait until the agent stands by again.
            let ended = session.conclude(outcome).await;
            front.end(ended.code, stderr::EXIT_TIME);
            session.leave().await;
            return Ok((ended, Some(session)));
        }
        session.leave().await;
        if let Some(panic) = panics.late().await {
            session.progress.end();
            report_panic(reporter, &panic);
            return Ok((Ended::panicked(session.phases), None));
        }
        let (plan, choice) = match std::mem::take(&mut session.sequel) {
            Sequel::Launch(next) => *next,
            Sequel::Prevented(instead) => return Ok((session.conclude(instead).await, Some(session))),
            Sequel::None => return Ok((session.conclude(outcome).await, Some(session))),
        };
        launch = session.launch_input(plan, choice)?;
    }
}

/// The parts of the launcher that outlive a launch.
struct LauncherParts {
    signals: Signals,
    /// The destination of `--stats`.
    stats: Option<Sink>,
    /// The file of `--trace`.
    trace: Option<TraceFile>,
    /// The profile of `--profile-comm`.
    profile: Option<Rc<RefCell<CommProfile>>>,
    /// The file of `--report`.
    report: Option<EndReport>,
    /// `--timeout` and its expiry. `None` until the agents of the first launch have reported.
    limit: Option<(Duration, Instant)>,
    /// `--signal`, until it was sent, and its time, once `limit` is known.
    early_signal: Option<(i32, Instant)>,
    /// Yields the grace that a resource manager gives.
    kill_wait: Option<oneshot::Receiver<Duration>>,
    /// The remarks about the plan that the user has read.
    remarks: Vec<String>,
    milestones: Milestones,
    /// The guardians for agents on this machine. Such a launch is never repeated.
    guardians: ForkedGuardians,
    /// The keepers of the pool that the session runs in.
    keepers: Option<Keepers>,
    /// The hosts that were lost.
    lost: BTreeSet<String>,
}

/// The input of one launch.
struct LaunchInput {
    plan: Plan,
    agent_hosts: AgentHosts,
    id: SessionId,
    secrets: Secrets,
    own: LauncherParts,
}

/// The step after the session's processes have ended.
#[derive(Default)]
enum Sequel {
    /// None: the session is over.
    #[default]
    None,
    /// The next launch, by this plan on these nodes, without a host that was lost before all agents had joined.
    Launch(Box<(Plan, NodeChoice)>),
    /// None: a signal or the time limit has prevented the next launch, and the session has this outcome.
    Prevented(Outcome),
}

impl Sequel {
    /// Prevents the next launch. Returns false if none was to follow.
    fn prevent(&mut self, outcome: Outcome) -> bool {
        let is_launch = self.is_launch();
        if is_launch {
            *self = Self::Prevented(outcome);
        }
        is_launch
    }

    fn is_launch(&self) -> bool {
        matches!(self, Self::Launch(_))
    }
}

fn report_panic(reporter: Reporter, panic: &Panic) {
    reporter.error(&format!(
        "the launcher failed: {panic}\n  the job was ended\n  \
         hint: this is a bug of ScELA; please report it with what is written above"
    ));
}

/// A session whose agents have been started.
struct Session {
    root: RootDriver,
    tasks: Tasks,
    clock: Clock,
    reporter: Reporter,
    hosts: HostOptions,
    agent_hosts: AgentHosts,
    locations: Arc<RankLocations>,
    tree: Subtree,
    first: NamespacePlan,
    plan: SessionPlan,
    liveness: Liveness,
    /// The hosts that `--spares` asks for.
    spares: u32,
    /// The number of restarts, if a failure would have needed one more.
    restarts_used: Option<u32>,
    /// The first rank of this start that exited with a code other than 0 and had not aborted.
    first_exit: Option<Failure>,
    own: LauncherParts,
    /// The bindings that were reported since the last start.
    bindings: Bindings,
    low_limits: LowLimitWarnings,
    /// All agents have joined the tree.
    has_joined: bool,
    /// All ranks of the job have been started.
    has_started: bool,
    sequel: Sequel,
    /// Decides whether this process stops itself after SIGTSTP.
    suspension: Suspension,
    /// A signal has asked for the end, which was reported to the user.
    is_end_reported: bool,
    /// The outcome was reported when the end began.
    is_outcome_reported: bool,
    /// The user has asked for a survey, which is reported whatever it finds.
    wants_survey: bool,
    out: Writer,
    err: Writer,
    /// Writes files of ranks that are brought back.
    collector: Option<Collector>,
    /// The nodes that have staged files in memory, until that is told.
    staged: Rc<RefCell<StagedMemory>>,
    output: UnboundedReceiver<OutputEvent>,
    /// The sending side of `output`, for the thread that reads the input.
    events: UnboundedSender<OutputEvent>,
    writers_done: u8,
    /// Reasons why output of ranks was cut, for the client of a pool.
    cuts: Vec<String>,
    /// When the writers' progress is due to be looked at, and what it was.
    flow_due: Interval,
    flow: (u64, bool),
    input: Option<InputSource>,
    reader: Option<Reader>,
    last_lines: Rc<RefCell<LastLines>>,
    /// Tells whether memory runs out on this machine, once the agents have the job.
    memory: Option<MemoryWatch>,
    progress: Rc<Progress>,
    refresh: Interval,
    phases: Phases,
    /// The files by which each command may call MPI.
    mpi_users: Vec<Vec<MpiUser>>,
    /// An agent has reported a file system that does not answer.
    files_stall: bool,
    /// The number of ranks as which a second process has joined.
    second_joiners: u64,
    reports: Reports,
}

/// Everything that a session waits for.
enum Event {
    /// A signal to the launcher.
    Asked(Asked),
    /// An event of a thread that writes output or reads the input.
    Output(OutputEvent),
    /// `--timeout` has expired.
    TimeLimit(Duration),
    /// The time of `--signal` has come.
    EarlySignal(i32),
    /// The resource manager has said how long it waits between TERM and KILL, or will not.
    KillWait(Option<Duration>),
    /// The progress line is due to be refreshed.
    RefreshDue,
    /// The session ends, and the writers' progress is due to be looked at.
    FlowDue,
    /// An event of the root.
    Root(RootEvent),
}

impl Session {
    async fn live(&mut self, front: &Front) -> Outcome {
        loop {
            match self.next_event().await {
                Event::Root(RootEvent::Over(outcome)) => return outcome,
                Event::Root(RootEvent::Suspended) => {
                    // The shell's prompt comes after what was reported.
                    stderr::wait_written(SUSPEND_TIME);
                    self.suspension.on_suspended();
                    while let Some(asked) = self.own.signals.received().await {
                        self.on_signal(asked);
                    }
                    front.suspended(&mut self.suspension);
                }
                event => self.on_event(event),
            }
            self.cuts.drain(..).for_each(|why| front.output_cut(why));
            if self.has_joined && self.memory.is_none() {
                // The agents get the job first: they start ranks while the thread starts here.
                yield_now().await;
                self.start_input();
                sys::look_up_cgroup();
                self.memory = Some(MemoryWatch::begin());
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        tokio::select! {
            biased;
            Some(asked) = self.own.signals.next() => Event::Asked(asked),
            Some(event) = self.output.recv() => Event::Output(event),
            limit = expired(self.own.limit) => Event::TimeLimit(limit),
            Some(answer) = async { Some(self.own.kill_wait.as_mut()?.await) } => Event::KillWait(answer.ok()),
            signal = expired(self.own.early_signal) => Event::EarlySignal(signal),
            _ = self.refresh.tick(), if self.progress.is_wanted() => Event::RefreshDue,
            _ = self.flow_due.tick(), if self.root.is_ending() => Event::FlowDue,
            event = self.root.next() => Event::Root(event),
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Asked(asked) => self.on_signal(asked),
            Event::Output(event) => self.on_output(event),
            Event::TimeLimit(limit) => {
                self.own.limit = None;
                self.sequel.prevent(Outcome::TimedOut { limit });
                self.root.handle(RootInput::TimeLimit(limit));
            }
            Event::KillWait(time) => {
                self.own.kill_wait = None;
                time.into_iter().for_each(|time| self.root.handle(RootInput::KillWait(time)));
            }
            Event::EarlySignal(signal) => {
                self.own.early_signal = None;
                self.root.handle(RootInput::Forward(signal));
            }
            Event::RefreshDue => {
                let (agents, agents_all) = self.root.agents_progress();
                let RankProgress { started, arrived } = self.root.ranks_progress();
                let ranks_all = u64::from(self.first.size);
                let counts = Counts { agents, agents_all, started, arrived, ranks_all, ..Counts::default() };
                self.progress.show(self.clock.now(), &counts);
            }
            Event::FlowDue => {
                let collected =
                    self.collector.as_ref().map_or((0, false), |files| (files.progress(), files.is_pending()));
                let progress = self.out.progress().wrapping_add(self.err.progress()).wrapping_add(collected.0);
                let is_pending = self.out.is_pending() || self.err.is_pending() || collected.1;
                let flow = (progress, is_pending);
                if std::mem::replace(&mut self.flow, flow) != flow {
                    self.root.handle(RootInput::OutputFlow { progress, is_pending });
                }
            }
            Event::Root(RootEvent::Notice(at, notice)) => self.on_notice(at, &notice),
            Event::Root(RootEvent::OutputEnded) => {
                self.own.milestones.on_output_ended(self.clock.now());
                self.out.end();
                self.err.end();
                self.collector.iter().for_each(Collector::end);
            }
            // `live` handles these.
            Event::Root(RootEvent::Suspended | RootEvent::Over(_)) => {}
        }
    }

    /// Warns of limits of ranks that are lower than in the user's shell.
    fn warn_of_limits(&mut self) {
        let is_local_pool = self.reports.in_pool && !self.agent_hosts.is_remote();
        let place = if is_local_pool { Place::Pool } else { Place::Hosts };
        let limits = sys::ShellState::recorded().limits;
        let warnings = self.low_limits.take(&limits, place, |agent| self.locations.of_agent(agent));
        self.reporter.notes(&warnings);
    }

    /// Plans the next launch if the session ends because an agent was lost before all had joined the tree, and the job can do
    /// without its host. Tells the user.
    fn plan_next_launch(&mut self, outcome: &Outcome) {
        let (AgentHosts::Remote(launch), Outcome::Failed { first, .. }) = (&self.agent_hosts, outcome) else { return };
        let words = match &first.cause {
            Cause::NotStarted { why: NotStartedReason::Reported(why) } => why.clone(),
            Cause::Lost { why } => why.to_string(),
            _ => return,
        };
        let Some(target) = self.root.culprit(first.agent).filter(|_| !self.has_joined && !self.is_end_reported) else {
            return;
        };
        if let Some(next) = without_host(launch, target) {
            self.sequel = Sequel::Launch(Box::new(next));
            self.progress.end();
            let host = launch.name(target);
            self.own.lost.insert(host.to_owned());
            let witness = self.locations.of_agent(first.agent);
            let words = if witness == host { words } else { format!("{witness}: {words}") };
            let hint = format!("'--exclude {host}' leaves it out from the beginning");
            self.reporter.note(&format!(
                "launching again without {host}, which was lost before all agents had joined the tree: {words}\n  hint: {hint}"
            ));
        }
    }

    /// Returns the input of the next launch.
    fn launch_input(self: Box<Self>, plan: Plan, choice: NodeChoice) -> io::Result<LaunchInput> {
        let Self { mut agent_hosts, own, .. } = *self;
        if let AgentHosts::Remote(launch) = &mut agent_hosts {
            launch.choice = choice;
        }
        // A new session id and key: agents of the former launch cannot join this one.
        let (id, secrets) = Secrets::random()?;
        Ok(LaunchInput { plan, agent_hosts, id: SessionId(id), secrets, own })
    }

    /// Reports the nodes with staged files in memory: as a note if no other place has room, else as a step.
    fn tell_staged_memory(&self, at: nla::core::Time) {
        for (is_last, text) in self.staged.borrow_mut().lines(&self.locations) {
            if is_last { self.reporter.note(&text) } else { self.reporter.step(at, &text) }
        }
    }

    fn start_input(&mut self) {
        let Some(source) = self.input.take() else { return };
        match Reader::start(source.clone(), self.root.input_takers(), self.events.clone(), &self.tasks) {
            Ok(reader) => self.reader = Some(reader),
            Err(error) => {
                let mut text = cannot_be_read(&source, &error);
                let tasks = needs::tasks(self.first.size, self.first.placement.len() as u32);
                if let Some(raise) = raises_after_failure(tasks).filter(|_| !self.agent_hosts.is_remote()) {
                    let _ =
                        write!(text, ", since no thread could be created for that\n  hint: raise the limit: {raise}");
                }
                self.on_output(OutputEvent::Failed(text));
            }
        }
    }

    fn on_output(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Closed(Stream::Out, None) => self.root.handle(RootInput::OutputClosed),
            OutputEvent::Closed(Stream::Out, Some(why)) => {
                self.reporter.error(&format!("standard output cannot be written: {why}"));
                self.cuts.push(why);
                self.root.handle(RootInput::OutputLost);
            }
            // There is no place for a report of the launcher's own.
            OutputEvent::Closed(Stream::Err, why) => self.cuts.extend(why),
            OutputEvent::Done => {
                self.writers_done += 1;
                if self.writers_done == 2 + u8::from(self.collector.is_some()) {
                    self.root.handle(RootInput::OutputDone);
                }
            }
            OutputEvent::Noted(text) => self.reporter.note(&text),
            OutputEvent::Failed(text) => {
                self.reporter.error(&text);
                self.root.handle(RootInput::OutputLost);
            }
        }
    }

    fn on_signal(&mut self, asked: Asked) {
        self.suspension.on_asked(asked);
        match asked {
            Asked::End(signal) if self.sequel.prevent(Outcome::Interrupted { signal }) => {
                self.reporter.note(&given_up_text(signal));
            }
            Asked::End(signal) => {
                if !std::mem::replace(&mut self.is_end_reported, true) && !self.root.is_ending() {
                    let name = sys::signal_name(signal);
                    let again = if signal == Signal::SIGINT as i32 { "; Ctrl-C again ends it at once" } else { "" };
                    self.reporter.note(&format!("{name}: the job is being ended{again}"));
                }
                self.root.handle(RootInput::Interrupt(signal));
            }
            Asked::PoolLost => {
                self.is_end_reported = true;
                self.reporter.error("the controller of the pool has ended; the job is being ended");
                self.root.handle(RootInput::Interrupt(Signal::SIGTERM as i32));
            }
            Asked::Survey => {
                self.wants_survey = true;
                self.root.handle(RootInput::Survey);
            }
            Asked::Forward(signal) => self.root.handle(RootInput::Forward(signal)),
            // The launcher stops itself at `RootEvent::Suspended`.
            Asked::Stop => self.root.handle(RootInput::Suspend(true)),
            Asked::Continue => {
                self.root.handle(RootInput::Suspend(false));
                if let Some(reader) = &self.reader {
                    reader.wake();
                }
            }
        }
    }
}

/// Waits until a time, if one is set.
async fn expired<T>(limit: Option<(T, Instant)>) -> T {
    match limit {
        Some((limit, at)) => {
            sleep_until(at).await;
            limit
        }
        None => pending().await,
    }
}
