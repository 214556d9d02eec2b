//! The controller of a pool: accepts clients, passes jobs to launchers, and answers questions.
//!
//! [`Schedule`] decides; this module carries it out. Tasks own the connections and send events to one actor.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nla::bootstrap::agent_id;
use nla::keeper::node_state;
use nla::sys::{self, Packet, Packets, WatchedListener, WatchedPackets};
use nla::tasks::{Panics, Tasks};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{interval, sleep, sleep_until, timeout};
use tracing::Span;

use self::detached::{DetachedEvent, DetachedJob};
use super::directory::{Place, PoolFiles};
use super::fleet::{Channel, Fleet, FleetEvent, FleetOptions, Host};
use super::fork_server::FORK;
use super::message::{
    Ask, JOB_DESCRIPTORS, JobNumber, JobRefusal, JobState, NodeReport, PoolState, Request, ToClient, ToController,
    WORDS_CHARS_MAX, memory_file, packed, unpacked,
};
use super::nodes::{Health, Node, NodeNumber, Shares};
use super::schedule::{Action, Input, Schedule, Time};
use super::start::Starter;
use crate::refusal::shown;
use crate::run::front::{FromLauncher, ToLauncher};

/// How often the controller looks whether its files are in their places: a cleaner of /tmp may remove them.
const FILES_CHECK: Duration = Duration::from_secs(30);
/// How long a client may take to send its request, and to read the answer.
const CLIENT_TIME: Duration = Duration::from_secs(10);
/// How long a report on the nodes of other hosts waits for their answers.
const STATES_TIME: Duration = Duration::from_millis(50);
/// The most jobs of a node that a report names.
const JOBS_SHOWN: usize = 100;
/// Clients whose requests are awaited at a time. Further ones wait until they are accepted.
const REQUESTS_MAX: usize = 256;
/// The descriptors that the controller has of a job that waits, and one more for others.
const DESCRIPTORS_PER_JOB: u64 = JOB_DESCRIPTORS as u64 + 2;
/// Events that wait for the actor. A task with more to tell waits.
const EVENTS: usize = 1024;

mod detached;
mod members;

/// The parts of a controller.
pub struct Setup {
    /// Its place among the pools of the user.
    pub place: Place,
    /// The connection to the fork server.
    pub forks: Packets,
    /// The nodes. Those of other hosts begin as [`Health::Starts`].
    pub nodes: Vec<Node>,
    /// The keepers of the nodes, if they are other hosts.
    pub fleet: Option<(FleetOptions, Vec<Host>)>,
    /// The process that waits for the begin of the pool.
    pub starter: Starter,
    /// After how long without a job the pool ends.
    pub idle: Option<Duration>,
}

/// A controller that has not begun.
pub struct Controller(Setup);

impl Controller {
    /// Prepares a controller.
    pub fn new(setup: Setup) -> Self {
        Self(setup)
    }

    /// Runs the pool to its end.
    pub fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = LocalSet::new().block_on(&runtime, live(self.0));
        runtime.shutdown_background();
        ended
    }
}

async fn live(setup: Setup) -> io::Result<()> {
    let mut panics = Panics::new("controller");
    let tasks = panics.tasks();
    let Setup { place, forks, nodes, fleet, starter, idle } = setup;
    let (events, incoming) = mpsc::channel(EVENTS);
    let (files, listener) = place.listen();
    tasks.spawn("listener", Span::current(), accept(WatchedListener::of(listener)?, events.clone(), tasks.clone()));
    let forks = Rc::new(WatchedPackets::of(forks)?);
    tasks.spawn("fork server", Span::current(), watch_forks(Rc::clone(&forks), events.clone()));
    let mut actor = Actor {
        schedule: Schedule::new(nodes, idle, (sys::open_files_limit() / DESCRIPTORS_PER_JOB) as usize),
        fleet: None,
        starter: Some(starter),
        began: Instant::now(),
        name: files.name().to_owned(),
        idle,
        events,
        incoming,
        tasks: tasks.clone(),
        forks,
        next_job: 1,
        next_launcher: 1,
        waiting: HashMap::new(),
        launchers: BTreeMap::new(),
        alarm: None,
        has_warned: false,
        is_over: false,
        adding: Vec::new(),
        detached: BTreeMap::new(),
        files,
    };
    let ended = panics.watch("controller", actor.live(fleet)).await;
    let ended = ended.unwrap_or_else(|panic| Err(io::Error::other(panic.to_string())));
    if let Some(fleet) = actor.fleet.take() {
        fleet.end(&mut actor.incoming).await;
    }
    if let (Some(starter), Err(error)) = (actor.starter.take(), &ended) {
        starter.failed(error);
        actor.files.remove(true);
        return Ok(());
    }
    // The error follows in the log.
    actor.files.remove(ended.is_ok());
    ended
}

/// A number that the controller gives a launcher.
type LauncherNumber = u64;

/// Everything that the controller waits for.
pub(super) enum Event {
    /// A client has sent a request.
    Asked(Rc<WatchedPackets>, ToController, Vec<OwnedFd>),
    /// The state of the pool is due to be sent to a client.
    Report(Rc<WatchedPackets>),
    /// The client of a job has closed its connection.
    Left(JobNumber),
    /// A launcher has sent a message.
    Launcher(LauncherNumber, FromLauncher, Vec<OwnedFd>),
    /// Something has happened to a job without a client.
    Detached(DetachedEvent),
    /// Something has happened to keepers.
    Fleet(FleetEvent),
    /// A launcher has closed its connection.
    LauncherLost(LauncherNumber),
    /// The fork server has ended.
    ForksLost,
    /// A signal asks for the end of the pool.
    Stop,
    /// The schedule's alarm has expired.
    Alarm,
}

/// A launcher.
struct Launcher {
    packets: Rc<WatchedPackets>,
    /// Its pid, once it stands by.
    pid: Option<u32>,
    stands_by: bool,
    job: Option<JobNumber>,
    /// The channels to the agents of its job.
    channels: Vec<Channel>,
    /// The task that receives its messages.
    follows: AbortHandle,
}

/// A job that has not started.
struct Waiting {
    client: Rc<WatchedPackets>,
    descriptors: Vec<OwnedFd>,
}

struct Actor {
    schedule: Schedule,
    fleet: Option<Fleet>,
    /// Until the pool has begun.
    starter: Option<Starter>,
    began: Instant,
    name: String,
    idle: Option<Duration>,
    events: mpsc::Sender<Event>,
    incoming: mpsc::Receiver<Event>,
    tasks: Tasks,
    forks: Rc<WatchedPackets>,
    next_job: JobNumber,
    next_launcher: LauncherNumber,
    waiting: HashMap<JobNumber, Waiting>,
    launchers: BTreeMap<LauncherNumber, Launcher>,
    alarm: Option<Time>,
    /// A failure to start a launcher was logged, and none has started since.
    has_warned: bool,
    is_over: bool,
    /// Jobs without clients, those that have ended lately included.
    detached: BTreeMap<JobNumber, DetachedJob>,
    /// Clients that wait until the nodes that they have added are up.
    adding: Vec<(Rc<WatchedPackets>, Range<NodeNumber>)>,
    files: PoolFiles,
}

impl Actor {
    async fn live(&mut self, fleet: Option<(FleetOptions, Vec<Host>)>) -> io::Result<()> {
        let [mut terminated, mut interrupted] = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let mut check = interval(FILES_CHECK);
        // Its starter's terminal may hang up.
        let _hung_up = signal(SignalKind::hangup())?;
        if let Some((options, hosts)) = fleet {
            let fleet = Fleet::new(options, self.events.clone(), self.tasks.clone());
            self.fleet.insert(fleet).add(hosts).await?;
        }
        self.handle(Input::Timeout);
        while !self.is_over {
            self.begin_if_up()?;
            let alarm = self.alarm.map(|at| (self.began + at).into());
            let event = tokio::select! {
                biased;
                _ = terminated.recv() => Event::Stop,
                _ = interrupted.recv() => Event::Stop,
                Some(event) = self.incoming.recv() => event,
                // Clients cannot reach a pool whose files are gone.
                _ = check.tick() => if self.files.are_in_place() { continue } else { Event::Stop },
                () = async { match alarm { Some(at) => sleep_until(at).await, None => pending().await } } => Event::Alarm,
            };
            match event {
                Event::Asked(client, ToController::Nodes(change, list), _) => {
                    self.change_nodes(client, change, &list).await;
                }
                Event::Asked(client, question, descriptors) => self.answer(client, question, descriptors),
                Event::Report(client) => self.report(client),
                Event::Left(job) => self.withdraw(job),
                Event::Launcher(number, message, descriptors) => self.on_launcher(number, message, descriptors),
                Event::Detached(event) => self.on_detached(event),
                Event::Fleet(event) => {
                    let Some(fleet) = &mut self.fleet else { continue };
                    let changed = fleet.on_event(event).await;
                    self.note_health(changed);
                    self.answer_added();
                }
                Event::LauncherLost(number) => self.on_launcher_lost(number),
                Event::ForksLost => return Err(io::Error::other("the process that forks launchers was killed")),
                Event::Stop => self.handle(Input::Stop),
                Event::Alarm => {
                    self.alarm = None;
                    self.handle(Input::Timeout);
                }
            }
        }
        Ok(())
    }

    /// Tells the starter that the pool has begun once all nodes are up. Fails if one did not start.
    fn begin_if_up(&mut self) -> io::Result<()> {
        if self.starter.is_none() {
            return Ok(());
        }
        let nodes = self.schedule.nodes().all();
        if let Some(why) = nodes.iter().find_map(|node| match &node.health {
            Health::Down(why) => Some(why),
            Health::Up | Health::Starts => None,
        }) {
            return Err(io::Error::other(why.clone()));
        }
        if nodes.iter().all(|node| node.health == Health::Up) {
            self.starter.take().into_iter().for_each(|starter| starter.ready(self.schedule.nodes()));
        }
        Ok(())
    }

    fn handle(&mut self, input: Input) {
        let mut actions = Vec::new();
        self.schedule.handle(self.began.elapsed(), input, &mut actions);
        for action in actions {
            match action {
                Action::Start(job, shares) => self.start(job, &shares),
                Action::TellWaits { job, needs, free, ahead } => {
                    self.tell(job, &ToClient::Waits { job, needs, free, ahead });
                }
                Action::Refuse(job, why) => {
                    self.refuse_detached(job, &why);
                    self.tell(job, &ToClient::Refused(why));
                    self.waiting.remove(&job);
                }
                Action::Signal(job, signal) => {
                    if let Some(launcher) = self.launchers.values().find(|launcher| launcher.job == Some(job)) {
                        // The end of the connection reports a lost launcher.
                        let _ = launcher.packets.try_send(&packed(&ToLauncher::Signal(signal)), &[]);
                    }
                }
                Action::AddStandby => self.add_standby(),
                Action::Dismiss => self.dismiss(),
                Action::WakeAt(at) => self.alarm = Some(at),
                Action::Over => self.is_over = true,
            }
        }
    }

    fn tell(&self, job: JobNumber, message: &ToClient) {
        if let Some(waiting) = self.waiting.get(&job) {
            // The end of the connection reports a lost client.
            let _ = waiting.client.try_send(&packed(message), &[]);
        }
    }

    fn add_standby(&mut self) {
        let number = self.next_launcher;
        self.next_launcher += 1;
        let forked = Packets::pair().and_then(|[own, other]| {
            self.forks.try_send(FORK, &[other.as_fd()])?;
            WatchedPackets::of(own)
        });
        match forked {
            Ok(packets) => {
                let packets = Rc::new(packets);
                let follow = follow_launcher(number, Rc::clone(&packets), self.events.clone());
                let follows = self.tasks.spawn("launcher", Span::current(), follow).abort_handle();
                self.launchers.insert(
                    number,
                    Launcher { packets, pid: None, stands_by: false, job: None, channels: Vec::new(), follows },
                );
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, "no launcher can be started");
                }
                let lost = self.events.clone();
                // Report it as an event: the caller is still carrying out actions.
                self.tasks.spawn("launcher", Span::current(), async move {
                    let _ = lost.send(Event::LauncherLost(number)).await;
                });
            }
        }
    }

    /// Lets a launcher that stands by exit: its connection ends.
    fn dismiss(&mut self) {
        let idle = self.launchers.iter().find(|(_, launcher)| launcher.stands_by);
        if let Some(number) = idle.map(|(number, _)| *number) {
            self.forget_launcher(number);
        }
    }

    /// Passes a job to a launcher that stands by.
    fn start(&mut self, job: JobNumber, shares: &Shares) {
        let Some(Waiting { client, mut descriptors }) = self.waiting.remove(&job) else { return };
        let slots = shares.values().sum();
        if self.fleet.is_some() {
            let nodes = self.schedule.nodes().all();
            let hosts = shares.iter().map(|(at, slots)| format!("{}:{slots}", nodes[*at].name));
            descriptors.extend(memory_file(hosts.collect::<Vec<_>>().join(",").as_bytes()).ok());
        }
        let order = packed(&ToLauncher::Run { job, slots });
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let ready = self.launchers.values_mut().find(|launcher| launcher.stands_by);
        let is_sent = ready.is_some_and(|launcher| {
            (launcher.stands_by, launcher.job) = (false, Some(job));
            launcher.packets.try_send(&order, &descriptors).is_ok()
        });
        // If the launcher has just died, the client notices the end of the line.
        let message = if is_sent { ToClient::Started(job) } else { ToClient::Refused(JobRefusal::NoLauncher) };
        let _ = client.try_send(&packed(&message), &[]);
        if !is_sent {
            // The launcher exits when its connection ends.
            let failed = self.launchers.iter().find(|(_, launcher)| launcher.job == Some(job));
            if let Some(number) = failed.map(|(number, _)| *number) {
                self.forget_launcher(number);
            }
            self.handle(Input::Ended(job));
        }
    }

    /// Closes the connection to a launcher.
    fn forget_launcher(&mut self, number: LauncherNumber) {
        if let Some(launcher) = self.launchers.remove(&number) {
            launcher.follows.abort();
        }
    }

    /// Kills the launchers of all jobs: their agents end the ranks.
    fn kill_launchers(&self) {
        let pids =
            self.launchers.values().filter(|launcher| launcher.job.is_some()).filter_map(|launcher| launcher.pid);
        for pid in pids {
            // Its connection has not ended, so the pid is its own, or was until a moment ago.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }

    fn on_launcher(&mut self, number: LauncherNumber, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        match message {
            FromLauncher::Ended => {
                let Some(launcher) = self.launchers.get_mut(&number) else { return };
                let channels = std::mem::take(&mut launcher.channels);
                if let Some(job) = launcher.job.take() {
                    self.handle(Input::Ended(job));
                }
                self.close(channels);
            }
            FromLauncher::Took => {}
            FromLauncher::StartAgent { node, agent } => {
                let Ok(streams) = <[OwnedFd; 3]>::try_from(descriptors) else { return };
                let (Some(fleet), Some(launcher)) = (&mut self.fleet, self.launchers.get_mut(&number)) else { return };
                launcher.channels.extend(fleet.start_agent(&node, agent, streams));
            }
            FromLauncher::Leaves => {
                // A job that was passed to it before this message is run by it.
                let stands_by = self.launchers.get(&number).is_some_and(|launcher| launcher.stands_by);
                if stands_by {
                    self.forget_launcher(number);
                    self.handle(Input::StandbyLost { was_ready: true });
                }
            }
            FromLauncher::Ready { pid } => {
                let Some(launcher) = self.launchers.get_mut(&number) else { return };
                let is_new = launcher.pid.replace(pid).is_none();
                if std::mem::replace(&mut launcher.stands_by, true) {
                    return;
                }
                self.has_warned = false;
                self.handle(if is_new { Input::StandbyReady } else { Input::StandbyBack });
            }
        }
    }

    fn on_launcher_lost(&mut self, number: LauncherNumber) {
        let mut launcher = self.launchers.remove(&number);
        let channels = launcher.as_mut().map(|launcher| std::mem::take(&mut launcher.channels));
        self.close(channels.unwrap_or_default());
        match launcher {
            Some(Launcher { job: Some(job), .. }) => self.handle(Input::Ended(job)),
            Some(Launcher { stands_by: true, .. }) => self.handle(Input::StandbyLost { was_ready: true }),
            // After its job.
            Some(Launcher { pid: Some(_), .. }) => {}
            Some(Launcher { pid: None, .. }) | None => self.handle(Input::StandbyLost { was_ready: false }),
        }
    }

    fn close(&self, channels: Vec<Channel>) {
        if let Some(fleet) = &self.fleet {
            channels.into_iter().for_each(|channel| fleet.close(channel));
        }
    }

    fn withdraw(&mut self, job: JobNumber) {
        self.waiting.remove(&job);
        self.handle(Input::Withdrawn(job));
    }

    fn answer(&mut self, client: Rc<WatchedPackets>, question: ToController, descriptors: Vec<OwnedFd>) {
        match question {
            ToController::Run(ask) => self.submit(client, ask, descriptors),
            ToController::Attach(job) => self.attach(client, job),
            // Answered before.
            ToController::Nodes(..) => {}
            ToController::Status => match &self.fleet {
                Some(fleet) => {
                    fleet.ask_for_states();
                    // The answer waits for the states of nodes that answer soon.
                    let events = self.events.clone();
                    self.tasks.spawn("client", Span::current(), async move {
                        sleep(STATES_TIME).await;
                        let _ = events.send(Event::Report(client)).await;
                    });
                }
                None => self.report(client),
            },
            ToController::Signal(jobs, signal) => {
                let unknown = jobs.iter().copied().filter(|job| !self.schedule.knows(*job)).collect();
                self.handle(Input::Signal(jobs, signal));
                self.send_all(client, vec![ToClient::Unknown(unknown)]);
            }
            ToController::Stop { kills } => {
                if kills {
                    self.kill_launchers();
                }
                // The client then waits for the end of the connection, which ends with this process.
                let _ = client.try_send(&packed(&ToClient::Done), &[]);
                self.tasks.spawn("client", Span::current(), async move {
                    let _client = client;
                    pending::<()>().await;
                });
                self.handle(Input::Stop);
            }
        }
    }

    /// Sends the state of the pool.
    fn report(&self, client: Rc<WatchedPackets>) {
        let pool = ToClient::Pool(self.state());
        let nodes = self.nodes().into_iter().map(ToClient::Node);
        let jobs = self.jobs().into_iter().map(ToClient::Job);
        self.send_all(client, std::iter::once(pool).chain(nodes).chain(jobs).chain([ToClient::Done]).collect());
    }

    fn submit(&mut self, client: Rc<WatchedPackets>, ask: Ask, descriptors: Vec<OwnedFd>) {
        let ask = Ask { words: shown(&ask.words, WORDS_CHARS_MAX), ..ask };
        let job = self.next_job;
        self.next_job += 1;
        let (events, follow) = (self.events.clone(), Rc::clone(&client));
        let mut descriptors = descriptors;
        if let Some(detached) = ask.detached {
            if let Err(error) = self.detach(&client, job, detached, &mut descriptors) {
                let text = format!("the output of the job cannot be kept: {error}");
                let _ = client.try_send(&packed(&ToClient::Refused(JobRefusal::NotKept(text))), &[]);
                return;
            }
            self.waiting.insert(job, Waiting { client, descriptors });
            return self.handle(Input::Submitted(job, ask));
        }
        // Nothing but the end of the connection is expected.
        self.tasks.spawn("client", Span::current(), async move {
            let _ = follow.receive().await;
            let _ = events.send(Event::Left(job)).await;
        });
        self.waiting.insert(job, Waiting { client, descriptors });
        self.handle(Input::Submitted(job, ask));
    }

    /// Sends an answer, for as long as the client reads it.
    fn send_all(&self, client: Rc<WatchedPackets>, answer: Vec<ToClient>) {
        self.tasks.spawn("client", Span::current(), async move {
            for message in answer {
                if !matches!(timeout(CLIENT_TIME, client.send(&packed(&message))).await, Ok(Ok(()))) {
                    return;
                }
            }
        });
    }

    fn state(&self) -> PoolState {
        PoolState {
            name: self.name.clone(),
            pid: std::process::id(),
            host: sys::host_name(),
            age_ms: self.began.elapsed().as_millis() as u64,
            slots: self.schedule.nodes().all().iter().map(|node| node.slots).sum(),
            ended: self.schedule.ended(),
            idle_ms: self.idle.map(|idle| idle.as_millis() as u64),
            is_stopping: self.schedule.is_stopping(),
        }
    }

    fn nodes(&self) -> Vec<NodeReport> {
        let report = |(at, node): (NodeNumber, &Node)| NodeReport {
            name: node.name.clone(),
            slots: node.slots,
            busy: node.busy,
            jobs: self.schedule.jobs_on(at).take(JOBS_SHOWN).collect(),
            health: node.health.clone(),
            is_drained: node.is_drained,
            state: match &self.fleet {
                Some(fleet) => fleet.state(at),
                None => Some(node_state()),
            },
        };
        self.schedule.nodes().all().iter().enumerate().map(report).collect()
    }

    fn jobs(&self) -> Vec<JobState> {
        let pids: HashMap<JobNumber, u32> =
            self.launchers.values().filter_map(|launcher| launcher.job.zip(launcher.pid)).collect();
        let now = self.began.elapsed();
        let state = |(job, slots, since, ask): (JobNumber, u32, Time, &Ask)| JobState {
            job,
            launcher: pids.get(&job).copied(),
            slots,
            priority: ask.priority,
            age_ms: now.saturating_sub(since).as_millis() as u64,
            words: ask.words.clone(),
        };
        self.schedule.jobs().map(state).collect()
    }
}

/// Accepts clients of this user and reads the request of each.
async fn accept(listener: WatchedListener, events: mpsc::Sender<Event>, tasks: Tasks) {
    // Each may have the descriptors of a job.
    let most = (sys::open_files_limit() / (4 * DESCRIPTORS_PER_JOB)).clamp(1, REQUESTS_MAX as u64);
    let room = Arc::new(Semaphore::new(most as usize));
    let mut has_warned = false;
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = match listener.accept().await {
            Ok(accepted) => {
                has_warned = false;
                accepted
            }
            Err(error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(%error, "no client can be accepted");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !accepted.peer_user().is_ok_and(|user| user == nix::unistd::geteuid().as_raw()) {
            continue;
        }
        let events = events.clone();
        tasks.spawn("client", Span::current(), async move {
            if let Some((client, question, descriptors)) = first_request(accepted).await {
                let _ = events.send(Event::Asked(client, question, descriptors)).await;
            }
            drop(permit);
        });
    }
}

/// Reads the request of a client. Returns `None` if it is none, or does not arrive in time.
async fn first_request(client: Packets) -> Option<(Rc<WatchedPackets>, ToController, Vec<OwnedFd>)> {
    let client = Rc::new(WatchedPackets::of(client).ok()?);
    let packet = timeout(CLIENT_TIME, client.receive()).await.ok()?.ok()??;
    let request: Request = unpacked(&packet).ok()?;
    let Some(question) = request.question() else {
        let other = JobRefusal::OtherVersion(agent_id().to_string());
        let _ = client.try_send(&packed(&ToClient::Refused(other)), &[]);
        return None;
    };
    let question = question.ok()?;
    let Packet { descriptors, .. } = packet;
    let fits = match &question {
        ToController::Run(_) => descriptors.len() == JOB_DESCRIPTORS,
        _ => descriptors.is_empty(),
    };
    fits.then_some((client, question, descriptors))
}

async fn follow_launcher(number: LauncherNumber, packets: Rc<WatchedPackets>, events: mpsc::Sender<Event>) {
    while let Ok(Some(packet)) = packets.receive().await {
        let Ok(message) = unpacked(&packet) else { break };
        if events.send(Event::Launcher(number, message, packet.descriptors)).await.is_err() {
            return;
        }
    }
    let _ = events.send(Event::LauncherLost(number)).await;
}

async fn watch_forks(forks: Rc<WatchedPackets>, events: mpsc::Sender<Event>) {
    // The fork server sends nothing.
    let _ = forks.receive().await;
    let _ = events.send(Event::ForksLost).await;
}
