//! Starts ranks: turns an agent's share of the plan into running processes.
//!
//! Ranks are ordered in groups from the spawner threads, and the agent serves the running ranks in between: one start
//! takes most of a millisecond, and the first ranks speak PMI long before the last one is started.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use litemap::LiteMap;
use pmi::{Board, Conversation, Epoch, JobAttributes, Rank, Ranks, segment};
use tokio::sync::{mpsc, oneshot};

use super::binder::{Binder, binding_failed};
use super::board::SharedBoard;
use super::input::InputHub;
use super::joiners::Joiners;
use super::output::OutputPump;
use super::port::PortServer;
use super::serving::{Connection, Connections, RankEvent, Scratch, Serving};
use super::spawners::{Completed, Pending, Spawners};
use super::spawning::{Command, Done, Program, Programs, StartOrder, WhyNot};
use super::table::RankTable;
use super::topology_file::{TopologyFile, is_left_to_hwloc};
use super::turns::Turns;
use crate::core::{
    AgentId, CommandPlan, FailurePolicy, INCARNATION, Inherit, Input, NamespaceId, NamespacePlan, NotStartedReason,
    STAGE_DIRECTORY, SessionPlan, StagePlan, TraceScope, TraceSpan, Variable, in_directory, in_stage_directory,
    is_staged_program, is_worth_telling,
};
use crate::link::Clock;
use crate::sys::{self, Child, Launching, LimitCut, PMI_FD, ProfileFile, ShellState, limit_name};
use crate::tasks::Tasks;
use crate::wire::decode;

/// How long a rank that starts again waits for the end of killed processes: those in uninterruptible sleep may not end.
const FORMER_TIME: Duration = Duration::from_secs(1);
/// How long the orders of one group last before the actor handles other events.
const BATCH_TIME: Duration = Duration::from_millis(2);

/// A namespace that has ranks on this agent.
pub(super) struct Local {
    pub(super) board: Rc<RefCell<SharedBoard>>,
    /// The number of its ranks that wait for a release in the shared segment.
    pub(super) in_segment: usize,
    /// Keeps its PMI port open.
    shared: Rc<Shared>,
}

impl Local {
    /// Returns the plan of the namespace.
    pub(super) fn plan(&self) -> &NamespacePlan {
        &self.shared.plan
    }
}

/// The data that the ranks of a namespace share.
struct Shared {
    plan: Box<NamespacePlan>,
    attributes: Arc<JobAttributes>,
    board: Rc<RefCell<SharedBoard>>,
    port: Option<PortServer>,
    /// Ranks may be given the file that describes the node to hwloc.
    may_describe_node: bool,
    /// Each rank leads a session of its own.
    leads_session: bool,
    /// This agent has only one of the ranks.
    has_one_rank: bool,
    programs: Programs,
}

impl Shared {
    /// Returns why a rank cannot be started if the system refuses something that it needs.
    fn refused(&self, error: &io::Error) -> String {
        let hint = if self.has_one_rank { "" } else { "; try more agents with --agents-per-node" };
        with_limit(error) + hint
    }
}

/// Ranks of a namespace that have not been ordered yet.
struct Job {
    shared: Rc<Shared>,
    left: VecDeque<Rank>,
    /// The number of the start, for ranks that start again while the others go on.
    incarnation: Option<u32>,
}

/// The order of a start, and the part of it that a spawner thread needs.
type RankOrder = (Pending<Box<PendingRank>>, Box<StartOrder>);

/// A rank that is being started, with our ends of its pipes and its socket.
struct PendingRank {
    shared: Rc<Shared>,
    conversation: Conversation,
    stdout: OwnedFd,
    stderr: OwnedFd,
    input: Option<OwnedFd>,
    pmi: PendingPmi,
}

/// The way in which a rank that is being started will speak PMI.
enum PendingPmi {
    /// Over the socket that it inherits; this is our end.
    Inherited(OwnedFd),
    /// Over connections to the port.
    Accepted(mpsc::Receiver<Connection>, Rc<Cell<bool>>),
}

/// Starts the ranks of a session on this agent.
pub(super) struct Startup {
    session: SessionPlan,
    /// The variable that names this agent to its ranks.
    mark: (&'static str, String),
    spawners: Spawners<Box<PendingRank>>,
    /// Chooses the processors of ranks.
    pub(super) binder: Binder,
    /// The thread that reads the ranks' output.
    pub(super) pump: OutputPump,
    topology_file: Rc<TopologyFile>,
    /// The file to which the ranks append their communication profiles.
    pub(super) profile: Option<Arc<ProfileFile>>,
    input: Rc<RefCell<InputHub>>,
    scratch: Rc<RefCell<Scratch>>,
    turns: Rc<Turns>,
    events: mpsc::Sender<RankEvent>,
    tasks: Tasks,
    jobs: VecDeque<Job>,
    /// The commands of namespaces that PMIx does not know yet.
    held: LiteMap<NamespaceId, (Vec<Command>, Programs)>,
    /// The process groups of failed ranks that have got SIGKILL, and until when a start waits for their end.
    former: Vec<(u32, Instant)>,
    /// The limits that ranks get, if they are lower than in the user's shell and not reported yet, as pairs of kind and limit.
    low_limits: Vec<(u32, u64)>,
    /// The directory of the session's files, if there are any.
    stage: Option<PathBuf>,
}

impl Startup {
    /// Prepares to start ranks of `session`.
    pub(super) fn new(
        session: SessionPlan,
        binder: Binder,
        mark: (&'static str, String),
        pump: OutputPump,
        input: Rc<RefCell<InputHub>>,
        events: mpsc::Sender<RankEvent>,
        tasks: Tasks,
    ) -> io::Result<Self> {
        let shell: ShellState = decode(&session.shell).map_err(io::Error::other)?;
        let (fitted, cuts) = shell.fitted();
        for LimitCut { resource, wanted, granted } in &cuts {
            tracing::debug!(limit = limit_name(*resource), wanted, granted, "ranks get less than the user's shell has");
        }
        let granted = cuts.iter().map(|cut| (cut.resource, cut.granted));
        let low_limits = granted.filter(|(kind, granted)| is_worth_telling(*kind, *granted)).collect();
        let topology_file = TopologyFile::new();
        let profile = session.profile.then(ProfileFile::new).and_then(|made| {
            made.inspect_err(|error| tracing::warn!(%error, "ranks cannot hand over their profiles")).ok()
        });
        let profile = profile.map(Arc::new);
        Ok(Self {
            binder,
            session,
            mark,
            spawners: Spawners::start(fitted, topology_file.file(), profile.clone(), tasks.clone())?,
            profile,
            pump,
            topology_file: Rc::new(topology_file),
            input,
            scratch: Scratch::new(),
            turns: Turns::new(sys::cores(), tasks.clone()),
            events,
            tasks,
            jobs: VecDeque::new(),
            held: LiteMap::new(),
            former: Vec::new(),
            low_limits,
            stage: None,
        })
    }

    /// Takes the limits that the agent reports when it starts its first ranks.
    pub(super) fn take_low_limits(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.low_limits)
    }

    /// Returns whether ranks can be ordered now.
    pub(super) fn is_busy(&self) -> bool {
        let is_prepared = self.jobs.front().is_some_and(|job| self.is_prepared(job));
        self.spawners.has_room_for_batch() && is_prepared && !self.awaits_former()
    }

    /// Returns whether the programs of a job are known when a spawner thread comes to the next order: they are now, or one
    /// thread has been ordered to find them and gets all orders.
    fn is_prepared(&self, job: &Job) -> bool {
        let is_ordered = || !self.held.contains_key(&job.shared.plan.id) && self.spawners.is_one_thread();
        job.shared.programs.get().is_some() || is_ordered()
    }

    /// Returns whether the next rank is a restarted one and must wait until the killed processes of failed ranks have
    /// ended.
    pub(super) fn awaits_former(&self) -> bool {
        self.jobs.front().is_some_and(|job| job.incarnation.is_some()) && !self.former.is_empty()
    }

    /// Kills the processes that a failed rank has started. `pid` is the rank's process, which was not reaped.
    pub(super) fn kill_former(&mut self, pid: u32) {
        sys::kill_group(pid);
        self.former.push((pid, Instant::now() + FORMER_TIME));
    }

    /// Forgets the groups of failed ranks whose processes have ended, or have had the time to.
    pub(super) fn check_former(&mut self) {
        let now = Instant::now();
        self.former.retain(|(group, until)| now < *until && sys::has_group(*group));
    }

    /// Returns whether the processes that a failed rank has started are killed at once: the others go on.
    pub(super) fn ends_former(&self) -> bool {
        self.session.on_failure.goes_on() || self.revives_ranks()
    }

    /// Returns whether a rank that fails may start again while the others go on.
    pub(super) fn revives_ranks(&self) -> bool {
        self.session.on_failure == FailurePolicy::RestartRank
    }

    /// Returns the children in launch.
    pub(super) fn launching(&self) -> Arc<Launching> {
        self.spawners.launching()
    }

    /// Waits until a spawner thread has results. Cancel-safe.
    pub(super) async fn finished(&self) {
        self.spawners.finished().await;
    }

    /// Waits until a start by a spawner thread needs attention. Cancel-safe.
    pub(super) async fn stalled(&self) {
        self.spawners.stalled().await;
    }

    /// Queues `ranks` of `plan`, and returns the namespace's state on this agent. Fails if their output cannot be read.
    pub(super) fn enqueue(&mut self, plan: Box<NamespacePlan>, ranks: &Ranks, board: Board) -> io::Result<Local> {
        let preputs = plan.preputs.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
        let attributes = Arc::new(JobAttributes {
            kvsname: plan.kvsname.clone(),
            size: plan.size,
            universe_size: plan.universe,
            mapping: plan.mapping.wire_value(),
            preputs: Epoch::from_entries(preputs),
            spawner: plan.spawner.as_ref().map(|(kvsname, _)| kvsname.clone()),
            puts_at_once: self.session.cache.puts_at_once(),
        });
        let port =
            self.session.pmi_port.then(|| PortServer::start(Arc::clone(&attributes), self.events.clone(), &self.tasks));
        let port = port
            .and_then(|port| port.inspect_err(|error| tracing::error!(%error, "the PMI port cannot be opened")).ok());
        let address = port.as_ref().map(|port| port.address.to_string());
        let commands: Vec<Command> = plan
            .commands
            .iter()
            .map(|command| {
                let of_ranks = command_of(&self.session, &plan, command, address.as_deref(), &self.mark, sys::cores());
                match &self.stage {
                    Some(directory) => with_files(of_ranks, command, &self.session.stage, directory),
                    None => of_ranks,
                }
            })
            .collect();
        let programs = Programs::default();
        if self.session.pmix.is_some() {
            self.held.insert(plan.id, (commands, Arc::clone(&programs)));
        } else {
            self.order_programs(commands, Arc::clone(&programs));
        }
        // While the spawner thread looks for the programs.
        self.pump.begin(&self.tasks)?;
        let board = Rc::new(RefCell::new(SharedBoard::new(Arc::clone(&attributes), board)));
        let shared = Rc::new(Shared {
            // In port mode ranks inherit no descriptor.
            may_describe_node: port.is_none() && !is_left_to_hwloc(&self.session, &plan),
            plan,
            attributes,
            board: Rc::clone(&board),
            port,
            leads_session: self.session.rank_sessions.are_led(ranks.len(), sys::cores()),
            has_one_rank: ranks.len() == 1,
            programs,
        });
        self.spawners.grow(ranks.len() as usize);
        self.jobs.push_back(Job { shared: Rc::clone(&shared), left: ranks.iter().collect(), incarnation: None });
        Ok(Local { board, in_segment: 0, shared })
    }

    /// Lets a spawner thread find the programs of a namespace.
    fn order_programs(&mut self, commands: Vec<Command>, programs: Programs) {
        let names: Vec<_> = commands.iter().map(|command| String::from_utf8_lossy(&command.program)).collect();
        self.spawners.order_programs(Pending::Prepare { programs: names.join(", ") }, commands, programs);
    }

    /// The ranks of a namespace can be started: PMIx knows it, and they find PMIx by these variables.
    pub(super) fn prepare(&mut self, namespace: NamespaceId, variables: Vec<Variable>) {
        let Some((mut commands, programs)) = self.held.remove(&namespace) else { return };
        for command in &mut commands {
            let is_new = |(name, _): &Variable| variables.iter().all(|(other, _)| other != name);
            command.environment.retain(is_new);
            // Each rank has its own.
            command.environment.extend(variables.iter().filter(|(name, _)| name != PMIX_RANK.as_bytes()).cloned());
        }
        self.order_programs(commands, programs);
    }

    /// The ranks of a namespace cannot be started. Returns them as an input for the core.
    pub(super) fn refuse(&mut self, namespace: NamespaceId, why: &str) -> Option<Input> {
        self.held.remove(&namespace);
        let at = self.jobs.iter().position(|job| job.shared.plan.id == namespace)?;
        let ranks = self.jobs.remove(at)?.left.into_iter().collect();
        Some(Input::NotStarted(namespace, ranks, NotStartedReason::Reported(why.to_owned())))
    }

    /// Notes the starts of `agent` from now on.
    pub(super) fn trace(&mut self, scope: TraceScope, agent: AgentId, clock: Clock) {
        self.spawners.trace(scope, agent, clock);
    }

    /// Returns the starts that were noted.
    pub(super) fn spans(&self) -> Vec<TraceSpan> {
        self.spawners.spans()
    }

    /// Ranks find the session's files in this directory.
    pub(super) fn set_stage_directory(&mut self, directory: PathBuf) {
        self.stage = Some(directory);
    }

    /// Returns the directory of the session's files.
    pub(super) fn stage_directory(&self) -> Option<PathBuf> {
        self.stage.clone()
    }

    /// Returns the session's plan.
    pub(super) fn session(&self) -> &SessionPlan {
        &self.session
    }

    /// Queues a rank to be started again, while the others go on.
    pub(super) fn restart(&mut self, namespace: &Local, rank: Rank, incarnation: u32) {
        let shared = Rc::clone(&namespace.shared);
        self.jobs.push_back(Job { shared, left: [rank].into(), incarnation: Some(incarnation) });
    }

    /// Removes the ranks that no spawner thread has begun to start, and returns them as inputs for the core. Those that are
    /// being started follow: as started, as not started, or given up after 3 s.
    pub(super) fn cancel(&mut self) -> Vec<Input> {
        let mut cancelled: LiteMap<NamespaceId, Ranks> = LiteMap::new();
        for job in self.jobs.drain(..) {
            cancelled.entry(job.shared.plan.id).or_default().extend(job.left);
        }
        for (namespace, rank) in self.spawners.cancel() {
            cancelled.entry(namespace).or_default().insert(rank);
        }
        let not_started = |(id, ranks)| Input::NotStarted(id, ranks, NotStartedReason::Cancelled);
        cancelled.into_iter().filter(|(_, ranks): &(_, Ranks)| !ranks.is_empty()).map(not_started).collect()
    }

    /// Lets ranks start again after a cancel.
    pub(super) fn resume(&mut self) {
        self.spawners.resume();
    }

    /// Orders ranks to be started for about [`BATCH_TIME`], at least one. Returns those that cannot be started, as inputs
    /// for the core.
    pub(super) fn start_batch(&mut self) -> Vec<Input> {
        let began = Instant::now();
        let mut inputs = Vec::new();
        while let Some(mut job) = self.jobs.pop_front() {
            let mut failed: LiteMap<WhyNot, Ranks> = LiteMap::new();
            while self.is_prepared(&job)
                && self.spawners.has_room()
                && began.elapsed() <= BATCH_TIME
                && let Some(rank) = job.left.pop_front()
            {
                match self.order_of(&job, rank) {
                    Ok((order, start)) => self.spawners.order_start(order, start),
                    Err(why) => drop(failed.entry(why).or_default().insert(rank)),
                }
            }
            for (why, ranks) in failed {
                inputs.push(Input::NotStarted(job.shared.plan.id, ranks, why.into()));
            }
            if !job.left.is_empty() {
                self.jobs.push_front(job);
                break;
            }
        }
        inputs
    }

    /// Prepares the start of a rank.
    fn order_of(&self, job: &Job, rank: Rank) -> Result<RankOrder, WhyNot> {
        let shared = &job.shared;
        let (appnum, _) = shared.plan.command_of(rank).ok_or_else(|| "the plan has no command for it".to_owned())?;
        let program = Program { programs: Arc::clone(&shared.programs), command: appnum };
        if shared.programs.get().is_some() {
            program.image()?;
        }
        let machine = |error: io::Error| shared.refused(&error);
        let (out_read, out_write) = sys::pipe().map_err(machine)?;
        let (err_read, err_write) = sys::pipe().map_err(machine)?;
        // The first process of a rank has read the input.
        let reads_input = job.incarnation.is_none() && shared.plan.stdin.contains(rank);
        let input = if reads_input { Some(sys::input_pipe().map_err(machine)?) } else { None };
        let socket = if shared.port.is_none() { Some(sys::socket_pair_with_senders().map_err(machine)?) } else { None };
        let inode = socket.as_ref().map(|(_, theirs)| sys::inode(theirs.as_fd())).transpose().map_err(machine)?;
        let mut variables = own_variables(&shared.plan, rank, inode, job.incarnation);
        if self.session.pmix.is_some() {
            variables.extend(CString::new(format!("{PMIX_RANK}={rank}")));
        }
        let variable = |(name, value): (String, String)| CString::new(format!("{name}={value}"));
        variables.extend(self.binder.devices(&shared.plan, rank)?.variables().into_iter().flat_map(variable));
        let seat = self.binder.seat(&shared.plan, rank).map_err(|error| binding_failed(&error))?.unwrap_or_default();
        let (ours, theirs) = socket.unzip();
        let (stdin, input) = input.unzip();
        let pmi = match (ours, &shared.port) {
            (Some(socket), _) => PendingPmi::Inherited(socket),
            (None, port) => {
                let (to_task, connections) = mpsc::channel(1);
                // Before the start: the rank may connect before its start is known here.
                let has_joined = Rc::new(Cell::new(false));
                port.iter().for_each(|port| port.expect((shared.plan.id, rank), to_task.clone(), &has_joined));
                PendingPmi::Accepted(connections, has_joined)
            }
        };
        let start = StartOrder {
            program: program.clone(),
            variables,
            stdin,
            stdout: out_write,
            stderr: err_write,
            pmi: theirs,
            seat,
            leads_session: shared.leads_session,
        };
        let begin = if job.incarnation.is_some() { Conversation::of_restarted } else { Conversation::new };
        let kept = PendingRank {
            shared: Rc::clone(shared),
            conversation: begin(Arc::clone(&shared.attributes), rank, appnum as i32),
            stdout: out_read,
            stderr: err_read,
            input,
            pmi,
        };
        Ok((Pending::Start { namespace: shared.plan.id, rank, program, kept: Box::new(kept) }, Box::new(start)))
    }

    /// Takes the results of the spawner threads: adds the started ranks to the table and serves them. Returns the inputs
    /// for the core.
    pub(super) fn take_results(&mut self, table: &mut RankTable) -> Vec<Input> {
        let mut started: LiteMap<NamespaceId, Ranks> = LiteMap::new();
        let mut failed: LiteMap<(NamespaceId, String), Ranks> = LiteMap::new();
        for Completed { order, result, is_given_up } in self.spawners.take() {
            match (order, result) {
                (Pending::Prepare { .. }, Done::Prepared(memory)) => table.watch_memory(memory),
                // The sweep ends its process: the rank was reported as not started.
                (Pending::Start { .. }, Done::Started(_)) if is_given_up => {}
                (Pending::Start { namespace, rank, kept, .. }, Done::Started(result)) => {
                    match result.and_then(|child| self.serve(rank, *kept, child, table)) {
                        Ok(()) => started.entry(namespace).or_default().insert(rank),
                        Err(why) => failed.entry((namespace, why)).or_default().insert(rank),
                    };
                }
                (_, _) => tracing::error!("the result of a spawner thread is not that of its order"),
            }
        }
        let started = started.into_iter().map(|(id, ranks)| Input::Started(id, ranks));
        let not_started = |((id, why), ranks)| Input::NotStarted(id, ranks, NotStartedReason::Reported(why));
        started.chain(failed.into_iter().map(not_started)).collect()
    }

    /// Serves a rank that was started.
    fn serve(&mut self, rank: Rank, kept: PendingRank, child: Child, table: &mut RankTable) -> Result<(), String> {
        let PendingRank { shared, conversation, stdout, stderr, input, pmi } = kept;
        let key = (shared.plan.id, rank);
        let (ended, on_end) = oneshot::channel();
        let span = tracing::debug_span!("rank", %rank, pid = child.pid());
        let last_call = table.insert(key, child, ended);
        let (connections, has_joined) = match pmi {
            PendingPmi::Inherited(socket) => {
                let machine = |error: io::Error| shared.refused(&error);
                (Connections::Inherited(Some(sys::watch(socket).map_err(machine)?)), None)
            }
            PendingPmi::Accepted(connections, has_joined) => (Connections::Accepted(connections), Some(has_joined)),
        };
        let serving = Serving {
            key,
            conversation,
            board: Rc::clone(&shared.board),
            has_joined,
            joiners: Joiners::default(),
            has_segment: false,
            fences: RefCell::default(),
            last_call,
            topology_file: shared.may_describe_node.then(|| Rc::clone(&self.topology_file)),
            scratch: Rc::clone(&self.scratch),
            turns: Rc::clone(&self.turns),
            events: self.events.clone(),
        };
        self.tasks.spawn("rank", span, Box::new(serving).run(connections, on_end));
        self.pump.follow(key.0, rank, [stdout, stderr]);
        if let Some(write) = input {
            self.input.borrow_mut().connect(rank, write, &self.tasks);
        }
        Ok(())
    }

    /// Takes the steps that are due for stalled starts, and returns the inputs for the core.
    pub(super) fn on_stalled(&mut self) -> Vec<Input> {
        self.spawners.on_stalled()
    }

    /// Describes a process that SIGKILL has not ended.
    pub(super) fn left_text(&self, pid: u32) -> String {
        self.spawners.left_text(pid)
    }
}

/// Returns a command with the environment that all its ranks share.
fn command_of(
    session: &SessionPlan,
    plan: &NamespacePlan,
    command: &CommandPlan,
    port: Option<&str>,
    (mark, own): &(&'static str, String),
    cores: usize,
) -> Command {
    let mut environment: LiteMap<&[u8], Vec<u8>> = LiteMap::new();
    let inherits = |name: &[u8]| match &command.inherit {
        Inherit::All => true,
        Inherit::Nothing => false,
        Inherit::Names(names) => names.iter().any(|wanted| wanted == name),
    };
    for (name, value) in session.environment.iter().filter(|(name, _)| inherits(name)).chain(&command.set) {
        environment.insert(name, value.clone());
    }
    let mut set = |name: &'static str, value: String| environment.insert(name.as_bytes(), value.into_bytes());
    set("PMI_SIZE", plan.size.to_string());
    match port {
        None => set("PMI_FD", PMI_FD.to_string()),
        Some(address) => set("PMI_PORT", address.to_owned()),
    };
    if plan.spawner.is_some() {
        set("PMI_SPAWNED", "1".to_owned());
    }
    let first = first_rank(plan);
    for (name, value) in first.into_iter().flat_map(|first| local_sizes(plan, first)) {
        set(name, value);
    }
    set(mark, own.clone());
    // gfortran would buffer the output.
    set("GFORTRAN_UNBUFFERED_PRECONNECTED", "y".to_owned());
    if first.is_some_and(|first| local_size(plan, first) as usize > cores) {
        for (name, value) in OVERSUBSCRIBED {
            environment.entry(name.as_bytes()).or_insert_with(|| value.into());
        }
    }
    for name in PER_RANK {
        environment.remove(name.as_bytes());
    }
    let environment: Vec<Variable> = environment.into_iter().map(|(name, value)| (name.to_vec(), value)).collect();
    let argv: Vec<Vec<u8>> = std::iter::once(&command.program).chain(&command.args).cloned().collect();
    Command { program: command.program.clone(), argv, environment, wdir: command.wdir.clone() }
}

/// Returns a command whose ranks find the session's files in `directory`, and execute their program there if it is one of them.
/// Words, and entries of LD_PRELOAD, that begin with the variable of the directory name files in it: no shell of the node replaces
/// them.
fn with_files(of_ranks: Command, command: &CommandPlan, files: &StagePlan, directory: &Path) -> Command {
    const LIBRARY_PATH: &[u8] = b"LD_LIBRARY_PATH";
    const PRELOAD: &[u8] = b"LD_PRELOAD";
    let directory = directory.as_os_str().as_encoded_bytes();
    let mut argv = of_ranks.argv;
    for word in argv.iter_mut().skip(1) {
        if let Some(path) = in_stage_directory(word) {
            *word = [directory, path].concat();
        }
    }
    let program = match &command.staged {
        Some(path) => {
            let program = [directory, path].join(&b'/');
            if !is_staged_program(path) {
                // A Python interpreter finds its environment by this name.
                argv[..1].clone_from_slice(std::slice::from_ref(&program));
            }
            program
        }
        None => of_ranks.program,
    };
    let mut environment = of_ranks.environment;
    let before = environment.iter().find(|(name, _)| name == LIBRARY_PATH).map(|(_, value)| &value[..]);
    let libraries = files.library_path(directory, before).map(|path| (LIBRARY_PATH.to_vec(), path));
    let set: Vec<Variable> =
        libraries.into_iter().chain([(STAGE_DIRECTORY.as_bytes().to_vec(), directory.to_vec())]).collect();
    environment.retain(|(name, _)| set.iter().all(|(other, _)| other != name));
    environment.extend(set);
    if let Some((_, preloaded)) = environment.iter_mut().find(|(name, _)| name == PRELOAD) {
        *preloaded = in_directory(preloaded, directory);
    }
    Command { program, argv, environment, ..of_ranks }
}

/// Returns the working directory of each rank that the agent has.
pub(super) fn rank_places(plan: &NamespacePlan, agent: AgentId) -> Vec<(Rank, PathBuf)> {
    let own = plan.placement.iter().filter(|(of, _)| *of == agent).flat_map(|(_, ranks)| ranks.iter());
    let command = |rank: Rank| {
        let mut first = 0;
        plan.commands.iter().find(|command| {
            first += command.nprocs;
            rank.0 < first
        })
    };
    own.filter_map(|rank| Some((rank, PathBuf::from(OsStr::from_bytes(&command(rank)?.wdir))))).collect()
}

/// This agent's first rank. A spare agent has none.
fn first_rank(plan: &NamespacePlan) -> Option<Rank> {
    plan.placement.first()?.1.first()
}

/// The number of ranks on the node of a rank.
fn local_size(plan: &NamespacePlan, rank: Rank) -> u32 {
    plan.mapping.node_of(rank).map_or(0, |node| plan.mapping.local_size(node))
}

/// The number of ranks on the node of a rank, under the names that MPI libraries read. MVAPICH2 derives its affinity from it.
fn local_sizes(plan: &NamespacePlan, rank: Rank) -> [(&'static str, String); 2] {
    let size = local_size(plan, rank).to_string();
    [("MPI_LOCALNRANKS", size.clone()), ("MV2_COMM_WORLD_LOCAL_SIZE", size)]
}

/// PMIx's variable for a rank's number.
const PMIX_RANK: &str = "PMIX_RANK";

/// Makes ranks that share cores yield the processor while they wait. Each variable is set unless the user has set it. Other
/// libraries do not read them. Without them, waiting ranks spin.
///
/// Open MPI 4: its own mpirun sets the same variable. mpi4py's ring of 1,000 rounds with 4 ranks on 2 cores takes 15 s without it.
///
/// Intel MPI: an IMB test of 0.4 s with 4 ranks on 2 cores takes 53 s. Its own Hydra sets I_MPI_INFO_LCPU and I_MPI_PIN_MAPPING
/// instead, from which the library sees that ranks share cores. Without Hydra's twenty other I_MPI_INFO variables, the library
/// (2021.18) crashes with these two.
const OVERSUBSCRIBED: [(&str, &str); 2] = [("I_MPI_THREAD_YIELD", "2"), ("OMPI_MCA_mpi_oversubscribe", "1")];

const PER_RANK: [&str; 5] = ["PMI_RANK", "PMI_ID", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", segment::VARIABLE];

/// Returns the variables that differ from rank to rank. `inode` is that of its PMI socket, or `None` in port mode.
/// `incarnation` is the number of the start of a rank that starts again.
fn own_variables(plan: &NamespacePlan, rank: Rank, inode: Option<u64>, incarnation: Option<u32>) -> Vec<CString> {
    let local = plan.mapping.local_rank(rank).unwrap_or_default();
    let variable = |name: &str, value: &str| CString::new(format!("{name}={value}")).unwrap_or_default();
    let (number, local) = (rank.to_string(), local.to_string());
    let mut variables = vec![
        variable(if inode.is_some() { "PMI_RANK" } else { "PMI_ID" }, &number),
        variable("MPI_LOCALRANKID", &local),
        variable("MV2_COMM_WORLD_LOCAL_RANK", &local),
    ];
    // Descriptors can be passed over an inherited Unix socket, not over TCP. The segment releases all ranks at once; a rank
    // that starts again is released alone until it has caught up with the others.
    let announced = inode.filter(|_| incarnation.is_none());
    variables.extend(announced.map(|inode| variable(segment::VARIABLE, &segment::announcement(inode))));
    if first_rank(plan).is_none() {
        // The rank has moved here from another node.
        variables.extend(local_sizes(plan, rank).map(|(name, value)| variable(name, &value)));
    }
    variables.extend(incarnation.map(|number| variable(INCARNATION, &number.to_string())));
    variables
}

/// Describes an error of this machine, and names the limit if one was reached.
pub(super) fn with_limit(error: &io::Error) -> String {
    match error.raw_os_error().and_then(sys::reached_limit) {
        Some(limit) => format!("{error}; {limit}"),
        None => error.to_string(),
    }
}
