//! Turns a plan into a session: starts its agents.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nla::bootstrap::{BootOrder, Bootstrap, Keepers, Links};
use nla::core::{AgentId, CachePolicy, SpanKind, StageUp, Time, TraceScope, TraceSpan};
use nla::driver::{OutputSink, RootDriver, RootPort, RootSetup};
use nla::link::{Clock, ListensAt, Liveness, Reach};
use nla::sys::{self, ForkedGuardians, Segment};
use nla::tasks::Tasks;
use nla::wire::{Lane, SessionId};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::yield_now;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::ending::Reports;
use super::{Ended, FLOW_PAUSE, LaunchInput, Secrets, Sequel, Session, host_name};
use crate::plan::Plan;
use crate::plan::launch::AgentHosts;
use crate::plan::remote_launch::RemoteLaunch;
use crate::plan::request::{Mpi, Options};
use crate::run::assemble::{addresses, assemble};
use crate::run::binding_text::Bindings;
use crate::run::collect::Collector;
use crate::run::comm_profile::CommProfile;
use crate::run::end_report::SessionEnd;
use crate::run::kill_wait;
use crate::run::last_lines::LastLines;
use crate::run::low_limit_text::LowLimitWarnings;
use crate::run::output::{Stream, Style, Writer};
use crate::run::progress::{Counts, PAUSE, Progress};
use crate::run::rank_locations::RankLocations;
use crate::run::report::Reporter;
use crate::run::report_file::FifoReport;
use crate::run::signals::Signals;
use crate::run::staged_memory::StagedMemory;
use crate::run::suspension::Suspension;
use crate::run::timing::{HostNames, Phases, columns};
use crate::run::trace::{TraceFile, Traced};

/// How long agents may take to exit after a launch that failed.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// The result of a start.
pub(super) enum Start {
    /// The agents have been started. On other nodes, all have reported.
    Running(Box<Session>),
    /// The launch has failed, and the reason was reported to the user.
    Ended(Box<Ended>),
}

/// The parts of a session that bootstrap needs.
struct Starting<'a> {
    guardians: ForkedGuardians,
    clock: Clock,
    options: &'a Options,
    port: &'a RootPort,
    order: BootOrder,
    keepers: Option<Keepers>,
    signals: &'a mut Signals,
    reporter: Reporter,
    progress: &'a Progress,
    tasks: &'a Tasks,
}

/// Sets up everything that can fail, then starts the agents and the root's driver.
pub(super) async fn start(launch: LaunchInput, clock: Clock, tasks: Tasks) -> io::Result<Start> {
    let LaunchInput { mut plan, mut agent_hosts, id, secrets, mut own } = launch;
    let options = plan.options.clone();
    let reporter = Reporter::of(&plan.options);
    plan.remarks.retain(|remark| !own.remarks.contains(remark));
    reporter.notes(&plan.remarks);
    own.remarks.append(&mut plan.remarks);
    own.milestones.on_launch(clock.now(), &plan, &agent_hosts);
    if let Some(trace) = &mut own.trace {
        trace.begin();
    }
    let progress = Rc::new(Progress::new(reporter));
    let (reach, links) = transport(&agent_hosts, plan.agents(), &options);
    let uses_local_sockets = uses_local_sockets(links, &options);
    let port = RootPort::open(reach, uses_local_sockets, &tasks).await?;
    let log = shares_log(&plan, &agent_hosts).then(Segment::new).and_then(Result::ok);
    let order = boot_order(id, &secrets, (reach, links), &plan, log.as_ref());
    let starting = Starting {
        guardians: std::mem::take(&mut own.guardians),
        clock,
        options: &options,
        port: &port,
        order,
        keepers: own.keepers.clone(),
        signals: &mut own.signals,
        reporter,
        progress: &progress,
        tasks: &tasks,
    };
    let (bootstrap, locations) = match starting.agents(&mut plan, &mut agent_hosts).await? {
        Ok(started) => started,
        Err(ended) => {
            let trace = own.trace.take();
            let trace = trace.map(|trace| write_launch_trace(trace, &agent_hosts, &ended.phases, clock.now()));
            let report = own.report.take().map(|report| report.write(SessionEnd::not_started(ended.code)));
            for written in trace.into_iter().chain(report) {
                let unwritten = match written {
                    Ok(Some(fifo)) => fifo.write(&mut own.signals).await.err().map(|unwritten| unwritten.text),
                    Ok(None) => None,
                    Err(text) => Some(text),
                };
                unwritten.into_iter().for_each(|text| reporter.error(&text));
            }
            return Ok(Start::Ended(Box::new(ended)));
        }
    };
    let locations = Arc::new(locations);
    // Bounded by two closed streams, two ends, the input and the number of files: each is reported once.
    let (events, output) = unbounded_channel();
    let style = |stream| style(stream, &options, &locations, &plan.label);
    let (out, err) = Writer::both(style, &events, &tasks);
    let collector = (!plan.collect_to.is_empty()).then(|| {
        let (collect, to) = (&plan.settings.session.collect, plan.collect_to.clone());
        Collector::new(collect, to, &plan.label, &locations, events.clone(), &tasks)
    });
    let Plan { mut settings, input, mpi_users, demo, files, .. } = plan;
    if log.is_some() {
        // Agents read long epochs there.
        settings.session.piece_bytes = None;
    }
    if let Some(pmix) = &mut settings.session.pmix {
        pmix.secret = secrets.pmix.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let (tree, first, session_plan) = (settings.tree, settings.first.clone(), settings.session.clone());
    let (liveness, first_size) = (options.liveness(), first.size);
    if let Some(profile) = &own.profile {
        profile.borrow_mut().begin(&first);
    }
    let staged = Rc::<RefCell<StagedMemory>>::default();
    let last_lines = Rc::new(RefCell::new(LastLines::new(tree.size() - 1)));
    let notes = Notes { profile: own.profile.clone(), staged: Rc::clone(&staged), last_lines: Rc::clone(&last_lines) };
    let sink = output_sink(&out, &err, &progress, notes, collector.as_ref());
    let session = (id, secrets.key);
    let setup = RootSetup { settings, session, clock, port, bootstrap, links, liveness, log, output: sink, files };
    let root = RootDriver::start(setup, &tasks);
    if let (None, Some(limit)) = (own.limit, options.timeout) {
        let now = Instant::now();
        own.limit = Some((limit, now + limit));
        own.early_signal = options.early_signal.map(|(signal, early)| (signal, now + limit.saturating_sub(early)));
    }
    own.kill_wait = kill_wait::ask(&options, &tasks);
    let [refresh, flow_due] = [PAUSE, FLOW_PAUSE].map(unhurried);
    Ok(Start::Running(Box::new(Session {
        root,
        tasks,
        clock,
        reporter,
        hosts: options.hosts.clone(),
        agent_hosts,
        locations,
        tree,
        first,
        plan: session_plan,
        liveness,
        spares: options.launch.spares,
        restarts_used: None,
        first_exit: None,
        own,
        bindings: Bindings::default(),
        low_limits: LowLimitWarnings::default(),
        has_joined: false,
        has_started: false,
        sequel: Sequel::default(),
        suspension: Suspension::default(),
        is_end_reported: false,
        is_outcome_reported: false,
        wants_survey: false,
        out,
        err,
        collector,
        staged,
        output,
        events,
        writers_done: 0,
        cuts: Vec::new(),
        flow_due,
        flow: (0, false),
        input,
        reader: None,
        last_lines,
        memory: None,
        progress,
        refresh,
        phases: Phases::default(),
        mpi_users: mpi_users.unwrap_or_default(),
        files_stall: false,
        second_joiners: 0,
        reports: Reports {
            demo,
            timing: options.timing,
            fanout: options.fanout(),
            serves_mpi: options.mpi != Mpi::None,
            in_pool: options.pool.is_some(),
            follows_pool: options.pool_before_program,
            quotes: first_size > 1 && options.errfile_pattern.is_none(),
        },
    })))
}

/// Writes the trace of a launch that failed, or returns what a FIFO is to get: targets stand for agents.
fn write_launch_trace(
    trace: TraceFile,
    agent_hosts: &AgentHosts,
    phases: &Phases,
    end: Time,
) -> Result<Option<FifoReport>, String> {
    let targets = phases.arrivals.targets();
    let began = phases.arrivals.began();
    let agents = targets.keys().next_back().copied().unwrap_or_default();
    let scope = TraceScope::of(agents);
    let starts = targets.iter().filter_map(|(target, times)| {
        let target = AgentId(*target);
        Some(TraceSpan::new(target, SpanKind::Bootstrap, began, times.here?)).filter(|_| scope.traces(target))
    });
    let starts = starts.collect();
    let host = |place: AgentId| if place == AgentId::ROOT { sys::host_name() } else { host_name(agent_hosts, place.0) };
    let traced = Traced { scope, agents, job: None, host: &host, starts, reported: Vec::new() };
    trace.write(&traced, &phases.arrivals, end)
}

/// Returns an interval that does not make up for late ticks.
fn unhurried(pause: Duration) -> Interval {
    let mut due = interval(pause);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due
}

/// Returns from where the launcher must be reachable, and what carries the links of `agents` agents.
fn transport(agent_hosts: &AgentHosts, agents: u32, options: &Options) -> (Reach, Links) {
    match agent_hosts {
        AgentHosts::Local if agents <= options.fanout() => (Reach::Nowhere, Links::Pipes),
        AgentHosts::Local => (Reach::Here, Links::Connections),
        AgentHosts::Remote(launch) if launch.links == Links::RemoteShells => (Reach::Nowhere, Links::RemoteShells),
        AgentHosts::Remote(_) => (Reach::Network(options.launch.port_range), Links::Connections),
    }
}

/// Returns whether processes of one machine connect by Unix sockets. They do not where each agent plays a node of its own.
fn uses_local_sockets(links: Links, options: &Options) -> bool {
    links == Links::Connections && !options.agents_as_nodes
}

/// Returns the order for the launcher's own agents, before it names a target.
fn boot_order(
    session: SessionId,
    secrets: &Secrets,
    (reach, links): (Reach, Links),
    plan: &Plan,
    log: Option<&Segment>,
) -> BootOrder {
    let Liveness { heartbeat, dead_time, stop_time } = plan.options.liveness();
    BootOrder {
        session,
        key: secrets.key.clone(),
        marker: secrets.marker,
        target: 0,
        starter: 0,
        callback: Vec::new(),
        reach,
        links,
        uses_local_sockets: uses_local_sockets(links, &plan.options),
        label: plan.label.clone(),
        dead_time,
        stop_time,
        heartbeat,
        rejoins: plan.settings.session.on_failure.adopts() && links == Links::Connections,
        below: None,
        log: log.map(Segment::place),
        place: None,
    }
}

/// Returns whether agents read long epochs in the launcher's log. They do if there are several agents, all on this
/// machine, each stores the whole board, and none plays a node of its own.
fn shares_log(plan: &Plan, agent_hosts: &AgentHosts) -> bool {
    matches!(agent_hosts, AgentHosts::Local)
        && plan.agents() > 1
        && plan.settings.session.cache == CachePolicy::Hcmab
        && !plan.options.agents_as_nodes
}

fn style(stream: Stream, options: &Options, locations: &Arc<RankLocations>, session: &str) -> Style {
    let (is_terminal, pattern) = match stream {
        Stream::Out => (io::stdout().is_terminal(), &options.outfile_pattern),
        Stream::Err => (io::stderr().is_terminal(), &options.errfile_pattern),
    };
    Style {
        labels: options.prepend_rank,
        fresh_lines: options.prepend_rank || is_terminal,
        pattern: pattern.clone(),
        locations: Arc::clone(locations),
        session: session.to_owned(),
    }
}

/// What agents send in the lanes of output that the session takes itself.
struct Notes {
    profile: Option<Rc<RefCell<CommProfile>>>,
    staged: Rc<RefCell<StagedMemory>>,
    last_lines: Rc<RefCell<LastLines>>,
}

/// Sends output to the threads that write it, and ends the progress line at the first output. Puts profiles together, and hands
/// files of ranks to the collector.
fn output_sink(
    out: &Writer,
    err: &Writer,
    progress: &Rc<Progress>,
    notes: Notes,
    collector: Option<&Collector>,
) -> OutputSink {
    let Notes { profile, staged, last_lines } = notes;
    let (out, err, progress, collector) = (out.clone(), err.clone(), Rc::clone(progress), collector.cloned());
    Rc::new(move |lane, bytes, receipt| {
        if lane == Lane::Stage {
            match (StageUp::parse(&bytes), &collector) {
                (Some(StageUp::InMemory(agent, memory)), _) => staged.borrow_mut().take(agent, memory),
                (Some(StageUp::Left(agent, text)), _) => staged.borrow_mut().take_left(agent, text),
                (_, Some(collector)) => collector.take(bytes, receipt),
                (_, None) => {}
            }
            return;
        }
        if lane == Lane::Profile {
            if let Some(profile) = &profile {
                profile.borrow_mut().take(&bytes);
            }
            return;
        }
        let output = if lane == Lane::Stderr { last_lines.borrow_mut().take(bytes) } else { Some(bytes) };
        let Some(bytes) = output else { return };
        progress.end();
        let writer = if lane == Lane::Stdout { &out } else { &err };
        writer.write(bytes, receipt);
    })
}

impl Starting<'_> {
    /// Starts the agents. On other nodes, waits until they have reported, and gives them their positions in the tree.
    async fn agents(
        self,
        plan: &mut Plan,
        agent_hosts: &mut AgentHosts,
    ) -> io::Result<Result<(Bootstrap, RankLocations), Ended>> {
        match agent_hosts {
            AgentHosts::Local => {
                let (tree, fanout) = (plan.settings.tree, self.options.fanout());
                let (root, tasks) = (self.port.at.clone(), self.tasks.clone());
                let mut bootstrap = Bootstrap::local(self.guardians, self.order, self.clock, tree, fanout, root, tasks);
                bootstrap.take_links(self.port.joining())?;
                // The agents read their orders while this process prepares the rest.
                yield_now().await;
                Ok(Ok((bootstrap, RankLocations::local(sys::host_name()))))
            }
            AgentHosts::Remote(launch) => Box::pin(self.remote_agents(plan, launch)).await,
        }
    }

    async fn remote_agents(
        self,
        plan: &mut Plan,
        launch: &mut RemoteLaunch,
    ) -> io::Result<Result<(Bootstrap, RankLocations), Ended>> {
        let Self { clock, options, port, order, keepers, signals, reporter, progress, tasks, guardians: _ } = self;
        let root = match launch.links {
            Links::Connections => {
                let addresses = addresses(&options.launch, port.at.addresses.clone())?;
                ListensAt { addresses, ..port.at.clone() }
            }
            Links::RemoteShells | Links::Pipes => ListensAt::default(),
        };
        let start = |launch: &RemoteLaunch, times| {
            let targets = launch.targets(keepers.clone());
            let mut bootstrap = Bootstrap::remote(order.clone(), clock, targets, root.clone(), times, tasks.clone());
            // It has no agent that has joined before, so this does not fail.
            let _ = bootstrap.take_links(port.joining());
            bootstrap
        };
        // The targets of one tree change when it begins again.
        let targets = if launch.choice.is_one_tree { 0 } else { launch.choice.targets.len() as u32 };
        let names: Vec<String> = (1..=targets).map(|target| launch.name(target).to_owned()).collect();
        let (timeout, began) = (launch.times.hosts + launch.times.start, clock.now());
        let on_progress = |bootstrap: &Bootstrap| {
            let (agents, agents_all) = bootstrap.progress();
            let failed = bootstrap.failures().len();
            let missing = bootstrap.unsettled().into_iter();
            let waiting_for = missing.filter_map(|target| names.get(target as usize - 1).cloned()).collect();
            let assembly = Some((clock.now().saturating_sub(began), timeout));
            let counts = Counts { agents, agents_all, failed, assembly, waiting_for, ..Counts::default() };
            progress.show(clock.now(), &counts);
        };
        let (mut bootstrap, code) = match assemble(launch, start, plan, signals, reporter, on_progress).await {
            (bootstrap, Ok(locations)) => return Ok(Ok((bootstrap, locations))),
            (bootstrap, Err(code)) => (bootstrap, code),
        };
        progress.end();
        bootstrap.wait(LEAVE_TIME).await;
        let phases = Phases::of_launch(bootstrap.arrivals().clone(), clock.now());
        let timing = nla::core::Timing::default();
        if options.timing {
            let target = |target: u32| launch.name(target).to_owned();
            let table = phases.table(&timing, 0, &HostNames { target: &target, agents: None }, columns(io::stderr()));
            reporter.note(&format!("phases of the launch:\n{table}"));
        }
        Ok(Err(Ended { code, phases, timing }))
    }
}
