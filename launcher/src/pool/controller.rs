//! The controller of a pool: accepts clients, passes jobs to launchers, and answers questions.
//!
//! [`Schedule`] decides; this module carries it out. Tasks own the connections and send events to one actor, whose parts are in
//! the modules below: `clients`, `launchers`, `detached` for jobs without clients, and `members` for nodes.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nla::sys::{self, Packets, WatchedListener, WatchedPackets};
use nla::tasks::{Panics, Tasks};
use placement::topology::Topology;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{interval, sleep_until, timeout};
use tracing::Span;

use self::clients::accept;
use self::detached::{DetachedEvent, DetachedJob};
use self::launchers::Launcher;
use super::directory::{Place, PoolFiles};
use super::fleet::{Fleet, FleetEvent, FleetOptions, Host};
use super::message::{JOB_DESCRIPTORS, JobNumber, ToClient, ToController, packed};
use super::nodes::{Health, Node, NodeNumber};
use super::schedule::{Action, Input, Lifetime, Schedule, Time};
use super::start::Starter;
use crate::run::front::{FromLauncher, ToLauncher};

/// How often the controller looks whether its files are in their places: a cleaner of /tmp may remove them.
const FILES_CHECK: Duration = Duration::from_secs(30);
/// The descriptors that the controller has of a job that waits, and one more for others.
const DESCRIPTORS_PER_JOB: u64 = JOB_DESCRIPTORS as u64 + 2;
/// How long launchers may take, at the end of the pool, to say how jobs without clients have ended: attached clients exit with that.
const LAST_LINES_TIME: Duration = Duration::from_secs(2);
/// Events that wait for the actor. A task with more to tell waits.
const EVENTS: usize = 1024;

mod clients;
mod detached;
mod launchers;
mod members;

/// The parts of a controller.
pub struct Setup {
    /// Its place among the pools of the user.
    pub place: Place,
    /// The connection to the fork server.
    pub forks: Packets,
    /// The nodes. Those of other hosts begin as [`Health::Starts`].
    pub nodes: Vec<Node>,
    /// The network between them, if it is known.
    pub network: Option<Topology>,
    /// The keepers of the nodes, if they are other hosts.
    pub fleet: Option<(FleetOptions, Vec<Host>)>,
    /// The process that waits for the begin of the pool.
    pub starter: Starter,
    /// The events after which the pool ends by itself.
    pub lifetime: Lifetime,
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
    let Setup { place, forks, nodes, network, fleet, starter, lifetime } = setup;
    let (events, incoming) = mpsc::channel(EVENTS);
    let (files, listener) = place.listen();
    files.note_controller();
    tasks.spawn("listener", Span::current(), accept(WatchedListener::of(listener)?, events.clone(), tasks.clone()));
    let forks = Rc::new(WatchedPackets::of(forks)?);
    tasks.spawn("fork server", Span::current(), watch_forks(Rc::clone(&forks), events.clone()));
    let mut schedule = Schedule::new(nodes, lifetime, (sys::open_files_limit() / DESCRIPTORS_PER_JOB) as usize);
    network.into_iter().for_each(|network| schedule.set_network(network));
    let mut actor = Actor {
        schedule,
        fleet: None,
        starter: Some(starter),
        began: Instant::now(),
        name: files.name().to_owned(),
        events,
        incoming,
        tasks: tasks.clone(),
        forks,
        next_job: 1,
        next_launcher: 1,
        waiting: HashMap::new(),
        handed: HashMap::new(),
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
    actor.leave_launchers().await;
    actor.end_fleet().await;
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
    /// A job that is to start has lost its client.
    NotWanted(JobNumber),
    /// The client that adds the nodes from this number on waits for them no more.
    AddLeft(NodeNumber),
    /// A launcher has sent a message.
    Launcher(LauncherNumber, FromLauncher, Vec<OwnedFd>),
    /// Something has happened to a job without a client.
    Detached(DetachedEvent),
    /// Something has happened to keepers.
    Fleet(FleetEvent),
    /// Check whether the launcher has taken the job sent at this time, or, without a job, whether it is ready.
    Look(LauncherNumber, Option<JobNumber>, Instant),
    /// A launcher has closed its connection.
    LauncherLost(LauncherNumber),
    /// No launcher could be forked.
    NoLauncher,
    /// The fork server has ended.
    ForksLost,
    /// A signal asks for the end of the pool.
    Stop,
    /// The schedule's alarm has expired.
    Alarm,
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
    events: mpsc::Sender<Event>,
    incoming: mpsc::Receiver<Event>,
    tasks: Tasks,
    forks: Rc<WatchedPackets>,
    next_job: JobNumber,
    next_launcher: LauncherNumber,
    waiting: HashMap<JobNumber, Waiting>,
    /// Jobs that were passed to launchers which have not taken them.
    handed: HashMap<JobNumber, Waiting>,
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
            self.on_event(event).await?;
        }
        let told = async {
            while self.has_detached()
                && let Some(event) = self.incoming.recv().await
            {
                self.on_event(event).await?;
            }
            Ok::<(), io::Error>(())
        };
        // A launcher may have been killed or stopped before it has said how its job has ended.
        timeout(LAST_LINES_TIME, told).await.unwrap_or(Ok(()))
    }

    async fn on_event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Asked(client, ToController::Nodes(change, list), _) => {
                self.change_nodes(client, change, &list).await;
            }
            Event::Asked(client, question, descriptors) => self.answer(client, question, descriptors),
            Event::Report(client) => self.report(client),
            Event::Left(job) => self.withdraw(job),
            Event::NotWanted(job) => self.handle(Input::NotWanted(job)),
            Event::AddLeft(first) => self.withdraw_added(first),
            Event::Launcher(number, message, descriptors) => self.on_launcher(number, message, descriptors),
            Event::Detached(event) => self.on_detached(event),
            Event::Fleet(event) => {
                let Some(fleet) = &mut self.fleet else { return Ok(()) };
                let changed = fleet.on_event(event).await;
                self.note_health(changed);
                self.answer_added();
            }
            Event::Look(number, job, since) => self.look_at(number, job, since),
            Event::LauncherLost(number) => self.on_launcher_lost(number),
            Event::NoLauncher => self.handle(Input::StandbyLost { was_ready: false }),
            Event::ForksLost => return Err(io::Error::other("the process that forks launchers was killed")),
            Event::Stop => self.handle(Input::Stop),
            Event::Alarm => {
                self.alarm = None;
                self.handle(Input::Timeout);
            }
        }
        Ok(())
    }

    /// Tells the starter that the pool has begun once all nodes are up. Fails if one did not start.
    fn begin_if_up(&mut self) -> io::Result<()> {
        if self.starter.is_none() {
            return Ok(());
        }
        let nodes = || self.schedule.nodes().all().map(|(_, node)| node);
        if let Some(why) = nodes().find_map(|node| match &node.health {
            Health::Down(why) => Some(why),
            Health::Up | Health::Starts => None,
        }) {
            return Err(io::Error::other(why.clone()));
        }
        if nodes().all(|node| node.health == Health::Up) {
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
                Action::TellWaits(job, wait, absent) => self.tell(job, &ToClient::Waits(job, wait, absent)),
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

    /// Reports an event once `wait` has ended, in the task `name`.
    fn report_after(&self, name: &'static str, wait: impl Future<Output = ()> + 'static, event: Event) {
        let events = self.events.clone();
        self.tasks.spawn(name, Span::current(), async move {
            wait.await;
            let _ = events.send(event).await;
        });
    }

    fn tell(&self, job: JobNumber, message: &ToClient) {
        if let Some(waiting) = self.waiting.get(&job) {
            // The end of the connection reports a lost client.
            let _ = waiting.client.try_send(&packed(message), &[]);
        }
        self.tell_attached(job, message);
    }
}

/// Waits until a client has left, of which nothing but the end of the connection is expected.
async fn until_left(client: Rc<WatchedPackets>) {
    let _ = client.receive().await;
}

async fn watch_forks(forks: Rc<WatchedPackets>, events: mpsc::Sender<Event>) {
    // The fork server sends nothing.
    let _ = forks.receive().await;
    let _ = events.send(Event::ForksLost).await;
}
