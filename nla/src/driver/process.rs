//! Runs an agent's process from its first instruction to its exit code: order, limits, runtime, tree, driver.

use std::io;
use std::time::Duration;

use tokio::task::LocalSet;

use super::agent::{AgentDriver, PANICKED};
use crate::bootstrap::{self, BootOrder, JoinOutcome, StartFailure, StartPhase};
use crate::core::limits::RANKS_PER_AGENT;
use crate::link::Clock;
use crate::sys::{self, GuardianLink};
use crate::tasks::Panics;

/// The initial size of the descriptor table: enough for the ranks that an agent has by default.
const DESCRIPTORS_AT_ONCE: u64 = 4 * RANKS_PER_AGENT as u64 + 128;

/// How the process of an agent has begun.
#[derive(Copy, Clone, Debug)]
pub enum Origin {
    /// A remote shell or a step has executed it.
    Executed,
    /// The launcher has forked it, with its clock.
    Forked(Clock),
    /// The launcher has forked it, with its clock, before it knew the session. The order may take any time.
    StandsBy(Clock),
}

/// Runs an agent. Unless it stands by, its order must arrive on standard input within `dead_time` or `ORDER_TIME_MIN`, whichever is
/// longer. Returns its exit code. Takes over the process, so call it right after [`guarded`](sys::guarded) has returned.
pub fn run_agent(guardian: GuardianLink, dead_time: Duration, origin: Origin) -> u8 {
    let (clock, order_time) = match origin {
        Origin::Executed => (None, Some(dead_time)),
        Origin::Forked(clock) => (Some(clock), Some(dead_time)),
        Origin::StandsBy(clock) => (Some(clock), None),
    };
    bootstrap::with_order(order_time, |order| {
        // The first sign of life of an agent that stood by. If the guardian is dead, the driver notices.
        let _ = guardian.alive();
        let descriptors = prepare_process().map_err(limits)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(limits)?;
        let code = LocalSet::new().block_on(&runtime, run(order, clock, guardian, descriptors, Panics::new("agent")));
        // No task that still runs is worth waiting for.
        runtime.shutdown_background();
        code
    })
}

/// Sets up the process as a whole. Returns how many descriptors it may open.
fn prepare_process() -> io::Result<u64> {
    sys::reserve_low()?;
    let descriptors = sys::raise_limit()?;
    sys::make_room(DESCRIPTORS_AT_ONCE)?;
    sys::forbid_dump()?;
    sys::become_subreaper()?;
    Ok(descriptors)
}

/// Joins the tree and takes part in it until the session is over. Returns the exit code.
async fn run(
    order: &BootOrder,
    clock: Option<Clock>,
    guardian: GuardianLink,
    descriptors: u64,
    mut panics: Panics,
) -> Result<u8, StartFailure> {
    let tasks = panics.tasks();
    let joined = match panics.watch("bootstrap", bootstrap::join(order, clock, descriptors, &guardian, &tasks)).await {
        Ok(Ok(JoinOutcome::Joined(joined))) => *joined,
        Ok(Ok(JoinOutcome::Exit(code))) => return Ok(code),
        Ok(Err(failure)) => return Err(failure),
        Err(panic) => {
            bootstrap::report_failure(order, StartFailure::new(StartPhase::Ended, panic.to_string()));
            return Ok(PANICKED);
        }
    };
    let driver = AgentDriver::new(joined, guardian, order, &tasks).map_err(limits)?;
    Ok(driver.run(&mut panics).await)
}

fn limits(error: io::Error) -> StartFailure {
    StartFailure::new(StartPhase::Limits, error.to_string())
}
