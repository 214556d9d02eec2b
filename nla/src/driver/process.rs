//! Runs an agent's process from its first instruction to its exit code: order, limits, runtime, tree, driver.

use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tokio::task::LocalSet;

use super::agent::{Afterwards, AgentDriver, PANICKED};
use crate::bootstrap::{self, BootOrder, JoinOutcome, Joined, OwnProcess, StartFailure, StartPhase};
use crate::core::limits::RANKS_PER_AGENT;
use crate::link::Clock;
use crate::sys::{self, GuardianLink, Standby};
use crate::tasks::{Panics, Tasks};

/// The initial size of the descriptor table: enough for the ranks that an agent has by default.
const DESCRIPTORS_AT_ONCE: u64 = 4 * RANKS_PER_AGENT as u64 + 128;

/// How long the threads of a session may take to exit after it.
const THREADS_TIME: Duration = Duration::from_millis(500);

/// Runs an agent. Its order must arrive on standard input within `dead_time` or `ORDER_TIME_MIN`, whichever is longer.
/// Returns its exit code. Takes over the process, so call it right after [`guarded`](sys::guarded) has returned. An agent that the
/// launcher has forked has inherited its `clock`, and waits for its order for as long as the launcher lives.
pub fn run_agent(guardian: GuardianLink, dead_time: Duration, clock: Option<Clock>) -> u8 {
    // While the launcher makes the plan. Only the order says to whom a failure is reported.
    let prepared = prepare_process().and_then(|own| Ok((runtime()?, own)));
    let dead_time = clock.is_none().then_some(dead_time);
    bootstrap::with_order(dead_time, guardian, |order, guardian| {
        let (runtime, own) = prepared.map_err(limits)?;
        // Neither is dropped: no task that still runs is worth waiting for, and the kernel frees memory faster.
        let (runtime, tasks) = (ManuallyDrop::new(runtime), ManuallyDrop::new(LocalSet::new()));
        tasks.block_on(&runtime, run(order, clock, guardian, own, Panics::new("agent")))
    })
}

/// Runs an agent for one session after the other: after [`fork_standing`](sys::fork_standing) instead of [`run_agent`]. Returns
/// when the launcher has ended, or when the process is not as it was before a session.
pub fn run_standing_agent(guardian: GuardianLink, clock: Clock) -> u8 {
    let stood_by = || {
        let own = prepare_process()?;
        let standby = Standby::of_stdin()?;
        // The descriptors after the first session. It opens some that stay, such as tokio's pipe for signals.
        let mut open = None;
        loop {
            guardian.rest();
            if !standby.next_session(&guardian)? {
                return Ok(0);
            }
            let link = guardian.try_clone()?;
            let code = bootstrap::with_order(None, link, |order, link| run_session(order, clock, link, own, &standby));
            // Without a guardian, nobody would end the ranks of the next session if this agent were killed.
            let is_guarded = guardian.alive().is_ok();
            let may_stay = code == 0 && is_guarded && sys::has_one_thread_within(THREADS_TIME) && !sys::has_children();
            if !may_stay || sys::open_descriptors()? > *open.get_or_insert(sys::open_descriptors()?) {
                return Ok(code);
            }
        }
    };
    stood_by().unwrap_or_else(|error: io::Error| {
        tracing::error!(%error, "the agent cannot stand by");
        PANICKED
    })
}

/// Joins a session, waits until it begins, and takes part in it.
fn run_session(
    order: &BootOrder,
    clock: Clock,
    guardian: GuardianLink,
    own: OwnProcess,
    standby: &Standby,
) -> Result<u8, StartFailure> {
    guardian.announce_limit(order.stop_time);
    let runtime = runtime().map_err(limits)?;
    let code = LocalSet::new().block_on(&runtime, async {
        let mut panics = Panics::new("agent");
        let tasks = panics.tasks();
        match bootstrap::join_and_stand_by(order, clock, own, &guardian, standby)? {
            JoinOutcome::Joined(joined) => {
                take_part(*joined, guardian, order, &tasks, &mut panics, Afterwards::Stay).await
            }
            JoinOutcome::Exit(code) => Ok(code),
        }
    });
    // No task that still runs is worth waiting for.
    runtime.shutdown_background();
    code
}

fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// Sets up the process as a whole.
fn prepare_process() -> io::Result<OwnProcess> {
    sys::reserve_low()?;
    let descriptors = sys::raise_limit()?;
    sys::make_room(DESCRIPTORS_AT_ONCE)?;
    sys::forbid_dump()?;
    sys::become_subreaper()?;
    Ok(OwnProcess::new(descriptors))
}

/// Joins the tree and takes part in it until the session is over. Returns the exit code.
async fn run(
    order: &BootOrder,
    clock: Option<Clock>,
    guardian: GuardianLink,
    own: OwnProcess,
    mut panics: Panics,
) -> Result<u8, StartFailure> {
    guardian.announce_limit(order.stop_time);
    let tasks = panics.tasks();
    // Large futures are boxed: each frame that they are copied to costs page faults.
    let joining = Box::pin(bootstrap::join(order, clock, own, &guardian, &tasks));
    let joined = match panics.watch("bootstrap", joining).await {
        Ok(Ok(JoinOutcome::Joined(joined))) => *joined,
        Ok(Ok(JoinOutcome::Exit(code))) => return Ok(code),
        Ok(Err(failure)) => return Err(failure),
        Err(panic) => {
            bootstrap::report_failure(order, StartFailure::new(StartPhase::Ended, panic.to_string()));
            return Ok(PANICKED);
        }
    };
    take_part(joined, guardian, order, &tasks, &mut panics, Afterwards::Exit).await
}

/// Takes part in the tree until the session is over. Returns the exit code.
async fn take_part(
    joined: Joined,
    guardian: GuardianLink,
    order: &BootOrder,
    tasks: &Tasks,
    panics: &mut Panics,
    afterwards: Afterwards,
) -> Result<u8, StartFailure> {
    let driver = Box::new(AgentDriver::new(joined, guardian, order, tasks).map_err(limits)?);
    Ok(Box::pin(driver.run(panics, afterwards)).await)
}

fn limits(error: io::Error) -> StartFailure {
    StartFailure::new(StartPhase::Limits, error.to_string())
}
