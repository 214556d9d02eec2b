//! Starts ranks: turns an agent's share of the plan into running processes.
//!
//! Ranks are started in groups, and the agent serves the running ranks in between: one start takes most of a
//! millisecond, and the first ranks speak PMI long before the last one is started.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use litemap::LiteMap;
use pmi::{Board, Conversation, Epoch, JobAttributes, Rank, Ranks, segment};
use tokio::sync::{mpsc, oneshot};

use super::board::SharedBoard;
use super::input::InputHub;
use super::output::OutputPump;
use super::port::PortServer;
use super::serving::{RankEvent, Scratch, Serving};
use super::table::RankTable;
use crate::core::{CommandPlan, Inherit, Input, NamespacePlan, NotStartedReason, SessionPlan, Variable};
use crate::sys::{self, Descriptors, Image, ImageError, PMI_FD, ShellState, Spawner};
use crate::tasks::Tasks;
use crate::wire::{Lane, decode};

/// How long the starts of one group last before the actor handles other events.
const BATCH_TIME: Duration = Duration::from_millis(2);

/// A namespace that has ranks on this agent.
pub(super) struct Local {
    pub(super) board: Rc<RefCell<SharedBoard>>,
    /// The number of its ranks that wait for a release in the shared segment.
    pub(super) in_segment: usize,
    /// Keeps its PMI port open.
    _port: Option<Rc<PortServer>>,
}

/// Ranks of a namespace that have not been started yet.
struct Job {
    commands: Vec<Result<Image, ImageError>>,
    plan: Box<NamespacePlan>,
    attributes: Arc<JobAttributes>,
    board: Rc<RefCell<SharedBoard>>,
    port: Option<Rc<PortServer>>,
    left: VecDeque<Rank>,
}

/// Starts the ranks of a session on this agent.
pub(super) struct Startup {
    session: SessionPlan,
    spawner: Spawner,
    null: OwnedFd,
    /// The thread that reads the ranks' output.
    pub(super) pump: OutputPump,
    input: Rc<RefCell<InputHub>>,
    scratch: Rc<RefCell<Scratch>>,
    events: mpsc::Sender<RankEvent>,
    tasks: Tasks,
    jobs: VecDeque<Job>,
}

impl Startup {
    /// Prepares to start ranks of `session`. Logs the limits of the user's shell that cannot be set here.
    pub(super) fn new(
        session: SessionPlan,
        pump: OutputPump,
        input: Rc<RefCell<InputHub>>,
        events: mpsc::Sender<RankEvent>,
        tasks: Tasks,
    ) -> io::Result<Self> {
        let shell: ShellState = decode(&session.shell).map_err(io::Error::other)?;
        let (fitted, cuts) = shell.fitted();
        for cut in cuts {
            tracing::warn!(
                limit = cut.name,
                wanted = cut.wanted,
                granted = cut.granted,
                "ranks get less here than the user's shell has"
            );
        }
        Ok(Self {
            session,
            spawner: Spawner::new(fitted)?,
            null: sys::dev_null(false)?,
            pump,
            input,
            scratch: Scratch::new(),
            events,
            tasks,
            jobs: VecDeque::new(),
        })
    }

    /// Returns whether ranks remain to be started.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Queues `ranks` of `plan`, and returns the namespace's state on this agent.
    pub(super) fn enqueue(&mut self, plan: Box<NamespacePlan>, ranks: &Ranks, board: Board) -> Local {
        let preputs = plan.preputs.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
        let attributes = Arc::new(JobAttributes {
            kvsname: plan.kvsname.clone(),
            size: plan.size,
            universe_size: plan.universe,
            mapping: plan.mapping.wire_value(),
            preputs: Epoch::from_entries(preputs),
            spawner: plan.spawner.clone(),
            puts_at_once: self.session.cache.puts_at_once(),
        });
        let port = self.session.pmi_port.then(|| PortServer::start(Arc::clone(&attributes), &self.tasks));
        let port = port
            .and_then(|port| port.inspect_err(|error| tracing::error!(%error, "the PMI port cannot be opened")).ok())
            .map(Rc::new);
        let address = port.as_ref().map(|port| port.address.to_string());
        let commands =
            plan.commands.iter().map(|command| prepare(&self.session, &plan, command, address.as_deref())).collect();
        let board = Rc::new(RefCell::new(SharedBoard::new(Arc::clone(&attributes), board)));
        let job = Job {
            commands,
            plan,
            attributes,
            board: Rc::clone(&board),
            port: port.clone(),
            left: ranks.iter().collect(),
        };
        self.jobs.push_back(job);
        Local { board, in_segment: 0, _port: port }
    }

    /// Removes the ranks that have not been started, and returns them as inputs for the core.
    pub(super) fn cancel(&mut self) -> Vec<Input> {
        let cancelled =
            |job: Job| Input::NotStarted(job.plan.id, job.left.into_iter().collect(), NotStartedReason::Cancelled);
        self.jobs.drain(..).map(cancelled).collect()
    }

    /// Starts ranks for about [`BATCH_TIME`], at least one. Returns the inputs for the core.
    pub(super) fn start_batch(&mut self, table: &mut RankTable) -> Vec<Input> {
        let began = Instant::now();
        let mut inputs = Vec::new();
        while let Some(mut job) = self.jobs.pop_front() {
            let mut started = Ranks::new();
            let mut failed: LiteMap<String, Ranks> = LiteMap::new();
            while let Some(rank) = job.left.pop_front() {
                match self.start(&mut job, rank, table) {
                    Ok(()) => started.insert(rank),
                    Err(why) => failed.entry(why).or_default().insert(rank),
                };
                if began.elapsed() > BATCH_TIME {
                    break;
                }
            }
            if !started.is_empty() {
                inputs.push(Input::Started(job.plan.id, started));
            }
            for (why, ranks) in failed {
                inputs.push(Input::NotStarted(job.plan.id, ranks, NotStartedReason::Reported(why)));
            }
            if !job.left.is_empty() {
                self.jobs.push_front(job);
                break;
            }
        }
        inputs
    }

    fn start(&mut self, job: &mut Job, rank: Rank, table: &mut RankTable) -> Result<(), String> {
        let (appnum, _) = job.plan.command_of(rank).ok_or("the plan has no command for it")?;
        let image = job.commands[appnum].as_ref().map_err(ToString::to_string)?;
        let machine =
            |error: io::Error| format!("{error}; try more agents with --agents-per-node, or a higher ulimit -n");
        let (out_read, out_write) = sys::pipe().map_err(machine)?;
        let (err_read, err_write) = sys::pipe().map_err(machine)?;
        let input = if job.plan.stdin.contains(rank) { Some(sys::input_pipe().map_err(machine)?) } else { None };
        let socket = if job.port.is_none() { Some(sys::socket_pair().map_err(machine)?) } else { None };
        let (to_task, connections) = mpsc::channel(1);
        let descriptors = Descriptors {
            stdin: input.as_ref().map_or(self.null.as_fd(), |(read, _)| read.as_fd()),
            stdout: out_write.as_fd(),
            stderr: err_write.as_fd(),
            pmi: socket.as_ref().map(|(_, theirs)| theirs.as_fd()),
        };
        let inode = socket.as_ref().map(|(_, theirs)| sys::inode(theirs.as_fd())).transpose().map_err(machine)?;
        let variables = own_variables(&job.plan, rank, inode);
        let child = self
            .spawner
            .spawn(image, &variables, descriptors)
            .map_err(|error| format!("program '{}': {error}", image.path().display()))?;
        let key = (job.plan.id, rank);
        let (ended, on_end) = oneshot::channel();
        let span = tracing::debug_span!("rank", %rank, pid = child.pid());
        let last_call = table.insert(key, child, ended);
        if let Some((ours, _)) = socket {
            let connection = sys::watch(ours).map_err(machine)?;
            // Never full: the channel is new and has room for one.
            let _ = to_task.try_send(connection);
        }
        if let Some(port) = &job.port {
            port.expect(rank, to_task);
        }
        let conversation = Conversation::new(Arc::clone(&job.attributes), rank, appnum as i32);
        let serving = Serving {
            key,
            conversation,
            board: Rc::clone(&job.board),
            by_port: job.port.is_some(),
            has_segment: false,
            last_call,
            scratch: Rc::clone(&self.scratch),
            events: self.events.clone(),
        };
        self.tasks.spawn("rank", span, serving.run(connections, on_end));
        self.pump.follow(job.plan.id, rank, Lane::Stdout, out_read);
        self.pump.follow(job.plan.id, rank, Lane::Stderr, err_read);
        if let Some((_, write)) = input {
            self.input.borrow_mut().connect(rank, write, &self.tasks);
        }
        Ok(())
    }
}

/// Prepares a command for execve(2), with the environment that all its ranks share.
fn prepare(
    session: &SessionPlan,
    plan: &NamespacePlan,
    command: &CommandPlan,
    port: Option<&str>,
) -> Result<Image, ImageError> {
    let mut environment: LiteMap<&[u8], Vec<u8>> = LiteMap::new();
    let inherits = |name: &[u8]| match &command.inherit {
        Inherit::All => true,
        Inherit::Nothing => false,
        Inherit::Names(names) => names.iter().any(|wanted| wanted == name),
    };
    for (name, value) in session.environment.iter().filter(|(name, _)| inherits(name)).chain(&command.set) {
        environment.insert(name, value.clone());
    }
    let local_size = plan
        .placement
        .first()
        .and_then(|(_, ranks)| ranks.first())
        .and_then(|rank| plan.mapping.node_of(rank))
        .map_or(0, |node| plan.mapping.local_size(node));
    let mut set = |name: &'static str, value: String| environment.insert(name.as_bytes(), value.into_bytes());
    set("PMI_SIZE", plan.size.to_string());
    match port {
        None => set("PMI_FD", PMI_FD.to_string()),
        Some(address) => set("PMI_PORT", address.to_owned()),
    };
    if plan.spawner.is_some() {
        set("PMI_SPAWNED", "1".to_owned());
    }
    set("MPI_LOCALNRANKS", local_size.to_string());
    // MVAPICH2 derives its affinity from the local size; gfortran would buffer the output.
    set("MV2_COMM_WORLD_LOCAL_SIZE", local_size.to_string());
    set("GFORTRAN_UNBUFFERED_PRECONNECTED", "y".to_owned());
    for name in PER_RANK {
        environment.remove(name.as_bytes());
    }
    let environment: Vec<Variable> = environment.into_iter().map(|(name, value)| (name.to_vec(), value)).collect();
    let argv: Vec<Vec<u8>> = std::iter::once(&command.program).chain(&command.args).cloned().collect();
    Image::prepare(&command.program, &argv, &environment, &command.wdir)
}

const PER_RANK: [&str; 5] = ["PMI_RANK", "PMI_ID", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", segment::VARIABLE];

/// Returns the variables that differ from rank to rank. `inode` is that of its PMI socket, or `None` in port mode.
fn own_variables(plan: &NamespacePlan, rank: Rank, inode: Option<u64>) -> Vec<CString> {
    let local = plan.mapping.local_rank(rank).unwrap_or_default();
    let variable = |name: &str, value: &str| CString::new(format!("{name}={value}")).unwrap_or_default();
    let (rank, local) = (rank.to_string(), local.to_string());
    let mut variables = vec![
        variable(if inode.is_some() { "PMI_RANK" } else { "PMI_ID" }, &rank),
        variable("MPI_LOCALRANKID", &local),
        variable("MV2_COMM_WORLD_LOCAL_RANK", &local),
    ];
    // Descriptors can be passed over an inherited Unix socket, not over TCP.
    variables.extend(inode.map(|inode| variable(segment::VARIABLE, &segment::announcement(inode))));
    variables
}
