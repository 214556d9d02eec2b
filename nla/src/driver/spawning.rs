//! A thread that starts ranks: chdir and exec may stall with the file system, and the agent must go on meanwhile.
//!
//! The thread lives as long as the agent's process: if it ended, the kernel would kill the ranks that it has started
//! (PR_SET_PDEATHSIG follows the thread). Results become available in the order of the orders.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use super::trace::StartTrace;
use crate::core::{LackOfDevices, NotStartedReason, Seat, TraceSpan, Variable};
use crate::sys::{self, Child, Descriptors, Image, ImageError, LaunchSlot, Masks, MemoryWatch, SpawnStep, Spawner};
use crate::tasks::Tasks;

/// The number of results that the agent is woken for, while further orders are left: a wake-up per rank would take a
/// tenth of the time of a start.
pub(super) const RESULTS_AT_ONCE: usize = 8;

/// A command with the environment that all its ranks share.
pub(super) struct Command {
    pub(super) program: Vec<u8>,
    pub(super) argv: Vec<Vec<u8>>,
    pub(super) environment: Vec<Variable>,
    pub(super) wdir: Vec<u8>,
}

/// The programs of a namespace's commands. Empty until a spawner thread has looked for them.
pub(super) type Programs = Arc<OnceLock<Vec<Result<Image, ImageError>>>>;

/// The program of the command with this number.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) programs: Programs,
    pub(super) command: usize,
}

impl Program {
    /// Fails if the program cannot be started, or if no thread has looked for it.
    pub(super) fn image(&self) -> Result<&Image, String> {
        let image =
            self.programs.get().and_then(|images| images.get(self.command)).ok_or("its program was not found")?;
        image.as_ref().map_err(ToString::to_string)
    }

    /// Returns the path of the program, for messages.
    pub(super) fn path(&self) -> String {
        self.image().map_or_else(|why| why, |image| image.path().display().to_string())
    }

    /// Returns the working directory, for messages.
    pub(super) fn wdir(&self) -> String {
        self.image().map_or_else(|why| why, |image| image.wdir().display().to_string())
    }
}

/// Why a rank cannot be started. Ranks with the same reason are reported together.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WhyNot {
    /// For this reason.
    Text(String),
    /// There are too few devices.
    LackOfDevices(LackOfDevices),
}

impl From<String> for WhyNot {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<LackOfDevices> for WhyNot {
    fn from(lack: LackOfDevices) -> Self {
        Self::LackOfDevices(lack)
    }
}

impl From<WhyNot> for NotStartedReason {
    fn from(why: WhyNot) -> Self {
        match why {
            WhyNot::Text(text) => Self::Reported(text),
            WhyNot::LackOfDevices(lack) => Self::LackOfDevices(lack),
        }
    }
}

/// An order to the thread.
pub(super) enum Order {
    /// Find the programs of these commands on this node.
    Prepare(Vec<Command>, Programs),
    /// Start a rank.
    Start(Box<StartOrder>),
}

/// A rank to be started, with its ends of pipes and sockets.
pub(super) struct StartOrder {
    pub(super) program: Program,
    pub(super) variables: Vec<CString>,
    /// `None`: /dev/null.
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) pmi: Option<OwnedFd>,
    pub(super) seat: Seat,
    pub(super) leads_session: bool,
}

/// The result of an order.
pub(super) enum Done {
    /// The programs were looked for. The count of processes that the out-of-memory killer had killed then, if it is known.
    Prepared(MemoryWatch),
    /// The rank's process, or why there is none.
    Started(Result<Child, String>),
}

#[derive(Default)]
struct State {
    /// Bounded by the orders that the agent gives before it waits for results.
    orders: VecDeque<Order>,
    done: Vec<Done>,
    /// Notes the starts, if they are traced.
    trace: Option<StartTrace>,
    /// No order follows.
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ordered: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of the thread.
pub(super) struct SpawnerThread {
    shared: Arc<Shared>,
    /// The child in launch.
    pub(super) slot: LaunchSlot,
}

impl SpawnerThread {
    /// Starts the thread, which notifies `finished` when [`RESULTS_AT_ONCE`] results are available and when it has no order
    /// left.
    pub(super) fn start(mut spawner: Spawner, finished: Arc<Notify>, tasks: &Tasks) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let slot = spawner.slot();
        let null = sys::dev_null(false)?;
        let (of_thread, child) = (Arc::clone(&shared), slot.clone());
        tasks.spawn_thread("spawner", move || {
            sys::leave_exit_signals();
            loop {
                let (order, clock) = {
                    let mut state = of_thread.state();
                    loop {
                        match state.orders.pop_front() {
                            Some(order) => break (order, state.trace.as_ref().map(|trace| trace.clock)),
                            None if state.is_over => return,
                            None => state = of_thread.ordered.wait(state).unwrap_or_else(PoisonError::into_inner),
                        }
                    }
                };
                let began = clock.filter(|_| matches!(order, Order::Start(_))).map(|clock| clock.now());
                let done = match order {
                    Order::Prepare(commands, programs) => {
                        // Set once: a namespace's programs are ordered once.
                        let _ = programs.set(commands.iter().map(prepare).collect());
                        // Here, because the agent has other work meanwhile. No rank of the namespace runs yet.
                        Done::Prepared(MemoryWatch::begin())
                    }
                    Order::Start(order) => Done::Started(start(&mut spawner, *order, &null)),
                };
                let is_due = child.settle(|| {
                    let mut state = of_thread.state();
                    state.done.push(done);
                    if let (Some(began), Some(trace)) = (began, &mut state.trace) {
                        trace.note(began);
                    }
                    state.orders.is_empty() || state.done.len() == RESULTS_AT_ONCE
                });
                if is_due {
                    finished.notify_one();
                }
            }
        })?;
        Ok(Self { shared, slot })
    }

    /// Notes the starts from now on.
    pub(super) fn trace(&self, trace: StartTrace) {
        self.shared.state().trace = Some(trace);
    }

    /// Returns the starts that were noted.
    pub(super) fn spans(&self) -> Vec<TraceSpan> {
        self.shared.state().trace.as_ref().map(|trace| trace.spans().to_vec()).unwrap_or_default()
    }

    /// Gives an order to the thread.
    pub(super) fn order(&self, order: Order) {
        self.shared.state().orders.push_back(order);
        self.shared.ordered.notify_one();
    }

    /// Takes back the orders that the thread has not begun. Returns their number.
    pub(super) fn withdraw(&self) -> usize {
        let withdrawn = std::mem::take(&mut self.shared.state().orders);
        withdrawn.len()
    }

    /// Takes the available results, in the order of the orders.
    pub(super) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut self.shared.state().done)
    }
}

impl Drop for SpawnerThread {
    /// Ends the thread, at the end of the agent: the kernel kills the children of a thread that has ended.
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.ordered.notify_one();
    }
}

fn prepare(command: &Command) -> Result<Image, ImageError> {
    let Command { program, argv, environment, wdir } = command;
    Image::prepare(program, argv, environment, wdir)
}

/// Starts a rank. Closes our copies of its descriptors, so that readers get end of file.
fn start(spawner: &mut Spawner, order: StartOrder, null: &OwnedFd) -> Result<Child, String> {
    let image = order.program.image()?;
    let descriptors = Descriptors {
        stdin: order.stdin.as_ref().unwrap_or(null).as_fd(),
        stdout: order.stdout.as_fd(),
        stderr: order.stderr.as_fd(),
        pmi: order.pmi.as_ref().map(AsFd::as_fd),
    };
    spawner.lead_sessions(order.leads_session);
    let masks = Masks { cpus: order.seat.cpus.words(), memory: order.seat.memory.words() };
    let child = spawner.spawn(image, &order.variables, descriptors, masks);
    child.map_err(|error| {
        let limit = Some(error.errno).filter(|_| error.step == SpawnStep::Clone).and_then(sys::reached_limit);
        let limit = limit.map(|limit| format!("; {limit}")).unwrap_or_default();
        format!("program '{}': {error}{limit}", image.path().display())
    })
}
